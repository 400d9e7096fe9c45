"""A worker stops: cleanly, in bounded time, with and without a coordinator."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from connectgroup.worker.settings import WorkerSettings

from .builders import World


async def test_stop_returns_while_joining_without_a_coordinator(tmp_path: Path) -> None:
    """L7, KAFKA-19357."""
    async with World(tmp_path) as world:
        a = world.make("a")
        a.cut()
        a.task = asyncio.create_task(a.worker.run())
        await asyncio.sleep(20)
        a.worker.stop()
        await asyncio.wait_for(a.task, 6)


async def test_stop_before_the_first_response_leaves_no_member_behind(tmp_path: Path) -> None:
    """KAFKA-17116, KAFKA-16985: a join may still be under way when the leave is sent."""
    async with World(tmp_path) as world:
        a = world.make("a")
        a.task = asyncio.create_task(a.worker.run())
        await asyncio.sleep(0)
        a.worker.stop()
        await asyncio.wait_for(a.task, 6)
        assert (await world.describe()).members == ()


@pytest.mark.parametrize("cut", [False, True])
async def test_stop_returns_with_a_blocked_task(tmp_path: Path, cut: bool) -> None:
    """L7: bounded by the rebalance timeout, with and without a coordinator."""
    async with World(tmp_path) as world:
        await world.add("c", 2)
        world.hook["a stop c-1"] = world.gate().wait
        a = world.start("a", rebalance_timeout_ms=16_000)
        await world.settled()
        if cut:
            a.cut()
        a.worker.stop()
        assert a.task is not None
        await asyncio.wait_for(a.task, 16)
        if not cut:
            assert (await world.describe()).members == ()


async def test_stop_sends_the_leave_although_a_listener_raises(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        await world.add("c", 2)
        a = world.start("a", times=WorkerSettings(lose_timeout_s=5))
        await world.settled()

        def refuse() -> None:
            raise ValueError("no")

        world.hook["a on_revoked c, c-0, c-1"] = refuse
        a.worker.stop()
        assert a.task is not None
        await asyncio.wait_for(a.task, 12)
        assert (await world.describe()).members == ()
        assert not a.units


async def test_cancelled_run_stops_its_tasks_and_leaves(tmp_path: Path) -> None:
    """KAFKA-16985: an embedder cancels ``run``: no task goes on writing, and the group does not wait for a timeout."""
    async with World(tmp_path) as world:
        await world.add("c", 2)
        a = world.start("a")
        await world.settled()
        assert a.task is not None
        a.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await a.task
        assert world.count("a stop c-0") == world.count("a stop c-1") == 1
        assert (await world.describe()).members == ()
        assert not [
            task for task in asyncio.all_tasks() if "heartbeat" in repr(task) or "LocalClient.call" in repr(task)
        ]
