"""A member belongs to the principal that joined, too: another principal with its process id changes nothing (PD-15)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from connectgroup.coordinator.runtime import Coordinator
from connectgroup.errors import FencedInstanceId, GroupError, StaleMemberEpoch, UnreleasedInstanceId
from connectgroup.log.memory import MemoryLog
from connectgroup.protocol.messages.api import Request
from connectgroup.protocol.messages.assignment import InstallRequest, PrepareRequest
from connectgroup.protocol.messages.classic import (
    WORKER_PROTOCOL,
    GroupHeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeavingMember,
    OfferedProtocol,
    SyncGroupRequest,
)
from connectgroup.protocol.messages.connectors import UpdateConnectorsRequest
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest
from connectgroup.wire.embedded import encode_request
from tests.worker.builders import settings

from .builders import GROUP, add, beat, computed, look, served, serving

ALICE, BOB = "alice", "bob"
OTHERS = (BOB, "")
PROCESS = 1
OS_PROCESS = "the process that has ended"


async def ask(coordinator: Coordinator, request: Request, principal: str | None = ALICE) -> Any:
    """Send a request on a connection of a principal."""
    response = await asyncio.wait_for(coordinator.handle(request, client_host="test", principal=principal), 60)
    await computed(coordinator)
    return response


async def joined(coordinator: Coordinator, **more: Any) -> int:
    """Process 1 of Alice joins as member a; returns its member epoch, once it has reached the target assignment."""
    await ask(coordinator, add(), BOB)
    for sequence in (9, 10):
        response = await ask(coordinator, beat("a", sequence=sequence, process_id=PROCESS, host="machine-1", **more))
        assert response.error_code == 0
    epoch: int = served(coordinator).current("a").epoch
    return epoch


def of_member(epoch: int) -> list[Request]:
    """The requests of a member of the connect protocol after its join; each with the right process id."""
    sequences = iter(range(1_000, 2_000))
    return [
        beat("a", epoch, sequence=next(sequences), process_id=PROCESS),
        beat("a", epoch, frozenset(), sequence=next(sequences), process_id=PROCESS),
        beat("a", -1, sequence=next(sequences), process_id=PROCESS),
        PrepareRequest(group_id=GROUP, member_id="a", member_epoch=epoch, process_id=PROCESS),
        InstallRequest(group_id=GROUP, member_id="a", member_epoch=epoch, group_epoch=epoch, process_id=PROCESS),
        UpdateConnectorsRequest(group_id=GROUP, member_id="a", changes=add("d").changes, process_id=PROCESS),
    ]


async def test_another_principal_with_the_name_of_a_live_member_is_refused() -> None:
    async with serving() as coordinator:
        epoch = await joined(coordinator)
        before = await look(coordinator)
        for principal in OTHERS:
            refused = await ask(coordinator, beat("a", sequence=1_000, process_id=PROCESS), principal)
            assert refused.error_code == UnreleasedInstanceId.code
            assert "in use by a process of another principal, at test (machine-1)" in refused.error_message
            assert ALICE not in refused.error_message
        assert await look(coordinator) == before
        assert (await ask(coordinator, beat("a", epoch, sequence=11, process_id=PROCESS))).error_code == 0


@pytest.mark.parametrize("principal", OTHERS)
async def test_request_of_another_principal_changes_nothing(principal: str) -> None:
    async with serving() as coordinator:
        epoch = await joined(coordinator)
        before = await look(coordinator)
        for request in of_member(epoch):
            response = await ask(coordinator, request, principal)
            assert response.error_code == FencedInstanceId.code, type(request).__name__
        assert await look(coordinator) == before
        accepted = await ask(coordinator, beat("a", epoch, sequence=11, process_id=PROCESS))
        assert accepted.error_code == 0, "neither fenced, nor taken for a late copy"


async def test_kept_outcome_of_a_heartbeat_is_not_for_another_principal() -> None:
    """The outcome of a heartbeat that reports nothing is kept: an equal one is not decided again."""
    async with serving() as coordinator:
        epoch = await joined(coordinator)
        for principal, code in ((ALICE, 0), (BOB, FencedInstanceId.code), (ALICE, 0)):
            assert (await ask(coordinator, beat("a", epoch, process_id=PROCESS), principal)).error_code == code


async def test_heartbeats_of_another_principal_do_not_extend_the_session() -> None:
    async with serving() as coordinator:
        epoch = await joined(coordinator)
        for _ in range(12):
            await ask(coordinator, beat("a", epoch, process_id=PROCESS), BOB)
            await asyncio.sleep(settings().session_timeout_ms / 10_000)
        assert (await look(coordinator)).members == ()


async def test_heartbeat_of_another_principal_leaves_the_parked_heartbeat_of_the_member_parked() -> None:
    async with serving() as coordinator:
        epoch = await joined(coordinator)
        waiting = beat("a", epoch, sequence=11, process_id=PROCESS, max_wait_ms=5_000)
        parked = asyncio.create_task(ask(coordinator, waiting))
        await asyncio.sleep(0.1)
        await ask(coordinator, beat("a", epoch, sequence=1_000, process_id=PROCESS), BOB)
        await asyncio.sleep(0.1)
        assert not parked.done()
        assert (await parked).error_code == 0


async def test_sequences_of_another_principal_make_no_request_a_late_copy() -> None:
    """Bob knows Alice's process id before her worker joins, and is a member himself for a moment."""
    async with serving() as coordinator:
        for epoch in (0, -1):
            mine = beat("a", epoch, sequence=(1 << 60) - epoch, process_id=PROCESS)
            assert (await ask(coordinator, mine, BOB)).error_code == 0
        assert (await ask(coordinator, beat("a", sequence=1, process_id=PROCESS))).error_code == 0
        late = await ask(coordinator, beat("a", sequence=1, process_id=PROCESS))
        assert late.error_code == StaleMemberEpoch.code


