"""``seeds``: a test under random network faults, slow stops and rare branches; a failure can be repeated."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from connectgroup.testing import StartGroup, seeds
from connectgroup.testing.faults import Faults

FAILS_UNDER_SOME_SEEDS = """
from connectgroup.testing import seeds

@seeds(8)
def test_of_luck(worker_group):
    group = worker_group(2, connectors={"numbers": 2})
    group.wait_until_stable()
    assert group.random.random() < 0.5
"""


def run_pytest(folder: Path, *options: str) -> str:
    """Run pytest on the one file of a folder; its output."""
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *options]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout + done.stderr


@seeds(15)
def test_group_recovers_under_any_seed(worker_group: StartGroup) -> None:
    group = worker_group(3, connectors={"numbers": 5})
    group.wait_until_stable(within=300)
    for _ in range(3):
        worker = group.random.choice(group.workers)
        match group.random.choice(["kill", "pause", "partition", "coordinator"]):
            case "kill":
                group.kill(worker)
                group.add_worker()
            case "pause":
                group.pause(worker)
                group.advance(group.random.uniform(0, 30))
                group.resume(worker)
            case "partition":
                group.partition(worker)
                group.advance(group.random.uniform(0, 30))
                group.heal()
            case _:
                group.restart("coordinator")
        group.advance(group.random.uniform(0, 10))
    group.wait_until_stable(within=300)
    assert len(group.owners()) == 6


def test_seeds_draw_different_faults() -> None:
    drawn = [Faults(seed) for seed in range(40)]
    assert len({str(faults) for faults in drawn}) > 20
    assert any(faults.weather.loss for faults in drawn)
    assert any(faults.weather.duplication for faults in drawn)
    assert str(Faults(17)) == str(Faults(17))


@seeds(3)
def test_one_seed_gives_one_history(worker_group: StartGroup) -> None:
    histories = []
    for _ in range(2):
        group = worker_group(3, connectors={"numbers": 20})
        group.advance(20)
        group.kill("worker-2")
        group.advance(40)
        group.close()
        histories.append(group.history.events)
    assert len(histories[0]) > 20
    assert histories[0] == histories[1]


def test_failure_names_the_seed_and_the_command_that_repeats_it(tmp_path: Path) -> None:
    (tmp_path / "test_luck.py").write_text(FAILS_UNDER_SOME_SEEDS, encoding="utf-8")
    said = run_pytest(tmp_path)
    commands = [line for line in said.splitlines() if line.startswith("run it again: pytest ")]
    assert commands, said
    again = run_pytest(tmp_path, *commands[0].split()[4:])
    assert "1 failed" in again
    assert "numbers-0" in again


@pytest.mark.parametrize("option", ["--seeds=2", "--seed=5"])
def test_number_of_seeds_is_an_option(tmp_path: Path, option: str) -> None:
    test = "from connectgroup.testing import seeds\n\n@seeds(9)\ndef test_it(worker_group):\n    pass\n"
    (tmp_path / "test_it.py").write_text(test, encoding="utf-8")
    assert f"{2 if option == '--seeds=2' else 1} passed" in run_pytest(tmp_path, option)
