"""``connectgroup groups plan``: what a change would move. Each plan is compared with what the change then does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from connectgroup import WorkerTraits

from .live import GROUP, LiveGroup, command, live_group

CANARY = "s3cr3t-canary"


def owners(group: Any) -> dict[str, str]:
    return {
        f"{connector.connector}-{unit.task}" if unit.task >= 0 else connector.connector: unit.member_id
        for connector in group.connectors
        for unit in connector.units
        if unit.member_id
    }


async def planned(group: LiveGroup, *arguments: object) -> dict[str, Any]:
    """The plan as JSON, and the check that planning has changed nothing."""
    before = await group.admin.describe(GROUP)
    done = await group.groups("plan", *arguments, "--json")
    assert done.code == 0, done.err
    assert await group.admin.describe(GROUP) == before
    assert CANARY not in done.out
    found: dict[str, Any] = json.loads(done.out)
    return found


def after(before: dict[str, str], plan: dict[str, Any]) -> dict[str, str]:
    """The owners that a plan predicts."""
    moved = {move["unit"]: move["target"] for move in plan["moves"]}
    return {unit: owner for unit, owner in {**before, **moved}.items() if owner}


@pytest.mark.parametrize("assignor", ["balanced", "weighted", "incremental-cooperative"])
async def test_plan_of_a_worker_that_stops_is_what_then_happens(tmp_path: Path, assignor: str) -> None:
    workers = {"a": None, "b": None, "c": None}
    connectors = {"x": {"tasks.max": "7", "password": CANARY}, "y": {"tasks.max": "4"}}
    async with live_group(tmp_path, workers=workers, connectors=connectors, assignor=assignor) as group:
        await group.settled(workers=3, units=13)
        before = owners(await group.admin.describe(GROUP))
        plan = await planned(group, "--remove", "b")
        text = await group.groups("plan", "--remove", "b")
        await group.stop("b")
        await group.settled(workers=2, units=13)
        assert owners(await group.admin.describe(GROUP)) == after(before, plan)
    assert {move["unit"] for move in plan["moves"]} == {unit for unit, owner in before.items() if owner == "b"}
    assert {move["source"] for move in plan["moves"]} == {"b"}
    assert plan["rounds"] == 1
    assert (plan["units_before"]["b"], plan["units_after"]["b"]) == (len(plan["moves"]), 0)
    assert text.lines[0].endswith(": remove worker b; nothing is changed")
    assert (
        text.lines[1]
        == f"{len(plan['moves'])} would move, 0 start, 0 restart, 0 end, in 1 round, computed with {assignor}"
    )
    assert any(line.startswith("downtime") for line in text.lines)


async def test_plan_counts_the_rounds_of_a_limit_on_moves(tmp_path: Path) -> None:
    connectors = {"x": {"tasks.max": "7"}}
    async with live_group(tmp_path, workers={"a": None}, connectors=connectors, moves_per_round=1) as group:
        await group.settled(workers=1, units=8)
        before = owners(await group.admin.describe(GROUP))
        plan = await planned(group, "--add-workers", 1)
        await group.start("new-1")
        await group.settled(workers=2, units=8)
        assert owners(await group.admin.describe(GROUP)) == after(before, plan)
    assert [move["round"] for move in plan["moves"]] == [1, 2, 3]
    assert plan["rounds"] == 3
    assert {(move["source"], move["target"]) for move in plan["moves"]} == {("a", "new-1")}
    assert any("of worker a" in note for note in plan["notes"])


async def test_plan_of_a_drain_moves_everything_off_the_worker(tmp_path: Path) -> None:
    connectors = {"x": {"tasks.max": "4"}}
    async with live_group(tmp_path, workers={"a": None, "b": None}, connectors=connectors) as group:
        await group.settled(workers=2, units=5)
        plan = await planned(group, "--drain", "a")
    assert plan["units_after"] == {"a": 0, "b": 5}
    assert {(move["source"], move["target"]) for move in plan["moves"]} == {("a", "b")}


async def test_plan_of_another_assignor_obeys_its_constraints(tmp_path: Path) -> None:
    connectors = {"gpu": {"tasks.max": "2", "assignment.labels": "gpu=true"}, "x": {"tasks.max": "2"}}
    workers = {"a": None, "b": WorkerTraits(labels=(("gpu", "true"),))}
    async with live_group(tmp_path, workers=workers, connectors=connectors) as group:
        await group.settled(workers=2, units=6)
        before = owners(await group.admin.describe(GROUP))
        plan = await planned(group, "--assignor", "weighted")
    result = after(before, plan)
    assert {result[unit] for unit in ("gpu", "gpu-0", "gpu-1")} == {"b"}
    assert plan["assignor"] == "weighted"
    assert set(result) == set(before)


async def test_plan_of_a_connector_file_is_what_then_happens(tmp_path: Path) -> None:
    async with live_group(tmp_path, workers={"a": None, "b": None}, connectors={"x": {"tasks.max": "2"}}) as group:
        await group.settled(workers=2, units=3)
        before = owners(await group.admin.describe(GROUP))
        file = tmp_path / "new.json"
        config = {"connector.class": "idle", "tasks.max": "3", "password": CANARY}
        file.write_text(json.dumps({"name": "new", "config": config}))
        plan = await planned(group, "--connector", file)
        unchanged = tmp_path / "same.json"
        same = {"connector.class": "idle", "tasks.max": "2"}
        unchanged.write_text(json.dumps({"name": "x", "config": same}))
        nothing = await planned(group, "--connector", unchanged)
        await group.admin.put_connector(GROUP, "new", config)
        await group.settled(workers=2, units=7)
        assert owners(await group.admin.describe(GROUP)) == after(before, plan)
    assert {move["unit"] for move in plan["moves"]} >= {"new", "new-0", "new-1", "new-2"}
    assert nothing["moves"] == []
    assert nothing["rounds"] == 0


async def test_plan_of_a_group_whose_coordinator_assigns(tmp_path: Path) -> None:
    async with live_group(tmp_path, workers={}, connectors={"x": {"tasks.max": "2"}}) as group:
        plan = await planned(group, "--add-workers", 2)
    assert {move["unit"] for move in plan["moves"]} == {"x"}, "a connector without a worker has no tasks yet"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--drain", "nosuch"], "--drain: got 'nosuch'; allowed: a worker of the group: a"),
        (["--remove", "nosuch"], "--remove: got 'nosuch'; allowed: a worker of the group: a"),
        (["--assignor", "nosuch"], "--assignor: got 'nosuch'; allowed: "),
        (
            ["--connector", "/nosuch.json"],
            "file: got '/nosuch.json'; allowed: a readable file (No such file or directory)",
        ),
        ([], "plan: missing; allowed: --drain, --add-workers, --remove, --connector or --assignor"),
    ],
)
async def test_bad_input_is_one_line(tmp_path: Path, arguments: list[str], message: str) -> None:
    async with live_group(tmp_path, workers={"a": None}, connectors={"x": {}}) as group:
        await group.admin.wait_until(GROUP, lambda g: len(g.members) == 1, what="joined")
        done = await group.groups("plan", *arguments)
        missing = await command("groups", "plan", "nosuch", "--drain", "a", "--coordinator", group.server.address)
    assert (done.code, missing.code) == (3 if "a worker of the group" in message else 2, 3)
    assert done.err.startswith(f"connectgroup: {message}")
    assert done.err.count("\n") == missing.err.count("\n") == 1
