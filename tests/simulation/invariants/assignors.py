"""The shipped assignor, asked on simulated workers: S18, S19."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from connectgroup.assign.api import ConnectAssignment, ConnectGroup
from connectgroup.assignors.balanced import BalancedAssignor
from connectgroup.protocol.units import Unit

from .base import Invariant


def _shares(answer: ConnectAssignment) -> dict[str, frozenset[Unit]]:
    return {member.member_id: frozenset(member.units) for member in answer.members}


class EqualQuestionsEqualAnswers(Invariant):
    """S18: the order in which members and connectors are listed, and what was asked before, do not matter."""

    ids = "S18"

    def on_question(self, group: ConnectGroup, answer: ConnectAssignment) -> None:
        turned = replace(
            group,
            members=tuple(reversed(group.members)),
            connectors=tuple(reversed(group.connectors)),
        )
        again = BalancedAssignor().assign(turned)
        if _shares(again) != _shares(answer):
            self.broken("the same group, listed the other way round, is shared out in another way")


class NoMoreMovesThanNeeded(Invariant):
    """S19: counts within one of each other, moved is what even counts ask for and no more, and what is even stays."""

    ids = "S19"

    def on_question(self, group: ConnectGroup, answer: ConnectAssignment) -> None:
        if not group.members:
            return
        owner = {unit: member.member_id for member in group.members for unit in member.owned}
        given = {unit: member_id for member_id, units in _shares(answer).items() for unit in units}
        for connectors in (True, False):
            units = [unit for unit in group.units if unit.is_connector is connectors]
            counts = Counter({member.member_id: 0 for member in group.members})
            counts.update(given[unit] for unit in units)
            if counts and max(counts.values()) - min(counts.values()) > 1:
                self.broken(f"not even: {sorted(counts.values())}")
            moved = sum(owner.get(unit, given[unit]) != given[unit] for unit in units)
            least = _least_moves(Counter(owner[unit] for unit in units if unit in owner), len(units), len(counts))
            if moved > least:
                self.broken(f"{moved} moved, {least} are enough")


def _least_moves(held: Counter[str], units: int, members: int) -> int:
    """How many units must leave their holder so that all can have ``units / members``, within one."""
    share, extra = divmod(units, members)
    above = sorted((count - share for count in held.values() if count > share), reverse=True)
    # Places for one more go first to those who have one more.
    return sum(above) - min(extra, len(above))
