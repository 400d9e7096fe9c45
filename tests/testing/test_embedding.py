"""Embedding helpers: a whole group, and one member of a group."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Coroutine
from typing import Any, ClassVar

import pytest

from connectgroup import (
    Admin,
    Config,
    ConfigError,
    ConnectAssignment,
    ConnectAssignor,
    ConnectAssignorInput,
    CoordinatorConfig,
    CoordinatorServer,
    DescribedGroup,
    GroupError,
    LocalClient,
    MemberSettings,
    Metadata,
    PluginError,
    Task,
    TaskContext,
    TimedOut,
    Worker,
    WorkerRebalanceListener,
    WorkerTraits,
    worker_group,
)
from connectgroup.protocol.units import Units
from connectgroup.testing import VirtualLoop

from .test_worker_group import Echo

IDLE = {"connector.class": "idle", "tasks.max": "4"}


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a program in virtual time."""
    loop = VirtualLoop()
    try:
        loop.run_until_complete(asyncio.wait_for(work, 300))
    finally:
        loop.close()


def test_group_without_connectors_is_awaited_until_its_first_worker_has_created_it() -> None:
    async def program() -> None:
        async with worker_group("mine", workers=["ann"]) as group:
            described = await group.wait_stable()
            assert [member.member_id for member in described.members] == ["ann"]

    run(program())


def test_worker_of_a_group_has_traits() -> None:
    async def program() -> None:
        async with worker_group("mine", workers=["ann"], connectors={"letters": IDLE}) as group:
            await group.add_worker("bob", traits=WorkerTraits(labels=(("gpu", "true"),), capacity=3))
            described = await group.wait_stable()
            assert {each.member_id: each.capacity for each in described.members} == {"ann": 0, "bob": 3}

    run(program())


class Configured(ConnectAssignor):
    """Records the traits that it was configured with, and when."""

    name = "configured"

    def __init__(self) -> None:
        self.calls: list[str] = []

    def configure(self, traits: WorkerTraits) -> None:
        self.calls.append(f"configure {traits.capacity}")

    def metadata(self) -> Metadata:
        self.calls.append("metadata")
        return Metadata(version=self.maximum_version)

    def assign(self, group: ConnectAssignorInput) -> ConnectAssignment:
        return ConnectAssignment(members=[])


def test_assignor_of_every_worker_is_configured_with_its_traits_before_any_other_call() -> None:
    one, two = Configured(), Configured()

    async def program() -> None:
        async with worker_group("mine", workers=["ann"], assignors=[one]) as group:
            await group.add_worker("bob", traits=WorkerTraits(capacity=3), assignors=[two])
            await group.wait_stable()

    run(program())
    assert one.calls[:2] == ["configure 0", "metadata"]
    assert two.calls[:2] == ["configure 3", "metadata"]


@pytest.mark.parametrize("by", ["mapping", "function"])
def test_assignors_of_a_group_may_differ_by_worker(by: str) -> None:
    """The group uses what all of its workers list; a worker that is added has what the group's ``assignors`` say."""
    lists: dict[str, list[str | ConnectAssignor]] = {
        "ann": ["weighted", "balanced"],
        "bob": [OnFirst(), "balanced"],
        "cid": ["weighted"],
    }

    async def program() -> None:
        assignors = lists if by == "mapping" else lists.__getitem__
        async with worker_group("mine", workers=["ann", "bob"], assignors=assignors) as group:
            assert (await group.wait_stable()).assignor_name == "balanced"
            await group.stop_worker("bob")
            await group.add_worker("cid")
            assert (await group.wait_stable()).assignor_name == "weighted"

    run(program())


def test_assignor_that_cannot_be_configured_is_named() -> None:
    class Picky(Configured):
        def configure(self, traits: WorkerTraits) -> None:
            raise ValueError("needs a label")

    async def program() -> None:
        async with worker_group("mine", assignors=[Picky()]):
            pass

    with pytest.raises(PluginError, match=r"assignor 'configured' .*: configure raised ValueError: needs a label"):
        run(program())


class Recorder(WorkerRebalanceListener):
    """Records the units that its worker owns."""

    def __init__(self) -> None:
        self.units: set[str] = set()

    def on_assigned(self, units: Units, epoch: int) -> None:
        self.units |= set(map(str, units))

    def on_revoked(self, units: Units, epoch: int) -> None:
        self.units -= set(map(str, units))


class Counter(WorkerRebalanceListener):
    """Counts the units that were assigned to any worker."""

    assigned = 0

    def on_assigned(self, units: Units, epoch: int) -> None:
        Counter.assigned += len(units)


def test_end_of_the_block_starts_no_unit() -> None:
    """All workers know that they stop before the first one leaves and its units could go to another."""

    async def program() -> None:
        async with worker_group(
            "mine", workers=3, connectors={"letters": IDLE}, listeners=lambda worker: [Counter()]
        ) as group:
            await group.wait_stable()
            before = Counter.assigned
        assert Counter.assigned == before >= 5

    run(program())


