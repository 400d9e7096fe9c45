"""Two or three coordinators and one log: each state that the rules allow, and each state that fewer rules allow."""

from __future__ import annotations

import pytest

from tests.volume import ci_only, volume

from .__main__ import main
from .ownership import BUGS, explore


@pytest.mark.parametrize(
    ("batches", "late", "states"), [(1, 1, 20_000), (2, 1, 50_000), (1, 2, 50_000)][: volume(1, 3)]
)
def test_every_state_that_the_rules_allow_keeps_the_invariants(batches: int, late: int, states: int) -> None:
    """D2 to D6 with the faults F12 and F13; and in each state some coordinator can still become the one that serves."""
    found = explore(batches=batches, late=late)
    assert not found.violation, found
    assert found.states > states


@pytest.mark.parametrize(("late", "states"), [(0, 20_000), (1, 100_000)][: volume(1, 2)])
def test_every_state_of_three_coordinators_keeps_the_invariants(late: int, states: int) -> None:
    """While two stand by, a take of one must not be one of the other, nor a former owner come back between them."""
    found = explore(coordinators=3, late=late)
    assert not found.violation, found
    assert found.states > states


@pytest.mark.parametrize("bug", ["take does not check renewals", "take does not wait for the lease"])
def test_rule_that_is_left_out_is_found_with_three_coordinators(bug: str) -> None:
    found = explore(bug, coordinators=3, late=0)
    assert found.violation.startswith(BUGS[bug]), found


@pytest.mark.parametrize("bug", BUGS)
def test_rule_that_is_left_out_is_found_with_a_trace(bug: str) -> None:
    """The search must be able to fail, and shows the steps."""
    found = explore(bug)
    assert found.violation.startswith(BUGS[bug]), found
    assert 0 < len(found.trace) <= 20
    assert found.trace[0] == "a looks at the owner"
    assert f"   1. {found.trace[0]}\n" in str(found)


@ci_only("seconds of a core; in a user's run, the tests above read the same traces")
def test_command_prints_the_traces(capsys: pytest.CaptureFixture[str]) -> None:
    """``python -m tests.model --type ownership``."""
    assert main(["--type", "ownership"]) == 0
    printed = capsys.readouterr().out
    assert "every invariant holds" in printed
    assert all(f"\n{bug}: " in printed for bug in BUGS)
