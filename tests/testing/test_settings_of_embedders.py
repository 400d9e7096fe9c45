"""Settings of a program that embeds connectgroup: an error names the field, the value and what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from connectgroup import (
    Admin,
    ConfigError,
    Coordinator,
    CoordinatorConfig,
    GroupError,
    GroupSettings,
    LocalClient,
    MemberSettings,
    MemoryLog,
    RunnerSettings,
    TargetState,
    TcpClient,
    WorkerConfig,
    WorkerTraits,
    sync,
    worker_group,
)
from connectgroup.worker.settings import WorkerSettings

HOUR = "a whole number from 1 to 3600000"
HOST = "a host name or an IP address, without scheme and port"
HANDLER = "a Coordinator in this process; TcpClient(host, port) is a client of another process"
CLIENTS = 'a list of clients; Admin.connect("host:port") and Admin.local(coordinator) make them'


def coordinator() -> Coordinator:
    return Coordinator(MemoryLog(), GroupSettings())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"group_id": 3}, "group_id: got '3'; allowed: text"),
        ({"group_id": ""}, "group_id: got ''; allowed: a non-empty name"),
        ({"member_id": ""}, "member_id: got ''; allowed: a non-empty name"),
        ({"instance_id": ""}, "instance_id: got ''; allowed: a non-empty name"),
        ({"server_assignor": 3}, "server_assignor: got '3'; allowed: text"),
        ({"rebalance_timeout_ms": 0}, f"rebalance_timeout_ms: got '0'; allowed: {HOUR}"),
        ({"max_wait_ms": -1}, "max_wait_ms: got '-1'; allowed: a whole number from 0 to 3600000"),
        ({"max_wait_ms": True}, "max_wait_ms: got 'True'; allowed: a whole number from 0 to 3600000"),
        ({"lease_margin": 3}, "lease_margin: got '3'; allowed: a number from 0 to 0.5"),
        ({"lease_margin": -1}, "lease_margin: got '-1'; allowed: a number from 0 to 0.5"),
        ({"lease_margin": float("nan")}, "lease_margin: got 'nan'; allowed: a number from 0 to 0.5"),
        ({"lease_margin": "x"}, "lease_margin: got 'x'; allowed: a number from 0 to 0.5"),
        ({"traits": {"capacity": 3}}, "traits: got \"{'capacity': 3}\"; allowed: WorkerTraits(...)"),
        (
            {"traits": WorkerTraits(labels=(("gpu", 1),))},  # type: ignore[arg-type]
            "labels: got \"(('gpu', 1),)\"; allowed: pairs of a name and a value: (('gpu', 'true'),)",
        ),
    ],
)
def test_settings_of_a_member_are_checked(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        MemberSettings(**{"group_id": "g", "member_id": "m", **changes})  # type: ignore[arg-type]
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GroupSettings(session_timeout_ms="ten"), f"session_timeout_ms: got 'ten'; allowed: {HOUR}"),  # type: ignore[arg-type]
        (
            lambda: GroupSettings(session_timeout_ms=3000, heartbeat_interval_ms=5000),
            "heartbeat_interval_ms: got '5000'; allowed: at most a third of session_timeout_ms (3000)",
        ),
        (
            lambda: GroupSettings(scheduled_delay_ms=-1),
            "scheduled_delay_ms: got '-1'; allowed: a whole number from 0 to 3600000",
        ),
        (lambda: GroupSettings(max_members=0), "max_members: got '0'; allowed: a whole number from 1 to 2147483647"),
        (lambda: GroupSettings(server_assignor=None), "server_assignor: got 'None'; allowed: text"),  # type: ignore[arg-type]
        (lambda: WorkerTraits(capacity="x"), "capacity: got 'x'; allowed: a whole number from 0 to 1000000000"),  # type: ignore[arg-type]
        (lambda: WorkerTraits(rack=None), "rack: got 'None'; allowed: text"),  # type: ignore[arg-type]
        (lambda: RunnerSettings(scratch="x"), "scratch: got 'x'; allowed: a pathlib.Path"),  # type: ignore[arg-type]
        (
            lambda: RunnerSettings(scratch=Path("x"), retry_max_s=-1),
            "retry_max_s: got '-1'; allowed: a number from 0 to 3600",
        ),
        (lambda: WorkerSettings(call_timeout_s=-1), "call_timeout_s: got '-1'; allowed: a number from 0 to 3600"),
        (lambda: TcpClient("127.0.0.1", "x"), "port: got 'x'; allowed: a whole number from 1 to 65535"),  # type: ignore[arg-type]
        (lambda: TcpClient("127.0.0.1", 0), "port: got '0'; allowed: a whole number from 1 to 65535"),
        (lambda: TcpClient("127.0.0.1", 70_000), "port: got '70000'; allowed: a whole number from 1 to 65535"),
        (lambda: TcpClient("", 1), f"host: got ''; allowed: {HOST}"),
        (lambda: TcpClient("h:1", 1), f"host: got 'h:1'; allowed: {HOST}"),
        (lambda: TcpClient("http://h", 1), f"host: got 'http://h'; allowed: {HOST}"),
        (
            lambda: Admin.connect("http://h:1"),
            "addresses: got 'http://h:1'; allowed: host:port, without a scheme and a path",
        ),
        (lambda: LocalClient("h:1"), f"handler: got 'h:1'; allowed: {HANDLER}"),  # type: ignore[arg-type]
        (lambda: LocalClient(Coordinator), f"handler: got 'the class Coordinator'; allowed: {HANDLER}"),  # type: ignore[arg-type]
        (lambda: Admin("h:1"), f"clients: got 'h'; allowed: {CLIENTS}"),  # type: ignore[arg-type]
        (lambda: Admin(LocalClient(coordinator())), f"clients: got 'an object of LocalClient'; allowed: {CLIENTS}"),  # type: ignore[arg-type]
        (
            lambda: Coordinator("/path", GroupSettings()),  # type: ignore[arg-type]
            "log: got '/path'; allowed: a log: MemoryLog(), or log_from_url(\"sqlite:///PATH\")",
        ),
        (
            lambda: Coordinator(MemoryLog(), MemberSettings(group_id="g", member_id="m")),  # type: ignore[arg-type]
            "settings: got 'an object of MemberSettings'; allowed: GroupSettings(...)",
        ),
        (lambda: CoordinatorConfig(port="x"), "port: got 'x'; allowed: a whole number from 0 to 65535"),  # type: ignore[arg-type]
        (lambda: CoordinatorConfig(prot=1), "prot: unknown; allowed: port (did you mean that?)"),  # type: ignore[call-arg]
        (lambda: WorkerConfig(), "group: missing"),  # type: ignore[call-arg]
        (
            lambda: TcpClient("127.0.0.1", "19474"),  # type: ignore[arg-type]
            "port: got '19474 (text)'; allowed: a whole number from 1 to 65535",
        ),
        (
            lambda: RunnerSettings(scratch=Path("x"), retry_max_s="1.5"),  # type: ignore[arg-type]
            "retry_max_s: got '1.5 (text)'; allowed: a number from 0 to 3600",
        ),
        (lambda: WorkerTraits(labels={}), "labels: got '{}'; allowed: pairs of a name and a value: (('gpu', 'true'),)"),  # type: ignore[arg-type]
    ],
)
def test_settings_are_checked_when_they_are_made(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        make()
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"settings": MemberSettings(group_id="g", member_id="m")}, "settings: got 'an object of MemberSettings'; all"),
        ({"listeners": lambda: ()}, "listeners: got '<lambda>(): too many positional arguments'; allowed: a function"),
        (
            {"listeners": []},
            "listeners: got 'an object of list'; allowed: a function of the worker's name",
        ),
        ({"connectors": "letters"}, "connectors: got 'letters'; allowed: by name: "),
    ],
    ids=["settings", "function without argument", "list", "connectors"],
)
async def test_arguments_of_a_group_are_checked_before_it_starts(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        async with worker_group("mine", **arguments):
            pass
    assert str(error.value).startswith(message)


async def test_wanted_state_is_a_target_state() -> None:
    admin = Admin.local(coordinator())
    for request in (
        admin.set_state("g", "c", "PAUSED"),  # type: ignore[arg-type]
        admin.add_connector("g", "c", {}, state="PAUSED"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigError) as error:
            await request
        assert str(error.value) == (
            "state: got 'PAUSED'; allowed: TargetState.RUNNING, TargetState.PAUSED, TargetState.STOPPED"
        )


async def test_condition_of_a_wait_is_a_function() -> None:
    with pytest.raises(ConfigError, match=r"^condition: got 'True'; allowed: a function of the description: lambda"):
        await Admin.local(coordinator()).wait_until("mine", True, what="true")  # type: ignore[arg-type]


async def test_request_before_the_start_of_the_coordinator_says_so() -> None:
    with pytest.raises(GroupError, match=r"allowed: await coordinator\.start\(\) first$"):
        await Admin.local(coordinator()).set_state("g", "c", TargetState.PAUSED)


def test_settings_of_a_worker_without_asyncio_are_checked() -> None:
    with (
        pytest.raises(ConfigError, match=r"^settings: got 'w1'; allowed: MemberSettings\("),
        sync.worker("w1", lambda: TcpClient("127.0.0.1", 1)),  # type: ignore[arg-type]
    ):
        pass
