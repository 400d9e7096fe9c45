"""Finding the coordinator: scripted brokers return the errors that real ones return by chance."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from connectgroup.consumer.client import GroupClient
from connectgroup.consumer.errors import BrokerError, Code
from connectgroup.consumer.security import CoordinatorAddress
from connectgroup.errors import TransportError
from connectgroup.protocol.messages.classic import GroupHeartbeatRequest, GroupHeartbeatResponse
from connectgroup.protocol.messages.cluster import (
    ApiVersion,
    ApiVersionsResponse,
    FindCoordinatorResponse,
    FoundCoordinator,
)
from connectgroup.wire.kafka_apis import BROKER_APIS
from connectgroup.wire.primitives import FrameReader, frame

HEARTBEAT = GroupHeartbeatRequest(group_id="g", generation_id=1, member_id="m")
API_OF_KEY = {api.key: api for api in BROKER_APIS.values()}
SILENCE = object()
HANGUP = object()
STRANGER = object()
"""A response with the correlation id of another request."""


PRODUCE = 0
"""Every broker serves it."""


class ScriptedBroker:
    """Responds to heartbeats from a list, and names the given coordinator for any group.

    Attributes:
        port: where it listens.
        coordinators: responses to FindCoordinator: port and error code; the last one is repeated.
        heartbeats: responses to Heartbeat: an error code, or another behaviour; the last one is repeated.
        beats: number of heartbeats received.
    """

    def __init__(self) -> None:
        self.port = 0
        self.coordinators: list[tuple[int, int]] = []
        self.heartbeats: list[object] = [0]
        self.beats = 0
        self.open: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open.add(writer)
        with contextlib.suppress(ConnectionError):
            await self._converse(reader, writer)
        writer.close()
        self.open.discard(writer)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameReader()
        while data := await reader.read(4096):
            for request in frames.feed(data):
                key, version, correlation_id = struct.unpack_from(">hhi", request)
                response = self._response(key)
                if response is HANGUP:
                    return
                if response is SILENCE:
                    continue
                if response is STRANGER:
                    response, correlation_id = GroupHeartbeatResponse(error_code=0), correlation_id + 1
                body = API_OF_KEY[key].responses[version].encode(response)
                tags = b"" if key == 18 else b"\0"
                writer.write(frame(struct.pack(">i", correlation_id) + tags + body))

    def _response(self, key: int) -> Any:
        match API_OF_KEY[key].name:
            case "ApiVersions":
                keys = {PRODUCE, *API_OF_KEY}
                served = [ApiVersion(api_key=each, min_version=0, max_version=99) for each in sorted(keys)]
                return ApiVersionsResponse(api_keys=tuple(served))
            case "FindCoordinator":
                port, code = self.coordinators.pop(0) if len(self.coordinators) > 1 else self.coordinators[0]
                found = FoundCoordinator(key="g", node_id=1, host="127.0.0.1", port=port, error_code=code)
                return FindCoordinatorResponse(coordinators=(found,))
            case _:
                self.beats += 1
                next_ = self.heartbeats.pop(0) if len(self.heartbeats) > 1 else self.heartbeats[0]
                return GroupHeartbeatResponse(error_code=next_) if isinstance(next_, int) else next_


@asynccontextmanager
async def brokers(count: int) -> AsyncIterator[list[ScriptedBroker]]:
    scripted = [ScriptedBroker() for _ in range(count)]
    servers = [await asyncio.start_server(each.serve, "127.0.0.1", 0) for each in scripted]
    for each, server in zip(scripted, servers, strict=True):
        each.port = server.sockets[0].getsockname()[1]
        each.coordinators = [(each.port, 0)]
    try:
        yield scripted
    finally:
        for server in servers:
            server.close()
        while any(each.open for each in scripted):
            for each in scripted:
                for writer in each.open:
                    writer.close()
            await asyncio.sleep(0)


@asynccontextmanager
async def client_of(broker: ScriptedBroker) -> AsyncIterator[GroupClient]:
    client = GroupClient(f"127.0.0.1:{broker.port}", "g", "c")
    try:
        yield client
    finally:
        await client.close()


@pytest.mark.parametrize("moved", [Code.NOT_COORDINATOR, Code.COORDINATOR_NOT_AVAILABLE])
async def test_moved_coordinator_is_found_again(moved: Code) -> None:
    async with brokers(2) as (old, new), client_of(old) as client:
        old.coordinators = [(old.port, 0), (new.port, 0)]
        old.heartbeats = [int(moved)]
        response = await client.send_to_coordinator(HEARTBEAT)
        assert (response.error_code, old.beats, new.beats) == (0, 1, 1)
        await client.send_to_coordinator(HEARTBEAT)
        assert (old.beats, new.beats) == (1, 2)


async def test_of_coordinators_that_share_a_log_the_one_that_serves_is_found_again() -> None:
    """Neither is behind the bootstrap address; the first one named stands by, and later the other does."""
    async with brokers(3) as (broker, one, other):
        one.coordinators = other.coordinators = [(other.port, 0)]
        named = CoordinatorAddress("127.0.0.1", one.port, others=(("127.0.0.1", other.port),))
        client = GroupClient(f"127.0.0.1:{broker.port}", "g", "c", coordinator=named)
        try:
            await client.send_to_coordinator(HEARTBEAT)
            assert (broker.beats, one.beats, other.beats) == (0, 0, 1)
            other.heartbeats = [int(Code.NOT_COORDINATOR)]
            one.coordinators = [(-1, int(Code.COORDINATOR_NOT_AVAILABLE)), (one.port, 0)]
            other.coordinators = [(-1, int(Code.COORDINATOR_NOT_AVAILABLE)), (one.port, 0)]
            await client.send_to_coordinator(HEARTBEAT)
            assert (broker.beats, one.beats, other.beats) == (0, 1, 2)
        finally:
            await client.close()


async def test_owner_that_has_ended_is_not_looked_for_where_only_one_coordinator_still_names_it() -> None:
    """A coordinator that is cut off from the log names the owner that it has seen last."""
    async with brokers(3) as (ended, cut_off, owner):
        cut_off.coordinators, owner.coordinators = [(ended.port, 0)], [(owner.port, 0)]
        ended.heartbeats = [0, HANGUP]
        named = CoordinatorAddress("127.0.0.1", cut_off.port, others=(("127.0.0.1", owner.port),))
        client = GroupClient(f"127.0.0.1:{ended.port}", "g", "c", coordinator=named)
        try:
            for beats in 0, 1, 2:
                await client.send_to_coordinator(HEARTBEAT, timeout_s=30)
                assert owner.beats == beats
        finally:
            await client.close()


async def test_single_coordinator_that_was_named_names_the_one_of_the_group() -> None:
    """The groups of a log may be spread over several coordinators."""
    async with brokers(3) as (broker, named, owner):
        named.coordinators = [(owner.port, 0)]
        named.heartbeats = [int(Code.NOT_COORDINATOR)]
        coordinator = CoordinatorAddress("127.0.0.1", named.port)
        client = GroupClient(f"127.0.0.1:{broker.port}", "g", "c", coordinator=coordinator)
        try:
            for beats in 1, 2:
                await client.send_to_coordinator(HEARTBEAT)
                assert (broker.beats, named.beats, owner.beats) == (0, 1, beats)
        finally:
            await client.close()


async def test_loading_coordinator_is_retried() -> None:
    async with brokers(2) as (one, other), client_of(one) as client:
        one.coordinators = [(one.port, 0), (other.port, 0)]
        one.heartbeats = [int(Code.COORDINATOR_LOAD_IN_PROGRESS), int(Code.REBALANCE_IN_PROGRESS)]
        response = await client.send_to_coordinator(HEARTBEAT)
        assert (response.error_code, one.beats, other.beats) == (Code.REBALANCE_IN_PROGRESS, 2, 0)


@pytest.mark.parametrize("loss", [HANGUP, STRANGER], ids=["closed", "stranger"])
async def test_coordinator_is_found_again_after_a_lost_connection(loss: object) -> None:
    async with brokers(2) as (old, new), client_of(old) as client:
        old.coordinators = [(old.port, 0), (new.port, 0)]
        old.heartbeats = [loss]
        assert (await client.send_to_coordinator(HEARTBEAT)).error_code == 0
        assert (old.beats, new.beats) == (1, 1)


async def test_unresponsive_coordinator_is_replaced() -> None:
    async with brokers(2) as (old, new), client_of(old) as client:
        old.coordinators = [(old.port, 0), (new.port, 0)]
        old.heartbeats = [SILENCE]
        assert (await client.send_to_coordinator(HEARTBEAT, timeout_s=60, each_s=1)).error_code == 0
        assert old.beats == 1
        assert new.beats >= 1, "more if a response takes longer than a second"


async def test_timeout_reports_the_last_error() -> None:
    async with brokers(1) as (one,), client_of(one) as client:
        one.heartbeats = [int(Code.NOT_COORDINATOR)]
        message = rf"^GroupHeartbeatRequest: given up after 0.5 s: 127.0.0.1:{one.port}: NOT_COORDINATOR$"
        with pytest.raises(TransportError, match=message):
            await client.send_to_coordinator(HEARTBEAT, timeout_s=0.5)
        assert one.beats > 1


async def test_unavailable_coordinator_is_retried() -> None:
    async with brokers(1) as (one,), client_of(one) as client:
        one.coordinators = [(-1, int(Code.COORDINATOR_NOT_AVAILABLE)), (one.port, 0)]
        assert (await client.send_to_coordinator(HEARTBEAT)).error_code == 0


async def test_unauthorized_group_is_rejected_at_once() -> None:
    async with brokers(1) as (one,), client_of(one) as client:
        one.coordinators = [(-1, int(Code.GROUP_AUTHORIZATION_FAILED))]
        with pytest.raises(
            BrokerError, match=r"^coordinator of group 'g': GROUP_AUTHORIZATION_FAILED \(30\): no right"
        ):
            await client.send_to_coordinator(HEARTBEAT)


async def test_first_bootstrap_broker_that_responds_is_used() -> None:
    async with brokers(1) as (one,):
        client = GroupClient(f"127.0.0.1:9, 127.0.0.1:{one.port}", "g", "c")
        assert (await client.send_to_coordinator(HEARTBEAT)).error_code == 0
        await client.close()
