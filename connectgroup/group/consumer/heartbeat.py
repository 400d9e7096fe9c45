"""ConsumerGroupHeartbeat, and the members of a consumer group: who sends as one, static members, and their removal.

The order is that of Kafka's ``consumerGroupHeartbeat``: find the group, find or create the member, check the member
epoch, update the member, compute the target assignment if it is outdated, and reconcile the member by one step.

The rules of static membership that do not depend on the group type, and their source, are in ``kernel.members``.
``check_heartbeat`` precedes all other processing: one line of code per sentence of the source.

Source: KIP-848, "Request Validation"; Kafka's ``throwIfConsumerGroupHeartbeatRequestIsInvalid`` (RV-01 to RV-13).
"""

from __future__ import annotations

from dataclasses import replace

from ...errors import (
    ComputeAssignment,
    FencedMemberEpoch,
    InvalidRegularExpression,
    PolicyViolation,
    UnknownMemberId,
)
from ...protocol.messages.consumer import (
    ConsumerAssignment,
    ConsumerHeartbeatRequest,
    ConsumerHeartbeatResponse,
    ConsumerInstallRequest,
    ConsumerPrepareRequest,
    by_topic,
    each_partition,
)
from ...protocol.records.base import MemberState
from ...protocol.records.consumer import ConsumerMemberRecord
from ...protocol.units import (
    JOIN_EPOCH,
    MAX_NAME_BYTES,
    STATIC_LEAVE_EPOCH,
    Partitions,
    TopicPartition,
    printable,
    show,
)
from ..kernel import members as rules, outcome as timing, validate as kernel
from ..kernel.computation import forget_prepare, under_way
from ..kernel.members import check_exists, check_room, former_static_member, leave_temporarily
from ..kernel.outcome import Outcome, Timer
from ..kernel.reconcile import Current, ReconcileTarget, acknowledges, reconcile
from ..kernel.state import NO_TARGET, check_assignors
from ..kernel.validate import check_group_id, name, refuse
from ..registry import ClientInfo
from .assignment import change_of, ensure_computation, num_partitions, refresh
from .settings import ConsumerSettings
from .state import ConsumerDraft, ConsumerGroupState


def heartbeat(
    draft: ConsumerDraft, request: ConsumerHeartbeatRequest, settings: ConsumerSettings, client: ClientInfo
) -> Outcome[ConsumerHeartbeatResponse]:
    """Process one valid heartbeat and advance the member one step towards its target assignment.

    Raises:
        GroupError: the request is rejected; no state changes.
    """
    group, member_id = draft.group, request.member_id
    timers: tuple[Timer, ...] = ()
    if request.member_epoch == JOIN_EPOCH:
        timers = _join(draft, request, settings, client)
        draft.joining = member_id
    else:
        _admit(draft, request)
        member = group.members[member_id]
        store(draft, _updated(member, request), settings, before=member)
    # If nothing has changed, a computation in progress goes on. To look for another member takes long in a large group.
    if draft.records or draft.joining or under_way(draft) is None:
        timers += ensure_computation(draft, settings)
    timers += (timing.session(group.group_id, member_id, settings.session_timeout_ms),)

    computation, current = under_way(draft), draft.current(member_id)
    if (
        computation is not None
        and computation.member_id == member_id
        and not computation.prepared
        and request.member_epoch != JOIN_EPOCH
        and not (request.member_epoch == current.epoch and acknowledges(current, _owned(request)))
    ):
        # The member is reconciled at its next heartbeat, which is a full one, as after every error.
        asked = ConsumerHeartbeatResponse(
            error_code=ComputeAssignment.code,
            error_message=f"compute the assignment for group epoch {draft.epoch}",
            member_id=member_id,
            member_epoch=current.epoch,
            heartbeat_interval_ms=settings.heartbeat_interval_ms,
        )
        return draft.outcome(asked, timers)
    return _step(draft, request, settings, timers)


def _owned(request: ConsumerHeartbeatRequest) -> Partitions | None:
    return None if request.owned is None else frozenset(each_partition(request.owned))


# --------------------------------------------------------------------------------------------------
# Join, admission, update


