"""F36: the operating system has no thread to give. Whatever had to run in one waits for it, and nothing is skipped."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from connectgroup.names import Unit
from tests.no_threads import NoThreads

from .builders import World
from .test_misbehaviour import until_status

REAL = """
import asyncio, logging, re, resource
from connectgroup.worker.offload import off_loop

logging.basicConfig(format="%(message)s")

async def main():
    in_use = int(re.search(r"VmSize:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) << 10
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (in_use + (4 << 20), hard))  # a thread's stack takes 8 MiB
    call = asyncio.create_task(off_loop("stop c-0", lambda: calls.append(1)))
    await asyncio.sleep(0.5)
    print(calls, flush=True)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    await call
    print(calls, flush=True)

calls = []
asyncio.run(main())
"""


def test_a_call_waits_until_there_is_a_thread_for_it_and_is_made_once() -> None:
    """A real limit of the process's memory: no room for the stack of one more thread."""
    ran = subprocess.run([sys.executable, "-c", REAL], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "[]\n[1]\n"
    assert ran.stderr.startswith("stop c-0: waits for a thread, the system has none to give (attempt 1)\n")


async def test_a_task_that_cannot_be_stopped_for_want_of_a_thread_is_given_to_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S2, S11: its stop has not begun, so it is not acknowledged; the world checks that no unit ran twice."""
    async with World(tmp_path) as world:
        await world.add("c", 4)
        world.start("a")
        await world.settled()
        none = NoThreads(monkeypatch, "stop ")
        b = world.start("b")
        await world.until(lambda: none.refused > 3)
        assert not b.worker.member.owned
        none.over()
        await world.settled()
        assert len(b.worker.member.owned) == 2
        assert sum(world.count(f"a stop c-{number}") for number in range(4)) == 2


async def test_a_listener_is_told_late_rather_than_never(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with World(tmp_path) as world:
        await world.add("c", 2)
        world.start("a")
        await world.settled()
        none = NoThreads(monkeypatch, "on_revoked")
        b = world.start("b")
        await world.until(lambda: none.refused > 3)
        assert (world.count("a on_revoked"), len(b.worker.member.owned)) == (0, 0)
        none.over()
        await world.settled()
        assert world.count("a on_revoked") == 1


async def test_a_task_starts_once_there_is_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with World(tmp_path) as world:
        none = NoThreads(monkeypatch, "start ")
        await world.add("c", 1)
        world.start("a")
        await world.until(lambda: none.refused > 3)
        none.over()
        assert await until_status(world, Unit("c", 0), "RUNNING") == ""
        assert world.count("a start c-0") == 1
