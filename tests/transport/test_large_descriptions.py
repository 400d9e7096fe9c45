"""A large group is described, and large responses are encoded, in a thread: other requests are served meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from connectgroup import Admin, Coordinator, GroupSettings, MemoryLog
from connectgroup.group.connect.group_type import ConnectGroupType
from connectgroup.log.memory import MemoryStorage
from connectgroup.protocol.messages.api import Request, Response
from connectgroup.protocol.messages.common import ConnectorTasks, entries
from connectgroup.protocol.messages.describe import DescribedGroup, DescribeRequest, DescribeResponse
from connectgroup.protocol.messages.offsets import (
    GroupToFetch,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    PartitionCommit,
    PartitionToDelete,
    TopicCommit,
    TopicToDelete,
    TopicToFetch,
)
from connectgroup.protocol.records.connect import (
    ConnectorRecord,
    CurrentRecord,
    GroupRecord,
    MemberRecord,
    OwnedTasks,
    Record,
    StatusRecord,
    TargetMemberRecord,
    TargetRecord,
    TaskEntry,
)
from connectgroup.transport import tcp_connection
from connectgroup.transport.tcp_client import TcpClient
from connectgroup.transport.tcp_server import TcpServer
from connectgroup.wire import apis
from tests.coordinator.toys import Arrive, BarrierType, Toy

pytestmark = pytest.mark.asyncio

CONNECTORS, TASKS = 6, 1_000


class SlowlyDescribed(BarrierType):
    """Its description has the number of members as the group epoch, and waits until it may go on."""

    def __init__(self) -> None:
        self.began, self.may_end = threading.Event(), threading.Event()

    def takes_long_to_describe(self, group: Toy, request: DescribeRequest) -> bool:
        return True

    def describe(self, group: Toy, request: DescribeRequest, now_ms: int) -> DescribedGroup:
        self.began.set()
        assert self.may_end.wait(30)
        return DescribedGroup(group_id=group.group_id, group_epoch=len(group.members))


async def test_group_changes_while_it_is_described_as_it_was() -> None:
    slow = SlowlyDescribed()
    coordinator = Coordinator(MemoryLog(), GroupSettings(), group_types=[slow])
    await coordinator.start()
    try:
        waiting = [arriving(coordinator, "x")]
        await asyncio.sleep(0)
        describing = asyncio.create_task(coordinator.handle(DescribeRequest(group_ids=("b",)), client_host="here"))
        assert await asyncio.to_thread(slow.began.wait, 30)
        waiting += [arriving(coordinator, "y"), arriving(coordinator, "z")]
        await asyncio.gather(*waiting)
        assert not describing.done()
        slow.may_end.set()
        response = await describing
        assert isinstance(response, DescribeResponse)
        assert response.groups[0].group_epoch == 1
    finally:
        slow.may_end.set()
        await coordinator.close()


def arriving(coordinator: Coordinator, member: str) -> asyncio.Task[object]:
    request = Arrive(group_id="b", sender=member, size=3)
    return asyncio.create_task(coordinator.handle(request, client_host="here"))  # type: ignore[arg-type]


def records() -> Iterator[Record]:
    """A stable group with one member that runs all units."""
    yield GroupRecord(group_id="g", epoch=5, created_ms=1)
    yield MemberRecord(group_id="g", member_id="w")
    names, tasks = [f"c{number}" for number in range(CONNECTORS)], tuple(range(-1, TASKS))
    for name in names:
        entries = tuple(TaskEntry(since_epoch=2) for _ in range(TASKS))
        yield ConnectorRecord(group_id="g", connector=name, version=2, since_epoch=2, tasks=entries)
        for task in tasks:
            yield StatusRecord(group_id="g", connector=name, task=task, member_id="w", owner_epoch=5)
    units = tuple(ConnectorTasks(connector=name, tasks=tasks) for name in names)
    yield TargetMemberRecord(group_id="g", member_id="w", units=units)
    owned = tuple(OwnedTasks(connector=name, tasks=tasks, owner_epochs=(5,) * len(tasks)) for name in names)
    yield CurrentRecord(group_id="g", member_id="w", epoch=5, previous_epoch=4, assigned=owned)
    yield TargetRecord(group_id="g", epoch=5, assignor="balanced")


def with_long_settings() -> Iterator[Record]:
    """A group with one connector, with long settings, full of what is to be masked."""
    yield GroupRecord(group_id="g", epoch=5, created_ms=1)
    config = entries({f"a{number}": "password=x " * 9_000 for number in range(6)})
    yield ConnectorRecord(group_id="g", connector="c", version=2, since_epoch=2, config=config)


def many() -> Iterator[Record]:
    """500 groups of 10 members, which run nothing."""
    for number in range(500):
        yield GroupRecord(group_id=f"g{number}", epoch=1, created_ms=1)
        for member in range(10):
            yield MemberRecord(group_id=f"g{number}", member_id=f"w{member}")


@asynccontextmanager
async def serving(group: Callable[[], Iterator[Record]] = records) -> AsyncIterator[TcpServer]:
    """The server of a coordinator with that group."""
    storage = MemoryStorage()
    log = MemoryLog(storage, max_batch_bytes=1 << 26)
    await log.open()
    await log.append(list(group()))
    coordinator = Coordinator(MemoryLog(storage), GroupSettings())
    await coordinator.start()
    server = TcpServer(coordinator)
    await server.start()
    try:
        yield server
    finally:
        await server.close()
        await coordinator.close()


async def test_description_of_a_large_group_is_complete() -> None:
    async with serving() as server, Admin.connect(f"127.0.0.1:{server.port}") as admin:
        whole, again = await asyncio.gather(admin.describe("g"), admin.describe("g"))
        assert whole == again
        assert (whole.state, whole.group_type, len(whole.connectors)) == ("Stable", "connect", CONNECTORS)
        parts = [await admin.describe_connector("g", each.connector) for each in whole.connectors]
        assert list(whole.connectors) == parts
        assert {(unit.state, unit.member_id) for each in parts for unit in each.units} == {("RUNNING", "w")}
        assert sum(len(each.units) for each in parts) == CONNECTORS * (TASKS + 1)


@pytest.mark.parametrize(
    ("group", "off_the_loop"),
    [(records, ("describe", "encode")), (with_long_settings, ("describe",)), (many, ("encode",))],
)
async def test_large_group_is_described_and_encoded_off_the_event_loop(
    group: Callable[[], Iterator[Record]], off_the_loop: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would block all heartbeats for as long."""
    threads: dict[str, set[int]] = {"describe": set(), "encode": set()}
    describe, encode = ConnectGroupType.describe, apis.encode_response

    def described(*args: Any) -> DescribedGroup:
        threads["describe"].add(threading.get_ident())
        return describe(*args)

    def encoded(response: Response, **header: int) -> bytes:
        if isinstance(response, DescribeResponse):
            threads["encode"].add(threading.get_ident())
        return encode(response, **header)

    monkeypatch.setattr(ConnectGroupType, "describe", described)
    monkeypatch.setattr(tcp_connection, "encode_response", encoded)
    async with serving(group) as server, Admin.connect(f"127.0.0.1:{server.port}") as admin:
        await (admin.list_groups() if group is many else admin.describe("g"))
        for step in off_the_loop:
            assert threads[step]
            assert threading.get_ident() not in threads[step]


