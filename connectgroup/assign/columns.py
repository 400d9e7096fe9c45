"""The input and the result of an assignor as integer arrays, and conversion to and from objects and wire messages.

The arrays of a connect assignor have one entry per unit, in sorted order (a connector, then its tasks); members are
indices in sorted order. Equal inputs are therefore equal arrays, and an assignor that reads no strings is fast (a
hundred thousand tasks in milliseconds). This module imports numpy; only callers that need arrays import it.

Those of a partition assignor have one entry per partition, in sorted order; members are indices in
sorted order. Only partitions of subscribed topics have an entry. Members with equal subscriptions share one row of
``subscribed``, so a thousand members with the same subscription cost no more than one.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import chain, repeat
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..protocol.messages.assignment import PrepareResponse
from ..protocol.messages.common import ConnectorTasks
from ..protocol.units import CONNECTOR, Partitions, TopicPartition, Unit, Units
from .members import (
    ConnectMember,
    ConnectMemberAssignment,
    ConnectorSpec,
    Lazy,
    PartitionMember,
    PartitionMemberAssignment,
    TopicSpec,
    by_name,
    traits_of,
)
from .placement import WorkerTraits

Integers = NDArray[np.signedinteger[Any]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ConnectColumns:
    """A ``ConnectAssignorInput`` as read-only arrays of ``U`` units; index ``i`` is ``ConnectAssignorInput.units[i]``.

    Attributes:
        member_ids: sorted.
        member_versions: the version of each member's metadata, in the order of ``member_ids``.
        member_metadata: that metadata.
        member_assignor_state: assignor user data of the previous result, per member (``ConnectMember.assignor_state``).
        member_traits: labels, rack, capacity and host of each member.
        connector_names: sorted.
        unit_connector: int32[U], index into ``connector_names``; ascending.
        unit_task: int32[U], task number, -1 for the connector itself.
        unit_weight: int64[U], the unit's load.
        unit_owner: int32[U], index into ``member_ids`` of the member that owns the unit, -1 for none. If two
            members claim one unit, the first of them, sorted, owns it.
        unit_claims: int32[U], number of members that claim the unit; more than one after an earlier error.
    """

    member_ids: tuple[str, ...]
    member_versions: tuple[int, ...]
    member_metadata: tuple[bytes, ...]
    member_assignor_state: tuple[bytes, ...]
    member_traits: tuple[WorkerTraits, ...]
    connector_names: tuple[str, ...]
    unit_connector: NDArray[np.int32]
    unit_task: NDArray[np.int32]
    unit_weight: NDArray[np.int64]
    unit_owner: NDArray[np.int32]
    unit_claims: NDArray[np.int32]

    def unit(self, index: int) -> Unit:
        """The unit at ``index``."""
        return Unit(self.connector_names[self.unit_connector[index]], int(self.unit_task[index]))

    def units(self, indices: Integers) -> Units:
        """The units at ``indices``."""
        names = self.connector_names
        pairs = zip(self.unit_connector[indices].tolist(), self.unit_task[indices].tolist(), strict=True)
        return frozenset(Unit(names[connector], task) for connector, task in pairs)

    def indices(self, units: Units) -> Integers:
        """The indices of ``units``, ascending; units that do not exist are omitted."""
        first = dict(zip(self.connector_names, np.flatnonzero(self.unit_task == CONNECTOR).tolist(), strict=True))
        count = np.bincount(self.unit_connector, minlength=len(first)).tolist()
        size = dict(zip(self.connector_names, count, strict=True))
        found = (first[name] + 1 + task for name, task in units if CONNECTOR <= task < size.get(name, 0) - 1)
        return np.array(sorted(found), dtype=np.int64)


def columns_of(members: Sequence[ConnectMember], connectors: Sequence[ConnectorSpec]) -> ConnectColumns:
    """Return the columns of a group. A group received over the wire is read from its message, which is faster."""
    # Unit indices refer to the connectors of their own message: for a copy with other connectors, read the objects.
    if isinstance(members, Lazy) and isinstance(connectors, Lazy) and members.origin is connectors.origin:
        response: PrepareResponse = members.origin
        place = _UnitIndices([(e.connector, e.num_tasks, e.weight, e.task_weights) for e in response.connectors])
        prepared = sorted(response.members, key=attrgetter("member_id"))
        described = [
            (each.member_id, each.assignor.version, each.assignor.metadata, each.assignor_state, traits_of(each))
            for each in prepared
        ]
        return place.columns(described, *place.of_unit_indices([member.unit_indices for member in prepared]))
    place = _UnitIndices([(spec.name, spec.num_tasks, spec.weight, spec.task_weights) for spec in connectors])
    in_order = sorted(members, key=attrgetter("member_id"))
    described = [(each.member_id, each.version, each.metadata, each.assignor_state, each.traits) for each in in_order]
    return place.columns(described, *place.of_units([member.owned for member in in_order]))


def assignments_of(
    columns: ConnectColumns, owner: Integers, assignor_state: bytes = b""
) -> list[ConnectMemberAssignment]:
    """Convert an array result to objects: every member once, sorted, including members without units."""
    units: list[list[Unit]] = [[] for _ in columns.member_ids]
    names = columns.connector_names
    whose = zip(owner.tolist(), columns.unit_connector.tolist(), columns.unit_task.tolist(), strict=True)
    for member, connector, task in whose:
        if member >= 0:
            units[member].append(Unit(names[connector], task))
    return [
        ConnectMemberAssignment(member_id=member_id, version=version, units=frozenset(held), metadata=assignor_state)
        for member_id, version, held in zip(columns.member_ids, columns.member_versions, units, strict=True)
    ]


def wire_shares_of(columns: ConnectColumns, owner: Integers) -> list[tuple[ConnectorTasks, ...]]:
    """Convert an array result to wire messages, one entry per member, without creating ``Unit`` objects."""
    order = np.argsort(owner, kind="stable")
    order = order[np.searchsorted(owner[order], 0) :]
    members, connectors = owner[order], columns.unit_connector[order]
    starts = np.flatnonzero(np.diff(members, prepend=-1) | np.diff(connectors, prepend=-1))
    tasks = columns.unit_task[order].tolist()
    shares: list[list[ConnectorTasks]] = [[] for _ in columns.member_ids]
    bounds = [*starts.tolist(), len(tasks)]
    for index, (member, connector) in enumerate(
        zip(members[starts].tolist(), connectors[starts].tolist(), strict=True)
    ):
        run = tasks[bounds[index] : bounds[index + 1]]
        leads = run[0] == CONNECTOR
        shares[member].append(
            ConnectorTasks(
                connector=columns.connector_names[connector],
                owns_connector=leads,
                tasks=tuple(run[1:] if leads else run),
            )
        )
    return [tuple(share) for share in shares]


class _UnitIndices:
    """The index of each unit in the columns."""

    def __init__(self, connectors: Sequence[tuple[str, int, int, tuple[int, ...]]]) -> None:
        """``connectors``, in any order: name, number of tasks, weight of the connector, weights of its tasks."""
        order = sorted(range(len(connectors)), key=connectors.__getitem__)
        self.names = tuple([connectors[index][0] for index in order])
        self.weights = [connectors[index][2] for index in order]
        self.task_weights = [connectors[index][3] for index in order]
        given = np.array([entry[1] for entry in connectors], dtype=np.int64)
        self.counts = given[order]
        self.first = np.cumsum(self.counts + 1) - self.counts
        self.total = int(self.counts.sum()) + len(self.counts)
        # The first unit index of each connector in the given order, and its offset to the index in sorted order.
        self.given_starts = np.cumsum(given + 1) - (given + 1)
        self.shifts = np.empty_like(given)
        self.shifts[order] = self.first - 1 - self.given_starts[order]

    @cached_property
    def start(self) -> dict[str, tuple[int, int]]:
        """By connector name: the index of its task 0, and its number of tasks."""
        return dict(zip(self.names, zip(self.first.tolist(), self.counts.tolist(), strict=True), strict=True))

    def of_units(self, held: Sequence[Units]) -> tuple[Integers, Integers]:
        """Return the indices of all members' units that exist, and the index of the owning member for each."""
        unit_indices, whose = [], []
        for index, units in enumerate(held):
            for connector, task in units:
                first, count = self.start.get(connector, (0, -1))
                if CONNECTOR <= task < count:
                    unit_indices.append(first + task)
                    whose.append(index)
        return np.array(unit_indices, dtype=np.int64), np.array(whose, dtype=np.int64)

    def of_unit_indices(self, held: Sequence[Sequence[int]]) -> tuple[Integers, Integers]:
        """The same from the wire message: unit indices in the order given there. Indices out of range are dropped."""
        sizes = np.array([len(its) for its in held], dtype=np.int64)
        unit_indices = np.fromiter(chain.from_iterable(held), dtype=np.int64, count=int(sizes.sum()))
        whose = np.repeat(np.arange(len(held)), sizes)
        there = (unit_indices >= 0) & (unit_indices < self.total)
        unit_indices, whose = unit_indices[there], whose[there]
        if self.shifts.any():
            unit_indices += self.shifts[np.searchsorted(self.given_starts, unit_indices, side="right") - 1]
        # No member claims a unit twice, and indices arrive in ascending order, so this sort is rarely needed.
        claims = whose * self.total + unit_indices
        if (np.diff(claims) <= 0).any():
            whose, unit_indices = np.divmod(np.unique(claims), self.total)
        return unit_indices, whose

    def columns(
        self, members: Sequence[tuple[str, int, bytes, bytes, WorkerTraits]], unit_indices: Integers, whose: Integers
    ) -> ConnectColumns:
        """Return all columns.

        Args:
            members: id, version, metadata, assignor user data and traits of each member.
            unit_indices: int64, the indices of all units that are owned.
            whose: int64, the owner of each, an index into ``members``.
        """
        first = self.first
        connector = np.repeat(np.arange(len(self.names), dtype=np.int32), self.counts + 1)
        task = (np.arange(self.total) - first[connector]).astype(np.int32)
        weight = (task >= 0).astype(np.int64)
        weight[first - 1] = self.weights
        if any(self.task_weights):
            for start, count, its in zip(first.tolist(), self.counts.tolist(), self.task_weights, strict=True):
                weight[start : start + len(its[:count])] = its[:count]
        owner = np.full(self.total, -1, dtype=np.int32)
        claims = np.bincount(unit_indices, minlength=self.total).astype(np.int32)
        if claims.max(initial=0) > 1:
            backwards = np.argsort(-whose, kind="stable")  # the first of two claims must be written last
            unit_indices, whose = unit_indices[backwards], whose[backwards]
        owner[unit_indices] = whose
        for array in (connector, task, weight, owner, claims):
            array.flags.writeable = False
        return ConnectColumns(
            member_ids=tuple(each[0] for each in members),
            member_versions=tuple(each[1] for each in members),
            member_metadata=tuple(each[2] for each in members),
            member_assignor_state=tuple(each[3] for each in members),
            member_traits=tuple(each[4] for each in members),
            connector_names=self.names,
            unit_connector=connector,
            unit_task=task,
            unit_weight=weight,
            unit_owner=owner,
            unit_claims=claims,
        )


