"""Assignors that somebody else could have written."""

from __future__ import annotations

from typing import ClassVar

from connectgroup.assign.api import PartitionAssignment, PartitionAssignor, PartitionGroup, RebalanceProtocol
from connectgroup.assign.members import Metadata, PartitionMemberAssignment
from connectgroup.consumer.rounds import withhold
from connectgroup.protocol.units import Partitions

EAGER, COOPERATIVE = RebalanceProtocol.EAGER, RebalanceProtocol.COOPERATIVE


class Planned(PartitionAssignor):
    """Answers as it was told to when it was made, whatever anybody owns."""

    name = "planned"

    def __init__(self, **shares: Partitions) -> None:
        self._shares = shares

    def metadata(self, subscribed: frozenset[str]) -> Metadata:
        """Says something, for once."""
        return Metadata(metadata=b"plan")

    def assign(self, group: PartitionGroup) -> PartitionAssignment:
        """The plan, for those who are in the group."""
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
    """Says that it keeps the rules of COOPERATIVE, and does not."""

    name = "hasty"
    rebalance_protocols = (COOPERATIVE,)


class Careful(Planned):
    """A plan made cooperative with the one call there is for that."""

    name = "careful"
    rebalance_protocols = (COOPERATIVE, EAGER)

    def assign(self, group: PartitionGroup) -> PartitionAssignment:
        """The plan, as far as it may be carried out."""
        return withhold(group.members, super().assign(group))


class Odd(Planned):
    """Lists protocols that are none."""

    name = "odd"
    rebalance_protocols: ClassVar[tuple[RebalanceProtocol, ...]] = (1,)  # type: ignore[assignment]


class Reversed(PartitionAssignor):
    """Deals partitions out in turn, by a different rule each time the group's size changes: nothing stays."""

    name = "reversed"
    rebalance_protocols = (COOPERATIVE, EAGER)

    def assign(self, group: PartitionGroup) -> PartitionAssignment:
        """Each partition to one of its subscribers, as far as it may be given already."""
        shares: dict[str, set[object]] = {member.member_id: set() for member in group.members}
        members = sorted(group.members, key=lambda member: member.member_id)
        for number, partition in enumerate(group.partitions):
            able = [member.member_id for member in members if partition.topic in member.subscribed]
            shares[able[(number + len(members)) % len(able)]].add(partition)
        plan = Planned(**{member_id: frozenset(its) for member_id, its in shares.items()})  # type: ignore[arg-type]
        return withhold(group.members, plan.assign(group))
