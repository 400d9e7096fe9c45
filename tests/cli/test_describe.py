"""``connectgroup groups describe``: what it shows of a worker that joined over TCP, and of a group of another type."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from connectgroup.cli.command import main
from connectgroup.config.base import checked
from connectgroup.config.coordinator import CoordinatorConfig
from connectgroup.coordinator.runtime import Coordinator
from connectgroup.coordinator.server import CoordinatorServer
from connectgroup.group.connect.settings import GroupSettings
from connectgroup.log.memory import MemoryLog, MemoryStorage
from connectgroup.protocol.messages.classic import WORKER_PROTOCOL, JoinGroupRequest, OfferedProtocol
from connectgroup.protocol.messages.common import entries
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from connectgroup.protocol.messages.offsets import OffsetCommitRequest, PartitionCommit, TopicCommit
from connectgroup.protocol.records.connect import GroupRecord, Record
from connectgroup.transport.tcp_client import TcpClient
from connectgroup.transport.tcp_server import TcpServer
from connectgroup.wire.embedded import encode_request
from tests.coordinator.toys import CounterType


async def test_client_id_joined_epoch_and_properties_of_a_worker_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """The client id comes from the header of the request that joined (KIP-848, member metadata record)."""
    server = CoordinatorServer(checked(CoordinatorConfig, {"port": 0}))
    await server.start()
    try:
        host, _, port = server.address.rpartition(":")
        for member_id, client_id, rack in (("a", "connect-a", ""), ("b", "connect-b", "r1")):
            client = TcpClient(host, int(port), client_id)
            join = HeartbeatRequest(
                group_id="g",
                member_id=member_id,
                member_epoch=0,
                rebalance_timeout_ms=10_000,
                owned=(),
                labels=entries({"gpu": "true", "zone": "z"}) if rack else (),
                rack=rack,
                capacity=5 if rack else 0,
            )
            response = await client.call(join, timeout_s=10)
            assert isinstance(response, HeartbeatResponse)
            assert response.error_code == 0
            await client.close()
        command = ["groups", "describe", "g", "--coordinator", server.address]
        assert await asyncio.to_thread(main, command) == 0
    finally:
        await server.close()
    lines = capsys.readouterr().out.splitlines()
    after = {line.split()[1]: lines[number + 1] for number, line in enumerate(lines) if line.startswith("worker ")}
    assert after == {
        "a": "  client id connect-a, joined at epoch 1",
        "b": "  client id connect-b, joined at epoch 2, capacity 5, labels gpu=true,zone=z, rack r1",
    }


async def test_committed_offsets_and_members_of_a_group_are_shown_as_tables(capsys: pytest.CaptureFixture[str]) -> None:
    server = CoordinatorServer(checked(CoordinatorConfig, {"port": 0}))
    await server.start()

    async def describe(*options: str) -> list[list[str]]:
        command = ["groups", "describe", *options, "--coordinator", server.address]
        assert await asyncio.to_thread(main, command) == (2 if options == ("workers", "--offsets") else 0)
        shown = capsys.readouterr()
        return [line.split() for line in (shown.out or shown.err).splitlines()]

    try:
        host, _, port = server.address.rpartition(":")
        client = TcpClient(host, int(port), "c")
        partitions = tuple(
            PartitionCommit(partition_index=each, committed_offset=10 * each, committed_metadata="") for each in (1, 0)
        )
        topics = (TopicCommit(name="orders", partitions=partitions),)
        commit = OffsetCommitRequest(group_id="g", member_id="", generation_id_or_member_epoch=-1, topics=topics)
        await client.call(commit, timeout_s=10)
        for classic in (False, True):
            name = "old" if classic else "new"
            beat = HeartbeatRequest(
                group_id="workers", member_id=name, member_epoch=0, rebalance_timeout_ms=10_000, owned=()
            )
            offered = OfferedProtocol(name=WORKER_PROTOCOL, metadata=encode_request(beat))
            join = JoinGroupRequest(
                group_id="workers",
                session_timeout_ms=10_000,
                member_id=name,
                protocol_type="connect",
                protocols=(offered,),
            )
            await client.call(join if classic else beat, timeout_s=10)
        await client.close()
        assert (await describe("g", "--offsets"))[1:] == [["orders", "0", "0"], ["orders", "1", "10"]]
        assert [line[:2] for line in await describe("workers", "--members")] == [
            ["MEMBER", "PROTOCOL"],
            ["new", "connect"],
            ["old", "classic"],
        ]
        assert (await describe("workers", "--offsets"))[0][-3:] == ["connectors", "offsets", "NAME"]
        members = json.loads(" ".join(map(" ".join, await describe("workers", "--members", "--json"))))
        assert [(name, len(value)) for name, value in members.items()] == [("group_id", 7), ("workers", 2)]
        committed = json.loads(" ".join(map(" ".join, await describe("g", "--offsets", "--json"))))
        assert [each["offset"] for each in committed.pop("offsets")] == [0, 10]
        assert committed == {"group_id": "g"}
        assert (await describe("g", "--type"))[1] == ["g", "classic", "Empty"]
        assert json.loads(" ".join(map(" ".join, await describe("workers", "--type", "--json"))))["type"] == "connect"
        listing, every = ["groups", "list", "--coordinator", server.address], ["g", "workers"]
        for types, names in (("classic,consumer", ["g"]), ("Connect, classic", every), ("", every)):
            command = [*listing, "--type", *([types] if types else [])]
            assert await asyncio.to_thread(main, command) == 0
            assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]] == names
        assert await asyncio.to_thread(main, [*listing, "--type", "classic,streams"]) == 2
        assert "got 'streams'; allowed: connect, classic, consumer" in capsys.readouterr().err
    finally:
        await server.close()


@asynccontextmanager
async def serving(*records: Record) -> AsyncIterator[str]:
    """The address of a coordinator that serves the type ``counter`` beside ``connect``, on a log with these records."""
    storage = MemoryStorage()
    earlier = MemoryLog(storage)
    await earlier.open()
    await earlier.append(records)
    await earlier.close()
    coordinator = Coordinator(MemoryLog(storage), GroupSettings(), group_types=[CounterType()])
    server = TcpServer(coordinator)
    await coordinator.start()
    try:
        await server.start()
        yield f"127.0.0.1:{server.port}"
    finally:
        await server.close()
        await coordinator.close()


async def test_group_of_another_type_is_shown_with_its_type(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(GroupRecord(group_id="c", epoch=3, group_type="counter")) as address:
        assert await asyncio.to_thread(main, ["groups", "describe", "c", "--coordinator", address]) == 0
    assert capsys.readouterr().out == "group c of type counter: Active, epoch 3\n"


async def test_group_that_cannot_be_served_does_not_hide_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    """Its error follows the table, and the exit code is 1."""
    unknown = GroupRecord(group_id="a", epoch=3, group_type="share")
    async with serving(unknown, GroupRecord(group_id="b", epoch=3)) as address:
        assert await asyncio.to_thread(main, ["groups", "list", "--coordinator", address]) == 1
    shown = capsys.readouterr()
    assert [line.split() for line in shown.out.splitlines()[1:]] == [
        ["a", "NOT", "SERVED"],
        ["b", "connect", "Empty", "3", "0"],
    ]
    assert shown.err.startswith("connectgroup: group a is of type 'share', which this coordinator does not serve")
