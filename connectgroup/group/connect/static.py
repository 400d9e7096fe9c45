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
from .overlay import Draft
from .state import NO_TARGET, Group


def check_bearer(group: Group, request: HeartbeatRequest) -> None:
    """Check that the group instance id in the request belongs to the member.

    Raises:
        UnknownMemberId: no member has this instance id (ST-06).
        FencedInstanceId: another member has this instance id now (ST-05).
    """
    if request.instance_id is None:
        return
    bearer = group.instances.get(request.instance_id)
    if bearer is None:
        raise UnknownMemberId(f"InstanceId: got {printable(request.instance_id)!r}; no member of the group bears it")
    if bearer != request.member_id:
        raise FencedInstanceId(
            f"InstanceId: {printable(request.instance_id)!r} has been taken over by member {printable(bearer)}"
        )


def away_bearer(group: Group, request: HeartbeatRequest) -> MemberRecord | None:
    """The other member with the joining member's instance id that has temporarily left, or ``None``.

    Raises:
        UnreleasedInstanceId: that member has not left (ST-04). If its process is dead, its session expires.
    """
    bearer = group.instances.get(request.instance_id) if request.instance_id is not None else None
    if bearer is None or bearer == request.member_id:
        return None
    if not group.current(bearer).away:
        raise UnreleasedInstanceId(
            f"InstanceId: {printable(request.instance_id)!r} is in use: member {printable(bearer)} has not left"
        )
    return group.members[bearer]


def take_place(draft: Draft, former: MemberRecord, member_id: str) -> None:
    """Transfer the target assignment of a static member to the member that replaces it; remove the former (ST-02).

    No epoch advances, since the assignment does not change. The units are assigned at the target epoch, so a fencing
    token may be used a second time. That is safe only here: epoch -2 is sent after everything has stopped.
    """
    share = draft.target(former.member_id)
    draft.forget_member(former.member_id)
    if share != NO_TARGET:
        draft.set_share(member_id, share)


def go_away(draft: Draft, member_id: str) -> None:
    """Write that the member runs no units, and that the units in its target assignment are kept for it (ST-01)."""
    current, share = draft.current(member_id), draft.target(member_id)
    draft.set_current(
        member_id,
        Current(
            epoch=STATIC_LEAVE_EPOCH,
            previous_epoch=STATIC_LEAVE_EPOCH,
            state=MemberState.STABLE,
            assigned={unit: 0 for unit in current.assigned if unit in share.units},
        ),
    )


def release_for_others(draft: Draft, member_id: str) -> None:
    """Release the units that a new target assignment takes from a temporarily left member.

    None of its units runs, so no acknowledgement is needed.
    """
    current, share = draft.current(member_id), draft.target(member_id)
    kept = {unit: epoch for unit, epoch in current.assigned.items() if unit in share.units}
    if current.away and kept != current.assigned:
        draft.set_current(member_id, replace(current, assigned=kept))
