"""A reference model of the group protocol: plain dictionaries and sets, written from the specification alone.

One group, one method per input: a request or an expired timer. The state of a group and what is derived from it are
in ``state``; the computation of a target is in ``computing``. This file has the members: how they join, send
heartbeats, are reconciled step by step, leave and are lost.

Sources: "Connect on the new protocol", KIP-848 with its case studies, the scenario tables CA-*, RE-*, HB-*, ST-*, TO-*,
CN-*, the invariants S*, L*, and the decisions in ``connectgroup.group`` where these leave a choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace

from connectgroup.errors import (
    ComputeAssignment,
    FencedInstanceId,
    FencedMemberEpoch,
    GroupIdNotFound,
    GroupMaxSizeReached,
    InvalidRequest,
    NonEmptyGroup,
    UnknownMemberId,
    UnreleasedInstanceId,
    UnsupportedAssignor,
)
from connectgroup.protocol.messages.common import each_unit, units_of
from connectgroup.protocol.messages.connectors import UpdateConnectorsRequest
from connectgroup.protocol.messages.consumer import ConsumerHeartbeatRequest
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest
from connectgroup.protocol.units import Unit

from .computing import Computing
from .connectors import change
from .words import (
    AWAY,
    STABLE,
    STARTING,
    UNRELEASED,
    UNREVOKED,
    Connector,
    Delay,
    Expected,
    Grants,
    Member,
    MemberTarget,
    traits_of,
)


class Reconciling(Computing):
    """How a member of any group type is reconciled step by step, and lost."""

    def may_run(self, who: str) -> Grants:
        """The units that a member may run, with the epochs of their configurations."""
        return self.runnable()

    def lose(self, who: str) -> None:
        """Remove a member that has not sent what it must."""
        raise NotImplementedError

    def step(self, who: str, shown: int, owned: frozenset[Unit] | None) -> None:
        """Revoke first, at an unchanged epoch; then advance to the target epoch and assign free units (CA-*)."""
        member, units = self.members[who], self.may_run(who)
        target = self.share(who).units & units.keys()
        before = replace(member)
        if member.pending:
            if owned is None or owned & member.pending.keys():
                # A newer target waits for the acknowledgement; units that must not run do not (CA-07, CA-19).
                gone = {unit: at for unit, at in member.assigned.items() if unit not in units or at < units[unit]}
                if gone:
                    member.assigned = {unit: at for unit, at in member.assigned.items() if unit not in gone}
                    member.pending, member.previous = {**member.pending, **gone}, shown
                return
            member.pending = {}
        keep = {unit: at for unit, at in member.assigned.items() if unit in target and at >= units[unit]}
        gone = {unit: at for unit, at in member.assigned.items() if unit not in keep}
        if gone and (owned is None or owned & gone.keys()):
            member.state, member.assigned, member.pending = UNREVOKED, keep, gone
        else:
            # A configuration newer than the target waits for the next one: else its grant would be older.
            target_state = {unit for unit in target - keep.keys() if units[unit] <= self.target_epoch}
            free = {unit for unit in target_state if self.holder(unit) in (None, who)}
            member.epoch, member.state = self.target_epoch, STABLE if free == target_state else UNRELEASED
            member.assigned = {**keep, **dict.fromkeys(free, self.target_epoch)}
        if member != before:
            member.previous = shown

    def pending_responses(self) -> set[str]:
        """The members for which an empty heartbeat would have a changed response."""
        asked = self.computation.who if self.computation is not None and not self.computation.prepared else None
        pending_responses = set()
        for who, member in self.members.items():
            after = self.members[who] = replace(member)
            self.step(who, member.epoch, None)
            self.members[who] = member
            changed = (after.epoch, after.assigned) != (member.epoch, member.assigned)
            if not member.temporarily_left and (changed or who == asked):
                pending_responses.add(who)
        return pending_responses

    def expire_session(self, who: str) -> None:
        """No heartbeat for the session timeout (TO-01)."""
        if who in self.members:
            self.lose(who)

    def expire_rebalance(self, who: str) -> None:
        """The revocation was not acknowledged in time (TO-02); only pending revocations have a timer (TO-03)."""
        if who in self.members and self.members[who].state == UNREVOKED:
            self.lose(who)


class Model(Reconciling):
    """One group. A method whose only argument is a request or a member id is one input: a request or a timer."""

    # ---- heartbeats

    def heartbeat(self, request: HeartbeatRequest) -> Expected:
        """Join, stay or leave ("Request Handling" of ConnectGroupHeartbeat)."""
        if malformed(request, self.limits.max_rebalance_timeout_ms):
            return Expected(code=InvalidRequest.code)
        if request.member_epoch == 0:
            return self.join(request)
        if self.epoch == 0:
            return Expected(code=GroupIdNotFound.code)
        if request.instance_id is not None:
            holder = self.with_instance(request.instance_id)
            if holder != request.member_id:
                return Expected(code=UnknownMemberId.code if holder is None else FencedInstanceId.code)
        member = self.members.get(request.member_id)
        if member is None:
            return Expected(code=UnknownMemberId.code)
        if self.is_of_another_process(request.member_id, request.process_id):
            return Expected(code=FencedInstanceId.code)
        if member.temporarily_left and request.member_epoch > 0:
            return Expected(code=UnknownMemberId.code)
        if request.member_epoch == -1:
            self.remove(request.member_id, returns=request.returns)
            return Expected(epoch=-1)
        return self.leave_temporarily(request) if request.member_epoch == AWAY else self.stay(request)

    def join(self, request: HeartbeatRequest) -> Expected:
        """Epoch 0: a new member, a rejoin, or the successor of a static member. It owns nothing."""
        who, replaced = request.member_id, self.with_instance(request.instance_id)
        before = self.members.get(who)
        if before and not before.temporarily_left and self.is_of_another_process(who, request.process_id):
            return Expected(code=UnreleasedInstanceId.code)
        if replaced not in (None, who) and not self.members[replaced or ""].temporarily_left:
            return Expected(code=UnreleasedInstanceId.code)
        if before is None and replaced is None and len(self.members) >= self.limits.max_members:
            return Expected(code=GroupMaxSizeReached.code)
        member = Member(
            instance=request.instance_id,
            process=request.process_id,
            timeout_ms=request.rebalance_timeout_ms,
            server_assignor=request.server_assignor,
            assignors=request.client_assignors or (),
            draining=request.draining,
            classic=request.classic,
            traits=traits_of(request),
        )
        others = {name: each for name, each in self.members.items() if name not in (who, replaced)}
        if not self.supported(member, others.values()):
            return Expected(code=UnsupportedAssignor.code)
        former = self.members.get(replaced or who)  # the member whose target assignment it takes over
        self.members = {**others, who: member}
        if former is not None and former is not before:
            left = self.target.pop(replaced or "", MemberTarget())
            if before is None:
                self.target[who] = left
        used = set(before.held.values()) if before is not None else set()
        renamed = before is None or before.instance != member.instance
        if former is None:
            self.admit_new(who)
        elif (
            member.differs(before or former)
            # It takes over another member's target assignment in addition to its own, or units are delayed for its
            # new instance id. An assignor must decide where these go.
            or before not in (None, former)
            or (renamed and self.called_for(who, request.instance_id))
            # A computation in progress has the former member in its input.
            or (before is None and self.epoch > self.target_epoch)
        ):
            self.bump()
        elif self.target_epoch in used and self.target_epoch == self.epoch:
            self.bump(same_target=True)
        self.start_computation()
        if self.target_epoch in used:
            # The former process may still write with such a token: the member is granted nothing at this epoch.
            self.target.pop(who, None)
        if self.computation is not None and self.computation.who == who:
            self.computation.prepared = False  # its former process had the input of the assignor
        self.reconsider()
        # A member that was at epoch 0 before is sent the target epoch, if there is one, before COMPUTE_ASSIGNMENT.
        again = before is not None and before.epoch == 0 and self.target_epoch > 0
        return self.advance(request, frozenset(), joined_before=again)

    def admit_new(self, who: str) -> None:
        """A new member: a lost member that returns in time gets its delayed units back (S15)."""
        mine, member = self.delays_for(who), self.members[who]
        # If two delays apply, an assignor must decide; so it must if the group has changed since.
        restored = len(mine) == 1 and not member.draining
        if not restored or not self.delays[mine[0]].epoch == self.epoch == self.target_epoch:
            self.bump()
            return
        delay = self.delays[mine[0]]
        placed = {unit for share in self.target.values() for unit in share.units}
        delayed = {unit for each in self.delays for unit in self.kept(each)}
        # Units of a former member that no target assigns: the group was empty before they were assigned again (S9).
        if member.checksum != delay.checksum or self.runnable().keys() - placed - delayed:
            self.bump()
            return
        self.target[who] = replace(delay.share, units=self.kept(mine[0]))
        del self.delays[mine[0]]
        self.bump(same_target=True)
        for delay in self.delays.values():
            if delay.epoch == self.epoch - 1:
                delay.epoch = self.epoch  # the group has not changed otherwise

    def stay(self, request: HeartbeatRequest) -> Expected:
        """The member's current epoch; or the previous one, after a lost response."""
        who, member = request.member_id, self.members[request.member_id]
        owned = None if request.owned is None else units_of(request.owned)
        lost = request.member_epoch == member.previous != member.epoch
        repeats = lost and owned is not None and owned <= member.held.keys()
        if request.member_epoch != member.epoch and not repeats:
            self.remove(who, lost=True)
            return Expected(code=FencedMemberEpoch.code)
        after = replace(member)
        if request.rebalance_timeout_ms != -1:
            after.timeout_ms = request.rebalance_timeout_ms
        if request.server_assignor is not None:
            after.server_assignor, after.assignors = request.server_assignor, ()
        if request.client_assignors is not None:
            after.server_assignor, after.assignors = None, request.client_assignors
        if full(request):
            after.draining, after.traits = request.draining, traits_of(request)
        if not self.supported(after, [each for name, each in self.members.items() if name != who]):
            return Expected(code=UnsupportedAssignor.code)
        self.members[who] = after
        if after.differs(member):
            self.bump()
        return self.advance(request, owned, repeats=repeats)

    def leave_temporarily(self, request: HeartbeatRequest) -> Expected:
        """Epoch -2: all units have stopped. Its target assignment is kept until its session expires (ST-01)."""
        member = self.members[request.member_id]
        if not member.temporarily_left:
            member.epoch = member.previous = AWAY
            # Nothing runs there: pending revocations are acknowledged at once.
            kept = self.share(request.member_id).units & member.assigned.keys()
            member.state, member.assigned, member.pending = STABLE, dict.fromkeys(kept, 0), {}
            self.reconsider()
            self.start_computation()
        return Expected(epoch=AWAY)

    def advance(
        self,
        request: HeartbeatRequest,
        owned: frozenset[Unit] | None,
        *,
        repeats: bool = False,
        joined_before: bool = False,
    ) -> Expected:
        """COMPUTE_ASSIGNMENT, or one step towards the target; after a lost response "the answer is the same again"."""
        self.start_computation()
        who, member, units = request.member_id, self.members[request.member_id], self.runnable()
        for status in request.statuses:
            unit = Unit(status.connector, status.task)
            again = status.state == STARTING and self.statuses.get(unit, ())[:2] == (who, status.owner_epoch)
            if unit in units and member.assigned.get(unit) == status.owner_epoch and not again:
                self.statuses[unit] = who, status.owner_epoch, status.state, status.message
        acknowledges = member.pending and owned is not None and not repeats and not owned & member.pending.keys()
        asked = self.computation is not None and self.computation.who == who and not self.computation.prepared
        if asked and not acknowledges and not joined_before:
            # An acknowledgement comes first: the member may never prepare, and has nothing left to stop (S14).
            return Expected(code=ComputeAssignment.code)
        had, at_first = dict(member.assigned), member.epoch
        missed = {unit: at for unit, at in had.items() if owned is not None and unit not in owned}
        if repeats and all(unit in units and at >= units[unit] for unit, at in missed.items()):
            return Expected(epoch=member.epoch, units=member.response_units(owned), share=self.share(who))
        self.step(who, request.member_epoch, owned)
        response_units = member.response_units(owned)
        # Every target is sent to every member, also if its units do not change (PD-12).
        tell = (
            full(request)
            or member.epoch != at_first
            or member.assigned != had
            or (owned is not None and not response_units.keys() <= owned)
        )
        return Expected(epoch=member.epoch, units=response_units if tell else None, share=self.share(who))

    # ---- removal

    def lose(self, who: str) -> None:
        self.remove(who, lost=True)

    def remove(self, who: str, *, lost: bool = False, returns: bool = False) -> None:
        """Remove the member and release its units. Units of a lost member's target are delayed for it (PD-08);
        those of a member that restarts too, even if no other member is left.
        """
        gone, share = self.members.pop(who), self.target.pop(who, MemberTarget())
        waits = share.units.intersection(gone.assigned, self.runnable())
        others = any(not each.temporarily_left for each in self.members.values())
        stays = not gone.temporarily_left and not gone.draining
        delayed = (lost and others) or returns
        if delayed and stays and waits and self.limits.scheduled_delay_ms:
            self.delays[who] = Delay(
                share=replace(share, units=waits),
                checksum=gone.checksum,
                instance=gone.instance,
                delay_ms=self.limits.scheduled_delay_ms,
                deadline_ms=self.now_ms + self.limits.scheduled_delay_ms,
                epoch=self.epoch + 1,
            )
        self.bump()

    def expire_delay(self, who: str) -> None:
        """The lost worker has not returned; or the assignor's delay has ended."""
        if who not in self.delays:
            return
        back = self.has_returned(who)
        waits = self.kept(who)
        del self.delays[who]
        placed = {unit for share in self.target.values() for unit in share.units}
        if who == "" or (waits and not back) or (self.epoch == self.target_epoch and waits - placed):
            self.bump()

    # ---- connectors, and the group as a whole

    def update_connectors(self, request: UpdateConnectorsRequest) -> Expected:
        """Changes of connectors, all or none, each with the version it applies to (PD-07)."""
        if len({each.connector for each in request.changes}) < len(request.changes):
            return Expected(code=InvalidRequest.code)
        if self.is_of_another_process(request.member_id, request.process_id):
            return Expected(code=FencedInstanceId.code)
        after, speaker = dict(self.connectors), self.members.get(request.member_id or "")
        for each in request.changes:
            code = change(after, each, speaker.assigned if speaker else None, self.epoch + 1)
            if code:
                return Expected(code=code)
        if not self.has_room(after, {each.connector for each in request.changes}):
            return Expected(code=InvalidRequest.code)
        changed, self.connectors = after != self.connectors, after
        # Those of units that are only paused or stopped stay.
        existing = {Unit(name, task) for name, each in after.items() for task in range(-1, len(each.tasks))}
        self.statuses = {unit: status for unit, status in self.statuses.items() if unit in existing}
        if changed or self.epoch == 0:
            self.bump()
        versions = tuple(after[each.connector].version if each.connector in after else 0 for each in request.changes)
        return Expected(epoch=self.epoch, versions=versions)

    def has_room(self, after: Mapping[str, Connector], changed: Set[str]) -> bool:
        """Whether the group may become this large: a change that does not grow it is never rejected."""
        units = sum(1 + len(each.tasks) for each in after.values())
        if units > max(self.limits.max_units, sum(1 + len(each.tasks) for each in self.connectors.values())):
            return False
        for name in changed & after.keys():
            former = self.connectors.get(name)
            wanted = int(after[name].config.get("tasks.max", "1"))
            raised = former is None or wanted > int(former.config.get("tasks.max", "1"))
            if raised and units - len(after[name].tasks) + wanted > self.limits.max_units:
                return False
        return True

    def delete(self) -> Expected:
        """Delete an empty group; its creation time is kept, so that fencing tokens increase."""
        if self.epoch == 0:
            return Expected(code=GroupIdNotFound.code)
        if self.members:
            return Expected(code=NonEmptyGroup.code)
        created_ms = self.created_ms
        vars(self).update(vars(Model(self.limits)))
        self.created_ms = created_ms
        return Expected()


