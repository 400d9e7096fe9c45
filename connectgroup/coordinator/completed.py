"""Responses to heartbeats with the coordinator epoch and the trace context, which the rules of groups do not know."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..protocol.messages.heartbeat import HeartbeatResponse

MAX_KEPT: Final = 10_000


class CompletedResponses:
    """Completes responses. The response to a heartbeat that reports nothing is the same object as the last one
    (``group.kernel.unchanged``): its copy is kept, because copying takes longer than encoding.
    """

    def __init__(self) -> None:
        self._kept: dict[int, tuple[HeartbeatResponse, HeartbeatResponse]] = {}

    def of(self, response: HeartbeatResponse, epoch: int, traceparent: str) -> HeartbeatResponse:
        """The response with the coordinator epoch and the trace context; empty: none."""
        kept = self._kept.get(id(response))
        # The kept response is alive, so that no other object has its id.
        if kept is not None and (kept[1].coordinator_epoch, kept[1].traceparent) == (epoch, traceparent):
            return kept[1]
        completed = replace(response, coordinator_epoch=epoch, traceparent=traceparent)
        if response.assignment is None and not response.error_code:
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            self._kept[id(response)] = response, completed
        return completed
