"""Epochs and what may advance them: S4, S5, S7, S8, S13, S14."""

from __future__ import annotations

from typing import TYPE_CHECKING

from connectgroup.group.connect.group_type import GroupInput
from connectgroup.group.connect.state import ConnectGroupState
from connectgroup.group.kernel.computation import COORDINATOR
from connectgroup.group.kernel.outcome import Outcome, TimerKey, TimerKind
from connectgroup.group.kernel.reconcile import Current
from connectgroup.protocol.messages.api import Request, Response
from connectgroup.protocol.messages.assignment import InstallRequest
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest
from connectgroup.protocol.records.base import Key, Kind, Tombstone
from connectgroup.protocol.records.connect import (
    GroupRecord,
    MemberRecord,
    MemberState,
    Record,
    TargetMemberRecord,
    TargetRecord,
)
from connectgroup.protocol.units import LEAVE_EPOCH, Unit, show

from .base import COMPUTE, FENCED, STALE_MEMBER, Batch, Change, Invariant, SentResponse
from .classic import as_heartbeat

if TYPE_CHECKING:
    from ..cluster import WorkerNode
    from .watch import Watch


class GroupEpochs(Invariant):
    """S4: the group epoch advances with its causes only; the target and the members are never ahead of it."""

    ids = "S4"
    records = (GroupRecord,)

    def on_record(self, record: Record, batch: Batch) -> None:
        if isinstance(record, GroupRecord) and record.epoch <= self.durable.epoch:
            self.broken(f"epoch {self.durable.epoch} became {record.epoch}")

    def on_settled(self, member_id: str, current: Current[Unit]) -> None:
        if current.epoch > self.durable.target_epoch:
            self.broken(f"{member_id} is at {current.epoch}, the target at {self.durable.target_epoch}")

    def on_batch(self, batch: Batch) -> None:
        durable = self.durable
        if durable.target_epoch > durable.epoch:
            self.broken(f"the target is at {durable.target_epoch}, the group at {durable.epoch}")
        rose = durable.epoch > batch.epoch_before
        if rose and not batch.causes:
            self.broken(f"epoch {batch.epoch_before} became {durable.epoch} without a cause")
        if not rose and (batch.joined or batch.left or batch.connectors) and not self._replaced(batch):
            self.broken(f"{batch.joined or batch.left or 'a connector'} changed and the epoch did not")

    def _replaced(self, batch: Batch) -> bool:
        """Whether a static member only replaced the member with its instance id."""
        members = self.durable.members
        came = [members[member_id].instance_id for member_id in batch.joined if member_id in members]
        return not batch.connectors and len(came) == len(batch.left) and None not in came


class MemberEpochs(Invariant):
    """S5: a member's epoch decreases only when it rejoins, in the coordinator's view and in its own."""

    ids = "S5"

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._sent: dict[str, int] = {}

    def on_change(self, change: Change) -> None:
        record = change.record
        if record is not None and 0 < record.epoch < change.before.epoch:
            self.broken(f"{change.member_id}: {change.before.epoch} became {record.epoch}")

    def on_request(self, node: WorkerNode, request: Request) -> None:
        if not isinstance(request, HeartbeatRequest):
            return
        sent = self._sent.get(node.name, 0)
        if 0 < request.member_epoch < sent:
            self.broken(f"{node.name} goes back from {sent} to {request.member_epoch}")
        self._sent[node.name] = max(request.member_epoch, 0)


class ValidMemberEpoch(Invariant):
    """S7: a member at the target epoch has no pending revocation and owns nothing outside its target."""

    ids = "S7"

    def on_settled(self, member_id: str, current: Current[Unit]) -> None:
        durable = self.durable
        if (current.state is MemberState.UNREVOKED) != bool(current.pending):
            self.broken(f"{member_id} is {current.state.name} and revokes {show(current.pending)}")
        if current.epoch != durable.target_epoch:
            return
        wrong = current.assigned.keys() - durable.target(member_id).units
        if wrong:
            self.broken(f"{member_id} is at the target's epoch with {show(wrong)}")
        # A configuration newer than the grant is the only reason for a revocation at the newest epoch.
        stale = [unit for unit, epoch in current.pending.items() if durable.runnable.get(unit, 1 << 60) <= epoch]
        if stale:
            self.broken(f"{member_id} is at the target's epoch and revokes {show(stale)}")


