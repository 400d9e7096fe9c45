"""The client: one TCP connection to a server, opened on demand and reopened after a loss.

The first request on a connection is ApiVersions: its response shows whether the peer is a connectgroup coordinator,
and which versions both sides support. Calls share the connection. Each response must carry the correlation id of the
oldest outstanding call; otherwise the client closes the connection.

Source: Kafka's ``NetworkClient`` and ``InFlightRequests``; KIP-35, KIP-511.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from typing import Final, cast

from ..checks import check_number, check_text, check_whole
from ..errors import ConfigError, NotAuthenticated, NotSent, TransportError, WireError
from ..protocol.messages.api import Request, Response
from ..protocol.messages.cluster import ApiVersionsRequest, ApiVersionsResponse
from ..protocol.units import printable
from ..wire.apis import API_VERSIONS, APIS, HEARTBEAT, MAX_SENT, SASL_HANDSHAKE, decode_response, encode_request
from ..wire.forwarded import PRODUCE
from ..wire.framing import FrameReader, frame
from .access import Access
from .base import Client, name_lookup_errors, reason
from .credentials import find_credentials
from .login import credentials_missing, log_in, server_unauthenticated

MAX_RESPONSE_BYTES: Final = 64 * 1024 * 1024

_CORRELATION_ID: Final = struct.Struct(">i")
_FIRST_ID: Final = ord("\n")
"""Correlation id of the first request of a connection. Its last byte is a line feed, so that a server of a protocol of
lines (HTTP) responds at once: otherwise it would wait for the end of the line, and the client for the response."""
_TLS: Final = "TLS? access=Access(tls=...)"
_KEY_OF: Final = {api.request_class: api.key for api in APIS.values()}


class TcpClient(Client):
    """A client of the server at one address. It connects on the first ``call``.

    Args:
        host: host name or IP address.
        port: TCP port.
        client_id: sent to the server with each request.
        connect_timeout_s: timeout of connecting and the ApiVersions exchange.
        max_response_bytes: maximum response size.
        access: how to authenticate, and TLS; null: see ``Access``.

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
        self._connect_timeout_s = connect_timeout_s
        self._max_response_bytes = max_response_bytes
        self._access = access or Access()
        self._turn = asyncio.Lock()  # first come, first sent
        self._link: _Link | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._closed = False
        self._was_authenticated = False

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
                if self._link is not None and self._link.transport is not None and not self._link.agreed:
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

    async def _connected(self) -> _Link:
        """Return the current link; open a new one if necessary."""
        if self._closed:
            raise NotSent(f"{self.address}: the client is closed")
        link = self._link
        if link is None or link.lost:
            link = self._link = _Link(self.address, self._client_id, self._max_response_bytes)
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
                if not link.agreed:
                    link.abandon("not connected")
        return link

    async def _connect(self, link: _Link) -> None:
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                loop = asyncio.get_running_loop()
                with name_lookup_errors(self._host):
                    await loop.create_connection(lambda: link, self._host, self._port, ssl=self._access.tls)
                link.negotiate(await link.send(ApiVersionsRequest(client_software_name="connectgroup")))
                credentials = self._access.credentials or find_credentials(self._host, self._port)
                if link.authenticates:
                    if credentials is None:
                        raise credentials_missing(self.address)
                    await log_in(self.address, credentials, link.send)
                    self._was_authenticated = True
                elif credentials is not None or self._was_authenticated:
                    raise server_unauthenticated(self.address)
                link.agreed = True
        except ConfigError as error:  # not the caller's error: the file may have changed since the client was created
            raise NotAuthenticated(f"{self.address}: {error}") from error
        except TimeoutError:
            timeout_s = self._connect_timeout_s
            problem = f"not connected within {timeout_s:g} s" if link.transport is None else _no_answer(timeout_s)
            raise TransportError(f"{self.address}: {problem}") from None
        except (OSError, UnicodeError, OverflowError) as error:
            raise TransportError(f"{self.address}: cannot connect: {reason(error)}") from error


