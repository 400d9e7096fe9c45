"""Limits of the TCP server: slow peers, idle connections, and too many connections or requests (wire 2, 3, 16)."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import struct
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest

from connectgroup.errors import TransportError
from connectgroup.loggers import BURST
from connectgroup.protocol.messages.api import Request, Response
from connectgroup.protocol.messages.cluster import (
    ApiVersionsRequest,
    DescribeCoordinatorsRequest,
    DescribeCoordinatorsResponse,
)
from connectgroup.protocol.messages.common import ConnectorTasks
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from connectgroup.testing.contracts.transport import ScriptedHandler, beat, message_of
from connectgroup.transport import limits, tcp_connection
from connectgroup.transport.tcp_client import TcpClient
from connectgroup.transport.tcp_server import TcpServer
from connectgroup.wire.apis import (
    HEARTBEAT,
    encode_request,
)
from connectgroup.wire.primitives import frame
from connectgroup.wire.table import key_of
from tests.integration.processes import PATIENCE_S
from tests.no_threads import NoThreads

from .test_tcp_server import Peer, server

pytestmark = pytest.mark.timeout(60)


@pytest.mark.asyncio
@pytest.mark.parametrize("data", [b"", b"\0", b"\0\0\0\x40", b"\0\0\0\x40" + bytes(63)])
async def test_incomplete_frame_is_closed_at_its_deadline(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Wire 2, slow-loris."""
    async with server(ScriptedHandler(), frame_deadline_s=0.1) as tcp:
        peer = await Peer.to(tcp)
        peer.writer.write(data)
        assert await peer.is_closed_by_server()
        assert "no whole frame within 0.1 s" in caplog.text
        peer.close()


@pytest.mark.asyncio
async def test_slow_bytes_do_not_extend_the_deadline_of_a_frame() -> None:
    """Wire 3: one byte at a time, forever."""
    async with server(ScriptedHandler(), frame_deadline_s=0.1) as tcp:
        peer = await Peer.to(tcp)
        peer.writer.write(struct.pack(">i", 2**20))

        async def drip() -> None:
            while True:
                peer.writer.write(b"\0")
                await asyncio.sleep(0.01)

        dripping = asyncio.ensure_future(drip())
        assert await peer.is_closed_by_server()
        dripping.cancel()
        peer.close()


@pytest.mark.asyncio
async def test_idle_connection_without_a_parked_request_is_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    handler = ScriptedHandler("a")
    async with server(handler, idle_deadline_s=1.0) as tcp:
        parked, idle = await Peer.to(tcp), await Peer.to(tcp)
        parked.send(beat("a"), correlation_id=1)
        await handler.has_begun("a")
        assert await idle.is_closed_by_server()
        assert "idle for 1 s" in caplog.text
        handler.release("a")
        assert (await parked.receive(HEARTBEAT))[0] == 1
        parked.close()
        idle.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("own", [True, False])
