"""The numbers of tasks in heartbeats: those of a lost heartbeat are sent again, and none is sent for them alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

from connectgroup.connector import Lag
from connectgroup.errors import TransportError
from connectgroup.protocol.messages.api import Request, Response
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest
from connectgroup.protocol.messages.progress import Progress
from connectgroup.protocol.units import Unit

from .builders import World

TASK = Unit("c", 0)


async def numbers(world: World) -> Progress | None:
    return (await world.describe()).connectors[0].units[1].numbers


async def test_numbers_of_a_lost_heartbeat_are_sent_again(tmp_path: Path) -> None:
    lost: list[HeartbeatRequest] = []

    async def lose(request: Request) -> Response | None:
        if isinstance(request, HeartbeatRequest) and request.progress and len(lost) < 2:
            lost.append(request)
            raise TransportError("no response")
        return None

    async with World(tmp_path) as world:
        await world.add("c", 1)
        a = world.start("a")
        await world.settled()
        a.heartbeats.instead = lose
        world.contexts[TASK].lag(Lag(records=3))
        await world.until(lambda: len(lost) == 2)
        await asyncio.sleep(20)
        assert (await numbers(world)) == Progress(records_lag=3)
        assert lost[0].progress == lost[1].progress


async def test_only_numbers_that_have_changed_are_sent(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        await world.add("c", 2)
        a = world.start("a")
        await world.settled()
        await asyncio.sleep(20)
        before = a.heartbeats.heartbeats
        await asyncio.sleep(60)
        usual = a.heartbeats.heartbeats - before
        for records in (3, 4):
            world.contexts[TASK].lag(Lag(records=records))
            await asyncio.sleep(60)
        sent = [request for _, request in a.heartbeats.requests if isinstance(request, HeartbeatRequest)]
        reports = [request.progress for request in sent if request.progress]
        assert [[(each.task, each.progress.records_lag) for each in report] for report in reports] == [
            [(0, 3)],
            [(0, 4)],
        ]
        assert abs(a.heartbeats.heartbeats - before - 3 * usual) <= 1