def _no_answer(timeout_s: float) -> str:
    return f"no response within {timeout_s:g} s; is a connectgroup coordinator listening there?"


class _Call:
    """One outstanding call."""

    __slots__ = ("api_key", "correlation_id", "response", "version")

    def __init__(self, api_key: int, version: int, correlation_id: int, response: asyncio.Future[Response]) -> None:
        self.api_key, self.version, self.correlation_id, self.response = api_key, version, correlation_id, response


class _Link(asyncio.Protocol):
    """One connection of the client, from its creation to its loss."""

    def __init__(self, address: str, client_id: str, max_response_bytes: int) -> None:
        self._address, self._client_id = address, client_id
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(max_response_bytes)
        self._outstanding: deque[_Call] = deque()
        self._next_id = _FIRST_ID
        self._versions = {API_VERSIONS: max(APIS[API_VERSIONS].versions)}
        self._heard = False
        self.transport: asyncio.Transport | None = None
        self.agreed = self._is_proxy = False
        self.lost = ""  # the reason
        self.writable = asyncio.Event()
        self.writable.set()

    def send(self, request: Request) -> asyncio.Future[Response]:
        """Send a request; the future completes with its response or with a ``TransportError``."""
        api_key = _KEY_OF[type(request)]
        version = self._versions.get(api_key)
        if version is None:
            raise TransportError(f"{self._address}: does not serve {APIS[api_key].name} in a version known here")
        if self.lost or self.transport is None:
            raise TransportError(f"{self._address}: {self.lost}")
        correlation_id, self._next_id = self._next_id, (self._next_id + 1) & 0x7FFFFFFF
        data = encode_request(request, version=version, correlation_id=correlation_id, client_id=self._client_id)
        response: asyncio.Future[Response] = self._loop.create_future()
        self._outstanding.append(_Call(api_key, version, correlation_id, response))
        self.transport.write(frame(data))
        return response

    @property
    def authenticates(self) -> bool:
        """Whether the server authenticates its clients; known after ``negotiate``.

        A proxy forwards SASL to its broker, as Produce, which a coordinator does not serve.
        """
        return SASL_HANDSHAKE in self._versions and not self._is_proxy

    def negotiate(self, response: Response) -> None:
        """Choose the highest version of each API that both sides support.

        Raises:
            TransportError: the peer is not a connectgroup coordinator.
        """
        assert isinstance(response, ApiVersionsResponse)
        theirs = {api.api_key: range(api.min_version, api.max_version + 1) for api in response.api_keys}
        self._is_proxy = PRODUCE in theirs
        for key, api in APIS.items():
            both = [version for version in api.versions if version in theirs.get(key, ())]
            if both:
                self._versions[key] = min(max(both), MAX_SENT.get(key, max(both)))
        if HEARTBEAT not in self._versions:
            api = APIS[HEARTBEAT]
            raise TransportError(
                f"{self._address}: speaks Kafka's protocol but is no coordinator of worker groups: "
                f"it does not serve {api.name} (API {HEARTBEAT}) v{api.versions[0]} to v{api.versions[-1]}"
            )

    def is_oldest(self, response: asyncio.Future[Response]) -> bool:
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
                problem = f"answered, but not as a connectgroup coordinator: the response begins with {start!r}"
            self.abandon(problem)

    def _take(self, message: bytes) -> None:
        if not self._outstanding:
            raise WireError("a response without a request")
        call = self._outstanding[0]
        if len(message) < 4 or _CORRELATION_ID.unpack_from(message)[0] != call.correlation_id:
            raise WireError(f"a response that is not to request {call.correlation_id}, the oldest one")
        if not call.response.done():  # otherwise its caller was cancelled: drop the response undecoded
            _, response = decode_response(message, api_key=call.api_key, version=call.version)
            call.response.set_result(response)
        self._outstanding.popleft()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        cause = f": {reason(exc)}" if exc else " by the other side"
        details = f" ({reason(exc)})" if exc else ""
        never = f"connection closed during ApiVersions; is a connectgroup coordinator listening there?{details} {_TLS}"
        self.abandon(f"connection lost{cause}" if self._heard else never)
