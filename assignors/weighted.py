"""Load in proportion to capacity, under rules that are never broken: labels, limits, hosts, and who keeps apart.

Workers offer capacity, labels, rack and host (``ConnectMember``); the configuration of a connector says what it needs
(``assignment.*``, see ``connectgroup.assign.placement``). Each goal is met as far as it costs nothing of the goals
before it:

1. *Rules* (``connect_rules``). A unit that no worker may have is left out, and the answer's message says what refuses
   which workers; it is tried again when the group changes, and every few minutes.
2. *Load*: where a unit has to be placed, it goes where it leaves the lowest level, weight over capacity, heaviest
   first; among those equal, to the rack and then to the worker that has fewest of its connector. Units without weight,
   connectors mostly, are counted instead. Connectors are beside those they like to be beside as long as that puts
   nobody above the average.
3. *Few moves*: what breaks no rule stays, unless a move makes the fullest worker emptier without making another as
   full. At most a tenth of all units move in one answer; the rest is asked for again.

A function of the question alone, greedy, and good rather than the best: with weights, evenness is bin packing. Its own
answer comes back unchanged.
"""

from __future__ import annotations

import numpy as np

from connectgroup.assign.api import ConnectAssignment, ConnectAssignor, ConnectGroup
from connectgroup.protocol.units import NO_UNITS, Unit, show

from .connect_rules import NOBODY, Floats, Integers, Mask, Rules

FEWEST_MOVES = 100
"""So many may move in one answer, however small the group."""
SOON_MS = 1_000
"""What is in the way is being stopped, or there is more to move."""
LATER_MS = 300_000
"""A unit that has no place gets one when the group changes; this is for what no group can see."""
MOST_TOLD = 3
MAX_PASSES = 20
"""Two or three are the rule; this bounds the time of one answer."""


