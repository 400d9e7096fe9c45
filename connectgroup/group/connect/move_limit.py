"""How many running tasks one rebalance may move."""

from __future__ import annotations

from dataclasses import replace

from ...protocol.units import NO_UNITS
from .overlay import Draft
from .state import Target


def stay_for_now(draft: Draft, shares: dict[str, Target], most_moves: int) -> int:
    """Leave what goes beyond a round's moves where it runs; the assignor says where, the coordinator how fast.

    Args:
        shares: changed in place. Which of the moves come first is by name, the same on every replay.

    Returns:
        How many moves were left for the next round.
    """
    if not most_moves:
        return 0
    moves = []
    for member_id, share in shares.items():
        for unit in share.units:
            holder = draft.holder(unit)
            if holder in (None, member_id) or draft.member(str(holder)) is None:
                continue
            # What its holder has been told to stop already is on its way.
            if unit in draft.target(str(holder)).units and not draft.current(str(holder)).away:
                moves.append((unit, member_id, str(holder)))
    for unit, member_id, holder in sorted(moves)[most_moves:]:
        shares[member_id] = replace(shares[member_id], units=shares[member_id].units - {unit})
        # A draining holder is in nobody's answer: what it was told before still holds for what it keeps.
        kept = shares.get(holder) or replace(draft.target(holder), units=NO_UNITS)
        shares[holder] = replace(kept, units=kept.units | {unit})
    return max(0, len(moves) - most_moves)
