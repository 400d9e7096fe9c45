"""An assignor's question and answer as integer arrays, and both to and from the wire's shape.

One entry a unit, units in sorted order (a connector, then its tasks), members by their index in sorted order:
so two equal questions are equal arrays, and an assignor that never looks at a string is fast (a hundred
thousand tasks in milliseconds). This module is imported only by those who want arrays; it imports numpy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError, PluginError
from ...protocol.messages.assignment import PreparedConnector, PreparedMember, PrepareResponse
from ...protocol.messages.common import ConnectorTasks, config_of, units_of
from ...protocol.units import CONNECTOR, Unit, Units, printable
from ..api import ConnectGroup, ConnectMember, ConnectMemberAssignment, ConnectorSpec, HeldWork, Lazy
from ..placement import NO_PLACEMENT, Labels, Placement, WorkerTraits, placement_of

MOST_UNITS = 10_000_000
"""No question has more; a coordinator takes 200,000 unless it is told otherwise."""

Integers = NDArray[np.signedinteger[Any]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ConnectColumns:
    """A ``ConnectGroup`` as arrays, all read-only, ``U`` units long; index ``i`` is ``ConnectGroup.units[i]``.

    Attributes:
        member_ids: sorted.
        member_versions: the version each member's metadata has, in that order.
        member_metadata: that metadata.
        member_told: what the answer before said to each (``ConnectMember.told``).
        member_traits: labels, rack, capacity and host of each.
        connector_names: sorted.
        unit_connector: int32[U], index into ``connector_names``; ascending.
        unit_task: int32[U], task number, -1 for the connector itself.
        unit_weight: int64[U], its load.
        unit_owner: int32[U], index into ``member_ids`` of the member that holds it, -1 for none. Of two
            members that claim one unit, the first one, sorted, holds it.
        unit_claims: int32[U], how many members claim it; more than one where something went wrong before.
    """

    member_ids: tuple[str, ...]
    member_versions: tuple[int, ...]
    member_metadata: tuple[bytes, ...]
    member_told: tuple[bytes, ...]
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
        """Where those of ``units`` stand that there are, ascending."""
        first = dict(zip(self.connector_names, np.flatnonzero(self.unit_task == CONNECTOR).tolist(), strict=True))
        count = np.bincount(self.unit_connector, minlength=len(first)).tolist()
        size = dict(zip(self.connector_names, count, strict=True))
        found = (first[name] + 1 + task for name, task in units if CONNECTOR <= task < size.get(name, 0) - 1)
        return np.array(sorted(found), dtype=np.int64)


def columns_of(group: ConnectGroup) -> ConnectColumns:
    """The columns of a group; one that came over the wire is read in the wire's shape, which is quicker."""
    members, connectors = group.members, group.connectors
    # Places count through the connectors they came with: of a copy with others the friendly view is read.
    if isinstance(members, Lazy) and isinstance(connectors, Lazy) and members.origin is connectors.origin:
        response: PrepareResponse = members.origin
        place = _Places([(e.connector, e.num_tasks, e.weight, e.task_weights) for e in response.connectors])
        prepared = sorted(response.members, key=attrgetter("member_id"))
        said = [
            (each.member_id, each.assignor.version, each.assignor.metadata, each.told, _traits(each))
            for each in prepared
        ]
        return place.columns(said, *place.of_places([member.places for member in prepared]))
    place = _Places([(spec.name, spec.num_tasks, spec.weight, spec.task_weights) for spec in connectors])
    in_order = sorted(members, key=attrgetter("member_id"))
    said = [(each.member_id, each.version, each.metadata, each.told, each.traits) for each in in_order]
    return place.columns(said, *place.of_units([member.owned for member in in_order]))


def group_from_prepare(response: PrepareResponse) -> ConnectGroup:
    """The question as the coordinator put it. Friendly objects and columns are each made when first read.

    Raises:
        PluginError: this member cannot answer for a group whose settings it does not understand, or whose connectors
            cannot be counted.
    """
    sizes = [entry.num_tasks for entry in response.connectors]
    if min(sizes, default=0) < 0 or len(sizes) + sum(sizes) > MOST_UNITS:
        # A few bytes can name so many that no process could hold them.
        raise PluginError(
            f"num_tasks: got {min(sizes)} to {max(sizes)}; allowed: 0 or more, {MOST_UNITS:,} units in all"
        )
    if len({entry.connector for entry in response.connectors}) < len(sizes):
        raise PluginError("connectors: got one name twice; allowed: each once")
    placements = {entry.connector: _placement(entry) for entry in response.connectors if entry.placement}
    return ConnectGroup(
        members=Lazy(partial(_members, response), origin=response),
        connectors=Lazy(partial(_specs, response, placements), origin=response),
        held_back=tuple(
            HeldWork(
                member_id=work.member_id,
                instance_id=work.instance_id,
                left_ms=work.left_ms,
                units=units_of(work.units),
            )
            for work in response.held_back
        ),
        scheduled_rebalance_max_delay_ms=response.scheduled_rebalance_max_delay_ms,
    )


def _specs(response: PrepareResponse, placements: Mapping[str, Placement]) -> list[ConnectorSpec]:
    return [
        ConnectorSpec(
            name=entry.connector,
            num_tasks=entry.num_tasks,
            weight=entry.weight,
            task_weights=entry.task_weights,
            placement=placements.get(entry.connector, NO_PLACEMENT),
        )
        for entry in response.connectors
    ]


def _placement(entry: PreparedConnector) -> Placement:
    try:
        return placement_of(config_of(entry.placement))
    except ConfigError as error:
        raise PluginError(f"connector {printable(entry.connector)}: {error}") from error


