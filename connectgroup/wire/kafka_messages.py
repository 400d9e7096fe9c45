"""Messages that a consumer exchanges with a Kafka broker and that no coordinator here serves.

``protocol.messages`` has the messages that the coordinator serves, those of classic groups included
(``protocol.messages.classic``). Error codes are Kafka's numbers (see ``consumer.errors``).

Source: Kafka's protocol guide.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..protocol.messages.classic import NO_GENERATION

NO_OPERATIONS = -(1 << 31)
"""The value of authorized operations that were not requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicName:
    """A requested topic."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRequest:
    """Request the brokers and the metadata of topics.

    Attributes:
        topics: null requests all topics, an empty tuple only the brokers.
        allow_auto_topic_creation: whether the request may create a topic.
    """

    topics: tuple[TopicName, ...] | None
    allow_auto_topic_creation: bool = True
    include_cluster_authorized_operations: bool = False
    include_topic_authorized_operations: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A live broker."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMetadata:
    """One partition and the brokers that host its replicas."""

    error_code: int
    partition_index: int
    leader_id: int
    leader_epoch: int = -1
    replica_nodes: tuple[int, ...] = ()
    isr_nodes: tuple[int, ...] = ()
    offline_replicas: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMetadata:
    """One topic. With an error it has no partitions."""

    error_code: int
    name: str
    is_internal: bool = False
    partitions: tuple[PartitionMetadata, ...] = ()
    topic_authorized_operations: int = NO_OPERATIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataResponse:
    """The brokers and the topics, in any order."""

    throttle_time_ms: int = 0
    brokers: tuple[Broker, ...] = ()
    cluster_id: str | None = None
    controller_id: int = -1
    topics: tuple[TopicMetadata, ...] = ()
    cluster_authorized_operations: int = NO_OPERATIONS


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
    """The committed positions in one topic."""

    name: str
    partitions: tuple[PartitionCommit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequest:
    """Commit offsets. Rejected unless member and generation are current."""

    group_id: str
    generation_id_or_member_epoch: int = NO_GENERATION
    member_id: str
    group_instance_id: str | None = None
    topics: tuple[TopicCommit, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCommitted:
    """Whether one partition's offset was committed."""

    partition_index: int
    error_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCommitted:
    """The results for one topic."""

    name: str
    partitions: tuple[PartitionCommitted, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponse:
    """One error code per partition."""

    throttle_time_ms: int = 0
    topics: tuple[TopicCommitted, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicToFetch:
    """The requested partitions of one topic."""

    name: str
    partition_indexes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequest:
    """Fetch the group's committed offsets.

    Attributes:
        topics: null requests all committed offsets.
        require_stable: respond with error 88 while a transaction is about to commit offsets (KIP-447).
    """

    group_id: str
    topics: tuple[TopicToFetch, ...] | None
    require_stable: bool = False


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
    """The committed positions in one topic."""

    name: str
    partitions: tuple[FetchedPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponse:
    """The offsets, or a top-level error."""

    throttle_time_ms: int = 0
    topics: tuple[FetchedTopic, ...] = ()
    error_code: int = 0


KafkaRequest = MetadataRequest | OffsetCommitRequest | OffsetFetchRequest
KafkaResponse = MetadataResponse | OffsetCommitResponse | OffsetFetchResponse
