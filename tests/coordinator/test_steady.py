"""Heartbeats that report nothing are decided on arrival while the coordinator is idle, and nothing differs for it."""

from __future__ import annotations

import asyncio
from typing import Any

from connectgroup.coordinator import loading
from connectgroup.coordinator.listing import ConsumerGroups
from connectgroup.coordinator.runtime import Coordinator
from connectgroup.errors import StaleMemberEpoch, UnknownMemberId
from connectgroup.group.consumer.settings import ConsumerSettings
from connectgroup.log.memory import MemoryLog
from connectgroup.protocol.messages.common import RestartRequest
from connectgroup.protocol.messages.consumer import ConsumerHeartbeatRequest
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from connectgroup.topics import StaticTopics
from tests.worker.builders import settings

from .builders import GROUP, FaultyLog, ask, beat, send, served, serving, tick


async def joined(coordinator: Coordinator, *members: str, **more: Any) -> int:
    """Join members until all have the same epoch; return it. Each has sent a heartbeat that reports nothing."""
    epochs = dict.fromkeys(members, 0)
    for _ in range(4):
        for member in members:
            epochs[member] = (await ask(coordinator, beat(member, epochs[member], **more))).member_epoch
    assert set(epochs.values()) == {max(1, epochs[members[0]])}
    return epochs[members[0]]


async def test_response_is_the_same_and_needs_no_time() -> None:
    async with serving() as coordinator:
        epoch = await joined(coordinator, "a", "b")
        turns = coordinator.shard.turns
        responses = [await ask(coordinator, beat("a", epoch)) for _ in range(3)]
        assert responses == [responses[0]] * 3
        assert (responses[0].error_code, responses[0].member_epoch, responses[0].coordinator_epoch) == (0, epoch, 1)
        assert coordinator.shard.turns == turns + 3, "each counts as a turn"


async def test_session_lasts_as_long_as_such_heartbeats_arrive() -> None:
    async with serving(group=settings(session_timeout_ms=1_000, heartbeat_interval_ms=300)) as coordinator:
        epoch = await joined(coordinator, "a")
        for _ in range(10):
            await asyncio.sleep(0.6)
            assert (await ask(coordinator, beat("a", epoch))).error_code == 0
        await asyncio.sleep(1.1)
        assert (await ask(coordinator, beat("a", epoch))).error_code == UnknownMemberId.code


async def test_no_request_of_the_member_is_overtaken() -> None:
    async with serving() as coordinator:
        epoch = await joined(coordinator, "a", "b")
        leaving, later = send(coordinator, beat("a", -1)), send(coordinator, beat("a", epoch))
        left, late = await asyncio.gather(leaving, later)
        assert isinstance(left, HeartbeatResponse)
        assert isinstance(late, HeartbeatResponse)
        assert (left.error_code, late.error_code) == (0, UnknownMemberId.code)


async def test_parked_heartbeat_of_the_member_is_answered() -> None:
    async with serving() as coordinator:
        epoch = await joined(coordinator, "a")
        waiting = send(coordinator, beat("a", epoch, max_wait_ms=2_000))
        await tick()
        assert not waiting.done()
        assert (await ask(coordinator, beat("a", epoch))).error_code == 0
        await tick()
        assert waiting.done()


async def test_long_poll_is_parked() -> None:
    async with serving() as coordinator:
        epoch = await joined(coordinator, "a")
        before_s = asyncio.get_running_loop().time()
        assert (await ask(coordinator, beat("a", epoch, max_wait_ms=2_000))).error_code == 0
        assert asyncio.get_running_loop().time() == before_s + 2


async def test_late_copy_is_stale() -> None:
    async with serving() as coordinator:
        epoch = await joined(coordinator, "a")
        codes = [
            (await ask(coordinator, beat("a", epoch, sequence=sequence))).error_code for sequence in (2, 3, 3, 2, 4)
        ]
        assert codes == [0, 0, StaleMemberEpoch.code, StaleMemberEpoch.code, 0]


async def test_nothing_is_revealed_while_it_is_written() -> None:
    """D1: the parked heartbeat is decided again in the turn of the request to restart, and the next one equals it."""
    log = FaultyLog()
    async with serving(log) as coordinator:
        epoch = await joined(coordinator, "a")
        told = send(coordinator, beat("a", epoch, max_wait_ms=3_000))
        await tick()
        log.gate = asyncio.Event()
        asking = send(coordinator, RestartRequest(group_id=GROUP, member_id="a"))
        await tick()
        again = send(coordinator, beat("a", epoch))
        await asyncio.sleep(1)
        assert not any(each.done() for each in (asking, told, again))
        log.gate.set()
        for response in await asyncio.gather(told, again):
            assert isinstance(response, HeartbeatResponse)
            assert (response.error_code, response.restart) == (0, True)


async def test_member_of_another_process_or_principal_gets_its_own_outcome() -> None:
    async with serving() as coordinator:
        epoch = await joined(coordinator, "a", process_id=1)

        async def code(request: HeartbeatRequest, principal: str) -> int:
            response: Any = await coordinator.handle(request, client_host="h", principal=principal)
            return int(response.error_code)

        assert await code(beat("a", epoch, process_id=1), "") == 0
        assert await code(beat("a", epoch, process_id=2), "") != 0
        assert await code(beat("a", epoch, process_id=1), "other") != 0


async def test_vacant_groups_are_removed_though_no_turn_is_needed() -> None:
    async with serving(group=settings(session_timeout_ms=200_000)) as coordinator:
        epoch = await joined(coordinator, "a")
        for member_epoch in 0, -1:
            assert (await ask(coordinator, beat("stranger", member_epoch, group_id="vacant"))).error_code == 0
        for _ in range(int(loading.VACANT_S / 100) + 2):
            await asyncio.sleep(100)
            assert (await ask(coordinator, beat("a", epoch))).error_code == 0
            await tick()
            if not served(coordinator, "vacant").exists:
                return
        raise AssertionError("the vacant group is kept")


async def test_consumer_that_waits_for_its_topic_is_parked() -> None:
    loop = asyncio.get_running_loop()
    consumers = ConsumerGroups(StaticTopics({"foo": 1}), ConsumerSettings())
    coordinator = Coordinator(
        MemoryLog(), settings(), consumers=consumers, wall_clock_ms=lambda: int(loop.time()) * 1000
    )
    await coordinator.start()
    try:

        async def consume(epoch: int, **more: Any) -> Any:
            request = ConsumerHeartbeatRequest(group_id="g", member_id="m", member_epoch=epoch, **more)
            return await coordinator.handle(request, client_host="h")

        full: dict[str, Any] = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ("absent",), "owned": ()}
        epoch = 0
        for _ in range(3):
            response = await consume(epoch, **full)
            assert response.error_code == 0, response.error_message
            epoch = response.member_epoch
        for _ in range(3):
            before_s = loop.time()
            assert (await consume(epoch)).error_code == 0
            assert loop.time() > before_s + 1
    finally:
        await coordinator.close()
