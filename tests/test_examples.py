"""The examples and the program in README run as documented."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from connectgroup.protocol.messages.describe import (
    DescribedConnector,
    DescribedGroup,
    DescribedMember,
    DescribedUnit,
)
from connectgroup.testing.virtual_time import VirtualLoop

ROOT = Path(__file__).parent.parent


def run(*words: str) -> str:
    """Run Python with these arguments; return its output."""
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)
    assert done.returncode == 0, f"{words[0]} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_embedding_example_hands_over_its_units() -> None:
    lines = run("examples/embedding.py").splitlines()
    assert "ann leaves" in lines
    assert "bob runs letters, letters-0, letters-1, letters-2" in lines


def test_custom_assignor_prints_an_assignment_and_passes_its_contract() -> None:
    output = run("examples/custom_assignor.py")
    assert "cat joins: nothing moves\n  ann: a, a-0, a-1, a-2\n  bob: b, b-0, c, c-0, c-1\n  cat: nothing\n" in output
    assert "ann leaves: its units move to cat\n  bob: b, b-0, c, c-0, c-1\n  cat: a, a-0, a-1, a-2\n" in output
    assert re.search(r"\b8 passed", output)


def test_program_in_readme_runs(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len([line for line in program.splitlines() if line.strip()]) <= 25, "it promises to be short"
    file = tmp_path / "program.py"
    file.write_text(program, encoding="utf-8")
    # Two threads may print into one line.
    printed = re.findall(r"(start|stop) (\d)", run(str(file)))
    for tick in ("0", "1"):
        events = [event for event, of in printed if of == tick]
        assert events
        assert events == ["start", "stop"] * (len(events) // 2)
    assert len(printed) > 4, "a task moved"


@pytest.mark.parametrize("heading", ["Try it", "Use it", "More"])
def test_readme_has_its_sections(heading: str) -> None:
    assert f"\n## {heading}\n" in (ROOT / "README.md").read_text(encoding="utf-8")


class StubSupervisor:
    """A supervisor whose workers join after this number of seconds; ``None``: a worker has ended."""

    def __init__(self, joins_after_s: float | None) -> None:
        self.joins_after_s = joins_after_s
        self.workers = {name: SimpleNamespace(ended=joins_after_s is None) for name in ("worker-1", "worker-2")}

    async def describe(self) -> DescribedGroup:
        joined = self.joins_after_s is not None and asyncio.get_running_loop().time() >= self.joins_after_s
        members = tuple(DescribedMember(member_id=name) for name in self.workers) if joined else ()
        units = tuple(DescribedUnit(task=task, state="RUNNING" if joined else "UNASSIGNED") for task in (-1, 0))
        return DescribedGroup(members=members, connectors=(DescribedConnector(connector="c", units=units),))


def demo_module() -> ModuleType:
    """The module of the demo."""
    spec = importlib.util.spec_from_file_location("demo", ROOT / "examples" / "demo.py")
    assert spec is not None
    assert spec.loader is not None
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    return demo


def demo_waits(joins_after_s: float | None, log: Path) -> None:
    """Run the demo's wait for its workers, in virtual time."""
    demo = demo_module()
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(demo.until_running(StubSupervisor(joins_after_s), 1, log))


def test_demo_names_a_directory_that_it_cannot_have(tmp_path: Path) -> None:
    demo = demo_module()
    (tmp_path / "file").touch()
    for data in tmp_path, tmp_path / "file", tmp_path / "file" / "below":
        with pytest.raises(SystemExit, match=r"^demo: --data: got '.*'; allowed: a new directory, or"):
            demo.empty(data)
    demo.empty(tmp_path / "new")
    demo.empty(tmp_path / "new")
    assert [path.name for path in (tmp_path / "new").iterdir()] == [".connectgroup-demo"]


def test_demo_waits_for_workers_that_start_slowly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demo_waits(200, tmp_path / "workers.log")
    reports = capsys.readouterr().out.splitlines()
    assert len(reports) == 19
    assert all(line.endswith(f"| log: {tmp_path / 'workers.log'}") for line in reports)


@pytest.mark.parametrize(
    ("joins_after_s", "problem"),
    [(301, "worker-1, worker-2: not running after 300 s"), (None, "worker-1, worker-2 ended")],
)
def test_demo_names_the_log_when_workers_do_not_start(
    tmp_path: Path, joins_after_s: float | None, problem: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        demo_waits(joins_after_s, tmp_path / "workers.log")
    assert str(caught.value) == f"demo: {problem}; see {tmp_path / 'workers.log'}"
