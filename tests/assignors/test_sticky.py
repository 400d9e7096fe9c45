"""The sticky assignors: the rows of Kafka's client-side ones; tests of ``cooperative-sticky`` alone have their own
file.

Every row is tested with both; of the cooperative one the final result must be as stated, after the revocations.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pytest

from connectgroup.assign.api import PartitionAssignor, PartitionAssignorInput
from connectgroup.assignors.cooperative_sticky import CooperativeStickyAssignor
from connectgroup.assignors.sticky import StickyAssignor
from connectgroup.protocol.units import Partitions, TopicPartition
from connectgroup.testing import AssignorContract

from .partition_tables import input_group, movable, partitions, settled, shares, table, transfers

BOTH = pytest.mark.parametrize("assignor", [StickyAssignor(), CooperativeStickyAssignor()], ids=lambda each: each.name)
TWO = {"c1": "*", "c2": "*"}
THREE = {**TWO, "c3": "*"}


class TestStickyKeepsTheContract(AssignorContract):
    assignor = StickyAssignor


def kept(before: Mapping[str, Partitions], after: Mapping[str, Partitions]) -> bool:
    """Whether all remaining members keep their partitions."""
    return all(before[member_id] <= after[member_id] for member_id in before.keys() & after.keys())


@BOTH
def test_sk_01_members_without_partitions_get_empty_assignments(assignor: PartitionAssignor) -> None:
    assert shares(assignor, input_group({}, {"c1": ""})) == table(c1="")
    assert shares(assignor, input_group({}, {"c1": "topic"})) == table(c1="")


@BOTH
def test_sk_02_only_partitions_of_subscribed_topics_are_assigned(assignor: PartitionAssignor) -> None:
    group = input_group({"topic": 2, "other": 2}, {"c1": "topic"}, owned={"c1": "topic{0,1} other{0,1}"})
    assert shares(assignor, group) == table(c1="topic{0,1}")


@BOTH
def test_sk_03_two_members_two_partitions(assignor: PartitionAssignor) -> None:
    assert shares(assignor, input_group({"topic": 2}, TWO)) == table(c1="topic{0}", c2="topic{1}")


@BOTH
def test_sk_04_single_subscriber_gets_its_topic_only(assignor: PartitionAssignor) -> None:
    group = input_group({"t1": 3, "t2": 2}, {"c1": "t1", "c2": "t1 t2", "c3": "t1"})
    assert shares(assignor, group) == table(c1="t1{0,2}", c2="t2{0,1}", c3="t1{1}")


@BOTH
def test_sk_05_two_topics_are_dealt_to_all_members(assignor: PartitionAssignor) -> None:
    assert shares(assignor, input_group({"t1": 3, "t2": 3}, TWO)) == table(c1="t1{0,2} t2{1}", c2="t1{1} t2{0,2}")


@BOTH
def test_sk_06_new_partition_moves_no_other(assignor: PartitionAssignor) -> None:
    group = input_group({"t1": 2, "t2": 3}, TWO, owned={"c1": "t1{0} t2{1}", "c2": "t1{1} t2{2}"})
    result = shares(assignor, group)
    assert result == table(c1="t1{0} t2{0,1}", c2="t1{1} t2{2}")
    assert not transfers(group, result)


@BOTH
def test_sk_07_new_member_gets_one_partition(assignor: PartitionAssignor) -> None:
    group = input_group({"t1": 2, "t2": 2}, THREE, owned={"c1": "t1{0} t2{0}", "c2": "t1{1} t2{1}"})
    result = settled(assignor, group)
    assert result == table(c1="t1{0}", c2="t1{1} t2{1}", c3="t2{0}")
    assert transfers(group, result) == {TopicPartition("t2", 0): "c3"}


@BOTH
def test_sk_08_underloaded_members_are_filled_without_moves(assignor: PartitionAssignor) -> None:
    group = input_group({"t1": 2, "t2": 3}, THREE, owned={"c1": "t1{0}", "c2": "t1{1}"})
    assert shares(assignor, group) == table(c1="t1{0} t2{1}", c2="t1{1} t2{2}", c3="t2{0}")


@BOTH
def test_sk_09_one_topic_while_members_join_and_leave(assignor: PartitionAssignor) -> None:
    one = settled(assignor, input_group({"topic": 3}, {"c1": "*"}))
    two = settled(assignor, input_group({"topic": 3}, TWO, owned=one))
    assert two == table(c1="topic{0,1}", c2="topic{2}")
    assert settled(assignor, input_group({"topic": 3}, {"c2": "*"}, owned=two)) == table(c2="topic{0,1,2}")


@BOTH
def test_sk_10_each_topic_stays_spread_as_members_join_and_leave(assignor: PartitionAssignor) -> None:
    topics, held = {"t1": 12, "t2": 12}, dict[str, Partitions]()
    for members, each in (("1", 12), ("12", 6), ("1234", 3), ("12", 6)):
        held = settled(assignor, input_group(topics, {f"c{number}": "*" for number in members}, owned=held))
        for its in held.values():
            assert [sum(partition.topic == topic for partition in its) for topic in topics] == [each, each]


@BOTH
def test_sk_13_all_members_have_two_where_round_robin_leaves_one_empty(assignor: PartitionAssignor) -> None:
    some = "t1 t3 t5"
    group = input_group({"t1": 2, "t2": 1, "t3": 2, "t4": 1, "t5": 2}, {"c1": "*", "c2": some, "c3": some, "c4": "*"})
    assert [len(its) for its in shares(assignor, group).values()] == [2, 2, 2, 2]


@BOTH
def test_sk_14_added_and_removed_topics(assignor: PartitionAssignor) -> None:
    first = settled(assignor, input_group({"topic": 3}, TWO))
    second = settled(assignor, input_group({"topic": 3, "topic2": 3}, TWO, owned=first))
    assert kept(first, second)
    assert [len(its) for its in second.values()] == [3, 3]
    third = settled(assignor, input_group({"topic2": 3}, TWO, owned=second))
    assert all(third[member_id] <= second[member_id] for member_id in TWO)


@BOTH
def test_sk_15_leave_from_a_group_of_growing_subscriptions(assignor: PartitionAssignor) -> None:
    topics = {f"topic{number:02}": number for number in range(1, 20)}
    subscribed = {f"c{number:02}": " ".join(list(topics)[:number]) for number in range(1, 20)}
    before = settled(assignor, input_group(topics, subscribed))
    assert movable(input_group(topics, subscribed), before) is None
    del subscribed["c10"]
    after = settled(assignor, input_group(topics, subscribed, owned=before))
    assert movable(input_group(topics, subscribed), after) is None
    assert settled(assignor, input_group(topics, subscribed, owned=after)) == after


@BOTH
def test_sk_16_remaining_members_keep_their_partitions_after_a_leave(assignor: PartitionAssignor) -> None:
    four = {f"c{number}": "*" for number in range(1, 5)}
    before = settled(assignor, input_group({"t1": 3}, four))
    for gone in four:
        left = {member_id: "*" for member_id in four if member_id != gone}
        after = settled(assignor, input_group({"t1": 3}, left, owned=before))
        assert kept(before, after)
        assert [len(its) for its in after.values()] == [1, 1, 1]


@BOTH
def test_sk_18_deletion_of_the_only_topic_is_no_error(assignor: PartitionAssignor) -> None:
    assert shares(assignor, input_group({}, {"c1": "topic"}, owned={"c1": "topic{0,1,2}"})) == table(c1="")


@BOTH
def test_sk_19_balanced_member_keeps_its_partitions(assignor: PartitionAssignor) -> None:
    group = input_group({"topic": 4}, THREE, owned={"c1": "topic{0,1}", "c2": "topic{2}"})
    result = shares(assignor, group)
    assert result == table(c1="topic{0,1}", c2="topic{2}", c3="topic{3}")
    assert not transfers(group, result)


@BOTH
@pytest.mark.parametrize("generation", [9, -1], ids=["sk_20", "sk_21"])
def test_sk_20_claim_of_an_older_generation_is_ignored(assignor: PartitionAssignor, generation: int) -> None:
    claim = "t{0,2} t2{1}"
    for first, second in (("c1", "c2"), ("c2", "c1")):
        group = input_group(
            {"t": 3, "t2": 3}, TWO, owned=dict.fromkeys(TWO, claim), generations={first: 10, second: generation}
        )
        assert shares(assignor, group) == table(**{first: claim, second: "t{1} t2{0,2}"})


@BOTH
def test_sk_27_undisputed_claims_without_a_generation_are_kept(assignor: PartitionAssignor) -> None:
    group = input_group({"t1": 3}, THREE, owned={"c1": "t1{0}", "c2": "t1{1}"}, generations={"c3": 5})
    assert shares(assignor, group) == table(c1="t1{0}", c2="t1{1}", c3="t1{2}")


def changed(random: Random, topics: dict[str, int], subscribed: dict[str, str]) -> None:
    """Members join and leave, subscriptions change, topics grow."""
    for member_id in random.sample(sorted(subscribed), len(subscribed) // 5):
        del subscribed[member_id]
    for number in range(random.randint(0, 4)):
        subscribed[f"new{number}"] = chosen(random, topics)
    for member_id in random.sample(sorted(subscribed), len(subscribed) // 5):
        subscribed[member_id] = chosen(random, topics)
    topics[random.choice(sorted(topics))] += random.randint(0, 5)


def chosen(random: Random, topics: Mapping[str, int]) -> str:
    return " ".join(random.sample(sorted(topics), random.randint(1, len(topics))))


@BOTH
def test_sk_28_random_subscriptions_and_random_changes_a_hundred_times(assignor: PartitionAssignor) -> None:
    for seed in range(100):
        random = Random(seed)
        topics = {f"t{number:02}": number + 1 for number in range(random.randint(10, 20))}
        subscribed = {f"c{number:02}": chosen(random, topics) for number in range(random.randint(20, 40))}
        held = settled(assignor, input_group(topics, subscribed))
        assert_balanced_and_sticky(assignor, input_group(topics, subscribed, owned=held), seed)
        changed(random, topics, subscribed)
        held = settled(assignor, input_group(topics, subscribed, owned=held))
        assert_balanced_and_sticky(assignor, input_group(topics, subscribed, owned=held), seed)


@BOTH
def test_sk_29_fifty_of_two_hundred_leave(assignor: PartitionAssignor) -> None:
    random = Random(29)
    topics = {f"t{number:02}": random.randint(1, 10) for number in range(40)}
    subscribed = {f"c{number:03}": chosen(random, topics) for number in range(200)}
    held = settled(assignor, input_group(topics, subscribed))
    for member_id in random.sample(sorted(subscribed), 50):
        del subscribed[member_id]
    group = input_group(topics, subscribed, owned=held)
    after = settled(assignor, group)
    assert_balanced_and_sticky(assignor, input_group(topics, subscribed, owned=after), 29)
    assert not transfers(group, after)  # the unowned partitions suffice for balance


def assert_balanced_and_sticky(assignor: PartitionAssignor, group: PartitionAssignorInput, seed: int) -> None:
    held = {member.member_id: member.owned for member in group.members}
    assert movable(group, held) is None, seed
    assert shares(assignor, group) == held, seed


def test_partition_claimed_twice_in_one_generation_belongs_to_neither() -> None:
    """Kafka: testPartitionsTransferringOwnershipIncludeThePartitionClaimedByMultipleConsumersInSameGeneration."""
    owned = {"c1": "topic{0,1}", "c2": "topic{0,2}"}
    group = input_group({"topic": 3}, THREE, owned=owned, generations=dict.fromkeys(THREE, 1))
    assert shares(StickyAssignor(), group) == table(c1="topic{1}", c2="topic{2}", c3="topic{0}")


def test_latest_of_three_generations_keeps_each_partition() -> None:
    owned = {"c1": "t{0} t2{0}", "c2": "t{1} t2{0}", "c3": "t{0} t2{1}"}
    group = input_group({"t": 2, "t2": 2}, THREE, owned=owned, generations={"c1": 3, "c2": 2, "c3": 1})
    result = shares(StickyAssignor(), group)
    assert partitions("t{0} t2{0}") == result["c1"]
    assert partitions("t{1}") <= result["c2"]
    assert partitions("t2{1}") <= result["c3"]
