"""Processes of the command ``connectgroup``, and a way to find every process that a test has started.

Each is started with a mark in its environment, which its children inherit: Java, Spark's Python helpers, and their
children. So a leftover process is found even if its parent has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from connectgroup.cli.command import main

MARK = "CONNECTGROUP_TEST_MARK"
PATIENCE_S = 120.0
"""Limit of every wait. It measures nothing: it only ends a test that hangs."""

START_PATIENCE_S = 2 * PATIENCE_S
"""The same for starting workers: the start of Spark takes minutes on a busy machine."""

COMMAND = (sys.executable, "-m", "connectgroup")

ATTEMPTS = 3
"""How often a program is started that ends before it serves."""

TIED = (
    "sh",
    "-c",
    """exec 3<&0
"$@" < /dev/null 3<&- & program=$!
{ cat <&3; kill -9 $program; } > /dev/null 2>&1 & watch=$!
wait $program; code=$?
kill -9 $watch; exit $code""",
    "sh",
)
"""Runs a program, ends when it ends, and kills it when the process that started it ends, however: the pipe closes."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A command that has ended: its exit code and output."""

    code: int
    out: str
    err: str


def run_command(
    *arguments: str | Path | int, environment: Mapping[str, str] | None = None, patience_s: float = PATIENCE_S
) -> Finished:
    """Run one command and wait for its end."""
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=patience_s,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **(environment or {})},
        check=False,
    )
    return Finished(code=done.returncode, out=done.stdout, err=done.stderr)


def call_command(*arguments: str | Path | int) -> Finished:
    """Run one command in this process, which saves the start of Python; ``err`` has its log messages too.

    For commands that a test repeats. If this thread runs an event loop, the loop waits while the command runs. Not for
    a worker that begins to run: after its end, no Java can be started in its process.
    """
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    out, err = io.StringIO(), io.StringIO()

    def call() -> int:
        try:
            return main([str(argument) for argument in arguments])
        except SystemExit as ended:  # argparse
            return int(ended.code or 0)

    root.handlers.clear()  # the command sets up its own, as in a new process
    try:
        with redirect_stdout(out), redirect_stderr(err):
            if asyncio._get_running_loop() is None:
                code = call()  # in the main thread, because a coordinator or worker handles signals
            else:
                with ThreadPoolExecutor(1) as thread:
                    code = thread.submit(call).result()
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    return Finished(code=code, out=out.getvalue(), err=err.getvalue())


