"""Third-party assignors for tests."""

from __future__ import annotations

from typing import ClassVar

from connectgroup import withhold
from connectgroup.assign.api import PartitionAssignment, PartitionAssignor, PartitionAssignorInput, RebalanceProtocol
from connectgroup.assign.members import Metadata, PartitionMemberAssignment
from connectgroup.protocol.units import Partitions

EAGER, COOPERATIVE = RebalanceProtocol.EAGER, RebalanceProtocol.COOPERATIVE


class Planned(PartitionAssignor):
    """Returns the assignment given at construction, whatever the members own."""

    name = "planned"

    def __init__(self, **shares: Partitions) -> None:
        self._shares = shares

    def metadata(self, subscribed: frozenset[str]) -> Metadata:
        """Some user data."""
        return Metadata(metadata=b"plan")

    def assign(self, group: PartitionAssignorInput) -> PartitionAssignment:
        """The planned assignment, for the current members."""
        shares = [
            PartitionMemberAssignment(
                member_id=member.member_id,
                version=member.version,
                partitions=self._shares.get(member.member_id, frozenset()),
            )
            for member in group.members
        ]
        return PartitionAssignment(members=shares)


class Hasty(Planned):
    """Lists COOPERATIVE and violates its rule."""

    name = "hasty"
    rebalance_protocols = (COOPERATIVE,)


class Careful(Planned):
    """A plan made cooperative by ``make_cooperative``."""

    name = "careful"
    rebalance_protocols = (COOPERATIVE, EAGER)

    def assign(self, group: PartitionAssignorInput) -> PartitionAssignment:
        """The plan, without partitions that other members own."""
        return withhold(group.members, super().assign(group))


class Odd(Planned):
    """Lists invalid rebalance protocols."""

    name = "odd"
    rebalance_protocols: ClassVar[tuple[RebalanceProtocol, ...]] = (1,)  # type: ignore[assignment]


class Reversed(PartitionAssignor):
    """Assigns partitions in turn, by another rule each time the group's size changes: no partition stays."""

    name = "reversed"
    rebalance_protocols = (COOPERATIVE, EAGER)

    def assign(self, group: PartitionAssignorInput) -> PartitionAssignment:
        """Each partition to one of its subscribers, without those that other members own."""
        shares: dict[str, set[object]] = {member.member_id: set() for member in group.members}
        members = sorted(group.members, key=lambda member: member.member_id)
        for number, partition in enumerate(group.partitions):
            able = [member.member_id for member in members if partition.topic in member.subscribed]
            shares[able[(number + len(members)) % len(able)]].add(partition)
        plan = Planned(**{member_id: frozenset(its) for member_id, its in shares.items()})  # type: ignore[arg-type]
        return withhold(group.members, plan.assign(group))
