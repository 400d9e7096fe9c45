"""Static membership (``group.instance.id``): a worker that restarts keeps its tasks.

The rules that do not depend on the group type, and their source, are in ``kernel.static``. Of a worker, epoch -2 also
reports that all of its units have stopped (CN-12).
"""

from __future__ import annotations

from dataclasses import replace

from ...protocol.records.connect import MemberRecord
from ..kernel.static import after_temporary_leave
from .overlay import Overlay
from .state import NO_TARGET


def replace_static_member(overlay: Overlay, former: MemberRecord, member_id: str) -> None:
    """Transfer the target assignment of a static member to the member that replaces it; remove the former (ST-02).

    No epoch advances, since the assignment does not change. The units are assigned at the target epoch, so a fencing
    token may be used a second time. That is safe only here: epoch -2 is sent after everything has stopped.
    """
    share = overlay.target(former.member_id)
    overlay.forget_member(former.member_id)
    if share != NO_TARGET:
        overlay.set_share(member_id, share)


def leave_temporarily(overlay: Overlay, member_id: str) -> None:
    """Write that the member runs no units, and that the units in its target assignment are kept for it (ST-01)."""
    left = after_temporary_leave(overlay.current(member_id), overlay.target(member_id).units)
    overlay.set_current(member_id, left)


def release_for_others(overlay: Overlay, member_id: str) -> None:
    """Release the units that a new target assignment takes from a temporarily left member.

    None of its units runs, so no acknowledgement is needed.
    """
    current, share = overlay.current(member_id), overlay.target(member_id)
    kept = {unit: epoch for unit, epoch in current.assigned.items() if unit in share.units}
    if current.temporarily_left and kept != current.assigned:
        overlay.set_current(member_id, replace(current, assigned=kept))
