"""The range assignors: the rows of Kafka's client-side one (RG), of the broker's one (RGS), and the contract.

Every RGS row holds for the client-side assignor too, except for the rejection of unknown topics; both are tested.
"""

from __future__ import annotations

from itertools import permutations

import pytest

from connectgroup.assignors.range import RangeAssignor, ServerRangeAssignor
from connectgroup.errors import PluginError
from connectgroup.testing import AssignorContract

from .partition_tables import Racks, input_group, partitions, shares, table

STATIC = {"c1": "instance1", "c2": "instance2", "c3": "instance3"}
BOTH = pytest.mark.parametrize("assignor", [RangeAssignor(), ServerRangeAssignor()], ids=["range", "server-range"])


class TestRangeKeepsTheContract(AssignorContract):
    assignor = RangeAssignor
    even = False


class TestServerRangeKeepsTheContract(AssignorContract):
    assignor = ServerRangeAssignor
    even = False
    strict = True


# --------------------------------------------------------------------------------------------------
# Kafka's client-side assignor


def test_rg_01_first_member_gets_the_only_partition() -> None:
    assert shares(RangeAssignor(), input_group({"t1": 1}, {"c1": "*", "c2": "*"})) == table(c1="t1{0}", c2="")


def test_rg_02_remainder_of_each_topic_goes_to_the_first_members() -> None:
    group = input_group({"t1": 3, "t2": 3}, {"c1": "*", "c2": "*"})
    assert shares(RangeAssignor(), group) == table(c1="t1{0,1} t2{0,1}", c2="t1{2} t2{2}")


def test_rg_03_topic_is_divided_over_its_own_subscribers() -> None:
    group = input_group({"t1": 3, "t2": 2}, {"c1": "t1", "c2": "t1 t2", "c3": "t1"})
    assert shares(RangeAssignor(), group) == table(c1="t1{0}", c2="t1{1} t2{0,1}", c3="t1{2}")


@pytest.mark.parametrize("instances", [{"b": "instance1", "a": "instance2"}, {"b": "instance1"}])
def test_rg_04_static_members_are_ordered_by_instance_id_and_come_first(instances: dict[str, str]) -> None:
    group = input_group({"t1": 3, "t2": 3}, {"a": "*", "b": "*"}, instances=instances)
    assert shares(RangeAssignor(), group) == table(b="t1{0,1} t2{0,1}", a="t1{2} t2{2}")


def test_rg_05_replaced_dynamic_member_changes_nothing_for_static_ones() -> None:
    for other in ("c4", "c5", "a"):
        group = input_group({"t1": 5, "t2": 4}, dict.fromkeys([*STATIC, other], "*"), instances=STATIC)
        assert shares(RangeAssignor(), group) == table(
            c1="t1{0,1} t2{0}", c2="t1{2} t2{1}", c3="t1{3} t2{2}", **{other: "t1{4} t2{3}"}
        )


def test_rg_06_new_member_id_of_a_static_member_changes_nothing() -> None:
    expected = ["t1{0,1} t2{0,1}", "t1{2,3} t2{2,3}", "t1{4} t2{4}"]
    for ids in permutations(["c1", "c4", "c5"]):
        instances = dict(zip(ids, STATIC.values(), strict=True))
        group = input_group({"t1": 5, "t2": 5}, dict.fromkeys(ids, "*"), instances=instances)
        assert shares(RangeAssignor(), group) == table(**dict(zip(ids, expected, strict=True)))


# --------------------------------------------------------------------------------------------------
# Racks: each partition has replicas in this number of consecutive racks; each topic continues where the last one ended


def laid(topics: dict[str, int], copies: int, racks: int, *, restart: bool = False) -> dict[str, list[Racks]]:
    """Replicas of each partition in ``copies`` of the racks r0, r1, ..., starting one rack further each time."""
    replicas: dict[str, list[Racks]] = {}
    first = 0
    for topic, count in topics.items():
        first = 0 if restart else first
        replicas[topic] = [Racks(f"r{(first + n + copy) % racks}" for copy in range(copies)) for n in range(count)]
        first += count
    return replicas


def spread(
    topics: dict[str, int],
    subscribed: dict[str, str],
    replicas: dict[str, list[Racks]],
    racks: dict[str, str] | None = None,
) -> tuple[dict[str, frozenset[tuple[str, int]]], int]:
    """Each member's partitions, and the number of partitions read from another rack. c1 is in r0, c2 in r1, ..."""
    racks = racks or {member_id: f"r{index}" for index, member_id in enumerate(subscribed)}
    group = input_group(topics, subscribed, racks=racks, replicas=replicas)
    result = shares(RangeAssignor(), group)
    far = sum(racks[each] not in replicas[topic][n] for each, its in result.items() for topic, n in its)
    return {**result}, far


