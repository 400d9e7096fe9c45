"""What is measured of a coordinator and its groups. Durable records and live state become numbers, outside of the group
rules, which stay pure. ``telemetry.metrics`` exports them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

from ..errors import ComputeAssignment, FencedInstanceId, FencedMemberEpoch, LogError, UnknownMemberId
from ..group.connect.state import ConnectGroupState
from ..group.registry import GroupNumbers
from ..log.base import Candidate, Log, Ownership, SharedLog, owners_and_standbys
from ..protocol.messages.describe import Rebalance
from ..protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ..protocol.records.base import Kind, Tombstone
from ..protocol.records.connect import RebalanceRecord, StatusRecord, UnitState
from ..protocol.units import JOIN_EPOCH
from ..telemetry.metric_table import Scope
from ..telemetry.metrics import MetricSource, Value, Window, register, unregister
from ..telemetry.spans import COMPUTED_BY, HANDOVER, MOVED, STARTED, RebalanceSpans, RebalanceState, is_tracing
from ..threads import clock_of
from .intake import Command
from .journal import Writability
from .loading import Groups
from .parking import Parking

FENCED: Final = frozenset((FencedMemberEpoch.code, FencedInstanceId.code, UnknownMemberId.code))
"""The errors by which a member learns that the group has removed or replaced it, and assigned its units to others."""

logger = logging.getLogger(__name__)


class FinishedRebalances:
    """The finished rebalances of one group."""

    def __init__(self) -> None:
        self.times, self.handovers, self.downtimes = Window(), Window(), Window()
        self.moves = self.starts = 0

    def add(self, rebalance: Rebalance, now_s: float) -> None:
        """A rebalance has finished."""
        self.times.record(rebalance.finished_ms - rebalance.started_ms, now_s)
        self.moves += rebalance.moved
        self.starts += rebalance.started
        for move in rebalance.moves:
            if move.source:
                self.handovers.record(move.handover_ms, now_s)


class _Group(MetricSource):
    scope: ClassVar[Scope] = "group"

    def __init__(self, group_id: str, numbers: GroupNumbers, rebalances: FinishedRebalances, now_s: float) -> None:
        self.labels = {"group": group_id}
        self._numbers, self._rebalances, self._now_s = numbers, rebalances, now_s

    def values(self) -> Mapping[str, Value]:
        numbers, done, now_s = self._numbers, self._rebalances, self._now_s
        return {
            "members": numbers.members,
            "connectors": len(numbers.connectors),
            "tasks": sum(connector.tasks for connector in numbers.connectors.values()),
            "epoch": numbers.epoch,
            "target-epoch": numbers.target_epoch,
            "rebalancing": numbers.is_rebalancing,
            "rebalances-total": done.times.count,
            "rebalance-avg-time-ms": done.times.average(now_s),
            "rebalance-max-time-ms": done.times.maximum(now_s),
            "rebalance-time-ms-total": done.times.total,
            "moves-total": done.moves,
            "moves-not-started-total": numbers.moves_not_started,
            "starts-total": done.starts,
            "handover-avg-ms": done.handovers.average(now_s),
            "handover-max-ms": done.handovers.maximum(now_s),
            "downtime-avg-ms": done.downtimes.average(now_s),
            "downtime-max-ms": done.downtimes.maximum(now_s),
            "delayed-units": numbers.delayed_units,
            "computation-failures": numbers.computation_failures,
            "leader-name": numbers.computed_by,
        }


class _Connector(MetricSource):
    scope: ClassVar[Scope] = "group connector"

    def __init__(self, group_id: str, connector: str, *, paused: int, unassigned: int) -> None:
        self.labels = {"group": group_id, "connector": connector}
        self._paused, self._unassigned = paused, unassigned

    def values(self) -> Mapping[str, Value]:
        return {"connector-paused-task-count": self._paused, "connector-unassigned-task-count": self._unassigned}


class CoordinatorMetrics(MetricSource):
    """The metrics of one coordinator and its groups, from ``begin`` to ``end``.

    Totals of a group start at 0 when the coordinator starts.

    Attributes:
        turns: the number of turns so far.
    """

    scope: ClassVar[Scope] = "coordinator"

    def __init__(self, log: Log, groups: Groups, parking: Parking, writability: Writability) -> None:
        """The arguments are the parts of the shard; read, never changed."""
        self.labels: Mapping[str, str] = {}
        self._log, self._groups, self._parking, self._writability = log, groups, parking, writability
        self._clock: Callable[[], float] = time.monotonic
        self._appends = Window()
        self.turns = 0
        self._has_ended = False  # changed by ``end``
        self._records = self._failed_appends = self._late = self._fenced = 0
        self._rebalances: dict[str, FinishedRebalances] = {}

    # ---- events

    def begin(self) -> None:
        """The coordinator starts to serve. Call this on the event loop."""
        self._clock = clock_of(asyncio.get_running_loop())
        register(self)

    def end(self) -> None:
        """The coordinator has stopped serving. A second call has no effect."""
        unregister(self)
        if self._is_partition and not self._has_ended:
            self._has_ended = True
            _ended.update({name: value for name, value in self.own().items() if name.endswith("-total")})

    def now_s(self) -> float:
        """Seconds on the event loop's clock."""
        return self._clock()

    def on_turn(self) -> None:
        """A turn begins."""
        self.turns += 1

    def on_durable(self, records: Sequence[Any], began_s: float) -> None:
        """A batch of records is durable; its append began at this time (``now_s``)."""
        now_s = self._clock()
        self._appends.record((now_s - began_s) * 1000, now_s)
        self._records += len(records)
        for record in records:
            if isinstance(record, RebalanceRecord) and record.rebalance.finished_ms >= 0:
                self._finished(record.group_id).add(record.rebalance, now_s)
            elif isinstance(record, StatusRecord) and record.state is UnitState.RUNNING:
                group = self._groups.loaded.get(record.group_id)
                if group is not None and isinstance(group.state, ConnectGroupState):
                    while group.state.stops.ended:
                        self._finished(record.group_id).downtimes.record(group.state.stops.ended.popleft(), now_s)

    def _finished(self, group_id: str) -> FinishedRebalances:
        return self._rebalances.setdefault(group_id, FinishedRebalances())

    def forget(self, group_id: str) -> None:
        """A group was deleted."""
        self._rebalances.pop(group_id, None)

    def on_append_failed(self) -> None:
        """The log rejected a batch, or the outcome of its append is unknown."""
        self._failed_appends += 1

    def on_response(self, command: Command, response: Any) -> None:
        """A response is sent."""
        self._late += command.late
        self._fenced += getattr(response, "error_code", 0) in FENCED

    # ---- values

    def beside(self, earlier: MetricSource) -> MetricSource:
        """A process that serves several partitions of a log exports their sums."""
        if not self._is_partition or not isinstance(earlier, CoordinatorMetrics | _Partitions):
            return self
        return _Partitions([*(earlier.all if isinstance(earlier, _Partitions) else [earlier]), self])

    @property
    def _is_partition(self) -> bool:
        return isinstance(self._log, SharedLog) and self._log.partitions > 1

    def values(self) -> Mapping[str, Value]:
        """See ``MetricSource.values``."""
        return _with_ended(self.own()) if self._is_partition else self.own()

    def own(self) -> Mapping[str, Value]:
        """Those of this term alone."""
        appends, now_s = self._appends, self._clock()
        return {
            "groups": len(self._groups.group_ids()),
            "epoch": self._log.epoch,
            "parked-requests": len(self._parking.parked),
            "turns-total": self.turns,
            "append-total": appends.count,
            "append-records-total": self._records,
            "append-failures-total": self._failed_appends,
            "log-writable": not self._writability.error,
            "append-avg-time-ms": appends.average(now_s),
            "append-max-time-ms": appends.maximum(now_s),
            "append-time-ms-total": appends.total,
            "late-requests-total": self._late,
            "fenced-requests-total": self._fenced,
        }

    def parts(self) -> Iterable[MetricSource]:
        """The coordinator, its groups and their connectors."""
        parts: list[MetricSource] = [self]
        for group_id, group in sorted(self._groups.loaded.copy().items()):
            if not group.state.exists:
                continue
            numbers = group.group_type.measure(group.state)
            done = self._rebalances.get(group_id) or FinishedRebalances()
            parts.append(_Group(group_id, numbers, done, self._clock()))
            parts += [
                _Connector(group_id, name, paused=connector.paused, unassigned=connector.unassigned)
                for name, connector in sorted(numbers.connectors.items())
            ]
        return parts


