"""Modules of the current directory do not shadow the standard library or connectgroup."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from ..integration.processes import COMMAND, Program
from .connector_files import connector_file

SHADOW = "raise ImportError(f'{__name__} of the current directory')\n"


@pytest.fixture
def full_of_shadows(tmp_path: Path) -> Path:
    """A directory with modules of common names, as a user may have one."""
    folder = tmp_path / "project"
    for package in "assignors", "listeners":
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").write_text(SHADOW)
    for module in "numbers", "calendar", "pydantic":
        (folder / f"{module}.py").write_text(SHADOW)
    return folder


@pytest.mark.parametrize(
    "command", [[Path(sys.executable).parent / "connectgroup"], COMMAND], ids=["connectgroup", "python -m"]
)
def test_up_runs_tasks_whatever_modules_the_current_directory_has(
    full_of_shadows: Path, tmp_path: Path, command: list[str | Path]
) -> None:
    idle = connector_file(tmp_path / "idle.json", **{"connector.class": "idle", "tasks.max": "2"})
    arguments = ("up", "--data", tmp_path / "data", "--connector", idle, "--port", 0, "--workers", 1)
    with Program(*arguments, command=command, cwd=full_of_shadows) as up:
        up.line_with("| 1 worker | 3/3 units |")
        up.signal(signal.SIGTERM)
        assert up.ended() == 0, up.output()
