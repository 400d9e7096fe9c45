"""What a reader copies must work: the examples, and the program in README."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run(*words: str) -> str:
    """Run Python with these words; its output, or what it said when it failed."""
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)
    assert done.returncode == 0, f"{words[0]} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_embedding_example_hands_everything_over() -> None:
    said = run("examples/embedding.py").splitlines()
    assert "ann leaves" in said
    assert "bob runs letters, letters-0, letters-1, letters-2" in said


def test_the_custom_assignor_shows_itself_and_passes_its_contract() -> None:
    said = run("examples/custom_assignor.py")
    assert "cat joins: nothing moves\n  ann: a, a-0, a-1, a-2\n  bob: b, b-0, c, c-0, c-1\n  cat: nothing\n" in said
    assert "ann leaves: hers goes to the emptiest\n  bob: b, b-0, c, c-0, c-1\n  cat: a, a-0, a-1, a-2\n" in said
    assert re.search(r"\b8 passed", said)


def test_the_program_in_readme_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    (program,) = [block for block in blocks if "asyncio.run(" in block]  # the others are fragments
    assert len([line for line in program.splitlines() if line.strip()]) <= 25, "it promises to be short"
    file = tmp_path / "program.py"
    file.write_text(program, encoding="utf-8")
    assert run(str(file)).splitlines() == ["start letters at epoch 2", "stopped letters"]


@pytest.mark.parametrize(
    "heading", ["Try it", "Use it", "Embed it", "The picture", "Where to put things", "What it refuses to do"]
)
def test_readme_has_what_it_is_looked_up_for(heading: str) -> None:
    assert f"\n## {heading}\n" in (ROOT / "README.md").read_text(encoding="utf-8")
