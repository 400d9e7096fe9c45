"""Sinks of files: files in a directory, and a manifest that lists the committed files. The formats are in
``parquet`` and ``text_files``.

A file is listed in the transaction that checks the fencing tokens and advances the offsets
(``dataplane.offset_store``).
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import re
import time
import uuid
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, ClassVar, Final, Self
from urllib.parse import quote

from pydantic import Field

from ...connector import LocalPath
from ...dataplane.columns import Columns
from ...dataplane.errors import SinkError, TaskFenced
from ...dataplane.fences import Transaction
from ...dataplane.offset_store import BUSY_TIMEOUT_S, FilePositions, OffsetStore, require_writable_directory
from ...dataplane.ownership import Owner, Range
from ...dataplane.real_paths import make_directory, open_to_append, remove_file
from ...dataplane.settings import PluginSettings, require_absolute
from ...dataplane.sink import Part, PartSink, PartWriter
from ...errors import ConfigError
from ...protocol.units import printable
from .new_files import PartFiles, disk_says, hidden_name, show, write_synced

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

MANIFEST: Final = "_manifest.sqlite"
"""Name of the manifest, in the same directory as the other files; it lists the committed files."""
WANTED: Final = "wanted"
"""The end of the name of ``PartFiles.wanted``."""


class FileSinkSettings(PluginSettings):
    """Settings of a sink of files, each with the prefix ``sink.``."""

    path: Annotated[str, LocalPath(), Field(min_length=1, description="a directory, as an absolute path")]
    busy_timeout_ms: Annotated[int, Field(ge=1, le=60_000, description="1 to 60000")] = 5_000
    compact_files: Annotated[
        int,
        Field(
            ge=0,
            le=1000,
            description="0, 2 to 1000: the number of small files of a task that become one file; 0: never. Committed"
            " rows never change, nor does their order in a task. A program that lists the directory instead of the"
            " manifest, such as a source of files, sees the rows of compacted files twice",
        ),
    ] = 32
    compact_max_bytes: Annotated[
        int,
        Field(ge=1 << 20, le=1 << 34, description="1048576 to 17179869184: upper bound of a compacted file's size"),
    ] = 128 << 20
    compact_retention_ms: Annotated[
        int,
        Field(
            ge=0,
            le=2_592_000_000,
            description="0 to 2592000000: how long files stay that were compacted; a reader opens all files of its list"
            " within this time",
        ),
    ] = 3_600_000

    @property
    def compaction(self) -> Compaction:
        """When files are compacted."""
        return Compaction(
            files=self.compact_files, max_bytes=self.compact_max_bytes, retention_ms=self.compact_retention_ms
        )

    def model_post_init(self, _: Any) -> None:
        """Check the path and the number of files.

        Raises:
            ConfigError: the path is relative, or the number is 1.
        """
        require_absolute("sink.path", self.path, "a directory, as an absolute path")
        if self.compact_files == 1:
            raise ConfigError("sink.compact.files", "1", "0, 2 to 1000")


class ManifestSink(PartSink):
    """Writes rows to files in one directory; ``_manifest.sqlite`` in that directory lists the committed files.

    A batch's file, or each of its parts, is first written and synced under a hidden name. The manifest's rows, written
    in the transaction of the offsets, commit the files, which get their names in it. Readers use ``read_committed``.
    Small files are compacted (``compaction``) if the format has ``head`` and ``join``.

    Attributes:
        extension: the end of the files' names, without the dot.
    """

    Settings = FileSinkSettings
    extension: ClassVar[str]

    @abstractmethod
    def encode(self, rows: pa.Table, file: BinaryIO) -> None:
        """Write rows to an open file."""

    def head(self, path: Path) -> bytes | None:
        """Return what files must have in common to be compacted into one; None: files of this format are not."""
        return None

    def join(self, paths: Sequence[Path], file: BinaryIO) -> None:
        """Write the rows of files with equal heads to an open file, in their order."""
        raise NotImplementedError

    def __init__(
        self, directory: Path, *, busy_timeout_s: float = BUSY_TIMEOUT_S, compaction: Compaction | None = None
    ) -> None:
        """Create the directory if it is missing (its parent must exist) and open the manifest.

        Raises:
            SinkError: the directory cannot be created, or the manifest cannot be opened.
        """
        self._directory = directory
        self._compaction = compaction or Compaction()
        self._batches_to_skip = 0
        self._opened = uuid.uuid4().hex[:16]
        _make_directory(directory)
        self._store = OffsetStore(directory / MANIFEST, busy_timeout_s=busy_timeout_s, is_real=True)
        try:
            if not _has_table(self._store, "connectgroup_manifest"):
                self._store.execute(_MANIFEST_TABLE)
            if not _has_table(self._store, "connectgroup_replaced"):
                self._store.execute(_REPLACED_TABLE)
        except BaseException:
            self._store.close()
            raise

    @classmethod
    def create(cls, settings: FileSinkSettings, columns: Columns) -> Self:
        timeout_s = settings.busy_timeout_ms / 1000
        return cls(Path(settings.path), busy_timeout_s=timeout_s, compaction=settings.compaction)

    @classmethod
    def open_positions(cls, settings: FileSinkSettings) -> FilePositions:
        return _ManifestPositions(
            Path(settings.path) / MANIFEST, busy_timeout_s=settings.busy_timeout_ms / 1000, is_real=True
        )

    @classmethod
    def check_access(cls, settings: FileSinkSettings) -> None:
        cls.open_positions(settings).check_access()

    def claim(self, owner: Owner, is_mine: Callable[[str], bool]) -> dict[str, int]:
        positions = self._store.claim(owner, is_mine)
        self._remove_leftovers(owner)
        delete_replaced(self._store, self._directory, owner, self._compaction.retention_ms)
        return positions

    def commit(self, owner: Owner, ranges: Sequence[Range], rows: pa.Table) -> bool:
        if rows.num_rows == 0:
            return self._store.commit(owner, ranges)
        path = self._new_file(owner)
        try:
            size = write_synced(hidden_name(path), partial(self.encode, rows))
        except BaseException as error:
            remove_file(hidden_name(path))
            if isinstance(error, OSError):
                raise SinkError(f"{path}: {disk_says(error)}") from error
            raise
        listed = {each.slice: [each.start, each.end] for each in ranges}
        return self._list(owner, ranges, [(path.name, rows.num_rows, size, listed)])

    def part_writer(self, owner: Owner) -> PartWriter | None:
        if type(self).commit is not ManifestSink.commit:
            return None  # What a subclass does with rows, Spark's workers do not know.
        wanted = self._wanted(owner)
        writer = PartFiles(new_file=partial(self._new_file, owner), encode=self.encode, wanted=wanted)
        try:
            pickle.dumps(writer)
        except Exception as error:
            logger.info("%s: Spark's workers do not write its files themselves: %s", type(self).__name__, error)
            return None
        try:
            os.close(open_to_append(wanted))
        except OSError as error:
            raise SinkError(f"{wanted}: {disk_says(error)}") from error
        return writer

    def commit_parts(self, owner: Owner, ranges: Sequence[Range], parts: Sequence[Part]) -> bool:
        listed = [(part.name, part.rows, part.bytes, {part.slice: [part.start, part.end]}) for part in parts]
        return self._list(owner, ranges, listed)

    def discard_parts(self, owner: Owner) -> None:
        remove_file(self._wanted(owner))  # First: see ``PartFiles.wanted``.
        begin = f".{_begin(owner)}{self._opened}"
        for path in self._directory.iterdir():
            if path.name.startswith(begin):
                remove_file(path)

    def _list(
        self,
        owner: Owner,
        ranges: Sequence[Range],
        files: Sequence[tuple[str, int, int, dict[str, list[int]]]],
    ) -> bool:
        """Commit the hidden files of a batch, given name, rows, bytes and ranges of each. Without success, none is left
        that a reader of the directory sees."""
        names = [name for name, *_ in files]
        values = [
            (name, rows, size, owner.connector, owner.task, owner.fencing_token, json.dumps(listed))
            for name, rows, size, listed in files
        ]

        def write(transaction: Transaction) -> None:
            transaction.execute_many("INSERT INTO connectgroup_manifest VALUES (?, ?, ?, ?, ?, ?, ?)", values)
            # In the transaction: another owner may have deleted the files, and the fence says so.
            show(self._directory, names)

        try:
            is_new = self._store.commit(owner, ranges, write)
        except BaseException:
            self._remove_unlisted(names)
            raise
        if is_new:
            self._compact(owner)
        else:
            for name in names:
                remove_file(hidden_name(self._directory / name))
        return is_new

    def _remove_unlisted(self, names: Sequence[str]) -> None:
        """Remove files whose commit has failed, unless it has succeeded nevertheless, or its outcome is unknown."""
        with suppress(SinkError):
            for name in names:
                if not self._store.execute(_KNOWN_FILE, name, name):
                    for path in (self._directory / name, hidden_name(self._directory / name)):
                        remove_file(path)

    def close(self) -> None:
        self._store.close()

    def _compact(self, owner: Owner) -> None:
        """Compact the latest files of a task if they are many. A failure is logged: the batch is committed."""
        if self._batches_to_skip > 0:
            self._batches_to_skip -= 1
            return
        try:
            run = run_to_compact(self._store, owner, self._compaction, lambda name: self.head(self._directory / name))
            if run is not None:
                self._compact_run(owner, run)
        except TaskFenced:
            return  # The next batch reports it.
        except Exception as error:
            self._batches_to_skip = self._compaction.files
            logger.warning("%s: files were not compacted: %s", self._directory, error)

    def _compact_run(self, owner: Owner, run: FileRun) -> None:
        path = self._new_file(owner)
        parts = [self._directory / name for name in run.files]
        try:
            size = write_synced(hidden_name(path), partial(self.join, parts))
            show(self._directory, [path.name])
            replace_run(self._store, owner, run, path.name, size)
        except BaseException:
            self._remove_unlisted([path.name])
            raise
        delete_replaced(self._store, self._directory, owner, self._compaction.retention_ms)

    def _new_file(self, owner: Owner) -> Path:
        return self._directory / f"{_begin(owner)}{self._opened}{uuid.uuid4().hex[:16]}.{self.extension}"

    def _wanted(self, owner: Owner) -> Path:
        """The file that exists while a task wants parts. The next owner deletes it as it deletes leftover files."""
        return hidden_name(self._directory / f"{_begin(owner)}{self._opened}{'0' * 16}.{WANTED}")

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
            if not self._store.execute(_KNOWN_FILE, path.name, path.name):
                remove_file(path)

    def __getstate__(self) -> dict[str, Any]:
        # Spark's workers write files; only the task lists them.
        return {name: value for name, value in self.__dict__.items() if name != "_store"}


class _ManifestPositions(FilePositions):
    """The positions in a manifest; a change creates the directory, as a task does."""

    def check_access(self) -> None:
        if self.path.parent.exists():
            super().check_access()
        else:
            require_writable_directory(self.path.parent.parent)

    def alter(self, connector: str, fencing_token: int, positions: Mapping[str, int | None] | None) -> None:
        _make_directory(self.path.parent)
        super().alter(connector, fencing_token, positions)

    def advance(self, owner: Owner, ranges: Sequence[Range]) -> None:
        _make_directory(self.path.parent)
        super().advance(owner, ranges)


def _make_directory(directory: Path) -> None:
    try:
        make_directory(directory)
    except OSError as error:
        raise SinkError(f"{directory}: {disk_says(error)}") from error


def read_committed(directory: str | Path) -> list[Path]:
    """Return the committed files of a sink in commit order.

    Read these files, not the directory: the other files are left over from batches that were never finished or were
    rejected, or were compacted; their rows are in another file, or will be. Open each file within
    ``sink.compact.retention.ms`` (an hour by default): compacted files are deleted after that time. Read Parquet files
    as one table with ``pyarrow.parquet.ParquetDataset`` or ``spark.read.parquet(*files)``.

    Raises:
        SinkError: there is no manifest, or it cannot be read.
    """
    directory = Path(directory)
    manifest = directory / MANIFEST
    if not manifest.exists():
        raise SinkError(f"{manifest}: does not exist; allowed: the directory of a sink of files")
    store = OffsetStore(manifest)
    try:
        if not _has_table(store, "connectgroup_manifest"):
            return []  # A sink is creating it.
        names = [str(name) for (name,) in store.execute("SELECT file FROM connectgroup_manifest ORDER BY rowid")]
    finally:
        store.close()
    for name in names:
        if not _is_name(name):
            raise SinkError(f"{manifest}: lists {printable(name)}; allowed: names of files in its directory")
    return [directory / name for name in names]


def _is_name(text: str) -> bool:
    """Whether it names a file in a directory. Others can write the manifest, and a path would lead out of it."""
    return Path(text).name == text


def _has_table(store: OffsetStore, name: str) -> bool:
    return bool(store.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", name))


def _prefix(connector: str) -> str:
    return quote(connector, safe="").replace(".", "%2E")


def _begin(owner: Owner) -> str:
    return f"{_prefix(owner.connector)}.{owner.task}.{owner.fencing_token}."


_FILE_NAME: Final = re.compile(r"\.?(?P<prefix>[^.]+)\.(?P<task>\d+)\.(?P<epoch>\d+)\.[0-9a-f]{32}\.[a-z.]+")


_MANIFEST_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS connectgroup_manifest (file TEXT PRIMARY KEY, rows INTEGER NOT NULL,"
    " bytes INTEGER NOT NULL, connector TEXT NOT NULL, task INTEGER NOT NULL, epoch INTEGER NOT NULL,"
    " ranges TEXT NOT NULL)"
)
_REPLACED_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS connectgroup_replaced (file TEXT PRIMARY KEY, connector TEXT NOT NULL,"
    " replaced_ms INTEGER NOT NULL)"
)
"""Files that compaction has replaced and that are not deleted yet; the time is that of the worker's clock."""
_KNOWN_FILE: Final = (
    "SELECT 1 FROM connectgroup_manifest WHERE file = ? UNION SELECT 1 FROM connectgroup_replaced WHERE file = ?"
)


