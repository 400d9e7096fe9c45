"""The moves of a target assignment that the coordinator defers: of starting units, and beyond a limit per round.

The assignor decides where units run, the coordinator when they move.
"""

from __future__ import annotations

from dataclasses import replace

from ...protocol.records.base import Tombstone
from ...protocol.units import NO_UNITS, Unit, Units
from ..kernel.outcome import Outcome
from . import timers as timing
from .overlay import Overlay
from .settings import GroupSettings
from .state import Group, Target


def is_starting(overlay: Overlay, unit: Unit) -> bool:
    """Whether a unit must not be moved now, because its owner is starting it.

    A move would throw the start away and begin another one elsewhere, which may take as long: the downtime of the unit
    would double. This happens when a worker is lost and returns while other workers start its units. The owner reports
    STARTING, and RUNNING or FAILED once; ``GroupSettings.max_start_ms`` bounds the wait.

    A unit is moved nevertheless if its owner drains, if its revocation was decided earlier, or if it must start again
    for its configuration anyway.
    """
    status = overlay.group.statuses.get(unit)
    if status is None or unit not in overlay.group.starting:
        return False
    member, current = overlay.member(status.member_id), overlay.current(status.member_id)
    return (
        member is not None
        and not (member.draining or current.temporarily_left)
        and current.assigned.get(unit) == status.owner_epoch
        and unit in overlay.target(status.member_id).units
        and overlay.group.runnable.get(unit, status.owner_epoch + 1) <= status.owner_epoch
    )


def starting_units(overlay: Overlay) -> Units:
    """All units that are starting on their owners."""
    return frozenset(unit for unit in overlay.group.starting if is_starting(overlay, unit))


def keep_starting_units(overlay: Overlay, shares: dict[str, Target], left_out: Units) -> Units:
    """Keep starting units on their owners, also those that the assignor leaves out until they are revoked.

    Args:
        shares: changed in place.
        left_out: the units that the assignor leaves out.

    Returns:
        The units whose move is deferred.
    """
    starting = starting_units(overlay)
    moves = set(starting & left_out)
    for member_id, share in shares.items():
        moves |= {unit for unit in share.units & starting if overlay.holder(unit) != member_id}
    for member_id in list(shares):
        shares[member_id] = replace(shares[member_id], units=shares[member_id].units - moves)
    for unit in moves:
        _keep(overlay, shares, unit, str(overlay.holder(unit)))
    return frozenset(moves)


def starts_overdue(group: Group, now_ms: int, settings: GroupSettings) -> Outcome[None]:
    """Moves have waited for starting units for ``max_start_ms``: forget that they are starting (L2).

    The next round then moves them (``computation.next_round``), once all members have reached the target assignment.
    """
    if not group.deferred_starts:
        return Outcome(response=None)
    records = tuple(Tombstone(group.statuses[unit].key) for unit in sorted(group.starting))
    # Armed until the next target assignment is installed: members may start units of the present one again.
    return Outcome(response=None, records=records, timers=(timing.start(group.group_id, settings),))


def limit_moves(overlay: Overlay, shares: dict[str, Target], max_moves: int) -> int:
    """Keep units beyond the limit of moves on their owners: the assignor decides where, the coordinator how fast.

    Args:
        shares: changed in place. Moves are done in the order of unit names, the same on every replay.

    Returns:
        The number of moves deferred to the next round.
    """
    if not max_moves:
        return 0
    moves = []
    for member_id, share in shares.items():
        for unit in share.units:
            holder = overlay.holder(unit)
            if holder in (None, member_id) or overlay.member(str(holder)) is None:
                continue
            # A unit whose revocation by its owner was decided earlier is moving already.
            if unit in overlay.target(str(holder)).units and not overlay.current(str(holder)).temporarily_left:
                moves.append((unit, member_id, str(holder)))
    for unit, member_id, holder in sorted(moves)[max_moves:]:
        shares[member_id] = replace(shares[member_id], units=shares[member_id].units - {unit})
        _keep(overlay, shares, unit, holder)
    return max(0, len(moves) - max_moves)


def _keep(overlay: Overlay, shares: dict[str, Target], unit: Unit, holder: str) -> None:
    # The assignor's result has no entry for a draining owner: its last user data stays valid for what it keeps.
    kept = shares.get(holder) or replace(overlay.target(holder), units=NO_UNITS)
    shares[holder] = replace(kept, units=kept.units | {unit})
