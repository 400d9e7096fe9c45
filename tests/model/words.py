"""The data types of the model of the group protocol: its state, inputs and outputs."""

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
STARTING = 4
AWAY = -2

Grants = dict[Unit, int]
"""Units with their owner epochs, or with the epochs of their configurations."""

Timer = tuple[str, str]
"""Kind and member of a timer."""


class NotAllowed(Exception):
    """The product chose something that the specification does not allow."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The operator's settings that the rules depend on; the last ones are about members of the classic protocol."""

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
    max_start_ms: int = 60_000
    converts: bool = True
    upgrades: bool = True
    downgrades: bool = True
    max_classic_members: int = 1_000
    min_classic_session_ms: int = 0
    max_classic_session_ms: int = 0


@dataclass(frozen=True, kw_only=True)
class AssignorInput:
    """The input of an assignor.

    Attributes:
        members: epoch, instance id, target assignment, version, reason and metadata for the assignor, and the
            metadata that the assignor has sent with that target assignment.
        connectors: the runnable ones, with their task counts and placement settings.
        delayed: delayed units, by the member they are delayed for.
    """

    members: dict[str, tuple[int, str | None, frozenset[Unit], tuple[int, int, bytes], bytes]]
    connectors: dict[str, tuple[int, dict[str, str]]]
    delayed: dict[str, frozenset[Unit]]


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """The result of an assignor: target assignments, delayed units, and the delay."""

    members: tuple[InstalledMember, ...] = ()
    left_out: frozenset[Unit] = frozenset()
    delay_ms: int = 0


@dataclass(kw_only=True)
class Choice:
    """The product's choices in this step, where the specification leaves one.

    Attributes:
        computer: the member it chose to compute, if any. ``None``: unknown, the first allowed one.
        assignor: the one it asks members to run, or whose target it installed; ``None`` as above.
        made_ms: the incarnation of a new group.
        server_assignor: the server-side assignor that it requested; ``None`` if it requested none.
    """

    computer: str | None = None
    assignor: str | None = None
    created_ms: int = 0
    server_assignor: str | None = None


@dataclass(frozen=True, kw_only=True)
class MemberTarget:
    """One member's target assignment, with the assignor's error, version and metadata for the member."""

    units: frozenset[Unit] = frozenset()
    error: int = 0
    version: int = 0
    metadata: bytes = b""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """The expected response.

    Attributes:
        code: 0, or the error; ``None``: the model has not seen enough to decide.
        epoch: member epoch of a heartbeat, group epoch of other responses.
        units: of a heartbeat: the assignment with its owner epochs; ``None`` if it is unchanged.
        share: the assignor's metadata in the response.
        question: of a Prepare response.
        versions: of changed connectors.
        timers: of a request of the classic protocol: the timers of its sender that it arms.
    """

    code: int | None = 0
    epoch: int | None = None
    units: Grants | None = None
    share: MemberTarget = MemberTarget()
    assignor_input: AssignorInput | None = None
    versions: tuple[int, ...] | None = None
    timers: frozenset[Timer] = frozenset()


@dataclass(kw_only=True)
class Member:
    """One member: what it has reported, and its current assignment."""

    instance: str | None = None
    process: int = -1
    timeout_ms: int = 0
    server_assignor: str | None = None
    assignors: tuple[AssignorInfo, ...] = ()
    draining: bool = False
    classic: bool = False
    traits: tuple[object, ...] = ((), "", 0, "")
    epoch: int = 0
    previous: int = 0
    state: str = STABLE
    assigned: Grants = field(default_factory=dict)
    pending: Grants = field(default_factory=dict)

    @property
    def temporarily_left(self) -> bool:
        """A static member that left with epoch -2, after all its units had stopped."""
        return self.epoch == AWAY

    @property
    def held(self) -> Grants:
        """Units that no other member may be granted; pending revocations count."""
        return {**self.assigned, **self.pending}

    def differs(self, other: Member) -> bool:
        """Whether it reports other fields that require a new target (CN-10)."""
        mine, others = ((each.server_assignor, each.assignors, each.draining, each.traits) for each in (self, other))
        return mine != others

    @property
    def checksum(self) -> int:
        """Checksum of its assignors and traits."""
        return crc32(repr((self.assignors, self.server_assignor, self.traits)).encode())

    def response_units(self, owned: frozenset[Unit] | None) -> Grants:
        """The units of a response: all assigned units, but no new ones in a response that revokes (CN-13)."""
        revokes = owned is not None and bool(self.pending)
        return {unit: at for unit, at in self.assigned.items() if owned is None or not revokes or unit in owned}


def traits_of(request: HeartbeatRequest | MemberRecord) -> tuple[object, ...]:
    """Labels, rack, capacity and host of a member."""
    return (request.labels, request.rack, request.capacity, request.host)


@dataclass(kw_only=True)
class Connector:
    """A connector; each task is its configuration and the group epoch of that configuration."""

    version: int = 1
    target_state: int = RUNNING
    config: dict[str, str] = field(default_factory=dict)
    since: int = 0
    tasks: list[tuple[dict[str, str], int]] = field(default_factory=list)


@dataclass(kw_only=True)
class Computation:
    """The computation of a target: chosen member, epoch, assignor, whether the member has prepared, failed members.

    Once the member has prepared, the epoch is the one in that response: the group epoch may advance while the member
    computes (PD-06).

    Attributes:
        replaced: members chosen before ``who`` that had not prepared when the group epoch advanced.
        keeps_target: the assignor decided that the target stays at this epoch.
    """

    who: str = ""
    epoch: int = 0
    assignor: str = ""
    prepared: bool = False
    failures: int = 0
    failed: set[str] = field(default_factory=set)
    replaced: set[str] = field(default_factory=set)
    keeps_target: bool = False


@dataclass(kw_only=True)
class Delay:
    """Units delayed for a lost worker, or by an assignor.

    Attributes:
        checksum: of the lost worker's assignors.
        epoch: the group epoch at which the delay began.
    """

    share: MemberTarget
    checksum: int = 0
    instance: str | None = None
    delay_ms: int
    deadline_ms: int
    epoch: int


def usable(members: Iterable[Member]) -> set[str]:
    """The assignors that all members list, with a common version."""
    every = [{info.name: info for info in member.assignors} for member in members]
    common = set.intersection(*map(set, every)) if every else set()
    return {
        name
        for name in common
        if max(infos[name].minimum_version for infos in every) <= min(infos[name].maximum_version for infos in every)
    }


def preferred(members: Iterable[Member]) -> set[str]:
    """Of the usable assignors, those that most members put first."""
    every = list(members)
    may = usable(every)
    first = [next(info.name for info in member.assignors if info.name in may) for member in every] if may else []
    return {name for name in may if first.count(name) == max(map(first.count, may))}
