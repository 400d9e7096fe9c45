"""A group that changes faster than its assignor computes (PD-06)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from .builders import Spread, World

pytestmark = pytest.mark.asyncio


async def test_constant_joins_do_not_starve_the_group(tmp_path: Path) -> None:
    """16 workers join every 0.4 s, and the assignor takes 0.5 s: each result is outdated when it arrives.

    An outdated result that is still valid is installed, so tasks run long before the last worker has joined.
    """
    async with World(tmp_path) as world:
        await world.add("c", 15)
        spreads = []
        first_task_s = None
        for number in range(16):
            spread = Spread()
            wait = world.slow(0.5)
            spread.before = lambda group, wait=wait: wait()  # type: ignore[misc]
            spreads.append(spread)
            world.start(f"w{number:02}", assignors=[spread])
            await asyncio.sleep(0.4)
            running = sum(len(actor.units) for actor in world.actors.values())
            if first_task_s is None and running:
                first_task_s = world.now
        group = await world.describe()
        assert first_task_s is not None, "nothing ran before the last worker had joined"
        assert first_task_s <= 1.6
        assert group.assignment_epoch > 0
        assert running == 16, "all units run while workers still join"
        computations = sum(spread.calls for spread in spreads)
        await world.settled(within=30)
        assert computations <= 13
