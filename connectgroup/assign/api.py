"""The interface for assignor authors: the input, the result, and the class that computes the result.

An assignor is a named pure function. It runs on the member that the coordinator has selected, or on the coordinator.
Its input is the members, the current assignment of each member, and all units; its result is the target assignment of
each member. An assignor keeps no state between calls. It must be deterministic: equal inputs give equal results,
whatever the order of the input and whatever the hash seed. Sort wherever an order could reach the result.

The input has two representations. ``ConnectGroup.members`` and ``.units`` are objects; ``ConnectGroup.columns()`` is
the same input as integer arrays with one entry per unit, for assignors that must be fast.
``ConnectAssignment.from_columns`` accepts a result in that form. Only the array representation imports numpy.

``connectgroup.assign.sandbox`` runs an assignor and validates its result.

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
    """An assignment strategy, found by its entry point: ``connectgroup.assignors`` for connectors and tasks,
    ``connectgroup.partition_assignors`` for topic partitions.

    Derive from one of the subclasses and define ``name`` and ``assign``. All other methods have defaults, including
    ``metadata``, which each subclass declares. The class is instantiated without arguments, once per worker.
    ``metadata`` and ``on_assignment`` are called on every member, ``assign`` only on the selected member. Calls are
    made off the event loop and never concurrently.

    Attributes:
        name: non-empty, equal on every member, and equal to the name of the entry point.
        minimum_version: lowest version of ``metadata`` that the assignor can read, >= -1.
        maximum_version: highest version that the assignor can read, >= 0 and >= ``minimum_version``.
    """

    name: ClassVar[str] = ""
    minimum_version: ClassVar[int] = 0
    maximum_version: ClassVar[int] = 0

    def configure(self, traits: WorkerTraits) -> None:
        """Receive the traits that the operator configured for this worker. Called once, before any other method.

        Most assignors do not need to override this.
        """

    @abstractmethod
    def assign(self, group: GroupT) -> AssignmentT:
        """Assign every unit in ``group`` to exactly one member.

        Args:
            group: frozen and complete. It may have no members and no units, and members may own units that no longer
                exist; the result must not contain those.

        Returns:
            The complete assignment, not a difference. A member that is not listed is assigned nothing. If ``error``
            is set, nothing is installed and the group keeps its current target assignment.

        Raises:
            Exception: reported as one line. The coordinator selects another member, then computes the assignment
                itself.
        """

    def on_assignment(self, assignment: ShareT) -> None:
        """Called on every member, once per target assignment that this assignor computed, with the member's assignment.

        The call is also made when the member's assignment shrinks or does not change. It precedes the callbacks of the
        listener and the start of any unit. The member's other assignors are not called. A target assignment that the
        coordinator renews without a computation (a member rejoined) has a new epoch and is delivered again.

        Args:
            assignment: the member's target assignment, with ``group_id``, ``epoch`` and ``instance_id`` set.
        """


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


@dataclass(frozen=True, kw_only=True)
class Group:
    """The input of an assignor: the members, in any order."""

    members: Sequence[GroupMember] = ()

    def __post_init__(self) -> None:
        # An assignor must not be able to modify the input that its result is validated against.
        for field in fields(self):
            given = getattr(self, field.name)
            if not isinstance(given, Lazy | int):
                object.__setattr__(self, field.name, tuple(given))


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


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """The result of an assignor.

    Attributes:
        error: 0, or an error number of the assignor's own, -128 .. 127. If it is not 0, ``members`` is ignored.
        message: the error message, one line; without an error, information for operators about the result.
        members: the assignment of each member, in any order, each member at most once.
    """

    error: int = 0
    message: str = ""
    members: Sequence[MemberAssignment] = ()


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


@dataclass(frozen=True, kw_only=True)
class ConnectGroup(Group):
    """The input of a ``ConnectAssignor``.

    Attributes:
        members: the workers.
        connectors: all connectors to be assigned; names are unique.
        delayed: the delayed units. An assignor may ignore this field: it may assign those units or omit them, and
            the coordinator gives them to no member before their delay has elapsed or their worker has returned.
        scheduled_rebalance_max_delay_ms: the group's ``scheduled.rebalance.max.delay.ms``, in milliseconds: the
            maximum time for which an assignor delays revocations. 0: no delay.
    """

    members: Sequence[ConnectMember] = ()
    connectors: Sequence[ConnectorSpec] = ()
    delayed: Sequence[DelayedWork] = ()
    scheduled_rebalance_max_delay_ms: int = 0

    @property
    def waiting(self) -> Units:
        """All units that are delayed for a lost worker."""
        return NO_UNITS.union(*(work.units for work in self.delayed if work.member_id))

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """Every connector and task once, sorted."""
        named = sorted((spec.name, spec.num_tasks) for spec in self.connectors)
        return tuple(Unit(name, task) for name, num_tasks in named for task in range(-1, num_tasks))

    def columns(self) -> ConnectColumns:
        """The same input as integer arrays, computed once and read-only."""
        return self._columns

    @cached_property
    def _columns(self) -> ConnectColumns:
        from .columns.connect import columns_of

        return columns_of(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectMemberAssignment(MemberAssignment):
    """The target assignment of a worker: connectors and tasks.

    In ``on_assignment``: all units that the worker runs as of this epoch. Units that other workers have not stopped
    yet are assigned later, and only the listener is notified of them.
    """

    units: Units = NO_UNITS


@dataclass(frozen=True, kw_only=True)
class ConnectAssignment(Assignment):
    """The result of a ``ConnectAssignor``: the target assignment of each worker.

    Attributes:
        delayed: units omitted on purpose. They are delayed for ``delay_ms``; units that a worker runs, and that must
            stop first, are delayed at most until all members have reached this target.
        delay_ms: run the assignor again after this time, whatever happens; 0 is never.
    """

    members: Sequence[ConnectMemberAssignment] = ()
    delayed: Units = NO_UNITS
    delay_ms: int = 0

    @classmethod
    def from_columns(
        cls,
        columns: ConnectColumns,
        owner: Integers,
        *,
        delayed: Units = NO_UNITS,
        delay_ms: int = 0,
        message: str = "",
        assignor_state: bytes = b"",
    ) -> ConnectAssignment:
        """Return a result given as one array. Each member's metadata has the version that the member sent.

        Args:
            columns: the return value of ``group.columns()``.
            owner: integers of shape ``(units,)``: for each unit the index of its member in
                ``columns.member_ids``, -1 for none.
            delayed: the units with -1 that are omitted on purpose.
            delay_ms: their delay in milliseconds.
            message: information for operators.
            assignor_state: assignor user data, equal for all members.
        """
        from .columns.connect import assignments_of

        members = Lazy(lambda: assignments_of(columns, owner, assignor_state), origin=(columns, owner, assignor_state))
        return cls(members=members, delayed=delayed, delay_ms=delay_ms, message=message)

    @property
    def by_column(self) -> tuple[ConnectColumns, Integers, bytes] | None:
        """The arguments of ``from_columns`` (columns, owners, metadata) if the result was created by it; else None."""
        return self.members.origin if isinstance(self.members, Lazy) else None


class ConnectAssignor(Assignor[ConnectGroup, ConnectAssignment, ConnectMemberAssignment]):
    """Assigns connectors and tasks to workers."""

    def metadata(self) -> Metadata:
        """Return this member's data for the assignor; called before the member joins and once per heartbeat interval.

        A worker has no subscription: it may be assigned every connector and task of its group. The method must be
        cheap, and its result must be equal while nothing has changed: a change of reason or bytes causes a rebalance.

        Source: "Connect on the new protocol", ``Assignor.metadata()``.
        """
        return Metadata(version=self.maximum_version)


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


@dataclass(frozen=True, kw_only=True)
class PartitionGroup(Group):
    """The input of a ``PartitionAssignor``; a topic that no member subscribes to is not assigned."""

    members: Sequence[PartitionMember] = ()
    topics: Sequence[TopicSpec] = ()

    @cached_property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """Every partition of a topic that at least one member subscribes to, once, sorted."""
        wanted: set[str] = set().union(*(member.subscribed for member in self.members))
        named = sorted((spec.name, spec.num_partitions) for spec in self.topics if spec.name in wanted)
        return tuple(TopicPartition(name, partition) for name, count in named for partition in range(count))

    def columns(self) -> PartitionColumns:
        """The same input as integer arrays, computed once and read-only."""
        return self._columns

    @cached_property
    def _columns(self) -> PartitionColumns:
        from .columns.partition import columns_of

        return columns_of(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMemberAssignment(MemberAssignment):
    """The target assignment of a consumer."""

    partitions: Partitions = frozenset()


@dataclass(frozen=True, kw_only=True)
class PartitionAssignment(Assignment):
    """The result of a ``PartitionAssignor``.

    Attributes:
        withheld: partitions omitted on purpose because another member still owns them. If it is not empty, the
            assignor must run again after they have been revoked (KIP-429); the caller decides when.
    """

    members: Sequence[PartitionMemberAssignment] = ()
    withheld: Partitions = frozenset()

    @classmethod
    def from_columns(
        cls, columns: PartitionColumns, owner: Integers, *, withheld: Partitions = frozenset()
    ) -> PartitionAssignment:
        """Return a result given as one array. Each member's metadata has the version that the member sent.

        Args:
            columns: the return value of ``group.columns()``.
            owner: integers of shape ``(partitions,)``: for each partition the index of its member in
                ``columns.member_ids``, -1 for none.
            withheld: the partitions with -1 that are omitted on purpose.
        """
        from .columns.partition import assignments_of

        members = Lazy(lambda: assignments_of(columns, owner), origin=(columns, owner))
        return cls(members=members, withheld=withheld)

    @property
    def by_column(self) -> tuple[PartitionColumns, Integers] | None:
        """The arguments of ``from_columns`` if the result was created by it; else None."""
        return self.members.origin if isinstance(self.members, Lazy) else None


class RebalanceProtocol(IntEnum):
    """Which partitions a consumer in a classic group revokes, and when; the higher value is preferred (KIP-429).

    EAGER: all partitions, before each rebalance.
    COOPERATIVE: only partitions that move, after the rebalance. A revoked partition is assigned in the next rebalance,
        which follows immediately.
    """

    EAGER = 0
    COOPERATIVE = 1


class PartitionAssignor(Assignor[PartitionGroup, PartitionAssignment, PartitionMemberAssignment]):
    """Assigns topic partitions to consumers.

    Attributes:
        rebalance_protocols: the protocols whose rules the results obey. An assignor that lists COOPERATIVE assigns no
            partition to a member while another member owns it: it omits the partition and lists it in ``withheld``.
            Listing EAGER as well lets a group switch protocols member by member.
    """

    rebalance_protocols: ClassVar[tuple[RebalanceProtocol, ...]] = (RebalanceProtocol.EAGER,)

    def metadata(self, subscribed: frozenset[str]) -> Metadata:
        """Return this member's data for the assignor; called each time before the member joins.

        Args:
            subscribed: the topics that the member subscribes to.

        Source: KIP-429, ``subscriptionUserData(Set<String> topics)``.
        """
        return Metadata(version=self.maximum_version)


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
