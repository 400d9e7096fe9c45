"""Runners by unit: one bad unit does not fail its neighbours, and what hangs is named."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from connectgroup import Grant, ThreadUnitRunner, Unit, UnitRunner, UnitState
from connectgroup.protocol.messages.heartbeat import TaskStatus
from connectgroup.protocol.records.connect import TargetState
from connectgroup.testing.virtual_time import Gate

from .builders import Actor, World


class Units(UnitRunner):
    """Publishes two tasks for each connector; the hooks of a unit run in its start and its stop."""

    def __init__(self) -> None:
        self.running: set[Unit] = set()
        self.starts: dict[Unit, Callable[[], object]] = {}
        self.stops: dict[Unit, Callable[[], object]] = {}
        self.stopped: list[str] = []

    async def start_unit(self, grant: Grant) -> None:
        await _called(self.starts.get(grant.unit))
        if grant.unit.is_connector:
            await self.publish(grant.unit.connector, [{}, {}])
        self.running.add(grant.unit)

    async def stop_unit(self, unit: Unit) -> None:
        self.stopped.append(str(unit))
        await _called(self.stops.get(unit))
        self.running.discard(unit)


async def _called(hook: Callable[[], object] | None) -> None:
    if hook is not None:
        result = hook()
        if asyncio.iscoroutine(result):
            await result


class Threads(ThreadUnitRunner):
    """The same, with threads."""

    def __init__(self) -> None:
        self.running: set[Unit] = set()
        self.starts: dict[Unit, Callable[[], object]] = {}
        self.stops: dict[Unit, Callable[[], object]] = {}
        self.stopped: list[str] = []

    def start_unit(self, grant: Grant) -> None:
        assert threading.current_thread() is not threading.main_thread()
        if grant.unit in self.starts:
            self.starts[grant.unit]()
        if grant.unit.is_connector:
            self.publish(grant.unit.connector, [{}, {}])
        self.running.add(grant.unit)

    def stop_unit(self, unit: Unit) -> None:
        self.stopped.append(str(unit))
        if unit in self.stops:
            self.stops[unit]()
        self.running.discard(unit)


def start(world: World, runner: Units | Threads) -> Actor:
    actor = world.make("a", rebalance_timeout_ms=20_000)
    actor.worker.set_runner(runner)
    actor.task = asyncio.create_task(actor.worker.run())
    return actor


async def until_status(world: World, unit: Unit, state: str) -> str:
    """Wait until a unit is in a state; return its message."""
    for _ in range(600):
        for connector in (await world.describe()).connectors:
            for each in connector.units:
                if Unit(connector.connector, each.task) == unit and each.state == state:
                    return each.message
        await asyncio.sleep(0.1)
    raise AssertionError(await world.report())


ALL = {Unit("c"), Unit("c", 0), Unit("c", 1)}


def fail() -> None:
    raise ValueError("no room")


def exit_now() -> None:
    raise SystemExit(3)


async def hang() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("kind", [Units, Threads])
@pytest.mark.parametrize("bad", [fail, exit_now])
async def test_failed_start_of_one_unit_leaves_its_neighbours_running(
    tmp_path: Path, kind: type[Units | Threads], bad: Callable[[], None]
) -> None:
    async with World(tmp_path) as world:
        runner = kind()
        runner.starts[Unit("c", 0)] = bad
        start(world, runner)
        await world.add("c", 2)
        message = await until_status(world, Unit("c", 0), "FAILED")
        assert "no room" in message or "SystemExit" in message
        await until_status(world, Unit("c"), "RUNNING")
        await until_status(world, Unit("c", 1), "RUNNING")
        assert runner.running == ALL - {Unit("c", 0)}


@pytest.mark.parametrize("is_fenced", [True, False])
@pytest.mark.parametrize("kind", [Units, Threads])
async def test_failed_stop_of_one_unit_stops_its_neighbours_and_is_named_alone(
    tmp_path: Path, kind: type[Units | Threads], is_fenced: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with World(tmp_path) as world:
        runner = kind()
        a = start(world, runner)
        await world.add("c", 2)
        await until_status(world, Unit("c", 0), "RUNNING")
        await world.until(lambda: runner.running == ALL)
        if is_fenced:
            a.worker.member.unfenced.discard(Unit("c", 0))
        runner.stops[Unit("c", 0)] = fail
        await world.set_state("c", TargetState.STOPPED)
        await world.until(lambda: runner.running == {Unit("c", 0)})
        await asyncio.sleep(0.5)
        assert bool(a.worker.member.owned) != is_fenced, "the unit that has failed decides"
        assert "\n".join(caplog.messages).count("c-0: the stop failed, ") == 1


@pytest.mark.parametrize("kind", [Units, Threads])
async def test_runner_reports_later_changes_of_a_unit(tmp_path: Path, kind: type[Units | Threads]) -> None:
    async with World(tmp_path) as world:
        runner = kind()
        start(world, runner)
        await world.add("c", 2)
        await until_status(world, Unit("c", 1), "RUNNING")
        runner.report(Unit("c", 1), UnitState.FAILED, "the disk is full")
        assert await until_status(world, Unit("c", 1), "FAILED") == "the disk is full"
        runner.report(Unit("zz", 1), UnitState.FAILED, "does not run here")


async def test_hanging_start_is_named_has_a_limit_and_holds_up_no_other_unit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with World(tmp_path) as world:
        runner = Units()
        runner.starts[Unit("c")] = hang
        a = start(world, runner)
        await world.add("c", 2)
        await world.add("d", 2)
        await world.until(lambda: Unit("d", 1) in runner.running)
        await asyncio.sleep(12)
        assert f"c: start_unit has not returned for 10 s, at {__file__}:" in caplog.text
        assert "(hang)" in caplog.text
        await asyncio.sleep(50)
        message = await until_status(world, Unit("c"), "FAILED")
        assert message.startswith("start_unit has not returned within 60 s, at ")
        await world.set_state("c", TargetState.STOPPED)
        await world.until(lambda: Unit("c") not in a.worker.member.owned)
        assert runner.stopped == ["c"], "its stop is called although its start was cancelled"


async def test_unit_that_must_stop_while_it_starts_is_stopped_after_its_start(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        runner, gate = Threads(), world.gate()
        runner.starts[Unit("c")] = gate.wait
        a = start(world, runner)
        await world.add("c", 2)
        await world.until(lambda: Unit("c") in a.worker.member.owned)
        await asyncio.sleep(1)
        await world.set_state("c", TargetState.STOPPED)
        await asyncio.sleep(1)
        assert runner.stopped == []
        runner.starts[Unit("c")] = gate.open
        gate.open()
        await world.until(lambda: Unit("c") not in a.worker.member.owned)
        assert runner.stopped == ["c"]


async def test_stopped_worker_stops_its_units_and_the_runner_serves_the_next_worker(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        runner = Units()
        a = start(world, runner)
        await world.add("c", 2)
        await world.until(lambda: runner.running == ALL)
        a.worker.restart()
        assert a.task is not None
        await a.task
        assert not runner.running
        start(world, runner)
        await world.until(lambda: runner.running == ALL)


@pytest.mark.parametrize("kind", [Units, Threads])
async def test_unit_that_starts_slowly_is_reported_as_starting_and_a_fast_one_is_not(
    tmp_path: Path, kind: type[Units | Threads], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PD-16: the group moves no unit meanwhile."""
    gate, told = Gate(), dict[Unit, list[int]]()

    async with World(tmp_path) as world:
        runner = kind()

        runner.starts[Unit("c", 0)] = partial(asyncio.sleep, 5) if kind is Units else gate.wait
        await world.add("c")
        actor = start(world, runner)
        report = actor.worker.report

        def seen(status: TaskStatus) -> None:
            told.setdefault(Unit(status.connector, status.task), []).append(status.state)
            report(status)

        monkeypatch.setattr(actor.worker, "report", seen)
        await world.until(lambda: told.get(Unit("c", 0)) == [UnitState.STARTING])
        gate.open()
        await world.until(lambda: runner.running >= ALL)
        assert await until_status(world, Unit("c", 0), "RUNNING") == ""
        assert told == {
            Unit("c"): [UnitState.RUNNING],
            Unit("c", 1): [UnitState.RUNNING],
            Unit("c", 0): [UnitState.STARTING, UnitState.RUNNING],
        }
