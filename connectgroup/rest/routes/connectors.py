"""``/connectors``: create, describe, change, pause, resume, stop, restart and delete connectors; their tasks.

Also their offsets (KIP-875), and the Kafka topics that a connector uses (KIP-558). The tasks report those that they
read and write; the coordinator keeps them in memory. Kafka Connect stores them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ...client import offsets
from ...config import connector_validation
from ...config.connector_offsets import changes_from, offsets_as_json
from ...connector import PartitionOffset
from ...errors import (
    ConfigError,
    ConnectGroupError,
    ConnectorAlreadyExists,
    ConnectorNotFound,
    GroupAuthorizationFailed,
    GroupIdNotFound,
)
from ...protocol.messages.common import config_of
from ...protocol.messages.describe import DescribedConnector, DescribedUnit
from ...protocol.records.connect import GROUP_TYPE, TargetState
from ...protocol.units import CONNECTOR, name_violation, printable, shown
from ...transport.access_rules import AccessOperation
from ...transport.audit import Every, masked_settings
from .. import views
from ..access import (
    ALTER_CONNECTOR,
    ALTER_CONNECTOR_IN_BODY,
    DELETE_CONNECTOR,
    DESCRIBE_CONNECTOR,
    LISTED,
    VALIDATE_ONLY,
    require,
)
from ..bodies import config_from, flag, json_response, patch_from, read_object
from ..errors import RestError
from ..operations import ANY, FLAG, NUMBER, TEXT, Operation, listing, mapping, shape
from .plugins import check_class, off_loop


async def list_connectors(request: Request) -> Response:
    """Names, sorted; with ``expand=status`` and ``expand=info`` an object with these of each connector."""
    expanded = [word.lower() for word in request.query_params.getlist("expand")]
    context = request.state.context
    try:
        connectors = (await context.admin.describe(context.group_id, connectors_only=True)).connectors
    except GroupIdNotFound:
        await _check_group(request)
        connectors = ()  # the group is created with its first connector or worker
    except GroupAuthorizationFailed:
        connectors = ()
    if not expanded:
        return JSONResponse([connector.connector for connector in connectors])
    return await json_response(sum(len(each.units) for each in connectors), views.expanded, connectors, expanded)


async def create_connector(request: Request) -> Response:
    """Create a connector; ``validateOnly`` checks it, and changes nothing."""
    body = await read_object(request)
    unknown = sorted(body.keys() - {"name", "config", "initial_state"})
    if unknown:
        raise RestError(400, f"body: got the field {printable(unknown[0])!r}; allowed: name, config, initial_state")
    name, settings = body.get("name"), body.get("config")
    if name is None and isinstance(settings, dict):
        name = settings.get("name")
    if isinstance(name, str):
        name = name.strip()  # as Kafka Connect does, for this route only
    if not isinstance(name, str) or not name:
        got = printable(name) if name else "nothing"
        raise RestError(400, f"name: got {got}; allowed: the name of the connector, as a string")
    require(request, AccessOperation.ALTER, name)
    await _note_masked(request, name)
    config = await _checked(request, name, config_from(settings, "config"))
    context, state = request.state.context, _state(body.get("initial_state"))
    if flag(request, VALIDATE_ONLY):
        return Response(status_code=204)
    await _check_group(request)
    try:
        await context.admin.add_connector(context.group_id, name, config, state=state)
    except ConnectorAlreadyExists as error:
        raise ConnectorAlreadyExists(f"Connector {printable(name)} already exists") from error
    info = views.connector_info(await context.admin.describe_connector(context.group_id, name))
    return JSONResponse(info, 201, {"Location": f"/connectors/{quote(name, safe='')}"})


async def get_connector(request: Request) -> Response:
    """The configuration and the tasks of a connector."""
    connector = await described_connector(request)
    return await json_response(len(connector.units), views.connector_info, connector)


async def delete_connector(request: Request) -> Response:
    """Delete a connector and its tasks."""
    context = request.state.context
    with missing_connector(request):
        await context.admin.delete_connector(context.group_id, request.path_params["name"])
    return Response(status_code=204)


async def get_config(request: Request) -> Response:
    """The configuration of a connector, credentials masked."""
    return JSONResponse(views.connector_config(await described_connector(request)))


async def put_config(request: Request) -> Response:
    """Create the connector, or replace its configuration."""
    name, context = request.path_params["name"], request.state.context
    await _note_masked(request, name)
    config = await _checked(request, name, config_from(await read_object(request), "body"))
    await _check_group(request)
    result = await context.admin.put_connector(context.group_id, name, config)
    info = views.connector_info(await described_connector(request))
    headers = {"Location": f"/connectors/{quote(name, safe='')}"} if result.created else None
    return JSONResponse(info, 201 if result.created else 200, headers)


async def patch_config(request: Request) -> Response:
    """Change some settings; null removes a setting (KIP-477); ``validateOnly`` checks them, and changes nothing."""
    name, context = request.path_params["name"], request.state.context
    await _note_masked(request, name)
    patch = patch_from(await read_object(request), "body")
    # Credentials are masked in this copy. They are checked by the connector when it starts, as in every case.
    current: dict[str, str | None] = {**config_of((await described_connector(request)).config)}
    await _checked(request, name, {key: value for key, value in {**current, **patch}.items() if value is not None})
    if flag(request, VALIDATE_ONLY):
        return Response(status_code=204)
    await context.admin.patch_connector(context.group_id, name, patch)  # the coordinator applies the patch
    return JSONResponse(views.connector_info(await described_connector(request)))


async def get_status(request: Request) -> Response:
    """The state of a connector and of its tasks, each with its worker."""
    connector = await described_connector(request, missing=f"No status found for connector {_shown(request)}")
    return await json_response(len(connector.units), views.connector_status, connector)


async def list_tasks(request: Request) -> Response:
    """The configurations of the tasks of a connector, credentials masked."""
    connector = await described_connector(request, task_configs=True)
    return await json_response(len(connector.units), views.tasks_info, connector)


async def get_task_status(request: Request) -> Response:
    """The state of one task."""
    missing = f"No status found for task {_shown(request)}-{_shown(request, 'task')}"
    connector = await described_connector(request, missing=missing)
    return JSONResponse(views.task_status(connector, _task(request, connector, missing)))


async def pause(request: Request) -> Response:
    """Stop the tasks of a connector; the connector itself keeps running."""
    return await _set_state(request, TargetState.PAUSED, 202)


async def resume(request: Request) -> Response:
    """Run a paused or stopped connector."""
    return await _set_state(request, TargetState.RUNNING, 202)


async def stop(request: Request) -> Response:
    """Stop a connector and its tasks."""
    return await _set_state(request, TargetState.STOPPED, 204)


async def restart_connector(request: Request) -> Response:
    """Restart the connector; ``includeTasks``: its tasks too; ``onlyFailed``: only what has failed (KIP-745)."""
    include_tasks, only_failed = flag(request, "includeTasks"), flag(request, "onlyFailed")
    name = (await described_connector(request, missing=f"Unknown connector: {_shown(request)}")).connector
    context = request.state.context
    restarted = await context.admin.restart_connector(
        context.group_id, name, include_tasks=include_tasks, only_failed=only_failed
    )
    if not include_tasks and not only_failed:
        return Response(status_code=204)
    status = views.connector_status(await described_connector(request))
    for unit in (status["connector"], *status["tasks"]):
        if unit.get("id", CONNECTOR) in restarted:
            unit["state"] = "RESTARTING"
    return JSONResponse(status, 202)


async def restart_task(request: Request) -> Response:
    """Restart one task."""
    context = request.state.context
    connector = await described_connector(request, missing=f"Unknown connector: {_shown(request)}")
    unit = _task(request, connector, f"Unknown task: {_shown(request)}-{_shown(request, 'task')}")
    await context.admin.restart_task(context.group_id, request.path_params["name"], unit.task)
    return Response(status_code=204)


# ----------------------------------------------------------------------------------------------


def _shown(request: Request, parameter: str = "name") -> str:
    """A parameter of the path, for messages."""
    return printable(request.path_params[parameter])


@contextmanager
def missing_connector(request: Request, message: str = "") -> Iterator[None]:
    """Say in Kafka Connect's words that the connector does not exist; they differ from route to route."""
    try:
        yield
    except (ConnectorNotFound, GroupIdNotFound) as error:
        raise ConnectorNotFound(message or f"Connector {_shown(request)} not found") from error


