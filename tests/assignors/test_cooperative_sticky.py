"""The cooperative sticky assignor: no partition is assigned before its owner has revoked it (KIP-429)."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings

from connectgroup.assign.api import PartitionAssignorInput
from connectgroup.assign.members import claimants
from connectgroup.assignors.cooperative_sticky import CooperativeStickyAssignor
from connectgroup.assignors.sticky import StickyAssignor
from connectgroup.testing import AssignorContract
from tests.volume import volume

from .partition_inputs import input_groups
from .partition_tables import input_group, movable, partitions, settled, shares, table, validated

THREE = {"c1": "*", "c2": "*", "c3": "*"}


class TestCooperativeStickyKeepsTheContract(AssignorContract):
    assignor = CooperativeStickyAssignor


def test_sk_07_partition_to_be_revoked_is_unassigned_in_the_first_round() -> None:
    group = input_group({"t1": 2, "t2": 2}, THREE, owned={"c1": "t1{0} t2{0}", "c2": "t1{1} t2{1}"})
    result = validated(CooperativeStickyAssignor(), group)
    assert {member.member_id: member.partitions for member in result.members} == table(
        c1="t1{0}", c2="t1{1} t2{1}", c3=""
    )
    assert result.withheld == partitions("t2{0}")


def test_sk_23_partition_claimed_twice_in_one_generation_is_revoked_from_both() -> None:
    owned = {"c1": "topic{0,1}", "c2": "topic{0,2}"}
    group = input_group({"topic": 4}, THREE, owned=owned, generations=dict.fromkeys(THREE, 1))
    result = validated(CooperativeStickyAssignor(), group)
    assert {member.member_id: member.partitions for member in result.members} == table(
        c1="topic{1,3}", c2="topic{2}", c3=""
    )
    assert result.withheld == partitions("topic{0}")


def test_sk_26_old_subscription_has_the_generation_of_its_user_data() -> None:
    """Kafka's bytes: an int32. The partition belongs to c1, though c2 sorts first and claims it too."""
    owned = {"c1": "t{0}", "c2": "t{0}"}
    group = input_group({"t": 2}, {"c1": "*", "c2": "*"}, owned=owned, generations={"c2": 6})
    old, new = group.members
    with_user_data = replace(group, members=[replace(old, metadata=(7).to_bytes(4, "big")), new])
    assert shares(CooperativeStickyAssignor(), group) == table(c1="t{1}", c2="t{0}")
    assert shares(CooperativeStickyAssignor(), with_user_data) == table(c1="t{0}", c2="t{1}")
    odd = replace(group, members=[replace(old, metadata=b"neither"), new])
    assert shares(CooperativeStickyAssignor(), odd) == table(c1="t{1}", c2="t{0}")


def test_partition_owned_by_an_unsubscribed_member_is_withheld() -> None:
    group = input_group({"t": 2, "t2": 1}, {"c1": "t2", "c2": "*"}, owned={"c1": "t{0}"})
    result = validated(CooperativeStickyAssignor(), group)
    assert result.withheld == partitions("t{0}")
    assert settled(CooperativeStickyAssignor(), group) == table(c1="t2{0}", c2="t{0,1}")


@settings(max_examples=volume(50, 200), deadline=None)
@given(input_groups())
def test_owned_partitions_are_withheld_and_two_rounds_settle(group: PartitionAssignorInput) -> None:
    """After the first round, members revoke what they lost."""
    balanced = {member_id: len(its) for member_id, its in shares(StickyAssignor(), group).items()}
    for _ in range(2):
        result = validated(CooperativeStickyAssignor(), group)
        owners = claimants(group.members)
        for member in result.members:
            for partition in member.partitions:
                assert owners.get(partition, (member.member_id,)) == (member.member_id,)
        given = {member.member_id: member.partitions for member in result.members}
        group = replace(
            group,
            members=[replace(member, owned=given[member.member_id], generation=9) for member in group.members],
        )
    assert not result.withheld
    assert movable(group, given) is None
    assert sum(len(its) ** 2 for its in given.values()) == sum(count**2 for count in balanced.values())
