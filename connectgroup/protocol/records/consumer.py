"""The records of a consumer group, besides those that all group types with a target assignment share.

Shared are the group epoch (``GroupRecord``), the epoch of the target assignment (``TargetRecord``) and the computation
of the next one (``ComputationRecord``), in ``connect``.

Source: KIP-848, "Records": ConsumerGroupMemberMetadata, TargetAssignmentMember, CurrentMemberAssignment and
PartitionMetadata; ConsumerGroupRegularExpression of Kafka 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ..messages.classic import OfferedProtocol
from ..messages.common import AssignorInfo
from ..messages.consumer import TopicPartitions
from ..units import TopicPartition
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
