"""The built-in assignors on real workers: delays, further rounds, labels and unschedulable tasks."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from connectgroup.assign.placement import WorkerTraits
from connectgroup.assignors.incremental_cooperative import IncrementalCooperativeAssignor
from connectgroup.assignors.weighted import WeightedAssignor
from connectgroup.protocol.units import Unit

from .builders import Actor, Spread, World, settings


def offers(capacity: int = 0, *labels: tuple[str, str]) -> WorkerTraits:
    """The traits of a worker on host h."""
    return WorkerTraits(capacity=capacity, labels=labels, host="h")


def tasks(actor: Actor) -> int:
    """Number of tasks that the worker runs."""
    return sum(not unit.is_connector for unit in actor.units)


async def test_unit_revoked_in_one_round_is_assigned_as_soon_as_it_has_stopped(tmp_path: Path) -> None:
    """IC-01, KIP-415: no timer between the two rounds, and units that stay are not stopped."""
    async with World(tmp_path) as world:
        await world.add("c", 7)
        a = world.start("a", assignors=[IncrementalCooperativeAssignor()])
        await world.settled()
        before = a.units
        b = world.start("b", assignors=[IncrementalCooperativeAssignor()])
        await world.settled(within=3)
        assert sorted(tasks(actor) for actor in (a, b)) == [3, 4]
        assert a.units < before
        group = await world.describe()
        assert [len(rebalance.causes) for rebalance in group.rebalances[-2:]] == [1, 1]
        assert "left to move in this round" in group.rebalances[-1].causes[0]
        assert group.delayed == ()


@pytest.mark.parametrize("delay_ms", [10_000, 0])
async def test_successive_joins_stop_no_task_twice_in_a_row(tmp_path: Path, delay_ms: int) -> None:
    """KAFKA-12495: the third worker joins while the second one's tasks are moving, and is delayed by the back-off.

    KAFKA-15693: the delay is a setting of the group, not of the assignor; 0: no delay.
    """
    async with World(tmp_path, group=settings(scheduled_delay_ms=delay_ms)) as world:
        await world.add("c", 11)
        a = world.start("a", assignors=[IncrementalCooperativeAssignor()])
        await world.settled()
        gate = world.gate()
        world.hook["a stop c-10"] = gate.wait
        b = world.start("b", assignors=[IncrementalCooperativeAssignor()])
        await world.until(lambda: gate.entered)
        c = world.start("c", assignors=[IncrementalCooperativeAssignor()])
        await world.until(lambda: c.worker.member.epoch > 0)
        gate.open()
        await world.until(lambda: sorted(tasks(actor) for actor in (a, b, c)) == [3, 4, 4])
        causes = [cause for rebalance in (await world.describe()).rebalances for cause in rebalance.causes]
        assert ("the delay requested by the assignor has elapsed" in causes) == (delay_ms > 0)


async def test_connector_runs_on_matching_labels_and_describe_explains_unschedulable_tasks(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        await world.add("plain", 2)
        a = world.start("a", assignors=[WeightedAssignor()], traits=offers())
        await world.settled()
        b = world.start("b", assignors=[WeightedAssignor()], traits=offers(9, ("gpu", "true")))
        await world.settled()
        await world.add("c", 2, **{"assignment.labels": "gpu=true", "assignment.task.weight": "2"})
        wanted = {Unit("c"), Unit("c", 0), Unit("c", 1)}
        await world.until(lambda: wanted <= b.units)
        assert not wanted & a.units
        b.worker.stop()
        assert b.task is not None
        await b.task
        for _ in range(100):
            group = await world.describe()
            if group.state == "Stable":
                break
            await asyncio.sleep(0.05)
        assert {Unit("plain"), Unit("plain", 0), Unit("plain", 1)} <= a.units
        assert group.assignor_error == "c, c-0, c-1: needs label gpu=true; 0 of 1 workers have it"
        assert not wanted & a.units
        world.start("b2", assignors=[WeightedAssignor()], traits=offers(0, ("gpu", "true")))
        await world.until(lambda: wanted <= world.actors["b2"].units)
        assert (await world.describe()).assignor_error == ""


async def test_assignment_with_a_further_round_survives_a_new_coordinator(tmp_path: Path) -> None:
    """IC-08, CN-11: the state that Kafka's leader keeps in memory is in the group's log."""
    async with World(tmp_path, group=settings(scheduled_delay_ms=0)) as world:
        await world.add("c", 8)
        a = world.start("a", assignors=[IncrementalCooperativeAssignor()])
        await world.settled()
        gate = world.gate()
        world.hook["a stop c-7"] = gate.wait
        b = world.start("b", assignors=[IncrementalCooperativeAssignor()])
        await world.until(lambda: gate.entered)
        await world.restart()
        gate.open()
        await world.settled(within=30)
        assert sorted(tasks(actor) for actor in (a, b)) == [4, 4]


# --------------------------------------------------------------------------------------------------
# A group that changes faster than its assignor computes (PD-06).


pytestmark = pytest.mark.asyncio


async def test_constant_joins_do_not_starve_the_group(tmp_path: Path) -> None:
    """16 workers join every 0.4 s, and the assignor takes 0.5 s: each result is outdated when it arrives.

    An outdated result that is still valid is installed, so tasks run long before the last worker has joined.
    """
    async with World(tmp_path) as world:
        await world.add("c", 15)
        spreads = []
        first_task_s = None
        for number in range(16):
            spread = Spread()
            wait = world.slow(0.5)
            spread.before = lambda group, wait=wait: wait()  # type: ignore[misc]
            spreads.append(spread)
            world.start(f"w{number:02}", assignors=[spread])
            await asyncio.sleep(0.4)
            running = sum(len(actor.units) for actor in world.actors.values())
            if first_task_s is None and running:
                first_task_s = world.now
        group = await world.describe()
        assert first_task_s is not None, "nothing ran before the last worker had joined"
        assert first_task_s <= 1.6
        assert group.assignment_epoch > 0
        assert running == 16, "all units run while workers still join"
        computations = sum(spread.calls for spread in spreads)
        await world.settled(within=30)
        assert computations <= 13
