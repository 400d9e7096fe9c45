"""What runs on the simulated workers: connectors whose tasks write to the fenced sink, listeners, an assignor. All of
them misbehave at the fault rates of the cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from connectgroup.assign.api import ConnectAssignment, ConnectAssignor, ConnectAssignorInput
from connectgroup.assign.members import ConnectMemberAssignment, Metadata
from connectgroup.assignors.balanced import BalancedAssignor
from connectgroup.connector import Config, Connector, Task, TaskContext
from connectgroup.errors import Fenced
from connectgroup.listener import WorkerRebalanceListener
from connectgroup.protocol.units import Unit, Units

from .loop import NOWHERE, Call
from .setting import MAX_SLOW_START_S, REQUESTS_REBALANCE
from .sink import Owner, SinkDown

if TYPE_CHECKING:
    from .cluster import WorkerNode

UNFENCED = "weather"
"""The connector that does not declare its sink as fenced: its tasks stop when the lease of their worker expires."""


class SimulatedConnector(Connector):
    """One task per part of its source; each task has every n-th slice of the source."""

    node: ClassVar[WorkerNode]

    def task_configs(self, limit: int) -> Sequence[Config]:
        return _configs(min(limit, self.node.cluster.parts_of(self.name)))

    @property
    def fenced(self) -> bool:
        """Whether the connector declares its sink as fenced. The sink always is, so that X1 holds for all."""
        return self.name != UNFENCED

    def task(self, config: Config, context: TaskContext) -> Task:
        # Some starts are slow: one in six, in all seeds.
        kind = SlowTask if (context.owner_epoch + context.unit.task) % 6 == 0 else SimulatedTask
        return kind(self.node, config, context)


@cache
def _configs(count: int) -> Sequence[Config]:
    return [{"task": str(number), "of": str(count)} for number in range(count)]


class SimulatedTask(Task):
    """Claims its slices, then writes new rows at intervals until it is stopped."""

    def __init__(self, node: WorkerNode, config: Config, context: TaskContext) -> None:
        self.node, self.cluster, self.context = node, node.cluster, context
        unit = context.unit
        self.owner = Owner(unit.connector, unit.task, int(config["of"]), context.owner_epoch, context.member_id)
        self.positions: dict[int, int] = {}
        self._next: Call | None = None
        self.runs = False
        self.unsure = False

    def start(self) -> None:
        """Claim, then write from the committed positions."""
        if self.cluster.inject("a task's start fails", self.node):
            raise OSError("the source cannot be opened")
        self.positions = self.cluster.sink.claim(self.owner)
        self.runs = True
        self.cluster.on_started(self.node, self.context.unit, self.owner.epoch, self)
        self._again(self.start_s)

    def stop(self) -> None:
        """Drain: abandon the write under way, write what is left, and then write nothing more."""
        if self._next is not None:
            self._next.cancel()
        if self.runs and not self.unsure:
            try:
                self.cluster.sink.commit(self.owner, self._batch())
            except Fenced:
                self.cluster.sometimes.reach("a worker wrote nothing after it abandoned a slow stop")
        self.runs = False
        self.cluster.on_stopped(self.node, self.context.unit, self.owner.epoch)

    def fail(self, error: BaseException) -> None:
        """Fail by itself."""
        if self._next is not None:
            self._next.cancel()
        self.context.failed(error)

    @property
    def start_s(self) -> float:
        """How long the start takes after ``start`` has returned."""
        return 0.0

    def _again(self, start_s: float = 0.0) -> None:
        self._next = self.cluster.loop.call_later(
            start_s + self.node.random.uniform(*self.cluster.batch_every_s), self._write, context=self.node.context
        )

    def _batch(self) -> dict[int, tuple[int, int]]:
        end = self.cluster.source_end()
        return {number: (start, end) for number, start in self.positions.items() if start < end}

    def _write(self) -> None:
        ranges = self._batch()
        self.context.polled()
        if not ranges:
            self._again()
            return
        self.unsure = True
        # Once sent, the write no longer depends on its sender: it arrives although the sender has died or is paused.
        delay_s = self.cluster.sink_delay_s(self.node)
        self._next = self.cluster.loop.call_later(delay_s, self._arrive, ranges, context=NOWHERE)

    def _arrive(self, ranges: dict[int, tuple[int, int]]) -> None:
        error: BaseException | None = None
        before = self.cluster.inject("the sink fails before a write", self.node)
        try:
            if not before:
                self.cluster.sink.commit(self.owner, ranges)
            if before or self.cluster.inject("the sink fails after a write", self.node):
                raise SinkDown("the sink did not respond")
        except (Fenced, SinkDown) as raised:
            error = raised
        self._next = None
        delayed = self.node.enter(self._done, ranges, error)
        if delayed is not None:
            self._next = delayed

    def _done(self, ranges: dict[int, tuple[int, int]], error: BaseException | None) -> None:
        if isinstance(error, Fenced):
            self.fail(error)
            return
        if error is None:
            self.unsure = False
            for number, (_, end) in ranges.items():
                self.positions[number] = end
            self.context.progress(sum(end - start for start, end in ranges.values()))
            self._again()
        else:
            # Repeat the same batch: it may already be committed.
            self._next = self.cluster.loop.call_later(
                self.cluster.sink_delay_s(self.node), self._arrive, ranges, context=NOWHERE
            )


class SlowTask(SimulatedTask):
    """A task whose start takes seconds, as that of a Spark query; it is STARTING until its first poll."""

    reports_polls = True

    @property
    def start_s(self) -> float:
        return float(self.owner.epoch % MAX_SLOW_START_S)


class SimulatedListener(WorkerRebalanceListener):
    """Traces its calls and returns; sometimes it is slow, raises, or hangs."""

    def __init__(self, node: WorkerNode) -> None:
        self.node = node

    def on_assigned(self, units: Units, epoch: int) -> Awaitable[None] | None:
        return self._traced("on_assigned", units)

    def on_revoked(self, units: Units, epoch: int) -> Awaitable[None] | None:
        return self._traced("on_revoked", units)

    def on_lost(self, units: Units, epoch: int) -> Awaitable[None] | None:
        return self._traced("on_lost", units)

    def _traced(self, event: str, units: Units) -> Awaitable[None] | None:
        node = self.node
        node.cluster.on_listener(node, event, units, "begins")
        if node.random.random() < 0.5:
            return self._slowly(event, units)
        raised = self._error(event)
        node.cluster.on_listener(node, event, units, "raises" if raised else "ends")
        if raised:
            raise raised
        return None

    async def _slowly(self, event: str, units: Units) -> None:
        node, cluster = self.node, self.node.cluster
        if cluster.inject("a listener hangs", node):
            cluster.sometimes.reach("a listener never returned")
            await asyncio.sleep(node.random.uniform(0.5, 3) * cluster.rebalance_s)
        else:
            await asyncio.sleep(node.random.uniform(0, 0.2))
        raised = self._error(event)
        cluster.on_listener(node, event, units, "raises" if raised else "ends")
        if raised:
            raise raised

    def _error(self, event: str) -> Exception | None:
        cluster = self.node.cluster
        if not cluster.inject("a listener raises", self.node):
            return None
        cluster.sometimes.reach("a listener raised")
        if event == "on_revoked":
            cluster.sometimes.reach("a failing listener kept a revocation unacknowledged")
        return RuntimeError("the listener failed")


class SimulatedAssignor(ConnectAssignor):
    """The shipped assignor; some calls fail."""

    name = "balanced"

    def __init__(self, node: WorkerNode) -> None:
        self.node = node
        self._shipped = BalancedAssignor()

    def assign(self, group: ConnectAssignorInput) -> ConnectAssignment:
        cluster, node = self.node.cluster, self.node
        if cluster.inject("an assignor raises", node):
            raise RuntimeError("the assignor failed")
        if cluster.inject("an assignor reports an error", node):
            return ConnectAssignment(error=7, message="no assignment for this group")
        result = self._shipped.assign(group)
        cluster.watch.on_assignor_result(group, result)
        if cluster.inject("an assignor's answer is not legal", node):
            return replace(result, members=_invalid(list(result.members), node.random.randrange(4)))
        return result


class RebalancingAssignor(SimulatedAssignor):
    """An assignor that sometimes requests a rebalance."""

    reason = 0

    def metadata(self) -> Metadata:
        if self.node.cluster.inject(REQUESTS_REBALANCE, self.node):
            self.reason = (self.reason + 1) % 100
        return Metadata(version=self.maximum_version, reason=self.reason)


def make_assignor(node: WorkerNode, versions: tuple[int, int]) -> SimulatedAssignor:
    """An assignor that reads this range of versions, lowest and highest."""
    low, high = versions
    base = RebalancingAssignor if REQUESTS_REBALANCE in node.cluster.setting.fault_rates else SimulatedAssignor
    kind = type("SimulatedAssignor", (base,), {"minimum_version": low, "maximum_version": high})
    assignor: SimulatedAssignor = kind(node)
    return assignor


def _invalid(members: list[ConnectMemberAssignment], how: int) -> Any:
    """An invalid result: a unit twice, a unit missing, an unknown unit, or an object of another type."""
    share = members[0]
    match how:
        case 0:
            everything = frozenset(unit for member in members for unit in member.units)
            return [replace(member, units=everything) for member in members]
        case 1:
            return members[1:]
        case 2:
            return [replace(share, units=share.units | {Unit("nowhere", 0)}), *members[1:]]
        case _:
            return [*members, replace(share, member_id="stranger")]
