"""What the runtime promises in passing: each of these could be broken without any other test noticing."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from connectgroup.coordinator.runtime import Coordinator
from connectgroup.errors import ComputeAssignment, FencedMemberEpoch, UnknownMemberId
from connectgroup.protocol.messages.api import Response
from connectgroup.protocol.messages.assignment import (
    InstalledMember,
    InstallRequest,
    InstallResponse,
    PrepareRequest,
    PrepareResponse,
)
from connectgroup.protocol.messages.common import AssignorInfo, grouped, units_of
from connectgroup.protocol.messages.connectors import ConnectorChange, UpdateConnectorsRequest
from connectgroup.protocol.messages.describe import DescribeRequest
from connectgroup.protocol.messages.heartbeat import HeartbeatResponse
from connectgroup.protocol.records.connect import TargetState
from connectgroup.protocol.units import NO_UNITS, Unit, Units
from tests.worker.builders import settings

from .builders import GROUP, FaultyLog, add, ask, beat, change, look, send, serving, tick

C, D = Unit("c"), Unit("d")
OFFERED = (AssignorInfo(name="spread", minimum_version=0, maximum_version=0),)


async def heard(waiting: asyncio.Task[Response]) -> HeartbeatResponse:
    """The answer to a parked heartbeat, which must come without any time passing."""
    before = asyncio.get_running_loop().time()
    answer = await asyncio.wait_for(waiting, 60)
    assert asyncio.get_running_loop().time() == before, "it was answered because its time was up"
    assert isinstance(answer, HeartbeatResponse)
    return answer


async def install(coordinator: Coordinator, member_id: str, epoch: int, **shares: Units) -> None:
    """The member that was asked computes this."""
    prepared = await send(coordinator, PrepareRequest(group_id=GROUP, member_id=member_id, member_epoch=epoch))
    assert isinstance(prepared, PrepareResponse)
    answer = await send(
        coordinator,
        InstallRequest(
            group_id=GROUP,
            member_id=member_id,
            member_epoch=epoch,
            group_epoch=prepared.group_epoch,
            members=tuple(InstalledMember(member_id=who, units=grouped(units)) for who, units in shares.items()),
        ),
    )
    assert isinstance(answer, InstallResponse)
    assert answer.error_code == 0, answer.error_message


# --------------------------------------------------------------------------------------------------
# Who is woken


async def test_whoever_waits_for_a_unit_is_given_it_the_moment_it_is_free() -> None:
    """A parked heartbeat of an epoch that does not change: its answer still has something to say."""
    async with serving() as coordinator:
        await change(coordinator, add("c"))
        await change(coordinator, add("d"))
        first = await ask(coordinator, beat("a"))
        joined = await ask(coordinator, beat("b"))
        told = await ask(coordinator, beat("a", first.member_epoch, frozenset({C, D})))
        assert told.assignment is not None
        [moving] = {C, D} - units_of(told.assignment.units)
        waiting = send(coordinator, beat("b", joined.member_epoch, NO_UNITS, max_wait_ms=3_000))
        await tick()
        assert not waiting.done(), "its unit is still being stopped"
        await ask(coordinator, beat("a", told.member_epoch, units_of(told.assignment.units)))
        answer = await heard(waiting)
        assert answer.member_epoch == joined.member_epoch
        assert answer.assignment is not None
        assert units_of(answer.assignment.units) == {moving}


async def test_the_member_chosen_to_compute_is_told_the_moment_somebody_joins() -> None:
    async with serving() as coordinator:
        assert (await ask(coordinator, beat("a", client_assignors=OFFERED))).error_code == ComputeAssignment.code
        await install(coordinator, "a", 0, a=NO_UNITS)
        epoch = (await ask(coordinator, beat("a", client_assignors=OFFERED))).member_epoch
        waiting = send(coordinator, beat("a", epoch, max_wait_ms=3_000))
        await tick()
        assert not waiting.done()
        await ask(coordinator, beat("b", client_assignors=OFFERED))
        assert (await heard(waiting)).error_code == ComputeAssignment.code


async def test_the_holder_of_what_is_switched_off_is_told_before_there_is_a_target_without_it() -> None:
    """The assignor may take long, and another member runs it: what shall not run stops at once."""
    async with serving() as coordinator:
        await change(coordinator, add("c"))
        await ask(coordinator, beat("a", client_assignors=OFFERED))
        await ask(coordinator, beat("b", client_assignors=OFFERED))
        await install(coordinator, "a", 0, a=NO_UNITS, b=frozenset({C}))
        await ask(coordinator, beat("a", client_assignors=OFFERED))
        given = await ask(coordinator, beat("b", client_assignors=OFFERED))
        assert given.assignment is not None
        assert units_of(given.assignment.units) == {C}
        waiting = send(coordinator, beat("b", given.member_epoch, frozenset({C}), max_wait_ms=3_000))
        await tick()
        assert not waiting.done()
        stop = ConnectorChange(connector="c", target_state=TargetState.STOPPED)
        await change(coordinator, UpdateConnectorsRequest(group_id=GROUP, changes=(stop,)))
        answer = await heard(waiting)
        assert answer.assignment is not None
        assert not answer.assignment.units


async def test_a_member_that_is_expelled_while_its_heartbeat_is_parked_is_told_so_at_once() -> None:
    """It is alive, and still runs what others may be given now."""
    async with serving() as coordinator:
        await change(coordinator, add("c"))
        joins: dict[str, Any] = {"client_assignors": OFFERED, "rebalance_timeout_ms": 1_000}
        await ask(coordinator, beat("a", **joins))
        await install(coordinator, "a", 0, a=frozenset({C}))
        epoch = (await ask(coordinator, beat("a", **joins))).member_epoch
        await ask(coordinator, beat("b", client_assignors=OFFERED))
        assert (await ask(coordinator, beat("a", epoch))).error_code == ComputeAssignment.code
        await install(coordinator, "a", epoch, a=NO_UNITS, b=frozenset({C}))
        told = await ask(coordinator, beat("a", epoch, frozenset({C})))
        assert told.assignment is not None
        assert not told.assignment.units
        started = asyncio.get_running_loop().time()
        answer = await ask(coordinator, beat("a", told.member_epoch, max_wait_ms=3_000))
        assert answer.error_code == UnknownMemberId.code
        assert asyncio.get_running_loop().time() - started == 1.0


# --------------------------------------------------------------------------------------------------
# Durable first, and the end


async def test_what_needs_no_record_waits_for_the_records_of_its_turn() -> None:
    """D1: it was decided on a state that the log does not have yet, and may never have."""
    log = FaultyLog()
    async with serving(log) as coordinator:
        log.gate = asyncio.Event()
        turns = coordinator.turns
        writing = send(coordinator, beat("a"))
        reading = send(coordinator, DescribeRequest(group_ids=(GROUP,)))
        await asyncio.sleep(5)
        assert not writing.done()
        assert not reading.done()
        log.gate.set()
        await asyncio.gather(writing, reading)
        assert coordinator.turns == turns + 1, "one turn, or this shows nothing"


async def test_a_coordinator_that_closes_takes_its_timers_with_it() -> None:
    """KAFKA-19857: they would keep it, and all of its groups, in memory until they fire."""
    coordinator = Coordinator(FaultyLog(), settings(session_timeout_ms=3_600_000))
    await coordinator.start()
    await ask(coordinator, beat("a"))
    await coordinator.close()
    gone = weakref.ref(coordinator)
    del coordinator
    await tick()
    gc.collect()
    assert gone() is None


async def test_a_delay_that_was_over_while_the_coordinator_stood_still_does_not_begin_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S15: what came in meanwhile is read first, and that takes a moment and not the whole delay again."""
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


