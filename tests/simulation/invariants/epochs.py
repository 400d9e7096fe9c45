"""Epochs and who may move them: S4, S5, S7, S8, S13, S14."""

from __future__ import annotations

from typing import TYPE_CHECKING

from connectgroup.group.connect.describe import state_name
from connectgroup.group.connect.handle import GroupInput
from connectgroup.group.connect.state import Group
from connectgroup.group.connect.target import COORDINATOR
from connectgroup.group.kernel.current import Current
from connectgroup.group.kernel.outcome import Outcome
from connectgroup.group.kernel.timers import TimerKey, TimerKind
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
from connectgroup.protocol.units import LEAVE_EPOCH, show

from .base import COMPUTE, FENCED, STALE_MEMBER, Answer, Batch, Change, Invariant

if TYPE_CHECKING:
    from ..cluster import WorkerNode
    from .watch import Watch


class GroupEpochs(Invariant):
    """S4: the group epoch rises with its causes and with nothing else; target and members are never ahead."""

    ids = "S4"
    records = (GroupRecord,)

    def on_record(self, record: Record, batch: Batch) -> None:
        if isinstance(record, GroupRecord) and record.epoch <= self.durable.epoch:
            self.broken(f"epoch {self.durable.epoch} became {record.epoch}")

    def on_settled(self, member_id: str, current: Current) -> None:
        if current.epoch > self.durable.target_epoch:
            self.broken(f"{member_id} is at {current.epoch}, the target at {self.durable.target_epoch}")

    def on_batch(self, batch: Batch) -> None:
        durable = self.durable
        if durable.target_epoch > durable.epoch:
            self.broken(f"the target is at {durable.target_epoch}, the group at {durable.epoch}")
        rose = durable.epoch > batch.epoch_before
        if rose and not batch.causes:
            self.broken(f"epoch {batch.epoch_before} became {durable.epoch} for nothing")
        if not rose and (batch.joined or batch.left or batch.connectors) and not self._replaced(batch):
            self.broken(f"{batch.joined or batch.left or 'a connector'} changed and the epoch did not")

    def _replaced(self, batch: Batch) -> bool:
        """Whether a static member has only taken the place of the one that bore its name."""
        members = self.durable.members
        came = [members[member_id].instance_id for member_id in batch.joined if member_id in members]
        return not batch.connectors and len(came) == len(batch.left) and None not in came


class MemberEpochs(Invariant):
    """S5: a member's epoch falls only when it joins anew, on the coordinator's side and on its own."""

    ids = "S5"

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._said: dict[str, int] = {}

    def on_change(self, change: Change) -> None:
        record = change.record
        if record is not None and 0 < record.epoch < change.before.epoch:
            self.broken(f"{change.member_id}: {change.before.epoch} became {record.epoch}")

    def on_request(self, node: WorkerNode, request: Request) -> None:
        if not isinstance(request, HeartbeatRequest):
            return
        said = self._said.get(node.name, 0)
        if 0 < request.member_epoch < said:
            self.broken(f"{node.name} falls from {said} to {request.member_epoch}")
        self._said[node.name] = max(request.member_epoch, 0)


class ValidMemberEpoch(Invariant):
    """S7: who has the target's epoch has nothing to stop and nothing beside its target."""

    ids = "S7"

    def on_settled(self, member_id: str, current: Current) -> None:
        durable = self.durable
        if (current.state is MemberState.UNREVOKED) != bool(current.pending):
            self.broken(f"{member_id} is {current.state.name} and stops {show(current.pending)}")
        if current.epoch != durable.target_epoch:
            return
        wrong = current.assigned.keys() - durable.target(member_id).units
        if wrong:
            self.broken(f"{member_id} is at the target's epoch with {show(wrong)}")
        # A configuration newer than the grant is the one thing to be stopped at the newest epoch.
        odd = [unit for unit, epoch in current.pending.items() if durable.runnable.get(unit, 1 << 60) <= epoch]
        if odd:
            self.broken(f"{member_id} is at the target's epoch and stops {show(odd)}")


class StableMeansStable(Invariant):
    """S8: a group calls itself stable when, and only when, every member has all of the newest target."""

    ids = "S8"

    def on_settled(self, member_id: str, current: Current) -> None:
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
        if stable != (state_name(durable) == "Stable"):
            self.broken(f"{state_name(durable)}, epoch {durable.epoch} of {durable.target_epoch}, {durable.behind}")

    def on_rest(self) -> None:
        durable = self.durable
        for member_id, current in durable.currents.items():
            if (
                current.epoch != durable.epoch
                or current.pending
                or current.assigned.keys() != durable.target(member_id).units
            ):
                self.broken(f"at rest, and {member_id} is not: {current}")


