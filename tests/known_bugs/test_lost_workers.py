"""Bugs of Connect's rebalances: workers that are lost, return or join in a row; and the scheduled delay."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from connectgroup.coordinator.compute import server_assignors
from connectgroup.errors import TransportError
from connectgroup.log.memory import MemoryLog
from connectgroup.protocol.messages.api import Request, Response
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from connectgroup.protocol.records.connect import Record
from tests.coordinator.builders import served
from tests.worker.builders import Actor, World, settings

DELAY_MS = 30_000
WAITS = settings(
    scheduled_delay_ms=DELAY_MS, server_assignor="balanced", server_assignors=server_assignors(["balanced"])
)
"""The scheduled delay of these tests: half a minute from the end of the session."""


async def delayed(world: World) -> dict[str, int]:
    """The remaining delays in milliseconds, by member id."""
    return {work.member_id: work.left_ms for work in (await world.describe()).delayed}


async def epoch(world: World) -> int:
    return (await world.describe()).group_epoch


async def stays_stable(world: World, seconds: float = 300) -> None:
    """No unit moves, no epoch is bumped, and workers send only their regular heartbeats."""
    before = await epoch(world)
    lines = [line for line in world.journal if line[0] != "?"]
    sent = {name: actor.heartbeats.heartbeats for name, actor in world.actors.items()}
    await asyncio.sleep(seconds)
    assert await epoch(world) == before
    assert [line for line in world.journal if line[0] != "?"] == lines
    for name, actor in world.actors.items():
        assert actor.heartbeats.heartbeats - sent[name] <= 2 * seconds / 3 + 2


def running_copies(world: World, number: int) -> int:
    """The number of starts of a task that have not been followed by a stop."""
    lines = [line.split(" ") for line in world.journal]
    events = [event for _, event, *unit in lines if unit == [f"c-{number}"]]
    return events.count("start") - events.count("stop")


async def removed(world: World, member_id: str) -> None:
    """Wait until the group has removed a member: not longer than a session."""
    group = served(world.coordinator, "workers")
    await world.until(lambda: member_id not in group.members, within=11, step=0.01)


def even(shares: dict[str, list[str]]) -> bool:
    """Whether the tasks are distributed evenly."""
    sizes = [len([unit for unit in units if unit != "c"]) for units in shares.values()]
    return max(sizes) - min(sizes) <= 1


# --------------------------------------------------------------------------------------------------
# KAFKA-9184, KAFKA-9841


@pytest.mark.parametrize("back_s", [15, 60], ids=["during the delay", "after the delay"])
async def test_worker_that_was_cut_off_rejoins_without_units(tmp_path: Path, back_s: float) -> None:
    """KAFKA-9184, WC-07: a worker that was cut off kept running its tasks after they were reassigned. KAFKA-9841: it
    rejoined with its old assignment, and tasks ran twice. Here it stops before the group removes it, rejoins without
    units, and its units get later owner epochs; the delay for the next lost worker is as long
    again.
    """
    async with World(tmp_path, group=WAITS) as world:
        await world.run(*"abd", tasks=8)
        before = await world.settled()
        b = world.actors["b"]
        tokens, at_epoch = dict(b.worker.member.owned), await epoch(world)
        b.cut()
        began = world.now
        await world.until(lambda: world.count("b on_lost"), within=9)
        assert world.now - began < 8.1
        assert not b.units
        await asyncio.sleep(back_s - (world.now - began))
        b.heal()
        asked = len(b.heartbeats.requests)
        after = await world.settled(within=15)
        [first] = [r for _, r in b.heartbeats.requests[asked:] if isinstance(r, HeartbeatRequest)][:1]
        assert (first.member_epoch, first.owned) == (0, ())
        assert even(after)
        if back_s < 40:
            assert after == before
        for unit in tokens.keys() & b.worker.member.owned.keys():
            assert b.worker.member.owned[unit] > tokens[unit]
        assert await epoch(world) - at_epoch <= 3, "lost, reassigned, returned"
        await stays_stable(world)

        world.actors["d"].cut()
        await removed(world, "d")
        [left_ms] = (await delayed(world)).values()
        assert DELAY_MS - 50 <= left_ms <= DELAY_MS


# --------------------------------------------------------------------------------------------------
# KAFKA-9848


async def test_grant_whose_response_was_lost_is_not_delayed(tmp_path: Path) -> None:
    """KAFKA-9848: the response with a worker's tasks was lost, they were taken for lost, and were delayed although all
    workers were present; here the worker retries and gets them, without a delay and without a new epoch.
    """
    async with World(tmp_path, group=WAITS) as world:
        await world.run("a", tasks=5)
        b = world.make("b")
        lost: list[float] = []

        async def lose_grants(request: Request) -> Response | None:
            response = await world.coordinator.handle(request, client_host="test")
            assert isinstance(response, HeartbeatResponse)
            if len(lost) < 3 and response.assignment is not None and response.assignment.grants:
                lost.append(world.now)
                raise TransportError("connection reset")
            return response

        b.heartbeats.instead = lose_grants
        b.task = asyncio.create_task(b.worker.run())
        await world.until(lambda: lost)
        at_epoch = await epoch(world)
        assert even(await world.settled(within=5))
        assert len(lost) == 3
        assert world.now - lost[0] < 2
        assert await delayed(world) == {}
        assert await epoch(world) == at_epoch


# --------------------------------------------------------------------------------------------------
# strimzi#11475


async def crash(actor: Actor) -> None:
    """The process crashes."""
    actor.cut()
    assert actor.task is not None
    actor.task.cancel()
    await asyncio.gather(actor.task, return_exceptions=True)


@pytest.mark.parametrize("how", ["crashed", "stopped"])
async def test_restarted_pod_with_an_instance_id_does_not_wait_for_the_delay(tmp_path: Path, how: str) -> None:
    """strimzi#11475: a restarted pod idled for the whole rebalance delay, since it rejoined under another id; here it
    has the same instance id: it gets its units back within two heartbeats of the end of its session (at once,
    if it left temporarily), and no other unit moves.
    """
    async with World(tmp_path, group=settings(scheduled_delay_ms=300_000)) as world:
        await world.add("c", 8)
        for number in range(3):
            world.start(f"pod-{number}-x", instance_id=f"pod-{number}")
        before = await world.settled()
        old = world.actors.pop("pod-1-x")
        went = world.now
        if how == "crashed":
            await crash(old)
        else:
            old.worker.stop()
            assert old.task is not None
            await old.task
        stops = world.count("pod-0-x stop") + world.count("pod-2-x stop")
        world.start("pod-1-y", instance_id="pod-1")
        after = await world.settled(within=40)
        assert after.pop("pod-1-y") == before.pop("pod-1-x")
        assert after == before
        assert world.count("pod-0-x stop") + world.count("pod-2-x stop") == stops
        assert world.now - went < (10 + 2 * 3 + 5.5 if how == "crashed" else 1)
        assert await delayed(world) == {}


class SlowLog(MemoryLog):
    async def append(self, records: Sequence[Record]) -> None:
        await asyncio.sleep(0.5)
        await super().append(records)


async def test_slow_changes_during_rebalances_run_no_task_twice(tmp_path: Path) -> None:
    """strimzi#11475: a slow call that changed a connector met a reassignment, and a task ran on two workers; here a
    slow change delays everything that depends on it, and the harness fails this test if a task starts twice.
    """
    async with World(tmp_path, group=settings(session_timeout_ms=20_000), log=SlowLog) as world:
        await world.run("a", tasks=6)
        world.zombies.add("b")  # its stops take longer than what is left of its session
        for number in range(6):
            world.hook[f"stop c-{number}"] = world.slow(5)
        world.start("b")
        await world.until(lambda: world.count("a stop"))
        changes = [asyncio.create_task(world.add("c", number)) for number in (4, 6, 5)]
        world.start("d")
        await asyncio.sleep(10)
        world.actors["b"].cut()
        changes.append(asyncio.create_task(world.add("c", 6, text="other")))
        world.start("e")
        await asyncio.sleep(25)
        world.actors["b"].heal()
        changes.append(asyncio.create_task(world.add("c", 6, text="another")))
        await asyncio.gather(*changes)
        assert even(await world.settled(within=120))
        for number in range(6):
            assert running_copies(world, number) == 1
        assert world.count(" stop ") > 12