# --------------------------------------------------------------------------------------------------
# Compaction: consecutive small files of a task become one, by one more change of the manifest.
#
# The task compacts after a commit, in the same thread. It writes the new file, then replaces the rows of the old files
# in the manifest by one row, in a transaction that checks its fencing token. So each row is in exactly one committed
# file at any time, and a zombie changes nothing. A crash in between leaves a file that the manifest does not list, as
# after an unfinished batch.
#
# Readers take the list of committed files first and open the files later. So an old file is deleted only
# ``retention_ms`` after it was replaced, by a later compaction or claim: a reader has this time from the list to its
# last ``open``, or takes the list again.


_MAX_FILES: Final = 1000
"""Upper bound on the number of files that become one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """When files are compacted.

    Attributes:
        files: number of small files that become one; 0: never.
        max_bytes: upper bound on the bytes of the files that become one.
        retention_ms: milliseconds for which a replaced file is kept.
    """

    files: int = 0
    max_bytes: int = 128 << 20
    retention_ms: int = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRun:
    """Consecutive files of one task in the manifest.

    Attributes:
        files: their names, in the order in which they were committed.
        row: the row of the manifest of the last one.
        rows: the number of their rows.
        ranges: start and end of each slice.
    """

    files: tuple[str, ...]
    row: int
    rows: int
    ranges: dict[str, list[int]]


def run_to_compact(
    store: OffsetStore, owner: Owner, rules: Compaction, head: Callable[[str], bytes | None]
) -> FileRun | None:
    """Return the latest files of a task if they are to become one; None if they are not.

    A file larger than its share of ``max_bytes`` is written again only together with as many bytes of later files, so
    each row is written a number of times that grows with the logarithm of the file's size. Only files of the current
    layout count: in an earlier one, another task may have written later rows of the same slice.

    Args:
        head: returns what files must have in common to become one, given a name; None: the file stays as it is.
    """
    if rules.files == 0:
        return None
    # LIMIT: to read a whole manifest after each batch would be slow.
    found = store.execute(
        "SELECT rowid, file, rows, bytes, ranges FROM connectgroup_manifest WHERE connector = ? AND task = ?"
        " AND epoch > ? ORDER BY rowid DESC LIMIT ?",
        *(owner.connector, owner.task, store.superseded(owner), max(_MAX_FILES, rules.files)),
    )
    count = total = 0
    for _, name, _, size, _ in found:
        if size > max(total, rules.max_bytes // rules.files) or total + size > rules.max_bytes or not _is_name(name):
            break
        count, total = count + 1, total + size
    if count < rules.files:
        return None
    common = head(found[0][1])
    ranges: dict[str, list[int]] = {}
    taken: list[tuple[int, str, int]] = []
    for row, name, rows, _, text in found[:count]:
        before: dict[str, list[int]] = json.loads(text)
        # A batch without rows has no file, so a range may be missing in between. After offsets were altered to earlier
        # ones, the ranges of a slice do not follow each other.
        follows = all(part[1] <= ranges[slice_][0] for slice_, part in before.items() if slice_ in ranges)
        if common is None or not follows or head(name) != common:
            break
        for slice_, (start, end) in before.items():
            ranges[slice_] = [start, ranges[slice_][1] if slice_ in ranges else end]
        taken.append((row, name, rows))
    # With fewer, each further batch would write the same rows again.
    if len(taken) < max(2, rules.files):
        return None
    names = tuple(name for _, name, _ in reversed(taken))
    return FileRun(files=names, row=taken[0][0], rows=sum(rows for _, _, rows in taken), ranges=ranges)


def replace_run(store: OffsetStore, owner: Owner, run: FileRun, name: str, size: int) -> None:
    """Commit a compacted file in place of the files of a run.

    Raises:
        Fenced: a task with a higher owner epoch has claimed the task or the layout.
        SinkError: the manifest cannot be written. The change may have become durable if its commit failed.
    """
    now_ms = int(time.time() * 1000)

    def write(transaction: Transaction) -> None:
        transaction.execute_many("DELETE FROM connectgroup_manifest WHERE file = ?", [(file,) for file in run.files])
        transaction.execute_many(
            "INSERT OR REPLACE INTO connectgroup_replaced VALUES (?, ?, ?)",
            [(file, owner.connector, now_ms) for file in run.files],
        )
        # The row of the last file keeps the order of commits.
        transaction.execute(
            "INSERT INTO connectgroup_manifest (rowid, file, rows, bytes, connector, task, epoch, ranges)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            *(run.row, name, run.rows, size, owner.connector, owner.task, owner.fencing_token, json.dumps(run.ranges)),
        )

    store.commit(owner, [], write)


def delete_replaced(store: OffsetStore, directory: Path, owner: Owner, retention_ms: int) -> None:
    """Delete the files of a connector that were replaced longer ago than ``retention_ms``."""
    limit_ms = int(time.time() * 1000) - retention_ms
    found = store.execute(
        "SELECT file FROM connectgroup_replaced WHERE connector = ? AND replaced_ms <= ?", owner.connector, limit_ms
    )
    for (name,) in found:
        if _is_name(name):
            remove_file(directory / name)
        store.execute("DELETE FROM connectgroup_replaced WHERE file = ?", name)
