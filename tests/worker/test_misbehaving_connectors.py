"""Connectors and tasks that raise or hang: the unit is FAILED in one line, is retried, and the group continues."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from connectgroup.client.admin import Admin
from connectgroup.connector import fencing_token
from connectgroup.errors import Fenced
from connectgroup.protocol.messages.connectors import UpdateConnectorsRequest
from connectgroup.protocol.units import Unit
from connectgroup.worker.settings import WorkerSettings

from .builders import GROUP, World
from .errors import Odd, raising


async def status_of(world: World, unit: Unit) -> tuple[str, str]:
    group = await world.describe()
    found = [u for c in group.connectors if c.connector == unit.connector for u in c.units if u.task == unit.task]
    return found[0].state, found[0].message


async def until_status(world: World, unit: Unit, state: str) -> str:
    for _ in range(600):  # a minute: twice the maximum back-off
        if (await status_of(world, unit))[0] == state:
            return (await status_of(world, unit))[1]
        await asyncio.sleep(0.1)
    raise AssertionError(f"{unit} is {await status_of(world, unit)}")


async def test_unknown_connector_class_is_one_failed_connector(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        await world.add("bad", 1, cls="os.system")
        await world.add("good", 2)
        a = world.start("a")
        await world.until(lambda: world.count("start good-1"))
        message = await until_status(world, Unit("bad"), "FAILED")
        assert message.endswith(", last error: connector.class: got 'os.system'; allowed: scripted")
        await world.update_class("bad", "scripted")
        await world.settled()
        assert a.worker.lost == 0


@pytest.mark.parametrize(
    ("point", "unit"),
    [
        ("construct c", Unit("c")),
        ("task_configs c", Unit("c")),
        ("start c-0", Unit("c", 0)),
    ],
)
@pytest.mark.parametrize(
    "error", [RuntimeError("boom\nand more"), SystemExit(2), Odd("boom")], ids=lambda e: type(e).__name__
)
async def test_connector_that_raises_fails_with_one_line_and_is_retried(
    tmp_path: Path, point: str, unit: Unit, error: BaseException
) -> None:
    """KAFKA-13586: one connector is FAILED, the worker and the others run; it recovers without an operator."""
    async with World(tmp_path) as world:
        world.hook[point] = raising(error)
        await world.add("c", 2)
        await world.add("good", 1)
        a = world.start("a")
        await world.until(lambda: world.count("start good-0"))
        message = await until_status(world, unit, "FAILED")
        assert "\n" not in message
        assert "boom" in message or "SystemExit" in message
        await asyncio.sleep(90)
        others = 3 if point == "construct c" else 0  # its tasks are created from the connector too
        assert 4 <= world.count(point) <= 30 + others * 30, "retried with exponential back-off"
        message = await until_status(world, unit, "FAILED")
        attempt, delay = re.findall(r"^RETRYING, attempt (\d+), next in (\d+) s, last error: ", message)[0]
        assert int(attempt) >= 4
        assert 1 < int(delay) <= 60
        del world.hook[point]
        await world.settled(within=40)
        await until_status(world, unit, "RUNNING")
        assert a.worker.lost == 0


async def test_failed_task_is_restarted_under_the_same_grant(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        await world.run("a", tasks=2)
        context = world.contexts[Unit("c", 0)]
        context.failed(OSError("source is gone"))
        retrying = "RETRYING, attempt 1, next in 1 s, last error: source is gone (OSError)"
        assert await until_status(world, Unit("c", 0), "FAILED") == retrying
        await world.until(lambda: world.count("a start c-0") == 2)
        assert await until_status(world, Unit("c", 0), "RUNNING") == ""
        assert world.contexts[Unit("c", 0)].owner_epoch == context.owner_epoch
        assert world.count("a stop c-0") == 1
        assert world.count("a start c-1") == 1


@pytest.mark.parametrize("timeout_ms", [0, 20_000])
async def test_task_that_fails_for_the_retry_timeout_stays_failed(tmp_path: Path, timeout_ms: int) -> None:
    """KIP-298: it runs again when an operator restarts it. The back-off has the connector's limit."""
    async with World(tmp_path) as world:
        world.hook["start c-0"] = raising(OSError("source is gone"))
        await world.add("c", 2, **{"errors.retry.timeout": str(timeout_ms), "errors.retry.delay.max.ms": "1000"})
        world.start("a")
        await asyncio.sleep(60)
        message = await until_status(world, Unit("c", 0), "FAILED")
        assert message == "not retried any more (errors.retry.timeout), last error: source is gone (OSError)"
        attempts = world.count("start c-0")
        assert attempts == 1 if timeout_ms == 0 else attempts >= 20, "a limit of 30 s would leave about six attempts"
        await asyncio.sleep(600)
        assert world.count("start c-0") == attempts
        await until_status(world, Unit("c", 1), "RUNNING")
        del world.hook["start c-0"]
        await Admin.local(world.coordinator, client_host="operator").restart_task(GROUP, "c", 0)
        await until_status(world, Unit("c", 0), "RUNNING")


