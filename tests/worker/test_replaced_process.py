"""A second process with the name of a live worker: the first one stops its units and ends (PD-15)."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectgroup.errors import FencedInstanceId

from .builders import World

pytestmark = pytest.mark.asyncio


async def test_replaced_process_stops_its_units_long_before_its_lease_ends(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        await world.add("c", 2)
        first = world.start("a")
        await world.settled("a")
        second = world.start("a")
        began = world.now
        await world.until(lambda: first.task is not None and first.task.done())
        assert world.now - began < 1, "virtual seconds; the lease is longer"
        assert first.task is not None
        assert isinstance(first.task.exception(), FencedInstanceId)
        assert not first.units
        await world.until(lambda: len(second.units) == 3)
