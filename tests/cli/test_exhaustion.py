"""F36: a coordinator without a file descriptor left. Its members go on, who comes new waits, nothing is lost."""

from __future__ import annotations

import resource
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ..integration.processes import Program, wait
from .test_coming_and_going import CommandHarness

SAID = "ERROR cannot accept a connection: Too many open files; open connections are not affected"


def open_files(pid: int) -> list[int]:
    return sorted(int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir())


@contextmanager
def no_descriptor_left(program: Program, address: tuple[str, int]) -> Iterator[None]:
    """Connections that say nothing take all that the process may still open."""
    before = resource.prlimit(program.pid, resource.RLIMIT_NOFILE)
    limit = open_files(program.pid)[-1] + 4
    resource.prlimit(program.pid, resource.RLIMIT_NOFILE, (limit, before[1]))
    with ExitStack() as idle:
        for _ in range(40):
            idle.enter_context(socket.create_connection(address, timeout=10))
        wait("the last descriptor", lambda: len(open_files(program.pid)) == limit, program.output)
        yield
    resource.prlimit(program.pid, resource.RLIMIT_NOFILE, before)


def test_coordinator_without_file_descriptors_serves_its_members(tmp_path: Path) -> None:
    """F36: new ones are shed before old ones, and no state is lost."""
    times = ("--session-timeout-ms", 6000, "--heartbeat-interval-ms", 500)
    with CommandHarness(tmp_path, *times) as stage, stage.worker("a") as a, stage.worker("b") as b:
        wait("both at work", lambda: stage.all_run() and set(stage.places().values()) == {"a", "b"}, a.output)
        host, _, port = stage.at[1].rpartition(":")
        with no_descriptor_left(stage.coordinator, (host, int(port))):
            wait("more than a session", lambda: sum(SAID in line for line in stage.coordinator.lines) > 7)
            # Over the connection that it has; an answer to it is written to the log first.
            b.signal(signal.SIGTERM)
            assert b.ended() == 0, b.output()
        wait("all units on worker a", lambda: stage.all_run() and set(stage.places().values()) == {"a"}, a.output)
        assert "worker a (127.0.0.1): STABLE" in stage.describe()
        assert not [line for line in a.lines if " lost " in line], a.output()
        said = [line for line in stage.coordinator.lines if "ERROR" in line or "Traceback" in line]
        assert len(said) < 500, "once a second, and not as often as there is room for those who wait"
        assert {line.partition(" ")[2] for line in said} == {SAID}, stage.coordinator.output()
        with stage.worker("c") as c:
            wait("a new one", lambda: stage.all_run() and set(stage.places().values()) == {"a", "c"}, c.output)


def test_coordinator_raises_its_limit_of_open_files(tmp_path: Path) -> None:
    """The usual limit is half of that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        program = Program("coordinator", "--port", 0, "--data", tmp_path / "data")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with program:
        program.line_with("coordinator at ")
        allowed, _ = resource.prlimit(program.pid, resource.RLIMIT_NOFILE)
        assert allowed == (2200 if hard == resource.RLIM_INFINITY else min(2200, hard))
