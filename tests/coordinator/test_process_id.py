"""A member belongs to the process that joined; requests of any other process change nothing (PD-15)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from connectgroup.coordinator.runtime import Coordinator
from connectgroup.errors import FencedInstanceId, StaleMemberEpoch, UnreleasedInstanceId
from connectgroup.log.memory import MemoryLog
from connectgroup.protocol.messages.assignment import InstallRequest, PrepareRequest
from connectgroup.protocol.messages.connectors import UpdateConnectorsRequest

from .builders import GROUP, add, ask, beat, change, look, send, serving


async def joined(coordinator: Coordinator, **more: Any) -> int:
    """Process 1 joins as member a; returns its member epoch."""
    await change(coordinator, add())
    response = await ask(coordinator, beat("a", sequence=10, process_id=1, host="machine-1", **more))
    assert response.error_code == 0
    return response.member_epoch


async def test_second_process_with_the_name_of_a_live_member_is_refused_with_the_address_of_the_first() -> None:
    async with serving() as coordinator:
        epoch = await joined(coordinator)
        before = await look(coordinator)
        refused = await ask(coordinator, beat("a", sequence=1_000, process_id=2))
        assert refused.error_code == UnreleasedInstanceId.code
        assert "in use by another process, at" in (refused.error_message or "")
        assert "machine-1" in (refused.error_message or "")
        assert (await look(coordinator)).members == before.members
        assert (await ask(coordinator, beat("a", epoch, sequence=11, process_id=1))).error_code == 0


@pytest.mark.parametrize("process_id", [2, -1])
async def test_request_of_another_process_changes_nothing(process_id: int) -> None:
    async with serving() as coordinator:
        epoch = await joined(coordinator)
        before = await look(coordinator)
        requests: list[Any] = [
            beat("a", epoch, sequence=1_000, process_id=process_id),
            beat("a", epoch, frozenset(), sequence=1_001, process_id=process_id),
            beat("a", -1, sequence=1_002, process_id=process_id),
            PrepareRequest(group_id=GROUP, member_id="a", member_epoch=epoch, process_id=process_id),
            InstallRequest(group_id=GROUP, member_id="a", member_epoch=epoch, group_epoch=epoch, process_id=process_id),
            UpdateConnectorsRequest(group_id=GROUP, member_id="a", changes=add("other").changes, process_id=process_id),
        ]
        for request in requests:
            response: Any = await asyncio.wait_for(send(coordinator, request), 60)
            assert response.error_code == FencedInstanceId.code, type(request).__name__
        assert await look(coordinator) == before
        assert (await ask(coordinator, beat("a", epoch, sequence=11, process_id=1))).error_code == 0


async def test_name_is_free_once_its_process_has_left() -> None:
    async with serving() as coordinator:
        await joined(coordinator)
        assert (await ask(coordinator, beat("a", -1, sequence=11, process_id=1))).error_code == 0
        assert (await ask(coordinator, beat("a", sequence=5, process_id=2))).error_code == 0
        late = await ask(coordinator, beat("a", sequence=10, process_id=1))
        assert late.error_code == StaleMemberEpoch.code, "a late copy of the first process's join"


async def test_heartbeats_of_another_process_do_not_extend_the_session() -> None:
    """The session of a member whose process is dead expires, whatever other processes send under its name."""
    async with serving() as coordinator:
        epoch = await joined(coordinator)
        joined_response = await ask(coordinator, beat("a", epoch, sequence=11, process_id=1))
        session_s = joined_response.session_timeout_ms / 1000
        for _ in range(12):
            await ask(coordinator, beat("a", epoch, process_id=2))
            await ask(coordinator, beat("a", process_id=2)) if _ < 9 else None
            await asyncio.sleep(session_s / 10)
        assert (await look(coordinator)).members == ()


async def test_refused_join_leaves_the_parked_heartbeat_of_the_member_parked() -> None:
    async with serving() as coordinator:
        epoch = await joined(coordinator)
        parked = asyncio.create_task(ask(coordinator, beat("a", epoch, sequence=11, process_id=1, max_wait_ms=60_000)))
        await asyncio.sleep(0.1)
        await ask(coordinator, beat("a", sequence=1_000, process_id=2))
        await asyncio.sleep(0.1)
        assert not parked.done()
        parked.cancel()


async def test_member_belongs_to_its_process_after_a_failover() -> None:
    log = MemoryLog()
    async with serving(log) as coordinator:
        epoch = await joined(coordinator)
    async with serving(log) as coordinator:
        refused = await ask(coordinator, beat("a", sequence=1_000, process_id=2))
        assert refused.error_code == UnreleasedInstanceId.code
        assert (await ask(coordinator, beat("a", epoch, sequence=11, process_id=1))).error_code == 0


async def test_process_joins_again_after_it_lost_its_lease() -> None:
    async with serving() as coordinator:
        await joined(coordinator)
        assert (await ask(coordinator, beat("a", sequence=11, process_id=1))).error_code == 0


async def test_late_duplicate_of_the_same_process_is_stale() -> None:
    async with serving() as coordinator:
        await joined(coordinator)
        assert (await ask(coordinator, beat("a", sequence=9, process_id=1))).error_code == StaleMemberEpoch.code
