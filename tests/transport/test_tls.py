"""TLS: with credentials, mutual, its handshakes, and the addresses that require it; limits of connections."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import struct
import time
import tracemalloc
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import pytest

from connectgroup.cli.command import new_event_loop
from connectgroup.config.access import AccessConfig
from connectgroup.config.base import checked
from connectgroup.coordinator.runtime import Coordinator
from connectgroup.errors import (
    ConfigError,
    TransportError,
)
from connectgroup.group.connect.settings import GroupSettings
from connectgroup.log.memory import MemoryLog
from connectgroup.protocol.messages.common import ConnectorTasks
from connectgroup.protocol.messages.describe import DescribeResponse
from connectgroup.protocol.messages.heartbeat import HeartbeatAssignment, HeartbeatRequest, HeartbeatResponse
from connectgroup.sasl import Authenticator
from connectgroup.testing.contracts.transport import ScriptedHandler, beat, message_of
from connectgroup.transport.acceptor import Acceptor, Handshake, Turns, bind
from connectgroup.transport.access import Access, Certificate, Security, server_tls
from connectgroup.transport.credentials import Credentials
from connectgroup.transport.limits import Limits
from connectgroup.transport.tcp_client import TcpClient
from connectgroup.transport.tcp_server import TcpServer
from tests.certificates import create_certificates

from .authenticating import describe, serving


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``server``, ``client`` and ``other``: each a self-signed certificate for localhost, with its key."""
    directory = tmp_path_factory.mktemp("tls")
    create_certificates(directory, "server", "client", "other")
    return directory


def tls(directory: Path, ca: str, own: str = "") -> Access:
    files = {"tls_ca": directory / f"{ca}.pem"}
    if own:
        files |= {"tls_cert": directory / f"{own}.pem", "tls_key": directory / f"{own}.key"}
    return checked(AccessConfig, files).access()


async def test_tls_and_credentials_together(tmp_path: Path, certificates: Path) -> None:
    files = {"tls_cert": certificates / "server.pem", "tls_key": certificates / "server.key"}
    async with serving(tmp_path, **files) as server:
        assert isinstance(await describe(server, tls(certificates, "server")), DescribeResponse)
        with pytest.raises(TransportError, match="self-signed certificate"):
            await describe(server, tls(certificates, "other"))
        with pytest.raises(TransportError, match=r"TLS\? access=Access"):
            await describe(server)


async def test_mutual_tls_requires_a_certificate_of_the_client(tmp_path: Path, certificates: Path) -> None:
    files = {
        "tls_cert": certificates / "server.pem",
        "tls_key": certificates / "server.key",
        "tls_ca": certificates / "client.pem",
    }
    async with serving(tmp_path, **files) as server:
        assert isinstance(await describe(server, tls(certificates, "server", "client")), DescribeResponse)
        for access in (tls(certificates, "server"), tls(certificates, "server", "other")):
            with pytest.raises(TransportError):
                await describe(server, access)


async def test_connection_without_a_tls_handshake_is_closed_at_the_deadline(certificates: Path) -> None:
    security = Security(
        authenticator=Authenticator({"connectgroup": "word"}),
        tls=server_tls("tls_cert", certificates / "server.pem", certificates / "server.key"),
    )
    coordinator = Coordinator(MemoryLog(), GroupSettings())
    server = TcpServer(coordinator, security=security, limits=Limits(authentication_deadline_s=0.2))
    await server.start()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        assert await asyncio.wait_for(reader.read(1), 10) == b""
        writer.close()
    finally:
        await server.close()


@pytest.mark.parametrize(
    ("values", "allowed"),
    [
        ({}, False),
        ({"authentication": False}, False),
        ({"tls": True, "authentication": False}, False),
        ({"tls": True}, True),
        ({"tls": True, "tls_ca": True, "authentication": False}, True),
    ],
)
async def test_address_that_other_machines_reach_requires_tls_and_authentication(
    tmp_path: Path, certificates: Path, values: dict[str, bool], allowed: bool
) -> None:
    config: dict[str, Any] = {"authentication": values.get("authentication", True)}
    if values.get("tls"):
        config |= {"tls_cert": certificates / "server.pem", "tls_key": certificates / "server.key"}
    if values.get("tls_ca"):
        config["tls_ca"] = certificates / "client.pem"
    if allowed:
        async with serving(tmp_path, host="0.0.0.0", **config):
            return
    with pytest.raises(ConfigError, match="any other requires tls_cert, tls_key and authentication"):
        async with serving(tmp_path, host="0.0.0.0", **config):
            pass


