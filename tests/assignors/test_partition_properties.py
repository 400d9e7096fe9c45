"""Properties of every built-in partition assignor, for any input; scenarios J.

``run_assignor`` validates every result. In ``CASES`` random cases moves are compared with the optimum.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import permutations
from random import Random

import pytest
from hypothesis import given, settings, strategies as st

from connectgroup.assign.api import PartitionAssignor, PartitionAssignorInput
from connectgroup.assign.members import claimants
from connectgroup.assignors.cooperative_sticky import CooperativeStickyAssignor
from connectgroup.assignors.range import RangeAssignor, ServerRangeAssignor
from connectgroup.assignors.roundrobin import RoundRobinAssignor
from connectgroup.assignors.sticky import StickyAssignor
from connectgroup.assignors.uniform import UniformAssignor
from connectgroup.plugins import available, load_partition_assignor
from connectgroup.protocol.units import Partitions, TopicPartition
from connectgroup.testing.contracts.assignor import PartitionAssignorContract
from tests.volume import volume

from .flow import best_balance
from .partition_inputs import input_groups
from .partition_tables import input_group, movable, settled, shares, validated

KINDS: list[type[PartitionAssignor]] = [
    RangeAssignor,
    ServerRangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
    CooperativeStickyAssignor,
    UniformAssignor,
]
ALL = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
BALANCED = pytest.mark.parametrize("kind", KINDS[3:], ids=lambda kind: kind.name)
CASES = volume(400, 600, 3_000)


@ALL
def test_every_assignor_is_found_by_its_name(kind: type[PartitionAssignor]) -> None:
    assert kind.name in available("partition_assignors")
    assert type(load_partition_assignor(kind.name)) is kind


@ALL
@pytest.mark.parametrize("order", list(permutations("ABC")), ids="".join)
def test_uh_08_own_result_is_stable_in_any_order_of_the_input(
    kind: type[PartitionAssignor], order: tuple[str, ...]
) -> None:
    """KAFKA-18688: topics of 2, 5 and 7 partitions were reshuffled by iteration order."""
    topics = {"T1": 2, "T2": 5, "T3": 7}
    first = shares(kind(), input_group(topics, dict.fromkeys("ABC", "*")))
    second = shares(kind(), input_group(topics, dict.fromkeys(order, "*"), owned=first))
    assert second == first
    assert all(second[member_id] is first[member_id] for member_id in order)


@ALL
@settings(max_examples=volume(25, 100), deadline=None)
@given(group=input_groups())
def test_own_result_is_stable(kind: type[PartitionAssignor], group: PartitionAssignorInput) -> None:
    first = settled(kind(), group)
    members = [replace(member, owned=first[member.member_id], generation=9) for member in group.members]
    assert shares(kind(), replace(group, members=members)) == first


@ALL
@settings(max_examples=volume(25, 100), deadline=None)
@given(group=input_groups(), random=st.randoms(use_true_random=False))
def test_order_of_the_input_has_no_effect(
    kind: type[PartitionAssignor], group: PartitionAssignorInput, random: Random
) -> None:
    contract = PartitionAssignorContract()
    assert contract.text_of(validated(kind(), contract.shuffled(group, random))) == contract.text_of(
        validated(kind(), group)
    )


@BALANCED
@settings(max_examples=volume(25, 100), deadline=None)
@given(group=input_groups())
def test_no_partition_could_move_to_a_member_with_two_fewer(
    kind: type[PartitionAssignor], group: PartitionAssignorInput
) -> None:
    assert movable(group, settled(kind(), group)) is None


@pytest.mark.parametrize("kind", KINDS[2:], ids=lambda kind: kind.name)
@settings(max_examples=volume(25, 100), deadline=None)
@given(group=input_groups(alike=True))
def test_counts_are_within_one_for_equal_subscriptions(
    kind: type[PartitionAssignor], group: PartitionAssignorInput
) -> None:
    counts = [len(its) for its in settled(kind(), group).values()]
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("kind", KINDS[:2], ids=lambda kind: kind.name)
@settings(max_examples=volume(25, 100), deadline=None)
@given(group=input_groups())
def test_ranges_are_contiguous_and_alike_for_topics_of_one_size_and_audience(
    kind: type[PartitionAssignor], group: PartitionAssignorInput
) -> None:
    result = shares(kind(), group)
    cuts: dict[tuple[int, frozenset[str]], list[list[int]]] = {}
    for spec in group.topics:
        audience = frozenset(member.member_id for member in group.members if spec.name in member.subscribed)
        cut = [sorted(number for topic, number in result[each] if topic == spec.name) for each in sorted(result)]
        assert all(its == list(range(its[0], its[0] + len(its))) for its in cut if its)
        assert cuts.setdefault((spec.num_partitions, audience), cut) == cut


@BALANCED
def test_counts_are_optimal_and_moves_minimal(kind: type[PartitionAssignor]) -> None:
    """Half of the cases have equal subscriptions, where both can be computed; the others are compared with a flow."""
    for seed in range(CASES):
        group, squares, given_away = posed(seed)
        result = settled(kind(), group)
        assert sum(len(its) ** 2 for its in result.values()) == squares, seed
        homes = at_home(group)
        assert sum(len(homes[member_id] - result[member_id]) for member_id in homes) == given_away, seed


@cache
def posed(seed: int) -> tuple[PartitionAssignorInput, int, int]:
    """An input, the least sum of squared counts, and the fewest revocations for it; the same for all assignors."""
    alike = seed % 2 == 0
    group = piled(Random(seed)) if seed % 16 == 15 else case(Random(seed), alike=alike)
    return group, *(counted(group) if alike else best_balance(group))


def case(random: Random, *, alike: bool) -> PartitionAssignorInput:
    """A group without owners, with few owners, scattered owners, or balanced with a member or subscription changed."""
    topics = {f"t{number}": random.randint(1, 7) for number in range(random.randint(1, 5))}
    members = [f"m{number}" for number in range(random.randint(1, 6))]

    def topics_of_one() -> str:
        return "*" if alike else " ".join(random.sample(sorted(topics), random.randint(0, len(topics))))

    subscribed = {member_id: topics_of_one() for member_id in members}
    held: dict[str, Partitions] = {}
    holders = {"fresh": [], "lopsided": members[:2], "anyhow": members}
    kind_of_case = random.choice([*holders, "balanced"])
    if kind_of_case == "balanced":
        held = shares(StickyAssignor(), input_group(topics, subscribed))
        if random.random() < 0.4 and len(members) > 1:
            del subscribed[random.choice(members)]
        else:
            subscribed[random.choice([*members, "n1", "n2"])] = topics_of_one()
    elif holders[kind_of_case]:
        whose = {
            TopicPartition(topic, number): random.choice(holders[kind_of_case])
            for topic, count in topics.items()
            for number in range(count)
            if random.random() < 0.9
        }
        held = {each: frozenset(one for one in whose if whose[one] == each) for each in members}
    return input_group(topics, subscribed, owned=held)


def piled(random: Random) -> PartitionAssignorInput:
    """Each topic is owned by two of its subscribers, some with many partitions: piles are exchanged, many at a time."""
    topics = {f"t{number}": random.choice((2, 9, 25)) for number in range(random.randint(2, 5))}
    subscribed = {f"m{number}": random.sample(sorted(topics), random.randint(1, len(topics))) for number in range(6)}
    held: dict[str, set[TopicPartition]] = {member_id: set() for member_id in subscribed}
    for topic, count in topics.items():
        takers = [each for each in random.sample(sorted(subscribed), len(subscribed)) if topic in subscribed[each]][:2]
        for number in range(count if takers else 0):
            held[random.choice(takers)].add(TopicPartition(topic, number))
    owned = {member_id: frozenset(its) for member_id, its in held.items()}
    return input_group(topics, {each: " ".join(its) for each, its in subscribed.items()}, owned=owned)


def counted(group: PartitionAssignorInput) -> tuple[int, int]:
    """``best_balance`` for equal subscriptions: by definition, without a formula."""
    share, extra = divmod(len(group.partitions), len(group.members))
    held = sorted((len(its) for its in at_home(group).values()), reverse=True)
    limits = [share + 1] * extra + [share] * (len(held) - extra)
    return sum(limit**2 for limit in limits), sum(
        max(0, number - limit) for number, limit in zip(held, limits, strict=True)
    )


def at_home(group: PartitionAssignorInput) -> dict[str, Partitions]:
    """The partitions that each member owns and may keep."""
    there = {*group.partitions}
    owner = {one: owners[0] for one, owners in claimants(group.members).items() if len(owners) == 1}
    return {
        member.member_id: frozenset(
            one
            for one in member.owned
            if one in there and one.topic in member.subscribed and owner.get(one) == member.member_id
        )
        for member in group.members
    }


def test_generated_cases_are_of_all_kinds() -> None:
    """Necessary moves, unnecessary moves, subscriptions that force uneven counts: each often enough."""
    seen: Counter[str] = Counter()
    for seed in range(1, 400, 2):
        group = case(Random(seed), alike=False)
        _, given_away = best_balance(group)
        counts = [len(its) for its in shares(StickyAssignor(), group).values()]
        seen["moves"] += given_away > 0
        seen["none"] += given_away == 0 and any(member.owned for member in group.members)
        seen["uneven"] += max(counts) - min(counts) > 1
    assert min(seen[kind] for kind in ("moves", "none", "uneven")) >= 20, seen
