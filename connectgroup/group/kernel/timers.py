"""Timers as values: a step sets and cancels them; an expired timer re-enters as an input."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class TimerKind(StrEnum):
    """What a timer limits."""

    SESSION = "session"
    REBALANCE = "rebalance"
    COMPUTE = "compute"
    DELAY = "delay"
    START = "start"

    @property
    def deadline_is_logged(self) -> bool:
        """Whether the deadline is in the log: the timer never restarts with its full duration."""
        return self is TimerKind.DELAY


class TimerKey(NamedTuple):
    """One timer; setting a timer again replaces it.

    Attributes:
        belongs_to: what the timer was armed for: see ``belongs_to``. It is not part of the timer's identity. An expired
            timer that was armed for something else than the current value is stale and does nothing.
    """

    kind: TimerKind
    group_id: str
    member_id: str = ""
    belongs_to: int = 0

    @property
    def identity(self) -> TimerKey:
        """The key by which a runtime finds the timer to replace or to cancel."""
        return self._replace(belongs_to=0) if self.belongs_to else self


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Fire ``key`` after ``after_ms`` from now."""

    key: TimerKey
    after_ms: int


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """Cancel ``key``; an unknown key is ignored."""

    key: TimerKey


Timer = SetTimer | CancelTimer
