"""Scheduled delays, deletion and limits in the runtime: timers, restarts, several groups."""

from __future__ import annotations

import asyncio

import pytest

from connectgroup.coordinator.runtime import Coordinator
from connectgroup.errors import FencedMemberEpoch, GroupIdNotFound, NonEmptyGroup, PolicyViolation
from connectgroup.group.kernel.outcome import TimerKind
from connectgroup.log.memory import MemoryLog, MemoryStorage
from connectgroup.protocol.messages.describe import DeleteRequest, DeleteResponse, DescribeRequest, DescribeResponse
from connectgroup.protocol.units import Unit
from tests.worker.builders import settings

from .builders import GROUP, Fault, FaultyLog, add, ask, beat, change, look, memory_is_log, send, served, serving


async def delete(coordinator: Coordinator, *group_ids: str) -> dict[str, int]:
    response = await asyncio.wait_for(send(coordinator, DeleteRequest(group_ids=group_ids)), 10)
    assert isinstance(response, DeleteResponse)
    return {result.group_id: result.error_code for result in response.results}


async def test_each_group_of_a_delete_request_has_its_own_result() -> None:
    log = MemoryLog()
    async with serving(log) as coordinator:
        await change(coordinator, add(group_id="empty"))
        await ask(coordinator, beat("a"))
        results = await delete(coordinator, "empty", "nowhere", GROUP)
        assert results == {"empty": 0, "nowhere": GroupIdNotFound.code, GROUP: NonEmptyGroup.code}
        await memory_is_log(coordinator, log)
        listed = await send(coordinator, DescribeRequest())
        assert isinstance(listed, DescribeResponse)
        assert [group.group_id for group in listed.groups] == [GROUP]


async def test_group_created_after_a_deletion_has_a_later_epoch() -> None:
    storage = MemoryStorage()
    async with serving(MemoryLog(storage)) as coordinator:
        await change(coordinator, add(group_id="g"))
        created_ms = served(coordinator, "g").created_ms
        assert await delete(coordinator, "g") == {"g": 0}
    async with serving(MemoryLog(storage)) as coordinator:
        assert (await look(coordinator, "g")).error_code == GroupIdNotFound.code
        coordinator.shard.groups.clock_ms = lambda: created_ms - 1_000
        await change(coordinator, add(group_id="g"))
        assert served(coordinator, "g").created_ms == created_ms + 1_000


async def test_number_of_groups_is_limited() -> None:
    async with serving(group=settings(max_groups=2)) as coordinator:
        for group_id in ("g1", "g2"):
            assert (await change(coordinator, add(group_id=group_id))).error_code == 0
        refused = await change(coordinator, add(group_id="g3"))
        assert (refused.error_code, refused.error_message) == (
            PolicyViolation.code,
            "this coordinator has all of its 2 groups",
        )
        assert (await ask(coordinator, beat("a", group_id="g3"))).error_code == PolicyViolation.code
        assert (await ask(coordinator, beat("a", group_id="g1"))).error_code == 0
        assert (await ask(coordinator, beat("a", 5, group_id="g3"))).error_code == GroupIdNotFound.code
        await change(coordinator, add(group_id="g1", text="other"))
        assert await delete(coordinator, "g2") == {"g2": 0}
        assert (await change(coordinator, add(group_id="g3"))).error_code == 0


async def waiting_ms(coordinator: Coordinator) -> list[int]:
    return [work.left_ms for work in (await look(coordinator)).delayed]


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


async def lose_b(coordinator: Coordinator) -> None:
    """a and b own the units of c; b's session expires, and its units are delayed."""
    await change(coordinator, add())
    await ask(coordinator, beat("a"))
    await ask(coordinator, beat("b"))
    for _ in range(3):
        for member_id in ("a", "b"):
            current = served(coordinator, GROUP).current(member_id)
            await ask(coordinator, beat(member_id, current.epoch, frozenset(current.assigned)))
    holder = next(iter(served(coordinator, GROUP).holders.values()))[0]
    other = "b" if holder == "a" else "a"
    for _ in range(12):
        await asyncio.sleep(1)
        await ask(coordinator, beat(other, served(coordinator, GROUP).current(other).epoch))
    assert served(coordinator, GROUP).members.keys() == {other}


