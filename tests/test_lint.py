"""Style, types and import rules of the whole repository (``make lint``), beside the other tests."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.volume import ci_only

ROOT = Path(__file__).parents[1]
TYPES = pytest.param("mypy", marks=ci_only("a minute of a core where nothing is cached; make lint checks types"))
COMMANDS = (TYPES, "lint-imports --no-cache", "ruff check .", "ruff format --check .")


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("command", COMMANDS)
def test_repository_passes(command: str) -> None:
    name, *options = command.split()
    if importlib.util.find_spec(name.replace("lint-imports", "importlinter")) is None:
        pytest.skip(f"{name} is not installed; allowed: pip install connectgroup[dev]")
    done = subprocess.run(
        [Path(sys.executable).with_name(name), *options], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.fail(f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}", pytrace=False)