UNLIKE = {"t1": 6, "t2": 7, "t3": 2}
ALIKE = {"t1": 5, "t2": 5, "t3": 5}
THREE = dict.fromkeys(["c1", "c2", "c3"], "*")
PLAIN = table(c1="t1{0,1} t2{0,1,2} t3{0}", c2="t1{2,3} t2{3,4} t3{1}", c3="t1{4,5} t2{5,6}")


def test_members_get_partitions_of_their_own_rack_within_their_range() -> None:
    """KIP-881, with one and with two replicas per partition; the row before RG-08."""
    one = table(c1="t1{0,3} t2{0,3,6}", c2="t1{1,4} t2{1,4} t3{0}", c3="t1{2,5} t2{2,5} t3{1}")
    assert spread(UNLIKE, THREE, laid(UNLIKE, 1, 3)) == (one, 0)
    two = table(c1="t1{0,2} t2{0,2,3} t3{1}", c2="t1{1,3} t2{1,4} t3{0}", c3="t1{4,5} t2{5,6}")
    assert spread(UNLIKE, THREE, laid(UNLIKE, 2, 3)) == (two, 1)


def test_rg_08_racks_with_every_partition_give_plain_ranges() -> None:
    assert spread(UNLIKE, THREE, laid(UNLIKE, 3, 2)) == (PLAIN, 4)


def test_rg_09_co_partitioned_topics_stay_co_partitioned_despite_racks() -> None:
    plain = table(c1="t1{0,1} t2{0,1} t3{0,1}", c2="t1{2,3} t2{2,3} t3{2,3}", c3="t1{4} t2{4} t3{4}")
    assert spread(ALIKE, THREE, laid(ALIKE, 1, 3)) == (plain, 10)
    assert spread(ALIKE, THREE, laid(ALIKE, 2, 3)) == (plain, 5)


@pytest.mark.parametrize(
    ("copies", "brokers", "racks"),
    [
        (3, 0, ["r0", "r1", "r2"]),  # brokers without racks
        (1, 3, [None, None, None]),  # members without racks
        (1, 3, ["r7", "r8", "r9"]),  # no rack in common
        (1, 3, [None, "r8", "r9"]),
        (1, 3, ["r8", "r9", None]),
        (3, 3, ["r0", "r1", "r2"]),  # replicas in every rack
        (4, 4, ["r0", "r1", "r2"]),
    ],
)
def test_rg_10_racks_without_information_are_ignored(copies: int, brokers: int, racks: list[str | None]) -> None:
    named = {each: rack for each, rack in zip(THREE, racks, strict=True) if rack}
    replicas = laid(UNLIKE, copies, brokers) if brokers else {}
    assert shares(RangeAssignor(), input_group(UNLIKE, THREE, racks=named, replicas=replicas)) == PLAIN


def test_members_with_other_subscriptions_get_no_part() -> None:
    some = {"c1": "*", "c2": "*", "c3": "t1 t3"}
    one = table(c1="t1{0,3} t2{0,2,3,6}", c2="t1{1,4} t2{1,4,5} t3{0}", c3="t1{2,5} t3{1}")
    assert spread(UNLIKE, some, laid(UNLIKE, 1, 3)) == (one, 2)
    two = table(c1="t1{0,2} t2{0,2,3,5} t3{1}", c2="t1{1,3} t2{1,4,6} t3{0}", c3="t1{4,5}")
    assert spread(UNLIKE, some, laid(UNLIKE, 2, 3)) == (two, 0)


def test_only_topics_with_the_same_subscribers_are_co_partitioned() -> None:
    some = {"c1": "*", "c2": "*", "c3": "t1 t3"}
    one = table(c1="t1{0,1} t2{0,1,4} t3{0,1}", c2="t1{2,3} t2{2,3} t3{2,3}", c3="t1{4} t3{4}")
    assert spread(ALIKE, some, laid(ALIKE, 1, 3)) == (one, 9)
    two = table(c1="t1{2} t2{0,1,3} t3{2}", c2="t1{0,3} t2{2,4} t3{0,3}", c3="t1{1,4} t3{1,4}")
    assert spread(ALIKE, some, laid(ALIKE, 2, 3)) == (two, 0)


