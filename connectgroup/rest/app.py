"""The REST API as an ASGI application: routes and error handlers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp

from ..client.admin import Admin
from ..config.secrets import Secrets
from ..errors import ConnectGroupError, GroupIdNotFound, TransportError
from ..loggers import Loggers
from ..protocol.units import printable, shown
from ..transport.audit import AuditLog
from ..transport.group_access import Authorization
from ..transport.quotas import RequestQuotas
from .errors import error_response, status_of
from .events import Feeds
from .guard import Guard
from .operations import Operation, document
from .routes import connectors, groups, loggers, page, plugins, root

VERSION: Final = "4.3.1-connectgroup"
"""The version of Kafka Connect's REST API that the routes follow."""

OPERATIONS: Final[tuple[Operation, ...]] = (
    *root.OPERATIONS,
    *connectors.OPERATIONS,
    *plugins.OPERATIONS,
    *loggers.OPERATIONS,
    *groups.OPERATIONS,
    *page.OPERATIONS,
)
"""Everything that is served."""

_PHRASES: Final = {404: "HTTP 404 Not Found", 405: "HTTP 405 Method Not Allowed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RestContext:
    """What the handlers use: ``request.app.state.context``.

    Attributes:
        admin: sends the requests to the coordinator.
        feeds: the streams of events; closed by the caller.
        group_id: the group that ``/connectors`` shows.
        descriptions: the bodies of descriptions of groups.
        version: the version in ``GET /``.
        commit: the commit there: the version of connectgroup.
        loggers: the loggers of this process.
        connector_classes: the classes that may be used; empty: all that are installed.
        allowed_paths: the files that connectors may use; ``None``: the server does not know, and opens none itself.
        secrets: the secrets that connectors may refer to; ``None``: the server does not know, and never reads one.
        access: the rules of access; without any, each user may do everything.
        audit: gets a line for each change and each denied request; ``None``: there are no lines.
        quotas: requests per second of users; counts denied requests, too.
        may_create_group: whether the first connector creates the group although the coordinator serves others.
    """

    admin: Admin
    feeds: Feeds
    group_id: str
    descriptions: groups.Descriptions = field(default_factory=groups.Descriptions)
    version: str = VERSION
    commit: str = ""
    loggers: Loggers = field(default_factory=Loggers)
    connector_classes: tuple[str, ...] = ()
    allowed_paths: tuple[Path, ...] | None = None
    secrets: Secrets | None = None
    may_create_group: bool = False
    access: Authorization = field(default_factory=Authorization)
    audit: AuditLog | None = None
    quotas: RequestQuotas = field(default_factory=RequestQuotas)


def create_app(
    context: RestContext | None,
    *,
    allowed_hosts: Collection[str] | None = None,
    users: Mapping[str, str] | None = None,
    readers: Collection[str] = (),
    requests_per_second: int | None = None,
) -> ASGIApp:
    """Create the application.

    Args:
        context: see ``RestContext``; ``None``: serve only ``/metrics``.
        allowed_hosts, users, readers, requests_per_second: see ``Guard``.
    """
    operations = (root.METRICS,) if context is None else OPERATIONS
    app = Starlette(
        routes=[operation.route() for operation in operations],
        exception_handlers={
            ConnectGroupError: cast("Callable[[Request, Exception], Response]", _on_error),
            HTTPException: cast("Callable[[Request, Exception], Response]", _on_http_error),
        },
    )
    app.router.redirect_slashes = False
    app.state.context = context
    app.state.scrapes = root.Scrapes()
    app.state.document = document(operations, VERSION if context is None else context.version)
    return Guard(
        app,
        allowed_hosts=allowed_hosts,
        users=users,
        readers=readers,
        public_paths=page.PUBLIC_PATHS if context is not None else (),
        requests_per_second=requests_per_second,
        audit=context.audit if context is not None else None,
        quotas=context.quotas if context is not None else None,
    )


async def _on_error(request: Request, error: ConnectGroupError) -> Response:
    if isinstance(error, GroupIdNotFound) and "group" in request.path_params:
        names = [group.group_id for group in await request.state.context.admin.list_groups()]
        name = request.path_params["group"]
        if name not in names:  # it may have been created meanwhile
            return error_response(404, f"no such group {printable(name)!r}; groups here: {shown(names)}")
    status = status_of(error)
    message = str(error) if status != 500 or not isinstance(error, TransportError) else printable(error, limit=400)
    # The field of our request to the coordinator, which a client of REST does not know.
    return error_response(status, message.replace("Changes.Connector: ", "name: "))


def _on_http_error(request: Request, error: HTTPException) -> Response:
    headers = error.headers
    if error.status_code == 405:  # each route has one method: Starlette names those of the first route only
        matching = (route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE)
        methods = {method for route in matching for method in route.methods}
        if request.method == "OPTIONS":
            return Response(headers={"Allow": ", ".join(sorted({*methods, "OPTIONS"}))})
        headers = {"Allow": ", ".join(sorted(methods))}
    return error_response(error.status_code, _PHRASES.get(error.status_code, error.detail), headers)
