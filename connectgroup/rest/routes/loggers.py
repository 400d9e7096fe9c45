"""``/admin/loggers``: the log levels of this process, or of all workers of the group (KIP-495, KIP-976)."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ...loggers import LEVELS
from ...protocol.units import printable
from ..access import ALTER_GROUP, DESCRIBE_GROUP
from ..bodies import read_object
from ..errors import RestError
from ..operations import TEXT, Operation, listing, mapping, shape

LEVEL = shape(level=TEXT, last_modified={"type": ["integer", "null"]})


async def list_loggers(request: Request) -> Response:
    """The loggers that have a level of their own."""
    return JSONResponse(request.state.context.loggers.listed())


async def get_logger(request: Request) -> Response:
    """The level of one logger."""
    name = request.path_params["logger"]
    shown = request.state.context.loggers.shown(name)
    if shown is None:
        raise RestError(404, f"Logger {printable(name)} not found.")
    return JSONResponse(shown)


async def put_logger(request: Request) -> Response:
    """Set the level of a logger, also a new one, and of all below it, here or (scope ``cluster``) on every worker."""
    name, body = request.path_params["logger"], await read_object(request)
    scope = request.query_params.get("scope", "worker").lower()
    if scope not in ("worker", "cluster"):
        allowed = "worker (the process that serves this request), cluster (this process and every worker)"
        raise RestError(400, f"scope: got {printable(scope)!r}; allowed: {allowed}")
    level = body.get("level")
    if level is None:
        raise RestError(400, "Desired 'level' parameter was not specified in request.")
    if not isinstance(level, str) or level.upper() not in LEVELS:
        # Kafka Connect's status.
        raise RestError(404, f"invalid log level '{printable(level)}'.")
    context = request.state.context
    try:
        names = context.loggers.set_level(name, LEVELS[level.upper()], create=True)
    except ValueError as error:
        raise RestError(400, f"logger: got {printable(name)!r}; {error}") from error
    if scope == "cluster":
        await context.admin.set_logger_level(context.group_id, name, level.upper())
    return Response(status_code=204) if scope == "cluster" else JSONResponse(names)


OPERATIONS: Final = (
    Operation("GET", "/admin/loggers", list_loggers, DESCRIBE_GROUP, response=mapping(LEVEL)),
    Operation("GET", "/admin/loggers/{logger}", get_logger, DESCRIBE_GROUP, response=LEVEL),
    Operation(
        "PUT",
        "/admin/loggers/{logger}",
        put_logger,
        ALTER_GROUP,
        query={"scope": {"enum": ["worker", "cluster"]}},
        statuses=(200, 204),
        body=shape(level={"enum": [*LEVELS]}),
        response=listing(TEXT),
    ),
)
