"""Inputs of a group whose members use either protocol: the consumers of ``driver`` and members of the classic protocol.

The group begins as a classic one. It is converted when the first consumer joins, and back when the last one has left.
Most requests are those of a correct member: it learns from Heartbeat that it must join, reports what it owns, and
syncs. The others have another generation, or are wrong in one way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Self

from connectgroup.errors import WireError
from connectgroup.group.classic.group_type import ClassicGroupType
from connectgroup.group.consumer.group_type import ConsumerGroupType
from connectgroup.group.consumer.settings import ConsumerSettings, MigrationPolicy
from connectgroup.group.kernel.outcome import TimerKind, TopicsChanged
from connectgroup.protocol.messages.classic import (
    EmbeddedAssignment,
    GroupHeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeavingMember,
    MemberShare,
    OfferedProtocol,
    Subscription,
    SyncGroupRequest,
)
from connectgroup.protocol.messages.consumer import ConsumerHeartbeatRequest
from connectgroup.protocol.records.consumer import ClassicMemberRecord, ClassicState
from connectgroup.protocol.units import TopicPartition
from connectgroup.wire import embedded

from ..driver import INSTANCES, MEMBERS, Kinds
from .driver import Driver
from .fields import GROUP, matching
from .mixed_replay import MixedReplay
from .model import BAD_REGEX
from .product import CLASSIC
from .shuffle import Shuffle

OFFERS = (("range", "roundrobin"), ("range",), ("roundrobin", "range"), ("range", "custom"), ("custom",))
SUBSCRIBED = (("ab", "ac"), ("ab", "ac"), ("b", "ab"), ("ac", "missing"), ("ab",), ())
REBALANCE_IN_PROGRESS = 27
WRONG_JOINS: tuple[Mapping[str, Any], ...] = (
    {"group_id": ""},
    {"session_timeout_ms": 1},
    {"protocol_type": "connect"},
    {"protocols": ()},
    {"protocols": (OfferedProtocol(name="range", metadata=b"\0"),)},
    {"protocols": (OfferedProtocol(name="unheard of", metadata=b"\0"),)},
    {"group_instance_id": "unheard of"},
)
WRONG_REQUESTS: tuple[Mapping[str, Any], ...] = (
    {"group_id": ""},
    {"group_instance_id": "i"},
    {"group_instance_id": "unheard of"},
    {"member_id": "unheard of"},
    {"protocol_type": "connect"},
    {"protocol_name": "unheard of"},
    {"protocol_name": "range", "protocol_type": "consumer"},
)


@dataclass(kw_only=True)
class MixedDriver(Driver):
    """One group and its inputs, of both protocols."""

    STEP = 37
    replay: MixedReplay

    @classmethod
    def drawn(cls, seed: int) -> Self:
        random = Random(seed)
        shuffle, ids = Shuffle(random=random), iter(f"generated-{n}" for n in range(1000))
        policies = (MigrationPolicy.BIDIRECTIONAL,) * 6 + tuple(MigrationPolicy)
        settings = ConsumerSettings(
            server_assignor="shuffle",
            server_assignors={"shuffle": shuffle, "other": shuffle},
            max_members=4,
            max_partitions=random.choice([7, 200_000, 200_000]),
            max_classic_members=random.choice([1, 1_000, 1_000, 1_000]),
            assignment_interval_ms=random.choice([0, 0, 3_000]),
            migration_policy=random.choice(policies),
            regex_violation=lambda regex: "RE2 syntax" if regex.startswith(BAD_REGEX) else "",
        )
        new_id = lambda: next(ids)  # noqa: E731
        consumer = ConsumerGroupType(settings, new_id=new_id, match_topics=matching, embedded=embedded, classic=CLASSIC)
        replay = MixedReplay(consumer, ClassicGroupType(CLASSIC, new_id), GROUP)
        counts = {"ab": random.randrange(1, 4), "ac": random.randrange(1, 4), "b": 1}
        driver = cls(replay=replay, shuffle=shuffle, counts=counts)
        driver.set_topics()
        for turn in range(random.randrange(4)):
            driver.join_as("", SUBSCRIBED[turn], (), instance_id=INSTANCES[turn + 2])
            driver.rebalance(turn, 0, 1)
        return driver

    def send(self, what: Any) -> Any:
        if self.replay.classic is not None and isinstance(what, TopicsChanged):
            return None
        return super().send(what)

    def kinds(self) -> Kinds:
        wrong = (self.any_request, self.any_request, self.wrong_classic)
        if self.replay.classic is not None:
            return (
                *(self.rebalance,) * 6,
                *(self.join_classic, self.join_classic, self.leave_classic, *wrong, self.join, self.join, self.join),
                *(self.change_topics, self.timer, self.commit_classic, self.rare_classic),
            )
        if any(member.uses_classic_protocol for member in self.group.members.values()):
            more = self.join_classic, self.leave_classic, self.stop_consumers, *wrong
            return (*(self.classic_all,) * 10, *more, *super().kinds())
        return (*(self.join_classic,) * 8, self.wrong_classic, *super().kinds())

    # ---- correct members of the classic protocol

    def join_classic(self, who: int, how: int, what: int) -> None:
        """A process that starts, or a member that joins again: with another subscription, or what it does not own."""
        topics = SUBSCRIBED[what % len(SUBSCRIBED)]
        ids = ("", *self._members()) if self.replay.classic is not None else ("", "", *MEMBERS[:2], *self._members())
        member_id = ids[who % len(ids)]
        instance = INSTANCES[how % 5]
        if how % 8 > 3 and member_id in self._members():
            instance = self._members()[member_id].instance_id
        owned = self._owned(member_id) if what % 3 else ()
        rack = (None, None, None, "r")[how % 4]
        response = self.join_as(member_id, topics, owned, instance_id=instance, how=how, rack=rack)
        if what % 4 and response is not None and not response.error_code:
            self.sync_as(response.member_id, response.generation_id)

    def join_as(
        self,
        member_id: str,
        topics: Iterable[str],
        owned: Iterable[TopicPartition],
        *,
        instance_id: str | None,
        how: int = 0,
        rack: str | None = None,
    ) -> Any:
        """Send JoinGroup; a decided request is sent again with the member id that the response requires."""
        subscription = Subscription(
            topics=frozenset(topics),
            owned=frozenset(owned),
            generation=self._epoch(member_id) if how % 16 < 14 else -1,
            rack=rack,
        )
        metadata = embedded.encode_subscription(subscription)
        names = OFFERS[max(0, how % 32 - 27)]
        request = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=6_000 + how,
            rebalance_timeout_ms=-1 if how % 16 == 15 else 9_000 + how % 2,
            member_id=member_id,
            group_instance_id=instance_id,
            protocol_type="consumer",
            protocols=tuple(OfferedProtocol(name=name, metadata=metadata) for name in names),
            requires_member_id=how % 4 == 3,
        )
        response = self.send(request)
        if not member_id and response is not None and response.error_code and response.member_id:
            response = self.send(replace(request, member_id=response.member_id))
        return response

    def sync_as(self, member_id: str, generation: int, shares: Mapping[str, bytes] | None = None) -> Any:
        """Send SyncGroup."""
        known = self._members().get(member_id)
        return self.send(
            SyncGroupRequest(
                group_id=GROUP,
                generation_id=generation,
                member_id=member_id,
                group_instance_id=known.instance_id if known is not None else None,
                assignments=tuple(MemberShare(member_id=who, assignment=data) for who, data in (shares or {}).items()),
            )
        )

    def heartbeat_as(self, member_id: str, member: Any) -> Any:
        """Send Heartbeat."""
        request = GroupHeartbeatRequest(
            group_id=GROUP,
            generation_id=self._epoch(member_id),
            member_id=member_id,
            group_instance_id=member.instance_id,
        )
        return self.send(request)

    def classic_all(self, which: int, how: int, what: int) -> None:
        """The members of the classic protocol send Heartbeat; who must join does, and syncs; some are slow."""
        for turn, (who, member) in enumerate(sorted(self._members().items())):
            if self.replay.classic is not None or not self._offers(member):
                continue
            response = self.heartbeat_as(who, member)
            if response.error_code != REBALANCE_IN_PROGRESS or (turn + which) % 5 == 4:
                continue
            # Cooperative members have revoked what was taken away, late ones have not; EAGER members own nothing.
            owned = () if how % 8 == 7 else self._owned(who)
            again = self.join_as(
                who,
                self._subscription(member).topics,
                owned,
                instance_id=member.instance_id,
                rack=self._subscription(member).rack,
            )
            if again.error_code == 0 and (turn + what) % 6 != 5:
                self.sync_as(who, again.generation_id)

    def rebalance(self, which: int, how: int, what: int) -> None:
        """All members of a classic group join and sync; what the leader assigns is drawn, once for each partition."""
        group = self.replay.classic
        if group is None:
            return
        for who, member in list(group.members.items()):
            if who not in group.joining:
                self.heartbeat_as(who, member)
                owned = () if how % 4 == 3 else self._owned(who)
                self.join_as(
                    who,
                    self._subscription(member).topics,
                    owned,
                    instance_id=member.instance_id,
                    rack=self._subscription(member).rack,
                )
        if group.state is not ClassicState.COMPLETING_REBALANCE or what % 5 == 4:
            return
        takers = {who: self._subscription(member).topics for who, member in group.members.items()}
        shares: dict[str, set[TopicPartition]] = {who: set() for who in takers}
        for place, (topic, count) in enumerate(sorted(self.counts.items())):
            may = [who for who, topics in takers.items() if topic in topics]
            for number in range(count + (which % 8 == 7)) if may else ():
                shares[may[(number + place + which) % len(may)]].add(TopicPartition(topic, number))
        if how % 16 == 13 and group.members:  # withheld until the owner has revoked it
            shares[group.record.leader].clear()
        data = b"x" if how % 8 == 5 else None
        encoded = {
            who: embedded.encode_assignment(EmbeddedAssignment(partitions=frozenset(share), user_data=data))
            for who, share in shares.items()
        }
        if what % 16 == 13:
            encoded[group.record.leader] = (b"\0", encoded[min(encoded)])[which % 2]
        leader, generation = group.record.leader, group.generation
        for who in sorted(takers, key=lambda who: who != leader)[: None if what % 4 else 1]:
            self.sync_as(who, generation, encoded if who == leader else None)

    def stop_consumers(self, which: int, how: int, what: int) -> None:
        """The members of the consumer protocol leave one after the other, or expire."""
        consumers = [who for who, member in sorted(self._members().items()) if not self._offers(member)]
        for who in consumers[: None if how % 2 else 1]:
            sessions = [key for key in self.replay.armed() if (key.kind, key.member_id) == (TimerKind.SESSION, who)]
            leave = ConsumerHeartbeatRequest(group_id=GROUP, member_id=who, member_epoch=-1)
            self.send(sessions[0] if which % 3 == 0 and sessions else leave)

    def leave_classic(self, who: int, how: int, what: int) -> None:
        """Members leave, or an operator removes a static one."""
        ids = [*MEMBERS[:2], *self._members()]
        leaving = [LeavingMember(member_id=ids[who % len(ids)])]
        if how % 4 == 3:
            leaving = [LeavingMember(member_id="", group_instance_id=("i", "j", "unheard of")[what % 3])]
        if how % 8 == 5:
            leaving.append(LeavingMember(member_id=ids[what % len(ids)], group_instance_id=INSTANCES[what % 5]))
        request = LeaveGroupRequest(group_id="" if what % 16 == 15 else GROUP, members=tuple(leaving))
        if how % 8 == 1:
            request = LeaveGroupRequest(group_id=GROUP, member_id=leaving[0].member_id)
        self.send(request)

    # ---- incorrect members

    def any_request(self, who: int, how: int, what: int) -> None:
        """Heartbeat or SyncGroup of any member at any generation."""
        ids = [*MEMBERS[:1], *self._members()]
        member_id = ids[who % len(ids)]
        generation = self._epoch(member_id) + (0, 0, 0, 1, -1)[how % 5]
        request: Any = SyncGroupRequest(group_id=GROUP, generation_id=generation, member_id=member_id)
        if what % 2:
            request = GroupHeartbeatRequest(group_id=GROUP, generation_id=generation, member_id=member_id)
        wrong = WRONG_REQUESTS[what // 2 % len(WRONG_REQUESTS)] if how % 3 == 2 else {}
        self.send(replace(request, **{name: value for name, value in wrong.items() if hasattr(request, name)}))

    def wrong_classic(self, who: int, how: int, what: int) -> None:
        """A JoinGroup that is wrong in one way."""
        ids = ["", *self._members(), "unheard of"]
        metadata = embedded.encode_subscription(Subscription(topics=frozenset(("ab",))))
        request = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=6_000,
            member_id=ids[who % len(ids)],
            protocol_type="consumer",
            protocols=(OfferedProtocol(name="range", metadata=metadata),),
        )
        self.send(replace(request, **WRONG_JOINS[how % len(WRONG_JOINS)]))

    def rare_classic(self, which: int, how: int, what: int) -> None:
        """A coordinator that fails while the group is a classic one."""
        if which % 3 == 0:
            self.rare(0, how, what)

    def commit_classic(self, who: int, how: int, what: int) -> None:
        """A member of a classic group commits offsets."""
        member_id = self.some_member(who)
        self.commit_as(member_id, self._epoch(member_id) + (how % 5 == 4), what)

    # ---- what is known of a member

    def some_member(self, number: int) -> str:
        ids = [*MEMBERS[:3], *sorted(self._members())]
        return ids[number % len(ids)]

    def _members(self) -> Mapping[str, Any]:
        return self.replay.classic.members if self.replay.classic is not None else self.group.members

    def _offers(self, member: Any) -> tuple[OfferedProtocol, ...]:
        found: tuple[OfferedProtocol, ...] = (
            member.protocols if isinstance(member, ClassicMemberRecord) else member.classic_protocols
        )
        return found

    def _subscription(self, member: Any) -> Subscription:
        with suppress(WireError):
            return embedded.decode_subscription(self._offers(member)[0].metadata)
        return Subscription(topics=frozenset(("ab",)))

    def _epoch(self, member_id: str) -> int:
        """The generation that a member sends."""
        group = self.replay.classic
        if group is None:
            return self.group.current(member_id).epoch
        former = group.members[member_id].former_epoch if member_id in group.members else -1
        return group.generation if former == -1 else former

    def _owned(self, member_id: str) -> set[TopicPartition]:
        """The partitions that a member still runs, by topic name."""
        if self.replay.classic is None:
            names = {each.topic_id: name for name, each in (self.replay.group_type.topics or {}).items()}
            assigned = self.group.current(member_id).assigned
            return {TopicPartition(names[topic], number) for topic, number in assigned if topic in names}
        known = self.replay.classic.members.get(member_id)
        with suppress(WireError):
            return set(embedded.decode_assignment(known.assignment).partitions) if known and known.assignment else set()
        return set()
