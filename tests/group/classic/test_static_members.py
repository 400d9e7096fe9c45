"""Static members of classic groups (KIP-345)."""

from __future__ import annotations

from connectgroup.group.kernel.outcome import TimerKey, TimerKind

from .driver import GROUP, Driver, offers

UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID = 25, 82


def static(group: Driver, *instances: str) -> list[str]:
    """A stable group of static members."""
    for instance in instances:
        group.join(instance=instance)
        for member in list(group.group.members.values()):
            if member.instance_id != instance and group.state == "PreparingRebalance":
                group.join(member.member_id, instance=member.instance_id)
    ids = list(group.group.members)
    leader = group.group.record.leader
    for member_id in ids:
        if member_id != leader:
            group.sync(member_id)
    group.sync(leader, assignments=ids)
    assert group.state == "Stable"
    return ids


def test_static_member_that_returns_causes_no_rebalance() -> None:
    """KIP-345; it keeps the assignment of its predecessor, under a new member id."""
    group = Driver()
    _, second = static(group, "i1", "i2")
    generation = group.group.generation
    returned = group.join(instance="i2", skips_assignment=True)
    assert (returned.error_code, returned.generation_id, returned.skip_assignment) == (0, generation, False)
    assert returned.member_id != second
    assert group.sync(returned.member_id).assignment == second.encode()
    assert group.heartbeat(second, instance="i2") == FENCED_INSTANCE_ID
    assert group.join(second, instance="i2").error_code == FENCED_INSTANCE_ID
    assert group.sync(second, group_instance_id="i2").error_code == FENCED_INSTANCE_ID
    assert group.state == "Stable"


def test_static_leader_that_returns_skips_the_assignment() -> None:
    """KIP-814."""
    group = Driver()
    static(group, "i1", "i2")
    returned = group.join(instance="i1", skips_assignment=True)
    assert (returned.skip_assignment, returned.leader) == (True, returned.member_id)
    assert len(returned.members) == 2


def test_static_leader_of_an_old_client_returns_as_a_follower() -> None:
    group = Driver()
    first, _ = static(group, "i1", "i2")
    returned = group.join(instance="i1")
    assert (returned.leader, returned.members, returned.skip_assignment) == (first, (), False)
    assert group.group.record.leader == returned.member_id


def test_static_member_that_returns_with_other_protocols_causes_a_rebalance() -> None:
    group = Driver()
    group.join(instance="i1", protocols=offers("range", "sticky"))
    group.sync("i1-1")
    returned = group.join(instance="i1", protocols=offers("sticky"))
    assert (returned.generation_id, returned.protocol_name) == (2, "sticky")


def test_parked_requests_of_a_replaced_static_member_are_fenced() -> None:
    group = Driver()
    first, _ = static(group, "i1", "i2")
    group.join(first, instance="i1")
    group.join(instance="i1")
    assert group.answers[first].error_code == FENCED_INSTANCE_ID


def test_parked_sync_of_a_replaced_static_member_is_fenced() -> None:
    group = Driver()
    group.join(instance="i1")
    group.join(instance="i2")
    group.join("i1-1", instance="i1")
    group.sync("i2-2", group_instance_id="i2")
    assert group.join(instance="i2") is None, "the leader may have computed with the former member id"
    assert group.answers["i2-2"].error_code == FENCED_INSTANCE_ID
    assert group.state == "PreparingRebalance"


def test_static_member_that_does_not_join_stays_until_its_session_expires() -> None:
    group = Driver()
    first, second = static(group, "i1", "i2")
    group.join(first, instance="i1")
    group.expire(TimerKind.REBALANCE)
    assert len(group.answers[first].members) == 2
    group.expire(TimerKind.SESSION, second)
    assert second not in group.group.members


def test_rebalance_with_absent_static_members_only_waits_again() -> None:
    group = Driver()
    first, _ = static(group, "i1", "i2")
    group.join(first, instance="i1")
    group.leave(first, instance="i1")
    group.expire(TimerKind.REBALANCE)
    assert group.state == "PreparingRebalance"
    assert TimerKey(TimerKind.REBALANCE, GROUP) in group.timers


def test_operator_removes_a_static_member_by_its_instance_id() -> None:
    group = Driver()
    first, second = static(group, "i1", "i2")
    assert group.leave("", instance="i3") == UNKNOWN_MEMBER_ID
    assert group.leave(first, instance="i2") == FENCED_INSTANCE_ID
    assert group.leave("", instance="i2") == 0
    assert list(group.group.members) == [first]
    assert group.heartbeat(second, instance="i2") == UNKNOWN_MEMBER_ID
