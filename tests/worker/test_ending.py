"""A worker's end is noticed by the program that embeds it: the block ends, and the reason is known."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from connectgroup.client.admin import Admin
from connectgroup.embedding import EmbeddedGroup, worker_group
from connectgroup.errors import GroupError, UnsupportedAssignor
from connectgroup.member.settings import MemberSettings
from connectgroup.plugins import load_assignor
from connectgroup.protocol.messages.describe import DescribedGroup
from connectgroup.transport.local import LocalClient
from connectgroup.worker.loop import Worker
from connectgroup.worker.serving import serve_worker
from connectgroup.worker.state import StopReason, WorkerState

from .builders import World

GROUP = "mine"


def idle(tasks: int = 2) -> dict[str, object]:
    return {"connector.class": "idle", "tasks.max": tasks}


def settings(name: str) -> MemberSettings:
    return MemberSettings(group_id=GROUP, member_id=name)


def running(group: EmbeddedGroup, name: str, assignor: str = "balanced"):  # type: ignore[no-untyped-def]
    return Worker.running(settings(name), lambda: LocalClient(group.coordinator), assignors=[load_assignor(assignor)])


async def joined(admin: Admin, name: str) -> DescribedGroup:
    """Wait until a worker is a member, and has reached the target assignment. It runs nothing: it has no runner."""

    def is_member(group: DescribedGroup) -> bool:
        return group.state == "Stable" and name in {member.member_id for member in group.members}

    return await admin.wait_until(GROUP, is_member, what=f"joined by {name}")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.1)


class Other(type(load_assignor("balanced"))):  # type: ignore[misc]
    name = "other"


async def test_block_of_a_rejected_worker_ends_with_the_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with worker_group(GROUP, connectors={"c": idle()}) as group:
        await group.wait_stable()
        with pytest.raises(UnsupportedAssignor):
            async with Worker.running(settings("w"), lambda: LocalClient(group.coordinator), assignors=[Other()]) as w:
                await asyncio.Event().wait()
        assert w.state.ended is StopReason.REJECTED
        assert "listed: balanced by 1 member, other by 1 member" in w.state.last_error
        assert "joining again" not in caplog.text
        assert await w.wait_stopped() is StopReason.REJECTED
        await asyncio.sleep(1)  # nothing of the cancellation is left in this task


@pytest.mark.parametrize(
    ("request_end", "reason"), [("restart_worker", StopReason.RESTARTED), ("drain_worker", StopReason.DRAINED)]
)
async def test_block_ends_quietly_when_the_worker_restarts_or_has_drained(request_end: str, reason: StopReason) -> None:
    async with worker_group(GROUP, connectors={"c": idle()}) as group:
        async with running(group, "w") as w:
            await joined(group.admin, "w")
            await getattr(group.admin, request_end)(GROUP, "w")
            await asyncio.Event().wait()
            pytest.fail("the block ends here")
        assert w.state.ended is reason
        assert not w.state.owned
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0


async def test_block_that_waits_for_the_end_gets_the_reason_and_goes_on() -> None:
    async with worker_group(GROUP, connectors={"c": idle()}) as group, running(group, "w") as w:
        await joined(group.admin, "w")
        await group.admin.drain_worker(GROUP, "w")
        assert await w.wait_stopped() is StopReason.DRAINED
        await asyncio.sleep(1)


async def test_block_that_stops_its_worker_is_not_cancelled() -> None:
    async with worker_group(GROUP, connectors={"c": idle()}) as group, running(group, "w") as w:
        await joined(group.admin, "w")
        w.stop()
        await asyncio.sleep(5)
        assert w.state.ended is StopReason.STOPPED


async def test_cancellation_of_the_block_from_outside_stays_a_cancellation() -> None:
    async with worker_group(GROUP, connectors={"c": idle()}) as group:

        async def block() -> None:
            async with running(group, "w") as w:
                await joined(group.admin, "w")
                w.restart()
                asyncio.get_running_loop().call_soon(task.cancel)
                await asyncio.Event().wait()

        task = asyncio.create_task(block())
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_block_that_ends_together_with_its_worker_leaves_no_cancellation_behind() -> None:
    async with worker_group(GROUP, connectors={"c": idle()}) as group:
        async with running(group, "w") as w:
            await joined(group.admin, "w")
            w.restart()
            while w.state.ended is None:
                try:
                    await asyncio.sleep(0)
                except asyncio.CancelledError:
                    break
        await asyncio.sleep(1)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0


async def test_state_of_a_worker_for_a_readiness_probe(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        await world.add("c", 1)
        a = world.make("a")
        assert a.worker.state == WorkerState()
        a.task = asyncio.create_task(a.worker.run())
        await world.settled()
        state = a.worker.state
        assert (state.joined, state.epoch, len(state.owned), state.last_error) == (True, a.worker.member.epoch, 2, "")
        assert state.lease_left_s is not None
        assert 0 < state.lease_left_s <= 10
        a.cut()
        await world.until(lambda: "no response" in a.worker.state.last_error)
        await world.until(lambda: not a.worker.state.joined)
        a.heal()
        await world.until(lambda: a.worker.state.joined)
        assert a.worker.state.last_error == ""
        a.worker.stop()
        await a.task
        assert a.worker.state.ended is StopReason.STOPPED
        assert not a.worker.state.joined


async def test_served_worker_restarts_under_the_same_member_id_and_ends_when_it_has_drained() -> None:
    async with worker_group(GROUP, connectors={"c": idle()}) as group:
        await group.admin.wait_running(GROUP, "c")
        workers: list[Worker] = []
        serving = asyncio.create_task(
            serve_worker(
                settings("w"),
                lambda: LocalClient(group.coordinator),
                assignors=[load_assignor("balanced")],
                on_start=workers.append,
            )
        )
        before = await joined(group.admin, "w")
        assert await group.admin.restart_worker(GROUP, "w")
        await until(lambda: len(workers) == 2)
        after = await joined(group.admin, "w")
        assert [m.assigned for m in after.members] == [m.assigned for m in before.members], "no unit has moved"
        await group.admin.drain_worker(GROUP, "w")
        assert await serving is StopReason.DRAINED
        assert [w.state.ended for w in workers] == [StopReason.RESTARTED, StopReason.DRAINED]


async def test_embedded_worker_is_restarted_and_a_drained_one_is_gone() -> None:
    async with worker_group(GROUP, workers=["a", "b"], connectors={"c": idle()}) as group:
        await group.wait_stable()
        first = group.workers["a"]
        await group.admin.restart_worker(GROUP, "a")
        await until(lambda: group.workers["a"] is not first)
        await group.wait_stable()
        await group.admin.drain_worker(GROUP, "a")
        await until(lambda: "a" not in group.workers)
        described = await group.wait_stable()
        assert [member.member_id for member in described.members] == ["b"]


async def test_cancelled_serving_stops_the_worker() -> None:
    async with worker_group(GROUP, connectors={"c": idle()}) as group:
        serving = asyncio.create_task(serve_worker(settings("w"), lambda: LocalClient(group.coordinator)))
        await asyncio.sleep(1)
        serving.cancel()
        with pytest.raises((asyncio.CancelledError, GroupError)):
            await serving
        assert [m.member_id for m in (await group.wait_stable()).members] == ["worker-1"]


PROGRAM = """
import asyncio, os, sys, connectgroup
async def main():
    coordinator = connectgroup.Coordinator(connectgroup.MemoryLog(), connectgroup.GroupSettings())
    await coordinator.start()
    admin = connectgroup.Admin.local(coordinator)
    await admin.add_connector("g", "c", {"connector.class": "idle"})
    settings = connectgroup.MemberSettings(group_id="g", member_id="w")
    starts = []
    async def ready():
        await admin.wait_until("g", lambda g: g.state == "Stable" and len(g.members), what="joined")
        print("ready", flush=True)
    async def on_restart():
        await admin.wait_until("g", lambda g: g.state == "Stable" and len(g.members), what="joined")
        while len(starts) < 2:
            await asyncio.sleep(0.01)
        await admin.wait_until("g", lambda g: g.state == "Stable" and len(g.members), what="joined")
        print("restarted", flush=True)
    waits = [asyncio.create_task(ready()), asyncio.create_task(on_restart())]
    reason = await connectgroup.serve_worker(
        settings, lambda: connectgroup.LocalClient(coordinator),
        assignors=[connectgroup.load_assignor("balanced")], on_start=starts.append)
    print(reason, len((await admin.describe("g")).members), flush=True)
    await coordinator.close()
asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_served_worker_restarts_and_stops_by_signals(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        os.kill(program.pid, signal.SIGUSR2)
        assert program.stdout.readline() == "restarted\n"
        os.kill(program.pid, number)
        assert program.stdout.readline() == "stopped 0\n"
        assert program.wait(30) == 0