class Program:
    """A running command: its lines are kept; it is killed, with all its children, at the end of the block.

    Args:
        arguments: of the command line.
        environment: added to that of this process.
        command: the beginning of the command line.
        cwd: its working directory.
        user: its user; that of this process if null.
        tied: kill it when this process ends, however it ends. Its process is a child of ``pid`` then.
    """

    def __init__(
        self,
        *arguments: str | Path | int,
        environment: Mapping[str, str] | None = None,
        command: Sequence[str | Path] = COMMAND,
        cwd: Path | None = None,
        user: str | None = None,
        tied: bool = False,
    ) -> None:
        self.arguments = " ".join(map(str, arguments))
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            [*(TIED if tied else ()), *command, *map(str, arguments)],
            cwd=cwd,
            user=user,
            stdin=subprocess.PIPE if tied else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.poll()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def ended(self, patience_s: float = PATIENCE_S) -> int:
        """Wait for its end; return the exit code."""
        try:
            code = self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.arguments}: still runs after {patience_s:g} s\n{self.output()}") from None
        self._reader.join(PATIENCE_S)
        return code

    def kill(self) -> None:
        """Kill the process and its process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        if self._process.stdin is not None:
            self._process.stdin.close()
        self.ended()

    def line_with(self, text: str) -> str:
        """Wait for a line that contains this text."""

        def found() -> str | None:
            line = next((line for line in list(self.lines) if text in line), None)
            assert line is not None or self.code is None, f"{self.arguments}: ended without {text!r}\n{self.output()}"
            return line

        return wait(f"{self.arguments}: a line with {text!r}", found, self.output)

    def output(self) -> str:
        """Its last lines."""
        return "\n".join(f"  {line}" for line in self.lines[-30:])

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.rstrip("\n"))


class NotStarted(AssertionError):
    """A program ended before it served, each time that it was started; with the last lines of its output."""


def started(
    what: str,
    launch: Callable[..., Program],
    serves: Callable[..., bool],
    ports: int | Sequence[int] = 1,
    patience_s: float = PATIENCE_S,
) -> tuple[Program, list[int]]:
    """Start a program, and wait until it serves; one that ends before that is started again.

    The usual reason is a port: the system gives it to another process between its choice and its use.

    Args:
        what: its name, for errors.
        launch: starts it at these ports.
        serves: whether it serves at these ports.
        ports: how many free ports it needs, chosen anew for each attempt; or the ports that its clients know already.
        patience_s: limit of each attempt.

    Returns:
        The running program, which the caller kills, and its ports.

    Raises:
        NotStarted: it ended each time.
    """

    def runs(program: Program, at: Sequence[int]) -> bool:
        try:
            wait(what, lambda: program.code is not None or serves(*at), program.output, patience_s)
        except BaseException:
            program.kill()
            raise
        return program.code is None

    ends = []
    for attempt in range(ATTEMPTS):
        if isinstance(ports, int):
            chosen = free_ports(ports)
        else:
            chosen = [*ports]
            time.sleep(attempt / 2)  # another process may leave them
        program = launch(*chosen)
        if runs(program, chosen):
            return program, chosen
        program.kill()  # what it has started
        at = ", ".join(map(str, chosen))
        ends.append(f"port {at}: ended with code {program.code}:\n{program.output() or '  without a line'}")
    raise NotStarted(f"{what} ended before it served, {ATTEMPTS} times\n" + "\n".join(ends))


def free_ports(count: int) -> list[int]:
    """Ports of the loopback address that no process uses at the moment."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def wait(
    what: str, until: Callable[[], T | None], output: Callable[[], str] = str, patience_s: float = PATIENCE_S
) -> T:
    """Wait until a value is not false, and return it. A failure names what was missing and shows the output."""
    give_up = time.monotonic() + patience_s
    began = time.monotonic()
    while not (found := until()):
        if time.monotonic() > give_up:
            raise AssertionError(f"waited {patience_s:g} s for {what}\n{output()}")
        pause(began, 0.05)
        began = time.monotonic()
    return found


def pause(began: float, min_s: float) -> None:
    """Pause after a check that began at this time, three times as long as it took: what is waited for needs processors.

    A check may be a command, which takes half a second of a core, or a look at every process of the machine.
    """
    time.sleep(min(max(min_s, 3 * (time.monotonic() - began)), 1.0))


@contextlib.contextmanager
def marked() -> Iterator[str]:
    """Mark every process that is started in this block; none of them may be left at its end."""
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    before = os.environ.get(MARK)
    os.environ[MARK] = mark
    try:
        yield mark
    finally:
        if before is None:
            del os.environ[MARK]
        else:
            os.environ[MARK] = before
        try:
            # Java ends when it reads the end of a pipe: a moment after the worker, or when it has started.
            wait(
                "the end of every process", lambda: not with_mark(mark), lambda: str(with_mark(mark)), START_PATIENCE_S
            )
        finally:
            for pid in with_mark(mark):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def with_mark(mark: str) -> dict[int, str]:
    """Process ids and command lines of all running processes that were started with a mark."""
    sought = f"{MARK}={mark}".encode()
    found = {}
    for directory in Path("/proc").glob("[0-9]*"):
        # A process may end while it is read; a zombie process has no environment.
        with contextlib.suppress(OSError):
            if sought in (directory / "environ").read_bytes().split(b"\0"):
                found[int(directory.name)] = _command_line(directory)
    return found


def family(pid: int) -> dict[int, str]:
    """Process ids and command lines of all descendants of a process."""
    return {child: command for child, (_, command) in _descendants(pid).items()}


def programs(pid: int) -> dict[int, str]:
    """The same without processes that run their parent's program: one that is being started does so for a moment."""
    found = _descendants(pid)
    return {
        child: command
        for child, (parent, command) in found.items()
        if parent not in found or found[parent][1] != command
    }


def _descendants(pid: int) -> dict[int, tuple[int, str]]:
    """By process id: the parent and the command line."""
    parents = {}
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(directory.name)] = int((directory / "stat").read_text().rsplit(")", 1)[1].split()[1])
    found: dict[int, tuple[int, str]] = {}
    below = {pid}
    while below := {child for child, parent in parents.items() if parent in below}:
        for child in below:
            with contextlib.suppress(OSError):
                found[child] = parents[child], _command_line(Path("/proc", str(child)))
    return found


def _command_line(directory: Path) -> str:
    return (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
