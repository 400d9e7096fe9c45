"""The coordinator's process is killed and started again; the workers' tasks keep running (D1-D3, D5).

Every process is one that a user would start: ``connectgroup coordinator`` and ``connectgroup worker``. Most
tasks are idle and log each start and stop, so that any interruption is detected.
"""

from __future__ import annotations

import re
import signal
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.volume import ci_only

from .commands import CommandGroup
from .processes import marked, wait

pytestmark = pytest.mark.processes

TASKS = 6
LOST = re.compile(r"epoch \d+: (lost|joining again)")
SESSION_TIMEOUT_MS = 3_600_000
"""Longer than any test: no member is removed because of its session."""


@pytest.fixture(autouse=True)
def no_process_is_left_over() -> Iterator[None]:
    with marked():
        yield


def idle_group(root: Path) -> CommandGroup:
    """A group that has not been started."""
    settings = ("--session-timeout-ms", SESSION_TIMEOUT_MS, "--heartbeat-interval-ms", 1_000)
    return CommandGroup(root, *settings, tasks=TASKS)


def test_workers_keep_their_tasks_through_a_coordinator_restart(tmp_path: Path) -> None:
    """No task stops, no epoch is repeated, and the group continues."""
    group = idle_group(tmp_path)
    with group.coordinator() as first:
        group.put("naps", TASKS)
        with group.worker("a") as a, group.worker("b") as b:

            def output() -> str:
                return "\n".join([group.described(), "worker a:", a.output(), "worker b:", b.output()])

            wait("all tasks on two workers", lambda: group.is_stable("a", "b"), output)
            before, epoch, explained = group.starts(), group.epoch(), group.explained()
            stopped = group.stops()  # by the second worker's arrival
            shown = group.described()

            first.signal(signal.SIGKILL)
            assert first.ended() == -signal.SIGKILL
            for worker in (a, b):
                worker.line_with("heartbeat failed")
            with group.coordinator() as second:
                wait("the group as it was", lambda: group.described() == shown, output)
                assert group.explained() == explained, "the history of rebalances is kept"

                # A change is possible, on both workers: they are connected to the new process.
                group.put("more", TASKS)
                wait("the new tasks", lambda: group.is_stable("a", "b", units=2 * TASKS + 2), output)
                assert group.epoch() > epoch
                new = group.explained()[len(explained) :]
                assert new
                numbers = [int(line.split()[1]) for line in new]
                assert numbers == [*range(epoch + 1, epoch + 1 + len(new))], "epochs continue"
                started = group.starts()[len(before) :]
                assert {member for member, _ in started} == {"a", "b"}
                assert all(task.startswith("more-") for _, task in started), started
                assert group.stops() == stopped, "not one task stopped"
                assert not [line for line in a.lines + b.lines if LOST.search(line)], output()

                for worker in (a, b):
                    worker.signal(signal.SIGTERM)
                for worker in (a, b):
                    assert worker.ended() == 0, output()
                assert len(group.stops()) == len(group.starts()), "every task has stopped"
                second.signal(signal.SIGTERM)
                assert second.ended() == 0, second.output()


@ci_only("30 s with two Sparks; in a user's run, the restarts above, and the simulator has the outage")
def test_fenced_tasks_write_on_through_an_outage_of_two_sessions(tmp_path: Path) -> None:
    """PD-10: rows arrive all the time, none is lost or doubled, and the worker is the same member afterwards; a
    task that no sink fences stops within half of the session timeout, and comes back.
    """
    session_s, outage_s, table = 6.0, 12.0, tmp_path / "rows.sqlite"
    pipeline = {
        "connector.class": "pipeline",
        "tasks.max": "2",
        "source": "datagen",
        "source.rows.per.second": "200",
        "sink": "sqlite",
        "sink.path": str(table),
        "sink.table": "rows",
    }

    def rows() -> int:
        if not table.exists():
            return 0
        with sqlite3.connect(f"file:{table}?mode=ro", uri=True, timeout=30) as database:
            known = database.execute("SELECT name FROM sqlite_master WHERE name = 'rows'").fetchone()
            return int(database.execute("SELECT count(*) FROM rows").fetchone()[0]) if known else 0

    group = CommandGroup(tmp_path, "--session-timeout-ms", 6_000, "--heartbeat-interval-ms", 1_000, tasks=1)
    with group.coordinator() as first:
        group.put("naps", 1)
        group.put_config("numbers", pipeline)
        with group.worker("a", "--allowed-path", tmp_path) as a:
            wait("rows", lambda: rows() > 500 and group.is_stable("a", units=5), a.output)
            epoch = group.epoch()
            first.signal(signal.SIGKILL)
            first.ended()
            killed_s = time.monotonic()
            seen = [rows()]
            while time.monotonic() < killed_s + outage_s:
                time.sleep(1)
                seen.append(rows())
                if not group.stops():
                    assert time.monotonic() < killed_s + session_s, "the idle task stops within its lease"
            # Not in each second: the machine may be busy.
            assert seen[-1] - seen[len(seen) // 2] > 0, seen
            assert a.line_with("fenced units that run on: 4; units that are not fenced and stop: 1")
            with group.coordinator() as second:
                wait("the group as it was", lambda: group.is_stable("a", units=5), a.output)
                a.line_with("the coordinator responds again after ")
                assert group.epoch() == epoch
                wait("the idle task", lambda: len(group.starts()) == 2, a.output)
                a.signal(signal.SIGTERM)
                assert a.ended() == 0, a.output()
                print(f"rows at each second of the outage: {seen}; at the end {rows()}")
                with sqlite3.connect(table) as database:
                    twice = database.execute("SELECT id FROM rows GROUP BY id HAVING count(*) > 1").fetchall()
                    ids = {row[0] for row in database.execute("SELECT id FROM rows")}
                assert twice == []
                by_slice = [sorted(each // 8 for each in ids if each % 8 == number) for number in range(8)]
                assert all(numbers == list(range(len(numbers))) for numbers in by_slice), "no gap"
                second.signal(signal.SIGTERM)
                assert second.ended() == 0, second.output()


def test_worker_restarted_while_the_coordinator_is_down_gets_its_tasks(tmp_path: Path) -> None:
    """The new process gets the tasks of the old one without a session timeout; the other worker keeps its tasks."""
    group = idle_group(tmp_path)
    with group.coordinator() as first:
        group.put("naps", TASKS)
        with group.worker("a") as a, group.worker("b") as b:
            wait("all tasks on two workers", lambda: group.is_stable("a", "b"), b.output)
            first.signal(signal.SIGKILL)
            first.ended()
            a.kill()
            with group.coordinator() as second:
                with group.worker("a") as again:
                    again.line_with("assigned ")
                    wait("all tasks on two workers", lambda: group.is_stable("a", "b"), again.output)
                    assert not [line for line in b.lines if LOST.search(line)], b.output()
                    again.signal(signal.SIGTERM)
                    assert again.ended() == 0
                wait("all tasks on one worker", lambda: group.is_stable("b"), b.output)
                assert second.code is None