def test_co_partitioned_topics_go_to_the_rack_that_has_all_of_them() -> None:
    topics = {"t1": 6, "t2": 6, "t3": 2, "t4": 2}
    racks = {"c1": "r0", "c2": "r1", "c3": "r1", "c4": "r0"}
    pairs = {"c1": "t1 t2", "c2": "t1 t2", "c3": "t3 t4", "c4": "t3 t4"}
    apart = table(c1="t1{0,2,4} t2{0,2,4}", c2="t1{1,3,5} t2{1,3,5}", c3="t3{1} t4{1}", c4="t3{0} t4{0}")
    assert spread(topics, pairs, laid(topics, 1, 2), racks) == (apart, 0)
    all_topics = dict.fromkeys(pairs, "*")
    both = table(c1="t1{0,2} t2{0,2} t3{0} t4{0}", c2="t1{1,3} t2{1,3} t3{1} t4{1}", c3="t1{5} t2{5}", c4="t1{4} t2{4}")
    assert spread(topics, all_topics, laid(topics, 1, 2), racks) == (both, 0)
    third = table(
        c1="t1{0,3} t2{0,3} t3{0} t4{0}", c2="t1{1,4} t2{1,4} t3{1} t4{1}", c3="t1{2} t2{2}", c4="t1{5} t2{5}"
    )
    assert spread(topics, all_topics, laid(topics, 1, 3), racks) == (third, 6)


def test_static_members_keep_partitions_of_their_rack_under_new_ids() -> None:
    topics = {"t1": 5, "t2": 5}
    replicas = laid(topics, 2, 3, restart=True)
    for ids in permutations(["c1", "c4", "c5"]):
        group = input_group(
            topics,
            dict.fromkeys(ids, "*"),
            instances=dict(zip(ids, STATIC.values(), strict=True)),
            racks=dict(zip(ids, ["r0", "r1", "r2"], strict=True)),
            replicas=replicas,
        )
        expected = ["t1{0,2} t2{0,2}", "t1{1,3} t2{1,3}", "t1{4} t2{4}"]
        assert shares(RangeAssignor(), group) == table(**dict(zip(ids, expected, strict=True)))


def test_topic_of_unknown_racks_keeps_co_partitioned_topics_together() -> None:
    topics = {"t1": 3, "t2": 3}
    replicas = {"t1": [Racks({"r2"}), Racks({"r1"}), Racks({"r0"})]}
    group = input_group(topics, THREE, racks={"c1": "r0", "c2": "r1", "c3": "r2"}, replicas=replicas)
    assert shares(RangeAssignor(), group) == table(c1="t1{0} t2{0}", c2="t1{1} t2{1}", c3="t1{2} t2{2}")


def replica_racks(text: str) -> list[Racks]:
    """``"r1 r0+r1 -"``: the racks of each partition's replicas."""
    return [Racks(word.split("+")) if word != "-" else Racks() for word in text.split()]


def test_member_without_a_rack_matches_every_rack() -> None:
    """The expected results here and in the next three tests are those of Kafka's client 4.3.1."""
    racks = {"m03": "r1", "m10": "r2", "m13": "r2", "m16": "r1"}
    replicas = {"t": replica_racks("r0+r3 r1+r3 r0+r1 r3 r1+r2 r1 r2+r3 r0+r3 r0+r1")}
    members = dict.fromkeys(["m03", "m09", "m10", "m13", "m16"], "*")
    group = input_group({"t": 9}, members, instances={"m09": "i90"}, racks=racks, replicas=replicas)
    assert shares(RangeAssignor(), group) == table(m03="t{2,4}", m09="t{0,1}", m10="t{3,6}", m13="t{7}", m16="t{5,8}")


def test_member_without_a_rack_matches_co_partitioned_topics() -> None:
    near = replica_racks("r1 r0 r0 r1")
    racks = {"b": "r1", "c": "r0"}
    group = input_group({"t": 4, "u": 4}, dict.fromkeys("abc", "*"), racks=racks, replicas={"t": near, "u": near})
    assert shares(RangeAssignor(), group) == table(a="t{0,1} u{0,1}", b="t{3} u{3}", c="t{2} u{2}")


def test_co_partitioned_partitions_are_assigned_in_order() -> None:
    """For co-partitioned topics the first member in need gets one more; for a single topic, the first member."""
    racks = {"a": "r1", "b": "r1", "c": "r0", "d": "r2", "e": "r0", "f": "r0"}
    near = replica_racks("r2 - r0 r2 - r0 -")
    two = input_group({"t": 7, "u": 7}, dict.fromkeys(racks, "*"), racks=racks, replicas={"t": near, "u": near})
    row = table(a="t{1}", b="t{4}", c="t{2}", d="t{0,3}", e="t{5}", f="t{6}")
    assert {
        each: frozenset(one for one in its if one.topic == "t") for each, its in shares(RangeAssignor(), two).items()
    } == row
    one = input_group({"t": 7}, dict.fromkeys(racks, "*"), racks=racks, replicas={"t": near})
    row = table(a="t{1}", b="t{3}", c="t{2,5}", d="t{0}", e="t{4}", f="t{6}")
    assert shares(RangeAssignor(), one) == row


