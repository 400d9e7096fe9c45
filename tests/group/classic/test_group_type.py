"""A classic group as the shard sees it: traits, errors of requests that are not decided, timers, offsets."""

from __future__ import annotations

from typing import Any

import pytest

from connectgroup.errors import (
    CoordinatorLoadInProgress,
    GroupError,
    GroupIdNotFound,
    InconsistentGroupProtocol,
    StaleMemberEpoch,
)
from connectgroup.group.kernel.timers import TimerKey, TimerKind
from connectgroup.group.registry import ClientInfo
from connectgroup.protocol.messages.classic import (
    GroupHeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeavingMember,
    SyncGroupRequest,
)
from connectgroup.protocol.messages.describe import DeleteRequest, DescribeRequest
from connectgroup.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetFetchRequest,
    PartitionCommit,
    TopicCommit,
    TopicToFetch,
)

from .driver import GROUP, Driver, offers

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
