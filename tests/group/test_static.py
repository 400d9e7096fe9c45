"""Static members: ST-01 to ST-08 and CN-12, and the other consequences of an instance id that outlives a process."""

from __future__ import annotations

import pytest

from connectgroup.errors import (
    GroupIdNotFound,
    UnknownMemberId,
)
from connectgroup.group.connect.describe import describe
from connectgroup.group.kernel.outcome import CancelTimer, TimerKey, TimerKind
from connectgroup.protocol.messages.connectors import ConnectorChange
from connectgroup.protocol.messages.heartbeat import TaskStatus
from connectgroup.protocol.records.connect import MemberState
from connectgroup.protocol.units import Unit

from .builders import GROUP, FixedAssignor, Scene, info, names, settings, tasks, units_at

FOO = tasks(foo=[-1, 0, 1])


ONE, TWO = tasks(foo=[-1, 0, 1]), tasks(foo=[2, 3, 4])


@pytest.fixture
def fixed() -> FixedAssignor:
    assignor = FixedAssignor()
    assignor.target = {"m1": ONE, "m2": TWO}
    return assignor


@pytest.fixture
def rest(fixed: FixedAssignor) -> Scene:
    """m1, and m2 with the instance id i2, at epoch 10; m2's units were granted at epochs 7 and 10."""
    return Scene.stable(
        settings(fixed),
        epoch=10,
        connectors={"foo": 5},
        members={"m1": ONE, "m2": {Unit("foo", 2): 7, Unit("foo", 3): 10, Unit("foo", 4): 10}},
        instances={"m2": "i2"},
    )


def test_st_03_return_with_other_assignors_requests_a_new_target(rest: Scene, fixed: FixedAssignor) -> None:
    """KAFKA-20434."""
    fixed.target = {"m1": ONE, "m2b": TWO}
    rest.leave_temporarily("m2", "i2")
    rest.join("m2b", instance="i2", server_assignor="fixed")
    assert (rest.group.epoch, rest.group.target_epoch, fixed.calls) == (11, 11, 1)


def test_repeated_leave_has_no_effect(rest: Scene) -> None:
    """S16."""
    first = rest.leave_temporarily("m2", "i2")
    again = rest.leave_temporarily("m2", "i2")
    assert again == first
    assert rest.records == ()


def test_late_duplicate_of_an_earlier_heartbeat_does_not_end_the_static_membership(rest: Scene) -> None:
    rest.leave_temporarily("m2", "i2")
    for owned in (None, TWO):
        assert rest.heartbeat("m2", 10, owned).error_code == UnknownMemberId.code
    assert units_at(rest.join("m2b", instance="i2")) == (10, names(TWO))


def test_new_target_frees_units_of_a_temporarily_left_member(rest: Scene, fixed: FixedAssignor) -> None:
    """None of its units runs, so there is no revocation to wait for."""
    rest.leave_temporarily("m2", "i2")
    fixed.target = {"m1": ONE, "m2": tasks(foo=[2]), "m3": tasks(foo=[3, 4])}
    assert units_at(rest.join("m3")) == (11, ["foo-3", "foo-4"])
    assert rest.current("m2").assigned == {Unit("foo", 2): 0}
    assert units_at(rest.join("m2b", instance="i2")) == (11, ["foo-2"])


def test_temporarily_left_member_does_not_compute() -> None:
    scene = Scene.stable(
        settings(), epoch=10, connectors={"foo": 1}, members={"m1": tasks(foo=[-1]), "m2": tasks(foo=[0])},
        instances={"m1": "i1"},
    )  # fmt: skip
    a = info("a")
    for member_id in ("m1", "m2"):
        scene.heartbeat(member_id, 10, assignors=(a,))
    assert scene.group.computation is not None
    asked = scene.group.computation.member_id
    assert asked == "m1"
    scene.leave_temporarily("m1", "i1")
    assert scene.group.computation.member_id == "m2"
    assert scene.install("m1", 10, scene.group.epoch, {}).error_code != 0


