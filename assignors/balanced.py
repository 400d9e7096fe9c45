"""Even counts with the fewest moves, and a connector's tasks spread over the members.

Three wishes, each kept only as far as it costs nothing of those before it:

1. *Even*: tasks within one of each other over the members, and connectors within one of each other. The two
   are counted apart: a connector mostly watches (its weight is 0 by default) while a task works, so a
   worker with one connector more must not get one task less.
2. *Few moves*: no more units change hands than even counts ask for. An assignment that is even already comes
   back as it is (KAFKA-18688).
3. *Spread*: each connector's tasks are laid as evenly over the members as the first two leave room for, so
   that the death of a worker takes little from each connector (KAFKA-17049). From nothing, or for new
   connectors on evenly filled workers, that is within one of each other. Units are never moved for it alone.

The first two are exact. The third is found greedily, one connector after another, because the best there is
would need a min-cost flow: against one it is the best in nine of ten small cases, and a task or two off in the
rest. A hundred thousand tasks on a thousand workers take about 10 ms of one core.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from connectgroup.assign.api import ConnectAssignment, ConnectAssignor, ConnectGroup

Integers = NDArray[np.int64]
NOBODY = -1
FULL = np.iinfo(np.int64).max


class BalancedAssignor(ConnectAssignor):
    """Even counts, fewest moves, connectors spread; a function of the question alone."""

    name = "balanced"

    def assign(self, group: ConnectGroup) -> ConnectAssignment:
        """Share connectors and tasks out.

        A unit that two members claim stays with the first of them, sorted. What members hold of units that do
        not exist is not looked at.
        """
        columns = group.columns()
        owner = columns.unit_owner.astype(np.int64)
        is_task = columns.unit_task >= 0
        if columns.member_ids:
            # Connectors are all of one kind: there is nothing to spread but their number, and one kind is quick.
            connectors = np.flatnonzero(~is_task)
            owner[connectors] = share_out(owner[connectors], np.zeros_like(connectors), len(columns.member_ids))
            tasks = np.flatnonzero(is_task)
            kinds = columns.unit_connector[tasks].astype(np.int64)
            owner[tasks] = share_out(owner[tasks], kinds, len(columns.member_ids))
        return ConnectAssignment.from_columns(columns, owner)


def share_out(home: Integers, kind: Integers, members: int) -> Integers:
    """New holders for one class of units.

    Args:
        home: int64[U], who holds each unit now, -1 for nobody.
        kind: int64[U], ascending: units of one kind are to be spread.
        members: how many there are, at least one.

    Returns:
        int64[U]: who shall hold each unit.
    """
    owner = home.copy()
    owner[to_let_go(home, kind, limits(home, members))] = NOBODY
    _place(owner, kind, members)
    return owner


def limits(home: Integers, members: int) -> Integers:
    """int64[members], how many of these units each may keep: an equal share, or one more.

    A place for one unit more is used up first by those who have one more: that saves a move each.
    """
    share, extra = divmod(len(home), members)
    held = np.bincount(home[home >= 0], minlength=members)
    limit = np.full(members, share)
    limit[np.flatnonzero(held > share)[:extra]] += 1
    return limit


def to_let_go(home: Integers, kind: Integers, limit: Integers) -> Integers:
    """Which units the members above their limit give up: those that stand highest here and lowest there.

    A pile is what one member holds of one kind. Giving up the top unit of a pile of height ``h`` evens the kind
    out by ``h`` less what the takers have of it on average, what was given up before it included: without that
    last part all would give up the same kind, and a newcomer would get one tall pile of it.
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
    here = height * takers + height + 1 - pile  # times takers, and less what of its pile goes before it
    let_go = []
    bounds = [*_starts(whose).tolist(), len(units)]
    for (begin, end), given_up in zip(pairwise(bounds), surplus[whose[bounds[:-1]]].tolist(), strict=True):
        gain = here[begin:end] - theirs[what[begin:end]]
        if given_up == 1:  # the usual change is of one member, and costs the others one unit each
            top = begin + int(gain.argmax())
            theirs[what[top]] += 1
            let_go.append(units[top : top + 1])
            continue
        given = begin + np.argsort(-gain, kind="stable")[:given_up]
        theirs += np.bincount(what[given], minlength=len(theirs))
        let_go.append(units[given])
    return np.concatenate(let_go)


def _place(owner: Integers, kind: Integers, members: int) -> None:
    """Give every unit of nobody's a holder, in place, so that all end up with an equal share or one more."""
    share, extra = divmod(len(owner), members)
    held = np.bincount(owner[owner >= 0], minlength=members)
    spare = extra - int(np.count_nonzero(held > share))
    homeless = owner < 0
    takers = np.flatnonzero(held < share)
    if not spare and len(takers) == 1:  # a newcomer among members that are full: there is nothing to choose
        owner[homeless] = takers[0]
        return
    begin = _starts(kind)
    size = np.diff(begin, append=len(kind))
    wanted = np.add.reduceat(homeless, begin, dtype=np.int64) if len(kind) else size

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

    # Kinds that somebody keeps a pile of are laid around those piles first; the others fit in anywhere.
    lay(np.flatnonzero((wanted > 0) & (wanted < size)))
    fresh = np.flatnonzero((wanted > 0) & (wanted == size))
    room = share - held
    if int(room.max()) - int(room.min()) > 1:
        lay(fresh)
    else:  # even places can be dealt out like cards, which is the same answer at once
        left = np.flatnonzero(owner < 0)
        owner[left] = np.argsort(-room, kind="stable")[np.arange(len(left)) % members]


def _drop(pile: Integers, depth: Integers, above: int) -> int:
    """Who takes the one unit that ``_pour`` would lay: after a change of one member that is what most kinds miss.

    The lowest pile of those with room, and of equal piles the one with most room.

    Args:
        depth: int64[members], how many units of any kind it may still take.
        above: more than any depth.
    """
    return int(np.where(depth > 0, pile * above - depth, FULL).argmin())


def _pour(amount: int, pile: Integers, room: Integers, spare: int) -> Integers:
    """Lay ``amount`` units of one kind on the members' piles of it like water: the lowest first.

    Args:
        pile: int64[members], what each holds of this kind.
        room: int64[members], how many units of any kind it may still take, -1 if it has one more already.
        spare: how many members may take one unit more than ``room``.

    Returns:
        int64[members]: how many each takes; they add up to ``amount``.
    """
    gain = _fill(amount, pile, np.maximum(room + (1 if spare else 0), 0))
    over = np.flatnonzero((gain > room) & (gain > 0))
    if len(over) <= spare:
        return gain
    allowed = np.maximum(room, 0)
    allowed[over[:spare]] += 1
    return _fill(amount, pile, allowed)


def _fill(amount: int, pile: Integers, room: Integers) -> Integers:
    """Water over ``pile``, at most ``room`` deep anywhere; the last drops go where most room is left."""

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
    """Where each run of equal entries of a sorted array begins."""
    return np.flatnonzero(np.diff(ascending, prepend=-1))


def _rank_and_run(ascending: NDArray[Any]) -> tuple[Integers, Integers]:
    """For each entry of a sorted array, how many equal ones stand before it, and how many there are."""
    starts = _starts(ascending)
    runs = np.diff(starts, append=len(ascending))
    return np.arange(len(ascending)) - np.repeat(starts, runs), np.repeat(runs, runs)
