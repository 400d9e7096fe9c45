"""A group of worker processes is upgraded from the classic to the connect protocol by a rolling restart, and back.

The owners are taken from the log that the tasks write themselves.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.task_log import Death, downtimes, overlaps

from .commands import CommandGroup
from .processes import Program, marked, wait

pytestmark = pytest.mark.processes

TASKS = 6
SESSION_S = 30
NAMES = ("a", "b")


@pytest.fixture(autouse=True)
def no_process_is_left_over() -> Iterator[None]:
    with marked():
        yield


def classic_workers(group: CommandGroup) -> set[str]:
    """The workers that are described with the classic protocol."""
    return set(re.findall(r"^worker (\S+) .*\n  protocol classic, ", group.described(), re.MULTILINE))


def test_rolling_upgrade_and_rollback_of_worker_processes(tmp_path: Path) -> None:
    """CN-18: every task has one owner at any time; none is idle for a session timeout, also if a worker is killed."""
    times = ("--session-timeout-ms", 1000 * SESSION_S, "--heartbeat-interval-ms", 500, "--rebalance-delay-ms", 0)
    # Where a processor is busy, a killed process ends late.
    options = (*times, "--connection-loss-grace-ms", 500 * SESSION_S)
    workers: dict[str, Program] = {}
    with CommandGroup(tmp_path, *options, tasks=TASKS) as group, ExitStack() as started:

        def start(name: str, protocol: str) -> None:
            workers[name] = started.enter_context(group.worker(name, "--group-protocol", protocol))

        def output() -> str:
            return "\n".join([group.described(), *(each.output() for each in workers.values())])

        for name in NAMES:
            start(name, "generic")
        wait("all tasks on classic workers", lambda: group.is_stable(*NAMES), output)
        assert classic_workers(group) == set(NAMES)
        for protocol in ("connect", "classic"):
            for name in NAMES:
                workers[name].signal(signal.SIGTERM)
                assert workers[name].ended() == 0, output()
                start(name, protocol)
                wait(f"worker {name} with {protocol}", lambda: group.is_stable(*NAMES), output)
                assert (name in classic_workers(group)) == (protocol == "classic")
        killed, at_ns = NAMES[1], time.time_ns()
        workers[killed].signal(signal.SIGKILL)
        group.log.deaths.append(Death(at_ns=at_ns, member_id=killed))
        wait("all tasks on the other worker", lambda: group.is_stable(NAMES[0]), output)
        group.log.poll()
        assert not overlaps(group.log.runs)
        idle = downtimes(group.log.runs, since_ns=0)
        assert idle, "tasks have moved"
        longest = max(idle, key=lambda each: each.seconds)
        assert longest.seconds < SESSION_S, f"{longest}\n{output()}\n{group.first_coordinator.output()}"
        assert {len(its) for its in group.runs().values()} == {1}