async def described_connector(request: Request, *, task_configs: bool = False, missing: str = "") -> DescribedConnector:
    """The connector that the path names.

    Args:
        task_configs: whether to describe the configurations of its tasks.
        missing: the message if there is no such connector; a text that names it by default.

    Raises:
        ConnectorNotFound: there is none.
    """
    name, context = request.path_params["name"], request.state.context
    with missing_connector(request, missing):
        described: DescribedConnector = await context.admin.describe_connector(
            context.group_id, name, task_configs=task_configs
        )
    return described


async def _note_masked(request: Request, name: str) -> None:
    """Note for the audit log which settings of a connector are credentials, as its class has told; all, if that is
    not known because the coordinator does not say."""
    context = request.app.state.context
    if context.audit is not None:
        try:
            described = await context.admin.describe_connector(context.group_id, name)
            request.state.masked = masked_settings(config_of(described.config))
        except (ConnectorNotFound, GroupIdNotFound):
            pass
        except ConnectGroupError:
            request.state.masked = Every()


async def _check_group(request: Request) -> None:
    """Refuse to show or create a second worker group, unless the server may: its name is rather a typing error.

    Raises:
        GroupIdNotFound: there are other worker groups, and this server's is not among them.
    """
    context = request.state.context
    if context.may_create_group:
        return
    try:
        await context.admin.describe(context.group_id, connectors=(), connectors_only=True)
    except GroupIdNotFound as error:
        names = [group.group_id for group in await context.admin.list_groups() if group.group_type == GROUP_TYPE]
        # Another request may have created the group meanwhile.
        if names and context.group_id not in names:
            raise GroupIdNotFound(
                f"no such group {printable(context.group_id)!r}; groups here: {shown(names)}; a worker that joins"
                " creates it, and so does a REST server with new_group"
            ) from error


