"""Commit and fetch of offsets. The group type decides which members may commit and fetch (``Check``).

Source: Kafka's ``OffsetMetadataManager``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ...errors import GroupError, InvalidRequest, OffsetMetadataTooLarge
from ...protocol.messages.offsets import (
    FetchedGroup,
    FetchedPartition,
    FetchedTopic,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    PartitionCommit,
    PartitionCommitted,
    TopicCommitted,
    TopicToFetch,
)
from ...protocol.records.offsets import OffsetRecord
from .state import Offsets

MAX_METADATA_BYTES: Final = 4_096
"""Limit on the metadata committed with an offset (Kafka's ``offset.metadata.max.bytes``)."""

Check = Callable[[str, int], int]
"""Why the offset of a topic and partition may not be committed by the sender: an error code, or 0."""


def commit(
    request: OffsetCommitRequest, check: Check, now_ms: int
) -> tuple[OffsetCommitResponse, tuple[OffsetRecord, ...]]:
    """Commit the offsets of a sender that is known to the group; each partition is decided by itself."""
    records: list[OffsetRecord] = []
    topics = []
    for topic in request.topics:
        partitions = []
        for each in topic.partitions:
            code = check(topic.name, each.partition_index) or _violation(each)
            if not code:
                records.append(
                    OffsetRecord(
                        group_id=request.group_id,
                        topic=topic.name,
                        partition=each.partition_index,
                        offset=each.committed_offset,
                        leader_epoch=each.committed_leader_epoch,
                        metadata=each.committed_metadata or "",
                        at_ms=now_ms,
                    )
                )
            partitions.append(PartitionCommitted(partition_index=each.partition_index, error_code=code))
        topics.append(TopicCommitted(name=topic.name, partitions=tuple(partitions)))
    return OffsetCommitResponse(topics=tuple(topics)), tuple(records)


def _violation(commit: PartitionCommit) -> int:
    if commit.committed_offset < 0 or commit.partition_index < 0:
        return InvalidRequest.code
    metadata = commit.committed_metadata or ""
    return OffsetMetadataTooLarge.code if len(metadata.encode()) > MAX_METADATA_BYTES else 0


def refused_commit(request: OffsetCommitRequest, error: GroupError) -> OffsetCommitResponse:
    """The response that rejects the commit of every partition."""
    return commit(request, lambda topic, partition: error.code, 0)[0]


def fetch(offsets: Offsets, request: OffsetFetchRequest) -> OffsetFetchResponse:
    """The committed offsets of one group; -1 for a partition without one."""
    return answer(request, _fetched(offsets, _topics_of(request)), 0)


def refused_fetch(request: OffsetFetchRequest, error: GroupError) -> OffsetFetchResponse:
    """The response that rejects a request. Version 1 has no error of the group: each partition carries it."""
    topics = tuple(
        FetchedTopic(name=topic.name, partitions=tuple(_nothing(each, error.code) for each in topic.partition_indexes))
        for topic in _topics_of(request) or ()
    )
    return answer(request, topics, error.code)


def answer(request: OffsetFetchRequest, topics: tuple[FetchedTopic, ...], error_code: int) -> OffsetFetchResponse:
    """The response about one group, in the form of the request's version."""
    if not request.groups:
        return OffsetFetchResponse(topics=topics, error_code=error_code)
    group = FetchedGroup(group_id=request.groups[0].group_id, topics=topics, error_code=error_code)
    return OffsetFetchResponse(groups=(group,))


def _topics_of(request: OffsetFetchRequest) -> tuple[TopicToFetch, ...] | None:
    return request.groups[0].topics if request.groups else request.topics


def _fetched(offsets: Offsets, topics: tuple[TopicToFetch, ...] | None) -> tuple[FetchedTopic, ...]:
    if topics is None:
        topics = tuple(TopicToFetch(name=name, partition_indexes=each) for name, each in offsets.topics().items())
    return tuple(
        FetchedTopic(
            name=topic.name,
            partitions=tuple(_shown(offsets.get(topic.name, each), each) for each in topic.partition_indexes),
        )
        for topic in topics
    )


def _shown(record: OffsetRecord | None, partition: int) -> FetchedPartition:
    if record is None:
        return _nothing(partition, 0)
    return FetchedPartition(
        partition_index=partition,
        committed_offset=record.offset,
        committed_leader_epoch=record.leader_epoch,
        metadata=record.metadata,
        error_code=0,
    )


def _nothing(partition: int, code: int) -> FetchedPartition:
    return FetchedPartition(partition_index=partition, committed_offset=-1, metadata="", error_code=code)
