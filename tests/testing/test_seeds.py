"""``seeds``: a test under random network faults, slow stops and rare branches; a failure can be repeated."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from connectgroup.testing import StartGroup, seeds
from connectgroup.testing.faults import Faults, format_ids, parse_ids
from connectgroup.testing.seeded_runs import shrink
from connectgroup.testing.virtual_group import VirtualGroup
from connectgroup.testing.worker_group import GroupPlan
from tests.volume import ci_only, volume

FAILS_UNDER_SOME_SEEDS = """
from connectgroup.testing import seeds

@seeds(8)
def test_of_luck(worker_group):
    group = worker_group(2, connectors={"numbers": 2})
    group.wait_until_stable()
    assert group.random.random() < 0.5
"""

FAILS_IF_A_REQUEST_IS_REPEATED = """
from connectgroup.testing import seeds

@seeds(1)
def test_requests(worker_group):
    group = worker_group(2, connectors={"numbers": 2})
    group.advance(30)
    group.kill("worker-1")
    group.advance(30)
    assert not any(fault.kind == "repeated-request" for fault in group.faults_occurred)
"""

FAILS_ONCE = """
from connectgroup.testing import seeds

runs = []

@seeds(1)
def test_once(worker_group):
    worker_group(1).advance(1)
    runs.append(1)
    assert len(runs) > 1
"""

FAILS_WITH_A_FIXTURE = """
import pytest
from connectgroup.testing import seeds

@pytest.fixture
def items():
    return []

@seeds(1)
def test_items(worker_group, items):
    worker_group(1).advance(1)
    items.append(1)
    assert False, f"the fixture has {len(items)} item"
"""


def run_pytest(folder: Path, *options: str) -> str:
    """Run pytest in a folder; its output."""
    # Without the plug-ins of other packages, whose import takes half of the time.
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "connectgroup.testing.pytest_plugin", "-q"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [*words, *options], cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
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
    assert len({str(faults.occurred) for faults in drawn}) > 20
    assert Faults(17).occurred == Faults(17).occurred
    messages = [Faults(seed).message("worker-1", "Heartbeat") for seed in range(400)]
    assert any(message.is_lost(response=False) for message in messages)
    assert any(message.is_repeated() for message in messages)


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


def repeated(said: str) -> list[str]:
    """The words after ``pytest`` of the first command that a report gives."""
    commands = [line for line in said.splitlines() if line.startswith("run it again: pytest ")]
    assert commands, said
    return shlex.split(commands[0])[4:]


def test_failure_names_the_seed_and_the_command_that_repeats_it(tmp_path: Path) -> None:
    (tmp_path / "test_luck.py").write_text(FAILS_UNDER_SOME_SEEDS, encoding="utf-8")
    said = run_pytest(tmp_path)
    assert "the test fails also without faults" in said
    words = repeated(said)
    assert words[-2:] == ["--connectgroup-faults", "none"]
    again = run_pytest(tmp_path, *words)
    assert "1 failed" in again
    assert "numbers-0" in again


def test_command_that_repeats_a_failure_works_where_pytest_was_started(tmp_path: Path) -> None:
    """Also if pytest's rootdir, which its own ids are relative to, is another directory."""
    here = tmp_path / "here"
    tests = here / "tests"
    tests.mkdir(parents=True)
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (tests / "test_luck.py").write_text(FAILS_UNDER_SOME_SEEDS, encoding="utf-8")
    said = run_pytest(here, "tests", "--connectgroup-shrink-seconds=0")
    words = repeated(said)
    assert words[0].startswith("tests/test_luck.py::test_of_luck")
    assert "1 failed" in run_pytest(here, *words)


