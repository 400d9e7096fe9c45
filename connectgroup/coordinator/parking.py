"""Parked requests: the response is delayed until a record changes it, a later request arrives, or the wait elapses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple

from ..errors import GroupError, StaleMemberEpoch
from ..group.kernel.static import Process
from ..group.registry import GroupState, RequestTraits
from ..protocol.records.base import Kind, Tombstone
from ..protocol.records.connect import Record
from .intake import Command, loading_error


class Parking:
    """The parked requests of a shard, at most one for each sender of a group."""

    def __init__(self) -> None:
        self.parked: dict[tuple[str, str], Command] = {}

    def park(self, command: Command, response: Any) -> None:
        """Park a request.

        Args:
            response: what it gets when its max wait elapses. ``None``: it waits until a step responds to it.
        """
        if not command.parked:
            command.parked = True
            command.respond_by_s = asyncio.get_running_loop().time() + command.traits.max_wait_ms / 1000
        command.parked_response = response
        self.parked[_place(command)] = command

    def arm(self, commands: Iterable[Command]) -> None:
        """Arm the max-wait timers of requests; only after the records of their turn are durable (D1)."""
        for command in commands:
            command.cancel_max_wait()
            if command.response is not None and not command.done and command.parked_response is not None:
                loop = asyncio.get_running_loop()
                command.max_wait = loop.call_at(command.respond_by_s, self._max_wait_elapsed, command)

    def _max_wait_elapsed(self, command: Command) -> None:
        """Max wait elapsed: send the response the request was parked with."""
        if self.parked.get(_place(command)) is command:
            del self.parked[_place(command)]
            command.resolve(command.parked_response)

    def has_one_of(self, group_id: str, sender: str) -> bool:
        """Whether a request of a sender is parked."""
        return (group_id, sender) in self.parked

    def has_earlier(self, command: Command) -> bool:
        """Whether an earlier request of the same sender is parked."""
        return self.parked.get(_place(command), command) is not command

    def replaced_by(self, command: Command) -> tuple[Command, Any]:
        """Unpark the earlier request of the same sender; return it with the response it now gets."""
        earlier = self.parked.pop(_place(command))
        response = earlier.parked_response
        if response is None and earlier.error_response is not None:
            error = StaleMemberEpoch("a later request of the same member has replaced this one")
            response = earlier.error_response(error)
        return earlier, response

    def yielded_to(self, command: Command) -> tuple[Command, Any] | None:
        """As ``replaced_by``, for a request that is no heartbeat of the member."""
        place = command.group_id, command.traits.follows
        earlier = self.parked.get(place)
        if earlier is None or not earlier.traits.yields or earlier.parked_response is None:
            return None
        del self.parked[place]
        return earlier, earlier.parked_response

    def take(self, group_id: str, senders: Iterable[str]) -> list[Command]:
        """Unpark the requests of these senders, in the order of their names."""
        taken = []
        for sender in sorted(senders):
            command = self.parked.pop((group_id, sender), None)
            if command is not None:
                command.cancel_max_wait()
                taken.append(command)
        return taken

    def take_group(self, group_id: str) -> list[Command]:
        """Unpark all requests of a group."""
        return self.take(group_id, [sender for group, sender in self.parked if group == group_id])

    def refuse_group(self, group_id: str) -> None:
        """Reject all parked requests of a group that is being loaded."""
        for place in [place for place in self.parked if place[0] == group_id]:
            self.parked.pop(place).refuse(loading_error(group_id))


def _place(command: Command) -> tuple[str, str]:
    return command.traits.group_id, command.traits.sender


# --------------------------------------------------------------------------------------------------
# Which parked requests are decided again after a change: those of the members that it concerns first, then the others.
#
# A new target assignment concerns few of a thousand members; the others only learn the new epoch. Their requests are
# decided in slices, one in each turn, so that revocations and assignments do not wait for them, and no turn takes long.


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


# --------------------------------------------------------------------------------------------------
# Late copies of requests are recognized by the last request of each process.


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
    (KAFKA-16639). A request is assumed to be in flight for at most four times the session timeout after that: a
    coordinator that was stopped for a while removes a member long after its last request, and then finds older copies.
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
        now_s = asyncio.get_running_loop().time()
        for record in records:
            if isinstance(record, Tombstone) and record.key.kind in MEMBERS:
                self._removed_s[record.key.group_id, record.key.name] = now_s

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
        size = len(self._last) + len(self._removed_s)
        self._limit = min(2 * size + INITIAL_LIMIT, size + MAX_FORMER_SENDERS)


def _sender(request: RequestTraits) -> tuple[str, str, Process]:
    return request.group_id, request.sender, request.process
