"""Even counts with the fewest moves, decided on one of the members (KIP-54, with KIP-792's generations).

Everybody keeps what it has as far as even counts allow; what is left goes, partition by partition, to whoever has the
fewest by then. A member that must give something up gives of its tallest piles, so that each topic stays spread
over the members. What two members claim is whose claim is of the later generation; see ``connectgroup.partitions``.

Meant for groups in which everything is given up before a rebalance; ``cooperative-sticky`` is for those in which work
goes on meanwhile.
"""

from __future__ import annotations

from connectgroup.assignor import PartitionAssignment, PartitionAssignor, PartitionGroup

from .sharing import emptiest_first, lowest_of_each_topic, share_out


class StickyAssignor(PartitionAssignor):
    """Even counts, fewest moves, topics spread."""

    name = "sticky"

    def assign(self, group: PartitionGroup) -> PartitionAssignment:
        """Share partitions out. A topic that does not exist is nothing."""
        columns = group.columns()
        owner = share_out(columns, stays=lowest_of_each_topic, deal=emptiest_first)
        return PartitionAssignment.from_columns(columns, owner)
