"""Every file call fails once, or from some call on until the disk works again: the log reports an error, no more."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from connectgroup.errors import LogError
from connectgroup.log.base import AppendRefused, LogFenced
from connectgroup.log.sqlite.log import SqliteLog
from connectgroup.testing.contracts.log import opened
from tests.volume import volume

from .faulty_vfs import FAILS_WITH, SQLITE_FULL, Call, DiskFault, FaultyVfs
from .life import NAME, Acknowledged, append, holds, look, serves

EVERY = volume(4, 2, 1)
"""Each of these calls fails in a run of its own: every call, or every fourth."""


@dataclass
class Failing:
    """The n-th call fails, or all from the n-th on while the disk is ``ill``; only calls that ``may`` fail count."""

    left: int
    may: Callable[[Call], bool]
    full: bool = False
    half: bool = False
    lasting: bool = False
    ill: bool = True
    failed: Call | None = None

    def __call__(self, call: Call) -> DiskFault | None:
        if not self.ill or not self.may(call):
            return None
        self.left -= 1
        if self.left > 0 or (self.left < 0 and not self.lasting):
            return None
        self.failed = self.failed or call
        return DiskFault(code=SQLITE_FULL if self.full else FAILS_WITH[call.what], half=self.half)


class Life:
    """A log on which operations are executed one after the other, whether or not the earlier ones failed.

    Attributes:
        failed: number of operations that raised an error.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = SqliteLog(path, compact_after=16)
        self.acknowledged = Acknowledged()
        self.failed = 0
        self._numbers = itertools.count()
        self._open = False

    async def through(self, times: int = 2) -> None:
        """All operations of a log."""
        for _ in range(times):
            for _ in range(3):
                await self._asked(self._append(1))
                await self._asked(look(self.log, self.acknowledged))
            await self._asked(self._append(3))
            await self._asked(self.log.compact())
            await self._asked(look(self.log, self.acknowledged))
            await self._asked(self._append(1))
            await self.log.close()
            self._open = False

    async def _append(self, count: int) -> None:
        await append(self.log, self.acknowledged, *itertools.islice(self._numbers, count))

    async def _asked(self, what: Coroutine[Any, Any, object]) -> None:
        try:
            if not self._open:
                await self.log.open()
                self._open = True
            await what
        except LogError as failure:
            self.failed += 1
            self._one_clear_line(failure)
        finally:
            what.close()

    def _one_clear_line(self, error: LogError) -> None:
        """One line, and neither "nothing was written" nor "fenced"."""
        assert not isinstance(error, AppendRefused | LogFenced), error
        assert str(error).startswith(str(self.path)), error
        assert "\n" not in str(error), error
        assert len(str(error)) < 400, error


def any_call(call: Call) -> bool:
    """Except for the locks in shared memory, which SQLite retries for ten seconds."""
    return call.what != "lock_map"


def a_change(call: Call) -> bool:
    return call.what in {"write", "sync", "truncate", "delete"}


def growth(call: Call) -> bool:
    """Files other than the lock file: it does not grow, so it can be written on a full disk."""
    return call.what in {"write", "open"} and not call.file.endswith(".lock")


def reading(call: Call) -> bool:
    return call.what in {"read", "size"}


@pytest.mark.parametrize(
    ("may", "full", "half"),
    [(any_call, False, False), (a_change, False, True), (growth, True, False), (growth, True, True)],
    ids=["not done", "done, or half of it", "full", "full after half"],
)
async def test_single_failed_call_affects_only_the_current_operation(
    directory: Path, may: Callable[[Call], bool], full: bool, half: bool
) -> None:
    """F10: every ``EVERY``-th call in turn, from the first on a new file to the last of closing it."""
    for number in itertools.count(1, EVERY):
        folder = directory / str(number)
        folder.mkdir()
        failing = Failing(number, may, full=full, half=half)
        with FaultyVfs(folder, failing):
            life = Life(folder / NAME)
            await life.through()
        assert life.failed <= 1, f"{failing.failed} made {life.failed} operations fail"
        await serves(folder / NAME, life.acknowledged)
        if failing.failed is None:
            break
    assert number > 100, "the calls were not intercepted"


@pytest.mark.parametrize(
    ("may", "full"),
    [(growth, True), (a_change, False), (reading, False), (any_call, False)],
    ids=["full", "cannot be written", "cannot be read", "gone"],
)
async def test_disk_that_fails_for_a_while_loses_no_acknowledged_batch(
    directory: Path, may: Callable[[Call], bool], full: bool
) -> None:
    """F10: from the n-th call on every call fails; once the disk works again, so does the same log object."""
    noticed = 0
    for number in itertools.count(1, 5 * EVERY):
        folder = directory / str(number)
        folder.mkdir()
        failing = Failing(number, may, full=full, lasting=True)
        with FaultyVfs(folder, failing):
            life = Life(folder / NAME)
            await life.through()
            failed, failing.ill = life.failed, False
            await life.through(1)
            assert life.failed == failed, "the disk works again"
        await serves(folder / NAME, life.acknowledged)
        if failing.failed is None:
            break
        noticed += failed > 0
    assert noticed > number // (5 * EVERY) - 20, "a failing disk was not detected"
    assert number > 20, "the calls were not intercepted"


async def test_foreign_transaction_delays_an_append_for_a_second_and_is_named(directory: Path) -> None:
    """The lock file excludes other coordinators, but not other SQLite clients."""
    async with opened(SqliteLog(directory / NAME)) as log:
        acknowledged = Acknowledged()
        await append(log, acknowledged, 1)
        foreign = sqlite3.connect(directory / NAME, isolation_level=None)
        foreign.execute("BEGIN IMMEDIATE")
        with pytest.raises(LogError, match=rf"{NAME}: database is locked \(SQLITE_BUSY\)"):
            await append(log, acknowledged, 2)
        foreign.close()
        await append(log, acknowledged, 3)
        await holds(log, acknowledged)
