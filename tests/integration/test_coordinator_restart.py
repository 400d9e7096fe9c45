"""The coordinator's process is killed and started again; the workers' tasks keep running (D1-D3, D5).

Every process is one that a user would start: ``connectgroup coordinator`` and ``connectgroup worker``. The tasks are
idle and log each start and stop, so that any interruption is detected.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

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