async def test_host_name_of_an_address_that_other_machines_reach_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def resolve(host: str) -> list[str]:
        return ["192.0.2.1"]

    monkeypatch.setattr("connectgroup.transport.tcp_server.resolve", resolve)
    with pytest.raises(ConfigError, match=r"127\.evil\.example \(192\.0\.2\.1\)"):
        async with serving(tmp_path, host="127.evil.example"):
            pass


async def test_client_that_knows_the_servers_certificate_accepts_no_other(tmp_path: Path, certificates: Path) -> None:
    """Even if the same authority has issued it."""
    files = {"tls_cert": certificates / "server.pem", "tls_key": certificates / "server.key"}
    async with serving(tmp_path, **files) as server:
        known = checked(AccessConfig, {"tls_server": certificates / "server.pem"}).access()
        assert isinstance(await describe(server, known), DescribeResponse)
        other = checked(AccessConfig, {"tls_server": certificates / "other.pem"}).access()
        with pytest.raises(TransportError):
            await describe(server, other)


async def test_connections_of_one_principal_are_limited() -> None:
    """One user's workers cannot take the connections of all others, from whatever addresses they connect."""
    security = Security(authenticator=Authenticator({"one": "word-1", "two": "word-2"}))
    limits = Limits(max_connections_per_principal=2, reclaim_idle_s=60.0)
    coordinator = Coordinator(MemoryLog(), GroupSettings())
    server = TcpServer(coordinator, security=security, limits=limits)
    await coordinator.start()
    await server.start()
    users = [("one", "word-1")] * 4 + [("two", "word-2")]
    clients = [TcpClient("127.0.0.1", server.port, access=Access(credentials=Credentials(*user))) for user in users]
    refusal = "the coordinator is at its limit of 2 connections of principal one (max_connections_per_principal)"

    async def is_refused(client: TcpClient) -> bool:
        beat = HeartbeatRequest(group_id="g", member_id="m", member_epoch=7)
        response = await client.call(beat, timeout_s=5)
        assert isinstance(response, HeartbeatResponse)
        return response.error_message == refusal

    try:
        assert [await is_refused(clients[number]) for number in (0, 1, 4, 2)] == [False, False, False, True]
        await clients[0].close()
        assert not await is_refused(clients[3])
    finally:
        for client in clients:
            await client.close()
        await server.close()
        await coordinator.close()


async def test_client_that_is_refused_costs_no_other_client_its_connection(caplog: pytest.LogCaptureFixture) -> None:
    security = Security(authenticator=Authenticator({"one": "word-1", "two": "word-2"}))
    limits = Limits(max_connections_per_principal=1, max_connections=2, reclaim_idle_s=0.0)
    handler = ScriptedHandler("parked")
    server = TcpServer(handler, security=security, limits=limits)
    await server.start()
    users = [("two", "word-2"), ("one", "word-1"), ("one", "word-1")]
    idle, busy, late = (
        TcpClient("127.0.0.1", server.port, access=Access(credentials=Credentials(*user))) for user in users
    )
    try:
        await message_of(idle, "idle")
        waiting = asyncio.create_task(message_of(busy, "parked"))
        await handler.has_begun("parked")
        refused = await late.call(beat("late"), timeout_s=5)
        assert isinstance(refused, HeartbeatResponse)
        assert "connections of principal one" in str(refused.error_message)
        assert "closed: idle" not in caplog.text
        handler.release("parked")
        assert await waiting == "parked"
    finally:
        for client in (idle, busy, late):
            await client.close()
        await server.close()


