"""Static members (ST-01 to ST-08) and timers (TO-01 to TO-05) of consumer groups."""

from __future__ import annotations

from connectgroup.errors import FencedInstanceId, InvalidRequest, UnknownMemberId, UnreleasedInstanceId
from connectgroup.group.kernel.outcome import SetTimer, TimerKind
from connectgroup.protocol.messages.classic import LeaveGroupRequest, LeavingMember
from connectgroup.protocol.records.base import Tombstone
from connectgroup.protocol.records.consumer import ConsumerCurrentRecord, ConsumerTopicsRecord

from .driver import GROUP, Driver, Plan, beat, join

PLAN = {"m1": {"foo": (0, 1, 2)}, "m2": {"foo": (3, 4, 5)}}


def with_static_member() -> Driver:
    """m1 and the static member m2 with instance id i2, both at epoch 2."""
    group = Driver(foo=6)
    group.ask(join("m1"), {"m1": {"foo": (0, 1, 2, 3, 4, 5)}})
    group.ask(join("m2", instance_id="i2"), PLAN)
    group.ask(beat("m1", 1))
    group.ask(beat("m1", 1, {"foo": (0, 1, 2)}))
    assert group.ask(beat("m2", 2, instance_id="i2")) == (2, {"foo": (3, 4, 5)})
    return group


def away() -> Driver:
    group = with_static_member()
    assert group.ask(beat("m2", -2, instance_id="i2")) == (-2, None)
    return group


def test_static_member_leaves_temporarily() -> None:
    """ST-01: one record, no group epoch, assignment epochs 0, the session timer runs."""
    group = away()
    [record] = group.records
    assert isinstance(record, ConsumerCurrentRecord)
    assert (record.epoch, record.pending) == (-2, ())
    assert [topic.assignment_epochs for topic in record.assigned] == [(0, 0, 0)]
    assert (group.group.epoch, group.group.state_name) == (2, "Stable")
    assert group.armed(TimerKind.SESSION, "m2") == 45_000


def test_static_member_that_left_temporarily_joins_again_with_its_member_id() -> None:
    """ST-02: as after a record that took longer than max.poll.interval.ms. At epoch -2 each heartbeat would leave."""
    group = away()
    assert group.ask(join("m2", instance_id="i2")) == (2, {"foo": (3, 4, 5)})
    assert group.ask(beat("m2", 2, {"foo": (3, 4, 5)}, instance_id="i2"))[0] == 2
    assert (group.group.epoch, group.group.state_name) == (2, "Stable")


def test_successor_of_a_static_member_gets_the_same_partitions() -> None:
    """ST-02: no group epoch, no assignor."""
    group = away()
    computations = len(group.inputs)
    assert group.ask(join("m3", instance_id="i2")) == (2, {"foo": (3, 4, 5)})
    assert (group.group.epoch, len(group.inputs), sorted(group.group.members)) == (2, computations, ["m1", "m3"])
    assert sum(isinstance(record, Tombstone) for record in group.records) == 3
    assert group.armed(TimerKind.SESSION, "m2") is None


def test_successor_that_joins_while_an_assignor_runs_advances_the_epoch() -> None:
    """The input of the assignor has the former member: its result is not a failure, and another one follows."""
    group = away()
    group.held_back = True
    group.ask(join("m1", rack_id="r"))
    [*_, running] = group.inputs
    group.ask(join("m3", instance_id="i2"), {"m1": {"foo": (0, 1, 2)}, "m2": {"foo": (3, 4, 5)}})
    outdated = group.computed(running)
    group.plan, group.held_back = {"m1": {"foo": (0, 1, 2)}, "m3": {"foo": (3, 4, 5)}}, False
    group.input(outdated)
    assert (group.group.epoch, group.group.target_epoch) == (4, 4)
    assert group.ask(beat("m3", 2, instance_id="i2"))[0] == 4


def test_successor_with_another_subscription_causes_a_rebalance() -> None:
    """ST-03"""
    group = away()
    group.set_topics(foo=6, bar=1)
    plan: Plan = {"m1": {"foo": (0, 1, 2)}, "m3": {"foo": (3, 4, 5), "bar": (0,)}}
    assert group.ask(join("m3", "foo", "bar", instance_id="i2"), plan) == (2, {"foo": (3, 4, 5)})
    assert group.ask(beat("m3", 2)) == (3, {"foo": (3, 4, 5), "bar": (0,)})


def test_instance_id_in_use() -> None:
    """ST-04, ST-05, ST-06"""
    group = with_static_member()
    assert group.send(join("m3", instance_id="i2")).error_code == UnreleasedInstanceId.code
    assert group.send(beat("m1", 2, instance_id="i2")).error_code == FencedInstanceId.code
    assert group.send(beat("m2", 2, instance_id="other")).error_code == UnknownMemberId.code
    assert group.send(beat("m2", -1, instance_id="other")).error_code == UnknownMemberId.code
    assert group.send(beat("m1", -2)).error_code == InvalidRequest.code
    assert (group.group.epoch, group.records) == (2, [])


