"""Members of a consumer group that use the classic protocol: JoinGroup, SyncGroup, Heartbeat and LeaveGroup.

While a group is migrated, it has members of both protocols. The generation of a member of the classic protocol is its
member epoch. It learns from Heartbeat that its target assignment has changed (REBALANCE_IN_PROGRESS), reports with
JoinGroup what it still owns, which acknowledges a revocation, and gets the assignment of its epoch with SyncGroup. Its
current assignment changes with its JoinGroup only. No such member leads: the coordinator assigns.

Source: KIP-848, "Migration"; Kafka's ``GroupMetadataManager`` (classicGroupJoinToConsumerGroup and its siblings).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from ...errors import (
    FencedInstanceId,
    GroupError,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidGroupId,
    InvalidSessionTimeout,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMemberId,
)
from ...protocol.messages.api import Response
from ...protocol.messages.classic import (
    UNKNOWN_GENERATION,
    EmbeddedAssignment,
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    LeftMember,
    SyncGroupRequest,
    SyncGroupResponse,
)
from ...protocol.records.base import Kind, MemberState, Tombstone
from ...protocol.records.connect import Record
from ...protocol.records.consumer import ConsumerMemberRecord
from ...protocol.units import MAX_NAME_BYTES, Partitions, printable
from ..classic.state import PROTOCOL_TYPE, ClassicSettings, EmbeddedFormat, subscription_of, with_ids, with_names
from ..kernel import outcome as timing
from ..kernel.outcome import CancelTimer, Outcome, SetTimer, Timer, TimerKey, TimerKind
from ..registry import ClientInfo
from .assignment import ensure_computation, refresh
from .heartbeat import drop_member, reconciled, replace_static_member, store, subscribed_target
from .settings import ConsumerSettings
from .state import Awaited, ConsumerDraft, ConsumerGroupState


@dataclass(frozen=True, slots=True)
class ClassicMemberRules:
    """What the requests of the classic protocol need besides the group.

    Attributes:
        settings: of consumer groups.
        classic: of classic groups: the limits of a session timeout.
        embedded: the bytes of subscriptions and assignments.
        new_id: returns a part of a member id that no other call returns.
    """

    settings: ConsumerSettings
    classic: ClassicSettings
    embedded: EmbeddedFormat
    new_id: Callable[[], str]


def session_timer(group_id: str, member: ConsumerMemberRecord, settings: ConsumerSettings) -> SetTimer:
    """The session timeout of a member of either protocol."""
    is_classic = member.uses_classic_protocol
    return timing.session(
        group_id, member.member_id, member.classic_session_timeout_ms if is_classic else settings.session_timeout_ms
    )


# --------------------------------------------------------------------------------------------------
# JoinGroup


def join(
    rules: ClassicMemberRules, draft: ConsumerDraft, request: JoinGroupRequest, client: ClientInfo
) -> Outcome[JoinGroupResponse]:
    """Process a JoinGroup: the member joins, or reports what it owns, and advances by one step.

    If the target assignment is being computed, the request is parked until it is there, for a limited time.

    Raises:
        GroupError: the request is rejected; no state changes.
    """
    _check_join(rules, draft.group, request)
    member_id = request.member_id or f"{request.group_instance_id or client.client_id}-{rules.new_id()}"
    former = _check_identity(rules, draft, request)
    if not request.member_id and request.group_instance_id is None and request.requires_member_id:
        # The id need not be stored: a JoinGroup with any unknown id creates the member.
        return Outcome(response=JoinGroupResponse(error_code=MemberIdRequired.code, member_id=member_id))
    timers: tuple[Timer, ...] = ()
    if former is not None:
        timers = timing.cancel_member(draft.group_id, former.member_id)
        replace_static_member(draft, former, member_id)
    member, owned = _member(rules, draft, request, client, member_id)
    before = draft.group.members.get(member_id)
    if before is None and former is not None:
        before = replace(former, member_id=member_id)
    store(draft, member, rules.settings, before=before)
    timers += ensure_computation(draft, rules.settings)

    current = draft.current(member_id)
    # Also those of topics that it does not subscribe to any more: it runs them until it has revoked them.
    named = {name: draft.cluster[name] for name, _ in owned if name in draft.cluster}
    after = reconciled(draft, member_id, current, with_ids(owned, {**named, **draft.topics}))
    if after is not current:
        after = replace(after, previous_epoch=current.epoch)
        draft.set_current(member_id, after)
    response = JoinGroupResponse(
        error_code=0,
        generation_id=after.epoch,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=_protocol_name(draft, member),
        member_id=member_id,
    )
    return Outcome(
        response=response,
        records=tuple(draft.records),
        timers=(*timers, *_session(rules, draft, member), *_await(draft, member, Awaited.SYNC)),
        # A request without a member id cannot be decided again: it would add another member.
        parks=bool(request.member_id) and draft.epoch > draft.target_epoch and after.state != MemberState.UNREVOKED,
        sender=member_id,
    )


def _check_join(rules: ClassicMemberRules, group: ConsumerGroupState, request: JoinGroupRequest) -> None:
    """Check the request alone, and whether its protocols fit those of the group (MG-13, MG-14)."""
    if not request.group_id:
        raise InvalidGroupId("GroupId: empty")
    low, high = rules.classic.min_session_timeout_ms, rules.classic.max_session_timeout_ms
    if not low <= request.session_timeout_ms <= high:
        raise InvalidSessionTimeout(f"SessionTimeoutMs: got {request.session_timeout_ms}; allowed: {low} to {high}")
    name = printable(request.group_id)
    if request.protocol_type != PROTOCOL_TYPE:
        raise InconsistentGroupProtocol(
            f"group {name} is of type 'consumer', its members have protocol type 'consumer'; "
            f"got {printable(request.protocol_type)!r}"
        )
    if not rules.settings.migration_policy.converts:
        raise InconsistentGroupProtocol(
            f"group {name} is of type 'consumer' and migration_policy is 'disabled': set group.protocol=consumer"
        )
    offered = {protocol.name for protocol in request.protocols}
    common = common_protocols(group, without=request.member_id)
    if not offered or (common is not None and not offered & common):
        raise InconsistentGroupProtocol(
            f"the other members of group {name} that use the classic protocol have the assignors "
            f"{printable(', '.join(sorted(common or ())))}; got {printable(', '.join(sorted(offered)))}"
        )


def common_protocols(group: ConsumerGroupState, without: str = "") -> set[str] | None:
    """The assignors that all members of the classic protocol support; ``None``: there is no such member.

    Args:
        without: a member that does not count.
    """
    offered = [
        {protocol.name for protocol in member.classic_protocols}
        for member in group.members.values()
        if member.uses_classic_protocol and member.member_id != without
    ]
    return set.intersection(*offered) if offered else None


def _check_identity(
    rules: ClassicMemberRules, draft: ConsumerDraft, request: JoinGroupRequest
) -> ConsumerMemberRecord | None:
    """Check who sends the request; return the static member that it replaces, or ``None``.

    An unknown id creates a member, unless its sender owns partitions of a generation: that member has been removed, and
    others may own them. As in a classic group it must learn this before it revokes, or it would commit their offsets at
    its new epoch. Kafka's coordinator creates the member.
    """
    group, member_id, instance_id = draft.group, request.member_id, request.group_instance_id
    static_member = group.instances.get(instance_id) if instance_id is not None else None
    if instance_id is not None and member_id:
        check_sender(group, member_id, instance_id)
    elif member_id in group.members and not group.members[member_id].uses_classic_protocol:
        raise UnknownMemberId(f"MemberId: {printable(member_id)!r} uses the consumer protocol")
    elif member_id and member_id not in group.members:
        subscription = subscription_of(rules.embedded, member_id, request.protocols)
        if subscription.owned and subscription.generation > UNKNOWN_GENERATION:
            raise UnknownMemberId(f"MemberId: {printable(member_id)!r} has been removed, and owns partitions")
    if static_member is None and member_id not in group.members and len(group.members) >= rules.settings.max_members:
        raise GroupMaxSizeReached(f"the group has all of its {rules.settings.max_members} members")
    return group.members[static_member] if static_member is not None and not member_id else None


def _member(
    rules: ClassicMemberRules, draft: ConsumerDraft, request: JoinGroupRequest, client: ClientInfo, member_id: str
) -> tuple[ConsumerMemberRecord, Partitions]:
    """The member's record, and the partitions that it owns, by topic name."""
    subscription = subscription_of(rules.embedded, member_id, request.protocols)
    known = draft.group.members.get(member_id)
    timeout_ms = request.rebalance_timeout_ms
    member = ConsumerMemberRecord(
        group_id=request.group_id,
        member_id=member_id,
        joined_epoch=known.joined_epoch if known is not None else draft.next_epoch,
        instance_id=request.group_instance_id,
        rack_id=subscription.rack,
        client_id=printable(client.client_id, limit=MAX_NAME_BYTES),
        client_host=client.host,
        rebalance_timeout_ms=timeout_ms if timeout_ms >= 0 else request.session_timeout_ms,
        subscribed_topic_names=tuple(sorted(subscription.topics)),
        classic_protocols=request.protocols,
        classic_session_timeout_ms=request.session_timeout_ms,
    )
    return member, subscription.owned