async def test_name_is_free_for_another_principal_once_its_process_has_left() -> None:
    async with serving() as coordinator:
        epoch = await joined(coordinator)
        assert (await ask(coordinator, beat("a", -1, sequence=11, process_id=PROCESS))).error_code == 0
        assert (await ask(coordinator, beat("a", sequence=1, process_id=2), BOB)).error_code == 0
        refused = await ask(coordinator, beat("a", epoch, sequence=12, process_id=2))
        assert refused.error_code == FencedInstanceId.code


async def test_member_belongs_to_its_principal_after_a_failover() -> None:
    log = MemoryLog()
    async with serving(log) as coordinator:
        epoch = await joined(coordinator)
    async with serving(log) as coordinator:
        before = await look(coordinator)
        refused = await ask(coordinator, beat("a", sequence=1_000, process_id=PROCESS), BOB)
        assert refused.error_code == UnreleasedInstanceId.code
        for request in of_member(epoch):
            assert (await ask(coordinator, request, BOB)).error_code == FencedInstanceId.code
        assert await look(coordinator) == before
        assert (await ask(coordinator, beat("a", epoch, sequence=11, process_id=PROCESS))).error_code == 0


async def test_member_of_an_earlier_version_belongs_to_any_principal_until_it_joins_again() -> None:
    log = MemoryLog()
    async with serving(log) as coordinator:
        epoch = await joined(coordinator)
        await log.append([replace(served(coordinator).members["a"], principal=None)])
    async with serving(log) as coordinator:
        stays = beat("a", epoch, process_id=PROCESS)
        assert (await ask(coordinator, stays, BOB)).error_code == 0
        assert (await ask(coordinator, replace(stays, process_id=2), BOB)).error_code == FencedInstanceId.code
        assert (await ask(coordinator, beat("a", process_id=PROCESS))).error_code == 0
        assert (await ask(coordinator, stays, BOB)).error_code == FencedInstanceId.code


async def test_supervisor_in_the_coordinators_process_leaves_for_a_dead_worker_of_any_principal() -> None:
    async with serving() as coordinator:
        await joined(coordinator)
        leave = beat("a", -1, process_id=PROCESS)
        assert (await ask(coordinator, replace(leave, process_id=2), None)).error_code == FencedInstanceId.code
        assert (await ask(coordinator, leave, None)).error_code == 0
        assert (await look(coordinator)).members == ()


