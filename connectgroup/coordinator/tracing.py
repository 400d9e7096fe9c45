"""Traces of rebalances: durable records become spans, outside of the group rules, which stay pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..errors import ComputeAssignment
from ..protocol.messages.api import Request, Response
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

    def with_traceparent(self, request: Request, response: Response) -> Response:
        """Add the trace context of the group's latest rebalance to a heartbeat response."""
        if not isinstance(response, HeartbeatResponse) or not isinstance(request, HeartbeatRequest):
            return response
        if response.error_code not in (0, ComputeAssignment.code):
            return response  # there may be no such group
        traceparent = self._spans.traceparent(request.group_id)
        return replace(response, traceparent=traceparent) if traceparent else response

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
