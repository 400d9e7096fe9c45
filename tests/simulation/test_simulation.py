"""The system under the simulator: some seeds at every run of the suite, thousands on demand (``make simulate``)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from connectgroup import buggify

from . import breakages, faults, invariants
from .command import shrunk
from .loop import SimulatedLoop, off_loop, simulated
from .run import play
from .setting import MOODS, Plan
from .suite import Suite, show

ROOT = Path(__file__).parents[2]
SEEDS = range(1, 41)


def test_every_invariant_holds_under_forty_seeds_and_every_rare_state_is_reached() -> None:
    """All of S, D, X and L that ``invariants`` names; and a suite proves nothing of states it has never seen."""
    suite = Suite()
    for seed in SEEDS:
        suite.add(play(seed))
    assert not suite.violations, "\n".join(show(violation) for violation in suite.violations)
    assert not suite.unreached, "never seen, or armed and never had an effect"
    assert suite.armed.keys() >= {*faults.KINDS, *MOODS, *buggify.POINTS}
    assert suite.faults >= 25 * len(SEEDS)
    assert suite.simulated_s >= 600 * 0.95 * len(SEEDS)


def test_a_seed_played_from_its_plan_is_the_same_run() -> None:
    """Whatever was drawn is in the plan, and survives being written down."""
    drawn = play(3)
    again = play(3, plan=Plan.from_json(drawn.plan.to_json()))
    assert again.trace == drawn.trace
    assert again.plan == drawn.plan


def test_a_failing_run_is_made_smaller_and_fails_in_the_same_way() -> None:
    """What is left names what it takes: neither weather nor moods here, and next to no faults."""
    with breakages.gives_a_token_twice():
        failing = play(1)
        plan, tries = shrunk(failing, 30.0)
        again = play(plan.seed, plan=plan)
    assert tries > 1
    assert len(plan.faults) < len(failing.plan.faults)
    assert again.violations[0].invariant == failing.violations[0].invariant == "S6 TokenGivenOnce"


def test_every_promise_is_checked_by_a_class_or_named_where_it_is_checked() -> None:
    """The table in ``invariants`` and the classes say the same."""
    table = invariants.__doc__ or ""
    rows = {line.split()[1]: line for line in table.splitlines() if line.startswith("| ") and line[2] in "SDXL"}
    for kind in invariants.ALL:
        assert f"``{kind.__name__}``" in rows[kind.ids], f"{kind.__name__} under {kind.ids}"
    numbers = {"S": 19, "D": 10, "X": 8, "L": 8}
    assert {f"{letter}{number}" for letter, most in numbers.items() for number in range(1, most + 1)} == rows.keys()


def test_ten_workers_and_a_hundred_tasks_come_to_rest_without_faults() -> None:
    """L1, L2 at the size of the speed gate."""
    result = play(7, faults=False, members=10, tasks=100)
    assert not result.violations, show(result.violations[0])


@pytest.mark.parametrize("first", [300])
def test_a_seed_is_the_same_run_in_two_processes(first: int) -> None:
    """S18: the order of a set of names differs between the two; nothing that is said or stored may."""
    traces = []
    for hash_seed in ("1", "2"):
        command = [
            sys.executable,
            "-m",
            "tests.simulation",
            "--seeds",
            "5",
            "--seed",
            str(first),
            "--traces",
            "--jobs",
            "1",
        ]
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
def test_what_is_broken_on_purpose_is_found_within_fifteen_seeds(
    broken: Callable[[], AbstractContextManager[None]],
) -> None:
    """A simulator that cannot fail proves nothing; and the promise that is broken is the one that is named."""
    with broken():
        found = next((result for seed in range(1, 16) if (result := play(seed)).violations), None)
    assert found is not None, "nobody noticed"
    violation = found.violations[0]
    assert violation.invariant.split()[0] in breakages.ALL[broken].split(), show(violation)
    assert f"--seed {found.seed} " in show(violation)


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
