"""Descriptions of a classic group, and its numbers for metrics."""

from __future__ import annotations

from typing import Final

from ...protocol.messages.describe import DescribedGroup, DescribedMember, DescribeRequest
from ...protocol.records.classic import ClassicState
from ..registry import GroupNumbers
from .state import ClassicGroupState

REBALANCING: Final = (ClassicState.PREPARING_REBALANCE, ClassicState.COMPLETING_REBALANCE)


def describe(group: ClassicGroupState, request: DescribeRequest) -> DescribedGroup:
    """A group that exists: its state, its generation and, unless left out, its members."""
    members = tuple(
        DescribedMember(
            member_id=member.member_id,
            instance_id=member.instance_id,
            client_host=member.client_host,
            client_id=member.client_id,
            member_epoch=group.generation,
            state="STABLE" if group.state is ClassicState.STABLE else "REBALANCING",
            classic_metadata=group.metadata(member) if request.include_classic else b"",
            classic_assignment=member.assignment if request.include_classic else b"",
        )
        for member in group.members.values()
    )
    return DescribedGroup(
        group_id=group.group_id,
        state=group.state.shown,
        group_epoch=group.generation,
        assignor_name=group.record.protocol_name,
        members=() if request.connectors_only else members,
        incarnation=group.created_ms,
        protocol_type=group.record.protocol_type,
        classic_state=group.state.shown,
    )


def measure(group: ClassicGroupState) -> GroupNumbers:
    """The state of a group as numbers, for metrics."""
    return GroupNumbers(
        members=len(group.members),
        epoch=group.generation,
        target_epoch=group.generation,
        computed_by=group.record.leader,
        is_rebalancing=group.state in REBALANCING,
    )
