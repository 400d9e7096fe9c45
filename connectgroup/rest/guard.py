"""The outermost layer of the REST API: decides whether a request is served, and turns every failure into one response.

A browser sends requests of any web page to a local server. The checks of ``Host`` and ``Origin`` reject them; there is
no CORS header, and a request with a body must be JSON.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..protocol.units import printable
from ..transport.audit import AuditLog
from ..transport.quotas import RequestQuotas
from .errors import error_response

logger = logging.getLogger(__name__)

_MAX_AUTHORITY: Final = 300
"""Characters of a host name (253) and a port."""

MAX_HEADER_BYTES: Final = 16 * 1024
LOOPBACK_NAMES: Final = frozenset(("localhost", "127.0.0.1", "::1"))


class Guard:
    """An ASGI application around another one.

    Args:
        app: the application.
        allowed_hosts: names and addresses in ``Host``, in lower case; ``None``: any. ``name:port``: also the port
            of an ``Origin``.
        users: password by name; ``None``: no authentication. ``scope["principal"]`` is the name, empty without one.
        readers: the users that may only read (GET, HEAD, OPTIONS). ``scope["may_change"]`` is false for them.
        public_paths: GET and HEAD of these need no user.
        requests_per_second: the limit for each client address; ``None``: none.
        audit: gets a line for each change by a reader; ``None``: there are no lines.
        quotas: requests per second of users; ``None``: there is no limit.
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
        audit: AuditLog | None = None,
        quotas: RequestQuotas | None = None,
    ) -> None:
        self._quotas = quotas or RequestQuotas()
        self._app, self._users, self._readers, self._audit = app, users, readers, audit
        self._allowed = ", ".join(sorted(allowed_hosts or ()))
        self._hosts: dict[str, set[int | None]] | None = None  # the ports of each name
        if allowed_hosts is not None:
            self._hosts = {}
            for each in allowed_hosts:
                host, port = authority(f"[{each}]" if each.count(":") > 1 and each[0] != "[" else each) or (each, None)
                self._hosts.setdefault(host, set()).add(port)
        self._public_paths = public_paths
        self._rate = RateLimit(requests_per_second) if requests_per_second is not None else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        # As in Kafka Connect, a trailing slash makes no difference. The path stays encoded: ``operations.Segment``.
        path, headers = scope["raw_path"].decode("latin-1").rstrip("/") or "/", Headers(scope=scope)
        rejection = self._over_limit(scope) or self._foreign(headers, path, scope["scheme"])
        user = None
        if rejection is None and not self._is_public(scope["method"], path):
            if self._users is not None:
                user = self._user(headers.get("authorization", ""), self._users)
                rejection = self._forbidden(user, scope["method"])
            if (user is not None or self._users is None) and (reason := self._quotas.refusal(user or "")):
                rejection = error_response(429, f"{reason}; retry after one second")
            elif rejection is not None and user is not None and self._audit is not None:
                self._audit.record(
                    principal=user,
                    host=scope["client"][0] if scope.get("client") else "",
                    request=f"{printable(scope['method'])} {path}",
                    resources=[],
                    result=f"HTTP_{rejection.status_code}",
                    message="a reader",
                )
        if rejection is not None:
            await rejection(scope, receive, send)
            return
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(
                {**scope, "path": path, "principal": user or "", "may_change": user not in self._readers},
                receive,
                watched,
            )
        except Exception:
            # The message of an unexpected error may contain anything: it is for the log only.
            logger.exception("%s %s failed", scope["method"], printable(path))
            if not started:
                await error_response(500, "the server failed to process the request; see its log")(scope, receive, send)

    def _over_limit(self, scope: Scope) -> JSONResponse | None:
        address = scope["client"][0] if scope.get("client") else ""
        if self._rate is None or self._rate.admits(address):
            return None
        return error_response(429, "too many requests from this address; retry after one second")

    def _is_public(self, method: str, path: str) -> bool:
        return method in ("GET", "HEAD") and path in self._public_paths

    def _foreign(self, headers: Headers, path: str, scheme: str) -> JSONResponse | None:
        """Reject headers that are too long, and requests that another host's page may have sent."""
        size = sum(len(name) + len(value) for name, value in headers.raw)
        if size > MAX_HEADER_BYTES:
            return error_response(431, f"headers: got {size} bytes; allowed: at most {MAX_HEADER_BYTES}")
        if not path.startswith("/"):
            # ``http://host/path``: the host there would count instead of Host.
            return error_response(400, f"path: got {printable(path)!r}; allowed: a path that begins with /")
        if self._hosts is None:
            return None
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        host = authority(hosts[0]) if len(hosts) == 1 else None
        if host is None or host[0] not in self._hosts:
            value = printable(", ".join(hosts))
            return error_response(403, f"Host: got {value!r}; allowed: {self._allowed}, each also with a port")
        if origins and not (len(origins) == 1 and self._is_own(origins[0], host, scheme)):
            value = printable(", ".join(origins))
            allowed = f"that of this server's own pages, http://{printable(hosts[0])}"
            return error_response(403, f"Origin: got {value!r}; allowed: {allowed}")
        return None

    def _is_own(self, origin: str, host: tuple[str, int | None], served: str) -> bool:
        """Whether an ``Origin`` is that of a page of this server.

        Another port of the same host is another server. Behind a reverse proxy, which terminates TLS and may replace
        ``Host``, the origin has a name from ``allowed_hosts`` and its port.
        """
        assert self._hosts is not None
        scheme, separator, text = origin.partition("://")
        found, default = authority(text), _DEFAULT_PORTS.get(scheme)
        if not separator or found is None or default is None or (served == "https" and scheme != "https"):
            return False
        name, port = found[0], found[1] or default
        # No reverse proxy hands on a name of this machine: there, https without a port is another server.
        own = _DEFAULT_PORTS[served] if name in LOOPBACK_NAMES else default
        if name == host[0] and port == (host[1] or own):
            return True
        listed = {each or default for each in self._hosts.get(name, ())}
        return name not in LOOPBACK_NAMES and port in listed

    def _forbidden(self, user: str | None, method: str) -> JSONResponse | None:
        """Reject requests without a user, and changes by a reader."""
        if user is None:
            return error_response(
                401,
                "Authorization: got no valid user and password; allowed: basic authentication",
                {"WWW-Authenticate": 'Basic realm="connectgroup", charset="UTF-8"'},
            )
        if user in self._readers and method not in ("GET", "HEAD", "OPTIONS"):
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


