"""What a worker process says of itself with its heartbeats: when it started, its memory, and what it logs of its units.

An operator sees the lines with ``connectgroup connectors logs``, also those of a worker that has ended since.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import Final

from ..loggers import Repeats
from ..os_process import memory_bytes
from ..protocol.messages.progress import MAX_LINE, LogLine
from ..protocol.units import Unit, printable

MAX_KEPT: Final = 500
"""Lines that wait for the next heartbeats; of more, the oldest are dropped, and the next one says how many."""


class ProcessReport(logging.Handler):
    """Keeps the lines of this package's log that are about a unit: those whose first argument is one.

    Only this package hides credentials in what it logs; other loggers are not read. Add it to the logger of the
    package.
    """

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.started_ms = time.time_ns() // 1_000_000
        # Changed by emit, which logging calls under a lock, and by take_lines.
        self._lines: deque[LogLine] = deque()
        self._dropped = 0
        self.addFilter(Repeats(self))

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line; the status of a unit, which the group gets anyway, is marked with ``is_status``."""
        unit = record.args[0] if isinstance(record.args, tuple) and record.args else None
        if not isinstance(unit, Unit) or getattr(record, "is_status", False):
            return
        text = printable(record.getMessage().removeprefix(f"{unit}: "), limit=MAX_LINE - 100)
        if len(self._lines) >= MAX_KEPT:
            self._lines.popleft()
            self._dropped += 1
        elif self._dropped:
            text, self._dropped = f"{text} ({self._dropped} lines before it are only in the worker's log)", 0
        self._lines.append(
            LogLine(
                connector=unit.connector,
                task=unit.task,
                at_ms=round(record.created * 1000),
                level=record.levelname[:20],
                message=text,
            )
        )

    def take_lines(self, limit: int) -> list[LogLine]:
        """The oldest lines that have not been taken, at most ``limit``."""
        self.acquire()
        try:
            return [self._lines.popleft() for _ in range(min(limit, len(self._lines)))]
        finally:
            self.release()

    def memory(self) -> int:
        """Bytes of memory of this process and of those that it has started, such as Java; 0 if unknown."""
        return memory_bytes()