def _protocol_name(draft: ConsumerDraft, member: ConsumerMemberRecord) -> str:
    """The assignor that the member prefers among those that all members of the classic protocol support."""
    common = common_protocols(draft.group, without=member.member_id)
    names = [protocol.name for protocol in member.classic_protocols]
    return next(name for name in names if common is None or name in common)


# --------------------------------------------------------------------------------------------------
# SyncGroup, Heartbeat, LeaveGroup


def sync(rules: ClassicMemberRules, draft: ConsumerDraft, request: SyncGroupRequest) -> Outcome[SyncGroupResponse]:
    """Process a SyncGroup: the response is the assignment of the member's epoch."""
    member = _member_at_epoch(draft.group, request)
    names = {protocol.name for protocol in member.classic_protocols}
    if request.protocol_type not in (None, PROTOCOL_TYPE) or request.protocol_name not in {None, *names}:
        raise InconsistentGroupProtocol(f"ProtocolName: got {request.protocol_name!r} of {request.protocol_type!r}")
    current = draft.current(member.member_id)
    if draft.target_epoch > current.epoch and current.state != MemberState.UNREVOKED:
        timers = (*_session(rules, draft, member), *_await(draft, member, Awaited.JOIN))
        return Outcome(response=SyncGroupResponse(error_code=RebalanceInProgress.code), timers=timers)
    assigned = with_names(current.assigned, draft.group.topic_names)
    response = SyncGroupResponse(
        error_code=0,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=_protocol_name(draft, member),
        assignment=rules.embedded.encode_assignment(EmbeddedAssignment(partitions=assigned)),
    )
    # A member with pending revocations revokes them now, and joins again.
    next_request = Awaited.JOIN if current.state == MemberState.UNREVOKED else Awaited.NOTHING
    return Outcome(response=response, timers=(*_session(rules, draft, member), *_await(draft, member, next_request)))


