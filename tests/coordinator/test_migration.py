"""Conversion of groups with members on a coordinator: parked requests, offsets, a restart, a log that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from connectgroup.coordinator import compute
from connectgroup.coordinator.listing import ConsumerGroups
from connectgroup.coordinator.runtime import Coordinator
from connectgroup.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    IllegalGeneration,
    InconsistentGroupProtocol,
    RebalanceInProgress,
    UnknownMemberId,
)
from connectgroup.group.connect.settings import GroupSettings
from connectgroup.log.memory import MemoryLog, MemoryStorage
from connectgroup.protocol.messages.classic import (
    EmbeddedAssignment,
    GroupHeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeavingMember,
    MemberShare,
    OfferedProtocol,
    Subscription,
    SyncGroupRequest,
)
from connectgroup.protocol.messages.consumer import (
    ConsumerDescribeRequest,
    ConsumerDescribeResponse,
    each_partition,
)
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest
from connectgroup.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    PartitionCommit,
    TopicCommit,
)
from connectgroup.protocol.units import TopicPartition
from connectgroup.topics import StaticTopics
from connectgroup.wire import embedded

from .builders import FaultyLog, tick
from .test_consumer_groups import ask, beat, join, offsets_of, serving, type_of

pytestmark = pytest.mark.asyncio

SUBSCRIPTION = embedded.encode_subscription(Subscription(topics=frozenset({"foo"})))


async def send(coordinator: Any, request: Any) -> Any:
    return await coordinator.handle(request, client_host="h", client_id="c")


async def classic_join(coordinator: Any, member_id: str = "") -> JoinGroupResponse:
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=(OfferedProtocol(name="range", metadata=SUBSCRIPTION),),
    )
    response = await send(coordinator, request)
    assert isinstance(response, JoinGroupResponse)
    return response


async def sync(coordinator: Any, member_id: str, generation: int, *assigned: int) -> set[int]:
    data = embedded.encode_assignment(
        EmbeddedAssignment(partitions=frozenset(TopicPartition("foo", each) for each in assigned))
    )
    share = MemberShare(member_id=member_id, assignment=data)
    response = await send(
        coordinator,
        SyncGroupRequest(group_id="g", member_id=member_id, generation_id=generation, assignments=(share,)),
    )
    assert response.error_code == 0
    return {each.partition for each in embedded.decode_assignment(response.assignment).partitions}


async def heartbeat(coordinator: Any, member_id: str, generation: int) -> int:
    request = GroupHeartbeatRequest(group_id="g", member_id=member_id, generation_id=generation)
    code: int = (await send(coordinator, request)).error_code
    return code


async def commit(coordinator: Any, member_id: str, generation: int) -> int:
    partition = PartitionCommit(partition_index=0, committed_offset=generation, committed_metadata="")
    response = await send(
        coordinator,
        OffsetCommitRequest(
            group_id="g",
            member_id=member_id,
            generation_id_or_member_epoch=generation,
            topics=(TopicCommit(name="foo", partitions=(partition,)),),
        ),
    )
    assert isinstance(response, OffsetCommitResponse)
    return response.topics[0].partitions[0].error_code


async def stable(coordinator: Any, *, commits: bool = True) -> tuple[str, int]:
    """A classic group with one member that has all partitions; its member id and generation."""
    joined = await classic_join(coordinator)
    assert await sync(coordinator, joined.member_id, joined.generation_id, 0, 1, 2, 3) == {0, 1, 2, 3}
    if commits:
        assert await commit(coordinator, joined.member_id, joined.generation_id) == 0
    return joined.member_id, joined.generation_id


async def test_group_is_converted_and_back_and_a_new_coordinator_finds_the_same() -> None:
    """MG-01, MG-07: its members, epochs and offsets."""
    storage = MemoryStorage()
    async with serving(StaticTopics({"foo": 4}), MemoryLog(storage)) as coordinator:
        first, generation = await stable(coordinator)
        assert (await ask(coordinator, join("new", "foo"))).member_epoch == generation + 1
        assert (await type_of(coordinator), await offsets_of(coordinator)) == ("consumer", {0: generation})
        assert await commit(coordinator, first, generation) == 0, "its generation is its member epoch"
        assert await commit(coordinator, first, generation + 1) == IllegalGeneration.code
    async with serving(StaticTopics({"foo": 4}), MemoryLog(storage)) as coordinator:
        assert await heartbeat(coordinator, first, generation) == RebalanceInProgress.code
        joined = await classic_join(coordinator, first)
        assert joined.generation_id == generation + 1
        kept = await sync(coordinator, first, joined.generation_id)
        given = (await ask(coordinator, beat("new", generation + 1))).assignment
        assert given is not None
        assert {each.partition for each in each_partition(given.topic_partitions)} == {0, 1, 2, 3} - kept
        described = await send(coordinator, ConsumerDescribeRequest(group_ids=("g",)))
        assert isinstance(described, ConsumerDescribeResponse)
        assert {each.member_id: each.member_type for each in described.groups[0].members} == {first: 0, "new": 1}
        await ask(coordinator, beat("new", -1))
        assert (await type_of(coordinator), await offsets_of(coordinator)) == ("classic", {0: generation})
    async with serving(StaticTopics({"foo": 4}), MemoryLog(storage)) as coordinator:
        assert await heartbeat(coordinator, first, joined.generation_id) == RebalanceInProgress.code
        again = await classic_join(coordinator, first)
        assert (again.leader, again.generation_id) == (first, joined.generation_id + 1)


async def test_join_waits_for_the_target_assignment_that_it_causes() -> None:
    async with serving(StaticTopics({"foo": 4})) as coordinator:
        first, generation = await stable(coordinator)
        await ask(coordinator, join("new", "foo"))
        await ask(coordinator, beat("new", -1))
        assert await heartbeat(coordinator, first, generation) == RebalanceInProgress.code
        await ask(coordinator, join("new", "foo"))
        joined = await classic_join(coordinator, first)
        assert len(await sync(coordinator, first, joined.generation_id)) == 2


async def test_failed_conversion_leaves_the_group_as_it_was() -> None:
    """MG-02: one append has the conversion and the join."""
    log = FaultyLog()
    async with serving(StaticTopics({"foo": 4}), log) as coordinator:
        first, generation = await stable(coordinator)
        log.faults.append("before")
        await coordinator.handle(join("new", "foo"), client_host="h")
        await tick()
        assert await type_of(coordinator) == "classic"
        assert await heartbeat(coordinator, first, generation) == 0


async def test_rejected_join_converts_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """MG-06: neither does a group that cannot be converted, which is logged."""
    async with serving(StaticTopics({"foo": 4})) as coordinator:
        first, generation = await stable(coordinator)
        response = await coordinator.handle(join("new", "foo", server_assignor="unknown"), client_host="h")
        assert response.error_code == 112  # type: ignore[union-attr]
        assert await type_of(coordinator) == "classic"
        assert await heartbeat(coordinator, first, generation) == 0
        other = JoinGroupRequest(
            group_id="other",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            member_id="",
            protocol_type="connect",
            protocols=(OfferedProtocol(name="compatible", metadata=b""),),
        )
        await send(coordinator, other)
        refused = await coordinator.handle(
            replace(join("new", "foo"), group_id="other"),
            client_host="h",
        )
        assert refused.error_code == 69  # type: ignore[union-attr]
        await send(coordinator, replace(join("newer", "foo"), group_id="other"))
        assert caplog.text.count("not converted") == 1, "clients repeat their joins"
        assert "'connect'" in caplog.text


async def test_rejected_join_leaves_parked_joins_of_the_classic_group_parked() -> None:
    """A JoinGroup without a member id (versions 0 to 3) must not be decided again: it would add another member."""
    async with serving(StaticTopics({"foo": 4})) as coordinator:
        first, _ = await stable(coordinator)
        second = asyncio.create_task(classic_join(coordinator))
        await tick()
        rejected = await send(coordinator, join("new", "foo", server_assignor="unknown"))
        assert rejected.error_code == 112
        joined = await classic_join(coordinator, first)
        assert {each.member_id for each in joined.members} == {first, (await second).member_id}


class NewTopics(StaticTopics):
    """A topic source that finds topics when it is asked to read again."""

    def __init__(self, partitions: dict[str, int]) -> None:
        super().__init__({})
        self._partitions = partitions

    async def refresh(self) -> None:
        self.replace(self._partitions)


async def test_topic_that_was_created_after_the_last_read_is_read_before_the_conversion(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Else its partitions would have no owner, and be assigned while a classic member still reads them."""
    async with serving(NewTopics({"foo": 4})) as coordinator:
        first, generation = await stable(coordinator, commits=False)
        refused = await send(coordinator, join("new", "foo"))
        assert refused.error_code == CoordinatorLoadInProgress.code
        assert refused.error_message == "members own partitions of topics that are being read: foo"
        assert await heartbeat(coordinator, first, generation) == 0, "the group is as it was"
        assert "not converted" not in caplog.text, "it is about to be"
        await tick()
        joined = await ask(coordinator, join("new", "foo"))
        assert joined.member_epoch == generation + 1
        assert joined.assignment is not None
        owned = each_partition(joined.assignment.topic_partitions)
        assert not owned, "the first member has all partitions until it joins again"


