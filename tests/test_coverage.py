"""The rules, the worker's state machine and the wire are covered by their own tests: 95 % of lines and of branches.

Only tests of their own folders count: code that an integration test happens to run is not checked by it. Those of the
rules include the scenes and the reference model, which check all that they run. ``make mutants`` runs this first;
``make test`` does not: it takes six minutes of a core.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).parents[1]
PACKAGES: Final = ("group", "member", "wire")
TESTS: Final = (
    *("tests/group", "tests/scenes", "tests/member", "tests/wire"),
    "tests/model/test_model.py::test_long_sequences_reach_states_that_short_ones_do_not",
)
MIN_PERCENT: Final = 95.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Covered:
    """Coverage of a file, or of all files of a package."""

    lines: int
    lines_run: int
    branches: int
    branches_run: int

    @property
    def percent(self) -> float:
        """The lower percentage of lines and branches."""
        return min(
            100 * run / of if of else 100.0
            for run, of in ((self.lines_run, self.lines), (self.branches_run, self.branches))
        )


@pytest.mark.timeout(1800)
def test_pure_packages_are_covered_by_their_own_tests(tmp_path: Path) -> None:
    if importlib.util.find_spec("coverage") is None:
        pytest.skip("coverage is not installed; allowed: pip install coverage")
    files = measured(tmp_path)
    for package in PACKAGES:
        if covered(files, package).percent < MIN_PERCENT:
            pytest.fail(report_of(files, package), pytrace=False)


def measured(folder: Path) -> dict[str, Any]:
    """The coverage report of each file, by its path in the repository; runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COVERAGE"))}
    environment = {
        **kept,
        "PYTHONPATH": str(ROOT),
        "COVERAGE_FILE": str(folder / "data"),
        # A few inputs cover the lines; the others are for the tests themselves.
        "TEST_VOLUME": "user",
        "FUZZ_INPUTS": "2000",
    }
    coverage = ("nice", "-n", "15", sys.executable, "-m", "coverage")
    sources = ",".join(f"connectgroup.{package}" for package in PACKAGES)
    pytest_options = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--basetemp", str(folder / "t"))
    for command in (
        (*coverage, "run", "--branch", f"--source={sources}", "-m", "pytest", *pytest_options, *TESTS),
        (*coverage, "json", "-q", "-o", str(folder / "report.json")),
    ):
        ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1700)
        assert ran.returncode == 0, f"{' '.join(command)}\n{ran.stdout[-4000:]}{ran.stderr[-2000:]}"
    files: dict[str, Any] = json.loads((folder / "report.json").read_text())["files"]
    measured_files = {
        path.relative_to(ROOT).as_posix() for p in PACKAGES for path in (ROOT / "connectgroup" / p).rglob("*.py")
    }
    # A file that is never imported would otherwise not count.
    assert measured_files == set(files), f"not the files of the tree: {sorted(measured_files ^ set(files))}"
    return files


def covered(files: dict[str, Any], part: str) -> Covered:
    """The total of a package, or of a file."""
    of = [file["summary"] for path, file in files.items() if f"{path}/".startswith(f"connectgroup/{part}/")]
    return Covered(
        lines=sum(each["num_statements"] for each in of),
        lines_run=sum(each["covered_lines"] for each in of),
        branches=sum(each["num_branches"] for each in of),
        branches_run=sum(each["covered_branches"] for each in of),
    )


def report_of(files: dict[str, Any], package: str) -> str:
    """A package's percentages and, the lowest first, the lines and branches of its files that did not run."""
    whole = covered(files, package)
    lines = [
        f"connectgroup/{package}: {whole.lines_run} of {whole.lines} lines, {whole.branches_run} of {whole.branches}"
        f" branches; allowed: {MIN_PERCENT:g} % of each"
    ]
    names = [path for path in files if path.startswith(f"connectgroup/{package}/")]
    for path in sorted(names, key=lambda path: covered(files, path.removeprefix("connectgroup/")).percent)[:8]:
        missed = files[path]["missing_lines"]
        branches = [f"{begin}->{end}" for begin, end in files[path]["missing_branches"] if begin not in missed]
        lines.append(f"{path}: lines {_ranges(missed) or 'all run'}; branches {', '.join(branches) or 'all taken'}")
    return "\n".join(lines)


def _ranges(numbers: list[int]) -> str:
    """``3-5, 9`` for 3, 4, 5, 9."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ", ".join(str(begin) if begin == end else f"{begin}-{end}" for begin, end in ranges)
