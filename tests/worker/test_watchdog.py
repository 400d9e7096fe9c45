"""Gray failures: tasks that make no progress and report no error (``task.progress.timeout.ms``)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from connectgroup.connector import Config, Connector, Task, TaskContext
from connectgroup.member.actions import Grant
from connectgroup.protocol.messages.heartbeat import TaskStatus
from connectgroup.protocol.records.connect import UnitState
from connectgroup.protocol.units import Unit
from connectgroup.testing.virtual_time import Gate
from connectgroup.worker.runner import TaskRunner
from connectgroup.worker.settings import RunnerSettings

UNIT = Unit("c", 0)
TIMEOUT_S = 60


class Engine:
    """What the tasks of a test run on, and what became of them.

    Attributes:
        contexts: of the tasks that were started.
        stops: entered by each stop; a stop returns when it is opened.
        abandoned: called by ``Task.abandon``.
        given_up: the tasks for which the runner gave up.
        states: the reported states of the task.
        idle_ms: of each report.
    """

    def __init__(self, *, fenced: bool = False) -> None:
        self.fenced = fenced
        self.contexts: list[TaskContext] = []
        self.stops = Gate()
        self.abandoned: Callable[[], None] = lambda: None
        self.given_up: list[Unit] = []
        self.states: list[UnitState] = []
        self.idle_ms: list[int] = []

    def report(self, status: TaskStatus) -> None:
        self.states.append(UnitState(status.state))
        self.idle_ms.append(status.idle_ms)

    def connector(self) -> type[Connector]:
        engine = self

        class OnEngine(Connector):
            fenced = engine.fenced

            def task_configs(self, limit: int) -> Sequence[Config]:
                return [{}]

            def task(self, config: Config, context: TaskContext) -> Task:
                engine.contexts.append(context)
                return EngineTask()

        class EngineTask(Task):
            reports_polls = True

            def start(self) -> None: ...

            def stop(self) -> None:
                engine.stops.wait()

            def abandon(self) -> None:
                engine.abandoned()

        return OnEngine


@asynccontextmanager
async def running(engine: Engine, scratch: Path, timeout_ms: int = TIMEOUT_S * 1000) -> AsyncIterator[TaskRunner]:
    """A runner with one task of the engine."""

    async def publish(name: str, epoch: int, configs: Sequence[Config]) -> None: ...

    runner = TaskRunner(
        "a",
        RunnerSettings(scratch=scratch),
        load_class=lambda name: engine.connector(),
        publish=publish,
        report=engine.report,
    )
    runner.give_up = engine.given_up.append
    config = {"task.progress.timeout.ms": str(timeout_ms)}
    await runner.start([Grant(unit=UNIT, owner_epoch=1, connector_config=config)])
    try:
        yield runner
    finally:
        engine.stops.open()
        await runner.stop(frozenset({UNIT}))


async def polls(engine: Engine, seconds: int) -> None:
    """Time passes in which the task polls its source every second."""
    for _ in range(seconds):
        await asyncio.sleep(1)
        engine.contexts[-1].polled()


async def test_task_without_a_completed_poll_is_stalled_and_started_again(tmp_path: Path) -> None:
    engine = Engine()
    engine.stops.open()
    async with running(engine, tmp_path):
        await polls(engine, 3 * TIMEOUT_S)
        assert engine.states == [UnitState.STARTING, UnitState.RUNNING]
        await asyncio.sleep(TIMEOUT_S + 5)
        assert engine.states[2:] == [UnitState.STALLED, UnitState.STALLED]
        assert engine.idle_ms == [0, 0, 1_000 * TIMEOUT_S, 0], "since the last completed poll"
        assert len(engine.contexts) == 2
        await polls(engine, 3 * TIMEOUT_S)
        assert engine.states[4:] == [UnitState.RUNNING]
        assert not engine.given_up


async def test_worker_gives_up_a_task_that_stalls_again(tmp_path: Path) -> None:
    engine = Engine()
    engine.stops.open()
    async with running(engine, tmp_path):
        await asyncio.sleep(TIMEOUT_S + 5)
        assert not engine.given_up
        await polls(engine, TIMEOUT_S)
        await asyncio.sleep(TIMEOUT_S + 5)
        assert engine.given_up == [UNIT]


async def test_engine_is_ended_when_the_stop_of_a_stalled_task_hangs(tmp_path: Path) -> None:
    engine = Engine()
    engine.abandoned = engine.stops.open
    async with running(engine, tmp_path):
        await asyncio.sleep(TIMEOUT_S + 30)
        assert len(engine.contexts) == 2
        assert not engine.given_up


async def test_revocation_of_a_hung_task_waits_only_if_its_sink_is_not_fenced(tmp_path: Path) -> None:
    """X6: a fenced task may move at once; any other only when it has stopped, or at the rebalance timeout."""
    for fenced in (True, False):
        engine = Engine(fenced=fenced)
        async with running(engine, tmp_path) as runner:
            await asyncio.sleep(TIMEOUT_S + 30)
            assert engine.given_up == [UNIT]
            stop = asyncio.create_task(runner.stop(frozenset({UNIT})))
            await asyncio.sleep(30)
            assert stop.done() == fenced
            engine.stops.open()
            await stop


async def test_no_limit_on_the_time_without_a_poll(tmp_path: Path) -> None:
    engine = Engine()
    engine.stops.open()
    async with running(engine, tmp_path, timeout_ms=0):
        await asyncio.sleep(10_000)
        assert engine.states == [UnitState.STARTING]