async def test_response_about_many_partitions_is_encoded_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[int] = set()
    encode = apis.encode_response

    def encoded(response: Response, **header: int) -> bytes:
        if isinstance(response, OffsetCommitResponse | OffsetFetchResponse | OffsetDeleteResponse):
            threads.add(threading.get_ident())
        return encode(response, **header)

    monkeypatch.setattr(tcp_connection, "encode_response", encoded)
    partitions = range(6_000)
    commits = [PartitionCommit(partition_index=each, committed_offset=1, committed_metadata="") for each in partitions]
    deletes = [PartitionToDelete(partition_index=each) for each in partitions]
    fetched = (TopicToFetch(name="t", partition_indexes=tuple(partitions)),)
    requests: list[Request] = [
        OffsetCommitRequest(group_id="o", member_id="", topics=(TopicCommit(name="t", partitions=tuple(commits)),)),
        OffsetFetchRequest(groups=(GroupToFetch(group_id="o", topics=fetched),)),
        OffsetDeleteRequest(group_id="o", topics=(TopicToDelete(name="t", partitions=tuple(deletes)),)),
    ]
    async with serving(lambda: iter(())) as server:
        client = TcpClient("127.0.0.1", server.port)
        for request in requests:
            threads.clear()
            await client.call(request, timeout_s=60)
            assert threads
            assert threading.get_ident() not in threads
        await client.close()
