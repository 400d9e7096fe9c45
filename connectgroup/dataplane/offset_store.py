"""The position of every slice of a source, and the fences that protect it. This module makes a task exactly-once.

A *slice* is a piece of a source that is read in order (here a file). Its *position* is the part of it that has been
written to the sink (here in bytes). Data and positions change in one transaction of one SQLite file, together with
the check that the writer is still the owner, so neither is ever committed without the other:

    claim   raise the fences to the owner's epoch, then read the positions; a higher epoch in a fence: ``Fenced``
    commit  check the fences; every range must start exactly at the position of its slice; write; advance

Each commit checks three kinds of fence:

- one per *slice*, because slices move from task to task when ``tasks.max`` changes;
- one per *task*, so that a zombie is rejected even if its batch contains only slices that no task has read before;
- one per *layout* (the number of tasks): once any task of a layout of two has claimed, the third task of the previous
  layout of three is rejected, although no later task with its number will ever fence it.

Spark's own checkpoint is temporary: it does not fence (SPARK-26425), and a sink that relied on it would write a
replayed batch twice (paimon#9667). Here a replay of a committed batch is a no-op, and a batch that overlaps committed
data ends the query.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from .errors import Fenced, OffsetConflict, SinkError
from .ownership import EPOCH_BITS, Owner, Range

BUSY_TIMEOUT_S: Final = 5.0
"""Seconds to wait for another writer of the same file before the batch fails."""


class Transaction:
    """The open transaction of one batch, for the sink's own statements. It cannot commit."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, statement: str, *values: object) -> list[tuple[object, ...]]:
        """Execute one statement and return its rows."""
        return self._connection.execute(statement, values).fetchall()

    def execute_many(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        """Execute one statement for each row of values."""
        self._connection.executemany(statement, rows)


class OffsetStore:
    """The offsets and fences of all connectors that write to one SQLite file.

    It keeps one connection open: opening one for every batch starves other writers. It may be used from any thread,
    by one thread at a time.
    """

    def __init__(self, path: Path, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        """Open the file; create it and its tables if they are missing.

        Raises:
            SinkError: the file cannot be opened, or is not a database.
        """
        self.path = path
        self._busy_timeout_s = busy_timeout_s
        self._lock = threading.Lock()
        # SQLite would create the file with mode 0644 at most; the modes of a sink's files follow the umask.
        with suppress(OSError):  # the file exists, or cannot be created, which SQLite reports
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        with self._told():
            self._connection = sqlite3.connect(
                path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False
            )
            self._prepare()

    def commit(self, owner: Owner, ranges: Sequence[Range], write: Callable[[Transaction], None] | None = None) -> bool:
        """Write one batch and advance its slices, or change nothing.

        Args:
            owner: the task that writes.
            ranges: the ranges that were read: at most one range per slice, none of them empty.
            write: writes the data within the transaction.

        Returns:
            True if the batch was written now; False if it was already committed.

        Raises:
            Fenced: a task with a higher owner epoch has claimed the slice, the task or the layout.
            OffsetConflict: a slice's position is not the start of its range.
            SinkError: the file cannot be written. After an error during the commit itself, read the positions again
                to find out whether the data became durable.
        """
        with self._transaction() as connection:
            self._check_fences(connection, owner)
            if self._is_already_committed(connection, owner, ranges):
                return False
            if write is not None:
                write(Transaction(connection))
            connection.executemany(
                "INSERT INTO connectgroup_offsets (connector, slice, position, epoch) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (connector, slice) DO UPDATE SET position = excluded.position, epoch = excluded.epoch",
                [(owner.connector, r.slice, r.end, owner.fencing_token) for r in ranges],
            )
        return True

    def claim(self, owner: Owner, is_mine: Callable[[str], bool]) -> dict[str, int]:
        """Become the owner of a task and of those known slices that belong to it; return their positions.

        Returns:
            Position by slice, for the slices for which ``is_mine`` is true.

        Raises:
            Fenced: a task with a higher owner epoch has claimed the task, the layout or one of the slices.
            SinkError: the file cannot be written, or a connector of this name has read another source.
        """
        with self._transaction() as connection:
            self._claim_layout(connection, owner)
            fence = connection.execute(
                "SELECT epoch FROM connectgroup_fences WHERE connector = ? AND task = ?", (owner.connector, owner.task)
            ).fetchone()
            if fence is not None and fence[0] > owner.fencing_token:
                raise _fenced(owner, f"task-{owner.task}", fence[0])
            connection.execute(
                "INSERT INTO connectgroup_fences (connector, task, epoch) VALUES (?, ?, ?)"
                " ON CONFLICT (connector, task) DO UPDATE SET epoch = excluded.epoch",
                (owner.connector, owner.task, owner.fencing_token),
            )
            positions: dict[str, int] = {}
            rows = connection.execute(
                "SELECT slice, position, epoch FROM connectgroup_offsets WHERE connector = ? ORDER BY slice",
                (owner.connector,),
            ).fetchall()
            for slice_, position, epoch in rows:
                if not is_mine(slice_):
                    continue
                if epoch > owner.fencing_token:
                    raise _fenced(owner, slice_, epoch)
                positions[slice_] = position
            connection.executemany(
                "UPDATE connectgroup_offsets SET epoch = ? WHERE connector = ? AND slice = ? AND epoch < ?",
                [(owner.fencing_token, owner.connector, slice_, owner.fencing_token) for slice_ in positions],
            )
        return positions

    def superseded(self, owner: Owner) -> int:
        """Return the highest fencing token of earlier layouts; a task with this token or a lower one is rejected."""
        with self._lock, self._told():
            row = self._connection.execute(
                "SELECT floor FROM connectgroup_layouts WHERE connector = ?", (owner.connector,)
            ).fetchone()
        return int(row[0]) if row else 0

    def positions(self, connector: str) -> dict[str, int]:
        """Return the positions of all slices of a connector; claims nothing."""
        with self._lock, self._told():
            return dict(
                self._connection.execute(
                    "SELECT slice, position FROM connectgroup_offsets WHERE connector = ? ORDER BY slice", (connector,)
                ).fetchall()
            )

    def execute(self, statement: str, *values: object) -> list[tuple[object, ...]]:
        """Execute a statement of the sink outside any batch (create a table, read a manifest)."""
        with self._lock, self._told():
            return self._connection.execute(statement, values).fetchall()

    def close(self) -> None:
        """Close the connection. A second call does nothing."""
        with self._lock:
            self._connection.close()

    def _claim_layout(self, connection: sqlite3.Connection, owner: Owner) -> None:
        row = connection.execute(
            "SELECT tasks, floor, highest, source FROM connectgroup_layouts WHERE connector = ?", (owner.connector,)
        ).fetchone()
        if row is None:
            tasks, floor, highest = owner.tasks, -1, owner.fencing_token
        else:
            tasks, floor, highest, source = row
            if source != owner.source:
                raise SinkError(
                    f"{self.path}: connector {owner.connector} has read {source}, not {owner.source};"
                    " allowed: the same source, or another connector name"
                )
            if tasks == owner.tasks:
                if owner.fencing_token <= floor:
                    raise _fenced(owner, f"layout of {tasks} tasks", floor + 1)
            elif owner.fencing_token <= highest:
                raise _fenced(owner, f"layout of {tasks} tasks", highest)
            else:
                tasks, floor = owner.tasks, highest
            highest = max(highest, owner.fencing_token)
        connection.execute(
            "INSERT OR REPLACE INTO connectgroup_layouts (connector, tasks, floor, highest, source)"
            " VALUES (?, ?, ?, ?, ?)",
            (owner.connector, tasks, floor, highest, owner.source),
        )

    def _check_fences(self, connection: sqlite3.Connection, owner: Owner) -> None:
        row = connection.execute(
            "SELECT l.tasks, l.floor, l.highest, f.epoch FROM connectgroup_layouts l JOIN connectgroup_fences f"
            " ON f.connector = l.connector AND f.task = ? WHERE l.connector = ?",
            (owner.task, owner.connector),
        ).fetchone()
        if row is None:
            raise OffsetConflict(f"{self.path}: {owner} writes before it has claimed; allowed: claim first")
        tasks, floor, highest, fence = row
        if fence > owner.fencing_token:
            raise _fenced(owner, f"task-{owner.task}", fence)
        # A later layout with another number of tasks has raised its floor to the highest token before it.
        if owner.fencing_token <= floor:
            raise _fenced(owner, f"layout of {tasks} tasks", highest)
        if fence < owner.fencing_token:
            raise OffsetConflict(f"{self.path}: {owner} writes before it has claimed; allowed: claim first")

    def _is_already_committed(self, connection: sqlite3.Connection, owner: Owner, ranges: Sequence[Range]) -> bool:
        """Whether the batch is already committed: False if the position of every slice is the start of its range, True
        if all positions are the ends.

        Raises:
            Fenced: a task with a higher owner epoch has claimed a slice.
            OffsetConflict: neither is the case.
        """
        if len({r.slice for r in ranges}) != len(ranges) or any(not 0 <= r.start < r.end for r in ranges):
            raise AssertionError(f"ranges of {owner} are not one forward range a slice: {ranges}")
        at_start = at_end = 0
        violation = ""
        for r in ranges:
            row = connection.execute(
                "SELECT position, epoch FROM connectgroup_offsets WHERE connector = ? AND slice = ?",
                (owner.connector, r.slice),
            ).fetchone()
            position, epoch = row if row is not None else (0, owner.fencing_token)
            if epoch > owner.fencing_token:
                raise _fenced(owner, r.slice, epoch)
            at_start += position == r.start
            at_end += position == r.end
            if position != r.start and not violation:
                violation = f"slice {r.slice} stands at {position}, the batch has [{r.start}, {r.end})"
        if at_start == len(ranges):
            return False
        if at_end == len(ranges):
            return True
        raise OffsetConflict(
            f"{self.path}: {owner}: {violation}; allowed: a batch that starts where every slice of it stands"
        )

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """One atomic write transaction. Waits for other writers up to the busy timeout."""
        with self._lock, self._told():
            # IMMEDIATE: SQLite takes the write lock before the first read, so no read in here is stale.
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def _prepare(self) -> None:
        """Set the journal mode and create the tables. Several processes may prepare a new file at the same time."""
        give_up = time.monotonic() + self._busy_timeout_s
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                # NORMAL may lose an acknowledged commit when the machine loses power.
                self._connection.execute("PRAGMA synchronous = FULL")
                # Read first: CREATE takes the write lock even if the tables exist.
                known = self._connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
                if not {name for (name,) in known} >= set(_TABLES):
                    for statement in _TABLES.values():
                        self._connection.execute(statement)
                return
            except sqlite3.OperationalError as error:
                # The busy timeout does not apply to a change of the journal mode, so wait here.
                if "locked" not in str(error) or time.monotonic() > give_up:
                    raise
                time.sleep(0.02)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Convert SQLite's errors to ``SinkError``, with a message of one line: what, where, what is allowed."""
        try:
            yield
        except sqlite3.Error as error:
            raise SinkError(f"{self.path}: {_told_as(error, self._busy_timeout_s)}") from error


def _told_as(error: sqlite3.Error, busy_timeout_s: float) -> str:
    said = str(error)
    if "locked" in said or "busy" in said:
        return f"locked by another connection for more than {busy_timeout_s:g} s; allowed: shorter write transactions"
    if "full" in said:
        return "the database or its disk is full; allowed: free space, the task goes on from where it stood"
    if "unable to open" in said:
        return "cannot be opened; allowed: a file in a directory that exists and can be written"
    if "not a database" in said:
        return "not an SQLite database; allowed: a new file or one that SQLite made"
    if "readonly" in said:
        return "read-only; allowed: a file and directory that can be written"
    return f"SQLite says {said!r}; allowed: a database and disk in working order"


def _fenced(owner: Owner, place: str, theirs: int) -> Fenced:
    of_a_later_group = " of a group made later" if theirs > owner.fencing_token | EPOCH_BITS else ""
    return Fenced(
        f"{owner.connector}-{owner.task}: {place} belongs to owner epoch {theirs & EPOCH_BITS}{of_a_later_group},"
        f" ours is {owner.owner_epoch}; allowed: only the latest owner writes"
    )


_TABLES: Final = {
    "connectgroup_offsets": (
        "CREATE TABLE IF NOT EXISTS connectgroup_offsets (connector TEXT NOT NULL, slice TEXT NOT NULL,"
        " position INTEGER NOT NULL, epoch INTEGER NOT NULL, PRIMARY KEY (connector, slice)) WITHOUT ROWID"
    ),
    "connectgroup_fences": (
        "CREATE TABLE IF NOT EXISTS connectgroup_fences (connector TEXT NOT NULL, task INTEGER NOT NULL,"
        " epoch INTEGER NOT NULL, PRIMARY KEY (connector, task)) WITHOUT ROWID"
    ),
    # floor: the highest fencing token of earlier layouts; highest: the highest token of any task so far.
    "connectgroup_layouts": (
        "CREATE TABLE IF NOT EXISTS connectgroup_layouts (connector TEXT PRIMARY KEY, tasks INTEGER NOT NULL,"
        " floor INTEGER NOT NULL, highest INTEGER NOT NULL, source TEXT NOT NULL) WITHOUT ROWID"
    ),
}
