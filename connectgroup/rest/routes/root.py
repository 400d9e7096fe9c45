"""The process that serves the API: ``GET /``, ``/health`` (KIP-1017), ``/openapi.json``, and ``/metrics``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ...errors import ConnectGroupError, GroupIdNotFound
from ...transport.access_rules import AccessOperation, Resource
from ...transport.group_access import RequiredAccess
from ..access import EVERYTHING, NOTHING
from ..errors import RestError
from ..operations import ANY, TEXT, Operation, shape
from ..views import NO_WRITES


async def server_info(request: Request) -> Response:
    """Version and group: the group is what a cluster is in Kafka Connect."""
    context = request.app.state.context
    return JSONResponse({"version": context.version, "commit": context.commit, "kafka_cluster_id": context.group_id})


async def health(request: Request) -> Response:
    """Healthy if the coordinator answers, and its log takes writes."""
    context = request.app.state.context
    problem = detailed = ""
    try:
        group = await context.admin.describe(context.group_id, connectors=(), connectors_only=True)
        if group.log_error:
            problem, detailed = NO_WRITES, f"{NO_WRITES}: {group.log_error}"
    except GroupIdNotFound:
        pass  # created with its first connector or worker
    except ConnectGroupError as error:
        problem, detailed = "the coordinator does not serve the group", str(error)
    if not problem:
        return JSONResponse({"status": "healthy", "message": "The coordinator responds to requests."})
    # The error may name files and hosts: probes may be users who see nothing else.
    denied = context.access.denial(
        request.state.user, RequiredAccess(AccessOperation.DESCRIBE, Resource(context.group_id))
    )
    return JSONResponse({"status": "unhealthy", "message": problem if denied else detailed}, 500)


async def openapi(request: Request) -> Response:
    """This document: all operations, OpenAPI 3.1."""
    return JSONResponse(request.app.state.document)


async def metrics(request: Request) -> Response:
    """Metrics of the coordinator, the workers and the tasks of this process, for Prometheus."""
    try:
        from ..metrics import content_type_for, exposition
    except ModuleNotFoundError as error:
        raise RestError(501, f"/metrics requires {error.name}; allowed: pip install 'connectgroup[rest]'") from error
    accept = request.headers.get("accept", "")
    make = partial(exposition, accept)
    text, content_type = await request.app.state.scrapes.of(make, content_type_for(accept))
    return Response(text, headers={"Content-Type": content_type})


class Scrapes:
    """What ``GET /metrics`` returns, made for many clients at a time, in one thread.

    The metrics of 100,000 tasks take seconds, and a hundred MB meanwhile; several threads would leave the event loop
    too little time for heartbeats. Clients that ask while they are made share the next ones.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._next: dict[str, asyncio.Task[tuple[bytes, str]]] = {}  # those that have not begun; ``_make`` removes

    async def of(self, make: Callable[[], tuple[bytes, str]], content_type: str) -> tuple[bytes, str]:
        """The result of a call of ``make`` for this content type that begins now or later."""
        task = self._next.get(content_type)
        if task is None:
            task = self._next[content_type] = asyncio.create_task(self._make(make, content_type), name="metrics")
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # all its clients may have gone
        return await asyncio.shield(task)

    async def _make(self, make: Callable[[], tuple[bytes, str]], content_type: str) -> tuple[bytes, str]:
        async with self._turn:
            del self._next[content_type]
            return await run_in_threadpool(make)


METRICS: Final = Operation("GET", "/metrics", metrics, EVERYTHING, response=TEXT, media_type="text/plain")
OPERATIONS: Final = (
    Operation("GET", "/", server_info, NOTHING, response=shape(version=TEXT, commit=TEXT, kafka_cluster_id=TEXT)),
    Operation("GET", "/openapi.json", openapi, NOTHING, response=ANY),
    Operation("GET", "/health", health, NOTHING, response=shape(status=TEXT, message=TEXT)),
    METRICS,
)
