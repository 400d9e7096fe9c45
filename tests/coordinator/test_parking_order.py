"""Parked heartbeats are answered without delay, and woken ones are decided in the order of their arrival."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from connectgroup.coordinator import intake
from connectgroup.coordinator.runtime import Coordinator
from connectgroup.errors import ComputeAssignment
from connectgroup.protocol.messages.assignment import (
    InstalledMember,
    InstallRequest,
    InstallResponse,
    PrepareRequest,
    PrepareResponse,
)
from connectgroup.protocol.messages.common import AssignorInfo, grouped
from connectgroup.protocol.messages.heartbeat import HeartbeatResponse
from connectgroup.protocol.units import NO_UNITS, Unit, Units

from .builders import GROUP, add, ask, beat, change, look, send, serving, tick

OFFERED = (AssignorInfo(name="balanced", minimum_version=0, maximum_version=0),)


async def install(coordinator: Coordinator, members: dict[str, int], **units: Units) -> InstallRequest:
    """Prepare, as the chosen member ``a``; return its Install with these units for the members (name: epoch)."""
    chosen: dict[str, Any] = {"group_id": GROUP, "member_id": "a", "member_epoch": members["a"]}
    prepared = await send(coordinator, PrepareRequest(**chosen))
    assert isinstance(prepared, PrepareResponse)
    assert prepared.error_code == 0, prepared.error_message
    shares = tuple(InstalledMember(member_id=name, units=grouped(units.get(name, NO_UNITS))) for name in members)
    return InstallRequest(**chosen, group_epoch=prepared.group_epoch, members=shares)


@pytest.mark.parametrize("turns", [1, 2])
@pytest.mark.parametrize("sequences", [(-1, -1, -1), (1, 2, 3)], ids=["without sequence", "with sequence"])
async def test_heartbeat_in_the_turn_of_a_new_target_is_not_fenced(
    sequences: tuple[int, int, int], turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target wakes a parked heartbeat, whose epoch is outdated by a later one of the same turn, or of the next one.
    Seen in the rebalance benchmark: a healthy worker lost a hundred tasks, some of which then ran twice for 20 ms."""
    async with serving() as coordinator:
        await ask(coordinator, beat("a", client_assignors=OFFERED))
        await send(coordinator, await install(coordinator, {"a": 0}))
        await ask(coordinator, beat("a", client_assignors=OFFERED))
        await ask(coordinator, beat("b", client_assignors=OFFERED, sequence=sequences[0]))
        await send(coordinator, await install(coordinator, {"a": 1, "b": 0}))
        assert (await ask(coordinator, beat("a", 1))).member_epoch == 2
        assert (await ask(coordinator, beat("b", client_assignors=OFFERED, max_wait_ms=3_000))).member_epoch == 2
        parked = send(coordinator, beat("b", 2, sequence=sequences[1], max_wait_ms=3_000))
        await tick()
        assert not parked.done()
        await send(coordinator, add())
        new_target = await install(coordinator, {"a": 2, "b": 2}, b=frozenset({Unit("c", -1)}))
        monkeypatch.setattr(intake, "MAX_INPUTS_PER_TURN", 3 - turns)  # heartbeats, and other requests
        others = send(coordinator, beat("a", 2))
        installing = send(coordinator, new_target)
        full = {"client_assignors": OFFERED, "rebalance_timeout_ms": 60_000}
        later = send(coordinator, beat("b", 2, NO_UNITS, sequence=sequences[2], **full))
        before = coordinator.shard.turns
        installed, *answers = await asyncio.gather(installing, later, parked, others)
        assert coordinator.shard.turns == before + turns, "the test requires so many turns"
        assert isinstance(installed, InstallResponse)
        assert installed.error_code == 0, installed.error_message
        for response in answers:
            assert isinstance(response, HeartbeatResponse)
            assert response.error_code == 0, response.error_message
        assert [member.member_id for member in (await look(coordinator)).members] == ["a", "b"]


async def test_member_parked_at_epoch_0_is_answered_when_a_target_exists() -> None:
    """At epoch 0 every heartbeat is full. It parks nevertheless, or the member would get its units only with its next
    heartbeat, three seconds later."""
    async with serving() as coordinator:
        asked = await ask(coordinator, beat("a", client_assignors=OFFERED))
        assert asked.error_code == ComputeAssignment.code
        await send(coordinator, PrepareRequest(group_id=GROUP, member_id="a", member_epoch=0))  # else b replaces a
        joined = await ask(coordinator, beat("b", client_assignors=OFFERED))
        assert (joined.error_code, joined.member_epoch) == (0, 0)
        waiting = send(coordinator, beat("b", client_assignors=OFFERED, max_wait_ms=3_000))
        await tick()
        assert not waiting.done()
        prepared = await send(coordinator, PrepareRequest(group_id=GROUP, member_id="a", member_epoch=0))
        assert isinstance(prepared, PrepareResponse)
        before = asyncio.get_running_loop().time()
        install = InstallRequest(
            group_id=GROUP,
            member_id="a",
            member_epoch=0,
            group_epoch=prepared.group_epoch,
            members=(InstalledMember(member_id="a"), InstalledMember(member_id="b")),
        )
        installed = await send(coordinator, install)
        assert isinstance(installed, InstallResponse)
        assert installed.error_code == 0, installed.error_message
        response = await waiting
        assert isinstance(response, HeartbeatResponse)
        assert response.member_epoch == prepared.group_epoch
        assert asyncio.get_running_loop().time() == before


# --------------------------------------------------------------------------------------------------
# The order in which parked heartbeats learn a new target assignment.


MEMBERS = [f"m{n:02}" for n in range(40)]


async def test_member_with_something_to_do_learns_a_new_target_before_the_others_of_a_large_group() -> None:
    async with serving() as coordinator:
        for name in MEMBERS:
            await ask(coordinator, beat(name))
        await change(coordinator, add("first"))
        epochs = {name: (await ask(coordinator, beat(name, 0))).member_epoch for name in MEMBERS}
        epochs = {name: (await ask(coordinator, beat(name, epoch))).member_epoch for name, epoch in epochs.items()}
        assert len(set(epochs.values())) == 1
        answered: list[str] = []
        parked = {name: send(coordinator, beat(name, epochs[name], max_wait_ms=3000)) for name in MEMBERS}
        for name, response in parked.items():
            response.set_name(name)
            response.add_done_callback(lambda task: answered.append(cast(asyncio.Task[object], task).get_name()))
        await asyncio.sleep(0.1)
        assert answered == []

        began = asyncio.get_running_loop().time()
        await change(coordinator, add("second"))
        responses = {name: cast(HeartbeatResponse, await response) for name, response in parked.items()}
        [owner] = [name for name, response in responses.items() if response.assignment and response.assignment.grants]
        assert answered[0] == owner != MEMBERS[0]
        assert len({response.member_epoch for response in responses.values()}) == 1
        assert asyncio.get_running_loop().time() - began < 0.1
