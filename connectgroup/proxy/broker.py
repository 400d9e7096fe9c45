"""The broker behind the proxy: its address, its APIs, and whether it can be reached."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Collection, Mapping
from typing import Final, cast

from ..errors import TransportError, UnstableOffsetCommit, WireError
from ..group.offsets.state import Place
from ..protocol.messages.api import Request
from ..protocol.messages.cluster import ApiVersionsRequest, ApiVersionsResponse, FindCoordinatorRequest
from ..protocol.messages.offsets import OffsetFetchRequest, OffsetFetchResponse, TopicToFetch
from ..transport.base import name_lookup_errors, reason
from ..wire.apis import API_VERSIONS, OFFSET_FETCH, decode_response, encode_request
from ..wire.forwarded import METADATA, with_address
from ..wire.framing import FrameReader, frame

CONNECT_TIMEOUT_S: Final = 10.0

_METADATA: Final = struct.pack(">hhihi", METADATA, 1, 1, -1, 0)
"""A Metadata request for no topics: the response lists the brokers."""

_FIND_VERSION: Final = 2
_FETCH_VERSION: Final = 7
"""The first one with ``require_stable``, which brokers from Kafka 2.5 on know."""

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
        request = ApiVersionsRequest(client_software_name="connectgroup-proxy", client_software_version="1")
        try:
            first, second = await self._exchange(_encoded(request, _VERSION), _METADATA)
            _, response = decode_response(first, api_key=API_VERSIONS, version=_VERSION)
            _, nodes = with_address(second, METADATA, 1, "", 0)
        except (TimeoutError, WireError, ConnectionError) as error:
            hint = "is it the PLAINTEXT listener of a Kafka broker?"
            raise TransportError(f"broker {self.address}: no valid response to ApiVersions; {hint}") from error
        assert isinstance(response, ApiVersionsResponse)
        self.api_versions, self.node_id = response, next(iter(nodes), 0)
        self.endpoints = tuple(nodes.values())

    async def create_offsets(self) -> None:
        """Have the broker create the topic of its committed offsets, if there is none: only this request does."""
        find = _encoded(FindCoordinatorRequest(key="connectgroup", key_type=0), _FIND_VERSION)
        await self._exchange(find)

    async def tokens(self, group_id: str, places: Collection[Place], *, stable: bool) -> Mapping[Place, str | None]:
        """Implements ``coordinator.transactions.BrokerOffsets``."""
        by_topic: dict[str, list[int]] = {}
        for name, partition in sorted(places):
            by_topic.setdefault(name, []).append(partition)
        topics = tuple(TopicToFetch(name=name, partition_indexes=tuple(each)) for name, each in by_topic.items())
        request = OffsetFetchRequest(group_id=group_id, topics=topics, require_stable=stable)
        [data] = await self._exchange(_encoded(request, _FETCH_VERSION))
        _, response = decode_response(data, api_key=OFFSET_FETCH, version=_FETCH_VERSION)
        assert isinstance(response, OffsetFetchResponse)
        if response.error_code:
            raise TransportError(f"broker {self.address}: OffsetFetch: error {response.error_code}")
        found: dict[Place, str | None] = {}
        for topic in response.topics:
            for each in topic.partitions:
                if each.error_code == UnstableOffsetCommit.code:
                    found[topic.name, each.partition_index] = None
                elif not each.error_code:
                    token = (each.metadata or "") if each.committed_offset >= 0 else ""
                    found[topic.name, each.partition_index] = token
        return found

    async def _exchange(self, *requests: bytes) -> list[bytes]:
        """Send requests on a new connection; return the responses.

        Raises:
            TransportError: the broker cannot be reached.
            TimeoutError, ConnectionError, WireError: it does not respond.
        """
        asking = _Question(b"".join(map(frame, requests)), len(requests))
        await self.connect(asking)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                return await asking.responses
        finally:
            asking.close()

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


def _encoded(request: Request, version: int) -> bytes:
    return encode_request(request, version=version, correlation_id=0, client_id="connectgroup-proxy")


class _Question(asyncio.Protocol):
    """Sends requests and receives their responses."""

    def __init__(self, requests: bytes, count: int) -> None:
        self._requests, self._count = requests, count
        self._frames, self._received = FrameReader(), list[bytes]()
        self.responses: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        self._transport = transport
        transport.write(self._requests)

    def data_received(self, data: bytes) -> None:
        try:
            self._received += self._frames.feed(data)
        except WireError as error:
            self._fail(error)
            return
        if len(self._received) >= self._count and not self.responses.done():
            self.responses.set_result(self._received[: self._count])

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(ConnectionResetError("the connection was closed"))

    def _fail(self, error: Exception) -> None:
        if not self.responses.done():
            self.responses.set_exception(error)

    def close(self) -> None:
        self._transport.abort()
        if self.responses.done() and not self.responses.cancelled():
            self.responses.exception()  # retrieved, also if the caller was cancelled
