"""What the server promises in passing: each of these could be broken without any other test noticing."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from connectgroup.testing.contracts.transport import Stage, beat
from connectgroup.wire.apis import HEARTBEAT

from .test_tcp_server import Peer, server


@pytest.mark.asyncio
@pytest.mark.parametrize("limits", [{"max_connections": 2}, {"max_connections_per_address": 2}])
async def test_request_above_a_connection_limit_is_refused_at_once_and_not_carried_out(
    limits: dict[str, float],
) -> None:
    """Wire 3. At once, and not when the deadline of its first frame is over."""
    stage = Stage()
    async with server(stage, **limits) as tcp:
        peers = [await Peer.to(tcp) for _ in range(2)]
        for peer in peers:
            assert await peer.is_alive()
        refused = await Peer.to(tcp)
        refused.send(beat("refused"), correlation_id=1)
        async with asyncio.timeout(4):  # below the deadline of a connection above the limit
            assert (await refused.receive(HEARTBEAT))[0] == 1
            assert await refused.is_closed_by_server()
        assert "refused" not in stage.began
        for peer in (*peers, refused):
            with suppress(ConnectionError):
                peer.close()


@pytest.mark.asyncio
async def test_a_connection_that_is_silent_longer_than_an_idle_one_stays_open_while_its_request_is_parked() -> None:
    """Where one that has been silent for less has been closed, it would have been closed as well."""
    stage = Stage("a")
    async with server(stage, idle_deadline_s=0.5) as tcp:
        parked = await Peer.to(tcp)
        parked.send(beat("a"), correlation_id=1)
        await stage.has_begun("a")
        idle = await Peer.to(tcp)
        assert await idle.is_closed_by_server()
        stage.release("a")
        assert (await parked.receive(HEARTBEAT))[0] == 1
        parked.close()
        idle.close()
