"""Properties of every built-in assignor of connectors and tasks, for any input; scenarios J, S18, S19.

``run_assignor`` validates every result: no violation, and complete. Each assignor's contract class checks, in two
processes, that results do not depend on the hash seed. Moves are counted in ``CASES`` random cases.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings, strategies as st

from connectgroup.assign.api import ConnectAssignor, ConnectAssignorInput
from connectgroup.assign.convert import members_for_install
from connectgroup.assign.sandbox import run_assignor
from connectgroup.assignors.balanced import BalancedAssignor
from connectgroup.assignors.incremental_cooperative import IncrementalCooperativeAssignor
from connectgroup.assignors.weighted import WeightedAssignor
from connectgroup.plugins import available, load_assignor
from connectgroup.protocol.units import Units
from tests.volume import volume

from .connect_inputs import case, input_groups, last, moves, owning
from .tables import counts

KINDS: list[type[ConnectAssignor]] = [BalancedAssignor, IncrementalCooperativeAssignor, WeightedAssignor]
ALL = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
CASES = volume(400, 600, 3_000)


def settled(kind: type[ConnectAssignor], input_group: ConnectAssignorInput) -> dict[str, Units]:
    """Every member's units after the last round."""
    return {each.member_id: each.units for each in last(kind(), input_group)[1].members}


@ALL
def test_every_assignor_is_found_by_its_name(kind: type[ConnectAssignor]) -> None:
    assert kind.name in available("assignors")
    assert type(load_assignor(kind.name)) is kind


@ALL
@settings(max_examples=volume(37, 150), deadline=None)
@given(input_group=input_groups())
def test_every_unit_is_assigned_and_counts_are_even(
    kind: type[ConnectAssignor], input_group: ConnectAssignorInput
) -> None:
    after = settled(kind, input_group)
    assert sorted(unit for its in after.values() for unit in its) == list(input_group.units)
    assert all(max(numbers) - min(numbers) <= 1 for numbers in counts(after))


@ALL
@settings(max_examples=volume(37, 150), deadline=None)
@given(input_group=input_groups())
def test_delayed_unit_is_assigned_to_no_member(kind: type[ConnectAssignor], input_group: ConnectAssignorInput) -> None:
    result = run_assignor(kind(), input_group)
    assert not result.delayed & frozenset().union(*(each.units for each in result.members))
    assert bool(result.delayed) <= bool(result.delay_ms)


@ALL
@settings(max_examples=volume(25, 100), deadline=None)
@given(input_group=input_groups())
def test_own_result_is_stable(kind: type[ConnectAssignor], input_group: ConnectAssignorInput) -> None:
    after = settled(kind, input_group)
    assert settled(kind, owning(input_group, after)) == after


@ALL
@settings(max_examples=volume(25, 100), deadline=None)
@given(input_group=input_groups(), random=st.randoms(use_true_random=False))
def test_order_of_the_input_has_no_effect(
    kind: type[ConnectAssignor], input_group: ConnectAssignorInput, random: Random
) -> None:
    members, connectors = list(input_group.members), list(input_group.connectors)
    random.shuffle(members)
    random.shuffle(connectors)
    shuffled = ConnectAssignorInput(members=members, connectors=connectors)
    assert members_for_install(run_assignor(kind(), shuffled)) == members_for_install(run_assignor(kind(), input_group))


@ALL
def test_empty_groups_have_a_result(kind: type[ConnectAssignor]) -> None:
    """P10, KAFKA-16930."""
    assert run_assignor(kind(), ConnectAssignorInput()).members == ()
    alone = ConnectAssignorInput(connectors=case(Random(1), kind()).connectors)
    result = run_assignor(kind(), alone)
    assert (result.members, result.delayed) == ((), frozenset())


@ALL
def test_moves_are_the_fewest_that_balance_needs(kind: type[ConnectAssignor]) -> None:
    """P8, S19: also ``weighted`` with equal weights. KIP-415 revokes a unit claimed by two members from both."""
    for seed in range(CASES):
        input_group = case(Random(seed), BalancedAssignor())
        after = settled(kind, input_group)
        found, fewest = moves(input_group, after, of_two=kind is not IncrementalCooperativeAssignor)
        assert found == fewest, seed
        assert all(max(numbers) - min(numbers) <= 1 for numbers in counts(after)), seed


def test_generated_cases_are_of_all_kinds() -> None:
    """Necessary moves, unnecessary moves, unowned units: each often enough."""
    seen: Counter[str] = Counter()
    for seed in range(400):
        input_group = case(Random(seed), BalancedAssignor())
        held = frozenset().union(*(member.owned for member in input_group.members))
        found, _ = moves(input_group, settled(BalancedAssignor, input_group), of_two=True)
        unplaced = len({*input_group.units} - held)
        seen["moves"] += found > unplaced
        seen["stays"] += bool(held) and found == 0
        seen["unplaced"] += unplaced > 0
    assert min(seen[kind] for kind in ("moves", "stays", "unplaced")) >= 40, seen
