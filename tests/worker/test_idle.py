"""The idle connector on a real runner: its log is what a benchmark reads."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from connectgroup.connector import Config
from connectgroup.connectors.idle import IdleConnector
from connectgroup.errors import ConfigError
from connectgroup.member.actions import Grant
from connectgroup.plugins import load_connector_class
from connectgroup.protocol.messages.heartbeat import TaskStatus
from connectgroup.protocol.units import Unit
from connectgroup.worker.runner import TaskRunner
from connectgroup.worker.settings import RunnerSettings


async def test_each_start_and_stop_is_one_line_and_nothing_is_left_on_disk(tmp_path: Path) -> None:
    log = tmp_path / "log"
    published: list[tuple[str, int, list[dict[str, str]]]] = []
    statuses: list[TaskStatus] = []

    async def publish(name: str, owner_epoch: int, configs: Sequence[Config]) -> None:
        published.append((name, owner_epoch, [dict(config) for config in configs]))

    runner = TaskRunner(
        "a",
        RunnerSettings(scratch=tmp_path / "scratch", allowed_paths=[tmp_path]),
        load_class=load_connector_class,
        publish=publish,
        report=statuses.append,
    )
    config = {"connector.class": "idle", "tasks.max": "2", "log": str(log)}
    units = [Unit("c"), Unit("c", 0), Unit("c", 1)]
    await runner.start([Grant(unit=unit, owner_epoch=7, connector_config=config) for unit in units])
    assert runner.running == frozenset(units)
    while len(statuses) < 3:
        await runner.stop(frozenset())  # no units: returns at once
        await _breathe()
    await runner.stop(frozenset([*units, Unit("unknown")]))
    assert not runner.running
    assert published == [("c", 7, [{"task": "0"}, {"task": "1"}])]
    assert {(status.task, status.owner_epoch, status.state, status.message) for status in statuses} == {
        (-1, 7, 1, ""),
        (0, 7, 1, ""),
        (1, 7, 1, ""),
    }
    lines = [line.split(" ")[1:] for line in log.read_text().splitlines()]
    assert sorted(lines) == [[what, "a", unit, "7"] for what in ("START", "STOP") for unit in ("c-0", "c-1")]
    assert list((tmp_path / "scratch").iterdir()) == []


async def _breathe() -> None:
    await asyncio.sleep(0.01)


@pytest.mark.parametrize("text", ["-1", "1.5", "", "soon", "1\n2"])
def test_invalid_stop_time_is_rejected_with_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match=r"stop\.ms: got .*; allowed: a whole number of milliseconds") as caught:
        IdleConnector("c", {"stop.ms": text})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "", "many", "100001", "99999999999999"])
async def test_invalid_number_of_tasks_fails_only_its_connector(tmp_path: Path, text: str) -> None:
    statuses: list[TaskStatus] = []

    async def publish(name: str, owner_epoch: int, configs: Sequence[Config]) -> None:
        raise AssertionError("no task configurations expected")

    runner = TaskRunner(
        "a", RunnerSettings(scratch=tmp_path), load_class=load_connector_class, publish=publish, report=statuses.append
    )
    config = {"connector.class": "idle", "tasks.max": text}
    await runner.start([Grant(unit=Unit("c"), owner_epoch=7, connector_config=config)])
    while not statuses:
        await _breathe()
    await runner.stop(frozenset([Unit("c")]))
    assert statuses[0].state == 2
    error = f"tasks.max: got {text!r}; allowed: a whole number from 1 to 100000"
    assert statuses[0].message == f"RETRYING, attempt 1, next in 1 s, last error: {error}"
