"""The result of a step as values: responses, the records that make them valid, timers and effects.

A step is pure. An effect is work that a step requests and that must not run inside it: plug-in code may block, raise,
or never return, so a step only describes the call. The shard performs the effects of a step after its records are
durable. The result of a computation re-enters the shard's queue as an input of the same group. A step sets and cancels
timers; an expired one re-enters as an input, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, NamedTuple, Protocol, TypeVar
from zlib import crc32

from ...protocol.messages.api import Response
from ...protocol.records.connect import Record
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """Compute a target assignment with a server-side assignor.

    Attributes:
        group_id: the group.
        group_type: the name of its type, which runs the assignor (``registry.GroupType.run_assignor``).
        epoch: the group epoch of ``input``.
        assignor: the name of the assignor.
        input: the input of the assignor; the group type defines its class.
    """

    group_id: str
    group_type: str
    epoch: int
    assignor: str
    input: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """The result of a ``Compute``, an input of the group.

    Attributes:
        group_id, epoch, assignor: as in the effect.
        result: the assignment, of a class that the group type defines; ``None`` if the computation failed.
        error: why it failed, on one line; empty if it succeeded.
    """

    group_id: str
    epoch: int
    assignor: str
    result: Any = None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Warn:
    """Log a warning to the operator, once per group, epoch and message."""

    group_id: str
    epoch: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Find the topics that match a regular expression: a search through all topics, so it runs off the event loop.

    Attributes:
        group_id: the group.
        group_type: the name of its type, which runs the search (``PatternMatcher``).
        pattern: the regular expression.
    """

    group_id: str
    group_type: str
    pattern: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """The result of a ``Match``, an input of the group.

    Attributes:
        group_id, pattern: as in the effect.
        topics: the names of the topics that match.
    """

    group_id: str
    pattern: str
    topics: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsChanged:
    """An input of a group: the topics of the cluster may have changed (KIP-848, case study "Partition Added")."""

    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionOutcome:
    """What the broker has committed of one partition with pending offsets of transactions.

    Attributes:
        token: of the offset that was committed last; of an offset that is not pending, or empty, otherwise.
        is_stable: whether no transaction with an offset of the partition was open.
        asked: the tokens of the offsets that were pending when the broker was asked.
    """

    token: str
    is_stable: bool
    asked: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionsEnded:
    """An input of a group: the outcome of transactions, by topic and partition."""

    group_id: str
    outcomes: Mapping[tuple[str, int], TransactionOutcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireOffsets:
    """An input of a group: remove the offsets that no member has used for the retention time."""

    group_id: str


class PatternMatcher(Protocol):
    """A group type whose groups return ``Match``."""

    def match(self, effect: Match) -> frozenset[str]:
        """The names of the topics that match. Runs in a thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """Queue an input of the group: a group that was loaded may have missed it."""

    group_id: str
    what: Any


Effect = Compute | Warn | Match | Repeat

R = TypeVar("R", bound=Response | None, covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """A group with members that has become a group of another type.

    Attributes:
        group_type: the name of its type now.
        state: its state now, with ``records`` applied.
        records: the records that remove the former group's state and create the new one.
        timers, parked_responses: as in ``Outcome``.
    """

    group_type: str
    state: Any
    records: tuple[Record, ...]
    timers: tuple[Timer, ...] = ()
    parked_responses: Mapping[str, Response] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Generic[R]):
    """The result of one pure step.

    Attributes:
        response: the response to the request of this step, sent once ``records`` are durable. ``None`` for an input
            that has no sender, and for a request that is parked until a later step responds to it.
        records: appended and applied in order, atomically.
        timers: set or cancelled once the records are durable.
        parks: the request may be parked: ``response`` contains nothing new to its sender, or is ``None``.
        parked_responses: responses to parked requests, by the sender of each (``registry.RequestTraits.sender``); sent
            once ``records`` are durable. A sender without a parked request is ignored.
        effects: performed once the records are durable.
        converted: the group is of another type now, with this state; ``records`` and ``timers`` include those of the
            conversion.
        sender: the sender under which the request is parked, if ``RequestTraits.sender`` is empty: the step chose it.
    """

    response: R
    records: tuple[Record, ...] = ()
    timers: tuple[Timer, ...] = ()
    parks: bool = False
    parked_responses: Mapping[str, Response] = field(default_factory=dict)
    effects: tuple[Effect, ...] = ()
    converted: Converted | None = None
    sender: str = ""
