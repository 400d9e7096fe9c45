"""The numbers of running tasks that workers have reported: in memory only, because they change all the time.

No rule of a group depends on them, so they are no records. After a change of coordinator they are unknown until the
workers report them again, some seconds later.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..group.connect.state import Group
from ..protocol.messages.describe import DescribedConnector, DescribedGroup, DescribedUnit
from ..protocol.messages.heartbeat import HeartbeatRequest
from ..protocol.messages.progress import Progress
from ..protocol.units import Unit

Reports = dict[Unit, tuple[str, int, Progress]]
"""By task: the member that reported the numbers, the owner epoch they belong to, the numbers."""


class ReportedProgress:
    """The latest numbers of each task, by group."""

    def __init__(self) -> None:
        self._groups: dict[str, Reports] = {}

    def record(self, group: Any, request: HeartbeatRequest) -> None:
        """Keep the numbers of an accepted heartbeat, those of tasks that its sender owns.

        Args:
            group: the state of the request's group; null if there is none.
        """
        if not isinstance(group, Group):
            return
        reports = self._groups.setdefault(group.group_id, {})
        for each in request.progress:
            unit, owner = Unit(each.connector, each.task), (request.member_id, each.owner_epoch)
            if group.holders.get(unit) == owner:
                reports[unit] = (*owner, each.progress)
        if len(reports) > 2 * len(group.holders):
            self._groups[group.group_id] = {
                unit: report for unit, report in reports.items() if group.holders.get(unit) == report[:2]
            }

    def forget(self, group_id: str) -> None:
        """Drop the numbers of a group that is deleted."""
        self._groups.pop(group_id, None)

    def add_to(self, described: DescribedGroup) -> DescribedGroup:
        """Add the numbers to a description, each to the owner that has reported it."""
        reports = self._groups.get(described.group_id)
        if not reports:
            return described
        return replace(described, connectors=tuple([_with(each, reports) for each in described.connectors]))


def _with(connector: DescribedConnector, reports: Reports) -> DescribedConnector:
    return replace(connector, units=tuple([_unit_with(connector.connector, unit, reports) for unit in connector.units]))


def _unit_with(connector: str, unit: DescribedUnit, reports: Reports) -> DescribedUnit:
    report = reports.get(Unit(connector, unit.task))
    if report is None or report[:2] != (unit.member_id, unit.owner_epoch):
        return unit
    return replace(unit, progress=(report[2],))
