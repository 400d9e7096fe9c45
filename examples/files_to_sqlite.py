"""CSV files into an SQLite table; lines that cannot be read become dead letters, with file, line and reason.

Two workers share the files. The program writes the files while the workers read them, and counts at the end: every good
line must be a row of the table once, every bad line a dead letter once.

    python examples/files_to_sqlite.py [--rows 20000]
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from connectgroup import sync

FILES = 8
BAD_EVERY = 997
"""One of so many lines has an amount that is no number."""
PATIENCE_S = 120.0


def main(arguments: Sequence[str] = ()) -> int:
    """Run the pipeline; return 0 if every line is where it belongs exactly once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    rows: int = parser.parse_args(arguments).rows
    with tempfile.TemporaryDirectory(prefix="files-to-sqlite-") as scratch:
        source, sink = Path(scratch, "orders"), Path(scratch, "orders.sqlite")
        source.mkdir()
        connector = {
            "connector.class": "pipeline",
            "tasks.max": 2,
            "source": "files",
            "source.path": str(source),
            "source.format": "csv",
            "source.schema": "id BIGINT, item STRING, amount DOUBLE",
            "sink": "sqlite",
            "sink.path": str(sink),
            "sink.table": "orders",
            "errors.tolerance": "all",
            "errors.deadletterqueue.name": "rejected",
        }
        print("starting two workers and Spark ...")
        with sync.worker_group("example", workers=2, connectors={"orders": connector}) as group:
            group.wait_stable(timeout_s=PATIENCE_S)
            for begin in range(0, rows, rows // 10 or 1):
                write(source, range(begin, min(rows, begin + (rows // 10 or 1))))
            give_up_at = time.monotonic() + PATIENCE_S
            while sum(count(sink)) < rows and time.monotonic() < give_up_at:
                time.sleep(0.1)
        return check(sink, rows)


def write(source: Path, numbers: range) -> None:
    """Append lines to the files."""
    for number in numbers:
        file = source / f"orders-{number % FILES}.csv"
        header = "" if file.exists() else "id,item,amount\n"
        with file.open("a", encoding="utf-8") as opened:
            opened.write(header + line(number) + "\n")


def line(number: int) -> str:
    """The line of an order."""
    amount = "unknown" if number % BAD_EVERY == 0 else f"{number / 4}"
    return f"{number},item {number % 17},{amount}"


def count(sink: Path) -> tuple[int, int]:
    """The numbers of rows and of dead letters."""
    with sqlite3.connect(sink) as connection:
        rows, letters = (
            connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("orders", "rejected")
        )
    return rows, letters


def check(sink: Path, rows: int) -> int:
    """Compare the table and the dead letters with the lines that were written."""
    with sqlite3.connect(sink) as connection:
        found = Counter(connection.execute("SELECT id, item, amount FROM orders").fetchall())
        letters = connection.execute("SELECT record, place, reason FROM rejected ORDER BY record").fetchall()
    bad = [number for number in range(rows) if number % BAD_EVERY == 0]
    good = Counter((n, f"item {n % 17}", n / 4) for n in range(rows) if n % BAD_EVERY)
    expected = Counter(line(number) for number in bad)
    rejected = Counter(record for record, _, _ in letters)
    lost = (good - found).total() + (expected - rejected).total()
    doubled = (found - good).total() + (rejected - expected).total()
    if letters:
        print(f"the first dead letter: {letters[0][1]}: {letters[0][2]}")
    print(f"{rows} lines: {found.total()} rows, {rejected.total()} dead letters")
    print(f"{lost} lost, {doubled} duplicated: {'FAILED' if lost or doubled else 'OK'}")
    return 1 if lost or doubled else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
