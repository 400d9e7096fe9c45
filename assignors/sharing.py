"""Even counts with few moves, whoever is subscribed to what: what ``sticky`` and ``uniform`` have in common.

Topics with the same subscribers are one *class*: any member that may have a partition of one may have one of all. So
the question has two halves. How many of each class a member shall have (``quotas``) is decided on counts, a row a
member and a column a class, and hardly grows with the number of partitions. Which those are (``keep``, ``deal``)
is a matter of taste, on which the two assignors differ.

The first half is exact, whatever the subscriptions: counts have the least sum of squares there is (where all are
subscribed to the same: they are within one of each other), and of the answers that have it this is one with the fewest
partitions given away. So an answer that is balanced already comes back as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from connectgroup.assign.columns.partition import NOBODY, PartitionColumns, order_of

Integers = NDArray[np.int64]
Stays = Callable[[PartitionColumns, Integers], Integers]
"""Which partitions of a member stay, if some must go: those with the least number, else the first, sorted."""
Deal = Callable[[Integers, Integers, Integers], Integers]
"""In which order members take partitions, sorted, of one class: from what each needs, what it has, and its rank."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Classes:
    """The question in counts; ``M`` members, ``C`` classes, those with the fewest subscribers first.

    Attributes:
        of_partition: int64[P], each partition's class.
        size: int64[C], partitions in each.
        allowed: bool[M, C], who is subscribed.
        held: int64[M, C], how many each member has now and may keep.
    """

    of_partition: Integers
    size: Integers
    allowed: NDArray[np.bool_]
    held: Integers


def share_out(columns: PartitionColumns, *, stays: Stays, deal: Deal, last_first: bool = False) -> Integers:
    """New owners for all partitions.

    Args:
        columns: the question.
        stays: which partitions stay where some must go.
        deal: in which order members take those that nobody has.
        last_first: whether of equal members the last one gets a partition more, or the first.

    Returns:
        int64[P]: index of each partition's member.
    """
    classes = classes_of(columns)
    members = len(columns.member_ids)
    # Of equally loaded members the one with fewer topics to choose from goes first: others find something later.
    options = classes.allowed @ classes.size
    rank = np.empty(members, dtype=np.int64)
    rank[np.lexsort((np.arange(members) * (-1 if last_first else 1), options))] = np.arange(members)
    quota = quotas(classes, rank)
    owner = keep(columns, classes, quota, stays)

    rows = np.flatnonzero(owner < 0)
    rows = rows[np.argsort(classes.of_partition[rows], kind="stable")]
    bounds = np.searchsorted(classes.of_partition[rows], np.arange(len(classes.size) + 1)).tolist()
    load = np.bincount(owner[owner >= 0], minlength=members)
    kept = np.minimum(classes.held, quota)
    for number in np.flatnonzero(np.diff(bounds)).tolist():
        need = quota[:, number] - kept[:, number]
        owner[rows[bounds[number] : bounds[number + 1]]] = deal(need, load, rank)
        load += need
    return owner


def classes_of(columns: PartitionColumns) -> Classes:
    """Group topics by who is subscribed to them."""
    members = np.bincount(columns.member_kind, minlength=len(columns.subscribed))
    number: dict[bytes, int] = {}
    # Sorted by subscribers, so that a class is numbered when its first topic comes by.
    order = np.argsort(members @ columns.subscribed, kind="stable").tolist()
    firsts: list[int] = []
    of_topic = np.zeros(len(order), dtype=np.int64)
    packed = np.packbits(columns.subscribed, axis=0)
    for topic in order:
        key = packed[:, topic].tobytes()
        if key not in number:
            number[key] = len(firsts)
            firsts.append(topic)
        of_topic[topic] = number[key]
    of_partition = of_topic[columns.partition_topic]
    count = len(firsts)
    owned = columns.partition_owner >= 0
    cell = columns.partition_owner[owned].astype(np.int64) * count + of_partition[owned]
    held = np.bincount(cell, minlength=len(columns.member_ids) * count)
    return Classes(
        of_partition=of_partition,
        size=np.bincount(of_partition, minlength=count),
        allowed=columns.subscribed[:, firsts][columns.member_kind],
        held=held.reshape(len(columns.member_ids), count),
    )


