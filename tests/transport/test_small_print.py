"""What the server promises in passing: each of these could be broken without any other test noticing."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from connectgroup.testing.transport_contract import Stage, beat

from .test_tcp_server import Peer, server


@pytest.mark.asyncio
@pytest.mark.parametrize("limits", [{"max_connections": 2}, {"max_connections_from_loopback": 2}])
async def test_a_connection_over_a_cap_is_closed_at_once_and_nothing_of_it_is_read(limits: dict[str, float]) -> None:
    """Wire 3. At once, and not when the deadline of its first frame is over."""
    stage = Stage()
    async with server(stage, **limits) as tcp:
        peers = [await Peer.to(tcp) for _ in range(2)]
        for peer in peers:
            assert await peer.is_alive()
        refused = await Peer.to(tcp)
        refused.send(beat("refused"), correlation_id=1)
        async with asyncio.timeout(10):  # a third of the deadline
            assert await refused.is_closed_by_server()
        for peer in (*peers, refused):
            with suppress(ConnectionError):
                peer.close()
