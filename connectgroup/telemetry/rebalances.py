"""What is measured of every member of a group: heartbeats, joins, rebalances and callbacks (KIP-429)."""

from __future__ import annotations

from collections.abc import Mapping

from .window import Window


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
