"""Who sends as a member, and static membership (``group.instance.id``).

A leave with epoch -2 says that the member returns. Until its session timeout its units are kept for it and no epoch
advances. The next member that joins with the same instance id replaces it, whatever its member id.

Source: KIP-345; KIP-848 as Kafka shipped it (``ConsumerGroup.staticMember``, epoch -2); scenarios ST-01 to ST-08.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...errors import (
    FencedInstanceId,
    GroupIdNotFound,
    GroupMaxSizeReached,
    NonEmptyGroup,
    UnknownMemberId,
    UnreleasedInstanceId,
)
from ...protocol.records.base import MemberState
from ...protocol.units import STATIC_LEAVE_EPOCH, printable
from .reconcile import Current, U
from .state import GroupDraft, GroupState, M

AnyGroup = GroupState[Any, Any]


def no_such_group(group_id: str) -> GroupIdNotFound:
    return GroupIdNotFound(f"GroupId: got {printable(group_id)!r}; there is no such group")


def check_exists(group: AnyGroup) -> None:
    """Raise ``GroupIdNotFound`` if no record created the group."""
    if not group.exists:
        raise no_such_group(group.group_id)


def check_deletable(group: AnyGroup) -> None:
    """Check that a group may be deleted.

    Raises:
        GroupIdNotFound: there is no such group.
        NonEmptyGroup: the group has members; members that temporarily left count.
    """
    check_exists(group)
    if group.members:
        raise NonEmptyGroup(
            f"group {printable(group.group_id)} has {len(group.members)} members; allowed: a group without members"
        )


def check_room(group: AnyGroup, member_id: str, max_members: int) -> None:
    """Raise ``GroupMaxSizeReached`` if no further member can join."""
    if len(group.members) >= max_members:
        raise GroupMaxSizeReached(f"{printable(member_id)} cannot join: the group has all of its {max_members} members")


def check_instance_id(group: AnyGroup, member_id: str, instance_id: str | None) -> None:
    """Check that the group instance id in a request belongs to the member that sends it.

    Raises:
        UnknownMemberId: no member has this instance id (ST-06).
        FencedInstanceId: another member has this instance id now (ST-05).
    """
    if instance_id is None:
        return
    static_member = group.instances.get(instance_id)
    if static_member is None:
        raise UnknownMemberId(f"InstanceId: got {printable(instance_id)!r}; no member of the group has it")
    if static_member != member_id:
        raise FencedInstanceId(f"InstanceId: {printable(instance_id)!r} is in use by member {printable(static_member)}")


def check_sender(group: AnyGroup, member_id: str, instance_id: str | None) -> None:
    """Check that the sender of a request is a member, and that its group instance id, if any, is its own.

    Raises:
        UnknownMemberId, FencedInstanceId: see ``check_instance_id``; or the group has no such member.
    """
    check_instance_id(group, member_id, instance_id)
    if member_id not in group.members:
        raise UnknownMemberId(f"MemberId: got {printable(member_id)!r}; the group has no such member")


def former_static_member(group: GroupState[M, Any], member_id: str, instance_id: str | None) -> M | None:
    """The other member with the joining member's instance id that has temporarily left, or ``None``.

    Raises:
        UnreleasedInstanceId: that member has not left (ST-04). If its process is dead, its session expires.
    """
    static_member = group.instances.get(instance_id) if instance_id is not None else None
    if static_member is None or static_member == member_id:
        return None
    if not group.current(static_member).temporarily_left:
        raise UnreleasedInstanceId(
            f"InstanceId: {printable(instance_id)!r} is in use: member {printable(static_member)} has not left"
        )
    return group.members[static_member]


def leave_temporarily(draft: GroupDraft[M, U], member_id: str) -> None:
    """Write that the member runs nothing, and that the units in its target assignment are kept for it (ST-01)."""
    target = draft.target(member_id).units
    left: Current[U] = Current(
        epoch=STATIC_LEAVE_EPOCH,
        previous_epoch=STATIC_LEAVE_EPOCH,
        state=MemberState.STABLE,
        assigned={unit: 0 for unit in draft.current(member_id).assigned if unit in target},
    )
    draft.set_current(member_id, left)


def release_for_others(draft: GroupDraft[M, U], member_id: str) -> None:
    """Release the units that a new target assignment takes from a temporarily left member.

    None of its units runs, so no acknowledgement is needed.
    """
    current = draft.current(member_id)
    if current.temporarily_left:
        target = draft.target(member_id).units
        kept = {unit: epoch for unit, epoch in current.assigned.items() if unit in target}
        if kept != current.assigned:
            draft.set_current(member_id, replace(current, assigned=kept))
