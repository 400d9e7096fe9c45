"""The requests and responses of a consumer group: heartbeat, description, and client-side assignment.

ConsumerGroupHeartbeat and ConsumerGroupDescribe are Kafka's own messages. ConsumerGroupPrepareAssignment and
ConsumerGroupInstallAssignment are those of KIP-848, which Kafka removed before release. A topic id is a UUID as text of
32 hexadecimal digits.

Source: KIP-848, "Public Interfaces"; Kafka's protocol guide.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..units import TopicPartition
from .common import AssignorInfo

NO_OPERATIONS = -(1 << 31)
"""The value of authorized operations that were not requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPartitions:
    """Some partitions of one topic.

    Attributes:
        topic_id: the topic id.
        partitions: partition numbers.
    """

    topic_id: str
    partitions: tuple[int, ...]


def by_topic(partitions: Iterable[TopicPartition]) -> tuple[TopicPartitions, ...]:
    """Partitions in their wire form, sorted, so that equal sets have equal bytes."""
    topics: dict[str, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        topics.setdefault(topic_id, []).append(partition)
    return tuple([TopicPartitions(topic_id=each, partitions=tuple(numbers)) for each, numbers in topics.items()])


def each_partition(topics: Iterable[TopicPartitions]) -> list[TopicPartition]:
    """Every partition listed, in the order of the message, duplicates included."""
    return [TopicPartition(topic.topic_id, number) for topic in topics for number in topic.partitions]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeatRequest:
    """Join, stay in, or leave a consumer group (ConsumerGroupHeartbeat). A null field is unchanged.

    Attributes:
        member_epoch: 0 joins; -1 leaves; -2 leaves temporarily (static members); otherwise the epoch of the last
            response.
        rebalance_timeout_ms: how long the member may take to revoke partitions; -1: unchanged.
        subscribed_topic_names: the subscribed topics by name.
        subscribed_topic_regex: the subscribed topics by a regular expression in RE2 syntax; empty: none.
        owned: all partitions that the member owns.
        client_assignors: *(tagged)* the client-side assignors in order of preference.
        max_wait_ms: *(tagged)* how long the coordinator may park the request while it has nothing to report.
    """

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    subscribed_topic_names: tuple[str, ...] | None = None
    subscribed_topic_regex: str | None = None
    server_assignor: str | None = None
    owned: tuple[TopicPartitions, ...] | None = None
    client_assignors: tuple[AssignorInfo, ...] | None = None
    max_wait_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerAssignment:
    """The whole assignment of a member: it revokes what is missing and adds what is new."""

    topic_partitions: tuple[TopicPartitions, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeatResponse:
    """The member's epoch, and its assignment if it has changed.

    Attributes:
        error_code: 20480 (COMPUTE_ASSIGNMENT) requests a client-side assignment.
        assignor_name: *(tagged)* the client-side assignor whose target assignment the member has reached; empty: none.
        assignor_error: *(tagged)* the error that the assignor's result has for the member, or 0.
        assignor_version: *(tagged)* the version of ``assignor_metadata``.
        assignor_metadata: *(tagged)* what the assignor's result has for the member.
    """

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: ConsumerAssignment | None = None
    assignor_name: str = ""
    assignor_error: int = 0
    assignor_version: int = 0
    assignor_metadata: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerDescribeRequest:
    """Describe consumer groups (ConsumerGroupDescribe)."""

    group_ids: tuple[str, ...]
    include_authorized_operations: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedPartitions:
    """Some partitions of one topic, with the topic's name."""

    topic_id: str
    topic_name: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedAssignment:
    """An assignment in a description."""

    topic_partitions: tuple[DescribedPartitions, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedConsumer:
    """One member.

    Attributes:
        member_type: -1 unknown, 0 classic protocol, 1 consumer protocol.
    """

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    subscribed_topic_regex: str | None = None
    assignment: DescribedAssignment
    target_assignment: DescribedAssignment
    member_type: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedConsumerGroup:
    """One group, or the error of its description.

    Attributes:
        group_state: ``Empty``, ``Assigning``, ``Reconciling``, ``Stable`` or ``Dead``.
        assignment_epoch: the epoch of the target assignment.
    """

    error_code: int = 0
    error_message: str | None = None
    group_id: str
    group_state: str = ""
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor_name: str = ""
    members: tuple[DescribedConsumer, ...] = ()
    authorized_operations: int = NO_OPERATIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerDescribeResponse:
    """One entry for each requested group."""

    throttle_time_ms: int = 0
    groups: tuple[DescribedConsumerGroup, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerPrepareRequest:
    """Sent by the member chosen to compute: request the state of the group (ConsumerGroupPrepareAssignment)."""

    group_id: str
    member_id: str
    member_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberAssignor:
    """One member's metadata for the selected assignor."""

    version: int = 0
    reason: int = 0
    metadata: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedConsumer:
    """One member in the input of an assignor.

    Attributes:
        subscribed_topic_ids: the existing topics that it is subscribed to, by name or by regular expression.
        topic_partitions: its current target assignment.
    """

    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    subscribed_topic_ids: tuple[str, ...] = ()
    assignor: MemberAssignor = MemberAssignor()
    topic_partitions: tuple[TopicPartitions, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTopic:
    """A topic to assign; its partitions are 0 .. num_partitions - 1."""

    topic_id: str
    topic_name: str
    num_partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerPrepareResponse:
    """The group at ``group_epoch``, complete: everything that an assignor may use."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    group_epoch: int = 0
    assignor_name: str = ""
    members: tuple[PreparedConsumer, ...] = ()
    topics: tuple[PreparedTopic, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledConsumer:
    """One member's part of a computed target assignment."""

    member_id: str
    topic_partitions: tuple[TopicPartitions, ...] = ()
    error: int = 0
    version: int = 0
    metadata: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerInstallRequest:
    """The computed target assignment (ConsumerGroupInstallAssignment).

    Attributes:
        group_epoch: the epoch in the response to Prepare.
        error: 0, or the assignor's error: then nothing is installed.
        members: the complete target assignment; a member that is not listed is assigned nothing.
        message: *(tagged)* the error as text; without an error, the assignor's remark on its result for operators.
        keeps_target: *(tagged)* with an error: the assignor has decided to keep the current target assignment. Without
            it, an error is a failure, and another member is asked.
    """

    group_id: str
    member_id: str
    member_epoch: int
    group_epoch: int
    error: int = 0
    members: tuple[InstalledConsumer, ...] = ()
    message: str = ""
    keeps_target: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerInstallResponse:
    """Whether the target assignment was installed; it is installed atomically."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
