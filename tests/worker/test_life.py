"""Workers join, share, lose one another and leave, with the real coordinator in virtual time."""

from __future__ import annotations

from pathlib import Path

from .builders import World


async def test_one_worker_gets_everything_and_a_second_one_its_share(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        await world.add("c", 3)
        world.start("a")
        assert await world.settled() == {"a": ["c", "c-0", "c-1", "c-2"]}
        world.start("b")
        assert await world.settled() == {"a": ["c", "c-0"], "b": ["c-1", "c-2"]}
        print(world.now, world.journal)
