"""History, downtime and record order of rebalances; the rebalances themselves are in ``tests/scenes``."""

from __future__ import annotations

from dataclasses import replace

import pytest

from connectgroup.errors import PluginError
from connectgroup.group.connect.describe import describe, measure
from connectgroup.group.connect.state import ConnectGroupState
from connectgroup.group.kernel.outcome import TimerKind
from connectgroup.protocol.messages.connectors import ConnectorChange
from connectgroup.protocol.messages.describe import NOT_STARTED, UNKNOWN
from connectgroup.protocol.messages.heartbeat import TaskStatus
from connectgroup.protocol.records.connect import MemberState, UnitState
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
    assert [(str(Unit(move.connector, move.task)), move.handover_ms) for move in last.moves] == [("foo-1", 1_200)]


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
    assert [(move.task, move.target, move.handover_ms) for move in last.moves] == [(0, "A", 0)]


def test_new_coordinator_explains_the_pending_rebalance(fixed: FixedAssignor) -> None:
    """After a replay of the compacted log, an old grant does not appear as a move of the pending rebalance."""
    scene = Scene.stable(settings(fixed), epoch=21, connectors={"foo": 4}, members={"A": foo(-1, 0, 1), "B": foo(2, 3)})
    fixed.target = {"A": foo(-1, 0), "B": foo(2, 3), "C": foo(1)}
    scene.join("C")
    scene.heartbeat("A", 21)
    scene.log = invariants.compacted(scene.log)
    scene.group = ConnectGroupState.replay(GROUP, scene.log)
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
    assert (last.moved, last.max_handover_ms) == (2, silent_ms + 120)


@pytest.mark.parametrize("is_heard", [False, True])
def test_member_that_ended_with_the_coordinator_is_down_since_then(is_heard: bool) -> None:
    """The next coordinator has never heard it, and counts from the last sign of life of the one before."""
    fixed = FixedAssignor()
    scene = Scene.stable(settings(fixed), epoch=10, connectors={"foo": 1}, members={"m1": tasks(foo=[-1, 0]), "m2": ()})
    fixed.target = {"m2": tasks(foo=[-1, 0])}
    scene.group.unheard = {"m1": scene.now_ms - 60_000, "m2": scene.now_ms - 60_000}
    scene.heartbeat("m2", 10)
    if is_heard:
        scene.heartbeat("m1", 10)
    session_ms = settings(fixed).session_timeout_ms
    scene.now_ms += session_ms
    scene.expire(TimerKind.SESSION, "m1")
    scene.now_ms += 120
    scene.heartbeat("m2", 10)
    last = scene.group.latest_rebalance
    assert last is not None
    assert (last.moved, last.max_handover_ms) == (2, (0 if is_heard else 60_000) + session_ms + 120)


def status(unit: str, epoch: int, state: UnitState) -> tuple[TaskStatus, ...]:
    name, _, task = unit.rpartition("-")
    return (TaskStatus(connector=name, task=int(task), owner_epoch=epoch, state=state),)


def test_downtime_lasts_until_the_new_owner_reports_the_unit_as_running(fixed: FixedAssignor) -> None:
    """PD-12: and not until the assignment, which is the handover. It stays known when the unit moves on."""
    scene = Scene.stable(settings(fixed), epoch=10, connectors={"foo": 1}, members={"m1": foo(-1, 0), "m2": foo()})
    scene.heartbeat("m1", 10, statuses=status("foo-0", 10, UnitState.RUNNING))
    fixed.target = {"m1": foo(-1), "m2": foo(0)}
    scene.join("m3")
    scene.heartbeat("m1", 10)
    scene.now_ms += 20
    scene.heartbeat("m1", 10, foo(-1))
    scene.now_ms += 5
    assert units_at(scene.heartbeat("m2", 10)) == (11, ["foo-0"])
    assert last_moves(scene) == [("m1", "m2", 25, -1)]
    assert describe(scene.group).rebalances[-1].max_downtime_ms == -1, "not known yet"
    scene.now_ms += 28_000
    scene.heartbeat("m2", 11, statuses=status("foo-0", 11, UnitState.RUNNING))
    assert last_moves(scene) == [("m1", "m2", 25, 28_025)]
    assert describe(scene.group).rebalances[-1].max_downtime_ms == 28_025
    fixed.target = {"m1": foo(-1, 0)}
    scene.now_ms += 1_000
    scene.leave("m2")
    scene.heartbeat("m3", 11)
    scene.heartbeat("m1", 11)
    scene.now_ms += 7
    scene.heartbeat("m1", 12, statuses=status("foo-0", 12, UnitState.RUNNING))
    assert last_moves(scene) == [("m1", "m2", 25, 28_025), ("m2", "m1", 0, 7)]
    scene.reload()
    assert last_moves(scene) == [("m1", "m2", 25, 28_025), ("m2", "m1", 0, 7)]
    scene.log = invariants.compacted(scene.log)
    scene.reload()
    assert last_moves(scene) == [("m1", "m2", 25, UNKNOWN), ("m2", "m1", 0, 7)], "not down: it is running"


