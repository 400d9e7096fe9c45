"""A custom assignor and its contract test, in one file: ``python examples/custom_assignor.py`` runs the test.

It keeps together what belongs together: a connector and all of its tasks run on one worker, so that they can
share a cache there. Connectors stay where they are; homeless ones go to the worker with the fewest tasks.

To use it, name it in the ``pyproject.toml`` of your own distribution and install that beside connectgroup:

    [project.entry-points."connectgroup.assignors"]
    together = "your_module:TogetherAssignor"
"""

from __future__ import annotations

import sys

import pytest

from connectgroup.assignor import ConnectAssignment, ConnectAssignor, ConnectGroup, ConnectMemberAssignment
from connectgroup.names import Unit
from connectgroup.testing.assignor_contract import ConnectAssignorContract


class TogetherAssignor(ConnectAssignor):
    """One worker for a connector and all of its tasks."""

    name = "together"

    def assign(self, group: ConnectGroup) -> ConnectAssignment:
        """The home of a connector is whoever holds it now; members and connectors are walked in sorted order."""
        members = sorted(group.members, key=lambda member: member.member_id)
        shares: dict[str, set[Unit]] = {member.member_id: set() for member in members}
        home = {unit.connector: member.member_id for member in reversed(members) for unit in sorted(member.owned)}
        # Connectors that have a home go first, so that the homeless ones see how full everybody is.
        for spec in sorted(group.connectors, key=lambda spec: (spec.name not in home, spec.name)):
            if shares:
                member_id = home.get(spec.name) or min(shares, key=lambda each: (len(shares[each]), each))
                shares[member_id] |= {Unit(spec.name, task) for task in range(-1, spec.num_tasks)}
        return ConnectAssignment(
            members=[
                ConnectMemberAssignment(member_id=member_id, units=frozenset(units))
                for member_id, units in shares.items()
            ]
        )


class TestTogetherAssignor(ConnectAssignorContract):
    """Complete, legal, deterministic, order-independent, sticky; even it is not, and does not want to be."""

    even = False

    def assignor(self) -> ConnectAssignor:
        return TogetherAssignor()


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-v", "-p", "no:cacheprovider"]))
