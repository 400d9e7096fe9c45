"""No response precedes its records; a failed append costs a retry and no state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from connectgroup.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidRequest,
    NotCoordinator,
)
from connectgroup.group.connect import group_type
from connectgroup.group.connect.group_type import step
from connectgroup.log.memory import MemoryLog, MemoryStorage
from connectgroup.protocol.messages.api import Request, Response
from connectgroup.protocol.messages.common import each_unit
from connectgroup.protocol.messages.describe import DescribeRequest, DescribeResponse
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest
from connectgroup.protocol.records.base import Kind
from connectgroup.protocol.records.connect import ConnectorRecord
from connectgroup.protocol.units import Unit

from .builders import (
    GROUP,
    Fault,
    FaultyLog,
    add,
    ask,
    beat,
    change,
    look,
    memory_is_log,
    running,
    send,
    serving,
    task_list,
    tick,
)

RETRIABLE = {CoordinatorNotAvailable.code, CoordinatorLoadInProgress.code}


def code(response: Response) -> int:
    with_code: Any = response.groups[0] if isinstance(response, DescribeResponse) else response
    return int(with_code.error_code)


# --------------------------------------------------------------------------------------------------
# D1


async def test_no_response_is_sent_before_its_records_are_durable() -> None:
    """D1, also for Describe: it would show records that are not durable yet."""
    log = FaultyLog()
    async with serving(log) as coordinator:
        log.gate = asyncio.Event()
        joining = send(coordinator, beat("a"))
        await asyncio.sleep(5)
        looking = send(coordinator, beat("b"))
        describing = asyncio.create_task(look(coordinator))
        await asyncio.sleep(5)
        assert not joining.done()
        assert not looking.done()
        assert not describing.done()
        assert log.storage.batches == []
        log.gate.set()
        assert code(await joining) == 0
        assert [member.member_id for member in (await describing).members] == ["a", "b"]


async def test_describe_waits_for_the_write_of_its_turn() -> None:
    """KAFKA-16973: a read waits for the writes before it, also within one turn."""
    log = FaultyLog()
    async with serving(log) as coordinator:
        log.gate = asyncio.Event()
        first = send(coordinator, beat("z", group_id="other"))
        await tick()
        writing, describing = send(coordinator, beat("a")), asyncio.create_task(look(coordinator))  # the second turn
        await asyncio.sleep(5)
        log.faults += ["none", "before"]
        log.gate.set()
        assert code(await first) == 0
        assert code(await writing) in RETRIABLE
        assert (await describing).error_code in RETRIABLE


async def test_parked_heartbeat_whose_max_wait_elapsed_waits_for_its_own_records() -> None:
    """D1 on a slow disk: its status is in the batch in flight; a failed write must not be acknowledged."""
    log = FaultyLog()
    async with serving(log) as coordinator:
        await change(coordinator, add())
        epoch = (await ask(coordinator, beat("a"))).member_epoch
        log.gate = asyncio.Event()
        parked = send(coordinator, beat("a", epoch, max_wait_ms=1000, statuses=(running(epoch),)))
        await asyncio.sleep(3)
        assert log.appends > 2, "its status is a record"
        assert not parked.done()
        log.faults.append("before")
        log.gate.set()
        assert code(await parked) in RETRIABLE
        log.gate = None
        assert code(await ask(coordinator, beat("a", epoch, statuses=(running(epoch),)))) in {0, *RETRIABLE}


async def test_parked_heartbeat_is_answered_in_time_after_a_slow_write() -> None:
    log = FaultyLog()
    async with serving(log) as coordinator:
        await change(coordinator, add())
        epoch = (await ask(coordinator, beat("a"))).member_epoch
        log.gate = asyncio.Event()
        parked = send(coordinator, beat("a", epoch, max_wait_ms=1000, statuses=(running(epoch),)))
        await asyncio.sleep(3)
        log.gate.set()
        await tick()
        assert parked.done()
        assert code(parked.result()) == 0


# --------------------------------------------------------------------------------------------------
# D6, D8


@pytest.mark.parametrize("fault", ["before", "after", "bug"])
async def test_state_is_reloaded_from_the_log_after_a_failed_append(fault: Fault) -> None:
    """D6, F6, F7, F10: the outcome is unknown; the content of the log decides."""
    log = FaultyLog()
    async with serving(log) as coordinator:
        await change(coordinator, add())
        first = await ask(coordinator, beat("a"))
        parked = send(coordinator, beat("a", first.member_epoch, max_wait_ms=3000))
        await tick()
        log.faults.append(fault)
        refused = await ask(coordinator, beat("b"))
        assert refused.error_code in RETRIABLE
        assert refused.coordinator_epoch == log.epoch
        assert code(await asyncio.wait_for(parked, 1)) in RETRIABLE
        await asyncio.sleep(0.5)
        await memory_is_log(coordinator, log)
        members = {member.member_id for member in (await look(coordinator)).members}
        assert members == ({"a", "b"} if fault == "after" else {"a"})
        again = await ask(coordinator, beat("b"))
        assert again.error_code == 0
        await memory_is_log(coordinator, log)
        kept = await ask(coordinator, beat("a", first.member_epoch, frozenset({Unit("c")})))
        assert kept.error_code == 0, "a durable member is still a member"


async def test_timers_run_again_after_a_reload() -> None:
    """The session of a member that crashes while its group is reloaded expires nevertheless."""
    log = FaultyLog()
    async with serving(log) as coordinator:
        await ask(coordinator, beat("a"))
        log.faults.append("before")
        await ask(coordinator, beat("b"))
        await asyncio.sleep(9)
        assert [member.member_id for member in (await look(coordinator)).members] == ["a"]
        await asyncio.sleep(2)
        assert (await look(coordinator)).members == ()


async def test_group_is_not_served_while_its_log_cannot_be_read() -> None:
    log = FaultyLog()
    async with serving(log) as coordinator:
        other = await ask(coordinator, beat("x", group_id="other"))
        await ask(coordinator, beat("a"))
        log.faults.append("after")
        log.unreadable = True
        assert (await ask(coordinator, beat("b"))).error_code in RETRIABLE
        for _ in range(5):
            assert (await ask(coordinator, beat("b"))).error_code == CoordinatorLoadInProgress.code
            assert (await look(coordinator)).error_code == CoordinatorLoadInProgress.code
            response = await ask(coordinator, beat("x", other.member_epoch, group_id="other"))
            assert response.error_code == 0
            await asyncio.sleep(1)
        log.unreadable = False
        await asyncio.sleep(0.5)
        assert {member.member_id for member in (await look(coordinator)).members} == {"a", "b"}


async def test_failed_append_does_not_end_sessions_of_other_groups() -> None:
    """D8: the other group shared the turn without a record; its heartbeat extends the session."""
    log = FaultyLog()
    async with serving(log) as coordinator:
        other = await ask(coordinator, beat("x", group_id="other"))
        await asyncio.sleep(6)
        log.faults.append("before")
        together = [send(coordinator, beat("a")), send(coordinator, beat("x", other.member_epoch, group_id="other"))]
        await asyncio.wait(together)
        await asyncio.sleep(6)
        assert [member.member_id for member in (await look(coordinator, "other")).members] == ["x"]


class Refuses:
    """Rejects batches that contain a connector of this name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, records: Any) -> bool:
        return any(isinstance(record, ConnectorRecord) and record.connector == self.name for record in records)


