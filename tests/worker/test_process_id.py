"""Two processes with one name: the second one runs nothing until the first has left or was removed (PD-15)."""

from __future__ import annotations

from pathlib import Path

import pytest

from .builders import World

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
