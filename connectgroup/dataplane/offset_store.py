"""Where every slice of a source stands, and who may move it: the one place that makes a task exactly-once.

A *slice* is a piece of a source that is read in order (here a file); its *position* is what has been written
to the sink of it (here bytes). Data and positions change in one transaction of one SQLite file, together with
the check that the writer is still the owner, so that there is no moment at which one is in without the other:

    claim   raise the fences to our owner epoch, then read the positions; a higher epoch there: ``Fenced``
    commit  check the fences; every range must start exactly where its slice stands; write; advance

Three fences are checked at each commit. One a *slice*, because slices move from task to task when ``tasks.max``
changes. One a *task*, so that a zombie is refused even where its batch touches only slices nobody has seen.
One a *layout* (the number of tasks), so that the last task of a group of three is refused once any task of the
group of two that followed has begun, although no task with its number will ever come to fence it.

Spark's own checkpoint is scratch: it does not fence (SPARK-26425), and a batch it replays would be written twice
by a sink that trusted it (paimon#9667). Here a replay of what is in is a no-op, and a batch that overlaps what is
in ends the query.
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
"""How long to wait for another writer of the same file before the batch fails (seconds)."""


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

    One connection, kept open: opening one for every batch starves other writers. May be used from any thread,
    by one at a time.
    """

    def __init__(self, path: Path, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        """Open the file, making it and its tables if missing.

        Raises:
            SinkError: it cannot be opened, or is not a database.
        """
        self.path = path
        self._busy_timeout_s = busy_timeout_s
        self._lock = threading.Lock()
        # SQLite would make the file with mode 0644 at most; a sink's files have the modes that the umask says.
        with suppress(OSError):  # it exists, or cannot be made, which SQLite reports
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        with self._told():
            self._connection = sqlite3.connect(
                path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False
            )
            self._prepare()

    def commit(self, owner: Owner, ranges: Sequence[Range], write: Callable[[Transaction], None] | None = None) -> bool:
        """Write one batch and advance its slices, or change nothing.

        Args:
            owner: who writes.
            ranges: what was read, at most one range a slice, none of them empty.
            write: writes the data within the transaction.

        Returns:
            True if the batch was written now; False if it was in already.

        Raises:
            Fenced: somebody with a higher owner epoch has claimed the slice, the task or the layout.
            OffsetConflict: a slice does not stand where its range starts.
            SinkError: the file cannot be written; whether an error at the very end came before or after the data
                were safe is found out by reading the positions again.
        """
        with self._transaction() as connection:
            self._check_fences(connection, owner)
            if self._is_in_already(connection, owner, ranges):
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
        """Become the owner of a task and of the known slices that are its own; read where they stand.

        Returns:
            Position by slice, for the slices ``is_mine`` says yes to.

        Raises:
            Fenced: a higher owner epoch has been here.
            SinkError: the file cannot be written, or this connector name has read another source.
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
        """The highest owner epoch of the layouts before this one: whatever has it or a lower one is refused."""
        with self._lock, self._told():
            row = self._connection.execute(
                "SELECT floor FROM connectgroup_layouts WHERE connector = ?", (owner.connector,)
            ).fetchone()
        return int(row[0]) if row else 0

    def positions(self, connector: str) -> dict[str, int]:
        """Where all slices of a connector stand; claims nothing."""
        with self._lock, self._told():
            return dict(
                self._connection.execute(
                    "SELECT slice, position FROM connectgroup_offsets WHERE connector = ? ORDER BY slice", (connector,)
                ).fetchall()
            )

    def execute(self, statement: str, *values: object) -> list[tuple[object, ...]]:
        """One statement of a sink's own, outside any batch (make a table, read a manifest)."""
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
        # A layout of another number of tasks that came since has put its floor above every owner before it.
        if owner.fencing_token <= floor:
            raise _fenced(owner, f"layout of {tasks} tasks", highest)
        if fence < owner.fencing_token:
            raise OffsetConflict(f"{self.path}: {owner} writes before it has claimed; allowed: claim first")

    def _is_in_already(self, connection: sqlite3.Connection, owner: Owner, ranges: Sequence[Range]) -> bool:
        """False if every slice stands at its range's start, True if all stand at its end; else it is a conflict."""
        if len({r.slice for r in ranges}) != len(ranges) or any(not 0 <= r.start < r.end for r in ranges):
            raise AssertionError(f"ranges of {owner} are not one forward range a slice: {ranges}")
        at_start = at_end = 0
        offence = ""
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
            if position != r.start and not offence:
                offence = f"slice {r.slice} stands at {position}, the batch has [{r.start}, {r.end})"
        if at_start == len(ranges):
            return False
        if at_end == len(ranges):
            return True
        raise OffsetConflict(
            f"{self.path}: {owner}: {offence}; allowed: a batch that starts where every slice of it stands"
        )

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """One write transaction; all of it or nothing. Waits for other writers up to the busy timeout."""
        with self._lock, self._told():
            # IMMEDIATE: the lock is taken before the first read, so nothing read here can be out of date.
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def _prepare(self) -> None:
        """Journal mode and tables. Several processes may do this to a new file at the same time."""
        give_up = time.monotonic() + self._busy_timeout_s
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                # NORMAL may lose a commit that was acknowledged when the machine goes down.
                self._connection.execute("PRAGMA synchronous = FULL")
                # Read first: CREATE takes the write lock even where there is nothing to make.
                known = self._connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
                if not {name for (name,) in known} >= set(_TABLES):
                    for statement in _TABLES.values():
                        self._connection.execute(statement)
                return
            except sqlite3.OperationalError as error:
                # Changing the journal mode does not wait for the busy timeout; this does it instead.
                if "locked" not in str(error) or time.monotonic() > give_up:
                    raise
                time.sleep(0.02)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """SQLite's errors as one line: what, where, what is allowed."""
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
    # floor: the highest owner epoch of the layouts before; highest: of any task so far.
    "connectgroup_layouts": (
        "CREATE TABLE IF NOT EXISTS connectgroup_layouts (connector TEXT PRIMARY KEY, tasks INTEGER NOT NULL,"
        " floor INTEGER NOT NULL, highest INTEGER NOT NULL, source TEXT NOT NULL) WITHOUT ROWID"
    ),
}