async def test_batch_that_is_too_large_fails_only_its_command() -> None:
    """KAFKA-19760, D9: all other commands of the turn succeed, in every group."""
    log = FaultyLog()
    async with serving(log) as coordinator:
        log.refuses = Refuses("huge")
        together = [
            send(coordinator, beat("a")),
            send(coordinator, add("huge")),
            send(coordinator, add("small")),
            send(coordinator, beat("x", group_id="other")),
        ]
        codes = [code(await asyncio.wait_for(task, 5)) for task in together]
        assert codes == [0, InvalidRequest.code, 0, 0]
        group = await look(coordinator)
        assert [connector.connector for connector in group.connectors] == ["small"]
        assert [member.member_id for member in group.members] == ["a"]
        await memory_is_log(coordinator, log)
        await memory_is_log(coordinator, log, "other")


@pytest.mark.parametrize("alone", [True, False])
async def test_parked_heartbeats_are_retried_after_a_rejected_batch(alone: bool) -> None:
    """KAFKA-19760: the batch woke them; they get a retriable error or a response, but none is left parked (L7)."""
    log = FaultyLog()
    async with serving(log) as coordinator:
        await change(coordinator, add())
        epoch = (await ask(coordinator, beat("a"))).member_epoch
        parked = send(coordinator, beat("a", epoch, max_wait_ms=3000))
        await tick()
        log.refuses = Refuses("huge")
        together = [send(coordinator, add("huge"))]
        if not alone:
            together.append(send(coordinator, beat("b")))
        codes = [code(await asyncio.wait_for(task, 5)) for task in together]
        assert codes == [InvalidRequest.code, 0][: len(codes)]
        response = await asyncio.wait_for(parked, 5)
        assert code(response) in {0, *RETRIABLE}
        await memory_is_log(coordinator, log)


