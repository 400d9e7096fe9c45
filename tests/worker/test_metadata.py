"""An assignor's metadata reaches the group when it changes; a failing ``metadata`` does no harm."""

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


class ScriptedMetadata(_balanced()):  # type: ignore[misc]
    """The balanced assignor with scripted metadata."""

    script: ClassVar[list[Metadata | Exception]] = [Metadata()]

    def metadata(self) -> Metadata:
        metadata = self.script[-1]
        if isinstance(metadata, Exception):
            raise metadata
        return metadata


async def test_changed_reason_requests_a_rebalance() -> None:
    """CN-10, "A worker updates its assignors' reason or metadata": the worker detects the change by itself."""
    ScriptedMetadata.script = [Metadata()]
    coordinator = Coordinator(MemoryLog(), GroupSettings(session_timeout_ms=600, heartbeat_interval_ms=50))
    await coordinator.start()
    worker = Worker(
        MemberSettings(group_id="g", member_id="w", max_wait_ms=100),
        Connections(heartbeats=LocalClient(coordinator), control=LocalClient(coordinator)),
        assignors=[ScriptedMetadata()],
    )
    running = asyncio.create_task(worker.run())
    client = LocalClient(coordinator)

    async def causes(epoch: int) -> tuple[str, ...]:
        async with asyncio.timeout(30):
            while True:
                response = await client.call(DescribeRequest(group_ids=("g",)), timeout_s=5)
                assert isinstance(response, DescribeResponse)
                done = [past for past in response.groups[0].rebalances if past.epoch == epoch and past.finished_ms >= 0]
                if done:
                    return done[0].causes
                await asyncio.sleep(0.01)

    assert await causes(1) == ("w joined",)
    ScriptedMetadata.script.append(RuntimeError("no metadata today"))
    await asyncio.sleep(0.2)
    ScriptedMetadata.script.append(Metadata(reason=7))
    assert await causes(2) == ("w: balanced requests a rebalance (reason 7)",)
    worker.stop()
    await asyncio.wait_for(running, 30)
    await coordinator.close()


class Counting(LocalClient):
    """A connection that counts heartbeats."""

    calls = 0

    async def call(self, request: Request, *, timeout_s: float) -> Response:
        self.calls += 1
        return await super().call(request, timeout_s=timeout_s)


class Slow(Node):
    """A process whose assignors take a moment."""

    def pace(self, name: str) -> tuple[float, float]:
        return 0.01, 0.01


def test_unchanged_metadata_causes_no_heartbeat() -> None:
    """Metadata is read once per interval; while it is unchanged no heartbeat is sent for it."""
    ScriptedMetadata.script = [Metadata()]
    loop = SimulatedLoop()

    async def heartbeats() -> int:
        coordinator = Coordinator(MemoryLog(), GroupSettings())
        await coordinator.start()
        heartbeats = Counting(coordinator)
        worker = Worker(
            MemberSettings(group_id="g", member_id="w", max_wait_ms=0),
            Connections(heartbeats=heartbeats, control=LocalClient(coordinator)),
            assignors=[ScriptedMetadata()],
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
        assert loop.run_until_complete(heartbeats()) == 100
    loop.close()
