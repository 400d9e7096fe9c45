"""A question about topic partitions as integer arrays, and an array's answer as friendly objects.

What ``assignor_columns`` is to connectors and tasks, this is to partitions: one entry a partition, partitions in
sorted order, members by their index in sorted order. Only what somebody is subscribed to has an entry. Members with
equal subscriptions share one row of ``subscribed``, so that a thousand alike cost no more than one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .assignor import PartitionGroup, PartitionMember, PartitionMemberAssignment, Partitions, TopicPartition, TopicSpec
from .assignor_columns import Integers
from .partitions import by_name

NOBODY = -1
SEVERAL = -2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartitionColumns:
    """A ``PartitionGroup`` as read-only arrays: M members, K kinds of subscription, T topics, P partitions.

    Attributes:
        member_ids: sorted.
        member_versions: the version each member's metadata has, in that order.
        member_owned: what each says it owns, in that order.
        member_kind: int32[M], row of ``subscribed``.
        member_order: int32[M], the members' indices in order of their names: ``partitions.by_name``.
        topic_names: sorted; those that exist and that somebody is subscribed to.
        subscribed: bool[K, T]; the rows are distinct.
        topic_begin: int64[T + 1], where each topic's partitions begin, and where the last one's end.
        partition_topic: int32[P], index into ``topic_names``; ascending.
        partition_number: int32[P].
        partition_claim: int32[P], index into ``member_ids`` of the member that owns it by the latest generation,
            -1 for none, -2 where several claim it in that generation (KIP-792).
        partition_owner: int32[P], the same where that member is still subscribed, else -1: whom it may stay with.
    """

    member_ids: tuple[str, ...]
    member_versions: tuple[int, ...]
    member_owned: tuple[Partitions, ...]
    member_kind: NDArray[np.int32]
    member_order: NDArray[np.int32]
    topic_names: tuple[str, ...]
    subscribed: NDArray[np.bool_]
    topic_begin: NDArray[np.int64]
    partition_topic: NDArray[np.int32]
    partition_number: NDArray[np.int32]
    partition_claim: NDArray[np.int32]
    partition_owner: NDArray[np.int32]

    def partition(self, index: int) -> TopicPartition:
        """The partition at ``index``."""
        return TopicPartition(self.topic_names[self.partition_topic[index]], int(self.partition_number[index]))


def columns_of(group: PartitionGroup) -> PartitionColumns:
    """The columns of a group."""
    members = sorted(group.members, key=lambda member: member.member_id)
    kinds: dict[frozenset[str], int] = {}
    wanted: set[str] = set()
    for member in members:
        if member.subscribed not in kinds:
            wanted |= member.subscribed
            kinds[member.subscribed] = len(kinds)
    specs = sorted((spec for spec in group.topics if spec.name in wanted), key=lambda spec: spec.name)
    subscribed = np.array([[spec.name in names for spec in specs] for names in kinds], dtype=np.bool_)
    # Subscriptions that differ in topics that do not exist are one kind.
    subscribed, merged = np.unique(subscribed.reshape(len(kinds), len(specs)), axis=0, return_inverse=True)
    kind = merged.reshape(-1)[[kinds[member.subscribed] for member in members]] if members else np.empty(0)

    counts = np.array([spec.num_partitions for spec in specs], dtype=np.int64)
    begin = np.concatenate(([0], np.cumsum(counts)))
    topic = np.repeat(np.arange(len(specs), dtype=np.int32), counts)
    claim = _claims(members, specs, len(topic))
    stays = claim >= 0
    stays[stays] = subscribed[kind[claim[stays]].astype(np.int64), topic[stays]]
    columns = PartitionColumns(
        member_ids=tuple(member.member_id for member in members),
        member_versions=tuple(member.version for member in members),
        member_owned=tuple(member.owned for member in members),
        member_kind=kind.astype(np.int32),
        member_order=np.array(sorted(range(len(members)), key=lambda index: by_name(members[index])), dtype=np.int32),
        topic_names=tuple(spec.name for spec in specs),
        subscribed=subscribed,
        topic_begin=begin,
        partition_topic=topic,
        partition_number=(np.arange(len(topic)) - begin[topic]).astype(np.int32),
        partition_claim=claim,
        partition_owner=np.where(stays, claim, np.int32(NOBODY)),
    )
    for name in ("member_kind", "member_order", "subscribed", "topic_begin", "partition_topic"):
        getattr(columns, name).flags.writeable = False
    for name in ("partition_number", "partition_claim", "partition_owner"):
        getattr(columns, name).flags.writeable = False
    return columns


def _claims(members: Sequence[PartitionMember], specs: Sequence[TopicSpec], total: int) -> NDArray[np.int32]:
    """Who owns each partition by the latest generation: the rule of ``partitions.claimants``, for all at once."""
    start: dict[str, tuple[int, int]] = {}
    first = 0
    for spec in specs:
        start[spec.name] = (first, spec.num_partitions)
        first += spec.num_partitions
    nowhere = (0, 0)
    found: list[int] = []
    sizes: list[int] = []
    for member in members:
        before = len(found)
        for topic, number in member.owned:
            first, count = start.get(topic, nowhere)
            if 0 <= number < count:
                found.append(first + number)
        sizes.append(len(found) - before)
    place = np.array(found, dtype=np.int64)
    whose = np.repeat(np.arange(len(members), dtype=np.int32), np.array(sizes, dtype=np.int64))
    generation = np.array([member.generation for member in members], dtype=np.int64)[whose]
    latest = np.full(total, np.iinfo(np.int64).min)
    np.maximum.at(latest, place, generation)
    counts = generation == latest[place]
    place, whose = place[counts], whose[counts]
    claim = np.full(total, NOBODY, dtype=np.int32)
    claim[place] = whose
    claim[np.bincount(place, minlength=total) > 1] = SEVERAL
    return claim


def shares_of(columns: PartitionColumns, owner: Integers) -> list[PartitionMemberAssignment]:
    """An array's answer as friendly objects: every member once, sorted, those with nothing too.

    A member that keeps just what it owns is given the very same set: at a million partitions most do.
    """
    members = len(columns.member_ids)
    order = np.argsort(owner, kind="stable")
    bounds = np.searchsorted(owner[order], np.arange(members + 1)).tolist()
    kept = np.bincount(owner[(owner >= 0) & (owner == columns.partition_owner)], minlength=members).tolist()
    shares: list[PartitionMemberAssignment] = []
    for index, (member_id, version, owned) in enumerate(
        zip(columns.member_ids, columns.member_versions, columns.member_owned, strict=True)
    ):
        rows = order[bounds[index] : bounds[index + 1]]
        if len(rows) == kept[index] == len(owned):
            partitions = owned
        else:
            names = map(columns.topic_names.__getitem__, columns.partition_topic[rows].tolist())
            partitions = frozenset(map(TopicPartition, names, columns.partition_number[rows].tolist()))
        shares.append(PartitionMemberAssignment(member_id=member_id, version=version, partitions=partitions))
    return shares
