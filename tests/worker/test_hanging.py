"""What hangs is named: the unit, the phase, how long, and the file and the line."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from connectgroup.client.admin import Admin
from connectgroup.coordinator.runtime import Coordinator
from connectgroup.group.connect.settings import GroupSettings
from connectgroup.listener import WorkerRebalanceListener
from connectgroup.log.memory import MemoryLog
from connectgroup.member.actions import Grant
from connectgroup.member.settings import MemberSettings
from connectgroup.protocol.units import Unit, Units
from connectgroup.transport.local import LocalClient
from connectgroup.worker.loop import Worker

from .builders import World
from .test_unit_runner import until_status


class Hanging:
    """A runner whose start hangs, a few calls deep."""

    async def start(self, grants: Sequence[Grant]) -> None:
        await self.connect()

    async def connect(self) -> None:
        await asyncio.to_thread(lambda: None)
        await asyncio.Event().wait()

    async def stop(self, units: Units) -> None:
        pass


class Slow(WorkerRebalanceListener):
    """Blocks a thread."""

    def __init__(self, world: World) -> None:
        self.gate = world.gate()

    def on_assigned(self, units: Units, epoch: int) -> None:
        self.gate.wait()


async def test_start_that_hangs_is_named_and_given_up_at_the_rebalance_timeout(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with World(tmp_path) as world:
        actor = world.make("a", rebalance_timeout_ms=30_000)
        actor.worker.set_runner(Hanging())
        actor.task = asyncio.create_task(actor.worker.run())
        await world.add("c", 1)
        await world.until(lambda: "c: runner.start has not returned for 10 s, at " in caplog.text)
        assert f"{__file__}:" in caplog.text
        assert "(connect)" in caplog.text
        message = await until_status(world, Unit("c"), "FAILED")
        assert message.startswith("runner: start has not returned within 30 s, at "), message


async def test_listener_that_blocks_a_thread_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with World(tmp_path) as world:
        world.start("a", listeners=[Slow(world)])
        await world.add("c", 1)
        await world.until(lambda: "listener Slow: on_assigned of c has not returned for 10 s, at " in caplog.text)
        assert "(on_assigned)" in caplog.text or "(wait)" in caplog.text


async def test_start_of_a_task_that_hangs_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with World(tmp_path) as world:
        gate = world.gate()
        world.hook["start c-0"] = gate.wait
        world.start("a")
        await world.add("c", 1)
        await world.until(lambda: "c-0: start has not returned for 10 s, at " in caplog.text)
        await asyncio.sleep(300)
        assert (await until_status(world, Unit("c", 0), "FAILED")).startswith("start has not returned within 300 s, at")
        gate.open()
        await until_status(world, Unit("c", 0), "RUNNING")


def test_blocked_event_loop_is_reported_as_such(caplog: pytest.LogCaptureFixture) -> None:
    """In real time: a call blocks the event loop of a worker for longer than its lease."""

    async def program() -> None:
        settings = GroupSettings(session_timeout_ms=6_000, heartbeat_interval_ms=1_000)
        coordinator = Coordinator(MemoryLog(), settings)
        await coordinator.start()
        await Admin.local(coordinator).add_connector("g", "c", {"connector.class": "idle"})
        member = MemberSettings(group_id="g", member_id="w", max_wait_ms=500)
        async with Worker.running(member, lambda: LocalClient(coordinator)) as worker:
            while not worker.state.owned:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            await asyncio.sleep(1.5)
            time.sleep(4.5)  # noqa: ASYNC251
            while not worker.lost:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await coordinator.close()

    caplog.set_level(logging.INFO)
    asyncio.run(asyncio.wait_for(program(), 60))
    blocked = [line for line in caplog.messages if line.startswith("the event loop of this worker is blocked for")]
    assert blocked
    assert f", at {__file__}:" in blocked[0]
    lost = [line for line in caplog.messages if " lost c: " in line]
    assert lost[0].partition(" lost c: ")[2].startswith("the event loop of this worker was blocked for "), lost
    assert "no response from the coordinator" not in caplog.text
