"""Users and their groups: GROUP_AUTHORIZATION_FAILED for every request about a group of other users.

Connect on the new protocol lists it among the errors of each response about a group.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from connectgroup import Connections, MemberSettings, RunnerSettings, TaskRunner, Worker
from connectgroup.client.admin import Admin
from connectgroup.coordinator.server import CoordinatorServer
from connectgroup.errors import ConfigError, ConnectorNotFound, GroupAuthorizationFailed, NotCoordinator
from connectgroup.plugins import load_connector_class
from connectgroup.protocol.messages.cluster import FindCoordinatorRequest
from connectgroup.protocol.messages.connectors import (
    ConfigPatch,
    ConnectorChange,
    ResetTopicsRequest,
    RestartedUnit,
    UpdateConnectorsRequest,
)
from connectgroup.protocol.messages.describe import DeleteRequest, DescribeRequest, ListGroupsRequest
from connectgroup.protocol.messages.offsets import (
    GroupToFetch,
    OffsetCommitRequest,
    OffsetFetchRequest,
    PartitionCommit,
    TopicCommit,
)
from connectgroup.protocol.messages.rejected import rejected
from connectgroup.transport.access import Access
from connectgroup.transport.access_rules import AccessOperation, AccessRules
from connectgroup.transport.credentials import Credentials
from connectgroup.transport.group_access import NEEDS, Authorization, AuthorizedHandler, GroupAccess
from connectgroup.transport.tcp_client import TcpClient
from connectgroup.wire.apis import APIS
from connectgroup.wire.table import Party, served_by

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


# --------------------------------------------------------------------------------------------------
# Rules by operation.

OPERATION_OF: dict[int, AccessOperation | None] = {
    8: AccessOperation.READ,  # OffsetCommit
    9: AccessOperation.DESCRIBE,  # OffsetFetch
    10: AccessOperation.DESCRIBE,  # FindCoordinator
    11: AccessOperation.READ,  # JoinGroup
    12: AccessOperation.READ,  # Heartbeat
    13: AccessOperation.READ,  # LeaveGroup
    14: AccessOperation.READ,  # SyncGroup
    15: AccessOperation.DESCRIBE,  # DescribeGroups
    16: AccessOperation.DESCRIBE,  # ListGroups
    17: None,  # SaslHandshake
    18: None,  # ApiVersions
    28: AccessOperation.READ,  # TxnOffsetCommit
    36: None,  # SaslAuthenticate
    42: AccessOperation.DELETE,  # DeleteGroups
    47: AccessOperation.DELETE,  # OffsetDelete
    68: AccessOperation.READ,  # ConsumerGroupHeartbeat
    69: AccessOperation.DESCRIBE,  # ConsumerGroupDescribe
    20480: AccessOperation.READ,  # ConnectGroupHeartbeat
    20481: AccessOperation.READ,  # ConnectGroupPrepareAssignment
    20482: AccessOperation.READ,  # ConnectGroupInstallAssignment
    20483: AccessOperation.DESCRIBE,  # ConnectGroupDescribe
    20484: AccessOperation.ALTER,  # ConnectGroupUpdateConnectors: of connectors
    20485: AccessOperation.DELETE,  # ConnectGroupDelete
    20486: AccessOperation.ALTER,  # ConnectGroupRestartMember
    20487: AccessOperation.READ,  # ConsumerGroupPrepareAssignment
    20488: AccessOperation.READ,  # ConsumerGroupInstallAssignment
    20489: AccessOperation.ALTER,  # ConnectGroupSetLoggerLevel
    20490: AccessOperation.ALTER,  # ConnectGroupResetTopics: of a connector
    20491: None,  # ConnectGroupDescribeCoordinators
}
"""The operation that each API needs: those of Kafka as in Kafka's documentation."""

PASSWORD = "word-of-"  # and the name


@asynccontextmanager
async def ruled(tmp_path: Path, rules: str, *users: str, **config: Any) -> AsyncIterator[CoordinatorServer]:
    """A coordinator with these rules and these users."""
    (tmp_path / "rules").write_text(rules)
    file = tmp_path / "users"
    file.write_text("".join(f"{user}={PASSWORD}{user}\n" for user in users))
    file.chmod(0o600)
    async with serving(tmp_path, credentials=file, access_rules=tmp_path / "rules", **config) as server:
        yield server


@asynccontextmanager
async def clients_of(server: CoordinatorServer, *users: str) -> AsyncIterator[list[TcpClient]]:
    opened = [client_of(server, user) for user in users]
    try:
        yield opened
    finally:
        for each in opened:
            await each.close()


async def codes_of(client: TcpClient, request: Any) -> set[int]:
    return set(error_codes(await client.call(request, timeout_s=10)))


def test_every_api_has_an_operation() -> None:
    assert {entry.key for entry in served_by(Party.COORDINATOR)} == OPERATION_OF.keys()
    for entry in served_by(Party.COORDINATOR):
        assert NEEDS[entry.request_class] is OPERATION_OF[entry.key], entry.name


