"""The rules of a classic group, as the sources state them: its members assign, and the coordinator synchronizes them.

Sources: Kafka's protocol guide; KIP-134 (initial rebalance delay), KIP-345 (static members), KIP-394 (member id),
KIP-429 (assignor version), KIP-814 (a static leader skips the assignment); OC-06, OC-07;
the decisions in ``connectgroup.group.classic`` and ``.consumer`` (former epochs).
"""

from __future__ import annotations

from dataclasses import replace

from connectgroup.errors import (
    FencedInstanceId,
    GroupIdNotFound,
    GroupMaxSizeReached,
    InconsistentGroupProtocol,
    InvalidGroupId,
    InvalidSessionTimeout,
    MemberIdRequired,
    NonEmptyGroup,
    RebalanceInProgress,
    UnknownMemberId,
)
from connectgroup.protocol.messages.classic import (
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    LeftMember,
    SyncGroupRequest,
    SyncGroupResponse,
)
from connectgroup.protocol.messages.offsets import OffsetCommitRequest

from ..words import NotAllowed
from .state import COMPLETING, EMPTY, NO_SHARE, PREPARING, REBALANCE, STABLE, ClassicMember, ClassicState, timeout_ms


class ClassicModel(ClassicState):
    """The rules."""

    # ---- JoinGroup

    def join_group(self, request: JoinGroupRequest, new_id: str) -> JoinGroupResponse | None:
        """The response; ``None``: it is parked, or among ``sent``. ``new_id``: of a sender that has no member id."""
        who, instance = request.member_id, request.group_instance_id
        if code := self.join_error(request):
            return JoinGroupResponse(error_code=code, member_id=who)
        if who in self.members:
            return self.join_again(who, request)
        if not who and (not new_id or new_id in self.members or new_id in self.pending):
            raise NotAllowed(f"the member id {new_id!r} is not a new one")
        if not who and instance is None and request.requires_member_id:
            self.exists = True
            if len(self.pending) == self.limits.max_members:
                self.forget(next(iter(self.pending)))
            self.pending[new_id] = None
            self.arm(("session", new_id), request.session_timeout_ms)
            return JoinGroupResponse(error_code=MemberIdRequired.code, member_id=new_id)
        holder = self.holder(instance)
        if holder is not None:
            return self.replace_static(holder, new_id, request)
        self.add(who or new_id, request)
        return None

    def join_error(self, request: JoinGroupRequest) -> int:
        """The error of a JoinGroup, or 0."""
        who, instance = request.member_id, request.group_instance_id
        if not request.group_id:
            return InvalidGroupId.code
        if not self.limits.min_session_ms <= request.session_timeout_ms <= self.limits.max_session_ms:
            return InvalidSessionTimeout.code
        if who and who not in self.members and who not in self.pending and not self.exists:
            return UnknownMemberId.code
        if self.is_full_for(who):
            return GroupMaxSizeReached.code
        common = self.common()
        fits = bool(request.protocols) and (common is None or any(each.name in common for each in request.protocols))
        if not fits or request.protocol_type != (self.protocol_type if self.members else request.protocol_type or None):
            return InconsistentGroupProtocol.code
        if not who or (who in self.pending and instance is None):
            return 0
        return self.member_error(who, instance)

    def is_full_for(self, who: str) -> bool:
        """Whether the group has no room. While members join, those that have joined count (KIP-389)."""
        there = {each for each, member in self.members.items() if member.joins or self.phase != PREPARING}
        return self.phase != EMPTY and who not in there and len(there) >= self.limits.max_members

    def add(self, who: str, request: JoinGroupRequest) -> None:
        """A new member joins. It may be gone before it learns its member id, so its wait is limited."""
        if not self.members:
            self.protocol_type = request.protocol_type
        self.exists = True
        self.pending.pop(who, None)
        self.members[who] = ClassicMember(
            instance=request.group_instance_id,
            session_ms=request.session_timeout_ms,
            timeout_ms=timeout_ms(request),
            offers=request.protocols,
            joins=True,
            new=True,
        )
        self.added = self.added or self.left_ms >= 0
        self.arm(("session", who), self.limits.new_member_ms)
        self.rebalance()

    def join_again(self, who: str, request: JoinGroupRequest) -> JoinGroupResponse | None:
        """A member joins again: a change of what it offers, or the wish of the leader, begins a rebalance."""
        member = self.members[who]
        same = member.offers == request.protocols
        if same and (self.phase == COMPLETING or (self.phase == STABLE and who != self.leader)):
            self.arm(("session", who), member.session_ms)
            return self.generation_for(who)  # its response was lost
        self.update(member, request)
        if member.new:
            self.arm(("session", who), self.limits.new_member_ms)
        self.rebalance()
        return None

    def update(self, member: ClassicMember, request: JoinGroupRequest) -> None:
        """What a JoinGroup of a member changes."""
        member.session_ms, member.timeout_ms = request.session_timeout_ms, timeout_ms(request)
        member.offers, member.former = request.protocols, -1
        member.joins, member.syncs = True, False  # a client has one request at a time

    def replace_static(self, old: str, who: str, request: JoinGroupRequest) -> JoinGroupResponse | None:
        """A static member returns under a new member id: the old one is fenced (KIP-345)."""
        member, led, leader = self.members[old], old == self.leader, self.leader
        self.answer(old, FencedInstanceId.code)
        self.cancel(("session", old))
        self.members = {who if each == old else each: known for each, known in self.members.items()}
        self.leader = who if led else leader
        self.update(member, request)
        self.arm(("session", who), member.session_ms)
        member.new = False
        if self.phase == STABLE and self.protocol == self.pick():
            member.joins, member.synced = False, True
            response = self.generation_for(who)
            if led and not request.skips_assignment:  # it must not assign, so it does not learn that it leads
                return replace(response, leader=old, members=())
            return replace(response, skip_assignment=led)
        self.rebalance()
        return None

    # ---- phases

    def rebalance(self) -> None:
        """A member was added, changed or removed: begin a rebalance, or look whether the present one is complete."""
        if self.phase == PREPARING:
            self.complete_if_all_joined()
            return
        for who, member in self.members.items():
            if member.syncs:
                self.answer(who, RebalanceInProgress.code)
                self.arm(("session", who), member.session_ms)
            member.synced = False
        first, self.phase = self.phase == EMPTY, PREPARING
        delay_ms = min(self.limits.initial_delay_ms, self.max_timeout_ms())
        if first and delay_ms:
            self.left_ms, self.added = self.max_timeout_ms() - delay_ms, False
            self.arm(REBALANCE, delay_ms)
        elif not self.complete_if_all_joined():
            self.arm(REBALANCE, self.max_timeout_ms())

    def complete_if_all_joined(self) -> bool:
        """Returns whether the join phase is complete; the first rebalance waits for its delay."""
        waits = self.pending or not all(member.joins for member in self.members.values())
        if self.phase != PREPARING or waits or self.left_ms >= 0:
            return False
        self.complete_join()
        return True

    def complete_join(self) -> None:
        """The join phase is over: a generation begins. A static member that has not joined remains (KIP-345)."""
        self.left_ms, self.added = -1, False
        for who, member in list(self.members.items()):
            if not member.joins and member.instance is None:
                self.remove(who)
        joined = [who for who, member in self.members.items() if member.joins]
        if self.members and not joined:
            self.arm(REBALANCE, self.max_timeout_ms())
            return
        self.generation += 1
        if not self.members:
            self.phase, self.protocol, self.leader = EMPTY, "", ""
            self.cancel(REBALANCE)
            return
        self.phase = COMPLETING
        self.protocol = self.pick()
        self.leader = self.choose_leader(joined)
        for who in self.members:
            member = self.members[who]
            self.arm(("session", who), member.session_ms)
            if member.joins:
                self.sent[who] = self.generation_for(who)
            member.joins = member.new = member.synced = False
            member.former = -1  # a static member that has not joined may not commit what others have now
        self.arm(REBALANCE, self.max_timeout_ms())

    # ---- SyncGroup, Heartbeat, LeaveGroup

    def sync_group(self, request: SyncGroupRequest) -> SyncGroupResponse | None:
        """The assignment, once the leader has sent it; ``None``: it is parked."""
        who = request.member_id
        code = self.generation_error(request)
        named = request.protocol_type in (None, self.protocol_type) and request.protocol_name in (None, self.protocol)
        if not code and not named:
            code = InconsistentGroupProtocol.code
        if not code and self.phase == PREPARING:
            code = RebalanceInProgress.code
        if code:
            return SyncGroupResponse(error_code=code)
        member = self.members[who]
        member.synced = True
        self.arm(("session", who), member.session_ms)
        if self.phase == COMPLETING:
            member.syncs = True
            if who != self.leader:
                return None
            shares = {each.member_id: replace(each, member_id="") for each in request.assignments}
            self.phase = STABLE
            for each, known in self.members.items():
                known.share = shares.get(each, NO_SHARE)
                if known.syncs:
                    self.sent[each] = self.share_of(known)
                    self.arm(("session", each), known.session_ms)
                known.syncs = False
        else:
            self.sent[who] = self.share_of(member)
        if all(each.synced for each in self.members.values()):
            self.cancel(REBALANCE)
        return None

    def heartbeat(self, request: GroupHeartbeatRequest) -> GroupHeartbeatResponse:
        """The session continues, also of a member that must join again."""
        code = self.generation_error(request)
        if not code:
            self.arm(("session", request.member_id), self.members[request.member_id].session_ms)
            code = RebalanceInProgress.code if self.phase == PREPARING else 0
        return GroupHeartbeatResponse(error_code=code)

    def leave_group(self, request: LeaveGroupRequest) -> LeaveGroupResponse:
        """Members leave together, and cause one rebalance. Old clients name one member and learn one error."""
        if not request.group_id:
            return LeaveGroupResponse(error_code=InvalidGroupId.code)
        leaving = (LeavingMember(member_id=request.member_id),) if request.member_id else request.members
        members, pending = len(self.members), len(self.pending)
        left = tuple(
            LeftMember(member_id=each.member_id, group_instance_id=each.group_instance_id, error_code=self.leave(each))
            for each in leaving
        )
        if len(self.members) < members:
            self.rebalance()
        elif len(self.pending) < pending:
            self.go_on()
        if request.member_id:
            return LeaveGroupResponse(error_code=left[0].error_code)
        return LeaveGroupResponse(error_code=0, members=left)

    def leave(self, leaving: LeavingMember) -> int:
        """The error of one member that leaves, or 0. An operator removes a static member by its instance id."""
        who, instance = leaving.member_id, leaving.group_instance_id
        if not who and instance is not None:
            who = self.holder(instance) or ""
        if who in self.pending:
            self.forget(who)
            return 0
        if code := self.member_error(who, instance):
            return code
        self.remove(who)
        return 0

    # ---- offsets and the group as a whole

    def commit(self, request: OffsetCommitRequest) -> int:
        """The error of every partition, or 0. Without members anybody commits (OC-06, OC-07)."""
        who, generation = request.member_id, request.generation_id_or_member_epoch
        if not self.exists and generation >= 0:
            return GroupIdNotFound.code
        if generation >= 0 or self.members:
            if code := self.generation_error(request):
                return code
            if self.phase == COMPLETING:
                return RebalanceInProgress.code
            self.arm(("session", who), self.members[who].session_ms)
        self.exists = True
        for topic in request.topics:
            for each in topic.partitions:
                self.offsets[topic.name, each.partition_index] = each.committed_offset
        return 0

    def delete(self) -> int:
        """Delete a group without members; returns the error code or 0."""
        if not self.exists:
            return GroupIdNotFound.code
        if self.members:
            return NonEmptyGroup.code
        vars(self).update(vars(ClassicModel(limits=self.limits)))
        return 0

    def load(self) -> None:
        """A new coordinator knows what is in the log; clients send what was parked again."""
        self.begin()
        self.armed, self.pending, self.left_ms, self.added = set(), {}, -1, False
        for who, member in self.members.items():
            member.joins = member.syncs = member.new = False
            member.synced = self.phase == STABLE
            self.arm(("session", who), member.session_ms)
        if self.phase in (PREPARING, COMPLETING):
            self.arm(REBALANCE, self.max_timeout_ms())

    # ---- timers

    def expire_session(self, who: str) -> None:
        """A session expires. A member whose request is parked is alive; a new one may never have got its response."""
        if who in self.pending:
            self.forget(who)
            self.go_on()
        elif who in self.members:
            member = self.members[who]
            if member.new or not (member.joins or member.syncs):
                self.remove(who)
                self.rebalance()

    def expire_rebalance(self) -> None:
        """Who has not joined, or not synced, in time is late."""
        if self.phase == PREPARING:
            if self.added and self.left_ms > 0:
                delay_ms = min(self.limits.initial_delay_ms, self.left_ms)
                self.left_ms, self.added = self.left_ms - delay_ms, False
                self.arm(REBALANCE, delay_ms)
            else:
                self.complete_join()
            return
        late = [who for who, member in self.members.items() if not member.synced]
        for who in late:
            self.remove(who)
        if late:
            self.rebalance()

    # ---- members

    def remove(self, who: str) -> None:
        """A member is removed; its parked request is rejected."""
        self.answer(who, UnknownMemberId.code)
        self.cancel(("session", who))
        del self.members[who]

    def forget(self, who: str) -> None:
        """A pending member id is not waited for any longer; of too many, the oldest."""
        del self.pending[who]
        self.cancel(("session", who))

    def go_on(self) -> None:
        """No rebalance waits for a pending member id any more. A group that was created for it alone is gone."""
        self.complete_if_all_joined()
        if not (self.pending or self.members or self.generation or self.offsets or self.phase != EMPTY):
            self.exists = False