def test_topics_on_all_racks_are_divided_plainly_though_not_co_partitioned() -> None:
    racks = {"a": "r1", "b": "r1", "c": "r2", "d": "r3"}
    group = input_group(
        {"t": 1, "u": 1},
        dict.fromkeys(racks, "*"),
        racks=racks,
        replicas={"t": replica_racks("r2"), "u": replica_racks("r2+r3")},
    )
    assert shares(RangeAssignor(), group) == table(a="t{0} u{0}", b="", c="", d="")


def test_co_partitioned_topics_are_matched_if_racks_matter_to_one() -> None:
    racks = {"a": "r0", "b": "r1", "c": "r1", "d": "r0"}
    topics = {"t": 1, "u": 3, "v": 2, "w": 1}
    replicas = {
        "t": replica_racks("r1"),
        "u": replica_racks("r1 r0 r0+r1"),
        "v": replica_racks("r0+r1 r0"),
        "w": replica_racks("r1"),
    }
    group = input_group(topics, dict.fromkeys(racks, "*"), racks=racks, replicas=replicas)
    assert shares(RangeAssignor(), group) == table(a="u{1} v{0}", b="t{0} u{0} w{0}", c="u{2}", d="v{1}")


# --------------------------------------------------------------------------------------------------
# Kafka's assignor on the broker


@BOTH
def test_rgs_01_two_topics_two_members(assignor: RangeAssignor) -> None:
    group = input_group({"T1": 3, "T3": 2}, {"A": "*", "B": "*"})
    assert shares(assignor, group) == table(A="T1{0,1} T3{0}", B="T1{2} T3{1}")


@BOTH
def test_rgs_02_each_topic_over_its_own_subscribers(assignor: RangeAssignor) -> None:
    group = input_group({"T1": 3, "T2": 3, "T3": 2}, {"A": "T1 T2", "B": "T3", "C": "T2 T3"})
    assert shares(assignor, group) == table(A="T1{0,1,2} T2{0,1}", B="T3{0}", C="T2{2} T3{1}")


@BOTH
def test_rgs_03_new_member_without_a_range_moves_nothing(assignor: RangeAssignor) -> None:
    before = {"A": "T1{0} T2{0}", "B": "T1{1} T2{1}"}
    group = input_group({"T1": 2, "T2": 2}, dict.fromkeys("ABC", "*"), owned=before)
    assert shares(assignor, group) == table(**before, C="")


@BOTH
def test_rgs_04_new_partition_goes_to_the_shorter_range(assignor: RangeAssignor) -> None:
    before = {"A": "T1{0,1} T2{0,1}", "B": "T1{2} T2{2}"}
    group = input_group({"T1": 4, "T2": 4}, dict.fromkeys("AB", "*"), owned=before)
    assert shares(assignor, group) == table(A="T1{0,1} T2{0,1}", B="T1{2,3} T2{2,3}")


@BOTH
def test_rgs_05_contiguous_ranges_take_precedence_over_stickiness(assignor: RangeAssignor) -> None:
    before = {"A": "T1{0,1} T2{0,1}", "B": "T1{2} T2{2}"}
    group = input_group({"T1": 3, "T2": 3}, dict.fromkeys("ABC", "*"), owned=before)
    assert shares(assignor, group) == table(A="T1{0} T2{0}", B="T1{1} T2{1}", C="T1{2} T2{2}")


@BOTH
def test_rgs_06_last_member_gets_everything(assignor: RangeAssignor) -> None:
    group = input_group({"T1": 3, "T2": 3}, {"B": "*"}, owned={"B": "T1{2} T2{2}"})
    assert shares(assignor, group) == table(B="T1{0,1,2} T2{0,1,2}")


@BOTH
@pytest.mark.parametrize("others", [{"B": "instanceB"}, {}], ids=["all static", "mixed"])
def test_rgs_08_successor_of_a_static_member_gets_its_partitions(
    assignor: RangeAssignor, others: dict[str, str]
) -> None:
    topics = {"T1": 3, "T2": 3}
    before = shares(assignor, input_group(topics, dict.fromkeys("AB", "*"), instances={"A": "instanceA", **others}))
    later = input_group(topics, {"Z": "*", "B": "*"}, instances={"Z": "instanceA", **others})
    assert shares(assignor, later) == {"Z": before["A"], "B": before["B"]}
    assert before["A"] == partitions("T1{0,1} T2{0,1}")


def test_rgs_09_server_range_rejects_an_unknown_topic() -> None:
    with pytest.raises(PluginError, match="A is subscribed to 'T3'; allowed: T1"):
        shares(ServerRangeAssignor(), input_group({"T1": 3}, {"A": "T1 T3", "B": "T2"}))
