"""Static membership (``group.instance.id``): a worker that restarts keeps its tasks.

A member that joins with a group instance id is a static member. A leave with epoch -2 reports that all of its units
have stopped and that it will return. Until its session timeout its units are kept for it, no epoch advances, and no
target assignment is computed. The next member that joins with the same instance id replaces it, whatever its member id.

Source: KIP-345; KIP-848 as Kafka shipped it (``ConsumerGroup.staticMember``, epoch -2); scenarios ST-01..ST-08, CN-12.
"""

from __future__ import annotations

from dataclasses import replace

from ...errors import FencedInstanceId, UnknownMemberId, UnreleasedInstanceId
from ...protocol.messages.heartbeat import HeartbeatRequest
from ...protocol.records.connect import MemberRecord, MemberState
from ...protocol.units import STATIC_LEAVE_EPOCH, printable
from ..kernel.current import Current
from .overlay import Overlay
from .state import NO_TARGET, Group


def check_instance_id(group: Group, request: HeartbeatRequest) -> None:
    """Check that the group instance id in the request belongs to the member.

    Raises:
        UnknownMemberId: no member has this instance id (ST-06).
        FencedInstanceId: another member has this instance id now (ST-05).
    """
    if request.instance_id is None:
        return
    static_member = group.instances.get(request.instance_id)
    if static_member is None:
        raise UnknownMemberId(f"InstanceId: got {printable(request.instance_id)!r}; no member of the group has it")
    if static_member != request.member_id:
        raise FencedInstanceId(
            f"InstanceId: {printable(request.instance_id)!r} is in use by member {printable(static_member)}"
        )


def former_static_member(group: Group, request: HeartbeatRequest) -> MemberRecord | None:
    """The other member with the joining member's instance id that has temporarily left, or ``None``.

    Raises:
        UnreleasedInstanceId: that member has not left (ST-04). If its process is dead, its session expires.
    """
    static_member = group.instances.get(request.instance_id) if request.instance_id is not None else None
    if static_member is None or static_member == request.member_id:
        return None
    if not group.current(static_member).temporarily_left:
        raise UnreleasedInstanceId(
            f"InstanceId: {printable(request.instance_id)!r} is in use: member {printable(static_member)} has not left"
        )
    return group.members[static_member]


def replace_static_member(overlay: Overlay, former: MemberRecord, member_id: str) -> None:
    """Transfer the target assignment of a static member to the member that replaces it; remove the former (ST-02).

    No epoch advances, since the assignment does not change. The units are assigned at the target epoch, so a fencing
    token may be used a second time. That is safe only here: epoch -2 is sent after everything has stopped.
    """
    share = overlay.target(former.member_id)
    overlay.forget_member(former.member_id)
    if share != NO_TARGET:
        overlay.set_share(member_id, share)


def go_away(overlay: Overlay, member_id: str) -> None:
    """Write that the member runs no units, and that the units in its target assignment are kept for it (ST-01)."""
    current, share = overlay.current(member_id), overlay.target(member_id)
    overlay.set_current(
        member_id,
        Current(
            epoch=STATIC_LEAVE_EPOCH,
            previous_epoch=STATIC_LEAVE_EPOCH,
            state=MemberState.STABLE,
            assigned={unit: 0 for unit in current.assigned if unit in share.units},
        ),
    )


def release_for_others(overlay: Overlay, member_id: str) -> None:
    """Release the units that a new target assignment takes from a temporarily left member.

    None of its units runs, so no acknowledgement is needed.
    """
    current, share = overlay.current(member_id), overlay.target(member_id)
    kept = {unit: epoch for unit, epoch in current.assigned.items() if unit in share.units}
    if current.temporarily_left and kept != current.assigned:
        overlay.set_current(member_id, replace(current, assigned=kept))
