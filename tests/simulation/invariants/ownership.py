"""Who owns and who runs a unit: S1, S2, S3, S6, S9, S10."""

from __future__ import annotations

from typing import TYPE_CHECKING

from connectgroup.group.kernel.reconcile import Current
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest
from connectgroup.protocol.units import STATIC_LEAVE_EPOCH, Unit, show
from tests.group import invariants as whole

from .base import Batch, Change, Grant, Invariant, SentResponse, delayed_units

if TYPE_CHECKING:
    from ..cluster import WorkerNode
    from .watch import Watch


class OneOwner(Invariant):
    """S1: no unit is assigned while another member owns it or has its revocation pending."""

    ids = "S1"

    def on_change(self, change: Change) -> None:
        if change.record is not None and change.member_id not in self.durable.members:
            self.broken(f"{change.member_id} owns units and is not a member")
        for unit in change.gained:
            holder = self.durable.holders.get(unit)
            if holder is not None and holder[0] != change.member_id:
                self.broken(f"{unit} is assigned to {change.member_id} while {holder} owns it")

    def on_settled(self, member_id: str, current: Current[Unit]) -> None:
        both = current.assigned.keys() & current.pending.keys()
        if both:
            self.broken(f"{member_id} both owns and revokes {show(both)}")

    def on_rest(self) -> None:
        whole.one_owner(self.durable)


class RevokedBeforeReassigned(Invariant):
    """S3: a free unit is neither owned nor run by a worker of its former member; a started unit is owned."""

    ids = "S3"

    def on_change(self, change: Change) -> None:
        if change.anew or not change.gone:
            return
        for node in self.watch.nodes_of(change.member_id):
            owned = node.worker.member.owned
            kept = [grant for grant in change.gone if owned.get(grant[0]) == grant[1] or grant in node.running]
            if kept:
                self.broken(f"{sorted(kept)} is free while {node.name} owns or runs it")

    def on_started(self, node: WorkerNode, unit: Unit, epoch: int) -> None:
        if (unit, epoch) in self.watch.void:
            return
        holder = self.durable.holders.get(unit)
        if holder != (node.member_id, epoch):
            self.broken(f"{node.name} starts {unit} at {epoch}, owned by {holder}")


class NoUnitRunsTwice(Invariant):
    """S2: no unit runs on two current members."""

    ids = "S2"

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._runs: dict[Unit, list[tuple[WorkerNode, Grant]]] = {}

    def on_started(self, node: WorkerNode, unit: Unit, epoch: int) -> None:
        grant, void = (unit, epoch), self.watch.void
        others = [
            (other, earlier)
            for other, earlier in self._runs.get(unit, ())
            if other is not node and not other.dead and earlier in other.running and earlier not in void
        ]
        if others and grant not in void:
            self.broken(f"{node.name} starts {unit} at {epoch}, and {others[0][0].name} runs it at {others[0][1][1]}")
        self._runs[unit] = [*others, (node, grant)]


class TokenIssuedOnce(Invariant):
    """S6: the epochs of a unit's grants only grow, so that no two owners share a token."""

    ids = "S6"

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._newest: dict[Unit, int] = {}
        # Returned by a static member that reported all units stopped: the only token that may be issued again (CN-12).
        self._returned: set[Grant] = set()

    def on_change(self, change: Change) -> None:
        if change.record is not None and change.record.epoch == STATIC_LEAVE_EPOCH:
            self._returned |= change.gone
        for unit, epoch in change.gained.items():
            newest = self._newest.get(unit, -1)
            if epoch == newest and (unit, epoch) in self._returned:
                self._returned.discard((unit, epoch))
            elif epoch <= newest:
                self.broken(f"{unit} is assigned to {change.member_id} at {epoch}, before at {newest}")
            self._newest[unit] = epoch


class ValidTarget(Invariant):
    """S9: a current target assigns each runnable unit to one member, or delays it; it assigns no other unit. A target
    that trails the group epoch assigns no unit to two members.
    """

    ids = "S9"

    def on_batch(self, batch: Batch) -> None:
        durable = self.durable
        if not (batch.target or batch.connectors or batch.left or batch.delays) or not durable.members:
            return
        given = sum(len(target.units) for target in durable.targets.values())
        if given != len(durable.wanted_by):
            self.broken(
                f"the target of epoch {durable.target_epoch} assigns {given - len(durable.wanted_by)} units twice"
            )
        if durable.epoch != durable.target_epoch:
            return
        back = [unit for delay in durable.delays.values() for unit in delayed_units(durable, delay)]
        shared = {*durable.wanted_by, *back}
        if shared != durable.runnable.keys() or given + len(back) != len(durable.runnable):
            wrong = shared ^ durable.runnable.keys()
            self.broken(
                f"the target of epoch {durable.target_epoch} is invalid: {given} assigned, wrong: {show(wrong)}"
            )
        strangers = durable.targets.keys() - durable.members.keys()
        if strangers:
            self.broken(f"a target for unknown members {sorted(strangers)}")


class OnlyRunnableUnits(Invariant):
    """S10: assigned units are runnable now, with their current configuration."""

    ids = "S10"

    def on_change(self, change: Change) -> None:
        runnable = self.durable.runnable
        for unit, epoch in change.gained.items():
            since = runnable.get(unit)
            if since is None or since > epoch:
                self.broken(f"{unit} is assigned to {change.member_id} at {epoch}, its configuration is of {since}")

    def on_response_sent(self, sent: SentResponse) -> None:
        request, assignment = sent.request, getattr(sent.response, "assignment", None)
        if not isinstance(request, HeartbeatRequest) or assignment is None or not sent.newest:
            return
        for grant in assignment.grants:
            unit = Unit(grant.connector, grant.task)
            since = self.durable.runnable.get(unit)
            if since is None or since > grant.owner_epoch or unit.is_connector:
                continue  # already revoked, or without a configuration of its own
            config = self.durable.connectors[unit.connector].tasks[unit.task].config
            if grant.config != config:
                self.broken(f"{request.member_id} gets {grant.config} for {unit}, current is {config}")