@ci_only("10 s of a core; in a user's run, the search itself, and failures that are run with fewer faults")
def test_schedule_of_faults_is_shrunk_to_the_faults_that_the_failure_needs(tmp_path: Path) -> None:
    (tmp_path / "test_repeated.py").write_text(FAILS_IF_A_REQUEST_IS_REPEATED, encoding="utf-8")
    said = run_pytest(tmp_path, "--connectgroup-seeds=12", "--connectgroup-shrink-seconds=3600")
    assert re.search(
        r"^seed \d+: faults left: 1 of \d+, after \d+ runs\n.* arrives twice\nrun it again: ", said, re.MULTILINE
    ), said
    words = repeated(said)
    assert re.fullmatch(r"repeated-request:worker-[12]:\d+", words[-1])
    again = run_pytest(tmp_path, *words)
    assert "1 failed" in again
    assert re.search(r"^ +[\d.]+ s  request \d+ of worker-[12] \(\w+\): it arrives twice$", again, re.MULTILINE), again
    assert "1 passed" in run_pytest(tmp_path, *words[:-1], "none")


def test_failure_that_a_second_run_does_not_have_is_reported_as_such(tmp_path: Path) -> None:
    (tmp_path / "test_state.py").write_text(FAILS_ONCE, encoding="utf-8")
    said = run_pytest(tmp_path)
    assert "A second run with the same faults did not fail" in said
    assert "1 failed" in said


def test_shrinking_sets_up_fixtures_anew_and_can_be_switched_off(tmp_path: Path) -> None:
    (tmp_path / "test_fresh.py").write_text(FAILS_WITH_A_FIXTURE, encoding="utf-8")
    said = run_pytest(tmp_path)
    assert "fails also without faults" in said
    assert "the fixture has 1 item" in said
    said = run_pytest(tmp_path, "--connectgroup-shrink-seconds=0")
    assert "faults left" not in said
    assert "--connectgroup-seed 0" in said


def test_each_failure_is_written_at_once_and_the_first_three_are_run_with_fewer_faults(tmp_path: Path) -> None:
    test = FAILS_WITH_A_FIXTURE.replace("@seeds(1)", "@seeds(5)")
    (tmp_path / "test_many.py").write_text(test, encoding="utf-8")
    progress, _, reports = run_pytest(tmp_path, "--connectgroup-shrink-seconds=5").partition(" FAILURES ")
    for seed in range(5):
        assert re.search(
            rf"^run it again: pytest test_many.py::test_items --connectgroup-seed {seed}", progress, re.MULTILINE
        )
        told = re.search(rf"^test_items\[seed={seed}\] fails with ", progress, re.MULTILINE)
        assert (told is not None) == (seed < 3)
    assert reports.count("the test fails also without faults") == 3
    assert reports.count("only the first 3 failures of a test process are; for this one: --connectgroup-seed") == 2


@pytest.mark.parametrize("faults", ["bogus", "worker-99:5", "lost-request:worker-1", "late-messages:worker-1:5", ""])
def test_unknown_fault_is_a_usage_error_that_lists_the_kinds(tmp_path: Path, faults: str) -> None:
    (tmp_path / "test_luck.py").write_text(FAILS_UNDER_SOME_SEEDS, encoding="utf-8")
    said = run_pytest(tmp_path, "--connectgroup-seed=0", "--connectgroup-faults", f"lost-response:worker-1:5,{faults}")
    assert re.match(
        rf"^ERROR: --connectgroup-faults: got '{faults}'; allowed: none, or ids .*slow-stops, lost-request:NAME", said
    ), said


def test_fault_that_does_not_occur_is_reported(tmp_path: Path) -> None:
    (tmp_path / "test_luck.py").write_text(FAILS_UNDER_SOME_SEEDS.replace("< 0.5", "< 2"), encoding="utf-8")
    said = run_pytest(tmp_path, "--connectgroup-seed=0", "--connectgroup-faults=lost-request:worker-99:5")
    assert "--connectgroup-faults: lost-request:worker-99:5 did not occur in this run" in said
    assert "1 passed" in said
    assert "did not occur" not in run_pytest(tmp_path, "--connectgroup-seed=0", "--connectgroup-faults=none")


