"""The queue of a shard: requests, expired timers and results of effects.

Heartbeats of members are decided before all others, because they must arrive before the leases of the members expire,
whatever other clients send. All others share the time of a turn fairly (``FairQueue``).
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Final, Generic, Protocol, TypeVar

from ..errors import CoordinatorLoadInProgress, GroupError
from ..group.kernel.outcome import Computed, Matched, Repeat
from ..group.registry import NO_CLIENT, ClientInfo, GroupType, Input, RequestTraits
from ..protocol.messages.describe import DescribedGroup, DescribeRequest
from ..protocol.messages.heartbeat import HeartbeatResponse
from ..protocol.units import printable

K = TypeVar("K", bound=Hashable)

MAX_INPUTS_PER_TURN = 500
"""Maximum number of heartbeats per turn, and of other commands: bounds the batch."""

MAX_TURN_S: Final = 0.025
"""Seconds after which a turn takes no further command. Nothing else runs on the event loop meanwhile."""

MIN_OTHERS_S: Final = 0.005
"""Seconds of each turn for other commands than heartbeats, at least."""

FEW_HEARTBEATS: Final = 100
"""So many heartbeats are decided in the order of their arrival: it takes some milliseconds."""

MAX_OF_GROUP = 2_000
"""Maximum number of queued requests of one principal for one group, besides heartbeats of members."""

MAX_OF_PRINCIPAL = 10_000
"""Maximum number of queued requests of one principal, besides heartbeats of members."""

REFUSAL_DELAY_S: Final = 0.1
"""A request above these limits is refused after this time: a client that repeats it at once does not keep the event
loop busy."""


class Intake:
    """Queued commands, and requests without a response yet.

    Attributes:
        not_serving: why all requests are rejected, or ``None``.
        queued: the number of queued commands.
        pending: the requests without a response yet, in the order of their arrival. ``receive`` adds; each is
            removed with its response.
    """

    def __init__(self, is_from_member: Callable[[RequestTraits], bool] = lambda request: False) -> None:
        """``is_from_member``: whether the sender of a heartbeat is a member, and sends as the member's process."""
        self._is_from_member = is_from_member
        self.not_serving: GroupError | None = None
        self._heartbeats, self._others = FairQueue(few=FEW_HEARTBEATS), FairQueue()
        self._waiting: Counter[tuple[str, str]] = Counter()  # the members of commands in ``_others``, by group and id
        self._of_group: Counter[str] = Counter()  # the queued commands
        self.queued = 0
        self._ends_turn = False  # set by ``end_turn``
        self._has_work = asyncio.Event()  # commands are queued
        self.pending: dict[Receiver, Command] = {}

    def receive(self, command: Command) -> bool:
        """Queue a request, or refuse it; return whether it is queued."""
        assert command.response is not None
        self.pending[command.response] = command
        if self.not_serving is not None:
            command.refuse(self.not_serving)
            return False
        queue = self._queue_of(command)
        if queue is self._others and (excess := self._excess(command)) is not None:
            asyncio.get_running_loop().call_later(REFUSAL_DELAY_S, command.refuse, excess)
            return False
        self._put(command, queue)
        return True

    def _excess(self, command: Command) -> GroupError | None:
        """The error of a request above the limits of its principal, or ``None``."""
        if len(self._others) < MAX_OF_GROUP:
            return None
        of_principal, of_group = self._others.lengths(command.client.principal, command.group_id)
        if of_group >= MAX_OF_GROUP:
            where, limit = f"for group {printable(command.group_id)}", MAX_OF_GROUP
        elif of_principal >= MAX_OF_PRINCIPAL:
            where, limit = "of this user", MAX_OF_PRINCIPAL
        else:
            return None
        return CoordinatorLoadInProgress(f"{limit} requests {where} are queued already; send it again later")

    def on_effect(self, result: Computed | Matched | Repeat) -> None:
        """Queue the result of an effect: it is one more input of its group."""
        self.submit_input(result.group_id, result.what if isinstance(result, Repeat) else result)

    def submit_input(self, group_id: str, what: Input) -> None:
        """Queue an input of a group that has no sender."""
        self.enqueue(Command(what, RequestTraits(group_id=group_id)))

    def enqueue(self, command: Command) -> None:
        """Queue a command, unless the shard does not serve any more."""
        if self.not_serving is None:
            self._put(command, self._queue_of(command))

    def _queue_of(self, command: Command) -> FairQueue:
        sent = command.traits
        if not sent.beats or not self._is_from_member(sent):
            return self._others
        return self._others if self._waiting and _member_of(sent) in self._waiting else self._heartbeats

    def has_of(self, group_id: str) -> bool:
        """Whether commands of this group are queued."""
        return group_id in self._of_group

    def _put(self, command: Command, queue: FairQueue) -> None:
        queue.put(command)
        self.queued += 1
        self._of_group[command.group_id] += 1
        if queue is self._others and (member := _member_of(command.traits))[1]:
            self._waiting[member] += 1
        self._has_work.set()

    async def ready(self) -> None:
        """Wait until there are commands for a turn."""
        if self.queued:
            # Also after a turn without an append: the event loop reads requests, among them heartbeats, and sends
            # responses.
            await asyncio.sleep(0)
            return
        self._has_work.clear()
        await self._has_work.wait()

    def end_turn(self) -> None:
        """Take no further command in this turn, if one of each queue was taken."""
        self._ends_turn = True

    def commands(self) -> Iterator[Command]:
        """Take the commands of one turn; each is decided before the next is taken."""
        self._ends_turn = False
        clock = asyncio.get_running_loop().time
        now_s = clock()
        ends_s = now_s + MAX_TURN_S
        for queue in self._heartbeats, self._others:
            for _ in range(MAX_INPUTS_PER_TURN):
                if not queue:
                    break
                command = queue.take()
                self.queued -= 1
                _count_down(self._of_group, command.group_id)
                if queue is self._others and (member := _member_of(command.traits))[1]:
                    _count_down(self._waiting, member)
                yield command
                began_s, now_s = now_s, clock()
                queue.charge(now_s - began_s)
                if now_s >= ends_s or self._ends_turn:
                    break
            ends_s = max(ends_s, now_s + MIN_OTHERS_S)

    def stop(self, error: GroupError) -> None:
        """Reject all pending requests, in whatever state they are, and all later ones."""
        self.not_serving = error
        for command in list(self.pending.values()):
            command.refuse(error)


