"""What an embedder passes to ``Worker``: an error names the argument, before the worker joins."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from connectgroup import ThreadUnitRunner, UnitRunner, serve_worker, sync
from connectgroup.assign.api import ConnectAssignment, ConnectAssignor, ConnectAssignorInput
from connectgroup.assign.placement import WorkerTraits
from connectgroup.coordinator.runtime import Coordinator
from connectgroup.errors import ConfigError
from connectgroup.group.connect.settings import GroupSettings
from connectgroup.listener import WorkerRebalanceListener
from connectgroup.log.memory import MemoryLog
from connectgroup.member.actions import Grant
from connectgroup.member.settings import MemberSettings
from connectgroup.protocol.messages.describe import DescribeRequest
from connectgroup.protocol.messages.heartbeat import TaskStatus
from connectgroup.protocol.records.connect import UnitState
from connectgroup.protocol.units import Unit, Units
from connectgroup.transport.local import LocalClient
from connectgroup.worker.loop import Worker
from connectgroup.worker.settings import Connections

from .builders import World
from .test_embedding import start


class Listener(WorkerRebalanceListener):
    """A listener that does nothing."""


class First(ConnectAssignor):
    name = "first"

    def assign(self, group: ConnectAssignorInput) -> ConnectAssignment:
        return ConnectAssignment()


class PlainRunner:
    """A runner whose methods are not coroutines."""

    def start(self, grants: Sequence[Grant]) -> None: ...

    def stop(self, units: Units) -> None: ...


class Deaf:
    """A runner whose start takes no grants."""

    async def start(self) -> None: ...

    async def stop(self, units: Units) -> None: ...


class PlainUnits(UnitRunner):
    """A runner by unit whose methods are not coroutines."""

    def start_unit(self, grant: Grant) -> None: ...  # type: ignore[override]

    def stop_unit(self, unit: Unit) -> None: ...  # type: ignore[override]


class CoroutinesInThreads(ThreadUnitRunner):
    """A runner whose coroutines no thread would run: its units would be RUNNING, and nothing would run."""

    async def start_unit(self, grant: Grant) -> None: ...  # type: ignore[override]

    async def stop_unit(self, unit: Unit) -> None: ...  # type: ignore[override]


class StartsOnly(UnitRunner):
    async def start_unit(self, grant: Grant) -> None: ...


class DeafToGrants(ThreadUnitRunner):
    def start_unit(self) -> None: ...  # type: ignore[override]

    def stop_unit(self, unit: Unit) -> None: ...


class Both(UnitRunner):
    async def start_unit(self, grant: Grant) -> None: ...

    async def stop_unit(self, unit: Unit) -> None: ...


class Timeless(Both):
    start_timeout_s = "x"  # type: ignore[assignment]


class InThreads(ThreadUnitRunner):
    def start_unit(self, grant: Grant) -> None: ...

    def stop_unit(self, unit: Unit) -> None: ...


class Misspelt(WorkerRebalanceListener):
    """A listener with a callback that is never called."""

    def on_revoke(self, units: Units, epoch: int) -> None: ...


class OneArgument(WorkerRebalanceListener):
    """A listener with a callback that takes no epoch."""

    def on_lost(self, units: Units) -> None: ...  # type: ignore[override]


class WithItsOwnMethods(WorkerRebalanceListener):
    """A listener with methods that are no callbacks, and callbacks with more arguments."""

    def on_assigned(self, units: Units, epoch: int, note: str = "") -> None: ...

    async def on_revoked(self, *arguments: Any) -> None: ...

    def on_flush(self) -> None: ...


def worker(**arguments: Any) -> Worker:
    coordinator = Coordinator(MemoryLog(), GroupSettings())
    connections = Connections(heartbeats=LocalClient(coordinator), control=LocalClient(coordinator))
    return Worker(MemberSettings(group_id="g", member_id="w"), connections, **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"runner": object()}, "runner: got 'an object of object'; allowed: an object with async def start(self, gr"),
        ({"runner": PlainRunner()}, "runner.start: got 'a plain function'; allowed: async def start(self, grants)"),
        ({"runner": Deaf}, "runner: got 'the class Deaf'; allowed: an object of it: Deaf()"),
        ({"runner": Deaf()}, "runner.start: got 'start(): too many positional arguments'; allowed: async def start(se"),
        (
            {"runner": PlainUnits()},
            "PlainUnits.start_unit: got 'a plain function'; allowed: async def start_unit(self, grant)",
        ),
        (
            {"runner": CoroutinesInThreads()},
            "CoroutinesInThreads.start_unit: got 'a coroutine function'; allowed: def start_unit(self, grant)",
        ),
        ({"runner": StartsOnly()}, "StartsOnly.stop_unit: missing; allowed: async def stop_unit(self, unit)"),
        ({"runner": DeafToGrants()}, "DeafToGrants.start_unit: got 'start_unit(): too many positional arguments'; al"),
        ({"runner": Timeless()}, "Timeless.start_timeout_s: got 'x'; allowed: a number from 0 to 86400"),
        ({"times": 3}, "times: got '3'; allowed: WorkerSettings(...)"),
        ({"listeners": [Misspelt()]}, "Misspelt.on_revoke: unknown; allowed: on_revoked (did you mean that?)"),
        ({"listeners": [OneArgument()]}, "OneArgument.on_lost: got 'on_lost(units): too many positional arguments'"),
        ({"listeners": [Listener]}, "listeners: got 'the class Listener'; allowed: an object of it: Listener()"),
        ({"listeners": Listener()}, "listeners: got 'an object of Listener'; allowed: a list of WorkerRebalanceLis"),
        ({"listeners": ["log"]}, "listeners: got 'log'; allowed: WorkerRebalanceListener objects, such as load_lis"),
        ({"assignors": ["balanced"]}, "assignors: got 'balanced'; allowed: ConnectAssignor objects, such as load_as"),
        ({"assignors": [First]}, "assignors: got 'the class First'; allowed: an object of it: First()"),
        ({"assignors": "balanced"}, "assignors: got 'balanced'; allowed: a list of ConnectAssignor objects"),
        ({"assignors": [Listener()]}, "assignors: got 'an object of Listener'; allowed: ConnectAssignor objects"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else ",".join(value),
)
async def test_argument_of_the_wrong_kind_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        worker(**arguments)
    assert str(caught.value).startswith(message)


def test_listener_may_have_methods_and_arguments_of_its_own() -> None:
    worker(listeners=[WithItsOwnMethods()])


async def test_client_or_text_in_the_place_of_another_argument_is_named() -> None:
    client = LocalClient(Coordinator(MemoryLog(), GroupSettings()))
    settings = MemberSettings(group_id="g", member_id="w")
    both = "allowed: Connections(heartbeats=client, control=client)"
    with pytest.raises(ConfigError, match=re.escape(f"connections: got 'an object of LocalClient'; {both}")):
        Worker(settings, client)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=re.escape("connections.control: got 'h:1'; allowed: a client: TcpClient(")):
        Worker(settings, Connections(heartbeats=client, control="h:1"))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=re.escape("settings: got 'w1'; allowed: MemberSettings(")):
        Worker("w1", Connections(heartbeats=client, control=client))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=re.escape("connect: got 'an object of LocalClient'; allowed: a function th")):
        async with Worker.running(settings, client):  # type: ignore[arg-type]
            pass


async def test_reports_and_task_lists_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"^status: got 'RUNNING'; allowed: TaskStatus\("):
        worker().report("RUNNING")  # type: ignore[arg-type]
    status = TaskStatus(connector="c", task=0, owner_epoch=1, state="RUNNING")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^status\.state: got 'RUNNING'; allowed: UnitState\.RUNNING, "):
        worker().report(status)
    with pytest.raises(ConfigError, match=r"^owner_epoch: got 'x'; allowed: a whole number from 0 to "):
        await worker().publish_tasks("c", "x", [])  # type: ignore[arg-type]
    configs: Any
    for configs, message in (
        ({"part": "a"}, "configs: got 'an object of dict'; allowed: a list with one dict of text for each task"),
        (["a"], "configs[0]: got 'a'; allowed: a dict of text"),
        ([{"part": 1}], "configs[0]: got 'part of type int'; allowed: strings on both sides"),
    ):
        with pytest.raises(ConfigError) as caught:
            await worker().publish_tasks("c", 1, configs)
        assert str(caught.value) == message


@pytest.mark.parametrize(
    ("traits", "message"),
    [
        (
            {"labels": ("gpu=true",)},
            "labels: got \"('gpu=true',)\"; allowed: pairs of a name and a value: (('gpu', 'tr",
        ),
        ({"labels": (("b", ""), ("a", ""))}, "labels: got 'b, a'; allowed: at most "),
        ({"capacity": -1}, "capacity: got '-1'; allowed: a whole number from 0 to "),
    ],
    ids=str,
)
def test_traits_that_the_coordinator_would_reject_are_named(traits: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        MemberSettings(group_id="g", member_id="w", traits=WorkerTraits(**traits))
    assert str(caught.value).startswith(message)


async def test_request_before_the_start_of_the_coordinator_is_an_error() -> None:
    coordinator = Coordinator(MemoryLog(), GroupSettings())
    with pytest.raises(ConfigError, match=r"allowed: await coordinator\.start\(\) first$"):
        await asyncio.wait_for(coordinator.handle(DescribeRequest(), client_host="here"), 10)


async def make_runner(worker: Worker) -> None:
    """A coroutine in the place of a plain function."""


async def test_serve_worker_checks_its_arguments() -> None:
    settings = MemberSettings(group_id="g", member_id="w")
    with pytest.raises(ConfigError, match=r"^on_start: got '3'; allowed: a function of the worker"):
        await serve_worker(settings, "127.0.0.1:1", on_start=3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^on_start: got '3'; allowed: a function of the worker"):
        sync.serve_worker(settings, "127.0.0.1:1", on_start=3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^CoroutinesInThreads.start_unit: got"):
        await serve_worker(settings, "127.0.0.1:1", runner=CoroutinesInThreads())
    for made in (lambda worker: None, make_runner):
        with pytest.raises(ConfigError, match=r"^runner: got '(None|a coroutine)'; allowed: a runner, or a plain fun"):
            await serve_worker(settings, "127.0.0.1:1", runner=made)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^on_start: got 'the coroutine function make_runner'; allowed: a function"):
        await serve_worker(settings, "127.0.0.1:1", on_start=make_runner)
    with pytest.raises(ConfigError, match=r"^connect: got 'localhost'; allowed: host:port"):
        await serve_worker(settings, "localhost")


async def test_set_runner_checks_too() -> None:
    with pytest.raises(ConfigError, match=r"^runner\.start: got 'a plain function'"):
        worker().set_runner(PlainRunner())  # type: ignore[arg-type]


async def test_runner_by_unit_belongs_to_one_worker_at_a_time() -> None:
    runner = InThreads()
    first = worker(runner=runner)
    first.set_runner(runner)
    with pytest.raises(
        ConfigError, match=r"^runner: got 'the InThreads of worker w, which has not ended'; allowed: an"
    ):
        worker(runner=runner)
    with pytest.raises(ConfigError, match=r"^runner: got 'the InThreads of worker w"):
        worker().set_runner(runner)
    first.stop()
    await first.run()
    worker(runner=runner)


async def test_runner_without_a_worker_says_so() -> None:
    for runner in (Both(), InThreads()):
        with pytest.raises(ConfigError, match=r"^runner: got 'a \w+ without a worker'; allowed: runner=\.\.\. of a"):
            runner.report(Unit("c"), UnitState.FAILED)
    runner = Both()
    worker(runner=runner)
    with pytest.raises(ConfigError, match=r"^connector: got 'an object of Unit'; allowed: its name: grant\.unit\.con"):
        await runner.publish(Unit("c"), [])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^connector: got 'an object of Unit'; allowed: its name: grant\.unit\.con"):
        await worker().publish_tasks(Unit("c"), 1, [])  # type: ignore[arg-type]


async def test_client_is_not_both_connections_of_a_worker() -> None:
    client = LocalClient(Coordinator(MemoryLog(), GroupSettings()))
    settings = MemberSettings(group_id="g", member_id="w")
    message = "^connections: got 'the same client twice'; allowed: two clients"
    with pytest.raises(ConfigError, match=message):
        Worker(settings, Connections(heartbeats=client, control=client))
    with pytest.raises(ConfigError, match=message):
        async with Worker.running(settings, lambda: client):
            pass
    with pytest.raises(ConfigError, match=message):
        await serve_worker(settings, lambda: client)


class Failing:
    """A runner whose start and stop fail."""

    async def start(self, grants: Sequence[Grant]) -> None:
        raise ValueError("no room")

    async def stop(self, units: Units) -> None:
        raise OSError("stuck")


@pytest.mark.parametrize(
    ("text", "function"), [("the start failed: ValueError: no room", Failing.start), ("OSError: stuck", Failing.stop)]
)
async def test_an_error_of_a_runner_is_logged_with_file_and_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, function: Callable[..., Any]
) -> None:
    caplog.set_level(logging.ERROR)
    async with World(tmp_path) as world:
        await world.add("c", 1)
        actor = start(world, Failing())  # type: ignore[arg-type]
        await world.until(lambda: Unit("c") in actor.worker.member.owned)
        await asyncio.sleep(1)
        actor.worker.stop()
        assert actor.task is not None
        await actor.task
    code = function.__code__
    wanted = f"(at {code.co_filename}:{code.co_firstlineno + 1})"
    logged = [record.getMessage() for record in caplog.records]
    assert any(text in line and line.endswith(wanted) for line in logged), logged
