"""All requests and responses, and the handler that every transport calls."""

from __future__ import annotations

from typing import Protocol

from .assignment import InstallRequest, InstallResponse, PrepareRequest, PrepareResponse
from .cluster import ApiVersionsRequest, ApiVersionsResponse, FindCoordinatorRequest, FindCoordinatorResponse
from .common import RestartRequest, RestartResponse
from .connectors import UpdateConnectorsRequest, UpdateConnectorsResponse
from .describe import DeleteRequest, DeleteResponse, DescribeRequest, DescribeResponse
from .heartbeat import HeartbeatRequest, HeartbeatResponse

Request = (
    HeartbeatRequest
    | PrepareRequest
    | InstallRequest
    | DescribeRequest
    | UpdateConnectorsRequest
    | DeleteRequest
    | RestartRequest
    | ApiVersionsRequest
    | FindCoordinatorRequest
)


Response = (
    HeartbeatResponse
    | PrepareResponse
    | InstallResponse
    | DescribeResponse
    | UpdateConnectorsResponse
    | DeleteResponse
    | RestartResponse
    | ApiVersionsResponse
    | FindCoordinatorResponse
)


class Handler(Protocol):
    """What a server serves and a client reaches: every transport carries exactly this contract."""

    async def handle(self, request: Request, *, client_host: str, client_id: str = "") -> Response:
        """Answer one request.

        Args:
            request: decoded, version-independent.
            client_host: where it came from, for people to read.
            client_id: the client id in the request header, empty if null; for people to read.

        Returns:
            The response of the request's own type. A refusal is a response with an error code.
        """
