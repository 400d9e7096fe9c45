"""The outermost layer of the REST API: decides whether a request is served, and turns every failure into one response.

A browser sends requests of any web page to a local server. The checks of ``Host`` and ``Origin`` reject them; there is
no CORS header, and a request with a body must be JSON.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..protocol.units import printable
from .rate import RateLimit

logger = logging.getLogger(__name__)

MAX_HEADER_BYTES: Final = 16 * 1024
LOOPBACK_NAMES: Final = frozenset(("localhost", "127.0.0.1", "::1"))


def error_response(status: int, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """An error body as Kafka Connect's; 429 and 503 say when to retry."""
    headers = dict(headers or {})
    if status in (429, 503):
        headers["Retry-After"] = "1"
    return JSONResponse({"error_code": status, "message": message}, status, headers)


class Guard:
    """An ASGI application around another one.

    Args:
        app: the application.
        allowed_hosts: names in ``Host`` and ``Origin``, in lower case; null: every name.
        users: password by name; null: no authentication.
        readers: the users that may only read (GET, HEAD). ``scope["may_change"]`` is false for them.
        public_paths: GET and HEAD of these need no user.
        requests_per_second: the limit for each client address; null: none.
        is_full: whether the server has more connections than it may.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        allowed_hosts: Collection[str] | None,
        users: Mapping[str, str] | None,
        readers: Collection[str] = (),
        public_paths: Collection[str] = (),
        requests_per_second: int | None = None,
        is_full: Callable[[], bool] = lambda: False,
    ) -> None:
        self._app, self._allowed_hosts, self._users, self._readers = app, allowed_hosts, users, readers
        self._public_paths, self._is_full = public_paths, is_full
        self._rate = RateLimit(requests_per_second) if requests_per_second is not None else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        # As in Kafka Connect, a trailing slash makes no difference. The path stays encoded: ``operations.Segment``.
        path, headers = scope["raw_path"].decode("latin-1").rstrip("/") or "/", Headers(scope=scope)
        rejection = self._over_limit(scope) or self._foreign(headers)
        user = None
        if rejection is None and self._users is not None and not self._is_public(scope["method"], path):
            user = self._user(headers.get("authorization", ""), self._users)
            rejection = self._forbidden(user, scope["method"])
        if rejection is not None:
            await rejection(scope, receive, send)
            return
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app({**scope, "path": path, "may_change": user not in self._readers}, receive, watched)
        except Exception:
            # The message of an unexpected error may contain anything: it is for the log only.
            logger.exception("%s %s failed", scope["method"], printable(path))
            if not started:
                await error_response(500, "the server failed to process the request; see its log")(scope, receive, send)

    def _over_limit(self, scope: Scope) -> JSONResponse | None:
        address = scope["client"][0] if scope.get("client") else ""
        if self._is_full():
            return error_response(503, "too many connections; retry after one second", {"Connection": "close"})
        if self._rate is None or self._rate.admits(address):
            return None
        return error_response(429, "too many requests from this address; retry after one second")

    def _is_public(self, method: str, path: str) -> bool:
        return method in ("GET", "HEAD") and path in self._public_paths

    def _foreign(self, headers: Headers) -> JSONResponse | None:
        """Reject headers that are too long, and requests that another host's page may have sent."""
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
        return None

    def _forbidden(self, user: str | None, method: str) -> JSONResponse | None:
        """Reject requests without a user, and changes by a reader."""
        if user is None:
            return error_response(
                401,
                "Authorization: got no valid user and password; allowed: basic authentication",
                {"WWW-Authenticate": 'Basic realm="connectgroup", charset="UTF-8"'},
            )
        if user in self._readers and method not in ("GET", "HEAD"):
            return error_response(403, f"user {printable(user)}: got {printable(method)}; allowed: GET (a reader)")
        return None

    def _user(self, authorization: str, users: Mapping[str, str]) -> str | None:
        """The name of the user; None without a valid password."""
        scheme, _, encoded = authorization.partition(" ")
        try:
            name, _, password = base64.b64decode(encoded.strip(), validate=True).decode("utf-8").partition(":")
        except (binascii.Error, ValueError):
            return None
        # Constant time, also for unknown names: the time must not show which names exist.
        expected = users.get(name, "")
        equal = hmac.compare_digest(password.encode(), expected.encode())
        return name if scheme.lower() == "basic" and equal and name in users else None


def _host_of(value: str) -> str | None:
    """The host name in ``Host`` (``name:port``) or ``Origin`` (``http://name:port``), in lower case."""
    try:
        return urlsplit(value if "//" in value else f"//{value}").hostname
    except ValueError:
        return None
