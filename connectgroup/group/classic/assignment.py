"""The phases of a rebalance: members join, the leader computes the assignment, members receive it with SyncGroup.

Source: Kafka's ``GroupMetadataManager`` (prepareRebalance, completeClassicGroupJoin, expirePendingSync,
classicGroupSync); KIP-429 for the leader.
"""

from __future__ import annotations

from dataclasses import replace

from ...errors import InconsistentGroupProtocol, RebalanceInProgress, UnknownMemberId
from ...protocol.messages.api import Response
from ...protocol.messages.classic import JoinGroupResponse, MemberShare, SyncGroupRequest, SyncGroupResponse
from ...protocol.records.consumer import ClassicMemberRecord, ClassicState
from ..kernel.outcome import Outcome
from .state import ClassicGroupState
from .step import ClassicStep, join_response, rebalance_key, sync_response


def rebalance(step: ClassicStep) -> None:
    """Begin a rebalance, or complete the one that waits for members if all have joined."""
    if step.group.state is ClassicState.PREPARING_REBALANCE:
        _complete_if_all_joined(step)
    else:
        _prepare(step)


def _prepare(step: ClassicStep) -> None:
    group = step.group
    for member_id in sorted(group.syncing):
        step.replies[member_id] = SyncGroupResponse(error_code=RebalanceInProgress.code)
        step.arm_session(member_id)
    group.syncing.clear()
    group.synced.clear()
    step.cancel_rebalance()
    delay_ms = min(step.settings.initial_rebalance_delay_ms, group.rebalance_timeout_ms)
    is_initial = group.state is ClassicState.EMPTY and delay_ms > 0
    step.write_group(state=ClassicState.PREPARING_REBALANCE)
    if is_initial:
        group.initial_left_ms = group.rebalance_timeout_ms - delay_ms
        group.member_added = False
        step.arm_rebalance(delay_ms)
        return
    group.initial_left_ms = -1
    step.arm_rebalance(group.rebalance_timeout_ms)
    _complete_if_all_joined(step)


def _complete_if_all_joined(step: ClassicStep) -> None:
    group = step.group
    if group.initial_left_ms < 0 and len(group.joining) == len(group.members) and not group.pending:
        _complete_join(step)


def expire_rebalance(step: ClassicStep) -> None:
    """The timer of a phase has expired: continue without the members that have not sent their request."""
    group = step.group
    if group.state is ClassicState.PREPARING_REBALANCE:
        if group.initial_left_ms > 0 and group.member_added:
            delay_ms = min(step.settings.initial_rebalance_delay_ms, group.initial_left_ms)
            group.initial_left_ms -= delay_ms
            group.member_added = False
            step.arm_rebalance(delay_ms)
        else:
            _complete_join(step)
    elif group.state is ClassicState.COMPLETING_REBALANCE or group.state is ClassicState.STABLE:
        late = [member_id for member_id in group.members if member_id not in group.synced]
        for member_id in late:
            step.remove(member_id)
        if late:
            rebalance(step)


def _complete_join(step: ClassicStep) -> None:
    """Begin the next generation with the members that have joined. Static members that have not joined stay."""
    group = step.group
    group.initial_left_ms = -1
    step.cancel_rebalance()
    for member_id, member in list(group.members.items()):
        if member_id not in group.joining and member.instance_id is None:
            step.remove(member_id)
    if group.members and not group.joining:
        # Only static members are left, and none has joined: there is no leader yet.
        step.arm_rebalance(group.rebalance_timeout_ms)
        return
    step.write_generation(group.generation + 1)
    if not group.members:
        step.write_group(state=ClassicState.EMPTY, protocol_name="", leader="")
        return
    step.write_group(
        state=ClassicState.COMPLETING_REBALANCE,
        protocol_name=(protocol := group.selected_protocol()),
        leader=choose_leader(group, protocol),
    )
    for member_id, member in list(group.members.items()):
        if member_id in group.joining:
            is_leader = member_id == group.record.leader
            step.replies[member_id] = join_response(group, member_id, lists_members=is_leader)
        else:
            # The leader may assign its partitions to others: its former epoch is one of a past generation from now on.
            step.write_member(replace(member, former_epoch=-1))
        step.arm_session(member_id)
    group.joining.clear()
    group.new.clear()
    group.synced.clear()
    step.arm_rebalance(group.rebalance_timeout_ms)


