"""The levels of the loggers of this process, with Kafka's names of levels (KIP-495, KIP-976)."""

from __future__ import annotations

import logging
import time
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

WITH_CREDENTIALS: Final = ("py4j",)
"""Loggers that, below INFO, write each call to Spark with its arguments, passwords among them: they stay at INFO."""

logger = logging.getLogger(__name__)

_NAMES: Final = {level: name for name, level in reversed(LEVELS.items())}


class Loggers:
    """Shows and sets the levels of loggers, and remembers when each was set."""

    def __init__(self) -> None:
        self._modified_ms: dict[str, int] = {}

    def listed(self) -> dict[str, dict[str, Any]]:
        """Return the root and the loggers that have a level of their own, sorted: level and time of the last change."""
        own = [name for name, logger in _loggers().items() if logger.level != logging.NOTSET]
        return {name: self._shown(name) for name in sorted({*own, ROOT})}

    def shown(self, name: str) -> dict[str, Any] | None:
        """Return the level that is in effect for a logger, and the time of its last change; None if there is none."""
        return self._shown(name) if _affected(name) else None

    def set_level(self, name: str, level: int) -> list[str]:
        """Set the level of a logger and of all loggers below it; those of ``WITH_CREDENTIALS`` stay at INFO or above.

        Returns:
            The names of these loggers, sorted; empty if there is none of this name.
        """
        names = _affected(name)
        if not names:
            return []
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
