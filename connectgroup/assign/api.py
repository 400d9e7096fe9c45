"""The interface for assignor authors: the input, the result, and the class that computes the result.

An assignor is a named pure function. It runs on the member that the coordinator has selected, or on the coordinator.
Its input is the members, the current assignment of each member, and all units; its result is the target assignment of
each member. An assignor keeps no state between calls. It must be deterministic: equal inputs give equal results,
whatever the order of the input and whatever the hash seed. Sort wherever an order could reach the result.

The input has two representations. ``ConnectAssignorInput.members`` and ``.units`` are objects; its ``columns()`` is the
same input as integer arrays with one entry per unit, for assignors that must be fast.
``ConnectAssignment.from_columns`` accepts a result in that form. Only the array representation imports numpy.

``connectgroup.assign.sandbox`` runs an assignor and validates its result.

Source: "Connect on the new protocol", interfaces Assignor, PartitionAssignor and ConnectAssignor.

The rule of the COOPERATIVE protocol is that no partition is assigned to a member while another member owns it
(KIP-429). ``withhold`` is for authors of assignors. The leader of a classic group applies ``assigned_too_early`` to
every result before it is sent, whichever assignor computed it.

Of several claims to a partition, those of the latest generation count (KIP-792). An undisputed claim counts in any
generation: its member does own the partition, and assigning it to another member at once would give it two owners.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from ..protocol.units import NO_UNITS, Partitions, TopicPartition, Unit, Units, printable
from .members import (
    ConnectMember,
    ConnectMemberAssignment,
    ConnectorSpec,
    DelayedWork,
    GroupMember,
    Lazy,
    MemberAssignment,
    Metadata,
    PartitionMember,
    PartitionMemberAssignment,
    TopicSpec,
    claimants,
    names_listed,
)
from .placement import WorkerTraits

if TYPE_CHECKING:
    from .columns import ConnectColumns, Integers, PartitionColumns

GroupT = TypeVar("GroupT", bound="AssignorInput")

AssignmentT = TypeVar("AssignmentT", bound="Assignment")

ShareT = TypeVar("ShareT", bound="MemberAssignment")


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
            is set, nothing is installed and the group keeps its current target assignment, until its next change or
            for one session timeout; then the assignor runs again. This is a decision and not a failure: no other
            member and no other assignor is asked. (In a classic consumer group, whose leader has to answer, it is a
            failure: the leader leaves with the error.)

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


@dataclass(frozen=True, kw_only=True)
class AssignorInput:
    """The input of an assignor: the members, in any order."""

    members: Sequence[GroupMember] = ()

    def __post_init__(self) -> None:
        # An assignor must not be able to modify the input that its result is validated against.
        for field in fields(self):
            given = getattr(self, field.name)
            if not isinstance(given, Lazy | int):
                object.__setattr__(self, field.name, tuple(given))


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


@dataclass(frozen=True, kw_only=True)
class ConnectAssignorInput(AssignorInput):
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
        from .columns import columns_of

        return columns_of(self.members, self.connectors)


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
        from .columns import assignments_of

        members = Lazy(lambda: assignments_of(columns, owner, assignor_state), origin=(columns, owner, assignor_state))
        return cls(members=members, delayed=delayed, delay_ms=delay_ms, message=message)

    @property
    def by_column(self) -> tuple[ConnectColumns, Integers, bytes] | None:
        """The arguments of ``from_columns`` (columns, owners, metadata) if the result was created by it; else None."""
        return self.members.origin if isinstance(self.members, Lazy) else None


class ConnectAssignor(Assignor[ConnectAssignorInput, ConnectAssignment, ConnectMemberAssignment]):
    """Assigns connectors and tasks to workers."""

    def metadata(self) -> Metadata:
        """Return this member's data for the assignor; called before the member joins and once per heartbeat interval.

        A worker has no subscription: it may be assigned every connector and task of its group. The method must be
        cheap, and its result must be equal while nothing has changed: a change of reason or bytes causes a rebalance.

        Source: "Connect on the new protocol", ``Assignor.metadata()``.
        """
        return Metadata(version=self.maximum_version)


@dataclass(frozen=True, kw_only=True)
class PartitionAssignorInput(AssignorInput):
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
        from .columns import partition_columns_of

        return partition_columns_of(self.members, self.topics)


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
        from .columns import partition_assignments_of

        members = Lazy(lambda: partition_assignments_of(columns, owner), origin=(columns, owner))
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


class PartitionAssignor(Assignor[PartitionAssignorInput, PartitionAssignment, PartitionMemberAssignment]):
    """Assigns topic partitions to consumers.

    Attributes:
        rebalance_protocols: the protocols whose rules the results obey. An assignor that lists COOPERATIVE assigns no
            partition to a member while another member owns it: it omits the partition and lists it in ``withheld``.
            Listing EAGER as well lets a group switch protocols member by member.
    """

    rebalance_protocols: ClassVar[tuple[RebalanceProtocol, ...]] = (RebalanceProtocol.EAGER,)

    def metadata(self, subscribed: frozenset[str]) -> Metadata:
        """Return this member's data for the assignor; called before the member joins and once per heartbeat interval.

        The method must be cheap, and its result must be equal while nothing has changed: a change of version, reason
        or bytes causes a rebalance.

        Args:
            subscribed: the topics that the member subscribes to; those that match its pattern, if it has one.

        Source: KIP-429, ``subscriptionUserData(Set<String> topics)``.
        """
        return Metadata(version=self.maximum_version)


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyAssignment:
    """A partition that is assigned while other members own it.

    Attributes:
        to: the member it is assigned to.
        owners: the other members, sorted.
    """

    partition: TopicPartition
    to: str
    owners: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.partition} is assigned to {printable(self.to)} while owned by {names_listed(self.owners)}"


def assigned_too_early(
    members: Collection[PartitionMember], result: PartitionAssignment
) -> tuple[EarlyAssignment, ...]:
    """Return partitions that ``result`` assigns to one member while another still owns them, sorted; empty if none.

    A partition that two members claim in the same generation is free only after both have revoked it, so it is too
    early for either of them as well.

    Source: KIP-429, "the assignor must make sure a partition is revoked by its previous owner before it can be assigned
    to a new one"; Kafka's ``ConsumerCoordinator.validateCooperativeAssignment``, which does not know generations.
    """
    owned = {member.member_id: member.owned for member in members}
    claimed: set[TopicPartition] = set()
    doubtful: set[TopicPartition] = set()  # claimed twice, or new to one and claimed by another: usually empty
    for its in owned.values():
        doubtful |= claimed & its
        claimed |= its
    for share in result.members:
        doubtful |= claimed & (share.partitions - owned.get(share.member_id, frozenset()))

    owners = claimants(replace(member, owned=member.owned & doubtful) for member in members if doubtful)
    early = [
        EarlyAssignment(partition=partition, to=share.member_id, owners=others)
        for share in result.members
        for partition in share.partitions & doubtful
        if (others := tuple(owner for owner in owners.get(partition, ()) if owner != share.member_id))
    ]
    return tuple(sorted(early, key=lambda each: (each.partition, each.to)))


def withhold(members: Sequence[PartitionMember], result: PartitionAssignment) -> PartitionAssignment:
    """``result`` without the partitions that other members still own; these are added to ``withheld``.

    An assignor that computes a complete final assignment becomes cooperative by returning
    ``withhold(group.members, result)``.
    """
    early = frozenset(each.partition for each in assigned_too_early(members, result))
    if not early:
        return result
    shares = [replace(share, partitions=share.partitions - early) for share in result.members]
    return replace(result, members=shares, withheld=result.withheld | early)
