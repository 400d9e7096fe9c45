"""What runs on the simulated workers: connectors whose tasks write to the fenced sink, listeners, an assignor; all of
them as ill-mannered as the cluster's mood has them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from connectgroup.assign.api import ConnectAssignment, ConnectAssignor, ConnectGroup
from connectgroup.assign.members import ConnectMemberAssignment, Metadata
from connectgroup.assignors.balanced import BalancedAssignor
from connectgroup.connector import Config, Connector, Task, TaskContext
from connectgroup.errors import Fenced
from connectgroup.listener import WorkerRebalanceListener
from connectgroup.protocol.units import Unit, Units

from .loop import NOWHERE, Call
from .setting import ASKS_AGAIN
from .sink import Owner, SinkDown

if TYPE_CHECKING:
    from .cluster import WorkerNode


class SimulatedConnector(Connector):
    """As many tasks as its source has parts just now; each task has every n-th slice of the source."""

    node: ClassVar[WorkerNode]

    def task_configs(self, limit: int) -> Sequence[Config]:
        return _configs(min(limit, self.node.cluster.parts_of(self.name)))

    def task(self, config: Config, context: TaskContext) -> Task:
        return SimulatedTask(self.node, config, context)


@cache
def _configs(count: int) -> Sequence[Config]:
    return [{"task": str(number), "of": str(count)} for number in range(count)]


class SimulatedTask(Task):
    """Claims its slices, then writes what has come since, now and then, until it is stopped."""

    def __init__(self, node: WorkerNode, config: Config, context: TaskContext) -> None:
        self.node, self.cluster, self.context = node, node.cluster, context
        unit = context.unit
        self.owner = Owner(unit.connector, unit.task, int(config["of"]), context.owner_epoch, context.member_id)
        self.positions: dict[int, int] = {}
        self._next: Call | None = None
        self.runs = False
        self.unsure = False

    def start(self) -> None:
        """Claim, then write from where the slices stand."""
        if self.cluster.mood("a task's start fails", self.node):
            raise OSError("the source cannot be opened")
        self.positions = self.cluster.sink.claim(self.owner)
        self.runs = True
        self.cluster.on_started(self.node, self.context.unit, self.owner.epoch, self)
        self._again()

    def stop(self) -> None:
        """Drain: what is on its way is given up, what is left is written, and then nothing more."""
        if self._next is not None:
            self._next.cancel()
        if self.runs and not self.unsure:
            try:
                self.cluster.sink.commit(self.owner, self._batch())
            except Fenced:
                self.cluster.sometimes.reach("a stopped worker wrote nothing more after a slow stop was given up")
        self.runs = False
        self.cluster.on_stopped(self.node, self.context.unit, self.owner.epoch)

    def fail(self, error: BaseException) -> None:
        """End by itself."""
        if self._next is not None:
            self._next.cancel()
        self.context.failed(error)

    def _again(self) -> None:
        self._next = self.cluster.loop.call_later(
            self.node.random.uniform(*self.cluster.batch_every_s), self._write, context=self.node.context
        )

    def _batch(self) -> dict[int, tuple[int, int]]:
        end = self.cluster.source_end()
        return {number: (start, end) for number, start in self.positions.items() if start < end}

    def _write(self) -> None:
        ranges = self._batch()
        if not ranges:
            self._again()
            return
        self.unsure = True
        # On its way it belongs to nobody: it arrives although its sender has died or stands still.
        delay_s = self.cluster.sink_delay_s(self.node)
        self._next = self.cluster.loop.call_later(delay_s, self._arrive, ranges, context=NOWHERE)

    def _arrive(self, ranges: dict[int, tuple[int, int]]) -> None:
        error: BaseException | None = None
        before = self.cluster.mood("the sink fails before a write", self.node)
        try:
            if not before:
                self.cluster.sink.commit(self.owner, ranges)
            if before or self.cluster.mood("the sink fails after a write", self.node):
                raise SinkDown("the sink did not answer")
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
            # The same batch once more: it may be in.
            self._next = self.cluster.loop.call_later(
                self.cluster.sink_delay_s(self.node), self._arrive, ranges, context=NOWHERE
            )


class SimulatedListener(WorkerRebalanceListener):
    """Says when it is called and when it returns; sometimes it is slow, raises, or hangs for long."""

    def __init__(self, node: WorkerNode) -> None:
        self.node = node

    def on_assigned(self, units: Units, epoch: int) -> Awaitable[None] | None:
        return self._told("on_assigned", units)

    def on_revoked(self, units: Units, epoch: int) -> Awaitable[None] | None:
        return self._told("on_revoked", units)

    def on_lost(self, units: Units, epoch: int) -> Awaitable[None] | None:
        return self._told("on_lost", units)

    def _told(self, event: str, units: Units) -> Awaitable[None] | None:
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
        if cluster.mood("a listener hangs", node):
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
        if not cluster.mood("a listener raises", self.node):
            return None
        cluster.sometimes.reach("a listener raised")
        if event == "on_revoked":
            cluster.sometimes.reach("a revocation stayed unacknowledged for a listener")
        return RuntimeError("not today")


class SimulatedAssignor(ConnectAssignor):
    """The shipped one, or none at all that day."""

    name = "balanced"

    def __init__(self, node: WorkerNode) -> None:
        self.node = node
        self._shipped = BalancedAssignor()

    def assign(self, group: ConnectGroup) -> ConnectAssignment:
        cluster, node = self.node.cluster, self.node
        if cluster.mood("an assignor raises", node):
            raise RuntimeError("I cannot decide")
        if cluster.mood("an assignor reports an error", node):
            return ConnectAssignment(error=7, message="not with these")
        answer = self._shipped.assign(group)
        cluster.watch.on_question(group, answer)
        if cluster.mood("an assignor's answer is not legal", node):
            return replace(answer, members=_illegal(list(answer.members), node.random.randrange(4)))
        return answer


class RestlessAssignor(SimulatedAssignor):
    """One that now and then has a reason to be asked again."""

    reason = 0

    def metadata(self) -> Metadata:
        if self.node.cluster.mood(ASKS_AGAIN, self.node):
            self.reason = (self.reason + 1) % 100
        return Metadata(version=self.maximum_version, reason=self.reason)


def make_assignor(node: WorkerNode, versions: tuple[int, int]) -> SimulatedAssignor:
    """An assignor of a release that reads these versions, lowest and highest."""
    low, high = versions
    base = RestlessAssignor if ASKS_AGAIN in node.cluster.setting.moods else SimulatedAssignor
    kind = type("SimulatedAssignor", (base,), {"minimum_version": low, "maximum_version": high})
    assignor: SimulatedAssignor = kind(node)
    return assignor


def _illegal(members: list[ConnectMemberAssignment], how: int) -> Any:
    """An answer that doubles, leaves out, invents, or is no answer."""
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
