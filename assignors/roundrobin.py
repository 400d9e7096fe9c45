"""Partitions assigned round robin: topic by topic, each partition to the next member subscribed to the topic.

Counts differ by at most one if all members subscribe to the same topics, and not otherwise. The current owners are
ignored, so a member that joins or leaves moves nearly everything; static members keep their position in the order. For
groups that need few moves, use ``sticky`` or ``uniform``.
"""

from __future__ import annotations

from itertools import groupby

import numpy as np

from connectgroup.assign.api import PartitionAssignment, PartitionAssignor, PartitionAssignorInput
from connectgroup.assign.columns import UNASSIGNED


class RoundRobinAssignor(PartitionAssignor):
    """Iterates over the members in ``member_order``, over all partitions in sorted order."""

    name = "roundrobin"

    def assign(self, group: PartitionAssignorInput) -> PartitionAssignment:
        """Assign all partitions. A topic that does not exist is ignored."""
        columns = group.columns()
        circle = columns.member_order
        wants = columns.subscribed.T
        begin = columns.topic_begin.tolist()
        owner = np.full(len(columns.partition_topic), UNASSIGNED, dtype=np.int64)
        turn = 0
        # Consecutive topics with the same subscribers are dealt as one.
        for _, run in groupby(range(len(wants)), key=lambda topic: wants[topic].tobytes()):
            topics = [*run]
            first, end = begin[topics[0]], begin[topics[-1] + 1]
            takers = np.flatnonzero(wants[topics[0]][columns.member_kind[circle]])
            turns = takers[(np.searchsorted(takers, turn) + np.arange(end - first)) % len(takers)]
            owner[first:end] = circle[turns]
            turn = int(turns[-1]) + 1 if len(turns) else turn
        return PartitionAssignment.from_columns(columns, owner)
