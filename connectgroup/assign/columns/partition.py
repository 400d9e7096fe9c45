"""The input of a partition assignor as integer arrays, and conversion of an array result to objects.

The counterpart of ``columns.connect`` for partitions: one entry per partition, in sorted order; members are indices in
sorted order. Only partitions of subscribed topics have an entry. Members with equal subscriptions share one row of
``subscribed``, so a thousand members with the same subscription cost no more than one.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import chain, repeat
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from ...protocol.units import Partitions, TopicPartition
from ..members import PartitionMember, PartitionMemberAssignment, TopicSpec, by_name
from .connect import Integers

UNASSIGNED = -1
SEVERAL = -2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartitionColumns:
    """A ``PartitionAssignorInput`` as read-only arrays: M members, K distinct subscriptions, T topics, P partitions.

    Attributes:
        member_ids: sorted.
        member_versions: the version of each member's metadata, in the order of ``member_ids``.
        member_owned: the partitions that each member reports as owned, in that order.
        member_kind: int32[M], row of ``subscribed``.
        member_order: int32[M], the members' indices in the order of ``ownership.by_name``.
        topic_names: sorted; topics that exist and have at least one subscriber.
        subscribed: bool[K, T]; the rows are distinct.
        topic_begin: int64[T + 1], index of each topic's first partition; the last entry is the end of the last topic.
        partition_topic: int32[P], index into ``topic_names``; ascending.
        partition_number: int32[P].
        partition_claim: int32[P], index into ``member_ids`` of the member that owns it by the latest generation,
            -1 for none, -2 if several members claim it in that generation (KIP-792).
        partition_owner: int32[P], the same if that member is still subscribed, else -1: the member that may keep it.
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


def columns_of(group_members: Sequence[PartitionMember], topics: Sequence[TopicSpec]) -> PartitionColumns:
    """Return the columns of a group."""
    members = sorted(group_members, key=lambda member: member.member_id)
    wanted: set[str] = set().union(*{member.subscribed for member in members})
    specs = sorted((spec for spec in topics if spec.name in wanted), key=lambda spec: spec.name)
    kind, subscribed = _kinds(members, specs)
    counts = np.array([spec.num_partitions for spec in specs], dtype=np.int64)
    begin = np.concatenate(([0], np.cumsum(counts)))
    topic = np.repeat(np.arange(len(specs), dtype=np.int32), counts)
    claim = _claims(members, specs, begin)
    stays = claim >= 0
    stays[stays] = subscribed[kind[claim[stays]], topic[stays]]
    columns = PartitionColumns(
        member_ids=tuple(member.member_id for member in members),
        member_versions=tuple(member.version for member in members),
        member_owned=tuple(member.owned for member in members),
        member_kind=kind,
        member_order=np.array(sorted(range(len(members)), key=lambda index: by_name(members[index])), dtype=np.int32),
        topic_names=tuple(spec.name for spec in specs),
        subscribed=subscribed,
        topic_begin=begin,
        partition_topic=topic,
        partition_number=(np.arange(len(topic)) - begin[topic]).astype(np.int32),
        partition_claim=claim,
        partition_owner=np.where(stays, claim, np.int32(UNASSIGNED)),
    )
    for field in fields(columns):
        array = getattr(columns, field.name)
        if isinstance(array, np.ndarray):
            array.flags.writeable = False
    return columns


def _kinds(
    members: Sequence[PartitionMember], specs: Sequence[TopicSpec]
) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """``member_kind`` and ``subscribed``: subscriptions that differ only in topics that do not exist share one row."""
    rows: dict[bytes, int] = {}
    number: dict[frozenset[str], int] = {}
    for names in dict.fromkeys(member.subscribed for member in members):
        row = bytes([spec.name in names for spec in specs])
        number[names] = rows.setdefault(row, len(rows))
    subscribed = np.frombuffer(b"".join(rows), dtype=np.bool_).reshape(len(rows), len(specs))
    return np.array([number[member.subscribed] for member in members], dtype=np.int32), subscribed


def _claims(
    members: Sequence[PartitionMember], specs: Sequence[TopicSpec], begin: NDArray[np.int64]
) -> NDArray[np.int32]:
    """The owner of each partition by the latest generation: the rule of ``ownership.claimants``, vectorized."""
    owned = [*chain.from_iterable(member.owned for member in members)]
    sizes = np.array([len(member.owned) for member in members], dtype=np.int64)
    index = {spec.name: place for place, spec in enumerate(specs)}
    topic = np.fromiter(map(index.get, map(itemgetter(0), owned), repeat(UNASSIGNED)), dtype=np.int64, count=len(owned))
    number = np.fromiter(map(itemgetter(1), owned), dtype=np.int64, count=len(owned))
    there = (topic != UNASSIGNED) & (number >= 0) & (number < np.diff(begin, append=0)[topic])
    place = (begin[topic] + number)[there]
    whose = np.repeat(np.arange(len(members), dtype=np.int32), sizes)[there]

    generation = np.array([member.generation for member in members], dtype=np.int64)[whose]
    latest = np.full(begin[-1], np.iinfo(np.int64).min)
    np.maximum.at(latest, place, generation)
    counts = generation == latest[place]
    place, whose = place[counts], whose[counts]
    claim = np.full(begin[-1], UNASSIGNED, dtype=np.int32)
    claim[place] = whose
    claim[np.bincount(place, minlength=len(claim)) > 1] = SEVERAL
    return claim


def assignments_of(columns: PartitionColumns, owner: Integers) -> list[PartitionMemberAssignment]:
    """Convert an array result to objects: every member once, sorted, including members without partitions.

    A member that keeps exactly its owned partitions is assigned the same set object: at a million partitions, most do.
    """
    members = len(columns.member_ids)
    order = order_of(owner)
    sizes = np.bincount(owner + 1, minlength=members + 1)
    bounds = np.cumsum(sizes).tolist()
    kept = np.bincount(owner[(owner >= 0) & (owner == columns.partition_owner)], minlength=members).tolist()
    topics, numbers = columns.partition_topic[order], columns.partition_number[order]
    shares: list[PartitionMemberAssignment] = []
    with collector_paused():
        for index, (member_id, version, owned) in enumerate(
            zip(columns.member_ids, columns.member_versions, columns.member_owned, strict=True)
        ):
            begin, end = bounds[index], bounds[index + 1]
            if end - begin == kept[index] == len(owned):
                partitions = owned
            else:
                names = map(columns.topic_names.__getitem__, topics[begin:end].tolist())
                partitions = frozenset(map(TopicPartition, names, numbers[begin:end].tolist()))
            shares.append(PartitionMemberAssignment(member_id=member_id, version=version, partitions=partitions))
    return shares


def order_of(numbers: Integers) -> NDArray[np.int64]:
    """A stable order of small integers, many times faster if 16 bits suffice (numpy uses a radix sort for those)."""
    small = np.iinfo(np.int16)
    narrow = len(numbers) > 0 and small.min <= numbers.min() and numbers.max() <= small.max
    return np.argsort(numbers.astype(np.int16) if narrow else numbers, kind="stable")


@contextmanager
def collector_paused() -> Iterator[None]:
    """Disable the garbage collector while creating many long-lived objects, each of which it would visit.

    Creating a million partitions takes a third of the time. The switch is process-wide, so use it only for a few
    hundred milliseconds; if two threads overlap, the worst case is that the collector is enabled a little early.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
