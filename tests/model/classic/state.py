"""The state of the model of a classic group: its members, what is derived from them, and the result of a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from connectgroup.errors import FencedInstanceId, IllegalGeneration, InvalidGroupId, UnknownMemberId
from connectgroup.protocol.messages.classic import (
    GroupHeartbeatRequest,
    JoinedMember,
    JoinGroupRequest,
    JoinGroupResponse,
    MemberShare,
    OfferedProtocol,
    SyncGroupRequest,
    SyncGroupResponse,
)
from connectgroup.protocol.messages.offsets import OffsetCommitRequest

from ..words import NotAllowed, Timer

EMPTY, PREPARING, COMPLETING, STABLE = "Empty", "PreparingRebalance", "CompletingRebalance", "Stable"
REBALANCE: Timer = ("rebalance", "")
NO_SHARE = MemberShare(member_id="", assignment=b"")


@dataclass(frozen=True, kw_only=True)
class ClassicLimits:
    """The operator's settings: ``group.min.session.timeout.ms`` and so on."""

    min_session_ms: int
    max_session_ms: int
    initial_delay_ms: int
    new_member_ms: int
    max_members: int


@dataclass(kw_only=True)
class ClassicMember:
    """A member.

    Attributes:
        share: what the leader has assigned, without the member id.
        former: the epoch that it may send until the next generation begins, if a consumer group became this group;
            -1: none.
        joins, syncs: its JoinGroup or SyncGroup is parked.
        new: it waits for its first generation.
        synced: it has sent SyncGroup in this generation.
    """

    instance: str | None
    session_ms: int
    timeout_ms: int
    offers: tuple[OfferedProtocol, ...]
    share: MemberShare = NO_SHARE
    former: int = -1
    joins: bool = False
    syncs: bool = False
    new: bool = False
    synced: bool = False


