"""``python -m tests.model --type consumer``, ``classic`` or ``mixed``: many seeds of inputs of any kind, compared.

A group of ``mixed`` has members of both protocols, and is converted.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from connectgroup.testing.shrinking import shrink

from ..classic.driver import ClassicDriver
from ..driver import Act, acts
from .driver import ACTS, Driver
from .mixed import MixedDriver

SHRINK_S = 60.0
CHUNK = 50
DRIVERS = {"consumer": Driver, "mixed": MixedDriver, "classic": ClassicDriver}
Result = tuple[int, int, str]
"""Seed, number of inputs, and the difference as text or an empty text."""


def main(arguments: Sequence[str], group_type: str = "consumer") -> int:
    """Returns 0 if there was no difference; ``group_type``: a key of ``DRIVERS``."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.model --type {group_type}", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, help="number of seeds")
    parser.add_argument("--minutes", type=float, help="run seeds for this many minutes instead")
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    options = parser.parse_args(arguments)
    ends = time.monotonic() + 60 * options.minutes if options.minutes else float("inf")
    seeds = (
        itertools.count(options.seed) if options.minutes else iter(range(options.seed, options.seed + options.seeds))
    )
    done = inputs = failed = 0
    for seed, number, finding in _results(partial(_run, DRIVERS[group_type]), seeds, options.jobs):
        done, inputs, failed = done + 1, inputs + number, failed + bool(finding)
        if finding:
            print(f"seed {seed}\n{finding}")
        if time.monotonic() >= ends:
            break
    print(f"seeds={done} inputs={inputs} differences={failed}")
    return 1 if failed else 0


def _results(run: Callable[[int], Result], seeds: Iterator[int], jobs: int) -> Iterator[Result]:
    if jobs == 1:
        yield from map(run, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        while some := list(itertools.islice(seeds, CHUNK * jobs)):
            yield from pool.map(run, some, chunksize=5)


def _run(drivers: type[Driver], seed: int) -> Result:
    driver = _played(drivers, seed, acts(seed, ACTS))
    if not driver.replay.findings:
        return seed, driver.replay.inputs, ""
    ends = time.monotonic() + SHRINK_S
    names = {name for name, _, _ in driver.replay.findings[0].differences}

    def fails(some: Sequence[Act]) -> bool:
        found = _played(drivers, seed, some).replay.findings
        return bool(found) and names <= {name for name, _, _ in found[0].differences}

    fewest = shrink(acts(seed, ACTS), fails, lambda: time.monotonic() >= ends)
    finding = _played(drivers, seed, fewest).replay.findings[0]
    return seed, driver.replay.inputs, f"acts: {list(fewest)}\n{finding}"


def _played(drivers: type[Driver], seed: int, some: Sequence[Act]) -> Driver:
    driver = drivers.drawn(seed)
    driver.play(some)
    return driver
