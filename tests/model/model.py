"""The group protocol said a second time: plain dictionaries and sets, written from the specification alone.

One group, one method an input: a request, or a timer that fired. What a group holds, and what follows from that, is
in ``paper``; how a target is computed is in ``computing``. This file has the members: how they join, stay, are moved
one step towards the target, leave and are lost.

Sources: "Connect on the new protocol", KIP-848 with its case studies, the scenario tables CA-*, RE-*, HB-*, ST-*, TO-*,
CN-*, the invariants S*, L*, and connectgroup/ARCHITECTURE.md for what these leave open.
"""

from __future__ import annotations

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
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest
from connectgroup.protocol.units import Unit

from .computing import Computing
from .connectors import change
from .words import AWAY, STABLE, UNRELEASED, UNREVOKED, Answer, Delay, Member, Share, traits_of


class Model(Computing):
    """One group. What has a request or a name as its only argument is one input: a request or a timer that fired."""

    # ---- heartbeats

    def heartbeat(self, said: HeartbeatRequest) -> Answer:
        """Join, stay or leave ("Request Handling" of ConnectGroupHeartbeat)."""
        if malformed(said, self.limits.max_rebalance_timeout_ms):
            return Answer(code=InvalidRequest.code)
        if said.member_epoch == 0:
            return self.join(said)
        if self.epoch == 0:
            return Answer(code=GroupIdNotFound.code)
        if said.instance_id is not None:
            named = self.named(said.instance_id)
            if named != said.member_id:
                return Answer(code=UnknownMemberId.code if named is None else FencedInstanceId.code)
        member = self.members.get(said.member_id)
        if member is None or (member.temporarily_left and said.member_epoch > 0):
            return Answer(code=UnknownMemberId.code)
        if said.member_epoch == -1:
            self.remove(said.member_id, returns=said.returns)
            return Answer(epoch=-1)
        return self.go_away(said) if said.member_epoch == AWAY else self.stay(said)

    def join(self, said: HeartbeatRequest) -> Answer:
        """Epoch 0: a new member, one that begins anew, or a static member's next process. It runs nothing."""
        who, before, replaced = said.member_id, self.members.get(said.member_id), self.named(said.instance_id)
        if replaced not in (None, who) and not self.members[replaced or ""].temporarily_left:
            return Answer(code=UnreleasedInstanceId.code)
        if before is None and replaced is None and len(self.members) >= self.limits.max_members:
            return Answer(code=GroupMaxSizeReached.code)
        member = Member(
            instance=said.instance_id,
            timeout_ms=said.rebalance_timeout_ms,
            server_assignor=said.server_assignor,
            assignors=said.client_assignors or (),
            draining=said.draining,
            traits=traits_of(said),
        )
        others = {name: each for name, each in self.members.items() if name not in (who, replaced)}
        if not self.supported(member, others.values()):
            return Answer(code=UnsupportedAssignor.code)
        former = self.members.get(replaced or who)  # the one in whose place it is now
        self.members = {**others, who: member}
        if former is not None and former is not before:
            left = self.target.pop(replaced or "", Share())
            if before is None:
                self.target[who] = left
        used = set(before.held.values()) if before is not None else set()
        renamed = before is None or before.instance != member.instance
        if former is None:
            self.welcome(who)
        elif (
            member.differs(before or former)
            # It has a place already, and takes another's; or something waits for it under its new name, beside its
            # place. An assignor must say where that goes.
            or before not in (None, former)
            or (renamed and self.called_for(who, said.instance_id))
            # Whoever computes just now was told of the former one.
            or (before is None and self.epoch > self.target_epoch)
        ):
            self.bump()
        elif self.target_epoch in used and self.target_epoch == self.epoch:
            self.bump(same_target=True)
        self.begin()
        if self.target_epoch in used:
            # Something of its former self may still write with such a token: it is given nothing under this epoch.
            self.target.pop(who, None)
        if self.asked is not None and self.asked.who == who:
            self.asked.prepared = False  # its former process had the input of the assignor
        self.reconsider()
        # One that was answered at epoch 0 before is given the target's epoch, if there is one, before another order.
        again = before is not None and before.epoch == 0 and self.target_epoch > 0
        return self.advance(said, frozenset(), joined_before=again)

    def welcome(self, who: str) -> None:
        """A member that was not there: a lost one that comes back in time has its work restored (S15)."""
        mine, member = self.delays_for(who), self.members[who]
        # Of two for whom it may count an assignor must say which; as of all that has changed meanwhile.
        restored = len(mine) == 1 and not member.draining
        if not restored or not self.delays[mine[0]].epoch == self.epoch == self.target_epoch:
            self.bump()
            return
        delay = self.delays[mine[0]]
        placed = {unit for share in self.target.values() for unit in share.units}
        delayed = {unit for each in self.delays for unit in self.kept(each)}
        # Units of a former member that no target assigns: the group was empty before they were assigned again (S9).
        if member.said != delay.said or self.to_run().keys() - placed - delayed:
            self.bump()
            return
        self.target[who] = replace(delay.share, units=self.kept(mine[0]))
        del self.delays[mine[0]]
        self.bump(same_target=True)
        for delay in self.delays.values():
            if delay.epoch == self.epoch - 1:
                delay.epoch = self.epoch  # nothing but a return has happened since

    def stay(self, said: HeartbeatRequest) -> Answer:
        """A member's own epoch; or the one before, where an answer was lost."""
        who, member = said.member_id, self.members[said.member_id]
        owned = None if said.owned is None else units_of(said.owned)
        lost = said.member_epoch == member.previous != member.epoch
        repeats = lost and owned is not None and owned <= member.held.keys()
        if said.member_epoch != member.epoch and not repeats:
            self.remove(who, lost=True)
            return Answer(code=FencedMemberEpoch.code)
        after = replace(member)
        if said.rebalance_timeout_ms != -1:
            after.timeout_ms = said.rebalance_timeout_ms
        if said.server_assignor is not None:
            after.server_assignor, after.assignors = said.server_assignor, ()
        if said.client_assignors is not None:
            after.server_assignor, after.assignors = None, said.client_assignors
        if full(said):
            after.draining, after.traits = said.draining, traits_of(said)
        if not self.supported(after, [each for name, each in self.members.items() if name != who]):
            return Answer(code=UnsupportedAssignor.code)
        self.members[who] = after
        if after.differs(member):
            self.bump()
        return self.advance(said, owned, repeats=repeats)

    def go_away(self, said: HeartbeatRequest) -> Answer:
        """Epoch -2: it has stopped everything and comes back. Its share waits for it until its session ends (ST-01)."""
        member = self.members[said.member_id]
        if not member.temporarily_left:
            member.epoch = member.previous = AWAY
            # Nothing runs there: what it was to give up is free at once.
            kept = self.share(said.member_id).units & member.assigned.keys()
            member.state, member.assigned, member.pending = STABLE, dict.fromkeys(kept, 0), {}
            self.reconsider()
            self.begin()
        return Answer(epoch=AWAY)

    def advance(
        self,
        said: HeartbeatRequest,
        owned: frozenset[Unit] | None,
        *,
        repeats: bool = False,
        joined_before: bool = False,
    ) -> Answer:
        """An order to compute, or one step towards the target; after a lost answer "the answer is the same again"."""
        self.begin()
        who, member, units = said.member_id, self.members[said.member_id], self.to_run()
        for status in said.statuses:
            unit = Unit(status.connector, status.task)
            if unit in units and member.assigned.get(unit) == status.owner_epoch:
                self.statuses[unit] = who, status.owner_epoch, status.state, status.message
        acknowledges = member.pending and owned is not None and not repeats and not owned & member.pending.keys()
        asked = self.asked is not None and self.asked.who == who and not self.asked.prepared
        if asked and not acknowledges and not joined_before:
            # An acknowledgement comes first: its sender may never come to prepare, and has nothing left to stop (S14).
            return Answer(code=ComputeAssignment.code)
        had, at_first = dict(member.assigned), member.epoch
        missed = {unit: at for unit, at in had.items() if owned is not None and unit not in owned}
        if repeats and all(unit in units and at >= units[unit] for unit, at in missed.items()):
            return Answer(epoch=member.epoch, units=member.told(owned), share=self.share(who))
        self.step(who, said.member_epoch, owned)
        told = member.told(owned)
        # Every target is told to every member, also where its units stay (PD-12).
        tell = (
            full(said)
            or member.epoch != at_first
            or member.assigned != had
            or (owned is not None and not told.keys() <= owned)
        )
        return Answer(epoch=member.epoch, units=told if tell else None, share=self.share(who))

    def step(self, who: str, shown: int, owned: frozenset[Unit] | None) -> None:
        """What is to go goes first, with the epoch unchanged; then the target's epoch and what nobody holds (CA-*)."""
        member, units = self.members[who], self.to_run()
        target = self.share(who).units & units.keys()
        before = replace(member)
        if member.pending:
            if owned is None or owned & member.pending.keys():
                # A newer target waits for the acknowledgement; what must not run any more does not (CA-07, CA-19).
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
            # A configuration younger than the target waits for the next one: its grant would be of the one before.
            wanted = {unit for unit in target - keep.keys() if units[unit] <= self.target_epoch}
            free = {unit for unit in wanted if self.holder(unit) in (None, who)}
            member.epoch, member.state = self.target_epoch, STABLE if free == wanted else UNRELEASED
            member.assigned = {**keep, **dict.fromkeys(free, self.target_epoch)}
        if member != before:
            member.previous = shown

    def hear(self) -> set[str]:
        """To whom an empty heartbeat would bring something new: an order to compute, another epoch, other units."""
        asked = self.asked.who if self.asked is not None and not self.asked.prepared else None
        hear = set()
        for who, member in self.members.items():
            after = self.members[who] = replace(member)
            self.step(who, member.epoch, None)
            self.members[who] = member
            changed = (after.epoch, after.assigned) != (member.epoch, member.assigned)
            if not member.temporarily_left and (changed or who == asked):
                hear.add(who)
        return hear

    # ---- who must go

    def expire_session(self, who: str) -> None:
        """Silent for the session timeout (TO-01)."""
        if who in self.members:
            self.remove(who, lost=True)

    def expire_rebalance(self, who: str) -> None:
        """Did not stop in time what it was told to stop (TO-02); only that is waited for (TO-03)."""
        if who in self.members and self.members[who].state == UNREVOKED:
            self.remove(who, lost=True)

    def remove(self, who: str, *, lost: bool = False, returns: bool = False) -> None:
        """The member is no more; what it held is free. Of a lost one what it was to keep waits for it (PD-08);
        of one that restarts too, even if no other member is left.
        """
        gone, share = self.members.pop(who), self.target.pop(who, Share())
        waits = share.units.intersection(gone.assigned, self.to_run())
        others = any(not each.temporarily_left for each in self.members.values())
        stays = not gone.temporarily_left and not gone.draining
        delayed = (lost and others) or returns
        if delayed and stays and waits and self.limits.scheduled_delay_ms:
            self.delays[who] = Delay(
                share=replace(share, units=waits),
                said=gone.said,
                instance=gone.instance,
                delay_ms=self.limits.scheduled_delay_ms,
                deadline_ms=self.now_ms + self.limits.scheduled_delay_ms,
                epoch=self.epoch + 1,
            )
        self.bump()

    def expire_delay(self, who: str) -> None:
        """The lost worker has not come back; or the assignor is to be asked again."""
        if who not in self.delays:
            return
        back = self.is_back(who)
        waits = self.kept(who)
        del self.delays[who]
        placed = {unit for share in self.target.values() for unit in share.units}
        if who == "" or (waits and not back) or (self.epoch == self.target_epoch and waits - placed):
            self.bump()

    # ---- connectors, and the group as a whole

    def update_connectors(self, said: UpdateConnectorsRequest) -> Answer:
        """Changes to connectors, all or none, each against the version it was made for (PD-07)."""
        if len({each.connector for each in said.changes}) < len(said.changes):
            return Answer(code=InvalidRequest.code)
        after, speaker = dict(self.connectors), self.members.get(said.member_id or "")
        for each in said.changes:
            code = change(after, each, speaker.assigned if speaker else None, self.epoch + 1)
            if code:
                return Answer(code=code)
        if sum(1 + len(each.tasks) for each in after.values()) > self.limits.max_units:
            return Answer(code=InvalidRequest.code)
        changed, self.connectors = after != self.connectors, after
        self.statuses = {unit: status for unit, status in self.statuses.items() if unit in self.to_run()}
        if changed or self.epoch == 0:
            self.bump()
        versions = tuple(after[each.connector].version if each.connector in after else 0 for each in said.changes)
        return Answer(epoch=self.epoch, versions=versions)

    def delete(self) -> Answer:
        """The group is forgotten, unless it has members; but not when it was made, so that its tokens grow."""
        if self.epoch == 0:
            return Answer(code=GroupIdNotFound.code)
        if self.members:
            return Answer(code=NonEmptyGroup.code)
        made_ms = self.made_ms
        vars(self).update(vars(Model(self.limits)))
        self.made_ms = made_ms
        return Answer()


def full(said: HeartbeatRequest) -> bool:
    """Whether a heartbeat leaves nothing "as before"."""
    return said.owned is not None and said.rebalance_timeout_ms != -1


def malformed(said: HeartbeatRequest, max_rebalance_timeout_ms: int) -> bool:
    """ "Request Validation": INVALID_REQUEST."""
    infos = said.client_assignors or ()
    return (
        not said.group_id
        or not said.member_id
        or said.member_epoch < AWAY
        or said.instance_id == ""
        or (said.member_epoch == AWAY and said.instance_id is None)
        or (said.member_epoch == 0 and (said.rebalance_timeout_ms <= 0 or said.owned is None or bool(said.owned)))
        or (said.owned is not None and len(units_of(said.owned)) < len(list(each_unit(said.owned))))
        or (said.rebalance_timeout_ms != -1 and not 0 < said.rebalance_timeout_ms <= max_rebalance_timeout_ms)
        or (said.server_assignor is not None and said.client_assignors is not None)
        or any(
            not info.name
            or info.minimum_version < -1
            or info.maximum_version < max(0, info.minimum_version)
            or not info.minimum_version <= info.version <= info.maximum_version
            for info in infos
        )
        or len({info.name for info in infos}) < len(infos)
    )
