"""Removal of members: permanent or temporary leave, expired session, expired rebalance timeout."""

from __future__ import annotations

from ...protocol.messages.consumer import ConsumerHeartbeatRequest, ConsumerHeartbeatResponse
from ...protocol.records.base import MemberState
from ...protocol.units import STATIC_LEAVE_EPOCH
from ..kernel import deadlines
from ..kernel.outcome import Outcome
from ..kernel.timers import Timer
from . import static
from .draft import Draft
from .install import ensure_computation
from .settings import ConsumerSettings
from .subscription import refresh


def leave(
    draft: Draft, request: ConsumerHeartbeatRequest, settings: ConsumerSettings
) -> Outcome[ConsumerHeartbeatResponse]:
    """Process a leave: epoch -1 is permanent, epoch -2 temporary.

    Raises:
        GroupIdNotFound, UnknownMemberId, FencedInstanceId: the request is rejected; no state changes.
    """
    group, member_id = draft.group, request.member_id
    static.check_sender(group, member_id, request.instance_id)
    timers: tuple[Timer, ...] = ()
    if request.member_epoch != STATIC_LEAVE_EPOCH:
        timers = remove_member(draft, member_id, settings)
    elif not group.current(member_id).temporarily_left:
        static.leave_temporarily(draft, member_id)
        timers = (
            deadlines.cancel_rebalance(group.group_id, member_id),
            deadlines.session(group.group_id, member_id, settings),
            # The member may have been the one chosen to compute.
            *ensure_computation(draft, settings),
        )
    response = ConsumerHeartbeatResponse(
        member_id=member_id,
        member_epoch=request.member_epoch,
        heartbeat_interval_ms=settings.heartbeat_interval_ms,
    )
    return Outcome(response=response, records=tuple(draft.records), timers=timers)


def remove_member(draft: Draft, member_id: str, settings: ConsumerSettings) -> tuple[Timer, ...]:
    """Remove a member: advance the group epoch, then write its tombstones.

    If only members of the classic protocol remain, the group becomes a classic group (``convert.to_classic``). Its
    epoch does not advance then: it is the generation, which these members send.
    """
    if leaves_classic_members_only(draft, member_id, settings):
        draft.forget_member(member_id)
        return deadlines.cancel_member(draft.group.group_id, member_id)
    draft.bump()
    draft.forget_member(member_id)
    refresh(draft)
    return (*deadlines.cancel_member(draft.group.group_id, member_id), *ensure_computation(draft, settings))


def leaves_classic_members_only(draft: Draft, without: str, settings: ConsumerSettings) -> bool:
    """Whether the group becomes a classic group when a member is removed (MG-07 to MG-09)."""
    if not settings.migration_policy.downgrades:
        return False
    if draft.any_member(lambda member: member.member_id != without and not member.uses_classic_protocol):
        return False
    others = [member for member in draft.members() if member.member_id != without]
    return 0 < len(others) <= settings.max_classic_members


def session_timed_out(draft: Draft, member_id: str, settings: ConsumerSettings) -> Outcome[None]:
    """No heartbeat within the session timeout (TO-01, ST-07)."""
    timers = remove_member(draft, member_id, settings) if member_id in draft.group.members else ()
    return Outcome(response=None, records=tuple(draft.records), timers=timers)


def rebalance_timed_out(draft: Draft, member_id: str, settings: ConsumerSettings) -> Outcome[None]:
    """The member did not acknowledge a revocation within its rebalance timeout (TO-02)."""
    member = draft.group.members.get(member_id)
    unrevoked = draft.group.current(member_id).state == MemberState.UNREVOKED
    is_late = member is not None and (unrevoked or member.uses_classic_protocol)
    timers = remove_member(draft, member_id, settings) if is_late else ()
    return Outcome(response=None, records=tuple(draft.records), timers=timers)
