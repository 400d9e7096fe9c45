"""An assignor's question and answer as integer arrays, and both to and from the wire's shape.

One entry a unit, units in sorted order (a connector, then its tasks), members by their index in sorted order:
so two equal questions are equal arrays, and an assignor that never looks at a string is fast (a hundred
thousand tasks in milliseconds). This module is imported only by those who want arrays; it imports numpy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, repeat
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .assignor import ConnectGroup, ConnectMember, ConnectMemberAssignment, ConnectorSpec, HeldWork, Lazy
from .errors import ConfigError, PluginError
from .messages import ConnectorTasks, PreparedConnector, PreparedMember, PrepareResponse, config_of, units_of
from .names import CONNECTOR, Unit, Units, printable
from .placement import NO_PLACEMENT, Placement, placement_of

Integers = NDArray[np.signedinteger[Any]]
_CONNECTOR, _OWNS_CONNECTOR, _TASKS = map(attrgetter, ("connector", "owns_connector", "tasks"))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ConnectColumns:
    """A ``ConnectGroup`` as arrays, all read-only, ``U`` units long; index ``i`` is ``ConnectGroup.units[i]``.

    Attributes:
        member_ids: sorted.
        member_versions: the version each member's metadata has, in that order.
        member_metadata: that metadata.
        member_told: what the answer before said to each (``ConnectMember.told``).
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
    place = _Places(group.connectors)
    if isinstance(group.members, Lazy):
        prepared: list[PreparedMember] = sorted(group.members.origin, key=lambda member: member.member_id)
        said = [(each.member_id, each.assignor.version, each.assignor.metadata, each.told) for each in prepared]
        return place.columns(said, *place.of_groups([member.units for member in prepared]))
    members = sorted(group.members, key=lambda member: member.member_id)
    said = [(each.member_id, each.version, each.metadata, each.told) for each in members]
    return place.columns(said, *place.of_units([member.owned for member in members]))


def group_from_prepare(response: PrepareResponse) -> ConnectGroup:
    """The question as the coordinator put it. Friendly objects and columns are each made when first read."""
    return ConnectGroup(
        members=Lazy(lambda: [_member(member) for member in response.members], origin=response.members),
        connectors=tuple(
            ConnectorSpec(
                name=entry.connector,
                num_tasks=entry.num_tasks,
                weight=entry.weight,
                task_weights=entry.task_weights,
                placement=_placement(entry),
            )
            for entry in response.connectors
        ),
        held_back=tuple(
            HeldWork(
                member_id=work.member_id,
                instance_id=work.instance_id,
                left_ms=work.left_ms,
                units=units_of(work.units),
            )
            for work in response.held_back
        ),
    )


def _placement(entry: PreparedConnector) -> Placement:
    """Raises ``PluginError``: this member cannot answer for a group whose settings it does not understand."""
    if not entry.placement:
        return NO_PLACEMENT
    try:
        return placement_of(config_of(entry.placement))
    except ConfigError as error:
        raise PluginError(f"connector {printable(entry.connector)}: {error}") from error


def _member(member: PreparedMember) -> ConnectMember:
    return ConnectMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        reason=member.assignor.reason,
        version=member.assignor.version,
        metadata=member.assignor.metadata,
        owned=units_of(member.units),
        told=member.told,
    )


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

    def __init__(self, connectors: Iterable[ConnectorSpec]) -> None:
        self.specs = sorted(connectors, key=attrgetter("name"))
        self.names = tuple(spec.name for spec in self.specs)
        self.counts = np.array([spec.num_tasks for spec in self.specs], dtype=np.int64)
        self.first = np.cumsum(self.counts + 1) - self.counts
        self.total = int(self.counts.sum()) + len(self.counts)

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

    def of_groups(self, held: Sequence[Sequence[ConnectorTasks]]) -> tuple[Integers, Integers]:
        """The same from the wire's shape, with as few steps in Python a group as can be: there may be one a unit."""
        groups = list(chain.from_iterable(held))
        lists = list(map(_TASKS, groups))
        number = {name: index for index, name in enumerate(self.names)}
        # One entry more than there are connectors, of one without any unit: for those that are gone.
        count, first = np.append(self.counts, -1), np.append(self.first, self.total + 1)
        which = np.fromiter(map(number.get, map(_CONNECTOR, groups), repeat(-1)), dtype=np.int64, count=len(groups))
        whose = np.repeat(np.arange(len(held)), np.array([len(its) for its in held], dtype=np.int64))
        leads = np.frombuffer(bytes(map(_OWNS_CONNECTOR, groups)), dtype=bool) & (which >= 0)
        sizes = np.fromiter(map(len, lists), dtype=np.int64, count=len(lists))
        of_task = np.repeat(which, sizes)
        task = np.fromiter(chain.from_iterable(lists), dtype=np.int64, count=len(of_task))
        there = (task >= 0) & (task < count[of_task])
        places = np.concatenate((first[which[leads]] - 1, (first[of_task] + task)[there]))
        return places, np.concatenate((whose[leads], np.repeat(whose, sizes)[there]))

    def columns(
        self, members: Sequence[tuple[str, int, bytes, bytes]], places: Integers, whose: Integers
    ) -> ConnectColumns:
        """All columns, given what each member said (id, version, metadata, told), and the units' places and holders."""
        first = self.first
        connector = np.repeat(np.arange(len(self.specs), dtype=np.int32), self.counts + 1)
        task = (np.arange(self.total) - first[connector]).astype(np.int32)
        weight = (task >= 0).astype(np.int64)
        for spec, start in zip(self.specs, first.tolist(), strict=True):
            if spec.weight:
                weight[start - 1] = spec.weight
            if spec.task_weights:
                given = spec.task_weights[: spec.num_tasks]
                weight[start : start + len(given)] = given
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
            connector_names=self.names,
            unit_connector=connector,
            unit_task=task,
            unit_weight=weight,
            unit_owner=owner,
            unit_claims=claims,
        )