class OnlyTheChosenInstalls(Invariant):
    """S13: a target comes from the member that was asked, for the group epoch it was given by Prepare, or from a
    server-side assignor for the epoch of its input. Target epochs only grow, and an Install is never judged by its
    member epoch.
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
        durable, asked = self.durable, self.durable.computation
        trails = record.epoch < durable.epoch and asked and asked.assignor
        if record.epoch != durable.epoch and not trails:
            self.broken(f"a target for {record.epoch}, the group is at {durable.epoch}, asked was {asked}")
        if record.epoch <= durable.target_epoch:
            self.broken(f"a target for {record.epoch} after one for {durable.target_epoch}")
        if (
            record.computed_by != COORDINATOR
            and not (asked and asked.epoch == record.epoch and asked.member_id == record.computed_by)
            # The same target once more under a later epoch.
            and (self._shares or record.computed_by != durable.computed_by)
        ):
            self.broken(f"a target by {record.computed_by}, asked was {asked}")


class HonestInstallIsNotFenced(Invariant):
    """S13: the member epoch may advance several times while an assignor runs, so an Install is never fenced for it
    (PD-06).
    """

    ids = "S13"

    def on_answer(self, answer: Answer) -> None:
        if isinstance(answer.request, InstallRequest) and answer.code == FENCED and answer.newest:
            self.broken(f"{answer.request.member_id}'s Install was fenced: {answer.response.error_message}")


class RemovedInTime(Invariant):
    """S14: who is heard in time, and stops in time, is not removed; who is not, is: by a record.

    Nobody is removed for a time in which the coordinator was down, stood still, or could not write: such a time
    starts every clock anew (D5), so the upper bound is asked for only where the service went on undisturbed.
    """

    ids = "S14"
    records = Tombstone, MemberRecord

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._heard_s: dict[str, float] = {}
        self._spoke_s: dict[str, float] = {}
        self._stopping_s: dict[str, float] = {}
        # The highest number answered, by coordinator and member: what comes again after that is a late copy.
        self._answered: dict[tuple[int, str], int] = {}

    @property
    def _slow(self) -> float:
        return 1 - self.cluster.setting.drift

    @property
    def _fast(self) -> float:
        return 1 + self.cluster.setting.drift

    def on_answer(self, answer: Answer) -> None:
        request = answer.request
        if not isinstance(request, HeartbeatRequest) or not answer.newest or request.member_epoch == LEAVE_EPOCH:
            return
        who, at_s = request.member_id, answer.at_s
        if answer.code in (0, COMPUTE):
            key = (answer.peer.log.epoch, who)
            self._answered[key] = max(request.sequence, self._answered.get(key, -1))
            self._heard_s[who] = max(at_s, self._heard_s.get(who, -1e9))
        if answer.code != STALE_MEMBER and request.member_epoch > 0:
            # Refused for what it says; heard all the same.
            self._spoke_s[who] = max(at_s, self._spoke_s.get(who, -1e9))

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
                self._heard_s[record.member_id] = self.cluster.loop.now

    def on_step(self, group: Group, what: GroupInput, outcome: Outcome[Response | None], now_ms: int) -> None:
        """The lower bounds, at the moment of the decision."""
        if not isinstance(what, TimerKey) or not outcome.records or not self.watch.newest_decides():
            return
        now_s = self.cluster.loop.now
        if what.kind is TimerKind.SESSION:
            silent_s = now_s - self._heard_of(what.member_id, copies=False)
            if silent_s < self.cluster.session_s * self._slow - 0.01:
                self.broken(f"{what.member_id} is removed for silence, and was heard {silent_s:.3f} s ago")
        elif what.kind is TimerKind.REBALANCE:
            slow_s = now_s - self._stopping_s.get(what.member_id, now_s)
            if slow_s < self.cluster.rebalance_s * self._slow - 0.01:
                self.broken(f"{what.member_id} is removed for a slow stop, and was asked {slow_s:.3f} s ago")

    def _heard_of(self, member_id: str, *, copies: bool) -> float:
        """When it was heard last: also by what came in and is not answered yet. A copy may be the first to arrive; one
        that comes after the answer to its original says nothing.

        A join is heard when it is answered: until then it only says that its sender's former self is dead.
        """
        newest = self.cluster.disk.storage.epoch
        answered = self._answered.get((newest, member_id), -1)
        coming: list[float] = [
            arrival.at_s
            for arrival in self.cluster.handling.values()
            if isinstance(arrival.request, HeartbeatRequest)
            and arrival.request.member_id == member_id
            and (copies or (arrival.request.member_epoch > 0 and arrival.request.sequence > answered))
            and arrival.peer.log.epoch == newest
            and (copies or not arrival.copy)
            and not self.cluster.has_twin(member_id)
            # At this very moment: it lay unread while the coordinator stood still.
            and arrival.at_s < self.cluster.loop.now
        ]
        return max([self._heard_s.get(member_id, -1e9), *coming])

    def on_tick(self) -> None:
        """The upper bounds."""
        since_s = self.watch.calm.service_s
        if since_s is None:
            return
        now_s = self.cluster.loop.now
        longest_s = self.cluster.session_s * self._fast + 1.5
        for member_id in self.durable.members:
            silent_s = now_s - max(self._heard_s.get(member_id, -1e9), self._spoke_s.get(member_id, -1e9), since_s)
            # What is parked has been heard and is not answered yet: looked for only where it matters.
            if silent_s > longest_s and now_s - max(self._heard_of(member_id, copies=True), since_s) > longest_s:
                self.broken(f"{member_id} has been silent for {silent_s:.1f} s and is a member still")
        for member_id, asked_s in self._stopping_s.items():
            slow_s = now_s - max(asked_s, since_s)
            if slow_s > self.cluster.rebalance_s * self._fast + 1.5:
                self.broken(f"{member_id} has been stopping for {slow_s:.1f} s and is a member still")
