"""Liveness: what must happen in bounded time, and what must not repeat: L1 - L7."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from connectgroup.coordinator.compute import LIMIT_S
from connectgroup.member.state_machine import Phase
from connectgroup.protocol.messages.api import Request
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest
from connectgroup.protocol.records.connect import ComputationRecord, GroupRecord, Record, TargetRecord
from connectgroup.protocol.units import Unit, show

from ..setting import MAX_SLOW_START_S, MAX_START_S
from .base import Batch, Invariant

if TYPE_CHECKING:
    from ..cluster import WorkerNode
    from .watch import Watch

MAX_HEARTBEATS_PER_SECOND = 50
"""No worker sends more than this: retries back off, and tasks that end together are reported together."""


class GroupConverges(Invariant):
    """L1, L3: after the last fault the group converges within a time that is known beforehand.

    Converged (``FaultSchedule.not_settled``): the members are the live workers, the group is stable, every task runs on
    its owner (tasks of dead workers elsewhere: L3), and every row of every source is visible.
    """

    ids = "L1"

    @property
    def bound_s(self) -> float:
        """Session timeouts, slow stops and slow assignors in a row, then what was pending when the faults ended."""
        cluster = self.cluster
        retries = cluster.settings.failures_before_fallback + 1
        interval_s = cluster.settings.heartbeat_interval_ms / 1000
        # A slow stop takes up to three rebalance timeouts, the same again where a listener hangs; a write up to four
        # sessions, twice in a row; and a failed task is restarted after eight seconds.
        left_over_s = 6 * cluster.rebalance_s + 4 * cluster.session_s + 8
        return (
            cluster.session_s
            + cluster.rebalance_s
            + 6.0 * retries
            + 4 * interval_s
            + left_over_s
            # The last task that starts slowly, then the moves that have waited for it, and their starts.
            + 2 * (MAX_SLOW_START_S + MAX_START_S) * (1 + cluster.setting.drift)
            + cluster.setting.delay_s * (1 + cluster.setting.drift)
            # Heartbeats of a former process of the same name arrive for two more sessions (KAFKA-16639).
            + 2 * cluster.session_s
            # The operator first restores every connector, one by one.
            + 4 * 2 * 3
        )

    def on_rest(self) -> None:
        self._epoch = self.durable.epoch

    def on_over(self) -> None:
        if self.durable.epoch != self._epoch:
            self.broken(f"settled, and epoch {self._epoch} became {self.durable.epoch}")


class NoRebalanceStorm(Invariant):
    """L2: the group epoch advances by at most two per event (KAFKA-12495).

    Events: a fault counts once for each worker it touches (faults of the coordinator, the disk and the network may
    touch all); each change by the operator, each start of a worker and each change of a source counts once, and so does
    a target assignment that defers moves of starting units (PD-16): one more round follows. After the faults only
    their remaining effects may change the group: each worker, and each connector.
    """

    ids = "L2"
    records = GroupRecord, TargetRecord

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._epochs = self._deferring = 0
        self._allowed: float | None = None

    def on_record(self, record: Record, batch: Batch) -> None:
        if isinstance(record, GroupRecord):
            self._epochs += 1
        elif isinstance(record, TargetRecord) and record.deferred_starts and record.epoch > self.durable.target_epoch:
            self._deferring += 1

    def on_batch(self, batch: Batch) -> None:
        if not self._epochs_counted(batch):
            return
        if self.cluster.setting.max_moves:
            return  # one event may take many rounds
        # The end of a delay is one more epoch beside the loss and the return.
        limit = 3 if self.cluster.setting.delay_s else 2
        happened = self.watch.happened + sum(self.cluster.hits.values()) + self._deferring
        if self._epochs > limit * happened + 2:
            self.broken(f"{self._epochs} epochs for {happened} events")
            self._epochs = -1_000_000
        elif self._allowed is not None and self._epochs > self._allowed + self._deferring:
            self.broken(
                f"{self._epochs} epochs since the last fault, {self._allowed + self._deferring:.0f} are allowed"
            )
            self._allowed = None

    def _epochs_counted(self, batch: Batch) -> bool:
        return self.durable.epoch > batch.epoch_before

    def on_over(self) -> None:
        self._allowed = None  # from now on the smoke phase changes the group

    def on_quiet(self) -> None:
        touched = self.durable.members.keys() | {node.member_id for node in self.cluster.living()}
        self._epochs = self._deferring = 0
        # Each worker may leave and rejoin once more; each connector is restored, and its tasks follow.
        limit = 3 if self.cluster.setting.delay_s else 2
        self._allowed = (
            limit * len(touched) + 2 * len(self.cluster.operator.changes) + 2 * len(self.durable.connectors) + 2
        )


class NoBusySpin(Invariant):
    """L2: no worker sends without pause, and once converged none sends more often than needed (KAFKA-20253)."""

    ids = "L2"

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._second = 0
        self._beats: Counter[str] = Counter()
        self._all: Counter[str] = Counter()
        self._at_rest: Counter[str] = Counter()
        self._rest_s = 0.0

    def on_request(self, node: WorkerNode, request: Request) -> None:
        if not isinstance(request, HeartbeatRequest):
            return
        second = int(self.cluster.loop.now)
        if second != self._second:
            self._second = second
            self._beats.clear()
        self._beats[node.name] += 1
        # A status, of a task that has started late, takes one request more, and one more for the parked heartbeat.
        self._all[node.name] += -1 if request.statuses else 1
        if self._beats[node.name] == MAX_HEARTBEATS_PER_SECOND:
            self.broken(f"{node.name} has sent {MAX_HEARTBEATS_PER_SECOND} heartbeats within a second")

    def on_rest(self) -> None:
        self._at_rest, self._rest_s = self._all.copy(), self.cluster.loop.now

    def on_over(self) -> None:
        cluster = self.cluster
        interval_s = cluster.settings.heartbeat_interval_ms / 1000
        if cluster.max_wait_ms:
            interval_s = min(interval_s, cluster.max_wait_ms / 1000)
        rest_s = cluster.loop.now - self._rest_s
        limit = 2 * rest_s * (1 + cluster.setting.drift) / interval_s + 2
        for node in cluster.living():
            beaten = self._all[node.name] - self._at_rest[node.name]
            if beaten > limit:
                self.broken(f"{node.name} sent {beaten} heartbeats in {rest_s:.0f} s after convergence")


class FencedMemberRejoins(Invariant):
    """L4: a live worker that the group removed stops its tasks, rejoins at epoch 0 and is served in bounded time.

    The bound is the session timeout and two intervals, from when the worker has released its units. The release is
    bounded by what the worker waits for: the call under way, the tasks, the listeners. A start that hung for longer
    completes late, and its task is stopped at once.
    """

    ids = "L4"

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._away_s: dict[str, tuple[float, Phase]] = {}
        self._late_s: dict[tuple[str, Unit, int], float] = {}

    def on_started(self, node: WorkerNode, unit: Unit, epoch: int) -> None:
        # The worker may almost have finished waiting for the lost units by then.
        if node.worker.member.phase in (Phase.LOSING, Phase.JOINING):
            self._late_s[node.name, unit, epoch] = self.cluster.loop.now

    def on_stopped(self, node: WorkerNode, unit: Unit, epoch: int) -> None:
        self._late_s.pop((node.name, unit, epoch), None)

    def _overstays(self, node: WorkerNode) -> list[Unit]:
        now_s, max_s = self.cluster.loop.now, self.cluster.rebalance_s
        return [
            unit
            for unit, epoch in node.running.keys() - self.watch.void
            if now_s - self._late_s.get((node.name, unit, epoch), -max_s) >= max_s
        ]

    def on_tick(self) -> None:
        cluster, now_s, members = self.cluster, self.cluster.loop.now, self.durable.members
        interval_s = cluster.settings.heartbeat_interval_ms / 1000
        for node in cluster.workers.values():
            phase = node.worker.member.phase
            if (phase is Phase.MEMBER and node.member_id in members) or phase in (Phase.LEAVING, Phase.GONE):
                if node.name in self._away_s:
                    del self._away_s[node.name]
                continue
            if node.dead or node.stop_requested_s is not None or cluster.has_twin(node.member_id):
                continue
            since = self._away_s.get(node.name)
            if since is None or since[1] is not phase:
                since = self._away_s[node.name] = now_s, phase
            away_s = min(now_s - since[0], self.watch.calm.undisturbed_s(node.name))
            max_s = cluster.session_s * (1 + cluster.setting.drift) + 2 * interval_s + 2
            if phase is Phase.LOSING:
                # Three waits of at most ``lose_timeout_s`` each, and one for a call that hung before.
                max_s += 4 * 1.5 * cluster.rebalance_s * (1 + cluster.setting.drift)
            if away_s > max_s:
                self.broken(f"{node.name} has been {phase} for {away_s:.1f} s undisturbed")
                del self._away_s[node.name]
            elif (
                phase is Phase.JOINING
                and "a stop overstays" not in cluster.setting.fault_rates
                and (left := self._overstays(node))
            ):
                self.broken(f"{node.name} joins and still runs {show(left)}")


class StaleTargetIsComputed(Invariant):
    """L5: a stale target is being computed, and a computing member that does not respond is replaced."""

    ids = "L5"
    records = (ComputationRecord,)

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._since_s = 0.0

    def on_record(self, record: Record, batch: Batch) -> None:
        before = self.durable.computation
        if isinstance(record, ComputationRecord) and (before is None or _attempt(before) != _attempt(record)):
            self._since_s = self.cluster.loop.now

    def on_batch(self, batch: Batch) -> None:
        durable = self.durable
        if durable.epoch > durable.target_epoch and durable.members:
            # A computation continues when the group epoch advances; a failed server-side attempt is for one epoch.
            computation = durable.computation
            in_progress = computation is not None and (computation.member_id or computation.prepared)
            if computation is None or computation.epoch <= (durable.target_epoch if in_progress else durable.epoch - 1):
                self.broken(f"the target is of {durable.target_epoch}, the group at {durable.epoch}, no computation")

    def on_tick(self) -> None:
        durable, since_s = self.durable, self.watch.calm.service_s
        if since_s is None or durable.epoch <= durable.target_epoch or not durable.members:
            return
        waited_s = self.cluster.loop.now - max(since_s, self._since_s)
        computation = durable.computation
        on_coordinator = computation is not None and not computation.member_id
        # A failed server-side assignor is called again after the session timeout.
        limit_s = max(self.cluster.session_s, LIMIT_S) if on_coordinator else self.cluster.rebalance_s
        if waited_s > limit_s * (1 + self.cluster.setting.drift) + 1.5:
            self.broken(f"{durable.computation} has been in progress for {waited_s:.1f} s")


def _attempt(record: ComputationRecord) -> tuple[object, ...]:
    """The identity of an attempt; for the coordinator's own also whether it is in progress or has failed."""
    in_progress = record.prepared and not record.member_id
    return record.epoch, record.member_id, record.failures, in_progress


