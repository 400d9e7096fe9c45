"""Classic groups on the coordinator: parked JoinGroup and SyncGroup requests, sessions, a failed append, a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from connectgroup.coordinator.runtime import Coordinator
from connectgroup.errors import (
    GroupIdNotFound,
    IllegalGeneration,
    InvalidRequest,
    RebalanceInProgress,
    UnknownMemberId,
)
from connectgroup.group.classic.state import ClassicSettings
from connectgroup.group.connect.settings import GroupSettings
from connectgroup.log.base import Log
from connectgroup.log.memory import MemoryLog, MemoryStorage
from connectgroup.protocol.messages.classic import (
    GroupHeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    MemberShare,
    OfferedProtocol,
    SyncGroupRequest,
)
from connectgroup.protocol.messages.describe import DescribeRequest
from connectgroup.protocol.messages.offsets import (
    GroupToFetch,
    OffsetCommitRequest,
    OffsetFetchRequest,
    PartitionCommit,
    TopicCommit,
)

from .builders import FaultyLog, add, tick

pytestmark = pytest.mark.asyncio

NO_DELAY = ClassicSettings(initial_rebalance_delay_ms=0)


@asynccontextmanager
async def serving(log: Log | None = None, settings: ClassicSettings = NO_DELAY) -> AsyncIterator[Coordinator]:
    coordinator = Coordinator(log or MemoryLog(), GroupSettings(), classic_settings=settings)
    await coordinator.start()
    try:
        yield coordinator
    finally:
        await coordinator.close()


def send(coordinator: Coordinator, request: Any) -> asyncio.Task[Any]:
    return asyncio.create_task(coordinator.handle(request, client_host="h", client_id="c"))


def join(member_id: str = "", *, group: str = "g", metadata: bytes = b"m", **changes: Any) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=(OfferedProtocol(name="range", metadata=metadata),),
        **changes,
    )


def sync(joined: JoinGroupResponse, *members: str) -> SyncGroupRequest:
    return SyncGroupRequest(
        group_id="g",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=tuple(MemberShare(member_id=each, assignment=each.encode()) for each in members),
    )


def heartbeat(joined: JoinGroupResponse) -> GroupHeartbeatRequest:
    return GroupHeartbeatRequest(group_id="g", generation_id=joined.generation_id, member_id=joined.member_id)


async def stable(coordinator: Coordinator) -> tuple[JoinGroupResponse, JoinGroupResponse]:
    """Two members; the first one leads."""
    first = await send(coordinator, join())
    waiting = send(coordinator, join())
    await tick()
    again = await send(coordinator, join(first.member_id))
    second = await waiting
    assert (again.generation_id, second.generation_id) == (2, 2)
    parked = send(coordinator, sync(second))
    await tick()
    assert not parked.done()
    assert (await send(coordinator, sync(again, first.member_id, second.member_id))).assignment
    assert (await parked).assignment == second.member_id.encode()
    return again, second


async def test_members_that_join_without_a_member_id_are_parked_under_the_one_they_get() -> None:
    async with serving() as coordinator:
        first, second = await stable(coordinator)
        assert first.member_id != second.member_id
        assert len(first.members) == 2


async def test_heartbeat_does_not_complete_the_parked_join_of_its_sender() -> None:
    async with serving() as coordinator:
        first, second = await stable(coordinator)
        joining = send(coordinator, join(first.member_id))
        await tick()
        assert (await send(coordinator, heartbeat(first))).error_code == 27
        assert not joining.done()
        await send(coordinator, join(second.member_id))
        assert (await joining).generation_id == 3


async def test_repeated_join_replaces_the_parked_one() -> None:
    async with serving() as coordinator:
        first, _ = await stable(coordinator)
        joining = send(coordinator, join(first.member_id))
        await tick()
        again = send(coordinator, join(first.member_id))
        assert (await joining).error_code == 27
        assert not again.done()


async def test_session_that_expires_begins_a_rebalance() -> None:
    async with serving() as coordinator:
        first, _ = await stable(coordinator)
        for _ in range(3):
            await asyncio.sleep(4)
            beat = await send(coordinator, heartbeat(first))
        assert beat.error_code == 27
        assert len((await send(coordinator, join(first.member_id))).members) == 1


async def test_initial_rebalance_collects_the_members_that_join_within_its_delay() -> None:
    async with serving(settings=ClassicSettings()) as coordinator:
        joining = [send(coordinator, join()) for _ in range(10)]
        answers = await asyncio.gather(*joining)
        assert {answer.generation_id for answer in answers} == {1}
        assert sorted(len(answer.members) for answer in answers) == [*[0] * 9, 10]


async def test_group_survives_a_restart_of_the_coordinator() -> None:
    storage = MemoryStorage()
    async with serving(MemoryLog(storage)) as coordinator:
        first, second = await stable(coordinator)
    async with serving(MemoryLog(storage)) as coordinator:
        assert (await send(coordinator, heartbeat(first))).error_code == 0
        assert (await send(coordinator, sync(second))).assignment == second.member_id.encode()


@pytest.mark.parametrize("fault", ["before", "after"])
async def test_failed_append_rejects_parked_requests_with_a_retriable_error(fault: Any) -> None:
    log = FaultyLog()
    async with serving(log) as coordinator:
        first, second = await stable(coordinator)
        joining = send(coordinator, join(first.member_id))
        await tick()
        log.faults.append(fault)
        assert (await send(coordinator, join(second.member_id, metadata=b"new"))).error_code in (14, 15)
        assert (await joining).error_code in (14, 15)
        await asyncio.sleep(1)
        joining = send(coordinator, join(first.member_id))
        await tick()
        await send(coordinator, join(second.member_id, metadata=b"new"))
        assert (await joining).error_code == 0


async def test_classic_member_cannot_join_a_group_of_another_type() -> None:
    async with serving() as coordinator:
        assert (await send(coordinator, add(group_id="g"))).error_code == 0
        assert (await send(coordinator, join())).error_code == 23
        assert (await send(coordinator, heartbeat(JoinGroupResponse(error_code=0)))).error_code == 25


async def test_group_is_described_with_its_type() -> None:
    async with serving() as coordinator:
        await stable(coordinator)
        (described,) = (await send(coordinator, DescribeRequest())).groups
        assert (described.group_type, described.state, len(described.members)) == ("classic", "Stable", 2)


def commit(member_id: str, generation: int, offset: int) -> OffsetCommitRequest:
    partition = PartitionCommit(partition_index=0, committed_offset=offset, committed_metadata=None)
    return OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        topics=(TopicCommit(name="foo", partitions=(partition,)),),
    )


async def code_of(coordinator: Coordinator, request: OffsetCommitRequest) -> int:
    response = await send(coordinator, request)
    return int(response.topics[0].partitions[0].error_code)


FETCH_7 = OffsetFetchRequest(group_id="g", topics=None)
FETCH_8 = OffsetFetchRequest(groups=(GroupToFetch(group_id="g", topics=None), GroupToFetch(group_id="x", topics=None)))


async def test_offsets_of_a_group_are_fetched_once_however_often_a_request_names_it() -> None:
    """A request of 30 kB named one a thousand times: the coordinator put together gigabytes of offsets."""
    async with serving() as coordinator:
        assert await code_of(coordinator, commit("", -1, 3)) == 0
        found = await send(coordinator, replace(FETCH_8, groups=(*FETCH_8.groups, *FETCH_8.groups, *FETCH_8.groups)))
        shown = [(group.group_id, group.error_code, len(group.topics)) for group in found.groups]
        again = [("g", InvalidRequest.code, 0), ("x", InvalidRequest.code, 0)]
        assert shown == [("g", 0, 1), ("x", 0, 0), *again, *again]


async def test_commit_is_fenced_by_the_generation() -> None:
    """OC-06, OC-07: an operator may commit while the group has no members, also to a group that does not exist yet."""
    async with serving() as coordinator:
        assert await code_of(coordinator, commit("a", 1, 5)) == GroupIdNotFound.code
        before_9 = replace(commit("a", 1, 5), lacks_member_epochs=True)
        assert await code_of(coordinator, before_9) == IllegalGeneration.code
        assert await code_of(coordinator, commit("", -1, 3)) == 0
        joined = await send(coordinator, join())
        joined = await send(coordinator, join(joined.member_id)) if joined.error_code else joined
        member_id, generation = joined.member_id, joined.generation_id
        assert await code_of(coordinator, commit(member_id, generation, 4)) == RebalanceInProgress.code
        await send(coordinator, sync(joined, member_id))
        assert await code_of(coordinator, commit("x", generation, 5)) == UnknownMemberId.code
        assert await code_of(coordinator, commit("", -1, 5)) == UnknownMemberId.code
        assert await code_of(coordinator, commit(member_id, generation + 1, 5)) == IllegalGeneration.code
        assert (await send(coordinator, FETCH_7)).topics[0].partitions[0].committed_offset == 3
        assert await code_of(coordinator, commit(member_id, generation, 5)) == 0
        found = await send(coordinator, FETCH_8)
        assert [(group.group_id, group.error_code, len(group.topics)) for group in found.groups] == [
            ("g", 0, 1),
            ("x", 0, 0),
        ]
        assert found.groups[0].topics[0].partitions[0].committed_offset == 5
