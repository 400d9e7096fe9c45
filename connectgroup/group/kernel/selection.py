"""Selection of the group's client-side assignor, and of the members that can run it.

Source: "Connect on the new protocol", "Worker Selection"; KIP-848, "Assignor Selection".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Mapping, Sequence

from ...errors import UnsupportedAssignor
from ...protocol.messages.common import AssignorInfo
from ...protocol.records.connect import MemberRecord
from ...protocol.records.consumer import ConsumerMemberRecord
from ...protocol.units import counted, printable

GroupMember = MemberRecord | ConsumerMemberRecord
"""The record of a member of a group that assigns (groups of type ``classic`` have their own rules)."""

Listing = tuple[tuple[str, int, int], ...]
"""The assignors that a member lists, in their order: name, minimum and maximum version. Most members of a group have
the same listing, so a group counts listings: a join in a large group takes no longer than in a small one."""


def listing_of(member: GroupMember) -> Listing:
    return tuple([(info.name, info.minimum_version, info.maximum_version) for info in member.assignors])


def count_listing(listings: Counter[Listing], member: GroupMember, by: int) -> None:
    """Add a member to the counts (1), or remove it (-1)."""
    listing = listing_of(member)
    listings[listing] += by
    if not listings[listing]:
        del listings[listing]


def info_of(member: GroupMember, assignor: str) -> AssignorInfo | None:
    for info in member.assignors:
        if info.name == assignor:
            return info
    return None


def version_violation(member_id: str, member: GroupMember | None, assignor: str, version: int) -> str | None:
    """Why a member of an assignment cannot read its metadata; ``None`` if it can, or is no member."""
    info = info_of(member, assignor) if member else None
    if info is None or info.minimum_version <= version <= info.maximum_version:
        return None
    reads = f"{info.minimum_version} to {info.maximum_version}"
    return f"version {version} for {printable(member_id)}, which reads {reads}"


def select_assignor(listings: Mapping[Listing, int]) -> str | None:
    """The client-side assignor to use: one that all members list with overlapping versions. Among several, the one
    that most members list first, then the first by name.

    Args:
        listings: of the members of the group, each with the number of members that have it.

    Returns:
        ``None`` if a member lists no assignor: the group then uses a server-side assignor.

    Raises:
        UnsupportedAssignor: all members list assignors, but none is common to all ("ClientAssignors' version range must
            overlap with the other members in the group").
    """
    if not listings or () in listings:
        return None
    common = set.intersection(*({name for name, _, _ in listing} for listing in listings))
    # Ranges that overlap pairwise have a common version (Helly's theorem on a line).
    usable = [assignor for assignor in sorted(common) if _range(listings, assignor) is not None]
    if not usable:
        if not common:
            listed: Counter[str] = Counter()
            for listing, count in listings.items():
                listed.update({name: count for name, _, _ in listing})
            whose = ", ".join(f"{name} by {counted(count, 'member')}" for name, count in sorted(listed.items()))
            raise UnsupportedAssignor(
                f"ClientAssignors: no assignor is listed by all members; listed: {printable(whose, limit=300)}"
            )
        counts: Counter[tuple[str, int, int]] = Counter()
        for listing, count in listings.items():
            counts.update({entry: count for entry in listing if entry[0] in common})
        ranges = "; ".join(
            f"{name} {low}-{high} of {counted(count, 'member')}" for (name, low, high), count in sorted(counts.items())
        )
        raise UnsupportedAssignor(f"ClientAssignors: version ranges do not overlap: {printable(ranges, limit=300)}")
    firsts: Counter[str] = Counter()
    for listing, count in listings.items():
        firsts[listing[0][0]] += count
    return min(usable, key=lambda assignor: (-firsts[assignor], assignor))


def _range(listings: Mapping[Listing, int], assignor: str) -> tuple[int, int] | None:
    """The lowest and the highest version that members support; ``None`` if no version is common to all."""
    ranges = [(low, high) for listing in listings for name, low, high in listing if name == assignor]
    if max(low for low, _ in ranges) <= min(high for _, high in ranges):
        return min(low for low, _ in ranges), max(high for _, high in ranges)
    return None


def covers_all(member: GroupMember, assignor: str, listings: Mapping[Listing, int]) -> bool:
    """Whether the version range of a member covers the ranges of all members: it is then able to compute."""
    info, versions = info_of(member, assignor), _range(listings, assignor)
    return info is not None and versions == (info.minimum_version, info.maximum_version)


def members_able_to_compute(members: Sequence[GroupMember], assignor: str, present: Container[str]) -> list[str]:
    """Members whose version range covers the ranges of all members: A [1-5] for A [1-5], B [3-4], C [2-4].

    If no present member's range does, members that can read the current metadata version of every member.
    """
    infos = {member.member_id: info for member in members if (info := info_of(member, assignor))}
    low = min(info.minimum_version for info in infos.values())
    high = max(info.maximum_version for info in infos.values())
    there = [(member_id, infos[member_id]) for member_id in sorted(infos) if member_id in present]
    covering = [m for m, info in there if info.minimum_version <= low and info.maximum_version >= high]
    if covering:
        return covering
    versions = [info.version for info in infos.values()]
    return [m for m, info in there if info.minimum_version <= min(versions) and max(versions) <= info.maximum_version]


def check_assignors(member: GroupMember, others: Mapping[Listing, int], server_assignors: Collection[str]) -> None:
    """Reject a member that would leave the group without an assignor.

    Args:
        others: the listings of the other members.

    Raises:
        UnsupportedAssignor: "ServerAssignor must be supported by the server"; version ranges do not overlap.
    """
    if member.server_assignor is not None and member.server_assignor not in server_assignors:
        allowed = ", ".join(sorted(server_assignors)) or "none on this coordinator"
        raise UnsupportedAssignor(f"ServerAssignor: got {printable(member.server_assignor)!r}; allowed: {allowed}")
    # Members that list no assignor are excluded: once they leave, the other members need a common assignor, and at that
    # point no request could be rejected with UNSUPPORTED_ASSIGNOR.
    listings = Counter(others)
    count_listing(listings, member, 1)
    del listings[()]
    select_assignor(listings)