_AUTHORITY: Final = re.compile(
    r"(?:(?P<name>[a-z0-9_](?:[a-z0-9._-]*[a-z0-9_])?)|\[(?P<ip>[0-9a-f:.]{2,45})\])(?::(?P<port>[0-9]{1,5}))?"
)
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def authority(text: str) -> tuple[str, int | None] | None:
    """The host, in lower case, and the port of ``name``, ``name:port``, ``[::1]`` or ``[::1]:port``.

    Nothing else is one: no user, no path, no dot at the end, no zone. An IPv6 address gets its shortest form.
    """
    match = _AUTHORITY.fullmatch(text.lower()) if text.isascii() and len(text) <= _MAX_AUTHORITY else None
    if match is None:
        return None
    host, port = match["name"], int(match["port"]) if match["port"] else None
    if host is None:
        try:
            host = ipaddress.IPv6Address(match["ip"]).compressed
        except ValueError:
            return None
    return (host, port) if port is None or 0 < port < 1 << 16 else None


# --------------------------------------------------------------------------------------------------
# A limit on requests per second for each client address: a token bucket that holds one second of requests.


MAX_ADDRESSES: Final = 10_000
"""Addresses that are remembered; the one that was idle longest is forgotten first."""


class RateLimit:
    """Admits requests at a rate. Uses a clock in seconds."""

    def __init__(self, requests_per_second: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Store the arguments."""
        self._rate, self._clock = requests_per_second, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def admits(self, address: str) -> bool:
        """Whether a request of this address is within the limit; counts it if so."""
        now = self._clock()
        tokens, at = self._buckets.pop(address, (float(self._rate), now))
        tokens = min(float(self._rate), tokens + (now - at) * self._rate)
        admitted = tokens >= 1
        self._buckets[address] = (tokens - 1 if admitted else tokens), now
        if len(self._buckets) > MAX_ADDRESSES:
            self._buckets.popitem(last=False)
        return admitted
