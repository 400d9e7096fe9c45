"""Lists the files of a directory, and reads bytes of them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from ...dataplane.errors import SourceError
from ...dataplane.ownership import Range
from ...dataplane.real_paths import directory_in, open_below, opened_directory

logger = logging.getLogger(__name__)

UNFINISHED: Final = (".tmp", ".part")
_HIDDEN: Final = (".", "_")
_BLOCK_BYTES: Final = 64 * 1024


def list_inodes(root: Path, pattern: str, problems: dict[str, str], skipped: list[str] | None = None) -> dict[str, int]:
    """Return the inodes of all files below a directory by name, except hidden and unfinished ones (``UNFINISHED``).
    That of a link is the one of the file that it leads to.

    A symbolic link to a file outside of the directory is left out: a link that another user places there would copy a
    file that only the worker's user may read. So is a directory that cannot be read.

    Args:
        root: the directory.
        pattern: a glob for file names or, with a ``/``, for paths below the directory; empty: all.
        problems: receives the names of such links and directories, and the error of each, for the task that owns the
            name: the others go on.
        skipped: receives the names of the files and directories that are left out without an error; a directory stands
            for all that is in it. Null: no caller wants them.

    Raises:
        SourceError: the directory itself cannot be read.
    """
    skipped = [] if skipped is None else skipped
    if not root.is_dir():
        what = "not a directory" if root.exists() else "does not exist"
        raise SourceError(f"{root}: {what}; allowed: source.path names a directory that can be read")
    found, has_path = {}, "/" in pattern
    try:
        with opened_directory(root, lists=True) as directory:
            for name, entry in _files_below(directory, "", root, problems, skipped):
                if pattern and not fnmatchcase(name if has_path else entry.name, pattern):
                    skipped.append(name)
                    continue
                if not name.isascii() and (shown := shown_name(name)) != name:
                    problems[shown] = f"{root / shown}: is no name in UTF-8; allowed: names in UTF-8"
                    continue
                if not entry.is_symlink():
                    found[name] = entry.inode()
                elif target := _outside(root, name):
                    problems[name] = f"{root / name}: links to {target}; allowed: links to files below {root}"
                else:
                    found[name] = _inode_behind(entry)
    except OSError as error:
        raise unreadable(root, error) from error
    return found


def without_second_names(root: Path, inodes: Mapping[str, int], skipped: list[str]) -> Mapping[str, int]:
    """Return files without the further names of each: links to it, hard or symbolic. Its rows would be read again.

    The first name counts that is no symbolic link. If it vanishes, the file counts as renamed.

    Args:
        root: the directory.
        inodes: what ``list_inodes`` has returned.
        skipped: receives the other names.
    """
    if len(set(inodes.values())) == len(inodes):
        return inodes
    names: dict[int, list[str]] = {}
    for name, inode in inodes.items():
        names.setdefault(inode, []).append(name)
    second = set[str]()
    for group in names.values():
        first = set[tuple[int, int]]()
        for name in sorted(group, key=lambda name: (os.path.islink(root / name), name)) if len(group) > 1 else ():
            try:
                found = os.stat(root / name)
            except OSError:
                continue  # The planner reports it.
            # Directories of other disks have the same inodes.
            if (found.st_dev, found.st_ino) in first:
                second.add(name)
            first.add((found.st_dev, found.st_ino))
    skipped += sorted(second)
    return {name: inode for name, inode in inodes.items() if name not in second}


def _inode_behind(link: os.DirEntry[str]) -> int:
    try:
        return link.stat().st_ino
    except OSError:
        return link.inode()  # The planner reports it when it opens the file.


@dataclass(slots=True)
class FileReports:
    """What of a directory has been logged, so that each file that cannot be read is logged once.

    Attributes:
        problems: files that cannot be read, as of the last call of ``log``.
        skipped: the greatest number of files that were left out.
    """

    problems: set[str] = field(default_factory=set)
    skipped: int = 0

    def log(self, root: Path, problems: Mapping[str, str], skipped: int) -> None:
        """Log what is new.

        Args:
            root: the directory.
            problems: the files of a task that cannot be read, and why.
            skipped: how many files and directories of it were left out by their names.
        """
        for name in sorted(problems.keys() - self.problems):
            place = f"{root / name}"
            why = problems[name].removeprefix(place).lstrip(":, ")
            logger.warning("%s: %s; the task goes on with other files", place, why)
        self.problems = set(problems)
        # Programs write under hidden names and rename: a number that falls and rises again is no change.
        if skipped > self.skipped:
            logger.info(
                "%s: %d files or directories of this task are not read: hidden or unfinished names, names without the"
                " form of source.file.pattern, links to directories, second names of a file",
                root,
                skipped,
            )
            self.skipped = skipped


def shown_name(name: str) -> str:
    """Return the name of a file with bytes that are not UTF-8 escaped."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def is_listed(name: str, pattern: str) -> bool:
    """Whether a file is read: neither it nor a directory above it is hidden, it is not unfinished, and it has the form
    of the pattern.

    Args:
        name: its path below the directory of the source.
        pattern: as in ``list_inodes``.
    """
    parts = name.split("/")
    if any(part.startswith(_HIDDEN) for part in parts) or name.lower().endswith(UNFINISHED):
        return False
    return not pattern or fnmatchcase(name if "/" in pattern else parts[-1], pattern)


