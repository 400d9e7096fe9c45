"""Static membership (``group.instance.id``): a member that restarts keeps its partitions.

A leave with epoch -2 says that the member returns. Until its session timeout its partitions are kept for it and no
epoch advances. The next member that joins with the same instance id replaces it, whatever its member id.

Source: KIP-345; KIP-848 as Kafka shipped it; scenarios ST-01 to ST-08.
"""

from __future__ import annotations

from ...errors import FencedInstanceId, UnknownMemberId, UnreleasedInstanceId
from ...protocol.messages.consumer import ConsumerHeartbeatRequest
from ...protocol.records.base import MemberState
from ...protocol.records.consumer import ConsumerMemberRecord
from ...protocol.units import STATIC_LEAVE_EPOCH, printable
from ..kernel.current import Current
from .draft import Draft
from .state import NO_TARGET, ConsumerGroup


def check_instance_id(group: ConsumerGroup, request: ConsumerHeartbeatRequest) -> None:
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


def former_static_member(group: ConsumerGroup, request: ConsumerHeartbeatRequest) -> ConsumerMemberRecord | None:
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


def replace_static_member(draft: Draft, former: ConsumerMemberRecord, member_id: str) -> None:
    """Transfer the target assignment of a static member to the member that replaces it; remove the former (ST-02)."""
    target, known = draft.target(former.member_id), draft.member(member_id)
    draft.forget_member(former.member_id)
    if known is not None:
        draft.bump()
    elif target != NO_TARGET:
        draft.set_target(member_id, target)


def leave_temporarily(draft: Draft, member_id: str) -> None:
    """Write that the member runs nothing, and that the partitions in its target assignment are kept for it (ST-01)."""
    current, target = draft.current(member_id), draft.target(member_id)
    draft.set_current(
        member_id,
        Current(
            epoch=STATIC_LEAVE_EPOCH,
            previous_epoch=STATIC_LEAVE_EPOCH,
            state=MemberState.STABLE,
            assigned={each: 0 for each in current.assigned if each in target.partitions},
        ),
    )
