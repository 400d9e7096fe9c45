"""The SQLite file: its contents and its integrity checks. All methods run on one thread and may block.

Tables: ``records``, one row per record in log order, tombstones with a null value; ``groups``, for each group the
number of its rows and the sum of their checksums; ``meta``, the coordinator epoch. SQLite keeps no checksums of
its pages, so a bit flip on disk can alter a row, hide it or move it to another group without an error. The checksum
of each row and the sum of each group detect all three.

The store uses synchronous=FULL, because NORMAL may lose an acknowledged commit. A write that fails because the disk is
full or takes no writes is rolled back, and the connection stays: reading needs no space. A transaction is committed by
the last frame that it writes to the WAL, so one whose write failed is not, and the next one overwrites its frames.
After any other failure the store discards the connection. The next call opens a new one, as a restarted process would,
and writes the WAL back into the file first: a commit whose fsync failed may or may not be in the WAL, and must not
appear and disappear later.

Source: sqlite.org, "Write-Ahead Logging", "PRAGMA synchronous", "Database File Format".
"""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from ...errors import LogError, WireError
from ...protocol.records.base import Key
from ...protocol.units import printable
from ..base import EncodedRecord, Loaded, LogFenced, LogNotWritable
from ..rows import COMPACT_AFTER, RESTORED_EPOCHS, CompactionDue, Loading, Row, rows_of, text_of
from .lock import LockFile, Mark
from .wal import check_wal, rewrite_wal

# --------------------------------------------------------------------------------------------------
# The files of a log: file system, mode, and whether a file is a log of connectgroup.


APPLICATION_ID: Final = 0x434E4752
"""'CNGR' in the file's header: distinguishes a connectgroup log from other databases."""


def file_system(folder: Path) -> str:
    """Return the type of a directory's file system, as Linux names it; empty if it cannot be determined."""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    real = folder.resolve()
    best = ("", "")
    for line in mounts:
        _, point, kind, *_ = line.split(" ")
        point = point.replace("\\040", " ")
        # A later mount on the same mount point hides the earlier ones.
        if real.is_relative_to(point) and len(point) >= len(best[0]):
            best = (point, kind)
    return best[1]


def make_private(path: Path) -> None:
    """Create the file with mode 0600 unless it exists.

    SQLite would create it readable by all users. SQLite gives its WAL and shared-memory files the mode of the database.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def is_connectgroup_log(path: Path) -> bool:
    """Whether the file itself, without its WAL, has connectgroup's application id."""
    try:
        with path.open("rb") as file:
            return file.read(72)[68:] == APPLICATION_ID.to_bytes(4, "big")
    except FileNotFoundError:
        return False


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --------------------------------------------------------------------------------------------------


SCHEMA_VERSION: Final = 1

_SCHEMA: Final = f"""
CREATE TABLE records (
    offset INTEGER PRIMARY KEY AUTOINCREMENT,  -- an offset is never used twice, not even after compaction
    batch INTEGER NOT NULL,                    -- offset of the batch's first record
    epoch INTEGER NOT NULL,                    -- coordinator epoch of the writer
    kind INTEGER NOT NULL,
    group_id TEXT NOT NULL,
    name TEXT NOT NULL,
    value BLOB,                                -- null: tombstone
    crc32 INTEGER NOT NULL                     -- of all of the above
);
CREATE INDEX records_by_group ON records (group_id);
CREATE TABLE groups (group_id TEXT PRIMARY KEY, row_count INTEGER NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO meta VALUES ('epoch', 0);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
"""

_INSERT: Final = "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?)"

_SELECT: Final = "SELECT offset, batch, epoch, kind, group_id, name, value, crc32 FROM records"

_COUNT: Final = """
INSERT INTO groups VALUES (?, ?, ?) ON CONFLICT (group_id) DO UPDATE
SET row_count = row_count + excluded.row_count, checksum = (checksum + excluded.checksum) & 4294967295
"""

