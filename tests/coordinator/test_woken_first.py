"""A parked heartbeat that a change wakes is decided before what came after it."""

from __future__ import annotations

import asyncio

import pytest

from connectgroup.messages import HeartbeatResponse
from connectgroup.names import NO_UNITS

from .builders import add, ask, beat, look, send, serving, tick


@pytest.mark.parametrize("sequences", [(-1, -1, -1), (1, 2, 3)], ids=["without sequence", "with sequence"])
async def test_a_member_that_speaks_again_in_the_very_turn_of_a_change_is_not_fenced(
    sequences: tuple[int, int, int],
) -> None:
    """The change wakes its parked heartbeat, of an epoch that its later one moves it away from: seen in the
    rebalance benchmark as a healthy worker that lost a hundred tasks, some of which then ran twice for 20 ms."""
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
        turns = coordinator.turns
        answers = await asyncio.gather(changing, later, parked)
        assert coordinator.turns == turns + 1, "one turn, or this shows nothing"
        for answer in answers[1:]:
            assert isinstance(answer, HeartbeatResponse)
            assert answer.error_code == 0, answer.error_message
        assert [member.member_id for member in (await look(coordinator)).members] == ["a"]