@pytest.mark.parametrize("cls", ABOUT_A_GROUP, ids=lambda cls: cls.__name__)
async def test_request_needs_exactly_its_operation(cls: Any, tmp_path: Path) -> None:
    """One user for each operation; the group does not exist, which a denied client does not learn."""
    of_connector = cls in (UpdateConnectorsRequest, ResetTopicsRequest)
    resource = "group g connector c" if of_connector else "group g"
    users = [each.value.lower() for each in AccessOperation]
    rules = "\n".join(f"allow {each} {each} {resource}" for each in users)
    key = next(api.key for api in APIS.values() if api.request_class is cls)
    needed = OPERATION_OF[key]
    assert needed is not None
    request = request_about("g", cls)
    if cls is UpdateConnectorsRequest:
        request = cls(group_id="g", changes=(ConnectorChange(connector="c", config=()),))
    elif cls is ResetTopicsRequest:
        request = cls(group_id="g", connector="c")
    async with ruled(tmp_path, rules, *users, "none") as server, clients_of(server, *users, "none") as clients:
        for user, client in zip((*users, "none"), clients, strict=True):
            codes = await codes_of(client, request)
            may = user == needed.value.lower() or (needed is AccessOperation.DESCRIBE and user != "none")
            assert (GroupAuthorizationFailed.code not in codes) is may, (user, codes)


@pytest.mark.parametrize(
    ("change", "user"),
    [
        (ConnectorChange(connector="c", delete=True), "delete"),
        (ConnectorChange(connector="c", target_state=2), "alter"),
        (ConnectorChange(connector="c", config_patch=(ConfigPatch(name="a", value="b"),)), "alter"),
        (ConnectorChange(connector="c", restart=(RestartedUnit(task=0, owner_epoch=1),)), "alter"),
    ],
)
async def test_change_of_a_connector_needs_alter_and_its_deletion_delete(
    change: ConnectorChange, user: str, tmp_path: Path
) -> None:
    """A client that names a member does not get around it, nor one that adds what an owner publishes."""
    rules = "allow alter alter group g connector c\nallow delete delete group g connector c\nallow worker read group g"
    users = ("alter", "delete", "worker")
    async with ruled(tmp_path, rules, *users) as server, clients_of(server, *users) as clients:
        for name, client in zip(users, clients, strict=True):
            for member_id, tasks in ((None, None), ("m", None), ("m", ())):
                changed = replace(change, task_configs=tasks, credential_names=tasks)
                request = UpdateConnectorsRequest(group_id="g", member_id=member_id, changes=(changed,))
                denied = GroupAuthorizationFailed.code in await codes_of(client, request)
                assert denied is (name != user), (name, member_id)


async def test_all_changes_of_a_request_must_be_allowed(tmp_path: Path) -> None:
    async with (
        ruled(tmp_path, "allow a alter group g connector mine-*", "a") as server,
        clients_of(server, "a") as (client,),
    ):
        changes = tuple(ConnectorChange(connector=name, config=()) for name in ("mine-1", "theirs"))
        request = UpdateConnectorsRequest(group_id="g", changes=changes)
        assert await codes_of(client, request) >= {GroupAuthorizationFailed.code}
        async with Admin.local(server.coordinator) as admin:
            assert await admin.list_groups() == ()


async def test_descriptions_have_only_what_may_be_described(tmp_path: Path) -> None:
    """Lists, and everything in the description of a group that names a connector."""
    rules = """
    allow boss all group *
    allow boss all group * connector *
    allow a describe group shown
    allow a describe group shown connector mine-*
    allow b describe group hidden connector mine-*
    """
    async with ruled(tmp_path, rules, "boss", "a", "b") as server, clients_of(server, "boss", "a", "b") as clients:
        boss, a, b = (Admin([each]) for each in clients)
        for group in ("shown", "hidden"):
            for name in ("mine-1", "theirs"):
                await boss.add_connector(group, name, {"connector.class": "idle", "password": "confidential"})
        connections = Connections(heartbeats=client_of(server, "boss"), control=client_of(server, "boss"))
        worker = Worker(MemberSettings(group_id="shown", member_id="w"), connections)
        running = asyncio.create_task(worker.run())
        try:
            await boss.wait_until("shown", lambda group: bool(group.rebalances), what="with a rebalance")
            assert {group.group_id for group in await a.list_groups()} == {"shown"}
            assert await b.list_groups() == ()
            everything = repr(await a.describe("shown", assignor_input=True, task_configs=True))
            assert "mine-1" in everything
            assert "theirs" not in everything
            [listed] = (await b.describe("hidden", connectors_only=True)).connectors
            assert listed.connector == "mine-1"
            assert (await a.describe_connector("shown", "mine-1")).connector == "mine-1"
            for admin, group, name in ((a, "shown", "theirs"), (a, "shown", "nowhere"), (b, "hidden", "theirs")):
                with pytest.raises(GroupAuthorizationFailed, match="not authorized to describe connector"):
                    await admin.describe_connector(group, name)
            for group in ("hidden", "nowhere"):
                with pytest.raises(GroupAuthorizationFailed, match=f"not authorized to describe group {group}"):
                    await a.describe(group)
            with pytest.raises(GroupAuthorizationFailed, match="not authorized to alter"):
                await a.describe("shown", connectors=("mine-1",), connectors_only=True, credentials=True)
            with pytest.raises(GroupAuthorizationFailed, match="not authorized to alter"):
                await a.describe("shown", credentials=True)
            assert "confidential" in {
                each.value for each in (await boss.describe("shown", credentials=True)).connectors[0].config
            }
        finally:
            worker.stop()
            await running


