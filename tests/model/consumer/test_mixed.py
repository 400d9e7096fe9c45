"""Product and model of a group with members of both protocols, and its conversions; and with planted faults.

A difference is an error in one of the two; the sources decide in which. ``python -m tests.model --type mixed`` runs
more seeds.
"""

from __future__ import annotations

import pytest

from tests.mutation.fault import Fault
from tests.mutation.faults import FAULTS
from tests.volume import volume

from ..driver import acts
from .driver import ACTS
from .mixed import MixedDriver
from .test_model import is_of_migration


@pytest.mark.parametrize("first", range(0, volume(50, 200, 1_000), 50))
def test_any_sequence_of_inputs_is_decided_as_by_the_model(first: int) -> None:
    """Responses with their error codes, state, records, timers and effects are equal, and groups are converted."""
    conversions = 0
    for seed in range(first, first + 50):
        driver = played(seed)
        assert not driver.replay.findings, f"seed {seed}: {driver.replay.findings[0]}"
        conversions += driver.replay.conversions
    assert conversions > 50


@pytest.mark.parametrize("fault", [each for each in FAULTS if is_of_migration(each)], ids=lambda fault: str(fault.name))
def test_each_planted_fault_is_found(fault: Fault) -> None:
    """The comparison must be able to fail."""
    with fault.planted():
        assert any(played(seed).replay.findings for seed in range(100)), "no difference"


def played(seed: int) -> MixedDriver:
    """The group after all inputs of a seed, or after the first difference."""
    driver = MixedDriver.drawn(seed)
    driver.play(acts(seed, ACTS))
    return driver
