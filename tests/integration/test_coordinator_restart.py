"""The coordinator's process is killed and started again; the workers' tasks keep running (D1-D3, D5).

Every process is one that a user would start: ``connectgroup coordinator`` and ``connectgroup worker``. The tasks are
idle and log each start and stop, so that any interruption is detected.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from .processes import Program, marked, run_command, wait

pytestmark = pytest.mark.processes

GROUP = "idlers"
TASKS = 6
LOST = re.compile(r"epoch \d+: (lost|joining again)")
SESSION_TIMEOUT_MS = 60_000
"""Long enough for a restart on any slow machine."""


@pytest.fixture(autouse=True)
def no_process_is_left_over() -> Iterator[None]:
    with marked():
        yield


class IdleGroup:
    """A coordinator with one data directory and one port, and the log of its group's tasks."""

    def __init__(self, root: Path) -> None:
        self.data, self.log = root / "data", root / "starts-and-stops"
        self.log.touch()
        self._root = root
        self._port = "0"
        self.address = ""

    def coordinator(self) -> Program:
        arguments = ("--session-timeout-ms", SESSION_TIMEOUT_MS, "--heartbeat-interval-ms", 1_000)
        program = Program("coordinator", "--data", self.data, "--port", self._port, *arguments)
        self.address = program.line_with("coordinator at ").removeprefix("coordinator at ")
        self._port = self.address.rpartition(":")[2]
        return program

    def worker(self, name: str) -> Program:
        arguments = ("--coordinator", self.address, "--group", GROUP, "--name", name)
        return Program("worker", *arguments, "--scratch", self._root / "scratch")

    def put(self, name: str, tasks: int) -> None:
        file = self._root / f"{name}.json"
        config = {"connector.class": "idle", "tasks.max": str(tasks), "log": str(self.log)}
        file.write_text(json.dumps({"name": name, "config": config}))
        done = run_command("connectors", "put", file, "--group", GROUP, "--coordinator", self.address)
        assert done.code == 0, done.err

    def described(self) -> str:
        done = run_command("groups", "describe", GROUP, "--coordinator", self.address)
        return done.out + done.err

    def explained(self) -> list[str]:
        return run_command("groups", "explain", GROUP, "--coordinator", self.address).out.splitlines()

    def epoch(self) -> int:
        found = re.search(r"epoch (\d+), target", self.described())
        assert found, self.described()
        return int(found[1])

    def runs(self, *names: str, tasks: int) -> bool:
        """Whether the group is stable, with these members and this total number of running units."""
        shown = self.described()
        members = re.findall(r"^worker (\S+) .*: STABLE", shown, re.MULTILINE)
        return ": Stable, " in shown and tuple(members) == names and shown.count(": RUNNING on ") == tasks

    def entries(self, what: str) -> list[str]:
        """``<member> <unit> <owner epoch>`` of each start or stop."""
        lines = (line.split(maxsplit=2) for line in self.log.read_text().splitlines())
        return [entry for _, word, entry in lines if word == what]


def test_workers_keep_their_tasks_through_a_coordinator_restart(tmp_path: Path) -> None:
    """No task stops, no epoch is repeated, and the group continues."""
    group = IdleGroup(tmp_path)
    with group.coordinator() as first:
        group.put("naps", TASKS)
        with group.worker("a") as a, group.worker("b") as b:

            def output() -> str:
                return "\n".join([group.described(), "worker a:", a.output(), "worker b:", b.output()])

            wait("all tasks on two workers", lambda: group.runs("a", "b", tasks=TASKS + 1), output)
            before, epoch, explained = group.entries("START"), group.epoch(), group.explained()
            stopped = group.entries("STOP")  # by the second worker's arrival
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
                wait("the new tasks", lambda: group.runs("a", "b", tasks=2 * TASKS + 2), output)
                assert group.epoch() > epoch
                new = group.explained()[len(explained) :]
                assert new
                numbers = [int(line.split()[1]) for line in new]
                assert numbers == [*range(epoch + 1, epoch + 1 + len(new))], "epochs continue"
                started = group.entries("START")[len(before) :]
                assert {entry.split()[0] for entry in started} == {"a", "b"}
                assert all(entry.split()[1].startswith("more-") for entry in started), started
                assert group.entries("STOP") == stopped, "not one task stopped"
                assert not [line for line in a.lines + b.lines if LOST.search(line)], output()

                for worker in (a, b):
                    worker.signal(signal.SIGTERM)
                for worker in (a, b):
                    assert worker.ended() == 0, output()
                assert len(group.entries("STOP")) == len(group.entries("START")), "every task has stopped"
                second.signal(signal.SIGTERM)
                assert second.ended() == 0, second.output()


def test_worker_restarted_while_the_coordinator_is_down_gets_its_tasks(tmp_path: Path) -> None:
    """The new process gets the tasks of the old one without a session timeout; the other worker keeps its tasks."""
    group = IdleGroup(tmp_path)
    with group.coordinator() as first:
        group.put("naps", TASKS)
        with group.worker("a") as a, group.worker("b") as b:
            wait("all tasks on two workers", lambda: group.runs("a", "b", tasks=TASKS + 1), b.output)
            first.signal(signal.SIGKILL)
            first.ended()
            a.kill()
            with group.coordinator() as second:
                with group.worker("a") as again:
                    again.line_with("assigned ")
                    wait("all tasks on two workers", lambda: group.runs("a", "b", tasks=TASKS + 1), again.output)
                    assert not [line for line in b.lines if LOST.search(line)], b.output()
                    again.signal(signal.SIGTERM)
                    assert again.ended() == 0
                wait("all tasks on one worker", lambda: group.runs("b", tasks=TASKS + 1), b.output)
                assert second.code is None
