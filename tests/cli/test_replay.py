"""``connectgroup replay`` and ``connectgroup.replay``: the history of a log, read without opening it as its owner."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import connectgroup
from connectgroup import ConfigError
from connectgroup.config.base import checked
from connectgroup.config.coordinator import CoordinatorConfig
from connectgroup.coordinator.server import CoordinatorServer
from connectgroup.errors import LogError
from connectgroup.protocol.messages.offsets import OffsetCommitRequest, PartitionCommit, TopicCommit

from .live import GROUP, Done, LiveGroup, command, live_group

CANARY = "s3cr3t-canary"
CONNECTORS = {"x": {"tasks.max": "7", "password": CANARY}, "y": {"tasks.max": "4"}}


async def change(group: LiveGroup) -> None:
    """One worker runs all; two join; one of them leaves."""
    await group.settled(workers=1, units=13)
    for number, name in enumerate(("b", "c"), start=2):
        await group.start(name)
        await group.settled(workers=number, units=13)
    await group.stop("b")
    await group.settled(workers=2, units=13)


def assert_silent(*done: Done) -> None:
    for each in done:
        assert each.code == 0, each.err
        assert CANARY not in each.out + each.err


async def test_history_is_printed_while_the_coordinator_runs_and_the_coordinator_is_not_fenced(tmp_path: Path) -> None:
    log = tmp_path / "groups.sqlite"
    async with live_group(tmp_path, workers={"a": None}, connectors=CONNECTORS, data=log) as group:
        await change(group)
        text = await command("replay", f"sqlite:///{log}", "--group", GROUP)
        by_directory = await command("replay", tmp_path, "--json")
        await group.start("d")  # needs an append, which fails if the log was fenced
        await group.settled(workers=3, units=13)
    assert_silent(text, by_directory)
    history = json.loads(by_directory.out)
    assert history["complete"] is True
    assert set(history["owners"].values()) == {"a", "c"}
    assert len(history["owners"]) == 13
    events = [event["text"] for event in history["events"]]
    joined = next(number for number, event in enumerate(events) if event.startswith("worker b joined from local"))
    stopped = next(number for number, event in enumerate(events) if event.startswith("worker a has stopped "))
    assigned = next(number for number, event in enumerate(events) if event.startswith("worker b is assigned "))
    removed = events.index("worker b removed")
    assert joined < stopped < assigned < removed
    assert any(event.startswith("rebalance ended: ") and "b left" in event for event in events)
    assert any(" epoch 1: connector x: RUNNING, 0 tasks" in line for line in text.lines)
    assert text.lines[-1].split(":")[0].strip() == "y-3"


async def test_replay_with_the_assignor_of_the_group_finds_what_the_group_did(tmp_path: Path) -> None:
    """Each step has the same numbers for both: the inputs of the other assignor are those of the group."""
    log = tmp_path / "groups.sqlite"
    async with live_group(tmp_path, workers={"a": None}, connectors=CONNECTORS, data=log) as group:
        await change(group)
    same = connectgroup.replay(log, assignor="balanced")
    assert len(same.steps) >= 4
    assert [step.actual for step in same.steps] == [step.other for step in same.steps]
    assert sum(step.actual.moves for step in same.steps) > 0
    assert not any(step.error for step in same.steps)


async def test_replay_with_another_assignor_compares_moves_and_imbalance(tmp_path: Path) -> None:
    log = tmp_path / "groups.sqlite"
    connectors = {"heavy": {"tasks.max": "2", "assignment.task.weight": "9"}, "light": {"tasks.max": "2"}}
    async with live_group(tmp_path, workers={"a": None}, connectors=connectors, data=log) as group:
        await group.settled(workers=1, units=6)
        await group.start("b")
        await group.settled(workers=2, units=6)
        # Read before the workers leave: units of a worker that left move whatever the limit is.
        done = await command("replay", log, "--assignor", "weighted")
        history = connectgroup.replay(str(log), GROUP, assignor="weighted")
        limited = await command("replay", log, "--assignor", "weighted", "--max-moves", "1", "--json")
    assert done.code == 0
    heading = next(number for number, line in enumerate(done.lines) if line.split() == ["balanced", "weighted"])
    assert len(done.lines[heading + 1 :]) == len(history.steps) + 1
    assert all("moved" in line and "imbalance" in line for line in done.lines[heading + 1 :])
    assert history.steps[-1].other.imbalance == 0
    assert max(step["other"]["moves"] for step in json.loads(limited.out)["steps"]) <= 1
    refused = await command("replay", log, "--max-moves", "-1")
    assert refused.err.startswith("connectgroup: --max-moves: got '-1'; allowed: 0 or more")
    assert history.steps[-1].used == "balanced"


async def test_compacted_log_has_earlier_rebalances_and_later_events(tmp_path: Path) -> None:
    log = tmp_path / "groups.sqlite"
    async with live_group(tmp_path, workers={"a": None}, connectors=CONNECTORS, data=log) as group:
        await group.settled(workers=1, units=13)
    async with live_group(tmp_path, workers={"b": None}, connectors={}, data=log) as group:  # opening compacts
        await group.settled(workers=1, units=13)
    history = connectgroup.replay(log, GROUP, assignor="balanced")
    assert history.complete is False
    assert any("a joined" in rebalance.causes[0] for rebalance in history.earlier)
    texts = [event.text for event in history.events]
    assert not any(text.startswith("worker a joined") for text in texts)
    assert any(text.startswith("worker b joined") for text in texts)
    assert [step.actual for step in history.steps] == [step.other for step in history.steps]
    assert CANARY not in "\n".join(history.lines())


async def test_log_that_a_killed_coordinator_left_is_read_and_can_be_opened_afterwards(tmp_path: Path) -> None:
    log, copy = tmp_path / "groups.sqlite", tmp_path / "copy"
    copy.mkdir()
    async with live_group(tmp_path, workers={"a": None}, connectors=CONNECTORS, data=log) as group:
        await group.settled(workers=1, units=13)
        for name in ("groups.sqlite", "groups.sqlite-wal", "groups.sqlite.lock"):
            shutil.copyfile(tmp_path / name, copy / name)
    before = {name: (copy / name).read_bytes() for name in ("groups.sqlite", "groups.sqlite-wal", "groups.sqlite.lock")}
    history = connectgroup.replay(copy)
    assert {unit.member_id for connector in history.final.connectors for unit in connector.units} == {"a"}
    assert {name: (copy / name).read_bytes() for name in before} == before
    recovered = await command("groups", "recover", copy)  # as after an older copy was put back
    assert (recovered.code, recovered.out) == (0, f"group {GROUP}: recovered\n")
    assert json.loads((await command("groups", "recover", copy, "--json")).out) == {"recovered": [GROUP]}
    assert not connectgroup.replay(copy).final.members
    server = CoordinatorServer(checked(CoordinatorConfig, {"port": 0, "data": copy / "groups.sqlite"}))
    await server.start()
    await server.close()


async def test_bad_input_is_one_line(tmp_path: Path) -> None:
    log = tmp_path / "groups.sqlite"
    async with live_group(tmp_path, workers={}, connectors=CONNECTORS, data=log):
        pass
    other = tmp_path / "other.txt"
    other.write_text("not a log")
    cases: list[tuple[list[object], str]] = [
        ([tmp_path / "nosuch"], "log: got "),
        (["memory:"], "log: got 'memory:'; allowed: sqlite:///PATH"),
        (["sqlite://"], "log: got 'sqlite://'"),
        ([other], f"{other}: "),
        ([log, "--group", "nosuch"], f"--group: got 'nosuch'; allowed: a group in {log}: g"),
        ([log, "--assignor", "nosuch"], "--assignor: got 'nosuch'; allowed: "),
    ]
    for arguments, message in cases:
        done = await command("replay", *arguments)
        assert done.code == 2, arguments
        assert done.err.startswith(f"connectgroup: {message}"), done.err
        assert done.err.count("\n") == 1
    with pytest.raises(ConfigError, match="group: got"):
        connectgroup.replay(log, "nosuch")
    damaged = bytearray(log.read_bytes())
    at = damaged.rindex(b"tasks.max")
    damaged[at] ^= 1
    log.write_bytes(damaged)
    with pytest.raises(LogError, match=r"damaged|checksum"):
        connectgroup.replay(log)


async def test_replay_of_a_group_of_another_type_names_its_type(tmp_path: Path) -> None:
    log = tmp_path / "groups.sqlite"
    async with live_group(tmp_path, workers={}, connectors={}, data=log) as group:
        request = OffsetCommitRequest(
            group_id="classic",
            member_id="",
            topics=(
                TopicCommit(
                    name="foo",
                    partitions=(PartitionCommit(partition_index=0, committed_offset=1, committed_metadata=""),),
                ),
            ),
        )
        await group.server.coordinator.handle(request, client_host="h")
    done = await command("replay", log, "--group", "classic")
    assert (done.code, done.err) == (
        2,
        "connectgroup: --group: got 'classic'; allowed: a group of type connect (it is of type classic)\n",
    )
