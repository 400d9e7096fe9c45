"""What is measured of a worker: heartbeats, joins, rebalances, computations. ``telemetry.metrics`` exports it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Final

from ..errors import ComputeAssignment
from ..member.actions import Action, Assign, ComputeTarget, Drain, Fail, Lose, Restart, Revoke
from ..member.state_machine import Member, Phase
from ..protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ..protocol.units import JOIN_EPOCH
from ..telemetry.metric_table import Scope
from ..telemetry.metrics import MetricSource, Rebalances, Window, forget, register
from ..threads import clock_of

_NO_REBALANCE: Final = (ComputeTarget, Restart, Drain)
"""Actions that do not change what the worker runs."""


class WorkerMetrics(MetricSource):
    """The metrics of one worker, from ``begin`` to ``end``.

    A rebalance of a worker begins with its join, or with a response that changes its epoch or its units. It is complete
    when the worker has a later epoch than before and has performed all actions. Units that other workers release later
    arrive at the same epoch: they belong to the same rebalance.
    """

    scope: ClassVar[Scope] = "worker"

    def __init__(self, member: Member) -> None:
        """``member``: the worker's state machine; read, never changed."""
        self.labels: Mapping[str, str] = {"group": member.settings.group_id, "worker": member.settings.member_id}
        self._computation_failures = self._lapses = 0
        self._member = member
        self._clock: Callable[[], float] = time.monotonic
        self._computations, self._rebalances = Window(), Rebalances()
        self._performed: dict[type[Action], Window] = {
            Assign: self._rebalances.assigned,
            Revoke: self._rebalances.revoked,
            Lose: self._rebalances.lost,
        }
        self._rebalancing_since: float | None = None
        self._joining_since: float | None = None
        self._completed_epoch = JOIN_EPOCH
        self._is_busy = self._has_revoked = False

    # ---- events

    def begin(self) -> None:
        """The worker starts to join. Call this on the event loop."""
        self._clock = clock_of(asyncio.get_running_loop())
        self._rebalancing_since = self._joining_since = self._clock()
        register(self)

    def end(self) -> None:
        """The worker has left: neither it nor its units are exported any more."""
        forget(**self.labels)

    def on_sent(self) -> None:
        """A heartbeat is sent."""
        self._rebalances.sent_s = self._clock()

    def on_response(self, request: HeartbeatRequest, response: HeartbeatResponse) -> None:
        """A heartbeat was answered."""
        now_s = self._clock()
        if self._rebalances.sent_s is not None:
            self._rebalances.heartbeats.record((now_s - self._rebalances.sent_s) * 1000, now_s)
        accepted = response.error_code in (0, ComputeAssignment.code)
        if self._joining_since is not None and accepted and request.member_epoch == JOIN_EPOCH:
            self._rebalances.joins.record((now_s - self._joining_since) * 1000, now_s)
            self._joining_since = None

    def on_actions(self, actions: Sequence[Action]) -> None:
        """The member has decided these actions, possibly none, and they have been queued."""
        changes = [action for action in actions if not isinstance(action, _NO_REBALANCE)]
        if any(isinstance(action, Lose | Fail) for action in changes):
            if self._rebalancing_since is not None:
                self._rebalances.failed.record(1, self._clock())
            self._rebalancing_since = self._clock()
        elif (changes or self._member.epoch != self._completed_epoch) and self._rebalancing_since is None:
            self._rebalancing_since = self._clock()
        self._is_busy = self._is_busy or bool(changes)
        self._settle()

    def on_lapse(self) -> None:
        """The lease has expired, and fenced units run on."""
        self._lapses += 1

    def on_performed(self, action: Action, seconds: float) -> None:
        """An action has been performed."""
        now_s = self._clock()
        if type(action) in self._performed:
            self._performed[type(action)].record(seconds * 1000, now_s)
        if isinstance(action, Revoke):
            self._has_revoked = True
        elif isinstance(action, Lose | Fail):
            self._completed_epoch, self._has_revoked = JOIN_EPOCH, False
            self._joining_since = now_s

    def on_idle(self) -> None:
        """All queued actions have been performed."""
        self._is_busy = False
        self._settle()

    def on_computed(self, seconds: float, *, failed: bool) -> None:
        """An assignor has returned, or was abandoned."""
        self._computations.record(seconds * 1000, self._clock())
        self._computation_failures += failed

    def _settle(self) -> None:
        """End the rebalance if it is complete."""
        if self._rebalancing_since is None or self._is_busy or self._member.phase is not Phase.MEMBER:
            return
        epoch, now_s = self._member.epoch, self._clock()
        if epoch > self._completed_epoch:
            self._rebalances.completed.record((now_s - self._rebalancing_since) * 1000, now_s)
            self._completed_epoch, self._rebalances.completed_s, self._has_revoked = epoch, now_s, False
            self._rebalancing_since = None
        elif epoch > JOIN_EPOCH and not self._has_revoked:
            self._rebalancing_since = None

    def values(self) -> Mapping[str, float | None]:
        """See ``MetricSource.values``."""
        now_s, completed_s = self._clock(), self._rebalances.completed_s
        runs, units = self._computations, self._member.owned.copy()
        return {
            **self._rebalances.values(now_s),
            "completed-rebalances-total": self._rebalances.completed.count,
            "epoch": max(self._member.epoch, JOIN_EPOCH),
            "rebalancing": self._rebalancing_since is not None,
            "rebalance-avg-time-ms": self._rebalances.completed.average(now_s),
            "rebalance-max-time-ms": self._rebalances.completed.maximum(now_s),
            "time-since-last-rebalance-ms": None if completed_s is None else (now_s - completed_s) * 1000,
            "assigned-connectors": sum(unit.is_connector for unit in units),
            "assigned-tasks": sum(not unit.is_connector for unit in units),
            "lost-total": self._rebalances.lost.count,
            "lease-expirations-total": self._lapses,
            "units-without-lease": len(units) if self._member.lapsed else 0,
            "coordinator-silence-ms": self._member.silent_ms(round(now_s * 1000)) if self._member.lapsed else 0,
            "computations-total": runs.count,
            "computation-failures-total": self._computation_failures,
            "computation-avg-time-ms": runs.average(now_s),
            "computation-max-time-ms": runs.maximum(now_s),
        }
