"""Balanced counts with the fewest moves, and each connector's tasks spread over the members.

There are three goals. Each is met only as far as it costs nothing of the goals before it:

1. *Balance*: task counts of the members differ by at most one, and so do connector counts. The two are balanced
   separately: a connector mostly monitors (its weight is 0 by default) while a task does the work, so a worker with one
   connector more must not get one task less.
2. *Few moves*: no more units move than balance requires. A balanced assignment is returned unchanged (KAFKA-18688).
3. *Spread*: each connector's tasks are distributed over the members as evenly as the first two goals permit, so that
   the loss of a worker affects few tasks of each connector (KAFKA-17049). For an empty group, or for new connectors on
   evenly loaded workers, the counts per connector differ by at most one. Units are never moved for spread alone.

The first two goals are met exactly. The third is met greedily, one connector after another, because the optimum needs a
min-cost flow: compared with one, the result is optimal in nine of ten small cases, and a task or two off in the rest. A
hundred thousand tasks on a thousand workers take about 10 ms of one core.

A connector of Kafka Connect runs only on workers that have its plug-in, whatever the assignor: while some workers lack
the plug-in of a connector, ``weighted`` places the units, with these labels as the only constraints. It levels the
counts as far as they permit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from connectgroup.assign.api import ConnectAssignment, ConnectAssignor, ConnectAssignorInput
from connectgroup.assign.members import Lazy
from connectgroup.assign.placement import PLUGIN_LABEL, Labels, Placement, WorkerTraits

from .connect_rules import Rules
from .weighted import place_units

Integers = NDArray[np.int64]
UNASSIGNED = -1
FULL = np.iinfo(np.int64).max


class BalancedAssignor(ConnectAssignor):
    """Balanced counts, fewest moves, connectors spread; a pure function of the input."""

    name = "balanced"

    def assign(self, group: ConnectAssignorInput) -> ConnectAssignment:
        """Assign all connectors and tasks.

        If two members claim a unit, the first of them, sorted, keeps it. Owned units that do not exist are ignored.
        """
        if lacking := _lacking_plugins(group):
            return place_units(group, _plugin_rules(group, lacking))
        columns = group.columns()
        owner = columns.unit_owner.astype(np.int64)
        is_task = columns.unit_task >= 0
        if columns.member_ids:
            # All connectors are passed as one kind: only their count is balanced, and a single kind is fast.
            connectors = np.flatnonzero(~is_task)
            owner[connectors] = share_units(owner[connectors], np.zeros_like(connectors), len(columns.member_ids))
            tasks = np.flatnonzero(is_task)
            kinds = columns.unit_connector[tasks].astype(np.int64)
            owner[tasks] = share_units(owner[tasks], kinds, len(columns.member_ids))
        return ConnectAssignment.from_columns(columns, owner)


def _lacking_plugins(group: ConnectAssignorInput) -> Mapping[str, Labels]:
    """The labels of plug-ins that a connector needs and not every worker has, by connector."""
    specs = group.connectors
    if isinstance(specs, Lazy) and not any(each.placement for each in specs.origin.connectors):
        return {}  # no connector's objects are made for a group without constraints
    needed = {spec.name: _plugins_of(spec.placement) for spec in specs if spec.placement.labels}
    if not any(needed.values()):
        return {}
    if not group.columns().member_traits:
        return {}
    common = set.intersection(*(set(traits.labels) for traits in group.columns().member_traits))
    lacking = {name: tuple(label for label in labels if label not in common) for name, labels in needed.items()}
    return {name: labels for name, labels in lacking.items() if labels}


def _plugins_of(placement: Placement) -> Labels:
    return tuple(label for label in placement.labels if label[0].startswith(PLUGIN_LABEL))


def _plugin_rules(group: ConnectAssignorInput, lacking: Mapping[str, Labels]) -> Rules:
    """The constraints of a group in which only plug-ins count, and tasks and connectors are counted."""
    columns = group.columns()
    labels = [WorkerTraits(labels=traits.labels) for traits in columns.member_traits]
    weights = (columns.unit_task >= 0).astype(np.int64)
    specs = [replace(spec, placement=Placement(labels=lacking.get(spec.name, ()))) for spec in group.connectors]
    return Rules(replace(columns, member_traits=tuple(labels), unit_weight=weights), specs)


def share_units(home: Integers, kind: Integers, members: int) -> Integers:
    """Compute the new owners for one class of units.

    Args:
        home: int64[U], current owner of each unit, -1 for none.
        kind: int64[U], ascending: units of one kind are to be spread.
        members: number of members, at least one.

    Returns:
        int64[U]: new owner of each unit.
    """
    owner = home.copy()
    owner[to_release(home, kind, limits(home, members))] = UNASSIGNED
    _place_units(owner, kind, members)
    return owner


def limits(home: Integers, members: int) -> Integers:
    """int64[members], the maximum number of these units each member may keep: an equal count, or one more.

    The members that already own one more than the equal count get the higher limit first: this saves one move each.
    """
    share, extra = divmod(len(home), members)
    held = np.bincount(home[home >= 0], minlength=members)
    limit = np.full(members, share)
    limit[np.flatnonzero(held > share)[:extra]] += 1
    return limit


def to_release(home: Integers, kind: Integers, limit: Integers) -> Integers:
    """The units that members above their limit revoke: the highest in the member's pile, of kinds the receivers lack.

    A pile is the units of one kind that one member owns. Revoking the top unit of a pile of height ``h`` improves the
    spread of the kind by ``h`` less the average pile of the receivers, including the units revoked before. Without that
    last part all members would revoke the same kind, and a new member would get one tall pile of it.
    """
    members = len(limit)
    held = np.bincount(home[home >= 0], minlength=members)
    surplus = np.maximum(held - limit, 0)
    if not surplus.any():
        return np.empty(0, dtype=np.int64)
    taker = held < limit if (held < limit).any() else held == limit
    takers = int(taker.sum())
    theirs = np.bincount(kind[(home >= 0) & taker[home]], minlength=int(kind[-1]) + 1)

    units = np.flatnonzero((home >= 0) & (surplus[home] > 0))
    units = units[np.argsort(home[units], kind="stable")]  # by member, then kind, then task
    whose, what = home[units], kind[units]
    height, pile = _rank_and_run(whose * len(theirs) + what)
    here = height * takers + height + 1 - pile  # times takers, less the units of its pile revoked before it
    release_units = []
    bounds = [*_starts(whose).tolist(), len(units)]
    for (begin, end), given_up in zip(pairwise(bounds), surplus[whose[bounds[:-1]]].tolist(), strict=True):
        gain = here[begin:end] - theirs[what[begin:end]]
        if given_up == 1:  # common case: one member joins, and every other member revokes one unit
            top = begin + int(gain.argmax())
            theirs[what[top]] += 1
            release_units.append(units[top : top + 1])
            continue
        given = begin + np.argsort(-gain, kind="stable")[:given_up]
        theirs += np.bincount(what[given], minlength=len(theirs))
        release_units.append(units[given])
    return np.concatenate(release_units)


def _place_units(owner: Integers, kind: Integers, members: int) -> None:
    """Assign every unassigned unit, in place, so that every member ends up with the equal count or one more."""
    share, extra = divmod(len(owner), members)
    held = np.bincount(owner[owner >= 0], minlength=members)
    spare = extra - int(np.count_nonzero(held > share))
    unplaced = owner < 0
    takers = np.flatnonzero(held < share)
    if not spare and len(takers) == 1:  # one new member and all others full: only one choice
        owner[unplaced] = takers[0]
        return
    begin = _starts(kind)
    size = np.diff(begin, append=len(kind))
    wanted = np.add.reduceat(unplaced, begin, dtype=np.int64) if len(kind) else size

    def lay(rows: Integers) -> None:
        nonlocal spare
        for first, last, count in zip(
            begin[rows].tolist(), (begin + size)[rows].tolist(), wanted[rows].tolist(), strict=True
        ):
            its = owner[first:last]
            pile = np.bincount(its + 1, minlength=members + 1)[1:]
            if count == 1:
                taker = _drop(pile, share + 1 - held if spare else share - held, share + 2)
                its[int(its.argmin())] = taker
                held[taker] += 1
                spare -= int(held[taker]) == share + 1
                continue
            gain = _pour(count, pile, share - held, spare)
            its[its < 0] = np.repeat(np.arange(members), gain)
            held[:] += gain
            spare = extra - int(np.count_nonzero(held > share))

    # First the kinds of which some member keeps a pile, around those piles; the other kinds fit in anywhere.
    lay(np.flatnonzero((wanted > 0) & (wanted < size)))
    fresh = np.flatnonzero((wanted > 0) & (wanted == size))
    room = share - held
    if int(room.max()) - int(room.min()) > 1:
        lay(fresh)
    else:  # with equal room, dealing round robin gives the same result faster
        left = np.flatnonzero(owner < 0)
        owner[left] = np.argsort(-room, kind="stable")[np.arange(len(left)) % members]


def _drop(pile: Integers, depth: Integers, above: int) -> int:
    """The member that takes the single unit that ``_pour`` would lay: after one member changes, most kinds lack one.

    The member with the lowest pile among those with room; of equal piles, the member with most room.

    Args:
        depth: int64[members], number of units of any kind that each may still take.
        above: greater than any depth.
    """
    return int(np.where(depth > 0, pile * above - depth, FULL).argmin())


def _pour(amount: int, pile: Integers, room: Integers, spare: int) -> Integers:
    """Distribute ``amount`` units of one kind over the members' piles of it like water: the lowest pile first.

    Args:
        pile: int64[members], number of units of this kind that each owns.
        room: int64[members], number of units of any kind that each may still take, -1 if it owns one more already.
        spare: number of members that may take one unit more than ``room``.

    Returns:
        int64[members]: number of units that each takes; the sum is ``amount``.
    """
    gain = _fill(amount, pile, np.maximum(room + (1 if spare else 0), 0))
    over = np.flatnonzero((gain > room) & (gain > 0))
    if len(over) <= spare:
        return gain
    allowed = np.maximum(room, 0)
    allowed[over[:spare]] += 1
    return _fill(amount, pile, allowed)


def _fill(amount: int, pile: Integers, room: Integers) -> Integers:
    """Fill ``pile`` like water, at most ``room`` deep anywhere; the remainder goes to the members with most room."""

    def below(level: int) -> Integers:
        return np.clip(level - pile, 0, room)

    low = int(pile[room > 0].min())
    step = 1
    while int(below(low + step).sum()) < amount:
        step *= 2
    high, low = low + step, low + step // 2
    while high - low > 1:
        middle = (low + high) // 2
        if int(below(middle).sum()) < amount:
            low = middle
        else:
            high = middle
    gain = below(high - 1)
    rest = amount - int(gain.sum())
    left = np.where((pile + gain == high - 1) & (gain < room), room - gain, 0)
    # Most room first: with all piles empty this is Gale and Ryser's construction, which finds a spread if there is one.
    gain[np.argsort(-left, kind="stable")[:rest]] += 1
    return gain


def _starts(ascending: NDArray[Any]) -> Integers:
    """The index at which each run of equal entries of a sorted array begins."""
    return np.flatnonzero(np.diff(ascending, prepend=-1))


def _rank_and_run(ascending: NDArray[Any]) -> tuple[Integers, Integers]:
    """For each entry of a sorted array, the number of equal entries before it, and the length of its run."""
    starts = _starts(ascending)
    runs = np.diff(starts, append=len(ascending))
    return np.arange(len(ascending)) - np.repeat(starts, runs), np.repeat(runs, runs)
