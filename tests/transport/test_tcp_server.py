"""The TCP server on real sockets: the contract, and faulty peers (reliability list, wire 1-3, 10, 16)."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from connectgroup.errors import TransportError, UnknownServerError, UnsupportedVersion
from connectgroup.protocol.messages.api import Request, Response
from connectgroup.protocol.messages.cluster import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    FoundCoordinator,
)
from connectgroup.protocol.messages.heartbeat import HeartbeatResponse
from connectgroup.testing.contracts.transport import ScriptedHandler, TransportContract, beat, closing, message_of
from connectgroup.transport.base import Client
from connectgroup.transport.limits import Limits
from connectgroup.transport.tcp_client import TcpClient
from connectgroup.transport.tcp_server import TcpServer
from connectgroup.wire.apis import (
    API_VERSIONS,
    APIS,
    FIND_COORDINATOR,
    HEARTBEAT,
    decode_response,
    encode_request,
    served,
)
from connectgroup.wire.primitives import frame

pytestmark = pytest.mark.timeout(60)


@asynccontextmanager
async def server(handler: ScriptedHandler, **limits: float) -> AsyncIterator[TcpServer]:
    # Idle connections give way to new ones in the tests that say so.
    tcp = TcpServer(handler, limits=Limits(**{"reclaim_idle_s": 60.0, **limits}))  # type: ignore[arg-type]
    await tcp.start()
    try:
        yield tcp
    finally:
        await tcp.close(grace_s=0.05)


class Peer:
    """A bare socket, which sends what no correct client would."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def to(cls, tcp: TcpServer, *, receive_buffer: int = 0) -> Peer:
        sock = socket.socket()
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", tcp.port))
        return cls(*await asyncio.open_connection(sock=sock, limit=1024 if receive_buffer else 2**16))

    def send(self, request: Request, *, correlation_id: int, version: int = 0) -> None:
        self.writer.write(
            frame(encode_request(request, version=version, correlation_id=correlation_id, client_id=None))
        )

    async def receive(self, api_key: int, version: int = 0) -> tuple[int, Response]:
        (length,) = struct.unpack(">i", await self.reader.readexactly(4))
        return decode_response(await self.reader.readexactly(length), api_key=api_key, version=version)

    async def is_alive(self) -> bool:
        """Whether the server still responds on this connection."""
        self.send(beat("alive?"), correlation_id=999)
        correlation_id, response = await self.receive(HEARTBEAT)
        return correlation_id == 999 and isinstance(response, HeartbeatResponse) and response.error_message == "alive?"

    async def is_closed_by_server(self) -> bool:
        """Read to the end: true if the connection was closed, false if there were bytes to read."""
        with suppress(ConnectionError):
            return await self.reader.read() == b""
        return True

    def close(self) -> None:
        self.writer.transport.abort()


class TestTcpTransport(TransportContract):
    @asynccontextmanager
    async def serving(self, handler: ScriptedHandler) -> AsyncIterator[Callable[[], Client]]:
        async with server(handler) as tcp:
            yield lambda: TcpClient("127.0.0.1", tcp.port)


# ------------------------------------------------------------------------------------------- order


@pytest.mark.asyncio
async def test_responses_are_sent_in_the_order_of_the_requests() -> None:
    handler = ScriptedHandler("a")
    async with server(handler) as tcp:
        peer = await Peer.to(tcp)
        peer.send(beat("a"), correlation_id=11)
        peer.send(beat("b"), correlation_id=10)
        peer.send(ApiVersionsRequest(), correlation_id=9)
        peer.send(beat("releases a"), correlation_id=8)
        assert [(await peer.receive(key))[0] for key in (HEARTBEAT, HEARTBEAT, API_VERSIONS, HEARTBEAT)] == [
            11,
            10,
            9,
            8,
        ]
        assert handler.began == ["a", "b", "releases a"]
        peer.close()


