"""Files of credentials, and how a client on the coordinator's machine finds them.

A file of credentials has one ``name=password`` per line and is accessible to its owner only. A coordinator creates one
in its data directory, and leaves a note with the path of that file where all processes of the same user look for it: in
``connectgroup`` below ``$XDG_STATE_HOME`` (``~/.local/state``), one note for each port. So workers and commands of this
user on this machine need no option. A note or a file that another user could have written is not used.

``log_in`` is the client's side on a new connection, by SaslHandshake and SaslAuthenticate: SCRAM, or PLAIN on request.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import secrets
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from ..errors import NO_VALUE, ConfigError, CoordinatorNotAvailable, NotAuthenticated, TransportError
from ..private import make_directories, make_private
from ..protocol.messages.api import Request, Response
from ..protocol.messages.cluster import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from ..protocol.units import printable
from ..sasl import DIGESTS, MECHANISM, PLAIN, SaslError, ScramClient
from .base import reason
from .limits import is_loopback

USER: Final = "connectgroup"
"""The user name in a file of credentials that a coordinator creates."""

FILE_NAME: Final = "credentials"
"""The name of that file in the data directory."""

VARIABLE: Final = "CONNECTGROUP_CREDENTIALS"
"""Environment variable with the path of a client's file of credentials."""

_MAX_BYTES: Final = 1 << 20
_LINES_ALLOWED: Final = "name=password on each line, each name once, no ':' in it"
_NOTE_ALLOWED: Final = "a note that only this user can read, with the path of a file of credentials; or no note"


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user name and its password; the ``repr`` does not show the password."""

    name: str
    password: str = field(repr=False)


def fingerprint(passwords: Mapping[str, str]) -> str:
    """Four digits, equal for equal names and passwords: too few to tell a password that was guessed from others."""
    text = "\n".join(f"{name}={password}" for name, password in sorted(passwords.items()))
    return hashlib.scrypt(text.encode(), salt=b"connectgroup", n=2**14, r=8, p=1, dklen=2).hex()


def read_passwords(setting: str, path: Path) -> dict[str, str]:
    """Read a file of credentials: password by name, in the order of the file.

    Raises:
        ConfigError: the file cannot be read, is accessible to other users of this machine, or has an invalid line.
    """
    try:
        found = path.stat()
        if stat.S_IMODE(found.st_mode) & 0o077:
            raise ConfigError(setting, path, "a file that is accessible to its owner only (chmod 600)", is_path=True)
        if found.st_size > _MAX_BYTES:
            raise ConfigError(setting, path, f"a file of at most {_MAX_BYTES} bytes", is_path=True)
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a NUL in the path
        reason = getattr(error, "strerror", None) or printable(error)
        raise ConfigError(setting, path, f"a readable file ({reason})", is_path=True) from error
    users: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        name, equals, password = (part.strip() for part in line.partition("="))
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not equals or not name or not password or ":" in name or name in users:
            raise ConfigError(setting, f"{path}:{number}", _LINES_ALLOWED, is_path=True)
        users[name] = password
    if not users:
        raise ConfigError(setting, path, "a file with at least one name=password", is_path=True)
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
        make_directories(path.parent.parent)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        if path.exists():
            return
        # Written under another name first: a process that ends meanwhile leaves no incomplete file of credentials.
        other = path.with_name(f".{path.name}.{os.getpid()}")
        other.unlink(missing_ok=True)
        try:
            _write(other, f"{USER}={secrets.token_urlsafe(32)}\n")
            with contextlib.suppress(FileExistsError):  # another process was first
                os.link(other, path)
        finally:
            other.unlink(missing_ok=True)
    except OSError as error:
        allowed = f"a file that can be created ({error.strerror})"
        raise ConfigError("credentials", path, allowed, is_path=True) from error


def announce(port: int, path: Path) -> bool:
    """Leave the note for clients of this user: the coordinator at this port of this machine uses this file.

    Returns:
        Whether it could be written; otherwise clients need an option.
    """
    try:
        note = _note(port)
        make_private(note.parent, "credentials")
        other = note.with_name(f"{note.name}.{os.getpid()}")
        other.unlink(missing_ok=True)
        _write(other, f"{path.absolute()}\n")
        other.replace(note)
    except (OSError, ConfigError, RuntimeError):  # RuntimeError: this user has no home directory
        return False
    return True


def withdraw(port: int) -> None:
    """Remove the note for a port."""
    with contextlib.suppress(OSError, RuntimeError):
        _note(port).unlink()


def own_file(port: int) -> Path:
    """The file of credentials of a coordinator without a data directory, beside its note.

    Raises:
        ConfigError: this user has no home directory.
    """
    try:
        return _note(port).with_suffix(".credentials")
    except RuntimeError as error:
        raise ConfigError("credentials", NO_VALUE, "a file, because this user has no home directory for one") from error


def named_credentials() -> Credentials | None:
    """The credentials of the file in ``VARIABLE``; ``None`` if the variable is not set.

    Raises:
        ConfigError: the file cannot be used.
    """
    named = os.environ.get(VARIABLE)
    return read_credentials(VARIABLE, Path(named)) if named else None


def find_credentials(host: str, port: int) -> Credentials | None:
    """The credentials for a server: of the file in ``VARIABLE``, else of a coordinator of this user on this machine.

    Returns:
        ``None`` if the variable is not set and there is no note for the port.

    Raises:
        ConfigError: the note, or the file that the variable or the note names, cannot be used. A client must not
            connect without credentials then: the server may be another program.
    """
    if (named := named_credentials()) is not None:
        return named
    if host.lower() != "localhost" and not is_loopback(host):
        return None
    try:
        note = _note(port)
        found = note.stat()
    except (FileNotFoundError, RuntimeError):  # RuntimeError: this user has no home directory
        return None
    except OSError as error:
        raise ConfigError("credentials", f"{_note(port)} ({reason(error)})", _NOTE_ALLOWED, is_path=True) from error
    setting = f"credentials of the coordinator in {note}"
    try:
        if not _is_private(found):
            raise ConfigError(setting, note, _NOTE_ALLOWED, is_path=True)
        path = Path(note.read_text(encoding="utf-8", errors="surrogateescape").strip())
        if path.stat().st_uid != os.geteuid():
            raise ConfigError(setting, path, "a file of this user", is_path=True)
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a NUL in the path
        raise ConfigError(setting, printable(error), _NOTE_ALLOWED, is_path=True) from error
    return read_credentials(setting, path)


def _note(port: int) -> Path:
    state = os.environ.get("XDG_STATE_HOME") or ""
    root = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    return root / "connectgroup" / f"coordinator-{port}"


def _is_private(found: os.stat_result) -> bool:
    return found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077


def _write(path: Path, text: str) -> None:
    """Create a file of mode 0600 that does not exist yet."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    # A path in it may have bytes that are not UTF-8.
    with open(file, "w", encoding="utf-8", errors="surrogateescape") as opened:
        opened.write(text)
        opened.flush()
        os.fsync(file)


