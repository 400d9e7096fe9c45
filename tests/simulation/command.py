"""``python -m tests.simulation``: run many seeds on all cores, report progress, and shrink failing seeds."""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import count, islice
from pathlib import Path

from .run import Result, run_seed
from .setting import Plan, is_classic, is_mixed
from .shrink import Shrinker
from .suite import Suite, show, table

ROOT = Path(__file__).parents[2]
PROGRESS_S = 10.0
GATED = 100
"""From this number of seeds on, the gates on counts and on rare states apply."""
MANY = 1_000
"""From this number of seeds on, some are repeated in two processes, and speed is measured at full size."""
AGAIN = 20
SHRUNK_AT_MOST = 3
"""Failing seeds of one run that are shrunk."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if every invariant held and, with ``--gates`` or ``GATED`` seeds, every gate was reached."""
    options = _parser().parse_args(arguments)
    gc.freeze()  # after each seed its garbage is collected: without a visit to all that is imported
    if options.replay:
        return _replay(Path(options.replay))
    first = 1 if options.seed is None else options.seed
    seeds: Iterator[int] = count(first)
    if options.mixed:
        seeds = filter(is_mixed, seeds)
    elif options.classic:
        seeds = filter(is_classic, seeds)
    if options.seeds is None and not options.minutes:
        options.seeds = 20
    seeds = islice(seeds, options.seeds)
    suite, failed, traces = Suite(), list[Result](), list[str]()
    for result in _results(seeds, options):
        suite.add(result)
        if len(traces) < AGAIN and not (options.mixed or options.classic):
            traces.append(_trace(result))
        if result.violations:
            failed.append(result)
            print(show(result.violations[0]), flush=True)
        if options.traces:
            print(_trace(result), flush=True)
    for result in [] if options.no_shrink else failed[:SHRUNK_AT_MOST]:
        _shrink(result, options.shrink_seconds)
    good = not suite.violations
    if not options.traces:
        print(table(suite))
        if options.gates or (suite.seeds >= GATED and not options.no_faults):
            print("\n".join(["", f"{'gate':60}{'required':>12}{'actual':>12}", *map(str, suite.gates)]))
            good &= all(gate.holds for gate in suite.gates)
            if suite.unreached:
                print(f"never reached: {'; '.join(suite.unreached)}")
        # Also if --minutes has ended them early.
        if max(suite.seeds, options.seeds or 0) >= MANY and len(traces) == AGAIN and not options.no_faults:
            first = 1 if options.seed is None else options.seed
            odd = differing(first, AGAIN, known=traces, members=options.members, tasks=options.tasks)
            print(f"determinism     {AGAIN} seeds repeated under two hash seeds: {odd or 'identical'}")
            good &= not odd
            print(
                f"speed           {_full_size():.0f}x real time per core with 10 members and 100 tasks (goal: 1,000x)"
            )
    print(f"seeds={suite.seeds} violations={len(suite.violations)} speed={suite.speed:.0f}x")
    return 0 if good else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, help="number of seeds (default: 20, or all that --minutes allows)")
    parser.add_argument("--minutes", type=float, help="start no seed after this many minutes")
    parser.add_argument("--seed", type=int, help="first seed (default: 1)")
    parser.add_argument("--members", type=int, help="initial number of workers (default: drawn)")
    parser.add_argument("--tasks", type=int, help="initial number of tasks (default: drawn)")
    parser.add_argument("--jobs", type=int, help="processes (default: one per core from 20 seeds on)")
    parser.add_argument("--gates", action="store_true", help=f"check all gates, also for fewer than {GATED} seeds")
    parser.add_argument("--no-faults", action="store_true", help="run only the phases without faults")
    parser.add_argument("--mixed", action="store_true", help="only the seeds with consumers: each tenth")
    parser.add_argument("--classic", action="store_true", help="only the seeds with workers of the classic protocol")
    parser.add_argument("--no-shrink", action="store_true", help="do not shrink failing seeds")
    parser.add_argument("--shrink-seconds", type=float, default=60.0, help="time limit for shrinking one seed")
    parser.add_argument("--replay", metavar="FILE", help="run a plan that was saved when a seed failed")
    parser.add_argument("--traces", action="store_true", help="print the hash of each seed's events instead of a table")
    return parser


