"""The client: one TCP connection to a server, opened on demand and reopened after a loss.

The first request on a connection is ApiVersions: its response shows whether the peer is a connectgroup coordinator,
and which versions both sides support. Calls share the connection. Each response must carry the correlation id of the
oldest outstanding call; otherwise the client closes the connection. ``Link``, the connection, also serves the clients
of Kafka's brokers (``consumer.connection``), with other requests.

Source: Kafka's ``NetworkClient`` and ``InFlightRequests``; KIP-35, KIP-511.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections import deque
from collections.abc import Callable, Container, Mapping
from typing import Any, Final, NamedTuple, cast

from ..checks import check_number, check_text, check_whole
from ..errors import ConfigError, NotAuthenticated, NotSent, TransportError, WireError
from ..protocol.messages.api import Request, Response
from ..protocol.messages.cluster import ApiVersionsRequest, ApiVersionsResponse, SaslHandshakeRequest
from ..protocol.messages.heartbeat import HeartbeatRequest
from ..protocol.units import printable
from ..wire.apis import APIS, HEARTBEAT, MAX_SENT, Api, decode_response, encode_request
from ..wire.forwarded import PRODUCE
from ..wire.primitives import FrameReader, frame
from .access import Access
from .base import Client, name_lookup_errors, reason
from .credentials import credentials_missing, find_credentials, log_in, server_unauthenticated

MAX_RESPONSE_BYTES: Final = 64 * 1024 * 1024

_CORRELATION_ID: Final = struct.Struct(">i")
_FIRST_ID: Final = ord("\n")
"""Correlation id of the first request of a connection. Its last byte is a line feed, so that a server of a protocol of
lines (HTTP) responds at once: otherwise it would wait for the end of the line, and the client for the response."""
_HINT: Final = "is a connectgroup coordinator listening there? TLS? access=Access(tls=...)"
API_VERSIONS_REQUEST: Final = ApiVersionsRequest(client_software_name="connectgroup", client_software_version="0")


class TcpClient(Client):
    """A client of the server at one address. It connects on the first ``call``.

    Args:
        host: host name or IP address.
        port: TCP port.
        client_id: sent to the server with each request.
        connect_timeout_s: timeout of connecting and the ApiVersions exchange.
        max_response_bytes: maximum response size.
        access: how to authenticate, and TLS; ``None``: see ``Access``.

    Attributes:
        connect_timeout_s: as above. ``FollowingClient`` lowers it.

    Raises:
        ConfigError: an argument is out of its range.
    """

    def __init__(
        self,
        host: str,
        port: int,
        client_id: str = "connectgroup",
        *,
        connect_timeout_s: float = 10.0,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
        access: Access | None = None,
    ) -> None:
        check_text("host", host)
        if not host or "/" in host or host.count(":") == 1:
            raise ConfigError("host", host, "a host name or an IP address, without scheme and port")
        check_whole("port", port, 1, 65_535)
        check_number("connect_timeout_s", connect_timeout_s, 0, 3_600)
        self._host, self._port, self._client_id = host, port, client_id
        self.connect_timeout_s = connect_timeout_s
        self._max_response_bytes = max_response_bytes
        self._access = access or Access()
        self._turn = asyncio.Lock()  # first come, first sent
        self._link: Link | None = None  # the last connection, also one that is lost
        self._connecting: asyncio.Task[None] | None = None  # opens the link
        self._closed = False  # ``close`` sets it
        self._agreed = False  # the link is usable
        self._was_authenticated = False  # a server that asks for no credentials later is rejected

    @property
    def is_remote(self) -> bool:
        """The coordinator is another process, which may notice that this one has ended (``os_process``)."""
        return True

    @property
    def address(self) -> str:
        return f"{self._host}:{self._port}"

    async def call(self, request: Request, *, timeout_s: float) -> Response:
        response: asyncio.Future[Response] | None = None
        try:
            async with asyncio.timeout(timeout_s):
                async with self._turn:
                    link = await self._connected()
                    await link.writable.wait()
                    response = link.send(request)
                return await response
        except TimeoutError:
            if response is None:
                problem = f"{type(request).__name__} could not be sent within {timeout_s:g} s"
                if self._link is not None and self._link.transport is not None and not self._agreed:
                    problem = _no_answer(timeout_s)
                raise NotSent(f"{self.address}: {problem}") from None
            if link.is_oldest(response):
                # Responses arrive in order: no other response can arrive before this one.
                link.abandon(f"abandoned: no response to an earlier {type(request).__name__} in {timeout_s} s")
            raise TransportError(f"{self.address}: no response to {type(request).__name__} in {timeout_s} s") from None

    async def close(self) -> None:
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._link is not None:
            self._link.abandon("the client is closed")

    async def _connected(self) -> Link:
        """Return the current link; open a new one if necessary."""
        if self._closed:
            raise NotSent(f"{self.address}: the client is closed")
        link = self._link
        if link is None or link.lost:
            self._agreed = False
            link = self._link = Link(
                self.address, self._client_id, hint=_HINT, max_response_bytes=self._max_response_bytes
            )
            # A separate asyncio task, so that ``close`` can cancel it.
            self._connecting = asyncio.create_task(self._connect(link), name=f"connecting to {self.address}")
            try:
                await self._connecting
            except asyncio.CancelledError:
                if self._closed:
                    raise NotSent(f"{self.address}: the client is closed") from None
                raise
            except NotSent:
                raise
            except TransportError as error:
                raise NotSent(str(error)) from error
            finally:
                self._connecting = None
                if not self._agreed:
                    link.abandon("not connected")
        return link

    async def _connect(self, link: Link) -> None:
        try:
            async with asyncio.timeout(self.connect_timeout_s):
                theirs = await link.connect(self._host, self._port, self._access.tls)
                if HeartbeatRequest not in link.versions:
                    raise TransportError(self._no_coordinator())
                credentials = self._access.credentials or find_credentials(self._host, self._port)
                # A proxy may forward SASL to its brokers, as Produce, which a coordinator does not serve.
                if SaslHandshakeRequest in link.versions and (PRODUCE not in theirs or credentials is not None):
                    if credentials is None:
                        raise credentials_missing(self.address)
                    await log_in(self.address, credentials, link.send)
                    self._was_authenticated = True
                elif credentials is not None or self._was_authenticated:
                    raise server_unauthenticated(self.address)
                self._agreed = True
        except ConfigError as error:  # not the caller's error: the file may have changed since the client was created
            raise NotAuthenticated(f"{self.address}: {error}") from error
        except TimeoutError:
            timeout_s = self.connect_timeout_s
            problem = f"not connected within {timeout_s:g} s" if link.transport is None else _no_answer(timeout_s)
            raise TransportError(f"{self.address}: {problem}") from None
        except (OSError, UnicodeError, OverflowError) as error:
            raise TransportError(f"{self.address}: cannot connect: {reason(error)}") from error

    def _no_coordinator(self) -> str:
        api = APIS[HEARTBEAT]
        return (
            f"{self.address}: speaks Kafka's protocol but is no coordinator of worker groups: "
            f"it does not serve {api.name} (API {HEARTBEAT}) v{api.versions[0]} to v{api.versions[-1]}"
        )


def _no_answer(timeout_s: float) -> str:
    return f"no response within {timeout_s:g} s; is a connectgroup coordinator listening there?"


class Dialect(NamedTuple):
    """The requests that one kind of client sends.

    Attributes:
        peer: the server, for errors.
        apis: the supported APIs, by the class of the request.
        encode: as ``wire.apis.encode_request``.
        decode: the correlation id and the response in some bytes, to a request of the class ``to`` and of a version.
    """

    peer: str
    apis: Mapping[type[Any], Api]
    encode: Callable[..., bytes]
    decode: Callable[..., tuple[int, Any]]


def _decode(data: bytes, *, to: type[Any], version: int) -> tuple[int, Response]:
    return decode_response(data, api_key=_APIS[to].key, version=version)


_APIS: Final = {api.request_class: api for api in APIS.values()}
COORDINATOR: Final = Dialect("a connectgroup coordinator", _APIS, encode_request, _decode)


class _Call(NamedTuple):
    """One outstanding call."""

    request_class: type[Any]
    version: int
    correlation_id: int
    response: asyncio.Future[Any]


class Link(asyncio.Protocol):
    """One connection of a client, from its creation to its loss.

    Attributes:
        transport: ``None`` before the connection is made.
        versions: the version of each API to send, by the class of the request; ``connect`` sets it.
        lost: the reason of the loss; empty before.
        writable: cleared while the peer does not read.
    """

    def __init__(
        self,
        address: str,
        client_id: str,
        dialect: Dialect = COORDINATOR,
        *,
        hint: str,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
    ) -> None:
        """``hint``: what may be wrong if the peer does not answer as ``dialect.peer``, for errors."""
        self._address, self._client_id, self._dialect, self._hint = address, client_id, dialect, hint
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(max_response_bytes)
        self._outstanding: deque[_Call] = deque()  # calls without a response, in the order of their requests
        self._next_id = _FIRST_ID  # the next correlation id
        self._heard = False  # the peer has sent a complete frame
        self.versions: dict[type[Any], int] = {ApiVersionsRequest: dialect.apis[ApiVersionsRequest].versions[-1]}
        self.transport: asyncio.Transport | None = None
        self.lost = ""
        self.writable = asyncio.Event()
        self.writable.set()

    async def connect(self, host: str, port: int, tls: ssl.SSLContext | None) -> Container[int]:
        """Connect, and choose the highest version of each API that both sides support; return the API keys of the peer.

        Raises:
            OSError, UnicodeError, OverflowError: no connection.
            TransportError: no response to ApiVersions.
        """
        with name_lookup_errors(host):
            await self._loop.create_connection(lambda: self, host, port, ssl=tls)
        response = await self.send(API_VERSIONS_REQUEST)
        assert isinstance(response, ApiVersionsResponse)
        theirs = {api.api_key: range(api.min_version, api.max_version + 1) for api in response.api_keys}
        for request_class, api in self._dialect.apis.items():
            both = [version for version in api.versions if version in theirs.get(api.key, ())]
            if both:
                self.versions[request_class] = min(max(both), MAX_SENT.get(api.key, max(both)))
        return theirs

    def send(self, request: Any) -> asyncio.Future[Any]:
        """Send a request; the future completes with its response or with a ``TransportError``.

        Raises:
            TransportError: the connection is lost, or the peer does not serve the API.
            WireError: a value in the request cannot be encoded.
        """
        version = self.versions.get(type(request))
        if version is None:
            api = self._dialect.apis[type(request)]
            known = f"v{api.versions[0]} to v{api.versions[-1]}"
            raise TransportError(f"{self._address}: does not serve {api.name} in a version known here ({known})")
        if self.lost or self.transport is None:
            raise TransportError(f"{self._address}: {self.lost}")
        correlation_id, self._next_id = self._next_id, (self._next_id + 1) & 0x7FFFFFFF
        data = self._dialect.encode(request, version=version, correlation_id=correlation_id, client_id=self._client_id)
        response: asyncio.Future[Any] = self._loop.create_future()
        self._outstanding.append(_Call(type(request), version, correlation_id, response))
        self.transport.write(frame(data))
        return response

    def is_oldest(self, response: asyncio.Future[Any]) -> bool:
        """Whether no caller waits for the response to a call before this one."""
        for call in self._outstanding:
            if call.response is response:
                return True
            if not call.response.done():
                return False
        return False

    def abandon(self, why: str) -> None:
        """Close the connection, and fail all outstanding calls."""
        self.lost = self.lost or why
        self.writable.set()
        outstanding, self._outstanding = self._outstanding, deque()
        for call in outstanding:
            if not call.response.done():
                call.response.set_exception(TransportError(f"{self._address}: {why}"))
        if self.transport is not None:
            self.transport.abort()

    # ------------------------------------------------------------------------------------------ asyncio callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        self.transport = transport
        if self.lost:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.lost:
            return
        try:
            for message in self._reader.feed(data):
                self._take(message)
                self._heard = True
        except WireError as error:
            problem = f"does not speak our protocol: {printable(error, limit=200)}"
            if not self._heard:
                start = printable(data[:40].decode("ascii", "replace"))
                peer = self._dialect.peer
                problem = f"answered, but not as {peer}: the response begins with {start!r}; {self._hint}"
            self.abandon(problem)

    def _take(self, message: bytes) -> None:
        if not self._outstanding:
            raise WireError("a response without a request")
        call = self._outstanding[0]
        if len(message) < 4 or _CORRELATION_ID.unpack_from(message)[0] != call.correlation_id:
            raise WireError(f"a response that is not to request {call.correlation_id}, the oldest one")
        if not call.response.done():  # otherwise its caller was cancelled: drop the response undecoded
            _, response = self._dialect.decode(message, to=call.request_class, version=call.version)
            call.response.set_result(response)
        self._outstanding.popleft()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        cause = f": {reason(exc)}" if exc else " by the other side"
        details = f" ({reason(exc)})" if exc else ""
        never = f"connection closed during ApiVersions{details}; {self._hint}"
        self.abandon(f"connection lost{cause}" if self._heard else never)
