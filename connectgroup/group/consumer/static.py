"""Static membership (``group.instance.id``): a member that restarts keeps its partitions.

The rules that do not depend on the group type, and their source, are in ``kernel.static``.
"""

from __future__ import annotations

from ...errors import GroupIdNotFound, UnknownMemberId
from ...protocol.records.consumer import ConsumerMemberRecord
from ...protocol.units import printable
from ..kernel import static as kernel
from .draft import Draft
from .state import NO_TARGET, ConsumerGroup


def check_sender(group: ConsumerGroup, member_id: str, instance_id: str | None) -> None:
    """Check that the sender of a heartbeat or leave is a member of the consumer protocol.

    Raises:
        GroupIdNotFound: the group does not exist.
        UnknownMemberId, FencedInstanceId: see ``kernel.static.check_sender``; or it uses the classic protocol.
    """
    if not group.exists:
        raise GroupIdNotFound(f"GroupId: got {printable(group.group_id)!r}; there is no such group")
    kernel.check_sender(group, member_id, instance_id)
    if group.members[member_id].uses_classic_protocol:
        raise UnknownMemberId(f"MemberId: {printable(member_id)!r} uses the classic protocol")


def replace_static_member(draft: Draft, former: ConsumerMemberRecord, member_id: str) -> None:
    """Transfer the target assignment of a static member to the member that replaces it; remove the former (ST-02)."""
    target, known = draft.target(former.member_id), draft.member(member_id)
    draft.forget_member(former.member_id)
    if known is not None or draft.epoch > draft.target_epoch:
        # A computation in progress has the former member id in its input, and must not fail because of it.
        draft.bump()
    if known is None and target != NO_TARGET:
        draft.set_target(member_id, target)


def leave_temporarily(draft: Draft, member_id: str) -> None:
    """Write that the member runs nothing, and that the partitions in its target assignment are kept for it (ST-01)."""
    left = kernel.after_temporary_leave(draft.current(member_id), draft.target(member_id).partitions)
    draft.set_current(member_id, left)
