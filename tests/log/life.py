"""What a log goes through in the tests that cut it short, and what must hold of the file that is left.

A batch is known by its number; its records say which batch they are of, so that half of one is noticed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from connectgroup.log.base import Log
from connectgroup.log.sqlite.log import SqliteLog
from connectgroup.protocol.records.connect import MemberRecord, Record
from connectgroup.testing.contracts.log import contents, opened

NAME: Final = "groups.db"
FILES: Final = (NAME, f"{NAME}-wal", f"{NAME}-journal", f"{NAME}.lock")
"""All that outlives a crash; the shared memory beside them is made anew."""

PARTS: Final = 3


@dataclass
class Told:
    """What was said to whoever appends and loads.

    Attributes:
        begun: all batches that may be there.
        kept: those of them that must be.
    """

    begun: set[int] = field(default_factory=set)
    kept: set[int] = field(default_factory=set)

    def begin(self, number: int) -> None:
        self.begun.add(number)

    def keep(self, number: int) -> None:
        self.kept.add(number)

    def miss(self, number: int) -> None:
        self.begun.discard(number)


def batch(number: int, *, bytes_each: int = 200) -> list[MemberRecord]:
    """Some records that stay, and one that replaces the one before: something to compact."""
    return [
        *(
            MemberRecord(group_id="g", member_id=f"{number}-{part}", client_host="x" * bytes_each)
            for part in range(PARTS)
        ),
        MemberRecord(group_id="g", member_id="counter", client_host=str(number)),
    ]


async def append(log: Log, told: Told, *numbers: int, bytes_each: int = 200) -> None:
    """Append batches, all at once: they are written in one transaction.

    Raises:
        LogError: of the first that failed; the others are over, too.
    """

    async def one(number: int) -> None:
        told.begin(number)
        await log.append(batch(number, bytes_each=bytes_each))
        told.keep(number)

    await asyncio.gather(*(one(number) for number in numbers))


async def whole_life(path: Path, told: Told) -> None:
    """A new file; appends one by one and together; compactions of both kinds; closed, opened and closed again."""
    for turn in range(2):
        log = SqliteLog(path, compact_after=16)
        await log.open()
        for number in range(5):
            await append(log, told, 10 * turn + number)
        await append(log, told, *range(10 * turn + 5, 10 * turn + 8))
        await log.compact()
        await append(log, told, 10 * turn + 9)
        await log.close()


def batches_in(records: Iterable[Record]) -> dict[int, set[str]]:
    """The parts found of each batch."""
    found: dict[int, set[str]] = {}
    for record in records:
        assert isinstance(record, MemberRecord)
        if not _counts(record):
            number, part = record.member_id.split("-")
            found.setdefault(int(number), set()).add(part)
    return found


def _counts(record: MemberRecord) -> bool:
    return record.member_id == "counter"


async def look(log: Log, told: Told) -> None:
    """Load, check that the log ``holds`` what it must, and take its word: what is in stays, what is out stays out."""
    found = await holds(log, told)
    for number in sorted(told.begun - told.kept):
        (told.keep if number in found else told.miss)(number)


async def holds(log: Log, told: Told) -> set[int]:
    """All that was acknowledged is in the log, and of the rest whole batches or nothing (D3); what is there."""
    records = await contents(log)
    found = batches_in(records)
    assert told.kept <= found.keys(), f"lost: {sorted(told.kept - found.keys())}"
    assert found.keys() <= told.begun, f"never begun: {sorted(found.keys() - told.begun)}"
    halves = {number: parts for number, parts in found.items() if len(parts) != PARTS}
    assert not halves, f"halves: {halves}"
    counters = [record.client_host for record in records if isinstance(record, MemberRecord) and _counts(record)]
    assert [int(counter) for counter in counters[-1:]] == [max(found)] if found else not counters
    return set(found)


async def serves(path: Path, told: Told) -> None:
    """The file opens, ``holds`` what it must, and takes and keeps more."""
    more = max(told.begun, default=0) + 1_000_000
    async with opened(SqliteLog(path)) as log:
        await holds(log, told)
        await log.append(batch(more))
    async with opened(SqliteLog(path)) as log:
        await holds(log, Told(told.begun | {more}, told.kept | {more}))
