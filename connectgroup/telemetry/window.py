"""Averages, maxima and rates of the last minute, as Kafka's metrics compute them.

So is measured what every member of a group has: heartbeats, joins, rebalances and callbacks (KIP-429).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

SAMPLE_S: Final = 30.0
"""Kafka's ``metrics.sample.window.ms``."""

SAMPLES: Final = 2
"""Kafka's ``metrics.num.samples``."""


@dataclass(slots=True)
class _Sample:
    started_s: float
    count: int = 0
    total: float = 0.0
    highest: float = 0.0


class Window:
    """The values of the last 30 to 60 seconds, and the sum of all. Values are not negative.

    Methods take the time in seconds on any monotonic clock, always the same one.

    Attributes:
        count: how many values were ever recorded.
        total: their sum.
    """

    __slots__ = ("_samples", "count", "total")

    def __init__(self) -> None:
        self.count, self.total = 0, 0.0
        self._samples: tuple[_Sample, ...] = ()

    def record(self, value: float, now_s: float) -> None:
        """Add a value."""
        self.count += 1
        self.total += value
        if not self._samples or now_s - self._samples[-1].started_s >= SAMPLE_S:
            self._samples = (*self._recent(now_s), _Sample(now_s))[-SAMPLES:]
        sample = self._samples[-1]
        sample.count += 1
        sample.total += value
        sample.highest = max(sample.highest, value)

    def average(self, now_s: float) -> float | None:
        """The average of the recent values; ``None`` if there are none."""
        recent = self._recent(now_s)
        # A reader in another thread may see a sample that has no value yet.
        count = sum(sample.count for sample in recent)
        return sum(sample.total for sample in recent) / count if count else None

    def maximum(self, now_s: float) -> float | None:
        """The highest of the recent values; ``None`` if there are none."""
        return max((sample.highest for sample in self._recent(now_s)), default=None)

    def rate(self, now_s: float) -> float:
        """The sum of the recent values per second."""
        recent = self._recent(now_s)
        if not recent:
            return 0.0
        # At least one full sample: a single value just recorded is not an infinite rate (Kafka's ``Rate``).
        return sum(sample.total for sample in recent) / max(now_s - recent[0].started_s, (SAMPLES - 1) * SAMPLE_S)

    def events_per_hour(self, now_s: float) -> float:
        """The number of recent values, extrapolated to an hour."""
        recent = self._recent(now_s)
        if not recent:
            return 0.0
        elapsed_s = max(now_s - recent[0].started_s, (SAMPLES - 1) * SAMPLE_S)
        return 3600 * sum(sample.count for sample in recent) / elapsed_s

    def _recent(self, now_s: float) -> list[_Sample]:
        return [sample for sample in self._samples if now_s - sample.started_s < SAMPLES * SAMPLE_S]


class Rebalances:
    """The heartbeats and rebalances of one member; durations are in milliseconds.

    Attributes:
        heartbeats: their response times.
        joins: the time until the join was answered.
        completed, failed: the time of rebalances.
        assigned, revoked, lost: the time of the callbacks, or of the actions that include them.
        sent_s: when the last heartbeat was sent.
        completed_s: when the last rebalance was complete.
    """

    def __init__(self) -> None:
        self.heartbeats, self.joins = Window(), Window()
        self.completed, self.failed = Window(), Window()
        self.assigned, self.revoked, self.lost = Window(), Window(), Window()
        self.sent_s: float | None = None
        self.completed_s: float | None = None

    def values(self, now_s: float) -> Mapping[str, float | None]:
        """The values by Kafka's name of the metric; ``now_s`` is of the clock of all times recorded here."""
        values: dict[str, float | None] = {
            "heartbeat-total": self.heartbeats.count,
            "heartbeat-rate": self.heartbeats.events_per_hour(now_s) / 3600,
            "heartbeat-response-time-max": self.heartbeats.maximum(now_s),
            "last-heartbeat-seconds-ago": -1 if self.sent_s is None else now_s - self.sent_s,
            "join-total": self.joins.count,
            "join-rate": self.joins.events_per_hour(now_s) / 3600,
            "join-time-avg": self.joins.average(now_s),
            "join-time-max": self.joins.maximum(now_s),
            "rebalance-total": self.completed.count,
            "rebalance-rate-per-hour": self.completed.events_per_hour(now_s),
            "rebalance-latency-avg": self.completed.average(now_s),
            "rebalance-latency-max": self.completed.maximum(now_s),
            "rebalance-latency-total": self.completed.total,
            "failed-rebalance-total": self.failed.count,
            "failed-rebalance-rate-per-hour": self.failed.events_per_hour(now_s),
            "last-rebalance-seconds-ago": None if self.completed_s is None else now_s - self.completed_s,
        }
        for event, window in (("assigned", self.assigned), ("revoked", self.revoked), ("lost", self.lost)):
            values[f"partition-{event}-latency-avg"] = window.average(now_s)
            values[f"partition-{event}-latency-max"] = window.maximum(now_s)
        return values
