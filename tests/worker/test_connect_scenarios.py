"""Scenarios of Kafka Connect's integration tests for a whole group, with a scheduled rebalance delay of 30 s."""

from __future__ import annotations

import asyncio
from pathlib import Path

from connectgroup.coordinator.compute import server_assignors
from connectgroup.protocol.messages.connectors import ConnectorChange

from .builders import World, settings

NAMES = ("files", "orders", "tweets", "weather")
WAITS = settings(scheduled_delay_ms=30_000, server_assignor="balanced", server_assignors=server_assignors(["balanced"]))


async def begin(world: World) -> dict[str, list[str]]:
    """Three workers, four connectors of four tasks; the units by member."""
    for name in NAMES:
        await world.add(name, 4)
    for member_id in "abc":
        world.start(member_id)
    shares = await world.settled()
    assert balanced(shares)
    return shares


def balanced(shares: dict[str, list[str]]) -> bool:
    """Whether the counts of connectors per worker differ by at most one, and those of tasks too."""
    counts = [
        [sum((unit in NAMES) is is_connector for unit in its) for its in shares.values()] for is_connector in (0, 1)
    ]
    return all(max(sizes) - min(sizes) <= 1 for sizes in counts)


async def test_two_of_three_workers_that_return_in_time_get_their_units_back(tmp_path: Path) -> None:
    """WC-05: all units run once, balanced, within a minute; units of the third worker do not move."""
    async with World(tmp_path, group=WAITS) as world:
        before = await begin(world)
        for member_id in "ab":
            actor = world.actors[member_id]
            assert actor.task is not None
            actor.cut()
            actor.task.cancel()
        await asyncio.sleep(10)
        for member_id in "ab":
            world.start(member_id)
        after = await world.settled(within=50)
        assert balanced(after)
        assert after["c"] == before["c"]
        assert world.count("c stop") == 0


async def test_change_of_one_connector_restarts_no_task_of_the_others(tmp_path: Path) -> None:
    """WC-06: one connector is added, one reconfigured, one deleted; then a worker joins and one leaves."""
    async with World(tmp_path, group=WAITS) as world:
        await begin(world)
        await world.add("late", 4)
        await world.settled()
        others = [line for line in world.journal if " stop " in line]
        assert not others, "adding a connector stops no task"

        await world.add("files", 4, text="changed")
        await world.settled()
        stopped = [line.split(" ")[2] for line in world.journal if " stop " in line]
        assert sorted(stopped) == [f"files-{task}" for task in range(4)]
        assert all(world.count(f"start files-{task}") == 2 for task in range(4))

        await world.update(ConnectorChange(connector="orders", delete=True))
        shares = await world.settled()
        assert not [unit for its in shares.values() for unit in its if unit.startswith("orders")]
        kept = [
            line for line in world.journal if " stop " in line and line.split(" ")[2].startswith(("tweets", "weather"))
        ]
        moved = len(kept)

        world.start("d")
        shares = await world.settled()
        assert min(map(len, shares.values())) >= 4
        world.actors["d"].worker.stop()
        assert moved <= 1, "no more moves than balance needs"
        await world.settled("a", "b", "c")
