"""``/connector-plugins``: connector classes, their settings (KIP-769), and validation of a configuration."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ... import threads
from ...config import connector_validation
from ...config.connector_offsets import Permissions
from ...dataplane.java_plugins import java_class_name
from ...errors import ConfigError, ConnectGroupError
from ...plugins import available, connector_class_name
from ...protocol.units import printable
from ..access import ALTER_ANY_CONNECTOR, NOTHING
from ..bodies import NULL_VALUE, flag, patch_from, read_object
from ..errors import RestError
from ..operations import ANY, FLAG, Operation, listing, mapping

T = TypeVar("T")

PLUGIN_TIMEOUT_S: Final = 30.0
"""Time for the code of a plug-in: its import, and the check of a configuration."""


LOOK_TIMEOUT_S: Final = 2.0
"""Time for the coordinator to say which paths the workers allow; without an answer, none is an error."""


async def off_loop(function: Callable[[], T]) -> T:
    """Call code of a plug-in in a thread: it may block.

    Raises:
        RestError: 500: it did not return in time.
    """
    try:
        async with asyncio.timeout(PLUGIN_TIMEOUT_S):
            return await threads.off_loop("a plug-in for REST", function)
    except TimeoutError:
        raise RestError(500, f"the plug-in did not respond within {PLUGIN_TIMEOUT_S:g} s") from None


def check_class(request: Request, config: Mapping[str, str], status: int = 400) -> None:
    """Reject a connector class that this server does not allow, before anything of it is loaded.

    Raises:
        RestError: the class is not in the allow-list.
    """
    allowed, name = request.state.context.connector_classes, config.get("connector.class")
    if allowed and name is not None and connector_class_name(name) not in allowed:
        raise RestError(status, f"connector.class: got {printable(name)!r}; allowed: {', '.join(allowed)}")


def _classes(request: Request) -> list[dict[str, str]]:
    allowed = request.state.context.connector_classes
    return [each for each in connector_validation.list_plugins("connectors") if not allowed or each["class"] in allowed]


def _java_classes(request: Request, *, connectors_only: bool) -> list[dict[str, str]]:
    """The classes on the plug-in path of this server: the jars are opened."""
    allowed = request.app.state.context.connector_classes
    listed = connector_validation.list_java_plugins("source", "sink")
    if not connectors_only:
        listed += connector_validation.list_java_plugins("transformation", "predicate", "converter", "header_converter")
    return [each for each in listed if not allowed or each["class"] in allowed]


def _full_name(name: str) -> str:
    """The name of a connector class as it is listed, for one of its simple names; of Java's, jars are opened."""
    found = connector_class_name(name)
    return found if found in available("connectors") else java_class_name(found)


async def list_plugins(request: Request) -> Response:
    """The installed connector classes, sources and sinks; with ``connectorsOnly=false``, transforms and predicates.
    Last those of Kafka Connect's Java plug-ins on the plug-in path.

    Sources and sinks are those of the class ``pipeline``, whose settings ``source`` and ``sink`` name them.
    """
    connectors_only = flag(request, "connectorsOnly", default=True)
    listed = _classes(request)
    if not request.state.context.connector_classes:
        listed += connector_validation.list_plugins("sources", "sinks")
    if not connectors_only:
        listed += connector_validation.list_plugins("transforms", "predicates")
    listed += await off_loop(lambda: _java_classes(request, connectors_only=connectors_only))
    return JSONResponse(listed)


async def plugin_config(request: Request) -> Response:
    """The definitions of all settings of a connector class, a source, a sink, a transform or a predicate."""
    name = request.path_params["plugin"]
    if name not in {each for kind in ("sources", "sinks", "transforms", "predicates") for each in available(kind)}:
        check_class(request, {"connector.class": name}, status=404)
    try:
        definitions = await off_loop(lambda: connector_validation.plugin_definitions(name))
    except ConfigError as error:
        raise RestError(404, f"Unknown plugin {printable(name)}. {error}") from error
    return JSONResponse([definition.as_json() for definition in definitions])


async def validate_config(request: Request) -> Response:
    """All errors of a configuration, by setting. Tries to reach the source and the sink from here, without secrets and
    with the allowed paths only. A server without a list compares paths with those that the workers allow, if all run on
    its machine.
    """
    name = request.path_params["plugin"]
    given = patch_from(await read_object(request), "body")
    config = {setting: text for setting, text in given.items() if text is not None}
    named = config.setdefault("connector.class", name)
    wanted, full_name = await off_loop(lambda: (_full_name(named), _full_name(name)))
    if wanted != full_name:
        raise RestError(
            400, f"Included connector type {printable(named)} does not match request type {printable(name)}"
        )
    ends = [end for end in ("source", "sink") if name in available(f"{end}s")]  # type: ignore[arg-type]
    if ends and name not in available("connectors"):
        raise RestError(
            400,
            f"{printable(name)} is no connector class but a {' and a '.join(ends)}; allowed: "
            f"/connector-plugins/pipeline/config/validate with {' or '.join(f'{end}={name}' for end in ends)}",
        )
    listed = _classes(request)
    if full_name not in available("connectors"):
        listed += await off_loop(lambda: _java_classes(request, connectors_only=True))
    if full_name not in {plugin["class"] for plugin in listed}:
        raise RestError(404, f"Failed to find any class that implements Connector and which name matches {name}")
    context = request.state.context
    paths, secrets = context.allowed_paths, context.secrets
    access = Permissions(paths=paths or ())
    if paths is None:
        with suppress(ConnectGroupError, TimeoutError):  # it is away, or the user may not describe the group
            async with asyncio.timeout(LOOK_TIMEOUT_S):
                lists = await context.admin.allowed_paths(context.group_id)
            if lists.keys() == {(here := socket.gethostname())}:
                paths = tuple(sorted(lists[here]))
    found = await off_loop(lambda: connector_validation.validate(config, paths, secrets=secrets, access=access))
    nulls = {setting: (NULL_VALUE,) for setting, text in given.items() if text is None}
    return JSONResponse(dataclasses.replace(found, errors_of={**found.errors_of, **nulls}).as_json())


OPERATIONS: Final = (
    Operation(
        "GET", "/connector-plugins", list_plugins, NOTHING, query={"connectorsOnly": FLAG}, response=listing(ANY)
    ),
    Operation("GET", "/connector-plugins/{plugin}/config", plugin_config, NOTHING, response=listing(ANY)),
    Operation(
        "PUT",
        "/connector-plugins/{plugin}/config/validate",
        validate_config,
        ALTER_ANY_CONNECTOR,
        body=mapping({"type": ["string", "number", "boolean", "null"]}),
        response=ANY,
    ),
)
