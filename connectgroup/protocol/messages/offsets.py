"""OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete: the committed offsets of consumer and classic groups.

Source: Kafka's protocol guide.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..units import NO_TOPIC_ID

NO_GENERATION = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCommit:
    """The committed position in one partition.

    Attributes:
        committed_offset: the offset of the next record to read.
        committed_leader_epoch: the leader epoch of the record before it, -1 unknown (KIP-320).
        committed_metadata: the member's own metadata, at most 4096 bytes with a broker's default settings.
    """

    partition_index: int
    committed_offset: int
    committed_leader_epoch: int = -1
    committed_metadata: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCommit:
    """The committed positions in one topic.

    Attributes:
        name: the topic, up to version 9.
        topic_id: the topic, from version 10 on.
    """

    name: str = ""
    topic_id: str = NO_TOPIC_ID
    partitions: tuple[PartitionCommit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequest:
    """Commit offsets. Rejected unless member and generation or member epoch are current.

    Attributes:
        generation_id_or_member_epoch: the generation in a classic group, the member epoch in a consumer group; -1 if
            the sender is not a member.
        retention_time_ms: ignored; a field of old versions.
        lacks_member_epochs: whether the version is too old for members of the protocol of KIP-848, and for the error
            GROUP_ID_NOT_FOUND. Not on the wire: the decoder sets it.
    """

    group_id: str
    generation_id_or_member_epoch: int = NO_GENERATION
    member_id: str
    group_instance_id: str | None = None
    retention_time_ms: int = -1
    lacks_member_epochs: bool = False
    topics: tuple[TopicCommit, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCommitted:
    """Whether one partition's offset was committed."""

    partition_index: int
    error_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCommitted:
    """The results for one topic, which is named as in the request."""

    name: str = ""
    topic_id: str = NO_TOPIC_ID
    partitions: tuple[PartitionCommitted, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponse:
    """One error code per partition."""

    throttle_time_ms: int = 0
    topics: tuple[TopicCommitted, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsetCommitRequest:
    """Commit offsets with a transaction of a producer (KIP-98, KIP-447).

    Attributes:
        generation_id: the generation in a classic group, the member epoch in a consumer group; -1: the sender does not
            say, as in versions below 3.
        member_id: the member; empty: the sender does not say.
    """

    transactional_id: str
    group_id: str
    producer_id: int
    producer_epoch: int
    generation_id: int = NO_GENERATION
    member_id: str = ""
    group_instance_id: str | None = None
    topics: tuple[TopicCommit, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsetCommitResponse:
    """One error code per partition."""

    throttle_time_ms: int = 0
    topics: tuple[TopicCommitted, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitInTransaction:
    """A TxnOffsetCommit that the broker has accepted; not on the wire.

    Attributes:
        request: the partitions that the broker has accepted.
        token: see ``PendingCommit``.
    """

    request: TxnOffsetCommitRequest
    token: str

    @property
    def group_id(self) -> str:
        return self.request.group_id


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionToDelete:
    """A partition whose committed offset is to be deleted."""

    partition_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicToDelete:
    """The partitions of one topic whose committed offsets are to be deleted."""

    name: str
    partitions: tuple[PartitionToDelete, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteRequest:
    """Delete committed offsets of a group (KIP-496)."""

    group_id: str
    topics: tuple[TopicToDelete, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDeleted:
    """Whether one partition's offset was deleted."""

    partition_index: int
    error_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDeleted:
    """The results for one topic."""

    name: str
    partitions: tuple[PartitionDeleted, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteResponse:
    """One error code per partition; with an error of the group there are no topics."""

    error_code: int = 0
    throttle_time_ms: int = 0
    topics: tuple[TopicDeleted, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicToFetch:
    """The requested partitions of one topic.

    Attributes:
        name: the topic, up to version 9.
        topic_id: the topic, from version 10 on.
    """

    name: str = ""
    topic_id: str = NO_TOPIC_ID
    partition_indexes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupToFetch:
    """One group of a request from version 8 on.

    Attributes:
        member_id: the sender in a consumer group; null: the sender is not a member.
        member_epoch: its member epoch, or -1.
        topics: null requests all committed offsets.
    """

    group_id: str
    member_id: str | None = None
    member_epoch: int = -1
    topics: tuple[TopicToFetch, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequest:
    """Fetch the committed offsets of groups.

    A sender that does not know the version sets the first two attributes and ``groups``: each version has one of them.

    Attributes:
        group_id: the group, up to version 7.
        topics: its topics, up to version 7; null requests all committed offsets.
        groups: the groups, from version 8 on.
        require_stable: respond with error 88 while a transaction is about to commit offsets (KIP-447).
        by_topic_id: whether the version names topics by their ids. Not on the wire: the decoder sets it.
    """

    group_id: str = ""
    topics: tuple[TopicToFetch, ...] | None = ()
    groups: tuple[GroupToFetch, ...] = ()
    require_stable: bool = False
    by_topic_id: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedPartition:
    """The committed position in one partition; offset -1 if nothing was committed."""

    partition_index: int
    committed_offset: int
    committed_leader_epoch: int = -1
    metadata: str | None
    error_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedTopic:
    """The committed positions in one topic, which is named as in the request."""

    name: str = ""
    topic_id: str = NO_TOPIC_ID
    partitions: tuple[FetchedPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedGroup:
    """The committed positions of one group, from version 8 on."""

    group_id: str
    topics: tuple[FetchedTopic, ...] = ()
    error_code: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponse:
    """The offsets: of one group up to version 7, of each requested group from version 8 on."""

    throttle_time_ms: int = 0
    topics: tuple[FetchedTopic, ...] = ()
    error_code: int = 0
    groups: tuple[FetchedGroup, ...] = ()

    @property
    def first(self) -> FetchedGroup:
        """The response to a request about one group, in any version."""
        return (
            self.groups[0] if self.groups else FetchedGroup(group_id="", topics=self.topics, error_code=self.error_code)
        )
