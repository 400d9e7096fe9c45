"""Divides a directory of growing files into slices and ranges of whole lines.

A slice is a file, named by its path below the directory; its position is the number of bytes read. Task *i* of
*n* reads the files for which the CRC-32 of the name modulo *n* is *i*. The result is the same in every process,
always. Only lines that end in a line feed are read; the text after the last line feed is still being written.
"""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ...connector import Lag
from ...dataplane.errors import SourceError
from ...dataplane.ownership import Range

UNFINISHED: Final = (".tmp", ".part")
_BLOCK_BYTES: Final = 64 * 1024


def is_slice_of(name: str, task: int, tasks: int) -> bool:
    """Whether a file belongs to a task."""
    return zlib.crc32(name.encode("utf-8", "surrogateescape")) % tasks == task


@dataclass(slots=True, kw_only=True)
class Planner:
    """Chooses the ranges of the next batch.

    Attributes:
        root: the directory.
        task, tasks: the task's number and the number of tasks; they determine the files of this task.
        most_bytes: upper bound on the bytes of one batch, and on the length of a line.
    """

    root: Path
    task: int
    tasks: int
    most_bytes: int
    _last_served: str = ""

    def advance(self, start: Mapping[str, int]) -> dict[str, int]:
        """Return the end of the next batch, given its start; equal to ``start`` if there is nothing to read.

        Raises:
            SourceError: the directory or a file cannot be read, a file became shorter, or a line is too long.
        """
        end = dict(start)
        left = self.most_bytes
        names = [name for name in list_files(self.root) if is_slice_of(name, self.task, self.tasks)]
        # Round robin: begin after the file read last, so that a fast-growing file cannot starve the others.
        for name in [n for n in names if n > self._last_served] + [n for n in names if n <= self._last_served]:
            if left <= 0:
                break
            position = start.get(name, 0)
            stop = self._whole_lines(name, position, left)
            if stop > position:
                end[name] = stop
                left -= stop - position
                self._last_served = name
        return end

    def _whole_lines(self, name: str, position: int, most_bytes: int) -> int:
        """Return the end of the last whole line that starts at or after ``position`` and ends within ``most_bytes``."""
        path = self.root / name
        try:
            found = path.stat()
            if not stat.S_ISREG(found.st_mode):
                raise SourceError(f"{path}: not a regular file; allowed: files")
            if found.st_size < position:
                raise SourceError(
                    f"{path}: has {found.st_size} bytes, {position} were read already;"
                    " allowed: files that only grow (write a new file instead)"
                )
            if found.st_size == position:
                return position
            stop = min(found.st_size, position + most_bytes)
            with path.open("rb") as file:
                end = last_line_end(file.fileno(), position, stop)
        except FileNotFoundError as error:
            if path.is_symlink():
                raise _unreadable(path, error) from error
            return position  # Deleted since the listing; the part already read stays committed.
        except OSError as error:
            raise _unreadable(path, error) from error
        if end == position and most_bytes == self.most_bytes and stop - position == most_bytes:
            raise SourceError(
                f"{path}: the line at byte {position} is longer than {most_bytes} bytes;"
                " allowed: lines up to source.max.bytes.per.batch"
            )
        return end


def files_left(root: Path, positions: Mapping[str, int], task: int, tasks: int) -> Lag:
    """Return the files of a task that are not read to their end, and the bytes after the positions.

    An unfinished last line counts: it is not read yet.

    Raises:
        SourceError: the directory cannot be read.
    """
    files = left = 0
    for name in list_files(root):
        if is_slice_of(name, task, tasks):
            try:
                size = (root / name).stat().st_size
            except OSError:
                continue  # deleted since the listing, or unreadable: the task itself reports that
            files += size > positions.get(name, 0)
            left += max(0, size - positions.get(name, 0))
    return Lag(bytes=left, files=files)


def list_files(root: Path) -> list[str]:
    """Return the sorted names of all files below a directory, except hidden and unfinished ones (``UNFINISHED``).

    Raises:
        SourceError: the directory cannot be read.
    """
    if not root.is_dir():
        what = "not a directory" if root.exists() else "does not exist"
        raise SourceError(f"{root}: {what}; allowed: source.path names a directory that can be read")

    def refuse(error: OSError) -> None:
        raise _unreadable(Path(error.filename), error)

    names = []
    for directory, inner, files in os.walk(root, onerror=refuse):
        inner[:] = [name for name in inner if not name.startswith((".", "_"))]
        below = Path(directory).relative_to(root)
        names += [
            (below / name).as_posix()
            for name in files
            if not name.startswith((".", "_")) and not name.endswith(UNFINISHED)
        ]
    return sorted(names)


def last_line_end(descriptor: int, start: int, stop: int) -> int:
    """Return the offset after the last line feed in ``[start, stop)`` of an open file; ``start`` without one."""
    end = stop
    while end > start:
        begin = max(start, end - _BLOCK_BYTES)
        at = os.pread(descriptor, end - begin, begin).rfind(b"\n")
        if at >= 0:
            return begin + at + 1
        end = begin
    return start


def read_bytes(root: Path, wanted: Range) -> bytes:
    """Return the bytes of a range.

    Raises:
        SourceError: the file cannot be read, or is shorter than when the range was chosen.
    """
    path = root / wanted.slice
    try:
        with path.open("rb") as file:
            data = os.pread(file.fileno(), wanted.end - wanted.start, wanted.start)
            while len(data) < wanted.end - wanted.start:
                more = os.pread(file.fileno(), wanted.end - wanted.start - len(data), wanted.start + len(data))
                if not more:
                    raise SourceError(
                        f"{path}: has {wanted.start + len(data)} bytes, {wanted.end} are to be read;"
                        " allowed: files that only grow (write a new file instead)"
                    )
                data += more
    except OSError as error:
        raise _unreadable(path, error) from error
    return data


def _unreadable(path: Path, error: OSError) -> SourceError:
    return SourceError(f"{path}: cannot be read ({error.strerror}); allowed: files this worker may read")
