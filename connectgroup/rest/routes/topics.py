"""``/connectors/{name}/topics``: the Kafka topics of a connector (KIP-558).

Kafka Connect records the topics that a connector has used. Here they are those that its configuration names, which
always describe the connector that runs now. So there is nothing to reset, and a reset succeeds.
"""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ...client import offsets
from ..operations import TEXT, Operation, listing, mapping, shape
from .plugins import off_loop


async def get_topics(request: Request) -> Response:
    """The topics."""
    context, name = request.app.state.context, request.path_params["name"]
    topics = await offsets.topics(context.admin, context.group_id, name, off_loop)
    return JSONResponse({name: {"topics": topics}})


async def reset_topics(request: Request) -> Response:
    """Check that the connector exists; nothing is recorded."""
    context, name = request.app.state.context, request.path_params["name"]
    await offsets.require_connector(context.admin, context.group_id, name)
    return Response(status_code=202)


OPERATIONS: Final = (
    Operation("GET", "/connectors/{name}/topics", get_topics, response=mapping(shape(topics=listing(TEXT)))),
    Operation("PUT", "/connectors/{name}/topics/reset", reset_topics, statuses=(202,)),
)
