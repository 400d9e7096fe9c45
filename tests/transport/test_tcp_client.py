"""The TCP client against invalid, slow and unrelated servers."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from connectgroup.errors import NotCoordinator, NotSent, TransportError
from connectgroup.protocol.messages.api import Request, Response
from connectgroup.protocol.messages.cluster import ApiVersion, ApiVersionsResponse
from connectgroup.protocol.messages.describe import DescribeRequest, DescribeResponse
from connectgroup.protocol.messages.rejected import rejected
from connectgroup.testing.contracts.transport import ScriptedHandler, closing, message_of
from connectgroup.transport.access import Access
from connectgroup.transport.following import FollowingClient
from connectgroup.transport.tcp_client import TcpClient
from connectgroup.transport.tcp_server import TcpServer
from connectgroup.wire.apis import API_VERSIONS, HEARTBEAT, encode_response, served
from connectgroup.wire.primitives import frame
from tests.no_threads import NoThreads

pytestmark = pytest.mark.timeout(60)

Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(peer: Peer) -> AsyncIterator[int]:
    """A port served by ``peer``, called once per connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await peer(reader, writer)
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield listener.sockets[0].getsockname()[1]
    listener.close()


async def next_request(reader: asyncio.StreamReader) -> tuple[int, int, int]:
    """API key, version and correlation id of the next request."""
    (length,) = struct.unpack(">i", await reader.readexactly(4))
    key, version, correlation_id = struct.unpack_from(">hhi", await reader.readexactly(length))
    return key, version, correlation_id


async def shake_hands(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, apis: tuple[ApiVersion, ...], error_code: int = 0
) -> None:
    key, version, correlation_id = await next_request(reader)
    assert key == API_VERSIONS
    response = ApiVersionsResponse(error_code=error_code, api_keys=apis)
    answered_version = 99 if error_code else version  # 99: the response is in version 0
    writer.write(frame(encode_response(response, api_key=key, version=answered_version, correlation_id=correlation_id)))


async def failure(port: int, *, timeout_s: float = 30.0, connect_timeout_s: float = 30.0) -> str:
    """The client's error for the server at this port; one line, with the address."""
    async with closing(TcpClient("127.0.0.1", port, connect_timeout_s=connect_timeout_s)) as client:
        with pytest.raises(TransportError) as caught:
            await message_of(client, "a", timeout_s=timeout_s)
    message = str(caught.value)
    assert message.startswith(f"127.0.0.1:{port}: ")
    assert "\n" not in message
    return message


@pytest.mark.asyncio
async def test_connection_refused() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert "cannot connect: Connection refused" in await failure(unused.getsockname()[1])


class StandingBy:
    """The handler of a coordinator that stands by."""

    async def handle(
        self, request: Request, *, client_host: str, client_id: str = "", principal: str | None = ""
    ) -> Response:
        return rejected(request, NotCoordinator.code)


@pytest.mark.asyncio
async def test_client_goes_on_after_a_coordinator_that_names_an_owner_that_has_ended() -> None:
    """It may be cut off from the log; the owner advertises another address than those that the client has."""
    serving, standing_by = TcpServer(ScriptedHandler()), TcpServer(StandingBy())
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        ended = unused.getsockname()[1]
    standing_by.find_coordinator = lambda group_id: ("127.0.0.1", ended, 1)
    for each in standing_by, serving:
        await each.start()
    addresses = [("127.0.0.1", each.port) for each in (standing_by, serving)]
    async with closing(FollowingClient(addresses, access=Access())) as client:
        response = await client.call(DescribeRequest(group_ids=("g",)), timeout_s=30)
        assert isinstance(response, DescribeResponse)
        assert [group.group_id for group in response.groups] == ["g"]
        assert client.address == f"127.0.0.1:{serving.port}"
    for each in standing_by, serving:
        await each.close()


