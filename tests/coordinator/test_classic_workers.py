"""Requests of workers of the classic protocol on a coordinator: which are admitted, and the errors of the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from connectgroup.errors import (
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidRequest,
    NotCoordinator,
    RebalanceInProgress,
    StaleMemberEpoch,
    UnknownMemberId,
)
from connectgroup.log.memory import MemoryLog, MemoryStorage
from connectgroup.protocol.messages.classic import (
    WORKER_PROTOCOL,
    GroupHeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeavingMember,
    OfferedProtocol,
    SyncGroupRequest,
)
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from connectgroup.wire.embedded import decode_response, encode_request

from .test_consumer_groups import serving, type_of

pytestmark = pytest.mark.asyncio

BEAT = HeartbeatRequest(
    group_id="g", member_id="w", member_epoch=0, rebalance_timeout_ms=60_000, owned=(), sequence=1, process_id=7
)
KAFKA_CONNECT = JoinGroupRequest(
    group_id="g",
    session_timeout_ms=10_000,
    rebalance_timeout_ms=60_000,
    member_id="",
    protocol_type="connect",
    protocols=(OfferedProtocol(name="sessioned", metadata=b""),),
)


def join(beat: HeartbeatRequest = BEAT, metadata: bytes | None = None) -> JoinGroupRequest:
    data = encode_request(beat) if metadata is None else metadata
    offered = OfferedProtocol(name=WORKER_PROTOCOL, metadata=data)
    return replace(KAFKA_CONNECT, member_id=beat.member_id, protocols=(offered,))


def leave(sequence: int = 2) -> LeaveGroupRequest:
    last = replace(BEAT, member_epoch=-1, owned=None, rebalance_timeout_ms=-1, sequence=sequence)
    return LeaveGroupRequest(group_id="g", members=(LeavingMember(member_id="w", metadata=encode_request(last)),))


async def send(coordinator: Any, request: Any) -> Any:
    return await coordinator.handle(request, client_host="h", client_id="c")


async def joined(coordinator: Any) -> JoinGroupResponse:
    response = await send(coordinator, join())
    assert isinstance(response, JoinGroupResponse)
    assert response.error_code == 0, response
    return response


async def synced(coordinator: Any, generation: int) -> HeartbeatResponse:
    response = await send(coordinator, SyncGroupRequest(group_id="g", generation_id=generation, member_id="w"))
    assert response.error_code == 0
    return decode_response(response.assignment)


async def heartbeat(coordinator: Any, generation: int, member_id: str = "w") -> int:
    request = GroupHeartbeatRequest(group_id="g", generation_id=generation, member_id=member_id)
    code: int = (await send(coordinator, request)).error_code
    return code


async def test_worker_is_a_member_of_a_connect_group_from_its_first_join_on() -> None:
    storage = MemoryStorage()
    async with serving(None, MemoryLog(storage)) as coordinator:
        generation = (await joined(coordinator)).generation_id
        assert await type_of(coordinator) == "connect"
        assert (await synced(coordinator, generation)).member_epoch == generation
        assert await heartbeat(coordinator, generation + 1) == IllegalGeneration.code
        assert await heartbeat(coordinator, generation, "other") == UnknownMemberId.code
    async with serving(None, MemoryLog(storage)) as coordinator:
        again = await send(coordinator, SyncGroupRequest(group_id="g", generation_id=generation, member_id="w"))
        assert again.error_code == RebalanceInProgress.code, "the member sends JoinGroup again"


async def test_coordinator_epoch_is_in_responses_to_workers_only() -> None:
    """D5: a worker ignores a coordinator that has been replaced. Kafka's clients do not know the field."""
    async with serving(None) as coordinator:
        generation = (await joined(coordinator)).generation_id
        sync = SyncGroupRequest(group_id="g", generation_id=generation, member_id="w")
        heartbeats = [
            GroupHeartbeatRequest(group_id="g", generation_id=each, member_id="w") for each in (generation, 99)
        ]
        workers = [await send(coordinator, each) for each in (join(replace(BEAT, sequence=2)), sync, *heartbeats)]
        assert {each.coordinator_epoch for each in workers} == {1}
        other = replace(KAFKA_CONNECT, group_id="k")
        first = await send(coordinator, other)
        again = await send(coordinator, replace(other, member_id=first.member_id))
        heartbeat = GroupHeartbeatRequest(group_id="k", generation_id=0, member_id=first.member_id)
        others = [first, again, await send(coordinator, heartbeat)]
        assert {each.coordinator_epoch for each in others} == {-1}