_NOT_WRITTEN: Final = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR_WRITE,
        sqlite3.SQLITE_IOERR_SHMSIZE,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_READONLY_DBMOVED,
    }
)
"""Errors of a write after which its transaction is not in the WAL. A failed sync is none of them."""

_NETWORK: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "glusterfs", "fuse.sshfs"})

logger = logging.getLogger(__name__)


class Store:
    """One opening of the file. Call ``open`` first; any method may raise ``LogError``, which names the file."""

    def __init__(self, path: Path, *, compact_after: int = COMPACT_AFTER, restored: bool = False) -> None:
        """``restored``: open a log that lacks records that its lock file has the mark of (``coordinator.loading``)."""
        self.path, self._restored = path, restored
        self._due = CompactionDue(compact_after)
        self._wal = path.with_name(path.name + "-wal")
        self._lock = LockFile(path.with_name(path.name + ".lock"))
        self._connection: sqlite3.Connection | None = None
        self._epoch = 0

    @property
    def last_alive_ms(self) -> int:
        """See ``log.base.SignsOfLife``."""
        return self._lock.last_alive_ms

    def show_alive(self) -> None:
        with suppress(OSError):
            self._lock.touch()

    def append(self, batches: Sequence[Sequence[EncodedRecord]]) -> list[str]:
        """Write the batches in one transaction; return the groups that are due for ``compact``."""
        if not any(batches):
            return []
        with self._transaction() as connection:
            # The lock file should make this impossible, unless it was removed (D4).
            epoch = self._read_epoch(connection)
            if epoch != self._epoch:
                raise LogFenced(f"{self.path}: opened by another process at epoch {epoch}, this one has {self._epoch}")
            first = self._next_offset(connection)
            rows, sums = rows_of(batches, first=first, epoch=epoch)
            # A row's group and name are text here.
            texts = [(*row[:4], row[4].decode(), row[5].decode(), *row[6:]) for row in rows]
            connection.executemany(_INSERT, texts)
            connection.executemany(_COUNT, [(group_id, *sums[group_id]) for group_id in sums])
        with suppress(OSError):  # the records are durable; the next mark includes them
            self._lock.note(Mark(self._epoch, first + len(rows) - 1))
        return self._due.on_appended(sums)

    def load(self, group_id: str | None) -> dict[str, Loaded]:
        """Return the records of one group or of all groups; a corrupt group has an error instead of its records."""
        loading = Loading(str(self.path), newest_epoch=self._epoch, group_id=group_id)
        with self._reading() as connection:
            for row in self._rows(connection, group_id):
                loading.add(row)
            expected = self._sums(connection, group_id)
        return loading.result(expected)

    def compact(self, group_id: str | None = None) -> int:
        """Remove replaced rows and tombstones of one group or of all groups; return the number of removed rows.

        A corrupt group is not changed: a corrupt row must neither replace a valid row nor be removed unnoticed.
        """
        kept: dict[str, int] = {}
        with self._transaction() as connection:
            removed = self._compact(connection, group_id, kept)
        self._due.on_compacted(kept)
        return removed

    def compact_groups(self, group_ids: Sequence[str]) -> None:
        """As ``compact`` for each of these groups, in one transaction."""
        kept: dict[str, int] = {}
        with self._transaction() as connection:
            for group_id in group_ids:
                self._compact(connection, group_id, kept)
        self._due.on_compacted(kept)

    def _compact(self, connection: sqlite3.Connection, group_id: str | None, live: dict[str, int]) -> int:
        """Compact one group or all; add the number of rows that each has then to ``live``."""
        newest: dict[Key, int] = {}
        rows: dict[str, list[tuple[int, Key, bool, int]]] = {}
        for row in self._rows(connection, group_id):
            entries = rows.setdefault(row.group_id, [])
            try:
                key = row.key()
            except WireError:
                continue  # the sums do not match then
            newest[key] = row.offset
            entries.append((row.offset, key, row.value is None, row.crc))
        expected = self._sums(connection, group_id)
        dropped: list[tuple[int]] = []
        for group, entries in rows.items():
            kept = [crc for offset, key, tombstone, crc in entries if newest[key] == offset and not tombstone]
            live[group] = len(kept)
            sums = len(entries), sum(crc for *_, crc in entries) & 0xFFFFFFFF
            if expected.get(group) != sums or len(kept) == len(entries):
                continue
            dropped.extend((offset,) for offset, key, gone, _ in entries if newest[key] != offset or gone)
            connection.execute("DELETE FROM groups WHERE group_id = ?", (group,))
            if kept:
                connection.execute(_COUNT, (group, len(kept), sum(kept) & 0xFFFFFFFF))
        if group_id is not None and group_id not in rows:
            live[group_id] = 0
        connection.executemany("DELETE FROM records WHERE offset = ?", dropped)
        return len(dropped)

    def open(self) -> int:
        """Open the file: lock, check, create if new, increment the epoch, compact. Return the new epoch."""
        with self._errors():
            self._check_path()
            self._lock.acquire(self.path)
        try:
            with self._errors():
                self._check_files_left_behind()
                self._lock.write("opening")
            self._connection = self._connect()
            with self._transaction() as connection:
                # Not the epoch of a former coordinator: its workers would take this one for one that was replaced.
                epoch = max(self._read_epoch(connection), self._lock.mark.epoch)
                self._epoch = epoch + (RESTORED_EPOCHS if self._restored else 1)
                connection.execute("UPDATE meta SET value = ? WHERE name = 'epoch'", (self._epoch,))
                mark = Mark(self._epoch, self._next_offset(connection) - 1)
            with suppress(OSError):
                self._lock.note(mark)
            self.compact()
            self._check_mode()
        except BaseException:
            self.close()
            raise
        return self._epoch

    def close(self) -> None:
        """Close the file, then release the lock. Errors of a connection that has already failed are not raised."""
        try:
            if self._connection is not None:
                self._drop_connection()
        finally:
            self._lock.release()

    # ------------------------------------------------------------------------------------------ connection

    def _connect(self) -> sqlite3.Connection:
        """Connect to a file that is a connectgroup log, in WAL mode, with an empty WAL."""
        with self._errors():
            settled = self._settle_wal()  # first: SQLite would truncate the WAL and write the rest back
            make_private(self.path)
            connection = sqlite3.connect(self.path, isolation_level=None, timeout=1.0)
        try:
            with self._errors():
                # Read text as bytes: a row with invalid text must not fail the rows after it.
                connection.text_factory = bytes
                connection.execute("PRAGMA trusted_schema = OFF")
                connection.execute("PRAGMA cell_size_check = ON")
                application = _pragma(connection, "application_id")
                version = _pragma(connection, "user_version")
                tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
                if application != APPLICATION_ID and (application or version or tables):
                    raise LogError(
                        f"{self.path}: is the database of another application (application_id {application}); "
                        f"allowed: a log of ours or a new file"
                    )
                new = not (application or version or tables)
                if not new and version != SCHEMA_VERSION:
                    raise LogError(
                        f"{self.path}: has schema version {version}, written by other software; "
                        f"allowed: {SCHEMA_VERSION}"
                    )
                if connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] != b"wal":
                    raise LogError(f"{self.path}: this file system does not support SQLite's write-ahead log")
                connection.execute("PRAGMA synchronous = FULL")
                if _pragma(connection, "synchronous") != 2:
                    raise LogError(f"{self.path}: SQLite does not take synchronous=FULL")
                self._check_end(0 if new else self._next_offset(connection) - 1)
                if new:
                    connection.executescript(f"BEGIN IMMEDIATE;{_SCHEMA}COMMIT;")
                self._checkpoint(connection, needed=new or not settled)
                # From here on, a WAL file exists until the connection is closed. Sync its directory entry before the
                # state "writing": that state without a WAL file after a power loss would mean that records are missing.
                sync_folder(self.path.parent)
                self._lock.write("writing")
        except BaseException:
            self._close(connection, "opening")
            raise
        return connection

    def _checkpoint(self, connection: sqlite3.Connection, *, needed: bool) -> None:
        """Write the WAL back. On a full disk it may stay as it is, unless that is needed: its contents are durable."""
        try:
            busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.Error as error:
            if needed or getattr(error, "sqlite_errorcode", 0) not in _NOT_WRITTEN:
                raise
            logger.warning("%s: the write-ahead log cannot be written back: %s", self.path, self._described(error))
            return
        if busy:
            raise LogError(f"{self.path}: another process is reading it and blocks its write-ahead log")

    def _settle_wal(self) -> bool:
        """Check the WAL and make its contents durable; return whether they are."""
        check_wal(self._wal)
        # Rewrite only the WAL of a connectgroup log that only this process holds: if the lock file named no earlier
        # holder, or has been replaced, another process may be writing.
        if (self._epoch or self._lock.left_by) and self._lock.in_place() and is_connectgroup_log(self.path):
            rewrite_wal(self._wal)
            return True
        return False

    def _close(self, connection: sqlite3.Connection, doing: str) -> None:
        with suppress(OSError):
            self._lock.write(doing)  # no longer "writing": closing the last connection removes the WAL file
        with suppress(sqlite3.Error):
            connection.close()

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._close(connection, "closing")

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection; drop it on any error."""
        if self._connection is None:
            if not self._epoch:
                raise LogError(f"{self.path}: is not open")
            self._connection = self._connect()
        try:
            with self._errors():
                yield self._connection
        except LogNotWritable:
            raise
        except BaseException:
            self._drop_connection()
            raise

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Run a write transaction: commit at the end; on any error, roll back and drop the connection.

        Raises:
            LogNotWritable: nothing was written, and the connection can be read.
            LogError: the connection was dropped.
        """
        with self._reading() as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
                yield connection
                connection.execute("COMMIT")
            except sqlite3.Error as error:
                if getattr(error, "sqlite_errorcode", 0) not in _NOT_WRITTEN:
                    raise
                if connection.in_transaction:  # SQLite has rolled back after most of these errors
                    connection.execute("ROLLBACK")
                raise LogNotWritable(f"{self.path}: {self._described(error)}") from error

    def check_writable(self) -> None:
        """Commit a transaction that changes nothing.

        Raises:
            LogError: as ``append``.
        """
        with self._transaction() as connection:
            connection.execute("UPDATE meta SET value = value WHERE name = 'epoch'")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Convert errors of the file system and of SQLite to a ``LogError`` that names the file."""
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:  # UnicodeDecodeError: the message quotes damaged bytes
            raise LogError(f"{self.path}: {self._described(error)}") from error
        except OSError as error:
            raise LogError(f"{self.path}: {error.strerror}") from error

    def _described(self, error: Exception) -> str:
        name = getattr(error, "sqlite_errorname", "")
        hint = "; the disk of the log may be full" if name == "SQLITE_IOERR_SHMSIZE" else ""
        return f"{printable(error, limit=200)}{name and f' ({name})'}{hint}"

    # ------------------------------------------------------------------------------------------ reading

    def _rows(self, connection: sqlite3.Connection, group_id: str | None) -> Iterator[Row]:
        where, arguments = ("", ()) if group_id is None else (" WHERE group_id = ?", (group_id,))
        for values in connection.execute(f"{_SELECT}{where} ORDER BY offset", arguments):
            row = Row.of(values)
            if row is not None:  # otherwise its group's sums do not match
                yield row

    def _sums(self, connection: sqlite3.Connection, group_id: str | None) -> dict[str, tuple[int, int]]:
        where, arguments = ("", ()) if group_id is None else (" WHERE group_id = ?", (group_id,))
        query = f"SELECT group_id, row_count, checksum FROM groups{where}"
        return {text_of(group): (count, total) for group, count, total in connection.execute(query, arguments)}

    def _read_epoch(self, connection: sqlite3.Connection) -> int:
        row = connection.execute("SELECT value FROM meta WHERE name = 'epoch'").fetchone()
        if row is None or not isinstance(row[0], int):
            raise LogError(f"{self.path}: has lost its coordinator epoch")
        return row[0]

    def _next_offset(self, connection: sqlite3.Connection) -> int:
        row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'records'").fetchone()
        return (row[0] if row else 0) + 1

    # ------------------------------------------------------------------------------------------ checks of the files

    def _check_path(self) -> None:
        if self.path.is_dir():
            raise LogError(f"{self.path}: is a directory; allowed: a file")
        if not self.path.parent.is_dir():
            raise LogError(f"{self.path}: its folder does not exist")
        if self.path.exists() and not os.access(self.path, os.W_OK):
            if os.statvfs(self.path).f_flag & os.ST_RDONLY:
                raise LogError(f"{self.path}: is on a read-only file system")
            raise LogError(f"{self.path}: cannot be written by this user")
        if self.path.exists() and 0 < self.path.stat().st_size < 100:  # SQLite would treat a one-byte file as empty
            raise LogError(f"{self.path}: is not a database; allowed: a log of ours or a new file")
        kind = file_system(self.path.parent)
        if kind in _NETWORK:
            raise LogError(f"{self.path}: is on a network file system ({kind}); allowed: a local disk")
        if kind in ("tmpfs", "ramfs"):
            logger.warning("%s: is on %s, its records do not survive a restart of the machine", self.path, kind)

    def _check_end(self, last: int) -> None:
        """Check that the log has every record that was acknowledged, as the mark in the lock file says.

        SQLite takes a WAL that was cut off behind one of its transactions for a whole one.

        Args:
            last: the offset of the last record in the log.
        """
        if last < self._lock.mark.offset and not self._restored:
            raise LogError(
                f"{self.path}: ends at record {last}, but record {self._lock.mark.offset} was acknowledged: its "
                "write-ahead log was cut, or this is an older copy. To continue without the missing records: "
                f"connectgroup groups recover {self.path}"
            )

    def _check_mode(self) -> None:
        """Warn if other users may access the log. Keep its mode: an operator may have set it for a backup."""
        with self._errors():
            mode = stat.S_IMODE(self.path.stat().st_mode)
        if mode & 0o077:
            logger.warning(
                "%s: other users may access it (mode %04o), and connector configurations are in it; allowed: chmod 600",
                self.path,
                mode,
            )

    def _check_files_left_behind(self) -> None:
        """Check that the files match the state of the previous holder.

        A process that died while it was writing left a WAL; without the WAL, acknowledged records are missing. They are
        also missing if the file is missing or empty after a process has written to it. A log that was removed on
        purpose was removed with its lock file.
        """
        holder, _, doing = self._lock.left_by.partition(" ")
        missing = not self.path.exists()
        if (doing == "closing" and missing) or (
            doing in ("writing", "closing") and not missing and not self.path.stat().st_size
        ):
            raise LogError(
                f"{self.path}: is {'missing' if missing else 'empty'} though process {printable(holder)} wrote a log "
                f"there: its records are lost. To start empty, remove {self._lock.path.name}"
            )
        if doing == "writing" and (missing or not (self._wal.exists() or self._restored)):
            if self._wal.exists():
                what, remedy = self.path, f"To start empty, remove {self._lock.path.name} and {self._wal.name}"
            else:
                what, remedy = self._wal, f"To continue without them: connectgroup groups recover {self.path}"
            raise LogError(
                f"{self.path}: {what.name} is missing though process {printable(holder)} did not close it cleanly: "
                f"records may be lost. {remedy}"
            )


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    (value,) = connection.execute(f"PRAGMA {name}").fetchone()
    return int(value)