Send = Callable[[Request], asyncio.Future[Response]]

R = TypeVar("R", bound=Response)

MECHANISMS: Final = (*DIGESTS, PLAIN)
"""What a client supports."""

ALLOWED: Final = f"access=Access(credentials=...), or {VARIABLE}, with a user of the coordinator's file of credentials"


async def log_in(
    address: str, credentials: Credentials, send: Send, *, mechanism: str = MECHANISM, allowed: str = ALLOWED
) -> int:
    """Prove the password to the server; by SCRAM, check that the server knows it too.

    By SCRAM, the password is not sent: a process that listens at the server's address does not learn it.

    Args:
        address: of the server, for errors.
        mechanism: of ``MECHANISMS``.
        allowed: how a user gives other credentials, for errors.

    Returns:
        Milliseconds until the server closes the connection unless the client authenticates again (KIP-368); 0: never.

    Raises:
        NotAuthenticated: one of the two failed.
        TransportError: the connection was lost, or the server takes no more connections for now.
    """
    chosen = await _send(send, SaslHandshakeRequest(mechanism=mechanism), SaslHandshakeResponse)
    if chosen.error_code == CoordinatorNotAvailable.code:
        # The response to the first request of a connection above a limit; this one has no field for the reason.
        raise TransportError(f"{address}: takes no more connections now (its log says why)")
    if chosen.error_code:
        offered = printable(", ".join(chosen.mechanisms))
        raise NotAuthenticated(f"{address}: does not support {mechanism}; it offers {offered or 'no mechanism'}")

    async def answer(token: bytes) -> SaslAuthenticateResponse:
        found = await _send(send, SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse)
        if found.error_code == CoordinatorNotAvailable.code:
            raise TransportError(f"{address}: {printable(found.error_message or 'not available')}")
        if found.error_code:
            name, text = printable(credentials.name), printable(found.error_message or "")
            raise NotAuthenticated(f"{address}: rejects user {name!r}: {text}; allowed: {allowed}")
        return found

    if mechanism == PLAIN:
        return (await answer(f"\0{credentials.name}\0{credentials.password}".encode())).session_lifetime_ms
    nonce = secrets.token_urlsafe(18)
    exchange = ScramClient(credentials.name, credentials.password, nonce=nonce, mechanism=mechanism)
    try:
        last = await answer(exchange.final((await answer(exchange.first())).auth_bytes))
        exchange.finish(last.auth_bytes)
    except SaslError as error:
        raise NotAuthenticated(f"{address}: authentication failed: {error}") from error
    return last.session_lifetime_ms


async def _send(send: Send, request: Request, expected: type[R]) -> R:
    response = await send(request)
    assert isinstance(response, expected)
    return response


def credentials_missing(address: str, *, allowed: str = ALLOWED) -> NotAuthenticated:
    """The error of a client without credentials, whose server requires them.

    Args:
        allowed: how a user gives credentials to this client.
    """
    return NotAuthenticated(
        f"{address}: requires authentication, and no credentials were found for it on this machine; allowed: {allowed}"
    )


def server_unauthenticated(address: str) -> NotAuthenticated:
    """The error of a client that has or had credentials, whose server does not ask for them: it may be any process."""
    return NotAuthenticated(
        f"{address}: does not authenticate its clients, but there are or were credentials for it; is another program "
        f"listening there? allowed: no credentials and no {VARIABLE} for a coordinator without authentication"
    )
