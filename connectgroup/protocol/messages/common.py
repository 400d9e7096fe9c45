"""Parts that several messages share: units grouped by connector, configuration entries, assignors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ...masking import masked_value
from ..units import CONNECTOR, NO_UNITS, Unit, Units

_unit = tuple.__new__
"""A ``Unit`` of its fields without the detour through Python that a named tuple takes, for long loops."""


LARGEST_METADATA: Final = 65_536
"""Bytes of one member's metadata for one assignor: it travels in every Prepare and is a record of the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorTasks:
    """Some of one connector's units.

    Attributes:
        connector: the connector's name.
        owns_connector: whether the connector itself is among them.
        tasks: task numbers, ascending.
    """

    connector: str
    owns_connector: bool = False
    tasks: tuple[int, ...] = ()


def grouped(units: Iterable[Unit]) -> tuple[ConnectorTasks, ...]:
    """Units in their wire shape: connectors ascending, tasks ascending, so that equal sets are equal bytes."""
    by_connector: dict[str, list[int]] = {}
    for connector, task in units:
        by_connector.setdefault(connector, []).append(task)
    # Numbers are sorted a connector at a time: eight times as fast as all units in one sort.
    grouped_tasks = [(connector, sorted(by_connector[connector])) for connector in sorted(by_connector)]
    return tuple(
        [
            ConnectorTasks(
                connector=connector,
                owns_connector=tasks[0] == CONNECTOR,
                tasks=tuple(tasks[1:] if tasks[0] == CONNECTOR else tasks),
            )
            for connector, tasks in grouped_tasks
        ]
    )


def each_unit(groups: Iterable[ConnectorTasks]) -> Iterable[Unit]:
    """Every unit named, in the order written, repeats included (the validators look for those)."""
    for group in groups:
        if group.owns_connector:
            yield Unit(group.connector)
        for task in group.tasks:
            yield Unit(group.connector, task)


def units_of(groups: Iterable[ConnectorTasks] | None) -> Units:
    """The set a wire shape stands for; ``None`` is read as nothing, so ask for ``None`` first where it matters."""
    return frozenset(unit_list(groups)) if groups else NO_UNITS


def unit_list(groups: Iterable[ConnectorTasks]) -> list[Unit]:
    """As ``each_unit``, and three times as fast: a full heartbeat names all that its sender has."""
    units: list[Unit] = []
    for group in groups:
        connector = group.connector
        if group.owns_connector:
            units.append(Unit(connector))
        units += [_unit(Unit, (connector, task)) for task in group.tasks]
    return units


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """One line of a connector's or a task's configuration. Its ``repr`` shows no credential."""

    name: str
    value: str

    def __repr__(self) -> str:
        return f"ConfigEntry(name={self.name!r}, value={masked_value(self.name, self.value)!r})"


def entries(config: Mapping[str, str]) -> tuple[ConfigEntry, ...]:
    """A configuration in its wire shape, sorted by name."""
    return tuple(ConfigEntry(name=name, value=config[name]) for name in sorted(config))


def masked(lines: Iterable[ConfigEntry]) -> tuple[ConfigEntry, ...]:
    """A configuration as it may be shown: without the values of credentials."""
    return tuple([ConfigEntry(name=line.name, value=masked_value(line.name, line.value)) for line in lines])


def config_of(lines: Iterable[ConfigEntry]) -> dict[str, str]:
    """The configuration a wire shape stands for."""
    return {line.name: line.value for line in lines}


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignorInfo:
    """One client-side assignor that a member can run.

    Attributes:
        name: the assignor's name, the same on every member.
        minimum_version: lowest version of its metadata it can read, >= -1.
        maximum_version: highest version it can read, >= 0.
        reason: why the metadata changed; 0 is none. A change of it asks for a rebalance.
        version: version of ``metadata``, within the two above.
        metadata: opaque to all but the assignor.
    """

    name: str
    minimum_version: int = 0
    maximum_version: int = 0
    reason: int = 0
    version: int = 0
    metadata: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartRequest:
    """Restart one worker; its units are delayed for it meanwhile (ConnectGroupRestartMember)."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartResponse:
    """Whether the restart is requested; the member is notified with its next heartbeat response.

    Attributes:
        already_requested: an earlier request had not been carried out yet; this one changed nothing.
    """

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    already_requested: bool = False
    coordinator_epoch: int = -1
