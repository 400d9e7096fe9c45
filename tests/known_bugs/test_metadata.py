"""Bugs caused by a member's metadata: malformed metadata, and assignor inputs without units."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from connectgroup.assign.api import ConnectAssignorInput
from connectgroup.assign.convert import group_from_prepare, members_for_install
from connectgroup.assign.members import ConnectMember, ConnectorSpec, Metadata
from connectgroup.assign.sandbox import run_assignor
from connectgroup.assignors.balanced import BalancedAssignor
from connectgroup.coordinator.compute import server_assignor
from connectgroup.coordinator.runtime import Coordinator
from connectgroup.errors import InvalidRequest
from connectgroup.log.memory import MemoryLog
from connectgroup.protocol.messages.api import Response
from connectgroup.protocol.messages.assignment import (
    AssignorMetadata,
    PreparedConnector,
    PreparedMember,
    PrepareResponse,
)
from connectgroup.protocol.messages.common import AssignorInfo, units_of
from connectgroup.protocol.messages.heartbeat import HeartbeatResponse
from connectgroup.protocol.units import Unit
from connectgroup.transport.tcp_client import TcpClient
from connectgroup.transport.tcp_server import TcpServer
from connectgroup.wire.apis import HEARTBEAT, decode_response, encode_request
from connectgroup.wire.primitives import frame
from tests.coordinator.builders import beat, look
from tests.worker.builders import Spread, World, settings

# --------------------------------------------------------------------------------------------------
# KAFKA-20570: on the wire

METADATA = b"metadata of an assignor"
"""Part of the bytes of a join, after its length; the tests corrupt that length."""

LENGTHS = {
    "null": b"\x00",
    "negative": b"\xff\xff\xff\xff\x0f",
    "2 to the 31st": b"\x80\x80\x80\x80\x08",
    "beyond the end": b"\x7f",
    "more than five bytes": b"\x80\x80\x80\x80\x80\x01",
    "too short": b"\x02",
}


def join(length: bytes | None = None) -> bytes:
    """A join with metadata in its assignor; ``length`` replaces the length of the metadata."""
    request = beat("bad", client_assignors=(AssignorInfo(name="a", metadata=METADATA),), sequence=1)
    whole = encode_request(request, version=0, correlation_id=7, client_id=None)
    if length is None:
        return whole
    at = whole.index(METADATA)
    assert whole[at - 1] == len(METADATA) + 1
    return whole[: at - 1] + length + whole[at:]


def on_real_sockets(scenario: Callable[[Coordinator, int], Awaitable[None]]) -> None:
    """Run a scenario against a coordinator behind a TCP port."""

    async def play() -> None:
        coordinator = Coordinator(MemoryLog(), settings())
        await coordinator.start()
        server = TcpServer(coordinator)
        await server.start()
        try:
            async with asyncio.timeout(30):
                await scenario(coordinator, server.port)
        finally:
            await coordinator.close()
            await server.close(grace_s=0.05)

    asyncio.run(play())


class RawConnection:
    """A connection on which any bytes may be sent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def to(cls, port: int) -> RawConnection:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def exchange(self, data: bytes) -> Response:
        self.writer.write(frame(data))
        (length,) = struct.unpack(">i", await self.reader.readexactly(4))
        _, response = decode_response(await self.reader.readexactly(length), api_key=HEARTBEAT, version=0)
        return response

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


@pytest.mark.parametrize("length", LENGTHS)
def test_metadata_of_invalid_length_is_rejected_for_its_member_only(length: str) -> None:
    """KAFKA-20570: a negative length in a member's metadata escaped as an unexpected error that affected the whole
    coordinator; here the sender gets one error message, its connection stays open, and the group does not change.
    """

    async def scenario(coordinator: Coordinator, port: int) -> None:
        client, bare = TcpClient("127.0.0.1", port), await RawConnection.to(port)
        joined = await client.call(beat("good"), timeout_s=5)
        assert isinstance(joined, HeartbeatResponse)
        while (await look(coordinator)).state != "Stable":
            joined = await client.call(beat("good", joined.member_epoch, max_wait_ms=200), timeout_s=10)
            assert isinstance(joined, HeartbeatResponse)
        parked = asyncio.create_task(client.call(beat("good", joined.member_epoch, max_wait_ms=200), timeout_s=10))
        before = await look(coordinator)
        for _ in range(3):
            refused = await bare.exchange(join(LENGTHS[length]))
            assert isinstance(refused, HeartbeatResponse)
            assert refused.error_code == InvalidRequest.code
            assert "\n" not in str(refused.error_message)
            assert "assignors" in str(refused.error_message)
        assert await look(coordinator) == before
        quiet = await parked
        assert isinstance(quiet, HeartbeatResponse)
        assert (quiet.error_code, quiet.member_epoch) == (0, joined.member_epoch)
        sound = await bare.exchange(join())
        assert isinstance(sound, HeartbeatResponse)
        assert sound.error_code == 0
        assert [member.member_id for member in (await look(coordinator)).members] == ["bad", "good"]
        await client.close()
        await bare.close()

    on_real_sockets(scenario)


