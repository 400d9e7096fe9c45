"""The model's connectors: what is to run, and what a change makes of it."""

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


def to_run(connectors: Mapping[str, Connector]) -> Grants:
    """What somebody shall run, with the epoch its configuration is of. Paused: no task runs. Stopped: nothing."""
    units: Grants = {}
    for name, connector in connectors.items():
        if connector.wanted != STOPPED:
            units[Unit(name)] = connector.since
        if connector.wanted == RUNNING:
            units.update({Unit(name, number): since for number, (_, since) in enumerate(connector.tasks)})
    return units


def change(connectors: dict[str, Connector], said: ConnectorChange, owner: Grants | None, since: int) -> int:
    """Make one change, or return the error if it may not be made.

    Args:
        connectors: changed.
        owner: what the member holds that speaks; ``None`` if it is no member, or nobody is named.
        since: the group epoch that the change will bring.
    """
    before = connectors.get(said.connector)
    if before is None:
        if said.config is None or said.delete or said.expected_version > 0:
            return ConnectorNotFound.code
        connectors[said.connector] = Connector(config=config_of(said.config), since=since, version=since)
        return 0
    if said.expected_version == 0:
        return ConnectorAlreadyExists.code
    if said.expected_version not in (-1, before.version):
        return VersionConflict.code
    if said.delete:
        del connectors[said.connector]
        return 0
    after = replace(before)
    if said.config is not None and config_of(said.config) != before.config:
        after.config, after.since = config_of(said.config), since
        if for_tasks(after.config) != for_tasks(before.config):
            # "No task may run half on the old and half on the new": none, until the owner has made them anew.
            after.tasks = []
    if said.target_state:
        # What runs again begins anew: an old target may still name it, and that epoch's token has been given.
        after.wanted = said.target_state
        if before.wanted == STOPPED != after.wanted:
            after.since = since
        if before.wanted != RUNNING == after.wanted:
            after.tasks = [(config, since) for config, _ in after.tasks]
    if said.task_configs is not None:
        if owner is None:
            return UnknownMemberId.code
        if owner.get(Unit(said.connector)) != said.owner_epoch or said.owner_epoch < before.since:
            return StaleMemberEpoch.code
        old = dict(enumerate(before.tasks))
        after.tasks = [
            old[number] if number in old and old[number][0] == config else (config, since)
            for number, config in enumerate(config_of(task.config) for task in said.task_configs)
        ]
    if after != before:
        after.version = since
    connectors[said.connector] = after
    return 0


def places(config: Mapping[str, str]) -> dict[str, str]:
    """What a configuration says of where its units shall run."""
    return {name: value for name, value in config.items() if name.startswith("assignment.")}


def for_tasks(config: Mapping[str, str]) -> dict[str, str]:
    """All that a task can be made from: not how many there are, nor where."""
    other = {"name", "tasks.max", *places(config)}
    return {name: value for name, value in config.items() if name not in other}
