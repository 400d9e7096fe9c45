"""Authentication of connections: SASL by our own client, by kafka-python's, and by raw requests."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
from base64 import b64encode
from contextlib import ExitStack, suppress
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
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from connectgroup.protocol.messages.describe import DescribeRequest, DescribeResponse
from connectgroup.proxy.relay import merged
from connectgroup.sasl import Authenticator, ScramServer
from connectgroup.transport.access import Access, Security
from connectgroup.transport.credentials import Credentials, create_credentials, read_credentials
from connectgroup.transport.limits import MIN_SPARE
from connectgroup.transport.tcp_client import TcpClient
from connectgroup.transport.tcp_server import TcpServer
from connectgroup.wire.apis import API_VERSIONS, DESCRIBE, SASL_AUTHENTICATE

from .authenticating import Raw, TcpServerOf, describe, port_of, serving


async def test_client_of_the_same_user_finds_the_credentials_by_itself(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as server:
        assert isinstance(await describe(server), DescribeResponse)
        assert server.credentials == tmp_path / "data" / "credentials"
        assert server.credentials.stat().st_mode & 0o777 == 0o600
        assert server.credentials.parent.stat().st_mode & 0o777 == 0o700


async def test_coordinator_without_authentication_says_what_it_gives_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path, authentication=False):
        (warning,) = [each for each in caplog.messages if each.startswith("no authentication")]
        assert "any process that can connect" in warning
        assert "write files as the user of the workers" in warning
    assert not (tmp_path / "credentials").exists()


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


async def test_client_without_credentials_learns_which_argument_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as server:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
        with pytest.raises(NotAuthenticated, match=r"no credentials were found.*access=Access.credentials"):
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


async def test_server_that_does_not_know_the_password_gets_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """RFC 5802: it may accept any proof, but its own is wrong."""
    monkeypatch.setattr(ScramServer, "final", lambda self, proof: b"v=" + b64encode(bytes(32)))
    security = Security(authenticator=Authenticator({"connectgroup": "another word"}))
    async with TcpServerOf(security=security) as program:
        client = TcpClient("localhost", program.port, access=Access(credentials=Credentials("connectgroup", "word")))
        try:
            with pytest.raises(NotAuthenticated, match="authentication failed: the server does not know"):
                await client.call(DescribeRequest(), timeout_s=10)
        finally:
            await client.close()
        assert program.requests == 0


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
        await asyncio.sleep(0.1)  # the event loop tells the client that its connection is lost
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


@pytest.mark.parametrize(("given", "missing"), [("tls_key", "tls_cert"), ("tls_cert", "tls_key")])
def test_a_certificate_and_its_key_need_each_other(tmp_path: Path, given: str, missing: str) -> None:
    for config in (AccessConfig, CoordinatorConfig):
        with pytest.raises(ConfigError, match=f"^{missing}: missing; allowed: tls_cert and tls_key together"):
            checked(config, {given: tmp_path / "file.pem"})


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


async def test_unauthenticated_connections_lock_no_client_out(tmp_path: Path) -> None:
    async with serving(tmp_path, max_connections=10) as server:
        strangers = [await Raw.to(server) for _ in range(300)]
        assert isinstance(await describe(server), DescribeResponse)
        for each in strangers:
            each.writer.close()
            with suppress(ConnectionError):
                await each.writer.wait_closed()


async def test_coordinator_without_a_free_descriptor_is_busy_and_does_not_lack_a_mechanism(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    in_use = max(int(name) for name in os.listdir("/proc/self/fd"))
    with ExitStack() as held:
        limit = 2 * in_use + 8 * MIN_SPARE
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        async with serving(tmp_path) as server:
            with ExitStack() as taken:
                while (copy := os.dup(0)) <= limit - MIN_SPARE:
                    taken.callback(os.close, copy)
                os.close(copy)
                with pytest.raises(TransportError, match="takes no more connections now") as caught:
                    await describe(server)
                assert not isinstance(caught.value, NotAuthenticated), "a later attempt may succeed"
            assert isinstance(await describe(server), DescribeResponse)


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
    """Every Kafka broker lists SASL, also without it; the proxy forwards it and authenticates no client."""
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
