"""Where rows go: a table in SQLite, or Parquet files behind a manifest. Both refuse a task that was succeeded.

In both, data become visible in the very transaction that checks the fences and advances the offsets
(``offsets.OffsetStore``), so a reader never sees half a batch and a batch is never in twice.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from .columns import SQLITE_TYPES, Columns
from .errors import SinkError
from .offsets import BUSY_TIMEOUT_S, OffsetStore, Owner, Range

if TYPE_CHECKING:
    import sqlite3

    import pyarrow as pa

MANIFEST: Final = "_manifest.sqlite"
"""The file beside a sink's Parquet files that says which of them are in."""


class Sink(ABC):
    """One task's way into a sink. Made and closed by the task; used by one thread at a time."""

    @abstractmethod
    def claim(self, owner: Owner, is_mine: Callable[[str], bool]) -> dict[str, int]:
        """Fence off every earlier owner, then read where the slices stand (``OffsetStore.claim``)."""

    @abstractmethod
    def commit(self, owner: Owner, ranges: Sequence[Range], rows: pa.Table) -> bool:
        """Write the rows of ``ranges`` and advance them, or change nothing (``OffsetStore.commit``)."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what is open. A second call does nothing."""


class SqliteSink(Sink):
    """Rows into a table of the SQLite file that holds the offsets; the table is made if it is missing."""

    def __init__(self, path: Path, table: str, columns: Columns, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        """Open the file and check the table.

        Raises:
            SinkError: the file cannot be opened, or the table has other columns.
        """
        self._store = OffsetStore(path, busy_timeout_s=busy_timeout_s)
        self._columns = columns
        names = ", ".join(_quoted(column.name) for column in columns)
        self._insert = f"INSERT INTO {_quoted(table)} ({names}) VALUES ({', '.join('?' * len(columns))})"
        try:
            self._make_table(path, table)
        except BaseException:
            self._store.close()
            raise

    def claim(self, owner: Owner, is_mine: Callable[[str], bool]) -> dict[str, int]:
        return self._store.claim(owner, is_mine)

    def commit(self, owner: Owner, ranges: Sequence[Range], rows: pa.Table) -> bool:
        # Made before the transaction: while it is open, every other task of this file waits.
        values = list(_rows(rows, self._columns))

        def write(connection: sqlite3.Connection) -> None:
            connection.executemany(self._insert, values)

        return self._store.commit(owner, ranges, write)

    def close(self) -> None:
        self._store.close()

    def _make_table(self, path: Path, table: str) -> None:
        found = [row[1] for row in self._store.execute(f"PRAGMA table_info({_quoted(table)})")]
        if not found:
            columns = ", ".join(f"{_quoted(column.name)} {SQLITE_TYPES[column.type]}" for column in self._columns)
            self._store.execute(f"CREATE TABLE IF NOT EXISTS {_quoted(table)} ({columns})")
            return
        known = {str(name).lower() for name in found}
        for column in self._columns:
            if column.name.lower() not in known:
                raise SinkError(
                    f"{path}: table {table} has no column {column.name};"
                    f" allowed: a table with all columns of the source, or a name that is not taken"
                )


class ParquetSink(Sink):
    """Rows into Parquet files in one directory; ``_manifest.sqlite`` beside them says which files are in.

    A batch's file is written and synced under its final name first; only the manifest's row, in the offsets'
    transaction, puts it in. Read with ``read_committed``.
    """

    def __init__(self, directory: Path, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        """Make the directory if it is missing (its parent must exist) and open the manifest.

        Raises:
            SinkError: neither can be done.
        """
        self._directory = directory
        try:
            directory.mkdir(exist_ok=True)
        except OSError as error:
            raise SinkError(f"{directory}: {_disk_says(error)}") from error
        self._store = OffsetStore(directory / MANIFEST, busy_timeout_s=busy_timeout_s)
        try:
            if not self._store.execute("SELECT 1 FROM sqlite_schema WHERE name = 'connectgroup_manifest'"):
                self._store.execute(_MANIFEST_TABLE)
        except BaseException:
            self._store.close()
            raise

    def claim(self, owner: Owner, is_mine: Callable[[str], bool]) -> dict[str, int]:
        positions = self._store.claim(owner, is_mine)
        self._remove_leftovers(owner)
        return positions

    def commit(self, owner: Owner, ranges: Sequence[Range], rows: pa.Table) -> bool:
        if rows.num_rows == 0:
            return self._store.commit(owner, ranges)
        name = f"{_prefix(owner.connector)}.{owner.task}.{owner.epoch}.{uuid.uuid4().hex}.parquet"
        path = self._directory / name
        try:
            size = _write_synced(rows, path)
            listed = {r.slice: [r.start, r.end] for r in ranges}
            values = (name, rows.num_rows, size, owner.connector, owner.task, owner.epoch, json.dumps(listed))

            def write(connection: sqlite3.Connection) -> None:
                connection.execute("INSERT INTO connectgroup_manifest VALUES (?, ?, ?, ?, ?, ?, ?)", values)

            is_new = self._store.commit(owner, ranges, write)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise SinkError(f"{path}: {_disk_says(error)}") from error
        # After an SQLite error the file stays: the commit may have come through all the same.
        if not is_new:
            path.unlink(missing_ok=True)
        return is_new

    def close(self) -> None:
        self._store.close()

    def _remove_leftovers(self, owner: Owner) -> None:
        """Delete files of this connector's unfinished batches, where nobody can put them in any more.

        That is so for lower epochs of our task, and for everything of an earlier layout: the claim that came
        before this refuses them. Files of our own epoch may belong to a batch on its way; the next owner's.
        """
        floor = self._store.superseded(owner)
        candidates = []
        for path in self._directory.glob("*.parquet"):
            match = _FILE_NAME.fullmatch(path.name)
            if match is None or match["prefix"] != _prefix(owner.connector):
                continue
            epoch, task = int(match["epoch"]), int(match["task"])
            if epoch <= floor or (task == owner.task and epoch < owner.epoch):
                candidates.append(path)
        # Listed first, the manifest read second: a file put in between the two is seen as in.
        for path in candidates:
            if not self._store.execute("SELECT 1 FROM connectgroup_manifest WHERE file = ?", path.name):
                path.unlink(missing_ok=True)


def read_committed(directory: Path) -> list[Path]:
    """The Parquet files of a sink that are in, in the order in which they came in.

    Go by this and not by the directory: files it does not name are leftovers of batches that were never finished
    or were refused; they hold rows that are in another file, or will be. Read them as one table with
    ``pyarrow.parquet.ParquetDataset`` or ``spark.read.parquet(*files)``.

    Raises:
        SinkError: there is no manifest.
    """
    manifest = directory / MANIFEST
    if not manifest.exists():
        raise SinkError(f"{manifest}: does not exist; allowed: the directory of a Parquet sink")
    store = OffsetStore(manifest)
    try:
        return [
            directory / str(row[0]) for row in store.execute("SELECT file FROM connectgroup_manifest ORDER BY rowid")
        ]
    finally:
        store.close()


def _rows(table: pa.Table, columns: Columns) -> Iterator[tuple[Any, ...]]:
    """Rows as SQLite takes them: booleans as 0 and 1, dates and times as ISO text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = []
    for column, array in zip(columns, table.select([column.name for column in columns]).columns, strict=True):
        if column.type == "TIMESTAMP":
            # Casting with the zone gives the same text and takes six times as long.
            array = pc.binary_join_element_wise(array.cast(pa.timestamp("us")).cast(pa.string()), "Z", "")
        elif column.type == "DATE":
            array = array.cast(pa.string())
        elif column.type == "BOOLEAN":
            array = array.cast(pa.int8())
        values.append(array.to_pylist())
    return zip(*values, strict=True)


def _write_synced(rows: pa.Table, path: Path) -> int:
    """Write one file, safe on disk when this returns; its size in bytes."""
    import pyarrow.parquet

    with path.open("xb") as file:
        pyarrow.parquet.write_table(rows, file, compression="zstd", compression_level=1)
        file.flush()
        os.fsync(file.fileno())
        size = file.tell()
    # The file's name is safe only when its directory is.
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return size


def _disk_says(error: OSError) -> str:
    return f"cannot be written ({error.strerror}); allowed: a directory with free space that this worker may write"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _prefix(connector: str) -> str:
    return quote(connector, safe="").replace(".", "%2E")


_FILE_NAME: Final = re.compile(r"(?P<prefix>[^.]+)\.(?P<task>\d+)\.(?P<epoch>\d+)\.[0-9a-f]{32}\.parquet")
_MANIFEST_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS connectgroup_manifest (file TEXT PRIMARY KEY, rows INTEGER NOT NULL,"
    " bytes INTEGER NOT NULL, connector TEXT NOT NULL, task INTEGER NOT NULL, epoch INTEGER NOT NULL,"
    " ranges TEXT NOT NULL)"
)
