"""Structures that several messages share: units grouped by connector, configuration entries, assignors."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ...masking import masked_value
from ..units import CONNECTOR, NO_UNITS, Unit, Units

_unit = tuple.__new__
"""Creates a ``Unit`` from its fields without the Python-level constructor of a named tuple; for long loops."""


MAX_METADATA: Final = 65_536
"""Limit in bytes on one member's metadata for one assignor: it is sent in every Prepare and is a record of the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorTasks:
    """Some of one connector's units.

    Attributes:
        connector: the connector's name.
        owns_connector: whether the connector itself is included.
        tasks: task numbers, ascending.
    """

    connector: str
    owns_connector: bool = False
    tasks: tuple[int, ...] = ()


def grouped(units: Iterable[Unit]) -> tuple[ConnectorTasks, ...]:
    """Units in their wire form: connectors ascending, tasks ascending, so that equal sets have equal bytes."""
    by_connector: dict[str, list[int]] = {}
    for connector, task in units:
        by_connector.setdefault(connector, []).append(task)
    # Sort the numbers per connector: eight times as fast as one sort of all units.
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
    """Every unit listed, in the order of the message, duplicates included (validation looks for them)."""
    for group in groups:
        if group.owns_connector:
            yield Unit(group.connector)
        for task in group.tasks:
            yield Unit(group.connector, task)


def units_of(groups: Iterable[ConnectorTasks] | None) -> Units:
    """The set for a wire form; ``None`` is read as no units, so check for ``None`` first where it matters."""
    return frozenset(unit_list(groups)) if groups else NO_UNITS


def unit_list(groups: Iterable[ConnectorTasks]) -> list[Unit]:
    """As ``each_unit``, and three times as fast: a full heartbeat lists all units that the member owns."""
    units: list[Unit] = []
    for group in groups:
        connector = group.connector
        if group.owns_connector:
            units.append(Unit(connector))
        units += [_unit(Unit, (connector, task)) for task in group.tasks]
    return units


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """One entry of a connector's or a task's configuration. Its ``repr`` shows no credential."""

    name: str
    value: str

    def __repr__(self) -> str:
        return f"ConfigEntry(name={self.name!r}, value={masked_value(self.name, self.value)!r})"


def entries(config: Mapping[str, str]) -> tuple[ConfigEntry, ...]:
    """A configuration in its wire form, sorted by name."""
    return tuple(ConfigEntry(name=name, value=config[name]) for name in sorted(config))


def masked(lines: Iterable[ConfigEntry], credential_names: Container[str] = ()) -> tuple[ConfigEntry, ...]:
    """A configuration for display: without the values of credentials, also of those that only their class knows."""
    return tuple(
        [ConfigEntry(name=line.name, value=masked_value(line.name, line.value, credential_names)) for line in lines]
    )


def config_of(lines: Iterable[ConfigEntry]) -> dict[str, str]:
    """The configuration for a wire form."""
    return {line.name: line.value for line in lines}


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignorInfo:
    """One client-side assignor that a member can run.

    Attributes:
        name: the assignor's name, the same on every member.
        minimum_version: lowest version of its metadata that it can read, >= -1.
        maximum_version: highest version that it can read, >= 0.
        reason: why the metadata changed; 0 is none. A new reason requests a rebalance.
        version: version of ``metadata``, within the two above.
        metadata: opaque to everything but the assignor.
    """

    name: str
    minimum_version: int = 0
    maximum_version: int = 0
    reason: int = 0
    version: int = 0
    metadata: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartRequest:
    """Restart or drain one worker (ConnectGroupRestartMember).

    A worker that restarts stops its units and joins again; they are delayed for it meanwhile. A worker that drains runs
    its units until other members take them, then leaves for good.

    Attributes:
        drain: *(tagged)* drain instead of restarting.
    """

    group_id: str
    member_id: str
    drain: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartResponse:
    """Whether a restart or drain was requested; the member is notified in its next heartbeat response.

    Attributes:
        already_requested: an earlier request is still pending; this one changed nothing.
    """

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    already_requested: bool = False
    coordinator_epoch: int = -1


# --------------------------------------------------------------------------------------------------
# ConnectGroupSetLoggerLevel: the level of a logger on every worker of a group (KIP-976, scope ``cluster``).


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggerLevel:
    """The level of a logger and of all loggers below it.

    Attributes:
        logger: the name of the logger; ``root`` for all.
        level: the name of the level, as in ``loggers.LEVELS``.
        stamp: grows with each change of a level in the group, also across coordinators.
    """

    logger: str
    level: str
    stamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetLoggerLevelRequest:
    """Set the level of a logger on every worker of a group; each gets it with its next heartbeat response."""

    group_id: str
    logger: str
    level: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetLoggerLevelResponse:
    """Whether the coordinator has taken the level."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    coordinator_epoch: int = -1
