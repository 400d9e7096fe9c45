"""``GET /``, ``GET /health`` (KIP-1017), and the routes of Kafka Connect that are not implemented."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ...errors import ConnectGroupError, GroupIdNotFound
from ..errors import RestError


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


async def not_implemented(request: Request) -> Response:
    raise RestError(501, f"{request.method} {request.url.path}: not implemented in connectgroup")


ROUTES: Final = (
    Route("/", server_info, methods=["GET"]),
    Route("/health", health, methods=["GET"]),
    Route("/admin/loggers", not_implemented, methods=["GET"]),
    Route("/admin/loggers/{logger}", not_implemented, methods=["GET", "PUT"]),
)