class StableMeansStable(Invariant):
    """S8: a group is reported stable if and only if every member owns exactly its newest target assignment."""

    ids = "S8"

    def on_settled(self, member_id: str, current: Current[Unit]) -> None:
        durable = self.durable
        if current.temporarily_left:
            return
        there = (
            current.epoch == durable.target_epoch
            and not current.pending
            and current.assigned.keys() == durable.target(member_id).units
        )
        if there != (member_id not in durable.behind) and member_id in durable.members:
            self.broken(f"{member_id} is behind: {not there}; the group says {member_id in durable.behind}")

    def on_batch(self, batch: Batch) -> None:
        durable = self.durable
        stable = bool(durable.members) and durable.epoch == durable.target_epoch and not durable.behind
        if stable != (durable.state_name == "Stable"):
            self.broken(f"{durable.state_name}, epoch {durable.epoch} of {durable.target_epoch}, {durable.behind}")

    def on_rest(self) -> None:
        durable = self.durable
        for member_id, current in durable.currents.items():
            if (
                current.epoch != durable.epoch
                or current.pending
                or current.assigned.keys() != durable.target(member_id).units
            ):
                self.broken(f"settled, and {member_id} is not: {current}")


class OnlyComputingMemberInstalls(Invariant):
    """S13: a target comes from the computing member, for the group epoch that Prepare returned, or from a server-side
    assignor for the epoch of its input. Target epochs only grow, and an Install is never rejected for its member epoch.
    """

    ids = "S13"
    records = TargetMemberRecord, GroupRecord, TargetRecord

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._shares = False

    def on_record(self, record: Record, batch: Batch) -> None:
        match record:
            case TargetMemberRecord():
                self._shares = not (batch.delays and batch.joined)
            case GroupRecord():
                self._shares = False
            case TargetRecord():
                self._see(record)

    def _see(self, record: TargetRecord) -> None:
        durable, computation = self.durable, self.durable.computation
        trails = record.epoch < durable.epoch and computation and computation.assignor
        if record.epoch != durable.epoch and not trails:
            self.broken(
                f"a target for {record.epoch}, the group is at {durable.epoch}, the computation was {computation}"
            )
        if record.epoch <= durable.target_epoch:
            self.broken(f"a target for {record.epoch} after one for {durable.target_epoch}")
        if (
            record.computed_by != COORDINATOR
            and not (computation and computation.epoch == record.epoch and computation.member_id == record.computed_by)
            # The same target again under a later epoch.
            and (self._shares or record.computed_by != durable.computed_by)
        ):
            self.broken(f"a target by {record.computed_by}, the computation was {computation}")


class InstallIsNotFenced(Invariant):
    """S13: the member epoch may advance several times while an assignor runs, so an Install is never fenced for it
    (PD-06).
    """

    ids = "S13"

    def on_response_sent(self, sent: SentResponse) -> None:
        if isinstance(sent.request, InstallRequest) and sent.code == FENCED and sent.newest:
            self.broken(f"{sent.request.member_id}'s Install was fenced: {sent.response.error_message}")