@dataclass(kw_only=True)
class ClassicState:
    """A classic group.

    Attributes:
        exists: whether the group was created, which a rejected request does not.
        members: in the order in which they joined.
        pending: member ids that were sent and have not joined (KIP-394), in the order of the responses.
        left_ms: how much longer the first rebalance may wait for more members; -1: it is not the first.
        added: a member has joined since that wait began.
        armed: the timers; ``pending`` ones have one too.
        sent: the responses to parked requests that this step sends, by member.
        anew: the timers that this step arms, in ms.
        picked: the product's choice of the assignor, where several have the most votes.
    """

    limits: ClassicLimits
    exists: bool = False
    phase: str = EMPTY
    generation: int = 0
    protocol_type: str = ""
    protocol: str = ""
    leader: str = ""
    members: dict[str, ClassicMember] = field(default_factory=dict)
    pending: dict[str, None] = field(default_factory=dict)
    left_ms: int = -1
    added: bool = False
    offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    armed: set[Timer] = field(default_factory=set)
    sent: dict[str, JoinGroupResponse | SyncGroupResponse] = field(default_factory=dict)
    anew: dict[Timer, int] = field(default_factory=dict)
    picked: str = ""

    def begin(self) -> None:
        """Begin a step."""
        self.sent, self.anew = {}, {}

    # ---- derived

    def holder(self, instance: str | None) -> str | None:
        """The member with an instance id."""
        return next((who for who, member in self.members.items() if member.instance == instance is not None), None)

    def common(self) -> set[str] | None:
        """The assignors that all members offer; ``None``: there is no member."""
        every = [{each.name for each in member.offers} for member in self.members.values()]
        return set.intersection(*every) if every else None

    def max_timeout_ms(self) -> int:
        """The rebalance timeout of the group."""
        return max((member.timeout_ms for member in self.members.values()), default=0)

    def offer(self, member: ClassicMember) -> OfferedProtocol:
        """What a member has sent for the group's assignor."""
        none = OfferedProtocol(name=self.protocol, metadata=b"")
        return next((each for each in member.offers if each.name == self.protocol), none)

    def preferred(self) -> set[str]:
        """The assignors with the most votes; each member votes for the first of its own that all members offer."""
        common = self.common() or set()
        votes = Counter(
            next(each.name for each in member.offers if each.name in common) for member in self.members.values()
        )
        return {name for name, count in votes.items() if count == max(votes.values())}

    def pick(self) -> str:
        """The assignor that most members prefer among those of all members; the product chooses of several."""
        most = self.preferred()
        if len(most) == 1:
            return most.pop()
        if self.picked not in most:
            raise NotAllowed(f"assignor {self.picked!r}, not one of {sorted(most)}")
        return self.picked

    def choose_leader(self, joined: list[str]) -> str:
        """The joined member with the highest version of the assignor; of several the present leader, else the first."""
        versions = {
            who: max(each.assignor_version for each in self.members[who].offers if each.name == self.protocol)
            for who in joined
        }
        highest = [who for who in joined if versions[who] == max(versions.values())]
        return self.leader if self.leader in highest else highest[0]

    def generation_for(self, who: str) -> JoinGroupResponse:
        """The JoinGroup response of a member; the leader learns all members."""
        members = tuple(
            JoinedMember(
                member_id=each,
                group_instance_id=member.instance,
                metadata=(offer := self.offer(member)).metadata,
                metadata_version=offer.metadata_version,
                metadata_reason=offer.metadata_reason,
            )
            for each, member in self.members.items()
        )
        return JoinGroupResponse(
            error_code=0,
            generation_id=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol,
            leader=self.leader,
            member_id=who,
            members=members if who == self.leader else (),
        )

    def share_of(self, member: ClassicMember) -> SyncGroupResponse:
        """The SyncGroup response of a member."""
        return SyncGroupResponse(
            error_code=0,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol,
            assignment=member.share.assignment,
            assignment_version=member.share.assignment_version,
            assignment_error=member.share.assignment_error,
        )

    def violations(self) -> Iterator[str]:
        """The invariants that do not hold, whether or not product and model agree."""
        instances = [member.instance for member in self.members.values() if member.instance is not None]
        if len(instances) != len(set(instances)):
            yield f"an instance id belongs to one member: {instances}"
        for who in (*self.pending, *(who for who, each in self.members.items() if not (each.joins or each.syncs))):
            if ("session", who) not in self.armed:
                yield f"{who} can be removed if it is gone"
        unsynced = any(not member.synced for member in self.members.values())
        if (self.phase == PREPARING or unsynced) and REBALANCE not in self.armed:
            yield f"{self.phase} ends some day"
        for who, member in self.members.items():
            if (member.joins and self.phase != PREPARING) or (member.syncs and self.phase != COMPLETING):
                yield f"the parked request of {who} has been answered in {self.phase}"
        if self.phase in (COMPLETING, STABLE) and self.leader not in self.members:
            yield "a member leads"
        if self.members and not self.common():
            yield "all members offer one assignor"

    # ---- senders, responses and timers

    def member_error(self, who: str, instance: str | None) -> int:
        """The error of a request whose sender is not a member, or whose instance id is another's."""
        holder = self.holder(instance)
        if instance is not None and holder not in (None, who):
            return FencedInstanceId.code
        return UnknownMemberId.code if who not in self.members or (instance is not None and holder is None) else 0

    def generation_error(self, request: SyncGroupRequest | GroupHeartbeatRequest | OffsetCommitRequest) -> int:
        """The error of a request of a member in a generation."""
        sent = (
            request.generation_id_or_member_epoch if isinstance(request, OffsetCommitRequest) else request.generation_id
        )
        if not request.group_id:
            return InvalidGroupId.code
        if code := self.member_error(request.member_id, request.group_instance_id):
            return code
        former = self.phase == PREPARING and sent == self.members[request.member_id].former >= 0
        return 0 if sent == self.generation or former else IllegalGeneration.code

    def answer(self, who: str, code: int) -> None:
        """Reject the parked request of a member."""
        member = self.members[who]
        if member.joins:
            self.sent[who] = JoinGroupResponse(error_code=code, member_id=who)
        elif member.syncs:
            self.sent[who] = SyncGroupResponse(error_code=code)
        member.joins = member.syncs = False

    def arm(self, timer: Timer, after_ms: int) -> None:
        self.armed.add(timer)
        self.anew[timer] = after_ms

    def cancel(self, timer: Timer) -> None:
        self.armed.discard(timer)
        self.anew.pop(timer, None)


def timeout_ms(request: JoinGroupRequest) -> int:
    """The rebalance timeout; version 0 has none, and means the session timeout."""
    return request.rebalance_timeout_ms if request.rebalance_timeout_ms >= 0 else request.session_timeout_ms
