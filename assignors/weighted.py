"""Load in proportion to capacity, under constraints that are never violated: labels, limits, hosts, anti-affinity.

Workers offer capacity, labels, rack and host (``ConnectMember``); the configuration of a connector declares its
constraints (``assignment.*``, see ``connectgroup.assign.placement``). Each goal is met as far as it costs nothing of
the goals before it:

1. *Constraints* (``connect_rules``). An unschedulable unit is omitted, and the message of the result names the
   constraints that exclude the workers; the assignment is retried when the group changes, and every few minutes.
2. *Load*: a unit that must be placed goes to the worker with the lowest resulting level, weight over capacity, heaviest
   units first; among equal levels, to the rack and then to the worker with the fewest units of its connector. Units
   without weight, mostly connectors, are counted instead. A preference of a connector (``assignment.affinity``) is
   honored as long as it puts no worker above the average.
3. *Few moves*: a unit that violates no constraint stays, unless a move lowers the level of the fullest worker without
   raising another worker to the same level. At most a tenth of all units move in one result; the rest is moved in the
   following ones.

What must be delayed (a task whose port or other host resource another task still holds) is left out of the assignment
after it has been found. If the tasks being stopped counted, a better assignment would be found as soon as they have
stopped, and a task would move a second time.

A pure function of the input, greedy, and good rather than optimal: with weights, balance is bin packing. Its own result
is returned unchanged.
"""

from __future__ import annotations

import numpy as np

from connectgroup.assign.api import ConnectAssignment, ConnectAssignor, ConnectAssignorInput
from connectgroup.assign.columns import ConnectColumns
from connectgroup.protocol.units import NO_UNITS, Unit, show

from .connect_rules import UNASSIGNED, Floats, Integers, Mask, Rules

FEWEST_MOVES = 100
"""Minimum limit on moves in one result, however small the group."""
SOON_MS = 1_000
"""Delay while conflicting tasks are being stopped, or if there are more units to move."""
LATER_MS = 300_000
"""An unschedulable unit is retried when the group changes; this delay is for causes that the group cannot see."""
MAX_ASSIGNOR_STATE = 3
MAX_PASSES = 20
"""Two or three passes are usual; this bounds the time of one computation."""


class WeightedAssignor(ConnectAssignor):
    """Weights against capacity, labels, racks, hosts; a pure function of the input."""

    name = "weighted"

    def assign(self, group: ConnectAssignorInput) -> ConnectAssignment:
        """Assign every connector and task that some worker may run; the message names what excludes the others."""
        columns = group.columns()
        if not columns.member_ids:
            return ConnectAssignment.from_columns(columns, np.full(len(columns.unit_owner), UNASSIGNED))
        return place_units(group, Rules(columns, group.connectors))


