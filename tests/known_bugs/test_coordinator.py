"""Bugs of other coordinators' runtimes: early responses, oversized batches, batching delays, delayed writes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from connectgroup.coordinator.runtime import Coordinator
from connectgroup.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidRequest,
    NonEmptyGroup,
    NotCoordinator,
)
from connectgroup.log.memory import MemoryLog, MemoryStorage
from connectgroup.protocol.messages.common import units_of
from connectgroup.protocol.messages.describe import DeleteRequest, DeleteResponse
from connectgroup.protocol.messages.heartbeat import HeartbeatResponse
from connectgroup.protocol.records.connect import Record
from connectgroup.protocol.units import Unit
from tests.coordinator.builders import (
    GROUP,
    Fault,
    FaultyLog,
    add,
    ask,
    beat,
    change,
    look,
    memory_is_log,
    send,
    served,
    serving,
    task_list,
    tick,
)
from tests.worker.builders import settings

RETRIABLE = {CoordinatorNotAvailable.code, CoordinatorLoadInProgress.code}


async def response_of(task: asyncio.Task[Any], within: float = 5) -> HeartbeatResponse:
    response = await asyncio.wait_for(task, within)
    assert isinstance(response, HeartbeatResponse)
    return response


# --------------------------------------------------------------------------------------------------
# KAFKA-19760


async def test_configuration_is_rejected_for_its_uncompressed_size() -> None:
    """KAFKA-19760: batches were filled by an estimate of their compressed size, and all requests of an oversized batch
    got an unknown error; here the uncompressed size counts, and only the request that is too large is rejected.
    """
    log = MemoryLog(max_batch_bytes=20_000)
    async with serving(log) as coordinator:
        await change(coordinator, add("c"))
        together = [send(coordinator, beat(f"m{number}")) for number in range(5)]
        huge = send(coordinator, add("huge", text="x" * 20_001))
        together += [send(coordinator, beat(f"n{number}")) for number in range(5)]
        refused = await asyncio.wait_for(huge, 5)
        assert getattr(refused, "error_code", 0) == InvalidRequest.code
        assert "20000" in str(getattr(refused, "error_message", ""))
        assert [(await response_of(task)).error_code for task in together] == [0] * 10
        assert len((await look(coordinator)).members) == 10
        assert [connector.connector for connector in (await look(coordinator)).connectors] == ["c"]
        await memory_is_log(coordinator, log)


# --------------------------------------------------------------------------------------------------
# MINOR #20739


class SlowLog(MemoryLog):
    async def append(self, records: Sequence[Record]) -> None:
        await asyncio.sleep(0.1)
        await super().append(records)


async def test_request_does_not_wait_for_further_requests_of_a_batch() -> None:
    """MINOR #20739: a reversed comparison let a batch linger when it was due; here a request waits only for the
    append in flight and for its own.
    """
    random, loop = Random(1), asyncio.get_running_loop()
    took: list[float] = []
    async with serving(SlowLog()) as coordinator:

        async def timed(name: str) -> None:
            began = loop.time()
            response = await coordinator.handle(beat(name), client_host="h")
            assert isinstance(response, HeartbeatResponse)
            assert response.error_code == 0
            took.append(loop.time() - began)

        waiting = []
        for number in range(100):
            waiting.append(asyncio.create_task(timed(f"m{number}")))
            await asyncio.sleep(random.expovariate(20))
        await asyncio.gather(*waiting)
        assert max(took) <= 0.2 + 1e-6
        await asyncio.sleep(1)
        took.clear()
        await timed("alone")
        assert took == [pytest.approx(0.1)]


# --------------------------------------------------------------------------------------------------
# KAFKA-17507 and Jepsen's report on transactions


@pytest.mark.parametrize("fault", ["before", "after"])
@pytest.mark.parametrize("turn", ["the same turn", "the next turn"])
async def test_no_decision_is_based_on_a_write_that_is_not_durable(turn: str, fault: Fault) -> None:
    """KAFKA-17507: the end of a transaction was acknowledged before it was complete, and the next one met its rest;
    here a unit is granted only after its release is durable, and if the write fails, the unit was never released.
    """
    log = FaultyLog()
    async with serving(log) as coordinator:
        await change(coordinator, add())
        a = (await ask(coordinator, beat("a"))).member_epoch
        await change(coordinator, task_list("a", a, 4))
        a = (await ask(coordinator, beat("a", a))).member_epoch
        b = (await ask(coordinator, beat("b"))).member_epoch
        revocation = await ask(coordinator, beat("a", a))
        assert revocation.assignment is not None
        left = units_of(revocation.assignment.units)
        log.gate = asyncio.Event()
        log.faults.append(fault)
        acknowledging = send(coordinator, beat("a", a, left))
        if turn == "the next turn":
            await tick()
        waiting = send(coordinator, beat("b", b, frozenset()))
        await asyncio.sleep(2)
        assert not acknowledging.done()
        assert not waiting.done()
        log.gate.set()
        assert (await response_of(acknowledging)).error_code in RETRIABLE
        response = await response_of(waiting)
        if turn == "the same turn" or response.error_code:
            assert response.error_code in RETRIABLE
            assert response.assignment is None
        else:  # decided after the group was loaded again
            assert (response.assignment is not None) == (fault == "after")
        await asyncio.sleep(1)
        await memory_is_log(coordinator, log)
        response = await ask(coordinator, beat("b", b, frozenset()))
        got = units_of(response.assignment.units) if response.assignment else frozenset()
        assert len(got) == (0 if fault == "before" else 2), "the units are released if the log has the acknowledgement"


async def test_late_write_of_a_former_coordinator_changes_nothing() -> None:
    """Jepsen Bufstream K-txn: a delayed commit took effect in a later transaction; here a write that a coordinator
    sent before it was replaced is rejected when it arrives, and so are all its later writes.
    """
    storage = MemoryStorage()
    log = FaultyLog(storage)
    async with serving(log) as old:
        a = (await ask(old, beat("a"))).member_epoch
        parked = send(old, beat("a", a, max_wait_ms=3000))
        await tick()
        log.gate = asyncio.Event()
        late = send(old, beat("b"))
        waiting = send(old, beat("d"))
        await tick()
        async with serving(MemoryLog(storage)) as new:
            assert (await ask(new, beat("a", -1))).error_code == 0
            assert (await ask(new, beat("e"))).error_code == 0
            batches = list(storage.batches)
            log.gate.set()
            for task in (late, waiting, parked):
                assert (await response_of(task)).error_code == NotCoordinator.code
            assert storage.batches == batches
            await memory_is_log(new, MemoryLogReader(storage))
            assert [member.member_id for member in (await look(new)).members] == ["e"]


class MemoryLogReader(MemoryLog):
    """Reads the storage without fencing its owner."""

    def _check(self) -> None:
        pass


# --------------------------------------------------------------------------------------------------
# KAFKA-19163


async def delete(coordinator: Coordinator) -> int:
    response = await asyncio.wait_for(send(coordinator, DeleteRequest(group_ids=(GROUP,))), 10)
    assert isinstance(response, DeleteResponse)
    return response.results[0].error_code


@pytest.mark.parametrize("fault", [None, "before", "after"])
@pytest.mark.parametrize("first", ["the join", "the deletion"])
async def test_group_is_not_deleted_while_a_member_joins(first: str, fault: Fault | None) -> None:
    """KAFKA-19163: a group was deleted while part of it was pending; here a deletion is decided after the requests
    before it, durable or not: a group that a member is joining stays, and one that is deleted first is created again,
    with a later incarnation; if the write fails, memory equals the log.
    """
    log = FaultyLog()
    async with serving(log) as coordinator:
        await change(coordinator, add())
        made_ms = served(coordinator, GROUP).created_ms
        await asyncio.sleep(1)
        log.gate = asyncio.Event()
        if fault:
            log.faults.append(fault)
        if first == "the join":
            joining = send(coordinator, beat("a"))
            deleting = asyncio.create_task(delete(coordinator))
        else:
            deleting = asyncio.create_task(delete(coordinator))
            await asyncio.sleep(0)
            joining = send(coordinator, beat("a"))
        await asyncio.sleep(2)
        assert not joining.done()
        assert not deleting.done()
        log.gate.set()
        joined, deleted = await response_of(joining), await asyncio.wait_for(deleting, 5)
        await asyncio.sleep(1)
        await memory_is_log(coordinator, log)
        group = await look(coordinator)
        if fault:
            # The request in the later turn may be decided after the group was loaded again.
            of_log = {NonEmptyGroup.code if fault == "after" else 0} if first == "the join" else set()
            assert joined.error_code in RETRIABLE
            assert deleted in RETRIABLE | of_log
            assert bool(group.members) == (fault == "after")
        elif first == "the join":
            assert (joined.error_code, deleted) == (0, NonEmptyGroup.code)
            assert [member.member_id for member in group.members] == ["a"]
            assert [connector.connector for connector in group.connectors] == ["c"]
        else:
            assert (joined.error_code, deleted) == (0, 0)
            assert group.connectors == ()
            assert served(coordinator, GROUP).created_ms > made_ms


async def test_deleted_group_with_delayed_units_leaves_no_timer() -> None:
    """KAFKA-19163: delayed units end with the deletion of their group; none of its timers fires later."""
    log = FaultyLog()
    async with serving(log, settings(scheduled_delay_ms=60_000)) as coordinator:
        await change(coordinator, add())
        for name in "ab":
            await ask(coordinator, beat(name))
        assert await delete(coordinator) == NonEmptyGroup.code
        a = served(coordinator, GROUP).holders[Unit("c")][0]
        other = "ab".replace(a, "")
        for _ in range(4):
            await asyncio.sleep(3)
            await ask(coordinator, beat(other, served(coordinator, GROUP).current(other).epoch))
        assert served(coordinator, GROUP).delays.keys() == {a}
        await ask(coordinator, beat(other, -1))
        assert await delete(coordinator) == 0
        assert not coordinator.shard.timers.armed
        batches = len(log.storage.batches)
        await asyncio.sleep(120)
        assert len(log.storage.batches) == batches
        assert (await look(coordinator)).error_code == 69
