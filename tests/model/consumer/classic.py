"""Members of the model's consumer group that use the classic protocol, and the conversion of whole groups.

What a member of the classic protocol exchanges is decoded before it reaches the model. Partitions that it names are
those of the cluster's topics; a topic that does not exist any more has none.

Sources: KIP-848, "Migration"; MG-01 to MG-15; the decisions in ``connectgroup.group.consumer`` for what a converted
member still owns and which generation it sends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from connectgroup.errors import (
    FencedInstanceId,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidGroupId,
    InvalidSessionTimeout,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMemberId,
)
from connectgroup.protocol.messages.classic import (
    EmbeddedAssignment,
    GroupHeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeavingMember,
    OfferedProtocol,
    Subscription as Offer,
    SyncGroupRequest,
)
from connectgroup.protocol.units import TopicPartition, Unit

from ..words import STABLE, UNRELEASED, UNREVOKED, Limits, Member, MemberTarget, NotAllowed, Timer
from .model import ConsumerModel
from .words import ConsumerMember, Reply, Subscription, Topic, known_member

CONSUMER = "consumer"
KAFKA_ASSIGNORS = {"range", "roundrobin", "sticky", "cooperative-sticky"}
JOIN, SYNC = "JoinGroup", "SyncGroup"
Named = tuple[str, int]
"""A partition: topic name and number."""


@dataclass(frozen=True, kw_only=True)
class ClassicMember:
    """A member of a classic group.

    Attributes:
        offer: the subscription of the assignor that it prefers; ``None``: unreadable.
        assignment: its assignment in this generation; ``None``: unreadable.
        former_epoch: the epoch that it sends until it joins again, if that is not the generation; -1: none.
    """

    instance: str | None
    session_ms: int
    timeout_ms: int
    offers: tuple[OfferedProtocol, ...]
    offer: Offer | None
    assignment: EmbeddedAssignment | None
    former_epoch: int = -1


@dataclass(frozen=True, kw_only=True)
class ClassicForm:
    """What a conversion reads of a classic group, and makes of one.

    Attributes:
        preparing: whether its members are to join again (PREPARING_REBALANCE).
        members: in the order in which they joined.
    """

    created_ms: int
    generation: int
    preparing: bool
    protocol_type: str
    assignor: str = ""
    members: dict[str, ClassicMember] = field(default_factory=dict)
    offsets: dict[Named, tuple[int, str]] = field(default_factory=dict)


class MixedModel(ConsumerModel):
    """A consumer group whose members use either protocol.

    Attributes:
        awaited: the request that a member of the classic protocol must send within its rebalance timeout.
    """

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.awaited: dict[str, str] = {}
        self._removed = False

    def begin(self) -> None:
        super().begin()
        self._removed = False

    # ---- JoinGroup

    def join_group(self, request: JoinGroupRequest, offer: Offer | None, new_id: str) -> Reply:
        """A member joins, or reports what it owns; it advances by one step. ``new_id``: of a member without an id."""
        if code := self.refusal(request, offer):
            return Reply(code=code)
        if not request.member_id and request.group_instance_id is None and request.requires_member_id:
            return Reply(code=MemberIdRequired.code)
        if offer is None:
            return Reply(code=InconsistentGroupProtocol.code)
        who = request.member_id or new_id
        if not request.member_id and who in self.members:
            raise NotAllowed(f"the member id {who!r} is not a new one")
        replaced = None if request.member_id else self.with_instance(request.group_instance_id)
        timeout_ms = request.rebalance_timeout_ms
        member = replace(
            known_member(self.members.get(who) or ConsumerMember()),
            instance=request.group_instance_id,
            timeout_ms=timeout_ms if timeout_ms >= 0 else request.session_timeout_ms,
            session_ms=request.session_timeout_ms,
            server_assignor=None,
            assignors=(),
            classic=True,
            offers=request.protocols,
            traits=Subscription(offer.topics, "", offer.rack),
        )
        if code := self.admit(who, member, replaced):
            return Reply(code=code)
        self._removed = replaced is not None
        self.follow_up()
        member = known_member(self.members[who])
        self.step(who, member.epoch, frozenset(existing(offer.owned, self.cluster)))
        common = self.common_assignors(without=who)
        return Reply(
            member_id=who,
            epoch=member.epoch,
            assignor=next(each.name for each in member.offers if common is None or each.name in common),
            parks=bool(request.member_id) and self.epoch > self.target_epoch and member.state != UNREVOKED,
            timers=frozenset({("session", who), *self.awaits(who, SYNC)}),
        )

    def refusal(self, request: JoinGroupRequest, offer: Offer | None) -> int:
        """The error of a JoinGroup whose sender cannot be or become a member of the classic protocol; or 0."""
        who, instance = request.member_id, request.group_instance_id
        if not request.group_id:
            return InvalidGroupId.code
        if not self.limits.min_classic_session_ms <= request.session_timeout_ms <= self.limits.max_classic_session_ms:
            return InvalidSessionTimeout.code
        common = self.common_assignors(without=who)
        names = {each.name for each in request.protocols}
        fits = bool(names) and (common is None or bool(names & common))
        if request.protocol_type != CONSUMER or not self.limits.converts or not fits:
            return InconsistentGroupProtocol.code
        if instance is not None and who:
            if code := self.sender_error(who, instance):
                return code
        elif who in self.members and not self.members[who].classic:
            return UnknownMemberId.code
        elif who and who not in self.members:
            if offer is None:
                return InconsistentGroupProtocol.code
            if offer.owned and offer.generation >= 0:
                return UnknownMemberId.code  # it has been removed, and must not commit what others own now
        new = who not in self.members and self.with_instance(instance) is None
        return GroupMaxSizeReached.code if new and len(self.members) >= self.limits.max_members else 0

    def common_assignors(self, *, without: str) -> set[str] | None:
        """The assignors that all other members of the classic protocol offer (MG-13); ``None``: there are no others."""
        every = [
            {offered.name for offered in known_member(member).offers}
            for who, member in self.members.items()
            if member.classic and who != without
        ]
        return set.intersection(*every) if every else None

    # ---- SyncGroup, Heartbeat, LeaveGroup

    def sync_group(self, request: SyncGroupRequest) -> Reply:
        """The assignment of the member's epoch; a member with a newer target joins again first."""
        if code := self.generation_error(request):
            return Reply(code=code)
        who = request.member_id
        member = known_member(self.members[who])
        names = {None, *(each.name for each in member.offers)}
        if request.protocol_type not in (None, CONSUMER) or request.protocol_name not in names:
            return Reply(code=InconsistentGroupProtocol.code)
        revokes, session = member.state == UNREVOKED, ("session", who)
        if self.target_epoch > member.epoch and not revokes:
            return Reply(code=RebalanceInProgress.code, timers=frozenset({session, *self.awaits(who, JOIN)}))
        timers = frozenset({session, *self.awaits(who, JOIN if revokes else "")})
        return Reply(units=dict(member.assigned), timers=timers)

    def heartbeat_group(self, request: GroupHeartbeatRequest) -> Reply:
        """A member that can advance must join again; a group epoch without a target tells nothing (MG-15)."""
        if code := self.generation_error(request):
            return Reply(code=code)
        who = request.member_id
        member, session = self.members[who], ("session", who)
        free = any(self.holder(unit) in (None, who) for unit in self.missing(who))
        if self.target_epoch > member.epoch or member.state == UNREVOKED or (member.state == UNRELEASED and free):
            return Reply(code=RebalanceInProgress.code, timers=frozenset({session, *self.awaits(who, JOIN)}))
        return Reply(timers=frozenset({session}))

    def missing(self, who: str) -> set[Unit]:
        """The partitions of a member's target assignment that are not assigned to it yet."""
        topics = self.subscribed(self.members[who])
        return {unit for unit in self.share(who).units - self.members[who].assigned.keys() if unit.connector in topics}

    def leave_group(self, request: LeaveGroupRequest) -> Reply:
        """Members of the classic protocol leave; one of either protocol is removed by its instance id."""
        if not request.group_id:
            return Reply(code=InvalidGroupId.code)
        codes = {}
        advances = False
        for place, each in enumerate(request.members or (LeavingMember(member_id=request.member_id),)):
            who, code = each.member_id, 0
            holder = self.with_instance(each.group_instance_id)
            if each.group_instance_id is not None:
                code = 0 if holder else UnknownMemberId.code
                code = FencedInstanceId.code if holder and who not in ("", holder) else code
                who = holder or ""
            elif who not in self.members or not self.members[who].classic:
                code = UnknownMemberId.code
            codes[each.member_id, place] = code
            if not code:
                advances = self.drop(who) or advances
        if advances:
            self.refresh()
            self.follow_up()
        return Reply(codes=codes) if request.members else Reply(code=codes[request.member_id, 0])

    def sender_error(self, who: str, instance: str | None) -> int:
        """The error of a sender that is not the member of the classic protocol that it names; or 0 (MG-12)."""
        if instance is not None and (holder := self.with_instance(instance)) != who:
            return UnknownMemberId.code if holder is None else FencedInstanceId.code
        return 0 if who in self.members and self.members[who].classic else UnknownMemberId.code

    def generation_error(self, request: SyncGroupRequest | GroupHeartbeatRequest) -> int:
        """The same; the generation of a member is its epoch."""
        if not request.group_id:
            return InvalidGroupId.code
        code = self.sender_error(request.member_id, request.group_instance_id)
        current = code or self.members[request.member_id].epoch == request.generation_id
        return code if current else IllegalGeneration.code

    # ---- timers

    def awaits(self, who: str, request: str) -> set[Timer]:
        """The member must send a request next; returns the timer that this arms. One for JoinGroup keeps running."""
        same = self.awaited.get(who, "") == request != SYNC
        self.awaited[who] = request
        return {("rebalance", who)} if request and not same else set()

    def timers(self) -> dict[Timer, int]:
        """A member of the classic protocol has its own session timeout, and a time limit for its next request."""
        should = super().timers()
        for who, member in self.members.items():
            if member.classic:
                should.pop(("rebalance", who), None)
                should["session", who] = known_member(member).session_ms
                if self.awaited.get(who):
                    should["rebalance", who] = member.timeout_ms
        return should

    def limits_revocation(self, who: str) -> bool:
        """A member of the classic protocol has a time limit for its next request instead."""
        return not self.members[who].classic

    def expire_rebalance(self, who: str) -> None:
        """A member of the classic protocol has not sent its next request in time."""
        if who in self.members and self.members[who].classic:
            self.remove(who)
        else:
            super().expire_rebalance(who)

    # ---- conversions

    def drop(self, who: str) -> bool:
        """If the group becomes classic, its epoch does not advance: it is the generation that the members send."""
        self._removed = True
        self.awaited.pop(who, None)
        if not self.may_be_classic(member for name, member in self.members.items() if name != who):
            return super().drop(who)
        del self.members[who]
        self.target.pop(who, None)
        return False

    def may_be_classic(self, members: Iterable[Member]) -> bool:
        """Whether a group of these members is a classic one (MG-07 to MG-09)."""
        every = list(members)
        few = 0 < len(every) <= self.limits.max_classic_members
        return self.limits.downgrades and few and all(member.classic for member in every)

    def becomes_classic(self) -> bool:
        """Whether this input has removed the last member of the consumer protocol."""
        return self._removed and self.may_be_classic(self.members.values())

    def to_classic(self) -> ClassicForm:
        """The classic group that this group becomes. Its assignments are what its members may still run.

        A member that is behind the group sends its epoch until it joins again.
        """
        names = {topic_id: name for name, (topic_id, _) in self.cluster.items()}
        members = {}
        for who, each in self.members.items():
            member = known_member(each)
            held = [TopicPartition(names[topic], number) for topic, number in member.held if topic in names]
            members[who] = ClassicMember(
                instance=member.instance,
                session_ms=member.session_ms,
                timeout_ms=member.timeout_ms,
                offers=member.offers,
                offer=None,
                assignment=EmbeddedAssignment(partitions=frozenset(held)),
                former_epoch=-1 if member.epoch == self.epoch else member.epoch,
            )
        return ClassicForm(
            created_ms=self.created_ms,
            generation=self.epoch,
            preparing=True,
            protocol_type=CONSUMER,
            members=members,
            offsets=self.offsets,
        )

    @classmethod
    def from_classic(cls, limits: Limits, form: ClassicForm, cluster: Mapping[str, Topic]) -> MixedModel | None:
        """The group that a classic group with members becomes (MG-01); ``None``: it stays as it is (MG-05, MG-06).

        A cooperative member may still run what it reported in JoinGroup: these are pending revocations.
        """
        model, taken = cls(limits), set[Unit]()
        fits = limits.upgrades and form.protocol_type == CONSUMER and len(form.members) <= limits.max_members
        for who, each in form.members.items():
            if each.offer is None or each.assignment is None:
                return None
            custom = each.assignment.user_data and form.assignor not in KAFKA_ASSIGNORS
            units = existing(each.assignment.partitions, cluster)
            if custom or units & taken:
                return None
            taken |= units
            model.target[who] = MemberTarget(units=frozenset(units))
        for who, each in form.members.items() if fits else ():
            assert each.offer is not None
            epoch = form.generation if each.former_epoch == -1 else each.former_epoch
            pending = existing(each.offer.owned, cluster) - taken
            taken |= pending
            model.members[who] = ConsumerMember(
                instance=each.instance,
                timeout_ms=each.timeout_ms,
                session_ms=each.session_ms,
                offers=each.offers,
                classic=True,
                traits=Subscription(each.offer.topics, "", each.offer.rack),
                epoch=epoch,
                previous=epoch,
                state=UNREVOKED if pending else STABLE,
                assigned=dict.fromkeys(model.target[who].units, epoch),
                pending=dict.fromkeys(pending, epoch),
            )
        model.created_ms, model.epoch, model.target_epoch = form.created_ms, form.generation, form.generation
        model.cluster, model.offsets = cluster, dict(form.offsets)
        model.topics = model.existing(model.members)
        return model if fits else None


def existing(named: Iterable[Named], cluster: Mapping[str, Topic]) -> set[Unit]:
    """Those of some partitions that exist."""
    return {Unit(cluster[name][0], n) for name, n in named if name in cluster and 0 <= n < cluster[name][1]}