@pytest.mark.parametrize("seed", range(5))
def test_ids_of_all_faults_are_accepted(seed: int) -> None:
    group = VirtualGroup(GroupPlan(connectors={"größe:1,2": 3}), seed=seed, prefix="2/")
    try:
        group.add_worker("worker, new: 2")
        group.advance(60)
        ids = [fault.id for fault in group.faults_occurred]
    finally:
        group.close()
    assert parse_ids(format_ids(ids)) == set(ids)


def test_faults_need_a_seed(tmp_path: Path) -> None:
    assert "--connectgroup-faults: needs --connectgroup-seed" in run_pytest(tmp_path, "--connectgroup-faults=none")


@settings(max_examples=volume(50, 200), deadline=None)
@given(st.integers(1, 60), st.data())
def test_shrinking_finds_exactly_the_needed_items(count: int, data: st.DataObject) -> None:
    needed = data.draw(st.sets(st.integers(0, count - 1), max_size=5))
    found = shrink(range(count), lambda left: needed <= set(left), lambda: False)
    assert found == tuple(sorted(needed))


def test_shrinking_keeps_the_smallest_part_when_time_is_up() -> None:
    runs: list[tuple[int, ...]] = []

    def fails(left: tuple[int, ...]) -> bool:
        runs.append(left)
        return 7 in left

    assert shrink(range(64), fails, lambda: len(runs) >= 3) in runs


@pytest.mark.parametrize("option", ["--connectgroup-seeds=2", "--connectgroup-seed=5"])
def test_number_of_seeds_is_an_option(tmp_path: Path, option: str) -> None:
    test = "from connectgroup.testing import seeds\n\n@seeds(9)\ndef test_it(worker_group):\n    pass\n"
    (tmp_path / "test_it.py").write_text(test, encoding="utf-8")
    assert f"{2 if option == '--connectgroup-seeds=2' else 1} passed" in run_pytest(tmp_path, option)


# --------------------------------------------------------------------------------------------------
# In the suites of other projects


def test_plugin_runs_in_a_suite_with_options_of_the_usual_names(tmp_path: Path) -> None:
    names = ("--seed", "--seeds", "--faults", "--shrink-seconds", "--workers")
    (tmp_path / "conftest.py").write_text(
        f"def pytest_addoption(parser):\n    for name in {names}:\n        parser.addoption(name)\n"
    )
    (tmp_path / "test_other.py").write_text(
        "from connectgroup.testing import seeds\n\n\n@seeds(2)\ndef test_it(request, worker_group):\n"
        "    assert request.config.getoption('--seed') == '7'\n    worker_group(1).advance(1)\n"
    )
    assert "2 passed" in run_pytest(tmp_path, "--seed=7")
    said = run_pytest(tmp_path, "--help")
    ours = said[said.index("connectgroup:") :].split("\n\n")[0].splitlines()[1:]
    assert [line for line in ours if re.match(r"  --(?!connectgroup-)", line)] == []


def test_async_test_gets_one_sentence(tmp_path: Path) -> None:
    coroutine = "    async def run():\n        worker_group(1)\n\n    asyncio.run(run())\n"
    tests = {
        "async def test_it(worker_group):\n    worker_group(1)\n": "an async test cannot use the fixture worker_group",
        f"import asyncio\n\n\ndef test_it(worker_group):\n{coroutine}": "a coroutine cannot use the fixture worker_gro",
    }
    for code, sentence in tests.items():
        (tmp_path / "test_async.py").write_text(code)
        said = run_pytest(tmp_path)
        assert sentence in said
        assert "Traceback" not in said
        assert "pytest_plugin.py" not in said


def test_traced_example_needs_pytest_and_the_sdk_alone() -> None:
    said = run_pytest(Path(__file__).parents[2], "examples/test_traced_rebalance.py", "--strict-config")
    assert "1 passed" in said, said
