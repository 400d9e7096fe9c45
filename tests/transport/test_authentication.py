"""Authentication of connections: SASL by our own client, by kafka-python's, and by raw requests; TLS."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from kafka.net.sasl import get_sasl_mechanism

from connectgroup.config.access import AccessConfig
from connectgroup.config.base import checked
from connectgroup.config.coordinator import CoordinatorConfig
from connectgroup.coordinator.runtime import Coordinator
from connectgroup.coordinator.server import CoordinatorServer
from connectgroup.errors import (
    ConfigError,
    InvalidRequest,
    NotAuthenticated,
    SaslAuthenticationFailed,
    TransportError,
    UnsupportedVersion,
)
from connectgroup.group.connect.settings import GroupSettings
from connectgroup.log.memory import MemoryLog
from connectgroup.protocol.messages.api import Request, Response
from connectgroup.protocol.messages.cluster import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
)
from connectgroup.protocol.messages.describe import DescribeRequest, DescribeResponse
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from connectgroup.protocol.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from connectgroup.proxy.apis import merged
from connectgroup.sasl.server import Authenticator
from connectgroup.testing.contracts.transport import ScriptedHandler, beat, said
from connectgroup.transport.access import Access, Security, server_tls
from connectgroup.transport.credentials import Credentials, create_credentials, read_credentials
from connectgroup.transport.limits import Limits
from connectgroup.transport.tcp_client import TcpClient
from connectgroup.transport.tcp_server import TcpServer
from connectgroup.wire.apis import API_VERSIONS, APIS, DESCRIBE, SASL_AUTHENTICATE, decode_response, encode_request
from connectgroup.wire.framing import FrameReader, frame
from tests.certificates import create_certificates


@asynccontextmanager
async def serving(data: Path, /, **config: Any) -> AsyncIterator[CoordinatorServer]:
    server = CoordinatorServer(checked(CoordinatorConfig, {"port": 0, "data": data / "groups.sqlite", **config}))
    await server.start()
    try:
        yield server
    finally:
        await server.close()


def port_of(server: CoordinatorServer) -> int:
    return int(server.address.rpartition(":")[2])


async def describe(server: CoordinatorServer, access: Access | None = None) -> Response:
    client = TcpClient("localhost", port_of(server), access=access)
    try:
        return await client.call(DescribeRequest(), timeout_s=10)
    finally:
        await client.close()


class Raw:
    """A connection without a client's rules."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer, self._frames, self._next = reader, writer, FrameReader(), 0

    @classmethod
    async def to(cls, server: CoordinatorServer) -> Raw:
        return cls(*await asyncio.open_connection("127.0.0.1", port_of(server)))

    async def ask(self, request: Request, version: int) -> Any:
        self._next += 1
        key = next(api.key for api in APIS.values() if api.request_class is type(request))
        data = encode_request(request, version=version, correlation_id=self._next, client_id="raw")
        return await self.ask_bytes(data, key, version)

    async def ask_bytes(self, data: bytes, key: int, version: int) -> Any:
        self.writer.write(frame(data))
        messages: list[bytes] = []
        while not messages:
            received = await asyncio.wait_for(self._reader.read(65_536), 10)
            assert received, "the server has closed the connection"
            messages = self._frames.feed(received)
        return decode_response(messages[0], api_key=key, version=version)[1]

    async def is_closed(self) -> bool:
        return await asyncio.wait_for(self._reader.read(1), 10) == b""


class TcpServerOf:
    """A program that listens at a port, speaks the protocol, and counts the requests that it gets."""

    def __init__(self, port: int) -> None:
        self.requests = 0
        self._server = TcpServer(self, port=port)

    async def handle(self, request: Request, *, client_host: str, client_id: str = "") -> Response:
        self.requests += 1
        return DescribeResponse()

    async def __aenter__(self) -> TcpServerOf:
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.close()