def test_downtime_includes_the_time_since_the_unit_failed(fixed: FixedAssignor) -> None:
    """Each retry reports FAILED again; the unit has processed nothing since the first one."""
    scene = Scene.stable(settings(fixed), epoch=10, connectors={"foo": 1}, members={"m1": foo(-1, 0), "m2": foo()})
    scene.heartbeat("m1", 10, statuses=status("foo-0", 10, UnitState.RUNNING))
    for number in range(3):
        (failed,) = status("foo-0", 10, UnitState.FAILED)
        scene.heartbeat("m1", 10, statuses=(replace(failed, message=f"attempt {number}"),))
        scene.now_ms += 1_000
    fixed.target = {"m2": foo(-1, 0)}
    scene.leave("m1")
    scene.now_ms += 30
    scene.heartbeat("m2", 10)
    scene.now_ms += 400
    scene.heartbeat("m2", 11, statuses=status("foo-0", 11, UnitState.RUNNING))
    assert ("m1", "m2", 30, 3_430) in last_moves(scene)


def test_downtime_of_a_stalled_unit_begins_with_its_last_completed_poll(fixed: FixedAssignor) -> None:
    """And not with the report, which follows after ``task.progress.timeout.ms``; nor with that of a later attempt."""
    scene = Scene.stable(settings(fixed), epoch=10, connectors={"foo": 1}, members={"m1": foo(-1, 0), "m2": foo()})
    scene.heartbeat("m1", 10, statuses=status("foo-0", 10, UnitState.RUNNING))
    scene.now_ms += 60_000
    (stalled,) = status("foo-0", 10, UnitState.STALLED)
    for idle_ms in 50_000, 0:
        scene.heartbeat("m1", 10, statuses=(replace(stalled, idle_ms=idle_ms),))
        scene.now_ms += 1_000
    fixed.target = {"m2": foo(-1, 0)}
    scene.leave("m1")
    scene.heartbeat("m2", 10)
    scene.now_ms += 400
    scene.heartbeat("m2", 11, statuses=status("foo-0", 11, UnitState.RUNNING))
    assert ("m1", "m2", 0, 52_400) in last_moves(scene)


@pytest.fixture
def three() -> Scene:
    """m1 runs the only connector and has reported it; m2 and m3 have no units."""
    fixed = FixedAssignor()
    scene = Scene.stable(settings(fixed), epoch=10, connectors={"foo": 0}, members={"m1": foo(-1), "m2": (), "m3": ()})
    scene.heartbeat("m1", 10, statuses=(TaskStatus(connector="foo", task=-1, owner_epoch=10, state=1),))
    fixed.target = {"m2": foo(-1)}
    scene.leave("m1")
    scene.now_ms += 20
    assert units_at(scene.heartbeat("m2", 10)) == (11, ["foo"])
    scene.heartbeat("m3", 10)
    fixed.target = {"m3": foo(-1)}
    return scene


def last_moves(scene: Scene) -> list[tuple[str, str, int, int]]:
    """The move of each of the latest two rebalances, as described."""
    moves = [move for rebalance in describe(scene.group).rebalances[-2:] for move in rebalance.moves]
    return [(move.source, move.target, move.handover_ms, move.downtime_ms) for move in moves]


@pytest.mark.parametrize("how", ["left", "silent"])
@pytest.mark.parametrize("reloads", [False, True])
def test_move_to_a_member_that_leaves_before_it_starts_the_unit_is_marked(
    three: Scene, how: str, *, reloads: bool
) -> None:
    """A stopping worker starts no new units: the downtime lasts until the unit is assigned to one that does."""
    three.leave("m2") if how == "left" else three.expire(TimerKind.SESSION, "m2")
    if reloads:
        three.reload()
    three.now_ms += 30
    assert units_at(three.heartbeat("m3", 11)) == (12, ["foo"])
    three.now_ms += 5
    three.heartbeat("m3", 12, statuses=(TaskStatus(connector="foo", task=-1, owner_epoch=12, state=1),))
    assert last_moves(three) == [("m1", "m2", 20, NOT_STARTED), ("m1", "m3", 50, 55)]
    assert measure(three.group).moves_not_started == 1


def test_move_to_a_member_that_has_reported_the_unit_stays_a_move(three: Scene) -> None:
    """Also if the unit failed there: it was started."""
    three.heartbeat("m2", 11, statuses=(TaskStatus(connector="foo", task=-1, owner_epoch=11, state=2),))
    three.leave("m2")
    three.now_ms += 30
    three.heartbeat("m3", 11)
    assert last_moves(three) == [("m1", "m2", 20, -1), ("m2", "m3", 30, -1)]
    assert measure(three.group).moves_not_started == 0


def test_moves_of_units_without_a_report_are_moves() -> None:
    """A runner need not report states; the downtime of its units would otherwise add up."""
    fixed = FixedAssignor()
    scene = Scene.stable(settings(fixed), epoch=10, connectors={"foo": 0}, members={"m1": foo(-1), "m2": (), "m3": ()})
    for leaving, target, epoch in ("m1", "m2", 10), ("m2", "m3", 11):
        fixed.target = {target: foo(-1)}
        scene.leave(leaving)
        scene.now_ms += 20
        scene.heartbeat(target, epoch)
        if target == "m2":
            scene.heartbeat("m3", epoch)
    assert last_moves(scene) == [("m1", "m2", 20, -1), ("m2", "m3", 20, -1)]


def test_unit_that_must_not_run_any_more_is_no_move_that_did_not_start(three: Scene) -> None:
    three.update(ConnectorChange(connector="foo", target_state=3))
    three.heartbeat("m2", 11)
    three.heartbeat("m2", 11, foo())
    assert last_moves(three)[0] == ("m1", "m2", 20, -1)
    assert measure(three.group).moves_not_started == 0
