"""One seed's cluster: the processes, the simulated disk, network and sink, and the invariants that watch them."""

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
from connectgroup.member.settings import MemberSettings
from connectgroup.protocol.messages.api import Request
from connectgroup.protocol.messages.assignment import InstallRequest
from connectgroup.protocol.messages.connectors import ConnectorChange
from connectgroup.protocol.records.connect import Record
from connectgroup.protocol.units import Unit, Units
from connectgroup.worker.loop import Worker
from connectgroup.worker.runner import TaskRunner
from connectgroup.worker.runner_settings import RunnerSettings
from connectgroup.worker.settings import Connections, WorkerSettings

from . import network as wires
from .disk import SimulatedDisk, SimulatedLog
from .invariants import ALL, Violation, Watch, slot_of
from .loop import NOWHERE, SCRATCH, Node, SimulatedLoop
from .network import Network, SimulatedClient
from .operator import Operator
from .plugins import SimulatedConnector, SimulatedListener, SimulatedTask, make_assignor
from .setting import Setting, draw
from .sink import Sink
from .sometimes import Sometimes
from .trace import Trace

GROUP = "workers"
SLICES = 24
ROWS_PER_SECOND = 10
ASSIGNOR_TIMEOUT_S = 6.0
SERVER_ASSIGNORS = server_assignors(["balanced"])


