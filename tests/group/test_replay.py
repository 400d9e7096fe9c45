"""Random runs over a small group: after every step the replay of the log equals the group that is served.

The events of a ``RandomRun`` are in workers.py; the checks after every step are in ``Scene.act`` and invariants.py: one
owner (S1, S2), epochs (S4, S6, S7), indexes, valid targets (S9), history of rebalances, replay of the whole and of the
compacted log (D2, P3), rejected requests without records. In the end the group must become stable (L1, P2).
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from connectgroup.protocol.records.connect import GroupRecord, MemberRecord, RebalanceRecord
from connectgroup.protocol.units import Unit

from .invariants import group_state, replay_equals_live
from .workers import RandomRun

SEEDS = range(90)
TURNS = 140


@pytest.mark.parametrize("seed", SEEDS)
def test_random_run_leaves_every_unit_on_one_worker(seed: int) -> None:
    """S1, S2, S4, S6, S7, S9, S13, S16, D2, L1, P1-P6: joins, crashes, lost and duplicated messages, slow stops."""
    run = RandomRun(seed)
    run.play(TURNS)
    run.settle()
    group = run.scene.group
    if run.workers:
        owner = Counter(unit for worker in run.workers.values() for unit in worker.runs)
        assert owner == Counter(dict.fromkeys(group.runnable, 1))
        last = group.latest_rebalance
        assert last is not None
        assert last.finished_ms >= last.started_ms


@pytest.mark.parametrize("seed", range(200, 212))
def test_group_settles_within_a_few_heartbeats_of_each_member(seed: int) -> None:
    """P2, L1: "at most 2 heartbeats per revoking member + 1 per receiver", plus what slow stops take (6 turns), and one
    more after each of a few server-side computations, whose result no response in progress contains.
    """
    run = RandomRun(seed)
    run.play(60)
    run.settle()
    run.join()
    assert run.settle() <= 6 + 6 + 4


def test_settled_group_writes_no_record() -> None:
    """L2: heartbeats of a stable group write no record and never bump an epoch."""
    run = RandomRun(4)
    run.play(80)
    run.join()
    run.settle()
    for worker in run.workers.values():
        worker.full, worker.statuses = False, ()
    run.settle()
    log = len(run.scene.log)
    for _ in range(3):
        for worker in run.workers.values():
            run.exchange(worker)
    assert len(run.scene.log) == log


def test_random_runs_reach_the_rare_states() -> None:
    """The random runs must reach the rare states, or the invariants prove nothing."""
    seen: Counter[str] = Counter()
    for seed in range(30):
        run = RandomRun(seed)
        run.scene.check_replay = False
        for _ in range(TURNS):
            run.play(1)
            group = run.scene.group
            seen.update({current.state.name for current in group.currents.values()})
            seen["stale target"] += group.epoch > group.target_epoch
            seen["fallback"] += group.computation is not None and group.computation.failures >= 3
            seen["old and new grants together"] += any(
                len(set(current.assigned.values())) > 1 for current in group.currents.values()
            )
            seen["empty"] += not group.members
            seen["temporarily_left"] += any(current.temporarily_left for current in group.currents.values())
            seen["delayed for a worker"] += any(group.delays)
            seen["delayed by the assignor"] += "" in group.delays
            seen["moves left for the next round"] += group.deferred > 0 and group.epoch == group.target_epoch
            seen["draining"] += any(member.draining for member in group.members.values())
        seen["fenced"] += run.fenced
        for record in run.scene.log:
            if isinstance(record, RebalanceRecord) and record.rebalance.finished_ms >= 0:
                seen["moved"] += any(move.source and move.source != move.target for move in record.rebalance.moves)
                seen["several causes"] += len(record.rebalance.causes) > 1
            causes = record.rebalance.causes if isinstance(record, RebalanceRecord) else ()
            seen["returned in time"] += any(cause.endswith("came back") for cause in causes)
            seen["did not return"] += any("did not return" in cause for cause in causes)
            seen["the next round"] += any("to move in this round" in cause for cause in causes)
            seen["successor of a static member"] += isinstance(record, MemberRecord) and any(
                before.member_id != record.member_id and before.instance_id == record.instance_id is not None
                for before in run.scene.log
                if isinstance(before, MemberRecord)
            )
            seen["epochs"] += isinstance(record, GroupRecord)
    assert seen["UNREVOKED"] > 50
    assert seen["UNRELEASED"] > 20
    assert min(seen.values()) > 0, seen
    expected = {"STABLE", "stale target", "fallback", "old and new grants together", "empty", "fenced", "moved"}
    expected |= {
        "temporarily_left",
        "delayed for a worker",
        "delayed by the assignor",
        "moves left for the next round",
    }
    expected |= {"draining", "returned in time", "did not return", "the next round", "successor of a static member"}
    assert expected <= {what for what, count in seen.items() if count > 0}, seen


def test_same_seed_writes_the_same_log_under_any_hash_seed() -> None:
    """S18: no iteration order of a set or a dict reaches the log."""
    program = (
        "import hashlib; from tests.group.workers import RandomRun; run = RandomRun(8); "
        "run.scene.check_replay = False; "
        "run.play(150); run.settle(); print(hashlib.sha256(repr(run.scene.log).encode()).hexdigest())"
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
    run = RandomRun(2)
    run.play(40)
    scene = run.scene
    for without in range(len(scene.log)):
        log = [record for number, record in enumerate(scene.log) if number != without]
        try:
            replay_equals_live(scene.group, log)
        except AssertionError:
            break
    else:
        raise AssertionError("no missing record made a difference")
    before = group_state(scene.group)
    scene.group.holders[Unit("nowhere")] = ("unknown", 1)
    assert group_state(scene.group) != before