async def test_a_group_that_is_only_asked_about_takes_no_memory() -> None:
    """Anybody may ask about any name, and another one each time."""
    async with serving() as coordinator:
        for number in range(3):
            await send(coordinator, DescribeRequest(group_ids=(f"nobody-{number}",)))
            await ask(coordinator, beat("a", 7, group_id=f"nobody-{number}"))
        assert not coordinator._groups


# --------------------------------------------------------------------------------------------------
# Timers


async def test_a_timer_that_was_cancelled_is_no_trouble_when_it_would_have_been_due() -> None:
    """KAFKA-8896: a revocation was acknowledged in time; then its time comes."""
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    async with serving() as coordinator:
        await change(coordinator, add("c"))
        await change(coordinator, add("d"))
        epoch = (await ask(coordinator, beat("a", rebalance_timeout_ms=1_000))).member_epoch
        await ask(coordinator, beat("b"))
        told = await ask(coordinator, beat("a", epoch, frozenset({C, D})))
        assert told.assignment is not None
        await ask(coordinator, beat("a", told.member_epoch, units_of(told.assignment.units)))
        await asyncio.sleep(3)
        assert {member.member_id for member in (await look(coordinator)).members} == {"a", "b"}
    assert not faults


async def test_whoever_is_asked_to_compute_after_another_is_waited_for_as_long_as_it_says_itself() -> None:
    """One timer, set to a later time first and then to an earlier one (L5)."""
    async with serving() as coordinator:
        await ask(coordinator, beat("a", client_assignors=OFFERED, rebalance_timeout_ms=60_000))
        await ask(coordinator, beat("b", client_assignors=OFFERED, rebalance_timeout_ms=2_000))
        prepared = await send(coordinator, PrepareRequest(group_id=GROUP, member_id="a", member_epoch=0))
        assert isinstance(prepared, PrepareResponse)
        failed = InstallRequest(
            group_id=GROUP, member_id="a", member_epoch=0, group_epoch=prepared.group_epoch, error=1, message="no"
        )
        assert isinstance(await send(coordinator, failed), InstallResponse)
        computation = coordinator._groups[GROUP].computation
        assert computation is not None
        assert (computation.member_id, computation.failures) == ("b", 1)
        await asyncio.sleep(3)
        computation = coordinator._groups[GROUP].computation
        assert computation is not None
        assert (computation.member_id, computation.failures) == ("a", 2)