async def test_refused_change_names_no_connector_that_may_not_be_described(tmp_path: Path) -> None:
    """The error of one that does not exist lists those that do: also for who may alter some, and for a worker."""
    rules = """
    allow boss all group g
    allow boss all group g connector *
    allow some alter group g connector mine-*
    allow worker read group g
    """
    users = ("boss", "some", "worker")
    async with ruled(tmp_path, rules, *users) as server, clients_of(server, *users) as clients:
        await Admin([clients[0]]).add_connector("g", "theirs", {"connector.class": "idle"})
        change = ConnectorChange(connector="mine-1")
        for user, client in zip(users, clients, strict=True):
            member_id = "w" if user == "worker" else None
            request = UpdateConnectorsRequest(group_id="g", member_id=member_id, changes=(change,))
            response: Any = await client.call(request, timeout_s=10)
            others = "; connectors of this group: theirs" if user == "boss" else ""
            for each in (response, *response.results):
                found = (each.error_code, each.error_message)
                assert found == (ConnectorNotFound.code, f"connector mine-1 does not exist{others}"), user


async def test_coordinator_is_found_for_groups_that_may_be_described(tmp_path: Path) -> None:
    async with (
        ruled(tmp_path, "allow a read group g", "a") as server,
        clients_of(server, "a") as (client,),
    ):
        found: Any = await client.call(FindCoordinatorRequest(coordinator_keys=("g", "other", "")), timeout_s=10)
        assert [each.error_code for each in found.coordinators] == [0, GroupAuthorizationFailed.code, 0]
        assert [each.host for each in found.coordinators] == ["127.0.0.1", "", "127.0.0.1"]


async def test_users_of_a_group_are_limited_by_the_rules_too(tmp_path: Path) -> None:
    async with (
        ruled(tmp_path, "allow * describe group *", "a", "b", group_users={"g": ("a",)}) as server,
        clients_of(server, "a", "b") as (a, b),
    ):
        assert GroupAuthorizationFailed.code not in await codes_of(a, request_about("g", DescribeRequest))
        assert await codes_of(b, request_about("g", DescribeRequest)) == {GroupAuthorizationFailed.code}
        assert await codes_of(a, request_about("g", DeleteRequest)) == {GroupAuthorizationFailed.code}


async def test_worker_runs_with_read_alone(tmp_path: Path) -> None:
    """Its own task lists included; it changes no connector otherwise."""
    rules = "allow worker read group g\nallow boss all group g\nallow boss all group g connector *"
    async with ruled(tmp_path, rules, "worker", "boss") as server, clients_of(server, "boss") as (boss,):
        admin = Admin([boss])
        await admin.add_connector("g", "c", {"connector.class": "idle", "tasks.max": "2"})
        connections = Connections(heartbeats=client_of(server, "worker"), control=client_of(server, "worker"))
        worker = Worker(MemberSettings(group_id="g", member_id="w"), connections)
        runner = TaskRunner(
            "w",
            RunnerSettings(scratch=tmp_path / "scratch", group_id="g", allowed_paths=None),
            load_class=load_connector_class,
            publish=worker.publish_tasks,
            report=worker.report,
        )
        worker.set_runner(runner)
        running = asyncio.create_task(worker.run())
        try:
            assert len((await admin.wait_running("g", "c", timeout_s=90)).units) == 3
        finally:
            worker.stop()
            await running


async def test_refused_list_of_groups_is_no_empty_list(tmp_path: Path) -> None:
    """The error of the whole list names no group, so no rule of a group hides it."""

    class Refusing:
        async def handle(self, request: Any, **client: Any) -> Any:
            return rejected(request, NotCoordinator.code, "stands by")

    (tmp_path / "rules").write_text("allow bob describe group team-*\n")
    access = Authorization(rules=AccessRules(tmp_path / "rules"))
    handler = AuthorizedHandler(Refusing(), access, lambda: "bob", lambda request, denial: None)
    response: Any = await handler.handle(DescribeRequest(group_ids=()), client_host="")
    assert [(each.group_id, each.error_code) for each in response.groups] == [("", NotCoordinator.code)]
