"""One seed's cluster: the processes, what they stand on, and everybody who watches them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any

from connectgroup.coordinator.compute import LIMIT_S
from connectgroup.coordinator.own_assignors import server_assignors
from connectgroup.coordinator.runtime import Coordinator
from connectgroup.coordinator.shard import Shard
from connectgroup.errors import GroupError, LogError
from connectgroup.group.connect.settings import GroupSettings
from connectgroup.group.connect.state import Group
from connectgroup.member.state_machine import MemberSettings
from connectgroup.protocol.messages.api import Request
from connectgroup.protocol.messages.assignment import InstallRequest
from connectgroup.protocol.messages.connectors import ConnectorChange
from connectgroup.protocol.records.connect import Record
from connectgroup.protocol.units import Unit, Units
from connectgroup.worker.loop import Worker
from connectgroup.worker.runner import RunnerSettings, TaskRunner
from connectgroup.worker.settings import Connections, WorkerSettings

from . import network as wires
from .desk import Desk
from .disk import SimulatedDisk, SimulatedLog
from .invariants import ALL, Violation, Watch, place_of
from .loop import NOWHERE, SCRATCH, Node, SimulatedLoop
from .network import Network, SimulatedClient
from .plugins import SimulatedConnector, SimulatedListener, SimulatedTask, make_assignor
from .setting import Setting, draw
from .sink import Sink
from .sometimes import Sometimes
from .trace import Trace

GROUP = "workers"
SLICES = 24
ROWS_A_SECOND = 10
ASSIGNOR_TIMEOUT_S = 6.0
SERVER_ASSIGNORS = server_assignors(["balanced"])


class WorkerNode(Node):
    """A worker process."""

    def __init__(
        self, cluster: Cluster, place: str, life: int, *, lists_assignors: bool, member_id: str | None = None
    ) -> None:
        super().__init__(f"{place}.{life}", cluster.seed_text, drift=cluster.setting.drift)
        self.cluster, self.place, self.member_id = cluster, place, place
        self.instance_id = f"i-{place}" if cluster.setting.statics else None
        if cluster.setting.statics and self.random.random() < 0.7:
            self.member_id = f"{place}-{life}"
        self.member_id = member_id or self.member_id
        self.running: dict[tuple[Unit, int], SimulatedTask] = {}
        self.told: Units = frozenset()
        self.stop_asked_s: float | None = None
        self.ended = False
        self.refused = ""
        self.clients = [SimulatedClient(cluster.network, self, label) for label in ("heartbeats", "control")]
        self.worker: Worker = self.context.run(self._make, lists_assignors)
        self.main = cluster.loop.create_task(self._live(), context=self.context)

    def _make(self, lists_assignors: bool) -> Worker:
        cluster = self.cluster
        worker = Worker(
            MemberSettings(
                group_id=GROUP,
                member_id=self.member_id,
                instance_id=self.instance_id,
                rebalance_timeout_ms=int(cluster.rebalance_s * 1000),
                max_wait_ms=cluster.max_wait_ms,
            ),
            Connections(heartbeats=self.clients[0], control=self.clients[1]),
            assignors=[make_assignor(self, cluster.versions_of(self.place))] if lists_assignors else [],
            listeners=[SimulatedListener(self)],
            times=WorkerSettings(
                call_timeout_s=3.0,
                assignor_timeout_s=ASSIGNOR_TIMEOUT_S,
                lose_timeout_s=1.5 * cluster.rebalance_s,
                first_sequence=cluster.next_sequence(),
            ),
        )
        connector = type("SimulatedConnector", (SimulatedConnector,), {"node": self})
        worker.set_runner(
            TaskRunner(
                self.member_id,
                RunnerSettings(scratch=SCRATCH, refresh_s=5.0, retry_initial_s=0.5, retry_max_s=8.0),
                load_class=lambda name: connector,
                publish=worker.publish_tasks,
                report=worker.report,
            )
        )
        return worker

    @property
    def leaving(self) -> bool:
        """Whether it has been asked to stop, or to have its work taken over and then stop."""
        return self.stop_asked_s is not None or self.worker.member.draining

    async def _live(self) -> None:
        try:
            await self.worker.run()
        except GroupError as error:
            self.refused = str(error)
        self.ended = True
        self.cluster.on_ended(self)

    def pace(self, name: str) -> tuple[float, float] | None:
        """Starts and callbacks are quick; a stop is slow more often than not."""
        kind, random, cluster = name.partition(" ")[0], self.random, self.cluster
        if kind in cluster.paces:
            return cluster.paces[kind], 0.0
        if kind == "assignor":
            # Not for ever: its worker would not ask it again before it was restarted.
            hangs = cluster.mood("an assignor hangs", self)
            return (random.uniform(1, 4) * ASSIGNOR_TIMEOUT_S, 0.0) if hangs else (0.0, random.uniform(0, 0.1))
        if kind == "stop":
            if cluster.mood("a stop overstays", self):
                return random.uniform(0.5, 3) * cluster.rebalance_s, random.uniform(0, 1)
            if cluster.mood("a stop is slow", self):
                return random.uniform(0, 0.9) * cluster.rebalance_s, random.uniform(0, 0.5)
            return random.uniform(0, 0.3), random.uniform(0, 0.05)
        if kind == "start" and cluster.mood("a write is late", self):
            # A task begins with a claim, and that is a write too.
            return random.random() * 2 * cluster.session_s, random.uniform(0, 0.05)
        return random.uniform(0, 0.02), random.uniform(0, 0.05)


class WatchedShard(Shard):
    """The shipped shard; the invariants are checked after each of its turns."""

    node: CoordinatorNode

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._decided: list[Any] = []
        self._decide: Any = self.decisions.decide
        self.decisions.decide = self._see_decision  # type: ignore[assignment,method-assign]

    async def _turn(self, commands: Any) -> None:
        expired = [command for command in commands if command in self.timers.expired.values()]
        self._decided = []
        await super()._turn(commands)
        if any(command not in self._decided for command in expired):
            self.node.cluster.sometimes.reach("a message ended an expired timer of its own turn")
        self.node.cluster.watch.after_turn(self.node)

    def _see_decision(self, command: Any, *rest: Any) -> None:
        self._decided.append(command)
        self._decide(command, *rest)


class WatchedCoordinator(Coordinator):
    """The shipped coordinator with a watched shard."""

    shard_class = WatchedShard
    shard: WatchedShard


class CoordinatorNode(Node):
    """A coordinator process."""

    def __init__(self, cluster: Cluster, life: int) -> None:
        super().__init__(f"coordinator.{life}", cluster.seed_text, drift=cluster.setting.drift)
        self.cluster = cluster
        self.log = SimulatedLog(cluster.disk, partial(cluster.kill_coordinator, self))
        self.coordinator: WatchedCoordinator | None = None
        self.main = cluster.loop.create_task(self._start(), context=self.context)

    def pace(self, name: str) -> tuple[float, float] | None:
        """A server-side assignor is quick; while faults are injected also slow, or exceeds its time limit."""
        if self.cluster.mood("an assignor hangs", self):
            return self.random.uniform(0.5, 2.0) * LIMIT_S, 0.0
        slow_s = 3.0 if self.cluster.moods else 0.3
        return 0.0, self.random.choice([0.0, 0.0, self.random.uniform(0, 0.3), self.random.uniform(0, slow_s)])

    async def _start(self) -> None:
        coordinator = WatchedCoordinator(self.log, self.cluster.settings, wall_clock_ms=self.cluster.wall_clock_ms)
        coordinator.shard.node = self
        while True:
            try:
                await coordinator.start()
                break
            except LogError:
                await asyncio.sleep(0.5)
        self.coordinator = coordinator
        self.cluster.watch.on_loaded(self)
        self.cluster.say("serves", self.name, f"epoch {self.log.epoch}")


class Cluster:
    """See the module. One is made for one seed, inside ``loop.simulated`` and on its own loop."""

    def __init__(
        self,
        seed: int,
        loop: SimulatedLoop,
        *,
        members: int | None = None,
        tasks: int | None = None,
        setting: Setting | None = None,
    ) -> None:
        self.seed, self.seed_text, self.loop = seed, f"seed {seed}", loop
        self.random = Random(f"{seed} cluster")
        random = self.random
        self.session_s = random.choice([6.0, 10.0, 10.0])
        self.rebalance_s = random.choice([5.0, 10.0])
        self.max_wait_ms = random.choice([0, 2_000, 2_000, 3_000, 3_000])
        self.batch_every_s = (4.0, 20.0)
        self.setting = draw(Random(f"{seed} setting"), self.session_s) if setting is None else setting
        loop.drifts = bool(self.setting.drift)
        self.settings = GroupSettings(
            scheduled_delay_ms=int(self.setting.delay_s * 1000),
            max_moves=self.setting.max_moves,
            session_timeout_ms=int(self.session_s * 1000),
            heartbeat_interval_ms=int(self.session_s * 300),
            server_assignor="balanced",
            server_assignors=SERVER_ASSIGNORS,
        )
        self.sometimes = Sometimes()
        self.armed: Counter[str] = Counter()
        self.hits: Counter[str] = Counter()
        self.moods: dict[str, float] = {}
        self.paces: dict[str, float] = {}  # seconds that each call of a kind takes for now
        self.trace = Trace()
        self.violations: list[Violation] = []
        self.durable = Group(GROUP)
        self.watch = Watch(self, ALL)
        self.disk = SimulatedDisk(
            Random(f"{seed} disk"), self.sometimes, self.on_durable, self.hit, self.setting.batch_bytes
        )
        self.sink = Sink(self.sometimes, self.watch, SLICES)
        self.network = Network(self, Random(f"{seed} network"))
        self.handling: dict[Any, Any] = {}
        self.coordinators: list[CoordinatorNode] = []
        self.workers: dict[str, WorkerNode] = {}
        self.twins: dict[str, WorkerNode] = {}
        self.graves: list[WorkerNode] = []
        self.clock_ms = 1_700_000_000_000
        self.source_ends_s: float | None = None
        self.parts: dict[str, int] = {}
        self._sequence = 0
        self._lives = 0
        self.desk = Desk(self, GROUP)
        self._operator = SimulatedClient(self.network, self.desk, "control")
        self.members_at_first = members or random.choice([3, 4, 5, 6, 8, 10])
        self.tasks_at_first = tasks or random.choice([3, 10, 20, 40])
        self.over = False
        self.lists_assignors = random.choice(["all", "all", "all", "none", "some"])

    # ---- words and numbers

    def say(self, *words: object) -> None:
        """One event, one line; the hash of all lines is the run's."""
        if not self.over:
            self.trace.add((self.loop.now, *words))

    @property
    def digest(self) -> Trace:
        """Of all that was said; see ``hexdigest``."""
        return self.trace

    @property
    def events(self) -> int:
        """How many there were."""
        return self.trace.events

    def violated(self, name: str, what: str) -> None:
        """An invariant does not hold; the first is the one that counts."""
        if not self.over:
            self.violations.append(Violation(self.seed, name, what, self.loop.now, self.trace.story()))

    def hit(self, fault: str) -> None:
        """A fault has had its effect."""
        self.hits[fault] += 1

    def mood(self, fault: str, node: Node) -> bool:
        """Whether somebody misbehaves this time."""
        chance = self.moods.get(fault, 0.0)
        if chance and node.random.random() < chance:
            self.hits[fault] += 1
            self.say(fault, node.name)
            return True
        return False

    def next_sequence(self) -> int:
        """Where a new process begins to count its heartbeats: above all that went before, as a clock would have it."""
        self._sequence += 1_000_000
        return self._sequence

    def wall_clock_ms(self) -> int:
        """The coordinator's wall clock, which jumps."""
        return self.clock_ms + int(self.loop.now * 1000)

    def source_end(self) -> int:
        """Where every slice of every source ends by now."""
        now_s = self.loop.now if self.source_ends_s is None else self.source_ends_s
        return int(now_s * ROWS_A_SECOND)

    def parts_of(self, connector: str) -> int:
        """How many tasks a connector's source is good for just now."""
        return self.parts.get(connector, 1)

    def sink_delay_s(self, node: Node) -> float:
        """How long a write takes to get to the sink."""
        if self.mood("a write is late", node):
            return node.random.random() * 2 * self.session_s
        return node.random.uniform(0.001, 0.02)

    # ---- processes

    def start_coordinator(self) -> CoordinatorNode:
        """A new coordinator process; it takes the log from whoever had it."""
        self._lives += 1
        node = CoordinatorNode(self, self._lives)
        self.coordinators.append(node)
        self.say("coordinator starts", node.name)
        return node

    @property
    def serving(self) -> CoordinatorNode | None:
        """The coordinator that lives and has the log, or is about to take it."""
        newest = self.disk.storage.epoch
        alive = (node for node in reversed(self.coordinators) if not node.dead)
        return next((node for node in alive if node.coordinator is None or node.log.epoch == newest), None)

    def kill_coordinator(self, node: CoordinatorNode) -> None:
        """The process is gone; most of its clients notice at once."""
        if node.dead:
            return
        node.kill()
        self.say("coordinator dies", node.name)
        for worker in self.workers.values():
            for client in worker.clients:
                if client.peer is node and self.random.random() < 0.8:
                    self.loop.call_later(
                        0.001 + self.random.random() * 0.1, client.reset, "the coordinator died", context=NOWHERE
                    )

    def start_worker(self, place: str, member_id: str | None = None) -> WorkerNode:
        """A new worker process in a place where none lives, with its predecessor's member id or instance id.

        Args:
            member_id: its member id; ``None`` draws it.
        """
        self._lives += 1
        self.watch.happened += 1
        lists = self.lists_assignors == "all" or (self.lists_assignors == "some" and self.random.random() < 0.7)
        before = self.workers.get(place)
        assert before is None or before.dead
        node = WorkerNode(self, place, self._lives, lists_assignors=lists, member_id=member_id)
        self.workers[place] = node
        self.say("worker starts", node.name)
        if node.member_id in self.durable.members:
            self.sometimes.reach("a member came back with its old id")
        return node

    def kill_worker(self, node: WorkerNode) -> None:
        """SIGKILL: its threads are gone with it."""
        node.kill()
        node.running.clear()
        self.graves.append(node)
        self.say("worker dies", node.name)

    def living(self) -> list[WorkerNode]:
        """Worker processes that run or stand still, by name."""
        return [node for _, node in sorted(self.workers.items()) if not node.dead]

    def start_twin(self, place: str) -> WorkerNode:
        """Another worker process in a place where one lives: with its member id, or its instance id."""
        self._lives += 1
        self.watch.happened += 2
        node = WorkerNode(self, place, self._lives, lists_assignors=self.lists_assignors != "none")
        self.twins[place] = node
        self.say("twin starts", node.name)
        return node

    def has_twin(self, member_id: str) -> bool:
        """Whether there are, or were, two processes in a member's place."""
        return place_of(member_id) in self.twins

    def versions_of(self, place: str) -> tuple[int, int]:
        """The assignor versions a worker can read."""
        ranges = self.setting.versions
        return ranges[int(place[1:]) % len(ranges)]

    # ---- the operator

    async def operate(self) -> None:
        """Carry out the operator's orders, one by one."""
        await self.desk.work(self._operator)

    def put_in_order(self) -> None:
        """Every connector is there, running, with as many tasks as its source is good for."""
        for name in sorted(self.parts):
            self.desk.order_connector(name, self.parts_of(name))
            self.desk.order(ConnectorChange(connector=name, target_state=1))

    # ---- what the parts tell

    def on_durable(self, records: Sequence[Record], epoch: int) -> None:
        """A batch is safe."""
        self.say("durable", epoch, *sorted({type(record).__name__ for record in records}), self.durable.epoch)
        try:
            self.watch.on_durable(records, epoch)
        except Exception as error:
            # Whoever appends would take it for a disk that fails.
            self.violated("a bug", f"{type(error).__name__}: {error}")
            raise

    def on_request(self, node: Node, request: Request) -> None:
        """Somebody sends a request."""
        self.say(node.name, *wires.shows(request))
        if isinstance(node, WorkerNode):
            self.watch.on_request(node, request)

    def on_response(self, peer: CoordinatorNode, request: Request, response: Any, at_s: float, copy: bool) -> None:
        """A coordinator has answered."""
        code = getattr(response, "error_code", 0)
        self.say(peer.name, "answers", wires.names_member(request), *wires.shows(request), code)
        self.watch.on_response(peer, request, response, at_s, copy)

    def on_started(self, node: WorkerNode, unit: Unit, epoch: int, task: SimulatedTask) -> None:
        """A task has begun."""
        self.say("start", node.name, *unit, epoch)
        self.watch.on_started(node, unit, epoch)
        node.running[unit, epoch] = task

    def on_stopped(self, node: WorkerNode, unit: Unit, epoch: int) -> None:
        """A task has ended."""
        self.say("stop", node.name, *unit, epoch)
        node.running.pop((unit, epoch), None)

    def on_listener(self, node: WorkerNode, event: str, units: Units, what: str) -> None:
        """A listener is called, or returns."""
        self.say(node.name, event, len(units), what)
        self.watch.on_listener(node, event, units, what)

    def on_ended(self, node: WorkerNode) -> None:
        """A worker has left in good order, or has been turned away."""
        self.say("worker ends", node.name, node.refused)
        self.watch.on_ended(node)
        self.kill_worker(node)

    def meddle(self, node: Node, request: InstallRequest) -> InstallRequest:
        """A computed assignment on its way out."""
        if self.mood("an install is not legal", node):
            return wires.spoilt(request, node.random)
        return request
