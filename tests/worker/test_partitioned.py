"""A worker is cut off from the coordinator, removed, or outlives a coordinator."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from connectgroup.protocol.messages.api import Request, Response
from connectgroup.protocol.messages.heartbeat import (
    HeartbeatRequest,
)
from connectgroup.worker.settings import WorkerSettings

from .builders import World


async def test_partitioned_worker_stops_before_its_units_are_assigned_again(tmp_path: Path) -> None:
    """KAFKA-9184, F4: on_lost before the session timeout; the worker rejoins when the partition heals."""
    async with World(tmp_path) as world:
        [a] = await world.run("a", tasks=3)
        world.start("b")
        await world.settled()
        a.cut()
        cut = world.now
        await world.until(lambda: world.count("a on_lost c, c-0"), within=10)
        assert world.now - cut <= 8.1, "session timeout less the margin, counted from the last send"
        assert world.count("b start c-0") == 0
        assert world.count("a stop c-0") == 1
        assert not a.units
        await world.settled("b", within=5)
        await asyncio.sleep(30)
        assert world.count("a on_lost") == 1
        a.heal()
        assert await world.settled("a", "b", within=10) == {"a": ["c-1", "c-2"], "b": ["c", "c-0"]}


@pytest.mark.parametrize("how", ["between two attempts", "in a call that ignores its timeout"])
async def test_lease_ends_on_time_whatever_the_worker_waits_for(tmp_path: Path, how: str) -> None:
    """KAFKA-9184: not at the next attempt, which may come too late."""
    async with World(tmp_path) as world:
        await world.add("c", 1)
        times = WorkerSettings(call_timeout_s=1, retry_initial_s=60, retry_max_s=60)
        a = world.start("a", times=times, max_wait_ms=0)
        await world.settled()

        async def hang(request: Request) -> Response | None:
            await asyncio.sleep(100)
            return None

        if how == "between two attempts":
            a.cut()
        else:
            a.heartbeats.instead = hang
        cut = world.now
        await world.until(lambda: world.count("a stop c-0"), within=20, step=0.01)
        assert 4.9 <= world.now - cut <= 8.05


async def test_worker_loses_nothing_while_the_coordinator_is_away_for_a_moment(tmp_path: Path) -> None:
    """F1: one lost response, at any moment, has no effect: half of the remaining lease is left for a retry."""
    async with World(tmp_path) as world:
        [a] = await world.run("a", tasks=3)
        for number in range(20):
            a.cut()
            await asyncio.sleep(1.2)
            a.heal()
            await asyncio.sleep(10 + 0.17 * number)
        assert a.worker.lost == 0
        assert world.count(" stop ") == 0


async def test_fenced_tasks_run_on_while_the_coordinator_is_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """PD-10: an outage of six sessions. Tasks that no sink fences stop within the lease and come back; others never
    stop, and their worker is the same member afterwards.
    """
    caplog.set_level("INFO")
    async with World(tmp_path) as world:
        await world.add("fenced", 4, fenced="true")
        await world.add("plain", 4)
        actors = [world.start(name) for name in "ab"]
        before = await world.settled()
        epochs = [actor.worker.member.epoch for actor in actors]
        await world.coordinator.close()
        for actor in actors:
            actor.cut()
        closed = world.now
        await world.until(lambda: world.count(" stop plain-") == 4, within=5.1)
        await asyncio.sleep(30)
        assert world.count(" on_lost ") == 2
        assert world.count("on_lost fenced") == 0
        assert "the coordinator is away for" in caplog.text
        assert sum(len(actor.units) for actor in actors) == 6, "four tasks and two connectors"
        await asyncio.sleep(closed + 60 - world.now)
        await world.__aenter__()
        for actor in actors:
            actor.heal()
        assert await world.settled(within=6) == before, "each task on its worker"
        assert world.count(" stop fenced") == 0
        assert world.count(" start plain-") == 8
        assert [actor.worker.member.epoch for actor in actors] == epochs
        assert [actor.worker.lost for actor in actors] == [0, 0]
        assert "the coordinator responds again after 60" in caplog.text


async def test_worker_that_was_removed_while_it_was_cut_off_stops_when_it_hears_of_it(tmp_path: Path) -> None:
    """PD-10, X1: its fenced task runs on beside the successor's, unable to write, until the worker is back."""
    async with World(tmp_path) as world:
        world.zombies.add("a")
        await world.add("c", 3, fenced="true")
        a = world.start("a")
        await world.settled()
        world.start("b")
        await world.settled()
        a.cut()
        await world.settled("b", within=25)
        await asyncio.sleep(60)
        assert world.count("a stop c-0") == 0
        assert world.count("b start c-0") == 1
        a.heal()
        await world.until(lambda: world.count("a on_lost c, c-0"), within=3)
        assert world.count("a stop c-0") == 1
        await world.settled(within=10)
        assert a.worker.lost == 1


