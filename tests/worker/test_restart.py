"""A worker that restarts keeps its units: the whole loop, in virtual time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from connectgroup.protocol.messages.common import RestartRequest, RestartResponse

from .builders import GROUP, Actor, World, settings


async def request_restart(world: World, member_id: str) -> RestartResponse:
    request = RestartRequest(group_id=GROUP, member_id=member_id)
    response = await world.coordinator.handle(request, client_host="operator")
    assert isinstance(response, RestartResponse)
    return response


async def ended(actor: Actor, within: float = 5.0) -> None:
    assert actor.task is not None
    await asyncio.wait_for(actor.task, within)


async def start_again(world: World, name: str, **more: Any) -> None:
    """What a worker process does once ``run`` has returned with ``restarts``: start again."""
    before = world.actors.pop(name)
    await ended(before)
    assert before.worker.restarts
    await asyncio.sleep(2)
    world.start(name, **more)


async def test_rolling_restart_stops_each_task_once_and_moves_none(tmp_path: Path) -> None:
    async with World(tmp_path, group=settings(scheduled_delay_ms=10_000)) as world:
        await world.run(*"abc", tasks=8)
        before = await world.settled()
        for name in "abc":
            assert await request_restart(world, name) == RestartResponse(coordinator_epoch=1)
            await start_again(world, name)
            assert await world.settled(within=5) == before
        assert sum(" stop c-" in line for line in world.journal) == 8
        assert sum(rebalance.moved for rebalance in (await world.describe()).rebalances[-6:]) == 0


async def test_restart_reaches_a_worker_whose_heartbeat_is_parked_at_once(tmp_path: Path) -> None:
    async with World(tmp_path, group=settings(scheduled_delay_ms=10_000)) as world:
        a, _ = await world.run("a", "b", tasks=2)
        began = world.now
        await request_restart(world, "a")
        await ended(a)
        assert world.now - began < 0.5
        assert a.worker.restarts


async def test_restart_of_all_workers_at_the_same_time_moves_nothing(tmp_path: Path) -> None:
    async with World(tmp_path, group=settings(scheduled_delay_ms=10_000)) as world:
        await world.run(*"abc", tasks=8)
        before = await world.settled()
        for actor in world.actors.values():
            actor.worker.restart()
        for name in "cab":
            await start_again(world, name)
        assert await world.settled(within=5) == before


async def test_static_worker_restarts_without_a_rebalance(tmp_path: Path) -> None:
    """It leaves temporarily (epoch -2), whatever the scheduled rebalance delay is."""
    async with World(tmp_path, group=settings(scheduled_delay_ms=0)) as world:
        await world.add("c", 5)
        world.start("a")
        world.start("b", instance_id="i")
        before = await world.settled()
        epoch = (await world.describe()).group_epoch
        await request_restart(world, "b")
        await start_again(world, "b", instance_id="i")
        assert await world.settled(within=5) == before
        assert (await world.describe()).group_epoch == epoch


async def test_units_move_if_the_worker_does_not_return_within_the_delay(tmp_path: Path) -> None:
    async with World(tmp_path, group=settings(scheduled_delay_ms=10_000)) as world:
        _, b = await world.run("a", "b", tasks=5)
        began = world.now
        b.worker.restart()
        await ended(b)
        await world.settled("a", within=20)
        assert 9 < world.now - began < 12


async def test_stop_takes_precedence_over_a_restart(tmp_path: Path) -> None:
    async with World(tmp_path, group=settings(scheduled_delay_ms=10_000)) as world:
        _, b = await world.run("a", "b", tasks=3)
        b.worker.restart()
        b.worker.stop()
        await ended(b)
        assert not b.worker.restarts
        assert await world.settled("a", within=2)


async def test_restart_after_a_stop_has_no_effect(tmp_path: Path) -> None:
    async with World(tmp_path, group=settings(scheduled_delay_ms=10_000)) as world:
        _, b = await world.run("a", "b", tasks=3)
        b.worker.stop()
        b.worker.restart()
        await ended(b)
        assert not b.worker.restarts
        assert await world.settled("a", within=2)


async def test_draining_worker_is_not_restarted(tmp_path: Path) -> None:
    async with World(tmp_path, group=settings(scheduled_delay_ms=10_000)) as world:
        _, b = await world.run("a", "b", tasks=3)
        b.worker.drain()
        b.worker.restart()
        await ended(b, within=10)
        assert not b.worker.restarts
        assert await world.settled("a", within=2)


async def test_requested_drain_moves_every_task_before_the_worker_leaves(tmp_path: Path) -> None:
    async with World(tmp_path, group=settings(scheduled_delay_ms=10_000)) as world:
        _, b = await world.run("a", "b", tasks=4)
        request = RestartRequest(group_id=GROUP, member_id="b", drain=True)
        await world.coordinator.handle(request, client_host="operator")
        await ended(b, within=10)
        assert not b.worker.restarts
        assert await world.settled("a", within=1), "no unit is delayed for it"


async def test_worker_leaves_only_after_a_slow_stop(tmp_path: Path) -> None:
    """Heartbeats go on meanwhile at their interval: a repeated request to restart causes no busy loop."""
    async with World(tmp_path, group=settings(scheduled_delay_ms=10_000)) as world:
        _, b = await world.run("a", "b", tasks=3)
        before = await world.settled()
        world.hook["b stop c-0"] = world.hook["b stop c-1"] = world.hook["b stop c-2"] = world.slow(12)
        sent = b.heartbeats.heartbeats
        await request_restart(world, "b")
        await ended(b, within=30)
        assert b.heartbeats.heartbeats - sent < 20
        world.actors.pop("b")
        world.start("b")
        assert await world.settled(within=5) == before