def choose_leader(group: ClassicGroupState, protocol: str) -> str:
    """The leader of the next generation.

    Of the members with the highest assignor version the current leader, else the first one to join: a newer assignor
    can read the metadata of an older one (KIP-429). Kafka's own clients give no version.
    """
    joined = [member for member in group.members.values() if member.member_id in group.joining]
    highest = max(_version(member, protocol) for member in joined)
    candidates = [member.member_id for member in joined if _version(member, protocol) == highest]
    return group.record.leader if group.record.leader in candidates else candidates[0]


def _version(member: ClassicMemberRecord, protocol: str) -> int:
    return next((each.assignor_version for each in member.protocols if each.name == protocol), -1)


def remove_and_rebalance(step: ClassicStep, member_id: str) -> None:
    """Remove a member whose session has expired."""
    remove_member(step, member_id)
    rebalance(step)


def remove_member(step: ClassicStep, member_id: str) -> None:
    """Remove a member; its parked request is rejected. The caller begins the rebalance."""
    gone = UnknownMemberId.code
    if member_id in step.group.joining:
        step.remove(member_id, JoinGroupResponse(error_code=gone, member_id=member_id))
    else:
        step.remove(member_id, SyncGroupResponse(error_code=gone))


def drop_pending(step: ClassicStep, member_id: str) -> None:
    """Forget a member id that was sent with MEMBER_ID_REQUIRED."""
    step.group.pending.pop(member_id, None)
    step.cancel_session(member_id)


def continue_without_pending(step: ClassicStep) -> None:
    """Member ids have been forgotten: no rebalance waits for them any more."""
    group = step.group
    if group.state is ClassicState.PREPARING_REBALANCE:
        _complete_if_all_joined(step)
    elif group.exists and not (group.pending or group.members or group.generation or len(group.offsets)):
        step.delete()  # no member has ever joined, and nothing was committed


def is_current(step: ClassicStep, belongs_to: int) -> bool:
    """Whether an expired rebalance timer belongs to the current phase."""
    return rebalance_key(step.group).belongs_to == belongs_to


# --------------------------------------------------------------------------------------------------
# SyncGroup.


def sync(step: ClassicStep, request: SyncGroupRequest) -> Outcome[Response | None]:
    """Decide a SyncGroup request: the leader's completes the rebalance, the others wait for it."""
    group, member_id = step.group, request.member_id
    code = group.sender_error(request) or _protocol_error(group, request)
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


def _install(step: ClassicStep, assigned: dict[str, MemberShare]) -> None:
    """Store the leader's assignment, and respond to the members that wait for it."""
    group = step.group
    for member_id, member in list(group.members.items()):
        given = assigned.get(member_id, MemberShare(member_id=member_id, assignment=b""))
        step.write_member(
            replace(
                member,
                assignment=given.assignment,
                assignment_version=given.assignment_version,
                assignment_error=given.assignment_error,
            )
        )
    step.write_group(state=ClassicState.STABLE)
    for member_id in sorted(group.syncing):
        step.replies[member_id] = sync_response(group, member_id)
        step.arm_session(member_id)
    group.syncing.clear()


def _protocol_error(group: ClassicGroupState, request: SyncGroupRequest) -> int:
    """INCONSISTENT_GROUP_PROTOCOL for a request that names another type or assignor than the group's."""
    record = group.record
    named = ((request.protocol_type, record.protocol_type), (request.protocol_name, record.protocol_name))
    differs = any(theirs is not None and theirs != ours for theirs, ours in named)
    return InconsistentGroupProtocol.code if differs else 0
