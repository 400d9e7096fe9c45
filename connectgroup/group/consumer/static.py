"""Static membership (``group.instance.id``): a member that restarts keeps its partitions.

The rules that do not depend on the group type, and their source, are in ``kernel.static``.
"""

from __future__ import annotations

from ...protocol.records.consumer import ConsumerMemberRecord
from ..kernel.static import after_temporary_leave
from .draft import Draft
from .state import NO_TARGET


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
    left = after_temporary_leave(draft.current(member_id), draft.target(member_id).partitions)
    draft.set_current(member_id, left)
