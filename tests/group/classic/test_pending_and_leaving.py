"""Member ids that are pending, and members that leave together."""

from __future__ import annotations

import time

from connectgroup.group.kernel.outcome import TimerKind
from connectgroup.protocol.messages.classic import LeaveGroupRequest, LeavingMember
from connectgroup.protocol.messages.describe import DeleteRequest
from connectgroup.protocol.messages.offsets import OffsetCommitRequest, PartitionCommit, TopicCommit
from connectgroup.protocol.records.base import Key, Kind, Tombstone
from connectgroup.protocol.records.consumer import ClassicMemberRecord

from .driver import GROUP, Driver, offers

UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID = 25, 82
POSITION = PartitionCommit(partition_index=0, committed_offset=5, committed_metadata=None)
TOPICS = (TopicCommit(name="t", partitions=(POSITION,)),)


def leave_together(group: Driver, *member_ids: str) -> list[int]:
    """One LeaveGroup of several members; their error codes."""
    leaving = tuple(LeavingMember(member_id=each) for each in member_ids)
    return [each.error_code for each in group.send(LeaveGroupRequest(group_id=GROUP, members=leaving)).members]


def test_offsets_outlive_a_member_id_that_is_not_used() -> None:
    """An operator commits before the first member joins, and that member never uses its id: nothing is deleted."""
    group = Driver()
    group.send(OffsetCommitRequest(group_id=GROUP, member_id="", topics=TOPICS))
    pending = group.join(requires_member_id=True).member_id
    group.expire(TimerKind.SESSION, pending)
    stored = group.group.offsets.get("t", 0)
    assert stored is not None
    assert stored.offset == 5


def test_rebalance_is_not_completed_with_a_member_that_leaves_in_the_same_request() -> None:
    group = Driver()
    first, second, third = group.stable("a", "b", "c")
    generation = group.group.generation
    group.join(first)
    assert group.join(third) is None
    assert leave_together(group, second, third) == [0, 0]
    assert group.group.generation == generation + 1
    assert list(group.group.members) == [first]
    assert group.answers[third].error_code == UNKNOWN_MEMBER_ID
    assert [each.member_id for each in group.answers[first].members] == [first]


def test_members_with_many_assignors_of_their_own_leave_in_time_linear_in_their_number() -> None:
    """One request may name a thousand members: it took the coordinator many seconds, and workers lost their leases."""
    group, count = Driver().group, 500
    for number in range(count):
        own = (f"own {number} {each}" for each in range(99))
        record = ClassicMemberRecord(
            group_id=GROUP, member_id=f"m{number}", number=number, protocols=offers("range", *own)
        )
        group.apply(record)
    began = time.process_time()
    for number in range(1, count):
        group.apply(Tombstone(Key(Kind.CLASSIC_MEMBER, GROUP, f"m{number}")))
    assert time.process_time() - began < 1
    assert group.common_protocols() == {each.name for each in group.members["m0"].protocols}


def test_rebalance_is_not_completed_when_a_pending_id_leaves_with_a_member() -> None:
    group = Driver()
    first, second = group.stable("a", "b")
    generation = group.group.generation
    pending = group.join(requires_member_id=True).member_id
    group.join(first)
    group.join(second)
    assert leave_together(group, pending, second) == [0, 0]
    assert group.group.generation == generation + 1
    assert [each.member_id for each in group.answers[first].members] == [first]


def test_member_id_of_a_dynamic_member_is_not_used_with_an_instance_id() -> None:
    """No instance id ever belongs to two members."""
    group = Driver()
    group.join(instance="i")
    pending = group.join(requires_member_id=True).member_id
    assert group.join(pending, instance="i").error_code == FENCED_INSTANCE_ID
    assert group.join(pending, instance="j").error_code == UNKNOWN_MEMBER_ID


def test_commit_with_an_instance_id_that_no_member_has_is_rejected() -> None:
    group = Driver()
    (member,) = group.stable("a")
    request = OffsetCommitRequest(
        group_id=GROUP,
        member_id=member,
        generation_id_or_member_epoch=group.group.generation,
        group_instance_id="unheard of",
        topics=TOPICS,
    )
    assert group.send(request).topics[0].partitions[0].error_code == UNKNOWN_MEMBER_ID


def test_deleted_group_leaves_nothing_behind() -> None:
    """A new group with this id does not wait for a member id of the former one."""
    group = Driver()
    group.join(requires_member_id=True)
    assert group.send(DeleteRequest(group_ids=(GROUP,))).results[0].error_code == 0
    assert not group.timers
    assert group.join() is not None, "the only member of the new group waits"
