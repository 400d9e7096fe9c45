"""The record of a committed offset, for groups of any type."""

from __future__ import annotations

from dataclasses import dataclass

from ..units import NO_TOPIC_ID
from .base import Key, Kind


def offset_name(topic: str, partition: int) -> str:
    """The name in the key of a committed offset."""
    return f"{topic}\n{partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRecord:
    """A committed offset (Kafka's OffsetCommitValue).

    Attributes:
        offset: the offset of the next record to read.
        leader_epoch: the leader epoch of the record before it, -1 unknown.
        metadata: the member's own.
        at_ms: the coordinator's wall clock.
        topic_id: *(tagged)* the topic: one that is created again under the name is another topic. Zero if the
            coordinator did not know the topics of the cluster, and in records of earlier versions.
    """

    group_id: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    at_ms: int = 0
    topic_id: str = NO_TOPIC_ID

    @property
    def key(self) -> Key:
        return Key(Kind.OFFSET, self.group_id, offset_name(self.topic, self.partition))


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCommit:
    """An offset that is committed if its transaction is.

    Attributes:
        token: identifies the request; the broker stores it as the metadata of its own copy of the offset.
        offset, leader_epoch, metadata, at_ms: as in ``OffsetRecord``.
    """

    token: str
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    at_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingOffsetRecord:
    """The offsets of a partition that transactions have committed and whose outcome is not known here yet.

    Attributes:
        topic_id: as in ``OffsetRecord``.
        commits: in the order of their requests; at most ``MAX_PENDING``.
    """

    group_id: str
    topic: str
    partition: int
    topic_id: str = NO_TOPIC_ID
    commits: tuple[PendingCommit, ...] = ()

    @property
    def key(self) -> Key:
        return Key(Kind.PENDING_OFFSET, self.group_id, offset_name(self.topic, self.partition))
