"""The records of consumer and classic groups, besides those that several group types share, and of committed offsets.

Shared are the group epoch (``GroupRecord``), the epoch of the target assignment (``TargetRecord``) and the computation
of the next one (``ComputationRecord``), in ``connect``.

The ``GroupRecord`` of a classic group has its generation as the epoch.

Source: KIP-848, "Records": ConsumerGroupMemberMetadata, TargetAssignmentMember, CurrentMemberAssignment and
PartitionMetadata; ConsumerGroupRegularExpression of Kafka 4.
Kafka's ``GroupMetadataValue``, divided into one record for the group and one for each member.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from ..messages.classic import OfferedProtocol
from ..messages.common import AssignorInfo
from ..messages.consumer import TopicPartitions
from ..units import NO_TOPIC_ID, TopicPartition
from .base import Key, Kind, MemberState

CONSUMER: Final = "consumer"
"""The value of ``GroupRecord.group_type``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMemberRecord:
    """A member's metadata, as of its join or its latest update.

    Attributes:
        joined_epoch: the group epoch at which the member joined.
        subscribed_topic_names: the subscribed topics by name, sorted.
        subscribed_topic_regex: the subscribed topics by regular expression; empty: none.
        classic_protocols: *(tagged)* what the member sent with its latest JoinGroup, if it uses the classic protocol;
            empty: it uses the consumer protocol.
        classic_session_timeout_ms: *(tagged)* the session timeout of a member that uses the classic protocol.
    """

    group_id: str
    member_id: str
    joined_epoch: int = 0
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = 0
    subscribed_topic_names: tuple[str, ...] = ()
    subscribed_topic_regex: str = ""
    server_assignor: str | None = None
    assignors: tuple[AssignorInfo, ...] = ()
    classic_protocols: tuple[OfferedProtocol, ...] = ()
    classic_session_timeout_ms: int = 0

    @property
    def key(self) -> Key:
        return Key(Kind.CONSUMER_MEMBER, self.group_id, self.member_id)

    @property
    def uses_classic_protocol(self) -> bool:
        """Whether the member sends JoinGroup, SyncGroup and Heartbeat (KIP-848, "Migration")."""
        return bool(self.classic_protocols)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerTargetMemberRecord:
    """One member's target assignment, with the assignor's error and metadata for the member."""

    group_id: str
    member_id: str
    topic_partitions: tuple[TopicPartitions, ...] = ()
    error: int = 0
    version: int = 0
    metadata: bytes = b""

    @property
    def key(self) -> Key:
        return Key(Kind.CONSUMER_TARGET_MEMBER, self.group_id, self.member_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionEpochs:
    """Some partitions of one topic.

    Attributes:
        topic_id: the topic id.
        partitions: partition numbers, ascending.
        assignment_epochs: the member epoch at which each was assigned, in the same order.
    """

    topic_id: str
    partitions: tuple[int, ...]
    assignment_epochs: tuple[int, ...]


def stored(epochs: Mapping[TopicPartition, int]) -> tuple[PartitionEpochs, ...]:
    """Partitions and assignment epochs in their stored form, sorted."""
    topics: dict[str, list[int]] = {}
    for topic_id, partition in sorted(epochs):
        topics.setdefault(topic_id, []).append(partition)
    return tuple(
        PartitionEpochs(
            topic_id=topic_id,
            partitions=tuple(numbers),
            assignment_epochs=tuple(epochs[TopicPartition(topic_id, number)] for number in numbers),
        )
        for topic_id, numbers in topics.items()
    )


def from_stored(topics: Iterable[PartitionEpochs]) -> dict[TopicPartition, int]:
    """Partitions and assignment epochs from their stored form."""
    return {
        TopicPartition(topic.topic_id, number): epoch
        for topic in topics
        for number, epoch in zip(topic.partitions, topic.assignment_epochs, strict=True)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerCurrentRecord:
    """A member's current assignment: assigned partitions and pending revocations."""

    group_id: str
    member_id: str
    epoch: int
    previous_epoch: int
    state: MemberState = MemberState.STABLE
    assigned: tuple[PartitionEpochs, ...] = ()
    pending: tuple[PartitionEpochs, ...] = ()

    @property
    def key(self) -> Key:
        return Key(Kind.CONSUMER_CURRENT, self.group_id, self.member_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMetadata:
    """A topic; its partitions are 0 .. num_partitions - 1. A topic that is created again has another id."""

    topic_id: str
    topic_name: str
    num_partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerTopicsRecord:
    """The subscribed topics that exist, sorted by name: a change of them advances the group epoch."""

    group_id: str
    topics: tuple[TopicMetadata, ...] = ()

    @property
    def key(self) -> Key:
        return Key(Kind.CONSUMER_TOPICS, self.group_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerRegexRecord:
    """The topics that match a regular expression of at least one member, sorted by name."""

    group_id: str
    regex: str
    topics: tuple[str, ...] = ()

    @property
    def key(self) -> Key:
        return Key(Kind.CONSUMER_REGEX, self.group_id, self.regex)


class ClassicState(IntEnum):
    """The state of a classic group (Kafka's ClassicGroupState)."""

    EMPTY = 0
    PREPARING_REBALANCE = 1
    COMPLETING_REBALANCE = 2
    STABLE = 3

    @property
    def shown(self) -> str:
        """The name that Kafka's tools know."""
        return "".join(word.capitalize() for word in self.name.split("_"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicGroupRecord:
    """The state of a classic group.

    Attributes:
        protocol_type: ``consumer`` or ``connect``; empty before the first member.
        protocol_name: the assignor of the current generation; empty: none.
        leader: the member that computes the assignment; empty: none.
        since_ms: the coordinator's wall clock when the group entered the state.
    """

    group_id: str
    state: ClassicState = ClassicState.EMPTY
    protocol_type: str = ""
    protocol_name: str = ""
    leader: str = ""
    since_ms: int = 0

    @property
    def key(self) -> Key:
        return Key(Kind.CLASSIC_GROUP, self.group_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicMemberRecord:
    """A member of a classic group.

    Attributes:
        number: counts the members in the order in which they joined.
        protocols: the assignors that the member supports, in order of preference, with its metadata.
        assignment: its assignment in the current generation; opaque.
        former_epoch: *(tagged)* the member's epoch when a consumer group became this group, if that is not the
            generation: the member sends it until it joins again, or until a generation begins without it. -1: the
            member has no other epoch than the generation.
        assignment_version: *(tagged)* the version of the assignor user data in ``assignment``, -1 if unknown.
        assignment_error: *(tagged)* the assignor's own error number for the member, 0 if there is none.
    """

    group_id: str
    member_id: str
    number: int = 0
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    session_timeout_ms: int = 0
    rebalance_timeout_ms: int = 0
    protocols: tuple[OfferedProtocol, ...] = ()
    assignment: bytes = b""
    former_epoch: int = -1
    assignment_version: int = -1
    assignment_error: int = 0

    @property
    def key(self) -> Key:
        return Key(Kind.CLASSIC_MEMBER, self.group_id, self.member_id)


def offset_name(topic: str, partition: int) -> str:
    """The name in the key of a committed offset."""
    return f"{topic}\n{partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRecord:
    """A committed offset (Kafka's OffsetCommitValue).

    Attributes:
        offset: the offset of the next record to read.
        leader_epoch: the leader epoch of the record before it, -1 unknown.
        metadata: the member's own.
        at_ms: the coordinator's wall clock.
        topic_id: *(tagged)* the topic: one that is created again under the name is another topic. Zero if the
            coordinator did not know the topics of the cluster, and in records of earlier versions.
    """

    group_id: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    at_ms: int = 0
    topic_id: str = NO_TOPIC_ID

    @property
    def key(self) -> Key:
        return Key(Kind.OFFSET, self.group_id, offset_name(self.topic, self.partition))


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCommit:
    """An offset that is committed if its transaction is.

    Attributes:
        token: identifies the request; the broker stores it as the metadata of its own copy of the offset.
        offset, leader_epoch, metadata, at_ms: as in ``OffsetRecord``.
    """

    token: str
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    at_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingOffsetRecord:
    """The offsets of a partition that transactions have committed and whose outcome is not known here yet.

    Attributes:
        topic_id: as in ``OffsetRecord``.
        commits: in the order of their requests; at most ``MAX_PENDING``.
    """

    group_id: str
    topic: str
    partition: int
    topic_id: str = NO_TOPIC_ID
    commits: tuple[PendingCommit, ...] = ()

    @property
    def key(self) -> Key:
        return Key(Kind.PENDING_OFFSET, self.group_id, offset_name(self.topic, self.partition))
