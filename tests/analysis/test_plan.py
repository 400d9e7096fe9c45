"""A plan is what then happens: random groups and changes, in virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from connectgroup import (
    Change,
    DescribedGroup,
    EmbeddedGroup,
    GroupSettings,
    NoPlan,
    Plan,
    WorkerTraits,
    load_assignor,
    plan,
    worker_group,
)
from connectgroup.analysis.plan import compute_plan
from connectgroup.config.connector_file import ConnectorFile
from connectgroup.protocol.messages.common import AssignorInfo, entries, grouped
from connectgroup.protocol.messages.describe import DescribedConnector, DescribedMember, DescribedUnit
from connectgroup.protocol.units import Unit
from connectgroup.testing import VirtualLoop

from .test_comparison import Slots

GROUP = "g"
FOUR = frozenset(Unit("x", task) for task in range(-1, 3))


def owners(found: DescribedGroup) -> dict[str, str]:
    return {
        str(Unit(connector.connector, unit.task)): unit.member_id
        for connector in found.connectors
        for unit in connector.units
        if unit.member_id
    }


async def settled(group: EmbeddedGroup, units: int) -> dict[str, str]:
    """Wait until all units run; return their workers."""

    def all_run(found: DescribedGroup) -> bool:
        states = [unit.state for connector in found.connectors for unit in connector.units]
        return found.state == "Stable" and len(found.members) == len(group.workers) and states == ["RUNNING"] * units

    return owners(await group.admin.wait_until(GROUP, all_run, what="settled", timeout_s=120))


async def program(random: Random) -> None:
    sizes = {"x": random.randint(1, 9), "y": random.randint(1, 9)}
    units = sum(sizes.values()) + len(sizes)
    connectors = {name: {"connector.class": "idle", "tasks.max": str(size)} for name, size in sizes.items()}
    settings = GroupSettings(max_moves=random.choice([0, 1, 2]))
    workers = [f"worker-{number}" for number in range(random.randint(1, 4))]
    async with worker_group(GROUP, workers=workers, connectors=connectors, settings=settings) as group:
        before = await settled(group, units)
        for _ in range(4):
            leaving = random.choice(sorted(group.workers)) if len(group.workers) > 1 and random.random() < 0.5 else ""
            change = Change(remove=leaving) if leaving else Change(add_workers=1)
            planned = await plan(group.admin, GROUP, change)
            if leaving:
                await group.stop_worker(leaving)
            else:
                (joined,) = planned.units_after.keys() - group.workers.keys()
                await group.add_worker(joined)
            after = await settled(group, units)
            assert {**before, **{move.unit: move.target for move in planned.moves}} == after, planned
            assert {move.unit for move in planned.moves} >= {unit for unit in before if before[unit] != after[unit]}
            before = after


def described_group() -> DescribedGroup:
    """One worker, which runs connector x and its three tasks."""
    return DescribedGroup(
        group_id=GROUP,
        state="Stable",
        group_epoch=5,
        assignment_epoch=5,
        members=(
            DescribedMember(
                member_id="a",
                state="STABLE",
                member_epoch=5,
                assigned=grouped(FOUR),
                target=grouped(FOUR),
                assignors=(AssignorInfo(name="balanced"),),
            ),
        ),
        connectors=(
            DescribedConnector(
                connector="x",
                target_state="RUNNING",
                units=tuple(DescribedUnit(task=unit.task, member_id="a", owner_epoch=5) for unit in sorted(FOUR)),
            ),
        ),
    )


def test_plan_of_a_group_with_starting_units_ends_where_they_have_started() -> None:
    """What is starting moves too, and the plan says that it moves later."""
    described = replace(described_group(), starting=grouped(FOUR))
    planned = compute_plan(described, Change(add_workers=1), now_ms=0)
    started = compute_plan(replace(described, starting=()), Change(add_workers=1), now_ms=0)
    assert planned.moves == started.moves
    assert planned.moves
    assert "x, x-0, x-1, x-2: starting, and not moved before they run" in planned.notes


def test_value_that_the_group_masks_is_no_change_of_a_connector() -> None:
    """Only its class may know that it is a credential."""
    described = described_group()
    (connector,) = described.connectors
    config = {"connector.class": "idle", "pepper": "[hidden]", "tasks.max": "3"}
    described = replace(described, connectors=(replace(connector, config=entries(config)),))
    file = ConnectorFile(name="x", config={**config, "pepper": "real"})
    planned = compute_plan(described, Change(connector=file), now_ms=0)
    assert not planned.moves
    assert any(note.startswith("credentials are not compared") for note in planned.notes)


@pytest.mark.parametrize("seed", range(8))
def test_plan_predicts_the_owner_of_every_unit(seed: int) -> None:
    """Also under a limit on moves, where a change takes several rounds."""
    loop = VirtualLoop()
    try:
        loop.run_until_complete(asyncio.wait_for(program(Random(seed)), 3_600))
    finally:
        loop.close()


def test_plan_with_another_assignor_uses_the_metadata_that_members_have_sent() -> None:
    workers = {"a": 1, "b": 3}

    async def change_of(listed: list[Any]) -> Plan:
        async with worker_group(GROUP, workers=0, connectors={"x": 3}, assignors=listed) as group:
            for name, capacity in workers.items():
                await group.add_worker(name, traits=WorkerTraits(capacity=capacity))
            await settled(group, 4)
            described = await group.admin.describe(GROUP, assignor_input=True)
            return compute_plan(
                described,
                Change(assignor="slots"),
                now_ms=1_000,
                find_assignor=lambda name: Slots() if name == "slots" else load_assignor(name),
            )

    loop = VirtualLoop()
    try:
        planned = loop.run_until_complete(change_of(["balanced", Slots]))
        assert (planned.assignor, planned.units_after) == ("slots", workers)
        with pytest.raises(
            NoPlan, match=r"^worker a has no metadata of the assignor slots, because it does not list it"
        ):
            loop.run_until_complete(change_of(["balanced"]))
    finally:
        loop.close()
