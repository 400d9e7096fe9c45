"""Three coordinators share a log in PostgreSQL; the one that serves is killed three times; every row is counted.

    pip install 'connectgroup[all]'
    python examples/ha.py [--workers 3] [--kills 3] [--data DIR]

It needs the programs of PostgreSQL (Debian's package is called postgresql); its data is in a temporary directory. The
workers run a pipeline on Spark that writes generated rows to a SQLite table. In the end no row may be missing or
doubled, and no task may have been started again by a fail-over. See docs/several-machines.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pwd
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

COMMAND = (sys.executable, "-m", "connectgroup")
PATIENCE_S = 300.0
"""How long workers may take to start: each starts a Java process, which takes minutes on a busy machine."""
SLICES = 8
"""Slices of the source ``datagen``: the ids of slice n are n, n + 8, n + 16, ..."""


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def wait(what: str, until: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
    """Wait until a function returns something."""
    give_up_s = time.monotonic() + patience_s
    while not (found := until()):
        if time.monotonic() > give_up_s:
            raise SystemExit(f"FAILED: not within {patience_s:.0f} s: {what}")
        time.sleep(0.1)
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(name: str, data: Path, *words: str, user: str | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A program until the end of the block; its output is in a file of the data directory."""
    with (data / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, cwd="/", user=user)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def postgres(data: Path) -> Iterator[str]:
    """A PostgreSQL server; yields the URL of the log."""
    packaged = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    found = shutil.which("initdb") or (packaged and packaged[-1] / "initdb")
    if not found:
        raise SystemExit(
            "ha.py: initdb: not found; allowed: a machine with PostgreSQL (Debian: apt install postgresql)"
        )
    binaries, port = Path(found).resolve().parent, free_port()
    user = None
    if os.geteuid() == 0:  # the server refuses to run as root
        user = "postgres" if "postgres" in {entry.pw_name for entry in pwd.getpwall()} else "nobody"
    place = tempfile.TemporaryDirectory(prefix="connectgroup-ha-")
    os.chmod(place.name, 0o755)
    directory = Path(place.name, "data")
    directory.mkdir(mode=0o700)
    if user is not None:
        shutil.chown(directory, user)
    options = "-U", "connectgroup", "--auth=trust", "--no-locale", "-E", "UTF8"
    initdb = [str(binaries / "initdb"), "-D", str(directory), *options]
    server = [str(binaries / "postgres"), "-D", str(directory), "-p", str(port), "-h", "127.0.0.1", "-k", ""]
    with place:
        subprocess.run(initdb, check=True, user=user, cwd="/", stdout=subprocess.DEVNULL)
        with running("postgres", data, *server, user=user):
            yield f"postgresql://connectgroup@127.0.0.1:{port}/postgres"


class Coordinators:
    """Three coordinators, each at a port of its own."""

    def __init__(self, data: Path, log: str, stack: contextlib.ExitStack) -> None:
        self._data, self._log, self._stack = data, log, stack
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        for _ in range(3):
            self.start(f"127.0.0.1:{free_port()}")

    @property
    def addresses(self) -> str:
        return ",".join(self.running)

    def start(self, address: str) -> None:
        port = address.rpartition(":")[2]
        words = "coordinator", "--log", self._log, "--port", port, "--credentials", str(self._data / "credentials")
        process = self._stack.enter_context(running(f"coordinator-{port}", self._data, *COMMAND, *words))
        self.running[address] = process

    def call(self, *words: str) -> Any:
        """The output of a command; null if it fails."""
        access = "--coordinator", self.addresses, "--credentials", str(self._data / "credentials")
        done = subprocess.run([*COMMAND, *words, *access], capture_output=True, text=True, check=False)
        return done.stdout if done.returncode == 0 else None

    def described(self) -> dict[str, Any]:
        """``coordinators list``."""
        found: dict[str, Any] = json.loads(self.call("coordinators", "list", "--json") or '{"coordinators": []}')
        return found

    def owner(self) -> str:
        """The address of the one that serves; empty if there is none."""
        return next((each["address"] for each in self.described()["coordinators"] if each["role"] == "serves"), "")


