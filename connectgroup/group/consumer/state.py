"""The state of one consumer group, derived from its records.

``apply`` is the only function that changes a group, for live traffic and replay. It is total: a tombstone for an
unknown key is a no-op (KAFKA-17306), and it accepts every order of records that compaction can produce (KAFKA-19862).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from ...protocol.messages.consumer import each_partition
from ...protocol.records.base import Key, Kind, MemberState, Tombstone
from ...protocol.records.connect import ComputationRecord, GroupRecord, Record, TargetRecord
from ...protocol.records.consumer import (
    ConsumerCurrentRecord,
    ConsumerMemberRecord,
    ConsumerRegexRecord,
    ConsumerTargetMemberRecord,
    ConsumerTopicsRecord,
    TopicMetadata,
    from_stored,
)
from ...protocol.records.offsets import OffsetRecord, PendingOffsetRecord
from ...protocol.units import Partitions, TopicPartition
from ..kernel.holders import Holders
from ..kernel.outcome import Key as UnchangedKey, Outcome
from ..kernel.reconcile import NOTHING, Current
from ..kernel.selection import Listing, count_listing
from ..kernel.static import ANY_PROCESS, Process
from ..offsets.state import Offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One member's target assignment, with the assignor's error and metadata for the member."""

    partitions: Partitions = frozenset()
    error: int = 0
    version: int = 0
    metadata: bytes = b""


NO_TARGET = Target()


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


