"""The benchmark itself: what it calls amiss, and a run in a tiny size. No time decides anything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.rebalance import TITLES, main
from benchmarks.rebalance_group import Bench, names
from benchmarks.task_log import parse
from tests.volume import ci_only

ROOT = Path(__file__).parents[2]
SETTLED = "1 START worker-1 main-0 1\n2 START worker-2 main-1 1\n3 START worker-1 main-2 1\n"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("", []),
        ("4 STOP worker-1 main-2 1", ["1 tasks not running, main-2 first"]),
        ("4 START worker-2 main-2 2", ["1 tasks on two workers, main-2 first"]),
        ("4 START worker-2 more-0 2", ["1 tasks running and not wanted, more-0 first"]),
        ("4 STOP worker-2 main-1 1\n5 START gone main-1 2", ["on a worker that has gone, main-1", "uneven"]),
        ("4 STOP worker-2 main-1 1\n5 START worker-1 main-1 2", ["uneven: {'worker-1': 3}"]),
    ],
)
def test_tasks_are_settled_when_each_runs_once_on_a_live_worker_evenly(
    tmp_path: Path, change: str, said: list[str]
) -> None:
    bench = Bench(tmp_path, tasks=3, workers=2)
    bench.wanted = names("main", 3)
    bench.log.events = parse((SETTLED + change).splitlines())
    found = bench.amiss()
    assert len(found) == len(said)
    assert all(part in line for part, line in zip(said, found, strict=True))


@ci_only("ten seconds of a core; in a user's run, the checks above, and test_faults rebalances processes")
@pytest.mark.processes
def test_every_scenario_runs_without_double_or_missing_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user runs it: without the variable that lets the workers of the tests use files."""
    monkeypatch.delenv("CONNECTGROUP_ALLOWED_PATHS")
    size = ["--tasks", "8", "--workers", "2", "--rounds", "1", "--session", "3"]
    done = subprocess.run([sys.executable, "benchmarks/rebalance.py", *size], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    assert len(lines) == 2 + len(TITLES), "a heading, a rule, and every scenario"
    assert "0 faults" in done.stdout


@pytest.mark.parametrize("script", ["assignors.py", "partition_assignors.py"])
def test_benchmark_of_assignors_runs_as_a_script(script: str) -> None:
    """Its folder, with a module ``assignors``, comes first on ``sys.path``."""
    done = subprocess.run([sys.executable, f"benchmarks/{script}", "3x20"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3x20" in done.stdout


@pytest.mark.parametrize("arguments", [["--tasks", "0"], ["--workers", "1"], ["--rounds", "-1"], ["--tasks", "x"]])
def test_invalid_size_is_rejected(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "allowed:" in capsys.readouterr().err
