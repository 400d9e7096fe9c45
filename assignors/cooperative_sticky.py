"""What ``sticky`` does, for groups in which work goes on during a rebalance (KIP-429).

Nobody gives anything up before it is asked to, so a partition that another member still owns is given to nobody in this
round: it is left out and listed as withheld. Its owner sees that it is gone from its share, lets go, and the
next round finds it free. When that is, the caller decides.

The members' own word counts for who owns what, whether or not they are still subscribed to it, in the latest
generation (KIP-792). Of a partition that two claim in one generation both must let go.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from connectgroup.assign.api import (
    PartitionAssignment,
    PartitionAssignor,
    PartitionGroup,
    PartitionMember,
    RebalanceProtocol,
)
from connectgroup.assign.columns.partition import NOBODY

from .sharing import emptiest_first, lowest_of_each_topic, share_out

UNKNOWN = -1


class CooperativeStickyAssignor(PartitionAssignor):
    """Even counts, fewest moves, and nothing given to one while another has it."""

    name = "cooperative-sticky"
    rebalance_protocols = (RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER)

    def assign(self, group: PartitionGroup) -> PartitionAssignment:
        """Share out what need not be given up first. A topic that does not exist is nothing."""
        members = [with_generation(member) for member in group.members]
        told = any(member is not before for member, before in zip(members, group.members, strict=True))
        columns = (replace(group, members=members) if told else group).columns()
        owner = share_out(columns, stays=lowest_of_each_topic, deal=emptiest_first)
        still_owned = (columns.partition_claim != NOBODY) & (columns.partition_claim != owner)
        owner[still_owned] = NOBODY
        withheld = frozenset(map(columns.partition, np.flatnonzero(still_owned).tolist()))
        answer = PartitionAssignment.from_columns(columns, owner, withheld=withheld)
        # Columns of another question than was put are not to be answered with.
        return replace(answer, members=tuple(answer.members)) if told else answer


def with_generation(member: PartitionMember) -> PartitionMember:
    """The member with the generation it told the assignor, where its subscription is too old to have one.

    Clients before KIP-792 (subscription version 1) put it into this assignor's own bytes: one big-endian int32. What
    they own stands in the subscription all the same.
    """
    if member.generation != UNKNOWN or len(member.metadata) != 4:
        return member
    return replace(member, generation=int.from_bytes(member.metadata, "big", signed=True))
