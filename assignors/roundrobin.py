"""Partitions dealt out like cards: topic after topic, each partition to the next member that is subscribed to it.

Even to within one where all are subscribed to the same topics, and not otherwise. It does not look at who holds what,
so a member that comes or goes moves nearly everything; static members keep their place in the circle. For
groups that want few moves there are ``sticky`` and ``uniform``.
"""

from __future__ import annotations

from itertools import groupby

import numpy as np

from connectgroup.assign.api import PartitionAssignment, PartitionAssignor, PartitionGroup
from connectgroup.assign.columns.partition import NOBODY


class RoundRobinAssignor(PartitionAssignor):
    """Round the members in order of their names, over all partitions in order of theirs."""

    name = "roundrobin"

    def assign(self, group: PartitionGroup) -> PartitionAssignment:
        """Share partitions out. A topic that does not exist is nothing."""
        columns = group.columns()
        circle = columns.member_order
        wants = columns.subscribed.T
        begin = columns.topic_begin.tolist()
        owner = np.full(len(columns.partition_topic), NOBODY, dtype=np.int64)
        turn = 0
        # Topics in a row that the same members want are dealt like one.
        for _, run in groupby(range(len(wants)), key=lambda topic: wants[topic].tobytes()):
            topics = [*run]
            first, end = begin[topics[0]], begin[topics[-1] + 1]
            takers = np.flatnonzero(wants[topics[0]][columns.member_kind[circle]])
            turns = takers[(np.searchsorted(takers, turn) + np.arange(end - first)) % len(takers)]
            owner[first:end] = circle[turns]
            turn = int(turns[-1]) + 1 if len(turns) else turn
        return PartitionAssignment.from_columns(columns, owner)