def test_whole_group_runs_while_the_block_runs() -> None:
    recorders = {name: Recorder() for name in ("ann", "bob")}

    async def program() -> None:
        listeners = {name: [recorder] for name, recorder in recorders.items()}
        async with worker_group(
            "mine", workers=["ann", "bob"], connectors={"letters": IDLE}, listeners=lambda name: listeners[name]
        ) as group:
            await asyncio.sleep(5)
            described = await group.wait_stable()
            assert {member.member_id for member in described.members} == {"ann", "bob"}
            assert len(recorders["ann"].units) + len(recorders["bob"].units) == 5
            await group.stop_worker("ann")
            await group.wait_stable()
            await asyncio.sleep(1)
            assert recorders["ann"].units == set()
            assert len(recorders["bob"].units) == 5

    run(program())
    assert recorders["bob"].units == set()


def test_several_groups_run_in_one_process_and_stop_when_the_block_fails() -> None:
    recorder = Recorder()

    async def program() -> None:
        async with (
            worker_group("one", connectors={"letters": IDLE}, listeners=lambda name: [recorder]) as one,
            worker_group("two", connectors={"numbers": IDLE}) as two,
        ):
            await asyncio.sleep(2)
            assert [c.connector for c in (await one.wait_stable()).connectors] == ["letters"]
            assert [c.connector for c in (await two.wait_stable()).connectors] == ["numbers"]
            assert recorder.units
            raise KeyError("the program")

    with pytest.raises(KeyError, match="the program"):
        run(program())
    assert recorder.units == set()


def test_one_member_runs_while_the_block_runs() -> None:
    async def program() -> None:
        async with worker_group("mine", workers=0, connectors={"letters": IDLE}) as group:
            recorder = Recorder()
            settings = MemberSettings(group_id="mine", member_id="ann")
            async with Worker.running(settings, lambda: LocalClient(group.coordinator), listeners=[recorder]) as worker:
                await asyncio.sleep(2)
                assert worker.member_id == "ann"
                assert recorder.units == {"letters"}
            assert recorder.units == set()
            assert not (await group.admin.describe("mine")).members

    run(program())


class NoAssign(ConnectAssignor):
    """Abstract."""

    name = "no-assign"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workers": -1}, "workers: got '-1'; allowed: a whole number from 0 to 1000"),
        (
            {"workers": "abc"},
            "workers: got 'abc'; allowed: a whole number from 0 to 1000, or a list of",
        ),
        ({"workers": ["a", "a"]}, "workers: got 'a, a'; allowed: a whole number from 0 to 1000, or a list of names"),
        ({"workers": [3]}, "workers: got '3'; allowed: text"),
        ({"listeners": [Recorder()]}, "listeners: got "),
        ({"assignors": "balanced"}, "assignors: got 'balanced'; allowed: a list of names, ConnectAssignor classes"),
        ({"assignors": [3]}, "assignors: got '3'; allowed: names, ConnectAssignor classes or objects"),
        ({"assignors": [NoAssign]}, "assignors: got 'the abstract class NoAssign; missing: assign'; allowed: names, "),
        (
            {"connectors": {"a": "idle"}},
            "connectors: a: got 'idle'; allowed: a number of idle tasks, at least 1, or a ",
        ),
        (
            {"connectors": {"a": {"connector.class": Recorder}}},
            "connectors: a: connector.class: got 'the class Recorder",
        ),
        ({"assignors": ["zz"]}, "assignor: got 'zz'; allowed: "),
        (
            {"assignors": {"bob": ["balanced"]}},
            "assignors: got 'nothing for worker-1'; allowed: a list for every worker",
        ),
        (
            {"assignors": lambda: ["balanced"]},
            "assignors: got '<lambda>(): too many positional arguments'; allowed: a list of ",
        ),
        ({"assignors": lambda worker: 3}, "assignors of worker-1: got '3'; allowed: a list of names"),
        (
            {"connectors": {"a": {"tasks.max": [1]}}},
            "connector a: tasks.max: got '[1] (list)'; allowed: text",
        ),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else ",".join(value),
)
def test_argument_of_a_group_that_cannot_be_used_is_named(arguments: dict[str, Any], message: str) -> None:
    async def program() -> None:
        with pytest.raises(ConfigError, match="^" + re.escape(message)):
            async with worker_group("mine", **arguments):
                pass

    run(program())


class OnFirst(ConnectAssignor):
    """Assigns nothing."""

    name = "on-first"

    def assign(self, group: ConnectAssignorInput) -> ConnectAssignment:
        return ConnectAssignment()