def _results(seeds: Iterator[int], options: argparse.Namespace) -> Iterator[Result]:
    """Yield each seed's result, in the order of the seeds; progress goes to standard error."""
    ends = time.monotonic() + 60 * options.minutes if options.minutes else float("inf")
    jobs = options.jobs or ((os.cpu_count() or 1) if options.seeds is None or options.seeds >= 20 else 1)
    progress = _Progress(options.seeds)
    named = {"faults": not options.no_faults, "members": options.members, "tasks": options.tasks}
    if jobs == 1:
        for seed in seeds:
            if time.monotonic() >= ends:
                return
            yield progress.see(run_seed(seed, **named))
        return
    with ProcessPoolExecutor(jobs) as pool:
        running: dict[Future[Result], int] = {}
        done: dict[int, Result] = {}
        expected: list[int] = []
        while True:
            while len(running) < 2 * jobs and time.monotonic() < ends:
                seed = next(seeds, -1)
                if seed < 0:
                    break
                running[pool.submit(run_seed, seed, **named)] = seed
                expected.append(seed)
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                done[running.pop(future)] = progress.see(future.result())
            while expected and expected[0] in done:
                yield done.pop(expected.pop(0))


class _Progress:
    """Reports progress on standard error."""

    def __init__(self, of: int | None) -> None:
        self._of = of
        self._began = self._reported = time.monotonic()
        self._seeds = self._faults = self._failed = 0

    def see(self, result: Result) -> Result:
        """Count one more result, and return it."""
        self._seeds += 1
        self._faults += result.faults
        self._failed += bool(result.violations)
        now = time.monotonic()
        if now - self._reported >= PROGRESS_S:
            self._reported = now
            of = f" of {self._of}" if self._of else ""
            line = f"{self._seeds}{of} seeds, {self._faults} faults, {self._failed} failed"
            print(f"{line}, {now - self._began:.0f} s", file=sys.stderr, flush=True)
        return result


def _trace(result: Result) -> str:
    return f"trace {result.seed} {result.trace} {result.events} events {result.simulated_s:.0f} s"


def _full_size() -> float:
    """Simulated seconds per second of one core, at the size of the speed goal."""
    suite = Suite()
    for seed in range(1, 4):
        suite.add(run_seed(seed, members=10, tasks=100))
    return suite.speed


def differing(
    first: int, seeds: int, *, known: Sequence[str] = (), members: int | None = None, tasks: int | None = None
) -> str:
    """Run seeds in two processes whose sets iterate in different orders, and compare the traces (S18).

    Args:
        known: the traces of these seeds in this process and its children: then they run once more.

    Returns:
        The seeds whose traces differ; empty if none.
    """
    command = [sys.executable, "-m", "tests.simulation", "--traces", "--no-shrink", "--jobs", "1"]
    command += ["--seeds", str(seeds), "--seed", str(first)]
    for name, value in (("members", members), ("tasks", tasks)):
        if value is not None:
            command += [f"--{name}", str(value)]
    mine = os.environ.get("PYTHONHASHSEED")
    hash_seeds = ("1", "2") if not known else ("2" if mine == "1" else "1",)
    running = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for hash_seed in hash_seeds
    ]
    outputs = [process.communicate()[0].splitlines() for process in running]
    traces = [{line for line in lines if line.startswith("trace ")} for lines in ([known] if known else []) + outputs]
    missing = [f"{2 * seeds - sum(map(len, traces))} traces are missing"] if sum(map(len, traces)) != 2 * seeds else []
    return ", ".join([*sorted({f"seed {line.split()[1]}" for line in traces[0] ^ traces[1]}), *missing])


def shrunk(result: Result, seconds: float) -> tuple[Plan, int]:
    """The smallest plan found that violates the same invariant, and the number of runs it took."""
    violation = result.violations[0]

    def fails(plan: Plan, whole: bool) -> float | None:
        again = run_seed(plan.seed, plan=plan, whole=whole)
        same = again.violations and again.violations[0].invariant == violation.invariant
        return again.violations[0].at_s if same else None

    shrinker = Shrinker(result.plan, violation.at_s, fails, max_s=seconds)
    return shrinker.run(), shrinker.tries


def _shrink(result: Result, seconds: float) -> None:
    plan, tries = shrunk(result, seconds)
    with tempfile.NamedTemporaryFile("w", prefix=f"seed-{plan.seed}-", suffix=".json", delete=False) as file:
        file.write(plan.to_json())
    print(
        f"\nseed {plan.seed}, {result.violations[0].invariant}, shrunk in {tries} runs "
        f"from {len(result.plan.faults)} faults to {len(plan.faults)}:"
    )
    print("\n".join(f"    {line}" for line in str(plan).splitlines()))
    print(f"  reproduce: python -m tests.simulation --replay {file.name}\n", flush=True)


def _replay(path: Path) -> int:
    plan = Plan.from_json(path.read_text())
    result = run_seed(plan.seed, plan=plan)
    for violation in result.violations[:1]:
        print(show(violation))
    print(_trace(result))
    print(f"seeds=1 violations={len(result.violations[:1])} speed={result.simulated_s / result.cpu_s:.0f}x")
    return 1 if result.violations else 0
