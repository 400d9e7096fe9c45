"""Groups that strangers create are bounded, and so is what is left of deleted groups."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from connectgroup.coordinator import loading
from connectgroup.coordinator.listing import ConsumerGroups
from connectgroup.coordinator.runtime import Coordinator
from connectgroup.errors import LogError, PolicyViolation
from connectgroup.group.classic.state import ClassicSettings
from connectgroup.group.consumer.settings import ConsumerSettings
from connectgroup.group.offsets import OffsetSettings
from connectgroup.log.memory import MemoryLog
from connectgroup.protocol.messages.classic import (
    JoinGroupRequest,
    LeaveGroupRequest,
    OfferedProtocol,
    SyncGroupRequest,
)
from connectgroup.protocol.messages.consumer import ConsumerHeartbeatRequest
from connectgroup.protocol.messages.describe import DeleteRequest, DescribeRequest, DescribeResponse
from connectgroup.protocol.messages.offsets import (
    GroupToFetch,
    OffsetCommitRequest,
    OffsetFetchRequest,
    PartitionCommit,
    TopicCommit,
)
from connectgroup.topics import StaticTopics
from tests.worker.builders import settings

from .builders import add, ask, beat, change, memory_is_log, send, served, serving


async def join_and_leave(coordinator: Coordinator, group_id: str) -> None:
    assert (await ask(coordinator, beat("stranger", group_id=group_id))).error_code == 0
    assert (await ask(coordinator, beat("stranger", -1, group_id=group_id))).error_code == 0


async def consume_and_leave(coordinator: Coordinator, group_id: str, protocol: str) -> None:
    """A consumer of either protocol joins and leaves."""
    if protocol == "consumer":
        for epoch in 0, -1:
            beats = ConsumerHeartbeatRequest(
                group_id=group_id,
                member_id="stranger",
                member_epoch=epoch,
                rebalance_timeout_ms=60_000,
                subscribed_topic_names=("foo",),
                owned=(),
            )
            assert (await coordinator.handle(beats, client_host="h")).error_code == 0  # type: ignore[union-attr]
        return
    offered = (OfferedProtocol(name="range", metadata=b""),)
    join = JoinGroupRequest(
        group_id=group_id, session_timeout_ms=10_000, member_id="", protocol_type="consumer", protocols=offered
    )
    joined: Any = await coordinator.handle(join, client_host="h")
    assert joined.error_code == 0
    left: Any = await coordinator.handle(
        LeaveGroupRequest(group_id=group_id, member_id=joined.member_id), client_host="h"
    )
    assert left.error_code == 0


async def commit(coordinator: Coordinator, group_id: str) -> None:
    topic = TopicCommit(
        name="foo", partitions=(PartitionCommit(partition_index=0, committed_offset=1, committed_metadata=""),)
    )
    request = OffsetCommitRequest(group_id=group_id, member_id="", topics=(topic,))
    response: Any = await coordinator.handle(request, client_host="h")
    assert response.topics[0].partitions[0].error_code == 0


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_groups_of_consumers_that_have_left_are_vacant_unless_they_have_offsets(protocol: str) -> None:
    """Any client that may connect could fill the coordinator with groups, for good."""
    loop, log = asyncio.get_running_loop(), MemoryLog()
    coordinator = Coordinator(
        log,
        settings(max_groups=3),
        wall_clock_ms=lambda: int(loop.time() * 1000),
        consumers=ConsumerGroups(StaticTopics({"foo": 1})),
    )
    await coordinator.start()
    try:
        for group_id in "with offsets", "v1", "v2", "v3":
            await consume_and_leave(coordinator, group_id, protocol)
            if group_id == "with offsets":
                await commit(coordinator, group_id)
            await asyncio.sleep(1)
        assert await groups(coordinator) == ["v2", "v3", "with offsets"]
        for _ in range(12):
            await commit(coordinator, "with offsets")
            await asyncio.sleep(loading.CHECK_EVERY_S)
        assert await groups(coordinator) == ["with offsets"]
        await log.compact()
        assert sum(not isinstance(each, LogError) and bool(each) for each in (await log.load()).values()) == 1
    finally:
        await coordinator.close()


HOUR_S = 3_600


async def offsets_of(coordinator: Coordinator, group_id: str) -> dict[str, int]:
    """The committed offset of partition 0 of each topic."""
    asked = GroupToFetch(group_id=group_id, topics=None)
    response: Any = await coordinator.handle(OffsetFetchRequest(groups=(asked,)), client_host="h")
    return {topic.name: topic.partitions[0].committed_offset for topic in response.groups[0].topics}


def commit_of(group_id: str, *topics: str, member_id: str = "", epoch: int = -1) -> OffsetCommitRequest:
    partition = PartitionCommit(partition_index=0, committed_offset=1, committed_metadata="")
    return OffsetCommitRequest(
        group_id=group_id,
        member_id=member_id,
        generation_id_or_member_epoch=epoch,
        topics=tuple(TopicCommit(name=name, partitions=(partition,)) for name in topics),
    )


async def committed(coordinator: Coordinator, request: OffsetCommitRequest) -> set[int]:
    """Commit; return the errors."""
    response: Any = await coordinator.handle(request, client_host="h")
    return {each.error_code for topic in response.topics for each in topic.partitions}


@asynccontextmanager
async def expiring() -> AsyncIterator[Coordinator]:
    """A coordinator that keeps offsets for an hour."""
    loop, offsets = asyncio.get_running_loop(), OffsetSettings(retention_ms=HOUR_S * 1_000, check_interval_ms=60_000)
    coordinator = Coordinator(
        MemoryLog(),
        settings(),
        wall_clock_ms=lambda: int(loop.time() * 1000),
        consumers=ConsumerGroups(
            StaticTopics({"foo": 1, "bar": 1}),
            ConsumerSettings(offsets=offsets, session_timeout_ms=100_000_000),
            classic=ClassicSettings(offsets=offsets, initial_rebalance_delay_ms=0, max_session_timeout_ms=100_000_000),
        ),
    )
    await coordinator.start()
    try:
        yield coordinator
    finally:
        await coordinator.close()


async def test_offsets_of_a_group_without_members_expire_after_the_last_commit() -> None:
    """``offsets.retention.minutes``; then the group is vacant, and deleted."""
    async with expiring() as coordinator:
        assert await committed(coordinator, commit_of("simple", "foo", "bar")) == {0}
        await asyncio.sleep(HOUR_S / 2)
        assert await committed(coordinator, commit_of("simple", "foo")) == {0}
        await asyncio.sleep(HOUR_S * 0.6)
        assert await offsets_of(coordinator, "simple") == {"foo": 1}
        await asyncio.sleep(HOUR_S / 2)
        assert await offsets_of(coordinator, "simple") == {}
        for _ in range(12):
            await asyncio.sleep(loading.CHECK_EVERY_S)
            await join_and_leave(coordinator, "other")
        assert "simple" not in await groups(coordinator)


async def test_offsets_of_consumers_expire_only_for_topics_without_subscribers() -> None:
    async with expiring() as coordinator:
        joins = ConsumerHeartbeatRequest(
            group_id="new",
            member_id="m",
            member_epoch=0,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=("foo",),
            owned=(),
        )
        joined: Any = await coordinator.handle(joins, client_host="h")
        request = commit_of("new", "foo", "bar", member_id="m", epoch=joined.member_epoch)
        assert await committed(coordinator, request) == {0}
        await asyncio.sleep(2 * HOUR_S)
        assert await offsets_of(coordinator, "new") == {"foo": 1}
        await coordinator.handle(replace(joins, member_epoch=-1), client_host="h")
        await asyncio.sleep(120)
        assert await offsets_of(coordinator, "new") == {}


async def test_offsets_of_a_classic_group_expire_after_its_last_member_has_left() -> None:
    async with expiring() as coordinator:
        subscription = bytes.fromhex("0001 00000001 0003") + b"foo" + bytes.fromhex("00000000 00000000")
        join = JoinGroupRequest(
            group_id="old",
            session_timeout_ms=90_000_000,
            member_id="",
            protocol_type="consumer",
            protocols=(OfferedProtocol(name="range", metadata=subscription),),
        )
        joined: Any = await coordinator.handle(join, client_host="h")
        member_id, generation = joined.member_id, joined.generation_id
        sync = SyncGroupRequest(group_id="old", member_id=member_id, generation_id=generation, assignments=())
        await coordinator.handle(sync, client_host="h")
        request = commit_of("old", "foo", "bar", member_id=member_id, epoch=generation)
        assert await committed(coordinator, request) == {0}
        await asyncio.sleep(2 * HOUR_S)
        assert await offsets_of(coordinator, "old") == {"foo": 1}
        await coordinator.handle(LeaveGroupRequest(group_id="old", member_id=member_id), client_host="h")
        await asyncio.sleep(HOUR_S / 2)
        assert await offsets_of(coordinator, "old") == {"foo": 1}, "kept for an hour from now on"
        await asyncio.sleep(HOUR_S)
        assert await offsets_of(coordinator, "old") == {}


async def test_group_above_the_limit_is_logged_with_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    coordinator = Coordinator(MemoryLog(), settings(max_groups=1))
    await coordinator.start()
    try:
        assert await committed(coordinator, commit_of("one", "foo")) == {0}
        for name in "two", "three":
            assert await committed(coordinator, commit_of(name, "foo")) == {PolicyViolation.code}
    finally:
        await coordinator.close()
    [line] = [each.getMessage() for each in caplog.records if "all 1 groups" in each.getMessage()]
    assert line.startswith("group two is rejected")
    assert "raise max_groups" in line


async def groups(coordinator: Coordinator) -> list[str]:
    described = await send(coordinator, DescribeRequest())
    assert isinstance(described, DescribeResponse)
    return [group.group_id for group in described.groups]


async def test_vacant_group_is_deleted_after_a_while() -> None:
    log = MemoryLog()
    async with serving(log) as coordinator:
        await join_and_leave(coordinator, "vacant")
        await change(coordinator, add(group_id="configured"))
        await ask(coordinator, beat("a", group_id="used"))
        for _ in range(14):
            await ask(coordinator, beat("a", group_id="used"))
            await asyncio.sleep(loading.CHECK_EVERY_S / 2)
        assert await groups(coordinator) == ["configured", "used", "vacant"]
        for _ in range(10):
            await ask(coordinator, beat("a", group_id="used"))
            await asyncio.sleep(loading.CHECK_EVERY_S)
        assert await groups(coordinator) == ["configured", "used"]
        await memory_is_log(coordinator, log)


async def test_new_group_replaces_a_vacant_one_at_the_limit() -> None:
    log = MemoryLog()
    async with serving(log, settings(max_groups=3)) as coordinator:
        await change(coordinator, add(group_id="configured"))
        for group_id in "v1", "v2", "v3":
            await join_and_leave(coordinator, group_id)
            await asyncio.sleep(1)
        assert await groups(coordinator) == ["configured", "v2", "v3"]
        for group_id in "n1", "n2":
            assert (await change(coordinator, add(group_id=group_id))).error_code == 0
        assert await groups(coordinator) == ["configured", "n1", "n2"]
        assert (await change(coordinator, add(group_id="n3"))).error_code == PolicyViolation.code
        await memory_is_log(coordinator, log)


async def test_only_the_latest_deleted_groups_leave_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "MAX_DELETED", 3)
    log = MemoryLog()
    async with serving(log) as coordinator:
        for number in range(8):
            await change(coordinator, add(group_id=f"g{number}"))
            await send(coordinator, DeleteRequest(group_ids=(f"g{number}",)))
            await asyncio.sleep(1)
        created_ms = served(coordinator, "g7").created_ms
        await log.compact()
        assert sorted(await log.load()) == ["g5", "g6", "g7"]
        coordinator.shard.groups.clock_ms = lambda: 0
        await change(coordinator, add(group_id="g7"))
        assert served(coordinator, "g7").created_ms == created_ms + 1_000
        await memory_is_log(coordinator, log)
