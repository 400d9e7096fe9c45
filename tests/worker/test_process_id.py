"""Two processes with one name: the second one runs nothing until the first has left or was removed (PD-15)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from connectgroup.protocol.messages.assignment import InstallRequest, PrepareRequest
from connectgroup.protocol.messages.connectors import UpdateConnectorsRequest
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest

from .builders import Spread, World

pytestmark = pytest.mark.asyncio


async def test_second_process_waits_until_the_first_has_left(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        await world.add("c", 2)
        first = world.start("a")
        await world.settled("a")
        second = world.start("a")
        began = world.now
        await world.until(lambda: world.now - began > 25)
        assert first.task is not None
        assert not first.task.done(), "the live process is not affected"
        assert len(first.units) == 3
        assert not second.units
        first.worker.stop()
        await world.until(lambda: len(second.units) == 3)
        assert not first.units


async def test_successor_of_a_dead_process_joins_when_the_session_has_expired(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        await world.add("c", 2)
        first = world.start("a")
        await world.settled("a")
        world.zombies.add("a")
        first.cut()
        assert first.task is not None
        first.task.cancel()
        second = world.start("a")
        took_s = await world.until(lambda: len(second.units) == 3)
        assert 6 < took_s < 13


async def test_worker_sends_one_random_process_id_with_each_request(tmp_path: Path) -> None:
    """Also after a lost connection: a member keeps its units when it connects again."""
    ids: dict[str, set[int]] = {}
    async with World(tmp_path) as world:
        await world.add("c", 2)
        for name in ("a", "b"):
            actor = world.start(name, assignors=[Spread()])
            await world.settled(name)
            actor.cut()
            await asyncio.sleep(1)
            actor.heal()
            await asyncio.sleep(5)
            assert actor.worker.lost == 0
            actor.worker.stop()
            assert actor.task is not None
            await actor.task
            sent: list[Any] = [request for link in (actor.heartbeats, actor.control) for _, request in link.requests]
            assert {type(request) for request in sent} >= {
                HeartbeatRequest,
                PrepareRequest,
                InstallRequest,
                UpdateConnectorsRequest,
            }
            ids[name] = {request.process_id for request in sent}
    assert len(ids["a"]) == len(ids["b"]) == 1
    assert not ids["a"] & ids["b"]
    assert not (ids["a"] | ids["b"]) & {-1, 0}
