"""S6: ``(unit, owner epoch)`` is a fencing token, so it is given once, and later ones are higher.

The scene's ledger checks that after every step of every test; here are the stories in which it is not obvious.
"""

from __future__ import annotations

from connectgroup.errors import PluginError
from connectgroup.group.connect.state import replay
from connectgroup.group.kernel.timers import TimerKind
from connectgroup.protocol.messages.connectors import ConnectorChange
from connectgroup.protocol.units import Unit

from .builders import FixedAssignor, Scene, added, foo, given, settings, told

FOO = Unit("foo")


def test_s6_rejoin_gets_the_same_units_under_a_later_epoch(rest: Scene) -> None:
    """Its former self may still be writing with the token of the grant before."""
    rest.heartbeat("m1", 100)
    assert told(rest.join("m1")) == (101, ["foo-1", "foo-2", "foo-3"])
    assert rest.current("m1").assigned == dict.fromkeys(foo(1, 2, 3), 101)
    assert told(rest.join("m1")) == (102, ["foo-1", "foo-2", "foo-3"])
    assert told(rest.heartbeat("m0", 100)) == (102, ["foo", "foo-0"])  # it stops nothing


def test_s6_rejoin_with_changed_assignors_gets_its_units(fixed: FixedAssignor) -> None:
    """A rejoin that bumps the epoch by itself, where the new target is the old one: nothing may get lost between."""
    scene = Scene.at_rest(settings(fixed), epoch=10, connectors={"foo": 2}, members={"m1": foo(-1, 0), "m2": foo(1)})
    fixed.shares = {"m1": foo(-1, 0), "m2": foo(1)}
    assert told(scene.join("m1", server_assignor="fixed")) == (11, ["foo", "foo-0"])
    assert scene.current("m1").assigned == dict.fromkeys(foo(-1, 0), 11)


def test_s6_unit_paused_and_resumed_before_a_target_gets_a_new_token(fixed: FixedAssignor) -> None:
    """The unit goes and comes back to the same member; its token is a new one all the same."""
    scene = Scene.at_rest(settings(fixed), epoch=10, connectors={"foo": 1}, members={"m1": foo(-1, 0)})
    fixed.error = PluginError("not today")
    scene.update(ConnectorChange(connector="foo", target_state=2))
    assert told(scene.heartbeat("m1", 10)) == (10, ["foo"])
    assert told(scene.heartbeat("m1", 10, foo(-1))) == (10, None)
    scene.update(ConnectorChange(connector="foo", target_state=1))
    scene.heartbeat("m1", 10)  # the scene's ledger fails if foo-0 comes back @10
    fixed.error = None
    fixed.shares = {"m1": foo(-1, 0)}
    scene.expire(TimerKind.COMPUTE)
    assert told(scene.heartbeat("m1", 10)) == (12, ["foo", "foo-0"])
    assert scene.current("m1").assigned == {FOO: 10, Unit("foo", 0): 12}


def test_s6_rejoin_under_a_stale_target_gets_nothing_until_the_next_one(fixed: FixedAssignor) -> None:
    """The old target would hand out its units under the epoch at which it already has had them."""
    scene = Scene.at_rest(settings(fixed), epoch=10, connectors={"foo": 1}, members={"m1": foo(-1, 0)})
    fixed.error = PluginError("not today")
    scene.join("m2")
    assert told(scene.join("m1")) == (10, [])
    fixed.error = None
    fixed.shares = {"m1": foo(-1, 0)}
    scene.expire(TimerKind.COMPUTE)
    assert told(scene.heartbeat("m1", 10)) == (11, ["foo", "foo-0"])


def test_incarnation_of_a_group_never_changes() -> None:
    """X1: the incarnation stays through every later epoch, and tells a group from one made anew with the same name."""
    made = []
    for now_ms in (1_000, 9_000):
        fixed = FixedAssignor()
        fixed.shares = {"A": foo(-1)}
        scene = Scene(settings=settings(fixed), now_ms=now_ms)
        scene.update(added("foo"))
        scene.now_ms += 500
        answer = scene.join("A")
        assert answer.assignment is not None
        assert given(answer) == foo(-1)
        made.append(answer.assignment.incarnation)
        assert replay(scene.group.group_id, scene.log).created_ms == now_ms
    assert made == [1_000, 9_000]
