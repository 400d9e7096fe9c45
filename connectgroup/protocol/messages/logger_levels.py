"""ConnectGroupSetLoggerLevel: the level of a logger on every worker of a group (KIP-976, scope ``cluster``)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggerLevel:
    """The level of a logger and of all loggers below it.

    Attributes:
        logger: the name of the logger; ``root`` for all.
        level: the name of the level, as in ``loggers.LEVELS``.
        stamp: grows with each change of a level in the group, also across coordinators.
    """

    logger: str
    level: str
    stamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetLoggerLevelRequest:
    """Set the level of a logger on every worker of a group; each gets it with its next heartbeat response."""

    group_id: str
    logger: str
    level: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetLoggerLevelResponse:
    """Whether the coordinator has taken the level."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    coordinator_epoch: int = -1
