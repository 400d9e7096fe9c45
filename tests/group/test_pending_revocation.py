"""CA-07, CA-19: connectors and targets that change while a member is UNREVOKED."""

from __future__ import annotations

import pytest

from connectgroup.group.kernel.timers import rebalance
from connectgroup.protocol.messages.common import entries
from connectgroup.protocol.messages.connectors import ConnectorChange
from connectgroup.protocol.records.connect import MemberState, TargetState
from connectgroup.protocol.units import Unit

from .builders import FixedAssignor, Scene, foo, names, response_units, settings, units_at

PAUSED, STOPPED = TargetState.PAUSED, TargetState.STOPPED


def want(state: TargetState, connector: str) -> ConnectorChange:
    return ConnectorChange(connector=connector, target_state=state)


@pytest.fixture
def revoking(fixed: FixedAssignor) -> Scene:
    """A owns foo with 4 tasks and bar with 2 tasks at epoch 20, and must stop foo-3, which moves to C."""
    everything = foo(-1, 0, 1, 2, 3) | {Unit("bar"), Unit("bar", 0), Unit("bar", 1)}
    scene = Scene.stable(settings(fixed), epoch=20, connectors={"foo": 4, "bar": 2}, members={"A": everything})
    fixed.target = {"A": everything - foo(3), "C": foo(3)}
    scene.join("C")
    scene.heartbeat("A", 20)
    assert names(scene.current("A").pending) == ["foo-3"]
    return scene


@pytest.mark.parametrize(
    ("change", "stops"),
    [
        (want(PAUSED, "bar"), ["bar-0", "bar-1"]),
        (want(STOPPED, "bar"), ["bar", "bar-0", "bar-1"]),
        (ConnectorChange(connector="bar", delete=True), ["bar", "bar-0", "bar-1"]),
        (ConnectorChange(connector="bar", config=entries({"colour": "green"})), ["bar", "bar-0", "bar-1"]),
    ],
    ids=["paused", "stopped", "deleted", "reconfigured"],
)
def test_ca_19_units_that_must_not_run_join_the_pending_revocation(
    revoking: Scene, fixed: FixedAssignor, change: ConnectorChange, stops: list[str]
) -> None:
    """CA-19: the member is sent the change in its next response, not only after its acknowledgement."""
    held = revoking.current("A").held
    left = {unit for unit in held if str(unit) not in stops}
    fixed.target = {"A": frozenset(left) - foo(3), "C": foo(3)}
    if change.config:
        fixed.target["A"] |= {Unit("bar")}
    revoking.update(change)
    assert "A" in revoking.group.members_to_wake, "a parked heartbeat of the member is woken"
    response = revoking.heartbeat("A", 20)
    assert units_at(response) == (20, names(left - foo(3)))
    assert (revoking.state("A"), revoking.current("A").epoch) == (MemberState.UNREVOKED, 20)
    assert names(revoking.current("A").pending) == sorted(["foo-3", *stops])
    assert revoking.last is not None
    assert rebalance("workers", "A", revoking.current("A"), 10_000) in revoking.last.timers
    again = revoking.heartbeat("A", 20)
    assert (units_at(again), revoking.records) == ((20, None), ())
    acknowledged = revoking.heartbeat("A", 20, frozenset(left) - foo(3))
    assert acknowledged.member_epoch == revoking.group.epoch
    assert not revoking.current("A").pending


def test_ca_07_newer_target_alone_adds_nothing_to_the_pending_revocation(revoking: Scene, fixed: FixedAssignor) -> None:
    """CA-07: units that move to another member may run on until the first revocation is acknowledged."""
    fixed.target = {"A": foo(-1), "C": foo(0, 1, 2, 3) | {Unit("bar"), Unit("bar", 0), Unit("bar", 1)}}
    revoking.join("D")
    assert units_at(revoking.heartbeat("A", 20)) == (20, None)
    assert revoking.records == ()


def test_ca_19_partial_acknowledgement_is_none(revoking: Scene, fixed: FixedAssignor) -> None:
    """The units that joined the pending revocation later must stop too before any of them is assigned (S3)."""
    fixed.target = {"A": foo(-1, 0, 1, 2), "C": foo(3)}
    revoking.update(want(STOPPED, "bar"))
    revoking.heartbeat("A", 20)
    bar = {Unit("bar"), Unit("bar", 0), Unit("bar", 1)}
    revoking.heartbeat("A", 20, foo(-1, 0, 1, 2) | bar)
    assert revoking.state("A") is MemberState.UNREVOKED
    assert response_units(revoking.heartbeat("C", 21)) == frozenset(), "foo-3 is still held by A"
    revoking.heartbeat("A", 20, foo(-1, 0, 1, 2))
    assert response_units(revoking.heartbeat("C", 22)) == foo(3)
