"""``/groups``: worker groups, their rebalances and workers. Not in Kafka Connect."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from .. import views
from ..operations import ANY, Operation, listing


async def list_groups(request: Request) -> Response:
    """All groups."""
    groups = await request.app.state.context.admin.list_groups()
    return JSONResponse([views.group_summary(group) for group in groups])


async def describe_group(request: Request) -> Response:
    """Epochs, workers, delayed units, connectors and the state of each unit."""
    group = await request.app.state.context.admin.describe(request.path_params["group"])
    return JSONResponse(views.group_description(group))


async def list_rebalances(request: Request) -> Response:
    """The last 100 rebalances: causes, moves, downtime."""
    group = await request.app.state.context.admin.describe(request.path_params["group"], connectors=())
    return JSONResponse(views.rebalances(group))


async def delete_group(request: Request) -> Response:
    """Delete a group that has no workers, with its connectors."""
    await request.app.state.context.admin.delete_group(request.path_params["group"])
    return Response(status_code=204)


async def restart_worker(request: Request) -> Response:
    """Request the restart of a worker; a restart that is pending already is a success too."""
    params = request.path_params
    await request.app.state.context.admin.restart_worker(params["group"], params["worker"])
    return Response(status_code=202)


async def drain_worker(request: Request) -> Response:
    """Request that other workers take a worker's units and that it leaves; a pending drain is a success too."""
    params = request.path_params
    await request.app.state.context.admin.drain_worker(params["group"], params["worker"])
    return Response(status_code=202)


OPERATIONS: Final = (
    Operation("GET", "/groups", list_groups, response=listing(ANY)),
    Operation("GET", "/groups/{group}", describe_group, response=ANY),
    Operation("DELETE", "/groups/{group}", delete_group, statuses=(204,)),
    Operation("GET", "/groups/{group}/rebalances", list_rebalances, response=listing(ANY)),
    Operation("POST", "/groups/{group}/workers/{worker}/restart", restart_worker, statuses=(202,)),
    Operation("POST", "/groups/{group}/workers/{worker}/drain", drain_worker, statuses=(202,)),
)
