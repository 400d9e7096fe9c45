"""What the model of the group protocol is made of, and what goes in and out of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from zlib import crc32

from connectgroup.protocol.messages.assignment import InstalledMember
from connectgroup.protocol.messages.common import AssignorInfo
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest
from connectgroup.protocol.records.connect import MemberRecord
from connectgroup.protocol.units import Unit

COORDINATOR = "coordinator"
STABLE, UNREVOKED, UNRELEASED = "STABLE", "UNREVOKED", "UNRELEASED"
RUNNING, STOPPED = 1, 3
AWAY = -2

Grants = dict[Unit, int]
"""Units with the epochs at which they were given, or with those of their configurations."""

Timer = tuple[str, str]
"""What is waited for, and of whom."""


class NotAllowed(Exception):
    """The product chose something that the specification does not leave open."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What an operator may set, as far as the rules depend on it."""

    server_assignor: str
    server_assignors: frozenset[str]
    session_timeout_ms: int
    max_rebalance_timeout_ms: int
    failures_before_fallback: int
    max_members: int
    max_units: int
    max_moves: int
    assignment_interval_ms: int
    scheduled_delay_ms: int
    max_delay_ms: int


@dataclass(frozen=True, kw_only=True)
class Question:
    """What an assignor is asked.

    Attributes:
        members: epoch, instance, share of the present target, version, reason and metadata for the assignor, and what
            it has told the member with that share.
        connectors: those that run, with their number of tasks, and what is asked of their places.
        delayed: what waits, by the member it waits for.
    """

    members: dict[str, tuple[int, str | None, frozenset[Unit], tuple[int, int, bytes], bytes]]
    connectors: dict[str, tuple[int, dict[str, str]]]
    delayed: dict[str, frozenset[Unit]]


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """What an assignor answers: who shall have what, what nobody shall have for now, and for how long."""

    members: tuple[InstalledMember, ...] = ()
    left_out: frozenset[Unit] = frozenset()
    delay_ms: int = 0


@dataclass(kw_only=True)
class Choice:
    """What the product chose in this step where it may choose.

    Attributes:
        computer: the member it asked to compute, if it asked one. ``None``: nobody's choice, the first that may.
        assignor: the one it asks members to run, or whose target it took; ``None`` as above.
        made_ms: the incarnation of a group that is new.
        server_assignor: the server-side assignor that it requested; ``None`` if it requested none.
    """

    computer: str | None = None
    assignor: str | None = None
    made_ms: int = 0
    server_assignor: str | None = None


@dataclass(frozen=True, kw_only=True)
class Share:
    """One member's part of the target, and the assignor's word to it."""

    units: frozenset[Unit] = frozenset()
    error: int = 0
    version: int = 0
    metadata: bytes = b""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What must be answered.

    Attributes:
        code: 0, or the error; ``None``: the model has not seen enough to tell.
        epoch: member epoch of a heartbeat, group epoch of the others.
        units: of a heartbeat: the assignment with its tokens; ``None`` "as before".
        share: with it goes the assignor's word of this.
        question: of a prepare.
        versions: of changed connectors.
    """

    code: int | None = 0
    epoch: int | None = None
    units: Grants | None = None
    share: Share = Share()
    question: Question | None = None
    versions: tuple[int, ...] | None = None


@dataclass(kw_only=True)
class Member:
    """One member: what it said, and where it stands."""

    instance: str | None = None
    timeout_ms: int = 0
    server_assignor: str | None = None
    assignors: tuple[AssignorInfo, ...] = ()
    draining: bool = False
    traits: tuple[object, ...] = ((), "", 0, "")
    epoch: int = 0
    previous: int = 0
    state: str = STABLE
    assigned: Grants = field(default_factory=dict)
    pending: Grants = field(default_factory=dict)

    @property
    def temporarily_left(self) -> bool:
        """Left for a while, having stopped everything."""
        return self.epoch == AWAY

    @property
    def held(self) -> Grants:
        """What nobody else may be given: a revocation that is not acknowledged counts."""
        return {**self.assigned, **self.pending}

    def differs(self, other: Member) -> bool:
        """Whether its words are others, of those that ask for a new target (CN-10)."""
        mine, others = ((each.server_assignor, each.assignors, each.draining, each.traits) for each in (self, other))
        return mine != others

    @property
    def said(self) -> int:
        """Checksum of its assignors and traits."""
        return crc32(repr((self.assignors, self.server_assignor, self.traits)).encode())

    def told(self, owned: frozenset[Unit] | None) -> Grants:
        """What an answer names: all that it holds; but one that takes something away gives nothing (CN-13)."""
        revokes = owned is not None and bool(self.pending)
        return {unit: at for unit, at in self.assigned.items() if owned is None or not revokes or unit in owned}


def traits_of(said: HeartbeatRequest | MemberRecord) -> tuple[object, ...]:
    """Labels, rack, capacity and host of a member."""
    return (said.labels, said.rack, said.capacity, said.host)


@dataclass(kw_only=True)
class Connector:
    """A connector; each task is its configuration and the group epoch that brought it."""

    version: int = 1
    wanted: int = RUNNING
    config: dict[str, str] = field(default_factory=dict)
    since: int = 0
    tasks: list[tuple[dict[str, str], int]] = field(default_factory=list)


@dataclass(kw_only=True)
class Asked:
    """The computation of a target: chosen member, epoch, assignor, whether the member has prepared, failed members.

    Once the member has prepared, the epoch is the one in that response: the group epoch may advance while the member
    computes (PD-06).

    Attributes:
        replaced: members chosen before ``who`` that had not prepared when the group epoch advanced.
    """

    who: str = ""
    epoch: int = 0
    assignor: str = ""
    prepared: bool = False
    failures: int = 0
    failed: set[str] = field(default_factory=set)
    replaced: set[str] = field(default_factory=set)


@dataclass(kw_only=True)
class Delay:
    """Work that waits for a lost worker, or for as long as an assignor asked.

    Attributes:
        said: checksum of the lost worker's assignors.
        epoch: the group's when it began.
    """

    share: Share
    said: int = 0
    instance: str | None = None
    delay_ms: int
    deadline_ms: int
    epoch: int


def usable(members: Iterable[Member]) -> set[str]:
    """The assignors that all list, in ranges that have a version in common."""
    every = [{info.name: info for info in member.assignors} for member in members]
    common = set.intersection(*map(set, every)) if every else set()
    return {
        name
        for name in common
        if max(infos[name].minimum_version for infos in every) <= min(infos[name].maximum_version for infos in every)
    }


def preferred(members: Iterable[Member]) -> set[str]:
    """Of the usable ones, those that most members put first."""
    every = list(members)
    may = usable(every)
    first = [next(info.name for info in member.assignors if info.name in may) for member in every] if may else []
    return {name for name in may if first.count(name) == max(map(first.count, may))}
