"""The target assignment: the input of an assignor, the validation of its result, and the installation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...assign.legality import first_violation
from ...protocol.messages.consumer import (
    ConsumerPrepareResponse,
    InstalledConsumer,
    MemberAssignor,
    PreparedConsumer,
    PreparedTopic,
    by_topic,
    each_partition,
)
from ...protocol.records.base import Kind
from ...protocol.records.connect import TargetRecord
from ...protocol.units import TopicPartition, printable
from ..kernel.selection import info_of
from ..kernel.timers import CancelTimer, Timer, TimerKey, TimerKind
from .draft import Draft
from .state import NO_TARGET, Target


def group_state(draft: Draft, assignor: str) -> ConsumerPrepareResponse:
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
                topic_partitions=by_topic(draft.target(member.member_id).partitions),
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
    draft: Draft, assignor: str, members: Sequence[InstalledConsumer], *, epoch: int | None = None
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
        info = info_of(member, assignor) if member else None
        if info and not info.minimum_version <= installed.version <= info.maximum_version:
            return (
                f"version {installed.version} for {printable(installed.member_id)}, "
                f"which reads {info.minimum_version} to {info.maximum_version}"
            )
    return None


def install_target(
    draft: Draft,
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
    targets = {
        installed.member_id: Target(
            partitions=frozenset(each_partition(installed.topic_partitions)),
            error=installed.error,
            version=installed.version,
            metadata=installed.metadata,
        )
        for installed in members
    }
    for member in draft.members():
        target = targets.get(member.member_id, NO_TARGET)
        if target != draft.target(member.member_id):
            draft.set_target(member.member_id, target)
        _release_for_others(draft, member.member_id)
    for member_id in sorted(group.targets):
        if draft.member(member_id) is None and draft.target(member_id) != NO_TARGET:
            draft.forget(Kind.CONSUMER_TARGET_MEMBER, member_id)
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
    return (CancelTimer(TimerKey(TimerKind.COMPUTE, group.group_id)),)


def _release_for_others(draft: Draft, member_id: str) -> None:
    """Release the partitions that a new target assignment takes from a temporarily left member: it runs none."""
    current, target = draft.current(member_id), draft.target(member_id)
    if current.temporarily_left:
        kept = {each: epoch for each, epoch in current.assigned.items() if each in target.partitions}
        if kept != current.assigned:
            draft.set_current(member_id, replace(current, assigned=kept))
