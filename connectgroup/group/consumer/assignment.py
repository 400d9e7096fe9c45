"""The target assignment of a consumer group: its topics, who computes it, and what an assignor gets and returns.

The rules of computations that do not depend on the group type are in ``kernel.computation``. An Install is judged by
the chosen member and the group epoch that it prepared, never by the member epoch.

Source: KIP-848, ConsumerGroupPrepareAssignment and ConsumerGroupInstallAssignment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from zlib import crc32

from ...assign.legality import first_violation
from ...errors import InvalidAssignment, StaleGroupEpoch
from ...protocol.messages.consumer import (
    ConsumerInstallRequest,
    ConsumerInstallResponse,
    ConsumerPrepareRequest,
    ConsumerPrepareResponse,
    InstalledConsumer,
    MemberAssignor,
    PreparedConsumer,
    PreparedTopic,
    by_topic,
    each_partition,
)
from ...protocol.records.base import Kind
from ...protocol.records.connect import ComputationRecord, Record, TargetRecord
from ...protocol.records.consumer import (
    CONSUMER,
    ConsumerMemberRecord,
    ConsumerRegexRecord,
    ConsumerTopicsRecord,
    TopicMetadata,
)
from ...protocol.units import TopicPartition, printable
from ..kernel import computation as computing
from ..kernel.computation import (
    COORDINATOR,
    choose_again,
    fail_computation,
    fail_on_coordinator,
    keep_target,
    keep_target_of,
    under_way,
)
from ..kernel.members import release_for_others
from ..kernel.outcome import Compute, Computed, Effect, Match, Matched, Outcome, Timer, Warn, cancel_compute
from ..kernel.state import NO_TARGET, info_of, version_violation
from .settings import ConsumerServerAssignment, ConsumerSettings
from .state import ConsumerDraft, ConsumerGroupState, target_of

# --------------------------------------------------------------------------------------------------
# Prepare and Install: the chosen member reads the group and returns the target assignment.


def prepare(draft: ConsumerDraft, request: ConsumerPrepareRequest) -> Outcome[ConsumerPrepareResponse]:
    """Send the chosen member the input of its assignor, as ``kernel.computation.prepare``."""
    assignor, timers = computing.prepare(draft, request.member_id, request.member_epoch)
    return Outcome(response=group_state(draft, assignor), records=tuple(draft.records), timers=timers)


def install(
    draft: ConsumerDraft, request: ConsumerInstallRequest, settings: ConsumerSettings
) -> Outcome[ConsumerInstallResponse]:
    """Install a computed target assignment, atomically.

    An assignment that is still valid for the current members and topics becomes the target assignment of the epoch it
    was prepared for, even if the group epoch has advanced; the next computation is then requested at once.

    Raises:
        GroupIdNotFound, UnknownMemberId, StaleGroupEpoch: the request is rejected; no state changes.
    """
    group = draft.group
    computing.check_member(group, request.member_id)
    checksum = crc32(repr(request.members).encode())
    if _is_repeat(group, request, checksum):
        return Outcome(response=ConsumerInstallResponse())
    computation = under_way(group)
    prepared_epoch = group.epoch
    if computation is not None and computation.member_id == request.member_id and computation.assignor:
        prepared_epoch = computation.epoch
    if request.group_epoch != prepared_epoch:
        raise StaleGroupEpoch(f"GroupEpoch: got {request.group_epoch}; the assignment was requested for another epoch")
    if computation is None or computation.member_id != request.member_id or not computation.assignor:
        raise computing.not_chosen(request.member_id)
    if request.error:
        message = printable(request.message, limit=300)
        failure = f"{request.member_id}: assignor {computation.assignor} failed with {request.error} {message}"
        if request.keeps_target:
            timers = keep_target(draft, settings, computation, f"{request.member_id}: {message}")
        else:
            timers = fail_computation(draft, settings, failure)
        return draft.outcome(ConsumerInstallResponse(), timers)
    violation = violation_of(draft, computation.assignor, request.members, epoch=request.group_epoch)
    if violation is None:
        timers = install_target(
            draft,
            request.members,
            computation.assignor,
            request.member_id,
            epoch=request.group_epoch,
            checksum=checksum,
        )
        return draft.outcome(ConsumerInstallResponse(), timers)
    refused = f"{request.member_id}: assignor {computation.assignor}: {violation}"
    if request.group_epoch < draft.epoch:
        # The group has changed since, which may be the cause: no failure of the member.
        timers, code = choose_again(draft, settings, computation), StaleGroupEpoch.code
    else:
        timers, code = fail_computation(draft, settings, refused), InvalidAssignment.code
    response = ConsumerInstallResponse(error_code=code, error_message=refused)
    return draft.outcome(response, timers)


def _is_repeat(group: ConsumerGroupState, request: ConsumerInstallRequest, checksum: int) -> bool:
    """Whether this is a repeated Install after a lost response (CN-08)."""
    installed = (group.target_epoch, group.computed_by, group.target_checksum)
    return not request.error and (request.group_epoch, request.member_id, checksum) == installed


def install_computed(draft: ConsumerDraft, computed: Computed, settings: ConsumerSettings) -> Outcome[None]:
    """Install the result of a server-side assignor; a stale result is ignored."""
    computation = computing.computation_of_result(draft, computed.epoch)
    if computation is None:
        return Outcome(response=None)
    where = f"server-side assignor {computed.assignor}"
    result: ConsumerServerAssignment = computed.result or ConsumerServerAssignment()
    failure = f"{where}: {computed.error}" if computed.error else ""
    if (
        not failure
        and not result.error
        and (violation := violation_of(draft, computed.assignor, result.members, epoch=computed.epoch))
    ):
        failure = f"{where}: {violation}"
    timers: tuple[Timer, ...]
    if result.error:
        timers = keep_target_of(draft, settings, computation, computed)
    elif failure and computed.epoch < draft.epoch:
        # The group has changed since, which may be the cause of the failure.
        timers = choose_again(draft, settings, replace(computation, error=printable(failure, limit=500)))
    elif failure:
        timers = fail_on_coordinator(draft, settings, computation, failure)
    else:
        timers = install_target(draft, result.members, computed.assignor, COORDINATOR, epoch=computed.epoch)
    return draft.outcome(None, timers)


# --------------------------------------------------------------------------------------------------
# The computation of a consumer group's target assignment: when it starts, and its effects.
#
# The rules that do not depend on the group type are in ``kernel.computation``.


def ensure_computation(draft: ConsumerDraft, settings: ConsumerSettings, *, waited: bool = False) -> tuple[Timer, ...]:
    """As ``kernel.computation.ensure_computation``.

    A group without members gets its empty target at once. A computation waits for regular expressions that are not
    resolved yet: their topics are known in milliseconds, and a target without them would be wrong. It does not wait for
    the interval while no partition is assigned: the members wait for their topic.
    """
    if draft.epoch <= draft.target_epoch:
        return ()
    if not draft.any_member():
        return install_target(draft, (), "", COORDINATOR)
    waited = waited or not draft.any_partition_assigned()
    return () if unresolved(draft) else computing.ensure_computation(draft, settings, waited=waited)


def effects_of(draft: ConsumerDraft, records: Sequence[Record] | None = None) -> tuple[Effect, ...]:
    """The effects that a group requests: regular expressions to resolve, a server-side computation, a warning.

    Args:
        draft: the group after a step, or after it was loaded.
        records: those of the step; others than these request nothing. The input of an assignor is built only when one
            is to run: it takes time in proportion to the group.
    """
    group = draft.group
    classes = None if records is None else {type(record) for record in records}
    effects: tuple[Effect, ...] = ()
    if classes is None or ConsumerMemberRecord in classes:
        effects = matches(draft, unresolved(draft))
    computation = under_way(group) if classes is None or ComputationRecord in classes else None
    if computation is None or computation.member_id or not group.members:
        return effects
    if not computation.prepared:
        message = computing.no_target(group, computation)
        return (*effects, Warn(group_id=group.group_id, epoch=group.epoch, message=message))
    compute = Compute(
        group_id=group.group_id,
        group_type=CONSUMER,
        epoch=group.epoch,
        assignor=computation.assignor,
        input=group_state(draft, computation.assignor),
    )
    return (*effects, compute)


def compute_timed_out(draft: ConsumerDraft, settings: ConsumerSettings) -> Outcome[None]:
    """As ``kernel.computation.compute_timed_out``; no computation starts while a regular expression is unresolved."""
    return computing.compute_timed_out(draft, settings, is_ready=not unresolved(draft))


# --------------------------------------------------------------------------------------------------
# The target assignment: what an assignor gets, whether its result is valid, and its installation.


def group_state(draft: ConsumerDraft, assignor: str) -> ConsumerPrepareResponse:
    """The input of an assignor: members with subscriptions, metadata and target assignment; topics."""
    members = []
    for member in draft.members():
        info = info_of(member, assignor)
        topics = [draft.topics[name] for name in sorted(draft.subscribed(member)) if name in draft.topics]
        members.append(
            PreparedConsumer(
                member_id=member.member_id,
                member_epoch=draft.current(member.member_id).epoch,
                instance_id=member.instance_id,
                rack_id=member.rack_id,
                subscribed_topic_ids=tuple(topic.topic_id for topic in topics),
                assignor=MemberAssignor(version=info.version, reason=info.reason, metadata=info.metadata)
                if info
                else MemberAssignor(),
                topic_partitions=by_topic(draft.target(member.member_id).units),
            )
        )
    return ConsumerPrepareResponse(
        group_epoch=draft.epoch,
        assignor_name=assignor,
        members=tuple(members),
        topics=tuple(
            PreparedTopic(topic_id=topic.topic_id, topic_name=name, num_partitions=topic.num_partitions)
            for name, topic in sorted(draft.topics.items())
        ),
    )


def violation_of(
    draft: ConsumerDraft, assignor: str, members: Sequence[InstalledConsumer], *, epoch: int | None = None
) -> str | None:
    """Why an assignment is invalid, or ``None``.

    Valid: each partition of a subscribed topic is assigned to one member, which is subscribed to the topic.

    Args:
        epoch: the group epoch the assignment was prepared for. If the group epoch has advanced, partitions may be
            missing: those that are new, and those that only members that joined since are subscribed to.
    """
    topic_ids = {
        member.member_id: {draft.topics[name].topic_id for name in draft.subscribed(member) if name in draft.topics}
        for member in draft.members()
    }
    subscribed = set().union(*topic_ids.values())
    units = {
        TopicPartition(topic.topic_id, number)
        for topic in draft.topics.values()
        if topic.topic_id in subscribed
        for number in range(topic.num_partitions)
    }
    given = [(installed.member_id, each_partition(installed.topic_partitions)) for installed in members]
    if epoch is not None and epoch < draft.epoch:
        units &= {each for _, partitions in given for each in partitions}
    violation = first_violation(given, members=topic_ids, units=units)
    if violation:
        return violation
    for installed in members:
        for topic in installed.topic_partitions:
            if topic.partitions and topic.topic_id not in topic_ids[installed.member_id]:
                name = draft.group.topic_names.get(topic.topic_id, topic.topic_id)
                return f"{printable(name)} is assigned to {printable(installed.member_id)}, which is not subscribed"
        member = draft.member(installed.member_id)
        if violation := version_violation(installed.member_id, member, assignor, installed.version):
            return violation
    return None


def install_target(
    draft: ConsumerDraft,
    members: Sequence[InstalledConsumer],
    assignor: str,
    computed_by: str,
    *,
    epoch: int | None = None,
    checksum: int = 0,
) -> tuple[Timer, ...]:
    """Write a target assignment: a record for each member whose assignment changed, then the epoch (TA-01, TA-02).

    Args:
        epoch: the group epoch the assignment was prepared for; default: the newest.
        checksum: identifies the Install request.
    """
    group = draft.group
    targets = {installed.member_id: target_of(installed) for installed in members}
    for member in draft.members():
        target = targets.get(member.member_id, NO_TARGET)
        if target != draft.target(member.member_id):
            draft.set_target(member.member_id, target)
        release_for_others(draft, member.member_id)
    for member_id in sorted(group.targets):
        if draft.member(member_id) is None and draft.target(member_id) != NO_TARGET:
            draft.forget_target(member_id)
    draft.write(
        TargetRecord(
            group_id=group.group_id,
            epoch=draft.epoch if epoch is None else epoch,
            assignor=assignor,
            computed_by=computed_by,
            checksum=checksum,
            # A group without members has assigned nothing yet: the first member to join is not delayed (HB-13).
            at_ms=draft.now_ms if targets else 0,
        )
    )
    return (cancel_compute(group.group_id),)


def refresh(draft: ConsumerDraft) -> None:
    """Store the subscribed topics that exist; a change advances the group epoch.

    Regular expressions that no member uses any more are forgotten.
    """
    subscriptions = draft.subscriptions()
    used = {regex for _, regex in subscriptions}
    for regex in sorted(draft.regexes.keys() - used):
        draft.forget(Kind.CONSUMER_REGEX, regex)
    topics = tuple(draft.cluster[name] for name in sorted(draft.subscribed_topics() & draft.cluster.keys()))
    if {topic.topic_name: topic for topic in topics} != draft.topics:
        draft.write(ConsumerTopicsRecord(group_id=draft.group_id, topics=topics))
        draft.bump()


def num_partitions(topics: tuple[TopicMetadata, ...]) -> int:
    """The number of partitions of topics."""
    return sum(topic.num_partitions for topic in topics)


def unresolved(draft: ConsumerDraft) -> list[str]:
    """The regular expressions of members whose topics are not known yet, sorted."""
    regexes = {regex for _, regex in draft.subscriptions()}
    return sorted(regexes - draft.regexes.keys() - {""})


def resolve(draft: ConsumerDraft, matched: Matched) -> None:
    """Store the topics that match a regular expression; a change advances the group epoch."""
    if not any(regex == matched.pattern for _, regex in draft.subscriptions()):
        return
    before = draft.regexes.get(matched.pattern)
    if before != matched.topics:
        # When it is resolved for the first time, its member's join has advanced the epoch, unless the computation of
        # that epoch did not wait for it; and so has ``refresh`` for topics that do not exist any more.
        counts = before is not None or _is_computed(draft)
        if counts and any(name in draft.cluster for name in (before or frozenset()) ^ matched.topics):
            draft.bump()
        draft.write(
            ConsumerRegexRecord(group_id=draft.group_id, regex=matched.pattern, topics=tuple(sorted(matched.topics)))
        )
    refresh(draft)


def _is_computed(draft: ConsumerDraft) -> bool:
    """Whether the target assignment of the group epoch is there, or its computation has begun.

    A computation that is in progress when a member joins does not wait for the topics of the member: its member may
    send Prepare, and it may fail and be started again.
    """
    computation = under_way(draft)
    return draft.epoch == draft.target_epoch or (computation is not None and computation.epoch == draft.epoch)


def matches(draft: ConsumerDraft, regexes: list[str]) -> tuple[Effect, ...]:
    """The effects that resolve regular expressions."""
    return tuple(Match(group_id=draft.group_id, group_type=CONSUMER, pattern=regex) for regex in regexes)


def change_of(before: ConsumerMemberRecord, after: ConsumerMemberRecord) -> bool:
    """Whether a member's subscription has changed."""
    return (before.subscribed_topic_names, before.subscribed_topic_regex) != (
        after.subscribed_topic_names,
        after.subscribed_topic_regex,
    )
