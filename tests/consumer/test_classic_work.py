"""The group work of a member of a classic group, against a scripted coordinator."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")

from connectgroup.consumer.classic import ClassicMembership
from connectgroup.consumer.client import GroupClient
from connectgroup.consumer.commits import Commits
from connectgroup.consumer.offsets import Position
from connectgroup.consumer.ownership import Ownership
from connectgroup.consumer.problems import Problems
from connectgroup.consumer.reading import Reading
from connectgroup.consumer.settings import ConsumerSettings
from connectgroup.consumer.work import ClassicWork
from connectgroup.plugins import load_partition_assignor
from connectgroup.protocol.messages.classic import JoinGroupRequest, JoinGroupResponse, SyncGroupResponse
from connectgroup.protocol.messages.embedded import Assignment
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
        share = encode_assignment(Assignment(partitions=frozenset({KEPT})))
        return SyncGroupResponse(error_code=0, assignment=share)


@pytest.mark.parametrize(("generation", "called"), [(2, "revoked"), (3, "lost")])
async def test_partitions_are_lost_if_a_generation_began_without_the_member(generation: int, called: str) -> None:
    """A static member whose JoinGroup was late: their new owner has committed meanwhile."""
    settings = ConsumerSettings(bootstrap="127.0.0.1:9", group="g", topics=("t",), instance="i")
    coordinator, listener = NextGeneration(generation), RecordingListener()
    client = cast("GroupClient", coordinator)
    assignors = [load_partition_assignor("cooperative-sticky")]
    membership = ClassicMembership(client, settings, assignors)
    reading = Reading(settings, GroupClient("127.0.0.1:9", "g", "c"))
    ownership = Ownership(membership, reading, Commits(client, settings, membership, reading), listener)
    work = ClassicWork(settings, assignors, membership, ownership)
    membership.in_group, membership.generation, membership.member_id = True, 1, "m"
    ownership.owned = frozenset({KEPT, TAKEN})
    reading.positions.update({KEPT: Position(5), TAKEN: Position(5)})

    assert await work.step()
    assert membership.round is not None
    await asyncio.wait({membership.round})
    assert await work.step()
    assert ownership.owned == {KEPT}
    assert listener.names == [called]
    assert bool(coordinator.commits) is (called == "revoked")
    await reading.close()
