"""Duration of rebalances of idle tasks: one coordinator on SQLite, worker processes over TCP, no Spark.

    python benchmarks/rebalance.py [--tasks 300] [--workers 3] [--rounds 3] [--log postgresql://... | kafka://...]

Every figure is derived from the tasks' own log (``task_log``). The coordinator runs in this process, as it does in
``connectgroup up``. Exit code 1 if any task ever ran on two workers at once, or did not run at the end of a scenario,
or if a rolling restart moved a task or stopped one twice; no time affects it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # Run as a script from any directory: the modules next to this file are imported as benchmarks.NAME.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.rebalance_group import MAIN, PATIENCE_S, RETURN_S, Bench, Unsettled, tenth
from benchmarks.task_log import TaskLog, overlaps

CONNECT_SOURCE = (
    "Connect: Kafka 4.3.1, 3 workers, one connector of 300 idle tasks, same kind of machine (2 cores, shared); medians"
)
# Seconds unless the row says otherwise; only for --tasks 300 --workers 3. Source: CONNECT_SOURCE. Connect's join is
# measured from its first revocation, not from the new worker's first heartbeat, which comes earlier.
CONNECT = {
    "create small": 1.5,
    "create": 3.2,
    "join": 5.1,
    "join longest": 4.4,
    "join sum": 265.0,
    "stop": 4.9,
    "stop longest": 4.6,
    "kill silent": 11.6,
    "add": 0.56,
    "roll": 17.9,
    "roll stops": 300,
    "roll sum": 1464.0,
}


TITLES = {
    "create small": "{small} tasks created: PUT -> all running",
    "create": "{tasks} tasks created: PUT -> all running",
    "join": "a worker joins: its first heartbeat -> balanced",
    "join moved": "   tasks moved (minimum: {minimum})",
    "join median": "   downtime of a moved task, median",
    "join longest": "   downtime, longest",
    "join sum": "   downtime, sum",
    "stop": "a worker stops cleanly: SIGTERM -> all running",
    "stop longest": "   downtime, longest",
    "kill": "a worker is killed, its supervisor reports it: SIGKILL -> all running",
    "kill silent": "a worker is killed, no process reports it (session {session:g} s): SIGKILL -> all running",
    "add": "10 tasks added in a second connector: PUT -> all running",
    "add others": "   other tasks interrupted",
    "grow": "tasks.max raised by 10: PUT -> all running",
    "grow others": "   other tasks interrupted",
    "roll": "rolling bounce of {workers}, process starts included",
    "roll stops": "   stops",
    "roll moves": "   moves",
    "roll sum": "   downtime, sum",
    "restart": "rolling restart of {workers} by `workers restart`, process starts included",
    "restart stops": "   stops",
    "restart moves": "   moves",
    "restart sum": "   downtime, sum",
    "static": "rolling bounce of {workers} with --instance, process starts included",
    "static stops": "   stops",
    "static moves": "   moves",
    "static sum": "   downtime, sum",
}
UNITS = {"join moved": "tasks", "add others": "tasks", "grow others": "tasks"}
UNITS |= {f"{scenario} {count}": "tasks" for scenario in ("roll", "restart", "static") for count in ("stops", "moves")}
UNITS |= {f"{scenario} sum": "task-s" for scenario in ("join", "roll", "restart", "static")}


async def measure(bench: Bench, rounds: int) -> None:
    """Run all scenarios, each ``rounds`` times (a join precedes each end of a worker, so there are three per round).

    Raises:
        Unsettled: a task is missing or on a wrong worker, and remains so.
    """
    newcomer = f"worker-{bench.workers + 1}"
    async with bench.supervisor:
        await bench.all_joined()
        for _ in range(rounds):
            await bench.create("create small", "small", tenth(bench.tasks))
            await bench.create("create", "big", bench.tasks)
        await bench.put(MAIN, bench.tasks)
        await bench.settled(time.time_ns())
        for _ in range(rounds):
            await bench.join(newcomer)
            await bench.stop(newcomer)
            await bench.join(newcomer)
            await bench.kill(newcomer)
            silent = await bench.join(newcomer, watched=False)
            await bench.kill(newcomer, silent)
            await bench.add_tasks()
            await bench.roll()


async def measure_restarts(bench: Bench, rounds: int) -> None:
    """Rolling restarts of supervised workers, with a scheduled rebalance delay that is longer than a restart takes.

    Raises:
        Unsettled: see ``measure``.
    """
    async with bench.supervisor:
        await bench.all_joined()
        await bench.put(MAIN, bench.tasks)
        await bench.settled(time.time_ns())
        for _ in range(rounds):
            await bench.restart()


async def measure_static(bench: Bench, rounds: int) -> None:
    """Rolling bounces of static workers, which no supervisor reports as dead.

    Raises:
        Unsettled: see ``measure``.
    """
    async with bench.supervisor:
        processes: dict[str, asyncio.subprocess.Process] = {}
        try:
            for name in sorted(bench.live):
                processes[name] = await bench.start_unwatched(name, "--instance", name)
            await bench.all_joined()
            await bench.put(MAIN, bench.tasks)
            await bench.settled(time.time_ns())
            for _ in range(rounds):
                await bench.bounce_static(processes)
        finally:
            for process in processes.values():
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
                await process.wait()


def moved(bench: Bench) -> list[str]:
    """Rolling restarts that moved a task, or stopped one more than once."""
    return [
        f"{key}: {figure(value)} {what}, expected {expected}"
        for key in ("restart", "static")
        for what, expected in (("stops", bench.tasks), ("moves", 0))
        for value in bench.samples.get(f"{key} {what}", ())
        if value != expected
    ]


def table(bench: Bench, rounds: int) -> str:
    """Format the figures, one per line, with Connect's figures for the same size where available."""
    comparable = (bench.tasks, bench.workers, bench.session_s) == (300, 3, 10.0)
    words = {
        "tasks": bench.tasks,
        "small": tenth(bench.tasks),
        "workers": bench.workers,
        "session": bench.session_s,
        "minimum": bench.tasks // (bench.workers + 1),
    }
    rows: list[tuple[str, ...]] = [("scenario", "median (range, n)", "unit", "Connect", "ratio")]
    for key, title in TITLES.items():
        samples = bench.samples.get(key)
        if not samples:
            continue
        middle = statistics.median(samples)
        ours = f"{figure(middle)} ({figure(min(samples))}-{figure(max(samples))}, {len(samples)})"
        theirs = CONNECT.get(key) if comparable else None
        ratio = f"{theirs / middle:.3g}x" if theirs and middle else ""
        beside = figure(theirs) if theirs is not None else ""
        rows.append((title.format(**words), ours, UNITS.get(key, "s"), beside, ratio))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, tuple("-" * width for width in widths))
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    head = f"{bench.tasks} idle tasks, {bench.workers} workers, {rounds} rounds; {os.cpu_count()} CPUs, Python "
    head += platform.python_version()
    return "\n".join([head, "", *lines, *(["", CONNECT_SOURCE] if comparable else [])])