class ConsumerGroup:
    """State of one consumer group. Any code may read it; only ``apply`` changes it.

    Attributes:
        topics: the subscribed topics that exist, by name.
        regexes: the topics that match each regular expression. A regular expression that is not resolved yet is absent.
        holders: the owner of each partition.
        behind: the members that have not reached the target assignment.
        awaited: the request that a member of the classic protocol must send before its rebalance timeout. Not in the
            log: after a load, the next Heartbeat of the member tells it to join again.
        unchanged: outcomes of heartbeats that report nothing (``kernel.outcome``).
        members_to_wake: members that may have a new response since the runtime last cleared this set.
        members_to_wake_later: always empty: all members learn a new target epoch at once.
    """

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.created_ms = 0
        self.members: dict[str, ConsumerMemberRecord] = {}
        self.target_epoch = 0
        self.target_assignor = ""
        self.computed_by = ""
        self.target_checksum = 0
        self.target_ms = 0
        self.targets: dict[str, Target] = {}
        self.currents: dict[str, Current[TopicPartition]] = {}
        self.computation: ComputationRecord | None = None
        self.topics: dict[str, TopicMetadata] = {}
        self.regexes: dict[str, frozenset[str]] = {}
        self.offsets = Offsets()

        # Derived.
        self.topic_names: dict[str, str] = {}
        self.instances: dict[str, str] = {}
        self.holders: Holders[TopicPartition] = Holders()
        self.wanted_by: dict[TopicPartition, str] = {}
        self.behind: set[str] = set()
        self.listings: Counter[Listing] = Counter()
        self.subscriptions: Counter[Subscription] = Counter()
        self.awaited: dict[str, Awaited] = {}
        self.unchanged: dict[str, tuple[UnchangedKey, Outcome[Any]]] = {}
        self.members_to_wake: set[str] = set()
        self.members_to_wake_later: set[str] = set()

    @property
    def exists(self) -> bool:
        """Whether a record created this group."""
        return self.epoch > 0

    def process_of(self, sender: str) -> Process:
        """Unknown: Kafka's consumers send no process id."""
        return ANY_PROCESS

    @property
    def is_vacant(self) -> bool:
        """Whether the group exists without members and committed offsets: only its history is lost with it."""
        return self.exists and not (self.members or self.offsets)

    @property
    def state_name(self) -> str:
        """The state of the group as ConsumerGroupDescribe has it."""
        if not self.exists:
            return "Dead"
        if not self.members:
            return "Empty"
        if self.epoch > self.target_epoch:
            return "Assigning"
        return "Reconciling" if self.behind else "Stable"

    def current(self, member_id: str) -> Current[TopicPartition]:
        """The member's current assignment; empty for a member without a record."""
        return self.currents.get(member_id, NOTHING)

    def target(self, member_id: str) -> Target:
        """The member's target assignment."""
        return self.targets.get(member_id, NO_TARGET)

    def apply(self, record: Record) -> None:
        """Apply one record. Never raises for a record of a known class."""
        self.unchanged.clear()
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
            case GroupRecord():
                self.epoch, self.created_ms = record.epoch, record.created_ms
            case ConsumerMemberRecord():
                self._forget_instance(record.member_id)
                self._count(self.members.get(record.member_id), record)
                self.members[record.member_id] = record
                if record.instance_id is not None:
                    self.instances[record.instance_id] = record.member_id
                if not record.uses_classic_protocol:
                    self.awaited.pop(record.member_id, None)
                self.currents.setdefault(record.member_id, NOTHING)
                self._see_progress(record.member_id)
            case ConsumerTargetMemberRecord():
                self._set_target(record)
            case TargetRecord():
                self.target_epoch, self.target_assignor = record.epoch, record.assignor
                self.computed_by, self.target_checksum = record.computed_by, record.checksum
                self.target_ms = record.at_ms
                for member_id in self.members:
                    self._see_progress(member_id)
                self.members_to_wake.update(self.members)
            case ComputationRecord():
                self.computation = record
                if record.member_id and not record.prepared:
                    self.members_to_wake.add(record.member_id)
            case ConsumerTopicsRecord():
                self.topics = {topic.topic_name: topic for topic in record.topics}
                self.topic_names = {topic.topic_id: topic.topic_name for topic in record.topics}
            case ConsumerRegexRecord():
                self.regexes[record.regex] = frozenset(record.topics)
            case OffsetRecord() | PendingOffsetRecord():
                self.offsets.apply(record)
            case Tombstone():
                self.offsets.apply(record)
                self._remove(record.key)
            case _:
                pass

    def _set_current(self, member_id: str, after: Current[TopicPartition]) -> None:
        for partition in self.holders.replace(member_id, self.current(member_id).held, after.held):
            if partition in self.wanted_by:
                self.members_to_wake.add(self.wanted_by[partition])
        self.currents[member_id] = after
        self._see_progress(member_id)

    def _set_target(self, record: ConsumerTargetMemberRecord) -> None:
        self._forget_wanted(record.member_id)
        target = Target(
            partitions=frozenset(each_partition(record.topic_partitions)),
            error=record.error,
            version=record.version,
            metadata=record.metadata,
        )
        self.targets[record.member_id] = target
        self.wanted_by.update(dict.fromkeys(target.partitions, record.member_id))

    def _remove(self, key: Key) -> None:
        match key.kind:
            case Kind.CONSUMER_CURRENT:
                self._set_current(key.name, NOTHING)
                if key.name not in self.members:
                    del self.currents[key.name]
            case Kind.CONSUMER_MEMBER:
                self._forget_instance(key.name)
                self._count(self.members.pop(key.name, None), None)
                if not self.current(key.name).held:
                    self.currents.pop(key.name, None)
                self.behind.discard(key.name)
                self.awaited.pop(key.name, None)
                self.members_to_wake.add(key.name)
            case Kind.CONSUMER_TARGET_MEMBER:
                self._forget_wanted(key.name)
                self.targets.pop(key.name, None)
                self._see_progress(key.name)
            case Kind.CONSUMER_TOPICS:
                self.topics, self.topic_names = {}, {}
            case Kind.CONSUMER_REGEX:
                self.regexes.pop(key.name, None)
            case Kind.COMPUTATION:
                self.computation = None
            case Kind.TARGET:
                self.target_epoch, self.target_assignor, self.computed_by = 0, "", ""
                self.target_checksum = self.target_ms = 0
            case Kind.GROUP:
                self.epoch = 0
            case _:
                pass

    def _count(self, before: ConsumerMemberRecord | None, after: ConsumerMemberRecord | None) -> None:
        """Update what is counted of the members, so that a join need not look at all of them."""
        if before is not None:
            count_listing(self.listings, before, -1)
            count_subscription(self.subscriptions, before, -1)
        if after is not None:
            count_listing(self.listings, after, 1)
            count_subscription(self.subscriptions, after, 1)

    def _forget_instance(self, member_id: str) -> None:
        """Free a group instance id when its member is removed or changes its instance id (KAFKA-20747)."""
        member = self.members.get(member_id)
        name = member.instance_id if member is not None else None
        if name is not None and self.instances.get(name) == member_id:
            del self.instances[name]

    def _forget_wanted(self, member_id: str) -> None:
        for partition in self.target(member_id).partitions:
            if self.wanted_by.get(partition) == member_id:
                del self.wanted_by[partition]

    def _see_progress(self, member_id: str) -> None:
        """Update ``behind``. A member that left temporarily is never behind."""
        if member_id not in self.members:
            return
        current = self.current(member_id)
        if current.temporarily_left or (
            current.epoch == self.target_epoch and not current.pending and current.state == MemberState.STABLE
        ):
            self.behind.discard(member_id)
        else:
            self.behind.add(member_id)


def replay(group_id: str, records: Iterable[Record]) -> ConsumerGroup:
    """Rebuild a group from its log."""
    group = ConsumerGroup(group_id)
    for record in records:
        group.apply(record)
    group.members_to_wake.clear()
    return group
