"""Sinks of files: files in a directory, and a manifest that lists the committed files. The formats are in ``files``.

A file is listed in the transaction that checks the fencing tokens and advances the offsets
(``dataplane.offset_store``).
"""

from __future__ import annotations

import json
import os
import re
import uuid
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, ClassVar, Final, Self
from urllib.parse import quote

from pydantic import Field

from ...connector import LocalPath
from ...dataplane.columns import Columns
from ...dataplane.errors import SinkError
from ...dataplane.fences import Transaction
from ...dataplane.offset_store import BUSY_TIMEOUT_S, FilePositions, OffsetStore
from ...dataplane.ownership import Owner, Range
from ...dataplane.settings import PluginSettings, require_absolute
from ...dataplane.sink import Sink

if TYPE_CHECKING:
    import pyarrow as pa

MANIFEST: Final = "_manifest.sqlite"
"""Name of the manifest, in the same directory as the other files; it lists the committed files."""


class FileSinkSettings(PluginSettings):
    """Settings of a sink of files, each with the prefix ``sink.``."""

    path: Annotated[str, LocalPath(), Field(min_length=1, description="a directory, as an absolute path")]
    busy_timeout_ms: Annotated[int, Field(ge=1, le=60_000, description="1 to 60000")] = 5_000

    def model_post_init(self, _: Any) -> None:
        """Check the path.

        Raises:
            ConfigError: the path is relative.
        """
        require_absolute("sink.path", self.path, "a directory, as an absolute path")


class ManifestSink(Sink):
    """Writes rows to files in one directory; ``_manifest.sqlite`` in that directory lists the committed files.

    A batch's file is first written and synced under its final name. The manifest's row, written in the transaction of
    the offsets, commits the file. Readers use ``read_committed``.

    Attributes:
        extension: the end of the files' names, without the dot.
    """

    Settings = FileSinkSettings
    extension: ClassVar[str]

    @abstractmethod
    def encode(self, rows: pa.Table, file: BinaryIO) -> None:
        """Write rows to an open file."""

    def __init__(self, directory: Path, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        """Create the directory if it is missing (its parent must exist) and open the manifest.

        Raises:
            SinkError: the directory cannot be created, or the manifest cannot be opened.
        """
        self._directory = directory
        _make_directory(directory)
        self._store = OffsetStore(directory / MANIFEST, busy_timeout_s=busy_timeout_s)
        try:
            if not self._store.execute("SELECT 1 FROM sqlite_schema WHERE name = 'connectgroup_manifest'"):
                self._store.execute(_MANIFEST_TABLE)
        except BaseException:
            self._store.close()
            raise

    @classmethod
    def create(cls, settings: FileSinkSettings, columns: Columns) -> Self:
        return cls(Path(settings.path), busy_timeout_s=settings.busy_timeout_ms / 1000)

    @classmethod
    def open_positions(cls, settings: FileSinkSettings) -> FilePositions:
        return _ManifestPositions(Path(settings.path) / MANIFEST, busy_timeout_s=settings.busy_timeout_ms / 1000)

    def claim(self, owner: Owner, is_mine: Callable[[str], bool]) -> dict[str, int]:
        positions = self._store.claim(owner, is_mine)
        self._remove_leftovers(owner)
        return positions

    def commit(self, owner: Owner, ranges: Sequence[Range], rows: pa.Table) -> bool:
        if rows.num_rows == 0:
            return self._store.commit(owner, ranges)
        name = f"{_prefix(owner.connector)}.{owner.task}.{owner.fencing_token}.{uuid.uuid4().hex}.{self.extension}"
        path = self._directory / name
        try:
            size = self._write_synced(rows, path)
            listed = {r.slice: [r.start, r.end] for r in ranges}
            values = (name, rows.num_rows, size, owner.connector, owner.task, owner.fencing_token, json.dumps(listed))

            def write(transaction: Transaction) -> None:
                transaction.execute("INSERT INTO connectgroup_manifest VALUES (?, ?, ?, ?, ?, ?, ?)", *values)

            is_new = self._store.commit(owner, ranges, write)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise SinkError(f"{path}: {_disk_says(error)}") from error
        # After an SQLite error the file stays: the commit may have succeeded nevertheless.
        if not is_new:
            path.unlink(missing_ok=True)
        return is_new

    def close(self) -> None:
        self._store.close()

    def _remove_leftovers(self, owner: Owner) -> None:
        """Delete files of this connector's unfinished batches that no task can commit any more.

        These are files with lower epochs of this task, and all files of earlier layouts: the preceding claim has fenced
        their writers. Files with this owner's epoch are kept, because they may belong to a batch in progress; the next
        owner deletes them.
        """
        floor = self._store.superseded(owner)
        candidates = []
        for path in self._directory.iterdir():
            match = _FILE_NAME.fullmatch(path.name)
            if match is None or match["prefix"] != _prefix(owner.connector):
                continue
            epoch, task = int(match["epoch"]), int(match["task"])
            if epoch <= floor or (task == owner.task and epoch < owner.fencing_token):
                candidates.append(path)
        # List the files first, then read the manifest: a file committed in between counts as committed.
        for path in candidates:
            if not self._store.execute("SELECT 1 FROM connectgroup_manifest WHERE file = ?", path.name):
                path.unlink(missing_ok=True)

    def _write_synced(self, rows: pa.Table, path: Path) -> int:
        """Write one file durably; return its size in bytes."""
        with path.open("xb") as file:
            self.encode(rows, file)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        # The file's name is durable only after an fsync of the directory.
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return size


class _ManifestPositions(FilePositions):
    """The positions in a manifest; a change creates the directory, as a task does."""

    def alter(self, connector: str, fencing_token: int, positions: Mapping[str, int | None] | None) -> None:
        _make_directory(self.path.parent)
        super().alter(connector, fencing_token, positions)


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(exist_ok=True)
    except OSError as error:
        raise SinkError(f"{directory}: {_disk_says(error)}") from error


def read_committed(directory: str | Path) -> list[Path]:
    """Return the committed files of a sink in commit order.

    Read these files, not the directory: the other files are left over from batches that were never finished or were
    rejected; their rows are in another file, or will be. Read Parquet files as one table with
    ``pyarrow.parquet.ParquetDataset`` or ``spark.read.parquet(*files)``.

    Raises:
        SinkError: there is no manifest, or it cannot be read.
    """
    directory = Path(directory)
    manifest = directory / MANIFEST
    if not manifest.exists():
        raise SinkError(f"{manifest}: does not exist; allowed: the directory of a sink of files")
    store = OffsetStore(manifest)
    try:
        return [
            directory / str(row[0]) for row in store.execute("SELECT file FROM connectgroup_manifest ORDER BY rowid")
        ]
    finally:
        store.close()


def _disk_says(error: OSError) -> str:
    return f"cannot be written ({error.strerror}); allowed: a directory with free space that this worker may write"


def _prefix(connector: str) -> str:
    return quote(connector, safe="").replace(".", "%2E")


_FILE_NAME: Final = re.compile(r"(?P<prefix>[^.]+)\.(?P<task>\d+)\.(?P<epoch>\d+)\.[0-9a-f]{32}\.[a-z.]+")


_MANIFEST_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS connectgroup_manifest (file TEXT PRIMARY KEY, rows INTEGER NOT NULL,"
    " bytes INTEGER NOT NULL, connector TEXT NOT NULL, task INTEGER NOT NULL, epoch INTEGER NOT NULL,"
    " ranges TEXT NOT NULL)"
)
