"""A program written against the public names alone: its types are checked as its author would, and it runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.volume import ci_only

PROGRAM = Path(__file__).with_name("stranger.py")
ROOT = Path(__file__).parents[2]

checks_types = ci_only("mypy starts twice; in a user's run, the program runs, and make lint checks its types")


def check_types(folder: Path) -> subprocess.CompletedProcess[str]:
    """Check ``program.py`` without the configuration of this repository."""
    cache = ROOT / ".mypy_cache" / "stranger"
    # mypy does not follow the import hook of an editable install; errors inside an installed library are not shown.
    environment = {**os.environ, "MYPYPATH": str(ROOT)}
    options = ("--strict", "--config-file=", "--follow-imports=silent", f"--cache-dir={cache}")
    command = [sys.executable, "-m", "mypy", *options, "program.py"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@checks_types
def test_program_passes_mypy_strict_outside_of_the_repository(tmp_path: Path) -> None:
    """The library's types must be complete and exported."""
    shutil.copy(PROGRAM, tmp_path / "program.py")
    done = check_types(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@checks_types
def test_names_and_types_are_checked(tmp_path: Path) -> None:
    """A lazily loaded name is not ``Any``, and neither is the result of a method of the synchronous façade."""
    lines = [
        "import connectgroup as cg",
        "cg.nosuch",
        "with cg.sync.worker_group('g') as group:",
        "    number: int = group.admin.describe('g')",
    ]
    (tmp_path / "program.py").write_text("\n".join(lines))
    errors = check_types(tmp_path).stdout.splitlines()
    assert [error.partition(":")[2].partition(":")[0] for error in errors[:-1]] == ["2", "4"], errors


def test_program_runs() -> None:
    done = subprocess.run([sys.executable, PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "rejected: connector letters already exists" in done.stdout
    assert done.stdout.endswith("2 workers\n")
