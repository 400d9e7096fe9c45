"""The brokers behind the proxy: their addresses and APIs, TLS and SASL to them, and whether they can be reached."""

from __future__ import annotations

import asyncio
import logging
import math
import struct
from collections.abc import Collection, Mapping, Sequence
from typing import Final, cast

from ..consumer.client import BROKER, SHARE_OF_SESSION
from ..consumer.security import PLAINTEXT, BrokerSecurity
from ..errors import NotCoordinator, TransportError, UnstableOffsetCommit, WireError
from ..group.offsets import Place
from ..protocol.messages.api import Request
from ..protocol.messages.cluster import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from ..protocol.messages.offsets import OffsetFetchRequest, OffsetFetchResponse, TopicToFetch
from ..transport.base import name_lookup_errors, reason
from ..transport.credentials import log_in
from ..transport.tcp_client import Link
from ..wire.apis import API_VERSIONS, FIND_COORDINATOR, OFFSET_FETCH, decode_response, encode_request
from ..wire.forwarded import METADATA, brokers_in, endpoint
from ..wire.primitives import FrameReader, frame

CONNECT_TIMEOUT_S: Final = 10.0

_METADATA: Final = struct.pack(">hhihi", METADATA, 1, 1, -1, 0)
"""A Metadata request for no topics: the response lists the brokers."""

_FIND_VERSION: Final = 2
_FETCH_VERSION: Final = 7
"""The first one with ``require_stable``, which brokers from Kafka 2.5 on know."""

_VERSION: Final = 3
"""The version of ApiVersions that the proxy sends: a later one lists features that older clients reject."""

MAX_COORDINATORS: Final = 10_000
"""Groups whose coordinator is remembered."""

logger = logging.getLogger(__name__)


Address = tuple[str, int]

CREDENTIALS: Final = "sasl.username and sasl.password of broker_config that the brokers know"


class Broker:
    """One Kafka broker, or, with several addresses, any of a cluster.

    Attributes:
        addresses: host and port of each, the one that is tried first at the beginning; ``connect`` changes the order,
            and ``Cluster`` the address of a broker that has moved.
    """

    def __init__(self, addresses: Sequence[Address], security: BrokerSecurity = PLAINTEXT) -> None:
        """``security``: TLS and SASL."""
        self.addresses = list(addresses)
        self._security = security
        self._lost = False  # changed by on_connected and on_lost

    @property
    def address(self) -> str:
        host, port = self.addresses[0]
        return f"{host}:{port}"

    async def connect(self, protocol: asyncio.Protocol) -> float:
        """Open one connection, and log in if there are credentials.

        Returns:
            Until when it may be used, on the loop's clock: the broker closes it then (KIP-368).

        Raises:
            TransportError: the broker cannot be reached, or rejects the credentials; the message names it and the
                reason.
        """
        for left in reversed(range(len(self.addresses))):
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    return await self._open(protocol)
            except TimeoutError as error:
                problem = TransportError(f"broker {self.address}: no connection in {CONNECT_TIMEOUT_S:g} s")
                problem.__cause__ = error
            except (OSError, ValueError, OverflowError) as error:  # the host is not a name, or the port no port
                problem = TransportError(f"broker {self.address}: cannot connect: {reason(error)}")
                problem.__cause__ = error
            except TransportError as error:
                problem = type(error)(f"broker {error}")
            if not left:
                raise problem
            self.addresses.append(self.addresses.pop(0))
        raise AssertionError("a broker without addresses")

    async def _open(self, protocol: asyncio.Protocol) -> float:
        (host, port), security, loop = self.addresses[0], self._security, asyncio.get_running_loop()
        if security.credentials is None:
            with name_lookup_errors(host):
                await loop.create_connection(lambda: protocol, host, port, ssl=security.tls)
            return math.inf
        hint = f"is it the broker's {security.protocol.upper()} listener?"
        link = Link(self.address, "connectgroup-proxy", BROKER, hint=hint)
        try:
            await link.connect(host, port, security.tls)
            lifetime_ms = await log_in(
                self.address, security.credentials, link.send, mechanism=security.mechanism, allowed=CREDENTIALS
            )
        except BaseException:
            link.abandon("not authenticated")
            raise
        transport = link.transport
        if transport is None or link.lost:
            raise TransportError(f"{self.address}: {link.lost or 'connection lost'}")
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        return loop.time() + lifetime_ms / 1000 * SHARE_OF_SESSION if lifetime_ms else math.inf

    async def streams(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, float]:
        """A connection as streams, and until when it may be used. Raises as ``connect``."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(loop=loop)
        protocol = _Streams(reader)
        lives_until = await self.connect(protocol)
        return reader, asyncio.StreamWriter(protocol.transport, protocol, reader, loop), lives_until

    async def exchange(self, *requests: bytes) -> list[bytes]:
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

    def on_connected(self) -> bool:
        """A client's connection to the broker is open; returns whether the broker had been lost, and notes it."""
        was_lost, self._lost = self._lost, False
        if was_lost:
            logger.warning("broker %s: reached again", self.address)
        return was_lost

    def on_lost(self, why: str) -> None:
        """A connection failed or could not be opened: log it once until the broker is reached again."""
        if not self._lost:
            self._lost = True
            logger.error("%s; groups are served without it", why)


