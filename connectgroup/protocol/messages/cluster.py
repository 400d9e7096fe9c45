"""What clients ask of every broker: ApiVersions, FindCoordinator, SaslHandshake, SaslAuthenticate; and Metadata.

SASL (KIP-43, KIP-152) authenticates a connection before any other request. Metadata is what consumers here ask of a
Kafka broker; the coordinator does not serve it.

Source: Kafka's protocol guide.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..units import NO_TOPIC_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionsRequest:
    """Request the list of supported APIs. The client's names are sent from version 3 on."""

    client_software_name: str = ""
    client_software_version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersion:
    """One API and its supported versions."""

    api_key: int
    min_version: int
    max_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportedFeature:
    """A feature of a Kafka cluster and its supported versions."""

    name: str
    min_version: int
    max_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalizedFeature:
    """A feature of a Kafka cluster and the versions in force."""

    name: str
    max_version_level: int
    min_version_level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionsResponse:
    """The APIs that the server supports.

    Attributes:
        supported_features: *(tagged)* the features of a Kafka cluster; so are the next three. A coordinator has none.
        finalized_features_epoch: *(tagged)* their epoch, -1 if unknown.
        finalized_features: *(tagged)* the features in force.
        zk_migration_ready: *(tagged)* whether the cluster can migrate from ZooKeeper.
    """

    error_code: int = 0
    api_keys: tuple[ApiVersion, ...] = ()
    throttle_time_ms: int = 0
    supported_features: tuple[SupportedFeature, ...] = ()
    finalized_features_epoch: int = -1
    finalized_features: tuple[FinalizedFeature, ...] = ()
    zk_migration_ready: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCoordinatorRequest:
    """Look up a group's coordinator. ``key`` up to version 3, ``coordinator_keys`` from version 4 on."""

    key: str = ""
    key_type: int = 0
    coordinator_keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCoordinator:
    """The coordinator of one group."""

    key: str
    node_id: int
    host: str
    port: int
    error_code: int = 0
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCoordinatorResponse:
    """The coordinators: the single fields up to version 3, ``coordinators`` from version 4 on."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    node_id: int = -1
    host: str = ""
    port: int = -1
    coordinators: tuple[FoundCoordinator, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeCoordinatorsRequest:
    """Describe the coordinators that share a log; each of them responds, also one that stands by.

    include_standbys: whether to describe those that stand by, too.
    """

    include_standbys: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedCoordinator:
    """One coordinator.

    address: the ``host:port`` that it advertises; empty: the one that responds, which shares its log with no other.
    epoch: its coordinator epoch; -1: it stands by.
    since_ms: since when it serves or stands by, in milliseconds since 1970.
    lag_ms: *(tagged)* of one that stands by: milliseconds since it has last registered; -1: it serves.
    partition: *(tagged)* the partition of the log that it serves; -1: the log has one partition, or it stands by.
    """

    address: str
    epoch: int = -1
    since_ms: int = -1
    lag_ms: int = -1
    partition: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeCoordinatorsResponse:
    """The coordinators of a log: the one that serves first, if there is one; then those that stand by.

    Of a log with several partitions: one entry for each partition that is served, then those that serve none.

    failover_ms: when the one that serves took over, in milliseconds since 1970; -1: it had no predecessor.
    failover_took_ms: from the last sign of life of its predecessor until it served, in milliseconds; -1: unknown.
    failover_cause: ``handed over``, ``lease expired``, or ``no coordinator stood by``: the one that serves was started
        when its predecessor had ended. Empty without a predecessor.
    partitions: *(tagged)* the number of partitions of the log.
    failover_partition: *(tagged)* the partition of the last fail-over; -1: the log has one partition.
    """

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    coordinators: tuple[DescribedCoordinator, ...] = ()
    failover_ms: int = -1
    failover_took_ms: int = -1
    failover_cause: str = ""
    coordinator_epoch: int = -1
    partitions: int = 1
    failover_partition: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslHandshakeRequest:
    """Choose the mechanism."""

    mechanism: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslHandshakeResponse:
    """Whether the server supports the mechanism, and those that it supports."""

    error_code: int = 0
    mechanisms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslAuthenticateRequest:
    """One message of the mechanism. Its ``repr`` does not show the message, which may be a password."""

    auth_bytes: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslAuthenticateResponse:
    """The server's message.

    Attributes:
        session_lifetime_ms: 0: the authentication does not expire before the connection.
    """

    error_code: int = 0
    error_message: str | None = None
    auth_bytes: bytes = field(default=b"", repr=False)
    session_lifetime_ms: int = 0


NO_OPERATIONS = -(1 << 31)
"""The value of authorized operations that were not requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicName:
    """A requested topic: its name, or from version 12 on its id and a null name."""

    topic_id: str = NO_TOPIC_ID
    name: str | None


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
class MetadataBroker:
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
class MetadataTopic:
    """One topic. With an error it has no partitions. Its id is known from version 10 on."""

    error_code: int
    name: str | None
    topic_id: str = NO_TOPIC_ID
    is_internal: bool = False
    partitions: tuple[PartitionMetadata, ...] = ()
    topic_authorized_operations: int = NO_OPERATIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataResponse:
    """The brokers and the topics, in any order."""

    throttle_time_ms: int = 0
    brokers: tuple[MetadataBroker, ...] = ()
    cluster_id: str | None = None
    controller_id: int = -1
    topics: tuple[MetadataTopic, ...] = ()
    cluster_authorized_operations: int = NO_OPERATIONS
