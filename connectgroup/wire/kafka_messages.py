"""Messages that a consumer exchanges with a Kafka broker and that no coordinator here serves.

``protocol.messages`` has the messages that the coordinator serves, those of classic groups included
(``protocol.messages.classic``). Error codes are Kafka's numbers (see ``consumer.errors``).

Source: Kafka's protocol guide.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..protocol.units import NO_TOPIC_ID

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


KafkaRequest = MetadataRequest
KafkaResponse = MetadataResponse
