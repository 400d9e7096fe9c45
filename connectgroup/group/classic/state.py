"""The state of one classic group: records, and what only this coordinator process knows.

Also the subscriptions and assignments of members of the classic protocol, in terms of the cluster's topic ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from ...errors import (
    FencedInstanceId,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidGroupId,
    UnknownMemberId,
    WireError,
)
from ...protocol.messages.classic import (
    EmbeddedAssignment,
    GroupHeartbeatRequest,
    OfferedProtocol,
    Subscription,
    SyncGroupRequest,
)
from ...protocol.records.base import Kind, Tombstone
from ...protocol.records.connect import GroupRecord, Record
from ...protocol.records.consumer import ClassicGroupRecord, ClassicMemberRecord, ClassicState, TopicMetadata
from ...protocol.units import Partitions, TopicPartition, printable
from ..kernel.state import ANY_PROCESS, Process
from ..offsets import Offsets, OffsetSettings

Counted = TypeVar("Counted", str, int)


@dataclass(slots=True)
class ClassicGroupState:
    """One classic group. Any code may read it; only ``apply`` changes it, except where a field says so."""

    group_id: str
    # Whether records created the group: set by a GroupRecord, cleared by its tombstone.
    exists: bool = False
    # Wall clock of the group's first record.
    created_ms: int = 0
    # The epoch of the GroupRecord; 0 before the first rebalance has been completed.
    generation: int = 0
    # State, protocol and leader, as the last ClassicGroupRecord has them.
    record: ClassicGroupRecord = field(default_factory=lambda: ClassicGroupRecord(group_id=""))
    # By member id, in the order in which they joined.
    members: dict[str, ClassicMemberRecord] = field(default_factory=dict)
    # The committed offsets; they outlive the members.
    offsets: Offsets = field(default_factory=Offsets)

    # ---- derived from the members, so that a request need not look at all of them

    # The member id of each group instance id.
    instances: dict[str, str] = field(default_factory=dict)
    # How many members support each assignor, and have each rebalance timeout.
    offered: Counter[str] = field(default_factory=Counter)
    timeouts: Counter[int] = field(default_factory=Counter)

    # ---- not in the log: parked requests, and member ids that are not members yet. ``members`` and ``assignment``
    # change these. A coordinator that loads the group starts without them, and the clients send their requests again.

    # Members that have sent JoinGroup for the next generation: their requests are parked. None of them is in
    # ``syncing``. Emptied when the generation begins.
    joining: set[str] = field(default_factory=set)
    # Those of ``joining`` that wait for their first generation.
    new: set[str] = field(default_factory=set)
    # Members whose SyncGroup is parked, until the leader's arrives or the next rebalance begins.
    syncing: set[str] = field(default_factory=set)
    # Members that have sent SyncGroup in the current generation; a superset of ``syncing``.
    synced: set[str] = field(default_factory=set)
    # Member ids that were sent with MEMBER_ID_REQUIRED and have not joined, in the order of the responses: no members.
    pending: dict[str, None] = field(default_factory=dict)
    # How much longer the first rebalance of an empty group may wait; -1: no such rebalance is in progress.
    initial_left_ms: int = -1
    # Whether a member has joined since the initial delay was last extended.
    member_added: bool = False
    # Always empty: a step responds to parked requests itself.
    members_to_wake: set[str] = field(default_factory=set)
    members_to_wake_later: set[str] = field(default_factory=set)

    def process_of(self, sender: str) -> Process:
        """Unknown: clients of the classic protocol send no process id."""
        return ANY_PROCESS

    def apply(self, record: Record) -> None:
        """Apply one record of the log."""
        self.offsets.apply(record)
        match record:
            case GroupRecord():
                self.exists = True
                self.generation, self.created_ms = record.epoch, record.created_ms
            case ClassicGroupRecord():
                self.record = record
            case ClassicMemberRecord():
                last = next(reversed(self.members.values()), record)
                known = record.member_id in self.members
                self._count(self.members.get(record.member_id), record)
                self.members[record.member_id] = record
                if not known and record.number < last.number:
                    self.members = dict(sorted(self.members.items(), key=lambda item: item[1].number))
            case Tombstone():
                if record.key.kind is Kind.CLASSIC_MEMBER:
                    self._count(self.members.pop(record.key.name, None), None)
                elif record.key.kind is Kind.GROUP:
                    self.exists = False
                    self.generation, self.record = 0, ClassicGroupRecord(group_id=self.group_id)

    def _count(self, before: ClassicMemberRecord | None, after: ClassicMemberRecord | None) -> None:
        """Update what is derived from a member that is added, changed or removed."""
        for member, by in (before, -1), (after, 1):
            if member is not None:
                for name in {protocol.name for protocol in member.protocols}:
                    _add(self.offered, name, by)
                _add(self.timeouts, member.rebalance_timeout_ms, by)
        former = None if before is None else before.instance_id
        if before is not None and former is not None and self.instances.get(former) == before.member_id:
            del self.instances[former]
        if after is not None and after.instance_id is not None:
            self.instances[after.instance_id] = after.member_id

    @property
    def state(self) -> ClassicState:
        return self.record.state

    @property
    def is_vacant(self) -> bool:
        """Whether the group exists without members and committed offsets: only its history is lost with it."""
        return self.exists and not (self.members or self.offsets)

    @property
    def next_number(self) -> int:
        """The number of the next member that joins."""
        last = next(reversed(self.members.values()), None)  # they are sorted by their numbers
        return 0 if last is None else last.number + 1

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of a member."""
        return max((timeout_ms for timeout_ms, count in self.timeouts.items() if count), default=0)

    def is_generation_of(self, member_id: str, generation: int) -> bool:
        """Whether a member may send this generation: that of the group, or its former epoch until the next begins."""
        if generation == self.generation:
            return True
        member = self.members.get(member_id)
        if member is None or self.state is not ClassicState.PREPARING_REBALANCE:
            return False
        return generation == member.former_epoch >= 0

    def member_error(self, member_id: str, instance_id: str | None) -> int:
        """The error code for a sender that is not the member it claims to be, or 0."""
        if instance_id is None:
            return 0 if member_id in self.members else UnknownMemberId.code
        current = self.instances.get(instance_id)
        if current is None:
            return UnknownMemberId.code
        return 0 if current == member_id else FencedInstanceId.code

    def sender_error(self, request: SyncGroupRequest | GroupHeartbeatRequest) -> int:
        """The error code for a sender that is not a member of this generation, or 0."""
        if not request.group_id:
            return InvalidGroupId.code
        code = self.member_error(request.member_id, request.group_instance_id)
        if code:
            return code
        return 0 if self.is_generation_of(request.member_id, request.generation_id) else IllegalGeneration.code

    def common_protocols(self) -> set[str]:
        """The assignors that all members support."""
        return {name for name, count in self.offered.items() if count == len(self.members)} if self.members else set()

    def supports(self, protocol_type: str, protocols: Iterable[OfferedProtocol]) -> bool:
        """Whether a member with these protocols may join."""
        names = {protocol.name for protocol in protocols}
        if not self.members:
            return bool(protocol_type and names)
        return protocol_type == self.record.protocol_type and any(
            self.offered.get(name) == len(self.members) for name in names
        )

    def selected_protocol(self) -> str:
        """The assignor that most members prefer among those that all members support."""
        common = self.common_protocols()
        votes: dict[str, int] = {}
        for member in self.members.values():
            vote = next(protocol.name for protocol in member.protocols if protocol.name in common)
            votes[vote] = votes.get(vote, 0) + 1
        return max(votes, key=lambda name: votes[name])

    def offer(self, member: ClassicMemberRecord) -> OfferedProtocol:
        """A member's metadata for the group's assignor."""
        name = self.record.protocol_name
        return next((each for each in member.protocols if each.name == name), OfferedProtocol(name=name, metadata=b""))

    def metadata(self, member: ClassicMemberRecord) -> bytes:
        """The bytes of ``offer``."""
        return self.offer(member).metadata


