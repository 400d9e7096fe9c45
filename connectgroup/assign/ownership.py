"""Rules about members of a partition group that every partition assignor needs, a customised one included.

Who owns what is what the members say, each with the generation it was given it in (KIP-792). A member that was away
too long says something of the past: where two claim one partition the later generation counts, and the earlier claim
is ignored. Two claims of one generation cannot both be true. ``validate_subscription`` finds those; nobody keeps such
a partition, and who gives it out must wait until both have let go. A claim that nobody disputes counts in
whatever generation it was made, unknown (-1) included: old clients do not say theirs.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..protocol.units import TopicPartition
from .api import PartitionGroup, PartitionMember


def validate_subscription(members: Iterable[PartitionMember]) -> dict[TopicPartition, tuple[str, ...]]:
    """Owned partitions that overlap: which, and who claims them, both sorted; empty if all is well.

    Only claims of the partition's latest generation are looked at. It is a customised assignor's own
    responsibility to call this; the built-in ones need not, their columns follow the same rule.

    Source: KIP-792, "Proposed Changes".
    """
    return {partition: owners for partition, owners in claimants(members).items() if len(owners) > 1}


def claimants(members: Iterable[PartitionMember]) -> dict[TopicPartition, tuple[str, ...]]:
    """For each partition that anybody owns, the member ids that claim it in its latest generation; all sorted."""
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
    """Sort key: static members by their instance id, then the others by member id.

    A process that restarts under its static name has a new member id and must stand where it stood (KIP-345).
    """
    return member.instance_id is None, member.instance_id or "", member.member_id


def require_topics(group: PartitionGroup) -> None:
    """Refuse a subscription to a topic that is not there, as an assignor on the server does.

    There the coordinator has resolved the subscriptions already, so such a name is a mistake; on a client it is only
    a topic that is not there yet.

    Raises:
        ValueError: the first such member and topic, sorted, on one line.
    """
    known = {spec.name for spec in group.topics}
    wanted: set[str] = set().union(*{member.subscribed for member in group.members})
    if wanted <= known:
        return
    for member in sorted(group.members, key=lambda member: member.member_id):
        for topic in sorted(member.subscribed - known):
            raise ValueError(
                f"{member.member_id} is subscribed to {topic!r}; allowed: {', '.join(sorted(known)) or 'no topic'}"
            )
