"""The shipped assignor, as called on simulated workers: S18, S19."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from connectgroup.assign.api import ConnectAssignment, ConnectAssignorInput
from connectgroup.assignors.balanced import BalancedAssignor
from connectgroup.protocol.units import Unit

from .base import Invariant


def _shares(result: ConnectAssignment) -> dict[str, frozenset[Unit]]:
    return {member.member_id: frozenset(member.units) for member in result.members}


class EqualInputEqualResult(Invariant):
    """S18: the result does not depend on the order of members and connectors, nor on earlier calls."""

    ids = "S18"

    def on_assignor_result(self, group: ConnectAssignorInput, result: ConnectAssignment) -> None:
        turned = replace(
            group,
            members=tuple(reversed(group.members)),
            connectors=tuple(reversed(group.connectors)),
        )
        again = BalancedAssignor().assign(turned)
        if _shares(again) != _shares(result):
            self.broken("the same group, listed in reverse order, has another result")


class MinimalMoves(Invariant):
    """S19: counts within one of each other, no more moves than even counts need, and no moves if already even."""

    ids = "S19"

    def on_assignor_result(self, group: ConnectAssignorInput, result: ConnectAssignment) -> None:
        if not group.members:
            return
        owner = {unit: member.member_id for member in group.members for unit in member.owned}
        given = {unit: member_id for member_id, units in _shares(result).items() for unit in units}
        for connectors in (True, False):
            units = [unit for unit in group.units if unit.is_connector is connectors]
            counts = Counter({member.member_id: 0 for member in group.members})
            counts.update(given[unit] for unit in units)
            if counts and max(counts.values()) - min(counts.values()) > 1:
                self.broken(f"not even: {sorted(counts.values())}")
            moved = sum(owner.get(unit, given[unit]) != given[unit] for unit in units)
            minimum = _min_moves(Counter(owner[unit] for unit in units if unit in owner), len(units), len(counts))
            if moved > minimum:
                self.broken(f"{moved} moved, {minimum} are needed")


def _min_moves(held: Counter[str], units: int, members: int) -> int:
    """How many units must leave their owner so that all members can have ``units / members``, within one."""
    share, extra = divmod(units, members)
    above = sorted((count - share for count in held.values() if count > share), reverse=True)
    # The remainder goes first to members that already own one more.
    return sum(above) - min(extra, len(above))
