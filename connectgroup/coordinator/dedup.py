"""Late copies of requests, and requests of replaced processes, are recognized by the last request of each sender."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from ..errors import FencedInstanceId, GroupError, StaleMemberEpoch
from ..group.registry import RequestTraits
from ..protocol.units import printable

MAX_FORMER_SENDERS = 10_000
"""Maximum number of former members whose last sequence is kept; the oldest are dropped first."""

INITIAL_LIMIT = 1_000
"""Number of sequences above which those of former members are first removed."""


class LastRequest(NamedTuple):
    """The last accepted request of a sender: its sequence, its process, and when it arrived on the loop's clock."""

    sequence: int = -1
    process_id: int = -1
    at_s: float = 0.0


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
        self._last: dict[tuple[str, str], LastRequest] = {}
        self._limit = INITIAL_LIMIT

    def __len__(self) -> int:
        return len(self._last)

    def record(self, request: RequestTraits, *, rejected: bool) -> None:
        """Record a valid request: sequences of invalid ids would only waste memory.

        A process whose join was rejected does not replace the process that is the member.
        """
        sender = (request.group_id, request.sender)
        if request.sequence < 0 or (
            rejected and is_replaced(self._last.get(sender, LastRequest()).process_id, request.process_id)
        ):
            return
        self._last[sender] = LastRequest(request.sequence, request.process_id, asyncio.get_running_loop().time())

    def is_copy(self, request: RequestTraits) -> bool:
        """Whether an accepted request of the sender had this sequence or a later one, however long ago."""
        return 0 <= request.sequence <= self._last.get((request.group_id, request.sender), LastRequest()).sequence

    def error(self, request: RequestTraits) -> GroupError | None:
        """The error of a request that must not be decided, or ``None``.

        A late copy changes nothing. If it comes from an earlier process than the sender's last request, that process
        must end: two processes with one member id would run the same units (PD-15). The copies of a former member are
        recognized only while they may have been in flight.
        """
        last = self._last_request(request)
        if not 0 <= request.sequence <= last.sequence:
            return None
        if is_replaced(request.process_id, last.process_id):
            return replaced_process(request)
        return StaleMemberEpoch(f"heartbeat {request.sequence} arrived after a later one; it is ignored")

    def _last_request(self, request: RequestTraits) -> LastRequest:
        now_s = asyncio.get_running_loop().time()
        if len(self._last) >= self._limit:
            self._prune(now_s)
        last = self._last.get((request.group_id, request.sender), LastRequest(at_s=now_s))
        kept = self._is_member(request.group_id, request.sender) or now_s - last.at_s < self._in_flight_s
        return last if kept else LastRequest()

    def _prune(self, now_s: float) -> None:
        members = {sender: last for sender, last in self._last.items() if self._is_member(*sender)}
        former = [
            (sender, last)
            for sender, last in self._last.items()
            if sender not in members and now_s - last.at_s < self._in_flight_s
        ]
        former.sort(key=lambda entry: entry[1].at_s)
        self._last = members | dict(former[-MAX_FORMER_SENDERS:])
        self._limit = min(2 * len(self._last) + INITIAL_LIMIT, len(self._last) + MAX_FORMER_SENDERS)


def is_replaced(process_id: int, later: int) -> bool:
    """Whether ``later`` is the id of another process; an id of -1 is unknown."""
    return -1 not in (process_id, later) and process_id != later


def replaced_process(request: RequestTraits) -> FencedInstanceId:
    """The error for a process whose member id another process uses now."""
    return FencedInstanceId(
        f"MemberId: another process has joined as {printable(request.sender)!r}; this one must stop its units and end"
    )
