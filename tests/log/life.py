"""The operations of a log in the tests that interrupt it, and the conditions on the file that is left.

A batch is identified by its number; its records carry the number, so that a partial batch is detected.
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
"""The files that survive a crash; the shared memory beside them is recreated."""

PARTS: Final = 3


@dataclass
class Acknowledged:
    """What the log acknowledged to its callers.

    Attributes:
        begun: all batches that may be in the log.
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
    """Some records with keys of their own, and one that replaces the one before: something to compact."""
    return [
        *(
            MemberRecord(group_id="g", member_id=f"{number}-{part}", client_host="x" * bytes_each)
            for part in range(PARTS)
        ),
        MemberRecord(group_id="g", member_id="counter", client_host=str(number)),
    ]


async def append(log: Log, acknowledged: Acknowledged, *numbers: int, bytes_each: int = 200) -> None:
    """Append batches, all at once: they are written in one transaction.

    Raises:
        LogError: of the first append that failed; the others have completed too.
    """

    async def one(number: int) -> None:
        acknowledged.begin(number)
        await log.append(batch(number, bytes_each=bytes_each))
        acknowledged.keep(number)

    await asyncio.gather(*(one(number) for number in numbers))


async def whole_life(path: Path, acknowledged: Acknowledged) -> None:
    """A new file; appends one by one and together; both kinds of compaction; closed, opened and closed again."""
    for turn in range(2):
        log = SqliteLog(path, compact_after=16)
        await log.open()
        for number in range(5):
            await append(log, acknowledged, 10 * turn + number)
        await append(log, acknowledged, *range(10 * turn + 5, 10 * turn + 8))
        await log.compact()
        await append(log, acknowledged, 10 * turn + 9)
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


async def look(log: Log, acknowledged: Acknowledged) -> None:
    """Load, and check with ``holds``: from now on found batches must stay, and missing ones must stay missing."""
    found = await holds(log, acknowledged)
    for number in sorted(acknowledged.begun - acknowledged.kept):
        (acknowledged.keep if number in found else acknowledged.miss)(number)


async def holds(log: Log, acknowledged: Acknowledged) -> set[int]:
    """All acknowledged batches are in the log, and the others are whole or absent (D3); return the numbers found."""
    records = await contents(log)
    found = batches_in(records)
    assert acknowledged.kept <= found.keys(), f"lost: {sorted(acknowledged.kept - found.keys())}"
    assert found.keys() <= acknowledged.begun, f"never begun: {sorted(found.keys() - acknowledged.begun)}"
    partial = {number: parts for number, parts in found.items() if len(parts) != PARTS}
    assert not partial, f"partial: {partial}"
    counters = [record.client_host for record in records if isinstance(record, MemberRecord) and _counts(record)]
    assert [int(counter) for counter in counters[-1:]] == [max(found)] if found else not counters
    return set(found)


async def serves(path: Path, acknowledged: Acknowledged) -> None:
    """The file opens, passes ``holds``, and accepts and keeps another batch."""
    more = max(acknowledged.begun, default=0) + 1_000_000
    async with opened(SqliteLog(path)) as log:
        await holds(log, acknowledged)
        await log.append(batch(more))
    async with opened(SqliteLog(path)) as log:
        await holds(log, Acknowledged(acknowledged.begun | {more}, acknowledged.kept | {more}))
