"""The addresses a server listens on, and the response to a connection above a limit."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any

import pytest

from connectgroup.errors import ConfigError, CoordinatorNotAvailable, TransportError, from_code
from connectgroup.protocol.messages.cluster import ApiVersionsRequest, FindCoordinatorRequest, FindCoordinatorResponse
from connectgroup.protocol.messages.heartbeat import HeartbeatResponse
from connectgroup.testing.contracts.transport import ScriptedHandler, beat, message_of
from connectgroup.transport.tcp_client import TcpClient
from connectgroup.transport.tcp_server import TcpServer
from connectgroup.wire.apis import API_VERSIONS, FIND_COORDINATOR

from .test_tcp_server import Peer, server

pytestmark = pytest.mark.timeout(60)

LIMIT_REACHED = [
    ({"max_connections": 2}, "the coordinator is at its limit of 2 connections (max_connections)"),
    (
        {"max_connections_per_address": 2},
        "the coordinator is at its limit of 2 connections from one address (max_connections_per_address)",
    ),
]


@pytest.mark.parametrize(("limits", "message"), LIMIT_REACHED)
async def test_first_request_above_a_connection_limit_gets_an_error_with_the_limit(
    limits: dict[str, float], message: str
) -> None:
    handler = ScriptedHandler()
    async with server(handler, **limits) as tcp:
        peers = [await Peer.to(tcp) for _ in range(2)]
        for peer in peers:
            assert await peer.is_alive()
        client = TcpClient("127.0.0.1", tcp.port)
        response = await client.call(beat("a"), timeout_s=30)
        assert isinstance(response, HeartbeatResponse)
        assert (response.error_code, response.error_message) == (CoordinatorNotAvailable.code, message)
        assert from_code(response.error_code, None).retriable
        assert "a" not in handler.began, "the request is not executed"
        await client.close()
        # Also a client that does not begin with ApiVersions, and sends more than one request.
        bare = await Peer.to(tcp)
        bare.send(FindCoordinatorRequest(coordinator_keys=("g",)), correlation_id=1, version=4)
        bare.send(beat("b"), correlation_id=2)
        correlation_id, found = await bare.receive(FIND_COORDINATOR, 4)
        assert isinstance(found, FindCoordinatorResponse)
        assert (correlation_id, found.coordinators[0].error_message) == (1, message)
        assert await bare.is_closed_by_server()
        bare.close()
        for peer in peers:
            assert await peer.is_alive()
            peer.close()


async def test_connections_above_the_limit_are_limited_themselves() -> None:
    async with server(ScriptedHandler(), max_connections=1, max_refused=2, refused_deadline_s=30) as tcp:
        admitted = await Peer.to(tcp)
        assert await admitted.is_alive()
        refused = [await Peer.to(tcp) for _ in range(2)]
        for peer in refused:
            peer.send(ApiVersionsRequest(), correlation_id=1)
            assert (await peer.receive(API_VERSIONS))[0] == 1
        unread = await Peer.to(tcp)
        assert await unread.is_closed_by_server(), "above max_refused: closed without a response"
        assert await admitted.is_alive()
        for peer in (admitted, *refused, unread):
            peer.close()


async def test_silent_connection_above_the_limit_makes_room_for_the_next() -> None:
    async with server(ScriptedHandler(), max_connections=1, max_refused=1, refused_deadline_s=0.1) as tcp:
        admitted, silent = await Peer.to(tcp), await Peer.to(tcp)
        assert await admitted.is_alive()
        assert await silent.is_closed_by_server()
        client = TcpClient("127.0.0.1", tcp.port)
        while True:
            with suppress(TransportError):  # this process was slower than the deadline
                assert "limit of 1 connections" in str(await message_of(client, "a"))
                break
        await client.close()
        for peer in (admitted, silent):
            peer.close()


async def test_server_closes_with_connections_above_the_limit_open() -> None:
    async with server(ScriptedHandler(), max_connections=1, refused_deadline_s=30) as tcp:
        admitted, refused = await Peer.to(tcp), await Peer.to(tcp)
        assert await admitted.is_alive()
        refused.send(ApiVersionsRequest(), correlation_id=1)
        await refused.receive(API_VERSIONS)
        await tcp.close(grace_s=0.05)
        assert await refused.is_closed_by_server()
        for peer in (admitted, refused):
            peer.close()


class Lookups:
    """``socket.getaddrinfo`` with scripted results for one name; the last one is repeated."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, *results: list[str]) -> None:
        self.results, real = list(results), socket.getaddrinfo

        def look_up(host: Any, port: Any, *more: Any, **named: Any) -> Any:
            if host != name:
                return real(host, port, *more, **named)
            result = self.results.pop(0) if len(self.results) > 1 else self.results[0]
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port or 0)) for address in result]

        monkeypatch.setattr(socket, "getaddrinfo", look_up)


@pytest.mark.parametrize("addresses", [["203.0.113.7"], ["127.0.0.1", "203.0.113.7"], ["0.0.0.0"]])
async def test_name_of_an_address_that_other_machines_can_reach_is_refused(
    monkeypatch: pytest.MonkeyPatch, addresses: list[str]
) -> None:
    Lookups(monkeypatch, "127.evil.example", addresses)
    tcp = TcpServer(ScriptedHandler(), "127.evil.example", loopback_only=True)
    with pytest.raises(ConfigError) as caught:
        await tcp.start()
    assert str(caught.value) == (
        f"host: got '127.evil.example ({addresses[-1]})'; allowed: "
        "an address of this machine's own (127.0.0.1, ::1, localhost)"
    )


async def test_server_listens_on_the_addresses_that_were_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name resolves to another address by the time the port is opened (DNS rebinding)."""
    Lookups(monkeypatch, "rebinding.example", ["127.0.0.1"], ["0.0.0.0"])
    tcp = TcpServer(ScriptedHandler(), "rebinding.example", loopback_only=True)
    await tcp.start()
    try:
        client = TcpClient("127.0.0.1", tcp.port)
        assert await message_of(client, "a") == "a"
        await client.close()
        with pytest.raises(TransportError, match="cannot connect"):
            await message_of(TcpClient("127.0.0.2", tcp.port), "b")
    finally:
        await tcp.close(grace_s=0.05)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost"])
async def test_loopback_hosts_are_served(host: str) -> None:
    tcp = TcpServer(ScriptedHandler(), host, loopback_only=True)
    await tcp.start()
    client = TcpClient(host, tcp.port)
    try:
        assert await message_of(client, "a") == "a"
    finally:
        await client.close()
        await tcp.close(grace_s=0.05)
