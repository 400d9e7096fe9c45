"""What every simulated cluster has: coordinators on the simulated disk, the network, the trace and the faults.

Which clients there are, and which invariants watch their group, is up to the subclasses.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from random import Random
from typing import Any, ClassVar

from connectgroup.coordinator.compute import LIMIT_S
from connectgroup.coordinator.runtime import Coordinator
from connectgroup.coordinator.shard import Shard
from connectgroup.errors import LogError
from connectgroup.protocol.messages.api import Request
from connectgroup.protocol.messages.assignment import InstallRequest
from connectgroup.protocol.records.connect import Record

from . import network as wires
from .disk import SimulatedDisk, SimulatedLog
from .invariants.base import Violation
from .loop import NOWHERE, Node, SimulatedLoop
from .network import Network
from .setting import Setting, draw
from .sometimes import Sometimes
from .trace import Trace


class WatchedShard(Shard):
    """The shipped shard; the invariants are checked after each of its turns."""

    node: CoordinatorNode

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._decided: list[Any] = []

    async def _turn(self, commands: Any) -> None:
        expired = list(self.timers.expired.values())
        self._decided = []
        if not expired:  # nearly always
            await super()._turn(commands)
            self.node.cluster.watch.after_turn(self.node)
            return
        taken: list[Any] = []

        def seen() -> Iterator[Any]:
            for command in commands:
                taken.append(command)
                yield command

        await super()._turn(seen())
        if any(command in expired and command not in self._decided for command in taken):
            self.node.cluster.sometimes.reach("a message ended an expired timer of its own turn")
        self.node.cluster.watch.after_turn(self.node)

    def _decide(self, command: Any, *rest: Any) -> None:
        self._decided.append(command)
        super()._decide(command, *rest)


class WatchedCoordinator(Coordinator):
    """The shipped coordinator with a watched shard."""

    shard_class = WatchedShard
    shard: WatchedShard


class CoordinatorNode(Node):
    """A coordinator process."""

    def __init__(self, cluster: BaseCluster, life: int) -> None:
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
        coordinator = self.cluster.new_coordinator(self.log)
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


class BaseCluster(ABC):
    """See the module. Created for one seed, inside ``loop.simulated`` and on its own loop.

    Attributes:
        group_id: the group that the clients join.
        workers: the client processes, by slot.
        watch: the invariants.
    """

    group_id: ClassVar[str]
    watch: Any
    workers: dict[str, Any]
    members_at_first: int

    def __init__(self, seed: int, loop: SimulatedLoop, setting: Setting | None) -> None:
        self.seed, self.seed_text, self.loop = seed, f"seed {seed}", loop
        self.random = Random(f"{seed} cluster")
        random = self.random
        self.session_s = random.choice([6.0, 10.0, 10.0])
        self.rebalance_s = random.choice([5.0, 10.0])
        self.setting = draw(Random(f"{seed} setting"), self.session_s) if setting is None else setting
        loop.drifts = bool(self.setting.drift)
        self.sometimes = Sometimes()
        self.armed: Counter[str] = Counter()
        self.hits: Counter[str] = Counter()
        self.fault_rates: dict[str, float] = {}
        self.paces: dict[str, float] = {}  # override: seconds per call, by kind of call
        self.trace = Trace()
        self.violations: list[Violation] = []
        self.disk = SimulatedDisk(
            Random(f"{seed} disk"), self.sometimes, self.on_durable, self.hit, self.setting.batch_bytes
        )
        self.network = Network(self, Random(f"{seed} network"))
        self.handling: dict[Any, Any] = {}
        self.coordinators: list[CoordinatorNode] = []
        self.workers = {}
        self.dead_workers: list[Any] = []
        self.clock_ms = 1_700_000_000_000
        self._lives = 0
        self.over = False

    @abstractmethod
    def new_coordinator(self, log: SimulatedLog) -> WatchedCoordinator:
        """A coordinator for a new process."""

    @abstractmethod
    def start_worker(self, slot: str, member_id: str | None = None) -> Any:
        """Start a client process in a free slot."""

    @property
    @abstractmethod
    def group_epoch(self) -> int:
        """The epoch of the durable group, for the trace."""

    @abstractmethod
    def spoil_install(self, node: Node, request: InstallRequest) -> InstallRequest:
        """A computed assignment on its way to the coordinator; perhaps replaced by an invalid one."""

    @property
    def nodes(self) -> list[Node]:
        """All processes, also those that have ended."""
        return [*self.dead_workers, *self.workers.values(), *self.coordinators]

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

    def wall_clock_ms(self) -> int:
        """The coordinator's wall clock; faults make it jump."""
        return self.clock_ms + int(self.loop.now * 1000)

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

    def kill_worker(self, node: Any) -> None:
        """SIGKILL the process, with its threads."""
        node.kill()
        self.dead_workers.append(node)
        self.say("worker dies", node.name)

    def living(self) -> list[Any]:
        """Worker processes that are running or paused, by name."""
        return [node for _, node in sorted(self.workers.items()) if not node.dead]

    # ---- events of the parts

    def on_durable(self, records: Sequence[Record], epoch: int) -> None:
        """A batch is durable."""
        self.say("durable", epoch, *sorted({type(record).__name__ for record in records}), self.group_epoch)
        try:
            self.watch.on_durable(records, epoch)
        except Exception as error:
            # Raised here, the coordinator would take the error for a disk failure.
            self.violated("a bug", f"{type(error).__name__}: {error}")
            raise

    def on_request(self, node: Node, request: Request) -> None:
        """A node sends a request."""
        self.say(node.name, *wires.summary(request))

    def on_response(self, peer: CoordinatorNode, request: Request, response: Any, at_s: float, copy: bool) -> None:
        """A coordinator has sent a response."""
        code = getattr(response, "error_code", 0)
        self.say(peer.name, "answers", wires.sender_of(request), *wires.summary(request), code)
        self.watch.on_response(peer, request, response, at_s, copy)
