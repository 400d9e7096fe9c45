"""The relay of one client connection: its own connection to the broker, which is opened with the first request.

Requests and responses pass byte for byte, with their correlation ids, in order. Changed are the addresses of brokers
and of coordinators of transactions: they become those of the proxy's ports for them. A TxnOffsetCommit goes to the
broker as one of a sender that is not a member, with a token instead of the metadata (``coordinator.transactions``);
what the broker has accepted is then committed to the group here, which checks the member. In this order, an offset
whose commit has failed is never part of the transaction of a client that ends it only after all its commits have
succeeded.
"""

from __future__ import annotations

import asyncio
import logging
import math
import uuid
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar, cast

from ..errors import NotCoordinator, TransportError, WireError
from ..protocol.messages.api import Response
from ..protocol.messages.cluster import (
    ApiVersion,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    FoundCoordinator,
)
from ..protocol.messages.offsets import (
    NO_GENERATION,
    CommitInTransaction,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from ..threads import NoThread, off_loop
from ..transport.tcp_connection import Connection
from ..wire.apis import (
    APIS,
    FIND_COORDINATOR,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    TXN_OFFSET_COMMIT,
    DecodedRequest,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from ..wire.forwarded import (
    CHANGES_TOPICS,
    DESCRIBE_CLUSTER,
    END_TXN,
    ENDPOINTS_FROM,
    MAX_VERSIONS,
    METADATA,
    Address,
    Header,
    brokers_in,
    expects_response,
    read_header,
    with_addresses,
    with_endpoints,
)
from ..wire.primitives import FrameReader, frame
from .broker import Broker, Cluster

TRANSACTION: Final = 1
"""FindCoordinator's key type for transactions."""

MAX_INT16: Final = (1 << 15) - 1
MAX_RESPONSE_BYTES: Final = 1 << 30
MAX_UNSENT_BYTES: Final = 1 << 20

LARGE_BYTES: Final = 16 * 1024
"""A larger response to a TxnOffsetCommit is of some thousand partitions, which take 10 ms or more."""

T = TypeVar("T")

Respond = Callable[[bytes | None], None]

logger = logging.getLogger(__name__)


class Proxy(Protocol):
    """What a relay needs of the proxy."""

    cluster: Cluster

    @property
    def authenticates(self) -> bool:
        """Whether the proxy authenticates its clients itself; otherwise the broker does."""

    def address_of(self, node_id: int) -> Address:
        """Host and port that clients of a broker are sent to."""

    def on_brokers(self, brokers: Mapping[int, Address]) -> None:
        """A response lists these brokers: host and port of each by its node id."""

    def on_topics_changed(self) -> None:
        """A client has created, changed or deleted topics."""

    def on_transactions(self) -> None:
        """A client looks for the coordinator of its transactions."""

    def on_transaction_ended(self) -> None:
        """The broker has accepted the end of a transaction."""

    async def commit_in_transaction(self, commit: CommitInTransaction) -> TxnOffsetCommitResponse:
        """Commit offsets that the broker has accepted to the group."""

    def refuses_commit(self, request: TxnOffsetCommitRequest, connection: Connection) -> Response | None:
        """The response to a TxnOffsetCommit that the broker must not get; ``None``: it is to get it."""

    def count_to_forward(self, relay: BrokerRelay, size: int) -> None:
        """Note how many bytes a relay holds until it is connected, 0 for none. Above the limit of all relays, the
        client of the one with the most loses its connection."""

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine in the background."""


class _Pending(NamedTuple):
    """A forwarded request without its response."""

    header: Header
    respond: Respond


class BrokerRelay(asyncio.Protocol):
    """Implements ``transport.base.Relay`` on one connection to a broker.

    Attributes:
        connection: of the client.
    """

    def __init__(self, proxy: Proxy, broker: Broker, on_writable: Callable[[], None], connection: Connection) -> None:
        """``on_writable``: called when ``is_writable`` may have become true; ``connection``: of the client."""
        self._proxy, self._broker, self._on_writable, self.connection = proxy, broker, on_writable, connection
        self._loop = asyncio.get_running_loop()
        self._lives_until = math.inf  # changed by _connect
        # To the brokers that have the offsets which transactions of this client commit; changed by _relay_to.
        self._others: dict[Broker, BrokerRelay] = {}
        self._transport: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._pending: deque[_Pending] = deque()
        self._frames = FrameReader(MAX_RESPONSE_BYTES)
        self._paused = self._closed = self._choked = False
        # A TxnOffsetCommit, and what _rewritten has made of it. Changed by prepare and commit_in_transaction.
        self._prepared: tuple[DecodedRequest, tuple[str, bytes]] | None = None

    # ---- from the client

    @property
    def is_writable(self) -> bool:
        """False while the broker does not read what was forwarded, or much is to be sent once it is connected."""
        return not self._choked and self._unsent_bytes <= MAX_UNSENT_BYTES

    def forward(self, data: bytes, defer: Callable[[], Respond]) -> bool:
        header = read_header(data)
        if header is None:
            return False
        if header.api_key == FIND_COORDINATOR:
            if not _is_for_transactions(data):
                return False
            self._proxy.on_transactions()
        elif not is_forwarded(header.api_key) or (header.api_key in OF_BROKER and self._proxy.authenticates):
            return False
        try:
            if not expects_response(data):
                self._send(data)
                return True
        except WireError as error:
            logger.warning("closed: %s", error)
            defer()(None)
            return True
        self._request(data, header, defer())
        return True

    def prepare(self, decoded: DecodedRequest) -> None:
        if isinstance(decoded.request, TxnOffsetCommitRequest):
            self._prepared = decoded, _rewritten(decoded)

    def commit_in_transaction(self, decoded: DecodedRequest, respond: Respond) -> None:
        request, header = decoded.request, Header(decoded.api_key, decoded.version, decoded.correlation_id)
        assert isinstance(request, TxnOffsetCommitRequest)
        prepared, self._prepared = self._prepared, None
        if prepared is not None and prepared[0] is decoded:
            token, to_broker = prepared[1]
        else:
            token, to_broker = _rewritten(decoded)
        if (refused := self._proxy.refuses_commit(request, self.connection)) is not None:
            respond(
                encode_response(
                    refused, api_key=header.api_key, version=header.version, correlation_id=header.correlation_id
                )
            )
            return

        def on_response(response: bytes | None) -> None:
            if response is None:
                respond(None)
            else:
                self._proxy.spawn(self._on_committed(request, token, header, response, respond))

        if self._proxy.cluster.has_several:
            self._proxy.spawn(self._to_coordinator(request.group_id, to_broker, header, on_response))
        else:
            self._request(to_broker, header, on_response)

    async def _to_coordinator(self, group_id: str, data: bytes, header: Header, respond: Respond) -> None:
        """Send a TxnOffsetCommit to the broker that has the offsets which transactions commit for the group."""
        try:
            broker = await self._proxy.cluster.coordinator_of(group_id)
        except (TransportError, TimeoutError, ConnectionError, WireError) as error:
            logger.warning("closed: %s", error or type(error).__name__)
            respond(None)
            return
        if self._closed:
            respond(None)
            return
        self._relay_to(broker)._request(data, header, respond)

    def _relay_to(self, broker: Broker) -> BrokerRelay:
        if broker is self._broker:
            return self
        if broker not in self._others:
            self._others[broker] = BrokerRelay(self._proxy, broker, lambda: None, self.connection)
        return self._others[broker]

    async def _on_committed(
        self, request: TxnOffsetCommitRequest, token: str, header: Header, data: bytes, respond: Respond
    ) -> None:
        is_large = len(data) > LARGE_BYTES

        def decode() -> tuple[TxnOffsetCommitResponse, TxnOffsetCommitRequest, bool]:
            _, of_broker = decode_response(data, api_key=header.api_key, version=header.version)
            assert isinstance(of_broker, TxnOffsetCommitResponse)
            codes = {each.error_code for topic in of_broker.topics for each in topic.partitions}
            return of_broker, accepted_of(request, of_broker), NotCoordinator.code in codes

        def encode(of_broker: TxnOffsetCommitResponse, ours: TxnOffsetCommitResponse | None) -> bytes:
            response = of_broker if ours is None else with_errors(of_broker, ours)
            return encode_response(
                response, api_key=header.api_key, version=header.version, correlation_id=header.correlation_id
            )

        try:
            of_broker, accepted, is_moved = await _called(decode, off_the_loop=is_large)
            if is_moved:
                self._proxy.cluster.forget_coordinator(request.group_id)
            ours = None
            if accepted.topics:
                ours = await self._proxy.commit_in_transaction(CommitInTransaction(request=accepted, token=token))
            answer = await _called(partial(encode, of_broker, ours), off_the_loop=is_large)
        except Exception:
            logger.exception("a TxnOffsetCommit failed")
            respond(None)
            return
        respond(answer)

    def _request(self, data: bytes, header: Header, respond: Respond) -> None:
        if self._closed:
            respond(None)
            return
        self._send(data)
        self._pending.append(_Pending(header, respond))

    def _send(self, data: bytes) -> None:
        if self._transport is not None and not self._pending and self._loop.time() >= self._lives_until:
            self._drop()
        if self._transport is not None:
            self._transport.write(frame(data))
            return
        self._unsent.append(frame(data))
        self._unsent_bytes += len(data)
        self._proxy.count_to_forward(self, self._unsent_bytes)
        if self._connecting is None:
            self._connecting = self._proxy.spawn(self._connect())

    def _drop(self) -> None:
        """Give up a connection that the broker is about to close; no request is pending."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.set_protocol(asyncio.Protocol())  # its end is not that of the next connection
            transport.abort()

    async def _connect(self) -> None:
        broker = self._broker
        try:
            lives_until = await broker.connect(self)
        except TransportError as error:
            self._connecting = None
            self._fail(str(error))
            return
        self._lives_until = lives_until or math.inf
        self._connecting = None
        await self._proxy.cluster.on_connected(broker)

    def pause(self) -> None:
        self._paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        self._paused = False
        if self._transport is not None:
            self._transport.resume_reading()

    def close(self) -> None:
        self._closed = True
        for each in self._others.values():
            each.close()
        if self._connecting is not None:
            self._connecting.cancel()
        if self._transport is not None:
            self._transport.abort()
        # The client is gone, and its connection counts until each of its requests has an answer.
        self._drop_pending()

    # ---- from the broker

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        if self._closed:
            transport.abort()
            return
        self._transport = transport
        self._frames = FrameReader(MAX_RESPONSE_BYTES)
        transport.set_write_buffer_limits(high=MAX_UNSENT_BYTES)
        if self._paused:
            transport.pause_reading()
        transport.writelines(self._take_unsent())
        self._on_writable()

    def data_received(self, data: bytes) -> None:
        if self._closed:
            return
        try:
            for response in self._frames.feed(data):
                self._on_response(response)
        except WireError as error:
            self._fail(f"broker {self._broker.address}: {error}")
            if self._transport is not None:
                self._transport.abort()

    def _on_response(self, data: bytes) -> None:
        if not self._pending:
            raise WireError("a response without a request")
        header, respond = self._pending[0]
        if int.from_bytes(data[:4], "big", signed=True) != header.correlation_id:
            raise WireError(f"a response to another request than API {header.api_key} v{header.version}")
        address_of = self._proxy.address_of
        if header.api_key in (METADATA, DESCRIBE_CLUSTER):
            self._proxy.on_brokers(brokers_in(data, header.api_key, header.version))
            data = with_addresses(data, header.api_key, header.version, lambda node, _: address_of(node))
        elif header.api_key == FIND_COORDINATOR:
            data = _found(data, header, address_of)
        elif header.version >= ENDPOINTS_FROM.get(header.api_key, MAX_INT16) and self._proxy.cluster.occurs_in(data):
            # Records may contain the address, too: only a list of new leaders is changed.
            data = with_endpoints(data, header.api_key, header.version, address_of)
        elif header.api_key in CHANGES_TOPICS:
            self._proxy.on_topics_changed()
        elif header.api_key == END_TXN:
            self._proxy.on_transaction_ended()
        self._pending.popleft()
        respond(data)

    def pause_writing(self) -> None:
        self._choked = True

    def resume_writing(self) -> None:
        self._choked = False
        self._on_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._choked = False
        if self._pending:
            # Without pending requests the broker may have closed an idle connection.
            self._fail(f"broker {self._broker.address}: connection lost")

    def _fail(self, why: str) -> None:
        """The pending requests get no response: their client's connection is closed, and the client retries."""
        self._broker.on_lost(why)
        self._drop_pending()
        if not self._closed:
            self._on_writable()

    def _take_unsent(self) -> list[bytes]:
        """What was to be sent once the relay is connected."""
        unsent, self._unsent, self._unsent_bytes = self._unsent, [], 0
        self._proxy.count_to_forward(self, 0)
        return unsent

    def _drop_pending(self) -> None:
        pending, self._pending = self._pending, deque()
        self._take_unsent()
        for each in pending:
            each.respond(None)


async def _called(function: Callable[[], T], *, off_the_loop: bool) -> T:
    """The result of a function, which is called in a thread if it takes long and there is one."""
    if off_the_loop:
        with suppress(NoThread):
            return await off_loop("the offsets of a transaction", function)
    return function()


def _rewritten(decoded: DecodedRequest) -> tuple[str, bytes]:
    """A new token, and the TxnOffsetCommit that the broker gets."""
    request, token = decoded.request, uuid.uuid4().hex
    assert isinstance(request, TxnOffsetCommitRequest)
    return token, encode_request(
        for_broker(request, token),
        version=decoded.version,
        correlation_id=decoded.correlation_id,
        client_id=decoded.client_id,
    )


def for_broker(request: TxnOffsetCommitRequest, token: str) -> TxnOffsetCommitRequest:
    """The request that the broker gets: of no member, with the token as metadata."""
    topics = tuple(
        replace(
            topic,
            partitions=tuple(replace(each, committed_metadata=token) for each in topic.partitions),
        )
        for topic in request.topics
    )
    return replace(request, generation_id=NO_GENERATION, member_id="", group_instance_id=None, topics=topics)


def accepted_of(request: TxnOffsetCommitRequest, response: TxnOffsetCommitResponse) -> TxnOffsetCommitRequest:
    """The partitions of a request that the broker has accepted."""
    accepted = {
        (topic.name, each.partition_index)
        for topic in response.topics
        for each in topic.partitions
        if not each.error_code
    }
    topics = (
        replace(
            topic,
            partitions=tuple(each for each in topic.partitions if (topic.name, each.partition_index) in accepted),
        )
        for topic in request.topics
    )
    return replace(request, topics=tuple(topic for topic in topics if topic.partitions))


def with_errors(response: TxnOffsetCommitResponse, ours: TxnOffsetCommitResponse) -> TxnOffsetCommitResponse:
    """The response of the broker with the errors of the group."""
    codes = {(topic.name, each.partition_index): each.error_code for topic in ours.topics for each in topic.partitions}
    topics = tuple(
        replace(
            topic,
            partitions=tuple(
                replace(each, error_code=codes.get((topic.name, each.partition_index), each.error_code))
                for each in topic.partitions
            ),
        )
        for topic in response.topics
    )
    return replace(response, topics=topics)


def _is_for_transactions(data: bytes) -> bool:
    try:
        request = decode_request(data).request
    except WireError:
        return False  # the server responds with the error
    return isinstance(request, FindCoordinatorRequest) and request.key_type == TRANSACTION


def _found(data: bytes, header: Header, address_of: Callable[[int], Address]) -> bytes:
    """A response of FindCoordinator in which every coordinator has an address of the proxy."""
    correlation_id, found = decode_response(data, api_key=header.api_key, version=header.version)
    assert isinstance(found, FindCoordinatorResponse)
    if found.node_id >= 0:
        host, port = address_of(found.node_id)
        found = replace(found, host=host, port=port)
    coordinators: list[FoundCoordinator] = []
    for each in found.coordinators:
        host, port = address_of(each.node_id) if each.node_id >= 0 else (each.host, each.port)
        coordinators.append(replace(each, host=host, port=port))
    found = replace(found, coordinators=tuple(coordinators))
    return encode_response(found, api_key=header.api_key, version=header.version, correlation_id=correlation_id)


# --------------------------------------------------------------------------------------------------
# Which APIs the proxy handles itself, forwards, or hides, and the response to ApiVersions that results.


GROUP_APIS: Final = frozenset(
    (
        *(8, 9, FIND_COORDINATOR),  # OffsetCommit, OffsetFetch
        *range(11, 17),  # JoinGroup, Heartbeat, LeaveGroup, SyncGroup, DescribeGroups, ListGroups
        *(TXN_OFFSET_COMMIT, 42, 47),  # and DeleteGroups, OffsetDelete
        *(68, 69),  # ConsumerGroupHeartbeat, ConsumerGroupDescribe
        *range(76, 80),  # ShareGroupHeartbeat, ShareGroupDescribe, ShareFetch, ShareAcknowledge
        *range(83, 93),  # share group state and offsets, StreamsGroupHeartbeat, StreamsGroupDescribe
    )
)
"""Kafka's APIs about groups. The broker would apply them to groups of its own: those not served here are hidden."""


OF_BROKER: Final = frozenset((SASL_HANDSHAKE, SASL_AUTHENTICATE))
"""APIs of a coordinator that the proxy forwards: its clients authenticate to the broker, which has the data."""


def is_forwarded(api_key: int) -> bool:
    """Whether the broker handles the API. FindCoordinator is forwarded for transactions, TxnOffsetCommit is handled by
    both (``relay``)."""
    return (api_key not in APIS and api_key not in GROUP_APIS) or api_key in OF_BROKER


def merged(broker: ApiVersionsResponse, *, authenticates: bool = False) -> ApiVersionsResponse:
    """The APIs of a broker, with those of the coordinator in their place.

    Args:
        authenticates: whether the proxy authenticates its clients itself.
    """
    api_keys = tuple(_merged(broker.api_keys, frozenset() if authenticates else OF_BROKER))
    return replace(broker, error_code=0, throttle_time_ms=0, api_keys=api_keys)


def _merged(of_broker: Iterable[ApiVersion], forwarded: Collection[int]) -> Iterable[ApiVersion]:
    ranges = {api.api_key: (api.min_version, api.max_version) for api in of_broker}
    shown = {
        key: (api.versions[0], api.versions[-1])
        for key, api in APIS.items()
        if key not in (FIND_COORDINATOR, TXN_OFFSET_COMMIT, *forwarded)
    }
    for key, (low, high) in ranges.items():
        if key in (FIND_COORDINATOR, TXN_OFFSET_COMMIT):
            # The broker responds to requests for the coordinators of transactions, and takes part in their commits.
            known = APIS[key].versions
            low, high = max(low, known[0]), min(high, known[-1])
        elif not is_forwarded(key) or (key in OF_BROKER and key not in forwarded):
            continue
        high = min(high, MAX_VERSIONS.get(key, high))
        if low <= high:
            shown[key] = (low, high)
    for key in sorted(shown):
        yield ApiVersion(api_key=key, min_version=shown[key][0], max_version=shown[key][1])
