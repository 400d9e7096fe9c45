"""A worker process as its supervisor sees it: what it reports, how it ended, and the end of its child processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

RESTART_EXIT_CODE: Final = 75
"""Exit code of a supervised worker that has stopped to be started again under the same name (EX_TEMPFAIL)."""

LEFT = "left"
"""Key of a worker's last report: it has left the group for good, and its process ends."""

WANTS_RESTART = "wants restart"
"""Key of a report: a restart was requested. The worker goes on until its replacement has warmed up."""

READY = "ready"
"""Key of the report of a replacement: it has warmed up, and joins at the supervisor's command."""

RELEASED = "released"
"""Key of a worker's report: it has stopped its units and left the group, for its replacement to join."""

WANTS_SPARK = "wants Spark"
"""Key of a report: the worker wants a gateway to the supervisor's Java; the value ``again``: another one."""

SPARK = "spark"
"""What a supervisor sends to a worker of its Java; the text for ``SharedJava.receive`` follows."""

RESTART, KEEP, JOIN = "restart", "keep", "join"
"""What a supervisor says to a worker, one line each: leave, as the replacement has warmed up; go on, as it could not be
started (the reason follows); join the group."""


@dataclass(slots=True, eq=False)
class WorkerProcess:
    """One worker process and its last report.

    Attributes:
        name: the member id; kept across restarts.
        process_id: identifies the current process to the coordinator; the leave for a dead process contains it.
        rows: rows made durable by the current process.
        rows_before: rows made durable by earlier processes of this worker.
        rows_per_s: rows that the current process makes durable per second, by connector.
        wanted: whether the worker should run; false after a request to stop it.
        deaths: consecutive deaths, each after a short life.
        rejected: whether the process ended with a configuration error, so that it is not started again.
        left: whether the current process has left the group, and only has to end.
        reported_s: time of the current process's latest report, by the event loop's clock; ``None`` before the first.
        replacement: the process that warms up to take over the name; ``None``: none. The supervisor sets it.
        ready: set when the process, a replacement, has warmed up.
        released: set when the process has left the group for its replacement.
        on_restart: called when the process reports that a restart was requested.
        wants_spark: whether the process waits for a gateway to the supervisor's Java. The supervisor takes it back.
        on_spark: called when the process wants a gateway; with ``again`` if it gives one back.
        last_error: the last line of the current process's log that names an error, or its last line if none does.
        metrics_port: port at which the process serves its metrics; 0 for any; ``None``: not at all.
    """

    name: str
    process: asyncio.subprocess.Process | None = None
    process_id: int = -1
    rows: int = 0
    rows_before: int = 0
    rows_per_s: Mapping[str, float] = field(default_factory=dict)
    units: int = 0
    epoch: int = 0
    wanted: bool = True
    started_s: float = 0.0
    deaths: int = 0
    rejected: bool = False
    left: bool = False
    reported_s: float | None = None
    metrics_port: int | None = None
    last_error: str = ""
    replacement: WorkerProcess | None = None
    replacing: asyncio.Task[None] | None = None
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    released: asyncio.Event = field(default_factory=asyncio.Event)
    on_restart: Callable[[], None] = lambda: None
    wants_spark: bool = False
    on_spark: Callable[[str], None] = lambda why: None
    watch: asyncio.Task[None] | None = None
    lines: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def alive(self) -> bool:
        """Whether the process runs. A process stopped by a signal counts as running: it cannot be distinguished."""
        return self.process is not None and self.process.returncode is None

    @property
    def ended(self) -> bool:
        """Whether its last process has ended; false before its first one."""
        return self.process is not None and not self.alive

    async def read_reports(self, stream: asyncio.StreamReader) -> None:
        """Read the reports of the current process until it ends: a JSON object per line; others are ignored."""
        async for line in _lines(stream):
            self.reported_s = asyncio.get_running_loop().time()
            with contextlib.suppress(ValueError, RecursionError, KeyError, TypeError, AttributeError):
                report = json.loads(line)
                if LEFT in report:
                    self.left = True
                    continue
                if WANTS_RESTART in report:
                    self.on_restart()
                    continue
                if WANTS_SPARK in report:
                    self.wants_spark = True
                    self.on_spark(str(report[WANTS_SPARK]))
                    continue
                if READY in report:
                    self.ready.set()
                    continue
                if RELEASED in report:
                    self.released.set()
                    continue
                self.rows, self.units, self.epoch = int(report["rows"]), int(report["units"]), int(report["epoch"])
                self.rows_per_s = {name: float(rate) for name, rate in report["rows_per_s"].items()}

    def say(self, line: str) -> None:
        """Send one line to the process; no effect if it has ended."""
        if self.process is not None and self.process.stdin is not None and self.alive:
            with contextlib.suppress(ConnectionError, RuntimeError):
                self.process.stdin.write(f"{line}\n".encode())

    async def read_log(self, stream: asyncio.StreamReader, log: Callable[[str, str], None]) -> None:
        """Call ``log`` with the worker's name and each line of its log, until the process ends."""
        self.last_error, has_error = "", False
        async for line in _lines(stream):
            text = line.decode(errors="replace").rstrip()
            is_error = "error" in text.lower()
            if text and (is_error or not has_error):
                self.last_error, has_error = text, is_error
            log(self.name, text)


def ending(code: int) -> str:
    """Describe how a process ended: ``died (SIGKILL)``, ``ended with exit code 1``."""
    if code >= 0:
        return f"ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"died ({signal.Signals(-code).name})"
    return f"died (signal {-code})"


def end_group(pid: int) -> None:
    """Kill the process group of a dead worker: its child processes (a Java process) must not outlive it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield lines until the end, whatever their length: a full pipe without a reader would block the worker."""
    while True:
        try:
            line = await stream.readline()
        except ValueError:
            continue  # longer than the stream's limit: the part read so far is dropped, the rest arrives as lines
        if not line:
            return
        yield line
