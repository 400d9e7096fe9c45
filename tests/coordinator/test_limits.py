"""Limits on the memory that requests occupy in the coordinator."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest

from connectgroup.coordinator import intake, parking
from connectgroup.coordinator.runtime import Coordinator
from connectgroup.errors import InvalidRequest, StaleMemberEpoch, UnknownMemberId
from connectgroup.log.memory import MemoryLog
from connectgroup.protocol.messages.api import Request
from connectgroup.protocol.messages.describe import (
    DeleteGroupsRequest,
    DeleteRequest,
    DescribeGroupsRequest,
    DescribeRequest,
    DescribeResponse,
    ListGroupsRequest,
)
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse

from .builders import GROUP, add, ask, beat, change, look, memory_is_log, send, serving


async def test_rejected_member_ids_are_not_kept() -> None:
    """150 heartbeats with a member id of 7 MiB occupied 1,137 MB."""
    async with serving() as coordinator:
        await ask(coordinator, beat("a", sequence=1))
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            for number in range(20):
                response = await ask(coordinator, beat(f"{number}" + "x" * (1 << 20), sequence=1))
                assert response.error_code == InvalidRequest.code
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert after - before < 1 << 20


async def test_member_ids_that_no_group_has_are_kept_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their last sequence is kept for twice the session timeout, in which any number of them may arrive."""
    monkeypatch.setattr(parking, "MAX_FORMER_SENDERS", 100)
    async with serving() as coordinator:
        await change(coordinator, add())
        await ask(coordinator, beat("a", sequence=10))
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            for number in range(6_000):
                response = await ask(coordinator, beat(f"other-{number}", 7, sequence=1))
                assert response.error_code == UnknownMemberId.code
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert after - before < 6_000 * 150
        assert (await ask(coordinator, beat("a", sequence=9))).error_code == StaleMemberEpoch.code
        assert {member.member_id for member in (await look(coordinator)).members} == {"a"}


async def test_group_named_several_times_is_described_once() -> None:
    async with serving() as coordinator:
        await ask(coordinator, beat("a"))
        response = await send(coordinator, DescribeRequest(group_ids=(GROUP, "other", GROUP, GROUP)))
        assert isinstance(response, DescribeResponse)
        assert [group.group_id for group in response.groups] == [GROUP, "other"]


async def test_requests_for_unknown_groups_allocate_no_group() -> None:
    """Any client may send any group id, and another one each time."""
    async with serving() as coordinator:
        for number in range(3):
            await send(coordinator, DescribeRequest(group_ids=(f"unknown-{number}",)))
            await ask(coordinator, beat("a", 7, group_id=f"unknown-{number}"))
        assert not coordinator.shard.groups.loaded


async def test_heartbeats_of_members_are_decided_before_a_flood_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease of a member would expire while its heartbeat waits behind 100,000 requests of strangers."""
    monkeypatch.setattr(intake, "MAX_INPUTS_PER_TURN", 20)
    answered: list[str] = []

    async def answer(coordinator: Coordinator, request: HeartbeatRequest, name: str) -> None:
        await ask(coordinator, request)
        answered.append(name)

    async with serving() as coordinator:
        await change(coordinator, add())
        joined = await ask(coordinator, beat("a", sequence=1))
        strangers = [answer(coordinator, beat(f"s{number}", 7, sequence=1), "stranger") for number in range(200)]
        member = answer(coordinator, beat("a", joined.member_epoch, sequence=2), "member")
        await asyncio.gather(*strangers, member)
    assert answered.index("member") < 25
    assert len(answered) == 201


async def test_turn_that_takes_too_long_leaves_the_rest_to_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """No response is sent and no heartbeat is read during a turn. The order of arrival stays."""
    monkeypatch.setattr(intake, "MAX_TURN_S", 0.0)
    monkeypatch.setattr(intake, "MIN_OTHERS_S", 0.0)
    answered: list[str] = []

    async def join(coordinator: Coordinator, name: str) -> None:
        assert (await ask(coordinator, beat(name, sequence=1))).error_code == 0
        answered.append(name)

    names = [f"m{number:02}" for number in range(20)]
    log = MemoryLog()
    async with serving(log) as coordinator:
        await change(coordinator, add())
        before = coordinator.shard.turns
        await asyncio.gather(*(join(coordinator, name) for name in names))
        assert coordinator.shard.turns - before >= len(names)
        assert answered == names
        await memory_is_log(coordinator, log)


def test_responses_that_are_kept_completed_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "MAX_KEPT", 100)
    responses = intake.CompletedResponses()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for epoch in range(5_000):
            assert responses.of(HeartbeatResponse(member_epoch=epoch), 7, "").coordinator_epoch == 7
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 5_000 * 50


NAMES = tuple(f"g{number:02}" for number in range(20))


@pytest.mark.parametrize(
    "request_",
    [
        DescribeRequest(),
        ListGroupsRequest(),
        DescribeGroupsRequest(groups=NAMES),
        DeleteRequest(group_ids=NAMES),
        DeleteGroupsRequest(groups_names=NAMES),
    ],
    ids=lambda request: type(request).__name__,
)
async def test_request_for_many_groups_takes_a_turn_for_each(request_: Request) -> None:
    """Heartbeats are decided in between."""
    async with serving() as coordinator:
        for name in NAMES:
            await change(coordinator, add(group_id=name))
        before = coordinator.shard.turns
        await asyncio.wait_for(send(coordinator, request_), 60)
        assert coordinator.shard.turns - before >= len(NAMES)
