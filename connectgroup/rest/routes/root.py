"""``GET /``, ``GET /health`` (KIP-1017) and ``GET /openapi.json``."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ...errors import ConnectGroupError, GroupIdNotFound
from ..access import NOTHING
from ..operations import ANY, TEXT, Operation, shape


async def server_info(request: Request) -> Response:
    """Version and group: the group is what a cluster is in Kafka Connect."""
    context = request.app.state.context
    return JSONResponse({"version": context.version, "commit": context.commit, "kafka_cluster_id": context.group_id})


async def health(request: Request) -> Response:
    """Healthy if the coordinator answers."""
    context = request.app.state.context
    try:
        await context.admin.describe(context.group_id, connectors=(), connectors_only=True)
    except GroupIdNotFound:
        pass  # created with its first connector or worker
    except ConnectGroupError as error:
        return JSONResponse({"status": "unhealthy", "message": str(error)}, 500)
    return JSONResponse({"status": "healthy", "message": "The coordinator responds to requests."})


async def openapi(request: Request) -> Response:
    """This document: all operations, OpenAPI 3.1."""
    return JSONResponse(request.app.state.document)


OPERATIONS: Final = (
    Operation("GET", "/", server_info, NOTHING, response=shape(version=TEXT, commit=TEXT, kafka_cluster_id=TEXT)),
    Operation("GET", "/openapi.json", openapi, NOTHING, response=ANY),
    Operation("GET", "/health", health, NOTHING, response=shape(status=TEXT, message=TEXT)),
)
