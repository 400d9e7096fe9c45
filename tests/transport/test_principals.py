"""A member belongs to the principal of its connection: two users, and two certificates, at one coordinator (PD-15)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from connectgroup.client.admin import Admin
from connectgroup.config.access import AccessConfig
from connectgroup.config.base import checked
from connectgroup.coordinator.runtime import Coordinator
from connectgroup.coordinator.server import CoordinatorServer
from connectgroup.errors import FencedInstanceId, UnreleasedInstanceId
from connectgroup.protocol.messages.assignment import InstallRequest
from connectgroup.protocol.messages.describe import DescribedMember
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest
from connectgroup.transport.access import Access, name_in
from connectgroup.transport.credentials import Credentials
from connectgroup.transport.tcp_client import TcpClient
from tests.certificates import create_certificates
from tests.consumer.inside import eventually

from .authenticating import port_of, serving

GROUP, PROCESS = "workers", 7


@asynccontextmanager
async def clients(server: CoordinatorServer, *accesses: Access) -> AsyncIterator[list[TcpClient]]:
    async with AsyncExitStack() as stack:
        opened = [TcpClient("localhost", port_of(server), access=access) for access in accesses]
        for client in opened:
            stack.push_async_callback(client.close)
        yield opened


def beat(epoch: int = 0, **more: Any) -> HeartbeatRequest:
    joining: dict[str, Any] = {"rebalance_timeout_ms": 60_000, "owned": ()} if epoch == 0 else {}
    return HeartbeatRequest(
        group_id=GROUP, member_id="a", member_epoch=epoch, process_id=PROCESS, **{**joining, **more}
    )


async def code_of(client: TcpClient, request: HeartbeatRequest | InstallRequest) -> int:
    response: Any = await client.call(request, timeout_s=10)
    code: int = response.error_code
    return code


async def join(client: TcpClient) -> None:
    """Join, and wait for the target assignment."""
    assert await code_of(client, beat(sequence=1)) == 0
    assert await code_of(client, beat(sequence=2, max_wait_ms=10_000)) == 0


async def members(server: CoordinatorServer) -> tuple[DescribedMember, ...]:
    return (await Admin.local(server.coordinator).describe(GROUP)).members


async def only_the_first_is_the_member(server: CoordinatorServer, first: TcpClient, second: TcpClient) -> None:
    """The member of the first client has joined. The second knows its process id, and changes nothing."""
    [before] = await members(server)
    epoch = before.member_epoch
    assert await code_of(second, beat(sequence=100)) == UnreleasedInstanceId.code
    install = InstallRequest(group_id=GROUP, member_id="a", member_epoch=epoch, group_epoch=epoch, process_id=PROCESS)
    for request in (beat(epoch, sequence=101), beat(-1, sequence=102), install):
        assert await code_of(second, request) == FencedInstanceId.code
    assert await members(server) == (before,)
    assert await code_of(first, beat(epoch, sequence=3)) == 0
    assert await code_of(first, install) not in (0, FencedInstanceId.code), "it is the member, and was not asked"


def users(path: Path, **passwords: str) -> Path:
    path.write_text("".join(f"{name}={password}\n" for name, password in passwords.items()))
    path.chmod(0o600)
    return path


def of(name: str, password: str) -> Access:
    return Access(credentials=Credentials(name, password))


@pytest.mark.parametrize("group_users", [{}, {GROUP: ("alice", "bob")}], ids=["any user", "users of the group"])
async def test_member_belongs_to_its_user_also_after_a_restart_with_another_password(
    tmp_path: Path, group_users: dict[str, tuple[str, ...]]
) -> None:
    file = users(tmp_path / "users", alice="one", bob="two")
    async with (
        serving(tmp_path, credentials=file, group_users=group_users) as server,
        clients(server, of("alice", "one"), of("bob", "two"), of("alice", "one")) as (alice, bob, also_alice),
    ):
        await join(alice)
        await only_the_first_is_the_member(server, also_alice, bob)  # on another connection
    users(file, alice="rotated", bob="two")
    async with (
        serving(tmp_path, credentials=file, group_users=group_users) as server,
        clients(server, of("alice", "rotated"), of("bob", "two")) as (alice, bob),
    ):
        await only_the_first_is_the_member(server, alice, bob)


async def test_member_whose_process_has_ended_is_removed_when_the_connection_of_its_user_is_lost(
    tmp_path: Path,
) -> None:
    """PD-13; the connection of another user ends no member (``coordinator/test_principal.py``)."""
    file = users(tmp_path / "users", alice="one")
    async with serving(tmp_path, credentials=file, session_timeout_ms=600_000) as server:
        coordinator = server.coordinator
        assert isinstance(coordinator, Coordinator)
        coordinator.lost_connections.has_ended = lambda process: True
        async with clients(server, of("alice", "one")) as (alice,):
            assert await code_of(alice, beat(sequence=1, os_process="ended")) == 0
        await eventually(lambda: not coordinator.shard.groups.loaded[GROUP].state.members)


async def test_member_belongs_to_the_name_in_its_certificate(tmp_path: Path) -> None:
    create_certificates(tmp_path, "server", "alice", "bob")
    (tmp_path / "both.pem").write_text((tmp_path / "alice.pem").read_text() + (tmp_path / "bob.pem").read_text())
    options = {"tls_cert": tmp_path / "server.pem", "tls_key": tmp_path / "server.key", "tls_ca": tmp_path / "both.pem"}

    def certified(name: str) -> Access:
        files = {"tls_ca": tmp_path / "server.pem", "tls_cert": tmp_path / f"{name}.pem"}
        return checked(AccessConfig, {**files, "tls_key": tmp_path / f"{name}.key"}).access()

    async with (
        serving(tmp_path, authentication=False, **options) as server,
        clients(server, certified("alice"), certified("bob"), certified("alice")) as (alice, bob, also_alice),
    ):
        await join(alice)
        await only_the_first_is_the_member(server, also_alice, bob)


@pytest.mark.parametrize(
    ("certificate", "name"),
    [
        (None, ""),
        ({}, ""),
        ({"subject": ((("commonName", "w"),), (("organizationName", "x"),)), "serialNumber": "1"}, "CN=w,O=x"),
        ({"subject": ((("commonName", "w,O=x"),),)}, r"CN=w\,O\=x"),
        ({"subject": (), "subjectAltName": (("URI", "spiffe://x/w"),)}, "URI=spiffe://x/w"),
    ],
)
def test_name_in_a_certificate(certificate: dict[str, Any] | None, name: str) -> None:
    assert name_in(certificate) == name
