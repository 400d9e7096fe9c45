"""Server-side assignors run off the event loop, one thread for each computation; no group waits for them."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from connectgroup.assignors.balanced import BalancedAssignor
from connectgroup.coordinator.compute import as_server_assignor
from connectgroup.coordinator.runtime import Coordinator
from connectgroup.errors import CoordinatorNotAvailable
from connectgroup.group.connect.settings import GroupSettings, ServerAssignment
from connectgroup.log.memory import MemoryLog, MemoryStorage
from connectgroup.protocol.messages.assignment import PrepareResponse
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from connectgroup.testing.virtual_time import Gate
from tests.no_threads import NoThreads
from tests.worker.builders import settings

from .builders import GROUP, FaultyLog, add, beat, look, send, serving, tick

pytestmark = [pytest.mark.asyncio, pytest.mark.threads]

balanced = as_server_assignor(BalancedAssignor())


@pytest.fixture
def gates() -> Iterator[list[Gate]]:
    """The gates of a test, which are opened at its end."""
    made: list[Gate] = []
    yield made
    for gate in made:
        gate.open()


class Blocking:
    """Balanced, except that calls for a group epoch block at a gate while there is one."""

    def __init__(self) -> None:
        self.gates: dict[int, Gate] = {}
        self.epochs: list[int] = []

    def __call__(self, prepared: PrepareResponse) -> ServerAssignment:
        self.epochs.append(prepared.group_epoch)
        if gate := self.gates.get(prepared.group_epoch):
            gate.wait()
        return balanced(prepared)


def using(assignor: Callable[[PrepareResponse], ServerAssignment]) -> GroupSettings:
    return replace(settings(), server_assignor="here", server_assignors={"here": assignor})


async def respond(coordinator: Coordinator, request: HeartbeatRequest) -> HeartbeatResponse:
    response = await send(coordinator, request)
    assert isinstance(response, HeartbeatResponse)
    return response


async def reach(coordinator: Coordinator, member_id: str, epoch: int, group_id: str = GROUP) -> HeartbeatResponse:
    """A member's heartbeats, as a worker sends them, up to the response with this member epoch."""
    response = await respond(coordinator, beat(member_id, 0, group_id=group_id))
    while response.member_epoch < epoch and not response.error_code:
        at = response.member_epoch
        response = await respond(coordinator, beat(member_id, at, group_id=group_id, max_wait_ms=3_000))
    return response


async def until(happened: Callable[[], bool]) -> None:
    """Wait for a thread, without virtual time passing."""
    for _ in range(100_000):
        if happened():
            return
        await asyncio.sleep(0)
    raise AssertionError("the condition was not met")


async def test_blocking_assignor_delays_neither_other_groups_nor_its_own_heartbeats(gates: list[Gate]) -> None:
    assignor, gate = Blocking(), Gate()
    gates.append(gate)
    async with serving(group=using(assignor)) as coordinator:
        assignor.gates[1] = gate
        first = await respond(coordinator, beat("a", group_id="other"))
        await until(lambda: gate.entered == 1)
        del assignor.gates[1]
        began_s = asyncio.get_running_loop().time()
        await send(coordinator, add(group_id=GROUP))
        assigned = await reach(coordinator, "b", 2)
        assert assigned.assignment is not None
        assert assigned.assignment.units
        assert asyncio.get_running_loop().time() == began_s, "no request was delayed"
        assert (first.error_code, first.member_epoch) == (0, 0)
        parked = send(coordinator, beat("a", group_id="other", max_wait_ms=3_000))
        assert (await look(coordinator, "other")).state == "Assigning"
        gate.open()
        response = await parked
        assert isinstance(response, HeartbeatResponse)
        assert response.member_epoch == 1
        assert asyncio.get_running_loop().time() == began_s


async def test_result_for_an_earlier_epoch_is_installed_if_it_is_valid(gates: list[Gate]) -> None:
    """The rule of Install: a group that changes faster than its assignor computes still progresses."""
    assignor, gate, next_gate = Blocking(), Gate(), Gate()
    gates += [gate, next_gate]
    async with serving(group=using(assignor)) as coordinator:
        assignor.gates = {1: gate, 2: next_gate}
        await respond(coordinator, beat("a"))
        await until(lambda: gate.entered == 1)
        await respond(coordinator, beat("b"))
        assert (await look(coordinator)).assignment_epoch == 0
        parked = send(coordinator, beat("a", max_wait_ms=3_000))
        gate.open()
        response = await parked
        assert isinstance(response, HeartbeatResponse)
        assert response.member_epoch == 1
        assert (await look(coordinator)).assignment_epoch == 1
        next_gate.open()
        assert (await reach(coordinator, "b", 2)).member_epoch == 2
        assert assignor.epochs == [1, 2]


