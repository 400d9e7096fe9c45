"""Which placement constraint of a connector (``assignment.*``) rejects which worker, for one unit of a described group.

The constraints and their order are those of the assignor ``weighted``: labels, capacity, and for tasks the limits per
worker and per rack, resources of a host, and anti-affinity. Other units count where the target assignment has them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Set as AbstractSet
from dataclasses import replace

from ..assign.placement import NO_PLACEMENT, Placement, needed_plugins, placement_of
from ..errors import ConfigError
from ..protocol.messages.common import config_of, units_of
from ..protocol.messages.describe import DescribedConnector, DescribedGroup, DescribedMember
from ..protocol.units import CONNECTOR, Unit


class Constraints:
    """The placement constraints of all connectors of a group, and the load of its workers.

    Attributes:
        placements: the constraints by connector.
    """

    def __init__(self, group: DescribedGroup) -> None:
        self._group = group
        offered = {label.name for member in group.members for label in member.labels}
        self.placements = {connector.connector: _placement(connector, offered) for connector in group.connectors}
        self._num_tasks = {connector.connector: len(connector.units) - 1 for connector in group.connectors}
        self._targets = {member.member_id: units_of(member.target) for member in group.members}
        self._owned = {
            member.member_id: units_of(member.assigned) | units_of(member.pending_revocation)
            for member in group.members
        }
        self._rack = {member.member_id: member.rack for member in group.members}

    def is_constrained(self, connector: str) -> bool:
        """Whether the connector has constraints other than weights and preferences, or another one excludes it."""
        placement = self.placements.get(connector, NO_PLACEMENT)
        limits = placement.max_per_worker or placement.max_per_rack
        return bool(placement.labels or limits or placement.exclusive or self._apart_from(connector))

    def rejections(self, unit: Unit) -> Iterator[tuple[str, tuple[str, ...]]]:
        """For each member: why the constraints reject it for the unit; empty if they do not."""
        for member in self._group.members:
            yield member.member_id, tuple(self._reasons(unit, member))

    def _reasons(self, unit: Unit, member: DescribedMember) -> Iterator[str]:
        if member.state == "AWAY":
            yield "has left temporarily"
        if member.state == "DRAINING":
            yield "is draining"
        placement = self.placements.get(unit.connector, NO_PLACEMENT)
        labels = {(label.name, label.value) for label in member.labels}
        for name, value in placement.labels:
            if (name, value) not in labels:
                yield f"label {name}={value}: missing"
        others = self._targets[member.member_id] - {unit}
        weight, load = self._weight(unit), sum(map(self._weight, others))
        if weight and member.capacity and load + weight > member.capacity:
            yield f"capacity {member.capacity}: {load} in use, {unit} weighs {weight}"
        if not unit.is_connector:
            yield from self._task_reasons(unit, member, placement)

    def _task_reasons(self, unit: Unit, member: DescribedMember, placement: Placement) -> Iterator[str]:
        here = {other for other in self._targets[member.member_id] if not other.is_connector and other != unit}
        count = Counter(other.connector for other in here)
        if 0 < placement.max_per_worker <= count[unit.connector]:
            yield f"assignment.max.per.worker {placement.max_per_worker}: has {count[unit.connector]}"
        in_rack = sum(
            other.connector == unit.connector and not other.is_connector and other != unit
            for member_id, units in self._targets.items()
            if self._rack[member_id] == member.rack
            for other in units
        )
        if 0 < placement.max_per_rack <= in_rack:
            yield f"assignment.max.per.rack {placement.max_per_rack}: rack {member.rack or '(none)'} has {in_rack}"
        for resource in placement.exclusive:
            if user := self._user_of(resource, unit, member):
                yield f"assignment.exclusive {resource}: used by {user}"
        for connector in sorted(self._apart_from(unit.connector)):
            if count[connector]:
                yield f"assignment.anti.affinity {connector}: has {count[connector]} of its tasks"

    def _user_of(self, resource: str, unit: Unit, member: DescribedMember) -> str:
        """The task that uses a resource of the member's host, or is stopping there; empty if it is free."""
        on_host = [
            each
            for each in self._group.members
            if each.member_id == member.member_id or (each.host and each.host == member.host)
        ]
        for each in on_host:
            target = self._targets[each.member_id]
            for other in sorted(target | self._owned[each.member_id]):
                needs = self.placements.get(other.connector, NO_PLACEMENT).exclusive
                if other != unit and not other.is_connector and resource in needs:
                    return f"{other} on {each.member_id}" + ("" if other in target else ", which is stopping")
        return ""

    def _apart_from(self, connector: str) -> set[str]:
        """Connectors whose tasks must not share a worker with this one's; either of the two may say so."""
        own = set(self.placements.get(connector, NO_PLACEMENT).anti_affinity)
        named = {name for name, placement in self.placements.items() if connector in placement.anti_affinity}
        return (own | named) - {connector}

    def _weight(self, unit: Unit) -> int:
        placement = self.placements.get(unit.connector, NO_PLACEMENT)
        if unit.task == CONNECTOR:
            return placement.weight
        weights = placement.weights_of(self._num_tasks.get(unit.connector, 0))
        return weights[unit.task] if unit.task < len(weights) else 1


def _placement(connector: DescribedConnector, offered: AbstractSet[str]) -> Placement:
    config = config_of(connector.config)
    try:
        placement = placement_of(config)
    except ConfigError:  # from a log older than the check
        placement = NO_PLACEMENT
    needed = needed_plugins(config, offered)
    return replace(placement, labels=tuple(sorted({*placement.labels, *needed}))) if needed else placement