def heartbeat(
    rules: ClassicMemberRules, draft: ConsumerDraft, request: GroupHeartbeatRequest
) -> Outcome[GroupHeartbeatResponse]:
    """Process a Heartbeat: it keeps the member in the group, and tells it to join again if that advances it.

    A group epoch without a target assignment tells nothing: there is nothing to advance to yet (MG-15).
    """
    member = _member_at_epoch(draft.group, request)
    timers = _session(rules, draft, member)
    if not _can_advance(draft, member):
        return Outcome(response=GroupHeartbeatResponse(error_code=0), timers=timers)
    timers += _await(draft, member, Awaited.JOIN)
    return Outcome(response=GroupHeartbeatResponse(error_code=RebalanceInProgress.code), timers=timers)


def _can_advance(draft: ConsumerDraft, member: ConsumerMemberRecord) -> bool:
    """Whether a JoinGroup would change the current assignment of a member."""
    member_id = member.member_id
    current = draft.current(member_id)
    if draft.target_epoch > current.epoch or current.state == MemberState.UNREVOKED:
        return True
    missing = subscribed_target(draft, member) - current.assigned.keys() if current.state != MemberState.STABLE else ()
    return any(draft.owner(partition) in (None, member_id) for partition in missing)


def leave(rules: ClassicMemberRules, draft: ConsumerDraft, request: LeaveGroupRequest) -> Outcome[LeaveGroupResponse]:
    """Process a LeaveGroup: each member is removed, or has an error code of its own.

    An operator removes a static member of either protocol by its instance id.
    """
    if not request.group_id:
        raise InvalidGroupId("GroupId: empty")
    timers: list[Timer] = []
    left: list[LeftMember] = []
    advances = False
    for each in request.members or (LeavingMember(member_id=request.member_id),):
        code = 0
        try:
            member_id = _leaving(draft, each)
            advances |= drop_member(draft, member_id, rules.settings)
            timers += timing.cancel_member(draft.group_id, member_id)
        except GroupError as error:
            code = error.code
        left.append(LeftMember(member_id=each.member_id, group_instance_id=each.group_instance_id, error_code=code))
    if advances:  # once, not for each of a thousand members: it takes time in proportion to the group
        refresh(draft)
        timers += ensure_computation(draft, rules.settings)
    response = LeaveGroupResponse(error_code=0, members=tuple(left))
    if not request.members:
        response = LeaveGroupResponse(error_code=left[0].error_code)
    return draft.outcome(response, tuple(timers))


