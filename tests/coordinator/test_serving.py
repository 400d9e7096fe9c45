"""Parked heartbeats, sessions, late duplicates, coordinator restart and close."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from dataclasses import replace
from pathlib import Path

import pytest

from connectgroup.coordinator.parking import Dedup
from connectgroup.coordinator.runtime import Coordinator
from connectgroup.embedding import worker_group
from connectgroup.errors import CoordinatorNotAvailable, InvalidRequest, LogError, StaleMemberEpoch, UnknownMemberId
from connectgroup.group.registry import RequestTraits
from connectgroup.log.base import EncodedRecord
from connectgroup.log.memory import MemoryLog, MemoryStorage
from connectgroup.log.sqlite.log import SqliteLog
from connectgroup.protocol.messages.cluster import ApiVersionsRequest
from connectgroup.protocol.messages.common import units_of
from connectgroup.protocol.messages.describe import DescribedGroup, DescribeRequest, DescribeResponse
from connectgroup.protocol.messages.heartbeat import HeartbeatResponse
from connectgroup.protocol.records.base import Key, Kind, Tombstone
from connectgroup.protocol.records.connect import GroupRecord
from connectgroup.protocol.units import Unit
from tests.worker.builders import settings

from .builders import (
    FaultyLog,
    add,
    ask,
    beat,
    change,
    look,
    memory_is_log,
    running,
    send,
    served,
    serving,
    task_list,
    tick,
)

C = frozenset({Unit("c")})


# --------------------------------------------------------------------------------------------------
# Parked heartbeats


async def test_heartbeat_is_parked_until_its_max_wait_elapses() -> None:
    async with serving() as coordinator:
        epoch = (await ask(coordinator, beat("a"))).member_epoch
        started = asyncio.get_running_loop().time()
        response = await ask(coordinator, beat("a", epoch, max_wait_ms=2000))
        assert asyncio.get_running_loop().time() - started == pytest.approx(2.0, abs=0.01)
        assert (response.error_code, response.member_epoch, response.assignment) == (0, epoch, None)
        assert response.coordinator_epoch == 1


async def test_heartbeat_is_parked_for_a_third_of_the_session_timeout_at_most() -> None:
    """A worker requests an hour: its heartbeats must still extend its session."""
    async with serving() as coordinator:
        epoch = (await ask(coordinator, beat("a"))).member_epoch
        started = asyncio.get_running_loop().time()
        await ask(coordinator, beat("a", epoch, max_wait_ms=3_600_000))
        assert asyncio.get_running_loop().time() - started == pytest.approx(3.333, abs=0.01)


async def test_heartbeat_without_max_wait_is_answered_at_once() -> None:
    async with serving() as coordinator:
        epoch = (await ask(coordinator, beat("a"))).member_epoch
        started = asyncio.get_running_loop().time()
        await ask(coordinator, beat("a", epoch))
        assert asyncio.get_running_loop().time() == started


async def test_change_answers_all_parked_heartbeats_it_concerns() -> None:
    async with serving() as coordinator:
        epochs = {name: (await ask(coordinator, beat(name))).member_epoch for name in "ab"}
        epochs["a"] = (await ask(coordinator, beat("a", epochs["a"]))).member_epoch
        parked = {name: send(coordinator, beat(name, epochs[name], max_wait_ms=3000)) for name in "ab"}
        await asyncio.sleep(1)
        assert not any(task.done() for task in parked.values())
        started = asyncio.get_running_loop().time()
        await change(coordinator, add())
        answers = {name: await task for name, task in parked.items()}
        assert asyncio.get_running_loop().time() == started
        assigned = {}
        for name, response in answers.items():
            assert isinstance(response, HeartbeatResponse)
            assert response.member_epoch > epochs[name]
            assigned[name] = units_of(response.assignment.units) if response.assignment else frozenset()
        assert assigned == {"a": C, "b": frozenset()}


async def test_later_heartbeat_of_the_same_member_answers_the_parked_one() -> None:
    async with serving() as coordinator:
        epoch = (await ask(coordinator, beat("a"))).member_epoch
        first = send(coordinator, beat("a", epoch, max_wait_ms=3000))
        await tick()
        second = send(coordinator, beat("a", epoch, max_wait_ms=3000))
        await tick()
        assert first.done()
        assert not second.done()


async def test_parked_heartbeat_extends_the_session_from_its_arrival_only() -> None:
    """PD-09: a decision on the parked heartbeat after a change of the group does not extend the session."""
    async with serving(group=settings(session_timeout_ms=9_000)) as coordinator:
        await change(coordinator, add())
        a = await ask(coordinator, beat("a"))
        loop = asyncio.get_running_loop()
        arrived = loop.time()
        parked = send(coordinator, beat("a", a.member_epoch, max_wait_ms=3000))
        await asyncio.sleep(2.5)
        # Other members join: the changes wake a's heartbeat, whose response has only a new epoch in the end.
        await ask(coordinator, beat("b"))
        assert (await parked) is not None
        await asyncio.sleep(arrived + 8.9 - loop.time())
        assert "a" in {member.member_id for member in (await look(coordinator)).members}
        await asyncio.sleep(0.2)
        assert "a" not in {member.member_id for member in (await look(coordinator)).members}


async def test_heartbeat_parked_again_keeps_its_deadline() -> None:
    """It is woken without a change for it: the response is sent at its deadline, and the session is not extended."""
    async with serving(group=settings(session_timeout_ms=9_000)) as coordinator:
        await change(coordinator, add())
        a = await ask(coordinator, beat("a"))
        loop = asyncio.get_running_loop()
        arrived = loop.time()
        parked = send(coordinator, beat("a", a.member_epoch, max_wait_ms=3000))
        for _ in range(2):
            await asyncio.sleep(1)
            served(coordinator, "workers").members_to_wake.add("a")
            await ask(coordinator, beat("unknown", 7))
        assert not parked.done()
        await parked
        assert loop.time() - arrived == pytest.approx(3.0, abs=0.01)
        await asyncio.sleep(arrived + 9.1 - loop.time())
        assert (await look(coordinator)).members == ()


async def test_parked_heartbeat_of_a_removed_member_is_rejected() -> None:
    async with serving() as coordinator:
        epoch = (await ask(coordinator, beat("a"))).member_epoch
        parked = send(coordinator, beat("a", epoch, max_wait_ms=3000))
        await tick()
        await ask(coordinator, beat("a", -1))
        response = await asyncio.wait_for(parked, 0.1)
        assert isinstance(response, HeartbeatResponse)
        assert response.error_code in {0, UnknownMemberId.code}


async def test_response_to_a_closed_connection_is_dropped() -> None:
    """KAFKA-18484: a parked response that cannot be delivered does not delay the others."""
    async with serving() as coordinator:
        epochs = {name: (await ask(coordinator, beat(name))).member_epoch for name in "ab"}
        epochs["a"] = (await ask(coordinator, beat("a", epochs["a"]))).member_epoch
        gone = send(coordinator, beat("a", epochs["a"], max_wait_ms=3000))
        stays = send(coordinator, beat("b", epochs["b"], max_wait_ms=3000))
        await tick()
        gone.cancel()
        await change(coordinator, add())
        assert isinstance(await asyncio.wait_for(stays, 0.1), HeartbeatResponse)
        assert (await ask(coordinator, beat("a", epochs["a"], frozenset()))).error_code == 0


# --------------------------------------------------------------------------------------------------
# Sequences


async def test_late_duplicate_of_an_older_heartbeat_has_no_effect() -> None:
    """F2, S16: after a late duplicate of its join the member keeps its assignment."""
    log = FaultyLog()
    async with serving(log) as coordinator:
        await change(coordinator, add())
        joined = await ask(coordinator, beat("a", sequence=1))
        await ask(coordinator, beat("a", joined.member_epoch, sequence=2))
        batches = len(log.storage.batches)
        for sequence in (1, 2):
            late = await ask(coordinator, beat("a", sequence=sequence))
            assert late.error_code == StaleMemberEpoch.code
        assert len(log.storage.batches) == batches
        assert (await ask(coordinator, beat("a", joined.member_epoch, C, sequence=3))).error_code == 0
        assert (await ask(coordinator, beat("a", joined.member_epoch, C))).error_code == 0, "no sequence: accepted"


async def test_late_duplicate_does_not_extend_a_session() -> None:
    async with serving() as coordinator:
        joined = await ask(coordinator, beat("a", sequence=5))
        for _ in range(4):
            await asyncio.sleep(2.4)
            await ask(coordinator, beat("a", joined.member_epoch, sequence=4))
        await asyncio.sleep(0.5)
        assert (await look(coordinator)).members == ()


async def test_join_overtaken_by_the_leave_of_its_sender_creates_no_member() -> None:
    """KAFKA-16639, F3: the two use different connections; a ghost member would own units for a session timeout."""
    async with serving() as coordinator:
        await ask(coordinator, beat("a", sequence=1))
        await ask(coordinator, beat("a", -1, sequence=3))
        assert (await ask(coordinator, beat("a", sequence=2))).error_code == StaleMemberEpoch.code
        assert (await look(coordinator)).members == ()
        assert (await ask(coordinator, beat("a", sequence=4))).error_code == 0, "a later join is accepted"


async def test_copy_of_a_join_that_arrives_after_the_removal_of_its_sender_creates_no_member() -> None:
    """F3: the coordinator was stopped, removes the member for its silence, and finds the copy in a connection."""
    members = {"a"}
    dedup = Dedup(lambda group_id, sender, process: sender in members, in_flight_s=20.0)
    join, member = (RequestTraits(group_id="g", sender="a", sequence=sequence) for sequence in (1, 2))
    dedup.record(member)
    await asyncio.sleep(30)  # the coordinator was stopped
    members.clear()
    dedup.record_removals([Tombstone(Key(Kind.MEMBER, "g", "a"))])
    assert dedup.error(join) is not None
    await asyncio.sleep(19)
    assert dedup.error(join) is not None
    await asyncio.sleep(2)
    assert dedup.error(join) is None, "sequences are not kept for ever"


async def test_member_id_with_a_lower_sequence_is_accepted_after_a_while() -> None:
    """A worker restarts on a machine whose clock went back; and sequences of unknown members are not kept for ever."""
    async with serving() as coordinator:
        await ask(coordinator, beat("a", sequence=1_000_000))
        await ask(coordinator, beat("a", -1, sequence=1_000_001))
        for number in range(1_500):
            await ask(coordinator, beat(f"unknown{number}", 7, sequence=1))
        await asyncio.sleep(41)
        assert (await ask(coordinator, beat("a", sequence=1))).error_code == 0
        for number in range(1_500):
            await ask(coordinator, beat(f"other{number}", 7, sequence=1))
        assert len(coordinator.shard.dedup) <= 3_000


# --------------------------------------------------------------------------------------------------
# Restart and close


async def two_members(coordinator: Coordinator) -> dict[str, int]:
    """Two members own the units of a connector with three tasks; returns their epochs."""
    await change(coordinator, add())
    a = await ask(coordinator, beat("a"))
    await change(coordinator, task_list("a", a.member_epoch, 3))
    a = await ask(coordinator, beat("a", a.member_epoch, C))
    b = await ask(coordinator, beat("b"))
    revocation = await ask(coordinator, beat("a", a.member_epoch, frozenset({Unit("c", n) for n in (-1, 0, 1, 2)})))
    assert revocation.assignment is not None
    a = await ask(coordinator, beat("a", revocation.member_epoch, units_of(revocation.assignment.units)))
    b = await ask(coordinator, beat("b", b.member_epoch, frozenset()))
    assert b.assignment is not None
    await ask(coordinator, beat("a", a.member_epoch, statuses=(running(a.member_epoch - 3),)))
    return {"a": a.member_epoch, "b": b.member_epoch}


def without_downtimes(group: DescribedGroup) -> DescribedGroup:
    """Those of moves to former owners are not known after a restart."""
    rebalances = (
        replace(each, moves=tuple(replace(move, downtime_ms=0) for move in each.moves)) for each in group.rebalances
    )
    return replace(group, rebalances=tuple(rebalances))


async def test_coordinator_restart_on_the_same_file_keeps_every_assignment(tmp_path: Path) -> None:
    """F7 on a real disk: same units, same epochs, and the next change continues from there."""
    path = tmp_path / "groups.sqlite"
    async with serving(SqliteLog(path)) as first:
        epochs = await two_members(first)
        before = await look(first)
    async with serving(SqliteLog(path)) as second:
        after = await look(second)
        assert without_downtimes(after) == without_downtimes(before)
        assert after.state == "Stable"
        for name, epoch in epochs.items():
            response = await ask(second, beat(name, epoch))
            assert (response.error_code, response.member_epoch, response.coordinator_epoch) == (0, epoch, 2)
        joined = await ask(second, beat("d"))
        assert joined.member_epoch == before.group_epoch + 1
        await memory_is_log(second, second._log)


async def test_sessions_restart_with_the_coordinator() -> None:
    """D5, TO-05: session timers restart, so the downtime of the coordinator counts against no member."""
    storage = MemoryStorage()
    async with serving(MemoryLog(storage)) as first:
        await ask(first, beat("a"))
        await asyncio.sleep(9)
    await asyncio.sleep(100)
    async with serving(MemoryLog(storage)) as second:
        await asyncio.sleep(9.9)
        assert len((await look(second)).members) == 1
        await asyncio.sleep(0.2)
        assert (await look(second)).members == ()


async def test_pending_revocation_is_timed_by_the_next_coordinator() -> None:
    """TO-05, S14: a slow member is removed by a durable record, also by the next coordinator."""
    storage = MemoryStorage()
    async with serving(MemoryLog(storage)) as first:
        await change(first, add())
        a = await ask(first, beat("a", rebalance_timeout_ms=20_000))
        await change(first, task_list("a", a.member_epoch, 3))
        a = await ask(first, beat("a", a.member_epoch, C))
        await ask(first, beat("b"))
        revocation = await ask(first, beat("a", a.member_epoch))
        assert revocation.assignment is not None
    async with serving(MemoryLog(storage)) as second:
        for _ in range(3):
            assert (await ask(second, beat("a", revocation.member_epoch))).error_code == 0
            await asyncio.sleep(6)
        assert "a" in {member.member_id for member in (await look(second)).members}
        await asyncio.sleep(3)
        assert "a" not in {member.member_id for member in (await look(second)).members}


async def test_close_answers_every_request_and_cancels_every_timer() -> None:
    """L7, KAFKA-19857: parked, queued, or during a slow append."""
    log = FaultyLog()
    coordinator = Coordinator(log, settings())
    await coordinator.start()
    epoch = (await ask(coordinator, beat("a"))).member_epoch
    parked = send(coordinator, beat("a", epoch, max_wait_ms=3000))
    await tick()
    log.gate = asyncio.Event()
    writing = send(coordinator, beat("b"))
    await tick()
    waiting = send(coordinator, beat("d"))
    describing = send(coordinator, DescribeRequest(group_ids=("workers",)))
    await tick()
    await asyncio.wait_for(coordinator.close(), 1)
    for task in (parked, writing, waiting):
        response = await asyncio.wait_for(task, 0.1)
        assert isinstance(response, HeartbeatResponse)
        assert response.error_code in {0, CoordinatorNotAvailable.code}
    described = await asyncio.wait_for(describing, 0.1)
    assert isinstance(described, DescribeResponse)
    assert described.groups[0].error_code == CoordinatorNotAvailable.code
    assert (await ask(coordinator, beat("a", epoch))).error_code == CoordinatorNotAvailable.code
    assert not coordinator.shard.timers.armed
    batches = len(log.storage.batches)
    await asyncio.sleep(60)
    assert len(log.storage.batches) == batches, "no timer has fired"
    await coordinator.close()


async def test_close_whose_caller_does_not_wait_for_the_log_answers_every_request() -> None:
    """It may write numbers of tasks last; the log is closed, too, which gives its lease back."""
    log = FaultyLog()
    coordinator = Coordinator(log, settings())
    await coordinator.start()
    epoch = (await ask(coordinator, beat("a"))).member_epoch
    parked = send(coordinator, beat("a", epoch, max_wait_ms=3000))
    await tick()
    log.gate = asyncio.Event()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(
            coordinator.shard.close(lambda state: [GroupRecord(group_id=state.group_id, epoch=state.epoch)]), 0.1
        )
    response = await asyncio.wait_for(parked, 0.1)
    assert isinstance(response, HeartbeatResponse)
    assert response.error_code == CoordinatorNotAvailable.code
    with pytest.raises(LogError):
        await log.load()


async def test_close_during_the_reload_of_a_group() -> None:
    log = FaultyLog()
    async with serving(log) as coordinator:
        log.faults.append("before")
        log.unreadable = True
        await ask(coordinator, beat("a"))
        await asyncio.sleep(1)
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


# --------------------------------------------------------------------------------------------------
# Requests that are not served


async def test_group_with_a_damaged_record_is_rejected_and_the_others_are_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """D7, F27: the damaged record is not skipped."""
    storage = MemoryStorage()
    async with serving(MemoryLog(storage)) as first:
        await ask(first, beat("a", group_id="good"))
        await ask(first, beat("a", group_id="bad"))
    storage.batches.append([EncodedRecord(Key(Kind.GROUP, "bad"), b"\xff\xff\xff")])
    written = len([batch for batch in storage.batches if batch[0].key.group_id == "bad"])
    with caplog.at_level(logging.ERROR):
        async with serving(MemoryLog(storage)) as second:
            refused = await ask(second, beat("b", group_id="bad"))
            assert refused.error_code == CoordinatorNotAvailable.code
            assert "batch" in str(refused.error_message)
            assert "bad" in str(refused.error_message)
            assert (await look(second, "bad")).error_code == CoordinatorNotAvailable.code
            assert (await ask(second, beat("b", group_id="good"))).error_code == 0
            everything = await send(second, DescribeRequest())
            assert isinstance(everything, DescribeResponse)
            assert [(group.group_id, bool(group.error_code)) for group in everything.groups] == [
                ("bad", True),
                ("good", False),
            ]
    assert [record for record in caplog.records if "group bad is not served" in record.getMessage()]
    after = len([batch for batch in storage.batches if batch[0].key.group_id == "bad"])
    assert after == written, "no record was appended to the damaged group"


async def test_describe_does_not_create_a_group() -> None:
    async with serving() as coordinator:
        assert (await look(coordinator, "unknown")).error_code == 69
        everything = await send(coordinator, DescribeRequest())
        assert isinstance(everything, DescribeResponse)
        assert everything.groups == ()


async def test_api_that_is_not_served_is_rejected() -> None:
    async with serving() as coordinator:
        with pytest.raises(InvalidRequest, match="ApiVersionsRequest"):
            await coordinator.handle(ApiVersionsRequest(), client_host="test")


async def test_closed_coordinator_is_not_kept_in_memory_by_its_timers() -> None:
    """KAFKA-19857"""
    coordinator = Coordinator(FaultyLog(), settings(session_timeout_ms=3_600_000))
    await coordinator.start()
    await ask(coordinator, beat("a"))
    await coordinator.close()
    gone = weakref.ref(coordinator)
    del coordinator
    await tick()
    gc.collect()
    assert gone() is None


async def test_joins_removals_and_rebalances_are_logged_with_their_causes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "connectgroup.coordinator")
    idle = {"connector.class": "idle", "tasks.max": 1}
    async with worker_group("mine", workers=["ann", "bob"], connectors={"c": idle}) as group:
        await group.admin.wait_running("mine", "c")
        await group.stop_worker("ann")
        await group.wait_stable()
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("connectgroup.coordinator")]
    for start in (
        "group mine: member ann joins from ",
        "group mine: rebalance to epoch 1: connector c added",
        "group mine: member ann is removed: ",
    ):
        assert [line for line in lines if line.startswith(start)][1:] == [], "one line each"
        assert [line for line in lines if line.startswith(start)], lines
    assert any(" is complete after " in line and "computed by " in line for line in lines)
