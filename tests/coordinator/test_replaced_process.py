"""Two processes with one member id: the last one that joined is the member, the earlier one is fenced (PD-15)."""

from __future__ import annotations

import asyncio

from connectgroup.errors import FencedInstanceId, StaleMemberEpoch, UnsupportedAssignor

from .builders import add, ask, beat, change, look, serving


async def test_earlier_process_is_fenced_once_another_has_joined() -> None:
    async with serving() as coordinator:
        await change(coordinator, add())
        await ask(coordinator, beat("a", sequence=10, process_id=1))
        joined = await ask(coordinator, beat("a", sequence=1_000, process_id=2))
        assert joined.error_code == 0
        before = await look(coordinator)

        response = await ask(coordinator, beat("a", 1, sequence=11, process_id=1))
        assert response.error_code == FencedInstanceId.code
        assert "another process has joined as 'a'" in (response.error_message or "")
        leave = await ask(coordinator, beat("a", -1, sequence=12, process_id=1))
        assert leave.error_code == FencedInstanceId.code
        assert (await look(coordinator)).members == before.members, "requests of the earlier process change no state"


async def test_parked_heartbeat_of_the_earlier_process_returns_at_once() -> None:
    async with serving() as coordinator:
        await change(coordinator, add())
        first = await ask(coordinator, beat("a", sequence=10, process_id=1))
        parked = asyncio.create_task(
            ask(coordinator, beat("a", first.member_epoch, sequence=11, process_id=1, max_wait_ms=60_000))
        )
        await asyncio.sleep(0)
        await ask(coordinator, beat("a", sequence=1_000, process_id=2))
        await asyncio.wait_for(parked, 30)
        response = await ask(coordinator, beat("a", first.member_epoch, sequence=12, process_id=1))
        assert response.error_code == FencedInstanceId.code


async def test_process_whose_join_is_rejected_does_not_replace_the_member() -> None:
    async with serving() as coordinator:
        await change(coordinator, add())
        first = await ask(coordinator, beat("a", sequence=10, process_id=1))
        rejected = await ask(coordinator, beat("a", sequence=1_000, process_id=2, server_assignor="other"))
        assert rejected.error_code == UnsupportedAssignor.code
        assert (await ask(coordinator, beat("a", first.member_epoch, sequence=11, process_id=1))).error_code == 0


async def test_late_duplicate_of_the_same_process_is_stale_and_not_fenced() -> None:
    async with serving() as coordinator:
        await change(coordinator, add())
        await ask(coordinator, beat("a", sequence=10, process_id=1))
        assert (await ask(coordinator, beat("a", sequence=9, process_id=1))).error_code == StaleMemberEpoch.code
