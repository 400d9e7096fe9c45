"""Committed offsets of a group; the rules are those of all group types with members that read topics.

Decisions:

- An offset belongs to a topic id (``OffsetRecord.topic_id``, tagged), if the coordinator knows the topics
  (``--topics-from``, the proxy). A change of the topics is an input (``TopicsChanged``) of each group that has offsets
  of other topics than those of the cluster; so is the load of a group. Records without an id, of an earlier version,
  get that of the topic which has the name then.
- An OffsetFetch waits for a read of the topics, a commit only if it names a partition that is not known
  (``ConsumerGroups.look_again``): otherwise a topic that was deleted and created again a moment ago would keep its
  offsets. Requests share a read; after 2 s without a response of the broker, the last read counts.
- What Kafka's broker stores is stored: offsets below 0 and any leader epoch. Clients reject or ignore them.

The group type decides which members may commit and fetch (``Check``).

Source: Kafka's ``OffsetMetadataManager``.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, islice
from typing import Any, Final, TypeVar

from ..errors import (
    GroupError,
    GroupSubscribedToTopic,
    OffsetMetadataTooLarge,
    UnknownTopicId,
    UnknownTopicOrPartition,
    UnstableOffsetCommit,
)
from ..protocol.messages.offsets import (
    CommitInTransaction,
    FetchedGroup,
    FetchedPartition,
    FetchedTopic,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    PartitionCommit,
    PartitionCommitted,
    PartitionDeleted,
    TopicCommit,
    TopicCommitted,
    TopicDeleted,
    TopicToFetch,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from ..protocol.records.base import Kind, Tombstone
from ..protocol.records.connect import Record
from ..protocol.records.consumer import OffsetRecord, PendingCommit, PendingOffsetRecord, TopicMetadata
from ..protocol.units import NO_TOPIC_ID
from .kernel.outcome import TransactionsEnded


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetSettings:
    """Settings of committed offsets. The defaults are Kafka's.

    Attributes:
        retention_ms: how long offsets are kept that no member uses (``offsets.retention.minutes``).
        check_interval_ms: interval between two searches for them (``offsets.retention.check.interval.ms``).
        max_metadata: limit on the metadata of an offset, in UTF-16 code units (``offset.metadata.max.bytes``).
    """

    retention_ms: int = 7 * 24 * 60 * 60 * 1_000
    check_interval_ms: int = 600_000
    max_metadata: int = 4_096


Topics = Mapping[str, TopicMetadata] | None
"""All topics of the cluster by name; ``None``: they are not known, so a topic is its name."""


Place = tuple[str, int]
"""A topic by its name, and a partition."""


def exists(topics: Topics, topic: str, partition: int) -> bool:
    """Whether the cluster has a partition, as far as its topics are known."""
    if topics is None:
        return True
    known = topics.get(topic)
    return known is not None and 0 <= partition < known.num_partitions


def is_of(topics: Topics, record: OffsetRecord | PendingOffsetRecord) -> bool:
    """Whether an offset was committed to the topic that has the name now, not to a former one.

    A record without a topic id was written before the topics were known: it belongs to the topic of that name.
    """
    if topics is None:
        return True
    known = topics.get(record.topic)
    if known is None or record.topic_id not in (NO_TOPIC_ID, known.topic_id):
        return False
    return record.partition < known.num_partitions


class Offsets:
    """The committed offsets of one group, by topic and partition.

    Attributes:
        pending: what transactions have committed whose outcome is not known yet; ``apply`` changes it.
    """

    def __init__(self) -> None:
        self._committed: dict[str, dict[int, OffsetRecord]] = {}  # by topic and partition; ``apply`` changes it
        self.pending: dict[Place, PendingOffsetRecord] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Offsets) and (self._committed, self.pending) == (other._committed, other.pending)

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return sum(map(len, self._committed.values())) + len(self.pending)

    def apply(self, record: Record) -> None:
        """Apply one record of the log; other records than those of offsets are ignored."""
        match record:
            case OffsetRecord():
                self._committed.setdefault(record.topic, {})[record.partition] = record
            case PendingOffsetRecord():
                self.pending[record.topic, record.partition] = record
            case Tombstone(key=key) if key.kind is Kind.PENDING_OFFSET:
                topic, _, partition = key.name.rpartition("\n")
                self.pending.pop((topic, int(partition)), None)
            case Tombstone(key=key) if key.kind is Kind.OFFSET:
                topic, _, partition = key.name.rpartition("\n")
                of_topic = self._committed.get(topic, {})
                of_topic.pop(int(partition), None)
                if not of_topic:
                    self._committed.pop(topic, None)

    def topics(self) -> dict[str, tuple[int, ...]]:
        """The partitions with a committed offset, by topic, sorted."""
        return {topic: tuple(sorted(self._committed[topic])) for topic in sorted(self._committed)}

    def get(self, topic: str, partition: int) -> OffsetRecord | None:
        """The committed offset of a partition, or ``None``."""
        return self._committed.get(topic, {}).get(partition)

    def records(self) -> tuple[OffsetRecord, ...]:
        """The records of the committed offsets, sorted by topic and partition."""
        return tuple(
            self._committed[topic][partition] for topic, partitions in self.topics().items() for partition in partitions
        )

    def changes(self, topics: Topics) -> tuple[Record, ...]:
        """The records that make the offsets agree with the topics of the cluster.

        The offsets of a topic that was deleted, or deleted and created again, are removed. An offset without a topic id
        gets that of the topic: from then on it belongs to this topic only.
        """
        if topics is None:
            return ()
        gone = tuple(Tombstone(each.key) for each in self.pending.values() if not is_of(topics, each))
        return gone + tuple(
            replace(record, topic_id=topics[record.topic].topic_id) if is_of(topics, record) else Tombstone(record.key)
            for record in self.records()
            if record.topic_id == NO_TOPIC_ID or not is_of(topics, record)
        )

    def every_record(self) -> tuple[OffsetRecord | PendingOffsetRecord, ...]:
        """The records of all offsets, also of those of transactions."""
        return (*self.records(), *(self.pending[place] for place in sorted(self.pending)))

    def tombstones(self) -> tuple[Tombstone, ...]:
        """The records that delete all offsets."""
        return tuple(Tombstone(record.key) for record in self.every_record())

    def deletion(self, topic: str, partition: int) -> tuple[Tombstone, ...]:
        """The records that delete what is stored of one partition."""
        stored = (self.get(topic, partition), self.pending.get((topic, partition)))
        return tuple(Tombstone(record.key) for record in stored if record is not None)


DEFAULTS: Final = OffsetSettings()

MAX_PENDING: Final = 32
"""Maximum number of offsets of transactions, of one partition, whose outcome is not known: older ones have ended."""

Check = Callable[[str, int], int]
"""Why the offset of a topic and partition may not be committed by the sender: an error code, or 0."""


def commit(
    request: OffsetCommitRequest,
    check: Check,
    now_ms: int,
    topics: Topics = None,
    offsets: Offsets | None = None,
    settings: OffsetSettings = DEFAULTS,
) -> tuple[OffsetCommitResponse, tuple[Record, ...]]:
    """Commit the offsets of a sender that is known to the group; each partition is decided by itself.

    As in Kafka, an offset below 0 can be committed; clients take it for none. A commit is newer than the offsets of
    transactions that have not ended: they are dropped.

    Args:
        request: the request.
        check: why the sender may not commit the offset of a partition.
        now_ms: the coordinator's wall clock.
        topics: the topics of the cluster.
        offsets: the offsets of the group.
        settings: the limits.
    """
    records: list[Record] = []
    committed = []
    names = _names(topics, any(topic.topic_id != NO_TOPIC_ID for topic in request.topics))
    for topic in request.topics:
        name = _name(topic, names)
        partitions = []
        for each in topic.partitions:
            code = _unknown(topics, name, each.partition_index) or check(name, each.partition_index)
            code = code or _violation(each, settings)
            if not code:
                known = topics.get(name) if topics is not None else None
                pending = offsets.pending.get((name, each.partition_index)) if offsets is not None else None
                if pending is not None:
                    records.append(Tombstone(pending.key))
                records.append(
                    OffsetRecord(
                        group_id=request.group_id,
                        topic=name,
                        partition=each.partition_index,
                        offset=each.committed_offset,
                        leader_epoch=each.committed_leader_epoch,
                        metadata=each.committed_metadata or "",
                        at_ms=now_ms,
                        topic_id=known.topic_id if known is not None else NO_TOPIC_ID,
                    )
                )
            partitions.append(PartitionCommitted(partition_index=each.partition_index, error_code=code))
        committed.append(TopicCommitted(name=topic.name, topic_id=topic.topic_id, partitions=tuple(partitions)))
    return OffsetCommitResponse(topics=tuple(committed)), tuple(records)


def _names(topics: Topics, by_id: bool) -> dict[str, str]:
    """The topics of the cluster by id, if a request names topics by their ids."""
    return {each.topic_id: name for name, each in (topics or {}).items()} if by_id else {}


def _name(topic: TopicCommit, names: Mapping[str, str]) -> str:
    """The name of a topic in a commit; empty if no topic has its id."""
    return names.get(topic.topic_id, "") if topic.topic_id != NO_TOPIC_ID else topic.name


def _unknown(topics: Topics, name: str, partition: int) -> int:
    if not name:
        return UnknownTopicId.code
    return 0 if exists(topics, name, partition) else UnknownTopicOrPartition.code


def _violation(commit: PartitionCommit, settings: OffsetSettings) -> int:
    metadata = commit.committed_metadata or ""
    return OffsetMetadataTooLarge.code if len(metadata.encode("utf-16-le")) > 2 * settings.max_metadata else 0


def refused_commit(request: OffsetCommitRequest, error: GroupError, topics: Topics = None) -> OffsetCommitResponse:
    """The response that rejects the commit of every partition; one that does not exist has its own error (Kafka)."""
    return commit(request, lambda topic, partition: error.code, 0, topics)[0]


MAX_DECIDED: Final = 1_000
"""Partitions that are decided in one step; deciding them takes 10 ms."""


R = TypeVar("R", OffsetCommitRequest, TxnOffsetCommitRequest, OffsetDeleteRequest)
C = TypeVar("C", OffsetCommitResponse, TxnOffsetCommitResponse)


def slices(request: R) -> list[R]:
    """A request about many partitions as several ones of up to ``MAX_DECIDED`` each, in their order.

    Each partition is decided by itself, and other requests in between. ``joined_commit`` and ``joined_deletion`` join
    the responses.
    """
    return [replace(request, topics=topics) for topics in _split(request.topics, "partitions")]


def slices_of_fetch(request: OffsetFetchRequest, asked: Sequence[TopicToFetch]) -> list[OffsetFetchRequest]:
    """As ``slices``: fetches of these topics of the group of a request; ``joined_fetch`` joins the responses."""
    return [fetch_of(request, topics) for topics in _split(asked, "partition_indexes")]


def fetch_of(request: OffsetFetchRequest, topics: tuple[TopicToFetch, ...]) -> OffsetFetchRequest:
    """A fetch of these topics of the group of a request about one."""
    if not request.groups:
        return replace(request, topics=topics)
    return replace(request, groups=(replace(request.groups[0], topics=topics),))


def _split(topics: Sequence[Any], partitions: str) -> list[tuple[Any, ...]]:
    """Topics in lists of up to ``MAX_DECIDED`` partitions; those without any are left out if there are several lists.

    Args:
        partitions: the attribute of a topic that has its partitions.
    """
    if sum(len(getattr(topic, partitions)) for topic in topics) <= MAX_DECIDED:
        return [tuple(topics)]
    found: list[list[Any]] = [[]]
    room = MAX_DECIDED
    for topic in topics:
        own, at = getattr(topic, partitions), 0
        while at < len(own):
            if not room:
                found.append([])
                room = MAX_DECIDED
            taken = own[at : at + room]
            found[-1].append(topic if len(taken) == len(own) else replace(topic, **{partitions: taken}))
            at += len(taken)
            room -= len(taken)
    return [tuple(each) for each in found]


def joined_commit(request: OffsetCommitRequest | TxnOffsetCommitRequest, responses: Sequence[C]) -> C:
    """The response to a commit from those to its ``slices``: each has all partitions of its slice, in their order."""
    if len(responses) == 1:
        return responses[0]
    results = _results(responses)
    topics = (
        TopicCommitted(
            name=topic.name, topic_id=topic.topic_id, partitions=tuple(islice(results, len(topic.partitions)))
        )
        for topic in request.topics
    )
    return replace(responses[0], topics=tuple(topics))


def joined_deletion(request: OffsetDeleteRequest, responses: Sequence[OffsetDeleteResponse]) -> OffsetDeleteResponse:
    """The response to a deletion from those to its ``slices``; the first error of the group is that of all."""
    failed = next((each for each in responses if each.error_code), None)
    if failed is not None or len(responses) == 1:
        return failed or responses[0]
    results = _results(responses)
    topics = (
        TopicDeleted(name=topic.name, partitions=tuple(islice(results, len(topic.partitions))))
        for topic in request.topics
    )
    return OffsetDeleteResponse(topics=tuple(topics))


def joined_fetch(
    request: OffsetFetchRequest, asked: Sequence[TopicToFetch], responses: Sequence[OffsetFetchResponse]
) -> OffsetFetchResponse:
    """The response to a fetch from those to ``slices_of_fetch``; the first error of the group is that of all."""
    failed = next((each for each in responses if each.first.error_code), None)
    if failed is not None or len(responses) == 1:
        return failed or responses[0]
    results = chain.from_iterable(topic.partitions for response in responses for topic in response.first.topics)
    topics = (
        FetchedTopic(
            name=topic.name, topic_id=topic.topic_id, partitions=tuple(islice(results, len(topic.partition_indexes)))
        )
        for topic in asked
    )
    return answer(request, tuple(topics), 0)


def _results(
    responses: Sequence[OffsetCommitResponse | TxnOffsetCommitResponse | OffsetDeleteResponse],
) -> Iterator[Any]:
    return chain.from_iterable(topic.partitions for response in responses for topic in response.topics)


def commits_nothing(request: OffsetCommitRequest, topics: Topics) -> OffsetCommitResponse | None:
    """The response to a commit that names no partition that exists, whatever its group; ``None``: it names one."""
    names = _names(topics, any(topic.topic_id != NO_TOPIC_ID for topic in request.topics))
    for topic in request.topics:
        name = _name(topic, names)
        if any(not _unknown(topics, name, each.partition_index) for each in topic.partitions):
            return None  # mostly the first one: a commit of 100,000 partitions is decided once
    return commit(request, lambda topic, partition: 0, 0, topics)[0]


def commit_in_transaction(
    commit: CommitInTransaction,
    check: Check,
    now_ms: int,
    topics: Topics,
    offsets: Offsets,
    settings: OffsetSettings = DEFAULTS,
) -> tuple[TxnOffsetCommitResponse, tuple[Record, ...]]:
    """Store the offsets that a transaction commits if it is committed; the broker has accepted them."""
    records, committed = [], []
    for topic in commit.request.topics:
        partitions = []
        for each in topic.partitions:
            code = check(topic.name, each.partition_index) or _violation(each, settings)
            if not code:
                known = topics.get(topic.name) if topics is not None else None
                pending = offsets.pending.get((topic.name, each.partition_index))
                latest = PendingCommit(
                    token=commit.token,
                    offset=each.committed_offset,
                    leader_epoch=each.committed_leader_epoch,
                    metadata=each.committed_metadata or "",
                    at_ms=now_ms,
                )
                records.append(
                    PendingOffsetRecord(
                        group_id=commit.group_id,
                        topic=topic.name,
                        partition=each.partition_index,
                        topic_id=known.topic_id if known is not None else NO_TOPIC_ID,
                        commits=(*(pending.commits if pending is not None else ()), latest)[-MAX_PENDING:],
                    )
                )
            partitions.append(PartitionCommitted(partition_index=each.partition_index, error_code=code))
        committed.append(TopicCommitted(name=topic.name, partitions=tuple(partitions)))
    return TxnOffsetCommitResponse(topics=tuple(committed)), tuple(records)


def end_transactions(offsets: Offsets, ended: TransactionsEnded) -> tuple[Record, ...]:
    """The records that follow from the offsets that the broker has of partitions with pending offsets."""
    records: list[Record] = []
    for place, outcome in sorted(ended.outcomes.items()):
        pending = offsets.pending.get(place)
        if pending is None:
            continue
        tokens = [each.token for each in pending.commits]
        kept = pending.commits
        if outcome.token in tokens:
            at = tokens.index(outcome.token)
            done = pending.commits[at]
            records.append(
                OffsetRecord(
                    group_id=pending.group_id,
                    topic=pending.topic,
                    partition=pending.partition,
                    offset=done.offset,
                    leader_epoch=done.leader_epoch,
                    metadata=done.metadata,
                    at_ms=done.at_ms,
                    topic_id=pending.topic_id,
                )
            )
            kept = kept[at + 1 :]
        if outcome.is_stable:
            kept = tuple(each for each in kept if each.token not in outcome.asked)
        if not kept:
            records.append(Tombstone(pending.key))
        elif kept != pending.commits:
            records.append(replace(pending, commits=kept))
    return tuple(records)


def among(topics: Callable[[], Container[str]]) -> Callable[[str], bool]:
    """Whether a topic is one of these. They are put together once, when the first one is asked for: a request may name
    100,000 partitions, and a thousand members as many topics."""
    found = cache(topics)
    return lambda topic: topic in found()


def expired(
    offsets: Offsets, is_subscribed: Callable[[str], bool], since_ms: Callable[[OffsetRecord], int], before_ms: int
) -> tuple[Record, ...]:
    """The records that remove the offsets that no member has used for the retention time.

    Args:
        offsets: the offsets of the group.
        is_subscribed: whether a member is subscribed to a topic: its offsets are kept.
        since_ms: since when an offset is not used.
        before_ms: the end of the retention time.
    """
    return tuple(
        Tombstone(record.key)
        for record in offsets.records()
        if (record.topic, record.partition) not in offsets.pending
        and since_ms(record) <= before_ms
        and not is_subscribed(record.topic)
    )


def delete(
    offsets: Offsets, request: OffsetDeleteRequest, topics: Topics, is_subscribed: Callable[[str], bool]
) -> tuple[OffsetDeleteResponse, tuple[Record, ...]]:
    """Delete offsets of topics that the group is not subscribed to."""
    records: list[Record] = []
    deleted = []
    for topic in request.topics:
        partitions = []
        for each in topic.partitions:
            code = _unknown(topics, topic.name, each.partition_index)
            if not code and is_subscribed(topic.name):
                code = GroupSubscribedToTopic.code
            if not code:
                records += offsets.deletion(topic.name, each.partition_index)
            partitions.append(PartitionDeleted(partition_index=each.partition_index, error_code=code))
        deleted.append(TopicDeleted(name=topic.name, partitions=tuple(partitions)))
    return OffsetDeleteResponse(topics=tuple(deleted)), tuple(dict.fromkeys(records))


def fetch(offsets: Offsets, request: OffsetFetchRequest, topics: Topics = None) -> OffsetFetchResponse:
    """The committed offsets of one group; -1 for a partition without one, and for one of a former topic of the name."""
    return answer(request, _fetched(offsets, request, topics), 0)


def answer(request: OffsetFetchRequest, topics: tuple[FetchedTopic, ...], error_code: int) -> OffsetFetchResponse:
    """The response about one group, in the form of the request's version."""
    if not request.groups:
        return OffsetFetchResponse(topics=topics, error_code=error_code)
    group = FetchedGroup(group_id=request.groups[0].group_id, topics=topics, error_code=error_code)
    return OffsetFetchResponse(groups=(group,))