class WeightedAssignor(ConnectAssignor):
    """Weights against capacity, labels, racks, hosts; a function of the question alone."""

    name = "weighted"

    def assign(self, group: ConnectGroup) -> ConnectAssignment:
        """Assign every connector and task that some worker may run; the message says what refuses the others."""
        columns = group.columns()
        if not columns.member_ids:
            return ConnectAssignment.from_columns(columns, np.full(len(columns.unit_owner), NOBODY))
        rules = Rules(columns, group.connectors)
        waiting = columns.indices(group.waiting) if group.waiting else np.empty(0, dtype=np.int64)
        # Units without weight are a class of their own, each counting one, and no capacity is used up by them.
        classes = {
            heavy: np.setdiff1d(np.flatnonzero((columns.unit_weight > 0) == heavy), waiting) for heavy in (True, False)
        }
        moves = dict.fromkeys(classes, max(FEWEST_MOVES, len(columns.unit_owner) // 10))
        left: list[int] = []
        # What one pass moves may make room for what it looked at before. The answer is one that a further pass leaves
        # as it is, so it also comes back unchanged when it is asked about.
        for _ in range(MAX_PASSES):
            before = rules.owner.copy()
            rules.let_go()
            left = []
            for heavy, members in classes.items():
                share = _Share(rules, members, heavy=heavy, moves=moves[heavy])
                left += share.settle()
                moves[heavy] = share.moves
            if np.array_equal(rules.owner, before):
                break
        return _answer(rules, sorted(left), cut_short=not all(moves.values()))


def _answer(rules: Rules, left: list[int], *, cut_short: bool) -> ConnectAssignment:
    columns = rules.columns
    blocked = rules.blocked()
    rules.owner[blocked] = NOBODY
    reasons: dict[str, list[Unit]] = {}
    soon = cut_short or bool(blocked)
    for unit in left:
        why = rules.why_not(unit)
        if rules.allowed(unit).any():
            soon = True
        else:
            reasons.setdefault(why, []).append(columns.unit(unit))
    told = [f"{show(units, most=3)}: {why}" for why, units in reasons.items()]
    told = [*told[:MOST_TOLD], *([f"and {len(told) - MOST_TOLD} more reasons"] if len(told) > MOST_TOLD else [])]
    left_out = sorted({*left, *blocked})
    return ConnectAssignment.from_columns(
        columns,
        rules.owner,
        held_back=columns.units(np.array(left_out, dtype=np.int64)) if left_out else NO_UNITS,
        delay_ms=SOON_MS if soon else LATER_MS if left_out else 0,
        message=" | ".join(told),
    )


class _Share:
    """One class of units, shared out: those with weight, or those without."""

    def __init__(self, rules: Rules, members: Integers, *, heavy: bool, moves: int) -> None:
        """``members``: int64, the units of the class, ascending."""
        self.rules, self.members, self.heavy, self.moves = rules, members, heavy, moves
        self.size = rules.weight if heavy else np.ones(len(rules.weight), dtype=np.int64)
        mine = members[rules.owner[members] >= 0]
        self.load = np.bincount(rules.owner[mine], weights=self.size[mine], minlength=rules.count).astype(np.int64)
        if heavy:
            rules.load = self.load  # one array: what is added here counts against capacity there
        self.fair = float(self.size[members].sum() / rules.part.sum())

    def settle(self) -> list[int]:
        """Place what nobody has, even out, and again if that has made room.

        Returns:
            What has no place.
        """
        if self.heavy:
            self._unburden()
        while left := self._place():
            if not self._even_out():
                return left
        self._even_out()
        return []

    def _unburden(self) -> None:
        """Take the heaviest units from those that hold more than they can carry, until they can."""
        rules = self.rules
        for worker in np.flatnonzero(self.load > rules.limit).tolist():
            its = self.members[rules.owner[self.members] == worker]
            for unit in its[np.lexsort((its, -self.size[its]))].tolist():
                if self.load[worker] <= rules.limit[worker]:
                    break
                self._give(unit, NOBODY)

    def _place(self) -> list[int]:
        """Give every unit of nobody's to somebody, the pickiest and heaviest first; returns those without a place."""
        rules = self.rules
        homeless = self.members[rules.owner[self.members] < 0]
        picky = np.array([rules.rules_of(index) for index in range(len(rules.placements))], dtype=bool)
        connector = rules.columns.unit_connector[homeless]
        order = np.lexsort((homeless, -self.size[homeless], ~picky[connector]))
        left = []
        for unit in homeless[order].tolist():
            worker = self._pick(unit, rules.allowed(unit))
            if worker == NOBODY:
                left.append(unit)
            else:
                self._give(unit, worker)
        return left

    def _pick(self, unit: int, allowed: Mask) -> int:
        """Whom to give a unit: the lowest level, then the rack and the worker with fewest of its connector."""
        if not allowed.any():
            return NOBODY
        rules = self.rules
        connector = int(rules.columns.unit_connector[unit])
        level = (self.load + int(self.size[unit])) / rules.part
        if rules.placements[connector].beside:
            near = allowed & rules.beside(connector) & (level <= self.fair * (1 + 1e-9))
            allowed = near if near.any() else allowed
        lowest = np.flatnonzero(allowed & (level <= level[allowed].min() * (1 + 1e-9)))
        if len(lowest) > 1:
            pile = rules.pile(connector)
            in_rack = np.bincount(rules.rack, weights=pile)[rules.rack]
            lowest = lowest[np.lexsort((lowest, pile[lowest], in_rack[lowest]))]
        return int(lowest[0])

    def _even_out(self) -> int:
        """Move units off the fullest workers while that makes the fuller of the two emptier; returns how many."""
        moved = 0
        stuck = np.zeros(self.rules.count, dtype=bool)
        while self.moves and not stuck.all():
            level = self.load / self.rules.part
            fullest = int(np.where(stuck, -1.0, level).argmax())
            if level.min() + 1 / self.rules.part.max() >= level[fullest] * (1 - 1e-9):
                break  # nor can any that is less full
            if self._relieve(fullest, level):
                moved += 1
                self.moves -= 1
                stuck[:] = False
            else:
                stuck[fullest] = True
        return moved

    def _relieve(self, worker: int, level: Floats) -> bool:
        """Move one unit off a worker to one that is less full with it than this one is without."""
        rules = self.rules
        its = self.members[rules.owner[self.members] == worker]
        for size in sorted(set(self.size[its].tolist()), reverse=True):
            after = (self.load + size) / rules.part
            if float(after.min()) >= level[worker] * (1 - 1e-9):
                continue
            same = its[self.size[its] == size]
            pile = np.bincount(rules.columns.unit_connector[same])[rules.columns.unit_connector[same]]
            tried: set[int] = set()
            for unit in same[np.lexsort((-same, -pile))].tolist():
                connector = int(rules.columns.unit_connector[unit])
                if connector in tried:
                    continue
                tried.add(connector)  # its units of one size are alike
                self._give(unit, NOBODY)
                target = self._pick(unit, rules.allowed(unit) & (after < level[worker] * (1 - 1e-9)))
                if target not in (NOBODY, worker):
                    self._give(unit, target)
                    return True
                self._give(unit, worker)
        return False

    def _give(self, unit: int, worker: int) -> None:
        before = int(self.rules.owner[unit])
        if before >= 0:
            self.load[before] -= self.size[unit]
        if worker >= 0:
            self.load[worker] += self.size[unit]
        self.rules.owner[unit] = worker
