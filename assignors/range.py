"""Each topic cut into ranges, the first members getting the first partitions: equal numbers lie together.

Topics with as many partitions and the same subscribers are cut alike, so that whoever has partition 3 of one has it of
all (*co-partitioning*, what a join of topics needs). That is worth more here than even counts: each topic's
remainder goes to the same first members. It does not look at who holds what; order, static members first
by their instance ids, is what keeps a range where it is.

Where members and replicas say what rack they are in, a member is first given partitions with a replica in its rack, as
many as its range has room for, and the rest is cut as ever; topics that are cut alike still are, so that a
partition number counts as near only if it is near in each of them (KIP-881).

The rules of the range assignor on Kafka's brokers come to the same answers: there too co-partitioning goes before
stickiness, and order does the rest. It differs in one thing only, so that it is a class of its own here:
it refuses subscriptions to topics that do not exist.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from connectgroup.assignor import PartitionAssignment, PartitionAssignor, PartitionGroup
from connectgroup.partitions import require_topics

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

        owner = np.full(len(columns.partition_topic), -1, dtype=np.int64)
        for (_, count), topics in alike.items():
            takers = order[columns.subscribed[columns.member_kind[order], topics[0]]]
            racks = [rack_of[columns.member_ids[taker]] for taker in takers.tolist()]
            near = nearness(count, [specs[columns.topic_names[topic]].racks for topic in topics])
            whose = takers[ranges(count, racks, near)]
            for begin in columns.topic_begin[topics].tolist():
                owner[begin : begin + count] = whose
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


def ranges(count: int, racks: Sequence[str | None], near: Sequence[Racks]) -> Integers:
    """Who gets each partition of a topic.

    Args:
        count: how many partitions there are.
        racks: of each taker, in the takers' order; at least one.
        near: for each partition the racks it is near; empty if that is not to be looked at.

    Returns:
        int64[count]: index of the taker.
    """
    share, extra = divmod(count, len(racks))
    owner = np.full(count, -1, dtype=np.int64)
    taken = np.zeros(len(racks), dtype=np.int64)
    if not {*racks}.isdisjoint(frozenset[str]().union(*near)):
        # One walk over the partitions a rack: its members go on where the one before them stopped.
        walks = {rack: iter([number for number in range(count) if rack in near[number]]) for rack in {*racks} - {None}}
        for taker, rack in enumerate(racks):
            room = share + (extra > 0)
            for number in walks.get(rack, ()) if room else ():
                if owner[number] < 0:
                    owner[number] = taker
                    taken[taker] += 1
                    if taken[taker] == room:
                        break
            extra -= int(taken[taker] > share)
    needed = np.maximum(share - taken, 0)
    needed[np.flatnonzero(taken <= share)[:extra]] += 1
    owner[owner < 0] = np.repeat(np.arange(len(racks)), needed)
    return owner


def nearness(count: int, racks: Sequence[Sequence[Racks]]) -> Sequence[Racks]:
    """For each partition number the racks that have a replica of it in each of the topics that are cut alike.

    Args:
        count: how many partitions each topic has.
        racks: for each topic, the racks of each partition; empty if unknown.

    Returns:
        One set a partition; empty if a topic's racks are unknown, or if every rack has everything.
    """
    if not all(racks):
        return ()
    each = [[*its[:count], *[Racks()] * (count - len(its))] for its in racks]
    everywhere = Racks().union(*(places for its in each for places in its))
    near = [Racks.intersection(*places) for places in zip(*each, strict=True)]
    return () if all(places == everywhere for places in near) else near
