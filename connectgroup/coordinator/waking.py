"""Which parked requests are decided again after a change: those of the members that it concerns first, then the others.

A new target assignment concerns few of a thousand members; the others only learn the new epoch. They are told in
slices, one in each turn, so that revocations and assignments do not wait for them, and no turn takes long.
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

TOLD_TOGETHER: Final = 16
"""Deciding so many heartbeats takes about 3 ms."""


@dataclass(frozen=True, slots=True)
class Tell:
    """The input that tells the next slice of ``GroupState.members_to_tell``."""


class Waking:
    """Unparks the requests that must be decided again."""

    def __init__(self, parking: Parking, submit_input: Callable[[str, Tell], None]) -> None:
        self._parking, self._submit_input = parking, submit_input
        self._queued: set[str] = set()

    def woken(self, group_id: str, state: GroupState) -> list[Command]:
        """The requests to decide in this turn; queue an input for the rest."""
        woken = self._parking.take(group_id, state.members_to_wake) if state.members_to_wake else []
        state.members_to_wake.clear()
        if state.members_to_tell and group_id not in self._queued:
            self._queued.add(group_id)
            # Not at once: what the others have to do begins first.
            asyncio.get_running_loop().call_soon(self._submit_input, group_id, Tell())
        return woken

    def tell(self, group_id: str, state: GroupState) -> None:
        """Take the input: wake the next slice."""
        self._queued.discard(group_id)
        told = list(islice(state.members_to_tell, TOLD_TOGETHER))
        state.members_to_tell.difference_update(told)
        state.members_to_wake.update(told)

    def forget(self, group_id: str) -> None:
        """The group is dropped from memory, or deleted."""
        self._queued.discard(group_id)
