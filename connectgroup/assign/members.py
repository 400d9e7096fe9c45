"""What an assignor reads and returns per member, connector and topic: plain, frozen data.

And the rules of ownership in a partition group, which every partition assignor needs, a custom one too. Members report
the partitions they own, each member with the generation in which they were assigned (KIP-792). A member that was away
too long sends stale data: if two members claim one partition, the later generation counts and the earlier claim is
ignored. Two claims in one generation cannot both be true. ``validate_subscription`` finds them; no member keeps such a
partition, and an assignor must not assign it before both members have revoked it. An undisputed claim counts in any
generation, including unknown (-1): old clients do not send theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar, overload

from ..protocol.messages.assignment import PreparedMember
from ..protocol.units import NO_UNITS, Partitions, TopicPartition, Units, printable
from .placement import NO_PLACEMENT, Labels, Placement, WorkerTraits

MAX_UNITS = 10_000_000
"""Upper bound on the units of an input; a coordinator accepts 200,000 unless configured otherwise."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """The data that one member sends to the assignor.

    Attributes:
        reason: the reason for the change, -128 .. 127; 0 is none.
        version: version of ``metadata``, within the assignor's range.
        metadata: opaque to all but the assignor.
    """

    reason: int = 0
    version: int = 0
    metadata: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """One member, with the values that its assignor's ``metadata`` returned (reason, version, metadata).

    Attributes:
        member_id: unique in the group.
        instance_id: the group instance id of a static member, None for a dynamic member.
    """

    member_id: str
    instance_id: str | None = None
    reason: int = 0
    version: int = 0
    metadata: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberAssignment:
    """The target assignment of one member.

    Attributes:
        member_id: the member.
        error: the assignor's own error number for this member, -128 .. 127, 0 is none.
        version: version of ``metadata``, within the assignor's range.
        metadata: assignor user data, passed to ``on_assignment`` on that member.
        group_id: the group; set for ``on_assignment``, empty in a result.
        epoch: the target epoch (in a consumer group, the generation); set for ``on_assignment``, -1 in a result.
        instance_id: the static member's ``group.instance.id``, None if it has none; set for ``on_assignment``.
    """

    member_id: str
    error: int = 0
    version: int = 0
    metadata: bytes = b""
    group_id: str = ""
    epoch: int = -1
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectMember(GroupMember):
    """A worker.

    Attributes:
        owned: the worker's units in the current target assignment; may name units that no longer exist.
        assignor_state: assignor user data (``ConnectMemberAssignment.metadata``) that this assignor returned, if
            the current target assignment is that result. An assignor can store its state there: the group keeps it,
            the assignor does not.
        labels: names and values, sorted, as the operator configured them (``connectgroup worker --label``).
        rack: the worker's rack or zone; empty if not configured.
        capacity: the maximum weight the worker can run; 0 if not configured.
        host: the machine the worker runs on, which several workers may share; empty if not configured.
    """

    owned: Units = NO_UNITS
    assignor_state: bytes = b""
    labels: Labels = ()
    rack: str = ""
    capacity: int = 0
    host: str = ""

    @property
    def traits(self) -> WorkerTraits:
        """Labels, rack, capacity and host as one value."""
        return WorkerTraits(labels=self.labels, rack=self.rack, capacity=self.capacity, host=self.host)


def traits_of(member: PreparedMember) -> WorkerTraits:
    """Labels, rack, capacity and host of a member in the coordinator's message."""
    labels = tuple([(label.name, label.value) for label in member.labels])
    return WorkerTraits(labels=labels, rack=member.rack, capacity=member.capacity, host=member.host)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorSpec:
    """A connector to be assigned, with its tasks 0 .. ``num_tasks`` - 1.

    Attributes:
        name: unique in the group.
        num_tasks: >= 0.
        weight: load of the connector itself, >= 0; 0 by default because a connector mostly monitors.
        task_weights: load of each task, >= 0; empty means 1 each, a missing one is 1.
        placement: the constraints in its configuration (``assignment.*``); the weights in it are those above.
    """

    name: str
    num_tasks: int = 0
    weight: int = 0
    task_weights: tuple[int, ...] = ()
    placement: Placement = NO_PLACEMENT


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedWork:
    """Delayed units: assigned to no member for now.

    Attributes:
        member_id: the lost worker for which the units are kept; empty if the assignor requested the delay.
        instance_id: the group instance id of that worker, None if it had none.
        left_ms: remaining delay in milliseconds.
        units: the delayed units.
    """

    member_id: str = ""
    instance_id: str | None = None
    left_ms: int = 0
    units: Units = NO_UNITS


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectMemberAssignment(MemberAssignment):
    """The target assignment of a worker: connectors and tasks.

    In ``on_assignment``: all units that the worker runs as of this epoch. Units that other workers have not stopped
    yet are assigned later, and only the listener is notified of them.
    """

    units: Units = NO_UNITS


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMember(GroupMember):
    """A consumer: the topics it subscribes to, and the partitions it owns.

    Attributes:
        subscribed: names of topics; some may not exist, or no longer exist.
        owned: its partitions in the current target assignment, or those it reports as owned (KIP-429); may name
            partitions that no longer exist.
        generation: of the rebalance that assigned ``owned``; -1 is unknown, which is older than any (KIP-792).
            If members claim the same partition, the latest generation counts: see ``ownership``.
        rack: the consumer's rack, None if it sends none (KIP-881).
    """

    subscribed: frozenset[str] = frozenset()
    owned: Partitions = frozenset()
    generation: int = -1
    rack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpec:
    """A topic, with its partitions 0 .. ``num_partitions`` - 1.

    Attributes:
        name: unique in the group.
        num_partitions: >= 0.
        racks: for each partition the racks its replicas are in; empty means unknown, a missing one is in none.
    """

    name: str
    num_partitions: int
    racks: tuple[frozenset[str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMemberAssignment(MemberAssignment):
    """The target assignment of a consumer."""

    partitions: Partitions = frozenset()


class Lazy(Sequence[T]):
    """A sequence that is created on first access.

    Creating a hundred thousand ``Unit`` objects takes longer than a fast assignor takes to assign them, so the objects
    are created only for callers that read them. ``origin`` is the data they are created from, for other callers.
    """

    def __init__(self, make: Callable[[], Sequence[T]], *, origin: Any) -> None:
        self._make = make
        self.origin = origin

    @cached_property
    def _made(self) -> tuple[T, ...]:
        return tuple(self._make())

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...
    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        return self._made[index]

    def __len__(self) -> int:
        return len(self._made)

    def __iter__(self) -> Iterator[T]:
        return iter(self._made)

    def __eq__(self, other: Any) -> bool:
        return self._made == tuple(other) if isinstance(other, Sequence) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._made)

    def __repr__(self) -> str:
        return repr(self._made)


def validate_subscription(members: Iterable[PartitionMember]) -> dict[TopicPartition, tuple[str, ...]]:
    """Return owned partitions that overlap, with the members that claim them, both sorted; empty if there are none.

    Only claims in the partition's latest generation are considered. A custom assignor must call this itself; the
    built-in ones need not, because their columns follow the same rule.

    Source: KIP-792, "Proposed Changes".
    """
    return {partition: owners for partition, owners in claimants(members).items() if len(owners) > 1}


def claimants(members: Iterable[PartitionMember]) -> dict[TopicPartition, tuple[str, ...]]:
    """For each owned partition, the member ids that claim it in its latest generation; all sorted."""
    found: dict[TopicPartition, tuple[int, list[str]]] = {}
    for member in sorted(members, key=lambda member: member.member_id):
        for partition in member.owned:
            latest, owners = found.get(partition, (member.generation, []))
            if member.generation > latest:
                latest, owners = member.generation, []
            if member.generation == latest:
                found[partition] = (latest, [*owners, member.member_id])
    return {partition: tuple(owners) for partition, (_, owners) in sorted(found.items())}


def by_name(member: PartitionMember) -> tuple[bool, str, str]:
    """Sort key: static members by group instance id, then dynamic members by member id.

    A process that restarts with its group instance id has a new member id and must keep its position (KIP-345).
    """
    return member.instance_id is None, member.instance_id or "", member.member_id


def require_topics(members: Iterable[PartitionMember], topics: Iterable[TopicSpec]) -> None:
    """Reject a subscription to a topic that does not exist, as a server-side assignor does.

    On the server, the coordinator has already resolved the subscriptions, so an unknown name is an error. On a client,
    the topic may simply not exist yet.

    Raises:
        ValueError: the first such member and topic, sorted, on one line.
    """
    members = sorted(members, key=lambda member: member.member_id)
    known = {spec.name for spec in topics}
    wanted: set[str] = set().union(*{member.subscribed for member in members})
    if wanted <= known:
        return
    for member in members:
        for topic in sorted(member.subscribed - known):
            raise ValueError(
                f"{member.member_id} is subscribed to {topic!r}; allowed: {', '.join(sorted(known)) or 'no topic'}"
            )


def names_listed(members: tuple[str, ...]) -> str:
    """``c1, c2 and 3 more``, escaped for output."""
    names = [printable(member_id) for member_id in members[:3]]
    if len(members) > 3:
        names.append(f"{len(members) - 3} more")
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
