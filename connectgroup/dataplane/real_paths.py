"""Opens files by real paths: a link that appears after the check of a path is never followed.

A worker compares the paths of a configuration with its list and hands their real paths to the task
(``config.paths.real_paths``). Who may write there can replace a file, or a directory above it, by a link at any time
after that. So each component is opened in the directory that was opened before it, and no link is followed: a real path
leads where it led when it was checked, or nowhere.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

_PASSED: Final = getattr(os, "O_PATH", os.O_RDONLY)
"""For a descriptor that needs no right to read."""
_DIRECTORY: Final = _PASSED | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LINKS: Final = (errno.ELOOP, errno.ENOTDIR)
"""What the system says of a link where none is followed."""


@contextmanager
def opened_directory(path: Path, *, lists: bool = False) -> Iterator[int]:
    """The descriptor of a directory, for ``dir_fd``.

    Args:
        path: a real path.
        lists: whether the directory is to be listed or synced, not only passed.

    Raises:
        OSError: it does not exist or is no directory; or a component is a link.
    """
    with _named(path):
        descriptor = _walk(os.open(path.anchor, _DIRECTORY), path.parts[1:])
    try:
        if lists:
            passed = descriptor
            with _named(path):
                descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=passed)
            os.close(passed)
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def directory_in(directory: int, name: str) -> Iterator[int]:
    """The descriptor of a directory in an open one, to be listed; OSError if it is a link."""
    descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_below(root: Path, name: str) -> BinaryIO:
    """Open a regular file below a directory for reading.

    Args:
        root: a real path.
        name: the path below it. A link counts as what it leads to, if that is below the directory.

    Raises:
        OSError: it does not exist, is not a regular file, or is not below the directory.
    """
    parts: Sequence[str] = name.split("/")
    if "" in parts or "." in parts:
        parts = Path(name).parts
    try:
        return _open_file(root, parts)
    except OSError as error:
        if error.errno not in _LINKS:
            raise
    real = Path(os.path.realpath(root / name))
    if root not in real.parents:
        raise OSError(errno.ELOOP, f"leads to {real}", str(root / name))
    return _open_file(root, real.relative_to(root).parts)


def open_file(path: Path) -> BinaryIO:
    """Open a regular file for reading.

    Args:
        path: a real path.

    Raises:
        OSError: it does not exist or is not a regular file; or a component is a link.
    """
    return _open_file(path.parent, (path.name,))


def create_file(path: Path) -> BinaryIO:
    """Create a file for writing.

    Args:
        path: a real path at which nothing is.

    Raises:
        OSError: there is something, also a link; or the directory cannot be written.
    """
    with _named(path), opened_directory(path.parent) as directory:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.fdopen(os.open(path.name, flags, 0o666, dir_fd=directory), "wb")


def open_to_append(path: Path) -> int:
    """Return the descriptor of a regular file to append to; it is created if it is missing.

    Args:
        path: a real path.

    Raises:
        OSError: it is a link or no regular file, or cannot be written.
    """
    with _named(path), opened_directory(path.parent) as directory:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return _regular(os.open(path.name, flags, 0o666, dir_fd=directory))


def make_directory(path: Path) -> None:
    """Create a directory if it is missing; its parent must exist.

    Args:
        path: a real path.

    Raises:
        OSError: it cannot be created, or something else is there, also a link.
    """
    with _named(path), opened_directory(path.parent) as parent, suppress(FileExistsError):
        os.mkdir(path.name, dir_fd=parent)
    with opened_directory(path):
        pass


def remove_file(path: Path) -> None:
    """Delete the file at a real path; there may be none, or a link on the way."""
    try:
        with _named(path), opened_directory(path.parent) as directory:
            os.unlink(path.name, dir_fd=directory)
    except OSError as error:
        if error.errno not in (errno.ENOENT, *_LINKS):
            raise


def file_at(path: Path) -> tuple[int, int]:
    """Return device and inode of the regular file at a real path.

    Raises:
        OSError: there is none, or a link.
    """
    with _named(path), opened_directory(path.parent) as directory:
        found = os.stat(path.name, dir_fd=directory, follow_symlinks=False)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.ELOOP, _irregular(found.st_mode), str(path))
    return found.st_dev, found.st_ino


def has_open(file: tuple[int, int]) -> bool:
    """Whether this process has a file open, given device and inode; true where the system does not tell."""
    try:
        descriptors = os.listdir("/proc/self/fd")
    except OSError:
        return True
    for each in descriptors:
        with suppress(OSError):
            found = os.fstat(int(each))
            if (found.st_dev, found.st_ino) == file:
                return True
    return False


def _open_file(root: Path, parts: Sequence[str]) -> BinaryIO:
    with _named(root, *parts):
        directory = _walk(os.open(root.anchor, _DIRECTORY), [*root.parts[1:], *parts[:-1]])
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            return os.fdopen(_regular(os.open(_plain(parts[-1]), flags, dir_fd=directory)), "rb")
        finally:
            os.close(directory)


@contextmanager
def _named(path: Path, *parts: str) -> Iterator[None]:
    """Errors name the whole path, not the component: it is what a configuration, and so a secret, contains."""
    try:
        yield
    except OSError as error:
        error.filename = str(path.joinpath(*parts))
        raise


def _walk(descriptor: int, parts: Sequence[str]) -> int:
    """Return the descriptor of a directory below an open one, which is closed."""
    for part in parts:
        outer = descriptor
        try:
            descriptor = os.open(_plain(part), _DIRECTORY, dir_fd=outer)
        except OSError as error:
            if error.errno in _LINKS and _is_link(part, outer):
                raise OSError(errno.ELOOP, "a component is a symbolic link") from error
            raise
        finally:
            os.close(outer)
    return descriptor


def _is_link(part: str, directory: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(part, dir_fd=directory, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _plain(part: str) -> str:
    if part == "..":
        raise OSError(errno.EINVAL, "a path with ..")
    return part


def _regular(descriptor: int) -> int:
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, _irregular(found.st_mode))
    return descriptor


def _irregular(mode: int) -> str:
    return "is a symbolic link" if stat.S_ISLNK(mode) else "not a regular file"