def _count_down(counts: Counter[K], key: K) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


def _member_of(sent: RequestTraits) -> tuple[str, str]:
    return sent.group_id, sent.member or sent.sender or sent.follows


# --------------------------------------------------------------------------------------------------
# Responses to heartbeats with the coordinator epoch and the trace context, which the rules of groups do not know.


MAX_KEPT: Final = 10_000


class CompletedResponses:
    """Completes responses. The response to a heartbeat that reports nothing is the same object as the last one
    (``group.kernel.state``): its copy is kept, because copying takes longer than encoding.
    """

    def __init__(self) -> None:
        self._kept: dict[int, tuple[HeartbeatResponse, HeartbeatResponse]] = {}  # by id: the response, and its copy

    def of(self, response: HeartbeatResponse, epoch: int, traceparent: str) -> HeartbeatResponse:
        """The response with the coordinator epoch and the trace context; empty: none."""
        kept = self._kept.get(id(response))
        # The kept response is alive, so that no other object has its id.
        if kept is not None and (kept[1].coordinator_epoch, kept[1].traceparent) == (epoch, traceparent):
            return kept[1]
        completed = replace(response, coordinator_epoch=epoch, traceparent=traceparent)
        if response.assignment is None and not response.error_code:
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            self._kept[id(response)] = response, completed
        return completed


# --------------------------------------------------------------------------------------------------
# One input of a shard: a request, an expired timer, or the result of an effect.


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Describe:
    """The input that reads a group: the response is its ``DescribedGroup``, except for a large group (see ``copies``).

    Attributes:
        request: what to describe; its group ids are ignored.
        copies: whether the response for a large group is a ``Snapshot``, which takes megabytes, or ``TAKES_LONG``.
    """

    request: DescribeRequest
    copies: bool = False


