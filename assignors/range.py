"""Each topic cut into ranges, the first members getting the first partitions: equal numbers lie together.

Topics with as many partitions and the same subscribers are cut alike, so that whoever has partition 3 of one has it of
all (*co-partitioning*, what a join of topics needs). That is worth more here than even counts: each topic's
remainder goes to the same first members. It does not look at who holds what; order, static members first
by their instance ids, is what keeps a range where it is.

Where members and replicas say what rack they are in, a member is first given partitions with a replica in its rack, as
many as its range has room for, and the rest is cut as ever; topics that are cut alike still are, so that a
partition number counts as near only if it is near in each of them (KIP-881). Whoever does not say is near to all.
All answers are those of Kafka's own client, so that it does not matter which of the two leads a group.

The rules of the range assignor on Kafka's brokers come to the same answers: there too co-partitioning goes before
stickiness, and order does the rest. It differs in one thing only, so that it is a class of its own here:
it refuses subscriptions to topics that do not exist.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from connectgroup.assign.api import PartitionAssignment, PartitionAssignor, PartitionGroup
from connectgroup.assign.columns.partition import NOBODY
from connectgroup.assign.ownership import require_topics

Integers = NDArray[np.int64]
Racks = frozenset[str]


class RangeAssignor(PartitionAssignor):
    """Ranges of every topic over its subscribers, near ones first."""

    name = "range"

    def assign(self, group: PartitionGroup) -> PartitionAssignment:
        """Share partitions out. A topic that does not exist is nothing."""
        columns = group.columns()
        order = columns.member_order
        rack_of = {member.member_id: member.rack for member in group.members}
        specs = {spec.name: spec for spec in group.topics}
        alike: defaultdict[tuple[bytes, int], list[int]] = defaultdict(list)
        for topic, name in enumerate(columns.topic_names):
            alike[columns.subscribed[:, topic].tobytes(), specs[name].num_partitions].append(topic)
        cuts: list[Cut] = []
        for (_, count), topics in alike.items():
            takers = order[columns.subscribed[columns.member_kind[order], topics[0]]]
            racks = [rack_of[columns.member_ids[taker]] for taker in takers.tolist()]
            replicas = [specs[columns.topic_names[topic]].racks for topic in topics]
            cuts.append(Cut(count=count, topics=topics, takers=takers, racks=racks, replicas=replicas))

        owner = np.full(len(columns.partition_topic), NOBODY, dtype=np.int64)
        racks_matter = any(cut.racks_matter for cut in cuts)
        for cut in cuts:
            # Topics cut alike are matched if racks matter to any topic at all, a topic by itself if they do to it.
            whose = cut.takers[cut.ranges(near_first=racks_matter and (len(cut.topics) > 1 or cut.racks_matter))]
            for begin in columns.topic_begin[cut.topics].tolist():
                owner[begin : begin + cut.count] = whose
        return PartitionAssignment.from_columns(columns, owner)


class ServerRangeAssignor(RangeAssignor):
    """The same, for a coordinator that has resolved all subscriptions."""

    name = "server-range"

    def assign(self, group: PartitionGroup) -> PartitionAssignment:
        """Share partitions out.

        Raises:
            ValueError: a member is subscribed to a topic that does not exist.
        """
        require_topics(group)
        return super().assign(group)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cut:
    """Topics that are cut alike, as indices.

    Attributes:
        count: how many partitions each has.
        topics: at least one.
        takers: int32[N], the members subscribed to them, in order of their names; at least one.
        racks: each taker's, None if it does not say.
        replicas: for each topic the racks of each partition's replicas; empty if unknown.
    """

    count: int
    topics: list[int]
    takers: NDArray[np.int32]
    racks: list[str | None]
    replicas: list[tuple[Racks, ...]]

    @property
    def racks_matter(self) -> bool:
        """Whether it makes a difference who reads what: some replica is near somebody, and not all are everywhere."""
        ours = {*self.racks} - {None}
        return any(
            not ours.isdisjoint(everywhere := Racks().union(*each)) and {*_filled(each, self.count)} != {everywhere}
            for each in self.replicas
        )

    def ranges(self, *, near_first: bool) -> Integers:
        """int64[count]: for each partition the index of its taker."""
        share, extra = divmod(self.count, len(self.racks))
        given = Given(share=share, extra=extra, owner=[NOBODY] * self.count, taken=[0] * len(self.racks))
        if near_first:
            near = [
                Racks.intersection(*each)
                for each in zip(*(_filled(each, self.count) for each in self.replicas), strict=True)
            ]
            if len(self.topics) > 1:
                _match_by_partition(given, self.racks, near)
            else:
                _match_by_taker(given, self.racks, near)
        owner, taken = np.array(given.owner, dtype=np.int64), np.array(given.taken)
        needed = np.maximum(share - taken, 0)
        needed[np.flatnonzero(taken <= share)[: given.extra]] += 1
        owner[owner == NOBODY] = np.repeat(np.arange(len(taken)), needed)
        return owner


@dataclass(slots=True, kw_only=True)
class Given:
    """What has been given so far; ``extra`` takers may still get one more than ``share``."""

    share: int
    extra: int
    owner: list[int]
    taken: list[int]

    def has_room(self, taker: int) -> bool:
        """Whether the taker may have one more. Once it may not, it never will."""
        return self.taken[taker] < self.share + (self.extra > 0)

    def give(self, number: int, taker: int) -> None:
        """One partition to one taker."""
        self.owner[number] = taker
        self.taken[taker] += 1
        self.extra -= self.taken[taker] > self.share


def _match_by_taker(given: Given, racks: Sequence[str | None], near: Sequence[Racks]) -> None:
    """One taker after the other gets the first partitions that are near it."""
    # One walk over the partitions a rack: its members go on where the one before them stopped.
    walks = {rack: iter([n for n in range(len(near)) if rack is None or rack in near[n]]) for rack in {*racks}}
    for taker, rack in enumerate(racks):
        while given.has_room(taker):
            number = next((number for number in walks[rack] if given.owner[number] == NOBODY), None)
            if number is None:
                break
            given.give(number, taker)


def _match_by_partition(given: Given, racks: Sequence[str | None], near: Sequence[Racks]) -> None:
    """One partition after the other goes to the first taker that is near it and has room."""
    waiting: defaultdict[str | None, deque[int]] = defaultdict(deque)
    for taker, rack in enumerate(racks):
        waiting[rack].append(taker)
    for number, places in enumerate(near):
        firsts = []
        for queue in (waiting[rack] for rack in (None, *places)):
            while queue and not given.has_room(queue[0]):
                queue.popleft()
            if queue:
                firsts.append(queue[0])
        if firsts:
            given.give(number, min(firsts))


def _filled(racks: tuple[Racks, ...], count: int) -> list[Racks]:
    """As many as there are partitions: those that are missing are in no rack."""
    return [*racks[:count], *[Racks()] * (count - len(racks))]
