"""Inputs of any kind: after each, the replay of the log equals the group that is served, and the invariants hold.

The inputs are those of the ``Driver`` of the reference model: of correct workers, of incorrect ones, of timers that are
late, and loads of a compacted log. Slow stops, lost messages and the end of a run (L1, S2, S16) are for the simulator.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectgroup.protocol.records.connect import RebalanceRecord
from connectgroup.protocol.units import Unit
from tests.model.driver import Driver, acts

from . import invariants

ACTS = 50


def played(seed: int) -> Iterator[Driver]:
    """A group of the product after each act of a seed."""
    driver = Driver.drawn(seed)
    for act in acts(seed, ACTS):
        driver.play([act])
        yield driver


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_replayed_log_equals_the_group_after_each_input(first: int) -> None:
    """S1, S4, S6, S7, S9, D2, P3: one owner, epochs, indexes, valid targets, the history of rebalances, the log."""
    for seed in range(first, first + 10):
        ledger = invariants.Ledger()
        for driver in played(seed):
            ledger.note(driver.group)
            invariants.one_owner(driver.group)
            invariants.epochs_in_order(driver.group)
            invariants.indexes_match(driver.group)
            invariants.rebalance_history_is_consistent(driver.group)
            invariants.replay_equals_live(driver.group, driver.log)


def test_inputs_reach_the_rare_states() -> None:
    """The inputs must reach the rare states, or the invariants prove nothing."""
    seen: Counter[str] = Counter()
    for seed in range(60):
        for driver in played(seed):
            group = driver.group
            seen.update({current.state.name for current in group.currents.values()})
            seen["stale target"] += group.epoch > group.target_epoch
            seen["fallback"] += group.computation is not None and group.computation.failures >= 3
            seen["old and new grants together"] += any(
                len(set(current.assigned.values())) > 1 for current in group.currents.values()
            )
            seen["empty"] += not group.members
            seen["temporarily left"] += any(current.temporarily_left for current in group.currents.values())
            seen["delayed for a worker"] += any(group.delays)
            seen["delayed by the assignor"] += "" in group.delays
            seen["moves left for the next round"] += group.deferred > 0 and group.epoch == group.target_epoch
            seen["draining"] += any(member.draining for member in group.members.values())
        rebalances = [record.rebalance for record in driver.log if isinstance(record, RebalanceRecord)]
        causes = [cause for each in rebalances for cause in each.causes]
        seen["moved"] += any(move.source not in ("", move.target) for each in rebalances for move in each.moves)
        seen["several causes"] += any(len(each.causes) > 1 for each in rebalances)
        seen["returned in time"] += any(cause.endswith("came back") for cause in causes)
        seen["did not return"] += any("did not return" in cause for cause in causes)
        seen["the next round"] += any("to move in this round" in cause for cause in causes)
    assert seen["UNREVOKED"] > 50
    assert seen["UNRELEASED"] > 20
    assert min(seen.values()) > 0, seen


def test_same_seed_writes_the_same_log_under_any_hash_seed() -> None:
    """S18: no iteration order of a set or a dict reaches the log."""
    program = (
        "import hashlib; from tests.model.driver import Driver, acts; driver = Driver.drawn(8); "
        "driver.play(acts(8, 150)); print(hashlib.sha256(repr(driver.log).encode()).hexdigest())"
    )
    root = Path(__file__).parents[2]
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=root,
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(root)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2", "3")
    }
    assert len(digests) == 1


def test_replay_check_detects_a_difference() -> None:
    """The check must be able to fail: a missing record or an additional unit is a difference."""
    *_, driver = played(2)
    for without in range(len(driver.log)):
        log = [record for number, record in enumerate(driver.log) if number != without]
        try:
            invariants.replay_equals_live(driver.group, log)
        except AssertionError:
            break
    else:
        raise AssertionError("no missing record made a difference")
    before = invariants.group_state(driver.group)
    driver.group.holders[Unit("nowhere")] = ("unknown", 1)
    assert invariants.group_state(driver.group) != before
