"""Which keys of a table may be read now, and whether new rows have keys that were read already.

Rows are expected to be inserted with growing keys. A row that would never be read is an error, as far as the table
shows it: negative and null keys, keys that begin again, a table that was made anew. The metadata of a position have
what the table was when the position was reached (``TableMark``).
"""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from ...dataplane.errors import SourceError
from ...dataplane.ownership import Position, metadata_of
from ...dataplane.source import MAX_POSITION

if TYPE_CHECKING:
    from ...dataplane.columns import Columns

logger = logging.getLogger(__name__)

_STATISTICS_S: Final = 15.0
"""A session of PostgreSQL reports the rows that it has deleted at most this long after its transaction has ended."""

_MAX_CANDIDATES: Final = 32
"""Highest keys that are noted at once: the settle window ends for one of them after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a table shows of its keys at one moment.

    Attributes:
        lowest, highest: the keys; ``None``: the table has no rows, or only null keys.
        has_null: whether a row has no key.
        next_key: a key such that the database gives no smaller one to a new row; ``None``: not known.
        table: differs if the table was dropped and created again; empty: not known.
        storage: differs if all rows may have been replaced at once; also for other reasons.
    """

    lowest: int | None
    highest: int | None
    has_null: bool
    next_key: int | None
    table: str
    storage: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMark:
    """What a table was when a position was reached, to tell whether it is the same table later.

    Attributes:
        table, storage: as in ``Seen``.
        next_key: as in ``Seen``, at most the position; ``None``: not known.
        columns: the names of the columns of the digest.
        row: digest of the last row that was read.
        lowest, first: the lowest key and the digest of its row; ``None`` and empty: not known.
        deleted: how many rows of the table had been deleted; ``None``: not known.
        types: differs if one of the columns had another type in the database; empty: not known.
    """

    table: str
    storage: str
    next_key: int | None
    columns: str
    row: str
    lowest: int | None = None
    first: str = ""
    deleted: int | None = None
    types: str = ""

    @classmethod
    def from_metadata(cls, text: str) -> TableMark | None:
        """Decode the metadata of a position; None if it has no mark."""
        try:
            return cls(**json.loads(text)["mark"]) if text else None
        except (ValueError, RecursionError, KeyError, TypeError):
            return None

    def metadata(self) -> str:
        """Return the mark as metadata of a position."""
        return json.dumps({"mark": asdict(self)}, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A highest key, when it was seen, and the transactions that may have been about to insert a smaller one."""

    key: int
    seen_s: float
    writers: Collection[str]


class Table(Protocol):
    """What is needed of the source."""

    settings: Any
    columns: Columns
    claimed: Mapping[str, int]

    @property
    def description(self) -> str:
        """As in ``Source``."""

    def place_of(self, key: object) -> str:
        """Return the place of a row, for errors."""

    def writers(self) -> Collection[str]:
        """Return the transactions that may insert a row with a smaller key than one that is visible already."""

    def digest(self, key: int) -> str | None:
        """Return a digest of the row with a key; None without one."""

    def types(self) -> str:
        """Return a text that differs if a column has another type; empty: not known."""

    def deleted(self) -> int | None:
        """Return how many rows were deleted so far; None if it is not known."""

    def has_at_most(self, rows: int, key: int) -> bool:
        """Whether there are at most so many rows up to a key; asked only if ``deleted`` is known."""

    def last_key(self, number: int, start: int, limit: int) -> int | None:
        """As in ``TableSource``."""


class Keys:
    """The keys of one table, as the planner of a task sees them."""

    def __init__(self, source: Table) -> None:
        """Store the source; its claimed positions have the marks of an earlier task."""
        self._source = source
        marks = ((name, at, TableMark.from_metadata(metadata_of(at))) for name, at in source.claimed.items())
        self._marks = {name: (int(at), mark) for name, at, mark in marks if mark is not None}
        self._safe: int | None = None
        self._candidates: deque[_Candidate] = deque()
        self._last_seen: Seen | None = None
        self._same_storage = ""
        self._has_warned = self._has_warned_of_change = False
        # Until when a deletion is looked for that would explain that rows have other contents, the count of deleted
        # rows before, and the last key that was read; the count at which the rows were last counted.
        self._suspicion: tuple[float, int, int] | None = None
        self._deleted = 0

    def check_keys(self, seen: Seen) -> None:
        """Raise an error if a row has a key that is never read."""
        column = self._source.settings.incrementing_column
        remedy = "a view without this row as source.table"
        if seen.has_null:
            raise SourceError(
                f"{self._source.description}: a row has no {column}; allowed: a key in each row, or {remedy}"
            )
        for key in (seen.lowest, seen.highest):
            if key is not None and not 0 <= key < MAX_POSITION:
                allowed = f"keys from 0 to {MAX_POSITION - 1}, or {remedy}"
                raise SourceError(f"{self._source.place_of(key)}: is not read; allowed: {allowed}")

    def check_table(self, seen: Seen, start: Mapping[str, int]) -> None:
        """Raise an error if new rows have keys below the position, because the keys begin again."""
        before, self._last_seen = self._last_seen, seen
        # The slice that is ahead. A position that an operator has altered has no mark.
        position, mark = max(
            ((at, mark) for name, (at, mark) in self._marks.items() if start.get(name) == at),
            default=(0, None),
            key=lambda found: found[0],
        )
        if mark is None:
            return
        highest, what = seen.highest, ""
        is_below = highest is not None and highest < position - 1
        lowest_before = mark.lowest if before is None else before.lowest
        has_moved = seen.storage not in (mark.storage, self._same_storage)
        if seen.table and mark.table and seen.table != mark.table:
            what = "was dropped and created again"
        elif seen.next_key is not None and mark.next_key is not None and seen.next_key < mark.next_key:
            what = f"gives the key {seen.next_key} next: its keys begin again"
        elif has_moved and ((is_below and seen.next_key is None) or self._is_another_row(position - 1, mark)):
            what = "was emptied and filled again"
        elif (key := self._new_key(seen, before, lowest_before, start)) is not None:
            what = f"has a new row with the key {key}"
        elif has_moved:
            self._same_storage = seen.storage if highest is not None else self._same_storage
        elif self._is_filled_again(position - 1, mark):
            what = "was emptied and filled again"
        if what:
            raise SourceError(
                f"{self._source.description}: {what}, rows below the key {position} were read; allowed: keys that only"
                " grow; reset the offsets to read the table from its start, or alter them to go on with a key"
            )
        if is_below and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "%s: its highest key is %s, rows below the key %d were read: a new row with a smaller key is not read",
                self._source.description,
                highest,
                position,
            )

    def _new_key(
        self, seen: Seen, before: Seen | None, lowest_before: int | None, start: Mapping[str, int]
    ) -> int | None:
        """Return the key of a row that was not there before and that its slice does not read; None without one."""
        slices = self._source.settings.slices
        if seen.highest is None or seen.lowest is None:
            return None
        if lowest_before is not None and seen.lowest < lowest_before:
            name = f"keys {seen.lowest % slices} of {slices}"
            if seen.lowest < start.get(name, 0):
                return seen.lowest
        if before is None or before == seen:
            return None
        after = 0 if before.highest is None else before.highest + 1
        for name, position in start.items():
            if after < position:
                key = self._source.last_key(int(name.split()[1]), after, position - 1)
                if key is not None:
                    return key
        return None

    def _is_filled_again(self, last: int, mark: TableMark) -> bool:
        """Whether the rows that were read were deleted and others have their keys, without a sign of it in the keys.

        Rows that were only changed have other contents as well. So the first row must have changed together with the
        last one, and as many rows must have been deleted as there are up to it.
        """
        if self._suspicion is not None:
            until_s, before, position = self._suspicion
            if self._were_deleted(before, position):
                return True
            self._suspicion = None if time.monotonic() > until_s else self._suspicion
        row = self._source.digest(last)
        if row == mark.row or self._has_other_columns(mark):
            return False
        first = None if mark.lowest is None else self._source.digest(mark.lowest)
        if first is not None and first != mark.first and mark.deleted is not None:
            if self._were_deleted(mark.deleted, last):
                return True
            if self._suspicion is None:
                self._suspicion = time.monotonic() + _STATISTICS_S, mark.deleted, last
        if row is not None and not self._has_warned_of_change:
            self._has_warned_of_change = True
            logger.warning(
                "%s: the row with the key %d has changed since it was read: such changes are not read; if the table was"
                " emptied and filled again, reset the offsets",
                self._source.description,
                last,
            )
        return False

    def _were_deleted(self, before: int, last: int) -> bool:
        """Whether as many rows were deleted since a count as there are now up to a key."""
        deleted = self._source.deleted()
        if deleted is None or deleted <= before or deleted == self._deleted:
            return False
        self._deleted = deleted
        return self._source.has_at_most(deleted - before, last)

    def _is_another_row(self, key: int, mark: TableMark) -> bool:
        if self._has_other_columns(mark):
            return False
        digest = self._source.digest(key)
        return digest is not None and digest != mark.row

    def _has_other_columns(self, mark: TableMark) -> bool:
        """Whether digests of rows cannot be compared, as the columns are others, or one of them has another type."""
        if mark.columns != self._column_names:
            return True
        return bool(mark.types) and mark.types != self._source.types()

    @property
    def _column_names(self) -> str:
        return ", ".join(column.name for column in self._source.columns)

    def reached(self, name: str, last: int, seen: Seen) -> Position:
        """Return the position after the last key of a batch, and remember its mark."""
        # Before the rows: were a type to change in between, these would be compared with rows of another form.
        types = self._source.types()
        mark = TableMark(
            table=seen.table,
            storage=seen.storage,
            next_key=None if seen.next_key is None else min(seen.next_key, last + 1),
            columns=self._column_names,
            row=self._source.digest(last) or "",
            lowest=seen.lowest,
            first="" if seen.lowest is None else self._source.digest(seen.lowest) or "",
            deleted=self._source.deleted(),
            types=types,
        )
        self._marks[name] = last + 1, mark
        return Position(last + 1, mark.metadata())

    def safe_key(self, highest: int | None) -> int | None:
        """Return a key such that no row with this key or a smaller one is expected any more; None without one.

        A highest key is noted with the writers of that moment. It is safe when all of these have ended and the settle
        window is over: those that began later take larger keys.
        """
        now_s, settle_s = time.monotonic(), self._source.settings.settle_ms / 1000
        noted = self._candidates
        last = noted[-1] if noted else None
        if highest is not None and highest != (last.key if last else self._safe):
            is_due = last is None or now_s - last.seen_s >= settle_s / _MAX_CANDIDATES
            if is_due and len(noted) < (_MAX_CANDIDATES if settle_s else 1):
                noted.append(_Candidate(highest, now_s, self._source.writers()))
        running: Collection[str] | None = None
        while noted and now_s - noted[0].seen_s >= settle_s:
            if noted[0].writers:
                # They may have ended since.
                running = self._source.writers() if running is None else running
                if not set(noted[0].writers).isdisjoint(running):
                    break
            self._safe = noted.popleft().key
        return self._safe