def _task(request: Request, connector: DescribedConnector, missing: str) -> DescribedUnit:
    """The task that the path names.

    Raises:
        RestError: 404: the connector has no such task.
    """
    text = request.path_params["task"]
    for unit in views.tasks_of(connector):
        if str(unit.task) == text:
            return unit
    raise RestError(404, missing)


async def _set_state(request: Request, state: TargetState, status: int) -> Response:
    context = request.state.context
    with missing_connector(request, f"Unknown connector {_shown(request)}"):
        await context.admin.set_state(context.group_id, request.path_params["name"], state)
    return Response(status_code=status)


def _state(value: object) -> TargetState:
    """The initial state of a connector (KIP-980), in any case; RUNNING by default.

    Raises:
        RestError: 400: another value.
    """
    if value is None:
        return TargetState.RUNNING
    names = [state.name for state in TargetState]
    if not isinstance(value, str) or value.upper() not in names:
        raise RestError(400, f"initial_state: got {printable(value)!r}; allowed: {', '.join(names)}")
    return TargetState[value.upper()]


async def _checked(request: Request, name: str, config: Mapping[str, str]) -> dict[str, str]:
    """The configuration to write, which includes the name, as in Kafka Connect.

    Raises:
        ConfigError: the name is not allowed.
        RestError: 400: the name differs from that in the configuration, or the configuration is invalid.
    """
    if config.get("name", name) != name:
        raise RestError(
            400,
            f"Connector name configuration ({printable(config['name'])}) doesn't match connector name in the URL "
            f"({printable(name)})",
        )
    if allowed := name_violation(name):
        raise ConfigError("name", name, allowed)
    check_class(request, config)
    complete = {**config, "name": name}
    context = request.state.context
    paths, secrets = context.allowed_paths, context.secrets
    errors = (await off_loop(lambda: connector_validation.validate(complete, paths, secrets=secrets))).errors
    if errors:
        raise RestError(
            400,
            f"Connector configuration is invalid and contains the following {len(errors)} error(s):\n"
            + "\n".join(errors)
            + "\nYou can also find the above list of errors at the endpoint "
            "`/connector-plugins/{connectorType}/config/validate`",
        )
    return complete


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


