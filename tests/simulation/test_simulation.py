"""The system under the simulator: some seeds in every run of the tests, thousands on demand (``make simulate``)."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")

from tests.mutation.fault import Fault
from tests.mutation.faults import FAULTS, named
from tests.volume import ci_only, volume

from . import invariants
from .classic import ClassicSchedule
from .cluster import WorkerNode
from .command import differing, shrunk
from .fault_ids import ELSEWHERE, FAULT_IDS, NOT_YET
from .invariants import Violation
from .loop import SimulatedLoop, off_loop, simulated
from .run import run_seed
from .setting import Plan, Setting, is_mixed
from .suite import KINDS, Suite, show

ROOT = Path(__file__).parents[2]
SEEDS = volume(8, 1_000, 24)  # the first eight have every kind of group; the soak runs the simulator by itself
MINUTES = 30
"""No seed starts later: where a processor is slow or busy, fewer seeds run, and the table says how many."""
REACH_ALL = 24
"""The least number of seeds that reach every rare state; a user's run has fewer, and checks the invariants alone."""
SEEDS_TWICE = volume(1, 3, 20)  # with 1,000 seeds the simulator repeats 20 by itself


@pytest.mark.first
@pytest.mark.timeout(3_600)
def test_simulated_groups_keep_every_invariant_and_reach_every_rare_state(
    capfd: pytest.CaptureFixture[str], record_property: Callable[[str, object], None]
) -> None:
    """The invariants S, D, X and L of ``invariants``, and the gates: without rare states the seeds prove less.

    A subprocess runs the seeds and prints its progress; the table is in the test summary. Its priority is low: other
    tests of the same run wait for timeouts of real processes, and a simulated second takes as long as it takes.
    """
    command = ["nice", "-n", "15", sys.executable, "-m", "tests.simulation", "--seeds", str(SEEDS)]
    command += ["--minutes", str(MINUTES)]
    command += ["--jobs", str(os.cpu_count() or 1), *(["--gates"] if SEEDS >= REACH_ALL else [])]
    with capfd.disabled():
        ran = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    record_property("table", f"{SEEDS} seeds of ten simulated minutes\n{ran.stdout}")
    assert ran.returncode == 0, ran.stdout


def test_incomplete_suite_does_not_pass_the_gates() -> None:
    """One seed reaches only the simulated time; no seed reaches nothing."""
    suite = Suite()
    suite.add(run_seed(1))
    missing = {gate.name for gate in suite.gates if not gate.holds}
    assert missing == {"kinds of faults armed and hit", "rare states reached"}
    assert suite.unreached
    suite.violations.append(Violation(1, "S1 OneOwner", "", 0.0, ()))
    suite.faults = 24
    suite.simulated_s = 500.0
    assert not any(gate.holds for gate in suite.gates)


def test_every_fault_of_the_list_is_simulated_or_tested_elsewhere_or_listed_as_missing() -> None:
    """F1 to F37 of reliability; a kind without an id would also be missing from the printed table."""
    assert FAULT_IDS.keys() == KINDS | {"clocks drift"}
    for number, file in ELSEWHERE.items():
        tree = ast.walk(ast.parse((ROOT / file).read_text()))
        tests = [
            node
            for node in tree
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
        ]
        docstrings = [ast.get_docstring(test) or "" for test in tests]
        assert any(re.search(rf"\b{number}\b", words) for words in docstrings), f"no test of {file} names {number}"
    listed = [*{*FAULT_IDS.values()} - {"-"}, *ELSEWHERE, *NOT_YET]
    assert sorted(listed, key=lambda number: int(number[1:])) == [f"F{number}" for number in range(1, 38)]


def test_seed_replayed_from_its_plan_is_the_same_run() -> None:
    """Everything that is drawn is in the plan, and survives serialization."""
    drawn = run_seed(3)
    again = run_seed(3, plan=Plan.from_json(drawn.plan.to_json()))
    assert again.trace == drawn.trace
    assert again.plan == drawn.plan


