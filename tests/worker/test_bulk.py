"""Many units at once: the work of one turn of the event loop is bounded, and a blocking call delays no other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from connectgroup.connector import Config, Connector, Task, TaskContext
from connectgroup.member.actions import Grant
from connectgroup.protocol.messages.heartbeat import TaskStatus
from connectgroup.protocol.records.connect import UnitState
from connectgroup.protocol.units import Unit
from connectgroup.testing.virtual_time import Gate
from connectgroup.threads import NoThread
from connectgroup.worker.call_pool import FIRST_THREADS, Call, CallPool
from connectgroup.worker.runner import TaskRunner
from connectgroup.worker.settings import RunnerSettings
from tests.no_threads import NoThreads

UNITS = [Unit("c", number) for number in range(2_000)]
PER_TURN = 1_000
"""Callbacks that one turn may schedule: a few per unit of a slice, and far fewer than one per unit."""


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts the callbacks scheduled between two turns, and wakeups by other threads that have not run yet.

    Attributes:
        max_scheduled: maximum number of callbacks scheduled in one turn.
        max_pending: maximum number of wakeups by other threads pending at the same time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.max_scheduled = self.max_pending = self.this_turn = self.pending = 0

    def count(self) -> None:
        """Count from now on, in each turn."""
        self.max_scheduled = max(self.max_scheduled, self.this_turn)
        self.this_turn = 0
        super().call_soon(self.count)

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        self.this_turn += 1
        return super().call_soon(callback, *args, context=context)

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.Handle:
        self.pending += 1
        self.max_pending = max(self.max_pending, self.pending)
        return super().call_soon_threadsafe(self._awake, callback, *args, context=context)

    def _awake(self, callback: Callable[..., object], *args: Any) -> None:
        self.pending -= 1
        callback(*args)


def on_counting_loop(run: Callable[[CountingLoop], Awaitable[None]]) -> CountingLoop:
    """Run in real time on a counting loop; return the loop with its counts."""
    loop = CountingLoop()

    async def counted() -> None:
        loop.call_soon(loop.count)
        await run(loop)

    try:
        loop.run_until_complete(asyncio.wait_for(counted(), 120))
    finally:
        loop.close()
    return loop


class Many(Connector):
    """Tasks whose contexts a test can read, and whose starts and stops it can block."""

    contexts: dict[Unit, TaskContext]
    blocks: Callable[[str, Unit], None]

    def task_configs(self, max_scheduled: int) -> Sequence[Config]:
        return [{}] * max_scheduled

    def task(self, config: Config, context: TaskContext) -> Task:
        return ManyTask(type(self), context)


class ManyTask(Task):
    def __init__(self, cls: type[Many], context: TaskContext) -> None:
        self.cls, self.unit = cls, context.unit
        cls.contexts[context.unit] = context

    def start(self) -> None:
        self.cls.blocks("start", self.unit)

    def stop(self) -> None:
        del self.cls.contexts[self.unit]
        self.cls.blocks("stop", self.unit)


class RunnerHarness:
    """A runner of ``Many`` tasks, and its reports of those that have started or failed."""

    def __init__(
        self, scratch: Path, blocks: Callable[[str, Unit], None] = lambda what, unit: None, retry_initial_s: float = 1
    ) -> None:
        self.contexts: dict[Unit, TaskContext] = {}
        cls = type("Many", (Many,), {"contexts": self.contexts, "blocks": staticmethod(blocks)})
        self.statuses: list[TaskStatus] = []
        self.runner = TaskRunner(
            "a",
            RunnerSettings(scratch=scratch, retry_initial_s=retry_initial_s),
            load_class=lambda name: cls,
            publish=self._publish,
            report=self._report,
        )

    def _report(self, status: TaskStatus) -> None:
        if status.state != UnitState.STARTING:  # on a busy machine, some units start slowly
            self.statuses.append(status)

    async def _publish(self, name: str, epoch: int, configs: Sequence[Config]) -> None:
        raise AssertionError("this test runs no connector")

    async def start(self, units: Sequence[Unit]) -> None:
        """Start the units and wait until each has reported."""
        expected = len(self.statuses) + len(units)
        await self.runner.start(grants(units))
        await until(lambda: len(self.statuses) >= expected)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for the condition; the caller has a time limit."""
    for _ in range(100_000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("condition not met")


def grants(units: Sequence[Unit]) -> list[Grant]:
    return [Grant(unit=unit, owner_epoch=5) for unit in units]


def test_bulk_start_and_stop_are_sliced(tmp_path: Path) -> None:
    harness = RunnerHarness(tmp_path)

    async def run(loop: CountingLoop) -> None:
        await harness.start(UNITS)
        assert harness.runner.running == harness.contexts.keys() == set(UNITS)
        await harness.runner.stop(frozenset(UNITS))
        assert not harness.runner.running
        assert not harness.contexts

    loop = on_counting_loop(run)
    assert loop.max_scheduled <= PER_TURN
    assert loop.max_pending <= 20


def test_failures_of_many_tasks_wake_the_loop_once(tmp_path: Path) -> None:
    """A wakeup per failure fills the loop's wakeup socket, which Python's signal handling shares."""
    # No retry within the test: on a slow machine many back-off timers expire in one turn, and would be counted too.
    harness = RunnerHarness(tmp_path, retry_initial_s=600)

    async def run(loop: CountingLoop) -> None:
        await harness.start(UNITS)
        loop.max_scheduled = loop.max_pending = 0

        def fail_all() -> None:
            for context in list(harness.contexts.values()):
                context.failed(OSError("sink is gone"))

        thread = threading.Thread(target=fail_all)
        thread.start()
        thread.join()  # blocks the loop, as under load
        await until(lambda: len(harness.statuses) >= 2 * len(UNITS))
        await harness.runner.stop(frozenset(UNITS))

    loop = on_counting_loop(run)
    assert loop.max_scheduled <= PER_TURN
    assert loop.max_pending <= 20


async def test_blocked_starts_and_stops_delay_no_other(tmp_path: Path) -> None:
    gate = Gate()

    def blocks(what: str, unit: Unit) -> None:
        if unit.task % 3 == 0:
            gate.wait()

    harness = RunnerHarness(tmp_path, blocks)
    quick = [unit for unit in UNITS[:300] if unit.task % 3]
    try:
        await harness.runner.start(grants(UNITS[:300]))
        await until(lambda: len(harness.statuses) == len(quick))
        assert {Unit(status.connector, status.task) for status in harness.statuses} == set(quick)
        await asyncio.wait_for(harness.runner.stop(frozenset(quick)), 30)
        assert not any(unit in harness.contexts for unit in quick)
    finally:
        gate.open()
    await harness.runner.stop(frozenset(UNITS))


async def test_units_stopped_while_a_bulk_start_is_under_way_do_not_start(tmp_path: Path) -> None:
    """KAFKA-16375: a worker that loses its units must stop starting them."""
    harness = RunnerHarness(tmp_path)
    starting = asyncio.create_task(harness.runner.start(grants(UNITS)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await harness.runner.stop(frozenset(UNITS[1:]))
    await starting
    await asyncio.sleep(1)
    assert harness.runner.running == harness.contexts.keys() == {UNITS[0]}
    await harness.runner.stop(frozenset(UNITS))


async def test_stop_does_not_wait_for_a_start_that_has_not_begun(tmp_path: Path) -> None:
    """The threads are occupied by blocking starts; a start that is queued behind them is skipped."""
    gate = Gate()
    begun: list[Unit] = []

    def blocks(what: str, unit: Unit) -> None:
        if what == "start":
            begun.append(unit)
            gate.wait()

    harness = RunnerHarness(tmp_path, blocks)
    await harness.runner.start(grants(UNITS))
    await until(lambda: gate.entered >= FIRST_THREADS)
    queued = frozenset(UNITS[1_000:])  # the pool adds threads, but not so many at once
    await asyncio.wait_for(harness.runner.stop(queued), 1)
    gate.open()
    await harness.runner.stop(frozenset(UNITS))
    assert begun
    assert not queued & frozenset(begun)


async def test_pool_runs_urgent_calls_first_and_skips_cancelled_ones() -> None:
    pool, gates, order = CallPool(), [Gate() for _ in range(FIRST_THREADS)], list[str]()
    hung = [asyncio.create_task(pool.run(Call("hangs", gate.wait))) for gate in gates]
    await until(lambda: all(gate.entered for gate in gates))
    calls = [asyncio.create_task(pool.run(Call(name, partial(order.append, name)))) for name in ("a", "b", "c")]
    urgent = asyncio.create_task(pool.off_loop_with_retry("urgent", partial(order.append, "urgent")))
    await asyncio.sleep(0)
    calls[1].cancel()
    gates[0].open()
    await asyncio.wait([*calls, urgent])
    assert order == ["urgent", "a", "c"]
    for gate in gates:
        gate.open()
    await asyncio.wait(hung)


async def test_pool_without_a_thread_raises_and_leaves_the_call_out(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, done = CallPool(), list[int]()
    none = NoThreads(monkeypatch, "start ")
    with pytest.raises(NoThread):
        await pool.run(Call("start c-0", partial(done.append, 1)))
    none.over()
    await pool.run(Call("start c-0", partial(done.append, 2)))
    assert done == [2]
