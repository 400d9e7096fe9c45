"""Product and model of classic groups under inputs of any kind; and with planted faults.

A difference is an error in one of the two; the sources decide in which. ``python -m tests.model --type classic`` runs
more seeds.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutation.fault import Fault
from tests.mutation.faults import FAULTS, named
from tests.volume import volume

from ..__main__ import main
from ..consumer.driver import ACTS
from ..consumer.test_model import is_of_migration
from ..driver import acts
from ..imports import imports_of_rules
from ..replay import Finding
from .driver import ClassicDriver

MODEL = ("words", "state", "model")
"""The first is that of ``tests.model``."""
RULES = "connectgroup.group.classic."
OF_RULES = [each for each in FAULTS if each.model and each.target.startswith(RULES) and not is_of_migration(each)]


@pytest.mark.parametrize("first", range(0, volume(100, 500, 3_000), 50))
def test_any_sequence_of_inputs_is_decided_as_by_the_model(first: int) -> None:
    """Responses, the parked ones when they are sent, state and timers are equal."""
    for seed in range(first, first + 50):
        finding = found_with(seed)
        assert finding is None, f"seed {seed}: {finding}"


def test_model_shares_no_code_with_the_rules() -> None:
    """Shared code would have the same errors on both sides."""
    for name in MODEL[1:]:
        assert imports_of_rules(Path(__file__).parent / f"{name}.py", MODEL) == []


@pytest.mark.parametrize("fault", OF_RULES, ids=lambda fault: str(fault.name))
def test_each_planted_fault_is_found(fault: Fault) -> None:
    """The comparison must be able to fail."""
    with fault.planted():
        assert any(found_with(seed) for seed in range(400)), "no difference"


def test_command_reports_the_first_difference_of_each_seed(capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is 1, and the fewest acts that show the difference are printed."""
    assert main(["--type", "classic", "--seeds", "3", "--jobs", "1"]) == 0
    with named("a heartbeat during a rebalance").planted():
        assert main(["--type", "classic", "--seeds", "3", "--jobs", "1"]) == 1
    printed = capsys.readouterr().out
    for part in ("seed ", "acts: ", "input at", "product:", "model:", "the group before it:"):
        assert part in printed


def found_with(seed: int) -> Finding | None:
    """The first difference for this seed."""
    driver = ClassicDriver.drawn(seed)
    driver.play(acts(seed, ACTS))
    return next(iter(driver.replay.findings), None)