def place_units(group: ConnectAssignorInput, rules: Rules) -> ConnectAssignment:
    """Assign all units.

    Args:
        group: at least one member.
        rules: the constraints. Their columns may have other weights and traits than the group's.
    """
    columns = rules.columns
    waiting = columns.indices(group.waiting) if group.waiting else np.empty(0, dtype=np.int64)
    # Units without weight are a class of their own, each counting as one; they use no capacity.
    classes = {
        heavy: np.setdiff1d(np.flatnonzero((columns.unit_weight > 0) == heavy), waiting) for heavy in (True, False)
    }
    moves = dict.fromkeys(classes, max(FEWEST_MOVES, len(columns.unit_owner) // 10))
    left: list[int] = []
    # Moves in one pass may make room for units examined earlier in it. Repeat until a pass changes nothing, so that
    # the result is also returned unchanged when it is the next input.
    for _ in range(MAX_PASSES):
        before = rules.owner.copy()
        rules.release_units()
        left = []
        for heavy, members in classes.items():
            share = _MemberLoad(rules, members, heavy=heavy, moves=moves[heavy])
            left += share.settle()
            moves[heavy] = share.moves
        if np.array_equal(rules.owner, before):
            break
    return _result(group.columns(), rules, sorted(left), cut_short=not all(moves.values()))


def _result(columns: ConnectColumns, rules: Rules, left: list[int], *, cut_short: bool) -> ConnectAssignment:
    blocked = rules.blocked()
    rules.owner[blocked] = UNASSIGNED
    reasons: dict[str, list[Unit]] = {}
    soon = cut_short or bool(blocked)
    for unit in left:
        why = rules.why_not(unit)
        if rules.allowed(unit).any():
            soon = True
        else:
            reasons.setdefault(why, []).append(columns.unit(unit))
    assignor_state = [f"{show(units, limit=3)}: {why}" for why, units in reasons.items()]
    assignor_state = [
        *assignor_state[:MAX_ASSIGNOR_STATE],
        *(
            [f"and {len(assignor_state) - MAX_ASSIGNOR_STATE} more reasons"]
            if len(assignor_state) > MAX_ASSIGNOR_STATE
            else []
        ),
    ]
    left_out = sorted({*left, *blocked})
    return ConnectAssignment.from_columns(
        columns,
        rules.owner,
        delayed=columns.units(np.array(left_out, dtype=np.int64)) if left_out else NO_UNITS,
        delay_ms=SOON_MS if soon else LATER_MS if left_out else 0,
        message=" | ".join(assignor_state),
    )


class _MemberLoad:
    """The assignment of one class of units: those with weight, or those without."""

    def __init__(self, rules: Rules, members: Integers, *, heavy: bool, moves: int) -> None:
        """``members``: int64, the units of the class, ascending."""
        self.rules, self.members, self.heavy, self.moves = rules, members, heavy, moves
        self.size = rules.weight if heavy else np.ones(len(rules.weight), dtype=np.int64)
        mine = members[rules.owner[members] >= 0]
        self.load = np.bincount(rules.owner[mine], weights=self.size[mine], minlength=rules.count).astype(np.int64)
        if heavy:
            rules.load = self.load  # shared array: additions here count against capacity there
        self.fair = float(self.size[members].sum() / rules.part.sum())

    def settle(self) -> list[int]:
        """Place the unassigned units, balance, and repeat if that has made room.

        Returns:
            The unschedulable units.
        """
        if self.heavy:
            self._unburden()
        while left := self._place_units():
            if not self._even_out():
                return left
        self._even_out()
        return []

    def _unburden(self) -> None:
        """Unassign the heaviest units of workers above their capacity, until the rest fits."""
        rules = self.rules
        for worker in np.flatnonzero(self.load > rules.limit).tolist():
            its = self.members[rules.owner[self.members] == worker]
            for unit in its[np.lexsort((its, -self.size[its]))].tolist():
                if self.load[worker] <= rules.limit[worker]:
                    break
                self._assign_unit(unit, UNASSIGNED)

    def _place_units(self) -> list[int]:
        """Assign every unassigned unit, the most constrained and heaviest first; return the unschedulable ones."""
        rules = self.rules
        unplaced = self.members[rules.owner[self.members] < 0]
        picky = np.array([rules.rules_of(index) for index in range(len(rules.placements))], dtype=bool)
        connector = rules.columns.unit_connector[unplaced]
        order = np.lexsort((unplaced, -self.size[unplaced], ~picky[connector]))
        left = []
        for unit in unplaced[order].tolist():
            worker = self._pick(unit, rules.allowed(unit))
            if worker == UNASSIGNED:
                left.append(unit)
            else:
                self._assign_unit(unit, worker)
        return left

    def _pick(self, unit: int, allowed: Mask) -> int:
        """Select the worker for a unit: the lowest level, then the rack and the worker with fewest of its connector."""
        if not allowed.any():
            return UNASSIGNED
        rules = self.rules
        connector = int(rules.columns.unit_connector[unit])
        level = (self.load + int(self.size[unit])) / rules.part
        if rules.placements[connector].affinity:
            near = allowed & rules.affinity(connector) & (level <= self.fair * (1 + 1e-9))
            allowed = near if near.any() else allowed
        lowest = np.flatnonzero(allowed & (level <= level[allowed].min() * (1 + 1e-9)))
        if len(lowest) > 1:
            pile = rules.pile(connector)
            in_rack = np.bincount(rules.rack, weights=pile)[rules.rack]
            lowest = lowest[np.lexsort((lowest, pile[lowest], in_rack[lowest]))]
        return int(lowest[0])

    def _even_out(self) -> int:
        """Move units off the fullest workers while that lowers the higher of the two levels; return the move count."""
        moved = 0
        stuck = np.zeros(self.rules.count, dtype=bool)
        while self.moves and not stuck.all():
            level = self.load / self.rules.part
            fullest = int(np.where(stuck, -1.0, level).argmax())
            if level.min() + 1 / self.rules.part.max() >= level[fullest] * (1 - 1e-9):
                break  # no less full worker can be relieved either
            if self._relieve(fullest, level):
                moved += 1
                self.moves -= 1
                stuck[:] = False
            else:
                stuck[fullest] = True
        return moved

    def _relieve(self, worker: int, level: Floats) -> bool:
        """Move one unit to a worker whose level including the unit is below this worker's present level."""
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
                tried.add(connector)  # its units of one size are interchangeable
                self._assign_unit(unit, UNASSIGNED)
                target = self._pick(unit, rules.allowed(unit) & (after < level[worker] * (1 - 1e-9)))
                if target not in (UNASSIGNED, worker):
                    self._assign_unit(unit, target)
                    return True
                self._assign_unit(unit, worker)
        return False

    def _assign_unit(self, unit: int, worker: int) -> None:
        before = int(self.rules.owner[unit])
        if before >= 0:
            self.load[before] -= self.size[unit]
        if worker >= 0:
            self.load[worker] += self.size[unit]
        self.rules.owner[unit] = worker