def full(request: HeartbeatRequest) -> bool:
    """Whether a heartbeat is full."""
    return request.owned is not None and request.rebalance_timeout_ms != -1


def malformed(request: HeartbeatRequest, max_rebalance_timeout_ms: int) -> bool:
    """ "Request Validation": INVALID_REQUEST."""
    return (
        not request.group_id
        or not request.member_id
        or request.member_epoch < AWAY
        or request.instance_id == ""
        or (request.member_epoch == AWAY and request.instance_id is None)
        or (
            request.member_epoch == 0
            and (request.rebalance_timeout_ms <= 0 or request.owned is None or bool(request.owned))
        )
        or (request.owned is not None and len(units_of(request.owned)) < len(list(each_unit(request.owned))))
        or (request.rebalance_timeout_ms != -1 and not 0 < request.rebalance_timeout_ms <= max_rebalance_timeout_ms)
        or malformed_assignors(request)
    )


def malformed_assignors(request: HeartbeatRequest | ConsumerHeartbeatRequest) -> bool:
    """The same of the assignors in a request: of one kind, with names and versions that are possible."""
    infos = request.client_assignors or ()
    return (
        (request.server_assignor is not None and request.client_assignors is not None)
        or any(
            not info.name
            or info.minimum_version < -1
            or info.maximum_version < max(0, info.minimum_version)
            or not info.minimum_version <= info.version <= info.maximum_version
            for info in infos
        )
        or len({info.name for info in infos}) < len(infos)
    )
