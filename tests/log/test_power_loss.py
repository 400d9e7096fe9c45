"""Power loss at any moment of a log's life: any part of what was not synced is lost or torn."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import sqlite3
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from connectgroup.errors import LogError
from connectgroup.log.sqlite.log import SqliteLog
from tests.volume import volume

from .faulty_vfs import FAILS_WITH, Call, DiskFault, FaultyVfs
from .life import NAME, Acknowledged, append, look, serves, whole_life
from .power import Arrived, Image, VolatileDisk


@dataclass
class Recorded(Acknowledged):
    """A recorded life: each call on a file, and what the log acknowledged, in order.

    Attributes:
        failing: indexes of the ``sync`` calls that fail, from 0, among those on files with this suffix.
        syncs: number of such calls.
    """

    failing: range = range(0)
    failing_file: str = ""
    syncs: int = 0
    events: list[Call | tuple[str, int]] = field(default_factory=list)

    def begin(self, number: int) -> None:
        super().begin(number)
        self.events.append(("begun", number))

    def keep(self, number: int) -> None:
        super().keep(number)
        self.events.append(("kept", number))

    def miss(self, number: int) -> None:
        super().miss(number)
        self.events.append(("missed", number))

    def __call__(self, call: Call) -> DiskFault | None:
        self.events.append(call)
        if call.what != "sync" or not call.file.endswith(self.failing_file):
            return None
        self.syncs += 1
        return DiskFault(code=FAILS_WITH["sync"]) if self.syncs - 1 in self.failing else None


def record(
    folder: Path,
    life: Callable[[Path, Acknowledged], Coroutine[Any, Any, None]] = whole_life,
    failing: range = range(0),
    failing_file: str = "",
) -> Recorded:
    folder.mkdir()
    recorded = Recorded(failing=failing, failing_file=failing_file)
    with FaultyVfs(folder, recorded):
        asyncio.run(life(folder / NAME, recorded))
    return recorded


class GuaranteeViolated(Exception):
    """The state after a power loss violates a guarantee."""


class Cuts:
    """Cuts the power after each event of a life, and checks the remaining files."""

    def __init__(self, folder: Path, directory: Path, seed: int, *, may_ask: bool = False) -> None:
        """Create the object without cutting.

        Args:
            may_ask: the log may refuse to open until its lock file is removed, and must then have every batch.
        """
        self.may_ask = may_ask
        self.disk = VolatileDisk(folder)
        self.acknowledged = Acknowledged()
        self.generator = Random(seed)
        self.directory = directory
        self.seen: set[int] = set()

    def through(self, recorded: Recorded) -> None:
        for event in recorded.events:
            self.after(event)

    def after(self, event: Call | tuple[str, int]) -> bool:
        """Whether the event can have made a difference."""
        changed = self.take(event)
        if changed:
            ways: tuple[Arrived, ...] = ("nothing", "everything", *[self.generator] * volume(1, 4))
            for arrived in ways:
                self.once(self.disk.image(arrived))
        return changed

    def take(self, event: Call | tuple[str, int]) -> bool:
        if isinstance(event, Call):
            return self.disk.take(event)
        what, number = event
        {"begun": self.acknowledged.begin, "kept": self.acknowledged.keep, "missed": self.acknowledged.miss}[what](
            number
        )
        return True

    def once(self, image: Image) -> None:
        known = hash((tuple(image.items()), len(self.acknowledged.kept)))
        if known in self.seen:
            return
        self.seen.add(known)
        folder = self.directory / "cut"
        folder.mkdir()
        for name, data in image.items():
            (folder / name).write_bytes(data)
        try:
            try:
                asyncio.run(serves(folder / NAME, self.acknowledged))
            except LogError as error:
                if not self.may_ask or "is missing though" not in str(error):
                    raise
                (folder / f"{NAME}.lock").unlink()
                asyncio.run(serves(folder / NAME, self.acknowledged))
        except (AssertionError, LogError) as error:
            raise GuaranteeViolated(f"cut {len(self.seen)}: {error}") from error
        shutil.rmtree(folder)


class EarlyCheckpoint(sqlite3.Connection):
    """Checkpoints after a few pages instead of thousands: the same steps in a shorter life."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.execute("PRAGMA wal_autocheckpoint = 7")


