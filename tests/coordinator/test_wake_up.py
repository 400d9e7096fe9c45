"""A change wakes the parked heartbeats of the members that it concerns, at once."""

from __future__ import annotations

import asyncio
from typing import Any

from connectgroup.coordinator.runtime import Coordinator
from connectgroup.errors import ComputeAssignment, UnknownMemberId
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
from connectgroup.protocol.messages.heartbeat import HeartbeatResponse
from connectgroup.protocol.records.connect import TargetState
from connectgroup.protocol.units import NO_UNITS, Unit, Units

from .builders import GROUP, add, ask, beat, change, send, serving, tick

OFFERED = (AssignorInfo(name="spread", minimum_version=0, maximum_version=0),)

C, D = Unit("c"), Unit("d")


async def woken(waiting: asyncio.Task[Response]) -> HeartbeatResponse:
    """The response of a parked heartbeat, which must be sent without any time passing."""
    before = asyncio.get_running_loop().time()
    response = await asyncio.wait_for(waiting, 60)
    assert asyncio.get_running_loop().time() == before, "its max wait has elapsed"
    assert isinstance(response, HeartbeatResponse)
    return response


async def test_parked_heartbeat_is_answered_when_its_unit_is_free() -> None:
    """The epoch of the member does not change; the response has an assignment nevertheless."""
    async with serving() as coordinator:
        await change(coordinator, add("c"))
        await change(coordinator, add("d"))
        first = await ask(coordinator, beat("a"))
        joined = await ask(coordinator, beat("b"))
        revocation = await ask(coordinator, beat("a", first.member_epoch, frozenset({C, D})))
        assert revocation.assignment is not None
        [moving] = {C, D} - units_of(revocation.assignment.units)
        waiting = send(coordinator, beat("b", joined.member_epoch, NO_UNITS, max_wait_ms=3_000))
        await tick()
        assert not waiting.done(), "its unit has not been released yet"
        await ask(coordinator, beat("a", revocation.member_epoch, units_of(revocation.assignment.units)))
        response = await woken(waiting)
        assert response.member_epoch == joined.member_epoch
        assert response.assignment is not None
        assert units_of(response.assignment.units) == {moving}


async def install(coordinator: Coordinator, member_id: str, epoch: int, **shares: Units) -> None:
    """The chosen member prepares and installs this assignment."""
    prepared = await send(coordinator, PrepareRequest(group_id=GROUP, member_id=member_id, member_epoch=epoch))
    assert isinstance(prepared, PrepareResponse)
    response = await send(
        coordinator,
        InstallRequest(
            group_id=GROUP,
            member_id=member_id,
            member_epoch=epoch,
            group_epoch=prepared.group_epoch,
            members=tuple(InstalledMember(member_id=who, units=grouped(units)) for who, units in shares.items()),
        ),
    )
    assert isinstance(response, InstallResponse)
    assert response.error_code == 0, response.error_message


async def test_parked_heartbeat_of_the_computing_member_is_answered_when_a_member_joins() -> None:
    async with serving() as coordinator:
        assert (await ask(coordinator, beat("a", client_assignors=OFFERED))).error_code == ComputeAssignment.code
        await install(coordinator, "a", 0, a=NO_UNITS)
        epoch = (await ask(coordinator, beat("a", client_assignors=OFFERED))).member_epoch
        waiting = send(coordinator, beat("a", epoch, max_wait_ms=3_000))
        await tick()
        assert not waiting.done()
        await ask(coordinator, beat("b", client_assignors=OFFERED))
        assert (await woken(waiting)).error_code == ComputeAssignment.code


async def test_units_of_a_stopped_connector_are_revoked_before_the_next_target_assignment() -> None:
    """The assignor may take long, and runs on another member: the units are revoked at once."""
    async with serving() as coordinator:
        await change(coordinator, add("c"))
        await ask(coordinator, beat("a", client_assignors=OFFERED))
        await ask(coordinator, beat("b", client_assignors=OFFERED))
        await install(coordinator, "a", 0, a=NO_UNITS, b=frozenset({C}))
        await ask(coordinator, beat("a", client_assignors=OFFERED))
        granted = await ask(coordinator, beat("b", client_assignors=OFFERED))
        assert granted.assignment is not None
        assert units_of(granted.assignment.units) == {C}
        waiting = send(coordinator, beat("b", granted.member_epoch, frozenset({C}), max_wait_ms=3_000))
        await tick()
        assert not waiting.done()
        stop = ConnectorChange(connector="c", target_state=TargetState.STOPPED)
        await change(coordinator, UpdateConnectorsRequest(group_id=GROUP, changes=(stop,)))
        response = await woken(waiting)
        assert response.assignment is not None
        assert not response.assignment.units


async def test_parked_heartbeat_of_a_member_removed_by_the_rebalance_timeout_is_answered_at_once() -> None:
    """The member is alive, and still runs units that other members may be granted now."""
    async with serving() as coordinator:
        await change(coordinator, add("c"))
        joins: dict[str, Any] = {"client_assignors": OFFERED, "rebalance_timeout_ms": 1_000}
        await ask(coordinator, beat("a", **joins))
        await install(coordinator, "a", 0, a=frozenset({C}))
        epoch = (await ask(coordinator, beat("a", **joins))).member_epoch
        await ask(coordinator, beat("b", client_assignors=OFFERED))
        assert (await ask(coordinator, beat("a", epoch))).error_code == ComputeAssignment.code
        await install(coordinator, "a", epoch, a=NO_UNITS, b=frozenset({C}))
        revocation = await ask(coordinator, beat("a", epoch, frozenset({C})))
        assert revocation.assignment is not None
        assert not revocation.assignment.units
        started = asyncio.get_running_loop().time()
        response = await ask(coordinator, beat("a", revocation.member_epoch, max_wait_ms=3_000))
        assert response.error_code == UnknownMemberId.code
        assert asyncio.get_running_loop().time() - started == 1.0
