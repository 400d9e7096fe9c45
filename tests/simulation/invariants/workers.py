"""What a worker guarantees to its tasks and listeners: S11, S12, X5, X6, L7."""

from __future__ import annotations

from typing import TYPE_CHECKING

from connectgroup.member.state_machine import Phase
from connectgroup.protocol.messages.api import Request
from connectgroup.protocol.messages.common import units_of
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest
from connectgroup.protocol.units import STATIC_LEAVE_EPOCH, Unit, Units, show

from .base import FENCED, UNKNOWN_MEMBER, Change, Invariant, SentResponse

if TYPE_CHECKING:
    from ..cluster import WorkerNode
    from .watch import Watch


class NoSkippedRevocation(Invariant):
    """S11: a released unit has stopped, and its listeners were called once, before the worker acknowledges."""

    ids = "S11"

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._open: dict[str, set[Unit]] = {}
        self._lost: dict[str, int] = {}

    def on_request(self, node: WorkerNode, request: Request) -> None:
        if not isinstance(request, HeartbeatRequest) or request.owned is None or request.member_epoch <= 0:
            return
        owned = units_of(request.owned)
        unsaid = [grant for grant in node.running if grant[0] not in owned and grant not in self.watch.void]
        if unsaid:
            self.broken(f"{node.name} runs {unsaid} and does not report it")
        unlisted = node.listener_units - owned
        if unlisted:
            self.broken(f"{node.name} acknowledges {show(unlisted)} before on_revoked")

    def on_change(self, change: Change) -> None:
        if change.anew or change.record is None or change.record.epoch == STATIC_LEAVE_EPOCH:
            for node in self.watch.nodes_of(change.member_id):
                node.listener_units = frozenset()

    def on_listener(self, node: WorkerNode, event: str, units: Units, what: str) -> None:
        name, lost = node.name, node.worker.lost
        listener_units = self._open.setdefault(name, set())
        if what == "begins":
            self._lost[name] = lost
            if event == "on_assigned":
                if listener_units & units:
                    self.broken(f"{name}: {show(listener_units & units)} assigned twice")
                listener_units |= units
            else:
                if event == "on_revoked" and units - listener_units:
                    self.broken(f"{name}: {show(units - listener_units)} revoked, and never assigned")
                listener_units -= units
                if event == "on_lost":
                    # Nothing is acknowledged; the worker abandons a call that hangs, and joins again.
                    node.listener_units -= units
            return
        if event == "on_assigned" and lost == self._lost[name]:
            node.listener_units |= units
        elif event == "on_lost" or what == "ends":
            node.listener_units -= units
        if event == "on_lost" and node.member_id in self.durable.members:
            self.cluster.sometimes.reach("a lease ended before the member was removed")

    def on_rest(self) -> None:
        for node in self.cluster.living():
            listener_units, owned = self._open.get(node.name, set()), node.worker.member.owned.keys()
            if listener_units != owned:
                self.broken(f"settled: {node.name} owns {show(owned)}, its listener has {show(listener_units)}")


class FencedUnitsRunOn(Invariant):
    """PD-10: a lease ends units that are not fenced; others are lost only once the group has taken them away."""

    ids = "PD-10"

    def on_listener(self, node: WorkerNode, event: str, units: Units, what: str) -> None:
        member = node.worker.member
        if event != "on_lost" or what != "begins" or member.retiring:
            return
        # A call that a listener had missed while it hung is of a former loss: the member may own the units again.
        units = units & member.lapsing if member.phase is Phase.MEMBER else units
        kept = {unit for unit, epoch in member.owned.items() if unit in units and (unit, epoch) not in self.watch.void}
        fenced = {unit for unit in kept - member.unfenced if not unit.is_connector}
        if member.phase is Phase.MEMBER:
            self.cluster.sometimes.reach("fenced units ran on after the lease, others stopped")
        elif kept & member.unfenced:
            return  # a unit that had to stop with the lease has not: the worker gives up its membership
        if fenced:
            self.broken(f"{node.name} loses {show(fenced)}, which its sink fences")

    def on_response_sent(self, sent: SentResponse) -> None:
        if not isinstance(sent.request, HeartbeatRequest) or sent.copy:
            return
        if any(node.worker.member.lapsed for node in self.watch.nodes_of(sent.request.member_id)):
            if sent.code == 0:
                self.cluster.sometimes.reach("units that had run on without a lease were still their worker's")
            elif sent.code in (FENCED, UNKNOWN_MEMBER):
                self.cluster.sometimes.reach("a worker heard after its lease that it had been removed")


class StoppedBeforeOnRevoked(Invariant):
    """X6: ``on_revoked`` is called when none of the revoked units runs any more."""

    ids = "X6"

    def on_listener(self, node: WorkerNode, event: str, units: Units, what: str) -> None:
        if event == "on_revoked" and what == "begins":
            runs = {unit for unit, epoch in node.running if unit in units and (unit, epoch) not in self.watch.void}
            if runs:
                self.broken(f"{node.name}: on_revoked of {show(runs)}, which still runs")


class CallbacksDoNotOverlap(Invariant):
    """S12: one callback of a worker at a time, and none once it has ended."""

    ids = "S12"

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._busy: dict[str, str] = {}

    def on_listener(self, node: WorkerNode, event: str, units: Units, what: str) -> None:
        if what != "begins":
            self._busy.pop(node.name, None)
            return
        if node.name in self._busy:
            self.broken(f"{node.name}: {event} during {self._busy[node.name]}")
        if node.ended:
            self.broken(f"{node.name}: {event} after it has ended")
        self._busy[node.name] = event


class StopEnds(Invariant):
    """L7: a worker that was requested to stop does so in bounded time, whatever hangs, and leaves nothing running."""

    ids = "L7"

    @property
    def bound_s(self) -> float:
        """Releasing, losing, the last stop and the leave, each bounded by a setting of the worker."""
        return 4 * 1.5 * self.cluster.rebalance_s + 3 * 3 + 5

    def on_tick(self) -> None:
        now_s, bound_s = self.cluster.loop.now, self.bound_s
        for node in self.cluster.workers.values():
            requested_s = node.stop_requested_s
            if requested_s is None or node.dead or now_s - requested_s <= bound_s:
                continue
            if self.watch.calm.nodes_s.get(node.name, now_s) <= requested_s:
                self.broken(f"{node.name} has been stopping for {now_s - requested_s:.1f} s")

    def on_ended(self, node: WorkerNode) -> None:
        left = [grant for grant in node.running if grant not in self.watch.void]
        if not node.leaving and not node.refused and left:
            self.broken(f"{node.name} ended with {left} running")
