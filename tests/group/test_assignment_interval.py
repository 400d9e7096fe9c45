"""One computation serves a burst of changes: TO-06, TO-07, TO-08, F23."""

from __future__ import annotations

import pytest

from connectgroup.group.connect.group_type import on_load
from connectgroup.group.kernel.computation import compute_timer
from connectgroup.group.kernel.outcome import SetTimer, TimerKind

from .builders import FixedAssignor, Scene, added, info, settings, tasks, units_at

FOO = tasks(foo=[-1, 0, 1])


INTERVAL_MS = 5_000


@pytest.fixture
def fixed() -> FixedAssignor:
    assignor = FixedAssignor()
    assignor.target = {"m1": tasks(foo=[-1])}
    return assignor


@pytest.fixture
def scene(fixed: FixedAssignor) -> Scene:
    """foo, and m1, which joined first: its computation started at once, since there was none before (TO-06)."""
    scene = Scene(settings=settings(fixed, assignment_interval_ms=INTERVAL_MS))
    scene.update(added("foo"))
    assert units_at(scene.join("m1")) == (scene.group.epoch, ["foo"])
    assert fixed.calls == 1
    return scene


def test_to_06_early_changes_wait_and_to_07_are_computed_together(scene: Scene, fixed: FixedAssignor) -> None:
    epoch = scene.group.epoch
    scene.now_ms += 4_995
    assert units_at(scene.join("m2")) == (epoch, [])
    assert scene.last is not None
    assert compute_timer(scene.group, 5) in scene.last.timers
    scene.join("m3")
    assert (scene.group.epoch, scene.group.target_epoch, fixed.calls) == (epoch + 2, epoch, 1)
    assert scene.group.state_name == "Assigning"
    scene.now_ms += 10
    assert units_at(scene.heartbeat("m2", epoch)) == (epoch + 2, [])
    assert (scene.group.target_epoch, fixed.calls) == (epoch + 2, 2)


def test_interval_timer_starts_a_computation_without_a_heartbeat(scene: Scene, fixed: FixedAssignor) -> None:
    scene.join("m2")
    scene.now_ms -= 1_000_000  # the timer has fired, whatever the wall clock shows
    scene.expire(TimerKind.COMPUTE)
    assert (fixed.calls, scene.group.target_epoch) == (2, scene.group.epoch)


def test_new_coordinator_continues_the_interval(scene: Scene, fixed: FixedAssignor) -> None:
    scene.join("m2")
    scene.reload()
    timers = on_load(scene.group, scene.now_ms, scene.settings).timers
    assert any(isinstance(timer, SetTimer) and timer.key.kind is TimerKind.COMPUTE for timer in timers)
    scene.expire(TimerKind.COMPUTE)
    assert scene.group.target_epoch == scene.group.epoch


def test_to_08_each_change_is_computed_at_once_without_an_interval(fixed: FixedAssignor) -> None:
    scene = Scene(settings=settings(fixed))
    scene.update(added("foo"))
    for number, member_id in enumerate(("m1", "m2", "m3"), start=1):
        scene.join(member_id)
        assert fixed.calls == number


def test_hb_13_empty_group_has_no_interval(scene: Scene, fixed: FixedAssignor) -> None:
    scene.leave("m1")
    assert scene.group.target_ms == 0
    assert units_at(scene.join("m1"))[1] == ["foo"]
    assert fixed.calls == 2


def test_members_compute_once_for_a_burst_of_changes() -> None:
    scene = Scene.stable(
        settings(assignment_interval_ms=INTERVAL_MS),
        epoch=10,
        connectors={"foo": 1},
        members={"m1": tasks(foo=[-1, 0])},
    )
    scene.heartbeat("m1", 10, assignors=(info("a"),))
    epoch = scene.group.epoch
    scene.prepare("m1", 10)
    scene.install("m1", 10, epoch, {"m1": tasks(foo=[-1, 0])})
    for member_id in ("m2", "m3", "m4"):
        scene.now_ms += 100
        scene.join(member_id, info("a"))
    assert scene.group.computation is not None
    assert scene.group.computation.epoch == epoch, "no member is asked to compute yet"
    scene.expire(TimerKind.COMPUTE)
    assert (scene.group.computation.epoch, scene.group.computation.member_id) == (epoch + 3, "m1")


def test_clock_that_was_set_back_does_not_postpone_a_computation() -> None:
    """F14: else no member would compute until the clock has caught up."""
    fixed = FixedAssignor()
    fixed.target = {"m1": FOO}
    scene = Scene.stable(
        settings(fixed, assignment_interval_ms=5_000), epoch=10, connectors={"foo": 2}, members={"m1": FOO}
    )
    scene.join("m2")
    scene.now_ms += 1_000
    scene.join("m3")
    assert fixed.calls == 1, "within the interval"
    scene.now_ms -= 900_000
    scene.heartbeat("m1", 10)
    assert fixed.calls == 2
    assert scene.group.target_epoch == scene.group.epoch
