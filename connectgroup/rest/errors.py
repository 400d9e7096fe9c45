"""Errors of the REST API: status code and body ``{"error_code", "message"}``, as Kafka Connect's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.responses import JSONResponse

from ..errors import (
    ConfigError,
    ConnectGroupError,
    ConnectorAlreadyExists,
    ConnectorNotFound,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    Fenced,
    GroupAuthorizationFailed,
    GroupIdNotFound,
    InvalidGroupId,
    InvalidRequest,
    NonEmptyGroup,
    NotCoordinator,
    PluginError,
    PolicyViolation,
    TransportError,
    UnknownMemberId,
    VersionConflict,
)


class RestError(ConnectGroupError):
    """A request rejected by the REST API itself."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


_STATUS: Final[tuple[tuple[type[ConnectGroupError], int], ...]] = (
    (GroupAuthorizationFailed, 403),
    (ConnectorNotFound, 404),
    (GroupIdNotFound, 404),
    (UnknownMemberId, 404),
    (ConnectorAlreadyExists, 409),
    (VersionConflict, 409),
    (Fenced, 409),
    (NonEmptyGroup, 409),
    (InvalidRequest, 400),
    (InvalidGroupId, 400),
    (PolicyViolation, 400),
    (ConfigError, 400),
    (PluginError, 400),
    # Temporary: the same request may succeed later.
    (CoordinatorLoadInProgress, 503),
    (CoordinatorNotAvailable, 503),
    (NotCoordinator, 503),
    (TransportError, 503),
)


def status_of(error: ConnectGroupError) -> int:
    """The status code for an error: 4xx if another request is needed, 503 if the same request may succeed later."""
    if isinstance(error, RestError):
        return error.status
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def error_response(status: int, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """An error body as Kafka Connect's; 429 and 503 say when to retry."""
    headers = dict(headers or {})
    if status in (429, 503):
        headers["Retry-After"] = "1"
    return JSONResponse({"error_code": status, "message": message}, status, headers)
