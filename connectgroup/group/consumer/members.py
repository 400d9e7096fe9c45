"""The members of a consumer group: who sends as one, static members, and their removal.

The rules of static membership that do not depend on the group type, and their source, are in ``kernel.members``.
"""

from __future__ import annotations

from ...errors import UnknownMemberId
from ...protocol.messages.consumer import ConsumerHeartbeatRequest, ConsumerHeartbeatResponse
from ...protocol.records.base import MemberState
from ...protocol.records.consumer import ConsumerMemberRecord
from ...protocol.units import STATIC_LEAVE_EPOCH, printable
from ..kernel import members as rules, timers as timing
from ..kernel.members import check_exists, leave_temporarily
from ..kernel.outcome import Outcome
from ..kernel.state import NO_TARGET
from ..kernel.timers import Timer
from .assignment import ensure_computation
from .draft import ConsumerDraft
from .settings import ConsumerSettings
from .state import ConsumerGroupState
from .subscription import refresh


def check_sender(group: ConsumerGroupState, member_id: str, instance_id: str | None) -> None:
    """Check that the sender of a heartbeat or leave is a member of the consumer protocol.

    Raises:
        GroupIdNotFound: the group does not exist.
        UnknownMemberId, FencedInstanceId: see ``kernel.members.check_sender``; or it uses the classic protocol.
    """
    check_exists(group)
    rules.check_sender(group, member_id, instance_id)
    if group.members[member_id].uses_classic_protocol:
        raise UnknownMemberId(f"MemberId: {printable(member_id)!r} uses the classic protocol")


def replace_static_member(draft: ConsumerDraft, former: ConsumerMemberRecord, member_id: str) -> None:
    """Transfer the target assignment of a static member to the member that replaces it; remove the former (ST-02)."""
    target, known = draft.target(former.member_id), draft.member(member_id)
    draft.forget_member(former.member_id)
    if known is not None or draft.epoch > draft.target_epoch:
        # A computation in progress has the former member id in its input, and must not fail because of it.
        draft.bump()
    if known is None and target != NO_TARGET:
        draft.set_target(member_id, target)


def leave(
    draft: ConsumerDraft, request: ConsumerHeartbeatRequest, settings: ConsumerSettings
) -> Outcome[ConsumerHeartbeatResponse]:
    """Process a leave: epoch -1 is permanent, epoch -2 temporary.

    Raises:
        GroupIdNotFound, UnknownMemberId, FencedInstanceId: the request is rejected; no state changes.
    """
    group, member_id = draft.group, request.member_id
    check_sender(group, member_id, request.instance_id)
    timers: tuple[Timer, ...] = ()
    if request.member_epoch != STATIC_LEAVE_EPOCH:
        timers = remove_member(draft, member_id, settings)
    elif not group.current(member_id).temporarily_left:
        leave_temporarily(draft, member_id)
        timers = (
            timing.cancel_rebalance(group.group_id, member_id),
            timing.session(group.group_id, member_id, settings.session_timeout_ms),
            # The member may have been the one chosen to compute.
            *ensure_computation(draft, settings),
        )
    response = ConsumerHeartbeatResponse(
        member_id=member_id,
        member_epoch=request.member_epoch,
        heartbeat_interval_ms=settings.heartbeat_interval_ms,
    )
    return draft.outcome(response, timers)


def remove_member(draft: ConsumerDraft, member_id: str, settings: ConsumerSettings) -> tuple[Timer, ...]:
    """Remove a member: advance the group epoch, then write its tombstones.

    If only members of the classic protocol remain, the group becomes a classic group (``convert.to_classic``). Its
    epoch does not advance then: it is the generation, which these members send.
    """
    if leaves_classic_members_only(draft, member_id, settings):
        draft.forget_member(member_id)
        return timing.cancel_member(draft.group_id, member_id)
    draft.bump()
    draft.forget_member(member_id)
    refresh(draft)
    return (*timing.cancel_member(draft.group_id, member_id), *ensure_computation(draft, settings))


def leaves_classic_members_only(draft: ConsumerDraft, without: str, settings: ConsumerSettings) -> bool:
    """Whether the group becomes a classic group when a member is removed (MG-07 to MG-09)."""
    if not settings.migration_policy.downgrades:
        return False
    if draft.any_member(lambda member: member.member_id != without and not member.uses_classic_protocol):
        return False
    others = [member for member in draft.members() if member.member_id != without]
    return 0 < len(others) <= settings.max_classic_members


def session_timed_out(draft: ConsumerDraft, member_id: str, settings: ConsumerSettings) -> Outcome[None]:
    """No heartbeat within the session timeout (TO-01, ST-07)."""
    return draft.outcome(None, remove_member(draft, member_id, settings) if member_id in draft.group.members else ())


def rebalance_timed_out(draft: ConsumerDraft, member_id: str, settings: ConsumerSettings) -> Outcome[None]:
    """The member did not acknowledge a revocation within its rebalance timeout (TO-02)."""
    member = draft.group.members.get(member_id)
    unrevoked = draft.group.current(member_id).state == MemberState.UNREVOKED
    is_late = member is not None and (unrevoked or member.uses_classic_protocol)
    return draft.outcome(None, remove_member(draft, member_id, settings) if is_late else ())
