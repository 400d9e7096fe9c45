"""A worker in an embedding program: whatever its runner and listeners do, ``run`` returns in bounded time.

The rule: ``run`` returns within the rebalance timeout of ``stop``, of a cancellation, or of a fatal response.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from connectgroup.errors import ConnectGroupError, FencedInstanceId, WorkerAlreadyRun
from connectgroup.listener import WorkerRebalanceListener
from connectgroup.member.actions import Grant
from connectgroup.protocol.messages.api import Request, Response
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest
from connectgroup.protocol.records.connect import TargetState
from connectgroup.protocol.units import Unit, Units

from .builders import Actor, World, error
from .test_misbehaving_connectors import until_status

TIMEOUT_S = 20.0
"""The rebalance timeout of these workers."""


async def cancel_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


async def hang() -> None:
    await asyncio.Event().wait()


async def hang_uncancelled() -> None:
    for _ in range(50):
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            continue


async def fail() -> NoReturn:
    raise ValueError("no room\nat all")


async def leave_the_process() -> NoReturn:
    sys.exit(3)


async def be_cancelled() -> NoReturn:
    raise asyncio.CancelledError


RAISES = [fail, leave_the_process, be_cancelled, cancel_itself]
HANGS = [hang, hang_uncancelled]


class Misbehaving:
    """A runner of an embedding program.

    Attributes:
        bad: units whose start and stop misbehave.
    """

    def __init__(self, *, start: object = None, stop: object = None, bad: Units = frozenset()) -> None:
        self.running: set[Unit] = set()
        self.bad = bad
        self._start, self._stop = start, stop

    async def start(self, grants: Sequence[Grant]) -> None:
        if callable(self._start) and any(grant.unit in self.bad for grant in grants):
            await self._start()
        self.running |= {grant.unit for grant in grants}

    async def stop(self, units: Units) -> None:
        self.running -= units - self.bad
        if callable(self._stop) and units & self.bad:
            await self._stop()
        self.running -= units


def start(world: World, runner: Misbehaving, **more: object) -> Actor:
    """A worker with that runner, running."""
    actor = world.make("a", rebalance_timeout_ms=int(TIMEOUT_S * 1000), **more)  # type: ignore[arg-type]
    actor.worker.set_runner(runner)
    actor.task = asyncio.create_task(actor.worker.run())
    return actor


D = Unit("d")


@pytest.mark.parametrize("what", RAISES)
async def test_failed_start_is_a_failed_unit_and_the_worker_goes_on(tmp_path: Path, what: object) -> None:
    async with World(tmp_path) as world:
        runner = Misbehaving(start=what, bad=frozenset({D}))
        await world.add("c", 1)
        a = start(world, runner)
        await world.until(lambda: Unit("c") in runner.running)
        await world.add("d", 1)
        message = await until_status(world, D, "FAILED")
        assert "\n" not in message
        assert "no room" in message if what is fail else message
        await world.add("e", 1)
        await world.until(lambda: Unit("e") in runner.running)
        assert a.worker.lost == 0
        a.worker.stop()
        assert a.task is not None
        await asyncio.wait_for(a.task, 2)
        assert not runner.running


@pytest.mark.parametrize("what", [*RAISES, *HANGS])
@pytest.mark.parametrize("where", ["start", "stop"])
@pytest.mark.parametrize("way", ["stop", "cancel", "fatal", "stop after a revocation"])
async def test_run_returns_within_the_rebalance_timeout(tmp_path: Path, what: object, where: str, way: str) -> None:
    async with World(tmp_path) as world:
        runner = Misbehaving(bad=frozenset({D}), **{where: what})
        await world.add("c", 1)
        a = start(world, runner)
        await world.until(lambda: Unit("c") in runner.running)
        await world.add("d", 1)
        await world.until(lambda: D in a.worker.member.owned)
        await asyncio.sleep(1)
        if way == "stop after a revocation":
            await world.set_state("d", TargetState.STOPPED)
            await asyncio.sleep(1)
        assert await end(a, "stop" if way == "stop after a revocation" else way) <= TIMEOUT_S
        assert Unit("c") not in runner.running, "the failure of one unit does not keep another running"
        if way != "fatal":
            assert (await world.describe()).members == (), "the worker has left"


async def end(a: Actor, way: str) -> float:
    """End the worker; return the seconds until ``run`` has returned."""
    assert a.task is not None
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def refuse(request: Request) -> Response | None:
        nonlocal began
        if not isinstance(request, HeartbeatRequest):
            return None
        began = loop.time()
        return error(FencedInstanceId.code, "not you", epoch=99)

    if way == "stop":
        a.worker.stop()
    elif way == "cancel":
        a.task.cancel()
    else:
        a.heartbeats.instead = refuse
    await asyncio.wait({a.task}, timeout=300)
    assert a.task.done(), "run did not return"
    assert a.task.cancelled() == (way == "cancel")
    if way != "cancel":
        assert isinstance(a.task.exception(), FencedInstanceId if way == "fatal" else type(None))
    return loop.time() - began


class Bad(WorkerRebalanceListener):
    """Hangs in the given callback."""

    def __init__(self, event: str) -> None:
        self.event = event

    async def on_assigned(self, units: Units, epoch: int) -> None:
        if self.event == "on_assigned" and D in units:
            await hang_uncancelled()

    async def on_revoked(self, units: Units, epoch: int) -> None:
        if self.event == "on_revoked":
            await hang_uncancelled()

    async def on_lost(self, units: Units, epoch: int) -> None:
        if self.event == "on_lost":
            await hang_uncancelled()


@pytest.mark.parametrize("event", ["on_assigned", "on_revoked", "on_lost"])
@pytest.mark.parametrize("way", ["stop", "cancel", "fatal"])
async def test_run_returns_within_the_rebalance_timeout_although_a_listener_hangs(
    tmp_path: Path, event: str, way: str
) -> None:
    async with World(tmp_path) as world:
        runner = Misbehaving()
        await world.add("c", 1)
        a = start(world, runner, listeners=[Bad(event)])
        await world.until(lambda: Unit("c") in runner.running)
        await world.add("d", 1)
        await world.until(lambda: D in a.worker.member.owned)
        await asyncio.sleep(1)
        assert await end(a, way) <= TIMEOUT_S
        assert not runner.running


async def test_stop_may_take_nearly_the_rebalance_timeout(tmp_path: Path) -> None:
    """The worker waits for a draining task, and calls its listener."""

    async def drain() -> None:
        await asyncio.sleep(0.7 * TIMEOUT_S)

    async with World(tmp_path) as world:
        runner = Misbehaving(stop=drain, bad=frozenset({Unit("c")}))
        await world.add("c", 1)
        a = start(world, runner)
        await world.until(lambda: Unit("c") in runner.running)
        a.worker.stop()
        assert a.task is not None
        await asyncio.wait_for(a.task, TIMEOUT_S)
        assert world.count("a on_revoked c") == 1


async def test_worker_runs_once(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        [a] = await world.run("a", tasks=1)
        for _ in range(2):
            with pytest.raises(WorkerAlreadyRun, match="worker a has been run already; a Worker runs once") as caught:
                await a.worker.run()
            assert isinstance(caught.value, ConnectGroupError)
            assert isinstance(caught.value, RuntimeError)
            await world.settled()
        a.worker.stop()
        assert a.task is not None
        await a.task
        with pytest.raises(WorkerAlreadyRun):
            await a.worker.run()


async def test_stop_before_run_returns_at_once_and_sends_nothing(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        a = world.make("a")
        a.cut()
        a.worker.stop()
        began = world.now
        await a.worker.run()
        assert world.now == began
        assert not a.heartbeats.requests
        assert not a.control.requests
