"""Settings of committed offsets, for groups of all types."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetSettings:
    """Settings of committed offsets. The defaults are Kafka's.

    Attributes:
        retention_ms: how long offsets are kept that no member uses (``offsets.retention.minutes``).
        check_interval_ms: interval between two searches for them (``offsets.retention.check.interval.ms``).
        max_metadata: limit on the metadata of an offset, in UTF-16 code units (``offset.metadata.max.bytes``).
    """

    retention_ms: int = 7 * 24 * 60 * 60 * 1_000
    check_interval_ms: int = 600_000
    max_metadata: int = 4_096
