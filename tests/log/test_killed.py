"""A process that is killed at every step SQLite takes: what it acknowledged is there, and the file serves again."""

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

from .faulty_vfs import Call, DiskFault, FaultyVfs
from .life import NAME, Told, append, serves

CHANGES: Final = {"open", "write", "truncate", "sync", "delete"}
MEGABYTE: Final = 1_000_000

# Each child is a fork of a clean process that has imported all this, not of the one that runs the tests.
PROCESSES: Final = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([__name__])


Scene = Callable[[SqliteLog, Told, Callable[[], None]], Coroutine[Any, Any, None]]
"""Something done to a log that is not open and holds batches 0 to 4; from the call of the third on, death is near."""


async def an_append(log: SqliteLog, told: Told, now: Callable[[], None]) -> None:
    await log.open()
    now()
    await append(log, told, 10, 11, 12)


async def an_append_of_megabytes(log: SqliteLog, told: Told, now: Callable[[], None]) -> None:
    """More than SQLite's cache takes, so pages go out before the commit; and the log is written back after it."""
    await log.open()
    now()
    await append(log, told, 10, bytes_each=2 * MEGABYTE)


async def a_compaction(log: SqliteLog, told: Told, now: Callable[[], None]) -> None:
    await log.open()
    await append(log, told, 10)
    await append(log, told, 11)
    now()
    assert await log.compact() > 0


async def a_closing(log: SqliteLog, told: Told, now: Callable[[], None]) -> None:
    await log.open()
    await append(log, told, 10)
    now()
    await log.close()


async def an_opening(log: SqliteLog, told: Told, now: Callable[[], None]) -> None:
    now()
    await log.open()


@dataclass
class Deadly:
    """Kills its own process at the n-th change of a file after ``now``."""

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


class ToldInFile(Told):
    """Also written down, for those who come after."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def begin(self, number: int) -> None:
        os.write(self.file, f"begun {number}\n".encode())

    def keep(self, number: int) -> None:
        os.write(self.file, f"kept {number}\n".encode())


def die(scene: Scene, folder: Path, step: int, half: bool) -> None:
    """In a process of its own: the scene, not to be finished; if it is, the process ends well."""
    deadly = Deadly(step, half)
    with FaultyVfs(folder, deadly):
        asyncio.run(scene(SqliteLog(folder / NAME, compact_after=MEGABYTE), ToldInFile(folder / "told"), deadly.now))
        os._exit(0)


def run_and_end(scene: Scene, folder: Path, step: int, half: bool) -> bool:
    """Whether the process was killed; anything but that or a good end fails the test."""
    process = PROCESSES.Process(target=die, args=(scene, folder, step, half))
    process.start()
    process.join(60)
    code = process.exitcode
    process.close()
    assert code in (0, -signal.SIGKILL), f"step {step}: the process ended with {code}"
    return code != 0


def told_in(folder: Path, before: Told) -> Told:
    told = Told(set(before.begun), set(before.kept))
    for line in (folder / "told").read_text().splitlines() if (folder / "told").exists() else ():
        what, number = line.split()
        (told.begin if what == "begun" else told.keep)(int(number))
    return told


async def five_batches(path: Path) -> Told:
    told = Told()
    async with opened(SqliteLog(path)) as log:
        for number in range(5):
            await append(log, told, number)
    return told


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
    """D3, F6, F7, F8, F9: SIGKILL before the n-th write, sync, cut or removal, or half-way through the write, all n."""
    original = tmp_path / "original"
    original.mkdir()
    before = Told()
    if start != "none":
        before = asyncio.run(five_batches(original / NAME))
    if start == "killed":
        assert run_and_end(an_append, original, 10_000, half=False) is False
        # It ended with its log open, which is all that a kill does.
        assert (original / f"{NAME}-wal").stat().st_size > 0
        before = told_in(original, before)
        (original / "told").unlink()
    for step in itertools.count(1, stride):
        folder = tmp_path / str(step)
        shutil.copytree(original, folder)
        killed = run_and_end(scene, folder, step, half)
        told = told_in(folder, before)
        try:
            asyncio.run(serves(folder / NAME, told))
        except Exception as error:
            raise AssertionError(f"killed at step {step}: {error}") from error
        if not killed:
            break
        shutil.rmtree(folder)
    assert step > least // (2 if half else 1), "the steps were not seen"