class RemovedInTime(Invariant):
    """S14: a member that sends heartbeats and revokes in time is not removed; any other is, by a record.

    No member is removed for a time in which the coordinator was down, paused, or could not write: afterwards every
    timer is re-armed (D5), so the upper bound is checked only while the service was undisturbed.
    """

    ids = "S14"
    records = Tombstone, MemberRecord

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._answered_s: dict[str, float] = {}
        self._alive_s: dict[str, float] = {}
        self._stopping_s: dict[str, float] = {}
        # The highest sequence with a response, by coordinator and member: a request that repeats it is a late copy.
        self._answered: dict[tuple[int, str], int] = {}

    @property
    def _slow(self) -> float:
        return 1 - self.cluster.setting.drift

    @property
    def _fast(self) -> float:
        return 1 + self.cluster.setting.drift

    def on_response_sent(self, sent: SentResponse) -> None:
        request = sent.request
        if not isinstance(request, HeartbeatRequest) or not sent.newest or request.member_epoch == LEAVE_EPOCH:
            return
        member_id, at_s = request.member_id, sent.at_s
        if sent.code in (0, COMPUTE):
            key = (sent.peer.log.epoch, member_id)
            self._answered[key] = max(request.sequence, self._answered.get(key, -1))
            self._answered_s[member_id] = max(at_s, self._answered_s.get(member_id, -1e9))
        if sent.code != STALE_MEMBER and request.member_epoch > 0:
            # Rejected for its content; it proves that the member is alive all the same.
            self._alive_s[member_id] = max(at_s, self._alive_s.get(member_id, -1e9))

    def on_change(self, change: Change) -> None:
        record = change.record
        if record is None:
            return
        if record.state is not MemberState.UNREVOKED:
            self._stopping_s.pop(change.member_id, None)
        elif change.pending != change.before.pending:
            self._stopping_s[change.member_id] = self.cluster.loop.now

    def on_record(self, record: Record, batch: Batch) -> None:
        match record:
            case Tombstone(key=Key(kind=Kind.MEMBER)):
                self._stopping_s.pop(record.key.name, None)
            case MemberRecord() if record.member_id not in self.durable.members:
                self._answered_s[record.member_id] = self.cluster.loop.now

    def on_step(
        self, group: ConnectGroupState, what: GroupInput, outcome: Outcome[Response | None], now_ms: int
    ) -> None:
        """The lower bounds, at the moment of the decision."""
        if not isinstance(what, TimerKey) or not outcome.records or not self.watch.newest_decides():
            return
        now_s = self.cluster.loop.now
        if what.kind is TimerKind.SESSION:
            silent_s = now_s - self._last_heartbeat_s(what.member_id, copies=False)
            if silent_s < self.cluster.session_s * self._slow - 0.01:
                self.broken(
                    f"{what.member_id} is removed at its session timeout; its last heartbeat was {silent_s:.3f} s ago"
                )
        elif what.kind is TimerKind.REBALANCE:
            slow_s = now_s - self._stopping_s.get(what.member_id, now_s)
            if slow_s < self.cluster.rebalance_s * self._slow - 0.01:
                self.broken(
                    f"{what.member_id} is removed at its rebalance timeout; it began to revoke {slow_s:.3f} s ago"
                )

    def _last_heartbeat_s(self, member_id: str, *, copies: bool) -> float:
        """When the last heartbeat of the member arrived, also one without a response yet. A copy may be the first to
        arrive; one that arrives after the response to its original does not count.

        A join counts when it has its response: until then it only proves that the former process is dead.
        """
        newest = self.cluster.disk.storage.epoch
        answered = self._answered.get((newest, member_id), -1)
        coming: list[float] = [
            arrival.at_s
            for arrival in self.cluster.handling.values()
            if isinstance(request := as_heartbeat(arrival.request), HeartbeatRequest)
            and request.member_id == member_id
            and (copies or (request.member_epoch > 0 and request.sequence > answered))
            and arrival.peer.log.epoch == newest
            and (copies or not arrival.copy)
            and not self.cluster.has_twin(member_id)
            # At this very moment: it was queued while the coordinator was paused.
            and arrival.at_s < self.cluster.loop.now
        ]
        return max([self._answered_s.get(member_id, -1e9), *coming])

    def on_tick(self) -> None:
        """The upper bounds."""
        since_s = self.watch.calm.service_s
        if since_s is None:
            return
        now_s = self.cluster.loop.now
        bound_s = self.cluster.session_s * self._fast + 1.5
        for member_id in self.durable.members:
            silent_s = now_s - max(self._answered_s.get(member_id, -1e9), self._alive_s.get(member_id, -1e9), since_s)
            # A parked heartbeat has arrived and has no response yet: looked up only where it matters.
            if silent_s > bound_s and now_s - max(self._last_heartbeat_s(member_id, copies=True), since_s) > bound_s:
                self.broken(f"{member_id} has sent no heartbeat for {silent_s:.1f} s and is still a member")
        for member_id, since_revoking_s in self._stopping_s.items():
            slow_s = now_s - max(since_revoking_s, since_s)
            if slow_s > self.cluster.rebalance_s * self._fast + 1.5:
                self.broken(f"{member_id} has been revoking for {slow_s:.1f} s and is still a member")