async def test_topic_that_was_deleted_does_not_prevent_the_conversion() -> None:
    async with serving(NewTopics({"bar": 1})) as coordinator:
        await stable(coordinator, commits=False)
        assert (await send(coordinator, join("new", "bar"))).error_code == CoordinatorLoadInProgress.code
        await tick()
        joined = await ask(coordinator, join("new", "bar"))
        assert joined.assignment is not None
        assert [number for _, number in each_partition(joined.assignment.topic_partitions)] == [0]


async def test_groups_that_are_converted_at_once_each_get_the_result_of_a_read() -> None:
    consumers = ConsumerGroups(NewTopics({}))
    coordinator = Coordinator(MemoryLog(), GroupSettings(), consumers=consumers)
    await coordinator.start()
    confirm_absent, one, other = consumers.confirm_absent, frozenset({"foo"}), frozenset({"bar"})
    assert not confirm_absent(one)
    assert not confirm_absent(other)
    await tick()
    assert confirm_absent(other)
    assert confirm_absent(one)
    assert not confirm_absent(one), "a result counts once"
    await coordinator.close()


async def test_bug_in_a_conversion_fails_only_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """D8: the group stays as it was, and the coordinator serves all groups."""

    def fail(*args: object) -> None:
        raise RuntimeError("a bug")

    async with serving(StaticTopics({"foo": 4})) as coordinator:
        first, generation = await stable(coordinator)
        with monkeypatch.context() as patched:
            patched.setattr("connectgroup.group.consumer.group_type.from_classic", fail)
            assert (await send(coordinator, join("new", "foo"))).error_code == CoordinatorNotAvailable.code
        await tick()
        assert await heartbeat(coordinator, first, generation) == 0
        assert (await ask(coordinator, join("new", "foo"))).member_epoch == generation + 1


