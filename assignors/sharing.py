"""Balanced counts with few moves for any subscriptions: the common part of ``sticky`` and ``uniform``.

Topics with the same subscribers form one *class*: a member that may own a partition of one may own partitions of all.
The problem therefore has two parts. How many partitions of each class a member gets (``quotas``) is computed on counts,
with one row per member and one column per class, and its cost hardly grows with the number of partitions. Which
partitions those are (``keep``, ``deal``) is a convention, in which the two assignors differ.

The first part is exact for any subscriptions: the counts have the minimum sum of squares (if all subscriptions are
equal, they differ by at most one), and among the results with that sum this one moves the fewest partitions. A
balanced assignment is therefore returned unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from connectgroup.assign.columns import UNASSIGNED, PartitionColumns, order_of

Integers = NDArray[np.int64]
Stays = Callable[[PartitionColumns, Integers], Integers]
"""Which partitions of a member stay if some must be revoked: those with the lowest number, else the first, sorted."""
Deal = Callable[[Integers, Integers, Integers], Integers]
"""In which order members take the sorted partitions of one class: from each one's need, load and rank."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Classes:
    """The problem in counts; ``M`` members, ``C`` classes, those with the fewest subscribers first.

    Attributes:
        of_partition: int64[P], class of each partition.
        size: int64[C], number of partitions in each class.
        allowed: bool[M, C], whether the member is subscribed.
        held: int64[M, C], number of partitions that each member owns now and may keep.
    """

    of_partition: Integers
    size: Integers
    allowed: NDArray[np.bool_]
    held: Integers


def share_units(columns: PartitionColumns, *, stays: Stays, deal: Deal, last_first: bool = False) -> Integers:
    """Compute the new owners of all partitions.

    Args:
        columns: the input.
        stays: which partitions stay where some must be revoked.
        deal: in which order members take the unowned partitions.
        last_first: whether the last or the first of equal members gets the extra partition.

    Returns:
        int64[P]: index of each partition's member.
    """
    classes = classes_of(columns)
    members = len(columns.member_ids)
    # Of equally loaded members, the one with fewer eligible partitions goes first: the others can be served later.
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
    """Group topics by their subscribers."""
    members = np.bincount(columns.member_kind, minlength=len(columns.subscribed))
    number: dict[bytes, int] = {}
    # Sorted by number of subscribers: a class gets its number at its first topic.
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
    """How many partitions of each class every member gets: minimum sum of squared counts, then fewest moves.

    Unowned partitions are distributed over the members like water, the class with the fewest subscribers first. Then
    each class is removed and distributed again over its subscribers' counts of the other classes, until that changes
    nothing. This is nearly optimal at once, and optimal if there is one class; exchanges between classes do the rest.
    Each step lowers the cost (see ``_exchange``), so the loop terminates.

    Returns:
        int64[M, C].
    """
    quota = classes.held.copy()
    load = quota.sum(axis=1)
    takers = [np.flatnonzero(column) for column in classes.allowed.T]
    nothing = np.zeros(len(load), dtype=np.int64)
    unplaced = classes.size - quota.sum(axis=0)
    for number in np.flatnonzero(unplaced).tolist():
        rows = takers[number]
        gain = _pour(int(unplaced[number]), load[rows], rank[rows], home=nothing[rows], now=nothing[rows])
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
    """Distribute ``amount`` partitions over the counts in ``base`` like water: the lowest count first.

    If the remainder does not suffice for all members at the surface, it goes to members for which it saves a move, else
    to those that have the partitions at present, else by ``rank``. Of members for which it saves a move, the last ones
    keep theirs.

    Returns:
        The number that each member gets; the sum is ``amount``.
    """
    ascending = np.sort(base)
    filled = np.arange(1, len(base) + 1)
    below = np.cumsum(ascending)
    # A member takes part if its count does not exceed the surface that results when it takes part.
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
    """Transfers that together lower the cost, ``(giver, class, taker, how many)``; empty if there are none.

    The transfers form chains, from one member to another or in a cycle; no two chains have a member in common.

    The cost of an assignment is its sum of squared counts, and after that the number of moves. A chain lowers the cost
    exactly if it is a negative cycle of this graph: an edge from a member to a class costs 1 if the member gives a
    partition it owned, an edge from a class to a member costs -1 if the member owned it before, and the two ends of a
    chain together cost the change of the sum of squares. Costs grow with each further unit, so if no such cycle is
    left, no better assignment exists. The search is Bellman-Ford, all members and classes in one step.
    """
    members, far = len(load), np.iinfo(np.int64).max // 4
    square = int(load.sum()) + 1  # greater than the number of all moves
    give = np.where(quota > 0, (quota <= classes.held).astype(np.int64), far)
    take = np.where(classes.allowed, -(quota < classes.held).astype(np.int64), far)
    to_end = square * (2 * load + 1)
    cost = -square * (2 * load - 1)
    from_class = np.full(
        members, UNASSIGNED
    )  # the class through which each member is reached; UNASSIGNED: start of a chain
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

        before = np.where(from_class == UNASSIGNED, everybody, from_member[from_class])
        back = before
        for _ in range(members.bit_length()):
            back = back[back]
        ends = np.unique(back[from_class[back] != UNASSIGNED])  # on cycles
        if not len(ends):
            total = cost + to_end
            ends = np.flatnonzero(total < 0)
            ends = ends[np.argsort(total[ends], kind="stable")]
        steps: list[tuple[int, int, int, int]] = []
        busy: set[int] = set()
        for end in ends.tolist():
            chain = _chain(end, from_class, before)
            who = {end, *(giver for giver, _, _ in chain)}
            if busy.isdisjoint(who):  # otherwise the change of one chain would invalidate the cost of the other
                busy |= who
                # A cycle leaves all loads unchanged, so it can be repeated until the cost of an edge changes.
                count = _at_one_price(chain, classes.held, quota) if chain[-1][0] == end else 1
                steps += [(*step, count) for step in chain]
        if steps:
            return steps


