"""Ownership rules of a partition group that every partition assignor needs, including custom ones.

Members report the partitions they own, each member with the generation in which they were assigned (KIP-792). A member
that was away too long sends stale data: if two members claim one partition, the later generation counts and the earlier
claim is ignored. Two claims in one generation cannot both be true. ``validate_subscription`` finds them; no member
keeps such a partition, and an assignor must not assign it before both members have revoked it. An undisputed claim
counts in any generation, including unknown (-1): old clients do not send theirs.

"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..protocol.units import TopicPartition, printable
from .members import PartitionMember, TopicSpec


def validate_subscription(members: Iterable[PartitionMember]) -> dict[TopicPartition, tuple[str, ...]]:
    """Return owned partitions that overlap, with the members that claim them, both sorted; empty if there are none.

    Only claims in the partition's latest generation are considered. A custom assignor must call this itself; the
    built-in ones need not, because their columns follow the same rule.

    Source: KIP-792, "Proposed Changes".
    """
    return {partition: owners for partition, owners in claimants(members).items() if len(owners) > 1}


def claimants(members: Iterable[PartitionMember]) -> dict[TopicPartition, tuple[str, ...]]:
    """For each owned partition, the member ids that claim it in its latest generation; all sorted."""
    found: dict[TopicPartition, tuple[int, list[str]]] = {}
    for member in sorted(members, key=lambda member: member.member_id):
        for partition in member.owned:
            latest, owners = found.get(partition, (member.generation, []))
            if member.generation > latest:
                latest, owners = member.generation, []
            if member.generation == latest:
                found[partition] = (latest, [*owners, member.member_id])
    return {partition: tuple(owners) for partition, (_, owners) in sorted(found.items())}


def by_name(member: PartitionMember) -> tuple[bool, str, str]:
    """Sort key: static members by group instance id, then dynamic members by member id.

    A process that restarts with its group instance id has a new member id and must keep its position (KIP-345).
    """
    return member.instance_id is None, member.instance_id or "", member.member_id


def require_topics(members: Iterable[PartitionMember], topics: Iterable[TopicSpec]) -> None:
    """Reject a subscription to a topic that does not exist, as a server-side assignor does.

    On the server, the coordinator has already resolved the subscriptions, so an unknown name is an error. On a client,
    the topic may simply not exist yet.

    Raises:
        ValueError: the first such member and topic, sorted, on one line.
    """
    members = sorted(members, key=lambda member: member.member_id)
    known = {spec.name for spec in topics}
    wanted: set[str] = set().union(*{member.subscribed for member in members})
    if wanted <= known:
        return
    for member in members:
        for topic in sorted(member.subscribed - known):
            raise ValueError(
                f"{member.member_id} is subscribed to {topic!r}; allowed: {', '.join(sorted(known)) or 'no topic'}"
            )


def require_no_overlap(members: Iterable[PartitionMember]) -> None:
    """For an assignor that does not support overlapping owners.

    Raises:
        ValueError: the overlaps, on one line.
    """
    if overlaps := validate_subscription(members):
        raise ValueError(format_overlaps(overlaps))


def format_overlaps(overlaps: Mapping[TopicPartition, tuple[str, ...]], *, limit: int = 8) -> str:
    """``t-1 is owned by c1 and c2; t-2 is owned by ...``, truncated after ``limit``; empty if nothing overlaps."""
    lines = [f"{partition} is owned by {names_listed(owners)}" for partition, owners in overlaps.items()]
    more = f"; and {len(lines) - limit} more" if len(lines) > limit else ""
    return "; ".join(lines[:limit]) + more


def names_listed(members: tuple[str, ...]) -> str:
    """``c1, c2 and 3 more``, escaped for output."""
    names = [printable(member_id) for member_id in members[:3]]
    if len(members) > 3:
        names.append(f"{len(members) - 3} more")
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
