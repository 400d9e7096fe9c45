"""Balanced counts with the fewest moves, computed by a member (KIP-54, with the generations of KIP-792).

Every member keeps its partitions as far as balanced counts permit. Each remaining partition goes to the member that has
the fewest at that moment. A member that must revoke partitions revokes from the topics of which it has most, so that
each topic stays spread over the members. If two members claim a partition, the later generation counts (``ownership``).

Intended for groups that revoke everything before a rebalance (EAGER); ``cooperative-sticky`` is for groups whose
members keep running meanwhile.
"""

from __future__ import annotations

from connectgroup.assign.api import PartitionAssignment, PartitionAssignor, PartitionAssignorInput

from .sharing import emptiest_first, lowest_of_each_topic, share_units


class StickyAssignor(PartitionAssignor):
    """Balanced counts, fewest moves, topics spread."""

    name = "sticky"

    def assign(self, group: PartitionAssignorInput) -> PartitionAssignment:
        """Assign all partitions. A topic that does not exist is ignored."""
        columns = group.columns()
        owner = share_units(columns, stays=lowest_of_each_topic, deal=emptiest_first)
        return PartitionAssignment.from_columns(columns, owner)
