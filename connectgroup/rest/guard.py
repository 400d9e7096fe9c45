"""The outermost layer of the REST API: decides whether a request is served, and turns every failure into one response.

A browser sends requests of any web page to a local server. The checks of ``Host`` and ``Origin`` reject them; there is
no CORS header, and a request with a body must be JSON.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import logging
from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..protocol.units import printable

logger = logging.getLogger(__name__)

MAX_HEADER_BYTES: Final = 16 * 1024
LOOPBACK_NAMES: Final = frozenset(("localhost", "127.0.0.1", "::1"))


def error_response(status: int, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """An error body as Kafka Connect's; 503 says when to retry."""
    headers = dict(headers or {})
    if status == 503:
        headers["Retry-After"] = "1"
    return JSONResponse({"error_code": status, "message": message}, status, headers)


class Guard:
    """An ASGI application around another one.

    Args:
        app: the application.
        allowed_hosts: names in ``Host`` and ``Origin``, in lower case; null: every name.
        users: password by name; null: no authentication.
    """

    def __init__(self, app: ASGIApp, *, allowed_hosts: Collection[str] | None, users: Mapping[str, str] | None) -> None:
        self._app, self._allowed_hosts, self._users = app, allowed_hosts, users

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        rejection = self._rejection(Headers(scope=scope))
        if rejection is not None:
            await rejection(scope, receive, send)
            return
        # As in Kafka Connect, a trailing slash makes no difference.
        path = scope["path"].rstrip("/") or "/"
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app({**scope, "path": path}, receive, watched)
        except Exception:
            # The message of an unexpected error may contain anything: it is for the log only.
            logger.exception("%s %s failed", scope["method"], printable(path))
            if not started:
                await error_response(500, "the server failed to process the request; see its log")(scope, receive, send)

    def _rejection(self, headers: Headers) -> JSONResponse | None:
        size = sum(len(name) + len(value) for name, value in headers.raw)
        if size > MAX_HEADER_BYTES:
            return error_response(431, f"headers: got {size} bytes; allowed: at most {MAX_HEADER_BYTES}")
        if self._allowed_hosts is not None:
            allowed = ", ".join(sorted(self._allowed_hosts))
            for field in ("Host", "Origin"):
                if field not in headers and field == "Origin":
                    continue
                value = headers.get(field, "")
                if _host_of(value) not in self._allowed_hosts:
                    return error_response(403, f"{field}: got {printable(value)!r}; allowed: {allowed}")
        if self._users is not None and not self._is_user(headers.get("authorization", "")):
            return error_response(
                401,
                "Authorization: got no valid user and password; allowed: basic authentication",
                {"WWW-Authenticate": 'Basic realm="connectgroup", charset="UTF-8"'},
            )
        return None

    def _is_user(self, authorization: str) -> bool:
        assert self._users is not None
        scheme, _, encoded = authorization.partition(" ")
        try:
            name, _, password = base64.b64decode(encoded.strip(), validate=True).decode("utf-8").partition(":")
        except (binascii.Error, ValueError):
            return False
        # Constant time, also for unknown names: the time must not show which names exist.
        expected = self._users.get(name, "")
        equal = hmac.compare_digest(password.encode(), expected.encode())
        return scheme.lower() == "basic" and equal and name in self._users


def _host_of(value: str) -> str | None:
    """The host name in ``Host`` (``name:port``) or ``Origin`` (``http://name:port``), in lower case."""
    try:
        return urlsplit(value if "//" in value else f"//{value}").hostname
    except ValueError:
        return None
