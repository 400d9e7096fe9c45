"""Directories of which this user alone decides what is in them: scripts and jars that are executed, secrets, logs.

Their mode is 0700 whatever the umask is. A directory that is there already is used only if no other user could have put
something into it.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import NO_VALUE, ConfigError

TEMPORARY = "TMPDIR"
"""Environment variable with the directory for temporary files."""

ALLOWED = "a directory, no link, that belongs to this user (or root) and that no other user can write"


def make_private(path: Path, field: str, *, below: Path | None = None, may_be_sticky: bool = False) -> None:
    """Create a directory of mode 0700, and those above it that are missing; or check one that exists.

    Args:
        path: the directory.
        field: the setting that names it, for the error.
        below: check, and create, the directories from this one down to ``path``, each of them.
        may_be_sticky: whether others may write it if none can replace what is not theirs, as in ``/tmp``.

    Raises:
        ConfigError: it is a link or belongs to another user, others can write it, or it cannot be created.
    """
    if below is not None and below != path:
        make_private(path.parent, field, below=below)
    try:
        _make(path)
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) and not stat.S_ISLNK(found.st_mode):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    except OSError as error:
        raise ConfigError(field, path, f"a directory that can be created ({error.strerror})", is_path=True) from error
    if not (may_be_sticky and stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX):
        check_private(path, found, field)


def check_private(path: Path, found: os.stat_result, field: str) -> None:
    """Check the status of a directory, as ``lstat`` returns it.

    Raises:
        ConfigError: another user may decide what is in it.
    """
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid in (os.geteuid(), 0)
    if not is_ours or found.st_mode & 0o022:
        raise ConfigError(field, path, ALLOWED, is_path=True)


def make_directories(path: Path) -> None:
    """Create a directory and those above it that are missing: no other user can write them, and so replace what is in
    them, whatever the umask is. Those that are there stay as they are.

    Raises:
        OSError: it cannot be created.
    """
    try:
        os.mkdir(path, 0o755)
        set_mode(path, stat.S_IMODE(path.stat().st_mode) | 0o700)
    except FileExistsError:
        if not path.is_dir():
            raise
    except FileNotFoundError:
        if path.parent.is_dir():
            raise
        make_directories(path.parent)
        make_directories(path)


def set_mode(path: Path, mode: int) -> None:
    """Set the mode of a file or directory if it has another one: file systems without modes (vfat, CIFS) refuse even a
    change that changes nothing.

    Raises:
        OSError: it cannot be set.
    """
    if stat.S_IMODE(path.stat().st_mode) != mode:
        os.chmod(path, mode)


_outer: list[str] = []
"""What was the directory for temporary files, outside of each block of ``temporary_files_in``, which changes it."""


@contextmanager
def temporary_files_in(directory: Path) -> Iterator[None]:
    """Have this process and those that it starts place their temporary files below a directory."""
    before, variable, outer = tempfile.tempdir, os.environ.get(TEMPORARY), ""
    with suppress(FileNotFoundError):  # none can be written
        outer = tempfile.gettempdir()
    _outer.append(outer)
    tempfile.tempdir = os.environ[TEMPORARY] = str(directory)
    try:
        yield
    finally:
        tempfile.tempdir = before
        _outer.pop()
        if variable is None:
            del os.environ[TEMPORARY]
        else:
            os.environ[TEMPORARY] = variable


def temporary_parent(*, shared: bool = False) -> Path:
    """The directory for temporary files of this process.

    Args:
        shared: the one outside of ``temporary_files_in``, which other processes of this user have, too.

    Raises:
        ConfigError: none can be written.
    """
    if shared and _outer and _outer[0]:
        return Path(_outer[0])
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        raise _not_writable(error) from error


@contextmanager
def temporary_directory(prefix: str) -> Iterator[Path]:
    """A directory that only this user can read; it is removed at the end of the block.

    Raises:
        ConfigError: it cannot be created.
    """
    try:
        made = tempfile.TemporaryDirectory(prefix=prefix)
    except OSError as error:
        raise _not_writable(error) from error
    with made as name:
        yield Path(name)


def write_temporary(path: Path, text: str) -> None:
    """Write a file below a ``temporary_directory``.

    Raises:
        ConfigError: the disk is full.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _not_writable(error) from error


def _not_writable(error: OSError) -> ConfigError:
    named = os.environ.get(TEMPORARY) or NO_VALUE
    # The text of ``gettempdir`` lists what it has tried.
    return ConfigError(TEMPORARY, named, f"a directory that can be written ({error.strerror})")


def _make(path: Path) -> None:
    """Create a directory and those above it that are missing: the directory with exactly the mode 0700."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return
    except FileNotFoundError:
        if path.parent.is_dir():
            raise  # not a missing directory above it: in /proc, for example, no user can create one
        _make(path.parent)
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            return
    set_mode(path, 0o700)  # a umask may take rights of the owner
