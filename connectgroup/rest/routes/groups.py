"""``/groups``: worker groups, their rebalances and workers. Not in Kafka Connect."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .. import views


async def list_groups(request: Request) -> Response:
    groups = await request.app.state.context.admin.list_groups()
    return JSONResponse([views.group_summary(group) for group in groups])


async def describe_group(request: Request) -> Response:
    group = await request.app.state.context.admin.describe(request.path_params["group"])
    return JSONResponse(views.group_description(group))


async def list_rebalances(request: Request) -> Response:
    group = await request.app.state.context.admin.describe(request.path_params["group"], connectors=())
    return JSONResponse(views.rebalances(group))


async def delete_group(request: Request) -> Response:
    await request.app.state.context.admin.delete_group(request.path_params["group"])
    return Response(status_code=204)


async def restart_worker(request: Request) -> Response:
    """Request the restart of a worker; a restart that is pending already is a success too."""
    params = request.path_params
    await request.app.state.context.admin.restart_worker(params["group"], params["worker"])
    return Response(status_code=202)


ROUTES: Final = (
    Route("/groups", list_groups, methods=["GET"]),
    Route("/groups/{group}", describe_group, methods=["GET"]),
    Route("/groups/{group}", delete_group, methods=["DELETE"]),
    Route("/groups/{group}/rebalances", list_rebalances, methods=["GET"]),
    Route("/groups/{group}/workers/{worker}/restart", restart_worker, methods=["POST"]),
)
