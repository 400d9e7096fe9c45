"""When an automatic commit is due, and which commits are refused."""

from __future__ import annotations

from typing import cast

import pytest

pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")

from connectgroup.consumer.client import GroupClient
from connectgroup.consumer.epochs import EpochMembership
from connectgroup.consumer.errors import Code, CommitRefused
from connectgroup.consumer.membership import Membership
from connectgroup.consumer.offsets import ReadPosition, commit
from connectgroup.consumer.ownership import Commits
from connectgroup.consumer.reading import Reading
from connectgroup.consumer.settings import GroupConsumerSettings
from connectgroup.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    PartitionCommitted,
    TopicCommitted,
)
from connectgroup.protocol.units import TopicPartition


class Rebalancing:
    """A membership during a rebalance."""

    is_rebalancing = True


class OneReturned:
    """A reading of which one record was returned, and is not committed."""

    def uncommitted(self) -> dict[TopicPartition, ReadPosition]:
        return {TopicPartition("t", 0): ReadPosition(1)}


@pytest.mark.parametrize(("interval_ms", "due"), [(0, True), (1, False), (None, False)])
def test_only_an_interval_of_zero_commits_during_a_rebalance(interval_ms: int | None, due: bool) -> None:
    settings = GroupConsumerSettings(
        bootstrap="127.0.0.1:9", group="g", topics=("t",), auto_commit_interval_ms=interval_ms
    )
    client = GroupClient("127.0.0.1:9", "g", "c")
    commits = Commits(client, settings, cast("Membership", Rebalancing()), cast("Reading", OneReturned()))
    assert commits.is_due() is due


class AdvancedCoordinator:
    """Takes the place of a ``GroupClient``: the member has another epoch than it sends."""

    def __init__(self) -> None:
        self.sent: list[OffsetCommitRequest] = []

    async def send_to_coordinator(self, request: OffsetCommitRequest, **_: object) -> OffsetCommitResponse:
        self.sent.append(request)
        code = Code.STALE_MEMBER_EPOCH if request.generation_id_or_member_epoch == 1 else Code.NONE
        committed = PartitionCommitted(partition_index=0, error_code=code)
        return OffsetCommitResponse(topics=(TopicCommitted(name="t", partitions=(committed,)),))


class JoinsAgain(EpochMembership):
    """A membership that ends while a commit waits for the new epoch; the member has joined again when it has it."""

    async def next_generation(self, code: int, generation: int) -> bool:
        self.lose("removed", forget_id=False)
        self.in_group, self.generation, self.lost_because = True, 3, ""
        return True


async def test_commit_of_partitions_lost_since_is_refused_although_the_member_has_joined_again() -> None:
    """Their new owner has committed meanwhile; the coordinator accepts what a member at its current epoch sends."""
    settings = GroupConsumerSettings(bootstrap="127.0.0.1:9", group="g", topics=("t",), group_protocol="consumer")
    coordinator = AdvancedCoordinator()
    membership = JoinsAgain(cast("GroupClient", coordinator), settings, ())
    membership.in_group, membership.generation = True, 1
    with pytest.raises(CommitRefused, match="has joined again"):
        await commit(cast("GroupClient", coordinator), membership, {TopicPartition("t", 0): ReadPosition(1)})
    assert [request.generation_id_or_member_epoch for request in coordinator.sent] == [1]


class RemovedMeanwhile:
    """Takes the place of a ``GroupClient``: the member is removed, and has joined again when the response arrives."""

    membership: EpochMembership

    async def send_to_coordinator(self, request: OffsetCommitRequest, **_: object) -> OffsetCommitResponse:
        self.membership.lose("removed", forget_id=False)
        self.membership.in_group, self.membership.generation = True, 1
        committed = PartitionCommitted(partition_index=0, error_code=Code.UNKNOWN_MEMBER_ID)
        return OffsetCommitResponse(topics=(TopicCommitted(name="t", partitions=(committed,)),))


async def test_rejected_commit_of_a_former_membership_does_not_end_the_present_one() -> None:
    """Both have the same member id, and the same epoch while no assignment has been computed in between."""
    settings = GroupConsumerSettings(bootstrap="127.0.0.1:9", group="g", topics=("t",), group_protocol="consumer")
    coordinator = RemovedMeanwhile()
    membership = EpochMembership(cast("GroupClient", coordinator), settings, ())
    coordinator.membership = membership
    membership.in_group, membership.generation = True, 1
    with pytest.raises(CommitRefused, match="UNKNOWN_MEMBER_ID"):
        await commit(cast("GroupClient", coordinator), membership, {TopicPartition("t", 0): ReadPosition(1)})
    assert membership.in_group
