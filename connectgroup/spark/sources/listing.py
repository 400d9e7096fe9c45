"""Lists the files of a directory, and reads bytes of them."""

from __future__ import annotations

import os
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from ...dataplane.errors import SourceError
from ...dataplane.ownership import Range

UNFINISHED: Final = (".tmp", ".part")
_BLOCK_BYTES: Final = 64 * 1024


def list_files(root: Path, pattern: str = "") -> list[str]:
    """Return the sorted names of all files below a directory, except hidden and unfinished ones (``UNFINISHED``).

    Args:
        root: the directory.
        pattern: a glob for file names or, with a ``/``, for paths below the directory; empty: all.

    Raises:
        SourceError: the directory cannot be read, or has a symbolic link to a file outside of it: a link that another
            user places there would copy a file that only the worker's user may read.
    """
    if not root.is_dir():
        what = "not a directory" if root.exists() else "does not exist"
        raise SourceError(f"{root}: {what}; allowed: source.path names a directory that can be read")

    def refuse(error: OSError) -> None:
        raise unreadable(Path(error.filename), error)

    names = []
    for directory, inner, files in os.walk(root, onerror=refuse):
        inner[:] = [name for name in inner if not name.startswith((".", "_"))]
        below = Path(directory).relative_to(root).as_posix()
        # Text, not paths: a directory may have 20,000 files, and is listed at each trigger.
        prefix = "" if below == "." else f"{below}/"
        names += [prefix + name for name in files if not name.startswith((".", "_")) and not name.endswith(UNFINISHED)]
    if pattern:
        has_path = "/" in pattern
        names = [name for name in names if fnmatchcase(name if has_path else name.rpartition("/")[2], pattern)]
    for name in names:
        if (root / name).is_symlink():
            target = Path(os.path.realpath(root / name))
            if Path(os.path.realpath(root)) not in target.parents:
                raise SourceError(f"{root / name}: links to {target}; allowed: links to files below {root}")
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
            return read_bytes_of(file.fileno(), path, wanted.start, wanted.end)
    except OSError as error:
        raise unreadable(path, error) from error


def read_bytes_of(descriptor: int, path: Path, start: int, end: int) -> bytes:
    """Return the bytes ``[start, end)`` of an open file.

    Raises:
        SourceError: the file cannot be read, or is shorter.
    """
    try:
        data = os.pread(descriptor, end - start, start)
        while len(data) < end - start:
            more = os.pread(descriptor, end - start - len(data), start + len(data))
            if not more:
                raise SourceError(
                    f"{path}: has {start + len(data)} bytes, {int(end)} are to be read;"
                    " allowed: files that only grow (write a new file instead)"
                )
            data += more
    except OSError as error:
        raise unreadable(path, error) from error
    return data


def unreadable(path: Path, error: OSError) -> SourceError:
    """Return the error for a file or directory that cannot be read."""
    return SourceError(f"{path}: cannot be read ({error.strerror}); allowed: files this worker may read")
