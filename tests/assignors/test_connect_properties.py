"""What holds of every built-in assignor of connectors and tasks, for any question; scenarios J, S18, S19.

Legal and complete is the judge's word in ``run_assignor``; each answer here has passed it. That answers do not hang on
the hash seed is seen by each one's contract class, in two processes. ASSIGNOR_CASES is the number of random cases in
which moves are counted (1,000, or 10,000 under CI, unless set).
"""

from __future__ import annotations

import os
from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings, strategies as st

from connectgroup.assign.api import ConnectAssignor, ConnectGroup
from connectgroup.assign.convert import members_for_install
from connectgroup.assign.sandbox import run_assignor
from connectgroup.assignors.balanced import BalancedAssignor
from connectgroup.assignors.incremental_cooperative import IncrementalCooperativeAssignor
from connectgroup.assignors.weighted import WeightedAssignor
from connectgroup.plugins import available, load_assignor
from connectgroup.protocol.units import Units

from .connect_questions import case, last, moves, owning, questions
from .tables import counts

KINDS: list[type[ConnectAssignor]] = [BalancedAssignor, IncrementalCooperativeAssignor, WeightedAssignor]
ALL = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
CASES = int(os.environ.get("ASSIGNOR_CASES", "10000" if os.environ.get("CI") == "true" else "1000"))


def settled(kind: type[ConnectAssignor], question: ConnectGroup) -> dict[str, Units]:
    """Everybody's share after the last round."""
    return {each.member_id: each.units for each in last(kind(), question)[1].members}


@ALL
def test_every_assignor_is_found_by_its_name(kind: type[ConnectAssignor]) -> None:
    assert kind.name in available("assignors")
    assert type(load_assignor(kind.name)) is kind


@ALL
@settings(max_examples=150, deadline=None)
@given(question=questions())
def test_every_unit_is_assigned_and_counts_are_even(kind: type[ConnectAssignor], question: ConnectGroup) -> None:
    after = settled(kind, question)
    assert sorted(unit for its in after.values() for unit in its) == list(question.units)
    assert all(max(numbers) - min(numbers) <= 1 for numbers in counts(after))


@ALL
@settings(max_examples=150, deadline=None)
@given(question=questions())
def test_delayed_unit_is_assigned_to_no_member(kind: type[ConnectAssignor], question: ConnectGroup) -> None:
    answer = run_assignor(kind(), question)
    assert not answer.delayed & frozenset().union(*(each.units for each in answer.members))
    assert bool(answer.delayed) <= bool(answer.delay_ms)


@ALL
@settings(max_examples=100, deadline=None)
@given(question=questions())
def test_own_result_is_stable(kind: type[ConnectAssignor], question: ConnectGroup) -> None:
    after = settled(kind, question)
    assert settled(kind, owning(question, after)) == after


@ALL
@settings(max_examples=100, deadline=None)
@given(question=questions(), random=st.randoms(use_true_random=False))
def test_order_of_the_input_has_no_effect(kind: type[ConnectAssignor], question: ConnectGroup, random: Random) -> None:
    members, connectors = list(question.members), list(question.connectors)
    random.shuffle(members)
    random.shuffle(connectors)
    shuffled = ConnectGroup(members=members, connectors=connectors)
    assert members_for_install(run_assignor(kind(), shuffled)) == members_for_install(run_assignor(kind(), question))


@ALL
def test_empty_groups_have_a_result(kind: type[ConnectAssignor]) -> None:
    """P10, KAFKA-16930."""
    assert run_assignor(kind(), ConnectGroup()).members == ()
    alone = ConnectGroup(connectors=case(Random(1), kind()).connectors)
    answer = run_assignor(kind(), alone)
    assert (answer.members, answer.delayed) == ((), frozenset())


@ALL
def test_moves_are_the_fewest_that_balance_needs(kind: type[ConnectAssignor]) -> None:
    """P8, S19: also ``weighted``, where everything weighs the same. KIP-415 stops what two claim on both."""
    for seed in range(CASES):
        question = case(Random(seed), BalancedAssignor())
        after = settled(kind, question)
        found, fewest = moves(question, after, of_two=kind is not IncrementalCooperativeAssignor)
        assert found == fewest, seed
        assert all(max(numbers) - min(numbers) <= 1 for numbers in counts(after)), seed


def test_generated_cases_are_of_all_kinds() -> None:
    """Moves that must be made, moves that need not, homeless units: each often enough."""
    seen: Counter[str] = Counter()
    for seed in range(400):
        question = case(Random(seed), BalancedAssignor())
        held = frozenset().union(*(member.owned for member in question.members))
        found, _ = moves(question, settled(BalancedAssignor, question), of_two=True)
        unplaced = len({*question.units} - held)
        seen["moves"] += found > unplaced
        seen["stays"] += bool(held) and found == 0
        seen["unplaced"] += unplaced > 0
    assert min(seen[kind] for kind in ("moves", "stays", "unplaced")) >= 40, seen
