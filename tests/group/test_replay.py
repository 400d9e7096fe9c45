"""Seeded storms over a small group: after every step the log read back is the group that is served.

What a ``RandomRun`` does is in workers.py; what is checked after every step, in ``Scene.act`` and invariants.py: one
owner (S1, S2), epochs (S4, S6, S7), indexes, legal targets (S9), explanations, replay of the whole and of the compacted
log (D2, P3), refusals without records. In the end it must come to rest (L1, P2).
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from connectgroup.protocol.records.connect import GroupRecord, MemberRecord, RebalanceRecord
from connectgroup.protocol.units import Unit

from .invariants import picture, replay_equals_live
from .workers import RandomRun

SEEDS = range(90)
TURNS = 140


@pytest.mark.parametrize("seed", SEEDS)
def test_random_run_leaves_every_unit_on_one_worker(seed: int) -> None:
    """S1, S2, S4, S6, S7, S9, S13, S16, D2, L1 and P1-P6, for joins, deaths, lost and doubled messages, slow stops."""
    storm = RandomRun(seed)
    storm.play(TURNS)
    storm.calm()
    group = storm.scene.group
    if storm.workers:
        owner = Counter(unit for worker in storm.workers.values() for unit in worker.runs)
        assert owner == Counter(dict.fromkeys(group.runnable, 1))
        last = group.latest_rebalance
        assert last is not None
        assert last.finished_ms >= last.started_ms


@pytest.mark.parametrize("seed", range(200, 212))
def test_group_settles_within_a_few_heartbeats_of_each_member(seed: int) -> None:
    """P2, L1: "at most 2 heartbeats per revoking member + 1 per receiver", plus what slow stops take (6 turns), and one
    more after each of a few server-side computations, whose result no response in progress contains.
    """
    storm = RandomRun(seed)
    storm.play(60)
    storm.calm()
    storm.arrive()
    assert storm.calm() <= 6 + 6 + 4


def test_settled_group_writes_no_record() -> None:
    """L2: heartbeats of a quiet group cost no record and never bump an epoch."""
    storm = RandomRun(4)
    storm.play(80)
    storm.arrive()
    storm.calm()
    for worker in storm.workers.values():
        worker.full, worker.statuses = False, ()
    storm.calm()
    log = len(storm.scene.log)
    for _ in range(3):
        for worker in storm.workers.values():
            storm.exchange(worker)
    assert len(storm.scene.log) == log


def test_random_runs_reach_the_rare_states() -> None:
    """A check that cannot fail is a defect: the rare states must have been seen."""
    seen: Counter[str] = Counter()
    for seed in range(30):
        storm = RandomRun(seed)
        storm.scene.check_replay = False
        for _ in range(TURNS):
            storm.play(1)
            group = storm.scene.group
            seen.update({current.state.name for current in group.currents.values()})
            seen["stale target"] += group.epoch > group.target_epoch
            seen["fallback"] += group.computation is not None and group.computation.failures >= 3
            seen["old and new grants together"] += any(
                len(set(current.assigned.values())) > 1 for current in group.currents.values()
            )
            seen["nobody"] += not group.members
            seen["temporarily_left"] += any(current.temporarily_left for current in group.currents.values())
            seen["held back for a worker"] += any(group.delays)
            seen["held back by the assignor"] += "" in group.delays
            seen["moves left for the next round"] += group.deferred > 0 and group.epoch == group.target_epoch
            seen["draining"] += any(member.draining for member in group.members.values())
        seen["fenced"] += storm.fenced
        for record in storm.scene.log:
            if isinstance(record, RebalanceRecord) and record.rebalance.finished_ms >= 0:
                seen["moved over"] += any(move.source and move.source != move.target for move in record.rebalance.moves)
                seen["several causes"] += len(record.rebalance.causes) > 1
            causes = record.rebalance.causes if isinstance(record, RebalanceRecord) else ()
            seen["came back in time"] += any(cause.endswith("came back") for cause in causes)
            seen["did not return"] += any("did not return" in cause for cause in causes)
            seen["the next round"] += any("to move in this round" in cause for cause in causes)
            seen["a successor took the place"] += isinstance(record, MemberRecord) and any(
                before.member_id != record.member_id and before.instance_id == record.instance_id is not None
                for before in storm.scene.log
                if isinstance(before, MemberRecord)
            )
            seen["epochs"] += isinstance(record, GroupRecord)
    assert seen["UNREVOKED"] > 50
    assert seen["UNRELEASED"] > 20
    assert min(seen.values()) > 0, seen
    expected = {"STABLE", "stale target", "fallback", "old and new grants together", "nobody", "fenced", "moved over"}
    expected |= {
        "temporarily_left",
        "held back for a worker",
        "held back by the assignor",
        "moves left for the next round",
    }
    expected |= {"draining", "came back in time", "did not return", "the next round", "a successor took the place"}
    assert expected <= {what for what, count in seen.items() if count > 0}, seen


def test_same_seed_writes_the_same_log_under_any_hash_seed() -> None:
    """S18: no order of a set or a dict leaves the core."""
    program = (
        "import hashlib; from tests.group.workers import RandomRun; storm = RandomRun(8); "
        "storm.scene.check_replay = False; "
        "storm.play(150); storm.calm(); print(hashlib.sha256(repr(storm.scene.log).encode()).hexdigest())"
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
    """A check that cannot fail is a defect: one record less, or one unit more, is noticed."""
    storm = RandomRun(2)
    storm.play(40)
    scene = storm.scene
    for without in range(len(scene.log)):
        log = [record for number, record in enumerate(scene.log) if number != without]
        try:
            replay_equals_live(scene.group, log)
        except AssertionError:
            break
    else:
        raise AssertionError("no record mattered")
    before = picture(scene.group)
    scene.group.holders[Unit("nowhere")] = ("nobody", 1)
    assert picture(scene.group) != before
