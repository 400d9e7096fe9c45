"""The armed timers of a shard; an expired timer is queued as a command."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from ..group.kernel.timers import SetTimer, Timer, TimerKey
from ..group.registry import RequestTraits
from .intake import Command, Intake

LATE_S = 1.0
"""A timer that fires later than both this and a quarter of its duration is re-armed instead."""


@dataclass(slots=True, eq=False)
class Armed:
    """An armed timer: its deadline on the event loop's clock, and the loop's call that checks the deadline."""

    timer: SetTimer
    due_s: float
    check: asyncio.TimerHandle


class Timers:
    """Arms and cancels timers, and queues those that expire.

    Attributes:
        armed: by identity.
        expired: the commands of expired timers that are still queued, by identity.
    """

    def __init__(self, intake: Intake) -> None:
        """``intake`` queues those that expire."""
        self.armed: dict[TimerKey, Armed] = {}
        self.expired: dict[TimerKey, Command] = {}
        self._intake = intake

    def set(self, timer: Timer) -> None:
        """Arm or cancel a timer."""
        key = timer.key.identity
        if self.expired:
            # An expired timer that is still queued is now stale.
            self.expired.pop(key, None)
        armed = self.armed.get(key)
        if isinstance(timer, SetTimer):
            loop = asyncio.get_running_loop()
            due_s = loop.time() + timer.after_ms / 1000
            if armed is not None and armed.due_s <= due_s:
                # Every heartbeat extends a session, and a session rarely expires: the scheduled call fires early and
                # reschedules itself, and the event loop's own timers stay unchanged.
                armed.timer, armed.due_s = timer, due_s
                return
            self.armed[key] = Armed(timer, due_s, loop.call_at(due_s, self.due, key))
        else:
            self.armed.pop(key, None)
        if armed is not None:
            armed.check.cancel()

    def renew(self, timer: SetTimer) -> None:
        """Re-arm a timer that is armed, or that has expired and is still queued."""
        if timer.key in self.armed or timer.key in self.expired:
            self.set(timer)

    def due(self, key: TimerKey) -> None:
        """Queue the timer if its deadline has passed; reschedule this check if the deadline was extended."""
        armed = self.armed[key]
        loop = asyncio.get_running_loop()
        late_s = loop.time() - armed.due_s
        if late_s < 0:
            armed.check = loop.call_at(armed.due_s, self.due, key)
            return
        del self.armed[key]
        timer = armed.timer
        if late_s > max(LATE_S, timer.after_ms / 4000):
            # This process was paused, and the heartbeats that arrived meanwhile are still unread (F14, F15). A deadline
            # that is in the log does not restart: it is extended only until the unread requests have been handled.
            again_ms = int(LATE_S * 1000) if key.kind.deadline_is_logged else timer.after_ms
            self.set(replace(timer, after_ms=min(timer.after_ms, again_ms)))
            return
        self.expired[key] = command = Command(timer.key, RequestTraits(group_id=key.group_id))
        self._intake.enqueue(command)

    def take_expired(self, command: Command) -> bool:
        """Take the command of an expired timer; false if the timer was cancelled or re-armed since."""
        key: TimerKey = command.what
        if self.expired.get(key.identity) is not command:
            return False
        del self.expired[key.identity]
        return True

    def drop_group(self, group_id: str) -> None:
        """Cancel all timers of a group."""
        for key in [key for key in self.armed if key.group_id == group_id]:
            self.armed.pop(key).check.cancel()
        for key in [key for key in self.expired if key.group_id == group_id]:
            del self.expired[key]

    def clear(self) -> None:
        """Cancel all timers."""
        for armed in self.armed.values():
            armed.check.cancel()
        self.armed.clear()