async def test_client_of_the_same_user_finds_the_credentials_by_itself(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as server:
        assert isinstance(await describe(server), DescribeResponse)
        assert server.credentials == tmp_path / "data" / "credentials"
        assert server.credentials.stat().st_mode & 0o777 == 0o600
        assert server.credentials.parent.stat().st_mode & 0o777 == 0o700


async def test_secret_survives_a_restart_of_the_coordinator(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        assert server.credentials is not None
        credentials = read_credentials("credentials", server.credentials)
    async with serving(tmp_path) as server:
        assert isinstance(await describe(server, Access(credentials=credentials)), DescribeResponse)


async def test_coordinator_without_a_data_directory_removes_its_secret_at_the_end() -> None:
    server = CoordinatorServer(checked(CoordinatorConfig, {"port": 0}))
    await server.start()
    assert isinstance(await describe(server), DescribeResponse)
    path = server.credentials
    assert path is not None
    await server.close()
    assert not path.exists()


_KILLED_WHILE_WRITING = """
import resource, signal, sys
from pathlib import Path
from connectgroup.transport.credentials import create_credentials
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
create_credentials(Path(sys.argv[1]))
"""


def test_process_killed_while_it_creates_the_credentials_leaves_no_incomplete_file(tmp_path: Path) -> None:
    path = tmp_path / "credentials"
    killed = subprocess.run([sys.executable, "-c", _KILLED_WHILE_WRITING, path], check=False, timeout=30)
    assert killed.returncode == -signal.SIGXFSZ
    assert not path.exists()
    create_credentials(path)
    assert read_credentials("credentials", path).name == "connectgroup"


async def test_coordinator_without_a_home_directory_for_its_credentials_closes_its_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    server = CoordinatorServer(checked(CoordinatorConfig, {"port": 0}))
    with pytest.raises(ConfigError, match="credentials: missing; allowed: a file, because this user has no home"):
        await server.start()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port_of(server))


async def test_wrong_password_is_rejected_and_not_shown(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        with pytest.raises(NotAuthenticated, match="rejects user 'connectgroup': the proof is wrong") as caught:
            await describe(server, Access(credentials=Credentials("connectgroup", "wrong-word")))
        assert "wrong-word" not in str(caught.value)
        with pytest.raises(NotAuthenticated, match="rejects user 'nobody': the proof is wrong"):
            await describe(server, Access(credentials=Credentials("nobody", "wrong-word")))


async def test_client_without_credentials_is_told_which_option_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as server:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
        with pytest.raises(NotAuthenticated, match=r"no credentials were found.*--credentials FILE"):
            await describe(server)
        monkeypatch.setenv("CONNECTGROUP_CREDENTIALS", str(server.credentials))
        assert isinstance(await describe(server), DescribeResponse)


async def test_client_with_credentials_does_not_trust_a_server_that_asks_for_none(tmp_path: Path) -> None:
    """Another program may listen at the coordinator's port: it must not get a worker's requests."""
    async with serving(tmp_path, authentication=False) as server:
        with pytest.raises(NotAuthenticated, match="does not authenticate its clients"):
            await describe(server, Access(credentials=Credentials("connectgroup", "word")))
        assert isinstance(await describe(server), DescribeResponse)


async def test_program_at_the_port_of_a_stopped_coordinator_gets_no_request(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with serving(tmp_path, port=port) as server:
        assert isinstance(await describe(server), DescribeResponse)
    async with TcpServerOf(port) as handler:
        with pytest.raises(NotAuthenticated, match="is another program listening there"):
            await describe(server)
        assert handler.requests == 0


@pytest.mark.parametrize("problem", ["removed", "readable by others", "data in memory", "note readable by others"])
async def test_program_at_the_port_gets_no_request_if_the_announced_credentials_cannot_be_used(
    tmp_path: Path, problem: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config: dict[str, Any] = {"data": None} if problem == "data in memory" else {}
    async with serving(tmp_path / "data", port=port, **config) as server:
        assert isinstance(await describe(server), DescribeResponse)
        path = server.credentials
    assert path is not None
    if problem == "removed":
        shutil.rmtree(tmp_path / "data")
    elif problem == "readable by others":
        path.chmod(0o644)
    elif problem == "note readable by others":
        (Path(os.environ["XDG_STATE_HOME"]) / "connectgroup" / f"coordinator-{port}").chmod(0o644)
    async with TcpServerOf(port) as handler:
        with pytest.raises(NotAuthenticated, match=f"credentials of the coordinator in .*coordinator-{port}: got "):
            await describe(server)
        assert handler.requests == 0


async def test_authenticated_client_sends_no_request_to_a_later_server_without_authentication(tmp_path: Path) -> None:
    """The note was removed meanwhile, so the client finds no credentials."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    client = TcpClient("localhost", port)
    try:
        async with serving(tmp_path, port=port):
            assert isinstance(await client.call(DescribeRequest(), timeout_s=10), DescribeResponse)
        (Path(os.environ["XDG_STATE_HOME"]) / "connectgroup" / f"coordinator-{port}").unlink()
        async with TcpServerOf(port) as handler:
            with pytest.raises(NotAuthenticated, match="does not authenticate its clients"):
                await client.call(DescribeRequest(), timeout_s=10)
            assert handler.requests == 0
    finally:
        await client.close()


async def test_unusable_credentials_at_a_reconnection_are_an_error_of_the_transport(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker retries it; a ``ConfigError`` would end the worker."""
    named = tmp_path / "named"
    async with serving(tmp_path) as server:
        assert server.credentials is not None
        shutil.copy(server.credentials, named)
        monkeypatch.setenv("CONNECTGROUP_CREDENTIALS", str(named))
        assert isinstance(await describe(server), DescribeResponse)
        named.chmod(0o644)
        with pytest.raises(NotAuthenticated, match=rf"CONNECTGROUP_CREDENTIALS: got '{named}'; allowed: .*chmod 600"):
            await describe(server)
        named.chmod(0o600)
        assert isinstance(await describe(server), DescribeResponse)


@pytest.mark.parametrize("option", [True, False])
def test_path_of_unusable_credentials_is_shown_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: bool
) -> None:
    path = tmp_path / "missing"
    if not option:
        monkeypatch.setenv("CONNECTGROUP_CREDENTIALS", str(path))
    with pytest.raises(ConfigError, match=f"got '{path}'; allowed: a readable file \\(No such file"):
        checked(AccessConfig, {"credentials": path} if option else {}).access()


def test_path_of_a_key_without_a_certificate_is_shown(tmp_path: Path) -> None:
    for config in (AccessConfig, CoordinatorConfig):
        with pytest.raises(ConfigError, match=f"tls_key: got '{tmp_path}/key.pem'"):
            checked(config, {"tls_key": tmp_path / "key.pem"})


@pytest.mark.parametrize("request_", [DescribeRequest(), FindCoordinatorRequest(coordinator_keys=("workers",))])
async def test_request_before_authentication_is_rejected_and_ends_the_connection(
    tmp_path: Path, request_: Request
) -> None:
    async with serving(tmp_path) as server:
        raw = await Raw.to(server)
        version = 0 if isinstance(request_, DescribeRequest) else 6
        response = await raw.ask(request_, version)
        if isinstance(response, DescribeResponse):
            assert response.groups[0].error_code == SaslAuthenticationFailed.code
        assert await raw.is_closed()


async def test_request_before_authentication_is_rejected_without_being_decoded(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        raw = await Raw.to(server)
        response = await raw.ask_bytes(struct.pack(">hhi", DESCRIBE, 0, 1) + b"\xff" * 100, DESCRIBE, 0)
        assert response.groups[0].error_code == SaslAuthenticationFailed.code
        assert await raw.is_closed()


async def test_invalid_request_before_authentication_ends_the_connection(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        raw = await Raw.to(server)
        header = struct.pack(">hhi", SASL_AUTHENTICATE, 1, 1)
        response = await raw.ask_bytes(header + b"\xff" * 100, SASL_AUTHENTICATE, 1)
        assert response.error_code == InvalidRequest.code
        assert await raw.is_closed()


async def test_request_of_more_than_16_kib_before_authentication_ends_the_connection(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        raw = await Raw.to(server)
        raw.writer.write(struct.pack(">i", 16 * 1024 + 1))
        assert await raw.is_closed()


async def test_unknown_version_of_api_versions_does_not_end_the_connection(tmp_path: Path) -> None:
    """KIP-511: the client asks again in a version that the response lists."""
    async with serving(tmp_path) as server:
        raw = await Raw.to(server)
        response = await raw.ask_bytes(struct.pack(">hhi", API_VERSIONS, 99, 1) + b"\xff\xff", API_VERSIONS, 0)
        assert response.error_code == UnsupportedVersion.code
        assert (await raw.ask(ApiVersionsRequest(), 0)).error_code == 0
        raw.writer.close()


@pytest.mark.parametrize(
    "requests",
    [
        [SaslAuthenticateRequest(auth_bytes=b"n,,n=x,r=" + b"x" * 20)],
        [SaslHandshakeRequest(mechanism="GSSAPI")],
        [SaslHandshakeRequest(mechanism="PLAIN"), SaslHandshakeRequest(mechanism="PLAIN")],
        [SaslHandshakeRequest(mechanism="PLAIN"), SaslAuthenticateRequest(auth_bytes=b"\0connectgroup\0wrong")],
        [SaslHandshakeRequest(mechanism="PLAIN"), SaslAuthenticateRequest(auth_bytes=b"\0\xff\0\xff")],
        [SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), SaslAuthenticateRequest(auth_bytes=b"x" * 10_000)],
    ],
)
async def test_invalid_login_ends_the_connection(tmp_path: Path, requests: list[Request]) -> None:
    async with serving(tmp_path) as server:
        raw = await Raw.to(server)
        codes = [(await raw.ask(request, 1)).error_code for request in requests]
        assert codes[-1] in (33, 34, SaslAuthenticationFailed.code)
        assert await raw.is_closed()


async def test_connections_of_strangers_lock_nobody_out(tmp_path: Path) -> None:
    async with serving(tmp_path, max_connections=10) as server:
        strangers = [await Raw.to(server) for _ in range(300)]
        assert isinstance(await describe(server), DescribeResponse)
        for each in strangers:
            each.writer.close()
            with suppress(ConnectionError):
                await each.writer.wait_closed()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_kafka_python_authenticates(tmp_path: Path, mechanism: str) -> None:
    """The messages of another client of Kafka's protocol, in each version of SaslAuthenticate."""
    async with serving(tmp_path) as server:
        assert server.credentials is not None
        credentials = read_credentials("credentials", server.credentials)
        for version in (0, 1, 2):
            client = get_sasl_mechanism(mechanism)(
                sasl_mechanism=mechanism,
                sasl_plain_username=credentials.name,
                sasl_plain_password=credentials.password,
            )
            raw = await Raw.to(server)
            chosen = await raw.ask(SaslHandshakeRequest(mechanism=mechanism), 1)
            assert (chosen.error_code, chosen.mechanisms) == (0, ("SCRAM-SHA-256", "PLAIN"))
            while not client.is_done():
                answer = await raw.ask(SaslAuthenticateRequest(auth_bytes=client.auth_bytes()), version)
                assert answer.error_code == 0
                client.receive(answer.auth_bytes)
            assert client.is_authenticated()
            assert isinstance(await raw.ask(DescribeRequest(), 0), DescribeResponse)
            raw.writer.close()


async def test_client_does_not_authenticate_to_a_proxy_whose_broker_lists_sasl() -> None:
    """Every Kafka broker lists SASL, also without it; the proxy forwards it and authenticates nobody."""
    broker = ApiVersionsResponse(
        api_keys=tuple(ApiVersion(api_key=key, min_version=0, max_version=2) for key in (0, 17, 36))
    )

    class Proxy(TcpServer):
        def handle_locally(self, request: ApiVersionsRequest | FindCoordinatorRequest) -> Response:
            return merged(broker)

    coordinator = Coordinator(MemoryLog(), GroupSettings())
    await coordinator.start()
    proxy = Proxy(coordinator)
    await proxy.start()
    client = TcpClient("127.0.0.1", proxy.port)
    try:
        assert isinstance(await client.call(DescribeRequest(), timeout_s=10), DescribeResponse)
    finally:
        await client.close()
        await proxy.close()
        await coordinator.close()


# ---------------------------------------------------------------------------------------------- TLS


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
        with pytest.raises(TransportError, match=r"TLS\? --tls-ca FILE"):
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
        await said(idle, "idle")
        waiting = asyncio.create_task(said(busy, "parked"))
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
    """A handshake takes a quarter of a megabyte, and asyncio alone has no bound on their number."""
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
