"""``/groups``: worker groups, their rebalances and workers; ``/coordinators``. Not in Kafka Connect."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from ...analysis.explain import downtimes_of
from ...client.admin import Admin
from ...protocol.units import printable
from .. import views
from ..access import (
    ALTER_GROUP,
    DELETE_GROUP,
    DESCRIBE_CONNECTOR,
    DESCRIBE_GROUP,
    LISTED,
    NOTHING,
    may_create,
    operations_on,
)
from ..bodies import encoded, json_response
from ..errors import RestError
from ..events import MAX_TURN_S
from ..operations import ANY, NUMBER, TEXT, Operation, listing, mapping

logger = logging.getLogger(__name__)

MAX_POINTS: Final = 240
POINTS: Final = {**NUMBER, "minimum": 1, "maximum": MAX_POINTS}
POINTS_A_PART: Final = 10
"""So many intervals of a history take as long as a unit."""

SEND_TIMEOUT_S: Final = 30.0
"""A stream whose client reads nothing for this long ends."""


async def list_coordinators(request: Request) -> Response:
    """The coordinators that share the log: which one serves since when, and the last fail-over."""
    admin = request.state.context.admin
    return JSONResponse(views.coordinators_description(await admin.describe_coordinators(), admin.address))


async def list_groups(request: Request) -> Response:
    """All groups."""
    groups = await request.state.context.admin.list_groups()
    return JSONResponse([views.group_summary(group) for group in groups])


async def describe_group(request: Request) -> Response:
    """Epochs, workers, delayed units, connectors and the state of each unit."""
    context = request.state.context
    user = request.state.user if context.access else ""
    body = await context.descriptions.of(context.admin, request.path_params["group"], user)
    return Response(body, media_type="application/json")


class Descriptions:
    """The bodies of ``GET /groups/{group}``, made for many clients at a time.

    One for 5,000 tasks takes 100 ms. Clients that ask for a group while its body is made share the next one: that
    begins after their requests, so each client reads what it has written.
    """

    def __init__(self) -> None:
        # By group and user: the body that is being made, and the one that has not begun. ``_make`` changes both.
        self._begun: dict[tuple[str, str], asyncio.Task[bytes]] = {}
        self._next: dict[tuple[str, str], asyncio.Task[bytes]] = {}

    async def of(self, admin: Admin, group_id: str, user: str) -> bytes:
        """The body for a request that has arrived now.

        Args:
            admin: describes the group for this user.
            user: empty: the body is the same for all.

        Raises:
            ConnectGroupError: the group cannot be described.
        """
        key = group_id, user
        task = self._next.get(key)
        if task is None:
            task = self._next[key] = asyncio.create_task(self._make(admin, key), name=f"describe {printable(group_id)}")
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # all its clients may have gone
        return await asyncio.shield(task)

    async def _make(self, admin: Admin, key: tuple[str, str]) -> bytes:
        if (begun := self._begun.get(key)) is not None:
            await asyncio.wait([begun], timeout=MAX_TURN_S)
        task = self._begun[key] = self._next.pop(key)
        try:
            group = await admin.describe(key[0])
            return await encoded(sum(len(each.units) for each in group.connectors), views.group_description, group)
        finally:
            if self._begun.get(key) is task:
                del self._begun[key]


async def describe_connector(request: Request) -> Response:
    """All of one connector: its tasks, the failed ones first; its last hour, its last events, its configuration."""
    group, name = request.path_params["group"], request.path_params["name"]
    admin = request.state.context.admin
    connector = await admin.describe_connector(group, name, history_points=MAX_POINTS, events=True)
    downtimes = await downtimes_of(admin, group, [connector])
    return await json_response(len(connector.units), views.connector_description, connector, downtimes)


async def history(request: Request) -> Response:
    """The last hour of each connector: rows, lag and errors of each interval; `points`: at most so many intervals."""
    text = request.query_params.get("points", str(MAX_POINTS))
    points = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0
    if not 1 <= points <= MAX_POINTS:
        raise RestError(400, f"points: got {printable(text)!r}; allowed: 1 to {MAX_POINTS}")
    admin = request.state.context.admin
    group = await admin.describe(request.path_params["group"], connectors_only=True, history_points=points)
    return await json_response(len(group.connectors) * points // POINTS_A_PART, views.histories, group)


async def list_rebalances(request: Request) -> Response:
    """The last 100 rebalances: causes, moves, downtime."""
    group = await request.state.context.admin.describe(request.path_params["group"], connectors=())
    return await json_response(sum(len(each.moves) for each in group.rebalances), views.rebalances, group)


class EventStream(StreamingResponse):
    """Server-sent events. Ends when the client disconnects or stops reading."""

    def __init__(self, events: AsyncGenerator[bytes, None], headers: Mapping[str, str]) -> None:
        """Send these events; the iterator is closed at the end."""
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await send(message)

        try:
            await super().__call__(scope, receive, send_in_time)
        except TimeoutError:
            logger.info("a stream of events ended: its client read nothing for %g s", SEND_TIMEOUT_S)
        finally:
            await self._events.aclose()


async def stream_events(request: Request) -> Response:
    """Changes of the group as they happen: server-sent events, for the page; `Last-Event-ID` resumes."""
    context, group_id = request.state.context, request.path_params["group"]
    headers = {"Cache-Control": "no-store"}
    if request.method == "HEAD":
        return Response(media_type="text/event-stream", headers=headers)
    events = await context.feeds.stream(
        group_id,
        request.headers.get("last-event-id", ""),
        admin=context.admin,
        user=request.state.user if context.access else "",
        principal=request.state.user,
        may=partial(operations_on, context, request.state.user, group_id) if context.access else None,
        may_change=request.scope["may_change"],
        may_create=may_create(context, request.state.user, group_id),
        has_connector_routes=group_id == context.group_id,
    )
    return EventStream(events, headers)


async def delete_group(request: Request) -> Response:
    """Delete a group that has no workers, with its connectors."""
    await request.state.context.admin.delete_group(request.path_params["group"])
    return Response(status_code=204)


async def restart_worker(request: Request) -> Response:
    """Request the restart of a worker; a restart that is pending already is a success too."""
    params = request.path_params
    await request.state.context.admin.restart_worker(params["group"], params["worker"])
    return Response(status_code=202)


async def drain_worker(request: Request) -> Response:
    """Request that other workers take a worker's units and that it leaves; a pending drain is a success too."""
    params = request.path_params
    await request.state.context.admin.drain_worker(params["group"], params["worker"])
    return Response(status_code=202)


OPERATIONS: Final = (
    Operation("GET", "/coordinators", list_coordinators, NOTHING, response=ANY),
    Operation("GET", "/groups", list_groups, LISTED, response=listing(ANY)),
    Operation("GET", "/groups/{group}", describe_group, DESCRIBE_GROUP, response=ANY),
    Operation("DELETE", "/groups/{group}", delete_group, DELETE_GROUP, statuses=(204,)),
    Operation(
        "GET", "/groups/{group}/events", stream_events, DESCRIBE_GROUP, response=TEXT, media_type="text/event-stream"
    ),
    Operation("GET", "/groups/{group}/connectors/{name}", describe_connector, DESCRIBE_CONNECTOR, response=ANY),
    Operation(
        "GET", "/groups/{group}/history", history, DESCRIBE_GROUP, query={"points": POINTS}, response=mapping(ANY)
    ),
    Operation("GET", "/groups/{group}/rebalances", list_rebalances, DESCRIBE_GROUP, response=listing(ANY)),
    Operation("POST", "/groups/{group}/workers/{worker}/restart", restart_worker, ALTER_GROUP, statuses=(202,)),
    Operation("POST", "/groups/{group}/workers/{worker}/drain", drain_worker, ALTER_GROUP, statuses=(202,)),
)