_ended: Final[Counter[str]] = Counter()
"""The totals of the terms of partitions that have ended in this process: sums without them would decrease."""


def _with_ended(values: Mapping[str, Value]) -> Mapping[str, Value]:
    return {name: float(each or 0) + _ended[name] if name in _ended else each for name, each in values.items()}


class _Partitions(MetricSource):
    """The partitions that a process serves.

    Attributes:
        all: the metrics of each.
    """

    scope: ClassVar[Scope] = "coordinator"

    def __init__(self, all_of: Sequence[CoordinatorMetrics]) -> None:
        self.labels: Mapping[str, str] = {}
        self.all = all_of

    def values(self) -> Mapping[str, Value]:
        found = [each.own() for each in self.all]
        numbers = {name: [float(each[name] or 0) for each in found] for name in found[0]}
        summed: dict[str, Value] = {name: sum(values) for name, values in numbers.items()}
        appends = sum(numbers["append-total"])
        times = zip(numbers["append-avg-time-ms"], numbers["append-total"], strict=True)
        return {
            **_with_ended(summed),
            "epoch": max(numbers["epoch"]),
            "log-writable": min(numbers["log-writable"]),
            "append-max-time-ms": max(numbers["append-max-time-ms"]),
            "append-avg-time-ms": sum(average * count for average, count in times) / appends if appends else None,
        }


