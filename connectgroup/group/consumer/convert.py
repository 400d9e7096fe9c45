"""Conversion of groups with members: a classic group becomes a consumer group, and back.

A classic group is converted when the first member of the consumer protocol joins. Its members stay members with their
subscriptions and assignments, and the group epoch starts at the generation. A consumer group is converted when its last
member of the consumer protocol leaves or expires, and members of the classic protocol remain. The generation is then
the group epoch, and these members join again. A conversion is one batch of records, with the change that causes it.

Source: KIP-848, "Migration"; Kafka's ``ConsumerGroup.fromClassicGroup`` and ``ClassicGroup.fromConsumerGroup``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...errors import InconsistentGroupProtocol, RebalanceInProgress, WireError
from ...protocol.messages.api import Response
from ...protocol.messages.classic import EmbeddedAssignment, JoinGroupResponse, SyncGroupResponse
from ...protocol.messages.consumer import by_topic
from ...protocol.records.base import Key, Kind, MemberState, Tombstone
from ...protocol.records.connect import GroupRecord, Record, TargetRecord
from ...protocol.records.consumer import (
    CONSUMER,
    ClassicGroupRecord,
    ClassicMemberRecord,
    ClassicState,
    ConsumerCurrentRecord,
    ConsumerMemberRecord,
    ConsumerTargetMemberRecord,
    ConsumerTopicsRecord,
    stored,
)
from ...protocol.units import Partitions, TopicPartition, printable
from ..classic.state import PROTOCOL_TYPE, ClassicGroupState, exists, subscription_of, with_ids, with_names
from ..classic.step import GROUP_TYPE as CLASSIC, rebalance_key, session_key
from ..kernel.outcome import CancelTimer, Converted, SetTimer, Timer, cancel_compute, cancel_rebalance
from .classic_members import ClassicMemberRules, session_timer
from .offsets import remains
from .state import ConsumerGroupState, Topics

NO_EPOCH = -1
KAFKA_ASSIGNORS = ("range", "roundrobin", "sticky", "cooperative-sticky")
"""Kafka's own assignors: user data in their assignments only repeats what a member owned. librdkafka sends it."""

# --------------------------------------------------------------------------------------------------
# Classic to consumer


def from_classic(rules: ClassicMemberRules, former: ClassicGroupState, cluster: Topics) -> Converted:
    """The consumer group that replaces a classic group with members (MG-01).

    Args:
        rules: the settings of both types.
        former: the classic group.
        cluster: all topics.

    Raises:
        InconsistentGroupProtocol: it cannot be converted (MG-05, MG-06).
    """
    _check_convertible(rules, former)
    members = {member.member_id: _consumer_member(rules, former, member) for member in former.members.values()}
    names = {name for member in members.values() for name in member.subscribed_topic_names}
    topics = {name: cluster[name] for name in sorted(names) if name in cluster}
    group_id, epoch = former.group_id, former.generation
    assigned = {member_id: with_ids(_named(rules, former, member_id), cluster) for member_id in members}
    _check_single_owner(former, assigned)
    records: list[Record] = [
        *(Tombstone(Key(Kind.CLASSIC_MEMBER, group_id, member_id)) for member_id in former.members),
        Tombstone(Key(Kind.CLASSIC_GROUP, group_id)),
        *members.values(),
        ConsumerTopicsRecord(group_id=group_id, topics=tuple(topics.values())),
        GroupRecord(group_id=group_id, epoch=epoch, group_type=CONSUMER, created_ms=former.created_ms),
        *(
            ConsumerTargetMemberRecord(group_id=group_id, member_id=member_id, topic_partitions=by_topic(partitions))
            for member_id, partitions in assigned.items()
        ),
        TargetRecord(group_id=group_id, epoch=epoch),
        *_currents(rules, former, assigned, cluster),
    ]
    group = ConsumerGroupState(group_id)
    for record in (*former.offsets.every_record(), *records):
        group.apply(record)
    # Requests parked in the classic group get their responses below, and only if the join that converts it succeeds.
    group.members_to_wake.clear()
    timers: list[Timer] = [CancelTimer(rebalance_key(former).identity)]
    timers += [CancelTimer(session_key(former, member_id)) for member_id in sorted(former.pending)]
    timers += [session_timer(group_id, member, rules.settings) for member in members.values()]
    # Members that wait for the next generation, or for the leader, join the consumer group now (MG-03).
    code = RebalanceInProgress.code
    replies: dict[str, Response] = {
        **{each: JoinGroupResponse(error_code=code, member_id=each) for each in sorted(former.joining)},
        **{each: SyncGroupResponse(error_code=code) for each in sorted(former.syncing)},
    }
    return Converted(
        group_type=CONSUMER, state=group, records=tuple(records), timers=tuple(timers), parked_responses=replies
    )