def _add(counts: Counter[Counted], key: Counted, by: int) -> None:
    """Count without zeros; a copy without them would take long for each member that leaves a large group."""
    counts[key] += by
    if not counts[key]:
        del counts[key]


# --------------------------------------------------------------------------------------------------
# Settings of the group type ``classic``.


JOIN_WAIT_MS = 1_000
"""How long JoinGroup waits in a consumer group for the target assignment that it causes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicSettings:
    """Settings of all classic groups. The defaults are Kafka's, except ``max_members``.

    Attributes:
        min_session_timeout_ms: the lowest session timeout of a member (``group.min.session.timeout.ms``).
        max_session_timeout_ms: the highest one (``group.max.session.timeout.ms``).
        initial_rebalance_delay_ms: how long the first rebalance of an empty group waits for more members; each new
            member extends it, up to the rebalance timeout (``group.initial.rebalance.delay.ms``).
        new_member_timeout_ms: how long a new member may wait in JoinGroup: its client may have disconnected.
        max_members: maximum number of members of a group (``group.max.size``).
        offsets: limits on committed offsets.
    """

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    new_member_timeout_ms: int = 300_000
    max_members: int = 1_000
    offsets: OffsetSettings = field(default_factory=OffsetSettings)


PROTOCOL_TYPE = "consumer"
"""The protocol type of the classic members that a consumer group can have."""


class EmbeddedFormat(Protocol):
    """The bytes in JoinGroup and SyncGroup: ``wire.embedded``."""

    def decode_subscription(self, data: bytes, /) -> Subscription: ...
    def decode_assignment(self, data: bytes, /) -> EmbeddedAssignment: ...
    def encode_assignment(self, assignment: EmbeddedAssignment, /) -> bytes: ...


class NoFormat:
    """A coordinator that cannot read what members exchange: no member of the classic protocol can join."""

    def decode_subscription(self, data: bytes) -> Subscription:
        raise WireError("Subscription: this coordinator does not read it")

    def decode_assignment(self, data: bytes) -> EmbeddedAssignment:
        raise WireError("Assignment: this coordinator does not read it")

    def encode_assignment(self, assignment: EmbeddedAssignment) -> bytes:
        raise WireError("Assignment: this coordinator does not write it")


def subscription_of(embedded: EmbeddedFormat, member_id: str, protocols: Iterable[OfferedProtocol]) -> Subscription:
    """The subscription of a member, from the assignor that it prefers.

    Raises:
        InconsistentGroupProtocol: it cannot be read.
    """
    preferred = next(iter(protocols), None)
    try:
        return embedded.decode_subscription(preferred.metadata if preferred else b"")
    except WireError as error:
        raise InconsistentGroupProtocol(
            f"the metadata of member {printable(member_id)} cannot be read: {error}"
        ) from error


def with_ids(named: Partitions, topics: Mapping[str, TopicMetadata]) -> Partitions:
    """Partitions by topic id instead of by topic name; those that do not exist are left out."""
    return frozenset(
        TopicPartition(topics[name].topic_id, number) for name, number in named if exists(name, number, topics)
    )


def exists(name: str, number: int, topics: Mapping[str, TopicMetadata]) -> bool:
    """Whether a topic of these has a partition of this number."""
    return name in topics and 0 <= number < topics[name].num_partitions


def with_names(partitions: Iterable[TopicPartition], names: Mapping[str, str]) -> Partitions:
    """Partitions by topic name instead of by topic id; those of deleted topics are left out."""
    return frozenset(TopicPartition(names[each], number) for each, number in partitions if each in names)