async def test_unfenced_task_whose_start_or_stop_is_under_way_does_not_run_on(tmp_path: Path) -> None:
    """PD-10: a task that waits behind a slow listener when the lease expires does not start."""
    async with World(tmp_path) as world:
        await world.add("fenced", 2, fenced="true")
        a = world.start("a")
        await world.settled()
        world.hook["a on_assigned plain-0, plain-1"] = world.slow(7)
        await world.add("plain", 2)
        await world.until(lambda: world.count("a on_assigned plain-0"))
        a.cut()
        await world.until(lambda: world.count("a on_lost plain-0, plain-1"), within=8)
        assert world.count("a start plain-") == 0
        assert world.count("a stop fenced") == 0
        a.heal()
        await world.settled(within=30)
        assert world.count("a start plain-") == 2


async def test_unfenced_task_that_does_not_stop_with_the_lease_stays_with_its_worker(tmp_path: Path) -> None:
    """F18, X6: the group assigns it again after the rebalance timeout only, when its worker gives all units up."""
    async with World(tmp_path) as world:
        await world.add("fenced", 1, fenced="true")
        await world.add("plain", 1)
        a = world.start("a", rebalance_timeout_ms=20_000)
        await world.settled()
        gate = world.gate()
        world.hook["a stop plain-0"] = gate.wait
        await world.coordinator.close()
        a.cut()
        await world.until(lambda: gate.entered, within=6)
        stopped = world.now
        await world.__aenter__()
        a.heal()
        b = world.start("b")
        world.zombies.add("b")
        await asyncio.sleep(stopped + 19 - world.now)
        assert world.count("b start plain-0") == 0, "it still runs on a"
        await world.until(lambda: world.count("a on_lost"), within=25)
        world.hook.clear()
        gate.open()
        await world.settled(within=30)
        assert a.worker.lost == 1
        assert b.worker.lost == 0


async def test_worker_removed_by_the_coordinator_rejoins(tmp_path: Path) -> None:
    """L4, F15: removed while it is alive; its next heartbeat is fenced."""
    async with World(tmp_path) as world:
        [a] = await world.run("a", tasks=3)
        world.start("b")
        await world.settled()
        world.zombies.add("a")
        leave_request = HeartbeatRequest(
            group_id="workers",
            member_id="a",
            member_epoch=-1,
            cause="was reaped",
            process_id=a.worker.member.process_id,
        )
        await world.coordinator.handle(leave_request, client_host="supervisor")
        await world.until(lambda: world.count("a on_lost"), within=4)
        world.zombies.clear()
        assert world.count("a on_lost c, c-0") == 1
        await world.settled(within=4)
        assert a.worker.lost == 1


async def test_restarted_coordinator_finds_every_task_running(tmp_path: Path) -> None:
    """F7: no task stops; epochs continue."""
    async with World(tmp_path) as world:
        await world.run("a", "b", tasks=3)
        epochs = [actor.worker.member.epoch for actor in world.actors.values()]
        stops = world.count(" stop ")
        await world.restart()
        await asyncio.sleep(30)
        await world.settled()
        assert world.count(" stop ") == stops
        assert [actor.worker.member.epoch for actor in world.actors.values()] == epochs
        assert world.count("on_lost") == 0


async def test_group_grows_shrinks_to_none_and_grows_again(tmp_path: Path) -> None:
    """F32: one, many, none, many workers."""
    async with World(tmp_path) as world:
        await world.run(*"abcd", tasks=7)
        for actor in world.actors.values():
            actor.worker.stop()
        await asyncio.wait([actor.task for actor in world.actors.values() if actor.task], timeout=5)
        assert (await world.describe()).members == ()
        for name in "abcd":
            world.start(name)
        shares = await world.settled()
        assert sorted(map(len, shares.values())) == [2, 2, 2, 2]
        assert world.count("on_lost") == 0
