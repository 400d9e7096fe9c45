"""Workers die, sleep, wake, come and go under a real Spark pipeline; every row is in the sink once (X1-X8, F15, F16).

Rows flow all the time into both kinds of sink. A scene ends when all connectors have been removed, so that nobody can
add a row after the count.
"""

from __future__ import annotations

import os
import random
import time
from functools import partial

import pytest

from .cluster import LocalGroup
from .processes import START_PATIENCE_S, family
from .scene import SINKS, Scenario

pytestmark = pytest.mark.processes

ROUNDS = int(os.environ.get("CONNECTGROUP_ROUNDS") or (9 if os.environ.get("CI") == "true" else 4))
SEED = int(os.environ.get("CONNECTGROUP_SEED", "1"))
WITNESSED = {"connector.class": "witnessed-pipeline", "sink.busy.timeout.ms": "60000"}


def test_zombie_worker_is_fenced_when_it_resumes(cluster: LocalGroup, scene: Scenario) -> None:
    """F15, X1: it is stopped at the door of the sink with a batch in hand, and writes it when it wakes."""
    zombie, _ = cluster.have_workers(2)
    scene.run(settings=WITNESSED)
    pipes = {pipe.name: pipe for pipe in scene.pipes}
    with scene.batches_in_hand(zombie) as held:
        cluster.pause(zombie)

    def has_successor_written() -> bool:
        units = {unit: found for pipe in scene.pipes for unit, found in cluster.units(pipe.name).items()}
        return all(
            units[unit].owner_epoch > epoch
            and pipes[unit.connector].said("IN", unit.task, units[unit].owner_epoch) != []
            for unit, epoch in held.items()
        )

    cluster.wait(f"the end of {zombie}'s session", partial(cluster.is_out, zombie))
    cluster.wait("the successor's rows", has_successor_written)
    for unit, epoch in held.items():
        assert pipes[unit.connector].fence(unit.task) > epoch, unit
        assert pipes[unit.connector].said("REFUSED", unit.task, epoch) == [], "not yet"

    cluster.resume(zombie)
    for unit, epoch in held.items():
        pipe = pipes[unit.connector]
        refused = cluster.wait(f"{unit} refused", partial(pipe.said, "REFUSED", unit.task, epoch))
        assert f"task-{unit.task} belongs to owner epoch" in refused[0]
        assert f"ours is {epoch}; allowed: only the latest owner writes" in refused[0]
    lost = [line for line in cluster.log_of(zombie) if " lost " in line]
    assert lost, cluster.log_of(zombie)
    assert "no response from the coordinator for" in lost[-1]
    cluster.wait(f"{zombie} at work again", lambda: cluster.tasks_of(zombie, *pipes))
    scene.flow_on()
    for unit, epoch in held.items():
        assert len(pipes[unit.connector].said("REFUSED", unit.task, epoch)) == 1, "a refused task does not try again"
    scene.finish()


def test_added_worker_takes_over_tasks(cluster: LocalGroup, scene: Scenario) -> None:
    """Tasks move to it while rows flow."""
    cluster.have_workers(2)
    scene.run(tasks=3)
    new = cluster.add()
    names = [pipe.name for pipe in scene.pipes]
    cluster.wait(f"tasks on {new}", lambda: cluster.tasks_of(new, *names), patience_s=START_PATIENCE_S)
    scene.flow_on()
    scene.finish()


def test_worker_killed_during_a_commit_is_succeeded(cluster: LocalGroup, scene: Scenario) -> None:
    """F16, L3: SIGKILL with a batch at the door of the sink; the Java process and all helpers go with it."""
    victim = cluster.have_workers(3)[-1]
    scene.run(tasks=3, settings=WITNESSED)
    below = family(cluster.pid(victim))
    assert any("SparkSubmit" in command for command in below.values()), below
    with scene.batches_in_hand(victim) as held:
        cluster.kill(victim)
        cluster.wait(f"the end of all that {victim} started", lambda: not _alive(below))
    scene.flow_on()
    assert victim not in cluster.members()
    rebalances = [cause for rebalance in cluster.describe().rebalances for cause in rebalance.causes]
    assert f"{victim} died (SIGKILL)" in rebalances, "known at once, without a session timeout (PD-11)"
    for pipe in scene.pipes:
        cluster.wait(f"all of {pipe.name}", partial(cluster.is_running, pipe.name, pipe.tasks))
        for unit, epoch in held.items():
            if unit.connector == pipe.name:
                assert pipe.fence(unit.task) > epoch
    scene.finish()