def quotas(classes: Classes, rank: Integers) -> Integers:
    """How many of each class every member shall have: least sum of squared counts, then fewest given away.

    What nobody has is poured over the members like water, the class with the fewest takers first. Then each class is
    taken up and poured anew, over what its takers have of the others, until that changes nothing. That gets nearly
    everything right at once, and all of it if there is one class; exchanges between classes do the rest. Each
    step lowers the cost (see ``_exchange``), so it ends.

    Returns:
        int64[M, C].
    """
    quota = classes.held.copy()
    load = quota.sum(axis=1)
    takers = [np.flatnonzero(column) for column in classes.allowed.T]
    nothing = np.zeros(len(load), dtype=np.int64)
    homeless = classes.size - quota.sum(axis=0)
    for number in np.flatnonzero(homeless).tolist():
        rows = takers[number]
        gain = _pour(int(homeless[number]), load[rows], rank[rows], home=nothing[rows], now=nothing[rows])
        quota[rows, number] += gain
        load[rows] += gain
    busy = True
    while busy:
        busy = False
        for number, rows in enumerate(takers):
            now = quota[rows, number]
            home = classes.held[rows, number]
            gain = _pour(int(classes.size[number]), load[rows] - now, rank[rows], home=home, now=now)
            if (gain != now).any():
                quota[rows, number] = gain
                load[rows] += gain - now
                busy = True
    while len(takers) > 1 and (steps := _exchange(classes, quota, load)):
        for giver, number, taker, count in steps:
            quota[giver, number] -= count
            quota[taker, number] += count
        load = quota.sum(axis=1)
    return quota


def _pour(amount: int, base: Integers, rank: Integers, *, home: Integers, now: Integers) -> Integers:
    """Lay ``amount`` partitions on the counts in ``base`` like water: the lowest first.

    The last drops, where not all members at the surface can have one, go to those whom they save a move, else to those
    who have them by now, else by ``rank``. Of those whom they save a move the last ones keep it.

    Returns:
        How many each gets; they add up to ``amount``.
    """
    ascending = np.sort(base)
    filled = np.arange(1, len(base) + 1)
    below = np.cumsum(ascending)
    # As many members get wet as have less than the surface would be with them in the water.
    wet = int(np.count_nonzero(filled * ascending - below <= amount))
    level, drops = divmod(amount + int(below[wet - 1]), wet)
    gain = np.maximum(level - base, 0)
    if drops:
        at_surface = np.flatnonzero(base <= level)
        saves, has = (home > gain)[at_surface], (now > gain)[at_surface]
        turn = np.where(saves, -at_surface, rank[at_surface])
        gain[at_surface[np.lexsort((turn, ~has, ~saves))[:drops]]] += 1
    return gain


def _exchange(classes: Classes, quota: Integers, load: Integers) -> list[tuple[int, int, int, int]]:
    """Handovers that together make the whole better, ``(giver, class, taker, how many)``; empty if there are none.

    They are chains, from one member to another or in a circle, of which no two have a member in common.

    The cost of a share-out is its sum of squared counts, and after that the number given away. A chain lowers it just
    if it is a negative cycle of this graph: a member hands to a class at 1 if what it hands was its own, a class
    hands to a member at -1 if that had it once, and both ends of a chain together cost what the sum of squares
    changes by. Costs grow with each unit more, so where no such cycle is left nothing better exists. Found as
    Bellman and Ford do, all members and classes in one step.
    """
    members, far = len(load), np.iinfo(np.int64).max // 4
    square = int(load.sum()) + 1  # more than all moves together
    give = np.where(quota > 0, (quota <= classes.held).astype(np.int64), far)
    take = np.where(classes.allowed, -(quota < classes.held).astype(np.int64), far)
    to_end = square * (2 * load + 1)
    cost = -square * (2 * load - 1)
    from_class = np.full(members, NOBODY)  # how each member is reached; NOBODY: a chain begins there
    class_cost = np.full(len(classes.size), far)
    from_member = np.zeros(len(classes.size), dtype=np.int64)
    everybody = np.arange(members)
    while True:
        offer = cost[:, None] + give
        giver = offer.argmin(axis=0)
        offered = offer[giver, np.arange(len(giver))]
        cheaper = offered < class_cost
        class_cost[cheaper], from_member[cheaper] = offered[cheaper], giver[cheaper]
        offer = class_cost + take
        through = offer.argmin(axis=1)
        offered = offer[everybody, through]
        cheaper = offered < cost
        if not cheaper.any():
            return []
        cost[cheaper], from_class[cheaper] = offered[cheaper], through[cheaper]

        before = np.where(from_class == NOBODY, everybody, from_member[from_class])
        back = before
        for _ in range(members.bit_length()):
            back = back[back]
        ends = np.unique(back[from_class[back] != NOBODY])  # on circles
        if not len(ends):
            total = cost + to_end
            ends = np.flatnonzero(total < 0)
            ends = ends[np.argsort(total[ends], kind="stable")]
        steps: list[tuple[int, int, int, int]] = []
        busy: set[int] = set()
        for end in ends.tolist():
            chain = _chain(end, from_class, before)
            who = {end, *(giver for giver, _, _ in chain)}
            if busy.isdisjoint(who):  # so that what one changes does not count for another
                busy |= who
                # A circle leaves all loads as they are, so it can be gone round until a price changes.
                count = _at_one_price(chain, classes.held, quota) if chain[-1][0] == end else 1
                steps += [(*step, count) for step in chain]
        if steps:
            return steps