def test_static_member_that_does_not_return_is_removed() -> None:
    """ST-07"""
    group = away()
    group.plan = {"m1": {"foo": (0, 1, 2, 3, 4, 5)}}
    group.expire(TimerKind.SESSION, "m2")
    assert (group.group.epoch, sorted(group.group.members)) == (3, ["m1"])
    assert group.ask(beat("m1", 2)) == (3, {"foo": (0, 1, 2, 3, 4, 5)})


def test_static_member_that_leaves_permanently_is_removed() -> None:
    """ST-08"""
    group = with_static_member()
    group.plan = {"m1": {"foo": (0, 1, 2, 3, 4, 5)}}
    assert group.ask(beat("m2", -1, instance_id="i2")) == (-1, None)
    assert (group.group.epoch, sorted(group.group.members)) == (3, ["m1"])


def test_partitions_of_a_member_that_left_temporarily_move_without_an_acknowledgement() -> None:
    group = away()
    group.ask(join("m4"), {"m1": {"foo": (0, 1, 2)}, "m2": {"foo": (3, 4)}, "m4": {"foo": (5,)}})
    assert group.ask(beat("m4", 3)) == (3, None)
    assert group.held("m4") == {"foo": (5,)}
    assert group.ask(join("m3", instance_id="i2")) == (3, {"foo": (3, 4)})


def test_session_timeout_removes_the_member() -> None:
    """TO-01"""
    group = with_static_member()
    assert group.armed(TimerKind.SESSION, "m1") == 45_000
    group.plan = {"m2": {"foo": (0, 1, 2, 3, 4, 5)}}
    group.expire(TimerKind.SESSION, "m1")
    assert sum(isinstance(record, Tombstone) for record in group.records) == 3
    assert group.ask(beat("m2", 2)) == (3, {"foo": (0, 1, 2, 3, 4, 5)})


def revoking() -> Driver:
    """m1 is to revoke foo-2, and has 10 s for it."""
    group = Driver(foo=3)
    group.ask(join("m1", rebalance_timeout_ms=10_000), {"m1": {"foo": (0, 1, 2)}})
    group.ask(join("m2"), {"m1": {"foo": (0, 1)}, "m2": {"foo": (2,)}})
    assert group.armed(TimerKind.REBALANCE, "m1") is None
    assert group.ask(beat("m1", 1)) == (1, {"foo": (0, 1)})
    assert group.armed(TimerKind.REBALANCE, "m1") == 10_000
    return group


def test_member_that_does_not_acknowledge_in_time_is_removed() -> None:
    """TO-02"""
    group = revoking()
    group.ask(beat("m1", 1))
    group.plan = {"m2": {"foo": (0, 1, 2)}}
    group.expire(TimerKind.REBALANCE, "m1")
    assert sorted(group.group.members) == ["m2"]
    assert group.group.epoch == 3


def test_acknowledgement_cancels_the_rebalance_timer_and_unreleased_arms_none() -> None:
    """TO-03"""
    group = revoking()
    group.ask(beat("m1", 1, {"foo": (0, 1)}))
    assert group.armed(TimerKind.REBALANCE, "m1") is None
    assert group.state("m2") == "UNRELEASED"
    assert group.armed(TimerKind.REBALANCE, "m2") is None


def test_timers_after_a_load() -> None:
    """TO-05: session timers for all members, a rebalance timer for UNREVOKED members only."""
    group = revoking()
    loaded = group.group_type.on_load(group.group, 0)
    armed = {(timer.key.kind, timer.key.member_id) for timer in loaded.timers if isinstance(timer, SetTimer)}
    session, rebalance = TimerKind.SESSION, TimerKind.REBALANCE
    assert armed == {(session, "m1"), (session, "m2"), (rebalance, "m1")}


def test_topics_of_a_group_are_stored_once_when_members_leave_together() -> None:
    """A thousand members with topics of their own: the records of one request were more than the log takes at once."""
    names = [f"t{number}" for number in range(4)]
    group = Driver(**dict.fromkeys(names, 1))
    plan = {f"m-{name}": {name: (0,)} for name in names}
    for name in names:
        group.ask(join(f"m-{name}", name, instance_id=name), plan)
    members = tuple(LeavingMember(member_id="", group_instance_id=name) for name in (*names[1:], "t1", "other"))
    response = group.send(LeaveGroupRequest(group_id=GROUP, members=members))
    assert [each.error_code for each in response.members] == [0, 0, 0, UnknownMemberId.code, UnknownMemberId.code]
    [stored] = [each for each in group.records if isinstance(each, ConsumerTopicsRecord)]
    assert ([topic.topic_name for topic in stored.topics], sorted(group.group.members)) == (["t0"], ["m-t0"])
    assert (group.group.epoch, group.group.target_epoch) == (5, 5)