def _join(
    draft: ConsumerDraft, request: ConsumerHeartbeatRequest, settings: ConsumerSettings, client: ClientInfo
) -> tuple[Timer, ...]:
    """Create or update the member. A member that joins again owns no partitions (KAFKA-19233)."""
    group, member_id = draft.group, request.member_id
    known, former = group.members.get(member_id), _former(draft, member_id, request.instance_id)
    if known is None and former is None:
        check_room(group, member_id, settings.max_members)
    timers: tuple[Timer, ...] = ()
    before = known
    if known is not None and known.uses_classic_protocol:
        # The timer of the request that it had to send: as a member of this protocol it has one for its revocations.
        timers = (timing.cancel_rebalance(group.group_id, member_id),)
    if former is not None:
        timers += timing.cancel_member(group.group_id, former.member_id)
        replace_static_member(draft, former, member_id)
        before = replace(former, member_id=member_id) if known is None else known
    joined = ConsumerMemberRecord(
        group_id=group.group_id,
        member_id=member_id,
        joined_epoch=before.joined_epoch if before is not None else draft.next_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        client_id=printable(client.client_id, limit=MAX_NAME_BYTES),
        client_host=client.host,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        subscribed_topic_names=tuple(sorted(set(request.subscribed_topic_names or ()))),
        subscribed_topic_regex=request.subscribed_topic_regex or "",
        server_assignor=request.server_assignor,
        assignors=request.client_assignors or (),
    )
    store(draft, joined, settings, before=before)
    if former is not None:
        refresh(draft)
    if known is not None:
        forget_prepare(draft, member_id)
    return timers


def _former(draft: ConsumerDraft, member_id: str, instance_id: str | None) -> ConsumerMemberRecord | None:
    """The static member that the joining member replaces, or ``None``.

    A static member of the classic protocol sends no LeaveGroup when its process stops, so it need not have left.

    Raises:
        UnreleasedInstanceId: a static member of the consumer protocol has not left.
    """
    group = draft.group
    static_member = group.members.get(group.instances.get(instance_id or "", ""))
    if static_member is not None and static_member.uses_classic_protocol and static_member.member_id != member_id:
        return static_member
    return former_static_member(group, member_id, instance_id)


def _admit(draft: ConsumerDraft, request: ConsumerHeartbeatRequest) -> None:
    """Check that the sender is a member at the epoch it sends.

    The previous epoch is valid if the member owns nothing that the group has not assigned to it: the response with the
    new epoch was lost (HB-04). A fenced member stays in the group until its session expires, as Kafka shipped it.
    """
    group, member_id = draft.group, request.member_id
    check_sender(group, member_id, request.instance_id)
    current = group.current(member_id)
    if current.temporarily_left:
        raise UnknownMemberId(f"MemberId: {printable(member_id)!r} has left temporarily; join with epoch 0")
    if request.member_epoch == current.epoch:
        return
    where = f"{printable(member_id)} sent epoch {request.member_epoch}, the group has it at {current.epoch}"
    if request.member_epoch != current.previous_epoch or request.owned is None:
        raise FencedMemberEpoch(where)
    surplus = set(each_partition(request.owned)) - current.held.keys()
    if surplus:
        raise FencedMemberEpoch(f"{where}; it owns {show_partitions(draft, surplus)}, which is not assigned to it")


def show_partitions(draft: ConsumerDraft, partitions: set[TopicPartition] | Partitions) -> str:
    """Partitions for an error message, with the names of their topics."""
    names = draft.group.topic_names
    return show([TopicPartition(names.get(topic_id, topic_id), number) for topic_id, number in partitions])


def _updated(member: ConsumerMemberRecord, request: ConsumerHeartbeatRequest) -> ConsumerMemberRecord:
    """The member's record with the fields of the request that are not ``None``."""
    if request.rebalance_timeout_ms != -1:
        member = replace(member, rebalance_timeout_ms=request.rebalance_timeout_ms)
    if request.rack_id is not None:
        member = replace(member, rack_id=request.rack_id)
    if request.subscribed_topic_names is not None:
        member = replace(member, subscribed_topic_names=tuple(sorted(set(request.subscribed_topic_names))))
    if request.subscribed_topic_regex is not None:
        member = replace(member, subscribed_topic_regex=request.subscribed_topic_regex)
    if request.server_assignor is not None:
        member = replace(member, server_assignor=request.server_assignor, assignors=())
    if request.client_assignors is not None:
        member = replace(member, server_assignor=None, assignors=request.client_assignors)
    return member


