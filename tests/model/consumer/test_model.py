"""Product and model of consumer groups under inputs of any kind; and with planted faults.

A difference is an error in one of the two; the sources decide in which. ``python -m tests.model --type consumer`` runs
more seeds.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutation.fault import Fault
from tests.mutation.faults import FAULTS, named
from tests.volume import volume

from ..__main__ import main
from ..imports import imports_of_rules
from .driver import found_with

MODEL = ("words", "computing", "model", "classic")
"""Those of ``tests.model`` that these use have the same names."""

PLACES = ("connectgroup.group.consumer.", "connectgroup.group.kernel.")
CONNECT_ONLY = ("a grant older than its unit's configuration is kept",)
"""Faults of the kernel that a consumer group cannot show: its partitions have no configuration."""


def is_of_migration(fault: Fault) -> bool:
    """Whether only a group that has members of the classic protocol shows a fault: see ``test_mixed``."""
    return fault.model and "tests/group/migration/" in fault.tests


@pytest.mark.parametrize("first", range(0, volume(100, 200, 1_000), 50))
def test_any_sequence_of_inputs_is_decided_as_by_the_model(first: int) -> None:
    """Responses with their error codes, state, records, timers, effects and woken members are equal."""
    for seed in range(first, first + 50):
        finding = found_with(seed)
        assert finding is None, f"seed {seed}: {finding}"


def test_model_shares_no_code_with_the_rules() -> None:
    """Shared code would have the same errors on both sides."""
    for name in MODEL:
        assert imports_of_rules(Path(__file__).parent / f"{name}.py", MODEL) == []


@pytest.mark.parametrize(
    "fault",
    [
        each
        for each in FAULTS
        if each.model and each.target.startswith(PLACES) and each.name not in CONNECT_ONLY and not is_of_migration(each)
    ],
    ids=lambda fault: str(fault.name),
)
def test_each_planted_fault_is_found(fault: Fault) -> None:
    """The comparison must be able to fail."""
    with fault.planted():
        assert any(found_with(seed) for seed in (fault.seed, *range(400))), "no difference"


def test_command_reports_the_first_difference_of_each_seed(capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is 1, and the fewest acts that show the difference are printed."""
    assert main(["--type", "consumer", "--seeds", "3", "--jobs", "1"]) == 0
    assert "seeds=3 inputs=" in capsys.readouterr().out
    with named("a unit is assigned while another member holds it").planted():
        assert main(["--type", "consumer", "--seeds", "5", "--jobs", "1"]) == 1
    printed = capsys.readouterr().out
    for part in ("seed ", "acts: ", "input at", "product:", "model:", "the group before it:"):
        assert part in printed
