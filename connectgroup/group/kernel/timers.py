"""Timers as values: a step sets and cancels them; an expired timer re-enters as an input."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple
from zlib import crc32

from .reconcile import Current, U


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
        belongs_to: what the timer was armed for (``revocation``, ``computation.computation_id``). It is not part of the
            timer's identity. An expired timer that was armed for something else than the current value is stale and
            does nothing.
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


# --------------------------------------------------------------------------------------------------
# The timers of a member, and the one of a computation (``computation.compute_timer``).


def revocation(current: Current[U]) -> int:
    """A number that identifies a member's pending revocation; 0 if nothing is pending.

    The member epoch cannot identify it: it stays the same from one revocation to the next (CA-08). A unit is revoked
    once per owner epoch, so two revocations never have the same units and owner epochs.
    """
    return crc32(repr(sorted(current.pending.items())).encode()) if current.pending else 0


def session(group_id: str, member_id: str, timeout_ms: int) -> SetTimer:
    """The session timeout: the member must send a heartbeat before this fires."""
    return SetTimer(TimerKey(TimerKind.SESSION, group_id, member_id), timeout_ms)


def rebalance(group_id: str, member_id: str, current: Current[U], timeout_ms: int) -> SetTimer:
    """The member must acknowledge its pending revocation before this fires; armed only in UNREVOKED (TO-03)."""
    return SetTimer(TimerKey(TimerKind.REBALANCE, group_id, member_id, revocation(current)), timeout_ms)


def cancel_rebalance(group_id: str, member_id: str) -> CancelTimer:
    """The member has no pending revocation any more."""
    return CancelTimer(TimerKey(TimerKind.REBALANCE, group_id, member_id))


def cancel_member(group_id: str, member_id: str) -> tuple[CancelTimer, ...]:
    """Cancel the timers of a removed member."""
    return (
        CancelTimer(TimerKey(TimerKind.SESSION, group_id, member_id)),
        cancel_rebalance(group_id, member_id),
    )


def cancel_compute(group_id: str) -> CancelTimer:
    """No target assignment is being computed."""
    return CancelTimer(TimerKey(TimerKind.COMPUTE, group_id))