class WorkerNode(Node):
    """A worker process."""

    def __init__(
        self, cluster: Cluster, slot: str, life: int, *, lists_assignors: bool, member_id: str | None = None
    ) -> None:
        super().__init__(f"{slot}.{life}", cluster.seed_text, drift=cluster.setting.drift)
        self.cluster, self.slot, self.member_id = cluster, slot, slot
        self.instance_id = f"i-{slot}" if cluster.setting.statics else None
        if cluster.setting.statics and self.random.random() < 0.7:
            self.member_id = f"{slot}-{life}"
        self.member_id = member_id or self.member_id
        self.running: dict[tuple[Unit, int], SimulatedTask] = {}
        self.listener_units: Units = frozenset()
        self.stop_requested_s: float | None = None
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
            assignors=[make_assignor(self, cluster.versions_of(self.slot))] if lists_assignors else [],
            listeners=[SimulatedListener(self)],
            times=WorkerSettings(
                call_timeout_s=3.0,
                assignor_timeout_s=ASSIGNOR_TIMEOUT_S,
                lose_timeout_s=1.5 * cluster.rebalance_s,
                first_sequence=cluster.next_sequence(),
                process_id=cluster.next_process_id(),
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
        """Whether the worker has been requested to stop or to drain."""
        return self.stop_requested_s is not None or self.worker.member.draining

    async def _live(self) -> None:
        try:
            await self.worker.run()
        except GroupError as error:
            self.refused = str(error)
        self.ended = True
        self.cluster.on_ended(self)

    def pace(self, name: str) -> tuple[float, float] | None:
        """How long a call takes: starts and callbacks are quick; a stop is slow more often than not."""
        kind, random, cluster = name.partition(" ")[0], self.random, self.cluster
        if kind in cluster.paces:
            return cluster.paces[kind], 0.0
        if kind == "assignor":
            # Bounded: a worker does not call a hanging assignor again before the worker is restarted.
            hangs = cluster.inject("an assignor hangs", self)
            return (random.uniform(1, 4) * ASSIGNOR_TIMEOUT_S, 0.0) if hangs else (0.0, random.uniform(0, 0.1))
        if kind == "stop":
            if cluster.inject("a stop overstays", self):
                return random.uniform(0.5, 3) * cluster.rebalance_s, random.uniform(0, 1)
            if cluster.inject("a stop is slow", self):
                return random.uniform(0, 0.9) * cluster.rebalance_s, random.uniform(0, 0.5)
            return random.uniform(0, 0.3), random.uniform(0, 0.05)
        if kind == "start" and cluster.inject("a write is late", self):
            # A task begins with a claim, which is a write to the sink.
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
        if self.cluster.inject("an assignor hangs", self):
            return self.random.uniform(0.5, 2.0) * LIMIT_S, 0.0
        slow_s = 3.0 if self.cluster.fault_rates else 0.3
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
    """See the module. Created for one seed, inside ``loop.simulated`` and on its own loop."""

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
        self.fault_rates: dict[str, float] = {}
        self.paces: dict[str, float] = {}  # override: seconds per call, by kind of call
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
        self.dead_workers: list[WorkerNode] = []
        self.clock_ms = 1_700_000_000_000
        self.source_ends_s: float | None = None
        self.parts: dict[str, int] = {}
        self._sequence = self._processes = 0
        self._lives = 0
        self.operator = Operator(self, GROUP)
        self._operator_client = SimulatedClient(self.network, self.operator, "control")
        self.members_at_first = members or random.choice([3, 4, 5, 6, 8, 10])
        self.tasks_at_first = tasks or random.choice([3, 10, 20, 40])
        self.over = False
        self.lists_assignors = random.choice(["all", "all", "all", "none", "some"])

    # ---- trace, faults and clocks

    def say(self, *words: object) -> None:
        """Add one event to the trace; the hash of all events identifies the run."""
        if not self.over:
            self.trace.add((self.loop.now, *words))

    @property
    def events(self) -> int:
        """Number of events so far."""
        return self.trace.events

    def violated(self, name: str, what: str) -> None:
        """Record that an invariant does not hold; the first violation of a run is the one that counts."""
        if not self.over:
            self.violations.append(Violation(self.seed, name, what, self.loop.now, self.trace.history()))

    def hit(self, fault: str) -> None:
        """Count that a fault had an effect."""
        self.hits[fault] += 1

    def inject(self, fault: str, node: Node) -> bool:
        """Whether this call misbehaves: drawn with the fault's current rate."""
        chance = self.fault_rates.get(fault, 0.0)
        if chance and node.random.random() < chance:
            self.hits[fault] += 1
            self.say(fault, node.name)
            return True
        return False

    def next_sequence(self) -> int:
        """The first heartbeat sequence of a new process: above all earlier ones, like a clock."""
        self._sequence += 1_000_000
        return self._sequence

    def next_process_id(self) -> int:
        """The process id of a new process; not in the order of the starts, as random ones."""
        self._processes += 1
        return self._processes * 7_919 % 104_729

    def wall_clock_ms(self) -> int:
        """The coordinator's wall clock; faults make it jump."""
        return self.clock_ms + int(self.loop.now * 1000)

    def source_end(self) -> int:
        """The current end offset of every slice of every source."""
        now_s = self.loop.now if self.source_ends_s is None else self.source_ends_s
        return int(now_s * ROWS_PER_SECOND)

    def parts_of(self, connector: str) -> int:
        """Number of tasks that a connector's source currently has parts for."""
        return self.parts.get(connector, 1)

    def sink_delay_s(self, node: Node) -> float:
        """How long a write takes to reach the sink, in seconds."""
        if self.inject("a write is late", node):
            return node.random.random() * 2 * self.session_s
        return node.random.uniform(0.001, 0.02)

    # ---- processes

    def start_coordinator(self) -> CoordinatorNode:
        """Start a new coordinator process; it takes the log over from the previous coordinator."""
        self._lives += 1
        node = CoordinatorNode(self, self._lives)
        self.coordinators.append(node)
        self.say("coordinator starts", node.name)
        return node

    @property
    def serving(self) -> CoordinatorNode | None:
        """The newest live coordinator that holds the log or is about to open it."""
        newest = self.disk.storage.epoch
        alive = (node for node in reversed(self.coordinators) if not node.dead)
        return next((node for node in alive if node.coordinator is None or node.log.epoch == newest), None)

    def kill_coordinator(self, node: CoordinatorNode) -> None:
        """Kill the process; most of its clients notice at once."""
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

    def start_worker(self, slot: str, member_id: str | None = None) -> WorkerNode:
        """Start a worker process in a free slot, with the member id or the instance id of the previous process there.

        Args:
            member_id: its member id; ``None`` draws it.
        """
        self._lives += 1
        self.watch.happened += 1
        lists = self.lists_assignors == "all" or (self.lists_assignors == "some" and self.random.random() < 0.7)
        before = self.workers.get(slot)
        assert before is None or before.dead
        node = WorkerNode(self, slot, self._lives, lists_assignors=lists, member_id=member_id)
        self.workers[slot] = node
        self.say("worker starts", node.name)
        if node.member_id in self.durable.members:
            self.sometimes.reach("a member rejoined with its old id")
        return node

    def kill_worker(self, node: WorkerNode) -> None:
        """SIGKILL the process, with its threads."""
        node.kill()
        node.running.clear()
        self.dead_workers.append(node)
        self.say("worker dies", node.name)

    def living(self) -> list[WorkerNode]:
        """Worker processes that are running or paused, by name."""
        return [node for _, node in sorted(self.workers.items()) if not node.dead]

    def start_twin(self, slot: str) -> WorkerNode:
        """Start a second worker process in an occupied slot: with the same member id, or the same instance id."""
        self._lives += 1
        self.watch.happened += 2
        node = WorkerNode(self, slot, self._lives, lists_assignors=self.lists_assignors != "none")
        self.twins[slot] = node
        self.say("twin starts", node.name)
        return node

    def has_twin(self, member_id: str) -> bool:
        """Whether the member's slot has, or had, two processes."""
        return slot_of(member_id) in self.twins

    def versions_of(self, slot: str) -> tuple[int, int]:
        """The assignor version range of the worker in a slot."""
        ranges = self.setting.versions
        return ranges[int(slot[1:]) % len(ranges)]

    # ---- the operator

    async def operate(self) -> None:
        """Submit the operator's changes, one by one."""
        await self.operator.work(self._operator_client)

    def restore_connectors(self) -> None:
        """Submit changes until every connector exists, runs, and has as many tasks as its source has parts."""
        for name in sorted(self.parts):
            self.operator.submit_connector(name, self.parts_of(name))
            self.operator.order(ConnectorChange(connector=name, target_state=1))

    # ---- events of the parts

    def on_durable(self, records: Sequence[Record], epoch: int) -> None:
        """A batch is durable."""
        self.say("durable", epoch, *sorted({type(record).__name__ for record in records}), self.durable.epoch)
        try:
            self.watch.on_durable(records, epoch)
        except Exception as error:
            # Raised here, the coordinator would take the error for a disk failure.
            self.violated("a bug", f"{type(error).__name__}: {error}")
            raise

    def on_request(self, node: Node, request: Request) -> None:
        """A node sends a request."""
        self.say(node.name, *wires.summary(request))
        if isinstance(node, WorkerNode):
            self.watch.on_request(node, request)

    def on_response(self, peer: CoordinatorNode, request: Request, response: Any, at_s: float, copy: bool) -> None:
        """A coordinator has sent a response."""
        code = getattr(response, "error_code", 0)
        self.say(peer.name, "answers", wires.sender_of(request), *wires.summary(request), code)
        self.watch.on_response(peer, request, response, at_s, copy)

    def on_started(self, node: WorkerNode, unit: Unit, epoch: int, task: SimulatedTask) -> None:
        """A task has started."""
        self.say("start", node.name, *unit, epoch)
        self.watch.on_started(node, unit, epoch)
        node.running[unit, epoch] = task

    def on_stopped(self, node: WorkerNode, unit: Unit, epoch: int) -> None:
        """A task has stopped."""
        self.say("stop", node.name, *unit, epoch)
        node.running.pop((unit, epoch), None)

    def on_listener(self, node: WorkerNode, event: str, units: Units, what: str) -> None:
        """A listener callback begins or returns."""
        self.say(node.name, event, len(units), what)
        self.watch.on_listener(node, event, units, what)

    def on_ended(self, node: WorkerNode) -> None:
        """A worker has left cleanly, or its join was rejected."""
        self.say("worker ends", node.name, node.refused)
        self.watch.on_ended(node)
        self.kill_worker(node)

    def spoil_install(self, node: Node, request: InstallRequest) -> InstallRequest:
        """A computed assignment on its way to the coordinator; perhaps replaced by an invalid one."""
        if self.inject("an install is not legal", node):
            return wires.invalid_install(request, node.random)
        return request