async def test_heartbeat_overtaken_in_a_rejected_turn_is_answered() -> None:
    """L7: a later heartbeat of the member completes the parked one, and then the batch is rejected."""
    log = FaultyLog()
    async with serving(log) as coordinator:
        await change(coordinator, add())
        epoch = (await ask(coordinator, beat("a"))).member_epoch
        parked = send(coordinator, beat("a", epoch, max_wait_ms=3000))
        await tick()
        log.refuses = Refuses("huge")
        together = [send(coordinator, beat("a", epoch)), send(coordinator, add("huge"))]
        assert [code(await asyncio.wait_for(task, 5)) for task in together] == [0, InvalidRequest.code]
        assert code(await asyncio.wait_for(parked, 5)) in {0, *RETRIABLE}


def fault_in_the_rules(monkeypatch: pytest.MonkeyPatch, when: Callable[[Any], bool]) -> None:
    whole = step

    def broken(group: Any, what: Any, *rest: Any, **more: Any) -> Any:
        outcome = whole(group, what, *rest, **more)
        if when(what):
            raise ZeroDivisionError("a bug in the rules")
        return outcome

    monkeypatch.setattr(group_type, "step", broken)


async def test_exception_in_the_rules_fails_one_command_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """D8, KAFKA-20570: the state is as before the command; all others of the turn get a response."""
    log = FaultyLog()
    async with serving(log) as coordinator:
        await ask(coordinator, beat("a"))
        fault_in_the_rules(monkeypatch, lambda what: getattr(what, "member_id", "") == "poison")
        together = [
            send(coordinator, beat("b")),
            send(coordinator, beat("poison")),
            send(coordinator, beat("x", group_id="other")),
            send(coordinator, beat("c")),
        ]
        codes = [code(await asyncio.wait_for(task, 5)) for task in together]
        assert codes[1] in RETRIABLE, "a fault of the coordinator does not end a worker"
        assert codes[2] == 0
        assert codes[0] in RETRIABLE, "it shared the state that is dropped"
        assert codes[3] in RETRIABLE
        await asyncio.sleep(0.5)
        await memory_is_log(coordinator, log)
        assert [member.member_id for member in (await look(coordinator)).members] == ["a"]
        assert (await ask(coordinator, beat("b"))).error_code == 0


async def test_exception_in_the_rules_leaves_timers_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leave that was rolled back must not have cancelled the member's session: it would never expire."""
    log = FaultyLog()
    async with serving(log) as coordinator:
        await ask(coordinator, beat("a"))
        fault_in_the_rules(monkeypatch, lambda what: getattr(what, "member_id", "") == "poison")
        log.gate = asyncio.Event()
        together = [
            send(coordinator, beat("a", -1)),
            send(coordinator, beat("poison")),
            send(coordinator, beat("x", group_id="other")),
        ]
        await tick()
        log.gate.set()
        await asyncio.wait(together)
        assert [member.member_id for member in (await look(coordinator)).members] == ["a"]
        await asyncio.sleep(11)
        assert (await look(coordinator)).members == ()


