"""What must hold, each under its number in the list of reliability, looked at after every event it speaks of.

An ``Invariant`` overrides the hooks of the events it needs. Most look at ``durable``, the group as the records that are
safe on the disk have made it: it is built here, record by record, and owes nothing to the coordinators' own memory.

A *grant* is ``(unit, owner epoch)``; it is *void* once a record has taken its member out, or has it join anew: what a
worker does under a void grant is the sink's to refuse (X1), not the group's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from connectgroup.group.assignment import COORDINATOR
from connectgroup.group.describe import state_name
from connectgroup.messages import (
    HeartbeatRequest,
    InstallRequest,
    PrepareRequest,
    Request,
    UpdateConnectorsRequest,
    units_of,
)
from connectgroup.names import NO_UNITS, Unit, Units, show
from connectgroup.records import (
    ConnectorRecord,
    CurrentRecord,
    GroupRecord,
    Key,
    Kind,
    MemberRecord,
    MemberState,
    RebalanceRecord,
    Record,
    TargetMemberRecord,
    TargetRecord,
    Tombstone,
    epochs_of,
)
from tests.group import invariants as whole

from .observe import see_record, see_response

if TYPE_CHECKING:
    from .cluster import Cluster, CoordinatorNode, WorkerNode

COMPUTE, STALE_MEMBER, FENCED = 20480, 113, 110


@dataclass(frozen=True, slots=True)
class Violation:
    """What did not hold, when, and what went before it."""

    seed: int
    invariant: str
    what: str
    at_s: float
    story: tuple[str, ...]


class Watch:
    """Calls every invariant at every event, and keeps what several of them need.

    Attributes:
        grants: who was given each grant.
        void: grants that count no more, because their member was removed or has joined anew.
        freed: grants that were let go of in good order.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.grants: dict[tuple[Unit, int], str] = {}
        self.newest: dict[Unit, int] = {}
        self.void: set[tuple[Unit, int]] = set()
        self.freed: set[tuple[Unit, int]] = set()
        self.heard_s: dict[str, float] = {}
        self.revoking_since_s: dict[str, float] = {}
        self.batches = 0
        self.epoch_of_writer = 0
        self.beats: dict[str, int] = {}
        self.reached: dict[str, int] = {}
        self._said: dict[str, int] = {}
        self._open: dict[str, set[Unit]] = {}
        self._busy: dict[str, str] = {}
        self._lost: dict[str, int] = {}
        self._shares = False

    def require(self, holds: bool, name: str, what: str) -> None:
        """An invariant, in one line."""
        if not holds:
            self.cluster.violated(name, what)

    # ---- the disk

    def on_durable(self, records: Sequence[Record], epoch: int) -> None:
        """S1, S3, S4, S5, S6, S7, S9, S13, S14, D4, L5: a batch is safe."""
        durable = self.cluster.durable
        self.batches += 1
        self.require(epoch >= self.epoch_of_writer, "D4", f"epoch {epoch} writes after {self.epoch_of_writer}")
        self.epoch_of_writer = epoch
        epoch_before = durable.epoch
        for record in records:
            see_record(self.cluster, record, records)
            match record:
                case CurrentRecord():
                    self._current(record)
                case Tombstone(key=Key(kind=Kind.CURRENT)):
                    self._voided(record.key.name, durable.current(record.key.name).held)
                case Tombstone(key=Key(kind=Kind.MEMBER)):
                    self._removed(record.key.name, records)
                case TargetMemberRecord():
                    self._shares = True
                case TargetRecord():
                    self._target(record)
                case GroupRecord():
                    self._shares = False
                    self.require(record.epoch > durable.epoch, "S4", f"epoch {durable.epoch} became {record.epoch}")
            durable.apply(record)
            if isinstance(record, CurrentRecord):
                self._settled(record.member_id)
        durable.news.clear()
        self._batch_ended(records, epoch_before)

    def _current(self, record: CurrentRecord) -> None:
        durable = self.cluster.durable
        member_id, before = record.member_id, durable.current(record.member_id)
        held_before = before.held
        assigned, pending = epochs_of(record.assigned), epochs_of(record.pending)
        self.require(member_id in durable.members, "S1", f"{member_id} holds something and is no member")
        self.require(
            record.epoch >= before.epoch or record.epoch == 0, "S5", f"{member_id}: {before.epoch} -> {record.epoch}"
        )
        self.reached[member_id] = max(record.epoch, self.reached.get(member_id, 0))
        for unit, epoch in assigned.items():
            if held_before.get(unit) == epoch:
                continue
            holder = durable.holders.get(unit)
            free = holder is None or holder[0] == member_id
            self.require(free, "S1, S3", f"{unit} is given to {member_id} while {holder} holds it")
            newest = self.newest.get(unit, -1)
            self.require(epoch > newest, "S6", f"{unit} is given to {member_id} at {epoch}, before at {newest}")
            self.newest[unit] = epoch
            self.grants[unit, epoch] = member_id
        gone = {
            (unit, epoch)
            for unit, epoch in held_before.items()
            if assigned.get(unit) != epoch and pending.get(unit) != epoch
        }
        if record.epoch == 0:
            self._voided(member_id, held_before)
        elif gone:
            self.freed |= gone
            node = self.cluster.workers.get(member_id)
            if node is not None and not node.dead:
                owned = node.worker.member.owned
                kept = [grant for grant in gone if owned.get(grant[0]) == grant[1] or grant in node.running]
                self.require(not kept, "S3", f"{sorted(kept)} is free while {node.name} has it")
        if record.state == MemberState.UNREVOKED and pending != before.pending:
            self.revoking_since_s[member_id] = self.cluster.loop.now

    def _voided(self, member_id: str, held: dict[Unit, int]) -> None:
        self.void.update(held.items())
        node = self.cluster.workers.get(member_id)
        if node is not None and not node.dead:
            node.told = NO_UNITS

    def _removed(self, member_id: str, records: Sequence[Record]) -> None:
        """S14: nobody is removed for silence or slowness before its time."""
        now_s = self.cluster.loop.now
        for record in records:
            if not isinstance(record, RebalanceRecord) or not record.rebalance.causes:
                continue
            cause = record.rebalance.causes[-1]
            if cause.startswith(f"{member_id} was silent"):
                silent_s = now_s - self.heard_s.get(member_id, -1e9)
                enough = silent_s >= self.cluster.session_s - 0.01
                self.require(enough, "S14", f"{cause}, but it was heard {silent_s:.3f} s ago")
            elif cause.startswith(f"{member_id} did not stop"):
                slow_s = now_s - self.revoking_since_s.get(member_id, -1e9)
                enough = slow_s >= self.cluster.rebalance_s - 0.01
                self.require(enough, "S14", f"{cause}, but it was asked {slow_s:.3f} s ago")

    def _target(self, record: TargetRecord) -> None:
        """S13: only who was asked installs, and only for the newest epoch."""
        durable = self.cluster.durable
        self.require(record.epoch == durable.epoch, "S13", f"target for {record.epoch}, group at {durable.epoch}")
        computation = durable.computation
        asked = computation is not None and computation.epoch == record.epoch
        self.require(
            record.computed_by == COORDINATOR
            or (asked and computation is not None and computation.member_id == record.computed_by)
            or (not self._shares and record.computed_by == durable.computed_by),
            "S13",
            f"target by {record.computed_by}, asked was {computation}",
        )

    def _settled(self, member_id: str) -> None:
        """S4, S7 of one member."""
        durable = self.cluster.durable
        current = durable.current(member_id)
        self.require(current.epoch <= durable.epoch, "S4", f"{member_id} is ahead of its group")
        revoking = current.state == MemberState.UNREVOKED
        self.require(revoking == bool(current.pending), "S7", f"{member_id}: {current}")
        if current.epoch == durable.target_epoch:
            wrong = current.assigned.keys() - durable.target(member_id).units
            self.require(not wrong, "S7", f"{member_id} is at the target's epoch with {show(wrong)}")
            if current.pending:
                newer = any(durable.runnable.get(unit, 1 << 60) > epoch for unit, epoch in current.pending.items())
                self.require(newer, "S7", f"{member_id} is at the target's epoch and revokes {show(current.pending)}")

    def _batch_ended(self, records: Sequence[Record], epoch_before: int) -> None:
        durable = self.cluster.durable
        self.require(durable.target_epoch <= durable.epoch, "S4", "the target is ahead of the group")
        causes = (MemberRecord, ConnectorRecord)
        changed = any(
            isinstance(record, causes)
            or (isinstance(record, Tombstone) and record.key.kind in (Kind.MEMBER, Kind.CONNECTOR))
            or (isinstance(record, CurrentRecord) and record.epoch == 0)
            for record in records
        )
        self.require(
            durable.epoch == epoch_before or changed, "S4", f"epoch {epoch_before} -> {durable.epoch} for nothing"
        )
        self.require(
            durable.epoch > epoch_before or not any(isinstance(record, ConnectorRecord) for record in records),
            "S4",
            "a connector changed and the epoch did not",
        )
        if durable.epoch == durable.target_epoch and durable.members:
            units = durable.wanted_by.keys()
            given = sum(len(target.units) for target in durable.targets.values())
            legal = units == durable.runnable.keys() and given == len(units)
            self.require(legal, "S9", f"the target is not legal: {show(units ^ durable.runnable.keys())}")
            self.require(durable.targets.keys() <= durable.members.keys(), "S9", "a target for a stranger")
        elif durable.members:
            asked = durable.computation
            self.require(
                asked is not None and asked.epoch == durable.epoch, "L5", "the target is stale, nobody is asked"
            )
        if self.batches % 10 == 0:
            self.whole()

    def whole(self) -> None:
        """S1, S4, S7, S8, S9 and the indexes, by a look at everything."""
        durable = self.cluster.durable
        try:
            whole.one_owner(durable)
            whole.indexes_match(durable)
            whole.rebalances_make_sense(durable)
        except AssertionError as error:
            self.cluster.violated("S1, S8, S9", str(error))
        stable = bool(durable.members) and all(
            current.epoch == durable.epoch
            and not current.pending
            and current.assigned.keys() == durable.target(member_id).units
            for member_id, current in durable.currents.items()
        )
        self.require(stable == (state_name(durable) == "Stable"), "S8", f"{state_name(durable)}, all there: {stable}")

    # ---- the coordinator

    def after_turn(self, peer: CoordinatorNode) -> None:
        """D2: what is served is what is on the disk."""
        coordinator, storage = peer.coordinator, self.cluster.disk.storage
        if coordinator is None or peer.dead or peer.log.epoch != storage.epoch or self.cluster.disk.doubtful:
            return
        group = coordinator._groups.get(self.cluster.durable.group_id)
        if group is None or coordinator._loading or coordinator._not_serving is not None:
            return
        durable = self.cluster.durable
        same = (
            group.epoch == durable.epoch
            and group.target_epoch == durable.target_epoch
            and group.behind == durable.behind
            and group.members.keys() == durable.members.keys()
            and group.holders == durable.holders
            and group.runnable == durable.runnable
            # All of it costs as much as all else together, so it is looked at now and then.
            and (self.batches % 10 != 0 or whole.picture(group) == whole.picture(durable))
        )
        self.require(same, "D2", "served differs from durable")

    def on_loaded(self, peer: CoordinatorNode) -> None:
        """D2, D3: what a new coordinator read is all that was acknowledged."""
        durable, coordinator = self.cluster.durable, peer.coordinator
        assert coordinator is not None
        if peer.log.epoch != self.cluster.disk.storage.epoch or not durable.exists:
            return
        group = coordinator._groups.get(durable.group_id)
        same = group is not None and whole.picture(group) == whole.picture(durable)
        self.require(same, "D2, D3", "what was loaded is not what was acknowledged")
        if any(current.pending for current in durable.currents.values()):
            self.cluster.sometimes.reach("a group was loaded while it revoked")
        if durable.epoch > durable.target_epoch and durable.members:
            self.cluster.sometimes.reach("a group was loaded while a target was computed")

    def on_response(self, peer: CoordinatorNode, request: Request, response: Any, at_s: float, copy: bool) -> None:
        """D1, S16, S17: an answer leaves."""
        durable = self.cluster.durable
        see_response(self.cluster, peer, request, response, at_s, copy)
        newest = peer.log.epoch == self.cluster.disk.storage.epoch
        code = response.error_code
        if isinstance(request, HeartbeatRequest):
            who = request.member_id
            self.require(code != FENCED, "S16", f"{who} was fenced: {response.error_message}")
            if code not in (0, COMPUTE) or request.member_epoch < 0:
                return
            if newest:
                self.heard_s[who] = max(at_s, self.heard_s.get(who, -1e9))
            if code:
                return
            if newest:
                known = self.reached.get(who, 0)
                self.require(response.member_epoch <= known, "D1", f"{who} hears {response.member_epoch} of {known}")
            assignment = response.assignment
            full = request.owned is not None and request.rebalance_timeout_ms != -1
            # Where the epoch alone has changed, "as before" is the truth, and Kafka says no more either.
            if full:
                self.require(assignment is not None, "S17", f"{who}: no assignment in the answer to {request}")
            for grant in assignment.grants if assignment else ():
                given_to = self.grants.get((Unit(grant.connector, grant.task), grant.owner_epoch))
                self.require(given_to == who, "D1", f"{who} hears of {grant}, which is not on the disk")
        elif isinstance(request, InstallRequest) and not code and not request.error and newest:
            self.require(request.group_epoch <= durable.target_epoch, "D1", "an install was acknowledged and is not in")
        elif isinstance(request, UpdateConnectorsRequest) and not code and newest:
            self.require(response.group_epoch <= durable.epoch, "D1", "a change was acknowledged and is not in")
        elif isinstance(request, PrepareRequest) and not code and newest:
            self.require(response.group_epoch <= durable.epoch, "D1", "Prepare tells of an epoch that is not in")

    # ---- the workers

    def on_request(self, node: WorkerNode, request: Request) -> None:
        """S5, S11: what a worker says of itself is true."""
        if not isinstance(request, HeartbeatRequest):
            return
        name = node.name
        self.beats[name] = self.beats.get(name, 0) + 1
        said = self._said.get(name, 0)
        if request.member_epoch > 0:
            self.require(request.member_epoch >= said, "S5", f"{name} falls from {said} to {request.member_epoch}")
        self._said[name] = max(request.member_epoch, 0)
        if request.owned is not None and request.member_epoch > 0:
            owned = units_of(request.owned)
            unsaid = [g for g in node.running if g[0] not in owned and g not in self.void]
            self.require(not unsaid, "S11", f"{name} runs {unsaid} and does not say so")
            untold = node.told - owned
            self.require(not untold, "S11", f"{name} lets go of {show(untold)} before its listener is told")

    def on_started(self, node: WorkerNode, unit: Unit, epoch: int) -> None:
        """S2, S3: nobody starts what another runs, or what it does not hold."""
        if (unit, epoch) in self.void:
            return
        holder = self.cluster.durable.holders.get(unit)
        self.require(
            holder == (node.member_id, epoch), "S2, S3", f"{node.name} starts {unit} at {epoch}, held by {holder}"
        )
        for other in self.cluster.living():
            if other is node:
                continue
            both = [grant for grant in other.running if grant[0] == unit and grant not in self.void]
            self.require(not both, "S2", f"{node.name} starts {unit} at {epoch}, {other.name} runs it under {both}")

    def on_listener(self, node: WorkerNode, event: str, units: Units, what: str) -> None:
        """S11, S12: callbacks do not overlap, and each unit assigned is revoked or lost once."""
        name = node.name
        if what == "begins":
            self.require(name not in self._busy, "S12", f"{name}: {event} during {self._busy.get(name)}")
            self.require(not node.ended, "S12", f"{name}: {event} after it has ended")
            self._busy[name] = event
            self._lost[name] = node.worker.lost
            told = self._open.setdefault(name, set())
            if event == "on_assigned":
                self.require(not told & units, "S11", f"{name}: {show(told & units)} assigned twice")
                told |= units
            else:
                ended = {unit for unit, epoch in node.running if unit in units and (unit, epoch) not in self.void}
                late = event == "on_revoked" and ended
                self.require(not late, "S11", f"{name}: {event} of {show(ended)}, which still runs")
                told -= units
            return
        self._busy.pop(name, None)
        if event != "on_lost" and node.worker.lost > self._lost[name]:
            # Given up while it hung: it has been told nothing of what was lost meanwhile, as it cannot be called twice.
            self._open[name].clear()
        if event == "on_assigned" and node.worker.lost == self._lost[name]:
            node.told |= units
        elif event == "on_lost" or what == "ends":
            node.told -= units
        if event == "on_lost" and node.member_id in self.cluster.durable.members:
            self.cluster.sometimes.reach("a lease ended before the member was removed")

    def on_ended(self, node: WorkerNode) -> None:
        """L7, S12: it ended in time, and nothing runs on."""
        left = [grant for grant in node.running if grant not in self.void]
        if node.stop_asked_s is not None:
            took_s = self.cluster.loop.now - node.stop_asked_s
            most_s = 4 * 1.5 * self.cluster.rebalance_s + 3 * 3 + 5
            self.require(took_s <= most_s, "L7", f"{node.name} took {took_s:.1f} s to stop")
        elif not node.refused:
            self.require(not left, "L7", f"{node.name} ended with {left} running")
