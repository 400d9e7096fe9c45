"""The rows of a log in a database: one for each record, their checksums, and what is read of them.

A row and its columns are the same in every back end. ``offset`` is the position of the record, which is never used
twice; ``batch`` is the offset of the first record of its batch; ``epoch`` is the coordinator epoch of the writer;
``value`` is null for a tombstone; ``crc32`` covers all of these columns. Each group also has the number of its rows and
the sum of their checksums, which detect rows that are missing, or that belong to another group.
"""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final

from ..errors import LogError, WireError
from ..protocol.records.base import Key, Kind
from ..protocol.records.connect import Record
from ..protocol.units import printable
from ..wire.record_codec import decode_record
from .base import EncodedRecord, Loaded, copied

COMPACT_AFTER: Final = 2_000
"""Rows of one group: its compaction then takes about 50 ms, during which nothing else is written."""

GROUPS_AT_ONCE: Final = 50
"""Groups with few rows that are compacted together, if all groups have five times ``COMPACT_AFTER`` rows to compact."""

RESTORED_EPOCHS: Final = 1_000
"""Coordinator epochs that an older copy of a log may be missing: workers ignore a coordinator of a lower epoch."""

Values = tuple[int, int, int, int, bytes, bytes, bytes | None, int]
"""The columns of a row: offset, batch, epoch, kind, group_id, name, value, crc32."""

Batch = list[EncodedRecord]
"""One batch of records, as ``base.encode_batch`` returns it."""

Sums = dict[str, tuple[int, int]]
"""By group: the number of its rows, and the sum of their checksums."""


class BatchQueue:
    """Batches wait for the one that is being written; all that wait are then written together (group commit).

    Args:
        name: of the log.
        write: writes batches, in one transaction; returns the groups that are due for compaction.
        compact: compacts these groups.
    """

    def __init__(
        self,
        name: str,
        write: Callable[[list[Batch]], Awaitable[list[str]]],
        compact: Callable[[list[str]], Awaitable[Any]],
    ) -> None:
        self._name, self._write_batches, self._compact = name, write, compact
        # ``append`` adds to it; the writer takes all of it.
        self._waiting: list[tuple[Batch, asyncio.Future[None]]] = []
        # Runs until no batch waits: ``append`` starts it, ``close`` cancels it.
        self._writer: asyncio.Task[None] | None = None

    async def append(self, batch: Batch) -> None:
        """Return when the batch is written, an empty one when those before it are; raises what ``write`` does."""
        if not batch and self._writer is None:
            return
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((batch, written))
        if self._writer is None:
            self._writer = asyncio.create_task(self._write(), name=f"writer of {self._name}")
        await written

    async def flush(self) -> None:
        """Return when no earlier batch is being written any more."""
        with suppress(LogError):  # already raised to the callers of ``append``
            await self.append([])

    async def close(self) -> None:
        """Cancel what waits."""
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.gather(self._writer, return_exceptions=True)

    async def _write(self) -> None:
        taken: list[tuple[Batch, asyncio.Future[None]]] = []
        try:
            while self._waiting:
                taken, self._waiting = self._waiting, []
                due: list[str] = []
                try:
                    due = await self._write_batches([batch for batch, _ in taken])
                except Exception as error:
                    for _, written in taken:
                        if not written.done():  # done: its caller was cancelled
                            written.set_exception(copied(error))
                else:
                    for _, written in taken:
                        if not written.done():
                            written.set_result(None)
                with suppress(LogError):  # the next append gets the same error and has a caller to raise it to
                    if due:
                        await self._compact(due)
        finally:
            self._writer = None
            for _, written in (*taken, *self._waiting):  # none, unless this asyncio task was cancelled
                written.cancel()


def rows_of(batches: Iterable[Sequence[EncodedRecord]], *, first: int, epoch: int) -> tuple[list[Values], Sums]:
    """The rows of batches, and what they add to the sums of their groups.

    Args:
        first: the offset of the first row.
        epoch: the coordinator epoch of the writer.
    """
    rows: list[Values] = []
    sums: Sums = {}
    offset = first
    for batch in batches:
        batch_offset = offset
        for (kind, group_id, name), value in batch:
            group, raw = group_id.encode(), name.encode()
            crc = row_checksum(offset, batch_offset, epoch, kind, group, raw, value)
            rows.append((offset, batch_offset, epoch, int(kind), group, raw, value, crc))
            sums[group_id] = added(sums.get(group_id, (0, 0)), crc)
            offset += 1
    return rows, sums


def added(sums: tuple[int, int], crc: int) -> tuple[int, int]:
    """The sums of a group with one more row."""
    return sums[0] + 1, sums[1] + crc & 0xFFFFFFFF


