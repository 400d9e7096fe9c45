"""SyncGroup, Heartbeat and LeaveGroup.

Source: Kafka's ``GroupMetadataManager`` (classicGroupSync, classicGroupHeartbeat, classicGroupLeave).
"""

from __future__ import annotations

from dataclasses import replace

from ...errors import (
    FencedInstanceId,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidGroupId,
    RebalanceInProgress,
    UnknownMemberId,
)
from ...protocol.messages.api import Response
from ...protocol.messages.classic import (
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    LeftMember,
    MemberShare,
    SyncGroupRequest,
    SyncGroupResponse,
)
from ...protocol.records.classic import ClassicState
from ..kernel.outcome import Outcome
from .join import member_error
from .rebalance import continue_without_pending, drop_pending, rebalance, remove_member
from .state import ClassicGroup
from .step import Step, sync_response

Decided = Outcome[Response | None]


def sync(step: Step, request: SyncGroupRequest) -> Decided:
    """Decide a SyncGroup request: the leader's completes the rebalance, the others wait for it."""
    group, member_id = step.group, request.member_id
    code = _sender_error(group, request) or _protocol_error(group, request)
    if not code and group.state is ClassicState.PREPARING_REBALANCE:
        code = RebalanceInProgress.code
    if code:
        return step.outcome(SyncGroupResponse(error_code=code))
    group.synced.add(member_id)
    if group.state is ClassicState.COMPLETING_REBALANCE:
        if member_id != group.record.leader:
            group.syncing.add(member_id)
            step.arm_session(member_id)
            return step.parked(member_id)
        _install(step, {each.member_id: each for each in request.assignments})
    if len(group.synced) == len(group.members):
        step.cancel_rebalance()
    step.arm_session(member_id)
    return step.outcome(sync_response(group, member_id))


def _install(step: Step, shares: dict[str, MemberShare]) -> None:
    """Store the leader's assignment, and respond to the members that wait for it."""
    group = step.group
    for member_id, member in list(group.members.items()):
        share = shares.get(member_id, MemberShare(member_id=member_id, assignment=b""))
        step.write_member(
            replace(
                member,
                assignment=share.assignment,
                assignment_version=share.assignment_version,
                assignment_error=share.assignment_error,
            )
        )
    step.write_group(state=ClassicState.STABLE)
    for member_id in sorted(group.syncing):
        step.replies[member_id] = sync_response(group, member_id)
        step.arm_session(member_id)
    group.syncing.clear()


def heartbeat(step: Step, request: GroupHeartbeatRequest) -> Decided:
    """Decide a Heartbeat request: it keeps the member in the group, and tells it to join again during a rebalance."""
    code = _sender_error(step.group, request)
    if not code:
        step.arm_session(request.member_id)
        if step.group.state is ClassicState.PREPARING_REBALANCE:
            code = RebalanceInProgress.code
    return step.outcome(GroupHeartbeatResponse(error_code=code))


def leave(step: Step, request: LeaveGroupRequest) -> Decided:
    """Decide a LeaveGroup request: each member is removed, or has an error code of its own.

    All of them leave before the rebalance is looked at: it must not be completed with a member that leaves, too.
    """
    group = step.group
    members, pending = len(group.members), len(group.pending)
    if not request.group_id:
        return step.outcome(LeaveGroupResponse(error_code=InvalidGroupId.code))
    if request.member_id:
        response = LeaveGroupResponse(error_code=_leave_one(step, LeavingMember(member_id=request.member_id)))
    else:
        left = tuple(
            LeftMember(
                member_id=each.member_id, group_instance_id=each.group_instance_id, error_code=_leave_one(step, each)
            )
            for each in request.members
        )
        response = LeaveGroupResponse(error_code=0, members=left)
    if len(group.members) < members:
        rebalance(step)
    elif len(group.pending) < pending:
        continue_without_pending(step)
    return step.outcome(response)


def _leave_one(step: Step, leaving: LeavingMember) -> int:
    """Remove a member; a static one may be named by its instance id alone. Return the error code."""
    group, member_id = step.group, leaving.member_id
    if member_id in group.pending:
        drop_pending(step, member_id)
        return 0
    if leaving.group_instance_id is not None and not member_id:
        member_id = group.static_member(leaving.group_instance_id) or ""
    code = member_error(group, member_id, leaving.group_instance_id)
    if code:
        return code
    remove_member(step, member_id)
    return 0


def _sender_error(group: ClassicGroup, request: SyncGroupRequest | GroupHeartbeatRequest) -> int:
    """The error code for a sender that is not a member of this generation, or 0."""
    if not request.group_id:
        return InvalidGroupId.code
    code = member_error(group, request.member_id, request.group_instance_id)
    if code in (UnknownMemberId.code, FencedInstanceId.code):
        return code
    return 0 if group.is_generation_of(request.member_id, request.generation_id) else IllegalGeneration.code


def _protocol_error(group: ClassicGroup, request: SyncGroupRequest) -> int:
    """INCONSISTENT_GROUP_PROTOCOL for a request that names another type or assignor than the group's."""
    record = group.record
    named = ((request.protocol_type, record.protocol_type), (request.protocol_name, record.protocol_name))
    differs = any(theirs is not None and theirs != ours for theirs, ours in named)
    return InconsistentGroupProtocol.code if differs else 0
