"""``connectgroup groups explain``: rebalances, and why a task is where it is or does not run."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from connectgroup import LocalClient, TargetState, Units, WorkerTraits
from connectgroup.errors import FencedMemberEpoch
from connectgroup.protocol.messages.common import units_of
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse

from .live import GROUP, command, live_group

CANARY = "s3cr3t-canary"


async def test_rebalances_name_cause_assignor_and_the_downtime_of_each_move(tmp_path: Path) -> None:
    connectors = {"c": {"tasks.max": "4", "password": CANARY}}
    async with live_group(tmp_path, workers={"a": None}, connectors=connectors) as group:
        await group.settled(workers=1, units=5)
        await group.start("b")
        await group.settled(workers=2, units=5)
        done = await group.groups("explain", "--moves")
        as_json = await group.groups("explain", "--json")
        task = next(line for line in done.lines if "a -> b" in line).split(":")[0].strip()
        moved = await group.groups("explain", "--task", task)
        described = await group.groups("describe")
        described_json = json.loads((await group.groups("describe", "--json")).out)
        where = ("--group", GROUP, "--coordinator", group.server.address)
        of_connector = [await command("connectors", each, "c", *where) for each in ("describe", "status")]
        of_connector_json = json.loads((await command("connectors", "describe", "c", "--json", *where)).out)
    joined = next(line for line in done.lines if "b joined" in line)
    assert joined.endswith("computed by a with balanced"), done.out
    assert "2 moved, maximum downtime " in joined
    assert sum("a -> b, downtime " in line for line in done.lines) == 2
    last = json.loads(as_json.out)[-1]
    assert (last["assignor"], last["computed_by"], last["moved"]) == ("balanced", "a", 2)
    assert {(move["source"], move["target"]) for move in last["moves"]} == {("a", "b")}
    assert all(0 <= move["handover_ms"] <= move["downtime_ms"] for move in last["moves"]), "b has reported both"
    assert moved.lines[0].startswith(f"{task}: RUNNING on b since epoch ")
    assert "b joined, computed by a with balanced" in moved.lines[1]
    assert moved.lines[2].startswith("  a -> b, downtime ")
    (described_task,) = [line for line in described.lines if line.startswith(f"  {task}: ")]
    (explained_ms,) = re.findall(r"downtime (\d+) ms", moved.lines[2])
    assert re.fullmatch(
        rf"  {task}: RUNNING on b since epoch \d+, downtime {explained_ms} ms, not fenced", described_task
    )
    assert described.out.count("downtime") == 2, "of what moved; what has only been started has had none"
    units = {unit["task"]: unit["downtime_ms"] for unit in described_json["connectors"][0]["units"]}
    assert units[int(task.removeprefix("c-"))] == int(explained_ms)
    assert list(units.values()).count(None) == 3
    assert {unit["task"]: unit["downtime_ms"] for unit in of_connector_json["units"]} == units
    for each in of_connector:
        assert "  OWNER EPOCH  DOWNTIME" in each.out
        assert [line.split()[-2:] for line in each.lines if line.startswith(f"{task} ")] == [[explained_ms, "ms"]]
    assert CANARY not in done.out + as_json.out + moved.out


async def test_explanation_shows_delayed_tasks_and_until_when(tmp_path: Path) -> None:
    config: dict[str, Any] = {"scheduled_rebalance_max_delay_ms": 600_000}
    async with live_group(tmp_path, workers={"a": None}, connectors={"c": {"tasks.max": "2"}}, **config) as group:
        await group.settled(workers=1, units=3)
        client = LocalClient(group.server.coordinator)
        beat = HeartbeatRequest(group_id=GROUP, member_id="b", member_epoch=0, rebalance_timeout_ms=10_000, owned=())

        async def joined() -> Units:
            """Send heartbeats as b, which has no process, until it has been assigned a task."""
            epoch = 0
            while True:
                response = await client.call(replace(beat, member_epoch=epoch), timeout_s=10)
                assert isinstance(response, HeartbeatResponse)
                epoch = response.member_epoch
                await asyncio.sleep(0.01)
                if response.assignment is not None and response.assignment.units:
                    return units_of(response.assignment.units)

        (task,) = await asyncio.wait_for(joined(), 60)
        response = await client.call(replace(beat, member_epoch=77), timeout_s=10)
        assert isinstance(response, HeartbeatResponse)
        assert response.error_code == FencedMemberEpoch.code
        await group.settled(workers=1, units=2)
        done = await group.groups("explain", "--last", "1")
        why = await group.groups("explain", "--task", task)
        as_json = json.loads((await group.groups("explain", "--last", "1", "--json")).out)
    assert "b was fenced" in done.lines[0]
    assert done.lines[1].startswith("  delayed until 20")
    assert done.lines[1].endswith(f"Z for worker b: {task}")
    assert [(each["worker"], each["units"]) for each in as_json[0]["delayed"]] == [("b", [str(task)])]
    assert why.lines[0] == f"{task}: UNASSIGNED"
    assert "s more for lost worker b (scheduled rebalance delay)" in why.lines[1]


async def test_constraint_that_rejects_each_worker_is_named(tmp_path: Path) -> None:
    connectors = {
        "gpu": {"tasks.max": "1", "assignment.labels": "gpu=true"},
        "big": {"tasks.max": "1", "assignment.task.weight": "9"},
        "port": {"tasks.max": "2", "assignment.exclusive": "port:80"},
    }
    workers = {"a": WorkerTraits(capacity=4), "b": WorkerTraits(capacity=5, labels=(("gpu", "false"),))}
    async with live_group(tmp_path, workers=workers, connectors=connectors, assignor="weighted") as group:
        await group.settled(workers=2, units=4)
        gpu = await group.groups("explain", "--task", "gpu")
        big = await group.groups("explain", "--task", "big-0")
        port = await group.groups("explain", "--task", "port-0", "--json")
    assert gpu.lines[0] == "gpu: UNASSIGNED"
    assert "  worker a is rejected: label gpu=true: missing" in gpu.lines
    assert "  worker b is rejected: label gpu=true: missing" in gpu.lines
    assert any("the assignor weighted left it out" in line for line in gpu.lines)
    assert any("worker a is rejected: capacity 4: " in line and "big-0 weighs 9" in line for line in big.lines)
    explained = json.loads(port.out)
    other = ({"a", "b"} - {explained["worker"]}).pop()
    assert explained["state"] == "RUNNING"
    assert explained["rejected_by"] == {other: [f"assignment.exclusive port:80: used by port-1 on {other}"]}


async def test_paused_and_failed_tasks_are_explained(tmp_path: Path) -> None:
    async with live_group(tmp_path, workers={"a": None}, connectors={"c": {"tasks.max": "1"}}) as group:
        await group.settled(workers=1, units=2)
        await group.admin.set_state(GROUP, "c", TargetState.PAUSED)
        await group.settled(workers=1, units=1)
        paused = await group.groups("explain", "--task", "c-0")
        await group.admin.put_connector(GROUP, "d", {"connector.class": "nosuch", "password": CANARY})
        await group.admin.wait_until(
            GROUP, lambda g: any(u.state == "FAILED" for c in g.connectors for u in c.units), what="failed"
        )
        failed = await group.groups("explain", "--task", "d")
    assert paused.lines == ["c-0: PAUSED", "  connector c is PAUSED; resume it to run its tasks"]
    assert failed.lines[0].startswith("d: FAILED on a since epoch ")
    assert any("it has failed, its worker retries it: " in line and "nosuch" in line for line in failed.lines)
    assert CANARY not in failed.out


async def test_unknown_group_and_unknown_task_are_one_line(tmp_path: Path) -> None:
    async with live_group(tmp_path, workers={}, connectors={"c": {"tasks.max": "1"}}) as group:
        for task in ("nosuch", "c-9", "c-x", "c-01", ""):
            done = await group.groups("explain", "--task", task or " ")
            assert done.code == 3, task
            assert done.err.count("\n") == 1
            assert done.err.startswith("connectgroup: --task: got ")
            assert "allowed: " in done.err
        too_early = await group.groups("explain", "--task", "c-0")
        unassigned = await group.groups("explain", "--task", "c")
        missing = await command("groups", "explain", "nosuch", "--coordinator", group.server.address)
    assert too_early.err == "connectgroup: --task: got 'c-0'; allowed: c, which has no tasks yet\n"
    assert unassigned.lines == ["c: UNASSIGNED", "  the group has no workers"]
    assert missing.code == 3
    assert missing.err.count("\n") == 1
