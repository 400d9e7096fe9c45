"""The levels of the loggers of this process, with Kafka's names of levels (KIP-495, KIP-976)."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Final

ROOT: Final = "root"

LEVELS: Final = {
    "ALL": 1,
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "WARNING": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "CRITICAL": logging.CRITICAL,
    "OFF": logging.CRITICAL + 10,
}
"""Level by name: Kafka's names, and Python's where they differ."""

REPEAT_S: Final = 1.0
MAX_LINES: Final = 1_000
"""Lines of the last second that are remembered."""

WITH_CREDENTIALS: Final = ("py4j",)
"""Loggers that, below INFO, write each call to Spark with its arguments, passwords among them: they stay at INFO."""

MAX_NAME: Final = 255
MAX_CREATED: Final = 1_000
"""Loggers that operators may create in one process."""

logger = logging.getLogger(__name__)

_NAMES: Final = {level: name for name, level in reversed(LEVELS.items())}


class Loggers:
    """Shows and sets the levels of loggers, and remembers when each was set."""

    def __init__(self) -> None:
        self._modified_ms: dict[str, int] = {}
        self._created = 0  # loggers are never freed; changed by set_level

    def listed(self) -> dict[str, dict[str, Any]]:
        """Return the root and the loggers that have a level of their own, sorted: level and time of the last change."""
        own = [name for name, logger in _loggers().items() if logger.level != logging.NOTSET]
        return {name: self._shown(name) for name in sorted({*own, ROOT})}

    def shown(self, name: str) -> dict[str, Any] | None:
        """Return the level that is in effect for a logger, and the time of its last change; None if there is none."""
        return self._shown(name) if _affected(name) else None

    def set_level(self, name: str, level: int, *, create: bool = False) -> list[str]:
        """Set the level of a logger and of all loggers below it; those of ``WITH_CREDENTIALS`` stay at INFO or above.

        Args:
            create: create the logger if there is none of this name, as Kafka Connect does: its module may be imported
                later.

        Returns:
            The names of these loggers, sorted; empty if there is none of this name.

        Raises:
            ValueError: a name that no module can have, or too many were created.
        """
        names = _affected(name)
        if not names:
            if not create:
                return []
            if len(name) > MAX_NAME or not all(name.split(".")) or not name.isprintable():
                raise ValueError(f"allowed: the name of a module: parts separated by dots, up to {MAX_NAME} characters")
            if self._created >= MAX_CREATED:
                raise ValueError(f"allowed: one that exists: {MAX_CREATED} were created")
            self._created += 1
            names = [name]
        now_ms = time.time_ns() // 1_000_000
        _set(name, level)
        self._modified_ms[name] = now_ms
        for below in names:
            # The others inherit the level.
            if below != name and _logger(below).level != logging.NOTSET:
                _set(below, level)
            self._modified_ms[below] = now_ms
        return names

    def _shown(self, name: str) -> dict[str, Any]:
        level = _logger(name).getEffectiveLevel()
        return {
            "level": _NAMES.get(level, logging.getLevelName(level)),
            "last_modified": self._modified_ms.get(name),
        }


class Repeats(logging.Filter):
    """Lets a handler write the same line once a second; the next one, or another line, says how often it was repeated.

    A fault that occurs at each request would otherwise fill the disk, and hide all other lines.
    """

    def __init__(self, handler: logging.Handler, clock: Callable[[], float] = time.monotonic) -> None:
        """Watch the lines of this handler. The caller adds this filter to it."""
        super().__init__()
        self._handler, self._clock = handler, clock
        self._lock = threading.Lock()
        # Changed by filter: when a line was written, and the repeats since; the oldest first.
        self._lines: dict[tuple[object, ...], tuple[float, int, logging.LogRecord]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        raised = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        message = record.getMessage()
        key = (record.name, record.levelno, message, type(raised), str(raised))
        now = self._clock()
        with self._lock:
            ended = self._take_ended(now)
            known = self._lines.get(key)
            if known is not None:
                self._lines[key] = known[0], known[1] + 1, known[2]
            else:
                # Without its exception, which would keep the frames of the traceback alive.
                line = logging.LogRecord(
                    record.name, record.levelno, record.pathname, record.lineno, message, None, None
                )
                self._lines[key] = now, 0, line
        for other, repeats, line in ended:
            line.msg = f"{line.msg} ({repeats} more of this line)"
            if other == key:
                record.msg, record.args = line.msg, None
            else:
                self._write(line)
        return known is None

    def _take_ended(self, now: float) -> list[tuple[tuple[object, ...], int, logging.LogRecord]]:
        """Forget the lines that were written more than a second ago, and if there are too many; return the repeated."""
        ended = []
        while self._lines:
            key, (at, repeats, line) = next(iter(self._lines.items()))
            if now - at < REPEAT_S and len(self._lines) < MAX_LINES:
                break
            del self._lines[key]
            if repeats:
                ended.append((key, repeats, line))
        return ended

    def _write(self, line: logging.LogRecord) -> None:
        self._handler.acquire()
        try:
            self._handler.emit(line)
        finally:
            self._handler.release()


BURST: Final = 100
"""Lines that may be written at once: more than a rolling restart of a large group has."""
LINES_PER_S: Final = 10
"""Lines that may be written for long."""


class LineBudget:
    """How many lines of one kind may be written now (a token bucket): clients that cause them in a loop, each time with
    other names, must not fill the disk.

    Attributes:
        left_out: lines that were not written since the last one that was. ``take`` changes it.
    """

    def __init__(self) -> None:
        self._lines, self._at_s = float(BURST), time.monotonic()
        self.left_out = 0

    def take(self) -> bool:
        """Take one line; false if there is none left, and the line counts as left out."""
        now_s = time.monotonic()
        self._lines = min(float(BURST), self._lines + (now_s - self._at_s) * LINES_PER_S)
        self._at_s = now_s
        if self._lines < 1.0:
            self.left_out += 1
            return False
        self._lines -= 1.0
        return True

    def take_left_out(self) -> int:
        """Return the number of lines that were left out, for the next line, and count from 0 again."""
        left_out, self.left_out = self.left_out, 0
        return left_out


FORMAT_VARIABLE: Final = "CONNECTGROUP_LOG_FORMAT"
"""``text`` or ``json``: the form of log lines; processes that ``up`` starts inherit it."""

FORMATS: Final = ("text", "json")


class LogLines(logging.Formatter):
    """Formats a record as one line that begins with date, time and zone; or as a JSON object on one line.

    Args:
        as_json: members ``time`` (ISO 8601), ``level``, ``logger``, ``message``, and ``exception``: the traceback.
    """

    def __init__(self, *, as_json: bool) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")
        self._as_json = as_json

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """The time with milliseconds and the offset of the local zone: ``2026-01-31T12:00:00.123+01:00``."""
        return _iso(record.created)

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line without a traceback. Names of files and other texts of strangers stay on it."""
        if self._as_json:
            return record.message
        record.message = _escaped(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        """The traceback; its last lines are the text of the error, with which a stranger may command the terminal."""
        text = super().formatException(ei)
        return text if self._as_json else "\n".join(map(_escaped, text.split("\n")))

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        if not self._as_json:
            return super().format(record)
        record.message = record.getMessage()
        traceback = self.formatException(record.exc_info) if record.exc_info else None
        return json_line(
            self.formatMessage(record),
            level=record.levelname,
            logger=record.name,
            at_s=record.created,
            exception=traceback,
        )


def json_line(message: str, *, level: str, logger: str, at_s: float | None = None, **more: str | None) -> str:
    """One line of a log in JSON.

    Args:
        at_s: seconds since 1970; now by default.
        more: further members; ``None`` is left out.
    """
    shown = {"time": _iso(time.time() if at_s is None else at_s), "level": level, "logger": logger, "message": message}
    return json.dumps({**shown, **{name: value for name, value in more.items() if value is not None}})


def relay(process: str, line: str) -> None:
    """Print a line of another process's log on the standard error, with the name of the process.

    In JSON, the object gets a member ``process``; a line that is none, such as one of Java, becomes one.
    """
    if os.environ.get(FORMAT_VARIABLE) != "json":
        shown = "\t".join(map(_escaped, line.split("\t")))  # Java indents its stack traces so
        print(f"{process} | {shown}", file=sys.stderr, flush=True)
        return
    try:
        found = json.loads(line)
        if not isinstance(found, dict):
            raise ValueError
        text = json.dumps({**found, "process": process})
    except (ValueError, RecursionError):
        text = json_line(line, level="INFO", logger="stderr", process=process)
    print(text, file=sys.stderr, flush=True)


def _escaped(text: str) -> str:
    """As ``protocol.units.escaped``, which is above this module."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _iso(at_s: float) -> str:
    return datetime.fromtimestamp(at_s).astimezone().isoformat(timespec="milliseconds")


_subject: ContextVar[object] = ContextVar("subject", default=None)


@contextmanager
def lines_about(unit: object) -> Iterator[None]:
    """Lines that this thread logs in the block are about a unit, also those of code that does not know it."""
    token = _subject.set(unit)
    try:
        yield
    finally:
        _subject.reset(token)


def subject_of(record: logging.LogRecord) -> object:
    """What a line is about: its first argument, or what ``lines_about`` says; call it in the thread that logs."""
    first = record.args[0] if isinstance(record.args, tuple) and record.args else None
    about = _subject.get()
    return about if about is not None and not isinstance(first, type(about)) else first


def limit_repeats(*handlers: logging.Handler) -> None:
    """Limit the repeated lines of these handlers of the log."""
    for handler in handlers:
        if not any(isinstance(each, Repeats) for each in handler.filters):
            handler.addFilter(Repeats(handler))


def set_by_operator(name: str, level: str) -> None:
    """Set a logger and all loggers below it to a level of ``LEVELS``, on request of an operator; log it.

    A level of another version of this library is ignored. A logger that does not exist yet gets the level when it is
    created below this one.
    """
    if level not in LEVELS:
        logger.warning("logger %s: level %s is not known here", name, level)
        return
    if not Loggers().set_level(name, LEVELS[level]):
        _set(name, LEVELS[level])
    logger.warning("logger %s: level %s, set by an operator for the whole group", name, level)


def _loggers() -> dict[str, logging.Logger]:
    known = logging.root.manager.loggerDict.copy()  # threads of tasks create loggers
    return {name: logger for name, logger in known.items() if isinstance(logger, logging.Logger)}


def _affected(name: str) -> list[str]:
    """The logger and all loggers below it; empty if there is none. A package without a logger of its own counts."""
    if name == ROOT:
        return sorted({ROOT, *_loggers()})
    below = [other for other in _loggers() if other == name or other.startswith(f"{name}.")]
    return sorted({name, *below}) if below else []


def _set(name: str, level: int) -> None:
    _logger(name).setLevel(level)
    for each in {*WITH_CREDENTIALS, name}:
        if each.split(".")[0] in WITH_CREDENTIALS and _logger(each).getEffectiveLevel() < logging.INFO:
            _logger(each).setLevel(logging.INFO)


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(None if name == ROOT else name)