async def test_oldest_tls_handshake_is_closed_for_a_new_connection(certificates: Path) -> None:
    """A handshake takes some 80 kB, and asyncio alone has no bound on their number."""
    security = Security(
        authenticator=Authenticator({"connectgroup": "word"}),
        tls=server_tls("tls_cert", certificates / "server.pem", certificates / "server.key"),
    )
    coordinator = Coordinator(MemoryLog(), GroupSettings())
    server = TcpServer(coordinator, security=security, limits=Limits(max_unauthenticated=2))
    await server.start()
    try:
        opened = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3)]
        assert await asyncio.wait_for(opened[0][0].read(1), 5) == b""
        access = tls(certificates, "server")
        context = access.tls
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
        assert await asyncio.wait_for(opened[1][0].read(1), 5) == b""
        assert not opened[2][0].at_eof()
        for _, each in (*opened, (reader, writer)):
            each.transport.abort()
    finally:
        await server.close()


async def test_connection_over_tls_takes_little_memory(certificates: Path) -> None:
    """A thousand workers have two thousand, and strangers open some; asyncio alone keeps 256 KiB for each."""
    # uvloop reserves as much as asyncio alone, of which the system gives what is used.
    limit_kib = 128 if isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop) else 512
    own = server_tls("tls_cert", certificates / "server.pem", certificates / "server.key")
    server = TcpServer(ScriptedHandler(), security=Security(tls=own))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    hello, count = outgoing.read(), 20
    await server.start()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        opened = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(count)]
        for reader, writer in opened:
            writer.write(hello)
            assert await asyncio.wait_for(reader.read(1), 60)  # the server has answered, and goes on with the handshake
        after, _ = tracemalloc.get_traced_memory()
        for _, writer in opened:
            writer.transport.abort()
    finally:
        tracemalloc.stop()
        await server.close()
    assert (after - before) / count < limit_kib * 1024


class Served(asyncio.Protocol):
    """The protocol of a connection after its handshake."""

    def __init__(self, open_: set[asyncio.Protocol], begun: list[str]) -> None:
        self._open, self._begun = open_, begun

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._open.add(self)
        self._begun.append("served")

    def connection_lost(self, error: Exception | None) -> None:
        self._open.discard(self)


@pytest.mark.parametrize("is_reset", [False, True])
@pytest.mark.parametrize("sent", ["nothing", "hello", "all"])
@pytest.mark.parametrize("library", ["asyncio", "uvloop"])
def test_client_that_is_lost_at_any_moment_of_its_handshake_leaves_nothing(
    certificates: Path, library: Literal["asyncio", "uvloop"], sent: str, is_reset: bool
) -> None:
    """The server is busy, and reads the last bytes of the client and its end in one turn of the event loop."""
    pytest.importorskip(library, reason=f"{library} is not installed")
    context = server_tls("tls_cert", certificates / "server.pem", certificates / "server.key")
    trusting = ssl.create_default_context(cafile=str(certificates / "server.pem"))
    open_: set[asyncio.Protocol] = set()
    begun: list[str] = []
    ended: list[str] = []
    errors: list[dict[str, Any]] = []
    clients = 40

    def begin(_: Handshake) -> bool:
        begun.append("handshake")
        return True

    def connect(port: int) -> None:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = trusting.wrap_bio(incoming, outgoing, server_hostname="localhost")
        with socket.create_connection(("127.0.0.1", port)) as connected:
            while sent != "nothing":
                with suppress(ssl.SSLWantReadError):
                    client.do_handshake()
                connected.sendall(outgoing.read())
                if sent == "hello" or client.version() is not None:
                    break
                incoming.write(connected.recv(1 << 16))
            if is_reset:
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, error: errors.append(error))
        (listening,) = bind(["127.0.0.1"], 0)
        turns = Turns()
        acceptor = Acceptor(
            [listening],
            lambda: Handshake(
                context, 30, turns, lambda: Served(open_, begun), begin, lambda _, why: ended.append(why)
            ),
        )
        acceptor.start()
        port = listening.getsockname()[1]
        done = asyncio.gather(*(asyncio.to_thread(connect, port) for _ in range(clients)))
        while not done.done() or len(ended) < clients or open_:
            time.sleep(0.003)  # noqa: ASYNC251 busy
            await asyncio.sleep(0)
        await done
        acceptor.close()

    async def in_time() -> None:
        await asyncio.wait_for(serve(), 60)

    with asyncio.Runner(loop_factory=new_event_loop(library)) as runner:
        runner.run(in_time())
    assert errors == []
    assert begun.count("handshake") == len(ended) == clients
    assert begun.count("served") == ended.count("")