@pytest.mark.parametrize("stop_fails", [False, True])
@pytest.mark.parametrize("when", ["start", "later"])
async def test_fenced_task_is_not_restarted(
    tmp_path: Path, when: str, stop_fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A newer owner runs it: no retry, whether or not its stop fails. After a change of a connector that is usual: no
    error is logged."""
    async with World(tmp_path) as world:
        await world.add("c", 2)
        if stop_fails:
            world.hook["a stop c-0"] = raising(RuntimeError("cannot stop"))
        if when == "start":
            world.hook["a start c-0"] = raising(Fenced("a later grant has written"))
        world.start("a")
        await world.until(lambda: world.count("a start c-0"))
        await asyncio.sleep(1)
        if when == "later":
            world.contexts[Unit("c", 0)].failed(Fenced("a later grant has written"))
        message = await until_status(world, Unit("c", 0), "FAILED")
        assert message.startswith("a later grant has written")
        await asyncio.sleep(100)
        assert world.count("a start c-0") == 1
        assert world.count("a stop c-0") == 1
        levels = {record.levelname for record in caplog.records if "a later grant has written" in record.getMessage()}
        assert levels == {"WARNING"}


async def test_task_runs_again_above_the_token_with_which_its_sink_rejected_it(tmp_path: Path) -> None:
    """The log is an older copy: the group has issued that token after the copy was made, and does not know it."""
    async with World(tmp_path) as world:
        await world.add("c", 2)
        token = fencing_token((await world.describe()).incarnation, 500)
        world.hook["a start c-0"] = raising(Fenced("a later grant has written", token=token))
        world.start("a")
        await world.until(lambda: world.count("a stop c-0"))
        del world.hook["a start c-0"]
        await world.until(lambda: Unit("c", 0) in world.contexts)
        assert world.contexts[Unit("c", 0)].fencing_token > token


async def test_stop_that_raises_is_not_acknowledged(tmp_path: Path) -> None:
    """X6, F18: the task may still write, so it is reassigned only after this worker has been removed."""
    async with World(tmp_path) as world:
        [a] = await world.run("a", tasks=3)
        world.hook["a stop c-2"] = raising(RuntimeError("cannot stop"))
        world.start("b")
        await world.settled(within=150)
        assert a.worker.lost == 1, "fenced at its rebalance timeout"
        assert world.now > 60, "after its rebalance timeout"


async def test_stop_that_raises_is_acknowledged_if_the_sink_is_fenced(tmp_path: Path) -> None:
    """X6: the sink rejects what the task still writes. Otherwise such a task would take its worker out of the group.

    Each worker that got its tasks would be removed at its rebalance timeout, for ever.
    """
    async with World(tmp_path) as world:
        await world.add("c", 3, fenced="true")
        a = world.start("a")
        await world.settled()
        for number in range(3):
            world.hook[f"a stop c-{number}"] = raising(RuntimeError("cannot stop"))
        b = world.start("b")
        await world.settled()
        assert b.units
        assert world.now < 30, "before the rebalance timeout"
        assert a.worker.lost == 0
        world.hook.clear()


async def test_former_owner_cannot_write_a_task_list(tmp_path: Path) -> None:
    """The owner computes its task list slowly, and the connector moves meanwhile: the list is rejected."""
    async with World(tmp_path) as world:
        [a] = await world.run("a", tasks=1)
        published = sum(isinstance(request, UpdateConnectorsRequest) for _, request in a.control.requests)
        await asyncio.sleep(60)
        assert sum(isinstance(r, UpdateConnectorsRequest) for _, r in a.control.requests) == published, "no message"


async def test_status_of_an_earlier_grant_does_not_hide_the_present_one(tmp_path: Path) -> None:
    """KAFKA-12525: a slow task fails long after its unit returned under another grant."""
    async with World(tmp_path) as world:
        world.zombies.add("a")
        await world.add("c", 1)
        a = world.start("a", times=WorkerSettings(lose_timeout_s=2))
        gate = world.gate()
        world.hook["a start c-0"] = gate.wait
        await world.until(lambda: gate.entered)
        a.cut()
        await world.until(lambda: world.count("a on_lost"), within=20)
        del world.hook["a start c-0"]
        a.heal()
        await until_status(world, Unit("c", 0), "RUNNING")
        world.hook["a start c-0"] = raising(RuntimeError("too late"))
        gate.open()
        await asyncio.sleep(10)
        assert (await status_of(world, Unit("c", 0)))[0] == "RUNNING"
