"""Groups and assignments as short text, so that a test reads like the table it comes from."""

from __future__ import annotations

from collections.abc import Mapping

from connectgroup.assign.api import Assignor, ConnectAssignorInput
from connectgroup.assign.members import ConnectMember, ConnectorSpec
from connectgroup.assign.sandbox import run_assignor
from connectgroup.protocol.units import CONNECTOR, Unit, Units


def units(text: str) -> Units:
    """``"a a-0 b-12"`` as units."""
    found = set()
    for word in text.split():
        connector, dash, task = word.partition("-")
        found.add(Unit(connector, int(task) if dash else CONNECTOR))
    return frozenset(found)


def group(connectors: Mapping[str, int], held: Mapping[str, str | Units]) -> ConnectAssignorInput:
    """A group from ``{connector: number of tasks}`` and ``{member: its units}``."""
    return ConnectAssignorInput(
        members=[
            ConnectMember(member_id=member_id, owned=units(text) if isinstance(text, str) else text)
            for member_id, text in held.items()
        ],
        connectors=[ConnectorSpec(name=name, num_tasks=count) for name, count in connectors.items()],
    )


def result(assignor: object, input_group: ConnectAssignorInput) -> dict[str, Units]:
    """The assignor's validated result, one entry per member."""
    assert isinstance(assignor, Assignor)
    return {member.member_id: member.units for member in run_assignor(assignor, input_group).members}


def counts(holdings: Mapping[str, Units]) -> tuple[list[int], list[int]]:
    """The members' numbers of connectors and of tasks, each list sorted: Kafka's ``[0,1,1|2,3,3]``."""
    return (
        sorted(sum(unit.is_connector for unit in held) for held in holdings.values()),
        sorted(sum(not unit.is_connector for unit in held) for held in holdings.values()),
    )
