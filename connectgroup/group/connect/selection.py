"""Which assignor a group uses, and which members can run it.

Source: "Connect on the new protocol", "Worker Selection".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence

from ...errors import (
    UnsupportedAssignor,
)
from ...protocol.messages.common import AssignorInfo
from ...protocol.records.connect import MemberRecord
from ...protocol.units import printable
from .overlay import Draft
from .settings import GroupSettings


def info_of(member: MemberRecord, assignor: str) -> AssignorInfo | None:
    for info in member.assignors:
        if info.name == assignor:
            return info
    return None


def select_assignor(members: Sequence[MemberRecord]) -> str | None:
    """The client-side assignor to use: one all members list with overlapping versions; among several the one
    most members put first, then by name.

    Returns:
        ``None`` where some member lists none: then the coordinator's own assignor serves the group.

    Raises:
        UnsupportedAssignor: all list some, but nothing is common to all ("ClientAssignors' version range must
            overlap with the other members in the group").
    """
    if not members or any(not member.assignors for member in members):
        return None
    common = set.intersection(*({info.name for info in member.assignors} for member in members))
    usable = []
    for assignor in sorted(common):
        infos = [info for member in members if (info := info_of(member, assignor))]
        # Ranges that overlap pairwise have a version in common to all (Helly's theorem on a line).
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
        raise UnsupportedAssignor(f"ClientAssignors: version ranges do not overlap: {printable(ranges, most=300)}")
    firsts = Counter(member.assignors[0].name for member in members)
    return min(usable, key=lambda assignor: (-firsts[assignor], assignor))


def taking(draft: Draft) -> list[MemberRecord]:
    """Members that are to be given work: not those that are draining, unless nobody else is there to take theirs."""
    members = list(draft.members())
    others = [member for member in members if not member.draining]
    return others if any(not draft.current(member.member_id).away for member in others) else members


def able_to_compute(members: Sequence[MemberRecord], assignor: str, present: Container[str]) -> list[str]:
    """Members that can run the assignor for all: A [1-5] for A [1-5], B [3-4], C [2-4].

    Where no range of those present covers every other, those that can read every member's current metadata version.
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


def check_assignors(members: Sequence[MemberRecord], settings: GroupSettings) -> None:
    """Refuse what would leave the group without an assignor.

    Raises:
        UnsupportedAssignor: "ServerAssignor must be supported by the server"; version ranges do not overlap.
    """
    for member in members:
        if member.server_assignor is not None and member.server_assignor not in settings.server_assignors:
            allowed = ", ".join(sorted(settings.server_assignors)) or "none on this coordinator"
            raise UnsupportedAssignor(f"ServerAssignor: got {printable(member.server_assignor)!r}; allowed: {allowed}")
    # Those that list none are left out: when they go, the rest must be able to work together, for nobody can be told
    # UNSUPPORTED_ASSIGNOR then.
    select_assignor([member for member in members if member.assignors])


def members_able_to_compute_now(draft: Draft, members: Sequence[MemberRecord], assignor: str) -> list[str]:
    """Those able to compute that are there to do it, and will be for a while."""
    present = {member.member_id for member in taking(draft) if not draft.current(member.member_id).away}
    return able_to_compute(members, assignor, present)
