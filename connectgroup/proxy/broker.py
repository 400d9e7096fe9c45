"""The broker behind the proxy: its address, its APIs, and whether it can be reached."""

from __future__ import annotations

import asyncio
import logging
import struct
from typing import Final, cast

from ..errors import TransportError, WireError
from ..protocol.messages.cluster import ApiVersionsRequest, ApiVersionsResponse
from ..transport.base import name_lookup_errors, reason
from ..wire.apis import API_VERSIONS, decode_response, encode_request
from ..wire.forwarded import METADATA, with_address
from ..wire.framing import FrameReader, frame

CONNECT_TIMEOUT_S: Final = 10.0

_METADATA: Final = struct.pack(">hhihi", METADATA, 1, 1, -1, 0)
"""A Metadata request for no topics: the response lists the brokers."""

_VERSION: Final = 3
"""The version of ApiVersions that the proxy sends: a later one lists features that older clients reject."""

logger = logging.getLogger(__name__)


class Broker:
    """A Kafka broker.

    Attributes:
        host, port: its address.
        api_versions: its latest response to ApiVersions.
        node_id: its node id.
        endpoints: the addresses of all brokers of the cluster, as they occur in responses.
    """

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.api_versions = ApiVersionsResponse()
        self.node_id = 0
        self.endpoints: tuple[bytes, ...] = ()
        self._lost = False

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    async def connect(self, protocol: asyncio.Protocol) -> None:
        """Open one connection.

        Raises:
            TransportError: the broker cannot be reached; the message names it and the reason.
        """
        loop = asyncio.get_running_loop()
        try:
            with name_lookup_errors(self.host):
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    await loop.create_connection(lambda: protocol, self.host, self.port)
        except TimeoutError as error:
            raise TransportError(f"broker {self.address}: no connection in {CONNECT_TIMEOUT_S:g} s") from error
        except OSError as error:
            raise TransportError(f"broker {self.address}: cannot connect: {reason(error)}") from error

    async def ask(self) -> None:
        """Update ``api_versions`` and ``node_id``.

        Raises:
            TransportError: the broker cannot be reached, or does not respond as a Kafka broker does.
        """
        request = encode_request(
            ApiVersionsRequest(client_software_name="connectgroup-proxy", client_software_version="1"),
            version=_VERSION,
            correlation_id=0,
            client_id="connectgroup-proxy",
        )
        asking = _Question(frame(request) + frame(_METADATA))
        await self.connect(asking)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                first, second = await asking.responses
            _, response = decode_response(first, api_key=API_VERSIONS, version=_VERSION)
            _, nodes = with_address(second, METADATA, 1, "", 0)
        except (TimeoutError, WireError, ConnectionError) as error:
            hint = "is it the PLAINTEXT listener of a Kafka broker?"
            raise TransportError(f"broker {self.address}: no valid response to ApiVersions; {hint}") from error
        finally:
            asking.close()
        assert isinstance(response, ApiVersionsResponse)
        self.api_versions, self.node_id = response, next(iter(nodes), 0)
        self.endpoints = tuple(nodes.values())

    def occurs_in(self, data: bytes) -> bool:
        """Whether the address of a broker occurs in a response."""
        return any(endpoint in data for endpoint in self.endpoints)

    async def on_connected(self) -> None:
        """A client's connection to the broker is open: note it if the broker had been lost."""
        if self._lost:
            self._lost = False
            logger.warning("broker %s: reached again", self.address)
            # It may be of another version now.
            try:
                await self.ask()
            except TransportError as error:
                self.on_lost(str(error))

    def on_lost(self, why: str) -> None:
        """A connection failed or could not be opened: log it once until the broker is reached again."""
        if not self._lost:
            self._lost = True
            logger.error("%s; groups are served without it", why)


class _Question(asyncio.Protocol):
    """Sends two requests and receives their responses."""

    def __init__(self, request: bytes) -> None:
        self._request, self._frames, self._received = request, FrameReader(), list[bytes]()
        self.responses: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        try:
            self._received += self._frames.feed(data)
        except WireError as error:
            self._fail(error)
            return
        if len(self._received) >= 2 and not self.responses.done():
            self.responses.set_result(self._received[:2])

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(ConnectionResetError("the connection was closed"))

    def _fail(self, error: Exception) -> None:
        if not self.responses.done():
            self.responses.set_exception(error)

    def close(self) -> None:
        self._transport.abort()
        if self.responses.done() and not self.responses.cancelled():
            self.responses.exception()  # retrieved, also if the caller was cancelled