UNASSIGNED = -1
SEVERAL = -2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartitionColumns:
    """A ``PartitionAssignorInput`` as read-only arrays: M members, K distinct subscriptions, T topics, P partitions.

    Attributes:
        member_ids: sorted.
        member_versions: the version of each member's metadata, in the order of ``member_ids``.
        member_owned: the partitions that each member reports as owned, in that order.
        member_kind: int32[M], row of ``subscribed``.
        member_order: int32[M], the members' indices in the order of ``by_name``.
        topic_names: sorted; topics that exist and have at least one subscriber.
        subscribed: bool[K, T]; the rows are distinct.
        topic_begin: int64[T + 1], index of each topic's first partition; the last entry is the end of the last topic.
        partition_topic: int32[P], index into ``topic_names``; ascending.
        partition_number: int32[P].
        partition_claim: int32[P], index into ``member_ids`` of the member that owns it by the latest generation,
            -1 for none, -2 if several members claim it in that generation (KIP-792).
        partition_owner: int32[P], the same if that member is still subscribed, else -1: the member that may keep it.
    """

    member_ids: tuple[str, ...]
    member_versions: tuple[int, ...]
    member_owned: tuple[Partitions, ...]
    member_kind: NDArray[np.int32]
    member_order: NDArray[np.int32]
    topic_names: tuple[str, ...]
    subscribed: NDArray[np.bool_]
    topic_begin: NDArray[np.int64]
    partition_topic: NDArray[np.int32]
    partition_number: NDArray[np.int32]
    partition_claim: NDArray[np.int32]
    partition_owner: NDArray[np.int32]

    def partition(self, index: int) -> TopicPartition:
        """The partition at ``index``."""
        return TopicPartition(self.topic_names[self.partition_topic[index]], int(self.partition_number[index]))