async def test_connection_that_reads_no_response_is_not_read_and_then_closed(
    own: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Wire 16: the responses buffered in the server stay bounded, however much the peer sends."""
    handler = ScriptedHandler()
    limits = {"max_unsent_bytes": 4096, "max_in_flight": 8, "unsent_deadline_s": 0.3}
    async with server(handler, **limits) as tcp:
        peer = await Peer.to(tcp, receive_buffer=4096)
        request = ApiVersionsRequest() if own else beat("x" * 1000)
        data = frame(encode_request(request, version=0, correlation_id=1, client_id=None)) * 1000

        async def flood() -> None:
            with suppress(ConnectionError):
                while not peer.writer.is_closing():
                    peer.writer.write(data)
                    await peer.writer.drain()

        flooding = asyncio.ensure_future(flood())
        await asyncio.wait({flooding})  # it sends until the server closes the connection
        assert "did not read its responses for 0.3 s" in caplog.text
        good = await Peer.to(tcp)
        assert await good.is_alive()
        good.close()
        peer.close()


@pytest.mark.asyncio
async def test_connection_that_is_being_closed_does_not_wait_for_ever_until_its_responses_are_read() -> None:
    """It stayed until another connection needed its place: what is unsent was below the limit that stops reading."""

    class Talkative(ScriptedHandler):
        async def handle(self, request: Request, **sender: Any) -> Response:
            return HeartbeatResponse(error_message="x" * 30_000)

    lost = asyncio.Event()
    async with server(Talkative(), max_unsent_bytes=1 << 30, unsent_deadline_s=0.3) as tcp:
        tcp.on_connection_lost = lambda request, principal: lost.set()
        peer = await Peer.to(tcp, receive_buffer=4096)
        for number in range(400):  # more than the buffers of the system take
            peer.send(beat("a"), correlation_id=number)
        peer.writer.write(frame(struct.pack(">hhi", 999, 0, 1)))  # after the responses, the connection is closed
        await lost.wait()
        peer.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("own", [True, False])
async def test_bytes_of_a_client_that_reads_no_response_are_bounded(own: bool) -> None:
    """Wire 16: the server stops reading long before it has received 32 MB."""
    async with server(ScriptedHandler(), max_unsent_bytes=4096, max_in_flight=8) as tcp:
        peer = await Peer.to(tcp, receive_buffer=4096)
        request = ApiVersionsRequest() if own else beat("x" * 1000)
        data = frame(encode_request(request, version=0, correlation_id=1, client_id=None))
        data *= 2**16 // len(data)

        async def flood() -> None:
            for _ in range(2**25 // len(data)):
                peer.writer.write(data)
                await asyncio.wait_for(peer.writer.drain(), 1.0)

        with pytest.raises(TimeoutError):
            await flood()
        good = await Peer.to(tcp)
        assert await good.is_alive()
        good.close()
        peer.close()


class Talkative(ScriptedHandler):
    """Sends 30 kB in answer to each request, once a number of them has arrived."""

    def __init__(self, requests: int) -> None:
        super().__init__()
        self._missing, self._all_began = requests, asyncio.Event()

    async def handle(self, request: Request, **sender: Any) -> Response:
        self._missing -= 1
        if self._missing == 0:
            self._all_began.set()
        await self._all_began.wait()
        return HeartbeatResponse(error_message="x" * 30_000)


async def numbers(peer: Peer) -> list[int]:
    return [(await peer.receive(HEARTBEAT))[0] for _ in range(400)]


@asynccontextmanager
async def slow_peers(count: int, max_all_unsent_bytes: int) -> AsyncIterator[list[Peer]]:
    """Peers that have sent 400 requests each, which are answered with 12 MB."""
    limits = {"max_in_flight": 400, "max_all_unsent_bytes": max_all_unsent_bytes, "unsent_deadline_s": 60.0}
    async with server(Talkative(400 * count), **limits) as tcp:
        peers = [await Peer.to(tcp, receive_buffer=4096) for _ in range(count)]
        for peer in peers:
            for number in range(400):
                peer.send(beat("a"), correlation_id=number)
        yield peers
        for peer in peers:
            peer.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("max_bytes", [15 << 20, 2 << 20])
async def test_unread_responses_of_all_connections_have_a_bound(
    max_bytes: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Those that have read nothing for a while are closed; at four times the limit, some are closed at once."""
    monkeypatch.setattr(limits, "STALLED_S", 0.5)
    async with slow_peers(4, max_bytes):
        until = asyncio.get_running_loop().time() + PATIENCE_S
        while "leave too much unread" not in caplog.text:
            assert asyncio.get_running_loop().time() < until
            await asyncio.sleep(0.05)


@pytest.mark.asyncio
async def test_clients_that_read_get_all_of_their_responses(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Together they have more unread than the limit."""
    monkeypatch.setattr(limits, "STALLED_S", 30.0)  # the machine may be busy
    async with slow_peers(3, 10 << 20) as peers:
        assert await asyncio.gather(*map(numbers, peers)) == [[*range(400)]] * 3
        assert "unread" not in caplog.text


@dataclass(eq=False)
class Held:
    """A connection with so much to send."""

    unsent_bytes: int


@pytest.mark.asyncio
@pytest.mark.parametrize("by_note", [True, False])
async def test_connection_is_closed_for_others_only_if_its_client_has_read_nothing_for_a_while(
    by_note: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STALLED_S", 0.2)
    closed: list[Held] = []
    unsent = limits.UnsentResponses[Held](100, closed.append)
    reads, stalled, new = Held(60), Held(40), Held(10)
    for each in reads, stalled:
        unsent.note(each, each.unsent_bytes)
    await asyncio.sleep(0.3)
    reads.unsent_bytes = 59
    if by_note:
        unsent.note(reads, 59)
    unsent.note(new, new.unsent_bytes)
    assert closed == [stalled]


@pytest.mark.asyncio
async def test_only_client_with_unread_responses_is_left_to_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STALLED_S", 0.2)
    async with slow_peers(1, 100_000) as (peer,):
        await asyncio.sleep(0.5)
        assert await numbers(peer) == [*range(400)]


@pytest.mark.asyncio
async def test_thousand_pipelined_requests_all_get_responses() -> None:
    """Wire 16: a slow reader is served as long as it reads."""
    async with server(ScriptedHandler(), max_unsent_bytes=4096) as tcp:
        peer = await Peer.to(tcp, receive_buffer=4096)
        for number in range(1000):
            peer.send(beat("x" * 500), correlation_id=number)
        assert [(await peer.receive(HEARTBEAT))[0] for _ in range(1000)] == list(range(1000))
        peer.close()


@pytest.mark.asyncio
async def test_connections_with_many_requests_do_not_delay_one_request_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once the time for requests in a turn of the event loop is used up, each connection begins one."""
    begun: list[str] = []

    class Noting(ScriptedHandler):
        async def handle(self, request: Request, **sender: Any) -> Response:
            begun.append(getattr(request, "member_id", ""))
            return HeartbeatResponse()

    monkeypatch.setattr(tcp_connection, "BEGIN_S", 0.0)
    async with server(Noting()) as tcp:
        peers = [await Peer.to(tcp) for _ in range(20)]
        honest = await Peer.to(tcp)
        for peer in peers:
            for number in range(8):
                peer.send(beat("flood"), correlation_id=number)
        honest.send(beat("honest"), correlation_id=1)
        await honest.receive(HEARTBEAT)
        assert begun.index("honest") < 4 * len(peers)
        for peer in peers:
            assert [(await peer.receive(HEARTBEAT))[0] for _ in range(8)] == list(range(8)), "none is forgotten"
            peer.close()
        honest.close()


# ------------------------------------------------------------------------------------------- limits


@pytest.mark.asyncio
@pytest.mark.parametrize("limits", [{"max_connections": 3}, {"max_connections_per_address": 3}])
async def test_connection_above_the_limit_is_rejected_until_another_closes(limits: dict[str, float]) -> None:
    """Wire 3."""
    async with server(ScriptedHandler(), **limits, refused_deadline_s=0.1) as tcp:
        peers = [await Peer.to(tcp) for _ in range(3)]
        for peer in peers:
            assert await peer.is_alive()
        refused = await Peer.to(tcp)
        assert await refused.is_closed_by_server()
        refused.close()
        for peer in peers:
            assert await peer.is_alive()
        peers.pop().close()
        client = TcpClient("127.0.0.1", tcp.port)
        while True:  # the server has to detect the close first
            with suppress(TransportError):  # the server closes a rejected connection
                if await message_of(client, "a") == "a":
                    break
        await client.close()
        for peer in peers:
            peer.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("limits", [{"max_connections": 20}, {"max_connections_per_address": 20}])
async def test_idle_connections_lock_no_client_out(limits: dict[str, float]) -> None:
    """At a limit the connection that is idle for the longest time is closed; one with a request under way never is."""
    handler = ScriptedHandler("parked")
    async with server(handler, **limits, reclaim_idle_s=0.0) as tcp:
        busy = await Peer.to(tcp)
        busy.send(beat("parked"), correlation_id=1)
        await handler.has_begun("parked")
        idle = [await Peer.to(tcp) for _ in range(30)]
        assert await idle[-1].is_alive()
        assert await idle[0].is_closed_by_server()
        handler.release("parked")
        assert (await busy.receive(HEARTBEAT))[0] == 1
        for peer in (busy, *idle):
            peer.close()


@pytest.mark.asyncio
async def test_incomplete_requests_of_all_connections_have_a_bound(caplog: pytest.LogCaptureFixture) -> None:
    """A limit for each connection alone would allow 8 MiB on each of 2,000."""
    async with server(ScriptedHandler(), max_frame_bytes=1 << 20, max_incomplete_bytes=4 << 20) as tcp:
        peers = [await Peer.to(tcp) for _ in range(10)]
        for peer in peers:
            peer.writer.write(struct.pack(">i", 1 << 20) + bytes((1 << 20) - 1))
            await peer.writer.drain()
        assert await peers[0].is_closed_by_server()
        good = await Peer.to(tcp)
        assert await good.is_alive()
        assert "too many large requests that have not arrived whole" in caplog.text
        for peer in (good, *peers):
            peer.close()


@pytest.mark.asyncio
async def test_lost_connection_is_that_of_a_member_whatever_it_has_asked_since() -> None:
    """A worker asks for the other coordinators on it: one that was killed then kept its tasks for a session timeout."""

    class Knowing(ScriptedHandler):
        async def handle(self, request: Request, **sender: Any) -> Response:
            return (
                DescribeCoordinatorsResponse()
                if isinstance(request, DescribeCoordinatorsRequest)
                else await super().handle(request, **sender)
            )

    lost: asyncio.Queue[Request] = asyncio.Queue()
    async with server(Knowing()) as tcp:
        tcp.on_connection_lost = lambda request, principal: lost.put_nowait(request)
        peer = await Peer.to(tcp)
        peer.send(DescribeCoordinatorsRequest(), correlation_id=1)
        peer.send(beat("a"), correlation_id=2)
        peer.send(beat("b"), correlation_id=3)
        peer.send(DescribeCoordinatorsRequest(), correlation_id=4)
        asked = key_of("ConnectGroupDescribeCoordinators")
        for number, key in enumerate((asked, HEARTBEAT, HEARTBEAT, asked), 1):
            assert (await peer.receive(key))[0] == number
        peer.close()
        assert await lost.get() == beat("b")


@pytest.mark.asyncio
async def test_incomplete_requests_of_lost_connections_do_not_count() -> None:
    """Also while an earlier request of theirs is parked: a slow client, which began before, keeps its connection."""
    handler = ScriptedHandler("0", "1", "2")
    async with server(handler, max_frame_bytes=1 << 20, max_incomplete_bytes=2 << 20, frame_deadline_s=600) as tcp:
        slow = await Peer.to(tcp)
        whole = frame(encode_request(large("slow", 50_000), version=0, correlation_id=7, client_id=None))
        slow.writer.write(whole[:-1])
        await slow.writer.drain()
        for name in ("0", "1", "2"):
            lost = asyncio.Event()
            tcp.on_connection_lost = lambda request, principal, lost=lost: lost.set()  # type: ignore[misc]
            peer = await Peer.to(tcp)
            peer.send(beat(name), correlation_id=1)
            peer.writer.write(struct.pack(">i", 1 << 20) + bytes(900_000))
            await handler.has_begun(name)
            peer.writer.close()  # once all is sent
            await lost.wait()
        slow.writer.write(whole[-1:])
        assert (await slow.receive(HEARTBEAT))[0] == 7
        slow.close()


@pytest.mark.asyncio
@pytest.mark.asyncio(loop_factories=["asyncio"])  # uvloop has threads of its own
async def test_name_lookup_without_a_thread_is_retriable(monkeypatch: pytest.MonkeyPatch) -> None:
    """F36: one line, as for a port in use."""
    NoThreads(monkeypatch, "asyncio_")
    with pytest.raises(TransportError, match=r"^localhost:0: cannot listen: can't start new thread$"):
        await TcpServer(ScriptedHandler(), "localhost").start()


@pytest.mark.asyncio
async def test_simultaneous_connections_of_all_workers_are_accepted() -> None:
    """They queue in the backlog, and none is rejected, although the server accepts them one by one."""
    async with server(ScriptedHandler()) as tcp:
        # The loop is blocked meanwhile. If the backlog were full, a connection would fail.
        peers = [socket.create_connection(("127.0.0.1", tcp.port), timeout=5) for _ in range(100)]
        for peer in peers:
            peer.close()


@pytest.mark.asyncio
async def test_lost_connection_counts_until_its_last_request_is_done() -> None:
    """Otherwise a peer could park requests without limit by reconnecting."""
    handler = ScriptedHandler("a", "b")
    async with server(handler, max_connections_per_address=1) as tcp:
        peer = await Peer.to(tcp)
        peer.send(beat("a"), correlation_id=1)
        peer.send(beat("b"), correlation_id=2)
        await handler.has_begun("a", "b")
        peer.close()
        for name in ("b", "a"):
            client = TcpClient("127.0.0.1", tcp.port)
            assert "limit of 1 connections" in str(await message_of(client, "too early"))
            handler.release(name)
        while True:
            with suppress(TransportError):  # the server closes a rejected connection
                if await message_of(client, "c") == "c":
                    break
        await client.close()


@pytest.mark.asyncio
async def test_peers_that_were_complained_about_are_remembered_up_to_a_limit(caplog: pytest.LogCaptureFixture) -> None:
    """One message per peer and minute; one machine may have any number of IPv6 addresses."""
    async with server(ScriptedHandler()) as tcp:
        for _ in range(3):
            tcp.log_complaint("::1", "closed: why")
        assert caplog.messages.count("::1: closed: why") == 1
        caplog.set_level(logging.ERROR)
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            for number in range(20_000):
                tcp.log_complaint(f"2001:db8::{number:x}", "closed: why")
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert after - before < 20_000 * 50


@pytest.mark.asyncio
async def test_messages_about_many_peers_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Each of them is another one: no line is a repeat."""
    async with server(ScriptedHandler()) as tcp:
        for number in range(5_000):
            tcp.log_complaint(f"2001:db8::{number:x}", "closed: why")
        lines = [each for each in caplog.messages if "closed: why" in each]
        assert BURST <= len(lines) < 2 * BURST
        caplog.clear()
        while not caplog.messages:  # the number of those that were left out follows
            await asyncio.sleep(0.1)
            tcp.log_complaint("2001:db8::ffff", "closed: why")
        assert re.search(r"closed: why \(4[89]\d\d more of other peers\)", caplog.messages[0])


def large(name: str, units: int) -> HeartbeatRequest:
    """A heartbeat of about 8 bytes a unit."""
    return beat(name, owned=(ConnectorTasks(connector="c", tasks=(1,)),) * units)


@pytest.mark.asyncio
@pytest.mark.parametrize(("count", "units"), [(8, 3_000), (3, 10_000)], ids=["on the loop", "in a thread"])
async def test_requests_of_others_pass_between_the_large_ones_of_one_connection(
    count: int, units: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the heartbeats of all members wait until they are decoded."""
    monkeypatch.setattr(tcp_connection, "MAX_TOGETHER_S", 0)
    handler = ScriptedHandler()
    async with server(handler) as tcp:
        greedy, other = await Peer.to(tcp), await Peer.to(tcp)
        for number in range(count):
            greedy.send(large(f"large {number}", units), correlation_id=number)
        await handler.has_begun("large 0")
        other.send(beat("small"), correlation_id=1)
        assert (await other.receive(HEARTBEAT))[0] == 1
        assert [(await greedy.receive(HEARTBEAT))[0] for _ in range(count)] == list(range(count))
        assert handler.began.index("small") < handler.began.index(f"large {count - 1}")
        greedy.close()
        other.close()


@pytest.mark.asyncio
async def test_requests_behind_a_large_one_keep_their_order() -> None:
    handler = ScriptedHandler()
    async with server(handler) as tcp:
        peer = await Peer.to(tcp)
        sizes = (0, 20_000, 0, 1_000, 3_000, 0)
        for number, units in enumerate(sizes):
            peer.send(large(str(number), units), correlation_id=number)
        assert [(await peer.receive(HEARTBEAT))[0] for _ in sizes] == list(range(len(sizes)))
        assert handler.began == [str(number) for number in range(len(sizes))]
        peer.close()


@pytest.mark.asyncio
async def test_large_requests_of_lost_connections_are_dropped() -> None:
    handler = ScriptedHandler()
    async with server(handler) as tcp:
        for _ in range(20):
            peer = await Peer.to(tcp)
            peer.send(large("lost", 20_000), correlation_id=1)
            await peer.writer.drain()
            peer.close()
        good = await Peer.to(tcp)
        assert await good.is_alive()
        good.send(large("large", 20_000), correlation_id=2)
        assert (await good.receive(HEARTBEAT))[0] == 2
        good.close()


@dataclass(eq=False)
class Of:
    """A connection of a user."""

    principal: str


@pytest.mark.asyncio
async def test_users_take_turns_with_their_large_requests() -> None:
    """One may have a thousand connections, on each of which such a request takes a millisecond or more."""
    decoded, large, all_decoded = list[str](), tcp_connection.LargeRequests(), asyncio.Event()
    lost = Of("alice")
    for user in [*["mallory"] * 20, "alice", "alice"]:
        large.decode(Of(user), b"", lambda _, user=user: decoded.append(user))  # type: ignore[arg-type, misc]
    large.decode(lost, b"", lambda _: decoded.append("lost"))  # type: ignore[arg-type]
    large.forget(lost)  # type: ignore[arg-type]
    large.decode(Of("mallory"), b"", lambda _: all_decoded.set())  # type: ignore[arg-type]
    await all_decoded.wait()
    assert decoded[:5] == ["mallory", "alice", "mallory", "alice", "mallory"]
    assert "lost" not in decoded