async def test_hanging_assignor_is_abandoned_and_logged_once_and_does_not_block_the_next_epoch(
    gates: list[Gate], caplog: pytest.LogCaptureFixture
) -> None:
    """F20."""
    assignor, gate = Blocking(), Gate()
    gates.append(gate)
    async with serving(group=using(assignor)) as coordinator:
        assignor.gates[1] = gate
        await respond(coordinator, beat("a"))
        await asyncio.sleep(5.1)
        assert "did not return within 5 s" in (await look(coordinator)).assignor_error
        for _ in range(4):
            await respond(coordinator, beat("a"))
            await asyncio.sleep(5)
        assert assignor.epochs == [1], "the same epoch is not computed again while the call has not returned"
        assert len([record for record in caplog.records if "its thread is abandoned" in record.getMessage()]) == 1
        await respond(coordinator, beat("b"))
        await until(lambda: assignor.epochs == [1, 2])
        assert (await reach(coordinator, "b", 2)).member_epoch == 2
        assert (await look(coordinator)).assignor_error == ""


async def test_epoch_is_computed_again_when_an_abandoned_call_has_returned(gates: list[Gate]) -> None:
    assignor, gate = Blocking(), Gate()
    gates.append(gate)
    async with serving(group=using(assignor)) as coordinator:
        assignor.gates[1] = gate
        await respond(coordinator, beat("a"))
        await asyncio.sleep(5.1)
        assert "did not return within 5 s" in (await look(coordinator)).assignor_error
        del assignor.gates[1]
        gate.open()
        assert (await reach(coordinator, "a", 1)).member_epoch == 1
        assert assignor.epochs == [1, 1]


async def test_computation_is_requested_again_after_a_failover(gates: list[Gate]) -> None:
    assignor, gate, storage = Blocking(), Gate(), MemoryStorage()
    gates.append(gate)
    async with serving(MemoryLog(storage), using(assignor)) as first:
        assignor.gates[1] = gate
        await respond(first, beat("a"))
        await until(lambda: gate.entered == 1)
        assignor.gates.clear()
        async with serving(MemoryLog(storage), using(assignor)) as second:
            loaded_s = asyncio.get_running_loop().time()
            assert (await reach(second, "a", 1)).member_epoch == 1
            assert assignor.epochs == [1, 1]
            assert asyncio.get_running_loop().time() == loaded_s, "the load requests it, not the compute timer"


async def test_computation_is_requested_again_after_a_failed_append() -> None:
    assignor, log = Blocking(), FaultyLog()
    async with serving(log, using(assignor)) as coordinator:
        log.faults.append("before")
        assert (await respond(coordinator, beat("a"))).error_code == CoordinatorNotAvailable.code
        await asyncio.sleep(1)
        log.faults.extend(["none", "after"])
        await respond(coordinator, beat("a"))
        await asyncio.sleep(1)
        assert (await reach(coordinator, "a", 1)).member_epoch == 1


async def test_assignor_without_a_thread_is_called_for_the_next_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """F36: the call has not started, so it blocks no later one."""
    assignor = Blocking()
    async with serving(group=using(assignor)) as coordinator:
        none = NoThreads(monkeypatch, "server-side assignor ")
        await respond(coordinator, beat("a"))
        await tick()
        assert "can't start new thread" in (await look(coordinator)).assignor_error
        none.over()
        await respond(coordinator, beat("b"))
        assert (await reach(coordinator, "b", 2)).member_epoch == 2


async def test_assignor_without_a_thread_is_called_again_for_its_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    assignor = Blocking()
    async with serving(group=using(assignor)) as coordinator:
        none = NoThreads(monkeypatch, "server-side assignor ")
        await respond(coordinator, beat("a"))
        await tick()
        assert assignor.epochs == []
        none.over()
        assert (await reach(coordinator, "a", 1)).member_epoch == 1
        assert assignor.epochs == [1]


async def test_exception_of_an_assignor_is_logged_and_described(caplog: pytest.LogCaptureFixture) -> None:
    def fails(prepared: PrepareResponse) -> ServerAssignment:
        raise SystemExit(7)

    with caplog.at_level(logging.WARNING):
        async with serving(group=using(fails)) as coordinator:
            await respond(coordinator, beat("a"))
            await until(lambda: not any(thread.name == "server-side assignor here" for thread in threading.enumerate()))
            await tick()
            assert "SystemExit: 7" in (await look(coordinator)).assignor_error
    assert [record for record in caplog.records if "group workers: no assignment for epoch 1" in record.getMessage()]