@pytest.mark.asyncio
async def test_concurrent_requests_of_one_connection_are_limited() -> None:
    """F11: further requests stay in the socket buffers until earlier ones have completed."""
    names = [str(number) for number in range(40)]
    handler = ScriptedHandler(*names)
    async with server(handler, max_in_flight=4) as tcp:
        peer = await Peer.to(tcp)
        for number, name in enumerate(names):
            peer.send(beat(name), correlation_id=number)
        for done in range(40):
            await handler.has_begun(*names[: done + 4])
            other = TcpClient("127.0.0.1", tcp.port)
            assert (
                await message_of(other, f"other {done}") == f"other {done}"
            )  # a round trip, during which further requests could have begun
            await other.close()
            assert len([name for name in handler.began if name in names]) == min(done + 4, 40)
            handler.release(names[done])
            assert (await peer.receive(HEARTBEAT))[0] == done
        peer.close()


# ------------------------------------------------------------------------------------------- APIs of the server


@pytest.mark.asyncio
@pytest.mark.parametrize("version", APIS[API_VERSIONS].versions)
async def test_api_versions_lists_every_served_api(version: int) -> None:
    async with server(ScriptedHandler()) as tcp:
        peer = await Peer.to(tcp)
        peer.send(
            ApiVersionsRequest(client_software_name="x", client_software_version="1"), correlation_id=1, version=version
        )
        assert await peer.receive(API_VERSIONS, version) == (1, ApiVersionsResponse(api_keys=served()))
        peer.close()


@pytest.mark.asyncio
async def test_api_versions_in_an_unknown_version_gets_a_response_in_version_0() -> None:
    """KIP-511; wire 10."""
    async with server(ScriptedHandler()) as tcp:
        peer = await Peer.to(tcp)
        peer.writer.write(frame(struct.pack(">hhih", API_VERSIONS, 9, 77, -1) + b"\0 no matter what"))
        expected = ApiVersionsResponse(error_code=UnsupportedVersion.code, api_keys=served())
        assert await peer.receive(API_VERSIONS, 0) == (77, expected)
        assert await peer.is_alive()
        peer.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("version", APIS[FIND_COORDINATOR].versions)
async def test_find_coordinator_returns_the_advertised_address(version: int) -> None:
    tcp = TcpServer(ScriptedHandler(), advertised_host="coordinator.example", advertised_port=7, node_id=3)
    await tcp.start()
    peer = await Peer.to(tcp)
    keys = () if version < 4 else ("g", "h")
    peer.send(FindCoordinatorRequest(key="" if keys else "g", coordinator_keys=keys), correlation_id=1, version=version)
    _, response = await peer.receive(FIND_COORDINATOR, version)
    assert isinstance(response, FindCoordinatorResponse)
    if keys:
        assert response.coordinators == tuple(
            FoundCoordinator(key=key, node_id=3, host="coordinator.example", port=7) for key in keys
        )
    else:
        assert (response.node_id, response.host, response.port) == (3, "coordinator.example", 7)
    peer.close()
    await tcp.close()


@pytest.mark.asyncio
async def test_bound_port_is_advertised_by_default() -> None:
    async with server(ScriptedHandler()) as tcp, closing(TcpClient("127.0.0.1", tcp.port)) as client:
        response = await client.call(FindCoordinatorRequest(coordinator_keys=("g",)), timeout_s=10)
        assert isinstance(response, FindCoordinatorResponse)
        assert {(found.host, found.port) for found in response.coordinators} == {("127.0.0.1", tcp.port)}


@pytest.mark.asyncio
async def test_transaction_coordinators_are_not_available() -> None:
    async with server(ScriptedHandler()) as tcp, closing(TcpClient("127.0.0.1", tcp.port)) as client:
        request = FindCoordinatorRequest(key_type=1, coordinator_keys=("t",))
        response = await client.call(request, timeout_s=10)
        assert isinstance(response, FindCoordinatorResponse)
        assert [found.error_code for found in response.coordinators] == [42]


