"""The table of APIs: connectgroup's and Kafka's, each with the parties that serve it and those that send it.

``apis`` compiles the APIs that a coordinator serves, ``kafka_apis`` those that a consumer sends. A new API is one
entry here, its two definitions in ``messages/`` (``kafka/`` if only a broker serves it), and its two classes.

Keys from 20480 on are connectgroup's own (PD-01); the others are Kafka's.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final, NamedTuple

from ..protocol.messages import classic, describe
from ..protocol.messages.assignment import InstallRequest, InstallResponse, PrepareRequest, PrepareResponse
from ..protocol.messages.cluster import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeCoordinatorsRequest,
    DescribeCoordinatorsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from ..protocol.messages.common import RestartRequest, RestartResponse, SetLoggerLevelRequest, SetLoggerLevelResponse
from ..protocol.messages.connectors import (
    ResetTopicsRequest,
    ResetTopicsResponse,
    UpdateConnectorsRequest,
    UpdateConnectorsResponse,
)
from ..protocol.messages.consumer import (
    ConsumerDescribeRequest,
    ConsumerDescribeResponse,
    ConsumerHeartbeatRequest,
    ConsumerHeartbeatResponse,
    ConsumerInstallRequest,
    ConsumerInstallResponse,
    ConsumerPrepareRequest,
    ConsumerPrepareResponse,
)
from ..protocol.messages.describe import DeleteRequest, DeleteResponse, DescribeRequest, DescribeResponse
from ..protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ..protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)


class Party(Enum):
    """A process that serves or sends an API."""

    COORDINATOR = "coordinator"
    BROKER = "broker"
    WORKER = "worker"
    ADMIN = "admin"
    CONSUMER = "consumer"


class Entry(NamedTuple):
    """One API.

    Attributes:
        key: its API key.
        name: its name without Request and Response, which is also that of its definitions.
        request_class, response_class: the classes of decoded messages.
        servers: the parties that serve it.
        clients: the parties that send it.
    """

    key: int
    name: str
    request_class: type[Any]
    response_class: type[Any]
    servers: frozenset[Party]
    clients: frozenset[Party]


COORDINATOR: Final = frozenset({Party.COORDINATOR})
BROKER: Final = frozenset({Party.BROKER})
WORKER: Final = frozenset({Party.WORKER})
ADMIN: Final = frozenset({Party.ADMIN})
CONSUMER: Final = frozenset({Party.CONSUMER})

TABLE: Final = (
    Entry(3, "Metadata", MetadataRequest, MetadataResponse, BROKER, CONSUMER),
    Entry(8, "OffsetCommit", OffsetCommitRequest, OffsetCommitResponse, COORDINATOR | BROKER, CONSUMER),
    Entry(9, "OffsetFetch", OffsetFetchRequest, OffsetFetchResponse, COORDINATOR | BROKER, CONSUMER),
    Entry(
        10,
        "FindCoordinator",
        FindCoordinatorRequest,
        FindCoordinatorResponse,
        COORDINATOR | BROKER,
        WORKER | ADMIN | CONSUMER,
    ),
    Entry(11, "JoinGroup", classic.JoinGroupRequest, classic.JoinGroupResponse, COORDINATOR | BROKER, CONSUMER),
    Entry(
        12, "Heartbeat", classic.GroupHeartbeatRequest, classic.GroupHeartbeatResponse, COORDINATOR | BROKER, CONSUMER
    ),
    Entry(13, "LeaveGroup", classic.LeaveGroupRequest, classic.LeaveGroupResponse, COORDINATOR | BROKER, CONSUMER),
    Entry(14, "SyncGroup", classic.SyncGroupRequest, classic.SyncGroupResponse, COORDINATOR | BROKER, CONSUMER),
    Entry(15, "DescribeGroups", describe.DescribeGroupsRequest, describe.DescribeGroupsResponse, COORDINATOR, ADMIN),
    Entry(16, "ListGroups", describe.ListGroupsRequest, describe.ListGroupsResponse, COORDINATOR, ADMIN),
    Entry(17, "SaslHandshake", SaslHandshakeRequest, SaslHandshakeResponse, COORDINATOR, WORKER | ADMIN | CONSUMER),
    Entry(18, "ApiVersions", ApiVersionsRequest, ApiVersionsResponse, COORDINATOR | BROKER, WORKER | ADMIN | CONSUMER),
    Entry(28, "TxnOffsetCommit", TxnOffsetCommitRequest, TxnOffsetCommitResponse, COORDINATOR | BROKER, ADMIN),
    Entry(
        36,
        "SaslAuthenticate",
        SaslAuthenticateRequest,
        SaslAuthenticateResponse,
        COORDINATOR,
        WORKER | ADMIN | CONSUMER,
    ),
    Entry(42, "DeleteGroups", describe.DeleteGroupsRequest, describe.DeleteGroupsResponse, COORDINATOR, ADMIN),
    Entry(47, "OffsetDelete", OffsetDeleteRequest, OffsetDeleteResponse, COORDINATOR, ADMIN),
    Entry(
        68,
        "ConsumerGroupHeartbeat",
        ConsumerHeartbeatRequest,
        ConsumerHeartbeatResponse,
        COORDINATOR | BROKER,
        CONSUMER,
    ),
    Entry(69, "ConsumerGroupDescribe", ConsumerDescribeRequest, ConsumerDescribeResponse, COORDINATOR, ADMIN),
    Entry(20480, "ConnectGroupHeartbeat", HeartbeatRequest, HeartbeatResponse, COORDINATOR, WORKER),
    Entry(20481, "ConnectGroupPrepareAssignment", PrepareRequest, PrepareResponse, COORDINATOR, WORKER),
    Entry(20482, "ConnectGroupInstallAssignment", InstallRequest, InstallResponse, COORDINATOR, WORKER),
    Entry(20483, "ConnectGroupDescribe", DescribeRequest, DescribeResponse, COORDINATOR, ADMIN),
    Entry(
        20484,
        "ConnectGroupUpdateConnectors",
        UpdateConnectorsRequest,
        UpdateConnectorsResponse,
        COORDINATOR,
        WORKER | ADMIN,
    ),
    Entry(20485, "ConnectGroupDelete", DeleteRequest, DeleteResponse, COORDINATOR, ADMIN),
    Entry(20486, "ConnectGroupRestartMember", RestartRequest, RestartResponse, COORDINATOR, ADMIN),
    Entry(
        20487,
        "ConsumerGroupPrepareAssignment",
        ConsumerPrepareRequest,
        ConsumerPrepareResponse,
        COORDINATOR,
        CONSUMER,
    ),
    Entry(
        20488,
        "ConsumerGroupInstallAssignment",
        ConsumerInstallRequest,
        ConsumerInstallResponse,
        COORDINATOR,
        CONSUMER,
    ),
    Entry(20489, "ConnectGroupSetLoggerLevel", SetLoggerLevelRequest, SetLoggerLevelResponse, COORDINATOR, ADMIN),
    Entry(20490, "ConnectGroupResetTopics", ResetTopicsRequest, ResetTopicsResponse, COORDINATOR, ADMIN),
    Entry(
        20491,
        "ConnectGroupDescribeCoordinators",
        DescribeCoordinatorsRequest,
        DescribeCoordinatorsResponse,
        COORDINATOR,
        ADMIN,
    ),
)
"""Every API, by key."""


def key_of(name: str) -> int:
    """The API key of a name in the table."""
    return next(entry.key for entry in TABLE if entry.name == name)


def served_by(party: Party) -> tuple[Entry, ...]:
    """The APIs that a party serves."""
    return tuple(entry for entry in TABLE if party in entry.servers)


def sent_by(party: Party) -> tuple[Entry, ...]:
    """The APIs that a party sends."""
    return tuple(entry for entry in TABLE if party in entry.clients)