def _members(response: PrepareResponse) -> list[ConnectMember]:
    return [
        ConnectMember(
            member_id=member.member_id,
            instance_id=member.instance_id,
            reason=member.assignor.reason,
            version=member.assignor.version,
            metadata=member.assignor.metadata,
            owned=share,
            told=member.told,
            labels=_labels(member),
            rack=member.rack,
            capacity=member.capacity,
            host=member.host,
        )
        for member, share in zip(response.members, response.shares(), strict=True)
    ]


def _labels(member: PreparedMember) -> Labels:
    return tuple([(label.name, label.value) for label in member.labels])


def _traits(member: PreparedMember) -> WorkerTraits:
    return WorkerTraits(labels=_labels(member), rack=member.rack, capacity=member.capacity, host=member.host)


def shares_of(columns: ConnectColumns, owner: Integers, told: bytes = b"") -> list[ConnectMemberAssignment]:
    """An array's answer as friendly objects: every member once, sorted, those with nothing too."""
    units: list[list[Unit]] = [[] for _ in columns.member_ids]
    names = columns.connector_names
    whose = zip(owner.tolist(), columns.unit_connector.tolist(), columns.unit_task.tolist(), strict=True)
    for member, connector, task in whose:
        if member >= 0:
            units[member].append(Unit(names[connector], task))
    return [
        ConnectMemberAssignment(member_id=member_id, version=version, units=frozenset(held), metadata=told)
        for member_id, version, held in zip(columns.member_ids, columns.member_versions, units, strict=True)
    ]


def wire_shares_of(columns: ConnectColumns, owner: Integers) -> list[tuple[ConnectorTasks, ...]]:
    """An array's answer in the wire's shape, one entry a member, without making a ``Unit``."""
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


class _Places:
    """Where each unit stands in the columns."""

    def __init__(self, connectors: Sequence[tuple[str, int, int, tuple[int, ...]]]) -> None:
        """Of each connector, in any order: its name, how many tasks it has, its own weight, and its tasks'."""
        order = sorted(range(len(connectors)), key=connectors.__getitem__)
        self.names = tuple([connectors[index][0] for index in order])
        self.weights = [connectors[index][2] for index in order]
        self.task_weights = [connectors[index][3] for index in order]
        given = np.array([entry[1] for entry in connectors], dtype=np.int64)
        self.counts = given[order]
        self.first = np.cumsum(self.counts + 1) - self.counts
        self.total = int(self.counts.sum()) + len(self.counts)
        # Where each connector begins as it was given, and how far it is from there to its place in order.
        self.given_starts = np.cumsum(given + 1) - (given + 1)
        self.shifts = np.empty_like(given)
        self.shifts[order] = self.first - 1 - self.given_starts[order]

    @cached_property
    def start(self) -> dict[str, tuple[int, int]]:
        """By name of a connector: the place of its task 0, and how many tasks it has."""
        return dict(zip(self.names, zip(self.first.tolist(), self.counts.tolist(), strict=True), strict=True))

    def of_units(self, held: Sequence[Units]) -> tuple[Integers, Integers]:
        """Each member's units, as the places of those that there are and whose they are."""
        places, whose = [], []
        for index, units in enumerate(held):
            for connector, task in units:
                first, count = self.start.get(connector, (0, -1))
                if CONNECTOR <= task < count:
                    places.append(first + task)
                    whose.append(index)
        return np.array(places, dtype=np.int64), np.array(whose, dtype=np.int64)

    def of_places(self, held: Sequence[Sequence[int]]) -> tuple[Integers, Integers]:
        """The same from the wire's shape: places among the connectors as given. One that cannot be is nobody's."""
        sizes = np.array([len(its) for its in held], dtype=np.int64)
        places = np.fromiter(chain.from_iterable(held), dtype=np.int64, count=int(sizes.sum()))
        whose = np.repeat(np.arange(len(held)), sizes)
        there = (places >= 0) & (places < self.total)
        places, whose = places[there], whose[there]
        if self.shifts.any():
            places += self.shifts[np.searchsorted(self.given_starts, places, side="right") - 1]
        # Nobody claims anything twice; they come ascending, so there is nearly never anything to be sorted out.
        claims = whose * self.total + places
        if (np.diff(claims) <= 0).any():
            whose, places = np.divmod(np.unique(claims), self.total)
        return places, whose

    def columns(
        self, members: Sequence[tuple[str, int, bytes, bytes, WorkerTraits]], places: Integers, whose: Integers
    ) -> ConnectColumns:
        """All columns.

        Args:
            members: id, version, metadata, told and traits of each.
            places: int64, the places of all units that are held.
            whose: int64, who holds each, an index into ``members``.
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
        claims = np.bincount(places, minlength=self.total).astype(np.int32)
        if claims.max(initial=0) > 1:
            backwards = np.argsort(-whose, kind="stable")  # so that of two claims the first one stands
            places, whose = places[backwards], whose[backwards]
        owner[places] = whose
        for array in (connector, task, weight, owner, claims):
            array.flags.writeable = False
        return ConnectColumns(
            member_ids=tuple(said[0] for said in members),
            member_versions=tuple(said[1] for said in members),
            member_metadata=tuple(said[2] for said in members),
            member_told=tuple(said[3] for said in members),
            member_traits=tuple(said[4] for said in members),
            connector_names=self.names,
            unit_connector=connector,
            unit_task=task,
            unit_weight=weight,
            unit_owner=owner,
            unit_claims=claims,
        )
