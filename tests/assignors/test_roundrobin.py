"""The round robin assignor: the rows of Kafka's client-side assignor, and its contract."""

from __future__ import annotations

from connectgroup.assignors.roundrobin import RoundRobinAssignor
from connectgroup.testing import AssignorContract

from .partition_tables import input_group, shares, table

STATIC = {"c1": "instance1", "c2": "instance2", "c3": "instance3"}


class TestRoundRobinKeepsTheContract(AssignorContract):
    assignor = RoundRobinAssignor
    fewest = False


def test_rr_01_two_topics_are_dealt_to_two_members() -> None:
    group = input_group({"t1": 3, "t2": 3}, {"c1": "*", "c2": "*"})
    assert shares(RoundRobinAssignor(), group) == table(c1="t1{0,2} t2{1}", c2="t1{1} t2{0,2}")


def test_rr_02_static_members_come_first_and_keep_their_partitions() -> None:
    for other in ("c4", "c0"):
        group = input_group({"t1": 3, "t2": 3}, dict.fromkeys([*STATIC, other], "*"), instances=STATIC)
        assert shares(RoundRobinAssignor(), group) == table(
            c1="t1{0} t2{1}", c2="t1{1} t2{2}", c3="t1{2}", **{other: "t2{0}"}
        )


def test_rr_03_unsubscribed_members_are_skipped() -> None:
    group = input_group({"t1": 3, "t2": 2}, {"c1": "t1", "c2": "t1 t2", "c3": "t1"})
    assert shares(RoundRobinAssignor(), group) == table(c1="t1{0}", c2="t1{1} t2{0,1}", c3="t1{2}")


def test_topic_without_partitions_does_not_advance_the_circle() -> None:
    group = input_group({"t1": 1, "t2": 0, "t3": 1}, {"c1": "*", "c2": "*"})
    assert shares(RoundRobinAssignor(), group) == table(c1="t1{0}", c2="t3{0}")


def test_circle_continues_behind_unsubscribed_members() -> None:
    group = input_group({"t1": 1, "t2": 1}, {"a": "t1 t2", "b": "t1", "c": "t1 t2"})
    assert shares(RoundRobinAssignor(), group) == table(a="t1{0}", b="", c="t2{0}")