def test_kafka_20747_former_instance_id_is_free(rest: Scene, fixed: FixedAssignor) -> None:
    """A member that rejoins under another instance id releases the old one."""
    fixed.target = {"m1": ONE, "m2": TWO}
    rest.join("m2", instance="i3")
    assert rest.group.instances == {"i3": "m2"}
    assert rest.join("m4", instance="i2").error_code == 0
    rest.leave("m2")
    assert rest.group.instances == {"i2": "m4"}


def test_member_may_take_the_instance_id_of_a_temporarily_left_one(rest: Scene, fixed: FixedAssignor) -> None:
    rest.leave_temporarily("m2", "i2")
    fixed.target = {"m1": ONE | TWO}
    rest.join("m1", instance="i2")
    assert rest.group.members.keys() == {"m1"}
    assert rest.group.instances == {"i2": "m1"}


def test_successor_gets_no_removed_unit(rest: Scene, fixed: FixedAssignor) -> None:
    rest.leave_temporarily("m2", "i2")
    rest.update(ConnectorChange(connector="foo", delete=True))
    assert units_at(rest.join("m2b", instance="i2"))[1] in (None, [])


def test_leave_of_an_unknown_group_is_rejected(fixed: FixedAssignor) -> None:
    scene = Scene(settings=settings(fixed))
    assert scene.heartbeat("m2", -2, instance="i2").error_code == GroupIdNotFound.code


def test_new_coordinator_knows_temporarily_left_members(rest: Scene) -> None:
    rest.leave_temporarily("m2", "i2")
    rest.reload()
    assert units_at(rest.join("m2b", instance="i2")) == (10, names(TWO))


def test_server_assignor_input_has_the_units_of_a_successor(rest: Scene, fixed: FixedAssignor) -> None:
    """The successor has other assignors, so a new target is computed; its input contains the units kept for it."""
    fixed.target = {"m1": ONE, "m2b": TWO}
    rest.leave_temporarily("m2", "i2")
    rest.join("m2b", instance="i2", server_assignor="fixed")
    [prepared] = fixed.inputs
    assert [member.member_id for member in prepared.members] == ["m1", "m2b"]
    assert prepared.shares() == [ONE, TWO]


def test_able_present_member_computes_if_the_widest_one_left_temporarily() -> None:
    """CN-01: not the server-side assignor, which would assign all units anew."""
    scene = Scene.stable(
        settings(), epoch=10, connectors={"foo": 1}, members={"m1": tasks(foo=[-1]), "m2": tasks(foo=[0])},
        instances={"m1": "i1"},
    )  # fmt: skip
    scene.heartbeat("m1", 10, assignors=(info("a", 0, 2, version=1),))
    scene.heartbeat("m2", 10, assignors=(info("a", 1, 2, version=1),))
    assert scene.group.computation is not None
    assert scene.group.computation.member_id == "m1"
    scene.leave_temporarily("m1", "i1")
    assert scene.group.computation.member_id == "m2"


def test_rejoin_ends_the_rebalance_timer(rest: Scene, fixed: FixedAssignor) -> None:
    """TO-03: the rejoin leaves nothing to revoke, so no timer runs."""
    fixed.target = {"m1": ONE | tasks(foo=[2]), "m2": tasks(foo=[3, 4])}
    rest.join("m3")
    rest.heartbeat("m2", 10, TWO, full=True)
    assert rest.state("m2") is MemberState.UNREVOKED
    rest.join("m2", instance="i2")
    assert rest.last is not None
    assert CancelTimer(TimerKey(TimerKind.REBALANCE, GROUP, "m2")) in rest.last.timers


def test_units_of_a_static_member_that_left_temporarily_are_described_as_waiting() -> None:
    scene = Scene.stable(
        settings(), epoch=10, connectors={"foo": 2}, members={"m1": FOO, "m2": ()}, instances={"m1": "i1"}
    )
    scene.heartbeat("m1", 10, statuses=(TaskStatus(connector="foo", task=1, owner_epoch=10, state=1, message="busy"),))
    scene.leave_temporarily("m1", "i1")
    [connector] = describe(scene.group).connectors
    assert {(unit.member_id, unit.state, unit.message) for unit in connector.units} == {("m1", "WAITING", "")}