async def test_delay_ends_on_time_across_coordinator_restarts(storage: MemoryStorage) -> None:
    """CN-11, S15: the delay is neither restarted nor forgotten."""
    slow = settings(scheduled_delay_ms=30_000, session_timeout_ms=10_000)
    async with serving(MemoryLog(storage), slow) as coordinator:
        await lose_b(coordinator)
        [before] = await waiting_ms(coordinator)
        await asyncio.sleep(8)
    async with serving(MemoryLog(storage), slow) as coordinator:
        [after] = await waiting_ms(coordinator)
        assert before - 9_000 < after <= before - 8_000
        await asyncio.sleep(after / 1000 - 0.1)
        assert await waiting_ms(coordinator) != []
        await asyncio.sleep(0.2)
        assert await waiting_ms(coordinator) == []


async def test_rejected_join_does_not_extend_a_session() -> None:
    """L1: two workers crash and restart with their instance ids swapped. Each joins with the instance id of the other's
    crashed process; if a rejected join extended that session, neither could ever join.
    """
    async with serving() as coordinator:
        await change(coordinator, add())
        await ask(coordinator, beat("a", instance_id="i1", sequence=1))
        await ask(coordinator, beat("b", instance_id="i2", sequence=1))
        codes = set()
        for number in range(15):
            codes = {
                (await ask(coordinator, beat("a", instance_id="i2", sequence=10 + number))).error_code,
                (await ask(coordinator, beat("b", instance_id="i1", sequence=10 + number))).error_code,
            }
            if codes == {0}:
                break
            await asyncio.sleep(1)
        assert codes == {0}


async def fence_one(coordinator: Coordinator) -> str:
    """a and b are stable; the owner of c is fenced, and its units are delayed. Returns the other member."""
    await change(coordinator, add())
    await ask(coordinator, beat("a"))
    await ask(coordinator, beat("b"))
    for _ in range(4):
        for member_id in ("a", "b"):
            current = served(coordinator, GROUP).current(member_id)
            await ask(coordinator, beat(member_id, current.epoch, frozenset(current.assigned)))
    holder = served(coordinator, GROUP).holders[Unit("c")][0]
    await ask(coordinator, beat(holder, 999))
    assert served(coordinator, GROUP).delays
    return "b" if holder == "a" else "a"


@pytest.mark.parametrize("fault", ["before", "refuse"])
async def test_end_of_a_delay_that_cannot_be_stored_is_retried_with_back_off(fault: Fault) -> None:
    """F10, KAFKA-20253: after the reload it is due at once; a full disk must not be written to at full speed."""
    log = FaultyLog()
    async with serving(log, settings(scheduled_delay_ms=5_000)) as coordinator:
        other = await fence_one(coordinator)
        before = log.appends
        log.faults.extend([fault] * 200)
        for _ in range(12):
            await asyncio.sleep(1)
            group = served(coordinator, GROUP)
            if group is not None and group.exists:
                await ask(coordinator, beat(other, group.current(other).epoch))
        assert log.appends - before < 30
        log.faults.clear()
        await asyncio.sleep(3)
        assert await waiting_ms(coordinator) == [], "the end of the delay is stored once the log accepts it"


async def test_delay_that_ends_while_the_coordinator_is_suspended_waits_only_for_unread_messages() -> None:
    """F14: its deadline is in the log; a restarted delay would delay the units twice as long."""
    async with serving(MemoryLog(), settings(scheduled_delay_ms=30_000, session_timeout_ms=10_000)) as coordinator:
        await lose_b(coordinator)
        [key] = [key for key in coordinator.shard.timers.armed if key.kind is TimerKind.DELAY]
        armed = coordinator.shard.timers.armed[key]
        armed.check.cancel()
        await asyncio.sleep(armed.due_s - asyncio.get_running_loop().time() + 20)
        coordinator.shard.timers.due(key)
        assert await waiting_ms(coordinator) != []
        await asyncio.sleep(1.1)
        assert await waiting_ms(coordinator) == []


async def test_delay_that_ended_while_the_coordinator_was_suspended_does_not_start_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S15: unread messages are processed first, which takes about a second and not the whole delay again."""
    loop = asyncio.get_running_loop()
    async with serving(group=settings(scheduled_delay_ms=60_000)) as coordinator:
        await change(coordinator, add("c"))
        epoch = (await ask(coordinator, beat("a"))).member_epoch
        await ask(coordinator, beat("b"))
        assert (await ask(coordinator, beat("a", epoch + 7))).error_code == FencedMemberEpoch.code
        assert (await look(coordinator)).delayed
        now = loop.time
        monkeypatch.setattr(loop, "time", lambda: now() + 80)
        await asyncio.sleep(5)
        assert not (await look(coordinator)).delayed
