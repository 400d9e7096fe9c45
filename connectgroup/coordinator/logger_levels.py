"""The levels of loggers that operators have set for the workers of a group (KIP-976): in memory only.

As in Kafka Connect they do not outlive the processes: no rule of a group depends on them, so they are no records. A
worker gets the levels that it does not have yet with each heartbeat response, also a worker that joins later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar

from ..errors import InvalidRequest
from ..loggers import LEVELS
from ..protocol.messages.classic import GroupHeartbeatRequest, GroupHeartbeatResponse
from ..protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ..protocol.messages.logger_levels import LoggerLevel, SetLoggerLevelRequest
from ..protocol.units import printable

Responded = TypeVar("Responded", HeartbeatResponse, GroupHeartbeatResponse)

MAX_LOGGERS: Final = 100
"""Levels of one group. The oldest one is dropped for a new one: most workers have set it long ago."""


class LoggerLevels:
    """The newest level of each logger, by group."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        """``clock_ms``: the wall clock; the stamps of a later coordinator are higher."""
        self._clock_ms = clock_ms
        self._groups: dict[str, dict[str, LoggerLevel]] = {}
        self._stamp = 0

    def set(self, request: SetLoggerLevelRequest) -> None:
        """Keep the level of a logger.

        Raises:
            InvalidRequest: there is no such level, or the name of the logger is empty or cannot be printed.
        """
        if not request.logger or not request.logger.isprintable():
            raise InvalidRequest(f"Logger: got {printable(request.logger)!r}; allowed: the name of a logger, or root")
        if request.level not in LEVELS:
            raise InvalidRequest(f"Level: got {printable(request.level)!r}; allowed: {', '.join(LEVELS)}")
        self._stamp = max(self._stamp + 1, self._clock_ms())
        levels = self._groups.setdefault(request.group_id, {})
        # The order of a dict is that of its insertions: the newest level is last.
        levels.pop(request.logger, None)
        levels[request.logger] = LoggerLevel(logger=request.logger, level=request.level, stamp=self._stamp)
        if len(levels) > MAX_LOGGERS:
            del levels[next(iter(levels))]

    def forget(self, group_id: str) -> None:
        """Drop the levels of a group that is deleted."""
        self._groups.pop(group_id, None)

    def add_to(self, response: Responded, request: HeartbeatRequest | GroupHeartbeatRequest) -> Responded:
        """Add the levels that the sender of an accepted heartbeat, of either protocol, has not set yet."""
        levels = self._groups.get(request.group_id)
        if not levels or response.error_code:
            return response
        newer = tuple([level for level in levels.values() if level.stamp > request.logger_stamp])
        return replace(response, logger_levels=newer) if newer else response
