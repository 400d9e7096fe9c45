"""What a worker promises in passing: each of these could be broken without any other test noticing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from connectgroup.errors import TransportError
from connectgroup.listener import WorkerRebalanceListener
from connectgroup.protocol.messages.api import Request, Response
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest
from connectgroup.protocol.units import Units

from .builders import GROUP, Recorder, World


async def test_a_connection_that_is_refused_at_once_does_not_make_a_worker_spin(tmp_path: Path) -> None:
    """KAFKA-20253, where nothing answers and nothing has to be waited for."""
    async with World(tmp_path) as world:
        await world.add("c", 1)
        a = world.start("a")
        await world.settled()

        async def refuse(request: Request) -> Response | None:
            raise TransportError("connection refused")

        a.heartbeats.instead = refuse
        sent = a.heartbeats.heartbeats
        await asyncio.sleep(20)
        assert a.task is not None
        assert not a.task.done()
        assert 5 < a.heartbeats.heartbeats - sent < 40


async def test_a_worker_that_lost_everything_joins_again_when_all_of_it_has_stopped(tmp_path: Path) -> None:
    """KAFKA-16251: "fenced: on_lost first, then join". A join says that nothing runs."""
    async with World(tmp_path) as world:
        await world.add("c", 1)
        a = world.start("a")
        await world.settled()
        world.hook["a stop c-0"] = world.slow(4)
        leave = HeartbeatRequest(group_id=GROUP, member_id="a", member_epoch=-1)
        lost = world.now
        await world.coordinator.handle(leave, client_host="operator")
        await world.until(lambda: a.worker.lost)
        await world.settled("a")
        [joined] = [
            at
            for at, request in a.heartbeats.requests
            if isinstance(request, HeartbeatRequest) and request.member_epoch == 0 and at > lost
        ]
        assert joined >= lost + 4
        assert [line for line in world.journal if line.startswith("a ")][-4:] == [
            "a stop c-0",
            "a on_lost c, c-0",
            "a on_assigned c, c-0",
            "a start c-0",
        ]


@pytest.mark.parametrize("event", ["on_assigned", "on_revoked", "on_lost"])
async def test_a_listener_that_raises_does_not_keep_the_news_from_the_next_one(tmp_path: Path, event: str) -> None:
    class Raises(WorkerRebalanceListener):
        def on_assigned(self, units: Units, epoch: int) -> None:
            self.fail("on_assigned")

        def on_revoked(self, units: Units, epoch: int) -> None:
            self.fail("on_revoked")

        def on_lost(self, units: Units, epoch: int) -> None:
            self.fail("on_lost")

        def fail(self, told: str) -> None:
            if told == event:
                raise ValueError(f"not {told}")

    async with World(tmp_path) as world:
        await world.add("c", 1)
        a = world.make("a", listeners=[Raises(), Recorder(world, "a")], rebalance_timeout_ms=1_000)
        a.task = asyncio.create_task(a.worker.run())
        await world.settled()
        if event == "on_revoked":
            world.start("b")
        elif event == "on_lost":
            leave = HeartbeatRequest(group_id=GROUP, member_id="a", member_epoch=-1)
            await world.coordinator.handle(leave, client_host="operator")
        await world.until(lambda: world.count(f"a {event} "))