def partition_columns_of(group_members: Sequence[PartitionMember], topics: Sequence[TopicSpec]) -> PartitionColumns:
    """Return the columns of a group."""
    members = sorted(group_members, key=lambda member: member.member_id)
    wanted: set[str] = set().union(*{member.subscribed for member in members})
    specs = sorted((spec for spec in topics if spec.name in wanted), key=lambda spec: spec.name)
    kind, subscribed = _kinds(members, specs)
    counts = np.array([spec.num_partitions for spec in specs], dtype=np.int64)
    begin = np.concatenate(([0], np.cumsum(counts)))
    topic = np.repeat(np.arange(len(specs), dtype=np.int32), counts)
    claim = _claims(members, specs, begin)
    stays = claim >= 0
    stays[stays] = subscribed[kind[claim[stays]], topic[stays]]
    columns = PartitionColumns(
        member_ids=tuple(member.member_id for member in members),
        member_versions=tuple(member.version for member in members),
        member_owned=tuple(member.owned for member in members),
        member_kind=kind,
        member_order=np.array(sorted(range(len(members)), key=lambda index: by_name(members[index])), dtype=np.int32),
        topic_names=tuple(spec.name for spec in specs),
        subscribed=subscribed,
        topic_begin=begin,
        partition_topic=topic,
        partition_number=(np.arange(len(topic)) - begin[topic]).astype(np.int32),
        partition_claim=claim,
        partition_owner=np.where(stays, claim, np.int32(UNASSIGNED)),
    )
    for field in fields(columns):
        array = getattr(columns, field.name)
        if isinstance(array, np.ndarray):
            array.flags.writeable = False
    return columns


