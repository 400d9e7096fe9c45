"""Traces of rebalances: durable records become spans, outside of the group rules, which stay pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ..errors import ComputeAssignment, FencedInstanceId, FencedMemberEpoch, UnknownMemberId
from ..protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ..protocol.records.base import Kind, Tombstone
from ..protocol.records.connect import RebalanceRecord
from ..protocol.units import JOIN_EPOCH
from ..telemetry.spans import COMPUTED_BY, DOWNTIME, MOVED, STARTED, RebalanceSpans, RebalanceState, Value, is_tracing

MAX_REMOVALS: Final = 10_000
"""Removed members whose rebalance is known."""

LOSSES: Final = frozenset({UnknownMemberId.code, FencedMemberEpoch.code, FencedInstanceId.code})
"""Errors by which a member learns that the group has assigned its units to others."""


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
        if response.error_code in LOSSES and request.member_epoch > JOIN_EPOCH:
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
    results: dict[str, Value] = {
        COMPUTED_BY: rebalance.computed_by,
        MOVED: rebalance.moved,
        STARTED: rebalance.started,
        DOWNTIME: rebalance.max_downtime_ms,
    }
    return RebalanceState(
        epoch=rebalance.epoch,
        causes=rebalance.causes,
        started_ms=rebalance.started_ms,
        results=results if rebalance.finished_ms >= 0 else None,
    )