async def test_exception_in_a_timer_does_not_end_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """KAFKA-18484: the loop serves all groups."""
    async with serving() as coordinator:
        await ask(coordinator, beat("a"))
        fault_in_the_rules(monkeypatch, lambda what: not isinstance(what, HeartbeatRequest))
        await asyncio.sleep(11)
        monkeypatch.undo()
        assert (await ask(coordinator, beat("b"))).error_code == 0
        await asyncio.sleep(11)
        assert (await look(coordinator)).members == ()


# --------------------------------------------------------------------------------------------------
# D4, D5


async def test_fenced_coordinator_serves_no_request() -> None:
    """D5, F12: no write, no read, no heartbeat without a record; no timer fires."""
    storage = MemoryStorage()
    async with serving(MemoryLog(storage)) as old:
        a = await ask(old, beat("a"))
        parked = send(old, beat("a", a.member_epoch, max_wait_ms=3000))
        await tick()
        async with serving(MemoryLog(storage)) as new:
            batches = len(storage.batches)
            assert (await ask(old, beat("b"))).error_code == NotCoordinator.code
            assert code(await asyncio.wait_for(parked, 1)) == NotCoordinator.code
            assert (await ask(old, beat("a", a.member_epoch))).error_code == NotCoordinator.code
            assert (await look(old)).error_code == NotCoordinator.code
            everything = await send(old, DescribeRequest())
            assert isinstance(everything, DescribeResponse)
            assert [group.error_code for group in everything.groups] == [NotCoordinator.code], "not an empty list"
            kept = await ask(new, beat("a", a.member_epoch))
            assert kept.error_code == 0
            assert kept.coordinator_epoch > a.coordinator_epoch
            assert (await ask(old, beat("a", a.member_epoch))).coordinator_epoch == a.coordinator_epoch
            await asyncio.sleep(9)
            assert len(storage.batches) == batches
            await asyncio.sleep(3)
            assert len(storage.batches) > batches, "the new coordinator has removed a; the old one wrote nothing"


# --------------------------------------------------------------------------------------------------
# Batches


async def test_concurrent_joins_share_appends() -> None:
    log = FaultyLog()
    async with serving(log) as coordinator:
        together = [send(coordinator, beat(f"m{number:03}")) for number in range(200)]
        assert [code(await task) for task in together] == [0] * 200
        assert log.appends <= 3
        await memory_is_log(coordinator, log)


async def test_task_list_and_the_request_of_its_target_are_one_batch() -> None:
    """D3: after a crash between two batches the target would not be computed."""
    log = FaultyLog()
    async with serving(log) as coordinator:
        await change(coordinator, add())
        joined = await ask(coordinator, beat("a"))
        assert joined.assignment is not None
        batches = len(log.storage.batches)
        assert (await change(coordinator, task_list("a", joined.member_epoch, 3))).error_code == 0
        requested, installed = log.storage.batches[batches:]
        assert {Kind.CONNECTOR, Kind.GROUP, Kind.COMPUTATION} <= {record.key.kind for record in requested}
        assert Kind.TARGET in {record.key.kind for record in installed}
        response = await ask(coordinator, beat("a", joined.member_epoch))
        assert response.assignment is not None
        assert sorted(each_unit(response.assignment.units)) == [Unit("c", number) for number in (-1, 0, 1, 2)]


@pytest.mark.parametrize(
    "request_", [DescribeRequest(group_ids=(GROUP,)), add(name="")], ids=["describe", "rejected change"]
)
async def test_response_without_a_record_waits_for_the_records_of_its_turn(request_: Request) -> None:
    """D1: it is based on a state that may never be durable."""
    log = FaultyLog()
    async with serving(log) as coordinator:
        log.gate = asyncio.Event()
        turns = coordinator.shard.turns
        writing = send(coordinator, beat("a"))
        reading = send(coordinator, request_)
        await asyncio.sleep(5)
        assert not writing.done()
        assert not reading.done()
        log.gate.set()
        await asyncio.gather(writing, reading)
        assert coordinator.shard.turns == turns + 1, "the test requires a single turn"
