"""A custom assignor and its contract test in one file: ``python examples/custom_assignor.py`` shows and tests it.

A connector and all of its tasks run on one worker, so that they can share a cache there. Connectors stay where they
are; unassigned connectors go to the worker with the fewest units.

To use the assignor, declare it in the ``pyproject.toml`` of your own distribution and install that together with
connectgroup:

    [project.entry-points."connectgroup.assignors"]
    together = "your_module:TogetherAssignor"

An assignor of topic partitions is written in the same way, from ``PartitionAssignor`` and its
``PartitionAssignorInput``, under the entry point ``connectgroup.partition_assignors``; its test is the same three
lines.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest

from connectgroup import (
    ConnectAssignment,
    ConnectAssignor,
    ConnectAssignorInput,
    ConnectMember,
    ConnectMemberAssignment,
    ConnectorSpec,
    Unit,
)
from connectgroup.assign.sandbox import run_assignor
from connectgroup.testing import AssignorContract


class TogetherAssignor(ConnectAssignor):
    """One worker for a connector and all of its tasks."""

    name = "together"

    def assign(self, group: ConnectAssignorInput) -> ConnectAssignment:
        """A connector stays on the worker that owns it now; members and connectors are processed in sorted order."""
        members = sorted(group.members, key=lambda member: member.member_id)
        shares: dict[str, set[Unit]] = {member.member_id: set() for member in members}
        home = {unit.connector: member.member_id for member in reversed(members) for unit in sorted(member.owned)}
        # Connectors that have an owner go first, so that the others see the load of every worker.
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


class TestTogetherAssignor(AssignorContract):
    """Complete, valid, deterministic, order-independent, sticky; by design not balanced."""

    assignor = TogetherAssignor
    even = False


CONNECTORS = [ConnectorSpec(name=name, num_tasks=tasks) for name, tasks in (("a", 3), ("b", 1), ("c", 2))]


def show(event: str, members: Sequence[ConnectMember]) -> list[ConnectMember]:
    """Run the assignor as a group does, print every assignment, and return the members that own it."""
    # run_assignor validates the result before it is used.
    result = run_assignor(TogetherAssignor(), ConnectAssignorInput(members=members, connectors=CONNECTORS))
    print(event)
    for share in result.members:
        print(f"  {share.member_id}: {', '.join(map(str, sorted(share.units))) or 'nothing'}")
    return [ConnectMember(member_id=share.member_id, owned=share.units) for share in result.members]


def main() -> int:
    """Show the assignments as workers join and leave, then run the contract. Returns 0 if it passes."""
    workers = show("ann and bob begin", [ConnectMember(member_id="ann"), ConnectMember(member_id="bob")])
    workers = show("cat joins: nothing moves", [*workers, ConnectMember(member_id="cat")])
    show("ann leaves: its units move to cat", workers[1:])
    print("\nIts contract:", flush=True)
    return int(pytest.main([__file__, "-q", "-p", "no:cacheprovider"]))


if __name__ == "__main__":
    sys.exit(main())
