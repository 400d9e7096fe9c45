"""The order in which parked heartbeats learn a new target assignment."""

from __future__ import annotations

import asyncio
from typing import cast

from connectgroup.protocol.messages.heartbeat import HeartbeatResponse

from .builders import add, ask, beat, change, send, serving

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
