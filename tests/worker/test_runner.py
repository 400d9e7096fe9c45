"""The task runner: overlapping grants of one unit, and the names of scratch directories."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from connectgroup.connector import Config, Connector, Task, TaskContext
from connectgroup.errors import PluginError
from connectgroup.member.actions import Grant
from connectgroup.protocol.messages.heartbeat import TaskStatus
from connectgroup.protocol.records.connect import UnitState
from connectgroup.protocol.units import Unit
from connectgroup.testing.virtual_time import Gate
from connectgroup.worker.runner import TaskRunner
from connectgroup.worker.scratch import file_name
from connectgroup.worker.settings import RunnerSettings

UNIT = Unit("c", 0)


class StuckTask(Task):
    def start(self) -> None:
        pass

    def stop(self) -> None:
        Stuck.stops += 1
        if Stuck.stops == 1:
            Stuck.gate.wait()


class Stuck(Connector):
    """Its tasks' first stop hangs until the test releases it."""

    gate: ClassVar[Gate]
    stops = 0

    def task_configs(self, limit: int) -> Sequence[Config]:
        return [{}]

    def task(self, config: Config, context: TaskContext) -> Task:
        return StuckTask()


async def test_hung_stop_of_an_earlier_grant_does_not_delay_a_later_one(tmp_path: Path) -> None:
    """Otherwise each revocation would exceed the rebalance timeout and fence a healthy worker."""

    async def publish(name: str, epoch: int, configs: Sequence[Config]) -> None:
        raise AssertionError("this test runs no connector")

    Stuck.gate, Stuck.stops = Gate(), 0
    runner = TaskRunner(
        "a",
        RunnerSettings(scratch=tmp_path),
        load_class=lambda name: Stuck,
        publish=publish,
        report=lambda status: None,
    )
    try:
        await runner.start([Grant(unit=UNIT, owner_epoch=5)])
        await asyncio.sleep(0.1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(runner.stop(frozenset({UNIT})), 0.2)
        await runner.start([Grant(unit=UNIT, owner_epoch=6)])
        await asyncio.sleep(0.1)
        await asyncio.wait_for(runner.stop(frozenset({UNIT})), 30)
        assert Stuck.stops == 2
    finally:
        Stuck.gate.open()


class WaitingTask(Task):
    """Its start waits for a system that is away."""

    def __init__(self) -> None:
        self.gate = Gate()

    def start(self) -> None:
        Waiting.starts += 1
        self.gate.wait()
        raise OSError("interrupted")

    def interrupt_start(self) -> None:
        self.gate.open()

    def stop(self) -> None:
        pass


class Waiting(Connector):
    starts = 0

    def task_configs(self, limit: int) -> Sequence[Config]:
        return [{}]

    def task(self, config: Config, context: TaskContext) -> Task:
        return WaitingTask()


async def test_stop_of_a_task_interrupts_its_start(tmp_path: Path) -> None:
    """Otherwise the start of one task would exceed the rebalance timeout, and take its worker's other tasks with it."""

    async def publish(name: str, epoch: int, configs: Sequence[Config]) -> None:
        raise AssertionError("this test runs no connector")

    reports: list[TaskStatus] = []
    runner = TaskRunner(
        "a", RunnerSettings(scratch=tmp_path), load_class=lambda name: Waiting, publish=publish, report=reports.append
    )
    await runner.start([Grant(unit=UNIT, owner_epoch=5)])
    for _ in range(600):
        if Waiting.starts:
            break
        await asyncio.sleep(0.1)
    await asyncio.wait_for(runner.stop(frozenset({UNIT})), 30)
    assert Waiting.starts == 1
    assert not [each for each in reports if each.state is UnitState.FAILED], "it was to stop"


class WritingTask(Task):
    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch

    def start(self) -> None:
        Writing.directories.append(self.scratch)
        (self.scratch / "kept").write_text("by the task")

    def stop(self) -> None:
        pass


class Writing(Connector):
    """Its tasks write a file to their scratch directory."""

    directories: ClassVar[list[Path]] = []

    def task_configs(self, limit: int) -> Sequence[Config]:
        return [{}]

    def task(self, config: Config, context: TaskContext) -> Task:
        return WritingTask(context.scratch)


async def test_files_of_others_in_a_shared_scratch_directory_are_kept(tmp_path: Path) -> None:
    """An embedder may share the directory, and may have used any name in it."""

    async def publish(name: str, epoch: int, configs: Sequence[Config]) -> None:
        raise AssertionError("this test runs no connector")

    foreign = tmp_path / "c-0-5" / "kept"
    foreign.parent.mkdir()
    foreign.write_text("by the embedder")
    status: asyncio.Queue[TaskStatus] = asyncio.Queue()
    Writing.directories.clear()
    runner = TaskRunner(
        "a",
        RunnerSettings(scratch=tmp_path),
        load_class=lambda name: Writing,
        publish=publish,
        report=status.put_nowait,
    )
    await runner.start([Grant(unit=UNIT, owner_epoch=5)])
    await status.get()
    [directory] = Writing.directories
    assert (directory / "kept").read_text() == "by the task"
    await runner.stop(frozenset({UNIT}))
    assert foreign.read_text() == "by the embedder"
    assert not directory.exists()


async def test_failed_import_of_a_connector_class_is_logged_with_file_and_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The status, which is sent to the group, has the message only."""

    async def publish(name: str, epoch: int, configs: Sequence[Config]) -> None:
        raise AssertionError("this test runs no connector")

    def load(name: str) -> type[Connector]:
        raise PluginError("connector 'c': cannot be imported: KeyError: 'x'", location="/plugins/c.py:7")

    statuses: asyncio.Queue[TaskStatus] = asyncio.Queue()
    runner = TaskRunner(
        "a", RunnerSettings(scratch=tmp_path), load_class=load, publish=publish, report=statuses.put_nowait
    )
    await runner.start([Grant(unit=UNIT, owner_epoch=5)])
    status = await statuses.get()
    await runner.stop(frozenset({UNIT}))
    [line] = [record.getMessage() for record in caplog.records if "cannot be imported" in record.getMessage()]
    assert line.endswith("(at /plugins/c.py:7)")
    assert "/plugins" not in status.message


def test_file_names_are_unique_and_stay_in_their_directory() -> None:
    names = ["orders-0-5", "x/../../../outside-0-5", "a" * 300, "a" * 301, "..", "é", "e", ""]
    files = [file_name(name) for name in names]
    assert files[0] == names[0]
    assert len(set(files)) == len(names)
    assert all("/" not in file and file not in ("", ".", "..") and len(file) < 100 for file in files)
