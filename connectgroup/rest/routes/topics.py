"""``/connectors/{name}/topics``: the Kafka topics that a connector uses (KIP-558).

The tasks report the topics that they read and write; the coordinator keeps them in memory. Kafka Connect stores them.
"""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ..access import ALTER_CONNECTOR, DESCRIBE_CONNECTOR
from ..operations import TEXT, Operation, listing, mapping, shape
from .connectors import described_connector, missing_connector


async def get_topics(request: Request) -> Response:
    """The topics that the tasks have used since the coordinator started, or since they were reset."""
    connector = await described_connector(request)
    return JSONResponse({connector.connector: {"topics": list(connector.topics)}})


async def reset_topics(request: Request) -> Response:
    """Forget them."""
    context = request.state.context
    with missing_connector(request):
        await context.admin.reset_topics(context.group_id, request.path_params["name"])
    return Response(status_code=202)


OPERATIONS: Final = (
    Operation(
        "GET",
        "/connectors/{name}/topics",
        get_topics,
        DESCRIBE_CONNECTOR,
        response=mapping(shape(topics=listing(TEXT))),
    ),
    Operation("PUT", "/connectors/{name}/topics/reset", reset_topics, ALTER_CONNECTOR, statuses=(202,)),
)
