"""One seed's connect group: the worker processes, their sink, and the invariants that watch them."""

from __future__ import annotations

from connectgroup.coordinator.compute import server_assignors
from connectgroup.errors import GroupError
from connectgroup.group.connect.settings import GroupSettings
from connectgroup.group.connect.state import ConnectGroupState
from connectgroup.member.settings import GroupProtocol, MemberSettings
from connectgroup.protocol.messages.api import Request
from connectgroup.protocol.messages.assignment import InstallRequest
from connectgroup.protocol.messages.connectors import ConnectorChange
from connectgroup.protocol.units import Unit, Units
from connectgroup.worker.loop import Worker
from connectgroup.worker.runner import TaskRunner
from connectgroup.worker.settings import Connections, RunnerSettings, WorkerSettings

from . import network as wires
from .base import BaseCluster, WatchedCoordinator
from .disk import SimulatedLog
from .invariants import ALL, Watch, slot_of
from .loop import SCRATCH, Node, SimulatedLoop
from .network import SimulatedClient
from .operator import Operator
from .plugins import SimulatedConnector, SimulatedListener, SimulatedTask, make_assignor
from .setting import MAX_START_S, Setting
from .sink import Sink

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
                group_protocol=GroupProtocol(cluster.protocols.get(self.slot, GroupProtocol.CONNECT)),
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

    def kill(self) -> None:
        super().kill()
        self.running.clear()

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


class Cluster(BaseCluster):
    """A connect group: workers, connectors and their sink."""

    group_id = GROUP

    def __init__(
        self,
        seed: int,
        loop: SimulatedLoop,
        *,
        members: int | None = None,
        tasks: int | None = None,
        setting: Setting | None = None,
    ) -> None:
        super().__init__(seed, loop, setting)
        random = self.random
        self.max_wait_ms = random.choice([0, 2_000, 2_000, 3_000, 3_000])
        self.batch_every_s = (4.0, 20.0)
        self.settings = GroupSettings(
            scheduled_delay_ms=int(self.setting.delay_s * 1000),
            max_moves=self.setting.max_moves,
            session_timeout_ms=int(self.session_s * 1000),
            heartbeat_interval_ms=int(self.session_s * 300),
            max_start_ms=int(MAX_START_S * 1000),
            server_assignor="balanced",
            server_assignors=SERVER_ASSIGNORS,
        )
        self.durable = ConnectGroupState(GROUP)
        self.watch = Watch(self, ALL)
        self.sink = Sink(self.sometimes, self.watch, SLICES)
        self.workers: dict[str, WorkerNode] = {}
        self.twins: dict[str, WorkerNode] = {}
        self.protocols: dict[str, str] = {}  # with which the next process of a slot starts; connect for others
        self.source_ends_s: float | None = None
        self.parts: dict[str, int] = {}
        self._sequence = self._processes = 0
        self.operator = Operator(self, GROUP)
        self._operator_client = SimulatedClient(self.network, self.operator, "control")
        self.members_at_first = members or random.choice([3, 4, 5, 6, 8, 10])
        self.tasks_at_first = tasks or random.choice([3, 10, 20, 40])
        self.lists_assignors = random.choice(["all", "all", "all", "none", "some"])

    def next_sequence(self) -> int:
        """The first heartbeat sequence of a new process: above all earlier ones, like a clock."""
        self._sequence += 1_000_000
        return self._sequence

    def next_process_id(self) -> int:
        """The process id of a new process; not in the order of the starts, as random ones."""
        self._processes += 1
        return self._processes * 7_919 % 104_729

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

    def start_twin(self, slot: str) -> WorkerNode:
        """Start a second worker process in an occupied slot: with the same member id, or the same instance id."""
        self._lives += 1
        self.watch.happened += 2
        node = WorkerNode(self, slot, self._lives, lists_assignors=self.lists_assignors != "none")
        self.twins[slot] = node
        self.say("twin starts", node.name)
        return node

    @property
    def nodes(self) -> list[Node]:
        return [*super().nodes, *self.twins.values()]

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

    @property
    def group_epoch(self) -> int:
        return self.durable.epoch

    def new_coordinator(self, log: SimulatedLog) -> WatchedCoordinator:
        return WatchedCoordinator(log, self.settings, wall_clock_ms=self.wall_clock_ms)

    # ---- events of the parts

    def on_request(self, node: Node, request: Request) -> None:
        super().on_request(node, request)
        if isinstance(node, WorkerNode):
            self.watch.on_request(node, request)

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
        if self.inject("an install is not legal", node):
            return wires.invalid_install(request, node.random)
        return request
