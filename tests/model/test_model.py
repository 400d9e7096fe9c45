"""Product and model: under simulated faults, under inputs of any kind; and with planted faults.

A difference is an error in one of the two; the sources decide in which. The model was written from them alone.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.mutation.fault import Fault
from tests.mutation.faults import FAULTS, named
from tests.simulation.run import run_seed
from tests.simulation.setting import is_mixed
from tests.simulation.suite import show
from tests.volume import volume

from .__main__ import main
from .driver import Act, Driver, acts
from .imports import imports_of_rules
from .replay import Finding
from .simulated import DecidedAsTheModelDecides, with_model

SEEDS = range(501, 501 + volume(2, 5, 20))
"""Other seeds than those of tests.simulation. ``make soak`` runs more of them with ``python -m tests.model``."""

MODEL = ("words", "state", "connectors", "computing", "model")
OTHER_TYPES = ("connectgroup.group.consumer.", "connectgroup.group.classic.")

NUMBERS = st.integers(0, 63)
ACTS = st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS), min_size=5, max_size=40)


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
    driver = Driver.drawn(seed)
    driver.play(drawn)
    assert not driver.replay.findings, f"seed {seed}: {driver.replay.findings[0]}"


@pytest.mark.parametrize("first", range(0, volume(100, 400), 100))
def test_long_sequences_reach_states_that_short_ones_do_not(first: int) -> None:
    """Delays, rounds and rejoins take many steps to coincide."""
    for seed in range(first, first + 100):
        finding = found_with(seed)
        assert finding is None, f"seed {seed}: {finding}"


def test_model_shares_no_code_with_the_rules() -> None:
    """Shared code would have the same errors on both sides."""
    for name in MODEL:
        assert imports_of_rules(Path(__file__).parent / f"{name}.py", MODEL) == []


@pytest.mark.parametrize(
    "fault",
    [fault for fault in FAULTS if fault.model and not fault.target.startswith(OTHER_TYPES)],
    ids=lambda fault: str(fault.name),
)
def test_each_planted_fault_is_found(fault: Fault) -> None:
    """The comparison must be able to fail."""
    with fault.planted():
        assert any(found_with(seed) for seed in range(200)), "no difference"


@pytest.mark.parametrize(
    "name",
    [
        "a unit is assigned while another member holds it (S1)",
        "a group is served from memory after a failed append (D6)",
        "a changed assignment is not in the response",
        "a member that rejoins gets its units under their former tokens (S6)",
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


def test_difference_shows_the_input_and_both_results() -> None:
    with named("every epoch is admitted").planted():
        text = str(next(finding for seed in range(200) if (finding := found_with(seed))))
    for part in ("input at", "HeartbeatRequest", "product:", "model:", "the group before it:"):
        assert part in text


def found_with(seed: int) -> Finding | None:
    """The first difference for this seed."""
    driver = Driver.drawn(seed)
    driver.play(acts(seed, 50))
    return next(iter(driver.replay.findings), None)
