"""A reference model of a consumer group, written from the specification alone.

One group, one method per input: a request, an expired timer, changed topics, the result of an effect. Subscriptions and
the target assignment are in ``computing``; this file has the members: how they join, send heartbeats, are reconciled
step by step, leave and are lost; and committed offsets.

Sources: KIP-848 with its case studies, the scenario tables CA-*, RE-*, HB-*, OC-*, ST-*, TO-*, RV-*, CN-*, the
invariants S*, L*, and the decisions in ``connectgroup.group.consumer``, where these leave a choice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from connectgroup.errors import (
    ComputeAssignment,
    FencedInstanceId,
    FencedMemberEpoch,
    GroupIdNotFound,
    GroupMaxSizeReached,
    IllegalGeneration,
    InvalidRegularExpression,
    InvalidRequest,
    NonEmptyGroup,
    PolicyViolation,
    StaleMemberEpoch,
    UnknownMemberId,
    UnknownTopicOrPartition,
    UnreleasedInstanceId,
    UnsupportedAssignor,
)
from connectgroup.protocol.messages.consumer import ConsumerHeartbeatRequest
from connectgroup.protocol.messages.offsets import GroupToFetch, OffsetCommitRequest
from connectgroup.protocol.units import Unit

from ..model import Reconciling, malformed_assignors
from ..words import AWAY, STABLE, UNRELEASED, Grants, MemberTarget
from .computing import ConsumerComputing
from .words import ConsumerMember, Reply, Subscription, known_member, partitions, reported, subscription

BAD_REGEX = "("
"""A regular expression that begins like this is not valid."""


class ConsumerModel(ConsumerComputing, Reconciling):
    """One group. A method whose only argument is a request or a member id is one input."""

    # ---- heartbeats

    def heartbeat(self, request: ConsumerHeartbeatRequest) -> Reply:
        """Join, stay or leave."""
        if malformed(request, self.limits.max_rebalance_timeout_ms):
            return Reply(code=InvalidRequest.code)
        if (request.subscribed_topic_regex or "").startswith(BAD_REGEX):
            return Reply(code=InvalidRegularExpression.code)
        if request.member_epoch == 0:
            return self.join(request)
        if self.epoch == 0:
            return Reply(code=GroupIdNotFound.code)
        who = request.member_id
        if request.instance_id is not None and (holder := self.with_instance(request.instance_id)) != who:
            return Reply(code=UnknownMemberId.code if holder is None else FencedInstanceId.code)
        if who not in self.members or self.members[who].classic:
            return Reply(code=UnknownMemberId.code)
        if request.member_epoch == -1:
            self.remove(who)
            return Reply(epoch=-1, member_id=who)
        if request.member_epoch == AWAY:
            return self.leave_temporarily(who)
        return self.stay(request)

    def join(self, request: ConsumerHeartbeatRequest) -> Reply:
        """Epoch 0: a new member, a rejoin, or the successor of a static member. It runs nothing (KAFKA-19233)."""
        who, replaced = request.member_id, self.with_instance(request.instance_id)
        before, former = self.members.get(who), self.members.get(replaced or "") if replaced != who else None
        if former is not None and not (former.temporarily_left or former.classic):
            return Reply(code=UnreleasedInstanceId.code)
        if before is None and former is None and len(self.members) >= self.limits.max_members:
            return Reply(code=GroupMaxSizeReached.code)
        member = ConsumerMember() if before is None else replace(known_member(before))
        member.classic, member.offers, member.session_ms = False, (), 0
        if member.temporarily_left:
            member.epoch = member.previous = 0  # it is present, and may compute
        member.instance, member.timeout_ms = request.instance_id, request.rebalance_timeout_ms
        member.server_assignor, member.assignors = request.server_assignor, request.client_assignors or ()
        names = frozenset(request.subscribed_topic_names or ())
        member.traits = Subscription(names, request.subscribed_topic_regex or "", request.rack_id)
        if code := self.admit(who, member, replaced if former is not None else None):
            return Reply(code=code)
        if self.computation is not None and self.computation.who == who:
            self.computation.prepared = False  # its former process had the input of the assignor
        self.follow_up()
        return self.advance(request, who)

    def admit(self, who: str, member: ConsumerMember, replaced: str | None) -> int:
        """Add or change a member, which may take the place of the static member ``replaced``; 0 or the error."""
        others = {name: each for name, each in self.members.items() if name not in (who, replaced)}
        if not self.supported(member, others.values()):
            return UnsupportedAssignor.code
        before, former = self.members.get(who), self.members.get(replaced or "")
        known = before or former
        changed = known is None or subscription(member)[:2] != subscription(known)[:2]
        if changed and not self.has_room({**others, who: member}):
            return PolicyViolation.code
        self.members = {**others, who: member}
        if former is not None:
            left = self.target.pop(replaced or "", MemberTarget())
            if before is None:
                self.target[who] = left
        if (
            known is None
            or member.differs(known)
            # An assignor decides where the partitions of the former member go.
            or (before is not None and former is not None)
            # A computation in progress has the former member in its input.
            or (former is not None and self.epoch > self.target_epoch)
        ):
            self.bump()
        self.refresh()
        return 0

    def stay(self, request: ConsumerHeartbeatRequest) -> Reply:
        """The member's current epoch; or the previous one, after a lost response (HB-01 to HB-04)."""
        who, member, owned = request.member_id, self.members[request.member_id], reported(request)
        if member.temporarily_left:
            return Reply(code=UnknownMemberId.code)
        lost = request.member_epoch == member.previous and owned is not None and owned <= member.held.keys()
        if request.member_epoch != member.epoch and not lost:
            return Reply(code=FencedMemberEpoch.code)  # it stays until its session expires, as in Kafka
        after = replace(member)
        if request.rebalance_timeout_ms != -1:
            after.timeout_ms = request.rebalance_timeout_ms
        if request.server_assignor is not None:
            after.server_assignor, after.assignors = request.server_assignor, ()
        if request.client_assignors is not None:
            after.server_assignor, after.assignors = None, request.client_assignors
        names, regex, rack = request.subscribed_topic_names, request.subscribed_topic_regex, request.rack_id
        was = subscription(member)
        after.traits = Subscription(
            was.names if names is None else frozenset(names),
            was.regex if regex is None else regex,
            was.rack if rack is None else rack,
        )
        if not self.supported(after, [each for name, each in self.members.items() if name != who]):
            return Reply(code=UnsupportedAssignor.code)
        if subscription(after)[:2] != was[:2] and not self.has_room({**self.members, who: after}):
            return Reply(code=PolicyViolation.code)
        self.members[who] = after
        if after.differs(member):
            self.bump()
        self.refresh()
        self.follow_up()
        repeats = request.member_epoch != after.epoch
        acknowledges = after.pending and owned is not None and not repeats and not owned & after.pending.keys()
        asked = self.computation is not None and self.computation.who == who and not self.computation.prepared
        if asked and not acknowledges:
            return Reply(code=ComputeAssignment.code, epoch=after.epoch)
        return self.advance(request, who)

    def advance(self, request: ConsumerHeartbeatRequest, who: str) -> Reply:
        """One step towards the target; after a lost response, the response is the same again."""
        member, owned, joins = self.members[who], reported(request), request.member_epoch == 0
        had, at_first = member.assigned.keys(), member.epoch
        repeats = not joins and request.member_epoch != member.epoch
        if not repeats:
            self.step(who, request.member_epoch, owned)
        tell = (
            joins
            or repeats
            or full(request)
            or member.assigned.keys() != had
            or (owned is not None and owned != member.assigned.keys())
            or (member.epoch != at_first and bool(member.assignors))  # every target has metadata (PD-12)
        )
        share, listed = self.share(who), any(info.name == self.assignor for info in member.assignors)
        named = tell and listed and share != MemberTarget() and member.epoch == self.target_epoch
        silent = not member.assigned if joins else member.epoch == request.member_epoch and not tell
        return Reply(
            member_id=who,
            epoch=member.epoch,
            units=dict(member.assigned) if tell else None,
            share=share if named else MemberTarget(),
            assignor=self.assignor if named else "",
            parks=silent and ((request.max_wait_ms > 0 and not joins) or self.waits(who)),
        )

    def waits(self, who: str) -> bool:
        """Whether a member waits for a target assignment that is on its way, or for the revocations of others."""
        member, computing = self.members[who], self.computation
        if computing is not None and computing.who == who:
            return False
        failed = computing is not None and not computing.who and not computing.prepared
        missing = subscription(member).names - self.topics.keys()
        waits_for_topic = not member.assigned and bool(missing)
        return (self.epoch > self.target_epoch and not failed) or member.state == UNRELEASED or waits_for_topic

    def may_run(self, who: str) -> Grants:
        """Those of the topics that it subscribes to: a dropped one revokes without a new target (CA-17, CA-18)."""
        topics, member = self.subscribed(self.members[who]), self.members[who]
        return {unit: 0 for unit in self.share(who).units | member.assigned.keys() if unit.connector in topics}

    # ---- removal

    def leave_temporarily(self, who: str) -> Reply:
        """Epoch -2: a static member has stopped. Its partitions are kept until its session expires (ST-01)."""
        member = self.members[who]
        if not member.temporarily_left:
            kept = self.share(who).units & member.assigned.keys()
            member.epoch = member.previous = AWAY
            member.state, member.assigned, member.pending = STABLE, dict.fromkeys(kept, 0), {}
            self.follow_up()
        return Reply(epoch=AWAY, member_id=who)

    def remove(self, who: str) -> None:
        """Remove the member and release its partitions."""
        if self.drop(who):
            self.refresh()
            self.follow_up()

    def drop(self, who: str) -> bool:
        """The same, without what follows from it; returns whether the group epoch advances."""
        del self.members[who]
        self.target.pop(who, None)
        self.bump()
        return True

    def lose(self, who: str) -> None:
        self.remove(who)

    # ---- offsets, and the group as a whole

    def commit(self, request: OffsetCommitRequest) -> Reply:
        """Offsets are fenced by the member epoch (OC-01 to OC-07)."""
        epoch, member = request.generation_id_or_member_epoch, self.members.get(request.member_id)
        admin = epoch < 0 and not self.members
        codes = {}
        for topic in request.topics:
            for each in topic.partitions:
                place = topic.name, each.partition_index
                unit = Unit(self.topics.get(topic.name, ("", 0))[0], each.partition_index)
                topic_id, count = self.cluster.get(topic.name, ("", 0))
                if admin:
                    codes[place] = 0
                elif member is None:
                    codes[place] = UnknownMemberId.code
                else:
                    earlier = epoch < member.epoch and 0 <= member.held.get(unit, -1) <= epoch  # KIP-1251
                    stale = IllegalGeneration if member.classic else StaleMemberEpoch
                    codes[place] = 0 if epoch == member.epoch or earlier else stale.code
                if each.partition_index >= count:
                    codes[place] = UnknownTopicOrPartition.code
                if not codes[place]:
                    self.offsets[place] = each.committed_offset, topic_id
        return Reply(codes=codes)

    def fetch(self, asked: GroupToFetch) -> Reply:
        """A sender that names itself as a member must be one, at its current epoch."""
        member = self.members.get(asked.member_id or "")
        offsets = {place: offset for place, (offset, _) in self.offsets.items() if self.is_valid(place)}
        if asked.member_id is None and asked.member_epoch < 0:
            return Reply(codes=offsets)
        if member is None:
            return Reply(code=UnknownMemberId.code)
        return Reply(codes=offsets) if asked.member_epoch == member.epoch else Reply(code=StaleMemberEpoch.code)

    def delete(self) -> Reply:
        """Delete an empty group."""
        if self.epoch == 0 or self.members:
            return Reply(code=NonEmptyGroup.code if self.members else GroupIdNotFound.code)
        kept = {"cluster": self.cluster, "created_ms": self.created_ms, "now_ms": self.now_ms}
        vars(self).update({**vars(type(self)(self.limits)), **kept})
        return Reply()

    def violations(self) -> Iterator[str]:
        """The invariants that do not hold, whether or not product and model agree."""
        for each in super().violations():
            if not (each.startswith("L5") and self.unresolved()):
                yield each
        if self.epoch == self.target_epoch:
            for who, member in self.members.items():
                topics = {unit.connector for unit in self.share(who).units}
                if not topics <= self.subscribed(member):
                    yield f"S9: {who} is assigned {sorted(topics)}, it subscribes to {sorted(self.subscribed(member))}"


def full(request: ConsumerHeartbeatRequest) -> bool:
    """Whether a heartbeat is full (HB-11)."""
    subscribes = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
    return request.owned is not None and request.rebalance_timeout_ms != -1 and subscribes


def malformed(request: ConsumerHeartbeatRequest, max_rebalance_timeout_ms: int) -> bool:
    """Request validation: INVALID_REQUEST (RV-01 to RV-09, CN-16, CN-17)."""
    joins, timeout_ms = request.member_epoch == 0, request.rebalance_timeout_ms
    return (
        not request.group_id
        or (not request.member_id and not joins)
        or request.member_epoch < AWAY
        or request.instance_id == ""
        or request.rack_id == ""
        or (request.member_epoch == AWAY and request.instance_id is None)
        or (joins and (timeout_ms == -1 or request.owned != ()))
        or (joins and request.subscribed_topic_names is None and request.subscribed_topic_regex is None)
        or (timeout_ms != -1 and not 0 < timeout_ms <= max_rebalance_timeout_ms)
        or (request.owned is not None and len(set(partitions(request.owned))) < len(partitions(request.owned)))
        or malformed_assignors(request)
    )
