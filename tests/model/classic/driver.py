"""Inputs of a group that stays a classic one: the members of ``consumer.mixed``, and those that only it can show.

Several members join at once, so JoinGroup and SyncGroup are parked; assignors have versions; members of one protocol
type or the other join; the coordinator's settings vary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any, Self

from connectgroup.group.classic.group_type import ClassicGroupType
from connectgroup.group.classic.state import ClassicSettings
from connectgroup.group.consumer.group_type import ConsumerGroupType
from connectgroup.group.consumer.settings import ConsumerSettings
from connectgroup.group.kernel.outcome import TimerKind
from connectgroup.protocol.messages.classic import (
    GroupHeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeavingMember,
    MemberShare,
    OfferedProtocol,
    SyncGroupRequest,
)
from connectgroup.protocol.messages.describe import DeleteRequest
from connectgroup.protocol.messages.offsets import GroupToFetch, OffsetFetchRequest
from connectgroup.protocol.records.consumer import ClassicState
from connectgroup.wire import embedded

from ..consumer.fields import GROUP, matching
from ..consumer.mixed import MixedDriver
from ..consumer.mixed_replay import MixedReplay
from ..consumer.product import CLASSIC
from ..consumer.shuffle import Shuffle
from ..driver import INSTANCES, Kinds

OFFERS = (("range", "sticky"), ("range", "sticky"), ("sticky", "range"), ("range",), ("sticky", "custom"))


@dataclass(kw_only=True)
class ClassicDriver(MixedDriver):
    """One classic group and its inputs."""

    @classmethod
    def drawn(cls, seed: int) -> Self:
        random = Random(seed)
        shuffle, ids = Shuffle(random=random), iter(f"generated-{n}" for n in range(1000))
        new_id = lambda: next(ids)  # noqa: E731
        settings = ConsumerSettings(server_assignor="shuffle", server_assignors={"shuffle": shuffle})
        consumer = ConsumerGroupType(settings, new_id=new_id, match_topics=matching, embedded=embedded, classic=CLASSIC)
        classic = ClassicSettings(
            initial_rebalance_delay_ms=random.choice([0, 0, 3_000]), max_members=random.choice([3, 1_000])
        )
        replay = MixedReplay(consumer, ClassicGroupType(classic, new_id), GROUP)
        driver = cls(replay=replay, shuffle=shuffle, counts={"ab": 2})
        if random.random() < 0.3:
            driver.commit_as("", -1, seed)
        for turn in range(random.randrange(4)):
            driver.start(0, 8 * random.randrange(8), turn)
        if random.random() < 0.8:
            driver.time_passes(0, 0, 0)
            driver.sync_all(0, 0, 1)
        return driver

    def kinds(self) -> Kinds:
        return (
            *(self.start, self.start, self.join_again, self.join_again, self.join_all, self.join_all, self.join_all),
            *(self.sync_all, self.sync_all, self.sync_all, self.sync_one, self.beat_or_sync, self.beat_or_sync),
            *(self.leave_together, self.leave_classic, self.time_passes, self.time_passes, self.time_passes),
            *(self.commit_or_fetch, self.commit_or_fetch, self.wrong_classic, self.any_request, self.seldom),
        )

    # ---- JoinGroup

    def start(self, who: int, how: int, what: int) -> None:
        """A process starts: dynamic or static, by two requests if it must know its member id; or many ask for an id."""
        request = self._join("", INSTANCES[what % 5], how, what)
        for _ in range(4 if how % 16 == 13 else 0):
            self.send(replace(request, group_instance_id=None, requires_member_id=True))
        response = self.send(request)
        if response is not None and response.member_id and who % 4 != 3:
            self.send(replace(request, member_id=response.member_id))

    def join_again(self, who: int, how: int, what: int) -> None:
        """A member joins, with the same offers or others; sometimes under another instance id."""
        ids = [*self._members(), *self._group.pending, "unheard of"]
        member_id = ids[who % len(ids)]
        known = self._members().get(member_id)
        instance = known.instance_id if known is not None and how % 16 != 15 else INSTANCES[how % 5]
        request = self._join(member_id, instance, how, what)
        if known is not None and how % 4:
            request = replace(request, protocols=known.protocols)
        self.send(request)

    def join_all(self, which: int, how: int, what: int) -> None:
        """The members learn from Heartbeat that they must join; who is late is left out."""
        for turn, (who, member) in enumerate(list(self._members().items())):
            if who not in self._group.joining and (turn + which) % 6 != 5:
                self.heartbeat_as(who, member)
                if self._group.state is ClassicState.PREPARING_REBALANCE:
                    self.send(replace(self._join(who, member.instance_id, how, 0), protocols=member.protocols))
        if what % 3:
            self.sync_all(which, how, what)

    def _join(self, member_id: str, instance: str | None, how: int, what: int) -> JoinGroupRequest:
        version = (-1, -1, 0, 1, 2)[(how + what) % 5]
        names = OFFERS[how // 8 % len(OFFERS)]
        return JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=6_000 + how,
            rebalance_timeout_ms=-1 if how % 16 == 14 else (9_000, 2_000)[what % 8 == 7] + how % 2,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type="consumer" if what % 32 != 31 else "connect",
            protocols=tuple(
                OfferedProtocol(
                    name=name,
                    metadata=f"{name}{what % 3}".encode(),
                    assignor_version=version,
                    metadata_version=version - how % 2,
                    metadata_reason=what % 2,
                )
                for name in names
            ),
            requires_member_id=what % 4 < 2,
            skips_assignment=how % 2 == 0,
        )

    # ---- SyncGroup and the others

    def sync_all(self, which: int, how: int, what: int) -> None:
        """Members sync, the leader at any place among them; who is late is left out."""
        if self._group.state is not ClassicState.COMPLETING_REBALANCE:
            return
        ids = list(self._members())
        for turn, who in enumerate(ids[which % len(ids) :] + ids[: which % len(ids)]):
            if (turn + how) % 5 != 4 and who in self._members():
                self._sync(who, what)

    def sync_one(self, who: int, how: int, what: int) -> None:
        """One member syncs."""
        ids = [*self._members(), "unheard of"]
        self._sync(ids[who % len(ids)], what)

    def _sync(self, who: str, what: int) -> None:
        ids, leads = list(self._members()), who == self._group.record.leader
        member = self._members().get(who)
        shares = [
            MemberShare(
                member_id=each,
                assignment=f"{each}{what}".encode(),
                assignment_version=what % 3 - 1,
                assignment_error=what % 2,
            )
            for each in ids[what % 5 == 4 :]
        ]
        more = [MemberShare(member_id="unheard of", assignment=b"x")] if what % 7 == 6 else []
        names = {"protocol_type": "consumer", "protocol_name": self._group.record.protocol_name} if what % 2 else {}
        self.send(
            SyncGroupRequest(
                group_id=GROUP,
                generation_id=self._group.generation,
                member_id=who,
                group_instance_id=member.instance_id if member is not None else None,
                assignments=(*shares, *more) if leads else (),
                **names,
            )
        )

    def beat_or_sync(self, who: int, how: int, what: int) -> None:
        """Heartbeat or SyncGroup of a member, mostly in its generation."""
        ids = list(self._members()) or ["unheard of"]
        member_id = ids[who % len(ids)]
        if how % 3 == 2:
            self.sync_one(who, how, what)
            return
        known = self._members().get(member_id)
        self.send(
            GroupHeartbeatRequest(
                group_id=GROUP,
                generation_id=self._group.generation - (what % 8 == 7),
                member_id=member_id,
                group_instance_id=known.instance_id if known is not None else None,
            )
        )

    def leave_together(self, who: int, how: int, what: int) -> None:
        """Several members leave, and ids that are pending."""
        ids = [*self._members(), *sorted(self._group.pending), "unheard of"]
        instances = {each: member.instance_id for each, member in self._members().items()}
        leaving = [LeavingMember(member_id=ids[number % len(ids)]) for number in (who, how)[: 1 + what % 2]]
        if what % 4 == 3:
            leaving = [replace(each, group_instance_id=instances.get(each.member_id)) for each in leaving]
        self.send(LeaveGroupRequest(group_id=GROUP, members=tuple(leaving)))

    def time_passes(self, which: int, who: int, pause: int) -> None:
        """A timer fires, mostly that of the rebalance; sometimes a stale one."""
        armed = self.replay.armed()
        self.former += [key for key in armed if key not in self.former[-20:]]
        rebalances = [key for key in armed if key.kind is TimerKind.REBALANCE]
        stale = [key for key in self.former[-20:] if key.kind is TimerKind.REBALANCE] if pause % 5 == 4 else []
        keys = stale or (rebalances if which % 3 == 0 else armed)
        if keys:
            self.send(keys[who % len(keys)])

    def commit_or_fetch(self, who: int, how: int, what: int) -> None:
        """Offsets are committed in any generation, by members and others, and fetched."""
        ids = ["", *self._members()] if how % 4 == 3 else list(self._members()) or [""]
        member_id = ids[who % len(ids)]
        if how % 7 == 6:
            self.send(OffsetFetchRequest(groups=(GroupToFetch(group_id=GROUP, topics=None),)))
            return
        generation = self._group.generation - (what % 8 == 7) if member_id or what % 2 else -1
        known = self._members().get(member_id)
        self.commit_as(member_id, generation, what, known.instance_id if known and how % 3 else INSTANCES[how % 5])

    def seldom(self, which: int, how: int, what: int) -> None:
        """A coordinator fails, or the group is deleted; often all members have left."""
        if which % 2:
            self.rare(0, how, what)
            return
        if how % 4:
            leaving = tuple(LeavingMember(member_id=who) for who in self._members())
            self.send(LeaveGroupRequest(group_id=GROUP, members=leaving)) if leaving else None
        self.send(DeleteRequest(group_ids=(GROUP,)))

    @property
    def _group(self) -> Any:
        return self.replay.classic