def rows(table: Path) -> int:
    """How many rows there are."""
    if not table.exists():
        return 0
    with (
        contextlib.suppress(sqlite3.Error),
        contextlib.closing(sqlite3.connect(f"file:{table}?mode=ro", uri=True)) as db,
    ):
        return int(db.execute("SELECT count(*) FROM rows").fetchone()[0])
    return 0


def check(table: Path) -> None:
    """Every row exactly once: no id twice, and none missing below the highest of its slice."""
    with contextlib.closing(sqlite3.connect(table)) as database:
        ids = [row[0] for row in database.execute("SELECT id FROM rows")]
    doubled = len(ids) - len(set(ids))
    missing = sum(
        max(numbers) // SLICES + 1 - len(numbers)
        for numbers in ({each for each in ids if each % SLICES == number} for number in range(SLICES))
        if numbers
    )
    say(f"{len(ids):,} rows: {missing} missing, {doubled} doubled")
    if missing or doubled:
        raise SystemExit("FAILED: not every row exactly once")


def owners_of_tasks(coordinators: Coordinators) -> dict[str, tuple[str, int]] | None:
    """The worker and the owner epoch of each unit; null while the group changes or cannot be described."""
    described = coordinators.call("groups", "describe", "ha", "--json")
    group: dict[str, Any] = json.loads(described) if described else {"state": "", "connectors": []}
    units = {
        f"{connector['name']}-{unit['task']}": unit for connector in group["connectors"] for unit in connector["units"]
    }
    if group["state"] != "Stable" or any(unit["state"] != "RUNNING" for unit in units.values()):
        return None
    return {name: (unit["worker"], unit["owner_epoch"]) for name, unit in units.items()}


def fail_over(coordinators: Coordinators, table: Path) -> None:
    """Kill the coordinator that serves; return when another one does, and start the first one again."""
    owner, count = wait("a coordinator", coordinators.owner), rows(table)
    coordinators.running[owner].send_signal(signal.SIGKILL)
    coordinators.running[owner].wait()
    say(f"killed the coordinator at {owner}")

    def successor() -> str:
        found = coordinators.owner()
        return "" if found == owner else found

    address = wait("another coordinator", successor)
    took_ms = coordinators.described()["last_failover"]["took_ms"]
    coordinators.start(owner)
    wait("more rows", lambda: rows(table) > count)
    say(f"the coordinator at {address} serves, {took_ms / 1000:.1f} s after the last sign of life of the other")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--data", type=Path, default=Path("connectgroup-ha"))
    options = parser.parse_args()
    data: Path = options.data.resolve()
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir(mode=0o755)
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(postgres(data))
        (data / "credentials").touch(mode=0o600)
        (data / "credentials").write_text("connectgroup=only-for-this-example\n")
        wait("PostgreSQL", lambda: "ready to accept connections" in (data / "postgres.log").read_text())
        coordinators = Coordinators(data, log, stack)
        say(f"the coordinator at {wait('a coordinator', coordinators.owner)} serves, two stand by")

        table = data / "rows.sqlite"
        connector = {
            "name": "numbers",
            "config": {
                "connector.class": "pipeline",
                "tasks.max": "4",
                "source": "datagen",
                "source.rows.per.second": "500",
                "sink": "sqlite",
                "sink.path": str(table),
                "sink.table": "rows",
            },
        }
        (data / "numbers.json").write_text(json.dumps(connector))
        wait(
            "the connector", lambda: coordinators.call("connectors", "put", str(data / "numbers.json"), "--group", "ha")
        )
        workers = []
        for number in range(1, options.workers + 1):
            words = "worker", "--group", "ha", "--name", f"worker-{number}", "--coordinator", coordinators.addresses
            files = (
                "--credentials",
                str(data / "credentials"),
                "--allowed-path",
                str(data),
                "--scratch",
                str(data / "scratch"),
            )
            workers.append(stack.enter_context(running(f"worker-{number}", data, *COMMAND, *words, *files)))
        say(f"{options.workers} workers start")
        wait("rows", lambda: rows(table) > 1_000)
        before = wait("a stable group", lambda: owners_of_tasks(coordinators))

        for _ in range(options.kills):
            fail_over(coordinators, table)
            after = wait("a stable group", lambda: owners_of_tasks(coordinators))
            if after != before:
                raise SystemExit(f"FAILED: tasks were moved or started again: {before} -> {after}")
        say("no task was moved or started again")
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait(60)
        check(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
