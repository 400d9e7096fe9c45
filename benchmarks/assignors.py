"""CPU time of assignors of connectors and tasks, compared with Java's.

    python benchmarks/assignors.py [10x100 100x10000 ...] [--peers DIRECTORY]

There are three inputs per size: all units are new; one worker of a balanced group has left; one has joined it. The
benchmark measures the selected member's work on the received message: ``arrays`` is the conversion to columns,
``assign`` the assignor. Both are CPU times of the thread they run in, medians, so that other load on the machine does
not count. Each size runs in a process of its own, whose peak memory, messages and results included, is printed below
it.

The Java figures are of Apache Kafka's own assignors, run in the same session by ``assignor/run.sh`` of the peers'
folder if there is one (``--peers`` or CONNECTGROUP_PEERS; after its ``fetch.sh``). Java's Connect assignor takes two
rounds for a join, as ``incremental-cooperative`` does; ``balanced`` takes one, and is compared with the sum of both of
Java's rounds.

Exit code 1 if a result was invalid or unbalanced, or moved more than necessary; no time affects it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from connectgroup.assign.api import ConnectAssignment, ConnectAssignor, ConnectAssignorInput
from connectgroup.assign.convert import group_from_prepare, members_for_install
from connectgroup.assign.sandbox import run_assignor
from connectgroup.plugins import load_assignor
from connectgroup.protocol.messages.assignment import (
    DelayedUnits,
    InstalledMember,
    PreparedConnector,
    PreparedMember,
    PrepareResponse,
)
from connectgroup.protocol.messages.common import each_unit, grouped
from connectgroup.protocol.units import Unit

SIZES = ("10x100", "100x10000", "1000x100000", "10000x1000000")
ASSIGNORS = ("incremental-cooperative", "balanced")
TASKS_A_CONNECTOR = 10
MAX_S = 4.0
"""Each input is repeated for about this long, at least three times and at most ``MAX_TIMES``."""
MAX_TIMES = 30
JAVA_CASES = {
    ("connect IncrementalCooperative", "full"): ("full", "connect"),
    ("connect IncrementalCooperative", "1 leaves (delay 0)"): ("leaves", "connect"),
    ("connect IncrementalCooperative", "1 joins: round 1 (revoke)"): ("joins: revoke", "connect"),
    ("connect IncrementalCooperative", "1 joins: round 2 (assign)"): ("joins: assign", "connect"),
    ("server Uniform", "full"): ("full", "uniform"),
    ("server Uniform", "1 leaves"): ("leaves", "uniform"),
    ("server Uniform", "1 joins"): ("joins", "uniform"),
}
HEADINGS = (
    *("assignor", "case", "workers x tasks", "arrays ms", "assign ms"),
    *("Java Connect ms", "both / it", "Java uniform ms", "assign / it"),
)
T = TypeVar("T")


class Row(NamedTuple):
    """One assignor's measurement for one input; times in CPU milliseconds."""

    assignor: str
    case: str
    size: str
    arrays_ms: float
    assign_ms: float
    moved: int
    peak_mib: int = 0


