"""Committed offsets of a group, per partition: fetch and commit.

The coordinator accepts a commit only from a current member: every commit carries member id and generation, and a stale
one is rejected.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import groupby
from typing import Any, NamedTuple

from ..protocol.messages.offsets import (
    GroupToFetch,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    PartitionCommit,
    TopicCommit,
    TopicToFetch,
)
from ..protocol.units import TopicPartition
from .client import REQUEST_TIMEOUT_S, GroupClient
from .errors import GENERATION_PASSED, MEMBERSHIP_LOST, BrokerError, Code, CommitRefused
from .membership import Membership


class ReadPosition(NamedTuple):
    """A read position: the offset of the next record, and the leader epoch of the one before it (-1 unknown)."""

    offset: int
    leader_epoch: int = -1


async def committed(
    client: GroupClient, group_id: str, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, ReadPosition]:
    """Return the group's committed positions; partitions without one are omitted.

    Raises:
        TransportError: no response.
        BrokerError: rejected.
    """
    topics = tuple(
        TopicToFetch(name=topic, partition_indexes=tuple(each.partition for each in of_topic))
        for topic, of_topic in by_topic(partitions)
    )
    request = OffsetFetchRequest(
        group_id=group_id, topics=topics, groups=(GroupToFetch(group_id=group_id, topics=topics),), require_stable=True
    )
    response: OffsetFetchResponse = await client.send_to_coordinator(request, line="offsets", codes=_fetch_codes)
    found: dict[TopicPartition, ReadPosition] = {}
    if response.first.error_code:
        raise BrokerError(f"offsets of group {group_id!r}", response.first.error_code)
    for topic in response.first.topics:
        for each in topic.partitions:
            if each.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION:
                continue
            if each.error_code:
                raise BrokerError(f"offset of {topic.name}-{each.partition_index}", each.error_code)
            if each.committed_offset >= 0:
                position = ReadPosition(each.committed_offset, each.committed_leader_epoch)
                found[TopicPartition(topic.name, each.partition_index)] = position
    return found


async def commit(
    client: GroupClient, membership: Membership, positions: Mapping[TopicPartition, ReadPosition]
) -> set[TopicPartition]:
    """Commit as the member of ``membership``; return the partitions whose offsets were accepted, that is, all of them.

    Raises:
        CommitRefused: the member is no longer in the group; ``membership`` has been updated.
        BrokerError: rejected for another reason.
        TransportError: no response.
    """
    settings, losses = membership.settings, membership.losses
    while positions:
        # A member that has joined again meanwhile does not own the partitions any more.
        if not membership.in_group or membership.losses != losses:
            why = membership.lost_because or "it has joined again"
            raise CommitRefused(f"commit to group {settings.group!r}: no longer in it: {why}")
        member_id, generation = membership.member_id, membership.generation
        codes = await send_commit(
            client,
            positions,
            group_id=settings.group,
            member_id=member_id,
            instance_id=settings.instance,
            generation=generation,
            timeout_s=REQUEST_TIMEOUT_S,
        )
        refused = {partition: code for partition, code in codes.items() if code != Code.NONE}
        if not refused:
            break
        partition, code = min(refused.items())
        if code not in MEMBERSHIP_LOST | GENERATION_PASSED:
            raise BrokerError(f"commit of {partition}", code)
        if await membership.next_generation(code, generation):
            continue
        # A member that has joined again meanwhile may have the same id and epoch as before.
        sent_as = (member_id, generation, losses)
        if code in MEMBERSHIP_LOST and (membership.member_id, membership.generation, membership.losses) == sent_as:
            membership.refused(code, "OffsetCommit")
        raise CommitRefused(f"commit to group {settings.group!r}", code)
    return set(positions)


async def send_commit(
    client: GroupClient,
    positions: Mapping[TopicPartition, ReadPosition],
    *,
    group_id: str,
    member_id: str,
    instance_id: str | None,
    generation: int,
    timeout_s: float,
) -> dict[TopicPartition, int]:
    """Commit; return the error code of each partition, 0 if accepted.

    Raises:
        TransportError: no response; the commit may have been accepted.
    """
    request = OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=instance_id,
        topics=tuple(
            TopicCommit(name=topic, partitions=tuple(_commit(each, positions[each]) for each in of_topic))
            for topic, of_topic in by_topic(positions)
        ),
    )
    response: OffsetCommitResponse = await client.send_to_coordinator(
        request, line="offsets", timeout_s=timeout_s, codes=_commit_codes
    )
    return {
        TopicPartition(topic.name, each.partition_index): each.error_code
        for topic in response.topics
        for each in topic.partitions
    }


def by_topic(partitions: Iterable[TopicPartition]) -> list[tuple[str, list[TopicPartition]]]:
    """The partitions of each topic, all sorted."""
    grouped = groupby(sorted(partitions), key=lambda partition: partition.topic)
    return [(topic, list(of_topic)) for topic, of_topic in grouped]


def _commit(partition: TopicPartition, position: ReadPosition) -> PartitionCommit:
    return PartitionCommit(
        partition_index=partition.partition,
        committed_offset=position.offset,
        committed_leader_epoch=position.leader_epoch,
        committed_metadata="",
    )


def _commit_codes(response: Any) -> set[int]:
    return {each.error_code for topic in response.topics for each in topic.partitions}


def _fetch_codes(response: Any) -> set[int]:
    within = {each.error_code for topic in response.first.topics for each in topic.partitions}
    # A transaction is about to commit offsets: retry until it has (KIP-447).
    return {Code.REQUEST_TIMED_OUT if code == Code.UNSTABLE_OFFSET_COMMIT else code for code in within} | {
        response.first.error_code
    }