@pytest.mark.asyncio
@pytest.mark.parametrize(("host", "port"), [("no.such.host.invalid", 9092), ("x" * 300, 9092)])
async def test_invalid_address(host: str, port: int) -> None:
    async with closing(TcpClient(host, port)) as client:
        with pytest.raises(TransportError, match="cannot connect"):
            await message_of(client, "a")


@pytest.mark.asyncio
async def test_name_lookup_without_a_thread_is_retriable(monkeypatch: pytest.MonkeyPatch) -> None:
    """F36: a reason for a retry, not for the end of the worker."""
    none = NoThreads(monkeypatch, "asyncio_")
    async with closing(TcpClient("localhost", 1)) as client:
        with pytest.raises(TransportError, match=r"cannot connect: cannot look up localhost: can't start"):
            await message_of(client, "a")
        none.over()
        with pytest.raises(TransportError, match=r"^localhost:1: cannot connect: "):
            await message_of(client, "a")


@pytest.mark.asyncio
async def test_http_server_is_recognized() -> None:
    async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
        await writer.drain()
        await reader.read()

    async with listening(http) as port:
        message = await failure(port)
        assert "answered, but not as a connectgroup coordinator" in message
        assert "'HTTP/1.1 400 Bad Request" in message


@pytest.mark.asyncio
async def test_server_that_reads_a_line_first_is_recognized() -> None:
    """``python -m http.server``: it reads a whole line before it responds, and the client must not time out."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            message = await failure(server.server_port)
        finally:
            await asyncio.to_thread(server.shutdown)
            thread.join()
    assert "answered, but not as a connectgroup coordinator: the response begins with '" in message


@pytest.mark.asyncio
async def test_server_that_closes_at_once() -> None:
    async def shut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)

    async with listening(shut) as port:
        message = await failure(port)
        assert (
            "connection closed during ApiVersions; is a connectgroup coordinator listening there?" in message
            or "connection lost" in message
        )


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("timeouts", "message"),
    [
        ({"connect_timeout_s": 0.05}, "no response within 0.05 s"),
        ({"timeout_s": 0.05}, "no response within 0.05 s"),
    ],
)
async def test_server_that_accepts_and_never_responds(timeouts: dict[str, float], message: str) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with listening(silent) as port:
        assert message in await failure(port, **timeouts)


@pytest.mark.asyncio
@pytest.mark.parametrize("error_code", [0, 35])
@pytest.mark.parametrize(
    "apis",
    [
        (),
        (ApiVersion(api_key=0, min_version=0, max_version=11), ApiVersion(api_key=68, min_version=0, max_version=1)),
        (ApiVersion(api_key=HEARTBEAT, min_version=50, max_version=51),),
    ],
)
async def test_kafka_broker_without_our_apis(apis: tuple[ApiVersion, ...], error_code: int) -> None:
    async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await shake_hands(reader, writer, apis, error_code)
        await reader.read()

    async with listening(broker) as port:
        assert "is no coordinator of worker groups: it does not serve ConnectGroupHeartbeat" in await failure(port)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("response", "message"),
    [
        (frame(struct.pack(">i", 12345) + bytes(40)), "a response that is not to request 11"),
        (frame(b"\0\0\0"), "a response that is not to request 11"),
        (frame(struct.pack(">i", 11) + b"\xff" * 9), "does not speak our protocol"),
        (struct.pack(">i", 2**30), "frame of 1073741824 bytes exceeds max"),
        (b"\0\0\0\0", "frame of 0 bytes"),
        (b"\0\0\0\x40abc", "connection lost by the other side"),
        (b"", "connection lost by the other side"),
    ],
)
async def test_invalid_response_closes_the_connection_and_the_next_call_reconnects(
    response: bytes, message: str
) -> None:
    connections = 0

    async def invalid(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await shake_hands(reader, writer, served())
        await next_request(reader)
        writer.write(response)
        await writer.drain()

    async with listening(invalid) as port, closing(TcpClient("127.0.0.1", port)) as client:
        for turn in (1, 2):
            with pytest.raises(TransportError) as caught:
                await message_of(client, "a")
            assert message in str(caught.value)
            assert connections == turn


@pytest.mark.asyncio
async def test_unexpected_response_closes_the_connection() -> None:
    async def eager(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await shake_hands(reader, writer, served())
        writer.write(frame(struct.pack(">i", 11) + bytes(20)))
        await reader.read()

    async with listening(eager) as port, closing(TcpClient("127.0.0.1", port)) as client:
        with pytest.raises(TransportError, match=r"a response without a request|is not to request|speak our protocol"):
            await message_of(client, "a")


@pytest.mark.asyncio
async def test_lost_connection_fails_all_calls_and_the_next_call_reconnects() -> None:
    handler = ScriptedHandler("a")
    first = TcpServer(handler)
    await first.start()
    async with closing(TcpClient("127.0.0.1", first.port)) as client:
        calls = [asyncio.ensure_future(message_of(client, name)) for name in ("a", "b")]
        await handler.has_begun("a", "b")
        for connection in list(first._connections):
            connection.abort()
        for call in calls:
            with pytest.raises(TransportError, match="connection lost"):
                await call
        assert await message_of(client, "c") == "c"
        await first.close(grace_s=0.05)

        second = TcpServer(handler, port=first.port)
        await second.start()
        responses: list[str | None] = []
        while not responses:  # the client may not have detected the loss yet
            with suppress(TransportError):
                responses.append(await message_of(client, "d"))
        assert responses == ["d"]
        await second.close()


@pytest.mark.asyncio
async def test_close_ends_a_connection_attempt() -> None:
    """L7: also if the server never responds."""
    reached = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.set()
        await reader.read()

    async with listening(silent) as port:
        client = TcpClient("127.0.0.1", port, connect_timeout_s=3600)
        calls = [asyncio.ensure_future(message_of(client, name, timeout_s=3600)) for name in ("a", "b")]
        await reached.wait()
        await client.close()
        for call in calls:
            with pytest.raises(TransportError, match="the client is closed"):
                await call


@pytest.mark.asyncio
async def test_calls_that_wait_for_the_connection_are_sent_in_order_and_may_be_cancelled() -> None:
    handler = ScriptedHandler()
    tcp = TcpServer(handler)
    await tcp.start()
    async with closing(TcpClient("127.0.0.1", tcp.port)) as client:
        calls = [asyncio.ensure_future(message_of(client, str(number))) for number in range(10)]
        await asyncio.sleep(0)
        calls[0].cancel()  # the call that opened the connection
        calls[5].cancel()
        await asyncio.wait(calls)
        assert handler.began == [str(number) for number in range(10) if number not in (0, 5)]
    await tcp.close()


@pytest.mark.asyncio
async def test_calls_wait_while_the_server_does_not_read() -> None:
    """Requests to a server that does not read are bounded; in time they fail."""

    async def stuck(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await shake_hands(reader, writer, served())
        await asyncio.sleep(3600)

    async with listening(stuck) as port, closing(TcpClient("127.0.0.1", port)) as client:
        name = "x" * 30_000
        outcomes = await asyncio.gather(
            *(message_of(client, name, timeout_s=1.0) for _ in range(1000)), return_exceptions=True
        )
        # A request that was not sent may always be retried; one that was sent may have been processed.
        assert {type(outcome) for outcome in outcomes} == {NotSent, TransportError}
        # "no response within": the timeout passed before the connection was established.
        not_sent = ("could not be sent", "no response within")
        assert all(any(text in str(error) for text in not_sent) == (type(error) is NotSent) for error in outcomes)


async def test_request_is_not_sent_without_a_connection() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # without listening
        async with closing(TcpClient("127.0.0.1", bound.getsockname()[1])) as client:
            with pytest.raises(NotSent, match="cannot connect"):
                await client.call(DescribeRequest(), timeout_s=5)
    with pytest.raises(NotSent, match="the client is closed"):
        await client.call(DescribeRequest(), timeout_s=5)
