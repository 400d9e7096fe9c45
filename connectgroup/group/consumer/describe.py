"""Descriptions of a consumer group: Kafka's own, and the one that is common to all group types."""

from __future__ import annotations

from collections.abc import Iterable

from ...protocol.messages.common import ConnectorTasks, grouped
from ...protocol.messages.consumer import (
    DescribedAssignment,
    DescribedConsumer,
    DescribedConsumerGroup,
    DescribedPartitions,
    by_topic,
)
from ...protocol.messages.describe import DescribedGroup, DescribedMember, DescribeRequest
from ...protocol.records.base import MemberState
from ...protocol.units import TopicPartition, Unit
from ..kernel.computation import under_way
from ..registry import GroupNumbers
from .settings import ConsumerSettings
from .state import ConsumerGroupState

CLASSIC_PROTOCOL = 0
CONSUMER_PROTOCOL = 1
"""``MemberType`` of a member that uses this protocol."""


def describe_consumer(group: ConsumerGroupState, settings: ConsumerSettings) -> DescribedConsumerGroup:
    """A group that exists, as ConsumerGroupDescribe has it."""
    return DescribedConsumerGroup(
        group_id=group.group_id,
        group_state=group.state_name,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.target_assignor or settings.server_assignor,
        members=tuple(
            DescribedConsumer(
                member_id=member.member_id,
                instance_id=member.instance_id,
                rack_id=member.rack_id,
                member_epoch=group.current(member_id).epoch,
                client_id=member.client_id,
                client_host=member.client_host,
                subscribed_topic_names=member.subscribed_topic_names,
                subscribed_topic_regex=member.subscribed_topic_regex or None,
                assignment=_shown(group, group.current(member_id).assigned),
                target_assignment=_shown(group, group.target(member_id).units),
                member_type=CLASSIC_PROTOCOL if member.uses_classic_protocol else CONSUMER_PROTOCOL,
            )
            for member_id, member in sorted(group.members.items())
        ),
    )


def _shown(group: ConsumerGroupState, partitions: Iterable[TopicPartition]) -> DescribedAssignment:
    return DescribedAssignment(
        topic_partitions=tuple(
            DescribedPartitions(
                topic_id=topic.topic_id,
                topic_name=group.topic_names.get(topic.topic_id, ""),
                partitions=topic.partitions,
            )
            for topic in by_topic(partitions)
        )
    )


def describe(group: ConsumerGroupState, request: DescribeRequest) -> DescribedGroup:
    """A group that exists, as ConnectGroupDescribe has it: its state, its epochs and, unless left out, its members."""
    computing = under_way(group)
    return DescribedGroup(
        group_id=group.group_id,
        state=group.state_name,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.target_assignor,
        computing_member=computing.member_id if computing is not None else "",
        assignor_error=group.computation.error if group.computation is not None else "",
        incarnation=group.created_ms,
        protocol_type="consumer",
        members=()
        if request.connectors_only
        else tuple(
            DescribedMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_host=member.client_host,
                client_id=member.client_id,
                member_epoch=group.current(member_id).epoch,
                state=_member_state(group, member_id),
                assigned=_named(group, group.current(member_id).assigned),
                pending_revocation=_named(group, group.current(member_id).pending),
                target=_named(group, group.target(member_id).units),
                rack=member.rack_id or "",
                joined_epoch=member.joined_epoch,
                assignors=member.assignors,
                server_assignor=member.server_assignor,
                classic=member.uses_classic_protocol,
            )
            for member_id, member in sorted(group.members.items())
        ),
    )


def _named(group: ConsumerGroupState, partitions: Iterable[TopicPartition]) -> tuple[ConnectorTasks, ...]:
    """Partitions in the form of units: a topic and its partitions in place of a connector and its tasks."""
    return grouped(Unit(group.topic_names.get(topic_id, topic_id), number) for topic_id, number in partitions)


def _member_state(group: ConsumerGroupState, member_id: str) -> str:
    current = group.current(member_id)
    return "AWAY" if current.temporarily_left else MemberState(current.state).name


def measure(group: ConsumerGroupState) -> GroupNumbers:
    """The state of a group as numbers, for metrics."""
    computation = group.computation
    pending = computation is not None and computation.epoch > group.target_epoch
    return GroupNumbers(
        members=len(group.members),
        epoch=group.epoch,
        target_epoch=group.target_epoch,
        computed_by=group.computed_by,
        is_rebalancing=bool(group.behind) or group.epoch > group.target_epoch,
        computation_failures=computation.failures if computation is not None and pending else 0,
    )
