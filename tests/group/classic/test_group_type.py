"""A classic group as the shard sees it: traits, errors of requests that are not decided, timers, offsets."""

from __future__ import annotations

import time
from typing import Any

import pytest

from connectgroup.errors import (
    CoordinatorLoadInProgress,
    GroupError,
    GroupIdNotFound,
    InconsistentGroupProtocol,
    StaleMemberEpoch,
)
from connectgroup.group.classic.group_type import ClassicGroupType
from connectgroup.group.kernel.outcome import ExpireOffsets, TimerKey, TimerKind, TransactionOutcome, TransactionsEnded
from connectgroup.group.registry import ClientInfo
from connectgroup.protocol.messages.classic import (
    GroupHeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeavingMember,
    Subscription,
    SyncGroupRequest,
)
from connectgroup.protocol.messages.describe import DeleteRequest, DescribeRequest
from connectgroup.protocol.messages.offsets import (
    CommitInTransaction,
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
from connectgroup.wire import embedded

from .driver import GROUP, NO_DELAY, Driver, offers

JOIN = JoinGroupRequest(
    group_id=GROUP, session_timeout_ms=1, member_id="m", protocol_type="consumer", protocols=offers("range")
)
SYNC = SyncGroupRequest(group_id=GROUP, generation_id=1, member_id="m")
HEARTBEAT = GroupHeartbeatRequest(group_id=GROUP, generation_id=1, member_id="m")
LEAVE = LeaveGroupRequest(group_id=GROUP, members=(LeavingMember(member_id="m"),))
OLD_LEAVE = LeaveGroupRequest(group_id=GROUP, member_id="m")
DELETE = DeleteRequest(group_ids=(GROUP,))


@pytest.mark.parametrize(
    ("request_", "sender"), [(JOIN, "m"), (SYNC, "m"), (HEARTBEAT, ""), (LEAVE, ""), (DELETE, "")], ids=str
)
def test_requests_that_may_be_parked_have_a_sender(request_: Any, sender: str) -> None:
    traits = Driver().type.traits(request_)
    assert (traits.group_id, traits.sender, traits.creates_group) == (GROUP, sender, False)


@pytest.mark.parametrize(
    ("request_", "error", "code"),
    [
        (JOIN, CoordinatorLoadInProgress("x"), 14),
        (JOIN, StaleMemberEpoch("x"), 27),
        (JOIN, InconsistentGroupProtocol("x"), 23),
        (SYNC, StaleMemberEpoch("x"), 27),
        (SYNC, InconsistentGroupProtocol("x"), 25),
        (HEARTBEAT, InconsistentGroupProtocol("x"), 25),
        (HEARTBEAT, CoordinatorLoadInProgress("x"), 14),
        (LEAVE, CoordinatorLoadInProgress("x"), 14),
        (OLD_LEAVE, InconsistentGroupProtocol("x"), 25),
    ],
    ids=str,
)
def test_request_that_is_not_decided_gets_an_error_that_clients_know(
    request_: Any, error: GroupError, code: int
) -> None:
    response: Any = Driver().type.error_response(request_, error)
    assert response.error_code == code


def test_leave_of_a_group_of_another_type_names_each_member() -> None:
    response: Any = Driver().type.error_response(LEAVE, InconsistentGroupProtocol("x"))
    assert (response.error_code, response.members[0].error_code) == (0, 25)


def test_deletion_that_is_not_decided_names_the_group() -> None:
    response: Any = Driver().type.error_response(DELETE, CoordinatorLoadInProgress("x"))
    assert (response.results[0].group_id, response.results[0].error_code) == (GROUP, 14)


def test_group_that_does_not_exist_is_not_described() -> None:
    group = Driver()
    with pytest.raises(GroupIdNotFound):
        group.type.describe(group.group, DescribeRequest(), 0)


def test_classic_description_has_metadata_and_assignments() -> None:
    group = Driver()
    (first,) = group.stable("a")
    described = group.type.describe(group.group, DescribeRequest(include_classic=True), 0)
    assert (described.protocol_type, described.classic_state) == ("consumer", "Stable")
    assert [(each.classic_metadata, each.classic_assignment) for each in described.members] == [(b"m", first.encode())]


# ---- timers


def test_timer_of_a_former_phase_does_nothing() -> None:
    group = Driver()
    group.join()
    former = group.timers[TimerKey(TimerKind.REBALANCE, GROUP)].key
    group.join()
    assert group.state == "PreparingRebalance"
    group.type.step(group.group, former, 0, ClientInfo())
    assert group.state == "PreparingRebalance"


def test_session_of_a_former_member_does_nothing() -> None:
    group = Driver()
    (first,) = group.stable("a")
    group.leave(first)
    before = group.group.generation
    group.type.step(group.group, TimerKey(TimerKind.SESSION, GROUP, first), 0, ClientInfo())
    assert group.group.generation == before


def test_rebalance_continues_when_a_member_id_expires_unused() -> None:
    group = Driver()
    (first,) = group.stable("a")
    group.join(requires_member_id=True)
    group.join(first, protocols=offers("range", metadata=b"new"))
    assert not group.answers
    group.expire(TimerKind.SESSION, "c-2")
    assert group.answers[first].generation_id == 2


def test_members_of_another_coordinator_are_ordered_by_their_joins() -> None:
    group = Driver()
    ids = group.stable("a", "b", "c")
    group.log = dict(sorted(group.log.items(), reverse=True))
    group.restart()
    assert list(group.group.members) == ids


# ---- offsets


def commit(group: Driver, member_id: str, generation: int, instance: str | None = None) -> int:
    partition = PartitionCommit(partition_index=0, committed_offset=7, committed_metadata=None)
    response = group.send(
        OffsetCommitRequest(
            group_id=GROUP,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=instance,
            topics=(TopicCommit(name="t", partitions=(partition,)),),
        )
    )
    code: int = response.topics[0].partitions[0].error_code
    return code


def committed(group: Driver) -> int:
    topics = (TopicToFetch(name="t", partition_indexes=(0,)),)
    response = group.send(OffsetFetchRequest(group_id=GROUP, topics=topics))
    offset: int = response.topics[0].partitions[0].committed_offset
    return offset


def test_commit_is_fenced_by_member_and_generation() -> None:
    """OC-06: as in a consumer group, with ILLEGAL_GENERATION."""
    group = Driver()
    assert commit(group, "x", 1) == 69, "no such group"
    (first,) = group.stable("a")
    assert commit(group, "x", 1) == 25
    assert commit(group, first, 0) == 22
    assert commit(group, "", -1) == 25, "the group has members"
    assert committed(group) == -1
    assert commit(group, first, 1) == 0
    group.restart()
    assert committed(group) == 7


def test_commit_of_a_replaced_static_member_is_fenced() -> None:
    group = Driver()
    group.join(instance="i")
    group.sync("i-1")
    group.join(instance="i")
    assert commit(group, "i-1", 1, "i") == 82


def test_commit_between_join_and_assignment_is_rejected() -> None:
    group = Driver()
    group.join()
    assert commit(group, "c-1", 1) == 27


def test_commit_without_a_group_creates_an_empty_one() -> None:
    group = Driver()
    assert commit(group, "", -1) == 0
    assert (group.state, committed(group)) == ("Empty", 7)
    assert group.join().error_code == 0


def in_transaction(group: Driver, member_id: str, generation: int, token: str = "one") -> int:
    """Commit offset 20 of the partition with a transaction; returns the error."""
    partition = PartitionCommit(partition_index=0, committed_offset=20, committed_metadata=None)
    request = TxnOffsetCommitRequest(
        transactional_id="t",
        group_id=GROUP,
        producer_id=1,
        producer_epoch=0,
        generation_id=generation,
        member_id=member_id,
        topics=(TopicCommit(name="t", partitions=(partition,)),),
    )
    response = group.send(CommitInTransaction(request=request, token=token))
    code: int = response.topics[0].partitions[0].error_code
    return code


def test_offset_of_a_transaction_is_committed_when_it_ends_and_fenced_by_the_generation() -> None:
    """A sender that does not say which member it is may commit at any time, as in Kafka."""
    group = Driver()
    assert in_transaction(group, "x", 1) == 22, "no such group"
    (first,) = group.stable("a")
    assert in_transaction(group, "x", 1) == 25
    assert in_transaction(group, first, 0) == 22
    assert in_transaction(group, first, 1) == in_transaction(group, "", -1, "two") == 0
    assert committed(group) == -1
    for is_stable in (False, True):
        outcome = TransactionOutcome(token="one", is_stable=is_stable, asked=frozenset({"one", "two"}))
        group.send(TransactionsEnded(group_id=GROUP, outcomes={("t", 0): outcome}))
        assert committed(group) == 20
    assert not group.group.offsets.pending


def delete_offset(group: Driver) -> tuple[int, int]:
    """Delete the offset of the partition; returns the error of the group, and of the partition."""
    topic = TopicToDelete(name="t", partitions=(PartitionToDelete(partition_index=0),))
    response = group.send(OffsetDeleteRequest(group_id=GROUP, topics=(topic,)))
    return response.error_code, response.topics[0].partitions[0].error_code if response.topics else 0


def test_offsets_of_topics_without_a_subscriber_can_be_deleted() -> None:
    """KIP-496; a subscription that cannot be read may be to any topic."""
    group = Driver()
    assert delete_offset(group) == (69, 0)
    (first,) = group.stable("a")
    commit(group, first, 1)
    assert delete_offset(group) == (0, 86)
    group.leave(first)
    assert delete_offset(group) == (0, 0)
    assert committed(group) == -1
    group.join(protocol_type="other")
    assert delete_offset(group) == (68, 0)


def test_offsets_are_deleted_in_time_linear_in_the_request_and_in_the_subscriptions() -> None:
    """Both may have 100,000 entries: one request stopped the coordinator for hours."""
    group, count = Driver(), 4_000
    group.type = ClassicGroupType(NO_DELAY, new_id=lambda: "1", embedded=embedded)
    subscription = Subscription(topics=frozenset(f"t{number}" for number in range(count)))
    group.join(protocols=offers("range", metadata=embedded.encode_subscription(subscription)))
    partitions = tuple(PartitionToDelete(partition_index=number) for number in range(count))
    topics = tuple(TopicToDelete(name=name, partitions=partitions) for name in ("other", "t1"))
    began = time.process_time()
    response = group.send(OffsetDeleteRequest(group_id=GROUP, topics=topics))
    assert time.process_time() - began < 1
    assert [{each.error_code for each in topic.partitions} for topic in response.topics] == [{0}, {86}]


def test_offsets_expire_after_the_retention_time_of_an_empty_group() -> None:
    group = Driver()
    (first,) = group.stable("a")
    commit(group, first, 1)
    late_ms = 2 * group.type.settings.offsets.retention_ms

    def expired(now_ms: int) -> int:
        return len(group.type.step(group.group, ExpireOffsets(group_id=GROUP), now_ms, ClientInfo()).records)

    assert expired(late_ms) == 0, "it may be subscribed"
    group.join()
    assert expired(late_ms) == 0, "it rebalances"
    group.leave(first)
    group.leave("c-2")
    assert (expired(2_000), expired(late_ms)) == (0, 1)
    assert committed(group) == -1
