"""Errors and unexpected responses of the coordinator: the worker backs off, stops or rejoins."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from connectgroup.errors import GroupError, InvalidRequest, StaleMemberEpoch, TransportError
from connectgroup.protocol.messages.api import Request, Response
from connectgroup.protocol.messages.heartbeat import (
    HeartbeatRequest,
    HeartbeatResponse,
)

from .builders import GROUP, World, error, settings


@pytest.mark.parametrize("code", [StaleMemberEpoch.code, -1, 14, 15, 16, 20480, 999], ids=lambda code: f"error {code}")
async def test_worker_backs_off_on_repeated_errors(tmp_path: Path, code: int) -> None:
    """L2, KAFKA-20253: whatever error a coordinator repeats, the worker retries at a bounded rate."""
    async with World(tmp_path) as world:
        [a] = await world.run("a", tasks=1)

        async def always(request: Request) -> Response | None:
            return error(code, "always this", epoch=7)

        a.heartbeats.instead = always
        sent = a.heartbeats.heartbeats
        await asyncio.sleep(0.01)
        for _ in range(20):
            await asyncio.sleep(1)
            assert a.heartbeats.heartbeats - sent < 60
        if a.task is not None and a.task.done():
            with pytest.raises(GroupError):
                a.task.result()
            a.task = None


@pytest.mark.parametrize("full", [True, False])
async def test_responses_of_a_replaced_coordinator_are_ignored_with_back_off(
    tmp_path: Path, full: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """D5, F12: a lower coordinator epoch; in the end the lease expires. A log that was put back from a copy which
    nothing tells from the original has one, too: the worker says what to do."""
    async with World(tmp_path) as world:
        [a] = await world.run("a", tasks=1)
        member = a.worker.member

        async def zombie(request: Request) -> Response | None:
            assignment = None
            if full:
                from connectgroup.protocol.messages.heartbeat import HeartbeatAssignment

                assignment = HeartbeatAssignment()
            return HeartbeatResponse(
                member_epoch=99, heartbeat_interval_ms=3000, assignment=assignment, coordinator_epoch=0
            )

        a.heartbeats.instead = zombie
        sent = a.heartbeats.heartbeats
        await asyncio.sleep(4)
        assert member.epoch != 99
        assert world.count("a on_") == 2
        assert a.heartbeats.heartbeats - sent < 40
        await world.until(lambda: world.count("a on_lost"), within=2)
        assert "If this lasts, its log is an older copy: connectgroup groups recover LOG" in caplog.text


async def test_worker_with_a_fatal_error_stops_with_the_error_of_the_coordinator(tmp_path: Path) -> None:
    """An error that no retry can resolve ends ``run`` with the coordinator's error message, once."""
    async with World(tmp_path) as world:
        [a] = await world.run("a", tasks=2)
        world.hook["stop c-1"] = world.slow(5)

        async def no(request: Request) -> Response | None:
            return error(42, "Owned: got nonsense", epoch=7) if isinstance(request, HeartbeatRequest) else None

        a.heartbeats.instead = no
        sent = a.heartbeats.heartbeats
        assert a.task is not None
        with pytest.raises(InvalidRequest, match="got nonsense"):
            await asyncio.wait_for(a.task, 20)
        assert a.heartbeats.heartbeats - sent <= 3
        assert world.count("a on_lost c, c-0, c-1") == 1
        assert not a.units
        assert (await world.describe()).members == (), "it has left, so no session timeout is pending"
        a.task = None


async def test_full_group_rejects_a_worker_with_one_line(tmp_path: Path) -> None:
    async with World(tmp_path, group=settings(max_members=1)) as world:
        world.start("a")
        await asyncio.sleep(1)
        b = world.start("b")
        assert b.task is not None
        with pytest.raises(GroupError, match="b cannot join"):
            await asyncio.wait_for(b.task, 5)
        b.task = None
        assert [member.member_id for member in (await world.describe()).members] == ["a"]


async def test_worker_backs_off_on_refused_connections(tmp_path: Path) -> None:
    """KAFKA-20253, for a rejection that takes no time."""
    async with World(tmp_path) as world:
        [a] = await world.run("a", tasks=1)

        async def refuse(request: Request) -> Response | None:
            raise TransportError("connection refused")

        a.heartbeats.instead = refuse
        sent = a.heartbeats.heartbeats
        await asyncio.sleep(20)
        assert a.task is not None
        assert not a.task.done()
        assert 5 < a.heartbeats.heartbeats - sent < 40


async def test_fenced_worker_rejoins_after_everything_has_stopped(tmp_path: Path) -> None:
    """KAFKA-16251, KAFKA-16258: on_lost first, then the join, which reports that nothing runs."""
    async with World(tmp_path) as world:
        [a] = await world.run("a", tasks=1)
        world.hook["a stop c-0"] = world.slow(4)
        leave = HeartbeatRequest(group_id=GROUP, member_id="a", member_epoch=-1, process_id=a.worker.member.process_id)
        lost = world.now
        await world.coordinator.handle(leave, client_host="operator")
        await world.until(lambda: a.worker.lost)
        await world.settled("a")
        [joined] = [
            at
            for at, request in a.heartbeats.requests
            if isinstance(request, HeartbeatRequest) and request.member_epoch == 0 and at > lost
        ]
        assert joined >= lost + 4
        assert [line for line in world.journal if line.startswith("a ")][-4:] == [
            "a stop c-0",
            "a on_lost c, c-0",
            "a on_assigned c, c-0",
            "a start c-0",
        ]
