"""The system under the simulator: some seeds at every run of the suite, thousands on demand (``make simulate``)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from . import breakages, sometimes
from .disk import FAULTS
from .loop import SimulatedLoop, off_loop, simulated
from .run import Suite, play, show

ROOT = Path(__file__).parents[2]
SEEDS = range(1, 41)


def test_every_invariant_holds_under_forty_seeds_and_every_rare_state_is_reached() -> None:
    """All of S, D, X and L that ``invariants`` names; and a suite proves nothing of states it has never seen."""
    suite = Suite()
    for seed in SEEDS:
        suite.add(play(seed))
    assert not suite.violations, "\n".join(show(violation) for violation in suite.violations)
    assert not sometimes.never(suite.reached)
    assert not [kind for kind in sorted(suite.armed) if not suite.hits[kind]], "armed, and never had an effect"
    assert suite.armed.keys() >= set(FAULTS)
    assert suite.faults >= 25 * len(SEEDS)


def test_ten_workers_and_a_hundred_tasks_come_to_rest_without_faults() -> None:
    """L1, L2 at the size of the speed gate."""
    result = play(7, faults=False, members=10, tasks=100)
    assert not result.violations, show(result.violations[0])


@pytest.mark.parametrize("first", [300])
def test_a_seed_is_the_same_run_in_two_processes(first: int) -> None:
    """S18: the order of a set of names differs between the two; nothing that is said or stored may."""
    traces = []
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-m", "tests.simulation", "--seeds", "5", "--seed", str(first), "--traces"]
        ran = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=False,
            timeout=250,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        traces.append([line for line in ran.stdout.splitlines() if line.startswith("trace ")])
    assert len(traces[0]) == 5
    assert traces[0] == traces[1]


@pytest.mark.parametrize("broken", breakages.ALL, ids=lambda broken: str(broken.__name__))
def test_what_is_broken_on_purpose_is_found_within_five_seeds(
    broken: Callable[[], AbstractContextManager[None]],
) -> None:
    """A simulator that cannot fail proves nothing."""
    with broken():
        found = next((result for seed in range(1, 6) if (result := play(seed)).violations), None)
    assert found is not None, "nobody noticed"
    assert f"SEED={found.seed}" in show(found.violations[0])


def test_nothing_in_the_simulation_waits_in_real_time() -> None:
    """A thread, or a sleep, would make a run depend on the machine it runs on."""
    import threading
    import time

    with simulated():
        with pytest.raises(AssertionError, match="real time"):
            time.sleep(0.001)
        with pytest.raises(AssertionError, match="real time"):
            threading.Thread(target=print).start()
        loop = SimulatedLoop()
        try:
            assert loop.run_until_complete(off_loop("add", int.__add__, 1, 2)) == 3
        finally:
            loop.close()
    time.sleep(0)
