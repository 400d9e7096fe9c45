"""Conflicting claims and assignments before a revocation (KIP-792)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from connectgroup.assign.api import EarlyAssignment, PartitionAssignment, PartitionAssignorInput, assigned_too_early
from connectgroup.assign.members import (
    PartitionMemberAssignment,
    claimants,
    validate_subscription,
)
from connectgroup.assign.sandbox import run_assignor
from connectgroup.assignors.range import RangeAssignor
from connectgroup.protocol.units import TopicPartition
from tests.assignors.partition_inputs import input_groups
from tests.assignors.partition_tables import input_group, partitions
from tests.volume import volume

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def group(owned: dict[str, str], **generations: int) -> PartitionAssignorInput:
    return input_group({"t": 4}, dict.fromkeys(owned, "*"), owned=dict(owned), generations=generations)


def result(**shares: str) -> PartitionAssignment:
    return PartitionAssignment(
        members=[PartitionMemberAssignment(member_id=each, partitions=partitions(its)) for each, its in shares.items()]
    )


def test_overlapping_owners_are_found() -> None:
    members = group({"c1": "t{0,1}", "c2": "t{1}", "c3": "t{1}", "c4": "t{0}"}, c1=5, c2=5, c3=4, c4=5).members
    overlaps = validate_subscription(members)
    assert overlaps == {T0: ("c1", "c4"), T1: ("c1", "c2")}  # c3's claim is stale


def test_distinct_owners_are_no_overlap() -> None:
    assert not validate_subscription(group({"c1": "t{0,1}", "c2": "t{1}"}, c1=4, c2=5).members)
    assert not validate_subscription([])


def test_partition_assigned_while_another_member_owns_it_is_found() -> None:
    members = group({"c1": "t{0}", "c2": "t{1}", "c3": ""}).members
    assert assigned_too_early(members, result(c1="t{0}", c2="t{1}", c3="t{2}")) == ()
    early = assigned_too_early(members, result(c1="t{1}", c2="", c3="t{0}"))
    assert early == (
        EarlyAssignment(partition=T0, to="c3", owners=("c1",)),
        EarlyAssignment(partition=T1, to="c1", owners=("c2",)),
    )
    assert str(early[0]) == "t-0 is assigned to c3 while owned by c1"


def test_partition_with_two_owners_is_too_early_for_either() -> None:
    members = group({"c1": "t{0}", "c2": "t{0}", "c3": ""}, c1=3, c2=3).members
    assert assigned_too_early(members, result(c1="t{0}")) == (EarlyAssignment(partition=T0, to="c1", owners=("c2",)),)
    assert assigned_too_early(members, result(c3="t{0}")) == (
        EarlyAssignment(partition=T0, to="c3", owners=("c1", "c2")),
    )
    assert assigned_too_early(members, result(c1="", c2="")) == ()


@pytest.mark.parametrize("stale", [3, -1])
def test_sk_20_sk_21_stale_claim_blocks_no_assignment(stale: int) -> None:
    """KIP-792; -1 is unknown and older than any. Kafka's check of assignments ignores generations."""
    members = group({"c1": "t{0}", "c2": "t{0}", "c3": ""}, c1=stale, c2=4).members
    assert assigned_too_early(members, result(c2="t{0}")) == ()
    assert assigned_too_early(members, result(c1="t{0}")) == (EarlyAssignment(partition=T0, to="c1", owners=("c2",)),)
    assert assigned_too_early(members, result(c3="t{0}")) == (EarlyAssignment(partition=T0, to="c3", owners=("c2",)),)


@pytest.mark.parametrize("generation", [-1, 3])
def test_undisputed_claim_counts_at_any_generation(generation: int) -> None:
    members = group({"c1": "t{0}", "c2": "t{1}"}, c1=generation, c2=9).members
    assert assigned_too_early(members, result(c2="t{0}")) == (EarlyAssignment(partition=T0, to="c2", owners=("c1",)),)


def test_assignment_of_an_unknown_member_is_checked_against_the_owners() -> None:
    members = group({"c1": "t{0}"}).members
    assert assigned_too_early(members, result(who="t{0,1}")) == (
        EarlyAssignment(partition=T0, to="who", owners=("c1",)),
    )


@settings(max_examples=volume(50, 200), deadline=None)
@given(input_groups(), st.data())
def test_every_partition_owned_by_another_member_is_found(group: PartitionAssignorInput, data: st.DataObject) -> None:
    """Only doubtful partitions are examined closely; examining all of them gives the same result."""
    if data.draw(st.booleans()):
        plan = run_assignor(RangeAssignor(), group)
    else:
        plan = PartitionAssignment(
            members=[
                PartitionMemberAssignment(member_id=member.member_id, partitions=member.owned)
                for member in group.members
            ]
        )
    owners = claimants(group.members)
    expected = {
        (partition, share.member_id)
        for share in plan.members
        for partition in share.partitions
        if set(owners.get(partition, ())) - {share.member_id}
    }
    assert {(early.partition, early.to) for early in assigned_too_early(group.members, plan)} == expected
