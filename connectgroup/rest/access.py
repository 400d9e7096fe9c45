"""What each route needs of the rules of access, and the lines of changes over REST in the audit log.

A request is checked three times over: its route names an operation (``Needs``), which is decided before the handler
runs; the requests that the handler sends to the coordinator are limited to what the user may send, as those of a
connection are (``transport.group_access``); and descriptions have only what the user may describe.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, cast

from starlette.requests import Request
from starlette.responses import Response

from ..client.admin import Admin
from ..errors import ConnectGroupError, GroupAuthorizationFailed, GroupError
from ..masking import without_secrets
from ..protocol.units import printable
from ..transport.access_rules import AccessOperation, Resource
from ..transport.audit import OK, AuditLog, masked_json, result_of
from ..transport.group_access import Authorization, AuthorizedClient, RequiredAccess
from ..transport.quotas import RequestQuotas
from .errors import status_of

Handler = Callable[[Request], Awaitable[Response]]


class Context(Protocol):
    """What the rules need of ``app.RestContext``."""

    @property
    def admin(self) -> Admin: ...

    @property
    def group_id(self) -> str: ...

    @property
    def access(self) -> Authorization: ...

    @property
    def audit(self) -> AuditLog | None: ...

    @property
    def quotas(self) -> RequestQuotas: ...


class Of(Enum):
    """The resource of an operation."""

    GROUP = "the group in the path, or else that of the server"
    CONNECTOR = "the connector in the path, of the group in the path or else that of the server"
    CONNECTOR_IN_BODY = "the connector in the body"
    ANY_CONNECTOR = "any connector of the server's group"
    LISTED = "what the response lists: it has no more than the user may describe"
    EVERYTHING = "all groups and connectors"


class Needs(NamedTuple):
    """What a route needs; ``None``: nothing."""

    operation: AccessOperation | None = None
    of: Of = Of.GROUP


NOTHING: Final = Needs()
LISTED: Final = Needs(AccessOperation.DESCRIBE, Of.LISTED)
EVERYTHING: Final = Needs(AccessOperation.DESCRIBE, Of.EVERYTHING)
DESCRIBE_GROUP: Final = Needs(AccessOperation.DESCRIBE)
ALTER_GROUP: Final = Needs(AccessOperation.ALTER)
DELETE_GROUP: Final = Needs(AccessOperation.DELETE)
DESCRIBE_CONNECTOR: Final = Needs(AccessOperation.DESCRIBE, Of.CONNECTOR)
ALTER_CONNECTOR: Final = Needs(AccessOperation.ALTER, Of.CONNECTOR)
DELETE_CONNECTOR: Final = Needs(AccessOperation.DELETE, Of.CONNECTOR)
ALTER_CONNECTOR_IN_BODY: Final = Needs(AccessOperation.ALTER, Of.CONNECTOR_IN_BODY)
ALTER_ANY_CONNECTOR: Final = Needs(AccessOperation.ALTER, Of.ANY_CONNECTOR)


async def serve(needs: Needs, handler: Handler, request: Request) -> Response:
    """Handle a request whose route needs this.

    ``request.state.context`` is the context with an admin client that is limited to the user of the request;
    ``request.app.state.context`` is the server's own.

    Raises:
        GroupAuthorizationFailed: the rules deny it.
    """
    context: Context | None = request.app.state.context
    if context is None:
        return await handler(request)
    user: str = request.scope.get("principal", "")
    request.state.context = context
    request.state.user = user
    if context.access:
        denied = partial(_on_denied, context, needs, request)
        limited = context.admin.through(lambda client: AuthorizedClient(client, context.access, user, denied))
        request.state.context = replace(cast(Any, context), admin=limited)
    if not _changes(needs, request):
        _check(context, needs, request)
        return await handler(request)
    result, message = "UNKNOWN_OUTCOME", ""
    try:
        _check(context, needs, request)
        response = await handler(request)
        result = OK if response.status_code < 400 else f"HTTP_{response.status_code}"
        return response
    except ConnectGroupError as error:
        result = result_of(error.code) if isinstance(error, GroupError) else f"HTTP_{status_of(error)}"
        message = str(error)
        raise
    finally:
        if context.audit is not None:
            _record(context.audit, context, needs, request, result, message)


def is_change(needs: Needs) -> bool:
    """Whether a request of the route is a line of the audit log: those that only check a configuration are none."""
    return needs.operation in (AccessOperation.ALTER, AccessOperation.DELETE) and needs.of is not Of.ANY_CONNECTOR


VALIDATE_ONLY: Final = "validateOnly"
"""The query parameter of a request that only checks what it would change."""


def _changes(needs: Needs, request: Request) -> bool:
    """Whether a request changes anything."""
    return is_change(needs) and request.query_params.get(VALIDATE_ONLY, "").lower() != "true"


def operations_on(context: Context, user: str, group: str, connector: str | None) -> list[str]:
    """What a user may do to a connector, or, without one, to a group: the page shows no button that would be denied."""
    resource = Resource(group, connector)
    return [
        each.value.lower()
        for each in (AccessOperation.ALTER, AccessOperation.DELETE)
        if not context.access.denial(user, RequiredAccess(each, resource))
    ]


def may_create(context: Context, user: str, group: str) -> bool:
    """Whether a user may create a connector of some name."""
    rules = context.access.rules
    return rules is None or rules.allows_some(user, AccessOperation.ALTER, group)


def require(request: Request, operation: AccessOperation, connector: str) -> None:
    """Check what the path does not name.

    Raises:
        GroupAuthorizationFailed: the rules deny it.
    """
    context: Context = request.app.state.context
    access = RequiredAccess(operation, Resource(context.group_id, connector))
    request.state.connector = connector
    if denial := context.access.denial(request.state.user, access):
        raise GroupAuthorizationFailed(denial)


def _check(context: Context, needs: Needs, request: Request) -> None:
    if needs.operation is None or not context.access:
        return
    access, user = context.access, request.state.user
    denial, rules = "", access.rules
    if needs.of in (Of.GROUP, Of.CONNECTOR):
        denial = access.denial(user, RequiredAccess(needs.operation, _resource(context, needs, request)))
    elif rules is None:
        pass
    elif needs.of is Of.ANY_CONNECTOR and not rules.allows_some(user, needs.operation, context.group_id):
        denial = "not authorized to alter any connector (access_rules of the REST server)"
    elif needs.of is Of.EVERYTHING and not rules.allows_everywhere(user, needs.operation):
        denial = "not authorized to describe all groups and connectors (access_rules of the REST server)"
    if denial:
        if not _changes(needs, request):
            _on_denied(context, needs, request, None, denial)
        raise GroupAuthorizationFailed(denial)


def _on_denied(context: Context, needs: Needs, request: Request, _: object, denial: str) -> None:
    # A list has what the user may describe: nothing is denied. A stream of events is denied again and again.
    if needs.of is Of.LISTED or getattr(request.state, "was_denied", False):
        return
    request.state.was_denied = True
    context.quotas.count_denied(request.state.user)
    if context.audit is not None and not _changes(needs, request):  # the line of a change says it
        _record(context.audit, context, needs, request, result_of(GroupAuthorizationFailed.code), denial)


def _resource(context: Context, needs: Needs, request: Request) -> Resource:
    group = request.path_params.get("group", context.group_id)
    if needs.of is Of.CONNECTOR:
        return Resource(group, request.path_params["name"])
    return Resource(group, getattr(request.state, "connector", None))


def _record(audit: AuditLog, context: Context, needs: Needs, request: Request, result: str, message: str) -> None:
    group, connector = _resource(context, needs, request)
    resource = {
        "operation": (needs.operation or AccessOperation.DESCRIBE).value,
        "group": printable(group, limit=1_000),
    }
    if connector is not None:
        resource["connector"] = printable(connector, limit=1_000)
    body: Any = getattr(request.state, "body", None)
    configs = [each for each in (body, (body or {}).get("config")) if isinstance(each, dict)]
    texts = [{key: text for key, text in each.items() if isinstance(text, str)} for each in configs]
    query = request.scope.get("query_string", b"").decode("latin-1")
    audit.record(
        principal=request.state.user,
        host=request.client.host if request.client is not None else "",
        request=f"{request.method} {request.scope['path']}{'?' if query else ''}{query}",
        resources=[resource],
        result=result,
        message=without_secrets(message, *texts),
        change=None if body is None else masked_json(body, getattr(request.state, "masked", ())),
    )