@pytest.mark.parametrize("assignor", [OnFirst, OnFirst()], ids=["class", "object"])
def test_assignor_of_a_group_may_be_a_class_or_an_object(assignor: type[ConnectAssignor] | ConnectAssignor) -> None:
    async def program() -> None:
        async with worker_group("mine", assignors=[assignor]) as group:
            assert (await group.wait_stable()).assignor_name == "on-first"

    run(program())


def test_connector_of_a_group_may_be_a_number_of_tasks_or_a_class_of_the_program() -> None:
    class Started(Echo):
        tasks: ClassVar[list[str]] = []

        def task(self, config: Config, context: TaskContext) -> Task:
            self.tasks.append(config["number"])
            return super().task(config, context)

    connectors: dict[str, int | dict[str, Any]] = {"numbers": 2, "mine": {"connector.class": Started, "tasks.max": 3}}

    async def program() -> None:
        async with worker_group("mine", connectors=connectors) as group:
            for connector, count in (("numbers", 2), ("mine", 3)):
                described = await group.admin.wait_running("mine", connector)
                assert len(described.units) == count + 1

    run(program())
    assert sorted(Started.tasks) == ["0", "1", "2"]


def test_unit_that_no_worker_can_run_is_described_with_the_reason() -> None:
    config = {"connector.class": "idle", "assignment.labels": "gpu=true"}

    async def program() -> None:
        async with worker_group("mine", connectors={"c": config}, assignors=["weighted"]) as group:
            with pytest.raises(TimedOut, match=r"; c is UNASSIGNED: delayed .*; the assignor says: .*gpu=true"):
                await group.admin.wait_running("mine", "c", timeout_s=5)
            unit = (await group.admin.describe_connector("mine", "c")).units[0]
            assert unit.state == "UNASSIGNED"
            assert re.match(r"delayed [\d.]+ s more by the assignor", unit.message)
            described = await group.admin.describe("mine")
            assert "gpu=true" in described.assignor_error
            assert [units.member_id for units in described.delayed] == [""]

    run(program())


def test_rejected_worker_ends_the_wait_for_a_stable_group_with_its_error() -> None:
    async def program() -> None:
        async with worker_group("mine", workers=1, assignors=["balanced"]) as group:
            await group.wait_stable()
            await group.add_worker("late", assignors=["weighted"])
            with pytest.raises(GroupError, match=r"^worker late has ended: .*assignor"):
                await group.wait_stable()
            with pytest.raises(GroupError):
                await group.stop_worker("late")
            await group.wait_stable()

    run(program())


def test_unknown_and_used_names_of_workers_are_refused() -> None:
    async def program() -> None:
        async with worker_group("mine", workers=["ann", "bob"]) as group:
            with pytest.raises(ConfigError, match=r"^worker: got 'bob'; allowed: the name of no worker that runs"):
                await group.add_worker("bob")
            with pytest.raises(ConfigError, match=r"^worker: got 'zz'; allowed: ann, bob$"):
                await group.stop_worker("zz")

    run(program())


def test_stable_group_has_no_unit_that_is_starting() -> None:
    """Numbers in a configuration become text."""

    async def program() -> None:
        async with worker_group("mine", connectors={"letters": {"connector.class": "idle", "tasks.max": 4}}) as group:
            while True:
                described = await group.wait_stable()
                units = [unit.state for each in described.connectors for unit in each.units]
                assert "STARTING" not in units
                if len(units) == 5:
                    break

    run(program())


# --------------------------------------------------------------------------------------------------
# The end of the process

EMBEDS = """
import asyncio, sys
from connectgroup import MemberSettings, TcpClient, Worker

async def main():
    settings = MemberSettings(group_id="g", member_id="embedded")
    connect = lambda: TcpClient("127.0.0.1", int(sys.argv[1]), "embedded")
    async with Worker.running(settings, connect) as worker:
        await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_killed_program_with_a_worker_is_noticed_before_its_session_ends() -> None:
    """The kernel tells the coordinator on the same machine that the process is gone."""
    config = CoordinatorConfig(port=0, authentication=False, session_timeout_ms=3_600_000)
    server = CoordinatorServer(config)
    await server.start()
    client = LocalClient(server.coordinator)
    await Admin([client]).put_connector("g", "letters", {"connector.class": "idle"})
    port = server.address.rpartition(":")[2]
    program = await asyncio.create_subprocess_exec(sys.executable, "-c", EMBEDS, port)
    try:
        await until_members(client, ["embedded"])
        program.kill()
        await program.wait()
        await until_members(client, [])
    finally:
        if program.returncode is None:
            program.kill()
        await server.close()


async def until_members(client: LocalClient, expected: list[str]) -> None:
    """Wait until group g has these members."""

    def has_them(described: DescribedGroup) -> bool:
        return [member.member_id for member in described.members] == expected

    await Admin([client]).wait_until("g", has_them, what=f"of {expected}", timeout_s=120)
