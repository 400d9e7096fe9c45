"""Conversion between wire messages and the input and result of an assignor."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from ..errors import ConfigError, PluginError
from ..protocol.messages.assignment import InstalledMember, PreparedConnector, PrepareResponse
from ..protocol.messages.common import AssignorInfo, config_of, grouped, units_of
from ..protocol.messages.consumer import ConsumerPrepareResponse, InstalledConsumer, by_topic, each_partition
from ..protocol.units import TopicPartition, printable
from .api import (
    ConnectAssignment,
    ConnectAssignor,
    ConnectAssignorInput,
    PartitionAssignment,
    PartitionAssignor,
    PartitionAssignorInput,
)
from .members import (
    MAX_UNITS,
    ConnectMember,
    ConnectorSpec,
    DelayedWork,
    Lazy,
    Metadata,
    PartitionMember,
    TopicSpec,
    traits_of,
)
from .placement import NO_PLACEMENT, Placement, placement_of
from .sandbox import _guarded, _metadata_violation, declaration_violation, describe_assignor


def assignor_info(
    assignor: ConnectAssignor | PartitionAssignor, subscribed: frozenset[str] = frozenset()
) -> AssignorInfo:
    """Return the data that a member sends to the group about one of its assignors: name, versions, current metadata.

    Args:
        subscribed: the topics a consumer subscribes to, for a ``PartitionAssignor``.

    Raises:
        PluginError: ``metadata`` raised, or its result cannot be sent.
    """

    def ask() -> Metadata:
        return assignor.metadata(subscribed) if isinstance(assignor, PartitionAssignor) else assignor.metadata()

    declared = _guarded(assignor, "metadata", ask)
    violation = declaration_violation(assignor) or _metadata_violation(assignor, declared)
    if violation is not None:
        raise PluginError(f"{describe_assignor(assignor)}: {violation}")
    return AssignorInfo(
        name=assignor.name,
        minimum_version=assignor.minimum_version,
        maximum_version=assignor.maximum_version,
        reason=declared.reason,
        version=declared.version,
        metadata=declared.metadata,
    )


def group_from_prepare(response: PrepareResponse) -> ConnectAssignorInput:
    """Return the assignor's input from the coordinator's message. Objects and columns are each created on first access.

    Raises:
        PluginError: this member cannot compute an assignment for a group whose settings it does not support, or whose
            connectors are invalid.
    """
    sizes = [entry.num_tasks for entry in response.connectors]
    if min(sizes, default=0) < 0 or len(sizes) + sum(sizes) > MAX_UNITS:
        # A message of a few bytes can declare more units than fit into any process's memory.
        raise PluginError(
            f"num_tasks: got {min(sizes)} to {max(sizes)}; allowed: 0 or more, {MAX_UNITS:,} units in all"
        )
    if len({entry.connector for entry in response.connectors}) < len(sizes):
        raise PluginError("connectors: got one name twice; allowed: each once")
    placements = {entry.connector: _placement(entry) for entry in response.connectors if entry.placement}
    return ConnectAssignorInput(
        members=Lazy(partial(_members, response), origin=response),
        connectors=Lazy(partial(_specs, response, placements), origin=response),
        delayed=tuple(
            DelayedWork(
                member_id=work.member_id,
                instance_id=work.instance_id,
                left_ms=work.left_ms,
                units=units_of(work.units),
            )
            for work in response.delayed
        ),
        scheduled_rebalance_max_delay_ms=response.scheduled_rebalance_max_delay_ms,
    )


def _specs(response: PrepareResponse, placements: Mapping[str, Placement]) -> list[ConnectorSpec]:
    return [
        ConnectorSpec(
            name=entry.connector,
            num_tasks=entry.num_tasks,
            weight=entry.weight,
            task_weights=entry.task_weights,
            placement=placements.get(entry.connector, NO_PLACEMENT),
        )
        for entry in response.connectors
    ]


def _placement(entry: PreparedConnector) -> Placement:
    try:
        return placement_of(config_of(entry.placement))
    except ConfigError as error:
        raise PluginError(f"connector {printable(entry.connector)}: {error}") from error


def _members(response: PrepareResponse) -> list[ConnectMember]:
    return [
        ConnectMember(
            member_id=member.member_id,
            instance_id=member.instance_id,
            reason=member.assignor.reason,
            version=member.assignor.version,
            metadata=member.assignor.metadata,
            owned=share,
            assignor_state=member.assignor_state,
            labels=(traits := traits_of(member)).labels,
            rack=traits.rack,
            capacity=traits.capacity,
            host=traits.host,
        )
        for member, share in zip(response.members, response.shares(), strict=True)
    ]


def members_for_install(assignment: ConnectAssignment) -> tuple[InstalledMember, ...]:
    """Convert a validated result to wire messages. Members and units are sorted: equal results are equal bytes."""
    if assignment.by_column is not None:
        from .columns import wire_shares_of

        columns, owner, assignor_state = assignment.by_column
        shares = wire_shares_of(columns, owner)
        return tuple(
            InstalledMember(member_id=member_id, version=version, units=units, metadata=assignor_state)
            for member_id, version, units in zip(columns.member_ids, columns.member_versions, shares, strict=True)
        )
    return tuple(
        InstalledMember(
            member_id=member.member_id,
            error=member.error,
            units=grouped(member.units),
            version=member.version,
            metadata=member.metadata,
        )
        for member in sorted(assignment.members, key=lambda member: member.member_id)
    )


def partition_group_from_prepare(prepared: ConsumerPrepareResponse) -> PartitionAssignorInput:
    """The input of a ``PartitionAssignor``: a member owns the partitions of its current target assignment."""
    names = {topic.topic_id: topic.topic_name for topic in prepared.topics}
    members = tuple(
        PartitionMember(
            member_id=member.member_id,
            instance_id=member.instance_id,
            reason=member.assignor.reason,
            version=member.assignor.version,
            metadata=member.assignor.metadata,
            subscribed=frozenset(names[each] for each in member.subscribed_topic_ids if each in names),
            owned=frozenset(
                TopicPartition(names[topic_id], number)
                for topic_id, number in each_partition(member.topic_partitions)
                if topic_id in names
            ),
            generation=prepared.group_epoch,
            rack=member.rack_id,
        )
        for member in prepared.members
    )
    topics = tuple(TopicSpec(name=topic.topic_name, num_partitions=topic.num_partitions) for topic in prepared.topics)
    return PartitionAssignorInput(members=members, topics=topics)


def consumers_for_install(
    prepared: ConsumerPrepareResponse, assignment: PartitionAssignment
) -> tuple[InstalledConsumer, ...]:
    """The result of a ``PartitionAssignor`` in its wire form."""
    ids = {topic.topic_name: topic.topic_id for topic in prepared.topics}
    return tuple(
        InstalledConsumer(
            member_id=member.member_id,
            topic_partitions=by_topic(TopicPartition(ids[name], number) for name, number in member.partitions),
            error=member.error,
            version=member.version,
            metadata=member.metadata,
        )
        for member in assignment.members
    )
