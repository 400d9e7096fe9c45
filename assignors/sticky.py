"""Even counts with the fewest moves, decided on one of the members (KIP-54, with KIP-792's generations).

Every member keeps its partitions as far as even counts allow. Each remaining partition goes to the member that has the
fewest at that moment. A member that must revoke partitions revokes from the topics of which it has most, so that each
topic stays spread over the members. Where two members claim a partition, the later generation counts (``ownership``).

Meant for groups in which everything is given up before a rebalance; ``cooperative-sticky`` is for those in which work
goes on meanwhile.
"""

from __future__ import annotations

from connectgroup.assign.api import PartitionAssignment, PartitionAssignor, PartitionGroup

from .sharing import emptiest_first, lowest_of_each_topic, share_out


class StickyAssignor(PartitionAssignor):
    """Even counts, fewest moves, topics spread."""

    name = "sticky"

    def assign(self, group: PartitionGroup) -> PartitionAssignment:
        """Share partitions out. A topic that does not exist is nothing."""
        columns = group.columns()
        owner = share_out(columns, stays=lowest_of_each_topic, deal=emptiest_first)
        return PartitionAssignment.from_columns(columns, owner)
