"""Ownership as reported by the members, and partitions that a result assigns before their owner has revoked them.

``validate_subscription`` is for assignors, including custom ones; it only reports. The leader applies
``assigned_too_early`` to every result before it is sent, whichever assignor computed it.

Both follow the same rule: of several claims to a partition, those of the latest generation count (KIP-792). An
undisputed claim counts in any generation: its member does own the partition, and assigning it to another member at
once would give it two owners.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from ..assign.api import PartitionAssignment
from ..assign.members import PartitionMember
from ..assign.ownership import claimants, validate_subscription
from ..protocol.units import TopicPartition, printable

__all__ = ["EarlyAssignment", "assigned_too_early", "format_overlaps", "require_no_overlap", "validate_subscription"]


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
        return f"{self.partition} is assigned to {printable(self.to)} while owned by {_names(self.owners)}"


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


def require_no_overlap(members: Iterable[PartitionMember]) -> None:
    """For an assignor that does not support overlapping owners.

    Raises:
        ValueError: the overlaps, on one line.
    """
    if overlaps := validate_subscription(members):
        raise ValueError(format_overlaps(overlaps))


def format_overlaps(overlaps: Mapping[TopicPartition, tuple[str, ...]], *, limit: int = 8) -> str:
    """``t-1 is owned by c1 and c2; t-2 is owned by ...``, truncated after ``limit``; empty if nothing overlaps."""
    lines = [f"{partition} is owned by {_names(owners)}" for partition, owners in overlaps.items()]
    more = f"; and {len(lines) - limit} more" if len(lines) > limit else ""
    return "; ".join(lines[:limit]) + more


def _names(members: tuple[str, ...]) -> str:
    names = [printable(member_id) for member_id in members[:3]]
    if len(members) > 3:
        names.append(f"{len(members) - 3} more")
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