def test_changed_tasks_max_redistributes_the_files(cluster: LocalGroup, scene: Scenario) -> None:
    """tasks.max from 2 to 3 and back to 1: files move between tasks, some of them half read."""
    cluster.have_workers(2)
    scene.run(tasks=2)
    for tasks in (3, 1):
        for pipe in scene.pipes:
            pipe.tasks = tasks
            pipe.config["tasks.max"] = str(tasks)
            cluster.put(pipe.name, pipe.config)
        for pipe in scene.pipes:
            cluster.wait(f"{tasks} tasks of {pipe.name}", partial(cluster.is_running, pipe.name, tasks))
        scene.flow_on()
    assert all(pipe.fence(2) > 0 for pipe in scene.pipes), "the third task was really there"
    scene.finish()


def test_worker_stopped_by_sigterm_hands_over_its_tasks(cluster: LocalGroup, scene: Scenario) -> None:
    """SIGTERM: it stops its queries, leaves the group and ends with exit code 0."""
    victim = cluster.have_workers(2)[-1]
    scene.run()
    below = family(cluster.pid(victim))
    assert cluster.tasks_of(victim, *(pipe.name for pipe in scene.pipes))
    before = len(cluster.log_of(victim))
    assert cluster.stop(victim) == 0, cluster.log_of(victim)
    assert victim not in cluster.members()
    said = cluster.log_of(victim)[before:]
    assert any(": stopping " in line for line in said), said
    assert not any(" ERROR " in line or " WARNING " in line for line in said), said
    scene.flow_on()
    cluster.wait("the end of its helpers", lambda: not _alive(below))
    scene.finish()


@pytest.mark.timeout(200 + 100 * ROUNDS)
def test_no_row_is_lost_or_duplicated_over_many_rounds(cluster: LocalGroup, scene: Scenario) -> None:
    """The gate of real processes: in each round one worker is paused, killed or stopped at a random moment of the flow.

    ``CONNECTGROUP_ROUNDS`` sets the number of rounds (9 where CI=true, else 4), ``CONNECTGROUP_SEED`` the victims.
    """
    chance = random.Random(SEED)
    cluster.have_workers(3)
    scene.run(tasks=3)
    names = [pipe.name for pipe in scene.pipes]
    for number in range(ROUNDS):
        kind = ("SIGSTOP", "SIGKILL", "SIGSTOP", "SIGTERM")[number % 4]
        # A new worker only where one would be left alone: each costs a start of Spark.
        workers = cluster.have_workers(max(2, len(cluster.alive())))
        busy = [worker for worker in workers if cluster.tasks_of(worker, *names)]
        victim = chance.choice(busy)
        print(f"round {number + 1} of {ROUNDS}: {kind} to {victim}, {scene.feeder.written} rows written")
        match kind:
            case "SIGSTOP":
                cluster.pause(victim)
                # A process that is paused inside a transaction keeps SQLite's lock and delays every other writer, so
                # the round would test nothing else: choose another moment.
                while any(pipe.is_locked() for pipe in scene.pipes):
                    cluster.resume(victim)
                    time.sleep(chance.random() / 10)
                    cluster.pause(victim)
                cluster.wait(f"the end of {victim}'s session", partial(cluster.is_out, victim))
                scene.flow_on(chance.randrange(1_000))
                cluster.resume(victim)
                cluster.wait(f"{victim} back", partial(cluster.is_in, victim))
            case "SIGKILL":
                cluster.kill(victim)
            case _:
                assert cluster.stop(victim) == 0
        scene.flow_on(chance.randrange(1_000))
    scene.finish()
    print(f"{ROUNDS} rounds, {scene.feeder.written} rows into each of {len(SINKS)} sinks: 0 lost, 0 doubled")


def _alive(processes: dict[int, str]) -> list[int]:
    return [pid for pid in processes if os.path.exists(f"/proc/{pid}/exe")]
