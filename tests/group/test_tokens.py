"""S6: ``(unit, owner epoch)`` is a fencing token: it is granted once, and later tokens are higher.

The scene's ledger checks this after every step of every test; these are the cases in which it is not obvious.
"""

from __future__ import annotations

from connectgroup.errors import PluginError
from connectgroup.group.connect.state import ConnectGroupState
from connectgroup.group.kernel.outcome import TimerKind
from connectgroup.protocol.messages.connectors import ConnectorChange
from connectgroup.protocol.units import Unit

from .builders import FixedAssignor, Scene, added, foo, response_units, settings, units_at

FOO = Unit("foo")


def test_s6_rejoin_gets_the_same_units_under_a_later_epoch(rest: Scene) -> None:
    """The worker's former process may still write with the token of the former grant."""
    rest.heartbeat("m1", 100)
    assert units_at(rest.join("m1")) == (101, ["foo-1", "foo-2", "foo-3"])
    assert rest.current("m1").assigned == dict.fromkeys(foo(1, 2, 3), 101)
    assert units_at(rest.join("m1")) == (102, ["foo-1", "foo-2", "foo-3"])
    assert units_at(rest.heartbeat("m0", 100)) == (102, ["foo", "foo-0"])  # it stops nothing


def test_s6_rejoin_with_changed_assignors_gets_its_units(fixed: FixedAssignor) -> None:
    """The rejoin itself bumps the group epoch, and the new target equals the old one: no unit may get lost."""
    scene = Scene.stable(settings(fixed), epoch=10, connectors={"foo": 2}, members={"m1": foo(-1, 0), "m2": foo(1)})
    fixed.target = {"m1": foo(-1, 0), "m2": foo(1)}
    assert units_at(scene.join("m1", server_assignor="fixed")) == (11, ["foo", "foo-0"])
    assert scene.current("m1").assigned == dict.fromkeys(foo(-1, 0), 11)


def test_s6_unit_paused_and_resumed_before_a_target_gets_a_new_token(fixed: FixedAssignor) -> None:
    """The unit is revoked from the member and assigned to it again, under a new token."""
    scene = Scene.stable(settings(fixed), epoch=10, connectors={"foo": 1}, members={"m1": foo(-1, 0)})
    fixed.error = PluginError("not today")
    scene.update(ConnectorChange(connector="foo", target_state=2))
    assert units_at(scene.heartbeat("m1", 10)) == (10, ["foo"])
    assert units_at(scene.heartbeat("m1", 10, foo(-1))) == (10, None)
    scene.update(ConnectorChange(connector="foo", target_state=1))
    scene.heartbeat("m1", 10)  # the scene's ledger fails if foo-0 is granted again at epoch 10
    fixed.error = None
    fixed.target = {"m1": foo(-1, 0)}
    scene.expire(TimerKind.COMPUTE)
    assert units_at(scene.heartbeat("m1", 10)) == (12, ["foo", "foo-0"])
    assert scene.current("m1").assigned == {FOO: 10, Unit("foo", 0): 12}


def test_s6_rejoin_under_a_stale_target_gets_nothing_until_the_next_one(fixed: FixedAssignor) -> None:
    """The old target would grant its units under an owner epoch at which the member has already owned them."""
    scene = Scene.stable(settings(fixed), epoch=10, connectors={"foo": 1}, members={"m1": foo(-1, 0)})
    fixed.error = PluginError("not today")
    scene.join("m2")
    assert units_at(scene.join("m1")) == (10, [])
    fixed.error = None
    fixed.target = {"m1": foo(-1, 0)}
    scene.expire(TimerKind.COMPUTE)
    assert units_at(scene.heartbeat("m1", 10)) == (11, ["foo", "foo-0"])


def test_incarnation_of_a_group_never_changes() -> None:
    """X1: the incarnation stays the same at every later epoch, and differs from that of a group created again."""
    made = []
    for now_ms in (1_000, 9_000):
        fixed = FixedAssignor()
        fixed.target = {"A": foo(-1)}
        scene = Scene(settings=settings(fixed), now_ms=now_ms)
        scene.update(added("foo"))
        scene.now_ms += 500
        response = scene.join("A")
        assert response.assignment is not None
        assert response_units(response) == foo(-1)
        made.append(response.assignment.incarnation)
        assert ConnectGroupState.replay(scene.group.group_id, scene.log).created_ms == now_ms
    assert made == [1_000, 9_000]
