"""Selection of the group's client-side assignor, and of the members that can run it.

Source: "Connect on the new protocol", "Worker Selection"; KIP-848, "Assignor Selection".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Sequence
from typing import Protocol

from ...errors import (
    UnsupportedAssignor,
)
from ...protocol.messages.common import AssignorInfo
from ...protocol.units import printable


class AssigningMember(Protocol):
    """What selection reads of a member's record."""

    @property
    def member_id(self) -> str: ...
    @property
    def rebalance_timeout_ms(self) -> int: ...
    @property
    def server_assignor(self) -> str | None: ...
    @property
    def assignors(self) -> tuple[AssignorInfo, ...]: ...


def info_of(member: AssigningMember, assignor: str) -> AssignorInfo | None:
    for info in member.assignors:
        if info.name == assignor:
            return info
    return None


def select_assignor(members: Sequence[AssigningMember]) -> str | None:
    """The client-side assignor to use: one that all members list with overlapping versions. Among several, the one
    that most members list first, then the first by name.

    Returns:
        ``None`` if a member lists no assignor: the group then uses a server-side assignor.

    Raises:
        UnsupportedAssignor: all members list assignors, but none is common to all ("ClientAssignors' version range must
            overlap with the other members in the group").
    """
    if not members or any(not member.assignors for member in members):
        return None
    common = set.intersection(*({info.name for info in member.assignors} for member in members))
    usable = []
    for assignor in sorted(common):
        infos = [info for member in members if (info := info_of(member, assignor))]
        # Ranges that overlap pairwise have a common version (Helly's theorem on a line).
        if max(info.minimum_version for info in infos) <= min(info.maximum_version for info in infos):
            usable.append(assignor)
    if not usable:
        listed = sorted({info.name for member in members for info in member.assignors})
        if not common:
            raise UnsupportedAssignor(
                f"ClientAssignors: no assignor is listed by all members; listed: {', '.join(listed)}"
            )
        ranges = "; ".join(
            f"{name} {info.minimum_version}-{info.maximum_version} at {member.member_id}"
            for name in sorted(common)
            for member in members
            if (info := info_of(member, name))
        )
        raise UnsupportedAssignor(f"ClientAssignors: version ranges do not overlap: {printable(ranges, limit=300)}")
    firsts = Counter(member.assignors[0].name for member in members)
    return min(usable, key=lambda assignor: (-firsts[assignor], assignor))


def members_able_to_compute(members: Sequence[AssigningMember], assignor: str, present: Container[str]) -> list[str]:
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


def check_assignors(members: Sequence[AssigningMember], server_assignors: Collection[str]) -> None:
    """Reject members that would leave the group without an assignor.

    Raises:
        UnsupportedAssignor: "ServerAssignor must be supported by the server"; version ranges do not overlap.
    """
    for member in members:
        if member.server_assignor is not None and member.server_assignor not in server_assignors:
            allowed = ", ".join(sorted(server_assignors)) or "none on this coordinator"
            raise UnsupportedAssignor(f"ServerAssignor: got {printable(member.server_assignor)!r}; allowed: {allowed}")
    # Members that list no assignor are excluded: once they leave, the other members need a common assignor, and at that
    # point no request could be rejected with UNSUPPORTED_ASSIGNOR.
    select_assignor([member for member in members if member.assignors])
