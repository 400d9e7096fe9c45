"""Late copies of requests are recognized by the last request of each process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..errors import GroupError, StaleMemberEpoch
from ..group.kernel.process import Process
from ..group.registry import RequestTraits
from ..protocol.records.base import Kind, Tombstone
from ..protocol.records.connect import Record

MAX_FORMER_SENDERS = 10_000
"""Maximum number of former members whose last sequence is kept; the oldest are dropped first."""

MEMBERS = frozenset({Kind.MEMBER, Kind.CONSUMER_MEMBER, Kind.CLASSIC_MEMBER})
"""Kinds of the records of members; the name in their keys is the member id."""

INITIAL_LIMIT = 1_000
"""Number of sequences and removals above which those of former members are first removed."""


class LastRequest(NamedTuple):
    """The last accepted request of a process: its sequence, and when it arrived on the loop's clock."""

    sequence: int = -1
    at_s: float = 0.0


class Dedup:
    """The last sequence of each process that sends as a member, for a limited time also of a former member.

    A join that was in flight when its sender left or was removed must not create a member without a process
    (KAFKA-16639). A request is assumed to be in flight for at most twice the session timeout after that: a coordinator
    that was stopped for a while removes a member long after its last request, and then finds older copies of it.
    Sequences of two processes with one member id are not comparable; which of them is the member is the rule of the
    group (``RequestTraits.process``). Its principal keeps others from making the requests of a process look like late
    copies, with whatever process id.
    """

    def __init__(self, is_member: Callable[[str, str, Process], bool], *, in_flight_s: float) -> None:
        """Create an empty table.

        Args:
            is_member: whether a group (first argument) has the sender as a member that belongs to the process.
            in_flight_s: how long the sequence of a former member is kept, in seconds.
        """
        self._is_member = is_member
        self._in_flight_s = in_flight_s
        self._last: dict[tuple[str, str, Process], LastRequest] = {}
        self._removed_s: dict[tuple[str, str], float] = {}  # when a sender was removed from its group
        self._limit = INITIAL_LIMIT

    def __len__(self) -> int:
        return len(self._last)

    def record(self, request: RequestTraits) -> None:
        """Record a valid request: sequences of invalid ids would only waste memory."""
        if request.sequence >= 0:
            self._last[_sender(request)] = LastRequest(request.sequence, asyncio.get_running_loop().time())

    def record_removals(self, records: Sequence[Record]) -> None:
        """Keep the sequences of the members that these records remove for ``in_flight_s`` from now on."""
        for record in records:
            if isinstance(record, Tombstone) and record.key.kind in MEMBERS:
                self._removed_s[record.key.group_id, record.key.name] = asyncio.get_running_loop().time()

    def follows(self, sender: tuple[str, str, Process], sequence: int) -> bool:
        """Whether the process has sent the member's last request, and this is a later one, which is recorded."""
        last = self._last.get(sender)
        if last is None or sequence <= last.sequence:
            return False
        self._last[sender] = LastRequest(sequence, asyncio.get_running_loop().time())
        return True

    def is_copy(self, request: RequestTraits) -> bool:
        """Whether an accepted request of the process had this sequence or a later one, however long ago."""
        return 0 <= request.sequence <= self._last.get(_sender(request), LastRequest()).sequence

    def error(self, request: RequestTraits) -> GroupError | None:
        """The error of a request that must not be decided, or ``None``.

        A late copy changes nothing. The copies of a former member are recognized only while they may have been in
        flight.
        """
        if 0 <= request.sequence <= self._last_request(request).sequence:
            return StaleMemberEpoch(f"heartbeat {request.sequence} arrived after a later one; it is ignored")
        return None

    def _last_request(self, request: RequestTraits) -> LastRequest:
        now_s = asyncio.get_running_loop().time()
        if len(self._last) + len(self._removed_s) >= self._limit:
            self._prune(now_s)
        last = self._last.get(_sender(request), LastRequest(at_s=now_s))
        kept = self._is_member(*_sender(request)) or self._may_be_in_flight(_sender(request), last, now_s)
        return last if kept else LastRequest()

    def _may_be_in_flight(self, sender: tuple[str, str, Process], last: LastRequest, now_s: float) -> bool:
        since_s = max(last.at_s, self._removed_s.get(sender[:2], last.at_s))
        return now_s - since_s < self._in_flight_s

    def _prune(self, now_s: float) -> None:
        members = {sender: last for sender, last in self._last.items() if self._is_member(*sender)}
        former = [
            (sender, last)
            for sender, last in self._last.items()
            if sender not in members and self._may_be_in_flight(sender, last, now_s)
        ]
        former.sort(key=lambda entry: entry[1].at_s)
        self._last = members | dict(former[-MAX_FORMER_SENDERS:])
        kept = {sender[:2] for sender, _ in former[-MAX_FORMER_SENDERS:]}
        self._removed_s = {sender: at_s for sender, at_s in self._removed_s.items() if sender in kept}
        self._limit = min(2 * len(self._last) + INITIAL_LIMIT, len(self._last) + MAX_FORMER_SENDERS)


def _sender(request: RequestTraits) -> tuple[str, str, Process]:
    return request.group_id, request.sender, request.process
