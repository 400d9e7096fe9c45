"""A timer that expires during a slow append must not fire if the request that ends it is already in the queue.

The log is shared by all groups, so a slow append for one group delays every other group. Each test closes the log's
gate shortly before a deadline, sends the message that meets the deadline, lets the deadline pass, and opens the gate:
the message and the expired timer are then commands of the same turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from connectgroup.coordinator.runtime import Coordinator
from connectgroup.errors import ComputeAssignment
from connectgroup.protocol.messages.assignment import (
    InstalledMember,
    InstallRequest,
    InstallResponse,
    PrepareRequest,
    PrepareResponse,
)
from connectgroup.protocol.messages.common import AssignorInfo, units_of
from connectgroup.protocol.messages.heartbeat import HeartbeatResponse
from connectgroup.protocol.units import Unit, Units

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
    send,
    served,
    serving,
    task_list,
    tick,
)

OFFERED = (AssignorInfo(name="balanced", minimum_version=0, maximum_version=0),)
TIMEOUT_MS = 10_000
"""Rebalance timeout of every member, and the session timeout of the group."""


@asynccontextmanager
async def slow_append(coordinator: Coordinator, log: FaultyLog, fault: Fault | None = None) -> AsyncIterator[None]:
    """Inside, an append of another group is in flight; at the end it completes, and the turn of the body starts.

    Args:
        fault: the fault of the append of that turn.
    """
    log.gate = gate = asyncio.Event()
    other = send(coordinator, add(group_id="other"))
    await asyncio.sleep(0.01)
    yield
    log.faults.extend(["none", fault] if fault else [])
    log.gate = None
    gate.set()
    await asyncio.wait_for(other, 5)


async def members(coordinator: Coordinator) -> dict[str, Units]:
    """Every member with its pending revocation."""
    return {member.member_id: units_of(member.pending_revocation) for member in (await look(coordinator)).members}


async def causes(coordinator: Coordinator) -> list[str]:
    """The causes of all rebalances so far."""
    return [cause for rebalance in (await look(coordinator)).rebalances for cause in rebalance.causes]


async def heartbeat(coordinator: Coordinator, member_id: str, epoch: int, owned: Units | None = None) -> Units:
    """A heartbeat; the assignment in its response."""
    response = await ask(coordinator, beat(member_id, epoch, owned))
    assert response.error_code == 0, response.error_message
    return units_of(response.assignment.units) if response.assignment else frozenset()


async def revoking(coordinator: Coordinator) -> tuple[int, Units, Units]:
    """Member a owns 9 units and must revoke 3 for the member that joins last; two members join, one after the other.

    Returns:
        a's member epoch, the units that a keeps, and those that a must revoke first. Its rebalance timer is armed.
    """
    epoch = (await ask(coordinator, beat("a", rebalance_timeout_ms=TIMEOUT_MS))).member_epoch
    await change(coordinator, add())
    first = await ask(coordinator, beat("a", epoch))
    assert first.assignment is not None
    await change(coordinator, task_list("a", first.assignment.grants[0].owner_epoch, 8))
    second = await ask(coordinator, beat("a", first.member_epoch))
    assert second.assignment is not None
    owned = units_of(second.assignment.units)
    assert len(owned) == 9
    await ask(coordinator, beat("b", rebalance_timeout_ms=TIMEOUT_MS))
    kept = await heartbeat(coordinator, "a", second.member_epoch, owned)
    return second.member_epoch, kept, owned - kept


async def test_acknowledgement_in_time_is_not_followed_by_a_rebalance_timeout() -> None:
    """TO-03, S14: the acknowledgement starts the next revocation (CA-08), which has a whole rebalance timeout."""
    log = FaultyLog()
    async with serving(log) as coordinator:
        epoch, kept, pending = await revoking(coordinator)
        await asyncio.sleep(5)
        await ask(coordinator, beat("c", rebalance_timeout_ms=TIMEOUT_MS))
        await ask(coordinator, beat("b", (await look(coordinator)).members[1].member_epoch))
        await heartbeat(coordinator, "a", epoch)
        assert (await members(coordinator))["a"] == pending
        await asyncio.sleep(4.5)
        async with slow_append(coordinator, log):
            acknowledgement = asyncio.create_task(heartbeat(coordinator, "a", epoch, kept))
            await asyncio.sleep(1)
        assert await acknowledgement < kept
        now_pending = (await members(coordinator))["a"]
        assert now_pending, "the test requires a second revocation"
        assert now_pending.isdisjoint(pending)
        assert not [cause for cause in await causes(coordinator) if "did not stop" in cause]
        await memory_is_log(coordinator, log)


async def test_second_revocation_still_has_a_deadline() -> None:
    """TO-02: the rebalance timer that the acknowledgement re-arms expires after a whole rebalance timeout."""
    log = FaultyLog()
    async with serving(log) as coordinator:
        epoch, kept, _ = await revoking(coordinator)
        await ask(coordinator, beat("c", rebalance_timeout_ms=TIMEOUT_MS))
        await asyncio.sleep(9)
        async with slow_append(coordinator, log):
            acknowledgement = asyncio.create_task(heartbeat(coordinator, "a", epoch, kept))
            await asyncio.sleep(2)
        await acknowledgement
        for _ in range(3):
            await asyncio.sleep(3)
            await heartbeat(coordinator, "a", epoch)
        await asyncio.sleep(2)
        assert [cause for cause in await causes(coordinator) if cause.startswith("a did not stop")]


async def test_join_before_the_session_timer_fires_keeps_the_member() -> None:
    """S14, TO-01: a rejoin keeps the member, although the timer of its former session expires in the same turn."""
    log = FaultyLog()
    async with serving(log) as coordinator:
        await change(coordinator, add())
        joined = await ask(coordinator, beat("a"))
        assert joined.assignment is not None
        await asyncio.sleep(9.5)
        async with slow_append(coordinator, log):
            again = send(coordinator, beat("a"))
            await asyncio.sleep(1)
        response = await again
        assert isinstance(response, HeartbeatResponse)
        assert (response.error_code, response.assignment is not None) == (0, True)
        assert list(await members(coordinator)) == ["a"]
        assert not [cause for cause in await causes(coordinator) if "silent" in cause]
        await heartbeat(coordinator, "a", response.member_epoch, frozenset({Unit("c")}))
        await asyncio.sleep(11)
        assert await members(coordinator) == {}, "the session of the rejoin has a timer"


async def test_install_in_time_is_not_recorded_as_missed() -> None:
    """CN-06, L5: the timer of one computation does not affect the computation for the next group epoch."""
    log = FaultyLog()
    async with serving(log) as coordinator:
        assert (
            await ask(coordinator, beat("a", client_assignors=OFFERED, rebalance_timeout_ms=TIMEOUT_MS))
        ).error_code == ComputeAssignment.code
        prepared = await send(coordinator, PrepareRequest(group_id=GROUP, member_id="a", member_epoch=0))
        assert isinstance(prepared, PrepareResponse)
        await asyncio.sleep(5)
        await ask(coordinator, beat("a", client_assignors=OFFERED, rebalance_timeout_ms=TIMEOUT_MS))
        await send(coordinator, PrepareRequest(group_id=GROUP, member_id="a", member_epoch=0))
        await asyncio.sleep(4.5)
        async with slow_append(coordinator, log):
            install = send(
                coordinator,
                InstallRequest(
                    group_id=GROUP,
                    member_id="a",
                    member_epoch=0,
                    group_epoch=prepared.group_epoch,
                    members=(InstalledMember(member_id="a"),),
                ),
            )
            await asyncio.sleep(0.1)
            join = send(coordinator, beat("b", client_assignors=OFFERED, rebalance_timeout_ms=TIMEOUT_MS))
            await asyncio.sleep(1)
        installed = await install
        assert isinstance(installed, InstallResponse)
        assert installed.error_code == 0, installed.error_message
        await join
        described = await look(coordinator)
        assert (described.state, described.computing_member) == ("Assigning", "a")
        assert described.assignor_error == ""


@pytest.mark.parametrize("fault", ["before", "after", "refuse", "bug"])
async def test_failed_append_leaves_every_member_with_a_session_timer(fault: Fault) -> None:
    """D6: the turn that took the timer from the queue is rolled back; the group is reloaded with new timers."""
    log = FaultyLog()
    async with serving(log) as coordinator:
        await change(coordinator, add())
        await ask(coordinator, beat("a"))
        await asyncio.sleep(9.5)
        async with slow_append(coordinator, log, fault):
            again = send(coordinator, beat("a"))
            await asyncio.sleep(1)
        await asyncio.wait_for(again, 5)
        assert list(await members(coordinator)) == ["a"]
        await memory_is_log(coordinator, log)
        await asyncio.sleep(11)
        assert await members(coordinator) == {}


async def test_refused_append_of_another_group_leaves_the_session_timer_armed() -> None:
    """D6: the join writes no record and its connection closes, so it is not decided again after the rejected append."""
    log = FaultyLog()
    async with serving(log) as coordinator:
        assert (await ask(coordinator, beat("a", client_assignors=OFFERED))).error_code == ComputeAssignment.code
        await asyncio.sleep(9.5)
        log.gate = first = asyncio.Event()
        other = send(coordinator, add(group_id="other"))
        await asyncio.sleep(0.01)
        again = send(coordinator, beat("a", client_assignors=OFFERED))
        third = send(coordinator, add(group_id="third"))
        await asyncio.sleep(1)
        log.gate = second = asyncio.Event()
        first.set()
        await asyncio.wait_for(other, 5)
        await tick()
        log.faults.append("refuse")
        again.cancel()
        await tick()
        log.gate = None
        second.set()
        await asyncio.wait_for(third, 5)
        await asyncio.sleep(11)
        assert await members(coordinator) == {}


C, D = Unit("c"), Unit("d")


async def test_cancelled_rebalance_timer_does_nothing_at_its_deadline() -> None:
    """KAFKA-8896: a revocation was acknowledged in time."""
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    async with serving() as coordinator:
        await change(coordinator, add("c"))
        await change(coordinator, add("d"))
        epoch = (await ask(coordinator, beat("a", rebalance_timeout_ms=1_000))).member_epoch
        await ask(coordinator, beat("b"))
        revocation = await ask(coordinator, beat("a", epoch, frozenset({C, D})))
        assert revocation.assignment is not None
        await ask(coordinator, beat("a", revocation.member_epoch, units_of(revocation.assignment.units)))
        await asyncio.sleep(3)
        assert {member.member_id for member in (await look(coordinator)).members} == {"a", "b"}
    assert not faults


async def test_each_computing_member_has_its_own_rebalance_timeout() -> None:
    """L5: the compute timer is armed for a later time first and then for an earlier one."""
    async with serving() as coordinator:
        await ask(coordinator, beat("a", client_assignors=OFFERED, rebalance_timeout_ms=60_000))
        await ask(coordinator, beat("b", client_assignors=OFFERED, rebalance_timeout_ms=2_000))
        prepared = await send(coordinator, PrepareRequest(group_id=GROUP, member_id="a", member_epoch=0))
        assert isinstance(prepared, PrepareResponse)
        failed = InstallRequest(
            group_id=GROUP, member_id="a", member_epoch=0, group_epoch=prepared.group_epoch, error=1, message="no"
        )
        assert isinstance(await send(coordinator, failed), InstallResponse)
        computation = served(coordinator, GROUP).computation
        assert computation is not None
        assert (computation.member_id, computation.failures) == ("b", 1)
        await asyncio.sleep(3)
        computation = served(coordinator, GROUP).computation
        assert computation is not None
        assert (computation.member_id, computation.failures) == ("a", 2)
