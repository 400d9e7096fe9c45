"""Conditions that ``Admin`` and embedded groups wait for."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from ..protocol.messages.describe import (
    DescribedGroup,
    DescribedMember,
)
from ..protocol.units import Unit, printable

MAX_NAMES = 20
"""Names in one error message."""


def runs_all(group: DescribedGroup, member_id: str) -> bool:
    """Whether a worker is in the group and runs all units of its latest target assignment.

    Args:
        member_id: its member id, or its group instance id.
    """
    member = find_member(group, member_id)
    if member is None or member.state in ("RESTARTING", "AWAY") or group.state == "Assigning":
        return False
    units = [unit for each in group.connectors for unit in each.units if unit.member_id == member.member_id]
    return member.assigned == member.target and not any(unit.state == "STARTING" for unit in units)


def restart_error(group: DescribedGroup, member_id: str) -> str:
    """Why the last requested restart of a worker has not happened; empty if there is no such error."""
    member = find_member(group, member_id)
    return member.restart_error if member is not None else ""


def find_member(group: DescribedGroup, member_id: str) -> DescribedMember | None:
    """The member with this member id or group instance id."""
    return next((each for each in group.members if member_id in (each.member_id, each.instance_id)), None)


def no_unit_starts(group: DescribedGroup, members: Container[str]) -> bool:
    """Whether no unit of these members is STARTING: each runs, or has failed."""
    units = (unit for each in group.connectors for unit in each.units)
    return not any(unit.state == "STARTING" and unit.member_id in members for unit in units)


def has_started_all(group: DescribedGroup) -> bool:
    """Whether the group has a member, every running connector has tasks, and every unit runs or has failed."""
    has_tasks = all(len(each.units) > 1 for each in group.connectors if each.target_state == "RUNNING")
    states = {unit.state for each in group.connectors for unit in each.units}
    return bool(group.members) and has_tasks and states.isdisjoint(("STARTING", "UNASSIGNED"))


def assignor_says(group: DescribedGroup) -> str:
    """The assignor's error, for the end of a message; empty without one."""
    return f"; the assignor says: {group.assignor_error}" if group.assignor_error else ""


def describe_failures(group: DescribedGroup) -> str:
    """The units with an error, for a message: the first one, and how many there are; then the assignor's error.

    Returns:
        Text that begins with a semicolon; empty if there is no error.
    """
    failed = [(each.connector, unit) for each in group.connectors for unit in each.units if unit.message]
    said = assignor_says(group)
    if not failed:
        return said
    connector, unit = failed[0]
    more = f" ({len(failed)} units have errors)" if len(failed) > 1 else ""
    return f"; {Unit(connector, unit.task)} is {unit.state}: {unit.message}{more}{said}"


def shown(names: list[str]) -> str:
    """Names for a message: sorted, shortened after ``MAX_NAMES``; ``none`` if there are none."""
    text = ", ".join(printable(name) for name in sorted(names)[:MAX_NAMES])
    return f"{text}, ..." if len(names) > MAX_NAMES else text or "none"


# --------------------------------------------------------------------------------------------------
# Results of an operator's requests, and the error in a response.


@dataclass(frozen=True, slots=True, kw_only=True)
class PutResult:
    """The result of ``Admin.put_connector``.

    Attributes:
        version: the connector's version: the group epoch of its last change.
        created: whether the connector did not exist before.
    """

    version: int
    created: bool