@pytest.mark.asyncio
async def test_port_in_use_is_rejected_with_one_line() -> None:
    async with server(ScriptedHandler()) as tcp:
        with pytest.raises(TransportError, match=rf"127.0.0.1:{tcp.port}: cannot listen: .*in use"):
            await TcpServer(ScriptedHandler(), "127.0.0.1", tcp.port).start()


# ------------------------------------------------------------------------------------------- invalid bytes


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x7f\xff\xff\xff", "frame of 2147483647 bytes exceeds max 8388608"),
        (b"\xff\xff\xff\xff", "frame of -1 bytes"),
        (b"\0\0\0\0", "frame of 0 bytes"),
        (struct.pack(">i", 2**23 + 1), "exceeds max 8388608"),
        (b"GET / HTTP/1.1\r\n\r\n", "exceeds max"),
        (frame(b"\0" * 7), "got 7 bytes"),
    ],
)
async def test_invalid_frame_closes_only_its_connection(
    data: bytes, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Wire 1; one log line per peer and minute, however many attempts."""
    async with server(ScriptedHandler()) as tcp:
        good = await Peer.to(tcp)
        with caplog.at_level(logging.WARNING):
            for _ in range(5):
                peer = await Peer.to(tcp)
                peer.writer.write(data)
                assert await peer.is_closed_by_server()
                peer.close()
        assert len(caplog.records) == 1
        assert caplog.records[0].getMessage().startswith("127.0.0.1: closed: ")
        assert message in caplog.text
        assert await good.is_alive()
        good.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("header", [(20499, 0), (3, 12), (HEARTBEAT, 99), (HEARTBEAT, -1), (-1, -1)])
async def test_unknown_api_or_version_closes_the_connection_after_earlier_responses(
    header: tuple[int, int],
) -> None:
    """Wire 10. No client could read a response to it, as in Kafka; earlier requests get their responses, in order."""
    handler = ScriptedHandler("a")
    async with server(handler) as tcp:
        peer = await Peer.to(tcp)
        peer.send(beat("a"), correlation_id=1)
        peer.writer.write(frame(struct.pack(">hhih", *header, 2, -1) + bytes(20)))
        peer.send(beat("never"), correlation_id=3)
        await handler.has_begun("a")
        handler.release("a")
        assert (await peer.receive(HEARTBEAT))[0] == 1
        assert await peer.is_closed_by_server()
        assert handler.began == ["a"]
        peer.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("body", [b"", b"\0", b"\xff" * 100, b"\0" + b"\x80" * 9, b"\0" + b"\xff\xff\xff\xff\x0f" * 3])
async def test_undecodable_request_gets_an_error_and_the_connection_stays_open(body: bytes) -> None:
    """Wire 4-8: the frame was complete, so the connection remains usable."""
    async with server(ScriptedHandler()) as tcp:
        peer = await Peer.to(tcp)
        peer.writer.write(frame(struct.pack(">hhih", HEARTBEAT, 0, 5, -1) + body))
        correlation_id, response = await peer.receive(HEARTBEAT)
        assert isinstance(response, HeartbeatResponse)
        assert (correlation_id, response.error_code) == (5, 42)
        assert await peer.is_alive()
        peer.close()


@pytest.mark.asyncio
async def test_bytes_received_one_at_a_time_form_the_same_request() -> None:
    """F5: the socket delivers one byte at a time."""
    async with server(ScriptedHandler()) as tcp:
        peer = await Peer.to(tcp)
        peer.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in frame(encode_request(beat("slow"), version=0, correlation_id=4, client_id="c")):
            peer.writer.write(bytes([byte]))
            await peer.writer.drain()
            await asyncio.sleep(0)
        correlation_id, response = await peer.receive(HEARTBEAT)
        assert correlation_id == 4
        assert isinstance(response, HeartbeatResponse)
        assert response.error_message == "slow"
        peer.close()


@pytest.mark.asyncio
async def test_connection_reset_in_a_frame_has_no_effect() -> None:
    """F5: an incomplete request is not executed."""
    handler = ScriptedHandler()
    async with server(handler) as tcp:
        whole = frame(encode_request(beat("half"), version=0, correlation_id=4, client_id="c"))
        for length in (1, 4, 5, len(whole) - 1):
            peer = await Peer.to(tcp)
            peer.writer.write(whole[:length])
            await peer.writer.drain()
            linger = struct.pack("ii", 1, 0)  # close() now sends RST
            peer.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            peer.close()
        good = await Peer.to(tcp)
        assert await good.is_alive()
        assert handler.began == ["alive?"]
        good.close()


# ------------------------------------------------------------------------------------------- closing


@pytest.mark.asyncio
async def test_closing_server_finishes_requests() -> None:
    handler = ScriptedHandler("a")
    tcp = TcpServer(handler)
    await tcp.start()
    async with closing(TcpClient("127.0.0.1", tcp.port)) as client:
        call = asyncio.ensure_future(message_of(client, "a"))
        await handler.has_begun("a")
        ending = asyncio.ensure_future(tcp.close(grace_s=30))
        await asyncio.sleep(0)
        handler.release("a")
        assert await call == "a"
        await ending
        with pytest.raises(TransportError, match=r"cannot connect|connection lost"):
            await message_of(client, "b")
    await tcp.close()


@pytest.mark.asyncio
async def test_closing_server_responds_to_requests_that_cannot_finish() -> None:
    """L7: every request gets a response or a rejection, and close returns."""
    handler = ScriptedHandler("a")
    tcp = TcpServer(handler)
    await tcp.start()
    async with closing(TcpClient("127.0.0.1", tcp.port)) as client:
        call = asyncio.ensure_future(client.call(beat("a"), timeout_s=30))
        await handler.has_begun("a")
        await tcp.close(grace_s=0.05)
        response = await call
        assert isinstance(response, HeartbeatResponse)
        assert (response.error_code, response.error_message) == (15, "the server is closing")


@pytest.mark.asyncio
async def test_response_that_cannot_be_encoded_is_a_server_error() -> None:
    class Odd(ScriptedHandler):
        async def handle(
            self, request: Request, *, client_host: str, client_id: str = "", principal: str | None = ""
        ) -> Response:
            return HeartbeatResponse(member_epoch=2**40)

    async with server(Odd()) as tcp, closing(TcpClient("127.0.0.1", tcp.port)) as client:
        response = await client.call(beat("a"), timeout_s=10)
        assert isinstance(response, HeartbeatResponse)
        assert response.error_code == UnknownServerError.code


@pytest.mark.asyncio
@pytest.mark.parametrize("limits", [{"max_connections": 2}, {"max_connections_per_address": 2}])
async def test_request_above_a_connection_limit_is_rejected_at_once_and_not_executed(
    limits: dict[str, float],
) -> None:
    """Wire 3. At once, not at the deadline of the first frame."""
    handler = ScriptedHandler()
    async with server(handler, **limits) as tcp:
        peers = [await Peer.to(tcp) for _ in range(2)]
        for peer in peers:
            assert await peer.is_alive()
        refused = await Peer.to(tcp)
        refused.send(beat("refused"), correlation_id=1)
        async with asyncio.timeout(4):  # below the deadline of a connection above the limit
            assert (await refused.receive(HEARTBEAT))[0] == 1
            assert await refused.is_closed_by_server()
        assert "refused" not in handler.began
        for peer in (*peers, refused):
            with suppress(ConnectionError):
                peer.close()


@pytest.mark.asyncio
async def test_connection_with_a_parked_request_outlives_the_idle_deadline() -> None:
    """A connection without a request is closed earlier."""
    handler = ScriptedHandler("a")
    async with server(handler, idle_deadline_s=0.5) as tcp:
        parked = await Peer.to(tcp)
        parked.send(beat("a"), correlation_id=1)
        await handler.has_begun("a")
        idle = await Peer.to(tcp)
        assert await idle.is_closed_by_server()
        handler.release("a")
        assert (await parked.receive(HEARTBEAT))[0] == 1
        parked.close()
        idle.close()
