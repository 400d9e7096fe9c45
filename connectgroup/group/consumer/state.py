"""The state of one consumer group, derived from its records; ``kernel.state`` has what is common.

``ConsumerDraft`` is the group as it will be once the records written so far in a step are applied (``kernel.state``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping
from enum import IntEnum

from ...protocol.messages.consumer import InstalledConsumer, by_topic, each_partition
from ...protocol.records.base import Key, Kind, Tombstone
from ...protocol.records.connect import GroupRecord, Record
from ...protocol.records.consumer import (
    CONSUMER,
    ConsumerCurrentRecord,
    ConsumerMemberRecord,
    ConsumerRegexRecord,
    ConsumerTargetMemberRecord,
    ConsumerTopicsRecord,
    OffsetRecord,
    PendingOffsetRecord,
    TopicMetadata,
    from_stored,
    stored,
)
from ...protocol.units import TopicPartition
from ..kernel.reconcile import Current
from ..kernel.state import GroupDraft, GroupState, MemberKinds, Target, Those
from ..offsets import Offsets


def target_of(target: ConsumerTargetMemberRecord | InstalledConsumer) -> Target[TopicPartition]:
    """The target assignment in a record, or in the result of an assignor."""
    return Target(
        units=frozenset(each_partition(target.topic_partitions)),
        error=target.error,
        version=target.version,
        metadata=target.metadata,
    )


class Awaited(IntEnum):
    """A request that a member of the classic protocol must send."""

    NOTHING = 0
    JOIN = 1
    SYNC = 2


Subscription = tuple[tuple[str, ...], str]
"""What a member subscribes to: names of topics, and a regular expression. Most members have the same."""


def count_subscription(subscriptions: Counter[Subscription], member: ConsumerMemberRecord, by: int) -> None:
    """Add a member to the counts (1), or remove it (-1)."""
    subscription = member.subscribed_topic_names, member.subscribed_topic_regex
    subscriptions[subscription] += by
    if not subscriptions[subscription]:
        del subscriptions[subscription]


class ConsumerGroupState(GroupState[ConsumerMemberRecord, TopicPartition]):
    """State of one consumer group. Any code may read it; only ``apply`` changes it, or as noted."""

    group_type = CONSUMER
    kinds = MemberKinds(Kind.CONSUMER_CURRENT, Kind.CONSUMER_TARGET_MEMBER, Kind.CONSUMER_MEMBER)
    reaches_all_units = False

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        # The subscribed topics that exist, by name: a ConsumerTopicsRecord replaces them all.
        self.topics: dict[str, TopicMetadata] = {}
        # The topics that match each regular expression; one that is not resolved yet is absent. Set by a
        # ConsumerRegexRecord, removed by its tombstone once no member uses it.
        self.regexes: dict[str, frozenset[str]] = {}
        # Committed offsets; they outlive the members. A group with offsets and without members exists.
        self.offsets = Offsets()

        # ---- derived

        # The names of ``topics``, by topic id.
        self.topic_names: dict[str, str] = {}
        # How many members have which subscription.
        self.subscriptions: Counter[Subscription] = Counter()

        # ---- not from records: a new coordinator does not have it

        # The request that a member of the classic protocol must send before its rebalance timeout; never of a member
        # of the consumer protocol, whose timer is that of a pending revocation. ``classic_members`` sets it. After a
        # load, the next Heartbeat of the member tells it to join again.
        self.awaited: dict[str, Awaited] = {}

    @property
    def is_vacant(self) -> bool:
        """Whether the group exists without members and committed offsets: only its history is lost with it."""
        return self.exists and not (self.members or self.offsets)

    def apply(self, record: Record) -> None:
        """Apply one record. Never raises for a record of a known class."""
        self.heartbeat_cache.clear()
        match record:
            case ConsumerCurrentRecord():
                after = Current(
                    epoch=record.epoch,
                    previous_epoch=record.previous_epoch,
                    state=record.state,
                    assigned=from_stored(record.assigned),
                    pending=from_stored(record.pending),
                )
                self._set_current(record.member_id, after)
            case ConsumerMemberRecord():
                self._set_member(record)
                if not record.uses_classic_protocol:
                    self.awaited.pop(record.member_id, None)
            case ConsumerTargetMemberRecord():
                self._set_target(record.member_id, target_of(record))
            case ConsumerTopicsRecord():
                self.topics = {topic.topic_name: topic for topic in record.topics}
                self.topic_names = {topic.topic_id: topic.topic_name for topic in record.topics}
            case ConsumerRegexRecord():
                self.regexes[record.regex] = frozenset(record.topics)
            case OffsetRecord() | PendingOffsetRecord():
                self.offsets.apply(record)
            case Tombstone():
                self.offsets.apply(record)
                super().apply(record)
            case _:
                super().apply(record)

    def _remove(self, key: Key) -> None:
        super()._remove(key)
        match key.kind:
            case Kind.CONSUMER_MEMBER:
                self.awaited.pop(key.name, None)
            case Kind.CONSUMER_TOPICS:
                self.topics, self.topic_names = {}, {}
            case Kind.CONSUMER_REGEX:
                self.regexes.pop(key.name, None)
            case _:
                pass

    def _count(self, before: ConsumerMemberRecord | None, after: ConsumerMemberRecord | None) -> None:
        super()._count(before, after)
        if before is not None:
            count_subscription(self.subscriptions, before, -1)
        if after is not None:
            count_subscription(self.subscriptions, after, 1)


Topics = Mapping[str, TopicMetadata]
"""Topics by name."""


class ConsumerDraft(GroupDraft[ConsumerMemberRecord, TopicPartition]):
    """A consumer group with the records of the current step applied to it.

    Attributes, besides those of ``GroupDraft``:
        cluster: all topics of the cluster, as the topic source last read them.
        topics: the subscribed topics that exist.
        regexes: the topics that match each regular expression; absent if it is not resolved yet.
        joining: the member whose join this step decides, set by ``heartbeat``: it is present, although its current
            assignment may still say that it has left temporarily.
    """

    group: ConsumerGroupState

    def __init__(self, group: ConsumerGroupState, now_ms: int, cluster: Topics) -> None:
        super().__init__(group, now_ms)
        self.cluster = cluster
        self.topics: Topics = group.topics
        self.regexes: Mapping[str, frozenset[str]] = group.regexes
        self.joining = ""

    def write(self, record: Record) -> None:
        """Add a record; later reads of the draft include it."""
        super().write(record)
        match record:
            case ConsumerTopicsRecord():
                self.topics = {topic.topic_name: topic for topic in record.topics}
            case ConsumerRegexRecord():
                self.regexes = {**self.regexes, record.regex: frozenset(record.topics)}
            case Tombstone(key=Key(kind=Kind.CONSUMER_REGEX)):
                self.regexes = {name: found for name, found in self.regexes.items() if name != record.key.name}
            case _:
                pass

    def _current_record(self, member_id: str, current: Current[TopicPartition]) -> ConsumerCurrentRecord:
        return ConsumerCurrentRecord(
            group_id=self.group_id,
            member_id=member_id,
            epoch=current.epoch,
            previous_epoch=current.previous_epoch,
            state=current.state,
            assigned=stored(current.assigned),
            pending=stored(current.pending),
        )

    def _target_record(self, member_id: str, target: Target[TopicPartition]) -> ConsumerTargetMemberRecord:
        return ConsumerTargetMemberRecord(
            group_id=self.group_id,
            member_id=member_id,
            topic_partitions=by_topic(target.units),
            error=target.error,
            version=target.version,
            metadata=target.metadata,
        )

    def bump(self) -> None:
        """Advance the group epoch, once in a step: a new target assignment is needed (KIP-848, "Group Epoch")."""
        if self._bumped:
            return
        self._bumped = True
        self.write(
            GroupRecord(
                group_id=self.group_id,
                epoch=self.epoch + 1,
                group_type=CONSUMER,
                created_ms=self.created_ms,
            )
        )

    def computing_members(self) -> Container[str]:
        """The members that may compute: those that have not left temporarily."""

        def is_present(member: ConsumerMemberRecord) -> bool:
            return member.member_id == self.joining or not self.current(member.member_id).temporarily_left

        return Those(self, is_present)

    def any_partition_assigned(self) -> bool:
        """Whether the target assignment gives a member a partition; usually the first one that is looked at has it."""
        changed = self._targets
        return any(target is not None and target.units for target in changed.values()) or any(
            member_id not in changed and self.member(member_id) is not None
            for member_id in self.group.wanted_by.values()
        )

    def subscribed(self, member: ConsumerMemberRecord) -> frozenset[str]:
        """The topics that a member subscribes to, by name; an unresolved regular expression matches none (CA-20)."""
        return self.topics_of((member.subscribed_topic_names, member.subscribed_topic_regex))

    def topics_of(self, subscription: Subscription) -> frozenset[str]:
        """As ``subscribed``."""
        names, regex = subscription
        return self.regexes.get(regex, frozenset()).union(names)

    def subscriptions(self) -> Mapping[Subscription, int]:
        """What the members subscribe to, with the number of members that do."""
        if not self._members:
            return self.group.subscriptions
        counts = Counter(self.group.subscriptions)
        for member_id, after in self._members.items():
            if (before := self.group.members.get(member_id)) is not None:
                count_subscription(counts, before, -1)
            if after is not None:
                count_subscription(counts, after, 1)
        return counts

    def subscribed_topics(self) -> frozenset[str]:
        """The topics that the members subscribe to, by name."""
        return frozenset[str]().union(*map(self.topics_of, self.subscriptions()))
