"""New files of a sink, written durably, and those that Spark's workers write for the task (``spark.writing``).

Until the task commits a worker's file, its name begins with a dot, so that those who read the directory skip it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from ...dataplane.errors import SinkError
from ...dataplane.ownership import Range
from ...dataplane.real_paths import create_file, opened_directory, remove_file
from ...dataplane.sink import Part

if TYPE_CHECKING:
    import pyarrow as pa

FILE_ROW_BYTES: Final = 64 << 20
"""Bytes of rows in memory at which a file ends, and the next one begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFiles:
    """Writes the rows of ranges to new files, in Spark's workers; a ``PartWriter``.

    Attributes:
        new_file: returns the path under which the task commits a file.
        encode: writes rows to an open file.
        wanted: a file that exists while the task wants parts. Spark ends a job without waiting for the Python processes
            that work for it: one of them may begin or complete a file after the task has deleted the others.
    """

    new_file: Callable[[], Path]
    encode: Callable[[pa.Table, BinaryIO], None]
    wanted: Path

    def __call__(self, rows_of: Range, batches: Iterator[pa.RecordBatch]) -> Iterator[Part]:
        """Yield a part for each file; no file has no rows. Once the task wants none, the next part is the last, without
        a file: the commit of a task that was fenced says so, and any other commit fails for want of the file.

        Raises:
            SinkError: a file cannot be written.
        """
        for rows in _tables(batches):
            path = self.new_file()
            is_wanted = self.wanted.exists()
            size = self._write(rows, path) if is_wanted else 0
            yield Part(
                name=path.name,
                slice=rows_of.slice,
                start=rows_of.start,
                end=int(rows_of.end),
                rows=rows.num_rows,
                bytes=size,
                row_bytes=rows.nbytes,
            )
            if not is_wanted:
                return  # Spark kills this process: a file that it had begun would stay until the next owner.

    def _write(self, rows: pa.Table, path: Path) -> int:
        hidden = hidden_name(path)
        try:
            size = write_synced(hidden, partial(self.encode, rows))
            # Looked at after the file is there, as the task deletes it before it looks for files: one of the two sees
            # the other.
            if not self.wanted.exists():
                remove_file(hidden)
        except BaseException as error:
            remove_file(hidden)
            if isinstance(error, OSError):
                raise SinkError(f"{path}: {disk_says(error)}") from error
            raise
        return size


def hidden_name(path: Path) -> Path:
    """Return the path of a file before it is committed."""
    return path.with_name(f".{path.name}")


def show(directory: Path, names: list[str]) -> None:
    """Give files their names without the dot, durably.

    Raises:
        SinkError: the directory cannot be written.
    """
    try:
        with opened_directory(directory) as opened:
            for name in names:
                os.rename(f".{name}", name, src_dir_fd=opened, dst_dir_fd=opened)
        if names:
            sync_directory(directory)
    except OSError as error:
        raise SinkError(f"{directory}: {disk_says(error)}") from error


def write_synced(path: Path, write: Callable[[BinaryIO], None]) -> int:
    """Write one new file durably, but not its name; return its size in bytes."""
    with create_file(path) as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def disk_says(error: OSError) -> str:
    """Return the end of an error message for a file that cannot be written."""
    return f"cannot be written ({error.strerror}); allowed: a directory with free space that this worker may write"


def sync_directory(path: Path) -> None:
    """Make the names of the files of a directory durable, given its real path."""
    with opened_directory(path, lists=True) as descriptor:
        os.fsync(descriptor)


def sync(path: Path) -> None:
    """Make a file durable, or the names of the files of a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _tables(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the rows of batches in tables of about ``FILE_ROW_BYTES``; none if there are no rows."""
    import pyarrow as pa

    group, size = list[pa.RecordBatch](), 0
    for batch in batches:
        if batch.num_rows:
            group.append(batch)
            size += batch.nbytes
        if size >= FILE_ROW_BYTES:
            yield pa.Table.from_batches(group)
            group, size = [], 0
    if group:
        yield pa.Table.from_batches(group)