def store(
    draft: ConsumerDraft,
    member: ConsumerMemberRecord,
    settings: ConsumerSettings,
    *,
    before: ConsumerMemberRecord | None,
) -> None:
    """Store a member; advance the group epoch if the target assignment depends on the change.

    A static member that returns with the other protocol advances it too. Its join may convert the group, whose target
    assignment then comes from the classic group: it need not cover the present members and partitions.

    Source: KIP-848, "Group Epoch": a member joins, or updates its subscriptions, its assignors or their metadata.
    """
    if draft.member(member.member_id) == member:
        return
    if before is None or (before.server_assignor, before.assignors) != (member.server_assignor, member.assignors):
        check_assignors(member, draft.listings(without=member.member_id), settings.server_assignors)
    draft.set_member(member)
    if (
        before is None
        or change_of(before, member)
        or (before.server_assignor, before.assignors, before.rack_id, before.uses_classic_protocol)
        != (member.server_assignor, member.assignors, member.rack_id, member.uses_classic_protocol)
    ):
        draft.bump()
    if before is None or change_of(before, member):
        refresh(draft)
        partitions = num_partitions(tuple(draft.topics.values()))
        if partitions > settings.max_partitions:
            raise PolicyViolation(
                f"the group is subscribed to {partitions} partitions; allowed: at most {settings.max_partitions}"
            )


# --------------------------------------------------------------------------------------------------
# Reconciliation and response


def _step(
    draft: ConsumerDraft, request: ConsumerHeartbeatRequest, settings: ConsumerSettings, timers: tuple[Timer, ...]
) -> Outcome[ConsumerHeartbeatResponse]:
    """Reconcile the member and build the response."""
    member_id, joins = request.member_id, request.member_epoch == JOIN_EPOCH
    before = draft.current(member_id)
    # A member at its previous epoch has not received the last response. A late copy of its report may arrive after it
    # has started the partitions in that response, so the report acknowledges nothing: the response is repeated.
    repeats = not joins and request.member_epoch != before.epoch
    owned = _owned(request)
    after = before if repeats or draft.is_settled(member_id) else reconciled(draft, member_id, before, owned)
    if after is not before:
        # The previous epoch is the one that the member has sent, so lost responses in a row never fence it (S16).
        after = replace(after, previous_epoch=request.member_epoch)
        draft.set_current(member_id, after)
    full = joins or (
        request.owned is not None
        and request.rebalance_timeout_ms != -1
        and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
    )
    member = draft.member(member_id)
    assert member is not None
    changed = after.assigned.keys() != before.assigned.keys()
    # The response with the assignment may have been lost, and not each client repeats all fields then.
    differs = owned is not None and owned != after.assigned.keys()
    advanced = after.epoch != before.epoch and bool(member.assignors)
    response = _response(
        draft, member, settings, after, with_assignment=full or changed or differs or repeats or advanced
    )
    # A join has nothing to report before its first partitions. A member without an id cannot be parked.
    unchanged = not after.assigned if joins else after.epoch == request.member_epoch and response.assignment is None
    return draft.outcome(
        response,
        (*timers, *draft.rebalance_timer(member_id, before, after)),
        parks=unchanged and ((request.max_wait_ms > 0 and not joins) or _waits(draft, after, member)),
    )


def _waits(draft: ConsumerDraft, current: Current[TopicPartition], member: ConsumerMemberRecord) -> bool:
    """Whether a member waits for a target assignment that is on its way, for the revocations of others, or a topic."""
    computing = under_way(draft)
    if computing is not None and computing.member_id == member.member_id:
        return False  # it computes itself: the response to its next heartbeat says so
    failed = computing is not None and not computing.member_id and not computing.prepared
    return (
        (draft.epoch > draft.target_epoch and not failed)
        or current.state is MemberState.UNRELEASED
        or (not current.assigned and not draft.topics.keys() >= set(member.subscribed_topic_names))
    )


def reconciled(
    draft: ConsumerDraft, member_id: str, before: Current[TopicPartition], owned: Partitions | None
) -> Current[TopicPartition]:
    """The current assignment of a member after one step towards its target assignment.

    Args:
        before: its current assignment.
        owned: the partitions that the member reports; ``None``: it reports none and acknowledges nothing.
    """
    member = draft.member(member_id)
    assert member is not None
    # A subscription that was dropped revokes without a new target assignment (CA-17, CA-18, KAFKA-19431).
    wanted = subscribed_target(draft, member)
    topic_ids = subscribed_topic_ids(draft, member)
    runnable = {each: 0 for each in (*before.assigned, *wanted) if each.topic in topic_ids}
    return reconcile(
        before,
        ReconcileTarget(units=wanted, epoch=draft.target_epoch, runnable=runnable),
        owned=owned,
        is_free=lambda partition: draft.owner(partition) in (None, member_id),
    )


