"""A PostgreSQL server for tests: Debian's package, one process tree, its data in a temporary directory."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from tests.integration.processes import NotStarted, Program, started

WITH_PASSWORD = "with_password"
"""The one user who needs a password; a test creates it."""


class Unavailable(Exception):
    """What is missing on this machine; the reason for skipping tests."""


def programs() -> Path:
    """Return the directory of ``initdb`` and ``postgres``.

    Raises:
        Unavailable: PostgreSQL is not installed.
    """
    packaged = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    found = shutil.which("initdb") or (str(packaged[-1]) if packaged else None)
    if found is None:
        raise Unavailable("PostgreSQL is not installed; Debian's package is called postgresql")
    return Path(found).resolve().parent


@contextlib.contextmanager
def running_server() -> Iterator[str]:
    """A server until the end of the block; yields its connection string.

    Raises:
        Unavailable: PostgreSQL is not installed, or cannot create its data directory.
    """
    with _new_data() as scratch, _served(programs(), scratch, _user()) as url:
        yield url


class RestartableServer:
    """A server that is killed and started again, at the same port and with the same data; end it with ``close``.

    Attributes:
        url: its connection string.
    """

    def __init__(self) -> None:
        """Raises ``Unavailable`` as ``running_server``."""
        self._data = contextlib.ExitStack()
        self._scratch = self._data.enter_context(_new_data())
        self._server, (self._port,) = _start(programs(), self._scratch, _user(), 1)
        self.url = _url(self._port)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._data.close()

    def kill(self) -> None:
        """SIGKILL of all its processes: a crash."""
        self._server.kill()

    def start(self) -> None:
        """Start it again; return when it answers."""
        self._server, _ = _start(programs(), self._scratch, _user(), [self._port])


@contextlib.contextmanager
def _new_data() -> Iterator[Path]:
    """A directory with the data of a new server."""
    binaries = programs()
    user = _user()
    with tempfile.TemporaryDirectory(prefix="connectgroup-postgres-") as scratch:
        data = Path(scratch, "data")
        data.mkdir(mode=0o700)
        os.chmod(scratch, 0o755)
        if user is not None:
            entry = pwd.getpwnam(user)
            os.chown(data, entry.pw_uid, entry.pw_gid)
        made = subprocess.run(
            [
                binaries / "initdb",
                "-D",
                data,
                "-U",
                "test",
                "--auth=trust",
                "--encoding=UTF8",
                "--no-sync",
                "--no-locale",
            ],
            user=user,
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        if made.returncode:
            raise Unavailable(f"initdb failed: {made.stderr.strip()[-300:]}")
        access = data / "pg_hba.conf"
        access.write_text(f"host all {WITH_PASSWORD} 127.0.0.1/32 scram-sha-256\n{access.read_text()}")
        yield Path(scratch)


@contextlib.contextmanager
def running_standby(url: str) -> Iterator[str]:
    """A hot standby of a server until the end of the block; yields its connection string."""
    binaries = programs()
    user = _user()
    with tempfile.TemporaryDirectory(prefix="connectgroup-postgres-") as scratch:
        os.chmod(scratch, 0o755)
        data = Path(scratch, "data")
        data.mkdir(mode=0o700)
        if user is not None:
            os.chown(data, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
        backup = [str(binaries / "pg_basebackup"), "-d", url, "-D", str(data), "-R", "-c", "fast", "--no-sync"]
        subprocess.run(backup, user=user, cwd="/", check=True, capture_output=True, timeout=120)
        with _served(binaries, Path(scratch), user) as standby:
            yield standby


def _user() -> str | None:
    """Return the user of the server: it refuses to run as root."""
    if os.geteuid() != 0:
        return None
    return "postgres" if "postgres" in {entry.pw_name for entry in pwd.getpwall()} else "nobody"


@contextlib.contextmanager
def _served(binaries: Path, scratch: Path, user: str | None) -> Iterator[str]:
    server, (port,) = _start(binaries, scratch, user, 1)
    with server:
        yield _url(port)


def _start(binaries: Path, scratch: Path, user: str | None, ports: int | list[int]) -> tuple[Program, list[int]]:
    def launch(port: int) -> Program:
        options = (
            "-D",
            scratch / "data",
            "-p",
            port,
            "-h",
            "127.0.0.1",
            "-k",
            "",
            "-c",
            "fsync=off",
            "-c",
            "wal_level=logical",
            "-c",
            "max_prepared_transactions=10",
        )
        return Program(*options, command=[binaries / "postgres"], user=user, cwd=Path("/"), tied=True)

    try:
        return started("PostgreSQL", launch, lambda port: _answers(_url(port)), ports)
    except NotStarted as ended:
        raise Unavailable(str(ended)) from None


def _url(port: int) -> str:
    return f"postgresql://test@127.0.0.1:{port}/postgres"


def _answers(url: str) -> bool:
    import psycopg

    with contextlib.suppress(psycopg.OperationalError), psycopg.connect(url, connect_timeout=2):
        return True
    return False


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The connection string of a PostgreSQL server; skipped if there is none, except in continuous integration."""
    with contextlib.ExitStack() as stack:
        try:
            import psycopg  # noqa: F401

            url = stack.enter_context(running_server())
        except (Unavailable, ImportError) as missing:
            if os.environ.get("CI") == "true":
                pytest.fail(f"continuous integration has no PostgreSQL: {missing}")
            pytest.skip(str(missing))
        yield url


@pytest.fixture
def database(postgres: str) -> Iterator[str]:
    """The connection string of a new database. Connections that a failed source has left are ended after the test."""
    import psycopg

    name = f"d{uuid.uuid4().hex}"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield postgres.rpartition("/")[0] + f"/{name}"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
