"""Programs that tests start: one that ends before it serves is noticed at once, and started again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .processes import ATTEMPTS, NotStarted, Program, free_ports, started, wait

SERVER = """
import socket, sys, time
print("begins")
listening = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("serves", flush=True)
time.sleep(600)
"""
PYTHON = (sys.executable, "-c")


def launch(port: int) -> Program:
    return Program(SERVER, port, command=PYTHON, tied=True)


def serves(port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def taken() -> Iterator[int]:
    """A port of another process, which does not listen."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        yield int(other.getsockname()[1])


def test_program_whose_port_is_taken_is_started_at_another_one(taken: int) -> None:
    tried: list[int] = []

    def unlucky(port: int) -> Program:
        tried.append(port)
        return launch(port if len(tried) > 1 else taken)

    program, (port,) = started("a server", unlucky, serves)
    with program:
        assert (len(tried), port) == (2, tried[1])
        assert serves(port)


def test_program_whose_clients_know_its_port_is_started_there_again() -> None:
    (port,) = free_ports(1)
    left: list[Program] = []

    def late(at: int) -> Program:
        left.append(Program("raise SystemExit(3)", command=PYTHON, tied=True) if not left else launch(at))
        return left[-1]

    program, ports = started("a server", late, serves, [port])
    with program:
        assert (len(left), [*ports]) == (2, [port])


def test_program_that_ends_each_time_is_an_error_with_its_code_and_its_last_lines(taken: int) -> None:
    with pytest.raises(NotStarted) as ended:
        started("a server", launch, serves, [taken])
    message = str(ended.value)
    assert message.startswith(f"a server ended before it served, {ATTEMPTS} times\n")
    assert message.count(f"port {taken}: ended with code 1:\n") == ATTEMPTS
    assert "Address already in use" in message


def test_program_that_never_serves_is_killed_and_its_lines_are_shown() -> None:
    launched: list[Program] = []

    def silent(port: int) -> Program:
        launched.append(Program("import time; print('begins', flush=True); time.sleep(600)", command=PYTHON))
        launched[-1].line_with("begins")
        return launched[-1]

    with pytest.raises(AssertionError, match=r"(?s)waited 0\.2 s for a server.*begins"):
        started("a server", silent, serves, patience_s=0.2)
    assert [each.code for each in launched] == [-signal.SIGKILL]


def test_tied_program_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    starter = (
        "import sys, time; from tests.integration.processes import Program;"
        "p = Program('import os, time; print(os.getpid(), flush=True); time.sleep(600)',"
        " command=(sys.executable, '-c'), tied=True);"
        "print(p.line_with(''), flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", starter], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        os.kill(child, 0)
        process.kill()
    wait("the end of the child", lambda: not Path("/proc", str(child)).exists())
