"""``/page``: the live page, static files of this package. What it shows comes from ``/groups/{group}/events``.

The files are public, also where requests need a user: they contain nothing of a group. The page asks for user and
password itself and sends them in a header. The content security policy allows no script, style, image or connection
but this server's, no inline script or style, no frame around the page, and no HTML made from text.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from ...protocol.units import printable
from ..access import NOTHING
from ..errors import RestError
from ..operations import TEXT, Operation

MEDIA_TYPES: Final = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
FILES: Final = (
    "page.css",
    "icon.svg",
    "main.js",
    "dom.js",
    "model.js",
    "server.js",
    "dialogs.js",
    "workers.js",
    "moves.js",
    "timeline.js",
    "connectors.js",
    "coordinators.js",
    "problems.js",
    "spark.js",
    "detail.js",
    "editor.js",
)
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
PUBLIC_PATHS: Final = frozenset(("/page", *(f"/page/{name}" for name in FILES)))
"""What is served without a user."""


@cache
def _content(name: str) -> bytes:
    return (files("connectgroup.rest") / "page" / name).read_bytes()


def _served(name: str) -> Response:
    return Response(_content(name), media_type=MEDIA_TYPES[name.rpartition(".")[2]], headers=HEADERS)


async def page(request: Request) -> Response:
    """The live page of the group, for a browser."""
    return _served("index.html")


async def page_file(request: Request) -> Response:
    """A script, a style sheet or the icon of the page."""
    name = request.path_params["file"]
    if name not in FILES:
        raise RestError(404, f"the page has no file {printable(name)!r}")
    return _served(name)


OPERATIONS: Final = (
    Operation("GET", "/page", page, NOTHING, response=TEXT, media_type="text/html"),
    Operation("GET", "/page/{file}", page_file, NOTHING),
)