Java = Mapping[tuple[str, str, str], float]
"""CPU milliseconds by size, case and ``connect`` or ``uniform``."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return the exit code."""
    parser = argparse.ArgumentParser(description="CPU time of assignors, compared with Java's")
    parser.add_argument("sizes", nargs="*", default=SIZES, metavar="WORKERSxTASKS", help=" ".join(SIZES))
    parser.add_argument("--peers", type=Path, default=os.environ.get("CONNECTGROUP_PEERS"), help="the peers' folder")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(measured(options.one)))
        return 0
    for size in options.sizes:
        if not re.fullmatch(r"[1-9]\d*x[1-9]\d*", size):
            parser.error(f"got {size!r}; allowed: WORKERSxTASKS, as in 100x10000")
    java, reason = java_times(options.peers, options.sizes)
    print(f"load {os.getloadavg()[0]:.1f}; Java: {reason or 'included'}\n")
    print(f"| {' | '.join(HEADINGS)} |")
    print("|---" * len(HEADINGS) + "|")
    failed = False
    for size in options.sizes:
        command = [sys.executable, "-m", "benchmarks.assignors", "--one", size]
        done = subprocess.run(command, cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            failed = True
            continue
        rows = [Row(*row) for row in json.loads(done.stdout)]
        for row in rows:
            print(line(row, java), flush=True)
        print(f"| | | {size} | peak of memory: {max(row.peak_mib for row in rows)} MiB | | | | | |")
    print(f"\nload at the end {os.getloadavg()[0]:.1f}")
    return int(failed)


def measured(size: str) -> list[Row]:
    """Measure all rows of one size."""
    workers, tasks = map(int, size.split("x"))
    spec = [
        PreparedConnector(connector=f"connector-{number:06}", num_tasks=TASKS_A_CONNECTOR)
        for number in range(max(1, tasks // TASKS_A_CONNECTOR))
    ]
    place = {unit: number for number, unit in enumerate(PrepareResponse(connectors=tuple(spec)).all_units())}
    fresh = [PreparedMember(member_id=f"worker-{number}", member_epoch=1) for number in range(workers)]
    rows: list[Row] = []

    def ask(
        assignor: ConnectAssignor, case: str, members: Iterable[PreparedMember], waiting: Sequence[DelayedUnits] = ()
    ) -> tuple[ConnectAssignment, tuple[InstalledMember, ...]]:
        input_group = PrepareResponse(members=tuple(members), connectors=tuple(spec), delayed=tuple(waiting))
        row, result = timed(assignor, case, size, input_group)
        rows.append(row)
        return result, members_for_install(result)

    for assignor in map(load_assignor, ASSIGNORS):
        _, full = ask(assignor, "full", fresh)
        balanced = [holding(share, place) for share in full]
        ask(assignor, "leaves", balanced[1:])
        result, shares = ask(assignor, "joins", [*balanced, PreparedMember(member_id="worker-new", member_epoch=1)])
        if result.delayed:
            rows[-1] = rows[-1]._replace(case="joins: revoke")
            waiting = DelayedUnits(left_ms=result.delay_ms, units=grouped(result.delayed))
            ask(assignor, "joins: assign", [holding(share, place) for share in shares], [waiting])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return [row._replace(peak_mib=peak) for row in rows]


def holding(share: InstalledMember, place: Mapping[Unit, int]) -> PreparedMember:
    """A member after it has applied its assignment, as the coordinator sends it."""
    unit_indices = tuple(sorted([place[unit] for unit in each_unit(share.units)]))
    return PreparedMember(
        member_id=share.member_id, member_epoch=1, unit_indices=unit_indices, assignor_state=share.metadata
    )


def timed(
    assignor: ConnectAssignor, case: str, size: str, input_group: PrepareResponse
) -> tuple[Row, ConnectAssignment]:
    """Repeat until the median is meaningful; validate the result once, outside of the measured time."""
    arrays: list[float] = []
    assign: list[float] = []
    began_s = time.perf_counter()
    while len(assign) < 3 or (len(assign) < MAX_TIMES and time.perf_counter() - began_s < MAX_S):
        group, took_ms = cpu_ms(lambda: columns_made(input_group))
        arrays.append(took_ms)
        result, took_ms = cpu_ms(lambda group=group: assignor.assign(group))  # type: ignore[misc]
        assign.append(took_ms)
    moved = validated_moves(group, run_assignor(assignor, group))
    row = Row(assignor.name, case, size, statistics.median(arrays), statistics.median(assign), moved)
    return row, result


def columns_made(input_group: PrepareResponse) -> ConnectAssignorInput:
    """The input as an assignor receives it, converted to columns."""
    group = group_from_prepare(input_group)
    group.columns()
    return group


def cpu_ms(call: Callable[[], T]) -> tuple[T, float]:
    """The result of a call, and its CPU time in this thread."""
    began_ns = time.thread_time_ns()
    result = call()
    return result, (time.thread_time_ns() - began_ns) / 1e6


def validated_moves(group: ConnectAssignorInput, result: ConnectAssignment) -> int:
    """Return the number of units revoked from present owners; ``run_assignor`` has checked completeness and validity.

    Raises:
        AssertionError: not balanced, or more units were revoked than balance requires.
    """
    assert result.by_column is not None
    columns, owner, _ = result.by_column
    before, members = columns.unit_owner, len(columns.member_ids)
    moved = 0
    for tasks in (False, True):
        rows = np.flatnonzero((columns.unit_task >= 0) == tasks)
        had = np.bincount(before[rows][before[rows] >= 0], minlength=members)
        has = np.bincount(owner[rows][owner[rows] >= 0], minlength=members)
        taken = int(((before[rows] >= 0) & (before[rows] != owner[rows])).sum())
        share, extra = divmod(len(rows), members)
        limit = np.sort(had)[::-1] - (share + (np.arange(members) < extra))
        assert taken == int(np.maximum(limit, 0).sum()), f"{taken} taken"
        assert result.delayed or int(has.max() - has.min()) <= 1, "not even"
        moved += taken
    return moved


def java_times(peers: Path | str | None, sizes: Sequence[str]) -> tuple[Java, str]:
    """Return Java's times, or an empty mapping and the reason."""
    if not peers:
        return {}, "left out (no --peers, no CONNECTGROUP_PEERS)"
    script = Path(peers) / "assignor" / "run.sh"
    if not script.exists() or not (Path(peers) / "libs").is_dir():
        return {}, f"left out (no {script}, or its fetch.sh has not been run)"
    done = subprocess.run(
        [str(script), *sizes],
        env={**os.environ, "ONLY": "connect,uniform"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return read_java(done.stdout), "" if done.returncode == 0 else f"run.sh ended with {done.returncode}"


def read_java(printed: str) -> dict[tuple[str, str, str], float]:
    """Parse the medians of thread CPU time from the output of ``run.sh``."""
    found: dict[tuple[str, str, str], float] = {}
    for text in printed.splitlines():
        cells = [cell.strip() for cell in text.strip("| ").split("|")]
        if len(cells) >= 6 and (cells[0], cells[1]) in JAVA_CASES and re.fullmatch(r"[\d.]+", cells[5]):
            case, kind = JAVA_CASES[cells[0], cells[1]]
            found[cells[2].replace("×", "x"), case, kind] = float(cells[5])
    return found


def line(row: Row, java: Java) -> str:
    """Format one line of the table."""
    ours = row.arrays_ms + row.assign_ms
    connect = java.get((row.size, row.case, "connect"))
    if row.case == "joins":
        rounds = [java.get((row.size, f"joins: {part}", "connect")) for part in ("revoke", "assign")]
        connect = sum(took for took in rounds if took is not None) if None not in rounds else None
    uniform = java.get((row.size, row.case, "uniform")) if row.assignor == "balanced" else None
    cells = [row.assignor, row.case, row.size, f"{row.arrays_ms:.2f}", f"{row.assign_ms:.2f}"]
    cells += [f"{connect:.2f}", f"{ours / connect:.2f}"] if connect else ["", ""]
    cells += [f"{uniform:.2f}", f"{row.assign_ms / uniform:.1f}"] if uniform else ["", ""]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
