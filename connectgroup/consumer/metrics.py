"""What is measured of a group consumer: heartbeats, rebalances and callbacks (KIP-429)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, Final

from ..telemetry.metric_table import Scope
from ..telemetry.metrics import MetricSource, Rebalances, Value, Window, register, unregister

CALLBACKS: Final = ("on_assigned", "on_revoked", "on_lost")


class ConsumerMetrics(MetricSource):
    """The metrics of one consumer, from its first ``poll`` to its close."""

    scope: ClassVar[Scope] = "consumer"

    def __init__(self, group: str, member_id: Callable[[], str]) -> None:
        """``member_id``: the member id now; empty before the coordinator has assigned one."""
        self._group, self._member_id = group, member_id
        self._syncs, self._rebalances = Window(), Rebalances()
        windows = self._rebalances.assigned, self._rebalances.revoked, self._rebalances.lost
        self._callbacks = dict(zip(CALLBACKS, windows, strict=True))

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
        self._rebalances.sent_s = time.monotonic()

    def on_heartbeat(self, began_s: float) -> None:
        """A heartbeat was answered."""
        _record(self._rebalances.heartbeats, began_s)

    def on_joined(self, began_s: float) -> None:
        """JoinGroup has succeeded."""
        _record(self._rebalances.joins, began_s)

    def on_synced(self, began_s: float) -> None:
        """SyncGroup has succeeded."""
        _record(self._syncs, began_s)

    def on_rebalance(self, began_s: float, *, failed: bool) -> None:
        """A rebalance is complete, or has failed."""
        _record(self._rebalances.failed if failed else self._rebalances.completed, began_s)
        if not failed:
            self._rebalances.completed_s = time.monotonic()

    def on_callback(self, event: str, began_s: float) -> None:
        """A callback of the listener has returned; ``event`` is one of ``CALLBACKS``."""
        _record(self._callbacks[event], began_s)

    # ---- values

    def parts(self) -> Iterable[MetricSource]:
        """The consumer, once it has a member id."""
        return (self,) if self._member_id() else ()

    def values(self) -> Mapping[str, Value]:
        """See ``MetricSource.values``."""
        now_s = time.monotonic()
        return {
            **self._rebalances.values(now_s),
            "sync-total": self._syncs.count,
            "sync-rate": self._syncs.events_per_hour(now_s) / 3600,
            "sync-time-avg": self._syncs.average(now_s),
            "sync-time-max": self._syncs.maximum(now_s),
        }


def _record(window: Window, began_s: float) -> None:
    now_s = time.monotonic()
    window.record((now_s - began_s) * 1000, now_s)