@pytest.mark.parametrize(("principal", "left"), [(ALICE, set()), (BOB, {"a"}), ("", {"a"})])
async def test_lost_connection_of_another_principal_ends_no_member(principal: str, left: set[str]) -> None:
    """Its last heartbeat names a process that has ended, and the right process id."""
    async with serving(group=settings(session_timeout_ms=600_000)) as coordinator:
        coordinator.lost_connections.has_ended = lambda process: process == OS_PROCESS
        epoch = await joined(coordinator)
        last = beat("a", epoch, process_id=PROCESS, os_process=OS_PROCESS)
        coordinator.lost_connections.on_lost(last, principal)
        await asyncio.sleep(5)
        assert set(served(coordinator).members) == left


# ---- members of the classic protocol


def join(beat: HeartbeatRequest) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=GROUP,
        session_timeout_ms=10_000,
        member_id="a",
        protocol_type="connect",
        protocols=(OfferedProtocol(name=WORKER_PROTOCOL, metadata=encode_request(beat)),),
    )


def leave(sequence: int) -> LeaveGroupRequest:
    last = encode_request(beat("a", -1, sequence=sequence, process_id=PROCESS))
    return LeaveGroupRequest(group_id=GROUP, members=(LeavingMember(member_id="a", metadata=last),))


def code_of(response: Any) -> int:
    """The error of the response, or of the only member in it."""
    code: int = max(response.error_code, *(each.error_code for each in getattr(response, "members", ())), 0)
    return code


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("principal", OTHERS)
async def test_request_of_another_principal_about_a_classic_member_changes_nothing(
    principal: str, restarted: bool
) -> None:
    log = MemoryLog()
    async with serving(log) as coordinator:
        await ask(coordinator, add(), BOB)
        for sequence in (9, 10):
            assert (await ask(coordinator, join(beat("a", sequence=sequence, process_id=PROCESS)))).error_code == 0
        generation = served(coordinator).current("a").epoch
        if not restarted:
            await refuses(coordinator, principal, generation)
    if restarted:
        async with serving(log) as coordinator:
            await refuses(coordinator, principal, generation)


async def refuses(coordinator: Coordinator, principal: str, generation: int) -> None:
    before = await look(coordinator)
    sync = SyncGroupRequest(group_id=GROUP, generation_id=generation, member_id="a")
    stays = GroupHeartbeatRequest(group_id=GROUP, generation_id=generation, member_id="a")
    rejoins = join(beat("a", sequence=1_000, process_id=PROCESS))
    again = join(beat("a", generation, frozenset(), sequence=1_001, process_id=PROCESS, rebalance_timeout_ms=60_000))
    expected: list[tuple[Request, type[GroupError]]] = [
        (rejoins, UnreleasedInstanceId),
        (again, FencedInstanceId),
        (sync, FencedInstanceId),
        (stays, FencedInstanceId),
        (leave(1_002), FencedInstanceId),
        *((request, FencedInstanceId) for request in of_member(generation)[-3:]),
    ]
    for request, error in expected:
        assert code_of(await ask(coordinator, request, principal)) == error.code, type(request).__name__
    assert await look(coordinator) == before
    assert code_of(await ask(coordinator, stays)) == 0
    for code in (0, StaleMemberEpoch.code):  # the second is a late copy
        assert code_of(await ask(coordinator, join(beat("a", sequence=11, process_id=PROCESS)))) == code
    assert code_of(await ask(coordinator, leave(12))) == 0
    assert (await look(coordinator)).members == ()


async def test_classic_heartbeats_of_another_principal_do_not_extend_the_session() -> None:
    async with serving() as coordinator:
        joining = await ask(coordinator, join(beat("a", sequence=9, process_id=PROCESS)))
        stays = GroupHeartbeatRequest(group_id=GROUP, generation_id=joining.generation_id, member_id="a")
        for _ in range(12):
            await ask(coordinator, stays, BOB)
            await asyncio.sleep(settings().session_timeout_ms / 10_000)
        assert (await look(coordinator)).members == ()


async def test_operator_removes_a_classic_member_of_any_principal() -> None:
    """A LeaveGroup without metadata is one of Kafka's tools, whose user is none of the workers'."""
    async with serving() as coordinator:
        assert (await ask(coordinator, join(beat("a", sequence=9, process_id=PROCESS)))).error_code == 0
        removal = LeaveGroupRequest(group_id=GROUP, members=(LeavingMember(member_id="a"),))
        assert code_of(await ask(coordinator, removal, BOB)) == 0
        assert (await look(coordinator)).members == ()
