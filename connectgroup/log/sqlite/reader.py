"""Reads the log file of another process, or of none, without opening it as its owner: nothing is written or fenced.

The coordinator that owns the log may run meanwhile. All rows of the group are read in one short transaction, because an
open read transaction delays a coordinator that starts.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from ...errors import ConfigError, LogError, WireError
from ...protocol.records.base import Key, Tombstone
from ...protocol.records.connect import Record
from ...protocol.units import printable
from ..registry import LOG_FILE, LOG_FORMS
from ..rows import Row, text_of
from .log import path_of
from .store import APPLICATION_ID

_ALLOWED = "allowed: a log of connectgroup"

_ROWS = (
    "SELECT offset, batch, epoch, kind, group_id, name, value, crc32 FROM records WHERE group_id = ? ORDER BY offset"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGroup:
    """The records of one group.

    Attributes:
        snapshot: the records that the last compaction left: of each key the newest; empty if nothing was compacted.
        batches: all batches since then, in order.
    """

    snapshot: tuple[Record, ...]
    batches: tuple[tuple[Record, ...], ...]


def log_file(log: str | Path) -> Path:
    """The file of a log.

    Raises:
        ConfigError: the log is not in a file, or there is no such file.
    """
    text = str(log)
    path = Path(text)
    if isinstance(log, str) and ":" in text.partition("/")[0]:
        try:
            url = urlsplit(text)
            path = Path(path_of(url))
            if url.scheme != "sqlite" or not path.name:
                raise ValueError("not the URL of a file")
        except ValueError as error:
            raise ConfigError("log", printable(text), LOG_FORMS) from error
    try:
        path = path / LOG_FILE if path.is_dir() else path
        found = path.is_file()
    except (OSError, ValueError):
        found = False
    if not found:
        raise ConfigError("log", printable(text), f"an existing file: {LOG_FORMS}")
    return path


def stored_groups(path: Path) -> list[str]:
    """The ids of the groups in a log file, sorted.

    Raises:
        LogError: the file cannot be read, or is not a log of connectgroup.
    """
    with closing(_connect(path)) as connection:
        rows = _all(connection, path, "SELECT group_id FROM groups")
    return sorted(text_of(group) for (group,) in rows)


def stored_group(path: Path, group_id: str) -> StoredGroup:
    """The records of a group; without any if the log has no such group.

    Raises:
        LogError: the file cannot be read, is not a log of connectgroup, or a record of the group is damaged.
    """
    with closing(_connect(path)) as connection:
        connection.execute("BEGIN")
        rows = [Row.of(values) for values in _all(connection, path, _ROWS, (group_id,))]
        sums = _all(connection, path, "SELECT row_count, checksum FROM groups WHERE group_id = ?", (group_id,))
        ((epoch,),) = _all(connection, path, "SELECT value FROM meta WHERE name = 'epoch'")
        found = [row for row in rows if row is not None]
        records = [_record(path, row, epoch) for row in found]
        end = _snapshot_end(records)
        while 0 < end < len(found) and found[end].batch == found[end - 1].batch:
            end -= 1  # a batch is compacted as a whole or not at all
        if end:
            last = found[end - 1].offset
            ((count,),) = _all(connection, path, "SELECT count(*) FROM records WHERE offset <= ?", (last,))
            end = end if count < last else 0  # no offset is missing: nothing was compacted
    if sums != ([(len(found), sum(row.crc for row in found) & 0xFFFFFFFF)] if found else []) or len(found) < len(rows):
        raise LogError(f"{path}: group {printable(group_id)}: its checksum does not match: records are damaged")
    return StoredGroup(snapshot=tuple(records[:end]), batches=tuple(_batches(found[end:], records[end:])))


def _snapshot_end(records: Sequence[Record]) -> int:
    """Number of records that a compaction may have left: those before the first key that occurs twice, or tombstone."""
    counts: Counter[Key] = Counter()
    for number, record in enumerate(records):
        counts[record.key] += 1
        if counts[record.key] > 1 or isinstance(record, Tombstone):
            return number
    return len(records)


def _batches(rows: Sequence[Row], records: Sequence[Record]) -> Iterator[tuple[Record, ...]]:
    batch: list[Record] = []
    for number, (row, record) in enumerate(zip(rows, records, strict=True)):
        if batch and row.batch != rows[number - 1].batch:
            yield tuple(batch)
            batch = []
        batch.append(record)
    if batch:
        yield tuple(batch)


def _record(path: Path, row: Row, newest_epoch: int) -> Record:
    try:
        return row.record(newest_epoch=newest_epoch)
    except WireError as error:
        raise LogError(f"{path}: offset {row.offset}: {printable(error, limit=300)}") from error


def _connect(path: Path) -> sqlite3.Connection:
    """Open the file for reading only."""
    if not path.is_file():
        raise LogError(f"{path}: {'is a directory' if path.is_dir() else 'no such file'}; {_ALLOWED}")
    # A log without a WAL file is not in use: SQLite need not create one to read it.
    mode = "mode=ro" if path.with_name(path.name + "-wal").exists() else "immutable=1"
    try:
        connection = sqlite3.connect(
            f"file:{quote(str(path.absolute()))}?{mode}", uri=True, isolation_level=None, timeout=1.0
        )
    except sqlite3.Error as error:
        raise LogError(f"{path}: {printable(error, limit=200)}") from error
    try:
        connection.text_factory = bytes
        ((application,),) = _all(connection, path, "PRAGMA application_id")
        if application != APPLICATION_ID:
            raise LogError(f"{path}: is not a log of connectgroup; {_ALLOWED}")
    except BaseException:
        connection.close()
        raise
    return connection


def _all(connection: sqlite3.Connection, path: Path, query: str, arguments: Sequence[object] = ()) -> list[Any]:
    try:
        return connection.execute(query, arguments).fetchall()
    except (sqlite3.Error, UnicodeDecodeError) as error:
        allowed = f"; {_ALLOWED}" if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB else ""
        raise LogError(f"{path}: {printable(error, limit=200)}{allowed}") from error