def _leaving(draft: ConsumerDraft, leaving: LeavingMember) -> str:
    """The member id of a member that leaves."""
    group, member_id, instance_id = draft.group, leaving.member_id, leaving.group_instance_id
    if instance_id is not None:
        found = group.instances.get(instance_id)
        if found is None or draft.member(found) is None:
            raise UnknownMemberId(f"GroupInstanceId: got {printable(instance_id)!r}; no member of the group has it")
        if member_id and found != member_id:
            raise FencedInstanceId(f"GroupInstanceId: {printable(instance_id)!r} is in use by {printable(found)}")
        return found
    member = draft.member(member_id)
    if member is None or not member.uses_classic_protocol:
        raise UnknownMemberId(f"MemberId: got {printable(member_id)!r}; no member of the classic protocol has it")
    return member_id


def responses_to_removed(group: ConsumerGroupState, records: Iterable[Record]) -> dict[str, Response]:
    """The responses to parked JoinGroups of dynamic members that a step removes, by member id.

    Such a JoinGroup must not be decided again: it would create the member. That of a static member is rejected then.

    Args:
        group: the group before the step.
        records: those of the step.
    """
    removed = [
        each.key.name for each in records if isinstance(each, Tombstone) and each.key.kind is Kind.CONSUMER_MEMBER
    ]
    members = [group.members[each] for each in removed if each in group.members]
    return {
        member.member_id: JoinGroupResponse(error_code=UnknownMemberId.code, member_id=member.member_id)
        for member in members
        if member.uses_classic_protocol and member.instance_id is None
    }


# --------------------------------------------------------------------------------------------------
# The sender, and its timers


def check_sender(group: ConsumerGroupState, member_id: str, instance_id: str | None) -> ConsumerMemberRecord:
    """The member of the classic protocol that sends a request.

    Raises:
        UnknownMemberId: there is no such member, or it uses the consumer protocol.
        FencedInstanceId: another member has its instance id now.
    """
    if instance_id is not None:
        found = group.instances.get(instance_id)
        if found is None:
            raise UnknownMemberId(f"GroupInstanceId: got {printable(instance_id)!r}; no member of the group has it")
        if found != member_id:
            raise FencedInstanceId(f"GroupInstanceId: {printable(instance_id)!r} is in use by {printable(found)}")
    member = group.members.get(member_id)
    if member is None or not member.uses_classic_protocol:
        raise UnknownMemberId(f"MemberId: got {printable(member_id)!r}; no member of the classic protocol has it")
    return member


def _member_at_epoch(
    group: ConsumerGroupState, request: SyncGroupRequest | GroupHeartbeatRequest
) -> ConsumerMemberRecord:
    """The member of the classic protocol that sends a request of its generation (MG-12)."""
    if not request.group_id:
        raise InvalidGroupId("GroupId: empty")
    member = check_sender(group, request.member_id, request.group_instance_id)
    epoch = group.current(member.member_id).epoch
    if request.generation_id != epoch:
        raise IllegalGeneration(f"GenerationId: got {request.generation_id}; the member is at epoch {epoch}")
    return member


def _session(rules: ClassicMemberRules, draft: ConsumerDraft, member: ConsumerMemberRecord) -> tuple[Timer, ...]:
    return (session_timer(draft.group_id, member, rules.settings),)


def _await(draft: ConsumerDraft, member: ConsumerMemberRecord, awaited: Awaited) -> tuple[Timer, ...]:
    """Arm the timer of the request that the member must send next; one that is armed for the same keeps running."""
    group, member_id = draft.group, member.member_id
    if group.awaited.get(member_id, Awaited.NOTHING) == awaited != Awaited.SYNC:
        return ()
    key = TimerKey(TimerKind.REBALANCE, group.group_id, member_id, belongs_to=awaited)
    if awaited == Awaited.NOTHING:
        group.awaited.pop(member_id, None)
        return (CancelTimer(key),)
    group.awaited[member_id] = awaited
    return (SetTimer(key, member.rebalance_timeout_ms),)
