"""Parked heartbeats are answered without delay, and woken ones are decided in the order of their arrival."""

from __future__ import annotations

import asyncio

import pytest

from connectgroup.errors import ComputeAssignment
from connectgroup.protocol.messages.assignment import (
    InstalledMember,
    InstallRequest,
    InstallResponse,
    PrepareRequest,
    PrepareResponse,
)
from connectgroup.protocol.messages.common import AssignorInfo
from connectgroup.protocol.messages.heartbeat import HeartbeatResponse
from connectgroup.protocol.units import NO_UNITS

from .builders import GROUP, add, ask, beat, look, send, serving, tick


@pytest.mark.parametrize("sequences", [(-1, -1, -1), (1, 2, 3)], ids=["without sequence", "with sequence"])
async def test_heartbeat_in_the_turn_of_a_change_is_not_fenced(
    sequences: tuple[int, int, int],
) -> None:
    """The change wakes its parked heartbeat, whose epoch is outdated by its later one. Seen in the
    rebalance benchmark: a healthy worker lost a hundred tasks, some of which then ran twice for 20 ms."""
    async with serving() as coordinator:
        joined = await ask(coordinator, beat("a", sequence=sequences[0]))
        parked = send(coordinator, beat("a", joined.member_epoch, sequence=sequences[1], max_wait_ms=3_000))
        await tick()
        assert not parked.done()
        changing = send(coordinator, add())
        later = send(
            coordinator,
            beat("a", joined.member_epoch, NO_UNITS, sequence=sequences[2], rebalance_timeout_ms=60_000),
        )
        turns = coordinator.shard.turns
        answers = await asyncio.gather(changing, later, parked)
        assert coordinator.shard.turns == turns + 1, "the test requires a single turn"
        for response in answers[1:]:
            assert isinstance(response, HeartbeatResponse)
            assert response.error_code == 0, response.error_message
        assert [member.member_id for member in (await look(coordinator)).members] == ["a"]


async def test_member_parked_at_epoch_0_is_answered_when_a_target_exists() -> None:
    """At epoch 0 every heartbeat is full. It parks nevertheless, or the member would get its units only with its next
    heartbeat, three seconds later."""
    offered = (AssignorInfo(name="balanced", minimum_version=0, maximum_version=0),)
    async with serving() as coordinator:
        asked = await ask(coordinator, beat("a", client_assignors=offered))
        assert asked.error_code == ComputeAssignment.code
        await send(coordinator, PrepareRequest(group_id=GROUP, member_id="a", member_epoch=0))  # else b replaces a
        joined = await ask(coordinator, beat("b", client_assignors=offered))
        assert (joined.error_code, joined.member_epoch) == (0, 0)
        waiting = send(coordinator, beat("b", client_assignors=offered, max_wait_ms=3_000))
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
