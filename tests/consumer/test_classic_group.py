"""Whole classic groups: one owner per partition, no partition unowned, few rebalances."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings, strategies as st

from connectgroup.wire.embedded import HIGHEST_VERSION
from tests.volume import volume

from .assignors import COOPERATIVE, EAGER
from .classic_group import ClassicGroup, Phase, Process

RANGE, BOTH, STICKY = ("range",), ("range", "cooperative-sticky"), ("cooperative-sticky",)


def group(*configured: Sequence[str], **topics: int) -> ClassicGroup:
    """A settled group with a process of each configuration."""
    world = ClassicGroup(**(topics or {"t": 6, "u": 3}))
    for names in configured:
        world.start(*names)
    world.settle()
    world.check_settled()
    return world


def owned_counts(world: ClassicGroup) -> list[int]:
    return sorted(len(each.holds) for each in world.running)


def test_sk_07_cooperative_join_gets_partitions_in_a_second_rebalance() -> None:
    """SK-07 in a whole group: partitions that stay are not revoked; those that move are revoked, then assigned."""
    world = group(STICKY, STICKY, t=4, u=2)
    before = [each.holds for each in world.processes]
    newcomer = world.start(*STICKY)
    assert world.settle() == 2
    assert owned_counts(world) == [2, 2, 2]
    kept = [each.holds for each in world.processes[:2]]
    assert all(now < then for now, then in zip(kept, before, strict=True))
    assert newcomer.holds == frozenset[object]().union(*before) - frozenset[object]().union(*kept)
    assert world.revoked == {"p1": 1, "p2": 1}


def test_eager_group_needs_one_rebalance_that_stops_every_member() -> None:
    world = group(RANGE, RANGE, t=4, u=2)
    world.start(*RANGE)
    assert world.settle() == 1
    assert world.revoked == {"p1": 3, "p2": 3}


def test_eager_and_cooperative_members_share_one_group() -> None:
    """KIP-429: an eager member revokes everything; a cooperative one keeps reading the partitions that stay."""
    world = group(STICKY, BOTH, STICKY)
    assert [each.protocol for each in world.processes] == [COOPERATIVE, EAGER, COOPERATIVE]
    assert owned_counts(world) == [3, 3, 3]
    world.revoked.clear()
    world.start(*STICKY)
    assert world.settle() <= 2
    assert owned_counts(world) == [2, 2, 2, 3]
    # The eager one revoked all of its three in each of the rebalances, the others only those that moved.
    assert world.revoked["p2"] >= 3
    assert world.revoked.get("p1", 0) + world.revoked.get("p3", 0) <= 2


def bounce(world: ClassicGroup, process: Process, configured: Sequence[str]) -> int:
    """Stop a process and start another with this configuration; return the rebalances until the group has settled."""
    world.stop(process)
    world.start(*configured)
    rebalances = world.settle()
    world.check_settled()
    return rebalances


def test_sk_27_claims_without_a_generation_are_accepted() -> None:
    """SK-27 in a whole group: subscriptions of version 1 (KIP-429 alone) beside newer ones; no interruption."""
    world = ClassicGroup(t=6, u=3)
    for version in (1, 1, 2):
        world.start(*STICKY, version=version)
    world.settle()
    world.revoked.clear()
    world.stop(world.running[0])
    assert world.settle() == 1
    world.check_settled()
    assert owned_counts(world) == [4, 5]
    assert world.revoked == {}


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_group_is_migrated_to_cooperative_and_back_by_rolling_restarts(size: int) -> None:
    """KIP-429, "Compatibility and Upgrade Path": two rolling bounces there, and the same two back."""
    world = group(*[RANGE] * size)
    for configured in (BOTH, STICKY, BOTH, RANGE):
        for process in world.running:
            assert bounce(world, process, configured) <= 3
            assert len(world.running) == size
        protocols = {each.protocol for each in world.running}
        assert protocols == {COOPERATIVE if configured is STICKY else EAGER}
        # While one member lists range alone, range is chosen; once all list both, the majority decides.
        assert world.coordinator.assignor == ("cooperative-sticky" if configured is STICKY else "range")


def test_member_that_skips_a_migration_step_is_rejected_alone() -> None:
    """KIP-429, "Edge Cases": from range straight to cooperative-sticky. No partition gets two owners."""
    world = group(RANGE, RANGE)
    before = [each.holds for each in world.processes]
    hasty = world.start(*STICKY)
    assert world.settle() == 0
    assert hasty.phase is Phase.REFUSED
    assert [each.holds for each in world.running] == before


def test_member_that_missed_its_assignment_rejoins_and_gets_the_same() -> None:
    world = group(STICKY, STICKY)
    newcomer = world.start(*STICKY)
    for _ in range(40):
        newcomer.loses = newcomer.loses or newcomer.phase is Phase.WAIT
        world.round()
        if any("misses" in line for line in world.history):
            break
    world.settle()
    world.check_settled()
    assert any("misses its assignment" in line for line in world.history)
    assert owned_counts(world) == [3, 3, 3]


def test_sk_20_stale_claim_is_ignored_if_another_member_owns_the_partition() -> None:
    """SK-20 in a whole group (KIP-792): a process was paused through rebalances, and rejoins with its old claim.

    The claimed partitions have three other owners now. These revoke only what the returning member is assigned.
    """
    world = group(STICKY, STICKY)
    away, other = world.processes
    away.frozen = away.stubborn = True
    world.expire(away)
    running = [other, world.start(*STICKY), world.start(*STICKY)]
    for _ in range(200):
        world.round()
    assert [len(each.holds) for each in running] == [3, 3, 3]
    stale = away.holds
    assert len(stale) >= 4  # it does not know yet
    world.revoked.clear()
    world.settle()
    world.check_settled()
    assert owned_counts(world) == [2, 2, 2, 3]
    assert world.revoked[away.name] >= len(stale) - len(away.holds)
    assert sum(world.revoked.get(each.name, 0) for each in running) == 2


# --------------------------------------------------------------------------------------------------
# Random runs

ALWAYS_COMPATIBLE = [
    [STICKY, BOTH, ("reversed", "cooperative-sticky"), ("cooperative-sticky", "roundrobin")],
    [STICKY],
    [
        ("reversed", "cooperative-sticky"),
        ("cooperative-sticky", "reversed"),
        ("reversed", "range", "cooperative-sticky"),
    ],
    [RANGE, BOTH, ("roundrobin", "range")],
]
"""Lists of configurations that share an assignor: what KIP-429 allows in one group."""

EVENTS = (
    *("step", "step", "step", "step", "round", "round", "round", "round", "round", "start", "start", "stop", "kill"),
    *("freeze", "thaw", "thaw", "over", "over", "want", "grow", "lose", "lose", "return"),
)
events = st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 9), st.integers(0, 9)), min_size=5, max_size=60)
TOPICS = (("t", "u"), ("t",), ("u",), ("t", "u", "v"))


def happens(world: ClassicGroup, event: str, number: int, choice: int, configurations: Sequence[Sequence[str]]) -> None:
    """One random event for the process that ``number`` selects."""
    configured = configurations[choice % len(configurations)]
    if event == "start" or not world.running:
        if len(world.running) < 6:
            world.start(*configured, topics=TOPICS[number % len(TOPICS)], version=1 + choice % HIGHEST_VERSION)
        return
    process = world.running[number % len(world.running)]
    match event:
        case "step":
            for _ in range(1 + choice % 3):
                world.step(process)
        case "round":
            world.round()
        case "stop":
            world.stop(process)
        case "kill":
            world.kill(process)
        case "freeze":
            process.frozen = True
        case "thaw":
            process.frozen = False
        case "over":
            silent = [each for each in world.processes if each.frozen or not each.alive]
            if silent:
                world.expire(silent[number % len(silent)])
        case "want":
            process.subscribed = frozenset(TOPICS[choice % len(TOPICS)])
        case "grow":
            world.topics["tuv"[choice % 3]] += 1
        case "lose":
            process.loses = True
        case "return":
            process.frozen = process.stubborn = True
            world.expire(process)


@settings(max_examples=volume(100, 400), deadline=None)
@given(st.sampled_from(ALWAYS_COMPATIBLE), st.integers(1, 4), st.integers(0, 1 << 16), events)
def test_random_runs_have_one_owner_per_partition_and_few_rebalances(
    configurations: Sequence[Sequence[str]], size: int, seed: int, events: Sequence[tuple[str, int, int]]
) -> None:
    """Members of both protocols join, leave, die, pause, miss assignments, and return with stale claims."""
    world = ClassicGroup(seed=seed, t=4, u=3, v=1)
    for number in range(size):
        world.start(*configurations[number % len(configurations)])
    for event, number, choice in events:
        happens(world, event, number, choice, configurations)
    if not world.running:
        world.start(*configurations[0])
    # The rebalance under way, one for missed changes, and one that assigns what was revoked in that. A process that is
    # still joining causes one more when it joins, and one that follows.
    on_their_way = sum(each.member_id not in world.coordinator.members for each in world.running)
    rebalances = world.settle()
    assert rebalances <= 3 + 2 * on_their_way, world.failure(f"{rebalances} rebalances, {on_their_way} still joining")
    world.check_settled()
    assert world.settle() == 0
