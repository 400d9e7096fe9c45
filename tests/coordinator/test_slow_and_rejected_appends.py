"""A slow append removes no member; a rejected batch fails only the request that caused it."""

from __future__ import annotations

import asyncio

import pytest

from connectgroup.coordinator import intake
from connectgroup.errors import StaleMemberEpoch
from connectgroup.protocol.messages.common import units_of
from connectgroup.protocol.messages.describe import DescribeRequest, DescribeResponse
from connectgroup.protocol.messages.heartbeat import HeartbeatResponse
from connectgroup.protocol.units import Unit

from .builders import FaultyLog, add, ask, beat, change, look, send, serving, task_list, tick


async def test_member_whose_heartbeat_arrived_in_time_survives_a_slow_append(monkeypatch: pytest.MonkeyPatch) -> None:
    """F11, S14: its heartbeat is queued behind a slow fsync when its session expires; its arrival counts."""
    monkeypatch.setattr(intake, "MAX_INPUTS_PER_TURN", 1)  # the heartbeat is not in the first turn after the fsync
    log = FaultyLog()
    async with serving(log) as coordinator:
        epochs = {member: (await ask(coordinator, beat(member))).member_epoch for member in ("c", "a")}
        for member in epochs:
            epochs[member] = (await ask(coordinator, beat(member, epochs[member]))).member_epoch
        await asyncio.sleep(6)
        log.gate = asyncio.Event()
        slow = send(coordinator, beat("b"))
        await asyncio.sleep(2)
        heartbeats = [send(coordinator, beat(member, epoch)) for member, epoch in epochs.items()]
        await asyncio.sleep(4)
        log.gate.set()
        log.gate = None
        await asyncio.wait_for(asyncio.gather(slow, *heartbeats), 5)
        assert [member.member_id for member in (await look(coordinator)).members] == ["a", "b", "c"]


async def test_timer_that_fired_before_the_heartbeat_of_its_member_is_stale() -> None:
    """The expired timer is in the queue already when the heartbeat arrives."""
    log = FaultyLog()
    async with serving(log) as coordinator:
        epoch = (await ask(coordinator, beat("a"))).member_epoch
        await asyncio.sleep(9)
        log.gate = asyncio.Event()
        slow = send(coordinator, beat("b"))
        await asyncio.sleep(1.5)
        heartbeat = send(coordinator, beat("a", epoch))
        await tick()
        log.gate.set()
        log.gate = None
        await asyncio.wait_for(asyncio.gather(slow, heartbeat), 5)
        assert "a" in [member.member_id for member in (await look(coordinator)).members]


async def test_suspended_coordinator_removes_no_member() -> None:
    """F14, F15, D5: when it resumes, all its timers are due, and the members' heartbeats are still unread."""
    async with serving() as coordinator:
        await ask(coordinator, beat("a"))
        key = next(key for key in coordinator.shard.timers.armed if key.member_id == "a")
        armed = coordinator.shard.timers.armed[key]
        armed.check.cancel()
        armed.due_s -= 30
        coordinator.shard.timers.due(key)
        await asyncio.sleep(5)
        assert [member.member_id for member in (await look(coordinator)).members] == ["a"]
        await asyncio.sleep(6)
        assert (await look(coordinator)).members == (), "the session timeout applies again"


async def test_late_duplicate_in_a_rejected_turn_is_still_stale() -> None:
    """F2: the turn is decided again without the rejected command; the duplicate must not be taken for a join."""
    log = FaultyLog()
    async with serving(log) as coordinator:
        joined = await ask(coordinator, beat("a", sequence=10))
        await ask(coordinator, beat("a", joined.member_epoch, sequence=20))
        log.faults.append("refuse")
        other, copy = send(coordinator, beat("b")), send(coordinator, beat("a", sequence=10))
        await asyncio.wait_for(other, 5)
        response = await asyncio.wait_for(copy, 5)
        assert isinstance(response, HeartbeatResponse)
        assert response.error_code == StaleMemberEpoch.code
        member = next(member for member in (await look(coordinator)).members if member.member_id == "a")
        again = await ask(coordinator, beat("a", member.member_epoch, sequence=30))
        assert again.error_code == 0


async def test_two_parked_heartbeats_in_a_rejected_turn_are_both_answered() -> None:
    """L7: the second one completes the first, also when the turn is decided again."""
    log = FaultyLog()
    async with serving(log) as coordinator:
        epoch = (await ask(coordinator, beat("a", sequence=10))).member_epoch
        log.faults.append("refuse")
        waiting = [
            send(coordinator, beat("z", group_id="other")),
            send(coordinator, beat("a", epoch, sequence=20, max_wait_ms=1000)),
            send(coordinator, beat("a", epoch, sequence=21, max_wait_ms=1000)),
        ]
        _, unanswered = await asyncio.wait(waiting, timeout=20)
        assert not unanswered


async def test_worker_gets_no_error_for_a_batch_it_did_not_write() -> None:
    """A heartbeat can end a rebalance whose record the log rejects: its sender gets a retriable error."""
    log = FaultyLog()
    async with serving(log) as coordinator:
        log.faults.append("refuse")
        response = await ask(coordinator, beat("a"))
        assert response.error_code == 15
        assert (await ask(coordinator, beat("a"))).error_code == 0


async def test_explanation_of_a_rebalance_has_bounded_size() -> None:
    """A hundred thousand moves must fit into a record, and a hundred such records into a response."""
    async with serving() as coordinator:
        epoch = (await ask(coordinator, beat("a"))).member_epoch
        await change(coordinator, add())
        response = await ask(coordinator, beat("a", epoch))
        assert response.assignment is not None
        assert units_of(response.assignment.units) == {Unit("c")}
        await change(coordinator, task_list("a", response.assignment.grants[0].owner_epoch, 5_000))
        await ask(coordinator, beat("a", response.member_epoch))
        described = await send(coordinator, DescribeRequest(group_ids=("workers",)))
        assert isinstance(described, DescribeResponse)
        last = described.groups[0].rebalances[-1]
        assert (last.moved, last.started, len(last.moves)) == (0, 5_000, 100)
