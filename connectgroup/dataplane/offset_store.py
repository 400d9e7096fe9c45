"""The positions and fences of connectors in one SQLite file, by the rules of ``fences``."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from .errors import SinkError
from .fences import ADD_METADATA, TABLES, Transaction, advance, alter_positions, claim_task, is_committed
from .ownership import Owner, Position, Range
from .real_paths import create_file, file_at, has_open

BUSY_TIMEOUT_S: Final = 5.0
"""Seconds to wait for another writer of the same file before the batch fails."""


class SqliteTransaction(Transaction):
    """The open transaction of one claim or batch."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self.where = str(path)

    def execute(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement, values).fetchall()

    def execute_many(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        self._connection.executemany(statement, rows)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo what is written in the block if it ends with an error."""
        self._connection.execute("SAVEPOINT connectgroup_rows")
        try:
            yield
        except BaseException as error:
            if not self._connection.in_transaction:
                # The transaction has ended: what came next would be written outside of it. SQLite ends it itself if
                # the disk is full or fails (OperationalError), and a trigger may.
                if isinstance(error, sqlite3.OperationalError):
                    raise
                raise SinkError(
                    f"{self.where}: a trigger has ended the transaction ({error}); allowed: RAISE(ABORT) in triggers"
                ) from error
            self._connection.execute("ROLLBACK TO connectgroup_rows")
            self._connection.execute("RELEASE connectgroup_rows")
            raise
        self._connection.execute("RELEASE connectgroup_rows")


class OffsetStore:
    """The offsets and fences of all connectors that write to one SQLite file.

    It keeps one connection open: opening one for every batch starves other writers. It may be used from any thread,
    by one thread at a time.
    """

    def __init__(self, path: Path, *, busy_timeout_s: float = BUSY_TIMEOUT_S, is_real: bool = False) -> None:
        """Open the file; create it and its tables if they are missing. The path ``:memory:`` is a database in memory.

        Args:
            path: the file.
            busy_timeout_s: how long to wait for another writer, in seconds.
            is_real: whether the path is a real path (``real_paths``): no link is followed.

        Raises:
            SinkError: the file cannot be opened, or is not a database.
        """
        self.path = path
        self._busy_timeout_s = busy_timeout_s
        self._lock = threading.Lock()
        # SQLite would create the file with mode 0644 at most; the modes of a sink's files follow the umask.
        if str(path) != ":memory:":
            with suppress(OSError):  # the file exists, or cannot be created, which SQLite reports
                if is_real:
                    create_file(path).close()
                else:
                    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        with self._sqlite_errors():
            self._connection = connect_to(
                path, str(path), is_real=is_real, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False
            )
            self._prepare()

    def commit(
        self, owner: Owner, ranges: Sequence[Range], write: Callable[[SqliteTransaction], None] | None = None
    ) -> bool:
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
        with self._transaction() as transaction:
            if is_committed(transaction, owner, ranges):
                return False
            if write is not None:
                write(transaction)
            advance(transaction, owner, ranges)
        return True

    def claim(self, owner: Owner, is_mine: Callable[[str], bool]) -> dict[str, int]:
        """Become the owner of a task and of those known slices that belong to it; return their positions.

        Returns:
            Position by slice, for the slices for which ``is_mine`` is true.

        Raises:
            Fenced: a task with a higher owner epoch has claimed the task, the layout or one of the slices.
            SinkError: the file cannot be written, or a connector of this name has read another source.
        """
        with self._transaction() as transaction:
            return claim_task(transaction, owner, is_mine)

    def superseded(self, owner: Owner) -> int:
        """Return the highest fencing token of earlier layouts; a task with this token or a lower one is rejected."""
        with self._lock, self._sqlite_errors():
            row = self._connection.execute(
                "SELECT floor FROM connectgroup_layouts WHERE connector = ?", (owner.connector,)
            ).fetchone()
        return int(row[0]) if row else 0

    def positions(self, connector: str) -> dict[str, int]:
        """Return the positions of all slices of a connector; claims nothing."""
        with self._lock, self._sqlite_errors():
            statement = "SELECT slice, position, metadata FROM connectgroup_offsets WHERE connector = ? ORDER BY slice"
            found = self._connection.execute(statement, (connector,)).fetchall()
        return {name: Position(position, metadata) for name, position, metadata in found}

    def alter(self, connector: str, fencing_token: int, positions: Mapping[str, int | None] | None) -> None:
        """Change the positions of a connector that runs no task. See ``fences.alter_positions``."""
        with self._transaction() as transaction:
            alter_positions(transaction, connector, fencing_token, positions)

    def execute(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Execute a statement of the sink outside any batch (create a table, read a manifest)."""
        with self._lock, self._sqlite_errors():
            return self._connection.execute(statement, values).fetchall()

    def close(self) -> None:
        """Close the connection. A second call does nothing."""
        with self._lock:
            self._connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[SqliteTransaction]:
        """One atomic write transaction. Waits for other writers up to the busy timeout."""
        with self._lock, self._sqlite_errors():
            # IMMEDIATE: SQLite takes the write lock before the first read, so no read in here is stale.
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield SqliteTransaction(self._connection, self.path)
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
                if not {name for (name,) in known} >= set(TABLES):
                    for statement in TABLES.values():
                        self._connection.execute(f"{statement} WITHOUT ROWID")
                columns = self._connection.execute("PRAGMA table_info(connectgroup_offsets)").fetchall()
                if "metadata" not in {column[1] for column in columns}:
                    self._connection.execute(ADD_METADATA)
                return
            except sqlite3.OperationalError as error:
                if "duplicate column" in str(error):  # Another process has added it meanwhile.
                    return
                # The busy timeout does not apply to a change of the journal mode, so wait here.
                if "locked" not in str(error) or time.monotonic() > give_up:
                    raise
                time.sleep(0.02)

    @contextmanager
    def _sqlite_errors(self) -> Iterator[None]:
        """Convert SQLite's errors to ``SinkError``, with a message of one line: what, where, what is allowed."""
        try:
            yield
        except sqlite3.Error as error:
            raise SinkError(f"{self.path}: {_explained(error, self._busy_timeout_s)}") from error


class FilePositions:
    """Implements ``dataplane.sink.AdvancingStore`` on one SQLite file, which a read does not create.

    Attributes:
        path: the file.
    """

    def __init__(self, path: Path, *, busy_timeout_s: float = BUSY_TIMEOUT_S, is_real: bool = False) -> None:
        """Store the arguments: those of ``OffsetStore``."""
        self.path, self._busy_timeout_s, self._is_real = path, busy_timeout_s, is_real

    def positions(self, connector: str) -> dict[str, int]:
        """Return the positions of all slices; none if there is no file yet."""
        if not self.path.is_file():
            return {}
        with closing(self._opened()) as store:
            return store.positions(connector)

    def check_access(self) -> None:
        """Check that the file can be written, or created; change nothing.

        Raises:
            SinkError: it is no database, or it or its directory cannot be written.
        """
        require_writable_directory(self.path.parent)
        if not self.path.exists():
            return
        try:
            uri = f"{self.path.as_uri()}?mode=ro"
            with closing(connect_to(self.path, uri, is_real=self._is_real, uri=True, timeout=5)) as connection:
                connection.execute("SELECT name FROM sqlite_schema LIMIT 1").fetchall()
        except sqlite3.Error as error:
            raise SinkError(f"{self.path}: {_explained(error, 5)}") from error
        if not os.access(self.path, os.W_OK):
            raise SinkError(f"{self.path}: read-only; allowed: a file and directory that can be written")

    def alter(self, connector: str, fencing_token: int, positions: Mapping[str, int | None] | None) -> None:
        """Change the positions; create the file, so that a connector may get its offsets before it runs."""
        with closing(self._opened()) as store:
            store.alter(connector, fencing_token, positions)

    def advance(self, owner: Owner, ranges: Sequence[Range]) -> None:
        """See ``dataplane.sink.AdvancingStore``."""
        with closing(self._opened()) as store:
            store.claim(owner, {each.slice for each in ranges}.__contains__)
            store.commit(owner, ranges)

    def close(self) -> None:
        """Do nothing: each method opens and closes the file."""

    def _opened(self) -> OffsetStore:
        return OffsetStore(self.path, busy_timeout_s=self._busy_timeout_s, is_real=self._is_real)


def connect_to(path: Path, database: str, *, is_real: bool = True, **options: Any) -> sqlite3.Connection:
    """Connect to an SQLite file; with a real path, only to the file that is there now, not through a link.

    Args:
        path: the file; ``:memory:`` is none.
        database: the path, or a URI of it.
        is_real: whether the path is a real path (``real_paths``).
        options: those of ``sqlite3.connect``.

    Raises:
        sqlite3.Error: the file cannot be opened, or is reached through a link.
    """
    if not is_real or str(path) == ":memory:":
        connection: sqlite3.Connection = sqlite3.connect(database, **options)
        return connection
    try:
        before = file_at(path)
        connection = sqlite3.connect(database, **options)
        # SQLite resolves links before it opens a file, so the file may be another one than the one looked at.
        if has_open(before) and file_at(path) == before:
            return connection
    except OSError as error:
        raise sqlite3.OperationalError(f"unable to open ({error.strerror})") from error
    connection.close()
    raise sqlite3.OperationalError("unable to open: the file was replaced")


def require_writable_directory(path: Path) -> None:
    """Check that files can be created in a directory.

    Raises:
        SinkError: it does not exist, is no directory, or cannot be written.
    """
    if not path.is_dir():
        raise SinkError(f"{path}: {'is no directory' if path.exists() else 'does not exist'}; allowed: a directory")
    if not os.access(path, os.W_OK | os.X_OK):
        raise SinkError(f"{path}: cannot be written; allowed: a directory that this user may write")


def _explained(error: sqlite3.Error, busy_timeout_s: float) -> str:
    text = str(error)
    if "locked" in text or "busy" in text:
        return f"locked by another connection for more than {busy_timeout_s:g} s; allowed: shorter write transactions"
    if "full" in text:
        return "the database or its disk is full; allowed: free space; the task continues from its last offset"
    if "unable to open" in text:
        return "cannot be opened; allowed: a file, no link, in a directory that exists and can be written"
    if "not a database" in text:
        return "not an SQLite database; allowed: a new file or one that SQLite made"
    if "readonly" in text:
        return "read-only; allowed: a file and directory that can be written"
    return f"SQLite says {text!r}; allowed: a database and disk in working order"
