"""The responses that reject a request of the classic protocol."""

from __future__ import annotations

from ...errors import UnknownMemberId
from ...protocol.messages.classic import (
    GroupHeartbeatResponse,
    GroupRequest,
    GroupResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeftMember,
    SyncGroupRequest,
    SyncGroupResponse,
)


def refused(request: GroupRequest, code: int) -> GroupResponse:
    """The response of the request's own type with an error code."""
    match request:
        case JoinGroupRequest():
            return JoinGroupResponse(error_code=code, member_id=request.member_id)
        case SyncGroupRequest():
            return SyncGroupResponse(error_code=code)
        case LeaveGroupRequest(members=members) if members and code == UnknownMemberId.code:
            left = tuple(
                LeftMember(member_id=each.member_id, group_instance_id=each.group_instance_id, error_code=code)
                for each in members
            )
            return LeaveGroupResponse(error_code=0, members=left)
        case LeaveGroupRequest():
            return LeaveGroupResponse(error_code=code)
        case _:
            return GroupHeartbeatResponse(error_code=code)
