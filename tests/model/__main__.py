"""``python -m tests.model``: ``python -m tests.simulation`` with every coordinator compared with the model.

``--type consumer`` instead runs many seeds of inputs of any kind for consumer groups, ``classic`` for classic groups,
and ``mixed`` for groups with members of both protocols, and conversions. ``ownership`` searches the states of two and
three coordinators that share a log.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from connectgroup.testing.seeded_runs import shrink
from tests.simulation import command

from . import ownership
from .classic.driver import ClassicDriver
from .consumer.driver import Driver as ConsumerDriver
from .consumer.mixed import MixedDriver
from .driver import ACTS, Act, BaseDriver, Driver, acts
from .simulated import with_model

SHRINK_S = 60.0
CHUNK = 50
DRIVERS: dict[str, type[BaseDriver]] = {
    "connect": Driver,
    "consumer": ConsumerDriver,
    "mixed": MixedDriver,
    "classic": ClassicDriver,
}
Result = tuple[int, int, str]
"""Seed, number of inputs, and the difference as text or an empty text."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 if there was no difference and every invariant held."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--type", choices=(*DRIVERS, "ownership"), default="connect")
    options, given = parser.parse_known_args(arguments)
    if options.type == "ownership":
        parser.parse_args(["--type", options.type, *given])
        return ownership.main()
    if options.type != "connect":
        return many_seeds(given, options.type)
    if multiprocessing.get_start_method() != "fork":
        given += ["--jobs", "1"]  # another process would not have the model
    with with_model():
        return command.main(given)


def many_seeds(arguments: Sequence[str], group_type: str) -> int:
    """Print the first difference of each seed, with the fewest acts that show it; returns 0 if there is none."""
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


def _run(drivers: type[BaseDriver], seed: int) -> Result:
    driver = played(drivers, seed)
    if not driver.replay.findings:
        return seed, driver.replay.inputs, ""
    ends = time.monotonic() + SHRINK_S
    names = {name for name, _, _ in driver.replay.findings[0].differences}

    def fails(some: Sequence[Act]) -> bool:
        found = played(drivers, seed, some).replay.findings
        return bool(found) and names <= {name for name, _, _ in found[0].differences}

    fewest = shrink(acts(seed, ACTS), fails, lambda: time.monotonic() >= ends)
    finding = played(drivers, seed, fewest).replay.findings[0]
    return seed, driver.replay.inputs, f"acts: {list(fewest)}\n{finding}"


def played(drivers: type[BaseDriver], seed: int, some: Sequence[Act] | None = None) -> BaseDriver:
    """The group after all acts of a seed, or after ``some`` acts instead, or after the first difference."""
    driver = drivers.drawn(seed)
    driver.play(acts(seed, ACTS) if some is None else some)
    return driver


if __name__ == "__main__":
    raise SystemExit(main())
