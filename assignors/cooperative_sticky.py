"""The ``sticky`` assignor for groups whose members keep running during a rebalance (KIP-429).

A member revokes nothing before an assignment requires it. A partition that moves while another member still owns it is
therefore assigned to no member in this round: it is omitted and listed as withheld. Its owner sees
that the partition is no longer in its assignment and revokes it, and the next round finds it free. The caller decides
when the next round runs.

Ownership is what the members report in the latest generation (KIP-792), whether or not they are still subscribed. If
two members claim a partition in one generation, both must revoke it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from connectgroup.assign.api import PartitionAssignment, PartitionAssignor, PartitionAssignorInput, RebalanceProtocol
from connectgroup.assign.columns import UNASSIGNED
from connectgroup.assign.members import PartitionMember

from .sharing import emptiest_first, lowest_of_each_topic, share_units

UNKNOWN = -1


class CooperativeStickyAssignor(PartitionAssignor):
    """Balanced counts, fewest moves, and no partition assigned while another member owns it."""

    name = "cooperative-sticky"
    rebalance_protocols = (RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER)

    def assign(self, group: PartitionAssignorInput) -> PartitionAssignment:
        """Assign all partitions that need not be revoked first. A topic that does not exist is ignored."""
        members = [with_generation(member) for member in group.members]
        assignor_state = any(member is not before for member, before in zip(members, group.members, strict=True))
        columns = (replace(group, members=members) if assignor_state else group).columns()
        owner = share_units(columns, stays=lowest_of_each_topic, deal=emptiest_first)
        still_owned = (columns.partition_claim != UNASSIGNED) & (columns.partition_claim != owner)
        owner[still_owned] = UNASSIGNED
        withheld = frozenset(map(columns.partition, np.flatnonzero(still_owned).tolist()))
        result = PartitionAssignment.from_columns(columns, owner, withheld=withheld)
        # A result must not refer to columns of another input than the caller's.
        return replace(result, members=tuple(result.members)) if assignor_state else result


def with_generation(member: PartitionMember) -> PartitionMember:
    """The member with the generation from its assignor user data, if its subscription version is too old to carry one.

    Clients before KIP-792 (subscription version 1) send it in this assignor's user data: one big-endian int32. Their
    owned partitions are in the subscription all the same.
    """
    if member.generation != UNKNOWN or len(member.metadata) != 4:
        return member
    return replace(member, generation=int.from_bytes(member.metadata, "big", signed=True))
