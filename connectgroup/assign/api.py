"""What an assignor author writes against: the question, the answer, and the class that turns one into the other.

An assignor is a pure function with a name. It is asked on the member that the coordinator has chosen (or on
the coordinator itself): here are the members, what each holds, and all there is to share out; who shall hold
what? It keeps nothing between calls and gives equal answers to equal questions, whatever the order they are
put in and whatever the hash seed: sort wherever an order could leak into the answer.

The same question can be read in two ways. ``ConnectGroup.members`` and ``.units`` are friendly objects;
``ConnectGroup.columns()`` is the same as integer arrays, one entry a unit, for assignors that must be fast, and
``ConnectAssignment.from_columns`` takes such an answer. numpy is imported by the second way only.

How an assignor is run and its answer judged is in ``assignor_guard``.

Source: "Connect on the new protocol", interfaces Assignor, PartitionAssignor and ConnectAssignor.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, overload

from ..protocol.units import NO_UNITS, Unit, Units
from .placement import NO_PLACEMENT, Labels, Placement, WorkerTraits

if TYPE_CHECKING:
    from .columns.connect import ConnectColumns, Integers
    from .columns.partition import PartitionColumns
from ..protocol.units import Partitions, TopicPartition

GroupT = TypeVar("GroupT", bound="Group")


AssignmentT = TypeVar("AssignmentT", bound="Assignment")


ShareT = TypeVar("ShareT", bound="MemberAssignment")


T = TypeVar("T")


class Assignor(ABC, Generic[GroupT, AssignmentT, ShareT]):
    """One way to share things out, found by its entry point: ``connectgroup.assignors`` for connectors and tasks,
    ``connectgroup.partition_assignors`` for topic partitions.

    Derive from one of its children and write ``name`` and ``assign``; the rest has defaults, also ``metadata``, which
    each child declares. The class is made without arguments, once a worker. ``metadata`` and ``on_assignment`` are
    called on every member, ``assign`` only on the one chosen, off the event loop, never two at a time.

    Attributes:
        name: non-empty, the same on every member, and the entry point's name.
        minimum_version: lowest version of ``metadata`` it can read, >= -1.
        maximum_version: highest version it can read, >= 0 and >= ``minimum_version``.
    """

    name: ClassVar[str] = ""
    minimum_version: ClassVar[int] = 0
    maximum_version: ClassVar[int] = 0

    def about_worker(self, traits: WorkerTraits) -> None:
        """Called once, before anything else, on a worker: what its operator says of it. Most need not know."""

    @abstractmethod
    def assign(self, group: GroupT) -> AssignmentT:
        """Share everything in ``group`` out, each thing to exactly one member.

        Args:
            group: frozen, complete; members and units may be none, and members may hold things that no
                longer exist (those are to be left out).

        Returns:
            The whole answer, not a difference. A member left out gets nothing. With ``error`` set nothing is
            installed and the group keeps what it has.

        Raises:
            Exception: shown as one line; the coordinator asks another member, then helps itself.
        """

    def on_assignment(self, assignment: ShareT) -> None:
        """Called on every member, once for each target assignment this assignor computed, with the member's share.

        Also where its share shrinks or stays as it is; before its listener hears of it and before anything starts. The
        other assignors of the member are not called. A target assignment that the coordinator renews without computing
        (a member joined again) has a new epoch and is delivered again.

        Args:
            assignment: the member's share, with ``group_id``, ``epoch`` and ``instance_id`` set.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """One member's word to the assignor.

    Attributes:
        reason: why it changed, -128 .. 127; 0 is none.
        version: version of ``metadata``, within the assignor's range.
        metadata: opaque to all but the assignor.
    """

    reason: int = 0
    version: int = 0
    metadata: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """One member, with what its assignor's ``metadata`` returned (reason, version, metadata).

    Attributes:
        member_id: unique in the group.
        instance_id: the static member's name, None if it is none.
    """

    member_id: str
    instance_id: str | None = None
    reason: int = 0
    version: int = 0
    metadata: bytes = b""


@dataclass(frozen=True, kw_only=True)
class Group:
    """The question: the members, in any order."""

    members: Sequence[GroupMember] = ()

    def __post_init__(self) -> None:
        # An assignor must not be able to change the question its answer is held against.
        for field in fields(self):
            given = getattr(self, field.name)
            if not isinstance(given, Lazy | int):
                object.__setattr__(self, field.name, tuple(given))


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberAssignment:
    """One member's share.

    Attributes:
        member_id: whose.
        error: the assignor's own error number for this member, -128 .. 127, 0 is none.
        version: version of ``metadata``, within the assignor's range.
        metadata: the assignor's word to ``on_assignment`` on that member.
        group_id: the group; set for ``on_assignment``, an answer leaves it empty.
        epoch: the target epoch (in a consumer group, the generation); set for ``on_assignment``, -1 in an answer.
        instance_id: the static member's ``group.instance.id``, None if it has none; set for ``on_assignment``.
    """

    member_id: str
    error: int = 0
    version: int = 0
    metadata: bytes = b""
    group_id: str = ""
    epoch: int = -1
    instance_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """The answer.

    Attributes:
        error: 0, or a number of the assignor's own, -128 .. 127: then ``members`` is not looked at.
        message: the error in words, one line; without an error, what operators should know of the answer.
        members: each member's share, in any order, each member at most once.
    """

    error: int = 0
    message: str = ""
    members: Sequence[MemberAssignment] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectMember(GroupMember):
    """A worker.

    Attributes:
        owned: its share of the target in force, which may name units that are gone.
        told: what this assignor's last answer said to it (``ConnectMemberAssignment.metadata``), where the target in
            force is that answer. So an assignor can leave itself a note: the group remembers, the assignor does not.
        labels: names and values, sorted, as the operator gave them (``connectgroup worker --label``).
        rack: the worker's rack or zone; empty if not given.
        capacity: the most weight the worker can carry; 0 if not given.
        host: the machine the worker runs on, which workers may share; empty if not given.
    """

    owned: Units = NO_UNITS
    told: bytes = b""
    labels: Labels = ()
    rack: str = ""
    capacity: int = 0
    host: str = ""

    @property
    def traits(self) -> WorkerTraits:
        """Labels, rack, capacity and host as one value."""
        return WorkerTraits(labels=self.labels, rack=self.rack, capacity=self.capacity, host=self.host)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorSpec:
    """A connector to be placed, with its tasks 0 .. ``num_tasks`` - 1.

    Attributes:
        name: unique in the group.
        num_tasks: >= 0.
        weight: load of the connector itself, >= 0; 0 by default because it mostly watches.
        task_weights: load of each task, >= 0; empty means 1 each, a missing one is 1.
        placement: what its configuration asks for under ``assignment.``; its weights are those above.
    """

    name: str
    num_tasks: int = 0
    weight: int = 0
    task_weights: tuple[int, ...] = ()
    placement: Placement = NO_PLACEMENT


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldWork:
    """Work that nobody is given for now.

    Attributes:
        member_id: the lost worker it waits for; empty where the assignor itself asked for the delay.
        instance_id: that worker's static name, None if it had none.
        left_ms: how much longer, in milliseconds.
        units: what waits.
    """

    member_id: str = ""
    instance_id: str | None = None
    left_ms: int = 0
    units: Units = NO_UNITS


@dataclass(frozen=True, kw_only=True)
class ConnectGroup(Group):
    """The question put to a ``ConnectAssignor``.

    Attributes:
        members: the workers.
        connectors: all there is to place; names are unique.
        held_back: what waits for a lost worker. An assignor need not look at it: it may place those units or leave
            them out, they are given to nobody before their time is up or their worker is back.
        scheduled_rebalance_max_delay_ms: the group's ``scheduled.rebalance.max.delay.ms``, in milliseconds: the most
            that an assignor puts revocations off. 0: no delay.
    """

    members: Sequence[ConnectMember] = ()
    connectors: Sequence[ConnectorSpec] = ()
    held_back: Sequence[HeldWork] = ()
    scheduled_rebalance_max_delay_ms: int = 0

    @property
    def waiting(self) -> Units:
        """All units that wait for a lost worker."""
        return NO_UNITS.union(*(work.units for work in self.held_back if work.member_id))

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """Every connector and task once, sorted."""
        named = sorted((spec.name, spec.num_tasks) for spec in self.connectors)
        return tuple(Unit(name, task) for name, num_tasks in named for task in range(-1, num_tasks))

    def columns(self) -> ConnectColumns:
        """The same question as integer arrays, made once and read-only."""
        return self._columns

    @cached_property
    def _columns(self) -> ConnectColumns:
        from .columns.connect import columns_of

        return columns_of(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectMemberAssignment(MemberAssignment):
    """A worker's share: connectors and tasks.

    In ``on_assignment``: all that the worker runs as of this epoch. Units that other workers have yet to stop are
    assigned later, and only the listener hears of them.
    """

    units: Units = NO_UNITS


@dataclass(frozen=True, kw_only=True)
class ConnectAssignment(Assignment):
    """The answer of a ``ConnectAssignor``: each worker's share.

    Attributes:
        held_back: units left out on purpose. They wait for ``delay_ms``; those that somebody runs, so that they have
            to stop first, at most until all members have reached this target.
        delay_ms: ask again after this long, whatever happens; 0 is never.
    """

    members: Sequence[ConnectMemberAssignment] = ()
    held_back: Units = NO_UNITS
    delay_ms: int = 0

    @classmethod
    def from_columns(
        cls,
        columns: ConnectColumns,
        owner: Integers,
        *,
        held_back: Units = NO_UNITS,
        delay_ms: int = 0,
        message: str = "",
        told: bytes = b"",
    ) -> ConnectAssignment:
        """An answer as one array; each member is answered in the version it spoke.

        Args:
            columns: what ``group.columns()`` gave.
            owner: integers of shape ``(units,)``: for each unit the index of its member in
                ``columns.member_ids``, -1 for none.
            held_back: those of the units with -1 that are left out on purpose.
            delay_ms: how long they wait.
            message: what operators should know.
            told: metadata, the same for all.
        """
        from .columns.connect import shares_of

        members = Lazy(lambda: shares_of(columns, owner, told), origin=(columns, owner, told))
        return cls(members=members, held_back=held_back, delay_ms=delay_ms, message=message)

    @property
    def by_column(self) -> tuple[ConnectColumns, Integers, bytes] | None:
        """Columns, owners and metadata that ``from_columns`` was given, where the answer was given so; else None."""
        return self.members.origin if isinstance(self.members, Lazy) else None


class ConnectAssignor(Assignor[ConnectGroup, ConnectAssignment, ConnectMemberAssignment]):
    """Shares connectors and tasks out over workers."""

    def metadata(self) -> Metadata:
        """What this member wants the assignor to know of it; called before it joins and once a heartbeat interval.

        A worker subscribes to nothing: it may be given every connector and task of its group. Must be cheap, and equal
        while nothing has changed: a change of reason or bytes asks for a rebalance.

        Source: "Connect on the new protocol", ``Assignor.metadata()``.
        """
        return Metadata(version=self.maximum_version)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMember(GroupMember):
    """A consumer: the topics it may be given, and what it holds.

    Attributes:
        subscribed: names of topics; some may not exist (any longer).
        owned: its share of the target in force, or what it says it holds (KIP-429); may name what is gone.
        generation: of the rebalance that gave it ``owned``; -1 is unknown, which is older than any (KIP-792).
            Where members claim the same partition the latest generation counts: see ``partitions``.
        rack: where it runs, None if it does not say (KIP-881).
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


