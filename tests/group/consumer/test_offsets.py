"""Committed offsets of consumer groups, fenced by the member epoch: OC-01 to OC-07 (OC-06 is of classic groups)."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from connectgroup.errors import (
    GroupIdNotFound,
    GroupSubscribedToTopic,
    NonEmptyGroup,
    StaleMemberEpoch,
    UnknownMemberId,
)
from connectgroup.group.consumer.state import ConsumerGroupState
from connectgroup.group.kernel.outcome import TopicsChanged, TransactionOutcome, TransactionsEnded
from connectgroup.protocol.messages.describe import DeleteRequest
from connectgroup.protocol.messages.offsets import (
    CommitInTransaction,
    GroupToFetch,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    PartitionCommit,
    PartitionToDelete,
    TopicCommit,
    TopicToDelete,
    TopicToFetch,
    TxnOffsetCommitRequest,
)
from connectgroup.protocol.records.consumer import OffsetRecord

from .driver import GROUP, Driver, Plan, beat, join, topic_id

STALE, UNKNOWN = StaleMemberEpoch.code, UnknownMemberId.code


def commit(member_id: str, epoch: int, *partitions: int, offset: int = 7, **changes: Any) -> OffsetCommitRequest:
    each = tuple(
        PartitionCommit(partition_index=number, committed_offset=offset, committed_metadata="note", **changes)
        for number in partitions
    )
    return OffsetCommitRequest(
        group_id=GROUP,
        generation_id_or_member_epoch=epoch,
        member_id=member_id,
        topics=(TopicCommit(name="foo", partitions=each),),
    )


def codes(group: Driver, request: OffsetCommitRequest) -> list[int]:
    [topic] = group.send(request).topics
    return [each.error_code for each in topic.partitions]


def fetch(member_id: str | None = None, epoch: int = -1, *partitions: int) -> OffsetFetchRequest:
    topics = (TopicToFetch(name="foo", partition_indexes=partitions),) if partitions else None
    return OffsetFetchRequest(
        groups=(GroupToFetch(group_id=GROUP, member_id=member_id, member_epoch=epoch, topics=topics),)
    )


def offsets(group: Driver, request: OffsetFetchRequest) -> dict[int, int]:
    [found] = group.send(request).groups
    assert found.error_code == 0
    return {each.partition_index: each.committed_offset for topic in found.topics for each in topic.partitions}


def at_epoch_4() -> Driver:
    """a at epoch 4: foo-0 assigned at 1, foo-1 a pending revocation of 1, foo-2 not assigned."""
    group = Driver(foo=3)
    plan: Plan = {"a": {"foo": (0, 1)}, "b": {"foo": (2,)}}
    group.ask(join("a"), {"a": {"foo": (0, 1, 2)}})
    group.ask(join("b"), plan)
    group.ask(beat("a", 1))
    group.ask(beat("a", 1, {"foo": (0, 1)}))
    for assignor in ("range", "uniform"):
        epoch = group.group.current("a").epoch
        group.ask(beat("a", epoch, server_assignor=assignor))  # parked until the target assignment is there
    assert group.group.current("a").epoch == 4
    group.ask(join("c"), {"a": {"foo": (0,)}, "b": {"foo": (2,)}, "c": {"foo": (1,)}})
    group.ask(beat("a", 4))
    assert (group.held("a"), group.pending("a")) == ({"foo": (0,)}, {"foo": (1,)})
    return group


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        (5, [STALE, STALE, STALE]),  # OC-01
        (4, [0, 0, 0]),  # OC-02
        (3, [0, 0, STALE]),  # OC-03, OC-05: also a pending revocation
        (1, [0, 0, STALE]),
        (0, [STALE, STALE, STALE]),  # OC-04
    ],
)
def test_commit_is_fenced_by_the_member_epoch(epoch: int, expected: list[int]) -> None:
    group = at_epoch_4()
    assert codes(group, commit("a", epoch, 0, 1, 2)) == expected
    committed = {number: 7 for number, code in enumerate(expected) if not code}
    assert offsets(group, fetch()) == committed


def test_commit_of_a_sender_that_is_not_a_member() -> None:
    """OC-07: an operator may commit while the group has no members."""
    group = at_epoch_4()
    assert codes(group, commit("x", 4, 0)) == [UNKNOWN]
    assert codes(group, commit("", -1, 0)) == [UNKNOWN]
    for member_id in ("a", "b", "c"):
        group.plan = {}
        group.send(beat(member_id, -1))
    assert codes(group, commit("x", 4, 0)) == [UNKNOWN]
    assert codes(group, commit("x", -1, 0)) == [0]
    assert codes(group, commit("", -1, 0, 1)) == [0, 0]
    assert offsets(group, fetch()) == {0: 7, 1: 7}


def test_fetch_is_fenced_by_the_member_epoch() -> None:
    """KIP-848, OffsetFetch 9: a sender that names itself must be a member, at its current epoch."""
    group = at_epoch_4()
    assert group.send(fetch("x", 4)).groups[0].error_code == UNKNOWN
    assert group.send(fetch("a", 3)).groups[0].error_code == STALE
    assert offsets(group, fetch("a", 4, 0)) == {0: -1}
    assert offsets(group, fetch(None, -1, 0)) == {0: -1}


def test_offsets_survive_a_replay_and_the_members() -> None:
    group = at_epoch_4()
    codes(group, commit("a", 4, 0, 1, offset=1 << 40))
    codes(group, commit("a", 4, 0, offset=9))
    again = ConsumerGroupState.replay(GROUP, group.log)
    assert again.offsets == group.group.offsets
    found = again.offsets.get("foo", 0)
    assert found is not None
    assert (found.offset, found.metadata, found.at_ms) == (9, "note", 1_000)
    assert offsets(group, fetch()) == {0: 9, 1: 1 << 40}


def test_invalid_commits_are_rejected_each_by_itself() -> None:
    group = Driver(foo=2)
    group.ask(join("a"), {"a": {"foo": (0, 1)}})
    partitions = (
        PartitionCommit(partition_index=2, committed_offset=5, committed_metadata=None),
        PartitionCommit(partition_index=1, committed_offset=5, committed_metadata="x" * 4_097),
        PartitionCommit(partition_index=1, committed_offset=5, committed_metadata="x" * 4_096),
    )
    request = OffsetCommitRequest(
        group_id=GROUP,
        generation_id_or_member_epoch=1,
        member_id="a",
        topics=(TopicCommit(name="foo", partitions=partitions),),
    )
    assert codes(group, request) == [3, 12, 0]
    assert offsets(group, fetch()) == {1: 5}


@pytest.mark.parametrize(("partitions", "expected"), [((8, 9), [3, 3]), ((8, 0), [3, UNKNOWN]), ((), [])])
def test_sender_matters_if_any_partition_of_a_commit_exists(partitions: tuple[int, ...], expected: list[int]) -> None:
    assert codes(at_epoch_4(), commit("x", 4, *partitions)) == expected


def test_group_is_deleted_with_its_offsets() -> None:
    group = at_epoch_4()
    delete = DeleteRequest(group_ids=(GROUP,))
    codes(group, commit("a", 4, 0))
    assert group.send(delete).results[0].error_code == NonEmptyGroup.code
    for member_id in ("a", "b", "c"):
        group.plan = {}
        group.send(beat(member_id, -1))
    assert group.send(delete).results[0].error_code == 0
    assert (group.group.exists, len(group.group.offsets), group.group.topics) == (False, 0, {})
    assert group.send(delete).results[0].error_code == GroupIdNotFound.code
    assert group.ask(join("a"), {"a": {"foo": (0, 1, 2)}}) == (1, {"foo": (0, 1, 2)})


def test_offsets_are_deleted_in_time_linear_in_the_request_and_in_the_subscriptions() -> None:
    """Both may be large: one request stopped the coordinator for hours."""
    count = 10_000
    group = Driver(foo=1, bar=count)
    group.ask(join("a", "foo", *(f"t{number}" for number in range(count))), {"a": {"foo": (0,)}})
    partitions = tuple(PartitionToDelete(partition_index=number) for number in range(count))
    topics = tuple(TopicToDelete(name=name, partitions=partitions) for name in ("bar", "foo"))
    began = time.process_time()
    response = group.send(OffsetDeleteRequest(group_id=GROUP, topics=topics))
    assert time.process_time() - began < 1
    bar, foo = ([each.error_code for each in topic.partitions] for topic in response.topics)
    assert ({*bar}, foo[0]) == ({0}, GroupSubscribedToTopic.code)


# ---- topics


def test_offsets_of_a_topic_that_is_deleted_or_created_again_are_removed() -> None:
    group = Driver(foo=3, bar=1)
    group.ask(join("a", "foo", "bar"), {"a": {"foo": (0, 1, 2), "bar": (0,)}})
    codes(group, commit("a", 1, 0, 1))
    group.set_topics(foo=4, bar=1)
    assert offsets(group, fetch()) == {0: 7, 1: 7}
    group.recreate("foo", 4)
    assert offsets(group, fetch()) == {}
    group.input(TopicsChanged(group_id=GROUP))
    assert len(group.group.offsets) == len(ConsumerGroupState.replay(GROUP, group.log).offsets) == 0
    codes(group, commit("a", group.group.current("a").epoch, 0))
    group.set_topics(bar=1)
    assert len(group.group.offsets) == 0


def test_offset_without_a_topic_id_gets_that_of_the_topic() -> None:
    """Records of earlier versions have none."""
    group = Driver(foo=1)
    group.ask(join("a"), {"a": {"foo": (0,)}})
    for topic, partition in (("foo", 0), ("foo", 1), ("gone", 0)):
        group.group.apply(OffsetRecord(group_id=GROUP, topic=topic, partition=partition, offset=3, metadata="m"))
    assert offsets(group, fetch()) == {0: 3}
    group.input(TopicsChanged(group_id=GROUP))
    [stored] = group.group.offsets.records()
    assert (stored.offset, stored.metadata, stored.topic_id) == (3, "m", topic_id("foo"))
    group.input(TopicsChanged(group_id=GROUP))
    assert group.records == [], "once"


# ---- transactions


def in_transaction(group: Driver, token: str, offset: int, *partitions: int, epoch: int = 4) -> list[int]:
    """Commit an offset with a transaction; return the errors."""
    each = tuple(
        PartitionCommit(partition_index=number, committed_offset=offset, committed_metadata=token)
        for number in partitions
    )
    request = TxnOffsetCommitRequest(
        transactional_id="t",
        group_id=GROUP,
        producer_id=1,
        producer_epoch=0,
        generation_id=epoch,
        member_id="a",
        topics=(TopicCommit(name="foo", partitions=each),),
    )
    group.input(CommitInTransaction(request=request, token=token))
    [topic] = group.outcome.response.topics
    return [each.error_code for each in topic.partitions]


def ended(group: Driver, partition: int, token: str, *asked: str, is_stable: bool = True) -> None:
    """The broker says which offset it has committed."""
    outcome = TransactionOutcome(token=token, is_stable=is_stable, asked=frozenset(asked))
    group.input(TransactionsEnded(group_id=GROUP, outcomes={("foo", partition): outcome}))


def unstable(group: Driver) -> set[int]:
    """The partitions of which a transaction that has not ended commits an offset."""
    [found] = group.send(replace(fetch(None, -1, 0, 1, 2), require_stable=True)).groups
    return {each.partition_index for topic in found.topics for each in topic.partitions if each.error_code == 88}


def test_offset_of_a_transaction_is_committed_when_it_ends() -> None:
    group = at_epoch_4()
    codes(group, commit("a", 4, 0, 1))
    assert in_transaction(group, "one", 20, 0, 1) == [0, 0]
    assert (offsets(group, fetch()), unstable(group)) == ({0: 7, 1: 7}, {0, 1})
    ended(group, 0, "one", "one")
    ended(group, 1, "of another group", "one")
    assert (offsets(group, fetch()), unstable(group)) == ({0: 20, 1: 7}, set())
    assert ConsumerGroupState.replay(GROUP, group.log).offsets == group.group.offsets
    ended(group, 0, "one", "one")
    assert group.records == []


def test_outcome_of_an_earlier_transaction_is_not_lost_by_a_later_one() -> None:
    group = at_epoch_4()
    in_transaction(group, "one", 20, 0)
    in_transaction(group, "two", 30, 0)
    ended(group, 0, "one", "one", "two", is_stable=False)
    assert (offsets(group, fetch(None, -1, 0)), unstable(group)) == ({0: 20}, {0}), "the later one is open"
    in_transaction(group, "three", 40, 0)
    ended(group, 0, "one", "two")
    assert (offsets(group, fetch(None, -1, 0)), unstable(group)) == ({0: 20}, {0}), "of two only: it was aborted"
    ended(group, 0, "three", "three")
    assert (offsets(group, fetch(None, -1, 0)), unstable(group)) == ({0: 40}, set())


def test_commit_without_a_transaction_is_newer_than_those_that_have_not_ended() -> None:
    group = at_epoch_4()
    in_transaction(group, "one", 20, 0)
    codes(group, commit("a", 4, 0, offset=25))
    ended(group, 0, "one", "one")
    assert (offsets(group, fetch()), unstable(group)) == ({0: 25}, set())


def test_commit_of_a_transaction_is_fenced_by_the_member_epoch() -> None:
    """As any commit, with ILLEGAL_GENERATION, which producers know."""
    group = at_epoch_4()
    assert in_transaction(group, "one", 20, 0, 2, epoch=3) == [0, 22]
    assert in_transaction(group, "two", 20, 0, epoch=5) == [22]
    assert in_transaction(group, "three", 20, 0, epoch=-1) == [22]
    for member_id in ("a", "b", "c"):
        group.plan = {}
        group.send(beat(member_id, -1))
    assert in_transaction(group, "four", 20, 0, epoch=4) == [UNKNOWN]
    assert in_transaction(group, "five", 20, 1, epoch=-1) == [0]
    assert unstable(group) == {0, 1}
    assert group.send(DeleteRequest(group_ids=(GROUP,))).results[0].error_code == 0
    assert len(group.group.offsets) == len(ConsumerGroupState.replay(GROUP, group.log).offsets) == 0


def test_pending_offsets_of_a_deleted_topic_are_removed() -> None:
    group = at_epoch_4()
    in_transaction(group, "one", 20, 0)
    group.recreate("foo", 3)
    group.input(TopicsChanged(group_id=GROUP))
    ended(group, 0, "one", "one")
    assert len(group.group.offsets) == 0
