"""The constraints of the ``weighted`` assignor: which workers may run a unit, and which constraint excludes which.

A constraint is never violated: a unit that no worker may run is left unassigned. Constraints are checked and reported
in this order: labels, capacity, and for tasks: the limits of their connector per worker and per rack, resources of a
host that a task needs for itself, and connectors that must not share a worker.

The assignment of a worker is the one computed so far (``owner``), so the same constraints serve to keep, to place and
to move units. A target assignment is reached one worker at a time, so a task that needs a resource of a host must not
start there while the task that used it is being stopped: ``blocked`` returns the tasks that must wait for that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from connectgroup.assign.columns import ConnectColumns
from connectgroup.assign.members import ConnectorSpec
from connectgroup.assign.placement import Placement

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
UNASSIGNED = -1


class Rules:
    """Which workers may run which units, given the assignment so far; all masks are bool[workers].

    Attributes:
        owner: int64[U], the worker of each unit so far, -1 for none. The caller modifies it.
        load: int64[workers], the weight assigned to each worker so far. The caller keeps it consistent.
        limit: float64[workers], the capacity of each worker; infinite if not configured.
        part: float64[workers], the relative part of the load that each worker is to have.
        rack: int64[workers], equal for workers in one rack.
    """

    def __init__(self, columns: ConnectColumns, connectors: Sequence[ConnectorSpec]) -> None:
        """``connectors`` in any order."""
        workers = columns.member_traits
        self.columns = columns
        self.before = columns.unit_owner.astype(np.int64)
        self.owner = self.before.copy()
        self.weight = columns.unit_weight
        self.count = len(workers)
        self.load = np.zeros(self.count, dtype=np.int64)
        capacity = np.array([traits.capacity for traits in workers], dtype=np.float64)
        self.limit = np.where(capacity > 0, capacity, np.inf)
        self.part = np.where(capacity > 0, capacity, capacity[capacity > 0].mean() if (capacity > 0).any() else 1.0)
        self.rack = _numbered([traits.rack for traits in workers])
        self._host = _numbered([traits.host or f"\0{index}" for index, traits in enumerate(workers)])
        self._labels = [set(traits.labels) for traits in workers]
        place = {name: index for index, name in enumerate(columns.connector_names)}
        placements = {place[spec.name]: spec.placement for spec in connectors}
        self.placements = [placements[index] for index in range(len(place))]
        self._first = np.flatnonzero(columns.unit_task < 0)
        self._end = np.append(self._first[1:], len(self.owner))
        self._having: dict[tuple[str, str], Mask] = {}
        self._users: dict[str, list[int]] = {}
        self._anti_affinity: dict[int, set[int]] = {}
        for index, placement in enumerate(self.placements):
            for thing in placement.exclusive:
                self._users.setdefault(thing, []).append(index)
            for other in {place[name] for name in placement.anti_affinity if name in place} - {index}:
                self._anti_affinity.setdefault(index, set()).add(other)
                self._anti_affinity.setdefault(other, set()).add(index)

    def rules_of(self, connector: int) -> bool:
        """Whether any constraint other than capacity can exclude workers for its units."""
        placement = self.placements[connector]
        return connector in self._anti_affinity or bool(
            placement.labels or placement.max_per_worker or placement.max_per_rack or placement.exclusive
        )

    def tasks(self, connector: int) -> slice:
        """The indices of its tasks in the columns."""
        return slice(int(self._first[connector]) + 1, int(self._end[connector]))

    def pile(self, connector: int) -> Integers:
        """int64[workers]: number of its tasks on each worker so far."""
        owner = self.owner[self.tasks(connector)]
        return np.bincount(owner[owner >= 0], minlength=self.count)

    def affinity(self, connector: int) -> Mask:
        """The workers that run tasks of the connectors in its ``assignment.affinity``."""
        names = self.columns.connector_names
        near = np.zeros(self.count, dtype=bool)
        for name in self.placements[connector].affinity:
            at = int(np.searchsorted(names, name)) if names else 0
            if at < len(names) and names[at] == name:
                near |= self.pile(at) > 0
        return near

    def allowed(self, unit: int) -> Mask:
        """The workers that may run the unit, which must be unassigned."""
        allowed = np.ones(self.count, dtype=bool)
        for _, _, mask in self.each(unit):
            allowed &= mask
        return allowed

    def each(self, unit: int) -> Iterator[tuple[str, str, Mask]]:
        """Every constraint on a unit: its requirement, the phrase for workers that satisfy it, and those workers."""
        connector = int(self.columns.unit_connector[unit])
        placement, weight = self.placements[connector], int(self.weight[unit])
        for name, value in placement.labels:
            yield f"needs label {name}={value}", "have it", self._having_label(name, value)
        if weight:
            yield f"weighs {weight}", "have room for it", self.load + weight <= self.limit
        if self.columns.unit_task[unit] >= 0:
            yield from self._of_tasks(connector, placement)

    def _of_tasks(self, connector: int, placement: Placement) -> Iterator[tuple[str, str, Mask]]:
        names = self.columns.connector_names
        if placement.max_per_worker or placement.max_per_rack:
            pile = self.pile(connector)
        if limit := placement.max_per_worker:
            yield f"at most {limit} tasks of {names[connector]} on a worker", "have fewer", pile < limit
        if limit := placement.max_per_rack:
            in_rack = np.bincount(self.rack, weights=pile)[self.rack]
            yield f"at most {limit} tasks of {names[connector]} in a rack", "are in one with fewer", in_rack < limit
        for thing in placement.exclusive:
            yield f"needs {thing} of a host for itself", "are where it is free", ~self.taken(thing)
        for other in sorted(self._anti_affinity.get(connector, ())):
            yield f"must be apart from {names[other]}", "have none of it", self.pile(other) == 0

    def taken(self, thing: str) -> Mask:
        """The workers on whose host a resource is in use."""
        taken = np.zeros(self.count, dtype=bool)
        for connector in self._users.get(thing, ()):
            its = self.owner[self.tasks(connector)]
            taken[its[its >= 0]] = True
        return np.bincount(self._host, weights=taken)[self._host] > 0

    def blocked(self) -> list[int]:
        """Tasks assigned a resource of a host that another task uses there until it has stopped, ascending."""
        found = set()
        for users in self._users.values():
            rows = np.concatenate([np.arange(self.tasks(user).start, self.tasks(user).stop) for user in users])
            stopping = rows[(self.before[rows] >= 0) & (self.owner[rows] != self.before[rows])]
            leaving: dict[int, set[int]] = {}
            for unit, host in zip(stopping.tolist(), self._host[self.before[stopping]].tolist(), strict=True):
                leaving.setdefault(host, set()).add(unit)
            starting = rows[(self.owner[rows] >= 0) & (self.owner[rows] != self.before[rows])]
            for unit, host in zip(starting.tolist(), self._host[self.owner[starting]].tolist(), strict=True):
                # A task that moves between two workers of one host waits only for itself; the coordinator ensures that.
                if leaving.get(host, set()) - {unit}:
                    found.add(unit)
        return sorted(found)

    def _having_label(self, name: str, value: str) -> Mask:
        found = self._having.get((name, value))
        if found is None:
            found = np.array([(name, value) in labels for labels in self._labels], dtype=bool)
            self._having[name, value] = found
        return found

    def why_not(self, unit: int) -> str:
        """What excludes a unit, constraint by constraint: how many of the remaining workers satisfy each that excludes
        any.
        """
        assignor_state = []
        left = np.ones(self.count, dtype=bool)
        for need, do, mask in self.each(unit):
            before = int(left.sum())
            left &= mask
            if left.sum() < before:
                assignor_state.append(f"{need}; {int(left.sum())} of {before} workers {do}")
        return "; ".join(assignor_state)

    def release_units(self) -> None:
        """Unassign every unit that violates a constraint; of units that exclude each other the first, sorted, stay."""
        for connector in filter(self.rules_of, range(len(self.placements))):
            rows = np.arange(self._first[connector], self._end[connector])
            rows = rows[self.owner[rows] >= 0]
            having = np.ones(self.count, dtype=bool)
            for name, value in self.placements[connector].labels:
                having &= self._having_label(name, value)
            self.owner[rows[~having[self.owner[rows]]]] = UNASSIGNED
            tasks = rows[(self.owner[rows] >= 0) & (self.columns.unit_task[rows] >= 0)]
            homes = self.owner[tasks].tolist()
            self.owner[tasks] = UNASSIGNED  # reassigned one by one below
            self._keep(connector, tasks.tolist(), homes)

    def _keep(self, connector: int, tasks: Sequence[int], homes: Sequence[int]) -> None:
        """Reassign tasks to their workers, as far as the constraints among tasks permit."""
        placement = self.placements[connector]
        # Later connectors have not been checked yet, so they yield to this one, not this one to them.
        earlier = [other for other in self._anti_affinity.get(connector, ()) if other < connector]
        apart = np.zeros(self.count, dtype=bool)
        for other in earlier:
            apart |= self.pile(other) > 0
        users = {thing: [user for user in self._users[thing] if user < connector] for thing in placement.exclusive}
        on_host = {thing: self._hosts_of(users[thing]) for thing in placement.exclusive}
        on_worker = np.zeros(self.count, dtype=np.int64)
        in_rack = np.zeros(self.count, dtype=np.int64)
        for task, home in zip(tasks, homes, strict=True):
            host, rack = self._host[home], self.rack[home]
            if apart[home] or any(hosts[host] for hosts in on_host.values()):
                continue
            if placement.max_per_worker and on_worker[home] >= placement.max_per_worker:
                continue
            if placement.max_per_rack and in_rack[rack] >= placement.max_per_rack:
                continue
            self.owner[task] = home
            on_worker[home] += 1
            in_rack[rack] += 1
            for hosts in on_host.values():
                hosts[host] = True

    def _hosts_of(self, connectors: Sequence[int]) -> Mask:
        hosts = np.zeros(self.count, dtype=bool)
        for connector in connectors:
            hosts[self._host[np.flatnonzero(self.pile(connector))]] = True
        return hosts


def _numbered(words: Sequence[str]) -> Integers:
    """Equal strings as equal numbers."""
    return np.unique(np.array(words, dtype=object).astype(str), return_inverse=True)[1].astype(np.int64)