class _Streams(asyncio.StreamReaderProtocol):
    """The protocol of streams, which keeps its transport."""

    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        super().connection_made(transport)


class Cluster:
    """The brokers of a cluster.

    Attributes:
        bootstrap: any of the brokers: at the configured addresses, or, of a cluster of several, at those it lists.
        nodes: the brokers by node id, as the latest Metadata lists them; the one of a cluster with a single broker is
            ``bootstrap``. ``on_brokers`` changes it.
        has_several: whether there is, or has been, more than one broker. ``on_brokers`` changes it.
        api_versions: the latest response of ``bootstrap`` to ApiVersions.
        endpoints: the addresses of all brokers, as they occur in responses.
    """

    def __init__(self, addresses: Sequence[Address], security: BrokerSecurity = PLAINTEXT) -> None:
        """``addresses``: of some of the brokers; ``security``: TLS and SASL to all of them."""
        self._security = security
        self.bootstrap = Broker(addresses, security)
        self.nodes: dict[int, Broker] = {}
        self.has_several = False
        self._configured = frozenset(addresses)
        self.api_versions = ApiVersionsResponse()
        self.endpoints: tuple[bytes, ...] = ()
        self._coordinators: dict[str, int] = {}  # node ids by group; changed by coordinator_of and forget_coordinator

    @property
    def node_id(self) -> int:
        """A node id that Metadata lists."""
        return min(self.nodes, default=0)

    async def ask(self) -> None:
        """Update ``api_versions`` and ``nodes``.

        Raises:
            TransportError: no broker can be reached, or it does not respond as a Kafka broker does.
        """
        request = ApiVersionsRequest(client_software_name="connectgroup-proxy", client_software_version="1")
        try:
            first, second = await self.bootstrap.exchange(_encoded(request, _VERSION), _METADATA)
            _, response = decode_response(first, api_key=API_VERSIONS, version=_VERSION)
            brokers = brokers_in(second, METADATA, 1)
        except (TimeoutError, WireError, ConnectionError) as error:
            hint = f"is it the {self._security.protocol.upper()} listener of a Kafka broker?"
            problem = f"broker {self.bootstrap.address}: no valid response to ApiVersions; {hint}"
            raise TransportError(problem) from error
        assert isinstance(response, ApiVersionsResponse)
        self.api_versions = response
        self.on_brokers(brokers)

    def on_brokers(self, brokers: Mapping[int, Address]) -> None:
        """A response of Metadata lists these brokers."""
        self.endpoints = tuple(endpoint(*each) for each in brokers.values())
        # A broker that is down is not listed: the others keep their ports.
        self.has_several = self.has_several or len(brokers) > 1
        if not self.has_several:
            self.nodes = dict.fromkeys(brokers, self.bootstrap)
            return
        nodes: dict[int, Broker] = {}
        for node, address in brokers.items():
            known = self.nodes.get(node)
            if known is None or known is self.bootstrap:
                known = Broker([address], self._security)
            known.addresses = [address]
            nodes[node] = known
        self.nodes = nodes
        usable = self._configured | {*brokers.values()}
        kept = [each for each in self.bootstrap.addresses if each in usable]
        self.bootstrap.addresses = kept + sorted({*brokers.values()} - {*kept})

    async def on_connected(self, broker: Broker) -> None:
        """A client's connection to a broker is open."""
        if broker.on_connected():
            # It may be of another version now.
            try:
                await self.ask()
            except TransportError as error:
                broker.on_lost(str(error))

    async def create_offsets(self) -> None:
        """Have a broker create the topic of its committed offsets, if there is none: only this request does."""
        find = _encoded(FindCoordinatorRequest(key="connectgroup", key_type=0), _FIND_VERSION)
        await self.bootstrap.exchange(find)

    async def coordinator_of(self, group_id: str) -> Broker:
        """The broker that has the offsets which transactions commit for a group.

        Raises:
            TransportError: it is not known at present.
            TimeoutError, ConnectionError, WireError: no broker responds.
        """
        if not self.has_several:
            return self.bootstrap
        node = self._coordinators.get(group_id)
        if node is None or node not in self.nodes:
            find = _encoded(FindCoordinatorRequest(key=group_id, key_type=0), _FIND_VERSION)
            [data] = await self.bootstrap.exchange(find)
            _, found = decode_response(data, api_key=FIND_COORDINATOR, version=_FIND_VERSION)
            assert isinstance(found, FindCoordinatorResponse)
            if found.error_code or found.node_id not in self.nodes:
                raise TransportError(f"broker {self.bootstrap.address}: FindCoordinator: error {found.error_code}")
            if len(self._coordinators) >= MAX_COORDINATORS:
                self._coordinators.clear()
            node = self._coordinators[group_id] = found.node_id
        return self.nodes[node]

    def forget_coordinator(self, group_id: str) -> None:
        """The broker responded that it does not own the offsets of a group."""
        self._coordinators.pop(group_id, None)

    async def tokens(self, group_id: str, places: Collection[Place], *, stable: bool) -> Mapping[Place, str | None]:
        """Implements ``coordinator.transactions.BrokerOffsets``."""
        by_topic: dict[str, list[int]] = {}
        for name, partition in sorted(places):
            by_topic.setdefault(name, []).append(partition)
        topics = tuple(TopicToFetch(name=name, partition_indexes=tuple(each)) for name, each in by_topic.items())
        request = OffsetFetchRequest(group_id=group_id, topics=topics, require_stable=stable)
        broker = await self.coordinator_of(group_id)
        [data] = await broker.exchange(_encoded(request, _FETCH_VERSION))
        _, response = decode_response(data, api_key=OFFSET_FETCH, version=_FETCH_VERSION)
        assert isinstance(response, OffsetFetchResponse)
        if response.error_code:
            if response.error_code == NotCoordinator.code:
                self.forget_coordinator(group_id)
            raise TransportError(f"broker {broker.address}: OffsetFetch: error {response.error_code}")
        found: dict[Place, str | None] = {}
        for topic in response.topics:
            for each in topic.partitions:
                if each.error_code == UnstableOffsetCommit.code:
                    found[topic.name, each.partition_index] = None
                elif not each.error_code:
                    token = (each.metadata or "") if each.committed_offset >= 0 else ""
                    found[topic.name, each.partition_index] = token
        return found

    def occurs_in(self, data: bytes) -> bool:
        """Whether the address of a broker occurs in a response."""
        return any(each in data for each in self.endpoints)


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
