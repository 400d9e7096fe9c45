"""A consumer group as it will be once the records written so far in this step are applied (``kernel.draft``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping

from ...protocol.messages.consumer import by_topic
from ...protocol.records.base import Key, Kind, Tombstone
from ...protocol.records.connect import GroupRecord, Record
from ...protocol.records.consumer import (
    CONSUMER,
    ConsumerCurrentRecord,
    ConsumerMemberRecord,
    ConsumerRegexRecord,
    ConsumerTargetMemberRecord,
    ConsumerTopicsRecord,
    TopicMetadata,
    stored,
)
from ...protocol.units import TopicPartition
from ..kernel.draft import GroupDraft, Those
from ..kernel.reconcile import Current
from ..kernel.state import Target
from .state import ConsumerGroupState, Subscription, count_subscription

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

    def is_subscribed(self, topic: str) -> bool:
        """Whether a member is subscribed to a topic."""
        return any(topic in self.subscribed(member) for member in self.members())