CONFIG: Final = mapping({"type": ["string", "number", "boolean"]})
PATCH: Final = mapping({"type": ["string", "number", "boolean", "null"]})
NEW_CONNECTOR: Final = {
    "type": "object",
    "properties": {
        "name": TEXT,
        "config": CONFIG,
        "initial_state": {"enum": ["RUNNING", "PAUSED", "STOPPED", None]},
    },
    "required": ["config"],
    "additionalProperties": False,
}
INFO: Final = shape(name=TEXT, config=mapping(TEXT), tasks=listing(shape(connector=TEXT, task=NUMBER)), type=TEXT)
UNIT: Final = shape(id=NUMBER, state=TEXT, worker_id=TEXT)
STATUS: Final = shape(name=TEXT, connector=shape(state=TEXT, worker_id=TEXT), tasks=listing(UNIT), type=TEXT)


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


OFFSETS: Final = {
    **shape(offsets=listing(shape(partition=ANY, offset={"type": ["object", "null"]}))),
    "additionalProperties": False,
}
MESSAGE: Final = shape(message=TEXT)
OPERATIONS: Final = (
    Operation(
        "GET",
        "/connectors",
        list_connectors,
        LISTED,
        query={"expand": listing({"enum": ["status", "info"]})},
        response={"type": ["array", "object"]},
    ),
    Operation(
        "POST",
        "/connectors",
        create_connector,
        ALTER_CONNECTOR_IN_BODY,
        query={VALIDATE_ONLY: FLAG},
        body=NEW_CONNECTOR,
        response=INFO,
        statuses=(201, 204),
    ),
    Operation("GET", "/connectors/{name}", get_connector, DESCRIBE_CONNECTOR, response=INFO),
    Operation("DELETE", "/connectors/{name}", delete_connector, DELETE_CONNECTOR, statuses=(204,)),
    Operation("GET", "/connectors/{name}/config", get_config, DESCRIBE_CONNECTOR, response=mapping(TEXT)),
    Operation(
        "PUT", "/connectors/{name}/config", put_config, ALTER_CONNECTOR, body=CONFIG, response=INFO, statuses=(200, 201)
    ),
    Operation(
        "PATCH",
        "/connectors/{name}/config",
        patch_config,
        ALTER_CONNECTOR,
        query={VALIDATE_ONLY: FLAG},
        body=PATCH,
        response=INFO,
        statuses=(200, 204),
    ),
    Operation("GET", "/connectors/{name}/status", get_status, DESCRIBE_CONNECTOR, response=STATUS),
    Operation(
        "POST",
        "/connectors/{name}/restart",
        restart_connector,
        ALTER_CONNECTOR,
        query={"includeTasks": FLAG, "onlyFailed": FLAG},
        response=STATUS,
        statuses=(202, 204),
    ),
    Operation("PUT", "/connectors/{name}/pause", pause, ALTER_CONNECTOR, statuses=(202,)),
    Operation("PUT", "/connectors/{name}/resume", resume, ALTER_CONNECTOR, statuses=(202,)),
    Operation("PUT", "/connectors/{name}/stop", stop, ALTER_CONNECTOR, statuses=(204,)),
    Operation("GET", "/connectors/{name}/tasks", list_tasks, DESCRIBE_CONNECTOR, response=listing(ANY)),
    Operation("GET", "/connectors/{name}/tasks/{task}/status", get_task_status, DESCRIBE_CONNECTOR, response=UNIT),
    Operation("POST", "/connectors/{name}/tasks/{task}/restart", restart_task, ALTER_CONNECTOR, statuses=(204,)),
    Operation(
        "GET",
        "/connectors/{name}/topics",
        get_topics,
        DESCRIBE_CONNECTOR,
        response=mapping(shape(topics=listing(TEXT))),
    ),
    Operation("PUT", "/connectors/{name}/topics/reset", reset_topics, ALTER_CONNECTOR, statuses=(202,)),
    Operation("GET", "/connectors/{name}/offsets", get_offsets, DESCRIBE_CONNECTOR, response=OFFSETS),
    Operation("PATCH", "/connectors/{name}/offsets", patch_offsets, ALTER_CONNECTOR, body=OFFSETS, response=MESSAGE),
    Operation("DELETE", "/connectors/{name}/offsets", delete_offsets, ALTER_CONNECTOR, response=MESSAGE),
)