TAKES_LONG: Final = object()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A copy of the state of a group, to describe it in a thread while the group changes."""

    group_type: GroupType
    state: Any
    request: DescribeRequest
    now_ms: int

    @classmethod
    def of(cls, group_type: GroupType, state: Any, request: DescribeRequest, now_ms: int) -> Snapshot:
        """Copy the containers of the state; their values never change."""
        copied = copy(state)
        for name, value in vars(state).items():
            if isinstance(value, dict | set):
                setattr(copied, name, value.copy())
        return cls(group_type, copied, request, now_ms)

    def described(self) -> DescribedGroup:
        """The description, with the name of the group's type.

        Raises:
            GroupError: the group cannot be described.
        """
        described = self.group_type.describe(self.state, self.request, self.now_ms)
        return replace(described, group_type=self.group_type.name) if self.state.exists else described


class Receiver(Protocol):
    """Takes the response to one command: a future, or a ``Reply``."""

    def done(self) -> bool:
        """Whether it has one, or does not wait any more."""

    def set_result(self, response: Any, /) -> object:
        """Take the response."""


class Reply:
    """Takes the response to a request that no task waits for.

    Attributes:
        pending: the requests without a response yet; this one is removed.
    """

    __slots__ = ("_done", "_respond", "pending")

    def __init__(self, respond: Callable[[Any], None], pending: dict[Receiver, Command]) -> None:
        self._respond, self.pending = respond, pending
        self._done = False  # ``set_result`` sets it

    def done(self) -> bool:
        return self._done

    def set_result(self, response: Any, /) -> None:
        self._done = True
        self.pending.pop(self, None)
        try:
            self._respond(response)
        except Exception:
            # The response of another request of this turn must not be lost with it.
            logger.exception("a response cannot be sent")


@dataclass(slots=True, eq=False)
class Command:
    """One queued, parked or completed input.

    Attributes:
        what: the request, the expired timer, or the result.
        traits: what the shard knows about it; for a timer or a result only the group id.
        response: completed with the response; ``None``: no sender waits for a response.
        error_response: builds the response that carries an error.
        arrived: the late-copy check has been done.
        late: the request is a late copy; it changes nothing.
        parked: the request has been parked.
        parked_response: the response that the request was parked with, if any.
        respond_by_s: the end of its max wait, on the event loop's clock.
        max_wait: the call of the event loop that ends the max wait.
    """

    what: Input
    traits: RequestTraits
    client: ClientInfo = NO_CLIENT
    response: Receiver | None = None
    error_response: Callable[[GroupError], Any] | None = None
    arrived: bool = False
    late: bool = False
    parked: bool = False
    parked_response: Any = None
    respond_by_s: float = 0.0
    max_wait: asyncio.TimerHandle | None = None

    @property
    def group_id(self) -> str:
        return self.traits.group_id

    @property
    def done(self) -> bool:
        """Whether the request has been completed, or its sender does not wait any more."""
        return self.response is not None and self.response.done()

    def resolve(self, response: Any) -> None:
        """Send the response."""
        self.cancel_max_wait()
        if self.response is not None and not self.response.done():
            self.response.set_result(response)

    def refuse(self, error: GroupError, *, session_ms: int = 0) -> None:
        """Send the error as a response of the request's own type.

        Args:
            session_ms: the session of the sender, which began again with this request although it is rejected.
        """
        if self.error_response is None:
            return
        response = self.error_response(error)
        if session_ms and hasattr(response, "session_timeout_ms"):
            response = replace(response, session_timeout_ms=session_ms)
        self.resolve(response)

    def cancel_max_wait(self) -> None:
        if self.max_wait is not None:
            self.max_wait.cancel()


def loading_error(group_id: str) -> GroupError:
    """The error of requests for a group that is being loaded."""
    return CoordinatorLoadInProgress(f"group {printable(group_id)} is being loaded")


# --------------------------------------------------------------------------------------------------
# A queue in which clients share the time of the coordinator: no principal and no group delays the requests of others.
#
# The principals with queued commands share the time equally, and so do the groups of each principal; the commands of
# one principal for one group keep their order. The share that has had the least time goes first, and one that had no
# commands for a while gets no credit for it (start-time fair queueing, Goyal et al. 1996).


MIN_COST_S: Final = 0.000_05
"""What the time of a command counts at least, in seconds. In virtual time all commands cost the same."""

MAX_IDLE: Final = 1_000
"""Shares without commands whose time is remembered, beyond the number of those with commands."""


class _Shares(Generic[K]):
    """Those that share time: whose turn it is, and how much each has had."""

    __slots__ = ("_now_s", "_numbers", "_used_s", "_waiting")

    def __init__(self) -> None:
        self._now_s = 0.0  # the time of the share whose turn it was last
        self._used_s: dict[K, float] = {}  # of the shares that wait, or that have had more time than the others
        self._waiting: list[tuple[float, int, K]] = []  # a heap
        self._numbers = count()

    def wait(self, key: K) -> None:
        """A share has commands; it does not wait yet."""
        used_s = self._used_s[key] = max(self._used_s.get(key, 0.0), self._now_s)
        heapq.heappush(self._waiting, (used_s, next(self._numbers), key))

    def choose(self) -> K:
        """The share that has had the least time; it waits no longer."""
        self._now_s, _, key = heapq.heappop(self._waiting)
        return key

    def charge(self, key: K, seconds: float) -> None:
        """The chosen share has used this time."""
        self._used_s[key] += seconds
        if len(self._used_s) > 2 * len(self._waiting) + MAX_IDLE:
            waiting = {other for _, _, other in self._waiting}
            self._used_s = {
                other: used_s
                for other, used_s in self._used_s.items()
                if other == key or other in waiting or used_s > self._now_s
            }


class _Principal:
    """The queued commands of one principal, by group.

    Attributes:
        length: number of commands.
        shares: of its groups.
    """

    __slots__ = ("groups", "length", "shares")

    def __init__(self) -> None:
        self.groups: dict[str, deque[Command]] = {}
        self.length = 0
        self.shares: _Shares[str] = _Shares()


class FairQueue:
    """Commands of many principals and groups."""

    def __init__(self, *, few: int = 0) -> None:
        """``few``: up to so many commands are taken in the order of their arrival, which costs less."""
        self._few = few
        self._new: deque[Command] = deque()  # not in ``_principals`` yet
        self._principals: dict[str | None, _Principal] = {}  # those with commands
        self._shares: _Shares[str | None] = _Shares()
        self._chosen: tuple[str | None, str] | None = None  # principal and group of the command that was taken last
        self._length = 0  # all commands; ``put`` and the takers count

    def __len__(self) -> int:
        return self._length

    def put(self, command: Command) -> None:
        """Add a command, as the last one of its principal and group."""
        self._new.append(command)
        self._length += 1

    def lengths(self, principal: str | None, group_id: str) -> tuple[int, int]:
        """The number of commands of a principal, and of those the number for this group."""
        self._sort()
        found = self._principals.get(principal)
        return (0, 0) if found is None else (found.length, len(found.groups.get(group_id, ())))

    def take(self) -> Command:
        """Remove the next command; ``charge`` is to be called before the next call.

        Raises:
            IndexError: the queue is empty.
        """
        if self._length <= self._few and not self._principals:
            command = self._new.popleft()
            self._length -= 1
            return command
        self._sort()
        key = self._shares.choose()
        principal = self._principals[key]
        group_id = principal.shares.choose()
        self._chosen = key, group_id
        principal.length -= 1
        self._length -= 1
        return principal.groups[group_id].popleft()

    def charge(self, seconds: float) -> None:
        """The command that was taken last took this time."""
        if self._chosen is None:
            return
        (key, group_id), self._chosen = self._chosen, None
        seconds = max(seconds, MIN_COST_S)
        principal = self._principals[key]
        principal.shares.charge(group_id, seconds)
        if principal.groups[group_id]:
            principal.shares.wait(group_id)
        else:
            del principal.groups[group_id]
        self._shares.charge(key, seconds)
        if principal.length:
            self._shares.wait(key)
        else:
            del self._principals[key]

    def _sort(self) -> None:
        """Add the new commands to those of their principals and groups."""
        while self._new:
            command = self._new.popleft()
            key, group_id = command.client.principal, command.group_id
            principal = self._principals.get(key)
            if principal is None:
                principal = self._principals[key] = _Principal()
            is_chosen = self._chosen is not None and self._chosen[0] == key
            if not principal.length and not is_chosen:
                self._shares.wait(key)
            if group_id not in principal.groups:
                principal.groups[group_id] = deque()
                principal.shares.wait(group_id)
            principal.groups[group_id].append(command)
            principal.length += 1
