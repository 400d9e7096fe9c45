"""The messages of Kafka's own group protocol, as a consumer speaks it to a broker.

This is the classic protocol of JoinGroup and SyncGroup, under which the members assign, and what goes with it: who
the brokers are, who coordinates, and the group's offsets. ``protocol.messages`` has the protocol that the
coordinator serves; this one is spoken as a client only. Error codes are Kafka's numbers (see ``consumer.errors``).

Source: Kafka's protocol guide.
"""

from __future__ import annotations

from dataclasses import dataclass

NO_GENERATION = -1
NO_OPERATIONS = -(1 << 31)
"""Authorized operations that were not asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicName:
    """A topic asked about."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRequest:
    """Which brokers are there, and what are these topics like?

    Attributes:
        topics: null asks about all, none about the brokers only.
        allow_auto_topic_creation: whether asking may make a topic.
    """

    topics: tuple[TopicName, ...] | None
    allow_auto_topic_creation: bool = True
    include_cluster_authorized_operations: bool = False
    include_topic_authorized_operations: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A broker that is up."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMetadata:
    """One partition and the brokers that keep it."""

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
class OfferedProtocol:
    """An assignor that a member can use, and what it tells those who use it."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroupRequest:
    """Let me in, or let me in again; answered when the rebalance has all its members.

    Attributes:
        member_id: empty the first time.
        group_instance_id: the static member's name (KIP-345).
        protocols: best first.
        reason: for people (KIP-800); from version 8 on.
    """

    group_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int = -1
    member_id: str
    group_instance_id: str | None = None
    protocol_type: str
    protocols: tuple[OfferedProtocol, ...]
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    """A member, as the leader is told."""

    member_id: str
    group_instance_id: str | None = None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroupResponse:
    """A generation has begun.

    Attributes:
        protocol_name: the assignor that all members can use and most prefer.
        leader: whose member id equals it assigns, and is told all ``members``.
        skip_assignment: the leader must not assign (KIP-814); from version 9 on.
        member_id: with error 79 (MEMBER_ID_REQUIRED) the id to ask again with (KIP-394).
    """

    throttle_time_ms: int = 0
    error_code: int
    generation_id: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None
    leader: str
    skip_assignment: bool = False
    member_id: str
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberShare:
    """What one member is given."""

    member_id: str
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroupRequest:
    """From the leader: who gets what. From the others: what do I get?"""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[MemberShare, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroupResponse:
    """The receiver's share, when the leader has assigned."""

    throttle_time_ms: int = 0
    error_code: int
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupHeartbeatRequest:
    """I am alive, in this generation."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupHeartbeatResponse:
    """Known, or why not: error 27 (REBALANCE_IN_PROGRESS) asks to join again."""

    throttle_time_ms: int = 0
    error_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeavingMember:
    """Who leaves."""

    member_id: str
    group_instance_id: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroupRequest:
    """These members are gone; do not wait for their sessions to end."""

    group_id: str
    members: tuple[LeavingMember, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftMember:
    """Whether one of them could be let go."""

    member_id: str
    group_instance_id: str | None
    error_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroupResponse:
    """They are gone."""

    throttle_time_ms: int = 0
    error_code: int
    members: tuple[LeftMember, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCommit:
    """Where to read on in one partition.

    Attributes:
        committed_offset: of the next record to read.
        committed_leader_epoch: of the record before it, -1 unknown (KIP-320).
        committed_metadata: a word of the member's own, at most 4096 bytes on a broker as it comes.
    """

    partition_index: int
    committed_offset: int
    committed_leader_epoch: int = -1
    committed_metadata: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCommit:
    """One topic's."""

    name: str
    partitions: tuple[PartitionCommit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequest:
    """We have read this far. Refused unless member and generation are the group's."""

    group_id: str
    generation_id_or_member_epoch: int = NO_GENERATION
    member_id: str
    group_instance_id: str | None = None
    topics: tuple[TopicCommit, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCommitted:
    """Whether one partition's offset was taken."""

    partition_index: int
    error_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCommitted:
    """One topic's."""

    name: str
    partitions: tuple[PartitionCommitted, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponse:
    """An error code a partition."""

    throttle_time_ms: int = 0
    topics: tuple[TopicCommitted, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicToFetch:
    """The partitions of one topic."""

    name: str
    partition_indexes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequest:
    """How far has the group read?

    Attributes:
        topics: null asks for all that was committed.
        require_stable: answer error 88 while a transaction is about to commit offsets (KIP-447).
    """

    group_id: str
    topics: tuple[TopicToFetch, ...] | None
    require_stable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedPartition:
    """Where to read on in one partition; offset -1 where nothing was committed."""

    partition_index: int
    committed_offset: int
    committed_leader_epoch: int = -1
    metadata: str | None
    error_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedTopic:
    """One topic's."""

    name: str
    partitions: tuple[FetchedPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponse:
    """The offsets, or an error of the whole."""

    throttle_time_ms: int = 0
    topics: tuple[FetchedTopic, ...] = ()
    error_code: int = 0


KafkaRequest = (
    MetadataRequest
    | JoinGroupRequest
    | SyncGroupRequest
    | GroupHeartbeatRequest
    | LeaveGroupRequest
    | OffsetCommitRequest
    | OffsetFetchRequest
)
KafkaResponse = (
    MetadataResponse
    | JoinGroupResponse
    | SyncGroupResponse
    | GroupHeartbeatResponse
    | LeaveGroupResponse
    | OffsetCommitResponse
    | OffsetFetchResponse
)
