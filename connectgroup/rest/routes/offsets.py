"""``/connectors/{name}/offsets``: show, alter and reset the offsets of a connector (KIP-875)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ...client import offsets
from ...config.connector_offsets import changes_from, offsets_as_json
from ...connector import PartitionOffset
from ..access import ALTER_CONNECTOR, DESCRIBE_CONNECTOR
from ..bodies import read_object
from ..operations import ANY, TEXT, Operation, listing, shape
from .plugins import off_loop


async def get_offsets(request: Request) -> Response:
    """The committed offsets."""
    context, name = request.app.state.context, request.path_params["name"]
    found = await offsets.offsets(context.admin, context.group_id, name, off_loop, permissions=_permissions(request))
    return JSONResponse(offsets_as_json(found))


async def patch_offsets(request: Request) -> Response:
    """Change the offsets of a stopped connector, all or none; a null offset forgets the partition."""
    changes = changes_from(await read_object(request))
    return await _alter(request, changes, "altered")


async def delete_offsets(request: Request) -> Response:
    """Forget all offsets of a stopped connector."""
    return await _alter(request, None, "reset")


async def _alter(request: Request, changes: Sequence[PartitionOffset] | None, verb: str) -> Response:
    context, name = request.app.state.context, request.path_params["name"]
    permissions = _permissions(request)
    done = await offsets.alter(context.admin, context.group_id, name, changes, off_loop, permissions=permissions)
    return JSONResponse({"message": offsets.outcome(verb, is_complete=done)})


def _permissions(request: Request) -> offsets.Permissions:
    """This process opens the sink's files itself, for its clients: none without a list."""
    return offsets.Permissions(paths=request.app.state.context.allowed_paths or ())


OFFSETS: Final = {
    **shape(offsets=listing(shape(partition=ANY, offset={"type": ["object", "null"]}))),
    "additionalProperties": False,
}
MESSAGE: Final = shape(message=TEXT)
OPERATIONS: Final = (
    Operation("GET", "/connectors/{name}/offsets", get_offsets, DESCRIBE_CONNECTOR, response=OFFSETS),
    Operation("PATCH", "/connectors/{name}/offsets", patch_offsets, ALTER_CONNECTOR, body=OFFSETS, response=MESSAGE),
    Operation("DELETE", "/connectors/{name}/offsets", delete_offsets, ALTER_CONNECTOR, response=MESSAGE),
)
