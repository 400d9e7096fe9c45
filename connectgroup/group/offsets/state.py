"""The committed offsets of one group, derived from records."""

from __future__ import annotations

from ...protocol.records.base import Kind, Tombstone
from ...protocol.records.connect import Record
from ...protocol.records.offsets import OffsetRecord


class Offsets:
    """The committed offsets of one group, by topic and partition."""

    def __init__(self) -> None:
        self._committed: dict[str, dict[int, OffsetRecord]] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Offsets) and self._committed == other._committed

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return sum(map(len, self._committed.values()))

    def apply(self, record: Record) -> None:
        """Apply one record of the log; other records than those of offsets are ignored."""
        match record:
            case OffsetRecord():
                self._committed.setdefault(record.topic, {})[record.partition] = record
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
        """The records of all offsets, sorted by topic and partition."""
        return tuple(
            self._committed[topic][partition] for topic, partitions in self.topics().items() for partition in partitions
        )

    def tombstones(self) -> tuple[Tombstone, ...]:
        """The records that delete all offsets."""
        return tuple(Tombstone(record.key) for record in self.records())