def _kinds(
    members: Sequence[PartitionMember], specs: Sequence[TopicSpec]
) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """``member_kind`` and ``subscribed``: subscriptions that differ only in topics that do not exist share one row."""
    rows: dict[bytes, int] = {}
    number: dict[frozenset[str], int] = {}
    for names in dict.fromkeys(member.subscribed for member in members):
        row = bytes([spec.name in names for spec in specs])
        number[names] = rows.setdefault(row, len(rows))
    subscribed = np.frombuffer(b"".join(rows), dtype=np.bool_).reshape(len(rows), len(specs))
    return np.array([number[member.subscribed] for member in members], dtype=np.int32), subscribed


def _claims(
    members: Sequence[PartitionMember], specs: Sequence[TopicSpec], begin: NDArray[np.int64]
) -> NDArray[np.int32]:
    """The owner of each partition by the latest generation: the rule of ``members.claimants``, vectorized."""
    owned = [*chain.from_iterable(member.owned for member in members)]
    sizes = np.array([len(member.owned) for member in members], dtype=np.int64)
    index = {spec.name: place for place, spec in enumerate(specs)}
    topic = np.fromiter(map(index.get, map(itemgetter(0), owned), repeat(UNASSIGNED)), dtype=np.int64, count=len(owned))
    number = np.fromiter(map(itemgetter(1), owned), dtype=np.int64, count=len(owned))
    there = (topic != UNASSIGNED) & (number >= 0) & (number < np.diff(begin, append=0)[topic])
    place = (begin[topic] + number)[there]
    whose = np.repeat(np.arange(len(members), dtype=np.int32), sizes)[there]

    generation = np.array([member.generation for member in members], dtype=np.int64)[whose]
    latest = np.full(begin[-1], np.iinfo(np.int64).min)
    np.maximum.at(latest, place, generation)
    counts = generation == latest[place]
    place, whose = place[counts], whose[counts]
    claim = np.full(begin[-1], UNASSIGNED, dtype=np.int32)
    claim[place] = whose
    claim[np.bincount(place, minlength=len(claim)) > 1] = SEVERAL
    return claim


def partition_assignments_of(columns: PartitionColumns, owner: Integers) -> list[PartitionMemberAssignment]:
    """Convert an array result to objects: every member once, sorted, including members without partitions.

    A member that keeps exactly its owned partitions is assigned the same set object: at a million partitions, most do.
    """
    members = len(columns.member_ids)
    order = order_of(owner)
    sizes = np.bincount(owner + 1, minlength=members + 1)
    bounds = np.cumsum(sizes).tolist()
    kept = np.bincount(owner[(owner >= 0) & (owner == columns.partition_owner)], minlength=members).tolist()
    topics, numbers = columns.partition_topic[order], columns.partition_number[order]
    shares: list[PartitionMemberAssignment] = []
    with collector_paused():
        for index, (member_id, version, owned) in enumerate(
            zip(columns.member_ids, columns.member_versions, columns.member_owned, strict=True)
        ):
            begin, end = bounds[index], bounds[index + 1]
            if end - begin == kept[index] == len(owned):
                partitions = owned
            else:
                names = map(columns.topic_names.__getitem__, topics[begin:end].tolist())
                partitions = frozenset(map(TopicPartition, names, numbers[begin:end].tolist()))
            shares.append(PartitionMemberAssignment(member_id=member_id, version=version, partitions=partitions))
    return shares


def order_of(numbers: Integers) -> NDArray[np.int64]:
    """A stable order of small integers, many times faster if 16 bits suffice (numpy uses a radix sort for those)."""
    small = np.iinfo(np.int16)
    narrow = len(numbers) > 0 and small.min <= numbers.min() and numbers.max() <= small.max
    return np.argsort(numbers.astype(np.int16) if narrow else numbers, kind="stable")


@contextmanager
def collector_paused() -> Iterator[None]:
    """Disable the garbage collector while creating many long-lived objects, each of which it would visit.

    Creating a million partitions takes a third of the time. The switch is process-wide, so use it only for a few
    hundred milliseconds; if two threads overlap, the worst case is that the collector is enabled a little early.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
