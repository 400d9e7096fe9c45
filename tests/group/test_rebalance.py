"""History, downtime and record order of rebalances; the rebalances themselves are in ``tests/scenes``."""

from __future__ import annotations

import pytest

from connectgroup.errors import PluginError
from connectgroup.group.connect.state import replay
from connectgroup.group.kernel.timers import TimerKind
from connectgroup.protocol.messages.connectors import ConnectorChange
from connectgroup.protocol.records.connect import MemberState
from connectgroup.protocol.units import Unit

from . import invariants
from .builders import GROUP, FixedAssignor, Scene, foo, settings, tasks, units_at

STABLE, UNREVOKED, UNRELEASED = MemberState.STABLE, MemberState.UNREVOKED, MemberState.UNRELEASED


def test_causes_before_a_target_share_one_explanation(fixed: FixedAssignor) -> None:
    """PD-01: several causes that arrive before a new target is installed share one recomputation."""
    scene = Scene.stable(settings(fixed), epoch=10, connectors={"foo": 1}, members={"A": foo(-1, 0)})
    fixed.target = {"A": foo(-1, 0)}
    fixed.error = PluginError("not today")
    scene.now_ms = 5_000
    scene.join("B")
    scene.now_ms = 6_000
    scene.leave("B")
    fixed.error = None
    scene.now_ms = 7_000
    scene.join("C")
    last = scene.group.latest_rebalance
    assert last is not None
    assert (last.epoch, last.causes, last.started_ms) == (13, ("B joined", "B left", "C joined"), 5_000)
    assert list(scene.group.rebalances) == [10, 13]


def test_downtime_is_counted_from_the_revocation_to_the_new_grant(fixed: FixedAssignor) -> None:
    """PD-12: the history of rebalances has the downtime of each moved unit."""
    scene = Scene.stable(settings(fixed), epoch=21, connectors={"foo": 2}, members={"A": foo(-1, 0, 1)})
    fixed.target = {"A": foo(-1, 0), "B": foo(1)}
    scene.now_ms = 10_000
    scene.join("B")
    scene.now_ms = 10_300
    scene.heartbeat("A", 21)
    scene.now_ms = 11_000
    scene.heartbeat("A", 21, foo(-1, 0))
    scene.now_ms = 11_500
    scene.heartbeat("B", 22)
    last = scene.group.latest_rebalance
    assert last is not None
    assert (last.started_ms, last.finished_ms) == (10_000, 11_500)
    assert [(str(Unit(move.connector, move.task)), move.downtime_ms) for move in last.moves] == [("foo-1", 1_200)]


def test_time_for_which_a_unit_was_paused_is_not_downtime(fixed: FixedAssignor) -> None:
    """Downtime is caused by a rebalance; the time for which an operator pauses a connector is not."""
    scene = Scene.stable(settings(fixed), epoch=21, connectors={"foo": 1}, members={"A": foo(-1, 0)})
    fixed.target = {"A": foo(-1)}
    scene.update(ConnectorChange(connector="foo", target_state=2))
    scene.heartbeat("A", 21)
    scene.heartbeat("A", 21, foo(-1))
    scene.now_ms += 3_600_000
    fixed.target = {"A": foo(-1, 0)}
    scene.update(ConnectorChange(connector="foo", target_state=1))
    scene.now_ms += 5
    assert units_at(scene.heartbeat("A", 22)) == (23, ["foo", "foo-0"])
    last = scene.group.latest_rebalance
    assert last is not None
    assert [(move.task, move.target, move.downtime_ms) for move in last.moves] == [(0, "A", 0)]


def test_new_coordinator_explains_the_pending_rebalance(fixed: FixedAssignor) -> None:
    """After a replay of the compacted log, an old grant does not appear as a move of the pending rebalance."""
    scene = Scene.stable(settings(fixed), epoch=21, connectors={"foo": 4}, members={"A": foo(-1, 0, 1), "B": foo(2, 3)})
    fixed.target = {"A": foo(-1, 0), "B": foo(2, 3), "C": foo(1)}
    scene.join("C")
    scene.heartbeat("A", 21)
    scene.log = invariants.compacted(scene.log)
    scene.group = replay(GROUP, scene.log)
    scene.heartbeat("B", 21)
    scene.heartbeat("A", 21, foo(-1, 0))
    scene.heartbeat("C", 22)
    last = scene.group.latest_rebalance
    assert last is not None
    assert [(move.task, move.source, move.target) for move in last.moves] == [(1, "A", "C")]
    assert list(scene.group.rebalances) == [21, 22]


def test_hundred_rebalances_are_kept_at_most(fixed: FixedAssignor) -> None:
    """PD-12."""
    scene = Scene(settings=settings(fixed), check_replay=False)
    for number in range(130):
        scene.join("A") if number % 2 == 0 else scene.leave("A")
    assert list(scene.group.rebalances) == list(range(31, 131))
    scene.check_replay = True
    scene.check()


def test_members_and_records_have_a_deterministic_order(fixed: FixedAssignor) -> None:
    """S18 at the coordinator: the records do not depend on the iteration order of sets."""
    written = []
    for shares in ({"A": foo(-1, 0), "B": foo(1, 2)}, {"B": foo(2, 1), "A": foo(0, -1)}):
        scene = Scene.stable(settings(fixed), epoch=3, connectors={"foo": 3}, members={"A": foo(-1, 0, 1, 2)})
        fixed.target = shares
        scene.join("B")
        written.append(repr(scene.records))
        assert scene.records
    assert written[0] == written[1]


@pytest.mark.parametrize("how", ["left", "silent", "fenced"])
def test_downtime_is_counted_from_the_last_sign_of_life_of_the_owner(how: str) -> None:
    """Not from the last time in the log, which may be long ago; nor from the end of the session of a silent member."""
    fixed = FixedAssignor()
    scene = Scene.stable(settings(fixed), epoch=10, connectors={"foo": 1}, members={"m1": tasks(foo=[-1, 0]), "m2": ()})
    fixed.target = {"m2": tasks(foo=[-1, 0])}
    if how == "left":
        scene.leave("m1")
    elif how == "silent":
        scene.expire(TimerKind.SESSION, "m1")
    else:
        scene.heartbeat("m1", 99)
    scene.now_ms += 120
    scene.heartbeat("m2", 10)
    last = scene.group.latest_rebalance
    assert last is not None
    silent_ms = settings(fixed).session_timeout_ms if how == "silent" else 0
    assert (last.moved, last.max_downtime_ms) == (2, silent_ms + 120)