def unknown_topics(rules: ClassicMemberRules, former: ClassicGroupState, cluster: Topics) -> frozenset[str]:
    """The topics of partitions that members own and that are not among all topics: new ones, or deleted ones.

    The topic source reads at an interval, and the leader of a classic group may know a topic before the coordinator. A
    conversion would take such partitions for unowned, and assign them while their owners still read them.
    """
    return frozenset(
        name
        for member in former.members.values()
        for name, number in (
            *_named(rules, former, member.member_id),
            *subscription_of(rules.embedded, member.member_id, member.protocols).owned,
        )
        if not exists(name, number, cluster)
    )


def _check_convertible(rules: ClassicMemberRules, former: ClassicGroupState) -> None:
    name = printable(former.group_id)
    if not rules.settings.migration_policy.upgrades:
        policy = rules.settings.migration_policy.value
        raise InconsistentGroupProtocol(
            f"group {name} is of type 'classic' and has members; migration_policy is {policy!r}, so stop them first"
        )
    if former.members and former.record.protocol_type != PROTOCOL_TYPE:
        got = printable(former.record.protocol_type)
        raise InconsistentGroupProtocol(f"group {name} has members of protocol type {got!r}; allowed: 'consumer'")
    if len(former.members) > rules.settings.max_members:
        raise InconsistentGroupProtocol(
            f"group {name} has {len(former.members)} members; a consumer group has at most {rules.settings.max_members}"
        )


def _consumer_member(
    rules: ClassicMemberRules, former: ClassicGroupState, member: ClassicMemberRecord
) -> ConsumerMemberRecord:
    subscription = subscription_of(rules.embedded, member.member_id, member.protocols)
    return ConsumerMemberRecord(
        group_id=former.group_id,
        member_id=member.member_id,
        joined_epoch=former.generation,
        instance_id=member.instance_id,
        rack_id=subscription.rack,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        subscribed_topic_names=tuple(sorted(subscription.topics)),
        classic_protocols=member.protocols,
        classic_session_timeout_ms=member.session_timeout_ms,
    )


def _named(rules: ClassicMemberRules, former: ClassicGroupState, member_id: str) -> Partitions:
    """The partitions that a member's last SyncGroup response assigned to it, by topic name (MG-04, MG-05)."""
    data = former.members[member_id].assignment
    if not data:
        return frozenset()
    where = f"group {printable(former.group_id)}: the assignment of member {printable(member_id)}"
    try:
        assignment = rules.embedded.decode_assignment(data)
    except WireError as error:
        raise InconsistentGroupProtocol(f"{where} cannot be read: {error}") from error
    if assignment.user_data and former.record.protocol_name not in KAFKA_ASSIGNORS:
        raise InconsistentGroupProtocol(f"{where} has user data of a custom assignor, which the coordinator cannot run")
    return assignment.partitions


def _check_single_owner(former: ClassicGroupState, assigned: dict[str, Partitions]) -> None:
    owners: dict[TopicPartition, str] = {}
    for member_id, partitions in assigned.items():
        for partition in partitions:
            other = owners.setdefault(partition, member_id)
            if other != member_id:
                raise InconsistentGroupProtocol(
                    f"group {printable(former.group_id)}: partition {partition.partition} of a topic is assigned to "
                    f"{printable(other)} and to {printable(member_id)}"
                )


