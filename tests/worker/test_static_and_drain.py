"""Static members, members that return after expiry, and draining members: the whole loop, in virtual time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from connectgroup.errors import FencedInstanceId
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest
from connectgroup.protocol.units import Unit

from .builders import GROUP, Actor, World, settings


async def ended(actor: Actor, within: float = 5.0) -> None:
    assert actor.task is not None
    await asyncio.wait_for(actor.task, within)


async def test_cn_12_restarted_static_worker_keeps_its_units(tmp_path: Path) -> None:
    """One stop and one start per unit of the worker, none of other workers' units, and no new epoch."""
    async with World(tmp_path) as world:
        await world.add("c", 3)
        world.start("a")
        first = world.start("b1", instance_id="b")
        before = await world.settled()
        epoch = (await world.describe()).group_epoch
        first.worker.stop()
        await ended(first)
        await asyncio.sleep(5)
        assert [member.state for member in (await world.describe()).members] == ["STABLE", "AWAY"]
        del world.actors["b1"]
        world.start("b2", instance_id="b")
        after = await world.settled(within=2)
        assert after == {"a": before["a"], "b2": before["b1"]}
        assert (await world.describe()).group_epoch == epoch
        assert world.count("a stop") == 0
        for unit in before["b1"]:
            if unit != "c":
                assert world.count(f" start {unit}") == 2


