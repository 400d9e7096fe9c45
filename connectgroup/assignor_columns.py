"""An assignor's question and answer as integer arrays, and both to and from the wire's shape.

One entry a unit, units in sorted order (a connector, then its tasks), members by their index in sorted order:
so two equal questions are equal arrays, and an assignor that never looks at a string is fast (a hundred
thousand tasks in milliseconds). This module is imported only by those who want arrays; it imports numpy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .assignor import ConnectGroup, ConnectMember, ConnectMemberAssignment, ConnectorSpec, HeldWork, Lazy
from .messages import ConnectorTasks, PreparedMember, PrepareResponse, units_of
from .names import CONNECTOR, Unit

Integers = NDArray[np.signedinteger[Any]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ConnectColumns:
    """A ``ConnectGroup`` as arrays, all read-only, ``U`` units long; index ``i`` is ``ConnectGroup.units[i]``.

    Attributes:
        member_ids: sorted.
        member_versions: the version each member's metadata has, in that order.
        connector_names: sorted.
        unit_connector: int32[U], index into ``connector_names``; ascending.
        unit_task: int32[U], task number, -1 for the connector itself.
        unit_weight: int64[U], its load.
        unit_owner: int32[U], index into ``member_ids`` of the member that holds it, -1 for none. Of two
            members that claim one unit, the first one, sorted, holds it.
    """

    member_ids: tuple[str, ...]
    member_versions: tuple[int, ...]
    connector_names: tuple[str, ...]
    unit_connector: NDArray[np.int32]
    unit_task: NDArray[np.int32]
    unit_weight: NDArray[np.int64]
    unit_owner: NDArray[np.int32]

    def unit(self, index: int) -> Unit:
        """The unit at ``index``."""
        return Unit(self.connector_names[self.unit_connector[index]], int(self.unit_task[index]))


def columns_of(group: ConnectGroup) -> ConnectColumns:
    """The columns of a group; one that came over the wire is read in the wire's shape, which is quicker."""
    place = _Places(group.connectors)
    if isinstance(group.members, Lazy):
        prepared: list[PreparedMember] = sorted(group.members.origin, key=lambda member: member.member_id)
        known = [(member.member_id, member.assignor.version) for member in prepared]
        return place.columns(known, [place.of_groups(member.units) for member in prepared])
    members = sorted(group.members, key=lambda member: member.member_id)
    held = [[place.of(unit.connector, unit.task) for unit in member.owned] for member in members]
    return place.columns([(member.member_id, member.version) for member in members], held)


def group_from_prepare(response: PrepareResponse) -> ConnectGroup:
    """The question as the coordinator put it. Friendly objects and columns are each made when first read."""
    return ConnectGroup(
        members=Lazy(lambda: [_member(member) for member in response.members], origin=response.members),
        connectors=tuple(
            ConnectorSpec(
                name=entry.connector, num_tasks=entry.num_tasks, weight=entry.weight, task_weights=entry.task_weights
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


def _member(member: PreparedMember) -> ConnectMember:
    return ConnectMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        reason=member.assignor.reason,
        version=member.assignor.version,
        metadata=member.assignor.metadata,
        owned=units_of(member.units),
    )


def shares_of(columns: ConnectColumns, owner: Integers) -> list[ConnectMemberAssignment]:
    """An array's answer as friendly objects: every member once, sorted, those with nothing too."""
    units: list[list[Unit]] = [[] for _ in columns.member_ids]
    names = columns.connector_names
    whose = zip(owner.tolist(), columns.unit_connector.tolist(), columns.unit_task.tolist(), strict=True)
    for member, connector, task in whose:
        if member >= 0:
            units[member].append(Unit(names[connector], task))
    return [
        ConnectMemberAssignment(member_id=member_id, version=version, units=frozenset(held))
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
        self.specs = sorted(connectors, key=lambda spec: spec.name)
        self.start: dict[str, tuple[int, int]] = {}
        total = 0
        for spec in self.specs:
            self.start[spec.name] = (total + 1, spec.num_tasks)
            total += 1 + spec.num_tasks
        self.total = total

    def of(self, connector: str, task: int) -> int:
        """The unit's index, -1 if there is no such unit."""
        first, count = self.start.get(connector, (0, -1))
        return first + task if CONNECTOR <= task < count else -1

    def of_groups(self, groups: Iterable[ConnectorTasks]) -> list[int]:
        """The indices of all units in a wire shape, unknown ones as -1."""
        found: list[int] = []
        for group in groups:
            first, count = self.start.get(group.connector, (0, -1))
            if group.owns_connector and count >= 0:
                found.append(first - 1)
            found.extend(first + task for task in group.tasks if 0 <= task < count)
        return found

    def columns(self, members: Sequence[tuple[str, int]], held: Sequence[Sequence[int]]) -> ConnectColumns:
        """All columns, given each member's units by index; -1 is ignored."""
        counts = np.array([spec.num_tasks for spec in self.specs], dtype=np.int64)
        connector = np.repeat(np.arange(len(self.specs), dtype=np.int32), counts + 1)
        first = np.cumsum(counts + 1) - counts
        task = (np.arange(self.total) - first[connector]).astype(np.int32)
        weight = (task >= 0).astype(np.int64)
        for spec, start in zip(self.specs, first.tolist(), strict=True):
            if spec.weight:
                weight[start - 1] = spec.weight
            if spec.task_weights:
                given = spec.task_weights[: spec.num_tasks]
                weight[start : start + len(given)] = given
        owner = np.full(self.total, -1, dtype=np.int32)
        for index in range(len(held) - 1, -1, -1):  # backwards, so that of two claims the first one stands
            places = np.array(held[index], dtype=np.int64)
            owner[places[places >= 0]] = index
        for array in (connector, task, weight, owner):
            array.flags.writeable = False
        return ConnectColumns(
            member_ids=tuple(member_id for member_id, _ in members),
            member_versions=tuple(version for _, version in members),
            connector_names=tuple(spec.name for spec in self.specs),
            unit_connector=connector,
            unit_task=task,
            unit_weight=weight,
            unit_owner=owner,
        )
