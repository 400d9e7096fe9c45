"""The admin client: one method per operation, retries that never repeat a change, and errors that name the cause."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace

import pytest

from connectgroup import Config, Connector, Task, TaskContext, worker_group
from connectgroup.client.admin import Admin, PutResult, has_started_all
from connectgroup.coordinator.runtime import Coordinator
from connectgroup.errors import (
    ConfigError,
    ConnectorAlreadyExists,
    ConnectorNotFound,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    GroupError,
    GroupIdNotFound,
    InvalidGroupId,
    NonEmptyGroup,
    NotCoordinator,
    NotSent,
    TimedOut,
    TransportError,
    UnitFailed,
    UnknownMemberId,
)
from connectgroup.member.actions import Grant
from connectgroup.protocol.messages.api import Request, Response
from connectgroup.protocol.messages.common import config_of
from connectgroup.protocol.messages.connectors import (
    ChangedConnector,
    UpdateConnectorsRequest,
    UpdateConnectorsResponse,
)
from connectgroup.protocol.messages.describe import DescribedGroup, DescribeRequest, DescribeResponse
from connectgroup.protocol.records.connect import TargetState
from connectgroup.protocol.units import Unit, Units
from connectgroup.transport.base import Client
from tests.coordinator.builders import GROUP, ask, beat, serving, task_list

CONFIG = {"connector.class": "idle"}


@pytest.fixture
async def coordinator() -> AsyncIterator[Coordinator]:
    async with serving() as coordinator:
        yield coordinator


@pytest.fixture
async def admin(coordinator: Coordinator) -> AsyncIterator[Admin]:
    async with Admin.local(coordinator) as admin:
        yield admin


async def test_a_connector_is_created_changed_and_deleted(admin: Admin) -> None:
    assert await admin.add_connector(GROUP, "c", CONFIG) == 1
    assert await admin.put_connector(GROUP, "c", {**CONFIG, "a": "1"}) == PutResult(version=2, created=False)
    assert await admin.patch_connector(GROUP, "c", {"a": None, "b": "2"}) == 3
    assert config_of((await admin.describe_connector(GROUP, "c")).config) == {**CONFIG, "b": "2"}
    assert await admin.set_state(GROUP, "c", TargetState.PAUSED) == 4
    await admin.delete_connector(GROUP, "c")
    assert (await admin.describe(GROUP)).connectors == ()
    assert await admin.put_connector(GROUP, "c", CONFIG) == PutResult(version=6, created=True)


async def test_a_connector_is_created_in_its_initial_state(admin: Admin) -> None:
    """KIP-980."""
    await admin.add_connector(GROUP, "c", CONFIG, state=TargetState.STOPPED)
    assert (await admin.describe_connector(GROUP, "c")).target_state == "STOPPED"


async def test_each_rejection_is_an_exception_of_its_own(admin: Admin, coordinator: Coordinator) -> None:
    await admin.add_connector(GROUP, "c", CONFIG)
    rejected: list[tuple[Callable[[], object], type[GroupError]]] = [
        (lambda: admin.add_connector(GROUP, "c", CONFIG), ConnectorAlreadyExists),
        (lambda: admin.delete_connector(GROUP, "nosuch"), ConnectorNotFound),
        (lambda: admin.describe_connector(GROUP, "nosuch"), ConnectorNotFound),
        (lambda: admin.patch_connector(GROUP, "nosuch", {}), ConnectorNotFound),
        (lambda: admin.restart_connector(GROUP, "nosuch"), ConnectorNotFound),
        (lambda: admin.restart_task(GROUP, "c", 0), ConnectorNotFound),
        (lambda: admin.describe("nosuch"), GroupIdNotFound),
        (lambda: admin.describe(""), InvalidGroupId),
        (lambda: admin.delete_group("nosuch"), GroupIdNotFound),
        (lambda: admin.restart_worker(GROUP, "nosuch"), UnknownMemberId),
    ]
    for call, error in rejected:
        with pytest.raises(error):
            await call()  # type: ignore[misc]
    await coordinator.handle(beat("a"), client_host="h")
    with pytest.raises(NonEmptyGroup):
        await admin.delete_group(GROUP)


async def test_restarted_units_are_those_with_an_owner(admin: Admin, coordinator: Coordinator) -> None:
    await admin.add_connector(GROUP, "c", CONFIG)
    assert await admin.restart_connector(GROUP, "c", include_tasks=True) == ()
    await ask(coordinator, beat("a"))
    await coordinator.handle(task_list("a", 2, 2), client_host="h")
    for _ in range(2):  # the computation starts, then its assignment is applied
        await ask(coordinator, beat("a", 2))
    assert await admin.restart_connector(GROUP, "c") == (-1,)
    assert await admin.restart_task(GROUP, "c", 1) == (1,)
    assert await admin.restart_connector(GROUP, "c", include_tasks=True, only_failed=True) == ()


async def test_groups_are_listed_and_deleted(admin: Admin) -> None:
    assert await admin.list_groups() == ()
    await admin.add_connector("b", "c", CONFIG)
    await admin.add_connector("a", "c", CONFIG)
    assert [(group.group_id, group.connectors) for group in await admin.list_groups()] == [("a", ()), ("b", ())]
    assert [len(group.connectors) for group in await admin.list_groups(connectors=True)] == [1, 1]
    await admin.delete_group("a")
    assert [group.group_id for group in await admin.list_groups()] == ["b"]


async def test_a_description_of_connectors_only_omits_members_and_rebalances(
    admin: Admin, coordinator: Coordinator
) -> None:
    await admin.add_connector(GROUP, "c", CONFIG)
    await ask(coordinator, beat("a"))
    whole = await admin.describe(GROUP)
    part = await admin.describe(GROUP, connectors_only=True)
    assert whole.members
    assert whole.rebalances
    assert part == replace(whole, members=(), rebalances=(), delayed=())


async def test_waiting_ends_with_the_state_or_with_an_error(admin: Admin) -> None:
    await admin.add_connector(GROUP, "c", CONFIG)
    assert (await admin.wait_stable(GROUP)).state == "Empty"
    with pytest.raises(TimedOut, match=r"group workers: not running all tasks of worker w within 0.2 s; it is Empty"):
        await admin.wait_worker(GROUP, "w", timeout_s=0.2)


async def test_a_group_that_does_not_exist_yet_is_waited_for(admin: Admin, coordinator: Coordinator) -> None:
    """It is created with its first connector or worker."""
    with pytest.raises(GroupIdNotFound):
        await admin.wait_worker("typo", "w", timeout_s=0.01)
    waiting = asyncio.create_task(admin.wait_stable(GROUP))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    await admin.add_connector(GROUP, "c", CONFIG)
    assert (await waiting).state == "Empty"


class Broken:
    """A runner whose starts fail while it is broken."""

    def __init__(self) -> None:
        self.broken = True
        self.starts = 0

    async def start(self, grants: Sequence[Grant]) -> None:
        self.starts += 1
        if self.broken:
            raise ValueError("no room")

    async def stop(self, units: Units) -> None:
        pass


async def test_waiting_for_a_unit_that_failed_for_good_ends_at_once_and_not_after_its_restart() -> None:
    async with worker_group("mine", workers=0, connectors={"c": CONFIG}) as group:
        runner = Broken()
        await group.add_worker("w", runner=runner)
        with pytest.raises(UnitFailed, match=r"^connector c: c has failed, and .* does not try again: no room"):
            await group.admin.wait_running("mine", "c", timeout_s=300)
        (member,) = (await group.admin.describe("mine")).members
        assert member.assigned_units == member.target_units == {Unit("c")}
        assert member.revoked_units == frozenset()
        runner.broken = False
        assert await group.admin.restart_connector("mine", "c") == (-1,)
        with pytest.raises(TimedOut, match="c is STARTING"):  # this runner does not report that it runs
            await group.admin.wait_running("mine", "c", timeout_s=2)
        assert runner.starts == 2


async def test_waiting_for_a_connector_without_tasks_ends_when_it_runs() -> None:
    """As in Kafka Connect: it has nothing to do yet."""

    class Empty(Connector):
        def task_configs(self, max_tasks: int) -> list[dict[str, str]]:
            return []

        def task(self, config: Config, context: TaskContext) -> Task:
            raise AssertionError("it has no tasks")

    async with worker_group("mine", connectors={"c": {"connector.class": Empty}}) as group:
        units = (await group.admin.wait_running("mine", "c", timeout_s=60)).units
        assert [(unit.task, unit.state) for unit in units] == [(-1, "RUNNING")]
        assert has_started_all(await group.admin.describe("mine"))


async def test_waiting_for_a_connector_that_does_not_run_says_why(admin: Admin) -> None:
    await admin.add_connector(GROUP, "c", CONFIG)
    with pytest.raises(TimedOut, match=r"^connector c: not running within 0.01 s; c is UNASSIGNED$"):
        await admin.wait_running(GROUP, "c", timeout_s=0.01)
    with pytest.raises(ConnectorNotFound, match="connectors of this group: c"):
        await admin.wait_running(GROUP, "d")
    async with worker_group("mine", connectors={"c": {"connector.class": "idel"}, "d": CONFIG}) as group:
        assert [unit.state for unit in (await group.admin.wait_running("mine", "d")).units] == ["RUNNING"] * 2
        with pytest.raises(TimedOut, match=r"c is FAILED: .*got 'idel'; allowed: idle, pipeline"):
            await group.admin.wait_running("mine", "c", timeout_s=1)
        with pytest.raises(TimedOut, match=r"not idle within 0.01 s; it is Stable; c is FAILED: .*'idel'"):
            await group.admin.wait_until("mine", lambda described: False, what="idle", timeout_s=0.01)


async def test_numbers_and_booleans_of_a_configuration_become_text(admin: Admin) -> None:
    config = {**CONFIG, "tasks.max": 2, "ratio": 0.5, "flag": True}
    await admin.put_connector(GROUP, "c", config)
    texts = {**CONFIG, "tasks.max": "2", "ratio": "0.5", "flag": "true"}
    assert config_of((await admin.describe_connector(GROUP, "c")).config) == texts
    await admin.put_connector(GROUP, "c", config)
    await admin.add_connector(GROUP, "d", config)
    await admin.patch_connector(GROUP, "c", {"tasks.max": 3, "flag": None})
    assert config_of((await admin.describe_connector(GROUP, "c")).config) == {
        **CONFIG, "tasks.max": "3", "ratio": "0.5"
    }  # fmt: skip


async def test_invalid_value_names_connector_and_setting(admin: Admin) -> None:
    allowed = "allowed: text, a number, true or false"
    for call in (admin.put_connector, admin.add_connector, admin.patch_connector):
        with pytest.raises(ConfigError, match=r"connector c: db\.password: got '\[hidden\]'; allowed: the real value"):
            await call(GROUP, "c", {"connector.class": "idle", "db.password": "[hidden]"})
        with pytest.raises(ConfigError) as error:
            await call(GROUP, "a", {**CONFIG, "tasks.max": [1]})
        assert str(error.value) == f"connector a: tasks.max: got '[1] (list)'; {allowed}"
    with pytest.raises(ConfigError, match=r"^connector a: config: got 'an object of int'; allowed: a dict of"):
        await admin.put_connector(GROUP, "a", 3)  # type: ignore[arg-type]


async def test_unknown_names_are_answered_with_those_that_exist(admin: Admin, coordinator: Coordinator) -> None:
    await admin.add_connector(GROUP, "c", CONFIG)
    await ask(coordinator, beat("w"))
    with pytest.raises(ConnectorNotFound, match=r"^connector zz does not exist; connectors of this group: c$"):
        await admin.describe_connector(GROUP, "zz")
    with pytest.raises(TimedOut, match=r"not running all tasks of worker zz .*; workers of this group: w$"):
        await admin.wait_worker(GROUP, "zz", timeout_s=0.01)


# ---- retries


class ScriptedClient(Client):
    """A client whose next results are scripted: an exception is raised, an error code is a response with it.

    Attributes:
        calls: the requests that were sent.
    """

    def __init__(self, name: str, *results: Exception | int) -> None:
        self.name, self.results = name, list(results)
        self.calls: list[Request] = []

    @property
    def address(self) -> str:
        return self.name

    async def call(self, request: Request, *, timeout_s: float) -> Response:
        self.calls.append(request)
        result = self.results.pop(0) if self.results else 0
        if isinstance(result, Exception):
            raise result
        if isinstance(request, DescribeRequest):
            return DescribeResponse(groups=(DescribedGroup(group_id=GROUP, error_code=result),))
        assert isinstance(request, UpdateConnectorsRequest)
        return UpdateConnectorsResponse(error_code=result, results=(ChangedConnector(connector="c", version=7),))

    async def close(self) -> None:
        pass


LOST = TransportError("connection lost")
NOT_CONNECTED = NotSent("cannot connect: Connection refused")


@pytest.mark.parametrize(
    "failure", [LOST, NOT_CONNECTED, CoordinatorLoadInProgress.code, CoordinatorNotAvailable.code, NotCoordinator.code]
)
async def test_an_idempotent_request_is_retried_after_any_temporary_failure(failure: Exception | int) -> None:
    client = ScriptedClient("a", failure, failure)
    assert (await Admin([client]).describe(GROUP)).group_id == GROUP
    assert await Admin([ScriptedClient("a", failure)]).set_state(GROUP, "c", TargetState.PAUSED) == 7
    assert len(client.calls) == 3


@pytest.mark.parametrize("failure", [NOT_CONNECTED, CoordinatorLoadInProgress.code, NotCoordinator.code])
async def test_a_creation_that_was_not_processed_is_retried(failure: Exception | int) -> None:
    assert await Admin([ScriptedClient("a", failure)]).add_connector(GROUP, "c", CONFIG) == 7


@pytest.mark.parametrize("failure", [LOST, CoordinatorNotAvailable.code])
async def test_a_creation_or_deletion_with_an_unknown_outcome_is_not_repeated(failure: Exception | int) -> None:
    calls: tuple[Callable[[Admin], Awaitable[object]], ...] = (
        lambda admin: admin.add_connector(GROUP, "c", CONFIG),
        lambda admin: admin.delete_connector(GROUP, "c"),
    )
    for call in calls:
        client = ScriptedClient("a", failure)
        with pytest.raises((TransportError, CoordinatorNotAvailable), match="the change may have been made"):
            await call(Admin([client]))
        assert len(client.calls) == 1


@pytest.mark.parametrize("unknown", [LOST, CoordinatorNotAvailable.code])
async def test_an_unknown_outcome_is_not_hidden_by_a_retry_that_fails(unknown: Exception | int) -> None:
    """The retries of a change were not processed, the first attempt may have been; a description changes nothing."""
    failures = [unknown, *[NotCoordinator.code] * 100]
    with pytest.raises(NotCoordinator, match="; the change may have been made"):
        await Admin([ScriptedClient("a", *failures)], retry_for_s=0.5).patch_connector(GROUP, "c", {"a": "1"})
    with pytest.raises(NotCoordinator) as error:
        await Admin([ScriptedClient("a", *failures[1:])], retry_for_s=0.5).patch_connector(GROUP, "c", {"a": "1"})
    assert "may have been made" not in str(error.value)
    with pytest.raises(NotCoordinator) as error:
        await Admin([ScriptedClient("a", *failures)], retry_for_s=0.5).describe(GROUP)
    assert "may have been made" not in str(error.value)


async def test_a_rejected_request_is_not_retried() -> None:
    client = ScriptedClient("a", ConnectorNotFound.code)
    with pytest.raises(ConnectorNotFound):
        await Admin([client]).set_state(GROUP, "c", TargetState.PAUSED)
    assert len(client.calls) == 1


@pytest.mark.parametrize(
    ("failure", "used"), [(NOT_CONNECTED, "b"), (NotCoordinator.code, "b"), (CoordinatorLoadInProgress.code, "a")]
)
async def test_the_next_address_is_tried_unless_the_coordinator_is_loading(failure: Exception | int, used: str) -> None:
    clients = [ScriptedClient("a", failure), ScriptedClient("b")]
    admin = Admin(clients)
    await admin.describe(GROUP)
    assert admin.address == used


async def test_retries_end(monkeypatch: pytest.MonkeyPatch) -> None:
    client = ScriptedClient("a", *[NOT_CONNECTED] * 100)
    with pytest.raises(NotSent, match="Connection refused"):
        await Admin([client], retry_for_s=0.2).describe(GROUP)
    assert 1 < len(client.calls) < 100


async def test_an_address_that_is_not_one_is_named() -> None:
    with pytest.raises(ConfigError, match="addresses: got 'here'; allowed: host:port"):
        Admin.connect(["127.0.0.1:1", "here"])
    with pytest.raises(ValueError, match="one or more"):
        Admin([])


async def test_requests_travel_over_tcp(coordinator: Coordinator) -> None:
    from connectgroup.transport.tcp_server import TcpServer

    server = TcpServer(coordinator, host="127.0.0.1", port=0)
    await server.start()
    try:
        async with Admin.connect(f"127.0.0.1:{server.port}") as admin:
            await asyncio.gather(*(admin.add_connector(GROUP, f"c{number}", CONFIG) for number in range(5)))
            assert len((await admin.describe(GROUP)).connectors) == 5
            assert await admin.restart_connector(GROUP, "c0") == ()
            assert await admin.patch_connector(GROUP, "c0", {"a": "1", "b": None}) > 0
    finally:
        await server.close()