async def test_st_07_static_worker_that_does_not_return_is_replaced_after_its_session(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        await world.add("c", 3)
        world.start("a")
        b = world.start("b1", instance_id="b")
        await world.settled()
        b.worker.stop()
        await ended(b)
        took = await world.until(lambda: len(world.actors["a"].units) == 4, within=20)
        assert 9 < took < 11


async def test_static_worker_can_leave_for_good(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        await world.add("c", 3)
        world.start("a")
        b = world.start("b1", instance_id="b")
        await world.settled()
        b.worker.stop(for_good=True)
        await ended(b)
        assert await world.settled("a", within=1)


async def test_worker_whose_stop_failed_does_not_leave_temporarily(tmp_path: Path) -> None:
    """X6: its successor would get the same tokens, and the hanging task could still write with them."""
    async with World(tmp_path) as world:
        await world.add("c", 3)
        world.start("a")
        b = world.start("b1", instance_id="b")
        mine = (await world.settled())["b1"]
        stuck = next(unit for unit in mine if unit != "c")
        world.hook[f"b1 stop {stuck}"] = world.gate().wait
        world.zombies.add("b1")
        b.worker.stop()
        await world.until(lambda: world.actors["a"].units >= {Unit("c", int(stuck[2:]))}, within=60)
        assert "b1" not in {member.member_id for member in (await world.describe()).members}


async def test_st_04_second_process_with_the_same_instance_id_waits(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        await world.add("c", 1)
        first = world.start("b1", instance_id="b")
        await world.settled()
        second = world.start("b2", instance_id="b")
        await asyncio.sleep(30)
        assert second.units == frozenset()
        assert second.heartbeats.heartbeats < 40, "it retries with back-off"
        first.worker.stop()
        await ended(first)
        assert await world.settled("b2", within=3)


async def test_st_05_process_whose_instance_id_was_taken_over_ends(tmp_path: Path) -> None:
    """The temporary leave of a live process was sent on its behalf: the process stops everything and reports why."""
    async with World(tmp_path) as world:
        await world.add("c", 3)
        world.start("a")
        first = world.start("b1", instance_id="b")
        await world.settled()
        first.cut()
        temporarily_left = HeartbeatRequest(
            group_id=GROUP,
            member_id="b1",
            member_epoch=-2,
            instance_id="b",
            process_id=first.worker.member.process_id,
        )
        await world.coordinator.handle(temporarily_left, client_host="a supervisor that was wrong")
        world.zombies.add("b1")
        world.start("b2", instance_id="b")
        await world.settled("a", "b2", within=1)
        first.heal()
        with pytest.raises(FencedInstanceId, match="in use by member b2"):
            await ended(world.actors.pop("b1"), within=20)
        assert first.units == frozenset()


async def test_st_04_process_cut_off_until_its_instance_id_was_taken_waits_too(tmp_path: Path) -> None:
    """Its lease expired first, so it runs nothing; if the other process leaves, it joins."""
    async with World(tmp_path) as world:
        await world.add("c", 3)
        world.start("a")
        first = world.start("b1", instance_id="b")
        await world.settled()
        first.cut()
        second = world.start("b2", instance_id="b")
        await world.settled("a", "b2", within=40)
        first.heal()
        await asyncio.sleep(20)
        assert first.units == frozenset()
        second.worker.stop()
        await ended(second)
        assert await world.settled("a", "b1", within=5)


async def test_l8_lost_worker_that_returns_gets_its_units_and_no_other_moves(tmp_path: Path) -> None:
    """Partitioned for longer than its session timeout, back before the scheduled rebalance delay ends."""
    async with World(tmp_path, group=settings(scheduled_delay_ms=30_000)) as world:
        await world.run(*"abc", tasks=5)
        before = await world.settled()
        world.actors["b"].cut()
        await asyncio.sleep(15)
        assert [delay.member_id for delay in (await world.describe()).delayed] == ["b"]
        stops = world.count("a stop") + world.count("c stop")
        world.actors["b"].heal()
        assert await world.settled(within=5) == before
        assert world.count("a stop") + world.count("c stop") == stops == 0
        assert (await world.describe()).delayed == ()


async def test_cn_11_delay_continues_under_the_next_coordinator(tmp_path: Path) -> None:
    async with World(tmp_path, group=settings(scheduled_delay_ms=30_000)) as world:
        await world.run(*"abc", tasks=5)
        b = world.actors.pop("b")
        b.cut()
        gone = world.now
        await asyncio.sleep(20)
        [waiting] = (await world.describe()).delayed
        assert 18_000 < waiting.left_ms < 30_000
        await world.restart()
        [still] = (await world.describe()).delayed
        assert still.left_ms <= waiting.left_ms
        await world.settled("a", "c", within=40)
        assert 38 < world.now - gone < 45, "session timeout 10 s and delay 30 s, under any coordinator"
        assert b.task is not None
        b.task.cancel()


async def test_drained_worker_exits_when_it_is_empty(tmp_path: Path) -> None:
    async with World(tmp_path, group=settings(max_moves=1)) as world:
        _, b = await world.run("a", "b", tasks=5)
        b.worker.drain()
        await ended(b)
        assert await world.settled("a", within=1)
        causes = [cause for rebalance in (await world.describe()).rebalances for cause in rebalance.causes]
        assert "b is draining" in causes
        assert any("to move in this round" in cause for cause in causes), "one unit per round"
        assert causes[-1] == "b left"


@pytest.mark.parametrize("stopped_before", [False, True])
async def test_worker_that_drains_itself_is_to_be_restarted_unless_it_is_stopped(
    tmp_path: Path, stopped_before: bool
) -> None:
    async with World(tmp_path) as world:
        _, b = await world.run("a", "b", tasks=3)
        b.worker.drain(then_restart=True)
        if stopped_before:
            b.worker.stop()
        await ended(b)
        assert b.worker.restarts is not stopped_before


async def test_reconfiguration_does_not_end_the_only_draining_worker(tmp_path: Path) -> None:
    """For a moment it runs nothing; then all units are assigned to it again."""
    async with World(tmp_path) as world:
        [a] = await world.run("a", tasks=2)
        a.worker.drain()
        await asyncio.sleep(5)
        await world.add("c", 2, text="other")
        await asyncio.sleep(5)
        assert await world.settled("a")


async def test_last_worker_is_not_drained(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        [a] = await world.run("a", tasks=2)
        a.worker.drain()
        await asyncio.sleep(10)
        assert await world.settled("a") == {"a": ["c", "c-0", "c-1"]}
        a.worker.stop()
        await ended(a)
