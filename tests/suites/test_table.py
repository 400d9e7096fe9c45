"""The table of ``make suites``, from reports as pytest writes them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.suites import table as tables
from tests.suites.table import Outcome, Row, outcomes, rows, split_places, table

CASES = """
import pytest

@pytest.fixture
def broken():
    yield
    raise ValueError("at the end")

@pytest.mark.parametrize("place", ["broker", "proxy"])
@pytest.mark.parametrize("protocol", ["range", "KIP-848"])
def test_same(place, protocol): pass

@pytest.mark.parametrize("place", ["broker", "proxy"])
def test_differs(place): assert place == "broker", "a | b\\nc"

@pytest.mark.parametrize("place", ["broker", "proxy"])
def test_skipped(place): pytest.skip("not here")

@pytest.mark.parametrize("place", ["broker", "proxy"])
def test_fails_at_its_end(place, broken): pass

def test_of_the_proxy_alone(): pass
"""


@pytest.fixture
def found(tmp_path: Path) -> dict[str, Outcome]:
    (tmp_path / "test_cases.py").write_text(CASES)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml=report.xml"]
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, timeout=120)
    return outcomes(tmp_path / "report.xml")


def test_outcomes_on_both_places_are_side_by_side(found: dict[str, Outcome]) -> None:
    listed = rows("own", split_places(found))
    assert [row[:4] for row in listed] == [
        ("own", "test_same[range]", "passed", "passed"),
        ("own", "test_same[KIP-848]", "passed", "passed"),
        ("own", "test_differs", "passed", "failed"),
        ("own", "test_skipped", "skipped", "skipped"),
        ("own", "test_fails_at_its_end", "failed", "failed"),
    ]
    text = table(listed)
    assert "| own | test_differs | passed | failed | AssertionError: a \\| b c" in text
    assert (
        "own: 5 cases; the same on both: 2 passed, 1 skipped, 1 failed; different: 1, 1 without a known reason" in text
    )


def test_case_that_ran_on_one_place_alone_differs() -> None:
    passed = Outcome("passed", "")
    [row] = rows("own", {"broker": {"m::test_x": passed}, "proxy": {}})
    assert row.differs
    assert (row.broker, row.proxy) == ("passed", "not run")


def test_known_difference_is_shown_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "REASONS", {"own test_x*": "the broker alone has it"})
    row = Row("own", "test_x[1]", "passed", "failed", "AssertionError")
    assert "| own | test_x[1] | passed | failed | the broker alone has it |" in table([row])
    assert "different: 1, 0 without" in table([row])
