"""CPU time of the partition assignors, compared with Kafka's own: ``python -m benchmarks.partition_assignors``.

Thread-CPU milliseconds, the median of several calls. There are three inputs: a fresh group, one member has left, one
has joined. Three phases are timed separately:

- *read*: objects to columns, mostly reading the owned partitions of each member;
- *assign*: columns to an array, the work of the assignor itself;
- *make*: the array to objects, mostly creating a ``TopicPartition`` for each moved partition.

Java's figure is its ``assign`` alone, whose input exists already and whose result is Java's own objects: compare it
with *assign*, and with *assign* and *make* together. ``--java RUN.SH`` runs a script that times Kafka's assignors and
prints rows ``| server Uniform | full | 10×100 | wall | least wall | thread-CPU | n |``.
"""

from __future__ import annotations

import argparse
import re
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import thread_time
from typing import Any

from connectgroup.assign.api import PartitionAssignorInput
from connectgroup.assign.members import PartitionMember, TopicSpec
from connectgroup.plugins import available, load_partition_assignor
from connectgroup.protocol.units import Partitions

SIZES = ("10x100", "100x10000", "1000x100000")
CASES = ("full", "1 leaves", "1 joins")
JAVA = {
    "uniform": "server Uniform",
    "server-range": "server Range",
    "cooperative-sticky": "client CooperativeSticky",
    "sticky": "client Sticky",
    "range": "client Range",
}
"""The name of each in the script's output; Kafka's round robin assignor is not timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Thread-CPU milliseconds of one case."""

    read_ms: float
    assign_ms: float
    make_ms: float


def input_group(members: int, partitions: int, held: Mapping[str, Partitions], case: str) -> PartitionAssignorInput:
    """All members subscribe to all topics, of 100 partitions each (10 in small sizes); ``held`` is empty at first."""
    each = 10 if partitions <= 1000 else 100
    topics = [TopicSpec(name=f"topic-{number}", num_partitions=each) for number in range(partitions // each)]
    names = frozenset(spec.name for spec in topics)
    first, end = {"full": (0, members), "1 leaves": (1, members), "1 joins": (0, members + 1)}[case]
    there = [f"m{number}" for number in range(first, end)]
    return PartitionAssignorInput(
        members=[
            PartitionMember(member_id=name, subscribed=names, owned=held.get(name, frozenset()), generation=1)
            for name in there
        ],
        topics=topics,
    )


def measured(name: str, members: int, partitions: int, rounds: int) -> dict[str, Times]:
    """Measure all cases of one assignor."""
    assignor = load_partition_assignor(name)
    held: dict[str, Partitions] = {}
    found: dict[str, Times] = {}
    for case in CASES:
        group = input_group(members, partitions, held, case)
        # A copy has no cached columns.
        read_ms = _median_ms(lambda fresh: fresh.columns(), lambda: replace(group), rounds)  # noqa: B023
        group.columns()
        assign_ms = _median_ms(assignor.assign, lambda: group, rounds)  # noqa: B023
        make_ms = _median_ms(lambda result: len(result.members), lambda: assignor.assign(group), rounds)  # noqa: B023
        found[case] = Times(read_ms=read_ms, assign_ms=assign_ms, make_ms=make_ms)
        if case == "full":
            held = {share.member_id: share.partitions for share in assignor.assign(group).members}
    return found


def _median_ms(call: Callable[[Any], object], prepare: Callable[[], Any], rounds: int) -> float:
    times: list[float] = []
    for _ in range(rounds + 1):
        given = prepare()
        before = thread_time()
        kept = call(given)
        times.append((thread_time() - before) * 1000)
        del kept
    return statistics.median(times[1:])


def java_times(lines: Sequence[str]) -> dict[tuple[str, str, str], float]:
    """Thread-CPU milliseconds by assignor, case and size, from the table of a ``--java`` script."""
    found: dict[tuple[str, str, str], float] = {}
    for line in lines:
        if match := re.fullmatch(
            r"\| ([^|]+) \| ([^|]+) \| (\d+)×(\d+) \| [\d.]+ \| [\d.]+ \| ([\d.]+) \|.*", line.strip()
        ):
            found[match[1], match[2], f"{match[3]}x{match[4]}"] = float(match[5])
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table, one row per assignor, case and size."""
    parser = argparse.ArgumentParser(description="Time the partition assignors.")
    parser.add_argument("sizes", nargs="*", type=_size, default=list(SIZES), help="MEMBERSxPARTITIONS ...")
    parser.add_argument("--rounds", type=_rounds, help="calls a cell; by default fewer where there is more to do")
    parser.add_argument("--java", type=Path, metavar="RUN.SH", help="script that times Kafka's assignors too")
    given = parser.parse_args(arguments)
    java: dict[tuple[str, str, str], float] = {}
    if given.java:
        done = subprocess.run([str(given.java.resolve()), *given.sizes], capture_output=True, text=True, check=False)
        java = java_times(done.stdout.splitlines())
        if not java:
            print(f"{given.java}: ended with {done.returncode}: {done.stderr.strip()[-200:]}", file=sys.stderr)
            return 1
    print("| assignor | case | members x partitions | read ms | assign ms | make ms | Java ms | assign / Java |")
    print("|---|---|---|---|---|---|---|---|")
    for size in given.sizes:
        members, partitions = map(int, size.split("x"))
        rounds = given.rounds or max(3, min(30, 3_000_000 // max(partitions, 1)))
        for name in available("partition_assignors"):
            for case, times in measured(name, members, partitions, rounds).items():
                theirs = java.get((JAVA.get(name, ""), case, size))
                beside = f"{theirs:.2f} | {times.assign_ms / theirs:.2f}" if theirs else "- | -"
                ours = f"{times.read_ms:.2f} | {times.assign_ms:.2f} | {times.make_ms:.2f}"
                print(f"| {name} | {case} | {size} | {ours} | {beside} |", flush=True)
    print(f"\nlargest memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB")
    return 0


def _size(text: str) -> str:
    match = re.fullmatch(r"([1-9]\d{0,5})x([1-9]\d{0,7})", text)
    if not match:
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: MEMBERSxPARTITIONS, like 100x10000")
    return text


def _rounds(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,3}", text):
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: 1 .. 9999")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
