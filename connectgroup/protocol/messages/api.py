"""All requests and responses, and the handler interface that every transport calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from .assignment import InstallRequest, InstallResponse, PrepareRequest, PrepareResponse
from .classic import (
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from .cluster import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeCoordinatorsRequest,
    DescribeCoordinatorsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from .common import RestartRequest, RestartResponse, SetLoggerLevelRequest, SetLoggerLevelResponse
from .connectors import ResetTopicsRequest, ResetTopicsResponse, UpdateConnectorsRequest, UpdateConnectorsResponse
from .consumer import (
    ConsumerDescribeRequest,
    ConsumerDescribeResponse,
    ConsumerHeartbeatRequest,
    ConsumerHeartbeatResponse,
    ConsumerInstallRequest,
    ConsumerInstallResponse,
    ConsumerPrepareRequest,
    ConsumerPrepareResponse,
)
from .describe import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DeleteRequest,
    DeleteResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeRequest,
    DescribeResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from .heartbeat import HeartbeatRequest, HeartbeatResponse
from .offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

Request = (
    HeartbeatRequest
    | PrepareRequest
    | InstallRequest
    | DescribeRequest
    | UpdateConnectorsRequest
    | DeleteRequest
    | RestartRequest
    | SetLoggerLevelRequest
    | ResetTopicsRequest
    | DescribeCoordinatorsRequest
    | JoinGroupRequest
    | SyncGroupRequest
    | GroupHeartbeatRequest
    | LeaveGroupRequest
    | ListGroupsRequest
    | DescribeGroupsRequest
    | DeleteGroupsRequest
    | ApiVersionsRequest
    | SaslHandshakeRequest
    | SaslAuthenticateRequest
    | FindCoordinatorRequest
    | ConsumerHeartbeatRequest
    | OffsetCommitRequest
    | OffsetFetchRequest
    | OffsetDeleteRequest
    | TxnOffsetCommitRequest
    | ConsumerDescribeRequest
    | ConsumerPrepareRequest
    | ConsumerInstallRequest
)


Response = (
    HeartbeatResponse
    | PrepareResponse
    | InstallResponse
    | DescribeResponse
    | UpdateConnectorsResponse
    | DeleteResponse
    | RestartResponse
    | SetLoggerLevelResponse
    | ResetTopicsResponse
    | DescribeCoordinatorsResponse
    | JoinGroupResponse
    | SyncGroupResponse
    | GroupHeartbeatResponse
    | LeaveGroupResponse
    | ListGroupsResponse
    | DescribeGroupsResponse
    | DeleteGroupsResponse
    | ApiVersionsResponse
    | SaslHandshakeResponse
    | SaslAuthenticateResponse
    | FindCoordinatorResponse
    | ConsumerHeartbeatResponse
    | OffsetCommitResponse
    | OffsetFetchResponse
    | OffsetDeleteResponse
    | TxnOffsetCommitResponse
    | ConsumerDescribeResponse
    | ConsumerPrepareResponse
    | ConsumerInstallResponse
)


class Handler(Protocol):
    """The contract between client and server; every transport implements exactly this."""

    async def handle(
        self, request: Request, *, client_host: str, client_id: str = "", principal: str | None = ""
    ) -> Response:
        """Process one request.

        Args:
            request: the decoded request, independent of the protocol version.
            client_host: the client's network address; informational.
            client_id: the client id in the request header, empty if null; informational.
            principal: the authenticated user of the connection, or the name in its TLS certificate; empty: there is no
                authentication; ``None``: the caller is a part of the handler's own process that acts for any principal.

        Returns:
            The response of the request's own type. A rejected request has a response with an error code.
        """


@runtime_checkable
class DirectHandler(Protocol):
    """A handler that can process some requests without a task for each: creating one takes as long as a heartbeat."""

    def begin(
        self,
        request: Request,
        *,
        client_host: str,
        client_id: str,
        principal: str | None,
        respond: Callable[[Response], None],
    ) -> bool:
        """Begin to process one request, or return false: ``handle`` is to be called.

        Args:
            request, client_host, client_id, principal: as for ``handle``.
            respond: called once with the response, possibly before this returns.
        """
