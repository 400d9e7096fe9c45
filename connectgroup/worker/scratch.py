"""The scratch directory of a worker process.

Each process makes a new directory of mode 0700 with a name nobody can predict, and never deletes a directory it did not
make. A marker file in it holds the worker's name and is locked (``flock``) while the process lives. A later process of
the same name removes a directory only if all of these hold: it is no symbolic link, this user owns it, its marker holds
the same name, and the marker's lock is free, so the process that made it has ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path

from ..errors import ConfigError
from .runner import file_name

MARKER = ".connectgroup-worker"


def default_parent() -> Path:
    """``connectgroup-UID`` in the system's directory for temporary files; created with mode 0700.

    Its name can be predicted, so what is found there is used only if it is a directory that this user alone can write.

    Raises:
        ConfigError: it is something else, or it cannot be created.
    """
    path = Path(tempfile.gettempdir()) / f"connectgroup-{os.geteuid()}"
    allowed = "a directory, not a symbolic link, that this user owns and nobody else can write; or another --scratch"
    try:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        found = path.lstat()
    except OSError as error:
        raise ConfigError("--scratch", path, f"{allowed} ({error.strerror})") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise ConfigError("--scratch", path, allowed)
    return path


class Scratch:
    """A new, private directory below ``parent``; ``path`` says where.

    Attributes:
        path: the directory; of this process alone.
    """

    def __init__(self, parent: Path, name: str) -> None:
        """Create the directory, and remove those that former processes of this name left behind when they were killed.

        Args:
            parent: created where it does not exist.
            name: the worker's name.

        Raises:
            ConfigError: no directory can be created in ``parent``.
        """
        prefix, marker = f"{file_name(name)}-", name.encode()
        try:
            parent.mkdir(parents=True, exist_ok=True)
            for left in parent.glob(f"{prefix}*"):
                _remove_leftover(left, marker)
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
            self._lock = _mark(self.path, marker)
        except OSError as error:
            raise ConfigError("scratch", parent, f"a directory this user can write ({error.strerror})") from error

    def remove(self) -> None:
        """Delete the directory with all it holds. A second call does nothing."""
        if self._lock >= 0:
            _remove(self.path)
            os.close(self._lock)
            self._lock = -1


def _mark(path: Path, marker: bytes) -> int:
    """Write and lock the marker file; its descriptor. The file gets its name last, when it is locked."""
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
    """Delete a directory of a former process of the same name. Anything else is left as it is."""
    with contextlib.suppress(OSError), contextlib.ExitStack() as closing:
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            return
        # O_NONBLOCK: opening a pipe of that name must not wait.
        descriptor = os.open(path / MARKER, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        closing.callback(os.close, descriptor)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            return
        if os.read(descriptor, len(marker) + 1) == marker:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(path)


def _remove(path: Path) -> None:
    """Delete the directory, its marker last: what cannot be deleted now is still known as ours later."""
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
