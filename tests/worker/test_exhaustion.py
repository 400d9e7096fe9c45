"""F36: the operating system has no thread available. Stops and callbacks wait for one; other calls are retried."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from connectgroup.protocol.units import Unit
from tests.no_threads import NoThreads

from .builders import Actor, Spread, World
from .test_misbehaving_connectors import until_status

REAL = """
import asyncio, logging, re, resource, threading
from connectgroup.worker.call_pool import off_loop_with_retry

threading.stack_size(64 << 20)

logging.basicConfig(format="%(message)s")

async def main():
    in_use = int(re.search(r"VmSize:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) << 10
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (in_use + (16 << 20), hard))
    call = asyncio.create_task(off_loop_with_retry("stop c-0", calls.append, 1))
    await asyncio.sleep(0.5)
    print(calls, flush=True)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    await call
    print(calls, flush=True)

calls = []
asyncio.run(main())
"""


def test_call_waits_until_there_is_a_thread_for_it_and_is_made_once() -> None:
    """A real limit of the process's memory: no room for the stack of another thread."""
    ran = subprocess.run([sys.executable, "-c", REAL], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "[]\n[1]\n"
    assert ran.stderr.startswith("stop c-0: waits for a thread; the system has none available (attempt 1)\n")


async def move_half_to_b(
    world: World, monkeypatch: pytest.MonkeyPatch, *, tasks: int, without: str
) -> tuple[NoThreads, Actor]:
    """Worker a owns all tasks and b joins: a must revoke half of them, and has no thread for the stops."""
    await world.add("c", tasks)
    world.start("a")
    await world.settled()
    none = NoThreads(monkeypatch, without)
    b = world.start("b")
    await world.until(lambda: none.refused > 3)
    return none, b


async def test_task_that_cannot_be_stopped_without_a_thread_is_not_granted_to_another_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S2, S11: the stop has not begun, so the revocation is not acknowledged; the harness checks single ownership."""
    async with World(tmp_path) as world:
        none, b = await move_half_to_b(world, monkeypatch, tasks=4, without="stop ")
        assert not b.worker.member.owned
        none.over()
        await world.settled()
        assert len(b.worker.member.owned) == 2
        assert sum(world.count(f"a stop c-{number}") for number in range(4)) == 2


async def test_listener_without_a_thread_is_called_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with World(tmp_path) as world:
        none, b = await move_half_to_b(world, monkeypatch, tasks=2, without="on_revoked")
        assert (world.count("a on_revoked"), len(b.worker.member.owned)) == (0, 0)
        none.over()
        await world.settled()
        assert world.count("a on_revoked") == 1


async def test_start_without_a_thread_fails_and_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with World(tmp_path) as world:
        none = NoThreads(monkeypatch, "start ")
        await world.add("c", 1)
        world.start("a")
        await world.until(lambda: none.refused > 3)
        assert "can't start new thread" in await until_status(world, Unit("c", 0), "FAILED")
        none.over()
        assert await until_status(world, Unit("c", 0), "RUNNING") == ""
        assert world.count("a start c-0") == 1


async def test_start_without_a_thread_does_not_happen_after_its_grant_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S2: the harness checks that no unit ran twice."""
    async with World(tmp_path) as world:
        await world.add("c", 2)
        a = world.start("a")
        none = NoThreads(monkeypatch, "start ")
        await world.until(lambda: none.refused > 3)
        a.cut()
        await world.until(lambda: a.worker.lost == 1)
        none.over()
        b = world.start("b")
        await world.until(lambda: world.count("b start c-0") + world.count("b start c-1") == 2, within=60)
        assert world.count("a start c-0") + world.count("a start c-1") == 0
        a.heal()
        await world.settled()
        assert len(b.worker.member.owned) == 2


async def test_assignor_without_a_thread_is_retried_and_not_counted_as_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with World(tmp_path) as world:
        NoThreads(monkeypatch, "assignor ")
        await world.add("c", 1)
        world.start("a", assignors=[Spread()])
        await world.settled(within=5)
        assert "can't start new thread" in (await world.describe()).assignor_error
