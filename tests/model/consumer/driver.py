"""Any input at any time, valid or not: a consumer group of the product driven by small numbers, beside the model.

Most inputs are what a correct consumer, a timer or a topic source would send; the others are wrong in one way each.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Self

from connectgroup.errors import PluginError
from connectgroup.group.consumer.group_type import ConsumerGroupType
from connectgroup.group.consumer.settings import ConsumerServerAssignment, ConsumerSettings
from connectgroup.group.consumer.state import ConsumerGroupState
from connectgroup.group.kernel.outcome import Compute, Computed, Match, Matched, Repeat, TimerKind, TopicsChanged
from connectgroup.protocol.messages.consumer import (
    ConsumerDescribeRequest,
    ConsumerHeartbeatRequest,
    ConsumerInstallRequest,
    ConsumerPrepareRequest,
    ConsumerPrepareResponse,
    InstalledConsumer,
    by_topic,
)
from connectgroup.protocol.messages.describe import DeleteRequest
from connectgroup.protocol.messages.offsets import (
    GroupToFetch,
    OffsetCommitRequest,
    OffsetFetchRequest,
    PartitionCommit,
    TopicCommit,
)
from connectgroup.protocol.records.consumer import TopicMetadata
from connectgroup.protocol.units import Partitions

from ...group.invariants import compacted
from ..driver import INSTANCES, LISTS, MEMBERS, BaseDriver, Kinds
from .fields import GROUP, SUBSCRIPTIONS, TOPICS, WRONG, matching
from .model import BAD_REGEX
from .replay import Replay
from .shuffle import Shuffle


@dataclass(kw_only=True)
class Driver(BaseDriver):
    """One group and its inputs."""

    replay: Replay
    shuffle: Shuffle
    counts: dict[str, int]
    incarnations: dict[str, int] = field(default_factory=dict)
    inputs_of: dict[str, ConsumerPrepareResponse] = field(default_factory=dict)
    sent: dict[str, list[ConsumerHeartbeatRequest]] = field(default_factory=dict)
    installed: ConsumerInstallRequest | None = None

    @classmethod
    def drawn(cls, seed: int) -> Self:
        random = Random(seed)
        shuffle, ids = Shuffle(random=random), iter(f"generated-{n}" for n in range(1000))
        settings = ConsumerSettings(
            server_assignor="shuffle",
            server_assignors={"shuffle": shuffle, "other": shuffle},
            max_members=4,
            max_partitions=random.choice([7, 200_000, 200_000]),
            assignment_interval_ms=random.choice([0, 0, 3_000]),
            regex_violation=lambda regex: "RE2 syntax" if regex.startswith(BAD_REGEX) else "",
        )
        group_type = ConsumerGroupType(settings, new_id=lambda: next(ids), match_topics=matching)
        counts = {"ab": random.randrange(1, 4), "ac": random.randrange(1, 4), "b": 1}
        driver = cls(replay=Replay(group_type, GROUP), shuffle=shuffle, counts=counts)
        driver.set_topics()
        if random.random() < 0.7:
            driver.create_group(random)
        return driver

    def create_group(self, random: Random) -> None:
        """Three members at the target epoch, so that short sequences reach states in which partitions move."""
        lists = random.choice([0, 0, 5, 6])
        for turn in range(3):
            self.join(turn, turn + 2, 8 * lists)
        for _ in range(4):
            self.deliver()
            self.compute(0, 0, 0)
            self.heartbeat_all()

    @property
    def group(self) -> ConsumerGroupState:
        """The product's group."""
        return self.replay.group

    def some_member(self, number: int) -> str:
        """A member id, of a member or of none."""
        return MEMBERS[number % 5]

    def send(self, what: Any) -> Any:
        outcome = self.replay.step(what, self.now_ms)
        self.log += outcome.records
        self.requested += outcome.effects
        if isinstance(what, ConsumerHeartbeatRequest):
            self.sent.setdefault(what.member_id, []).append(what)
        return outcome.response

    def kinds(self) -> Kinds:
        return (
            *(self.join, self.join, self.beat, self.beat, self.wrong, self.subscribe, self.subscribe, self.leave),
            *(self.heartbeat_all,) * 6,
            *(self.compute, self.compute, self.compute, self.change_topics, self.commit, self.commit),
            *(self.timer, self.timer, self.late_duplicate, self.lost_response, self.lost_response, self.rare),
        )

    def result_of(self, effect: Any) -> object:
        match effect:
            case Compute():
                common: dict[str, Any] = {"group_id": GROUP, "epoch": effect.epoch, "assignor": effect.assignor}
                try:
                    return Computed(**common, result=self.replay.group_type.run_assignor(effect))
                except PluginError as error:
                    return Computed(**common, error=str(error))
            case Match():
                return Matched(group_id=GROUP, pattern=effect.pattern, topics=self.replay.group_type.match(effect))
        return effect.what if isinstance(effect, Repeat) else None

    # ---- correct consumers

    def join(self, who: int, how: int, what: int) -> None:
        """A process that starts, under a new, a known or a generated member id."""
        lists = LISTS[max(0, what // 8 - 4)] if what // 8 > 4 or how % 7 == 6 else None
        self.send(
            ConsumerHeartbeatRequest(
                group_id=GROUP,
                member_id="" if how % 16 == 15 else MEMBERS[who % 5],
                member_epoch=0,
                instance_id=INSTANCES[how % 5],
                rack_id=(None, None, "r")[what % 3],
                rebalance_timeout_ms=10_000 + how % 2,
                client_assignors=lists,
                server_assignor="other" if lists is None and how % 8 == 7 else None,
                owned=(),
                max_wait_ms=100 * (what % 2),
                **SUBSCRIPTIONS[what % 8],
            )
        )

    def heartbeat_all(self, *numbers: int) -> None:
        """All members send a heartbeat, and acknowledge their revocations; some report nothing."""
        for turn, who in enumerate(sorted(self.group.members)):
            silent = bool(numbers) and (turn + numbers[0]) % 3 == 0
            current = self.group.current(who)
            if current.temporarily_left or self.group.members[who].uses_classic_protocol:
                continue
            request = ConsumerHeartbeatRequest(
                group_id=GROUP,
                member_id=who,
                member_epoch=current.epoch,
                owned=() if not current.epoch else None if silent else by_topic(current.assigned),
                max_wait_ms=100 * (bool(numbers) and numbers[1] % 2),
                **self._join_fields(who) if not current.epoch else {},
            )
            self.send(request)
            if silent and current.epoch and numbers[2] % 4 == 0:
                self.send(replace(request, instance_id=INSTANCES[numbers[2] % 5]))

    def _join_fields(self, who: str) -> dict[str, Any]:
        stored = self.group.members[who]
        return {
            "instance_id": stored.instance_id,
            "rebalance_timeout_ms": stored.rebalance_timeout_ms,
            "subscribed_topic_names": stored.subscribed_topic_names,
            "subscribed_topic_regex": stored.subscribed_topic_regex,
            "client_assignors": stored.assignors or None,
            "server_assignor": stored.server_assignor,
            "rack_id": stored.rack_id,
        }

    def subscribe(self, who: int, how: int, what: int) -> None:
        """A member changes its subscription, its assignors or its rack."""
        member_id = self.some_member(who)
        current = self.group.current(member_id)
        changes: Mapping[str, Any] = SUBSCRIPTIONS[what % 8]
        match how % 8:
            case 0:
                changes = {"client_assignors": LISTS[what % 5]}
            case 1:
                changes = {"server_assignor": ("shuffle", "other", "unheard of")[what % 3]}
            case 2:
                changes = {"rack_id": ("r", "s")[what % 2]}
        owned = None if how % 3 == 2 else by_topic(current.assigned)
        beat = ConsumerHeartbeatRequest(
            group_id=GROUP, member_id=member_id, member_epoch=current.epoch, owned=owned, **changes
        )
        if current.epoch > 0:
            self.send(beat)

    def compute(self, how: int, which: int, _: int) -> None:
        """The chosen member, or a replaced one, prepares and installs; or an Install is outdated or invalid."""
        computation = self.group.computation
        asked = computation.member_id if computation is not None else ""
        replaced = computation.replaced_members if computation is not None else ()
        who = replaced[0] if replaced and which % 2 else asked or MEMBERS[which % 5]
        epoch = self.group.current(who).epoch + (how % 16 == 15)
        if how % 4 == 0 or (who not in self.inputs_of and how % 8 != 7):
            response = self.send(ConsumerPrepareRequest(group_id=GROUP, member_id=who, member_epoch=epoch))
            if response.error_code:
                return
            self.inputs_of[who] = response
        if how % 4 == 1 and self.installed is not None:
            self.send(self.installed)
            return
        prepared, answer = self.inputs_of.pop(who, None), ConsumerServerAssignment()
        with suppress(PluginError):
            answer = self.shuffle(prepared) if prepared else answer
        more = (InstalledConsumer(member_id="unknown"),) if how % 7 == 6 and answer.members else ()
        failed = how % 11 == 10 or not answer.members
        self.installed = ConsumerInstallRequest(
            group_id=GROUP,
            member_id=who,
            member_epoch=epoch,
            group_epoch=prepared.group_epoch if prepared else self.group.epoch - which % 2,
            error=int(failed),
            keeps_target=failed and which % 3 > 0,
            members=(*answer.members, *more),
        )
        self.send(self.installed)

    def commit(self, who: int, how: int, what: int) -> None:
        """Offsets are committed and fetched at any epoch, by members and others."""
        member_id = "" if how % 9 == 8 else self.some_member(who)
        current = self.group.current(member_id)
        epochs = (current.epoch, current.previous_epoch, current.epoch - 1, current.epoch - 2, current.epoch + 1, -1)
        epoch = epochs[how % 6] if member_id else -1
        if how % 5 == 4:
            sender: dict[str, Any] = {"member_id": member_id, "member_epoch": epoch} if what % 3 else {}
            self.send(OffsetFetchRequest(groups=(GroupToFetch(group_id=GROUP, topics=None, **sender),)))
            return
        self.commit_as(member_id, epoch, what)

    def commit_as(self, member_id: str, epoch: int, what: int, instance_id: str | None = None) -> None:
        """Send OffsetCommit."""
        positions = tuple(
            PartitionCommit(partition_index=number, committed_offset=what, committed_metadata="") for number in range(3)
        )
        self.send(
            OffsetCommitRequest(
                group_id=GROUP,
                generation_id_or_member_epoch=epoch,
                member_id=member_id,
                group_instance_id=instance_id,
                topics=tuple(TopicCommit(name=name, partitions=positions) for name in TOPICS[what % 2 :]),
            )
        )

    # ---- topics and time

    def change_topics(self, which: int, how: int, count: int) -> None:
        """A topic is created, deleted, extended, or deleted and created again."""
        name = TOPICS[which % 3]
        match how % 4:
            case 0 if name in self.counts:
                del self.counts[name]
            case 1:
                self.incarnations[name] = self.incarnations.get(name, 0) + 1
                self.counts[name] = 1 + count % 3
            case 2:
                self.counts["abc"] = 1
            case _:
                self.counts[name] = self.counts.get(name, 0) + 1
        self.set_topics()

    def set_topics(self) -> None:
        """The topic source has read the topics."""
        self.replay.group_type.topics = {
            name: TopicMetadata(
                topic_id=f"{name}{self.incarnations.get(name, 0)}", topic_name=name, num_partitions=count
            )
            for name, count in self.counts.items()
        }
        self.send(TopicsChanged(group_id=GROUP))

    def timer(self, which: int, who: int, pause: int) -> None:
        """A timer fires; sometimes a stale one."""
        self.now_ms += 1_000 * (pause % 5)
        armed = self.replay.armed()
        if not armed:
            return
        self.former += [key for key in armed if key not in self.former[-20:]]
        kinds = [key for key in armed if key.kind is not TimerKind.SESSION] if which % 4 else armed
        stale = self.former[-20:] if pause % 3 == 2 else kinds or armed
        self.send(stale[who % len(stale)])

    def leave(self, who: int, how: int, what: int) -> None:
        """A member leaves, for good or temporarily; often its instance id joins again, under the same or a new id."""
        member_id = self.some_member(who)
        member = self.group.members.get(member_id)
        instance = member.instance_id if member is not None and how % 4 else INSTANCES[how % 5]
        epoch = -2 if instance is not None and how % 3 else -1
        there = sorted(self.group.members)
        next_id = (there[how % len(there)] if there else "", MEMBERS[how % 5], member_id)[what % 3] or member_id
        fields = self._join_fields(next_id if next_id in self.group.members else member_id) if member else {}
        self.send(
            ConsumerHeartbeatRequest(group_id=GROUP, member_id=member_id, member_epoch=epoch, instance_id=instance)
        )
        if epoch == -2 and member is not None and what % 2:
            changes: Mapping[str, Any] = {} if what % 4 == 3 else SUBSCRIPTIONS[how % 8]
            self.send(
                ConsumerHeartbeatRequest(
                    group_id=GROUP,
                    member_id=next_id,
                    member_epoch=0,
                    owned=(),
                    **{**fields, "instance_id": instance, **changes},
                )
            )

    # ---- incorrect consumers

    def beat(self, who: int, how: int, what: int) -> None:
        """A heartbeat with any epoch and any owned partitions."""
        member_id = self.some_member(who)
        current, member = self.group.current(member_id), self.group.members.get(member_id)
        epoch = (current.epoch, current.epoch, current.previous_epoch, current.epoch + 1, current.epoch - 1)[how % 5]
        reports: tuple[Partitions | None, ...] = (
            None,
            frozenset(current.assigned),
            frozenset(current.held),
            frozenset(),
            frozenset(sorted(current.assigned)[1:]),
            frozenset(sorted(current.pending)[:1]),
            frozenset(self.group.wanted_by),
        )
        owned = reports[what % 7]
        full: dict[str, Any] = {"rebalance_timeout_ms": 12_000} if how % 2 else {}
        if how % 4 == 3 and member is not None:
            full["subscribed_topic_names"] = member.subscribed_topic_names
        self.send(
            ConsumerHeartbeatRequest(
                group_id=GROUP,
                member_id=member_id,
                member_epoch=epoch if epoch else current.epoch + 1,
                owned=None if owned is None else by_topic(owned),
                instance_id=member.instance_id if member is not None and what % 3 else INSTANCES[what % 5],
                max_wait_ms=50 * (how % 2),
                **full,
            )
        )

    def wrong(self, who: int, how: int, what: int) -> None:
        """A join or a heartbeat that is wrong in one way."""
        member_id = sorted(self.group.members or MEMBERS)[who % max(1, len(self.group.members))]
        join = ConsumerHeartbeatRequest(
            group_id=GROUP,
            member_id=member_id,
            member_epoch=0,
            instance_id="k",
            rebalance_timeout_ms=10_000,
            owned=(),
            **SUBSCRIPTIONS[what % 3],
        )
        beat = ConsumerHeartbeatRequest(
            group_id=GROUP, member_id=member_id, member_epoch=max(0, self.group.current(member_id).epoch)
        )
        wrong = WRONG[how % len(WRONG)]
        request = join if what % 2 or not beat.member_epoch else beat
        self.send(replace(request, **{**wrong, "member_epoch": wrong.get("member_epoch", request.member_epoch)}))

    def late_duplicate(self, who: int, how: int, which: int) -> None:
        """A late duplicate of a former heartbeat; or a full retry after a lost response."""
        member_id = self.some_member(who)
        for request in self.sent.get(member_id, [])[-1 - which % 3 :][:1]:
            current = self.group.current(member_id)
            owned = (request.owned or (), by_topic(current.assigned), by_topic(current.held))[how % 3]
            changed = replace(request, owned=owned, rebalance_timeout_ms=10_000)
            self.send(request if how % 4 == 3 or not request.member_epoch else changed)

    def lost_response(self, who: int, how: int, which: int) -> None:
        """A response is lost, topics or subscriptions change, and the member retries its heartbeat."""
        member_id = sorted(self.group.members)[who % len(self.group.members)] if self.group.members else ""
        before = self.group.current(member_id)
        if before.epoch <= 0:
            return
        request = ConsumerHeartbeatRequest(
            group_id=GROUP, member_id=member_id, member_epoch=before.epoch, owned=by_topic(before.assigned)
        )
        self.send(request)
        if how % 3 == 1:
            self.change_topics(which, which // 2, how)
        if how % 3 == 2:
            self.subscribe(who + 1, 3, which)
            self.deliver()
        self.send(request)
        self.send(replace(request, owned=by_topic(before.held)) if which % 2 else request)

    def rare(self, which: int, how: int, _: int) -> None:
        """Rare inputs: a coordinator failover, a description, the deletion of the group."""
        match which % 4:
            case 0 | 1:
                self.log = compacted(self.log, tombstones=how % 3 == 0) if how % 2 else self.log
                self.requested = list(self.replay.load(self.log, self.now_ms))
            case 2:
                self.send(ConsumerDescribeRequest(group_ids=(GROUP,)))
            case _:
                for member_id in sorted(self.group.members) if how % 2 else ():
                    self.send(ConsumerHeartbeatRequest(group_id=GROUP, member_id=member_id, member_epoch=-1))
                self.send(DeleteRequest(group_ids=(GROUP,)))
                self.now_ms -= 1_000 * (how % 9) ** 2  # the clock may go back
