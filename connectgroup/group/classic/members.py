"""The members of a classic group: JoinGroup, Heartbeat and LeaveGroup.

Source: Kafka's ``GroupMetadataManager`` (classicGroupJoin, classicGroupHeartbeat, classicGroupLeave and the methods
they call); KIP-345 for static members, KIP-394 for MEMBER_ID_REQUIRED, KIP-814 for ``skip_assignment``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ...errors import (
    FencedInstanceId,
    GroupMaxSizeReached,
    InconsistentGroupProtocol,
    InvalidGroupId,
    InvalidSessionTimeout,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMemberId,
)
from ...protocol.messages.api import Response
from ...protocol.messages.classic import (
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    LeftMember,
    SyncGroupResponse,
)
from ...protocol.records.consumer import ClassicMemberRecord, ClassicState
from ..kernel.outcome import Outcome
from ..registry import ClientInfo
from .assignment import continue_without_pending, drop_pending, rebalance, remove_member
from .step import ClassicStep, join_response

Decided = Outcome[Response | None]


def join(step: ClassicStep, request: JoinGroupRequest, client: ClientInfo, new_id: Callable[[], str]) -> Decided:
    """Decide a JoinGroup request.

    Args:
        new_id: returns a part of a member id that no other call returns.
    """
    group = step.group
    code = _refused(step, request)
    if code:
        return step.outcome(_error(code, request.member_id))
    if request.member_id:
        return _join_existing(step, request, client)
    member_id = f"{request.group_instance_id or client.client_id}-{new_id()}"
    if request.group_instance_id is not None:
        former = group.instances.get(request.group_instance_id)
        if former is not None:
            return _replace_static(step, request, client, former, member_id)
    elif request.requires_member_id:
        step.create()
        group.pending[member_id] = None
        if len(group.pending) > step.settings.max_members:
            # A client joins with its id in milliseconds, or never.
            drop_pending(step, next(iter(group.pending)))
        step.arm_pending(member_id, request.session_timeout_ms)
        return step.outcome(_error(MemberIdRequired.code, member_id))
    return _add(step, request, client, member_id)


def _error(code: int, member_id: str) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=code, member_id=member_id)


def _refused(step: ClassicStep, request: JoinGroupRequest) -> int:
    """The error code of a request that is invalid for any member, or 0."""
    group, settings = step.group, step.settings
    if not request.group_id:
        return InvalidGroupId.code
    if not settings.min_session_timeout_ms <= request.session_timeout_ms <= settings.max_session_timeout_ms:
        return InvalidSessionTimeout.code
    if request.member_id and not group.exists:
        return UnknownMemberId.code
    if _is_full(step, request.member_id):
        return GroupMaxSizeReached.code
    if not group.supports(request.protocol_type, request.protocols):
        return InconsistentGroupProtocol.code
    return 0


def _is_full(step: ClassicStep, member_id: str) -> bool:
    """Whether the group has no room for the member. While members join, those that have joined count."""
    group, limit = step.group, step.settings.max_members
    if group.state is ClassicState.EMPTY:
        return False
    if group.state is ClassicState.PREPARING_REBALANCE:
        return member_id not in group.joining and len(group.joining) >= limit
    return member_id not in group.members and len(group.members) >= limit


def _join_existing(step: ClassicStep, request: JoinGroupRequest, client: ClientInfo) -> Decided:
    group, member_id = step.group, request.member_id
    if member_id in group.pending and request.group_instance_id is None:  # only dynamic members get a pending id
        return _add(step, request, client, member_id)
    code = group.member_error(member_id, request.group_instance_id)
    if code:
        return step.outcome(_error(code, member_id))
    member = group.members[member_id]
    is_leader = member_id == group.record.leader
    same = member.protocols == request.protocols
    if same and (
        group.state is ClassicState.COMPLETING_REBALANCE or (group.state is ClassicState.STABLE and not is_leader)
    ):
        # The member has missed its response. A leader that joins a stable group again requests a rebalance.
        step.arm_session(member_id)
        lists_members = is_leader and group.state is ClassicState.COMPLETING_REBALANCE
        return step.outcome(join_response(group, member_id, lists_members=lists_members))
    return _wait(step, _updated(member, request), is_new=False)


def _add(step: ClassicStep, request: JoinGroupRequest, client: ClientInfo, member_id: str) -> Decided:
    """Add a member, and begin a rebalance."""
    group = step.group
    group.pending.pop(member_id, None)
    step.create()
    record = ClassicMemberRecord(
        group_id=group.group_id,
        member_id=member_id,
        number=group.next_number,
        instance_id=request.group_instance_id,
        client_id=client.client_id,
        client_host=client.host,
    )
    if not group.members:
        step.write_group(protocol_type=request.protocol_type)
    return _wait(step, _updated(record, request), is_new=True)


def _updated(member: ClassicMemberRecord, request: JoinGroupRequest) -> ClassicMemberRecord:
    timeout_ms = request.rebalance_timeout_ms
    return replace(
        member,
        protocols=request.protocols,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=timeout_ms if timeout_ms >= 0 else request.session_timeout_ms,
        former_epoch=-1,
    )


def _wait(step: ClassicStep, member: ClassicMemberRecord, *, is_new: bool) -> Decided:
    """Let the member wait for the next generation; it may begin in this step."""
    group, member_id = step.group, member.member_id
    step.write_member(member)
    group.joining.add(member_id)
    group.syncing.discard(member_id)
    if is_new:
        group.new.add(member_id)
        group.member_added = True
    if member_id in group.new:
        step.arm_session(member_id, step.settings.new_member_timeout_ms)
    rebalance(step)
    return step.parked(member_id)


def _replace_static(
    step: ClassicStep, request: JoinGroupRequest, client: ClientInfo, former: str, member_id: str
) -> Decided:
    """A process joins with the instance id of a member: it takes the place of that member under a new member id."""
    group = step.group
    leader_before, member = group.record.leader, group.members[former]
    was_joining = former in group.joining
    step.remove(former, _fenced(was_joining, former))
    origin = replace(member, member_id=member_id, client_id=client.client_id, client_host=client.host)
    step.write_member(_updated(origin, request))
    if leader_before == former:
        step.write_group(leader=member_id)
    step.arm_session(member_id)
    if group.state is not ClassicState.STABLE or group.selected_protocol() != group.record.protocol_name:
        return _wait(step, group.members[member_id], is_new=False)
    # No rebalance: the assignment does not change (KIP-345, KIP-814).
    group.synced.add(member_id)
    is_leader = group.record.leader == member_id
    response = join_response(group, member_id, lists_members=is_leader and request.skips_assignment)
    if request.skips_assignment:
        return step.outcome(replace(response, skip_assignment=is_leader))
    # To a client that cannot skip the assignment, the leader is its predecessor, so that it behaves as a follower.
    return step.outcome(replace(response, leader=leader_before))


def _fenced(was_joining: bool, member_id: str) -> Response:
    if was_joining:
        return _error(FencedInstanceId.code, member_id)
    return SyncGroupResponse(error_code=FencedInstanceId.code)


# --------------------------------------------------------------------------------------------------
# Heartbeat and LeaveGroup.


def heartbeat(step: ClassicStep, request: GroupHeartbeatRequest) -> Decided:
    """Decide a Heartbeat request: it keeps the member in the group, and tells it to join again during a rebalance."""
    code = step.group.sender_error(request)
    if not code:
        step.arm_session(request.member_id)
        if step.group.state is ClassicState.PREPARING_REBALANCE:
            code = RebalanceInProgress.code
    return step.outcome(GroupHeartbeatResponse(error_code=code))


def leave(step: ClassicStep, request: LeaveGroupRequest) -> Decided:
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


def _leave_one(step: ClassicStep, leaving: LeavingMember) -> int:
    """Remove a member; a static one may be named by its instance id alone. Return the error code."""
    group, member_id = step.group, leaving.member_id
    if member_id in group.pending:
        drop_pending(step, member_id)
        return 0
    if leaving.group_instance_id is not None and not member_id:
        member_id = group.instances.get(leaving.group_instance_id) or ""
    code = group.member_error(member_id, leaving.group_instance_id)
    if code:
        return code
    remove_member(step, member_id)
    return 0
