"""The uniform assignor: the rows of the broker's one (UH: equal subscriptions, UX: others), and its contract."""

from __future__ import annotations

import pytest

from connectgroup.assignors.uniform import UniformAssignor
from connectgroup.errors import PluginError
from connectgroup.testing import AssignorContract

from .partition_tables import input_group, shares, table, transfers

AB = dict.fromkeys("AB", "*")
ABC = dict.fromkeys("ABC", "*")


class TestUniformKeepsTheContract(AssignorContract):
    assignor = UniformAssignor
    strict = True


def test_uh_01_new_group_of_two() -> None:
    """The table allows any split into 2 and 3; this is the one of Kafka's test."""
    assert shares(UniformAssignor(), input_group({"T1": 3, "T3": 2}, AB)) == table(A="T3{0,1}", B="T1{0,1,2}")


def test_uh_02_more_members_than_partitions() -> None:
    assert shares(UniformAssignor(), input_group({"T3": 2}, ABC)) == table(A="", B="T3{0}", C="T3{1}")


def test_uh_03_exactly_one_partition_moves_if_one_is_enough() -> None:
    group = input_group({"T1": 3, "T2": 3}, AB, owned={"A": "T1{0,1} T2{0,1}", "B": "T1{2} T2{2}"})
    result = shares(UniformAssignor(), group)
    assert result == table(A="T1{0,1} T2{0}", B="T1{2} T2{1,2}")
    assert len(transfers(group, result)) == 1


def test_uh_04_new_partitions_move_no_other() -> None:
    group = input_group({"T1": 6, "T2": 5}, AB, owned={"A": "T1{0,2} T2{0}", "B": "T1{1} T2{1,2}"})
    assert shares(UniformAssignor(), group) == table(A="T1{0,2} T2{0,3,4}", B="T1{1,3,4,5} T2{1,2}")


def test_uh_06_partitions_of_a_lost_member_are_assigned() -> None:
    group = input_group({"T1": 3, "T2": 3}, AB, owned={"A": "T1{0} T2{0}", "B": "T1{1} T2{1}"})
    assert shares(UniformAssignor(), group) == table(A="T1{0} T2{0,2}", B="T1{1,2} T2{1}")


def test_uh_07_hundred_topics_on_forty_nine_members() -> None:
    topics = {f"topic{number:03}": 3 for number in range(100)}
    result = shares(UniformAssignor(), input_group(topics, {f"member{number:02}": "*" for number in range(49)}))
    assert sorted({len(its) for its in result.values()}) == [6, 7]


def test_ux_01_members_with_fewer_topics_are_assigned_first() -> None:
    group = input_group({"T1": 3, "T3": 6}, {"A": "T1 T3", "B": "T3"})
    assert shares(UniformAssignor(), group) == table(A="T1{0,1,2} T3{4}", B="T3{0,1,2,3,5}")


def test_ux_03_unsubscribed_topics_are_revoked() -> None:
    """Kafka's test passes equal subscriptions as different; here a third member without any makes them differ."""
    topics = {"T1": 2, "T2": 2, "T3": 2}
    group = input_group(topics, {"A": "*", "B": "*", "C": ""}, owned={"A": "T1{0,1} T2{0,1} T3{0,1}"})
    assert shares(UniformAssignor(), group) == table(A="T2{0} T3{0,1}", B="T1{0,1} T2{1}", C="")


def test_ux_04_member_without_subscriptions_gets_nothing() -> None:
    assert shares(UniformAssignor(), input_group({"T1": 3}, {"A": "*", "B": ""})) == table(A="T1{0,1,2}", B="")


def test_rgs_09_unknown_topic_is_rejected() -> None:
    with pytest.raises(PluginError, match="A is subscribed to 'T3'; allowed: T1"):
        shares(UniformAssignor(), input_group({"T1": 3}, {"A": "T3", "B": "T2"}))