class Loading:
    """Decodes the rows of groups; a group with a corrupt row has an error instead of its records."""

    def __init__(self, where: str, *, newest_epoch: int, group_id: str | None = None) -> None:
        """Args:
        where: the log, for errors.
        newest_epoch: the coordinator epoch of the log; no row may have a higher one.
        group_id: the group that the result is to have even if there are no rows of it.
        """
        self._where, self._newest_epoch = where, newest_epoch
        self._found: dict[str, list[Record]] = {} if group_id is None else {group_id: []}
        self._broken: dict[str, LogError] = {}
        self._sums: Sums = {}

    def add(self, row: Row) -> None:
        """Decode one row, in the order of the log."""
        group = row.group_id
        self._sums[group] = added(self._sums.get(group, (0, 0)), row.crc)
        records = self._found.setdefault(group, [])
        if group in self._broken:
            return
        try:
            records.append(row.record(newest_epoch=self._newest_epoch))
        except WireError as error:
            self._broken[group] = LogError(
                f"{self._where}: offset {row.offset}, group {printable(group)}: {printable(error, limit=300)}"
            )

    def result(self, expected: Mapping[str, tuple[int, int]]) -> dict[str, Loaded]:
        """The groups, once all rows have been added; ``expected`` are their sums as they are stored."""
        sums, broken = self._sums, self._broken
        for group in expected.keys() | sums.keys():
            if expected.get(group) != sums.get(group) and group not in broken:
                self._found.setdefault(group, [])
                broken[group] = LogError(
                    f"{self._where}: group {printable(group)}: {sums.get(group, (0, 0))[0]} records found where "
                    f"{expected.get(group, (0, 0))[0]} were written, or their checksums do not add up"
                )
        return {group: broken[group] if group in broken else tuple(found) for group, found in self._found.items()}


class CompactionDue:
    """Which groups are due for compaction: the amortized cost of compaction does not exceed that of append."""

    def __init__(self, compact_after: int = COMPACT_AFTER) -> None:
        self._compact_after = compact_after
        self._live: Counter[str] = Counter()  # rows per group after its last compaction
        self._added: Counter[str] = Counter()  # rows per group added since then
        self._all_live = self._all_added = 0  # the sums of both

    def on_appended(self, sums: Sums) -> list[str]:
        """Note appended rows; return the groups that are due."""
        for group_id, (count, _) in sums.items():
            self._added[group_id] += count
            self._all_added += count
        # Due when as many rows were added as are live.
        due = [group for group in sums if self._added[group] >= max(self._compact_after, self._live[group])]
        if self._all_added >= max(5 * self._compact_after, self._all_live):
            # Many groups with few rows each, such as groups that are created and deleted: the first ones written.
            due += [group for group in islice(self._added, GROUPS_AT_ONCE) if group not in due]
        return due

    def on_compacted(self, live: Mapping[str, int]) -> None:
        """Note the rows that compacted groups have, once their compaction is durable."""
        for group_id, rows in live.items():
            self._all_added -= self._added.pop(group_id, 0)
            self._all_live += rows - self._live.pop(group_id, 0)
            if rows:
                self._live[group_id] = rows


class Row:
    """One row as read from the file, not verified."""

    __slots__ = ("batch", "crc", "epoch", "group_id", "kind", "name", "offset", "raw_group", "value")

    offset: int
    batch: int
    epoch: int
    kind: int
    raw_group: bytes
    group_id: str
    name: bytes
    value: bytes | None
    crc: int

    @classmethod
    def of(cls, values: tuple[Any, ...]) -> Row | None:
        """Return the row, or ``None`` if a column has the wrong type."""
        *numbers, group, name, value, crc = values
        if not all(isinstance(number, int) for number in (*numbers, crc)):
            return None
        if not isinstance(group, bytes) or not isinstance(name, bytes) or not isinstance(value, bytes | None):
            return None
        row = cls()
        row.offset, row.batch, row.epoch, row.kind = numbers
        row.raw_group, row.name, row.value, row.crc = group, name, value, crc
        row.group_id = text_of(group)
        return row

    def key(self) -> Key:
        """Return the row's key after verifying the row's checksum; otherwise raise ``WireError``."""
        crc = row_checksum(self.offset, self.batch, self.epoch, self.kind, self.raw_group, self.name, self.value)
        if crc != self.crc:
            raise WireError(f"its checksum is {crc}, {self.crc} was written")
        try:
            return Key(Kind(self.kind), self.group_id, self.name.decode())
        except ValueError as error:
            raise WireError(f"record kind {self.kind} is not known to this version of the software") from error

    def record(self, *, newest_epoch: int) -> Record:
        """Return the row's record after all checks; otherwise raise ``WireError``, which names the problem."""
        key = self.key()
        if self.epoch > newest_epoch:
            raise WireError(f"it is of coordinator epoch {self.epoch}, the log is at {newest_epoch}")
        return decode_record(key, self.value)


def row_checksum(
    offset: int, batch: int, epoch: int, kind: int, group_id: bytes, name: bytes, value: bytes | None
) -> int:
    """Return the CRC-32 of all columns of a row, including lengths, so that no two rows have the same encoding."""
    head = struct.pack(
        ">qqqqqqq", offset, batch, epoch, kind, len(group_id), len(name), -1 if value is None else len(value)
    )
    return zlib.crc32(b"".join((head, group_id, name, value or b"")))


def text_of(raw: object) -> str:
    return raw.decode("utf-8", "backslashreplace") if isinstance(raw, bytes) else str(raw)