async def test_member_that_leaves_while_its_join_is_parked_does_not_join_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A JoinGroup with an unknown member id creates a member, so the parked one must not be decided again."""
    computes = asyncio.Event()

    async def delayed(name: str, function: Callable[[], Any]) -> Any:
        await computes.wait()
        return function()

    monkeypatch.setattr(compute, "off_loop", delayed)
    async with serving(StaticTopics({"foo": 4})) as coordinator:
        first, _ = await stable(coordinator)
        new = asyncio.create_task(ask(coordinator, join("new", "foo")))
        parked = asyncio.create_task(classic_join(coordinator, first))
        await tick()
        left = await send(coordinator, LeaveGroupRequest(group_id="g", members=(LeavingMember(member_id=first),)))
        assert left.members[0].error_code == 0
        assert (await parked).error_code == UnknownMemberId.code
        computes.set()
        await new
        described = await send(coordinator, ConsumerDescribeRequest(group_ids=("g",)))
        assert [each.member_id for each in described.groups[0].members] == ["new"]


async def test_worker_cannot_join_a_group_of_kafka_connect(caplog: pytest.LogCaptureFixture) -> None:
    """CN-18: until its workers have stopped. Their connectors are in topics that the coordinator does not read."""
    async with serving(None) as coordinator:
        kafka_connect = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            member_id="",
            protocol_type="connect",
            protocols=(OfferedProtocol(name="sessioned", metadata=b""),),
        )
        member_id = (await send(coordinator, kafka_connect)).member_id
        worker = HeartbeatRequest(
            group_id="g", member_id="w", member_epoch=0, rebalance_timeout_ms=60_000, client_assignors=(), owned=()
        )
        refused = await send(coordinator, worker)
        assert refused.error_code == InconsistentGroupProtocol.code
        assert "stop its members first" in refused.error_message
        assert "not converted" in caplog.text
        await send(coordinator, LeaveGroupRequest(group_id="g", members=(LeavingMember(member_id=member_id),)))
        assert (await send(coordinator, worker)).error_code == 0
        assert await type_of(coordinator) == "connect"