# --------------------------------------------------------------------------------------------------
# The coordinators of a shared log.


OWNERSHIP_INTERVAL_S: Final = 5.0
"""Interval between two queries of the ownership of a shared log for metrics."""


class SharedLogMetrics(MetricSource):
    """Who serves a shared log and who stands by, as each of its coordinators reads it in the log."""

    scope: ClassVar[Scope] = "shared log"

    def __init__(
        self, ownerships: Callable[[], Awaitable[Sequence[Ownership]]], served: Callable[[], Collection[int]]
    ) -> None:
        """Store the arguments.

        Args:
            ownerships: see ``SharedLog.ownership``; of each partition of the log.
            served: the partitions that this process serves.
        """
        self.labels: Mapping[str, str] = {}
        self._ownerships, self._served = ownerships, served
        self._found: Sequence[Ownership] | None = None  # changed by _watch; ``None`` while the log cannot be read
        self._watching: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Query the ownership again and again, and export it."""
        self._watching = asyncio.create_task(self._watch(), name="metrics of the shared log")
        register(self)

    def end(self) -> None:
        """Export it no longer. A second call has no effect."""
        unregister(self)
        if self._watching is not None:
            self._watching.cancel()

    async def _watch(self) -> None:
        while True:
            try:
                self._found = await self._ownerships()
            except LogError:  # the election logs it
                self._found = None
            except Exception:
                logger.debug("the owners of the log are not known", exc_info=True)
                self._found = None
            await asyncio.sleep(OWNERSHIP_INTERVAL_S)

    def values(self) -> Mapping[str, Value]:
        found = max(self._found or (Ownership(coordinators=()),), key=lambda each: each.failover_ms)
        has_predecessor = found.failover_ms >= 0
        return {
            "serving": bool(self._served()),
            "served-partitions": len(self._served()),
            "unserved-partitions": None if self._found is None else sum(each.owner is None for each in self._found),
            "standbys": None if self._found is None else sum(each.epoch < 0 for each in self._coordinators()),
            "last-failover-timestamp": found.failover_ms if has_predecessor else None,
            "last-failover-time-ms": found.failover_took_ms if has_predecessor else None,
            "last-failover-cause": found.failover_cause,
        }

    def parts(self) -> Iterable[MetricSource]:
        """The log and its coordinators."""
        owned = Counter(each.owner.address for each in self._found or () if each.owner is not None)
        return (self, *(_SharedLogCoordinator(each, owned[each.address]) for each in self._coordinators()))

    def _coordinators(self) -> Sequence[Candidate]:
        """Each coordinator once: those that own a partition as owners."""
        owners, standbys = owners_and_standbys(self._found or ())
        return [*{owner.address: owner for _, owner in owners}.values(), *standbys]


class _SharedLogCoordinator(MetricSource):
    scope: ClassVar[Scope] = "shared log coordinator"

    def __init__(self, candidate: Candidate, partitions: int) -> None:
        self.labels = {"coordinator": candidate.address}
        self._candidate, self._partitions = candidate, partitions

    def values(self) -> Mapping[str, Value]:
        is_owner = self._candidate.epoch >= 0
        return {
            "serving": is_owner,
            "partitions": self._partitions,
            "since-timestamp": self._candidate.since_ms,
            "lag-ms": None if is_owner else self._candidate.lag_ms,
        }


# --------------------------------------------------------------------------------------------------
# Traces of rebalances: durable records become spans.


MAX_REMOVALS: Final = 10_000
"""Removed members whose rebalance is known."""


class RebalanceTraces:
    """The traces of the groups of one coordinator."""

    def __init__(self) -> None:
        self._spans = RebalanceSpans()
        # By group and member id: the trace context of the rebalance that has removed the member.
        self._removals: dict[tuple[str, str], str] = {}

    def on_durable(self, records: Sequence[Any]) -> None:
        """Begin, update and end the spans of the rebalances that these records describe."""
        if not is_tracing():
            return
        for record in records:
            if isinstance(record, RebalanceRecord):
                self._spans.update(record.group_id, _state(record))
        for record in records:  # after the rebalance that they cause
            if isinstance(record, Tombstone) and record.key.kind is Kind.MEMBER:
                self._removals.pop(removed := (record.group_id, record.key.name), None)
                if len(self._removals) >= MAX_REMOVALS:
                    del self._removals[next(iter(self._removals))]
                self._removals[removed] = self._spans.traceparent(record.group_id)

    def traceparent(self, request: HeartbeatRequest, response: HeartbeatResponse) -> str:
        """The trace context for a heartbeat response: of the group's latest rebalance; for a member that the group has
        removed, of the rebalance that removed it. Empty if there is none.
        """
        if response.error_code in FENCED and request.member_epoch > JOIN_EPOCH:
            is_removed = response.error_code != FencedInstanceId.code
            removal = self._removals.get((request.group_id, request.member_id)) if is_removed else None
            return self._spans.traceparent(request.group_id) if removal is None else removal
        if response.error_code not in (0, ComputeAssignment.code):
            return ""  # there may be no such group
        return self._spans.traceparent(request.group_id)

    def forget(self, group_id: str) -> None:
        """A group was deleted."""
        self._spans.forget(group_id)
        self._removals = {removed: each for removed, each in self._removals.items() if removed[0] != group_id}

    def close(self) -> None:
        """End all spans."""
        self._spans.close()


def _state(record: RebalanceRecord) -> RebalanceState:
    rebalance = record.rebalance
    return RebalanceState(
        epoch=rebalance.epoch,
        causes=rebalance.causes,
        started_ms=rebalance.started_ms,
        results={
            COMPUTED_BY: rebalance.computed_by,
            MOVED: rebalance.moved,
            STARTED: rebalance.started,
            HANDOVER: rebalance.max_handover_ms,
        }
        if rebalance.finished_ms >= 0
        else None,
    )