# --------------------------------------------------------------------------------------------------
# KAFKA-20570: in the assignor


class ReadsMetadata(Spread):
    """Reads every member's metadata as JSON, and sends the metadata of the test."""

    def __init__(self, sent: bytes = b"{}") -> None:
        super().__init__()
        self.sent = sent
        self.before = lambda group: [json.loads(member.metadata) for member in group.members] and None

    def metadata(self) -> Metadata:
        return Metadata(metadata=self.sent)


@pytest.mark.parametrize("sent", [b"\xff\xfe", b"", b"[" * 60_000, b"\x80\x04\x95pickle"], ids=repr)
async def test_metadata_that_no_assignor_can_read_fails_only_a_computation(tmp_path: Path, sent: bytes) -> None:
    """KAFKA-20570: to the coordinator metadata is opaque bytes; an assignor reads them in a guarded call. If the
    assignor of every member fails on one member's metadata, the server-side assignor serves the group.
    """
    async with World(tmp_path) as world:
        await world.add("c", 3)
        world.start("a", assignors=[ReadsMetadata()])
        await world.settled()
        world.start("b", assignors=[ReadsMetadata(sent)])
        await world.settled(within=10)
        group = await world.describe()
        assert group.rebalances[-1].computed_by == "coordinator"
        assert "assignor 'spread'" in group.assignor_error
        assert all(actor.worker.lost == 0 for actor in world.actors.values())


# --------------------------------------------------------------------------------------------------
# KAFKA-16930

NO_MEMBERS: tuple[ConnectMember, ...] = ()
IDLE = (ConnectMember(member_id="a"), ConnectMember(member_id="b"))
ONE_OWNER = (ConnectMember(member_id="a"), ConnectMember(member_id="b", owned=frozenset({Unit("c"), Unit("c", 0)})))
REMOVED = (ConnectMember(member_id="a", owned=frozenset({Unit("gone"), Unit("gone", 3)})),)
NOTHING: tuple[ConnectorSpec, ...] = ()
NO_TASKS = (ConnectorSpec(name="c"), ConnectorSpec(name="d"))
SOME = (ConnectorSpec(name="c", num_tasks=1), ConnectorSpec(name="d"))


@pytest.mark.parametrize("connectors", [NOTHING, NO_TASKS, SOME], ids=["no connector", "no task", "some"])
@pytest.mark.parametrize(
    "members", [NO_MEMBERS, IDLE, ONE_OWNER, REMOVED], ids=["no member", "idle", "one owner", "removed units"]
)
def test_members_and_connectors_without_units_are_valid_input(
    members: tuple[ConnectMember, ...], connectors: tuple[ConnectorSpec, ...]
) -> None:
    """KAFKA-16930: an assignor failed on a member without subscriptions; here members without units, connectors
    without tasks, and inputs without either are valid.
    """
    group = ConnectAssignorInput(members=members, connectors=connectors)
    exchange = run_assignor(BalancedAssignor(), group)
    given = [unit for member in members_for_install(exchange) for unit in units_of(member.units)]
    assert sorted(given) == (sorted(group.units) if members else [])


def test_member_without_assignors_and_units_is_assigned() -> None:
    """KAFKA-16930: the same in the input of the server-side assignor, with both kinds of members."""
    question = PrepareResponse(
        group_epoch=3,
        assignor_name="balanced",
        members=(
            PreparedMember(member_id="a", member_epoch=0),
            PreparedMember(member_id="b", member_epoch=2, assignor=AssignorMetadata(version=0, metadata=b"x")),
        ),
        connectors=(PreparedConnector(connector="c", num_tasks=0),),
    )
    assert group_from_prepare(question).members[0].metadata == b""
    installed = server_assignor("balanced")(question)
    assert sorted(unit for member in installed.members for unit in units_of(member.units)) == [Unit("c")]
    assert server_assignor("balanced")(PrepareResponse(members=question.members)) is not None
