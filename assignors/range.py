"""Each topic is cut into contiguous ranges; the first members get the first partitions.

Topics with the same partition count and the same subscribers are cut identically, so that the member with partition 3
of one topic has partition 3 of all (*co-partitioning*, which a join of topics requires). Co-partitioning has priority
over balanced counts: each topic's remainder goes to the same first members. The current owners are ignored; the order
of the members, static members first by group instance id, keeps a range where it is.

If members and replicas have racks, a member is first assigned partitions with a replica in its rack, as many as its
range has room for, and the rest is cut as usual. Topics that are cut identically stay so: a partition number counts as
near only if it is near in each of them (KIP-881). A member without a rack is near to every partition. All results equal
those of Kafka's own client, so either of the two can lead a group.

The rules of the range assignor on Kafka's brokers give the same results: there, too, co-partitioning has priority over
stickiness, and the order of the members does the rest. It differs in one respect only, and is therefore a separate
class here: it rejects subscriptions to topics that do not exist.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from connectgroup.assign.api import PartitionAssignment, PartitionAssignor, PartitionAssignorInput
from connectgroup.assign.columns import UNASSIGNED
from connectgroup.assign.members import require_topics

Integers = NDArray[np.int64]
Racks = frozenset[str]


class RangeAssignor(PartitionAssignor):
    """Ranges of every topic over its subscribers, partitions in the same rack first."""

    name = "range"

    def assign(self, group: PartitionAssignorInput) -> PartitionAssignment:
        """Assign all partitions. A topic that does not exist is ignored."""
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

        owner = np.full(len(columns.partition_topic), UNASSIGNED, dtype=np.int64)
        racks_matter = any(cut.racks_matter for cut in cuts)
        for cut in cuts:
            # Topics cut identically are matched by rack if racks matter to any topic, a single topic if to that topic.
            whose = cut.takers[cut.ranges(near_first=racks_matter and (len(cut.topics) > 1 or cut.racks_matter))]
            for begin in columns.topic_begin[cut.topics].tolist():
                owner[begin : begin + cut.count] = whose
        return PartitionAssignment.from_columns(columns, owner)


class ServerRangeAssignor(RangeAssignor):
    """The same, for a coordinator that has resolved all subscriptions."""

    name = "server-range"

    def assign(self, group: PartitionAssignorInput) -> PartitionAssignment:
        """Assign all partitions.

        Raises:
            ValueError: a member is subscribed to a topic that does not exist.
        """
        require_topics(group.members, group.topics)
        return super().assign(group)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cut:
    """Topics that are cut identically, as indices.

    Attributes:
        count: number of partitions of each topic.
        topics: at least one.
        takers: int32[N], the members subscribed to them, in the order of ``member_order``; at least one.
        racks: the rack of each taker, None if it has none.
        replicas: for each topic the racks of each partition's replicas; empty if unknown.
    """

    count: int
    topics: list[int]
    takers: NDArray[np.int32]
    racks: list[str | None]
    replicas: list[tuple[Racks, ...]]

    @property
    def racks_matter(self) -> bool:
        """Whether racks affect the result: some replica is in a member's rack, and not all replicas are everywhere."""
        ours = {*self.racks} - {None}
        return any(
            not ours.isdisjoint(everywhere := Racks().union(*each)) and {*_filled(each, self.count)} != {everywhere}
            for each in self.replicas
        )

    def ranges(self, *, near_first: bool) -> Integers:
        """int64[count]: for each partition the index of its taker."""
        share, extra = divmod(self.count, len(self.racks))
        given = Given(share=share, extra=extra, owner=[UNASSIGNED] * self.count, taken=[0] * len(self.racks))
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
        owner[owner == UNASSIGNED] = np.repeat(np.arange(len(taken)), needed)
        return owner


@dataclass(slots=True, kw_only=True)
class Given:
    """The partitions assigned so far; ``extra`` takers may still get one more than ``share``."""

    share: int
    extra: int
    owner: list[int]
    taken: list[int]

    def has_room(self, taker: int) -> bool:
        """Whether the taker may get one more partition. Once false, it stays false."""
        return self.taken[taker] < self.share + (self.extra > 0)

    def give(self, number: int, taker: int) -> None:
        """Assign one partition to one taker."""
        self.owner[number] = taker
        self.taken[taker] += 1
        self.extra -= self.taken[taker] > self.share


def _match_by_taker(given: Given, racks: Sequence[str | None], near: Sequence[Racks]) -> None:
    """Taker by taker, assign the first partitions that are near it."""
    # One iterator per rack: each member of the rack continues where the previous one stopped.
    walks = {rack: iter([n for n in range(len(near)) if rack is None or rack in near[n]]) for rack in {*racks}}
    for taker, rack in enumerate(racks):
        while given.has_room(taker):
            number = next((number for number in walks[rack] if given.owner[number] == UNASSIGNED), None)
            if number is None:
                break
            given.give(number, taker)


def _match_by_partition(given: Given, racks: Sequence[str | None], near: Sequence[Racks]) -> None:
    """Partition by partition, select the first taker that is near it and has room."""
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
    """Pad to the number of partitions: missing ones are in no rack."""
    return [*racks[:count], *[Racks()] * (count - len(racks))]
