"""Late copies of requests are recognized by the last sequence received from each sender."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..group.registry import RequestTraits

MAX_FORMER_SENDERS = 10_000
"""Maximum number of former members whose last sequence is kept; the oldest are dropped first."""

INITIAL_LIMIT = 1_000
"""Number of sequences above which those of former members are first removed."""


class Dedup:
    """The last sequence of each sender, for a limited time also of a former member.

    A join that was in flight when its sender left must not create a member without a process (KAFKA-16639). A
    request is assumed to be in flight for at most twice the session timeout.
    """

    def __init__(self, is_member: Callable[[str, str], bool], *, in_flight_s: float) -> None:
        """Create an empty table.

        Args:
            is_member: whether a group (first argument) has the sender as a member.
            in_flight_s: how long the sequence of a former member is kept, in seconds.
        """
        self._is_member = is_member
        self._in_flight_s = in_flight_s
        self._last: dict[tuple[str, str], tuple[int, float]] = {}
        self._limit = INITIAL_LIMIT

    def __len__(self) -> int:
        return len(self._last)

    def record(self, request: RequestTraits) -> None:
        """Record a request that the group rules accepted: sequences of invalid ids would only waste memory."""
        if request.sequence >= 0:
            self._last[(request.group_id, request.sender)] = request.sequence, asyncio.get_running_loop().time()

    def is_copy(self, request: RequestTraits) -> bool:
        """Whether an accepted request of the sender had this sequence or a later one, however long ago."""
        sequence, _ = self._last.get((request.group_id, request.sender), (-1, 0.0))
        return 0 <= request.sequence <= sequence

    def is_late_copy(self, request: RequestTraits) -> bool:
        """As ``is_copy``; of a former member, only while the copy may have been in flight."""
        return 0 <= request.sequence <= self._last_sequence(request)

    def _last_sequence(self, request: RequestTraits) -> int:
        now_s = asyncio.get_running_loop().time()
        if len(self._last) >= self._limit:
            self._prune(now_s)
        sequence, at_s = self._last.get((request.group_id, request.sender), (-1, now_s))
        kept = self._is_member(request.group_id, request.sender) or now_s - at_s < self._in_flight_s
        return sequence if kept else -1

    def _prune(self, now_s: float) -> None:
        members = {sender: last for sender, last in self._last.items() if self._is_member(*sender)}
        former = [
            (sender, last)
            for sender, last in self._last.items()
            if sender not in members and now_s - last[1] < self._in_flight_s
        ]
        former.sort(key=lambda entry: entry[1][1])
        self._last = members | dict(former[-MAX_FORMER_SENDERS:])
        self._limit = min(2 * len(self._last) + INITIAL_LIMIT, len(self._last) + MAX_FORMER_SENDERS)
