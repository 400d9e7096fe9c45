"""The limit on running units that one rebalance may move."""

from __future__ import annotations

from dataclasses import replace

from ...protocol.units import NO_UNITS
from .overlay import Overlay
from .state import Target


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
        # The assignor's result has no entry for a draining owner: its last user data stays valid for what it keeps.
        kept = shares.get(holder) or replace(overlay.target(holder), units=NO_UNITS)
        shares[holder] = replace(kept, units=kept.units | {unit})
    return max(0, len(moves) - max_moves)
