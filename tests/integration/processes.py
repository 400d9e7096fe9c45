"""Processes of the command ``connectgroup``, and a way to find every process that a test has brought about.

Each is started with a mark in its environment, which its children inherit: Java, Spark's Python helpers, and what
they start. So what is left over is found even where its parent is gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

MARK = "CONNECTGROUP_TEST_MARK"
PATIENCE_S = 90.0
"""How long a test waits for what must come. Not a measure of anything: it only ends a test that hangs."""

START_PATIENCE_S = 2 * PATIENCE_S
"""The same for workers that start: the start of Spark takes minutes on a busy machine."""

COMMAND = (sys.executable, "-m", "connectgroup")

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A command that has ended: its exit code and what it wrote."""

    code: int
    out: str
    err: str


def run_command(*words: str | Path | int, environment: Mapping[str, str] | None = None) -> Finished:
    """Run one command to its end."""
    done = subprocess.run(
        [*COMMAND, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **(environment or {})},
        check=False,
    )
    return Finished(code=done.returncode, out=done.stdout, err=done.stderr)


class Program:
    """A command that goes on: its lines are kept, and it is gone, with all it started, when the block is left."""

    def __init__(
        self,
        *words: str | Path | int,
        environment: Mapping[str, str] | None = None,
        command: Sequence[str | Path] = COMMAND,
        cwd: Path | None = None,
    ) -> None:
        self.words = " ".join(map(str, words))
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            [*command, *map(str, words)],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
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
        """Its exit code, None while it runs."""
        return self._process.poll()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def ended(self) -> int:
        """Wait for its end; the exit code."""
        try:
            code = self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.words}: still runs after {PATIENCE_S:g} s\n{self.story()}") from None
        self._reader.join(PATIENCE_S)
        return code

    def kill(self) -> None:
        """End it at once, and its process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self.ended()

    def line_with(self, text: str) -> str:
        """Wait for a line that has this in it."""

        def found() -> str | None:
            line = next((line for line in list(self.lines) if text in line), None)
            assert line is not None or self.code is None, f"{self.words}: ended without {text!r}\n{self.story()}"
            return line

        return wait(f"{self.words}: a line with {text!r}", found, self.story)

    def story(self) -> str:
        """Its last lines."""
        return "\n".join(f"  {line}" for line in self.lines[-30:])

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.rstrip("\n"))


def wait(what: str, until: Callable[[], T | None], story: Callable[[], str] = str, patience_s: float = PATIENCE_S) -> T:
    """Until something holds; what it was, then. A failure says what was waited for, and tells the story."""
    give_up = time.monotonic() + patience_s
    while not (found := until()):
        if time.monotonic() > give_up:
            raise AssertionError(f"waited {patience_s:g} s for {what}\n{story()}")
        time.sleep(0.05)
    return found


@contextlib.contextmanager
def marked() -> Iterator[str]:
    """Mark every process that is started in this block; none of them may be there when it ends."""
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
            # Java goes when it sees the end of a pipe, a moment after the worker did.
            wait("the end of every process", lambda: not with_mark(mark), lambda: str(with_mark(mark)), 30)
        finally:
            for pid in with_mark(mark):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def with_mark(mark: str) -> dict[int, str]:
    """Process ids and command lines of everything that was started with a mark and runs."""
    sought = f"{MARK}={mark}".encode()
    found = {}
    for directory in Path("/proc").glob("[0-9]*"):
        # A process may end while it is looked at; one that is dead but not yet reaped has no environment.
        with contextlib.suppress(OSError):
            if sought in (directory / "environ").read_bytes().split(b"\0"):
                found[int(directory.name)] = _command_line(directory)
    return found


def family(pid: int) -> dict[int, str]:
    """Process ids and command lines of everything below a process."""
    parents = {}
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(directory.name)] = int((directory / "stat").read_text().rsplit(")", 1)[1].split()[1])
    found: dict[int, str] = {}
    below = {pid}
    while below := {child for child, parent in parents.items() if parent in below}:
        for child in below:
            with contextlib.suppress(OSError):
                found[child] = _command_line(Path("/proc", str(child)))
    return found


def _command_line(directory: Path) -> str:
    return (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