def figure(value: float) -> str:
    """Format with three significant digits."""
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


async def run(options: argparse.Namespace) -> int:
    """Measure, check, print; return the exit code."""
    with tempfile.TemporaryDirectory(prefix="rebalance-") as directory:

        def bench_in(name: str, session_s: float, **more: Any) -> Bench:
            folder = Path(directory, name)
            folder.mkdir()
            size = {"tasks": options.tasks, "workers": options.workers, "session_s": session_s}
            log = None if options.log is None else log_of(options.log, f"{folder.parent.name}_{name}".replace("-", "_"))
            return Bench(folder, **size, verbose=options.verbose, log=log, **more)

        benches = {
            measure: bench_in("bench", options.session),
            measure_restarts: bench_in("restarts", options.session, delay_s=RETURN_S),
            measure_static: bench_in("static", RETURN_S, supervised=False),
        }
        faults = []
        for run_scenarios, bench in benches.items():
            try:
                await run_scenarios(bench, options.rounds)
            except Unsettled as error:
                faults.append(f"not settled within {PATIENCE_S:g} s: {error}")
            bench.log.poll()
            faults += moved(bench)
    first, *others = benches.values()
    for other in others:
        first.samples |= other.samples
    print(table(first, options.rounds))
    return verdict([bench.log for bench in benches.values()], faults)


def verdict(logs: Sequence[TaskLog], faults: Sequence[str]) -> int:
    """Print every violation; return the exit code."""
    found = [*faults, *(overlap for log in logs for overlap in overlaps(log.runs))]
    for fault in found:
        print(f"FAULT: {fault}")
    starts = sum(event.starts for log in logs for event in log.events)
    print(f"\n{starts} starts, {len(found)} faults (a task on two workers at once, missing, or where it should not be)")
    return 1 if found else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Time rebalances of idle tasks.")
    parser.add_argument("--tasks", type=at_least(1), default=300, help="of the one connector (default 300)")
    parser.add_argument("--workers", type=at_least(2), default=3, help="before one joins (default 3)")
    parser.add_argument("--rounds", type=at_least(1), default=3, help="how often each scenario is run (default 3)")
    parser.add_argument("--session", type=at_least(3), default=10, help="session timeout in seconds (default 10)")
    parser.add_argument("--log", metavar="URL", help="of a shared log, in which schemas or topics are made (SQLite)")
    parser.add_argument("--verbose", action="store_true", help="show the workers' logs")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO if options.verbose else logging.CRITICAL)
    return asyncio.run(run(options))


def log_of(url: str, name: str) -> str:
    """The URL of a log of its own beside the one that a URL names: a schema of the database, or a topic."""
    if url.startswith("postgresql:"):
        return f"{url}{'&' if '?' in url else '?'}schema={name.lower()}"
    return f"{url}-{name}"


def at_least(least: int) -> Callable[[str], int]:
    """An argparse type: an integer from ``least`` to 10,000."""

    def number(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not least <= int(text[:6]) <= 10_000:
            raise argparse.ArgumentTypeError(f"got {text!r}; allowed: {least} to 10000")
        return int(text)

    return number


if __name__ == "__main__":
    sys.exit(main())
