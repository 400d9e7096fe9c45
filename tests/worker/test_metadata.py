"""What an assignor says of its member reaches the group when it changes, and a bad one does no harm."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from connectgroup import Connections, Coordinator, GroupSettings, LocalClient, MemberSettings, MemoryLog, Worker
from connectgroup.assign.members import Metadata
from connectgroup.protocol.messages.api import Request, Response
from connectgroup.protocol.messages.describe import DescribeRequest, DescribeResponse

from ..simulation.loop import Node, SimulatedLoop, simulated


def _balanced() -> type:
    from connectgroup.assignors.balanced import BalancedAssignor

    return BalancedAssignor


class Moody(_balanced()):  # type: ignore[misc]
    """Balanced, with something to say."""

    said: ClassVar[list[Metadata | Exception]] = [Metadata()]

    def metadata(self) -> Metadata:
        word = self.said[-1]
        if isinstance(word, Exception):
            raise word
        return word


async def test_changed_reason_requests_a_rebalance() -> None:
    """CN-10, "A worker updates its assignors' reason or metadata": the worker notices by itself."""
    Moody.said = [Metadata()]
    coordinator = Coordinator(MemoryLog(), GroupSettings(session_timeout_ms=600, heartbeat_interval_ms=50))
    await coordinator.start()
    worker = Worker(
        MemberSettings(group_id="g", member_id="w", max_wait_ms=100),
        Connections(heartbeats=LocalClient(coordinator), control=LocalClient(coordinator)),
        assignors=[Moody()],
    )
    running = asyncio.create_task(worker.run())
    client = LocalClient(coordinator)

    async def causes(epoch: int) -> tuple[str, ...]:
        async with asyncio.timeout(30):
            while True:
                answer = await client.call(DescribeRequest(group_ids=("g",)), timeout_s=5)
                assert isinstance(answer, DescribeResponse)
                done = [past for past in answer.groups[0].rebalances if past.epoch == epoch and past.finished_ms >= 0]
                if done:
                    return done[0].causes
                await asyncio.sleep(0.01)

    assert await causes(1) == ("w joined",)
    Moody.said.append(RuntimeError("no metadata today"))
    await asyncio.sleep(0.2)
    Moody.said.append(Metadata(reason=7))
    assert await causes(2) == ("w: balanced requests a rebalance (reason 7)",)
    worker.stop()
    await asyncio.wait_for(running, 30)
    await coordinator.close()


class Counting(LocalClient):
    """A connection that counts."""

    calls = 0

    async def call(self, request: Request, *, timeout_s: float) -> Response:
        self.calls += 1
        return await super().call(request, timeout_s=timeout_s)


class Slow(Node):
    """A process whose assignors take a moment to answer."""

    def pace(self, name: str) -> tuple[float, float]:
        return 0.01, 0.01


def test_unchanged_metadata_causes_no_heartbeat() -> None:
    """Metadata is asked for once an interval; where it is as before, nothing is to be said, and nobody is woken."""
    Moody.said = [Metadata()]
    loop = SimulatedLoop()

    async def beats() -> int:
        coordinator = Coordinator(MemoryLog(), GroupSettings())
        await coordinator.start()
        heartbeats = Counting(coordinator)
        worker = Worker(
            MemberSettings(group_id="g", member_id="w", max_wait_ms=0),
            Connections(heartbeats=heartbeats, control=LocalClient(coordinator)),
            assignors=[Moody()],
        )
        running = asyncio.create_task(worker.run(), context=Slow("w", "a seed").context)
        await asyncio.sleep(30)
        at_first = heartbeats.calls
        await asyncio.sleep(300)
        calls = heartbeats.calls - at_first
        worker.stop()
        await running
        await coordinator.close()
        return calls

    with simulated():
        assert loop.run_until_complete(beats()) == 100
    loop.close()