@pytest.mark.parametrize("seed", range(1, 1 + volume(1, 2, 2)))
def test_power_loss_loses_no_acknowledged_batch(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """D3, F9: each of some hundred or thousand disk images opens with all acknowledged batches, whole."""
    life = tmp_path / "life"
    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=EarlyCheckpoint))
        recorded = record(life)
    cuts = Cuts(life, directory, seed)
    cuts.through(recorded)
    assert len(cuts.seen) > volume(200, 500)
    left = {path.name: path.read_bytes() for path in life.iterdir()}
    assert cuts.disk.image("everything") == left, "a write was not intercepted"


class Careless(sqlite3.Connection):
    """SQLite with a weaker setting than the log requests."""

    setting = "OFF"

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        other = {"PRAGMA synchronous = FULL": f"PRAGMA synchronous = {self.setting}", "PRAGMA synchronous": "SELECT 2"}
        return super().execute(other.get(sql, sql), *arguments)


@pytest.mark.parametrize(
    ("setting", "message"), [("OFF", "damaged|malformed|lost: "), ("NORMAL", "damaged|lost: |was acknowledged")]
)
def test_power_loss_without_synchronous_full_loses_acknowledged_batches(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch, setting: str, message: str
) -> None:
    """Shows that the test above can fail, and that FULL is needed."""
    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Careless))
        patch.setattr(Careless, "setting", setting)
        recorded = record(tmp_path / "life")
    cuts = Cuts(tmp_path / "life", directory, 1)
    with pytest.raises(GuaranteeViolated, match=message):
        cuts.through(recorded)


async def stubborn_life(path: Path, acknowledged: Acknowledged) -> None:
    """An operation fails once, and the caller continues with the next batch."""
    for turn in range(2):
        log = SqliteLog(path)
        for _ in range(2):
            try:
                await log.open()
                break
            except LogError:
                continue
        for number in range(3):
            with suppress(LogError):
                await append(log, acknowledged, 10 * turn + number)
            with suppress(LogError):
                await look(log, acknowledged)
        with suppress(LogError):
            await log.compact()
        with suppress(LogError):
            await append(log, acknowledged, 10 * turn + 3)
        await log.close()


@pytest.mark.parametrize(("of", "in_a_row"), [("", 1), ("-wal", 2), ("-wal", 3), (NAME, 2)])
def test_failed_syncs_lose_no_acknowledged_batch(tmp_path: Path, directory: Path, of: str, in_a_row: int) -> None:
    """F10: the kernel treats pages whose sync failed as written: they can be read, and no later sync writes them.

    Each sync of the life fails, and the following ones of that file; then the power is cut at each of the next events.
    """
    cuts_made = 0
    for first in itertools.count():
        life = tmp_path / str(first)
        failing = range(first, first + in_a_row)
        recorded = record(life, stubborn_life, failing, of)
        if recorded.syncs <= first:
            break
        cuts = Cuts(life, directory, first, may_ask=True)
        syncs = itertools.count()
        since = -1  # changes since the last failed sync
        for event in recorded.events:
            is_sync = isinstance(event, Call) and event.what == "sync" and event.file.endswith(of)
            if is_sync and next(syncs) in failing:
                assert isinstance(event, Call)
                cuts.disk.take(event, failed_sync=cuts.generator)
                since = 0
            elif since < 0:
                cuts.take(event)
            elif since < 12:
                since += cuts.after(event)
        cuts_made += len(cuts.seen)
    assert cuts_made > 10
