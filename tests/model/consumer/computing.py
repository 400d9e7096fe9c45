"""Subscriptions and target assignment of the model's consumer group: epochs, who computes, when one is installed.

Sources: KIP-848, "Group Epoch", "Assignment Process", "Regular Expressions"; CN-03 to CN-09, HB-13, HB-18, TA-*,
TO-06 to TO-08; the decisions in ``connectgroup.group.consumer``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from connectgroup.errors import (
    FencedMemberEpoch,
    GroupIdNotFound,
    InvalidAssignment,
    InvalidRequest,
    StaleGroupEpoch,
    UnknownMemberId,
)
from connectgroup.protocol.messages.assignment import PrepareRequest
from connectgroup.protocol.messages.common import units_of
from connectgroup.protocol.messages.consumer import ConsumerInstallRequest
from connectgroup.protocol.units import NO_TOPIC_ID, Unit

from ..computing import Computing
from ..words import COORDINATOR, Expected, Limits, Member, MemberTarget, NotAllowed, Proposal, Timer, preferred
from .words import ConsumerInput, Topic, proposal, subscription


class ConsumerComputing(Computing):
    """A consumer group with its subscriptions, group epochs and computations.

    Attributes:
        cluster: all topics of the cluster by name.
        topics: the subscribed ones that exist.
        regexes: the topics that match each regular expression; one that is not resolved is absent.
        offsets: the committed offset of each topic name and partition, and the id of the topic it belongs to.
        has_timer: whether the timer of a computation was armed before this input.
    """

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.cluster: Mapping[str, Topic] = {}
        self.topics: dict[str, Topic] = {}
        self.regexes: dict[str, frozenset[str]] = {}
        self.offsets: dict[tuple[str, int], tuple[int, str]] = {}
        self.installed_request: ConsumerInstallRequest | None = None
        self.has_timer = False
        self._bumped = False

    def begin(self) -> None:
        """A new input: the group epoch advances once at most in each."""
        self._bumped, self.requested = False, False
        self.has_timer = ("compute", "") in self.timers()

    # ---- subscriptions

    def subscribed(self, member: Member) -> set[str]:
        """The ids of the existing topics that a member subscribes to. An unresolved expression has none (CA-20)."""
        names = subscription(member).names | self.regexes.get(subscription(member).regex, frozenset())
        return {self.topics[name][0] for name in names if name in self.topics}

    def unresolved(self) -> bool:
        """Whether the topics of a regular expression are not known yet."""
        return bool({subscription(member).regex for member in self.members.values()} - {""} - self.regexes.keys())

    def runnable(self) -> dict[Unit, int]:
        """All partitions of subscribed topics."""
        topics = set().union(*map(self.subscribed, self.members.values()))
        return {Unit(name, n): 0 for name, count in self.topics.values() if name in topics for n in range(count)}

    def interval_left_ms(self) -> int:
        """No interval while no partition is assigned: the members wait for their topic."""
        return super().interval_left_ms() if any(share.units for share in self.target.values()) else 0

    def refresh(self) -> None:
        """Subscribed topics that are new, deleted, or have more partitions advance the group epoch."""
        used = {subscription(member).regex for member in self.members.values()}
        self.regexes = {regex: names for regex, names in self.regexes.items() if regex in used}
        topics = self.existing(self.members)
        if topics != self.topics:
            self.topics = topics
            self.bump()

    def existing(self, members: Mapping[str, Member]) -> dict[str, Topic]:
        """The existing topics that some members subscribe to, by name."""
        every = [subscription(member) for member in members.values()]
        names = {name for each in every for name in each.names | self.regexes.get(each.regex, frozenset())}
        return {name: self.cluster[name] for name in names if name in self.cluster}

    def has_room(self, members: Mapping[str, Member]) -> bool:
        """Whether a new or changed subscription does not exceed the maximum number of partitions of a group."""
        return sum(count for _, count in self.existing(members).values()) <= self.limits.max_units

    def change_topics(self, cluster: Mapping[str, Topic]) -> None:
        """The topics of the cluster have changed (case study "Partition Added")."""
        self.cluster = cluster
        self.offsets = {
            place: (offset, cluster[place[0]][0]) for place, (offset, _) in self.offsets.items() if self.is_valid(place)
        }
        self.refresh()
        self.follow_up()

    def is_valid(self, place: tuple[str, int]) -> bool:
        """Whether a committed offset belongs to the topic that has the name now."""
        topic_id, count = self.cluster.get(place[0], ("", 0))
        return place[1] < count and self.offsets[place][1] in (NO_TOPIC_ID, topic_id)

    def matched(self, regex: str, names: frozenset[str]) -> None:
        """A regular expression is resolved; the target assignment depends on the existing topics that match.

        An expression that is resolved for the first time has advanced the group epoch when its member joined; the
        computation has waited for it, unless one was in progress then.
        """
        users = [member for member in self.members.values() if subscription(member).regex == regex]
        if not users or self.regexes.get(regex) == names:
            return
        computing = self.computation is not None and self.computation.epoch == self.epoch
        counts = regex in self.regexes or computing or self.target_epoch == self.epoch
        if counts and (self.regexes.get(regex, frozenset()) ^ names) & self.cluster.keys():
            self.bump()
        self.regexes[regex] = names
        self.refresh()
        self.follow_up()

    # ---- group epoch and computation

    def bump(self, *, same_target: bool = False) -> None:
        """A new group epoch, once in a step; the computation is considered at its end (``follow_up``)."""
        if self._bumped:
            return
        self._bumped = True
        if self.epoch == 0:
            if self.created_ms and self.choice.created_ms // 1000 <= self.created_ms // 1000:
                raise NotAllowed(f"created at {self.choice.created_ms} ms, the former group at {self.created_ms} ms")
            self.created_ms = self.choice.created_ms
        self.epoch += 1

    def follow_up(self) -> None:
        """An outdated target assignment is computed once all regular expressions are resolved."""
        computation = self.computation
        if self.epoch == self.target_epoch:
            return
        if not self.members:  # HB-13
            self.target_epoch, self.target_ms, self.computed_by, self.assignor = self.epoch, 0, COORDINATOR, ""
            self.computation = None
            return
        going = computation is None or computation.who or computation.prepared
        if not going and computation is not None and computation.epoch < self.epoch:
            self.computation = None  # a failed server-side attempt belongs to its epoch
        if self.unresolved():
            return
        if self.computation is not None:
            self.reconsider()
        else:
            self.start_computation()

    def able(self) -> dict[str, set[str]]:
        """The members that can run the assignor that most members list first; among several, the first by name."""
        able = super().able()
        return {min(able): able[min(able)]} if able else {}

    def start_computation(self, *, waited: bool = False) -> None:
        """As for all group types; never without the topics of all regular expressions."""
        if not self.unresolved():
            super().start_computation(waited=waited)

    def timers(self) -> dict[Timer, int]:
        """All timers that must be armed. A computation that waits for a regular expression has no new one."""
        should = super().timers()
        if self.computation is None and self.unresolved() and not self.has_timer:
            should.pop(("compute", ""), None)
        return should

    def legal(self, proposal: Proposal, epoch: int | None = None) -> bool:
        """Each partition of a subscribed topic is assigned to one member, which subscribes to it.

        One prepared for an earlier epoch may lack partitions: those that are new since.
        """
        names, every = [share.member_id for share in proposal.members], self.placed(proposal)
        missing = self.runnable().keys() - set(every)
        return (
            len(set(names)) == len(names)
            and len(set(every)) == len(every)
            and set(names) <= self.members.keys()
            and set(every) <= self.runnable().keys()
            and not (missing and epoch in (None, self.epoch))
            and all(
                unit.connector in self.subscribed(self.members[share.member_id])
                for share in proposal.members
                for unit in units_of(share.units)
            )
        )

    def contradictory(self, proposal: Proposal, lost: set[Unit] | None = None) -> bool:
        """Any invalid assignment for an earlier epoch is computed again, and is no failure of its member."""
        return False

    def take(self, proposal: Proposal, by: str, epoch: int | None = None) -> None:
        """Install the target; a member that is not listed is assigned nothing."""
        self.target = {
            share.member_id: MemberTarget(
                units=units_of(share.units), error=share.error, version=share.version, metadata=share.metadata
            )
            for share in proposal.members
        }
        for who, member in self.members.items():
            if member.temporarily_left:
                # It runs nothing: partitions that others are assigned are released at once.
                member.assigned = {unit: at for unit, at in member.assigned.items() if unit in self.share(who).units}
        self.target_ms = self.now_ms if proposal.members else 0
        self.target_epoch, self.computed_by = self.epoch if epoch is None else epoch, by
        self.computation, self.has_timer = None, False

    def computed(self, epoch: int, assignor: str, proposal: Proposal | None) -> None:
        """The result of a server-side assignor."""
        before = (self.target_epoch, self.computation and replace(self.computation))
        super().computed(epoch, assignor, proposal)
        if (self.target_epoch, self.computation) != before:
            self.follow_up()

    def expire_computation(self) -> None:
        """The chosen member is late, or the interval has passed (TO-07)."""
        self.has_timer = False
        super().expire_computation()

    def prepare(self, request: PrepareRequest) -> Expected:
        """As for all group types. A member is not the chosen one any more once another lists no assignor."""
        if request.member_id in self.members and request.member_epoch >= 0 and not preferred(self.members.values()):
            late = request.member_epoch > self.members[request.member_id].epoch
            return Expected(code=FencedMemberEpoch.code if late else UnknownMemberId.code)
        return super().prepare(request)

    def install_consumers(self, request: ConsumerInstallRequest) -> Expected:
        """The assignment is installed as a whole or not at all (S13)."""
        if request.member_epoch < 0 or request.group_epoch < 0:
            return Expected(code=InvalidRequest.code)
        if self.epoch == 0:
            return Expected(code=GroupIdNotFound.code)
        if request.member_id not in self.members:
            return Expected(code=UnknownMemberId.code)
        computation = self.computation
        chosen = computation is not None and computation.who == request.member_id and bool(computation.assignor)
        if not request.error and (request.group_epoch, request.member_id) == (self.target_epoch, self.computed_by):
            known = self.installed_request
            if known is None:
                return Expected(code=None)
            if known.members == request.members:
                return Expected()  # a repeated Install (CN-08)
        if request.group_epoch != (computation.epoch if computation is not None and chosen else self.epoch):
            return Expected(code=StaleGroupEpoch.code)
        if computation is None or not chosen:
            return Expected(code=UnknownMemberId.code)
        code, result = 0, proposal(request.members)
        if request.error and request.keeps_target:
            self.keep_target(computation)
        elif request.error:
            self.failed(computation)
        elif self.legal(result, request.group_epoch) and self.readable(result, computation.assignor):
            self.assignor, self.installed_request = computation.assignor, request
            self.take(result, request.member_id, request.group_epoch)
        elif request.group_epoch < self.epoch:
            self.request_computation(computation)
            code = StaleGroupEpoch.code
        else:
            self.failed(computation)
            code = InvalidAssignment.code
        self.follow_up()
        return Expected(code=code)

    def assignor_input(self, assignor: str) -> ConsumerInput:
        """The input of an assignor."""
        infos = {who: {info.name: info for info in member.assignors} for who, member in self.members.items()}
        return ConsumerInput(
            members={
                who: (
                    member.epoch,
                    member.instance,
                    self.share(who).units,
                    (info.version, info.reason, info.metadata) if (info := infos[who].get(assignor)) else (0, 0, b""),
                    b"",
                )
                for who, member in self.members.items()
            },
            connectors={name: (count, {}) for name, count in self.topics.values()},
            delayed={},
            subscriptions={
                who: (frozenset(self.subscribed(member)), subscription(member).rack)
                for who, member in self.members.items()
            },
        )
