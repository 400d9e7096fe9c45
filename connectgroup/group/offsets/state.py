"""The committed offsets of one group, derived from records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...protocol.records.base import Kind, Tombstone
from ...protocol.records.connect import Record
from ...protocol.records.consumer import OffsetRecord, PendingOffsetRecord, TopicMetadata
from ...protocol.units import NO_TOPIC_ID

Topics = Mapping[str, TopicMetadata] | None
"""All topics of the cluster by name; ``None``: they are not known, so a topic is its name."""


Place = tuple[str, int]
"""A topic by its name, and a partition."""


def exists(topics: Topics, topic: str, partition: int) -> bool:
    """Whether the cluster has a partition, as far as its topics are known."""
    if topics is None:
        return True
    known = topics.get(topic)
    return known is not None and 0 <= partition < known.num_partitions


def is_of(topics: Topics, record: OffsetRecord | PendingOffsetRecord) -> bool:
    """Whether an offset was committed to the topic that has the name now, not to a former one.

    A record without a topic id was written before the topics were known: it belongs to the topic of that name.
    """
    if topics is None:
        return True
    known = topics.get(record.topic)
    if known is None or record.topic_id not in (NO_TOPIC_ID, known.topic_id):
        return False
    return record.partition < known.num_partitions


class Offsets:
    """The committed offsets of one group, by topic and partition.

    Attributes:
        pending: what transactions have committed whose outcome is not known yet; ``apply`` changes it.
    """

    def __init__(self) -> None:
        self._committed: dict[str, dict[int, OffsetRecord]] = {}
        self.pending: dict[Place, PendingOffsetRecord] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Offsets) and (self._committed, self.pending) == (other._committed, other.pending)

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return sum(map(len, self._committed.values())) + len(self.pending)

    def apply(self, record: Record) -> None:
        """Apply one record of the log; other records than those of offsets are ignored."""
        match record:
            case OffsetRecord():
                self._committed.setdefault(record.topic, {})[record.partition] = record
            case PendingOffsetRecord():
                self.pending[record.topic, record.partition] = record
            case Tombstone(key=key) if key.kind is Kind.PENDING_OFFSET:
                topic, _, partition = key.name.rpartition("\n")
                self.pending.pop((topic, int(partition)), None)
            case Tombstone(key=key) if key.kind is Kind.OFFSET:
                topic, _, partition = key.name.rpartition("\n")
                of_topic = self._committed.get(topic, {})
                of_topic.pop(int(partition), None)
                if not of_topic:
                    self._committed.pop(topic, None)

    def topics(self) -> dict[str, tuple[int, ...]]:
        """The partitions with a committed offset, by topic, sorted."""
        return {topic: tuple(sorted(self._committed[topic])) for topic in sorted(self._committed)}

    def get(self, topic: str, partition: int) -> OffsetRecord | None:
        """The committed offset of a partition, or ``None``."""
        return self._committed.get(topic, {}).get(partition)

    def records(self) -> tuple[OffsetRecord, ...]:
        """The records of the committed offsets, sorted by topic and partition."""
        return tuple(
            self._committed[topic][partition] for topic, partitions in self.topics().items() for partition in partitions
        )

    def changes(self, topics: Topics) -> tuple[Record, ...]:
        """The records that make the offsets agree with the topics of the cluster.

        The offsets of a topic that was deleted, or deleted and created again, are removed. An offset without a topic id
        gets that of the topic: from then on it belongs to this topic only.
        """
        if topics is None:
            return ()
        gone = tuple(Tombstone(each.key) for each in self.pending.values() if not is_of(topics, each))
        return gone + tuple(
            replace(record, topic_id=topics[record.topic].topic_id) if is_of(topics, record) else Tombstone(record.key)
            for record in self.records()
            if record.topic_id == NO_TOPIC_ID or not is_of(topics, record)
        )

    def every_record(self) -> tuple[OffsetRecord | PendingOffsetRecord, ...]:
        """The records of all offsets, also of those of transactions."""
        return (*self.records(), *(self.pending[place] for place in sorted(self.pending)))

    def tombstones(self) -> tuple[Tombstone, ...]:
        """The records that delete all offsets."""
        return tuple(Tombstone(record.key) for record in self.every_record())

    def deletion(self, topic: str, partition: int) -> tuple[Tombstone, ...]:
        """The records that delete what is stored of one partition."""
        stored = (self.get(topic, partition), self.pending.get((topic, partition)))
        return tuple(Tombstone(record.key) for record in stored if record is not None)
