"""What the benchmark makes of a task log."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.rebalance import verdict
from benchmarks.task_log import (
    Death,
    Run,
    TaskDowntime,
    TaskLog,
    downtimes,
    last_start_ns,
    overlaps,
    parse,
    running,
    runs_of,
)

MOVE = """\
100 START a main-0 1
110 START a main-1 1
200 STOP a main-1 1
250 START b main-1 2
"""
"""Task 0 stays on a, task 1 moves to b and stands still for 50 ns."""


def runs(text: str, *deaths: Death) -> list[Run]:
    return runs_of(parse(text.splitlines()), deaths)


def test_stop_before_the_next_start_is_no_overlap() -> None:
    moved = runs(MOVE)
    assert overlaps(moved) == []
    assert running(moved) == {"main-0": ["a"], "main-1": ["b"]}
    assert last_start_ns(moved, since_ns=200) == 250
    assert downtimes(moved, since_ns=150) == [TaskDowntime(unit="main-1", source="a", target="b", seconds=5e-8)]
    assert downtimes(moved, since_ns=201) == []


def test_start_before_the_stop_elsewhere_is_an_overlap() -> None:
    found = overlaps(runs(MOVE.replace("250 START", "199 START")))
    assert found == ["main-1: started on b (epoch 2) while it ran on a (epoch 1), for 0.000 ms"]


def test_start_without_a_stop_elsewhere_is_an_overlap() -> None:
    twice = runs(MOVE.replace("200 STOP a main-1 1\n", ""))
    assert overlaps(twice) == ["main-1: started on b (epoch 2) while it ran on a (epoch 1), for good"]
    assert running(twice)["main-1"] == ["a", "b"]


def test_second_start_on_the_same_worker_is_an_overlap() -> None:
    assert len(overlaps(runs("1 START a main-0 1\n2 START a main-0 1\n"))) == 1
    assert len(overlaps(runs("1 START a main-0 1\n2 START a main-0 2\n"))) == 1


def test_overlap_with_an_early_run_is_found() -> None:
    text = "1 START a main-0 1\n2 START b main-0 2\n3 STOP b main-0 2\n4 START c main-0 3\n5 STOP a main-0 1\n"
    assert [line.split(", ")[0] for line in overlaps(runs(text))] == [
        "main-0: started on b (epoch 2) while it ran on a (epoch 1)",
        "main-0: started on c (epoch 3) while it ran on a (epoch 1)",
    ]


def test_stop_of_another_grant_ends_nothing() -> None:
    assert len(overlaps(runs("1 START a main-0 1\n2 STOP a main-0 9\n3 START b main-0 2\n"))) == 1


def test_tasks_of_a_killed_worker_have_ended() -> None:
    """It wrote no STOP; only its death, and only from then on, makes room."""
    text = "100 START a main-0 1\n300 START b main-0 2\n"
    died = runs(text, Death(at_ns=200, member_id="a"))
    assert overlaps(died) == []
    assert [still.seconds for still in downtimes(died, since_ns=0)] == [1e-7]
    assert len(overlaps(runs(text, Death(at_ns=301, member_id="a")))) == 1
    assert len(overlaps(runs(text, Death(at_ns=200, member_id="c")))) == 1


def test_worker_that_returns_under_its_name_runs_what_it_starts() -> None:
    back = runs("1 START a main-0 1\n3 START a main-0 2\n", Death(at_ns=2, member_id="a"))
    assert overlaps(back) == []
    assert running(back) == {"main-0": ["a"]}


def test_failed_start_leaves_a_stop_that_ends_nothing() -> None:
    assert runs("1 STOP a main-0 1\n") == []


def test_invalid_line_is_rejected() -> None:
    with pytest.raises(ValueError, match="allowed: START, STOP"):
        parse(["1 BEGIN a main-0 1"])


def test_growing_log_is_read_on_from_the_middle_of_a_line(tmp_path: Path) -> None:
    log = TaskLog(tmp_path / "tasks.log")
    assert not log.poll()
    log.path.write_text(MOVE[:30])
    assert log.poll()
    assert len(log.events) == 1
    log.path.write_text(MOVE)
    assert log.poll()
    assert log.events == parse(MOVE.splitlines())
    assert not log.poll()


def test_overlap_or_missing_task_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = TaskLog(tmp_path / "tasks.log")
    log.path.write_text(MOVE)
    log.poll()
    assert verdict([log], []) == 0
    assert verdict([log], ["1 tasks not running, main-7 first"]) == 1
    assert "FAULT: 1 tasks not running, main-7 first" in capsys.readouterr().out
    log.path.write_text(MOVE + "300 START c main-0 3\n")
    log.poll()
    assert verdict([log], []) == 1
    assert "FAULT: main-0: started on c (epoch 3) while it ran on a" in capsys.readouterr().out