def _chain(end: int, from_class: Integers, before: Integers) -> list[tuple[int, int, int]]:
    """The handovers that lead to ``end``, from wherever they begin; once round, if they go in a circle."""
    steps: list[tuple[int, int, int]] = []
    taker = end
    while from_class[taker] != NOBODY and (not steps or taker != end):
        steps.append((int(before[taker]), int(from_class[taker]), taker))
        taker = int(before[taker])
    return steps


def _at_one_price(chain: list[tuple[int, int, int]], held: Integers, quota: Integers) -> int:
    """How many times a chain can be repeated before a handover in it costs more than it does now."""
    above = quota - held
    givers = [above[giver, number] if above[giver, number] > 0 else quota[giver, number] for giver, number, _ in chain]
    takers = [-above[taker, number] for _, number, taker in chain if above[taker, number] < 0]
    return int(min(givers + takers))


def keep(columns: PartitionColumns, classes: Classes, quota: Integers, stays: Stays) -> Integers:
    """Who keeps what: everything, where a member has no more of a class than it shall have.

    Returns:
        int64[P]: index of the member, -1 where the partition is to be dealt.
    """
    owner = columns.partition_owner.astype(np.int64)
    over = classes.held > quota
    if over.any():
        held = np.flatnonzero(owner >= 0)
        cell = owner[held] * len(classes.size) + classes.of_partition[held]
        rows, cell = held[over.reshape(-1)[cell]], cell[over.reshape(-1)[cell]]
        order = np.lexsort((rows, stays(columns, rows), cell))
        rows, cell = rows[order], cell[order]
        owner[rows[_place_in_run(cell) >= quota.reshape(-1)[cell]]] = NOBODY
    return owner


def lowest_of_each_topic(columns: PartitionColumns, rows: Integers) -> Integers:
    """``Stays``: what lies low in the member's pile of its topic, so that each topic gives up of its tallest piles."""
    pile = columns.partition_owner[rows].astype(np.int64) * len(columns.topic_names) + columns.partition_topic[rows]
    order = np.argsort(pile, kind="stable")
    height = np.empty(len(rows), dtype=np.int64)
    height[order] = _place_in_run(pile[order])
    return height


def emptiest_first(need: Integers, load: Integers, rank: Integers) -> Integers:
    """``Deal``: each partition to the member that has the fewest by then."""
    by_rank = np.argsort(rank)
    needed = need[by_rank]
    takers = np.repeat(by_rank, needed)
    # What a taker will have had before each of those it takes: one more each time.
    level = np.arange(len(takers)) + np.repeat(load[by_rank] - (np.cumsum(needed) - needed), needed)
    return takers[order_of(level)]


def _place_in_run(ascending: Integers) -> Integers:
    """For each entry of a sorted array, how many equal ones stand before it."""
    starts = np.flatnonzero(np.diff(ascending, prepend=-1))
    return np.arange(len(ascending)) - np.repeat(starts, np.diff(starts, append=len(ascending)))
