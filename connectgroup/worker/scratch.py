"""The scratch directory of a worker process.

Each process creates a new directory of mode 0700 with an unpredictable name. A marker file in the directory contains
the worker's name and is locked (``flock``) while the process lives. A process deletes a directory of another process
only if all of these conditions hold: the directory is not a symbolic link, this user owns it, its marker contains the
same worker name, and the marker's lock is free, so the process that created it has ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from ..errors import ConfigError
from ..private import make_directories, temporary_files_in, temporary_parent

MARKER = ".connectgroup-worker"


def default_parent() -> Path:
    """Return ``connectgroup-UID`` in the system's directory for temporary files; created with mode 0700.

    The name is predictable, so an existing entry is used only if it is a directory that only this user can write.

    Raises:
        ConfigError: the existing entry is something else, or the directory cannot be created.
    """
    path = temporary_parent() / f"connectgroup-{os.geteuid()}"
    allowed = "a directory, not a symbolic link, that this user owns and no other user can write; or scratch=DIRECTORY"
    try:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        found = path.lstat()
    except OSError as error:
        raise ConfigError("scratch", path, f"{allowed} ({error.strerror})") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise ConfigError("scratch", path, allowed)
    return path


class Scratch:
    """A new, private directory below ``parent``.

    Attributes:
        path: the directory; used by this process only.
    """

    def __init__(self, parent: Path, name: str) -> None:
        """Create the directory, and remove those that killed processes of the same worker name left behind.

        Args:
            parent: created if it does not exist.
            name: the worker's name.

        Raises:
            ConfigError: no directory can be created in ``parent``.
        """
        prefix, marker = f"{file_name(name)}-", name.encode()
        try:
            make_directories(parent)
            for left in parent.glob(f"{prefix}*"):
                _remove_leftover(left, marker)
            # Absolute: another process, such as Java, may have another working directory.
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent.absolute()))
            self._lock = _mark(self.path, marker)
        except OSError as error:
            raise ConfigError("scratch", parent, f"a directory this user can write ({error.strerror})") from error

    @contextlib.contextmanager
    def for_temporary_files(self) -> Iterator[None]:
        """Have this process and those that it starts place their temporary files below the directory.

        Java leaves such files behind if it is killed; a later worker of this name deletes them with the directory.
        """
        directory = self.path / "tmp"
        directory.mkdir(mode=0o700)
        with temporary_files_in(directory):
            yield

    def leave(self) -> None:
        """Leave the directory to the next process of the same worker: ``remove`` will have no effect."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def remove(self) -> None:
        """Delete the directory and its contents. A second call has no effect."""
        if self._lock >= 0:
            _remove(self.path)
            os.close(self._lock)
            self._lock = -1


def new_directory(parent: Path, name: str) -> Path:
    """Create a new directory of mode 0700 below ``parent``, which is created if it does not exist.

    Returns its absolute path.

    Args:
        name: the start of the directory's name; the rest is unpredictable, so that no existing directory is used.
    """
    make_directories(parent)
    return Path(tempfile.mkdtemp(prefix=f"{file_name(name)}-", dir=parent.absolute()))


def remove_directory(path: Path) -> None:
    """Delete a directory that ``new_directory`` created, and its contents; errors are ignored."""
    try:
        path.rmdir()  # ten times as fast as rmtree, and most directories are empty
    except OSError:
        shutil.rmtree(path, ignore_errors=True)


def file_name(name: str) -> str:
    """Convert a name to the name of one file: the result has no path separators, and distinct names stay distinct."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:80]
    return plain if name and plain == name else f"{plain}-{zlib.crc32(name.encode()):08x}"


def _mark(path: Path, marker: bytes) -> int:
    """Write and lock the marker file; return its descriptor. The file is renamed to its final name after the lock."""
    unnamed = path / f"{MARKER}.new"
    descriptor = os.open(unnamed, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(descriptor, marker)
        unnamed.rename(path / MARKER)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _remove_leftover(path: Path, marker: bytes) -> None:
    """Delete a directory that an ended process of the same worker name left behind. Leave anything else unchanged."""
    with contextlib.suppress(OSError), contextlib.ExitStack() as closing:
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            return
        # O_NONBLOCK: opening a named pipe must not block.
        descriptor = os.open(path / MARKER, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        closing.callback(os.close, descriptor)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            return
        if os.read(descriptor, len(marker) + 1) == marker:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(path)


def _remove(path: Path) -> None:
    """Delete the directory, its marker last: entries that cannot be deleted now remain identifiable later."""
    for each in path.iterdir():
        if each.name == MARKER:
            continue
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                each.unlink()
    if [each.name for each in path.iterdir()] == [MARKER]:
        shutil.rmtree(path, ignore_errors=True)
