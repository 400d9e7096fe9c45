"""The numbers of running tasks, and the topics they use, as workers have reported them: in memory only, because they
change all the time.

No rule of a group depends on them, so they are no records. After a change of coordinator they are unknown until the
workers report them again, some seconds later.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from ..errors import InvalidRequest
from ..group.connect.state import ConnectGroupState
from ..loggers import LEVELS
from ..protocol.messages.classic import GroupHeartbeatRequest, GroupHeartbeatResponse
from ..protocol.messages.common import LoggerLevel, SetLoggerLevelRequest
from ..protocol.messages.describe import DescribedConnector, DescribedGroup, DescribedUnit
from ..protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ..protocol.messages.progress import Progress, TaskProgress
from ..protocol.units import Unit, printable

Reports = dict[Unit, tuple[str, int, Progress]]
"""By task: the member that reported the numbers, the owner epoch they belong to, the numbers."""


MAX_TOPICS: Final = 1_000
"""Topics of one connector; more are not kept."""


@dataclass(frozen=True, slots=True)
class Reported:
    """What the workers of one group have reported.

    Attributes:
        topics: by connector.
    """

    reports: Reports
    topics: Mapping[str, Collection[str]]

    def add_to(self, described: DescribedGroup) -> DescribedGroup:
        """Add the numbers to a description, each to the owner that has reported it."""
        if not self.reports:
            return described
        connectors = [_with(each, self.reports, self.topics.get(each.connector, ())) for each in described.connectors]
        return replace(described, connectors=tuple(connectors))


class ReportedProgress:
    """The latest numbers of each task and the topics of each connector, by group."""

    def __init__(self) -> None:
        self._groups: dict[str, Reports] = {}
        self._topics: dict[str, dict[str, set[str]]] = {}

    def record(self, group: Any, request: HeartbeatRequest) -> None:
        """Keep the numbers of an accepted heartbeat, those of tasks that its sender owns.

        Args:
            group: the state of the request's group; ``None`` if there is none.
        """
        if not isinstance(group, ConnectGroupState):
            return
        reports = self._groups.setdefault(group.group_id, {})
        for each in request.progress:
            unit, owner = Unit(each.connector, each.task), (request.member_id, each.owner_epoch)
            if group.holders.get(unit) == owner:
                reports[unit] = (*owner, each.progress)
                if each.topics:
                    self._add_topics(group, each)
        if len(reports) > 2 * len(group.holders):
            self._groups[group.group_id] = {
                unit: report for unit, report in reports.items() if group.holders.get(unit) == report[:2]
            }

    def forget(self, group_id: str) -> None:
        """Drop the numbers of a group that is deleted."""
        self._groups.pop(group_id, None)
        self._topics.pop(group_id, None)

    def reset_topics(self, group_id: str, connector: str) -> None:
        """Forget the topics that a connector has used (KIP-558), or that is deleted."""
        self._topics.get(group_id, {}).pop(connector, None)

    def _add_topics(self, group: ConnectGroupState, reported: TaskProgress) -> None:
        topics = self._topics.setdefault(group.group_id, {})
        used = topics.setdefault(reported.connector, set())
        used.update(reported.topics[: MAX_TOPICS - len(used)])

    def of(self, group_id: str) -> Reported:
        """What is known of a group, for use before anything else is recorded."""
        return Reported(self._groups.get(group_id, {}), self._topics.get(group_id, {}))

    def snapshot(self, group_id: str) -> Reported:
        """A copy of what is known of a group, for a thread."""
        topics = {connector: tuple(used) for connector, used in self._topics.get(group_id, {}).items()}
        return Reported(self._groups.get(group_id, {}).copy(), topics)


def _with(connector: DescribedConnector, reports: Reports, topics: Collection[str]) -> DescribedConnector:
    units = [_unit_with(connector.connector, unit, reports) for unit in connector.units]
    return replace(connector, units=tuple(units), topics=tuple(sorted(topics)))


def _unit_with(connector: str, unit: DescribedUnit, reports: Reports) -> DescribedUnit:
    report = reports.get(Unit(connector, unit.task))
    if report is None or report[:2] != (unit.member_id, unit.owner_epoch):
        return unit
    return replace(unit, progress=(report[2],))


# --------------------------------------------------------------------------------------------------
# The levels of loggers that operators have set for the workers of a group (KIP-976): in memory only.
#
# As in Kafka Connect they do not outlive the processes: no rule of a group depends on them, so they are no records. A
# worker gets the levels that it does not have yet with each heartbeat response, also a worker that joins later.


Responded = TypeVar("Responded", HeartbeatResponse, GroupHeartbeatResponse)

MAX_LOGGERS: Final = 100
"""Levels of one group. The oldest one is dropped for a new one: most workers have set it long ago."""


class LoggerLevels:
    """The newest level of each logger, by group."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        """``clock_ms``: the wall clock; the stamps of a later coordinator are higher."""
        self._clock_ms = clock_ms
        self._groups: dict[str, dict[str, LoggerLevel]] = {}
        self._stamp = 0

    def set(self, request: SetLoggerLevelRequest) -> None:
        """Keep the level of a logger.

        Raises:
            InvalidRequest: there is no such level, or the name of the logger is empty or cannot be printed.
        """
        if not request.logger or not request.logger.isprintable():
            raise InvalidRequest(f"Logger: got {printable(request.logger)!r}; allowed: the name of a logger, or root")
        if request.level not in LEVELS:
            raise InvalidRequest(f"Level: got {printable(request.level)!r}; allowed: {', '.join(LEVELS)}")
        self._stamp = max(self._stamp + 1, self._clock_ms())
        levels = self._groups.setdefault(request.group_id, {})
        # The order of a dict is that of its insertions: the newest level is last.
        levels.pop(request.logger, None)
        levels[request.logger] = LoggerLevel(logger=request.logger, level=request.level, stamp=self._stamp)
        if len(levels) > MAX_LOGGERS:
            del levels[next(iter(levels))]

    def forget(self, group_id: str) -> None:
        """Drop the levels of a group that is deleted."""
        self._groups.pop(group_id, None)

    def add_to(self, response: Responded, request: HeartbeatRequest | GroupHeartbeatRequest) -> Responded:
        """Add the levels that the sender of an accepted heartbeat, of either protocol, has not set yet."""
        levels = self._groups.get(request.group_id)
        if not levels or response.error_code:
            return response
        newer = tuple([level for level in levels.values() if level.stamp > request.logger_stamp])
        return replace(response, logger_levels=newer) if newer else response
