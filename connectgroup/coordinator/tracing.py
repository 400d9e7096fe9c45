"""Traces of rebalances: durable records become spans, outside of the group rules, which stay pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import ComputeAssignment
from ..protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ..protocol.records.connect import RebalanceRecord
from ..telemetry.spans import COMPUTED_BY, DOWNTIME, MOVED, STARTED, RebalanceSpans, RebalanceState, Value, is_tracing


class RebalanceTraces:
    """The traces of the groups of one coordinator."""

    def __init__(self) -> None:
        self._spans = RebalanceSpans()

    def on_durable(self, records: Sequence[Any]) -> None:
        """Begin, update and end the spans of the rebalances that these records describe."""
        for record in records:
            if isinstance(record, RebalanceRecord) and is_tracing():
                self._spans.update(record.group_id, _state(record))

    def traceparent(self, request: HeartbeatRequest, response: HeartbeatResponse) -> str:
        """The trace context of the group's latest rebalance, for a heartbeat response; empty if there is none."""
        if response.error_code not in (0, ComputeAssignment.code):
            return ""  # there may be no such group
        return self._spans.traceparent(request.group_id)

    def forget(self, group_id: str) -> None:
        """A group was deleted."""
        self._spans.forget(group_id)

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
