"""The group work of a member of a classic group, against a scripted coordinator."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")

from connectgroup.consumer.classic import ClassicMembership
from connectgroup.consumer.client import GroupClient
from connectgroup.consumer.errors import Code, Problems
from connectgroup.consumer.offsets import ReadPosition
from connectgroup.consumer.ownership import Commits, PartitionOwnership
from connectgroup.consumer.reading import Reading
from connectgroup.consumer.settings import GroupConsumerSettings
from connectgroup.consumer.work import ClassicWork
from connectgroup.plugins import load_partition_assignor
from connectgroup.protocol.messages.classic import (
    EmbeddedAssignment,
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    OfferedProtocol,
    SyncGroupResponse,
)
from connectgroup.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    PartitionCommitted,
    TopicCommitted,
)
from connectgroup.protocol.units import TopicPartition
from connectgroup.wire.embedded import encode_assignment

from .inside import RecordingListener

KEPT, TAKEN = TopicPartition("t", 0), TopicPartition("t", 1)


class NextGeneration:
    """Takes the place of a ``GroupClient``: the leader of the next generation takes a partition from the member."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.commits: list[OffsetCommitRequest] = []
        self.problems = Problems("g")

    async def send_to_coordinator(self, request: Any, **_: object) -> Any:
        if isinstance(request, JoinGroupRequest):
            return JoinGroupResponse(
                error_code=0,
                generation_id=self.generation,
                protocol_name="cooperative-sticky",
                leader="other",
                member_id="m",
            )
        if isinstance(request, OffsetCommitRequest):
            self.commits.append(request)
            committed = tuple(PartitionCommitted(partition_index=at, error_code=0) for at in (0, 1))
            return OffsetCommitResponse(topics=(TopicCommitted(name="t", partitions=committed),))
        share = encode_assignment(EmbeddedAssignment(partitions=frozenset({KEPT})))
        return SyncGroupResponse(error_code=0, assignment=share)


def member(
    settings: GroupConsumerSettings, coordinator: NextGeneration, listener: RecordingListener
) -> tuple[ClassicMembership, PartitionOwnership, Reading, ClassicWork]:
    """The parts of the member ``m`` of generation 1, which owns both partitions."""
    client = cast("GroupClient", coordinator)
    assignors = [load_partition_assignor("cooperative-sticky")]
    membership = ClassicMembership(client, settings, assignors)
    reading = Reading(settings, GroupClient("127.0.0.1:9", "g", "c"))
    ownership = PartitionOwnership(membership, reading, Commits(client, settings, membership, reading), listener)
    work = ClassicWork(settings, assignors, membership, ownership)
    membership.in_group, membership.generation, membership.member_id = True, 1, "m"
    ownership.owned = frozenset({KEPT, TAKEN})
    reading.positions.update({KEPT: ReadPosition(5), TAKEN: ReadPosition(5)})
    return membership, ownership, reading, work


@pytest.mark.parametrize(("generation", "called"), [(2, ["revoked"]), (3, ["lost", "assigned"])])
async def test_partitions_are_lost_if_a_generation_began_without_the_member(generation: int, called: list[str]) -> None:
    """A static member whose JoinGroup was late: others have committed meanwhile, also for what it gets again."""
    settings = GroupConsumerSettings(bootstrap="127.0.0.1:9", group="g", topics=("t",), instance="i")
    coordinator, listener = NextGeneration(generation), RecordingListener()
    membership, ownership, reading, work = member(settings, coordinator, listener)

    assert await work.step()
    assert membership.round is not None
    await asyncio.wait({membership.round})
    assert await work.step()
    assert ownership.owned == {KEPT}
    assert listener.names == called
    assert bool(coordinator.commits) is (called == ["revoked"])
    assert (KEPT in reading.positions) is (called == ["revoked"]), "otherwise it begins at the committed offset"
    await reading.close()