@ci_only("seconds of a core; it is about the report of a failure alone")
def test_failing_run_is_shrunk_and_fails_in_the_same_way() -> None:
    """The shrunk plan holds only what the failure takes: no fault rates, no network faults, and few faults."""
    with named("a member that rejoins gets its units under their former tokens").planted():
        failing = run_seed(1, members=3, tasks=3)
        plan, tries = shrunk(failing, 3600.0)  # it ends by itself, after some 30 runs
        again = run_seed(plan.seed, plan=plan)
    assert tries > 1
    assert len(plan.faults) < len(failing.plan.faults)
    assert again.violations[0].invariant == failing.violations[0].invariant == "S6 TokenIssuedOnce"


def test_every_invariant_is_checked_by_a_class_or_named_where_it_is_checked() -> None:
    """The table in ``invariants`` matches the classes."""
    table = invariants.__doc__ or ""
    rows = {line.split()[1]: line for line in table.splitlines() if line.startswith("| ") and line[2] in "SDXLP"}
    for kind in invariants.ALL:
        assert f"``{kind.__name__}``" in rows[kind.ids], f"{kind.__name__} under {kind.ids}"
    fault_ids = {"S": 19, "D": 10, "X": 8, "L": 8}
    named = {name for name in rows if not name.startswith("PD-")}  # the others are this project's own rules
    assert {f"{letter}{number}" for letter, limit in fault_ids.items() for number in range(1, limit + 1)} == named


@ci_only("seconds of a core; in a user's run, groups of other sizes settle after their faults")
def test_ten_workers_and_a_hundred_tasks_settle_without_faults() -> None:
    """L1, L2 at the size of the speed gate."""
    result = run_seed(7, faults=False, members=10, tasks=100)
    assert not result.violations, show(result.violations[0])


def test_group_settles_after_the_rejected_join_of_a_returning_static_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """L1: it left temporarily, so its units move when its session ends, not within some heartbeat intervals."""
    rejected: list[str] = []

    class Schedule(ClassicSchedule):
        """Only changes of protocol; the first worker to come back has assignor versions of its own."""

        small_changes = ("change",)

        async def change_protocol(self, node: WorkerNode) -> None:
            cluster = self.cluster
            if not rejected:
                rejected.append(node.slot)
                monkeypatch.setattr(cluster, "versions_of", lambda slot: (7, 7) if slot in rejected else (0, 0))
            await super().change_protocol(node)

    monkeypatch.setattr("tests.simulation.run.ClassicSchedule", Schedule)
    plan = Plan(seed=8, members=4, tasks=3, setting=Setting(statics=True), faults=(), ends_s=0.0)
    result = run_seed(8, faults=False, plan=plan)
    assert not result.violations, show(result.violations[0])
    assert rejected


def test_seed_is_deterministic_across_processes() -> None:
    """S18: the iteration order of a set of names differs between the two processes; traces and records must not.

    The first seed has consumers; the last, which is not in a user's run, workers of both protocols.
    """
    assert differing(306, SEEDS_TWICE) == ""


@pytest.mark.parametrize(
    "fault", [fault for fault in FAULTS if fault.simulator][:: volume(5, 3, 1)], ids=lambda fault: str(fault.name)
)
def test_each_planted_fault_is_found_within_sixty_seeds(fault: Fault) -> None:
    """Each planted fault violates one of the invariants that the fault names, under its own seed or one of sixty."""
    mixed = is_mixed(fault.seed)
    seeds = dict.fromkeys(
        [fault.seed, *(seed for seed in range(1, 601 if mixed else 61) if is_mixed(seed) or not mixed)]
    )
    with fault.planted():
        found = next((result for seed in seeds if (result := run_seed(seed)).violations), None)
    assert found is not None, "no violation"
    violation = found.violations[0]
    assert violation.invariant.split()[0] in fault.simulator.split(), show(violation)
    assert f"--seed {found.seed} " in show(violation)


def test_simulation_never_waits_in_real_time() -> None:
    """A thread, or a sleep, would make a run depend on the machine."""
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
