"""The rule of the COOPERATIVE protocol: no partition is assigned to a member while another member owns it (KIP-429).

``withhold`` is for authors of assignors. The leader of a classic group applies ``assigned_too_early`` to every result
before it is sent, whichever assignor computed it.

Of several claims to a partition, those of the latest generation count (KIP-792). An undisputed claim counts in any
generation: its member does own the partition, and assigning it to another member at once would give it two owners.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from ..protocol.units import TopicPartition, printable
from .api import PartitionAssignment
from .members import PartitionMember
from .ownership import claimants, names_listed


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyAssignment:
    """A partition that is assigned while other members own it.

    Attributes:
        to: the member it is assigned to.
        owners: the other members, sorted.
    """

    partition: TopicPartition
    to: str
    owners: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.partition} is assigned to {printable(self.to)} while owned by {names_listed(self.owners)}"


def assigned_too_early(
    members: Collection[PartitionMember], result: PartitionAssignment
) -> tuple[EarlyAssignment, ...]:
    """Return partitions that ``result`` assigns to one member while another still owns them, sorted; empty if none.

    A partition that two members claim in the same generation is free only after both have revoked it, so it is too
    early for either of them as well.

    Source: KIP-429, "the assignor must make sure a partition is revoked by its previous owner before it can be assigned
    to a new one"; Kafka's ``ConsumerCoordinator.validateCooperativeAssignment``, which does not know generations.
    """
    owned = {member.member_id: member.owned for member in members}
    claimed: set[TopicPartition] = set()
    doubtful: set[TopicPartition] = set()  # claimed twice, or new to one and claimed by another: usually empty
    for its in owned.values():
        doubtful |= claimed & its
        claimed |= its
    for share in result.members:
        doubtful |= claimed & (share.partitions - owned.get(share.member_id, frozenset()))

    owners = claimants(replace(member, owned=member.owned & doubtful) for member in members if doubtful)
    early = [
        EarlyAssignment(partition=partition, to=share.member_id, owners=others)
        for share in result.members
        for partition in share.partitions & doubtful
        if (others := tuple(owner for owner in owners.get(partition, ()) if owner != share.member_id))
    ]
    return tuple(sorted(early, key=lambda each: (each.partition, each.to)))


def withhold(members: Sequence[PartitionMember], result: PartitionAssignment) -> PartitionAssignment:
    """``result`` without the partitions that other members still own; these are added to ``withheld``.

    An assignor that computes a complete final assignment becomes cooperative by returning
    ``withhold(group.members, result)``.
    """
    early = frozenset(each.partition for each in assigned_too_early(members, result))
    if not early:
        return result
    shares = [replace(share, partitions=share.partitions - early) for share in result.members]
    return replace(result, members=shares, withheld=result.withheld | early)