async def test_late_join_of_a_worker_that_has_left_is_stale() -> None:
    """KAFKA-16639: it must not create a member without a process."""
    async with serving(None) as coordinator:
        await joined(coordinator)
        left = await send(coordinator, leave(sequence=3))
        assert (left.error_code, left.members[0].error_code) == (0, 0)
        late = await send(coordinator, join(replace(BEAT, sequence=2)))
        assert late.error_code == StaleMemberEpoch.code


async def test_mg_12_member_of_the_connect_protocol_is_unknown_to_the_classic_one() -> None:
    async with serving(None) as coordinator:
        epoch = (await send(coordinator, BEAT)).member_epoch
        assert await heartbeat(coordinator, epoch) == UnknownMemberId.code
        sync = SyncGroupRequest(group_id="g", generation_id=epoch, member_id="w")
        assert (await send(coordinator, sync)).error_code == UnknownMemberId.code


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        b"\0",
        b"\0\x09",
        b"\0\0\xff",
        encode_request(replace(BEAT, member_epoch=-1, owned=None)),
        encode_request(replace(BEAT, member_epoch=1, owned=None)),
        encode_request(replace(BEAT, rebalance_timeout_ms=-1)),
    ],
)
async def test_join_with_bad_metadata_is_rejected_and_creates_no_group(metadata: bytes) -> None:
    async with serving(None) as coordinator:
        response = await send(coordinator, join(metadata=metadata))
        assert response.error_code == InvalidRequest.code
        assert response.error_message
        assert await type_of(coordinator) == ""


async def test_worker_of_kafka_connect_cannot_join_a_connect_group() -> None:
    """CN-18: it could not run the group's connectors."""
    async with serving(None) as coordinator:
        await joined(coordinator)
        refused = await send(coordinator, KAFKA_CONNECT)
        assert refused.error_code == InconsistentGroupProtocol.code
        await send(coordinator, leave())
        assert (await send(coordinator, KAFKA_CONNECT)).error_code == InconsistentGroupProtocol.code


async def test_worker_joins_a_group_of_kafka_connect_once_its_workers_have_stopped() -> None:
    async with serving(None) as coordinator:
        other = (await send(coordinator, KAFKA_CONNECT)).member_id
        refused = await send(coordinator, join())
        assert refused.error_code == InconsistentGroupProtocol.code
        assert "stop its members first" in refused.error_message
        await send(coordinator, LeaveGroupRequest(group_id="g", members=(LeavingMember(member_id=other),)))
        await joined(coordinator)
        assert await type_of(coordinator) == "connect"


async def test_operator_removes_members_of_both_protocols() -> None:
    async with serving(None) as coordinator:
        await joined(coordinator)
        await send(coordinator, replace(BEAT, member_id="s", instance_id="i"))
        removed = await send(
            coordinator,
            LeaveGroupRequest(
                group_id="g",
                members=(
                    LeavingMember(member_id="w"),
                    LeavingMember(member_id="", group_instance_id="i"),
                    LeavingMember(member_id="unknown"),
                ),
            ),
        )
        assert [each.error_code for each in removed.members] == [0, 0, UnknownMemberId.code]


async def test_coordinator_that_serves_no_more_names_its_epoch() -> None:
    """Workers ignore what a former coordinator responds (D5); without its epoch it looks like the current one."""
    storage = MemoryStorage()
    async with serving(None, MemoryLog(storage)) as coordinator:
        joined_group = await joined(coordinator)
        assert joined_group.coordinator_epoch == 1
        await MemoryLog(storage).open()  # another coordinator's
        rejected = [await send(coordinator, join(replace(BEAT, member_id=name))) for name in ("v", "w")]
        assert [(each.error_code, each.coordinator_epoch) for each in rejected] == [(NotCoordinator.code, 1)] * 2