def _currents(
    rules: ClassicMemberRules, former: ClassicGroupState, assigned: dict[str, Partitions], cluster: Topics
) -> Iterator[ConsumerCurrentRecord]:
    """The current assignments.

    A cooperative member may still run partitions that it owned when it sent JoinGroup and that the leader took away: it
    joins again once it has revoked them. Until then they are pending revocations, or another member would run them too.
    The same holds for partitions of topics that it does not subscribe to any more.
    A member that has not joined again since the group became classic is still at its former epoch.
    """
    taken: set[TopicPartition] = set().union(*assigned.values())
    for member_id, partitions in assigned.items():
        claimed = subscription_of(rules.embedded, member_id, former.members[member_id].protocols).owned
        pending = with_ids(claimed, cluster) - taken
        taken |= pending
        former_epoch = former.members[member_id].former_epoch
        epoch = former.generation if former_epoch == NO_EPOCH else former_epoch
        yield ConsumerCurrentRecord(
            group_id=former.group_id,
            member_id=member_id,
            epoch=epoch,
            previous_epoch=epoch,
            state=MemberState.UNREVOKED if pending else MemberState.STABLE,
            assigned=stored(dict.fromkeys(partitions, epoch)),
            pending=stored(dict.fromkeys(pending, epoch)),
        )


# --------------------------------------------------------------------------------------------------
# Consumer to classic


def to_classic(rules: ClassicMemberRules, former: ConsumerGroupState, now_ms: int, cluster: Topics) -> Converted:
    """The classic group that replaces a consumer group with members of the classic protocol only (MG-07).

    It is preparing a rebalance. The stored assignments are what the members may still run: if the group is converted
    again before they have joined, no other member gets these partitions.
    """
    # A member may still run partitions of a topic that no member subscribes to any more.
    names = {**{topic.topic_id: name for name, topic in cluster.items()}, **former.topic_names}
    group_id = former.group_id
    records: list[Record] = [
        *(
            Tombstone(Key(kind, group_id, member_id))
            for member_id in sorted(former.members)
            for kind in (Kind.CONSUMER_CURRENT, Kind.CONSUMER_TARGET_MEMBER, Kind.CONSUMER_MEMBER)
        ),
        *remains(former),
        GroupRecord(group_id=group_id, epoch=former.epoch, group_type=CLASSIC, created_ms=former.created_ms),
    ]
    ids = sorted(former.members, key=lambda member_id: (former.members[member_id].joined_epoch, member_id))
    members = [_classic_member(rules, former, names, member_id, number) for number, member_id in enumerate(ids)]
    group = ClassicGroupState(group_id)
    for record in (*former.offsets.every_record(), *records, *members):
        group.apply(record)
    head = ClassicGroupRecord(
        group_id=group_id,
        state=ClassicState.PREPARING_REBALANCE,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=group.selected_protocol(),
        leader=ids[0],
        since_ms=now_ms,
    )
    group.apply(head)
    timers: list[Timer] = [cancel_compute(group_id)]
    timers += [cancel_rebalance(group_id, member_id) for member_id in ids]
    timers += [SetTimer(session_key(group, each.member_id), each.session_timeout_ms) for each in members]
    timers.append(SetTimer(rebalance_key(group), group.rebalance_timeout_ms))
    return Converted(group_type=CLASSIC, state=group, records=(*records, head, *members), timers=tuple(timers))


def _classic_member(
    rules: ClassicMemberRules, former: ConsumerGroupState, names: Mapping[str, str], member_id: str, number: int
) -> ClassicMemberRecord:
    member, current = former.members[member_id], former.current(member_id)
    held = EmbeddedAssignment(partitions=with_names(current.held, names))
    return ClassicMemberRecord(
        group_id=former.group_id,
        member_id=member_id,
        number=number,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        session_timeout_ms=member.classic_session_timeout_ms,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        protocols=member.classic_protocols,
        assignment=rules.embedded.encode_assignment(held),
        former_epoch=current.epoch if current.epoch != former.epoch else NO_EPOCH,
    )
