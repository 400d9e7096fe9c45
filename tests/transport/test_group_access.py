"""Users and their groups: GROUP_AUTHORIZATION_FAILED for every request about a group of other users.

Connect on the new protocol lists it among the errors of each response about a group.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from connectgroup import Connections, MemberSettings, Worker
from connectgroup.client.admin import Admin
from connectgroup.coordinator.server import CoordinatorServer
from connectgroup.errors import ConfigError, GroupAuthorizationFailed
from connectgroup.protocol.messages.describe import DescribeRequest
from connectgroup.protocol.messages.listing import ListGroupsRequest
from connectgroup.protocol.messages.offsets import (
    GroupToFetch,
    OffsetCommitRequest,
    OffsetFetchRequest,
    PartitionCommit,
    TopicCommit,
)
from connectgroup.transport.access import Access
from connectgroup.transport.credentials import Credentials
from connectgroup.transport.group_access import GroupAccess
from connectgroup.transport.tcp_client import TcpClient
from connectgroup.wire.apis import APIS

from .authenticating import port_of, serving

GROUP, OPEN = "orders-eu", "clicks"
RULES: dict[str, tuple[str, ...]] = {"orders*": ("alice",), "orders-test": ("bob",)}
WITHOUT_GROUP = {
    *("ApiVersionsRequest", "FindCoordinatorRequest", "SaslHandshakeRequest", "SaslAuthenticateRequest"),
    "DescribeCoordinatorsRequest",
    "TxnOffsetCommitRequest",  # the proxy's, which has no users
}
ABOUT_A_GROUP = [
    api.request_class
    for api in APIS.values()
    if api.request_class.__name__ not in WITHOUT_GROUP and api.request_class is not ListGroupsRequest
]


@asynccontextmanager
async def coordinator(tmp_path: Path, rules: dict[str, tuple[str, ...]] = RULES) -> AsyncIterator[CoordinatorServer]:
    users = tmp_path / "users"
    users.write_text("alice=word-of-alice\nbob=word-of-bob\n")
    users.chmod(0o600)
    async with serving(tmp_path, credentials=users, group_users=rules) as server:
        yield server


def client_of(server: CoordinatorServer, user: str) -> TcpClient:
    return TcpClient("localhost", port_of(server), access=Access(credentials=Credentials(user, f"word-of-{user}")))


def request_about(group_id: str, cls: Any) -> Any:
    """A request of a class about one group; every other required field has some value."""
    values: dict[str, Any] = {"group_id": group_id, "group_ids": (group_id,), "groups_names": (group_id,)}
    values["groups"] = (GroupToFetch(group_id=group_id, topics=None),) if cls is OffsetFetchRequest else (group_id,)
    kinds = {"str": "m", "int": 1}
    fields = dataclasses.fields(cls)
    given = {field.name: values[field.name] for field in fields if field.name in values}
    if cls is OffsetFetchRequest:
        given["group_id"] = ""
    if cls is OffsetCommitRequest:
        partition = PartitionCommit(partition_index=0, committed_offset=7, committed_metadata=None)
        given["topics"] = (TopicCommit(name="t", partitions=(partition,)),)
    required = {
        field.name: kinds.get(str(field.type), ())
        for field in fields
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    return cls(**{**required, **given})


def error_codes(value: Any) -> Iterator[int]:
    """All error codes in a response, at any depth."""
    if isinstance(value, tuple):
        for each in value:
            yield from error_codes(each)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            found = getattr(value, field.name)
            if field.name == "error_code":
                yield found
            yield from error_codes(found)


@pytest.mark.parametrize("cls", ABOUT_A_GROUP, ids=lambda cls: cls.__name__)
async def test_request_about_a_group_of_others_is_refused(cls: Any, tmp_path: Path) -> None:
    """Every API that names a group; the same request is not refused for the group's user, nor for an open group."""
    async with coordinator(tmp_path) as server:
        alice, bob = client_of(server, "alice"), client_of(server, "bob")
        try:
            denied = set(error_codes(await bob.call(request_about(GROUP, cls), timeout_s=10)))
            assert denied - {0} == {GroupAuthorizationFailed.code}
            for client, group in ((bob, OPEN), (bob, "orders-test"), (alice, GROUP)):
                found = error_codes(await client.call(request_about(group, cls), timeout_s=10))
                assert GroupAuthorizationFailed.code not in set(found), group
        finally:
            await alice.close()
            await bob.close()


async def test_other_users_see_only_their_groups(tmp_path: Path) -> None:
    """KAFKA-18813: responses named topics that the caller may not describe."""
    async with coordinator(tmp_path) as server:
        alice, bob = client_of(server, "alice"), client_of(server, "bob")
        try:
            async with Admin([alice]) as admin:
                for group in (GROUP, OPEN):
                    await admin.add_connector(group, "c", {"connector.class": "idle"})
                assert {group.group_id for group in await admin.list_groups()} == {GROUP, OPEN}
            described: Any = await bob.call(DescribeRequest(), timeout_s=10)
            assert [group.group_id for group in described.groups] == [OPEN]
            listed: Any = await bob.call(ListGroupsRequest(), timeout_s=10)
            assert [group.group_id for group in listed.groups] == [OPEN]
            some: Any = await bob.call(DescribeRequest(group_ids=(OPEN, GROUP)), timeout_s=10)
            assert [(group.group_id, group.error_code) for group in some.groups] == [(OPEN, 0), (GROUP, 30)]
            assert not some.groups[1].connectors
        finally:
            await bob.close()


async def test_worker_of_another_user_ends_with_the_error(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as server:
        connections = Connections(heartbeats=client_of(server, "bob"), control=client_of(server, "bob"))
        worker = Worker(MemberSettings(group_id=GROUP, member_id="w"), connections)
        with pytest.raises(GroupAuthorizationFailed, match=f"not authorized to use group {GROUP}"):
            await worker.run()


async def test_rule_for_an_unknown_user_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"group_users: got 'alise'; allowed: users of .*: alice, bob"):
        async with coordinator(tmp_path, {"orders": ("alise",)}):
            pass


@pytest.mark.parametrize(
    ("group", "allowed"),
    [("a", {"x", "y", "z"}), ("ab", {"y"}), ("abc", {"z"}), ("abcd", {"z"}), ("abx", {"x"}), ("", {"x", "y", "z"})],
)
def test_the_most_specific_rule_decides(group: str, allowed: set[str]) -> None:
    access = GroupAccess({"ab*": ["x"], "ab": ["y"], "abc*": ["z"]})
    assert {user for user in "xyz" if access.allows(user, group)} == allowed
