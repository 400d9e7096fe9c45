"""Bugs that began with what a member said of itself: malformed metadata, and questions with nothing in them."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from connectgroup.assign.api import ConnectGroup
from connectgroup.assign.convert import group_from_prepare, members_for_install
from connectgroup.assign.members import ConnectMember, ConnectorSpec, Metadata
from connectgroup.assign.sandbox import run_assignor
from connectgroup.assignors.balanced import BalancedAssignor
from connectgroup.coordinator.own_assignors import server_assignor
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
from connectgroup.wire.framing import frame
from tests.coordinator.builders import beat, look
from tests.worker.builders import Spread, World, settings

# --------------------------------------------------------------------------------------------------
# KAFKA-20570: on the wire

WORD = b"the word of an assignor"
"""Stands in the bytes of a join, behind its length; that length is what is spoilt."""

LENGTHS = {
    "null": b"\x00",
    "negative": b"\xff\xff\xff\xff\x0f",
    "2 to the 31st": b"\x80\x80\x80\x80\x08",
    "beyond the end": b"\x7f",
    "five bytes and more": b"\x80\x80\x80\x80\x80\x01",
    "too short": b"\x02",
}


def join(length: bytes | None = None) -> bytes:
    """A join with metadata in its assignor; with ``length`` in the place of the metadata's own."""
    request = beat("bad", client_assignors=(AssignorInfo(name="a", metadata=WORD),), sequence=1)
    whole = encode_request(request, version=0, correlation_id=7, client_id=None)
    if length is None:
        return whole
    at = whole.index(WORD)
    assert whole[at - 1] == len(WORD) + 1
    return whole[: at - 1] + length + whole[at:]


def on_real_sockets(story: Callable[[Coordinator, int], Awaitable[None]]) -> None:
    """A coordinator behind a port, and a story with it."""

    async def play() -> None:
        coordinator = Coordinator(MemoryLog(), settings())
        await coordinator.start()
        server = TcpServer(coordinator)
        await server.start()
        try:
            async with asyncio.timeout(30):
                await story(coordinator, server.port)
        finally:
            await coordinator.close()
            await server.close(grace_s=0.05)

    asyncio.run(play())


class Bare:
    """A connection on which anything may be sent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def to(cls, port: int) -> Bare:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def answer(self, data: bytes) -> Response:
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
    """KAFKA-20570: a negative length in a member's metadata escaped as an error nobody expected and shook the whole
    coordinator; here it is one line to its sender, whose connection lives, and a change to nobody.
    """

    async def story(coordinator: Coordinator, port: int) -> None:
        client, bare = TcpClient("127.0.0.1", port), await Bare.to(port)
        joined = await client.call(beat("good"), timeout_s=5)
        assert isinstance(joined, HeartbeatResponse)
        while (await look(coordinator)).state != "Stable":
            joined = await client.call(beat("good", joined.member_epoch, max_wait_ms=200), timeout_s=10)
            assert isinstance(joined, HeartbeatResponse)
        parked = asyncio.create_task(client.call(beat("good", joined.member_epoch, max_wait_ms=200), timeout_s=10))
        before = await look(coordinator)
        for _ in range(3):
            refused = await bare.answer(join(LENGTHS[length]))
            assert isinstance(refused, HeartbeatResponse)
            assert refused.error_code == InvalidRequest.code
            assert "\n" not in str(refused.error_message)
            assert "assignors" in str(refused.error_message)
        assert await look(coordinator) == before
        quiet = await parked
        assert isinstance(quiet, HeartbeatResponse)
        assert (quiet.error_code, quiet.member_epoch) == (0, joined.member_epoch)
        sound = await bare.answer(join())
        assert isinstance(sound, HeartbeatResponse)
        assert sound.error_code == 0
        assert [member.member_id for member in (await look(coordinator)).members] == ["bad", "good"]
        await client.close()
        await bare.close()

    on_real_sockets(story)


# --------------------------------------------------------------------------------------------------
# KAFKA-20570: in the assignor


class Reads(Spread):
    """Reads every member's metadata as JSON, and says what it was told to."""

    def __init__(self, says: bytes = b"{}") -> None:
        super().__init__()
        self.says = says
        self.before = lambda group: [json.loads(member.metadata) for member in group.members] and None

    def metadata(self) -> Metadata:
        return Metadata(metadata=self.says)


@pytest.mark.parametrize("says", [b"\xff\xfe", b"", b"[" * 60_000, b"\x80\x04\x95pickle"], ids=repr)
async def test_metadata_that_no_assignor_can_read_fails_only_a_computation(tmp_path: Path, says: bytes) -> None:
    """KAFKA-20570: to the coordinator metadata is bytes; what an assignor makes of them it makes in a guarded call, and
    where all of them stumble over one member's, the coordinator's own assignor serves the group.
    """
    async with World(tmp_path) as world:
        await world.add("c", 3)
        world.start("a", assignors=[Reads()])
        await world.settled()
        world.start("b", assignors=[Reads(says)])
        await world.settled(within=10)
        group = await world.describe()
        assert group.rebalances[-1].computed_by == "coordinator"
        assert "assignor 'spread'" in group.assignor_error
        assert all(actor.worker.lost == 0 for actor in world.actors.values())


# --------------------------------------------------------------------------------------------------
# KAFKA-16930

UNASSIGNED: tuple[ConnectMember, ...] = ()
IDLE = (ConnectMember(member_id="a"), ConnectMember(member_id="b"))
ONE_WORKS = (ConnectMember(member_id="a"), ConnectMember(member_id="b", owned=frozenset({Unit("c"), Unit("c", 0)})))
FORGOTTEN = (ConnectMember(member_id="a", owned=frozenset({Unit("gone"), Unit("gone", 3)})),)
NOTHING: tuple[ConnectorSpec, ...] = ()
NO_TASKS = (ConnectorSpec(name="c"), ConnectorSpec(name="d"))
SOME = (ConnectorSpec(name="c", num_tasks=1), ConnectorSpec(name="d"))


@pytest.mark.parametrize("connectors", [NOTHING, NO_TASKS, SOME], ids=["no connector", "no task", "some"])
@pytest.mark.parametrize(
    "members", [UNASSIGNED, IDLE, ONE_WORKS, FORGOTTEN], ids=["nobody", "idle", "one", "forgotten"]
)
def test_members_and_connectors_without_units_are_valid_input(
    members: tuple[ConnectMember, ...], connectors: tuple[ConnectorSpec, ...]
) -> None:
    """KAFKA-16930: an assignor failed on a member that was subscribed to nothing; here members without units,
    connectors without tasks, and none of either are asked about and answered.
    """
    group = ConnectGroup(members=members, connectors=connectors)
    answer = run_assignor(BalancedAssignor(), group)
    given = [unit for member in members_for_install(answer) for unit in units_of(member.units)]
    assert sorted(given) == (sorted(group.units) if members else [])


def test_member_without_assignors_and_units_is_assigned() -> None:
    """KAFKA-16930: the same as the coordinator's own assignor is asked, members of both kinds mixed."""
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
