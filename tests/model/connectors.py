"""The model's connectors: the runnable units, and the result of a change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from connectgroup.errors import (
    ConnectorAlreadyExists,
    ConnectorNotFound,
    StaleMemberEpoch,
    UnknownMemberId,
    VersionConflict,
)
from connectgroup.protocol.messages.common import config_of
from connectgroup.protocol.messages.connectors import ConnectorChange
from connectgroup.protocol.units import Unit

from .words import RUNNING, STOPPED, Connector, Grants


def runnable(connectors: Mapping[str, Connector]) -> Grants:
    """The runnable units, with the epochs of their configurations. Paused: no task. Stopped: no unit."""
    units: Grants = {}
    for name, connector in connectors.items():
        if connector.target_state != STOPPED:
            units[Unit(name)] = connector.since
        if connector.target_state == RUNNING:
            units.update({Unit(name, number): since for number, (_, since) in enumerate(connector.tasks)})
    return units


def change(connectors: dict[str, Connector], requested: ConnectorChange, owner: Grants | None, since: int) -> int:
    """Apply one change, or return the error.

    Args:
        connectors: changed.
        owner: the units of the sending member; ``None`` if it is no member, or none is named.
        since: the group epoch of the change.
    """
    before = connectors.get(requested.connector)
    if before is None:
        if requested.config is None or requested.delete or requested.expected_version > 0:
            return ConnectorNotFound.code
        connectors[requested.connector] = Connector(config=config_of(requested.config), since=since, version=since)
        return 0
    if requested.expected_version == 0:
        return ConnectorAlreadyExists.code
    if requested.expected_version not in (-1, before.version):
        return VersionConflict.code
    if requested.delete:
        del connectors[requested.connector]
        return 0
    after = replace(before)
    if requested.config is not None and config_of(requested.config) != before.config:
        after.config, after.since = config_of(requested.config), since
        if for_tasks(after.config) != for_tasks(before.config):
            # "No task may run half on the old and half on the new": none, until the owner has published new ones.
            after.tasks = []
    if requested.target_state:
        # Resumed units need new grants: an old target may still contain them, and that epoch has been granted.
        after.target_state = requested.target_state
        if before.target_state == STOPPED != after.target_state:
            after.since = since
        if before.target_state != RUNNING == after.target_state:
            after.tasks = [(config, since) for config, _ in after.tasks]
    if requested.task_configs is not None:
        if owner is None:
            return UnknownMemberId.code
        if owner.get(Unit(requested.connector)) != requested.owner_epoch or requested.owner_epoch < before.since:
            return StaleMemberEpoch.code
        old = dict(enumerate(before.tasks))
        after.tasks = [
            old[number] if number in old and old[number][0] == config else (config, since)
            for number, config in enumerate(config_of(task.config) for task in requested.task_configs)
        ]
    if after != before:
        after.version = since
    connectors[requested.connector] = after
    return 0


def placement(config: Mapping[str, str]) -> dict[str, str]:
    """The placement settings of a configuration."""
    return {name: value for name, value in config.items() if name.startswith("assignment.")}


def for_tasks(config: Mapping[str, str]) -> dict[str, str]:
    """The settings that tasks depend on: neither the number of tasks nor the placement."""
    other = {"name", "tasks.max", *placement(config)}
    return {name: value for name, value in config.items() if name not in other}
