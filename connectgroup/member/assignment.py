"""Converts the assignment in a heartbeat response to the form that ``Member.on_response`` needs.

An assignment may contain 100,000 grants. The conversion depends on the response alone, so a worker may run it in a
thread and keep its event loop free.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..protocol.messages.common import config_of, unit_list
from ..protocol.messages.heartbeat import HeartbeatAssignment
from ..protocol.units import Unit, Units
from .actions import Grant


@dataclass(frozen=True, slots=True)
class ConvertedAssignment:
    """One member's complete assignment.

    Attributes:
        units: all units that the member is to run.
        ordered: the same in the order of the response: connectors ascending, tasks ascending.
        grants: the grants in the response, in the same order. Units that the member runs already have none.
        owner_epochs: the owner epoch of each grant.
    """

    units: Units
    ordered: list[Unit]
    grants: dict[Unit, Grant]
    owner_epochs: dict[Unit, int]


def convert(assignment: HeartbeatAssignment) -> ConvertedAssignment:
    """Convert the assignment of a response. May be called in any thread."""
    ordered = unit_list(assignment.units)
    configs = {config.connector: config_of(config.config) for config in assignment.configs}
    # Plain tuples, which compare equal to units.
    granted = {(grant.connector, grant.task): grant for grant in assignment.grants}
    grants = {
        unit: Grant(
            unit=unit,
            owner_epoch=grant.owner_epoch,
            incarnation=assignment.incarnation,
            config=config_of(grant.config),
            connector_config=configs.get(unit.connector, {}),
        )
        for unit in ordered
        if (grant := granted.get(unit)) is not None
    }
    owner_epochs = {unit: grant.owner_epoch for unit, grant in grants.items()}
    return ConvertedAssignment(frozenset(ordered), ordered, grants, owner_epochs)
