"""Product and model: under simulated faults, under inputs of any kind; and with planted faults.

A difference is an error in one of the two; the sources decide in which. The model was written from them alone.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.mutation.fault import Fault
from tests.mutation.faults import FAULTS, named
from tests.simulation.run import run_seed
from tests.simulation.setting import is_mixed
from tests.simulation.suite import show
from tests.volume import SIZE, ci_only, volume

from .__main__ import DRIVERS, main, played
from .consumer.mixed import MixedDriver
from .driver import Act
from .replay import Finding
from .simulated import DecidedAsTheModelDecides, with_model

SEEDS = range(501, 501 + volume(1, 5, 20))
"""Other seeds than those of tests.simulation. ``make soak`` runs more of them with ``python -m tests.model``."""

NUMBERS = st.integers(0, 63)
ACTS = st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS), min_size=5, max_size=40)
CHUNK = 50
OF_ANY_INPUTS = {
    "connect": volume(100, 400),
    "consumer": volume(100, 200, 1_000),
    "mixed": volume(50, 200, 1_000),
    "classic": volume(100, 500, 3_000),
}
"""Seeds of each type of group."""


def types_of(fault: Fault) -> list[str]:
    """The types of groups whose comparison must find a fault."""
    group = fault.target.removeprefix("connectgroup.group.").partition(".")[0]
    if "tests/group/migration/" in fault.tests:
        return ["mixed"]  # only a group that has members of the classic protocol shows it
    if group in ("consumer", "classic"):
        return [group]
    # Partitions have no configuration.
    connect_only = group != "kernel" or fault.name == "a grant older than its unit's configuration is kept"
    return ["connect"] if connect_only else ["connect", "consumer"]


PLANTED = [(group_type, fault) for fault in FAULTS if fault.model for group_type in types_of(fault)]
if SIZE == "user":
    PLANTED = list({group_type: (group_type, fault) for group_type, fault in reversed(PLANTED)}.values())
FOUND_WITHIN = {"connect": 200, "consumer": 400, "mixed": 100, "classic": 400}
"""Seeds."""


def first_difference(group_type: str, seed: int) -> Finding | None:
    """The first difference for this seed."""
    return next(iter(played(DRIVERS[group_type], seed).replay.findings), None)


@pytest.mark.parametrize("first", SEEDS[::5])
def test_every_decision_of_a_simulated_cluster_is_that_of_the_model(first: int) -> None:
    """Coordinators that crash, are fenced, fail to write and replay are followed (D1 to D3, D6)."""
    for seed in range(first, min(first + 5, SEEDS.stop)):
        if is_mixed(seed):
            continue  # the model knows connect groups only
        with with_model():
            result = run_seed(seed)
        assert DecidedAsTheModelDecides.newest.replay.inputs > 100
        assert not result.violations, show(result.violations[0])


@settings(max_examples=volume(100, 400), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 200), drawn=ACTS)
def test_any_sequence_of_inputs_is_decided_as_by_the_model(seed: int, drawn: list[Act]) -> None:
    """S1 to S16 hold for the product as far as they hold for the model; responses, state, records, timers are equal."""
    driver = played(DRIVERS["connect"], seed, drawn)
    assert not driver.replay.findings, f"seed {seed}: {driver.replay.findings[0]}"


@pytest.mark.parametrize(
    ("group_type", "first"),
    [(name, first) for name, seeds in OF_ANY_INPUTS.items() for first in range(0, seeds, CHUNK)],
)
def test_long_sequences_reach_states_that_short_ones_do_not(group_type: str, first: int) -> None:
    """Delays, rounds, rejoins and conversions take many steps to coincide."""
    conversions = 0
    for seed in range(first, first + CHUNK):
        driver = played(DRIVERS[group_type], seed)
        assert not driver.replay.findings, f"seed {seed}: {driver.replay.findings[0]}"
        conversions += driver.replay.conversions if type(driver) is MixedDriver else 0
    assert group_type != "mixed" or conversions > CHUNK


@pytest.mark.parametrize("file", ["", "consumer/", "classic/"])
def test_model_shares_no_code_with_the_rules(file: str) -> None:
    """Shared code would have the same errors on both sides: a model imports models, errors and data types."""
    names = {"": "words state connectors computing model", "consumer/": "words computing model classic"}
    for name in names.get(file, "state model").split():
        for node in ast.walk(ast.parse((Path(__file__).parent / f"{file}{name}.py").read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                assert node.module in ("words", "state", "connectors", "computing", "model"), f"{file}{name}"
            elif isinstance(node, ast.ImportFrom | ast.Import):
                modules = (
                    [node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names]
                )
                ours = [module for module in modules if module.startswith(("connectgroup", "tests"))]
                assert all(each.startswith(("connectgroup.errors", "connectgroup.protocol")) for each in ours), ours


@pytest.mark.parametrize(
    ("group_type", "fault"), PLANTED, ids=[f"{group_type}: {fault.name}" for group_type, fault in PLANTED]
)
def test_each_planted_fault_is_found(group_type: str, fault: Fault) -> None:
    """The comparison must be able to fail."""
    with fault.planted():
        seeds = (fault.seed, *range(FOUND_WITHIN[group_type]))
        assert any(first_difference(group_type, seed) for seed in seeds), "no difference"


@pytest.mark.parametrize(
    "name",
    [
        "a unit is assigned while another member holds it (S1)",
        "a group is served from memory after a failed append (D6)",
        "a changed assignment is not in the response",
        pytest.param(
            "a member that rejoins gets its units under their former tokens (S6)",
            marks=ci_only("7 s of a core; in a user's run, the other faults here"),
        ),
    ],
)
def test_fault_planted_in_a_simulated_cluster_is_found_by_the_model(name: str) -> None:
    """A difference from the model is a violation like any other."""
    with named(name).planted(), with_model():
        results = (run_seed(seed) for seed in range(1, 16))
        assert any(one.invariant.startswith("M1 ") for each in results for one in each.violations)


def test_command_of_the_simulator_compares_with_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    """A difference is reported like any violation, and the exit code is 1."""
    with named("a unit is assigned while another member holds it").planted():
        assert main(["--seed", "1", "--seeds", "1", "--no-shrink"]) == 1
    assert "M1 DecidedAsTheModelDecides does not hold" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("group_type", "fault"),
    [
        pytest.param(
            *("consumer", "a unit is assigned while another member holds it"),
            marks=ci_only("8 s of a core; in a user's run, the same report about a group of the classic protocol"),
        ),
        ("classic", "a heartbeat during a rebalance"),
    ],
)
def test_command_reports_the_first_difference_of_each_seed(
    group_type: str, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is 1, and the fewest acts that show the difference are printed, with both results."""
    assert main(["--type", group_type, "--seeds", "3", "--jobs", "1"]) == 0
    assert "seeds=3 inputs=" in capsys.readouterr().out
    with named(fault).planted():
        assert main(["--type", group_type, "--seeds", "5", "--jobs", "1"]) == 1
    printed = capsys.readouterr().out
    for part in ("seed ", "acts: ", "input at", "product:", "model:", "the group before it:"):
        assert part in printed
