"""``GET /metrics``: the metrics of this process for Prometheus."""

from __future__ import annotations

from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from ..access import EVERYTHING
from ..errors import RestError
from ..operations import TEXT, Operation


async def metrics(request: Request) -> Response:
    """Metrics of the coordinator, the workers and the tasks of this process, for Prometheus."""
    try:
        from ..metrics import exposition
    except ModuleNotFoundError as error:
        raise RestError(501, f"/metrics requires {error.name}; allowed: pip install 'connectgroup[rest]'") from error
    # In a thread: the metrics of 100,000 tasks take seconds, during which a coordinator would send no responses.
    text, content_type = await run_in_threadpool(exposition, request.headers.get("accept", ""))
    return Response(text, headers={"Content-Type": content_type})


OPERATIONS: Final = (Operation("GET", "/metrics", metrics, EVERYTHING, response=TEXT, media_type="text/plain"),)