def _outside(root: Path, name: str) -> Path | None:
    """Return the target of a link if it is outside of the directory."""
    target = Path(os.path.realpath(root / name))
    return None if root in target.parents else target


def _files_below(
    directory: int, prefix: str, root: Path, problems: dict[str, str], skipped: list[str]
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield the files below an open directory; an entry is valid until the next one."""
    # Text, not paths: a directory may have 20,000 files, and is listed at each trigger.
    with os.scandir(directory) as entries:
        for entry in entries:
            name = prefix + entry.name
            if entry.name.startswith(_HIDDEN):
                skipped.append(name)
            elif not entry.is_dir():
                if entry.name.lower().endswith(UNFINISHED):
                    skipped.append(name)
                else:
                    yield name, entry
            elif entry.is_symlink():
                skipped.append(name)
            else:
                try:
                    with directory_in(directory, entry.name) as inner:
                        yield from _files_below(inner, f"{name}/", root, problems, skipped)
                except FileNotFoundError:
                    continue  # Deleted since its parent was listed.
                except OSError as error:
                    problems[shown_name(name)] = str(unreadable(root / shown_name(name), error))


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


def divided(
    root: Path,
    name: str,
    start: int,
    end: int,
    max_bytes: int,
    is_file: Callable[[int], bool] = lambda descriptor: True,
) -> list[tuple[int, int]]:
    """Divide the bytes ``[start, end)`` of a file, which are whole lines, into ranges of whole lines.

    Args:
        max_bytes: upper bound on the bytes of a range, unless a line is longer.
        is_file: whether an open file is the one that was planned: another one may have its name by now.
    """
    if end - start <= max_bytes:
        return [(start, end)]
    found, at = list[tuple[int, int]](), start
    try:
        with open_below(root, name) as file:
            is_known = is_file(file.fileno())
            while is_known and end - at > max_bytes:
                stop = last_line_end(file.fileno(), at, at + max_bytes)
                if stop == at:
                    break
                found.append((at, stop))
                at = stop
    except OSError:
        pass  # Renamed or deleted since the range was chosen: the reader finds it, or reports it.
    return [*found, (at, end)]


def read_bytes(root: Path, wanted: Range) -> bytes:
    """Return the bytes of a range.

    Raises:
        SourceError: the file cannot be read, or is shorter than when the range was chosen.
    """
    path = root / wanted.slice
    try:
        with open_below(root, wanted.slice) as file:
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