def _chain(end: int, from_class: Integers, before: Integers) -> list[tuple[int, int, int]]:
    """The transfers that lead to ``end``, from the start of the chain; one pass if they form a cycle."""
    steps: list[tuple[int, int, int]] = []
    taker = end
    while from_class[taker] != UNASSIGNED and (not steps or taker != end):
        steps.append((int(before[taker]), int(from_class[taker]), taker))
        taker = int(before[taker])
    return steps


def _at_one_price(chain: list[tuple[int, int, int]], held: Integers, quota: Integers) -> int:
    """How many times a chain can be repeated before a transfer in it costs more than it does now."""
    above = quota - held
    givers = [above[giver, number] if above[giver, number] > 0 else quota[giver, number] for giver, number, _ in chain]
    takers = [-above[taker, number] for _, number, taker in chain if above[taker, number] < 0]
    return int(min(givers + takers))


def keep(columns: PartitionColumns, classes: Classes, quota: Integers, stays: Stays) -> Integers:
    """The partitions that members keep: all, where a member owns no more of a class than its quota.

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
        owner[rows[_place_in_run(cell) >= quota.reshape(-1)[cell]]] = UNASSIGNED
    return owner


def lowest_of_each_topic(columns: PartitionColumns, rows: Integers) -> Integers:
    """``Stays``: keep the bottom of a member's pile of a topic, so that each topic is taken from its tallest piles."""
    pile = columns.partition_owner[rows].astype(np.int64) * len(columns.topic_names) + columns.partition_topic[rows]
    order = np.argsort(pile, kind="stable")
    height = np.empty(len(rows), dtype=np.int64)
    height[order] = _place_in_run(pile[order])
    return height


def emptiest_first(need: Integers, load: Integers, rank: Integers) -> Integers:
    """``Deal``: each partition to the member that has the fewest at that moment."""
    by_rank = np.argsort(rank)
    needed = need[by_rank]
    takers = np.repeat(by_rank, needed)
    # The taker's count before each of the partitions it takes: one more each time.
    level = np.arange(len(takers)) + np.repeat(load[by_rank] - (np.cumsum(needed) - needed), needed)
    return takers[order_of(level)]


def _place_in_run(ascending: Integers) -> Integers:
    """For each entry of a sorted array, the number of equal entries before it."""
    starts = np.flatnonzero(np.diff(ascending, prepend=-1))
    return np.arange(len(ascending)) - np.repeat(starts, np.diff(starts, append=len(ascending)))