def _fetched(offsets: Offsets, request: OffsetFetchRequest, topics: Topics) -> tuple[FetchedTopic, ...]:
    asked = request.groups[0].topics if request.groups else request.topics
    if asked is None:
        asked = all_committed(offsets, request, topics)
    names = _names(topics, request.by_topic_id)
    pending = offsets.pending if request.require_stable else {}
    fetched = []
    for topic in asked:
        name = names.get(topic.topic_id, "") if request.by_topic_id else topic.name
        code = 0 if name or not request.by_topic_id else UnknownTopicId.code
        partitions = tuple(
            _nothing(each, UnstableOffsetCommit.code)
            if (name, each) in pending and not code
            else _shown(offsets.get(name, each), each, topics, code)
            for each in topic.partition_indexes
        )
        fetched.append(FetchedTopic(name=name, topic_id=topic.topic_id, partitions=partitions))
    return tuple(fetched)


def all_committed(offsets: Offsets, request: OffsetFetchRequest, topics: Topics) -> tuple[TopicToFetch, ...]:
    """What a request for all committed offsets asks for."""
    found = []
    for name, partitions in offsets.topics().items():
        known = (topics or {}).get(name)
        there = tuple(each for each in partitions if _is_there(offsets, name, each, topics))
        if there and (known is not None or not request.by_topic_id):
            topic_id = known.topic_id if known is not None else NO_TOPIC_ID
            found.append(TopicToFetch(name=name, topic_id=topic_id, partition_indexes=there))
    return tuple(found)


def _is_there(offsets: Offsets, name: str, partition: int, topics: Topics) -> bool:
    record = offsets.get(name, partition)
    return record is not None and is_of(topics, record)


def _shown(record: OffsetRecord | None, partition: int, topics: Topics, code: int) -> FetchedPartition:
    if code or record is None or not is_of(topics, record):
        return _nothing(partition, code)
    return FetchedPartition(
        partition_index=partition,
        committed_offset=record.offset,
        committed_leader_epoch=record.leader_epoch,
        metadata=record.metadata,
        error_code=0,
    )


def _nothing(partition: int, code: int) -> FetchedPartition:
    return FetchedPartition(partition_index=partition, committed_offset=-1, metadata="", error_code=code)
