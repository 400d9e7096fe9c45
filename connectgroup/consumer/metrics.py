"""What is measured of a group consumer: heartbeats, rebalances and callbacks (KIP-429)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, Final

from ..telemetry.metric_table import Scope
from ..telemetry.metrics import Source, Value, register, unregister
from ..telemetry.window import Window

CALLBACKS: Final = ("on_assigned", "on_revoked", "on_lost")


class ConsumerMetrics(Source):
    """The metrics of one consumer, from its first ``poll`` to its close."""

    scope: ClassVar[Scope] = "consumer"

    def __init__(self, group: str, member_id: Callable[[], str]) -> None:
        """``member_id``: the member id now; empty before the coordinator has assigned one."""
        self._group, self._member_id = group, member_id
        self._heartbeats, self._joins, self._syncs = Window(), Window(), Window()
        self._rebalances, self._failed = Window(), Window()
        self._callbacks = {event: Window() for event in CALLBACKS}
        self._sent_s: float | None = None
        self._completed_s: float | None = None

    @property
    def labels(self) -> Mapping[str, str]:  # type: ignore[override]
        """Group and member id: unlike the client id, it is unique."""
        return {"group": self._group, "consumer": self._member_id()}

    # ---- events; each ``began_s`` is of ``time.monotonic``

    def begin(self) -> None:
        """The consumer starts."""
        register(self)

    def end(self) -> None:
        """The consumer is closed."""
        unregister(self)

    def on_heartbeat_sent(self) -> None:
        """A heartbeat is sent."""
        self._sent_s = time.monotonic()

    def on_heartbeat(self, began_s: float) -> None:
        """A heartbeat was answered."""
        _record(self._heartbeats, began_s)

    def on_joined(self, began_s: float) -> None:
        """JoinGroup has succeeded."""
        _record(self._joins, began_s)

    def on_synced(self, began_s: float) -> None:
        """SyncGroup has succeeded."""
        _record(self._syncs, began_s)

    def on_rebalance(self, began_s: float, *, failed: bool) -> None:
        """A rebalance is complete, or has failed."""
        _record(self._failed if failed else self._rebalances, began_s)
        if not failed:
            self._completed_s = time.monotonic()

    def on_callback(self, event: str, began_s: float) -> None:
        """A callback of the listener has returned; ``event`` is one of ``CALLBACKS``."""
        _record(self._callbacks[event], began_s)

    # ---- values

    def parts(self) -> Iterable[Source]:
        """The consumer, once it has a member id."""
        return (self,) if self._member_id() else ()

    def values(self) -> Mapping[str, Value]:
        """See ``Source.values``."""
        now_s, rebalances, failed = time.monotonic(), self._rebalances, self._failed
        heartbeats, joins, syncs = self._heartbeats, self._joins, self._syncs
        assigned, revoked, lost = (self._callbacks[event] for event in CALLBACKS)
        return {
            "heartbeat-total": heartbeats.count,
            "heartbeat-rate": heartbeats.events_per_hour(now_s) / 3600,
            "heartbeat-response-time-max": heartbeats.maximum(now_s),
            "last-heartbeat-seconds-ago": -1 if self._sent_s is None else now_s - self._sent_s,
            "join-total": joins.count,
            "join-rate": joins.events_per_hour(now_s) / 3600,
            "join-time-avg": joins.average(now_s),
            "join-time-max": joins.maximum(now_s),
            "sync-total": syncs.count,
            "sync-rate": syncs.events_per_hour(now_s) / 3600,
            "sync-time-avg": syncs.average(now_s),
            "sync-time-max": syncs.maximum(now_s),
            "rebalance-total": rebalances.count,
            "rebalance-rate-per-hour": rebalances.events_per_hour(now_s),
            "rebalance-latency-avg": rebalances.average(now_s),
            "rebalance-latency-max": rebalances.maximum(now_s),
            "rebalance-latency-total": rebalances.total,
            "failed-rebalance-total": failed.count,
            "failed-rebalance-rate-per-hour": failed.events_per_hour(now_s),
            "last-rebalance-seconds-ago": None if self._completed_s is None else now_s - self._completed_s,
            "partition-assigned-latency-avg": assigned.average(now_s),
            "partition-assigned-latency-max": assigned.maximum(now_s),
            "partition-revoked-latency-avg": revoked.average(now_s),
            "partition-revoked-latency-max": revoked.maximum(now_s),
            "partition-lost-latency-avg": lost.average(now_s),
            "partition-lost-latency-max": lost.maximum(now_s),
        }


def _record(window: Window, began_s: float) -> None:
    now_s = time.monotonic()
    window.record((now_s - began_s) * 1000, now_s)
