"""A coordinator at its connection limit reports it to commands and workers."""

from __future__ import annotations

import contextlib
import re
import resource
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from connectgroup.protocol.messages.cluster import ApiVersionsRequest
from connectgroup.wire.apis import encode_request
from connectgroup.wire.primitives import frame

from ..integration.commands import CommandGroup
from ..integration.processes import Program, call_command, wait

LIMITS = {
    "--max-connections": "the coordinator is at its limit of 2 connections (--max-connections)",
    "--max-connections-per-address": (
        "the coordinator is at its limit of 2 connections from one address (--max-connections-per-address)"
    ),
}


@contextlib.contextmanager
def busy_connections(host: str, port: int, count: int) -> Iterator[None]:
    """Connections with a request fifty times a second: the server closes idle ones for new ones."""
    request = frame(encode_request(ApiVersionsRequest(), version=0, correlation_id=1, client_id=None))
    ended = threading.Event()

    def keep_busy() -> None:
        while not ended.wait(0.02):
            for peer in peers:
                peer.sendall(request)

    with contextlib.ExitStack() as opened:
        peers = [opened.enter_context(socket.create_connection((host, port))) for _ in range(count)]
        thread = threading.Thread(target=keep_busy)
        thread.start()
        opened.callback(thread.join)
        opened.callback(ended.set)
        yield


@pytest.mark.parametrize("option", LIMITS)
def test_commands_and_workers_report_the_limit_that_is_reached(tmp_path: Path, option: str) -> None:
    options = ("--port", 0, "--data", tmp_path / "data", "--no-authentication", option, 2)
    with Program("coordinator", *options) as coordinator:
        address = coordinator.line_with("coordinator at ").removeprefix("coordinator at ")
        host, _, port = address.rpartition(":")
        with busy_connections(host, int(port), 2):
            listed = call_command("groups", "list", "--coordinator", address)
            assert (listed.code, listed.err) == (5, f"connectgroup: {LIMITS[option]}\n")
            arguments = ("--name", "w", "--group", "g", "--coordinator", address, "--scratch", tmp_path)
            with Program("worker", *arguments) as worker:
                worker.line_with(f"heartbeat failed (attempt 1): {LIMITS[option]}")
        wait("room", lambda: call_command("groups", "list", "--coordinator", address).code == 0, coordinator.output)


# --------------------------------------------------------------------------------------------------
# F36: a coordinator without a free file descriptor: members are served, new connections wait, no state is lost.


LOGGED = "ERROR cannot accept a connection: Too many open files; open connections are not affected"


def open_files(pid: int) -> list[int]:
    return sorted(int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir())


@contextmanager
def no_descriptor_left(program: Program, address: tuple[str, int]) -> Iterator[None]:
    """Idle connections that use up all file descriptors of the process."""
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
    """F36: new connections are rejected before existing ones are closed, and no state is lost."""
    times = ("--session-timeout-ms", 6000, "--heartbeat-interval-ms", 500)
    with CommandGroup(tmp_path, *times) as group, group.worker("a") as a, group.worker("b") as b:
        wait("all tasks", lambda: group.is_stable("a", "b"), a.output)
        host, _, port = group.address.rpartition(":")
        first = group.first_coordinator
        with no_descriptor_left(first, (host, int(port))):
            wait("more than a session", lambda: sum(LOGGED in line for line in first.lines) > 7)
            # Over its open connection; the change is written to the log before the response.
            b.signal(signal.SIGTERM)
            assert b.ended() == 0, b.output()
        wait("all units on worker a", lambda: group.is_stable("a"), a.output)
        assert "worker a (127.0.0.1): STABLE" in group.described()
        assert not [line for line in a.lines if " lost " in line], a.output()
        lines_logged = [line for line in first.lines if "ERROR" in line or "Traceback" in line]
        assert len(lines_logged) < 500, "once per second, not for every waiting connection"
        # It is logged at most once a second, with the number of lines that were left out.
        logged = {re.sub(r" \(\d+ more of this line\)$", "", line.partition(" ")[2]) for line in lines_logged}
        assert logged == {LOGGED}, first.output()
        with group.worker("c") as c:
            wait("a new worker", lambda: group.is_stable("a", "c"), c.output)


@pytest.mark.parametrize(("options", "expected"), [((), 2400), (("--max-unauthenticated", 500), 2700)])
def test_coordinator_raises_its_limit_of_open_files(
    tmp_path: Path, options: tuple[str | int, ...], expected: int
) -> None:
    """The usual limit is half of that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        program = Program("coordinator", "--port", 0, "--data", tmp_path / "data", *options)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with program:
        program.line_with("coordinator at ")
        allowed, _ = resource.prlimit(program.pid, resource.RLIMIT_NOFILE)
        assert allowed == (expected if hard == resource.RLIM_INFINITY else min(expected, hard))