class CoordinatorRecovers(Invariant):
    """L6: a started coordinator serves within ten seconds, once the disk can be read."""

    ids = "L6"

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._starting_s: dict[str, float] = {}

    def on_tick(self) -> None:
        disk, now_s = self.cluster.disk, self.cluster.loop.now
        node = self.cluster.serving
        if node is None or node.coordinator is not None:
            self._starting_s.clear()
            return
        if node.stopped or disk.faults or disk.slow > 1 or disk.stalled is not None:
            self._starting_s[node.name] = now_s
        if now_s - self._starting_s.setdefault(node.name, now_s) > 10:
            self.broken(f"{node.name} has not served for 10 s")


class EveryRequestGetsAResponse(Invariant):
    """L7: no request waits at a coordinator for longer than a heartbeat may be parked, while it can write."""

    ids = "L7"

    def on_tick(self) -> None:
        since_s, cluster = self.watch.calm.service_s, self.cluster
        if since_s is None or not cluster.handling:
            return
        now_s = cluster.loop.now
        bound_s = cluster.settings.max_park_ms / 1000 * (1 + cluster.setting.drift) + 1.5
        newest = cluster.disk.storage.epoch
        for arrival in cluster.handling.values():
            if now_s - arrival.at_s > bound_s < now_s - since_s and arrival.peer.log.epoch == newest:
                self.broken(f"{arrival.request} has no response after {now_s - arrival.at_s:.1f} s")