def subscribed_topic_ids(draft: ConsumerDraft, member: ConsumerMemberRecord) -> set[str]:
    """The existing topics that a member subscribes to, by id."""
    return {draft.topics[name].topic_id for name in draft.subscribed(member) if name in draft.topics}


def subscribed_target(draft: ConsumerDraft, member: ConsumerMemberRecord) -> Partitions:
    """A member's target assignment without the topics that it does not subscribe to any more."""
    topic_ids = subscribed_topic_ids(draft, member)
    return frozenset(each for each in draft.target(member.member_id).units if each.topic in topic_ids)


def _response(
    draft: ConsumerDraft,
    member: ConsumerMemberRecord,
    settings: ConsumerSettings,
    current: Current[TopicPartition],
    *,
    with_assignment: bool,
) -> ConsumerHeartbeatResponse:
    # The interval is always the configured one: librdkafka takes it as the timeout of its next heartbeat, too.
    response = ConsumerHeartbeatResponse(
        member_id=member.member_id,
        member_epoch=current.epoch,
        heartbeat_interval_ms=settings.heartbeat_interval_ms,
    )
    if not with_assignment:
        return response
    response = replace(response, assignment=ConsumerAssignment(topic_partitions=by_topic(current.assigned)))
    target, name = draft.target(member.member_id), draft.target_assignor
    listed = any(info.name == name for info in member.assignors)
    if not listed or target == NO_TARGET or current.epoch != draft.target_epoch:
        return response
    return replace(
        response,
        assignor_name=name,
        assignor_error=target.error,
        assignor_version=target.version,
        assignor_metadata=target.metadata,
    )


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
    """Remove a member, and begin to compute a target assignment without it."""
    timers: tuple[Timer, ...] = timing.cancel_member(draft.group_id, member_id)
    if drop_member(draft, member_id, settings):
        refresh(draft)
        timers = (*timers, *ensure_computation(draft, settings))
    return timers


def drop_member(draft: ConsumerDraft, member_id: str, settings: ConsumerSettings) -> bool:
    """Advance the group epoch, then write the tombstones of a member; return whether the epoch has advanced.

    If only members of the classic protocol remain, the group becomes a classic group (``convert.to_classic``). Its
    epoch does not advance then: it is the generation, which these members send.
    """
    advances = not leaves_classic_members_only(draft, member_id, settings)
    if advances:
        draft.bump()
    draft.forget_member(member_id)
    return advances


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


def check_computation(request: ConsumerPrepareRequest | ConsumerInstallRequest) -> None:
    """ConsumerGroupPrepareAssignment and ConsumerGroupInstallAssignment."""
    check_group_id(request.group_id)
    kernel.computation(request)


def check_heartbeat(request: ConsumerHeartbeatRequest, settings: ConsumerSettings) -> None:
    """ConsumerGroupHeartbeat: all rules that depend on the request alone."""
    kernel.heartbeat(request, settings.max_rebalance_timeout_ms)
    if request.rack_id is not None:
        name("RackId", request.rack_id)
    if request.member_epoch == JOIN_EPOCH:
        if request.owned != ():
            got = "null" if request.owned is None else "partitions"
            raise refuse("TopicPartitions", got, "empty if MemberEpoch is 0")
        if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            allowed = "topic names or a regular expression in the first heartbeat"
            raise refuse("SubscribedTopicNames", None, allowed)
    for topic in request.subscribed_topic_names or ():
        name("SubscribedTopicNames", topic)
    if request.subscribed_topic_regex and (allowed := settings.regex_violation(request.subscribed_topic_regex)):
        got = printable(request.subscribed_topic_regex)
        raise InvalidRegularExpression(f"SubscribedTopicRegex: got {got!r}; allowed: {allowed}")
    if request.owned is not None:
        owned = each_partition(request.owned)
        if len(set(owned)) != len(owned):
            raise refuse("TopicPartitions", "a partition twice", "each partition once")
