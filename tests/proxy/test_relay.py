"""The proxy without Kafka: a small broker that echoes, so that each byte and each failure can be checked."""

from __future__ import annotations

import asyncio
import logging
import ssl
import struct
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from connectgroup.config.coordinator import ProxyConfig
from connectgroup.errors import ConfigError, TransportError
from connectgroup.protocol.messages.classic import JoinGroupRequest, OfferedProtocol
from connectgroup.protocol.messages.cluster import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    FoundCoordinator,
)
from connectgroup.protocol.messages.offsets import (
    PartitionCommit,
    PartitionCommitted,
    TopicCommit,
    TopicCommitted,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from connectgroup.proxy import relay, server
from connectgroup.proxy.relay import for_broker
from connectgroup.proxy.server import ProxyServer
from connectgroup.topics import StaticTopics
from connectgroup.wire.apis import decode_request, decode_response, encode_request, encode_response
from connectgroup.wire.forwarded import endpoint
from connectgroup.wire.primitives import frame

pytestmark = pytest.mark.asyncio

FETCH, METADATA, FIND_COORDINATOR, JOIN_GROUP, API_VERSIONS, TXN_OFFSET_COMMIT = 1, 3, 10, 11, 18, 28
SHARE_GROUP_HEARTBEAT = 76
BROKER_APIS = {0: 12, FETCH: 17, METADATA: 99, 8: 10, 9: 10, FIND_COORDINATOR: 6, API_VERSIONS: 4, 25: 4, 28: 5, 76: 1}


LARGE = b"large"
"""The end of a request with a large response."""


NOT_LEADER = b"not leader"
"""The end of a Produce with a response that names a new leader."""


NO_ACKS = struct.pack(">hhh", -1, -1, 0)
"""Client id, transactional id and acks of a Produce v3 without acknowledgement."""

WRONG = b"wrong"
"""The end of a request that gets the response to another one."""


class SmallBroker:
    """Responds to each request with its own bytes behind the correlation id.

    Attributes:
        received: the requests, without ApiVersions and Metadata.
        gate: responses wait for it.
        tls: of its port; null for plain text.
        answered: the number of responses that the peers have taken, as far as the operating system buffers them.
        connections: the number of connections so far.
    """

    def __init__(self, nodes: dict[int, SmallBroker] | None = None) -> None:
        """``nodes``: the brokers of its cluster, as Metadata lists them; a single one, with id 3, if null."""
        self.nodes = nodes
        self.received: list[bytes] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self._arrived = asyncio.Event()
        self.connections = self.answered = 0
        self.port = 0
        self.tls: ssl.SSLContext | None = None
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await self._server.wait_closed()

    async def until_received(self, count: int) -> None:
        """Wait until this many requests have arrived."""
        while len(self.received) < count:
            self._arrived.clear()
            await self._arrived.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                data = await reader.readexactly(size)
                api_key, version, correlation_id = struct.unpack_from(">hhi", data)
                if api_key not in (API_VERSIONS, METADATA):
                    self.received.append(data)
                    self._arrived.set()
                if data[8:].startswith(NO_ACKS):
                    continue
                await self.gate.wait()
                writer.write(frame(self._response(api_key, version, correlation_id, data)))
                await writer.drain()
                self.answered += 1
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    def _response(self, api_key: int, version: int, correlation_id: int, data: bytes) -> bytes:
        head = struct.pack(">i", correlation_id + data.endswith(WRONG))
        if api_key == API_VERSIONS:
            keys = tuple(ApiVersion(api_key=key, min_version=0, max_version=high) for key, high in BROKER_APIS.items())
            response = ApiVersionsResponse(api_keys=keys, finalized_features_epoch=7)
            return encode_response(response, api_key=api_key, version=version, correlation_id=correlation_id)
        if api_key == METADATA and self.nodes is not None:
            listed = [
                struct.pack(">ih", node, 9) + b"127.0.0.1" + struct.pack(">ih", broker.port, -1)
                for node, broker in self.nodes.items()
            ]
            return head + struct.pack(">i", len(listed)) + b"".join(listed) + b"rest"
        if api_key == METADATA:  # one broker, node 3
            return head + struct.pack(">iih", 1, 3, 6) + b"broker" + struct.pack(">ih", 9, -1) + b"rest"
        if api_key == FIND_COORDINATOR:
            node = 3 if self.nodes is None else max(self.nodes)
            found = FoundCoordinator(key="t", node_id=node, host="broker", port=9)
            response_ = FindCoordinatorResponse(node_id=node, host="broker", port=9, coordinators=(found,))
            return encode_response(response_, api_key=api_key, version=version, correlation_id=correlation_id)
        if api_key == TXN_OFFSET_COMMIT:
            commit = decode_request(data).request
            assert isinstance(commit, TxnOffsetCommitRequest)
            topics = tuple(
                TopicCommitted(
                    name=topic.name,
                    partitions=tuple(
                        PartitionCommitted(partition_index=each.partition_index, error_code=each.partition_index % 2)
                        for each in topic.partitions
                    ),
                )
                for topic in commit.topics
            )
            accepted = TxnOffsetCommitResponse(topics=topics)
            return encode_response(accepted, api_key=api_key, version=version, correlation_id=correlation_id)
        if data.endswith(NOT_LEADER):
            nodes = b"\2" + struct.pack(">i", 3) + endpoint("broker", 9) + b"\0\0"
            return head + b"\0" + b"\1" + struct.pack(">i", 0) + b"\1\0" + bytes((len(nodes),)) + nodes
        return head + (bytes(1 << 20) if data.endswith(LARGE) else data)


class Peer:
    """A client's connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(frame(data))

    async def read(self) -> bytes:
        (size,) = struct.unpack(">i", await self.reader.readexactly(4))
        return await self.reader.readexactly(size)

    async def ask(self, request: Any, api_key: int, version: int) -> Any:
        self.send(encode_request(request, version=version, correlation_id=1, client_id="c"))
        return decode_response(await self.read(), api_key=api_key, version=version)[1]

    async def is_closed(self) -> bool:
        return await self.reader.read(1) == b""


@asynccontextmanager
async def proxying(**settings: Any) -> AsyncIterator[tuple[SmallBroker, ProxyServer]]:
    broker = SmallBroker()
    await broker.start()
    values = {"initial_rebalance_delay_ms": 0, **settings}
    proxy = ProxyServer(ProxyConfig(broker=f"127.0.0.1:{broker.port}", port=0, **values), topics=StaticTopics({}))
    await proxy.start()
    try:
        yield broker, proxy
    finally:
        await proxy.close()
        await broker.stop()


@asynccontextmanager
async def client(proxy: ProxyServer) -> AsyncIterator[Peer]:
    host, _, port = proxy.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield Peer(reader, writer)
    finally:
        writer.transport.abort()


def connecting_later(proxy: ProxyServer) -> asyncio.Event:
    """Set by a test when the connections to the broker that the proxy begins from now on are to be open."""
    connecting, connect = asyncio.Event(), proxy.broker.connect

    async def connect_later(protocol: asyncio.Protocol) -> float:
        await connecting.wait()
        return await connect(protocol)

    proxy.broker.connect = connect_later  # type: ignore[method-assign]
    return connecting


def fetch(correlation_id: int, body: bytes = b"body") -> bytes:
    return struct.pack(">hhih", FETCH, 17, correlation_id, -1) + body


def join(member_id: str = "", metadata: bytes = b"") -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=(OfferedProtocol(name="range", metadata=metadata),),
        requires_member_id=False,
    )


async def test_forwarded_requests_keep_their_bytes_and_their_order() -> None:
    async with proxying() as (broker, proxy), client(proxy) as peer:
        requests = [fetch(number, bytes([number]) * 70_000) for number in range(40)]
        for request in requests:
            peer.send(request)
        for number, request in enumerate(requests):
            assert await peer.read() == struct.pack(">i", number) + request
        assert broker.received == requests


async def test_each_client_has_one_connection_to_the_broker() -> None:
    async with proxying() as (broker, proxy), client(proxy) as one, client(proxy) as other:
        before = broker.connections
        for peer in (one, other, one):
            peer.send(fetch(1))
            await peer.read()
        assert broker.connections == before + 2


async def test_responses_of_coordinator_and_broker_are_sent_in_request_order() -> None:
    async with proxying() as (broker, proxy), client(proxy) as peer:
        broker.gate.clear()
        peer.send(fetch(1))
        peer.send(encode_request(join(), version=3, correlation_id=2, client_id="c"))
        await asyncio.sleep(0)
        broker.gate.set()
        assert (await peer.read())[:4] == struct.pack(">i", 1)
        assert decode_response(await peer.read(), api_key=JOIN_GROUP, version=3)[0] == 2


async def test_api_versions_lists_the_apis_of_both() -> None:
    async with proxying() as (_, proxy), client(proxy) as peer:
        response = await peer.ask(ApiVersionsRequest(), API_VERSIONS, 3)
        listed = {api.api_key: api.max_version for api in response.api_keys}
        assert (listed[FETCH], listed[JOIN_GROUP], listed[FIND_COORDINATOR]) == (17, 9, 6)
        assert listed[METADATA] == 13, "a later version could not be rewritten"
        assert response.finalized_features_epoch == 7
        assert (listed[25], listed[TXN_OFFSET_COMMIT]) == (4, 5), "both take part in transactions"
        assert 76 not in listed, "group APIs that are not served here are hidden"


async def test_api_versions_of_an_unknown_version_gets_version_0_and_the_connection_stays_open() -> None:
    async with proxying() as (_, proxy), client(proxy) as peer:
        peer.send(struct.pack(">hhi", API_VERSIONS, 5, 9) + b"\xff\xff whatever")
        correlation_id, response = decode_response(await peer.read(), api_key=API_VERSIONS, version=0)
        assert isinstance(response, ApiVersionsResponse)
        assert (correlation_id, response.error_code) == (9, 35)
        assert (await peer.ask(ApiVersionsRequest(), API_VERSIONS, 4)).error_code == 0


async def test_metadata_lists_the_proxy() -> None:
    async with proxying(advertised_host="proxy.example", advertised_port=7) as (_, proxy), client(proxy) as peer:
        peer.send(struct.pack(">hhihi", METADATA, 1, 5, -1, 0))
        host = struct.pack(">h", 13) + b"proxy.example" + struct.pack(">i", 7)
        assert await peer.read() == struct.pack(">iii", 5, 1, 3) + host + struct.pack(">h", -1) + b"rest"


async def test_new_leader_in_a_response_is_the_proxy() -> None:
    """KIP-951: after NOT_LEADER_OR_FOLLOWER, librdkafka went past the proxy to the broker, and wrote records twice."""
    async with proxying(advertised_host="p", advertised_port=7) as (_, proxy), client(proxy) as peer:
        peer.send(struct.pack(">hhihhh", 0, 10, 5, -1, 0, -1) + NOT_LEADER)
        received = await peer.read()
        assert endpoint("p", 7) in received
        assert endpoint("broker", 9) not in received


async def test_coordinators_of_groups_and_of_transactions_are_at_the_proxy() -> None:
    async with proxying() as (_, proxy), client(proxy) as peer:
        for key_type in (0, 1):
            request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=("t",))
            (found,) = (await peer.ask(request, FIND_COORDINATOR, 4)).coordinators
            assert f"{found.host}:{found.port}" == proxy.address
            assert found.node_id == 3, "the node that Metadata lists"


async def test_group_api_that_is_not_served_closes_the_connection() -> None:
    async with proxying() as (broker, proxy), client(proxy) as peer:
        peer.send(struct.pack(">hhih", SHARE_GROUP_HEARTBEAT, 1, 1, -1))
        assert await peer.is_closed()
        assert broker.received == []


async def test_malformed_request_to_forward_closes_the_connection() -> None:
    async with proxying() as (_, proxy), client(proxy) as peer:
        peer.send(struct.pack(">hhih", 0, 12, 1, 30_000))
        assert await peer.is_closed()


async def test_produce_without_acknowledgement_waits_for_no_response() -> None:
    async with proxying() as (broker, proxy), client(proxy) as peer:
        no_acks = struct.pack(">hhi", 0, 3, 1) + NO_ACKS + b"records"
        peer.send(no_acks)
        peer.send(fetch(2))
        assert await peer.read() == struct.pack(">i", 2) + fetch(2)
        assert broker.received[0] == no_acks


async def test_response_to_another_request_closes_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    async with proxying() as (_, proxy), client(proxy) as peer:
        peer.send(fetch(1, WRONG))
        assert await peer.is_closed()
        assert "a response to another request than API 1 v17" in caplog.text


async def test_groups_live_on_without_the_broker(caplog: pytest.LogCaptureFixture) -> None:
    async with proxying() as (broker, proxy), client(proxy) as member, client(proxy) as reader:
        joined = await member.ask(join(), JOIN_GROUP, 3)
        reader.send(fetch(1))
        await reader.read()
        broker.gate.clear()
        reader.send(fetch(2))
        await broker.until_received(2)
        with caplog.at_level(logging.WARNING):
            await broker.stop()
            assert await reader.is_closed()
            async with client(proxy) as another:
                assert (await another.ask(ApiVersionsRequest(), API_VERSIONS, 3)).error_code == 0
                another.send(fetch(3))
                assert await another.is_closed()
            again = await member.ask(join(joined.member_id, b"new"), JOIN_GROUP, 3)
            assert (again.error_code, again.generation_id) == (0, 2)
            broker.gate.set()
            await broker.start()
            async with client(proxy) as another:
                another.send(fetch(4))
                await another.read()
        lines = [record.message for record in caplog.records if "broker" in record.message]
        assert len(lines) == 2, lines
        assert lines[0].endswith("groups are served without it")
        assert lines[1].endswith("reached again")


async def test_client_that_does_not_read_stops_the_proxy_from_reading_the_broker() -> None:
    """Back-pressure: what the broker sends waits at the broker, not in the proxy. Fewer requests than the limit."""
    async with proxying() as (broker, proxy), client(proxy) as peer:
        for number in range(60):
            peer.send(fetch(number, LARGE))
        await broker.until_received(1)
        answered = -1
        while answered < broker.answered:  # until nothing moves any more
            answered = broker.answered
            await asyncio.sleep(0.3)
        assert answered < 60
        for number in range(60):
            assert (await peer.read())[:4] == struct.pack(">i", number)


async def test_little_is_kept_while_the_broker_is_being_connected() -> None:
    """Produce without acknowledgement is not counted as in flight; what is kept in memory must be bounded."""
    async with proxying() as (broker, proxy), client(proxy) as peer:
        connecting = connecting_later(proxy)
        no_acks = struct.pack(">hhi", 0, 3, 1) + NO_ACKS + bytes(1 << 20)
        for _ in range(40):
            peer.send(no_acks)
        drained = asyncio.create_task(peer.writer.drain())
        await asyncio.sleep(0.3)
        assert not drained.done(), "the proxy reads no more"
        connecting.set()
        await broker.until_received(40)
        drained.cancel()


async def test_what_waits_for_connections_to_the_broker_has_a_bound(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A limit for each client alone would allow nine megabytes on each of 2,000 connections."""
    monkeypatch.setattr(server, "MAX_TO_FORWARD_BYTES", 7 << 19)
    async with proxying() as (broker, proxy), client(proxy) as member, client(proxy) as small:
        connecting = connecting_later(proxy)
        small.send(fetch(1))
        async with AsyncExitStack() as clients:
            large = [await clients.enter_async_context(client(proxy)) for _ in range(4)]
            for number, peer in enumerate(large):
                peer.send(fetch(2, bytes((1 << 20) - number)))
            assert await large[0].is_closed()
            assert "too many requests wait for a connection to the broker" in caplog.text
            assert (await member.ask(join(), JOIN_GROUP, 3)).error_code == 0, "a client whose requests are about groups"
            connecting.set()
            assert (await small.read())[:4] == struct.pack(">i", 1)
            for peer in large[1:]:
                assert (await peer.read())[:4] == struct.pack(">i", 2)
        assert len(broker.received) == 4


async def test_large_commit_of_a_transaction_holds_up_no_other_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody who reaches the proxy may send one, before the broker authenticates the client: decoding and rewriting
    eight with 100,000 partitions each took four seconds, in which no heartbeat was served."""
    begun, may_end = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slowly(request: TxnOffsetCommitRequest, token: str) -> TxnOffsetCommitRequest:
        loop.call_soon_threadsafe(begun.set)
        assert may_end.wait(20), "the event loop goes on meanwhile"
        return for_broker(request, token)

    monkeypatch.setattr(relay, "for_broker", slowly)
    async with proxying() as (broker, proxy), client(proxy) as greedy, client(proxy) as other:
        partition = PartitionCommit(partition_index=0, committed_offset=1, committed_metadata="")
        topics = (TopicCommit(name="t", partitions=(partition,) * 5_000),)
        commit = TxnOffsetCommitRequest(
            transactional_id="t", group_id="g", producer_id=1, producer_epoch=1, topics=topics
        )
        greedy.send(encode_request(commit, version=3, correlation_id=1, client_id="c"))
        greedy.send(fetch(2))
        await begun.wait()
        assert (await other.ask(join(), JOIN_GROUP, 3)).error_code == 0
        assert broker.received == []
        may_end.set()
        await broker.until_received(2)
        keys = [struct.unpack_from(">h", data)[0] for data in broker.received]
        assert keys == [TXN_OFFSET_COMMIT, FETCH], "in their order"


async def test_large_commit_of_a_transaction_is_answered_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []

    def noted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            threads.append(threading.get_ident())
            return function(*args)

        return call

    monkeypatch.setattr(relay, "accepted_of", noted(relay.accepted_of))
    monkeypatch.setattr(relay, "with_errors", noted(relay.with_errors))
    partitions = tuple(
        PartitionCommit(partition_index=each, committed_offset=1, committed_metadata="") for each in range(5_000)
    )
    commit = TxnOffsetCommitRequest(
        transactional_id="t", group_id="g", producer_id=1, producer_epoch=1,
        topics=(TopicCommit(name="t", partitions=partitions),),
    )  # fmt: skip
    async with proxying() as (_, proxy), client(proxy) as peer:
        response = await peer.ask(commit, TXN_OFFSET_COMMIT, 3)
    [topic] = response.topics
    codes = [(each.partition_index, each.error_code) for each in topic.partitions]
    assert codes == [(each, each % 2) for each in range(5_000)]
    assert len(threads) == 2
    assert threading.get_ident() not in threads


async def test_connection_limit_applies_to_clients_of_the_proxy() -> None:
    async with proxying(max_connections=1) as (broker, proxy), client(proxy) as first:
        await first.ask(ApiVersionsRequest(), API_VERSIONS, 3)
        async with client(proxy) as second:
            second.send(fetch(1))
            assert await second.is_closed()
        assert broker.received == []


@pytest.mark.parametrize("is_sent", [True, False])
async def test_client_that_leaves_while_its_request_is_forwarded_leaves_its_place_to_others(is_sent: bool) -> None:
    """A consumer's Fetch waits at the broker nearly all the time. In the end the proxy refused every client."""
    async with proxying(max_connections=1) as (broker, proxy):
        waits = asyncio.Event()

        async def never_connected(protocol: asyncio.Protocol) -> float:
            waits.set()
            return await asyncio.Future[float]()

        if is_sent:
            broker.gate.clear()
        else:
            proxy.broker.connect = never_connected  # type: ignore[method-assign]
        async with client(proxy) as peer:
            peer.send(fetch(1))
            await (broker.until_received(1) if is_sent else waits.wait())
        async with asyncio.timeout(60):
            refused = True
            while refused:
                async with client(proxy) as another:
                    refused = (await another.ask(join(), JOIN_GROUP, 3)).error_code != 0


async def test_host_that_is_no_name_is_an_error_at_the_start() -> None:
    async with proxying() as (broker, _):
        config = ProxyConfig(broker=f"127.0.0.1:{broker.port}", host="a..b", port=0)
        with pytest.raises(TransportError, match=r"^a\.\.b:0: cannot listen: not a host name"):
            await ProxyServer(config, topics=StaticTopics({})).start()


async def test_unreachable_broker_is_an_error_at_the_start() -> None:
    broker = SmallBroker()
    await broker.start()
    await broker.stop()
    proxy = ProxyServer(ProxyConfig(broker=f"127.0.0.1:{broker.port}", port=0), topics=StaticTopics({}))
    with pytest.raises(TransportError, match=r"^broker 127\.0\.0\.1:\d+: cannot connect: "):
        await proxy.start()


@pytest.mark.parametrize("host", ["a" * 64, "a..b"])
async def test_broker_whose_host_is_not_a_name_is_an_error_at_the_start(host: str) -> None:
    proxy = ProxyServer(ProxyConfig(broker=f"{host}:9092", port=0), topics=StaticTopics({}))
    with pytest.raises(TransportError, match=rf"^broker {host}:9092: cannot connect: "):
        await proxy.start()


async def test_server_that_is_no_broker_is_an_error_at_the_start() -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    proxy = ProxyServer(ProxyConfig(broker=f"127.0.0.1:{port}", port=0), topics=StaticTopics({}))
    with pytest.raises(TransportError, match="no valid response to ApiVersions"):
        await proxy.start()
    server.close()


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"broker": "nowhere"}, "broker"),
        ({"broker": "b:9092", "min_session_timeout_ms": 7, "max_session_timeout_ms": 6}, "min_session_timeout_ms"),
        ({"broker": "b:9092", "log": "postgresql://h/d", "partitions": 2}, "partitions: got '2'"),
    ],
)
async def test_invalid_settings_are_named(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        ProxyConfig(**settings)
