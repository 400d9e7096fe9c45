"""Which parked requests are decided again after a change: those of the members that it concerns first, then the others.

A new target assignment concerns few of a thousand members; the others only learn the new epoch. Their
requests are decided in slices, one in each turn, so that revocations and assignments do not wait for them, and no turn
takes long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Final

from ..group.registry import GroupState
from .command import Command
from .parking import Parking

WOKEN_TOGETHER: Final = 16
"""Deciding so many heartbeats takes about 3 ms."""


@dataclass(frozen=True, slots=True)
class WakeNext:
    """The input that wakes the next slice of ``GroupState.members_to_wake_later``."""


class Waking:
    """Unparks the requests that must be decided again."""

    def __init__(self, parking: Parking, submit_input: Callable[[str, WakeNext], None]) -> None:
        self._parking, self._submit_input = parking, submit_input
        self._queued: set[str] = set()

    def woken(self, group_id: str, state: GroupState) -> list[Command]:
        """The requests to decide in this turn; queue an input for the rest."""
        woken = self._parking.take(group_id, state.members_to_wake) if state.members_to_wake else []
        state.members_to_wake.clear()
        if state.members_to_wake_later and group_id not in self._queued:
            self._queued.add(group_id)
            # Not at once: the revocations and assignments of the woken members begin first.
            asyncio.get_running_loop().call_soon(self._submit_input, group_id, WakeNext())
        return woken

    def wake_next(self, group_id: str, state: GroupState) -> None:
        """Take the input: wake the next slice."""
        self._queued.discard(group_id)
        woken = list(islice(state.members_to_wake_later, WOKEN_TOGETHER))
        state.members_to_wake_later.difference_update(woken)
        state.members_to_wake.update(woken)

    def forget(self, group_id: str) -> None:
        """The group is dropped from memory, or deleted."""
        self._queued.discard(group_id)
