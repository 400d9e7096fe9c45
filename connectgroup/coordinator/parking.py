"""Parked requests: the response is delayed until a record changes it, a later request arrives, or the wait elapses.

Also the armed timers of a shard, for these waits and all others; an expired one is queued as a command.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final, NamedTuple

from ..errors import GroupError, StaleMemberEpoch
from ..group.kernel.outcome import SetTimer, Timer, TimerKey
from ..group.kernel.state import Process
from ..group.registry import RequestTraits, ServedGroup
from ..protocol.records.base import Kind, Tombstone
from ..protocol.records.connect import Record
from .intake import Command, Intake, loading_error

WOKEN_TOGETHER: Final = 16
"""Deciding so many heartbeats takes about 3 ms."""


@dataclass(frozen=True, slots=True)
class WakeNext:
    """The input that wakes the next slice of ``ServedGroup.members_to_wake_later``."""


class Parking:
    """The parked requests of a shard, at most one for each sender of a group.

    After a change, those of the members that it concerns are decided again first, then the others: a new target
    assignment concerns few of a thousand members; the others only learn the new epoch. Their requests are decided in
    slices, one in each turn, so that revocations and assignments do not wait for them, and no turn takes long.

    Attributes:
        parked: by group and sender.
    """

    def __init__(self, intake: Intake) -> None:
        """``intake`` queues the slices."""
        self.parked: dict[tuple[str, str], Command] = {}
        self._intake = intake
        self._slices: set[str] = set()  # the groups of which a ``WakeNext`` is queued

    def park(self, command: Command, response: Any) -> None:
        """Park a request.

        Args:
            response: what it gets when its max wait elapses. ``None``: it waits until a step responds to it.
        """
        if not command.parked:
            command.parked = True
            command.respond_by_s = asyncio.get_running_loop().time() + command.traits.max_wait_ms / 1000
        command.parked_response = response
        self.parked[_place(command.traits)] = command

    def arm(self, commands: Iterable[Command]) -> None:
        """Arm the max-wait timers of requests; only after the records of their turn are durable (D1)."""
        for command in commands:
            command.cancel_max_wait()
            if command.response is not None and not command.done and command.parked_response is not None:
                loop = asyncio.get_running_loop()
                command.max_wait = loop.call_at(command.respond_by_s, self._max_wait_elapsed, command)

    def _max_wait_elapsed(self, command: Command) -> None:
        """Max wait elapsed: send the response the request was parked with."""
        if self.parked.get(_place(command.traits)) is command:
            del self.parked[_place(command.traits)]
            command.resolve(command.parked_response)

    def has_one_of(self, group_id: str, sender: str) -> bool:
        """Whether a request of a sender is parked."""
        return (group_id, sender) in self.parked

    def has_earlier(self, command: Command) -> bool:
        """Whether an earlier request of the same sender is parked."""
        return self.parked.get(_place(command.traits), command) is not command

    def replaced_by(self, command: Command) -> tuple[Command, Any]:
        """Unpark the earlier request of the same sender; return it with the response it now gets."""
        earlier = self.parked.pop(_place(command.traits))
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
        self._slices.discard(group_id)
        for place in [place for place in self.parked if place[0] == group_id]:
            self.parked.pop(place).refuse(loading_error(group_id))

    def forget(self, group_id: str) -> None:
        """A group was deleted."""
        self._slices.discard(group_id)

    def woken(self, group_id: str, state: ServedGroup) -> list[Command]:
        """Unpark the requests that must be decided again in this turn; queue an input for the rest."""
        woken = self.take(group_id, state.members_to_wake) if state.members_to_wake else []
        state.members_to_wake.clear()
        if state.members_to_wake_later and group_id not in self._slices:
            self._slices.add(group_id)
            # Not at once: the revocations and assignments of the woken members begin first.
            asyncio.get_running_loop().call_soon(self._intake.submit_input, group_id, WakeNext())
        return woken

    def wake_next(self, group_id: str, state: ServedGroup) -> None:
        """Take the input: wake the next slice."""
        self._slices.discard(group_id)
        woken = list(islice(state.members_to_wake_later, WOKEN_TOGETHER))
        state.members_to_wake_later.difference_update(woken)
        state.members_to_wake.update(woken)


def _place(request: RequestTraits) -> tuple[str, str]:
    return request.group_id, request.sender


# --------------------------------------------------------------------------------------------------
# Late copies of requests are recognized by the last request of each process.


MAX_FORMER_SENDERS = 10_000
"""Maximum number of former members whose last sequence is kept; the oldest are dropped first."""

MEMBERS = frozenset({Kind.MEMBER, Kind.CONSUMER_MEMBER, Kind.CLASSIC_MEMBER})
"""Kinds of the records of members; the name in their keys is the member id."""

INITIAL_LIMIT = 1_000
"""Number of sequences above which those of former members are first removed."""


class LastRequest(NamedTuple):
    """The last accepted request of a process.

    Attributes:
        sequence: its sequence; -1: none.
        at_s: when it arrived, or when the member was removed from its group since, on the loop's clock.
    """

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
        self._last: dict[tuple[str, str], dict[Process, LastRequest]] = {}  # by group and sender
        self._size = 0  # processes in ``_last``
        self._limit = INITIAL_LIMIT  # of ``_size``: beyond it, former senders are removed and it is set anew

    def __len__(self) -> int:
        return self._size

    def record(self, request: RequestTraits) -> None:
        """Record a valid request: sequences of invalid ids would only waste memory."""
        if request.sequence >= 0:
            of_sender = self._last.setdefault(_place(request), {})
            self._size += request.process not in of_sender
            of_sender[request.process] = LastRequest(request.sequence, asyncio.get_running_loop().time())

    def record_removals(self, records: Sequence[Record]) -> None:
        """Keep the sequences of the members that these records remove for ``in_flight_s`` from now on."""
        now_s = asyncio.get_running_loop().time()
        for record in records:
            if isinstance(record, Tombstone) and record.key.kind in MEMBERS:
                of_former = self._last.get((record.key.group_id, record.key.name), {})
                of_former.update({process: last._replace(at_s=now_s) for process, last in of_former.items()})

    def follows(self, group_id: str, sender: str, process: Process, sequence: int) -> bool:
        """Whether the process has sent the member's last request, and this is a later one, which is recorded."""
        of_sender = self._last.get((group_id, sender))
        last = of_sender.get(process) if of_sender is not None else None
        if of_sender is None or last is None or sequence <= last.sequence:
            return False
        of_sender[process] = LastRequest(sequence, asyncio.get_running_loop().time())
        return True

    def is_copy(self, request: RequestTraits) -> bool:
        """Whether an accepted request of the process had this sequence or a later one, however long ago."""
        return 0 <= request.sequence <= self._last_of(request).sequence

    def error(self, request: RequestTraits) -> GroupError | None:
        """The error of a request that must not be decided, or ``None``.

        A late copy changes nothing. The copies of a former member are recognized only while they may have been in
        flight.
        """
        now_s = asyncio.get_running_loop().time()
        if self._size >= self._limit:
            self._prune(now_s)
        last = self._last_of(request)
        if 0 <= request.sequence <= last.sequence and self._is_kept(_place(request), request.process, last, now_s):
            return StaleMemberEpoch(f"heartbeat {request.sequence} arrived after a later one; it is ignored")
        return None

    def _last_of(self, request: RequestTraits) -> LastRequest:
        return self._last.get(_place(request), {}).get(request.process, LastRequest())

    def _is_kept(self, place: tuple[str, str], process: Process, last: LastRequest, now_s: float) -> bool:
        return now_s - last.at_s < self._in_flight_s or self._is_member(*place, process)

    def _prune(self, now_s: float) -> None:
        """Forget the former members whose requests are not in flight any more, and the oldest above the maximum."""
        kept = [
            (self._is_member(*place, process), last.at_s, place, process, last)
            for place, of_sender in self._last.items()
            for process, last in of_sender.items()
            if self._is_kept(place, process, last, now_s)
        ]
        kept.sort(key=lambda entry: entry[:2])  # former members first, the oldest first
        del kept[: max(0, sum(not is_member for is_member, *_ in kept) - MAX_FORMER_SENDERS)]
        self._last = {}
        for _, _, place, process, last in kept:
            self._last.setdefault(place, {})[process] = last
        self._size = len(kept)
        self._limit = min(2 * self._size + INITIAL_LIMIT, self._size + MAX_FORMER_SENDERS)


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
