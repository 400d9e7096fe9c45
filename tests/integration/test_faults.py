"""Workers crash, pause, resume, join and leave; every row of the Spark pipelines is in the sink once (X1-X8, F15, F16).

Rows flow all the time into both kinds of sink. A scenario ends when all connectors have been deleted, so that no task
can add a row after the comparison.
"""

from __future__ import annotations

import os
from functools import partial

import pytest

from tests.volume import ci_only

from .cluster import LocalGroup
from .flow import TURN_S
from .processes import START_PATIENCE_S, family
from .scene import Scenario

pytestmark = pytest.mark.processes

WITNESSED = {"connector.class": "witnessed-pipeline", "sink.busy.timeout.ms": "60000"}


def test_zombie_worker_is_fenced_when_it_resumes(cluster: LocalGroup, scene: Scenario) -> None:
    """F15, X1: the worker is paused before a commit, and tries to commit when it is resumed."""
    zombie, _ = cluster.have_workers(2)
    scene.run(settings=WITNESSED)
    pipes = {pipe.name: pipe for pipe in scene.pipes}
    with scene.blocked_commits(zombie) as grants:
        cluster.pause(zombie)

    def successor_has_written() -> bool:
        units = {unit: found for pipe in scene.pipes for unit, found in cluster.units(pipe.name).items()}
        return all(
            units[unit].owner_epoch > epoch
            and pipes[unit.connector].witness_lines("IN", unit.task, units[unit].owner_epoch) != []
            for unit, epoch in grants.items()
        )

    cluster.wait(f"the end of {zombie}'s session", partial(cluster.is_out, zombie))
    cluster.wait("the successor's rows", successor_has_written)
    for unit, epoch in grants.items():
        assert pipes[unit.connector].fence(unit.task) > epoch, unit
        assert pipes[unit.connector].witness_lines("REFUSED", unit.task, epoch) == [], "not yet"

    cluster.resume(zombie)
    for unit, epoch in grants.items():
        pipe = pipes[unit.connector]
        refused = cluster.wait(f"{unit} refused", partial(pipe.witness_lines, "REFUSED", unit.task, epoch))
        assert f"task-{unit.task} belongs to owner epoch" in refused[0]
        assert f"ours is {epoch}; allowed: only the latest owner writes" in refused[0]

    def lost() -> list[str]:
        return [line for line in cluster.log_of(zombie) if " lost " in line]

    # The sink fences these units, so the worker loses them when it learns that it was removed, and not with its lease.
    assert "the group has no such member" in cluster.wait(f"{zombie} to lose its tasks", lost)[-1]
    cluster.wait(f"{zombie} running tasks again", lambda: cluster.tasks_of(zombie, *pipes))
    scene.wait_for_rows()
    for unit, epoch in grants.items():
        assert len(pipes[unit.connector].witness_lines("REFUSED", unit.task, epoch)) == 1, (
            "a fenced task does not retry"
        )
    scene.finish()


def test_added_worker_takes_over_tasks(cluster: LocalGroup, scene: Scenario) -> None:
    """Tasks move to the new worker while rows flow."""
    cluster.have_workers(2)
    scene.run(tasks=3)
    scene.feeder.turn_s = 1.0  # as fast as ever, the rows would take the processors that the start of Spark needs
    new = cluster.add()
    names = [pipe.name for pipe in scene.pipes]
    cluster.wait(f"tasks on {new}", lambda: cluster.tasks_of(new, *names), patience_s=START_PATIENCE_S)
    scene.feeder.turn_s = TURN_S
    scene.wait_for_rows()
    scene.finish()


def test_worker_killed_during_a_commit_is_succeeded(cluster: LocalGroup, scene: Scenario) -> None:
    """F16, L3: SIGKILL during a commit; the Java process and all helpers end too."""
    victim = cluster.have_workers(3)[-1]
    scene.run(tasks=3, settings=WITNESSED)
    below = family(cluster.pid(victim))
    assert any("SparkSubmit" in command for command in below.values()), below
    with scene.blocked_commits(victim) as grants:
        cluster.kill(victim)
        cluster.wait(f"the end of all that {victim} started", lambda: not _alive(below))
    scene.wait_for_rows()
    assert victim not in cluster.members()

    def causes() -> list[str]:
        return [cause for rebalance in cluster.describe().rebalances for cause in rebalance.causes]

    # Known at once, without a session timeout (PD-11).
    cluster.wait("the cause of the rebalance", lambda: f"{victim} died (SIGKILL)" in causes())
    for pipe in scene.pipes:
        cluster.wait(f"all of {pipe.name}", partial(cluster.is_running, pipe.name, pipe.tasks))
        for unit, epoch in grants.items():
            if unit.connector == pipe.name:
                assert pipe.fence(unit.task) > epoch
    scene.finish()


@ci_only("12 s of a core; in a user's run, two tasks become three in spark/test_tasks, without other processes")
def test_changed_tasks_max_redistributes_the_files(cluster: LocalGroup, scene: Scenario) -> None:
    """tasks.max from 2 to 3 and back to 1: files move between tasks, some of them partly read."""
    cluster.have_workers(2)
    scene.run(tasks=2)
    for tasks in (3, 1):
        for pipe in scene.pipes:
            pipe.tasks = tasks
            pipe.config["tasks.max"] = str(tasks)
            cluster.put(pipe.name, pipe.config)
        for pipe in scene.pipes:
            cluster.wait(f"{tasks} tasks of {pipe.name}", partial(cluster.is_running, pipe.name, tasks))
        scene.wait_for_rows()
    assert all(pipe.fence(2) > 0 for pipe in scene.pipes), "the third task has run"
    scene.finish()


def test_worker_stopped_by_sigterm_hands_over_its_tasks(cluster: LocalGroup, scene: Scenario) -> None:
    """SIGTERM: the worker stops its queries, leaves the group and ends with exit code 0."""
    victim = cluster.have_workers(2)[-1]
    scene.run()
    below = family(cluster.pid(victim))
    assert cluster.tasks_of(victim, *(pipe.name for pipe in scene.pipes))
    before = len(cluster.log_of(victim))
    assert cluster.stop(victim) == 0, cluster.log_of(victim)
    assert victim not in cluster.members()
    lines = cluster.log_of(victim)[before:]
    assert any(": stopping " in line for line in lines), lines
    assert not any(" ERROR " in line or " WARNING " in line for line in lines), lines
    scene.wait_for_rows()
    cluster.wait("the end of its helpers", lambda: not _alive(below))
    scene.finish()


def _alive(processes: dict[int, str]) -> list[int]:
    return [pid for pid in processes if os.path.exists(f"/proc/{pid}/exe")]
