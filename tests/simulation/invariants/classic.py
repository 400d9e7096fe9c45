"""Requests and responses of workers of the classic protocol as the heartbeats that they stand for (CN-18).

So each invariant knows one protocol. The bytes are decoded here, not by the rules that are checked.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from connectgroup.protocol.messages.api import Request
from connectgroup.protocol.messages.classic import (
    GroupHeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from connectgroup.wire import embedded

_decoded = lru_cache(maxsize=1_000)(embedded.decode_request)


def as_heartbeat(request: Request) -> Request:
    """The heartbeat that a request of a worker stands for; any other request as it is."""
    match request:
        case JoinGroupRequest():
            return _decoded(request.protocols[0].metadata)
        case LeaveGroupRequest():
            return _decoded(request.members[0].metadata)
        case GroupHeartbeatRequest() | SyncGroupRequest():
            return HeartbeatRequest(
                group_id=request.group_id, member_id=request.member_id, member_epoch=request.generation_id
            )
        case _:
            return request


class ClassicResponses:
    """The responses of coordinators to workers of the classic protocol.

    The response to a JoinGroup holds an epoch only. The rest of what the coordinator has decided follows with the
    response to SyncGroup, if that is sent at all. Both stand for the response to the heartbeat in the JoinGroup.
    """

    def __init__(self) -> None:
        self._decided: dict[tuple[str, str, int, int], HeartbeatResponse] = {}
        self._joined: dict[tuple[str, str], HeartbeatRequest] = {}

    def on_decided(self, coordinator: str, request: HeartbeatRequest, response: Any) -> None:
        """A coordinator has decided the heartbeat in a JoinGroup, perhaps not for the first time."""
        if request.classic and isinstance(response, HeartbeatResponse):
            self._decided[coordinator, request.member_id, request.process_id, request.sequence] = response

    def as_of_heartbeat(self, coordinator: str, epoch: int, request: Request, response: Any) -> tuple[Request, Any]:
        """A request with its response as a heartbeat with its response; of any other request both as they are.

        Args:
            coordinator: the process that responds; ``epoch``: its coordinator epoch.
        """
        beat, code = as_heartbeat(request), getattr(response, "error_code", 0)
        if beat is request:
            return request, response
        assert isinstance(beat, HeartbeatRequest)
        epoch = getattr(response, "coordinator_epoch", epoch)  # not in the response to LeaveGroup
        seen = HeartbeatResponse(error_code=code, member_epoch=beat.member_epoch, coordinator_epoch=epoch)
        match request:
            case JoinGroupRequest():
                key = coordinator, beat.member_id, beat.process_id, beat.sequence
                decided = self._decided.get(key)  # a copy of the request may get its own response
                if not code and decided is not None:
                    self._joined[coordinator, beat.member_id] = beat
                    seen = HeartbeatResponse(
                        error_code=decided.error_code,
                        member_epoch=response.generation_id,
                        assignment=decided.assignment,
                        coordinator_epoch=epoch,
                    )
            case SyncGroupRequest() if not code:
                beat = self._joined.get((coordinator, beat.member_id), beat)
                seen = replace(embedded.decode_response(response.assignment), coordinator_epoch=epoch)
            case LeaveGroupRequest() if not code:
                seen = HeartbeatResponse(error_code=response.members[0].error_code, coordinator_epoch=epoch)
        return beat, seen
