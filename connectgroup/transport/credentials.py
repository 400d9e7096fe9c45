"""Files of credentials, and how a client on the coordinator's machine finds them.

A file of credentials has one ``name=password`` per line and is accessible to its owner only. A coordinator creates one
in its data directory, and leaves a note with the path of that file where all processes of the same user look for it: in
``connectgroup`` below ``$XDG_STATE_HOME`` (``~/.local/state``), one note for each port. So workers and commands of this
user on this machine need no option. A note or a file that another user could have written is not used.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ..errors import ConfigError
from ..protocol.units import printable
from .limits import is_loopback

USER: Final = "connectgroup"
"""The user name in a file of credentials that a coordinator creates."""

FILE_NAME: Final = "credentials"
"""The name of that file in the data directory."""

VARIABLE: Final = "CONNECTGROUP_CREDENTIALS"
"""Environment variable with the path of a client's file of credentials."""

_MAX_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user name and its password; the ``repr`` does not show the password."""

    name: str
    password: str = field(repr=False)


def read_passwords(setting: str, path: Path) -> dict[str, str]:
    """Read a file of credentials: password by name, in the order of the file.

    Raises:
        ConfigError: the file cannot be read, is accessible to other users of this machine, or has an invalid line.
    """
    try:
        found = path.stat()
        if stat.S_IMODE(found.st_mode) & 0o077:
            raise ConfigError(setting, path, "a file that is accessible to its owner only (chmod 600)")
        if found.st_size > _MAX_BYTES:
            raise ConfigError(setting, path, f"a file of at most {_MAX_BYTES} bytes")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a NUL in the path
        raise ConfigError(setting, f"{path} ({printable(error)})", "a readable file") from error
    users: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        name, equals, password = (part.strip() for part in line.partition("="))
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not equals or not name or not password or ":" in name or name in users:
            raise ConfigError(setting, f"{path}:{number}", "name=password on each line, each name once, no ':' in it")
        users[name] = password
    if not users:
        raise ConfigError(setting, path, "a file with at least one name=password")
    return users


def read_credentials(setting: str, path: Path) -> Credentials:
    """The first name and password of a file.

    Raises:
        ConfigError: see ``read_passwords``.
    """
    name, password = next(iter(read_passwords(setting, path).items()))
    return Credentials(name, password)


def create_credentials(path: Path) -> None:
    """Create a file with a random password (mode 0600, in a directory of mode 0700), unless it exists.

    Raises:
        ConfigError: it cannot be created.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            _write(path, f"{USER}={secrets.token_urlsafe(32)}\n")
    except OSError as error:
        raise ConfigError("credentials", path, f"a file that can be created ({error.strerror})") from error


def announce(port: int, path: Path) -> Path | None:
    """Leave the note for clients of this user: the coordinator at this port of this machine uses this file.

    Returns:
        The note, for ``withdraw``; null if none can be written: clients then need an option.
    """
    note = _note(port)
    try:
        note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        other = note.with_name(f"{note.name}.{os.getpid()}")
        other.unlink(missing_ok=True)
        _write(other, f"{path.absolute()}\n")
        other.replace(note)
    except (OSError, RuntimeError):  # RuntimeError: this user has no home directory
        return None
    return note


def withdraw(port: int) -> None:
    """Remove the note for a port."""
    with contextlib.suppress(OSError, RuntimeError):
        _note(port).unlink()


def own_file(port: int) -> Path:
    """The file of credentials of a coordinator without a data directory, beside its note."""
    return _note(port).with_suffix(".credentials")


def find_credentials(host: str, port: int) -> Credentials | None:
    """The credentials for a server: of the file in ``VARIABLE``, else of a coordinator of this user on this machine.

    Returns:
        ``None`` if the variable is not set and there is no note for the port.

    Raises:
        ConfigError: the file that the variable names cannot be used.
    """
    if named := os.environ.get(VARIABLE):
        return read_credentials(VARIABLE, Path(named))
    if host.lower() != "localhost" and not is_loopback(host):
        return None
    try:
        note = _note(port)
        if not _is_private(note):
            return None
        path = Path(note.read_text(encoding="utf-8").strip())
        return read_credentials("credentials", path) if _is_private(path) else None
    except (OSError, UnicodeError, RuntimeError, ConfigError):
        return None


def _note(port: int) -> Path:
    state = os.environ.get("XDG_STATE_HOME") or ""
    root = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    return root / "connectgroup" / f"coordinator-{port}"


def _is_private(path: Path) -> bool:
    found = path.stat()
    return found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077


def _write(path: Path, text: str) -> None:
    """Create a file of mode 0600 that does not exist yet."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(file, "w", encoding="utf-8") as opened:
        opened.write(text)
