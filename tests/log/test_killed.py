"""A process killed at every step of SQLite: acknowledged batches are there, and the file serves again."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from connectgroup.log.sqlite.log import SqliteLog
from connectgroup.testing.contracts.log import opened
from tests.volume import volume

from .faulty_vfs import Call, DiskFault, FaultyVfs
from .life import NAME, Acknowledged, append, serves

CHANGES: Final = {"open", "write", "truncate", "sync", "delete"}
MEGABYTE: Final = 1_000_000

# Each child is a fork of a clean process that has imported these modules, not of the pytest process.
PROCESSES: Final = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([__name__])


Scene = Callable[[SqliteLog, Acknowledged, Callable[[], None]], Coroutine[Any, Any, None]]
"""An operation on a closed log with batches 0 to 4; the process may be killed after a call of the third argument."""


async def an_append(log: SqliteLog, acknowledged: Acknowledged, now: Callable[[], None]) -> None:
    await log.open()
    now()
    await append(log, acknowledged, 10, 11, 12)


async def an_append_of_megabytes(log: SqliteLog, acknowledged: Acknowledged, now: Callable[[], None]) -> None:
    """More than SQLite's cache holds, so pages are written before the commit, and the log is checkpointed after it."""
    await log.open()
    now()
    await append(log, acknowledged, 10, bytes_each=2 * MEGABYTE)


async def a_compaction(log: SqliteLog, acknowledged: Acknowledged, now: Callable[[], None]) -> None:
    await log.open()
    await append(log, acknowledged, 10)
    await append(log, acknowledged, 11)
    now()
    assert await log.compact() > 0


async def a_closing(log: SqliteLog, acknowledged: Acknowledged, now: Callable[[], None]) -> None:
    await log.open()
    await append(log, acknowledged, 10)
    now()
    await log.close()


async def an_opening(log: SqliteLog, acknowledged: Acknowledged, now: Callable[[], None]) -> None:
    now()
    await log.open()


@dataclass
class Killer:
    """Kills the process at the n-th change of a file after ``now``."""

    left: int
    half: bool
    near: bool = False

    def now(self) -> None:
        self.near = True

    def __call__(self, call: Call) -> DiskFault | None:
        if not self.near or call.what not in CHANGES or (self.half and call.what != "write"):
            return None
        self.left -= 1
        return DiskFault(kill=True, half=self.half) if self.left == 0 else None


class AcknowledgedInFile(Acknowledged):
    """Also written to a file, which survives the process."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def begin(self, number: int) -> None:
        os.write(self.file, f"begun {number}\n".encode())

    def keep(self, number: int) -> None:
        os.write(self.file, f"kept {number}\n".encode())


def die(scene: Scene, folder: Path, step: int, half: bool) -> None:
    """In a separate process: run the scene until the process is killed; if it completes, exit normally."""
    killer = Killer(step, half)
    with FaultyVfs(folder, killer):
        asyncio.run(
            scene(
                SqliteLog(folder / NAME, compact_after=MEGABYTE),
                AcknowledgedInFile(folder / "acknowledged"),
                killer.now,
            )
        )
        os._exit(0)


def run_and_end(scene: Scene, folder: Path, step: int, half: bool) -> bool:
    """Whether the process was killed; any end but that or a normal exit fails the test."""
    process = PROCESSES.Process(target=die, args=(scene, folder, step, half))
    process.start()
    process.join(60)
    code = process.exitcode
    process.close()
    assert code in (0, -signal.SIGKILL), f"step {step}: the process ended with {code}"
    return code != 0


def acknowledged_in(folder: Path, before: Acknowledged) -> Acknowledged:
    acknowledged = Acknowledged(set(before.begun), set(before.kept))
    for line in (folder / "acknowledged").read_text().splitlines() if (folder / "acknowledged").exists() else ():
        what, number = line.split()
        (acknowledged.begin if what == "begun" else acknowledged.keep)(int(number))
    return acknowledged


async def five_batches(path: Path) -> Acknowledged:
    acknowledged = Acknowledged()
    async with opened(SqliteLog(path)) as log:
        for number in range(5):
            await append(log, acknowledged, number)
    return acknowledged


@pytest.mark.parametrize("half", [False, True], ids=["before", "half-way"])
@pytest.mark.parametrize(
    ("scene", "start", "least", "stride"),
    [
        (an_append, "closed", 5, 1),
        (an_append, "killed", 5, 1),
        (an_append_of_megabytes, "closed", 1000, 331),
        (a_compaction, "closed", 5, 1),
        (a_closing, "closed", 4, 1),
        (an_opening, "none", 20, 1),
        (an_opening, "closed", 4, 1),
        (an_opening, "killed", 10, 1),
    ],
)
def test_process_killed_at_any_step_loses_no_acknowledged_batch(
    tmp_path: Path, scene: Scene, start: str, least: int, stride: int, half: bool
) -> None:
    """D3, F6, F7, F8, F9: SIGKILL before the n-th write, sync, truncation or removal, or half-way through the write."""
    original = tmp_path / "original"
    original.mkdir()
    before = Acknowledged()
    if start != "none":
        before = asyncio.run(five_batches(original / NAME))
    if start == "killed":
        assert run_and_end(an_append, original, 10_000, half=False) is False
        # The process ended with its log open, which is all that a kill does.
        assert (original / f"{NAME}-wal").stat().st_size > 0
        before = acknowledged_in(original, before)
        (original / "acknowledged").unlink()
    for step in itertools.count(1, volume(2, 1, 1) * stride):  # in a user's run, every second step
        folder = tmp_path / str(step)
        shutil.copytree(original, folder)
        killed = run_and_end(scene, folder, step, half)
        acknowledged = acknowledged_in(folder, before)
        try:
            asyncio.run(serves(folder / NAME, acknowledged))
        except Exception as error:
            raise AssertionError(f"killed at step {step}: {error}") from error
        if not killed:
            break
        shutil.rmtree(folder)
    assert step > least // (2 if half else 1), "the steps were not intercepted"