async def test_clients_that_begin_tls_at_the_same_time_are_answered_one_by_one(certificates: Path) -> None:
    """Each answer has a signature: those of 200 clients would delay all heartbeats by half a second."""
    own = server_tls("tls_cert", certificates / "server.pem", certificates / "server.key")
    turn, answered = 0, Counter[int]()

    def answer(*_: object) -> None:
        answered[turn] += 1

    own.sni_callback = answer
    server = TcpServer(ScriptedHandler(), security=Security(tls=own))
    outgoing = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    hello, count = outgoing.read(), 30
    await server.start()
    opened = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(count)]
    try:
        # A part of the message first: the server has accepted all connections when it arrives.
        for part in hello[:5], hello[5:-1], hello[-1:]:
            for _, writer in opened:
                writer.write(part)
            for _ in range(3 * count):
                turn += 1
                await asyncio.sleep(0)
        async with asyncio.timeout(60):
            while answered.total() < count:
                turn += 1
                await asyncio.sleep(0)
    finally:
        for _, writer in opened:
            writer.transport.abort()
        await server.close()
    assert max(answered.values()) <= 2


async def test_message_larger_than_the_buffer_of_a_connection_passes_both_ways(certificates: Path) -> None:
    own = server_tls("tls_cert", certificates / "server.pem", certificates / "server.key")
    server = TcpServer(ScriptedHandler(), security=Security(tls=own))
    await server.start()
    client = TcpClient("localhost", server.port, access=tls(certificates, "server"))
    try:
        owned = (ConnectorTasks(connector="c", tasks=tuple(range(50_000))),)
        response = await client.call(beat("x", owned=owned), timeout_s=60)
        assert isinstance(response, HeartbeatResponse)
        assert response.assignment == HeartbeatAssignment(units=owned)
    finally:
        await client.close()
        await server.close()


async def test_certificate_is_read_again_when_its_files_change(
    tmp_path: Path, certificates: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A connection keeps what it began with; what cannot be used is one line, and changes nothing."""
    caplog.set_level("INFO")
    for kind in ("pem", "key"):
        shutil.copy(certificates / f"server.{kind}", tmp_path / f"own.{kind}")
    certificate = Certificate("tls_cert", tmp_path / "own.pem", tmp_path / "own.key")
    security = Security(tls=certificate.context, certificate=certificate)
    server = TcpServer(ScriptedHandler(), security=security)
    await server.start()

    async def accepts(ca: str) -> bool:
        client = TcpClient("127.0.0.1", server.port, access=tls(certificates, ca))
        try:
            await message_of(client, "x")
        except TransportError:
            return False
        finally:
            await client.close()
        return True

    async def until(ca: str) -> None:
        async with asyncio.timeout(60):
            while not await accepts(ca):  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    try:
        old = TcpClient("127.0.0.1", server.port, access=tls(certificates, "server"))
        await message_of(old, "x")

        (tmp_path / "own.pem").write_text("no certificate\n")
        await _line(caplog, "the former certificate stays in use")
        assert await accepts("server")

        # A certificate whose key is not there yet; then the key, too.
        shutil.copy(certificates / "other.pem", tmp_path / "own.pem")
        assert await accepts("server")
        shutil.copy(certificates / "other.key", tmp_path / "own.key")
        await until("other")
        assert not await accepts("server")
        await message_of(old, "x")
        await old.close()

        # As a renewal replaces them: by other files under the same names.
        for kind in ("pem", "key"):
            shutil.copy(certificates / f"client.{kind}", tmp_path / f"new.{kind}")
            (tmp_path / f"new.{kind}").replace(tmp_path / f"own.{kind}")
        await until("client")
    finally:
        await server.close()
    errors = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert 1 <= len(errors) <= 3, errors
    assert all("tls_cert" in each and "\n" not in each for each in errors)


async def _line(caplog: pytest.LogCaptureFixture, text: str) -> None:
    async with asyncio.timeout(60):
        while text not in caplog.text:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