@dataclass(frozen=True, kw_only=True)
class PartitionGroup(Group):
    """The question put to a ``PartitionAssignor``; a topic that nobody is subscribed to is not to be placed."""

    members: Sequence[PartitionMember] = ()
    topics: Sequence[TopicSpec] = ()

    @cached_property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """Every partition of a topic that somebody is subscribed to, once, sorted."""
        wanted: set[str] = set().union(*(member.subscribed for member in self.members))
        named = sorted((spec.name, spec.num_partitions) for spec in self.topics if spec.name in wanted)
        return tuple(TopicPartition(name, partition) for name, count in named for partition in range(count))

    def columns(self) -> PartitionColumns:
        """The same question as integer arrays, made once and read-only."""
        return self._columns

    @cached_property
    def _columns(self) -> PartitionColumns:
        from .columns.partition import columns_of

        return columns_of(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMemberAssignment(MemberAssignment):
    """A consumer's share."""

    partitions: Partitions = frozenset()


@dataclass(frozen=True, kw_only=True)
class PartitionAssignment(Assignment):
    """The answer of a ``PartitionAssignor``.

    Attributes:
        withheld: partitions left out on purpose because another member still owns them. Not empty means: ask again
            when they have been given up (KIP-429); when that is, the caller decides.
    """

    members: Sequence[PartitionMemberAssignment] = ()
    withheld: Partitions = frozenset()

    @classmethod
    def from_columns(
        cls, columns: PartitionColumns, owner: Integers, *, withheld: Partitions = frozenset()
    ) -> PartitionAssignment:
        """An answer as one array; each member is answered in the version it spoke.

        Args:
            columns: what ``group.columns()`` gave.
            owner: integers of shape ``(partitions,)``: for each partition the index of its member in
                ``columns.member_ids``, -1 for none.
            withheld: those of the partitions with -1 that are left out on purpose.
        """
        from .columns.partition import shares_of

        members = Lazy(lambda: shares_of(columns, owner), origin=(columns, owner))
        return cls(members=members, withheld=withheld)

    @property
    def by_column(self) -> tuple[PartitionColumns, Integers] | None:
        """What ``from_columns`` was given, where the answer was given so; else None."""
        return self.members.origin if isinstance(self.members, Lazy) else None


class RebalanceProtocol(IntEnum):
    """What a consumer in a classic group gives up, and when; the higher number is the better one (KIP-429).

    EAGER: everything, before each rebalance.
    COOPERATIVE: only what moves, after it; a partition is given on in the next rebalance, which follows at once.
    """

    EAGER = 0
    COOPERATIVE = 1


class PartitionAssignor(Assignor[PartitionGroup, PartitionAssignment, PartitionMemberAssignment]):
    """Shares topic partitions out over consumers.

    Attributes:
        rebalance_protocols: those whose rules its answers keep. One that lists COOPERATIVE gives no partition to one
            member while another owns it: it leaves it out and lists it as ``withheld``. EAGER beside it lets a group
            change over member by member.
    """

    rebalance_protocols: ClassVar[tuple[RebalanceProtocol, ...]] = (RebalanceProtocol.EAGER,)

    def metadata(self, subscribed: frozenset[str]) -> Metadata:
        """What this member wants the assignor to know of it; called each time before it joins.

        Args:
            subscribed: the topics that the member subscribes to.

        Source: KIP-429, ``subscriptionUserData(Set<String> topics)``.
        """
        return Metadata(version=self.maximum_version)


class Lazy(Sequence[T]):
    """A sequence that is made when it is first looked at.

    A hundred thousand ``Unit`` objects cost more than a fast assignor takes to place them, so the friendly
    view is made only for those who read it. ``origin`` is what it would be made of, for those who do not.
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