class LateHeartbeat:
    """Takes the place of a ``GroupClient``: a heartbeat is answered when the JoinGroup after it has been decided."""

    def __init__(self) -> None:
        self.beats, self.decided, self.answered = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def send_to_coordinator(self, request: Any, **_: object) -> Any:
        if isinstance(request, GroupHeartbeatRequest):
            self.beats.set()
            await self.decided.wait()
            asyncio.get_running_loop().call_soon(self.answered.set)
            return GroupHeartbeatResponse(error_code=Code.ILLEGAL_GENERATION)
        if isinstance(request, JoinGroupRequest):
            self.decided.set()  # the group is at generation 2, and the response is on its way
            await self.answered.wait()
            await asyncio.sleep(0)
            return JoinGroupResponse(
                error_code=0, generation_id=2, protocol_name="cooperative-sticky", leader="other", member_id="m"
            )
        return SyncGroupResponse(
            error_code=0, assignment=encode_assignment(EmbeddedAssignment(partitions=frozenset({KEPT})))
        )


async def test_heartbeat_of_the_former_generation_does_not_end_a_membership_that_is_joining() -> None:
    """Its first response was lost, and it is repeated while JoinGroup is unanswered."""
    settings = GroupConsumerSettings(
        bootstrap="127.0.0.1:9", group="g", topics=("t",), heartbeat_interval_ms=10, session_timeout_ms=60_000
    )
    coordinator = LateHeartbeat()
    membership = ClassicMembership(
        cast("GroupClient", coordinator), settings, [load_partition_assignor("cooperative-sticky")]
    )
    membership.in_group, membership.generation, membership.member_id = True, 1, "m"
    beating = asyncio.create_task(membership.beat())
    async with asyncio.timeout(60):
        await coordinator.beats.wait()
        membership.begin_round(lambda: (OfferedProtocol(name="cooperative-sticky", metadata=b""),))
        assert membership.round is not None
        await asyncio.wait({membership.round})
    joined = membership.take_round()
    assert joined is not None
    assert (joined.generation, membership.in_group, membership.losses) == (2, True, 0)
    beating.cancel()
    await asyncio.gather(beating, return_exceptions=True)


class Removed(NextGeneration):
    """The member ``m`` is removed while its JoinGroup waits: the response to a heartbeat sent before says so first."""

    def __init__(self) -> None:
        super().__init__(5)
        self.joins: list[str] = []
        self.beats, self.joining, self.refused = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def send_to_coordinator(self, request: Any, **named: object) -> Any:
        if isinstance(request, GroupHeartbeatRequest):
            self.beats.set()
            await self.joining.wait()
            asyncio.get_running_loop().call_soon(self.refused.set)
            return GroupHeartbeatResponse(error_code=Code.UNKNOWN_MEMBER_ID)
        if isinstance(request, JoinGroupRequest):
            self.joins.append(request.member_id)
            if request.member_id == "m":
                self.joining.set()
                await self.refused.wait()
                await asyncio.sleep(0)
                return JoinGroupResponse(error_code=Code.UNKNOWN_MEMBER_ID, member_id="m")
        return await super().send_to_coordinator(request, **named)


async def test_member_that_is_removed_while_it_joins_releases_its_partitions_before_it_joins_again() -> None:
    """They belong to others: a commit of the new member would set their offsets back."""
    settings = GroupConsumerSettings(
        bootstrap="127.0.0.1:9", group="g", topics=("t",), heartbeat_interval_ms=10, session_timeout_ms=60_000
    )
    coordinator, listener = Removed(), RecordingListener()
    membership, ownership, reading, work = member(settings, coordinator, listener)
    beating = asyncio.create_task(membership.beat())
    async with asyncio.timeout(60):
        await coordinator.beats.wait()
        membership.request_rejoin("the group is rebalancing")
        assert await work.step()
        assert membership.round is not None
        await asyncio.wait({membership.round})
        while ownership.owned:
            assert await work.step()
        assert (listener.names, coordinator.joins) == (["lost"], ["m"])
        while ownership.owned != {KEPT}:
            assert await work.step()
            if membership.round is not None:
                await asyncio.wait({membership.round})
    assert (coordinator.joins, coordinator.commits) == (["m", ""], [])
    beating.cancel()
    await asyncio.gather(beating, return_exceptions=True)
    await reading.close()
