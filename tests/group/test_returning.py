"""Everything has its place: workers that return in the odd ways in which units could be left to nobody (S9, L1)."""

from __future__ import annotations

from connectgroup.errors import ComputeAssignment
from connectgroup.group.timing import SetTimer, TimerKind
from connectgroup.messages import ConnectorChange, entries
from connectgroup.names import Unit

from .builders import FixedAssignor, Scene, added, info, names, settings, tasks, told

DELAY_MS = 60_000
ONE, TWO, THREE = tasks(foo=[-1, 0]), tasks(foo=[1, 2]), tasks(foo=[3, 4])


def three(**instances: str) -> Scene:
    """m1, m2 and m3 with two units each at epoch 10; the work of lost workers waits."""
    return Scene.at_rest(
        settings(scheduled_delay_ms=DELAY_MS),
        epoch=10,
        connectors={"foo": 5},
        members={"m1": ONE, "m2": TWO, "m3": THREE},
        instances=instances,
    )


def settle(scene: Scene) -> None:
    """A few heartbeats of everybody who is there."""
    for _ in range(5):
        for member_id in sorted(scene.group.members):
            current = scene.current(member_id)
            if not current.away:
                scene.heartbeat(member_id, current.epoch, frozenset(current.assigned))


def everything_runs(scene: Scene) -> None:
    running = [unit for current in scene.group.currents.values() for unit in current.assigned]
    assert names(running) == names(scene.group.runnable)


def test_a_member_that_takes_the_name_of_a_lost_one_is_given_its_work_or_another_is() -> None:
    """It joins again, so nothing else would ask for a new target; and the delay's end would find its worker back."""
    scene = three(m2="i2")
    scene.expire(TimerKind.SESSION, "m2")
    settle(scene)
    scene.join("m3", instance="i2")
    settle(scene)
    everything_runs(scene)
    scene.expire(TimerKind.DELAY, "m2")
    settle(scene)
    everything_runs(scene)


def test_one_that_is_waited_for_may_come_back_in_the_place_of_one_that_is_away() -> None:
    """Two shares are due to it: the one that waited, and the one of the name it bears."""
    for another_joins in (False, True):
        scene = three(m3="i3")
        scene.go_away("m3", "i3")
        scene.expire(TimerKind.SESSION, "m2")
        settle(scene)
        if another_joins:
            scene.join("m4")
            settle(scene)
        scene.join("m2", instance="i3")
        settle(scene)
        everything_runs(scene)


def test_a_delay_that_ends_when_its_worker_is_back_and_nobody_was_asked_still_gives_its_work_on() -> None:
    """Whatever brought it about, a deadline never leaves work without a place."""
    scene = three(m2="i2")
    scene.expire(TimerKind.SESSION, "m2")
    settle(scene)
    # As a coordinator of another version could have left it: the member is there, nothing was computed for it.
    member = scene.group.members["m3"]
    scene.put(type(member)(**{**{f: getattr(member, f) for f in member.__slots__}, "instance_id": "i2"}))
    scene.expire(TimerKind.DELAY, "m2")
    settle(scene)
    everything_runs(scene)


def test_the_only_worker_that_is_there_is_not_emptied_for_one_that_is_away() -> None:
    scene = three(m1="i1", m3="i3")
    scene.leave("m3")
    settle(scene)
    held = frozenset(scene.current("m2").assigned)
    scene.go_away("m1", "i1")
    scene.heartbeat("m2", scene.current("m2").epoch, held, full=True, draining=True)
    settle(scene)
    assert scene.current("m2").assigned.keys() >= held


def test_a_clock_that_was_set_back_does_not_put_a_computation_off() -> None:
    """F14: the interval would begin anew at each heartbeat until the clock has caught up."""
    scene = Scene.at_rest(
        settings(assignment_interval_ms=5_000), epoch=10, connectors={"foo": 3}, members={"m1": ONE | TWO}
    )
    scene.join("m2")
    settle(scene)
    scene.now_ms -= 900_000
    scene.join("m3")
    settle(scene)
    everything_runs(scene)
    assert scene.group.members.keys() == {"m1", "m2", "m3"}


def test_who_can_compute_is_asked_again_when_it_is_back() -> None:
    """While nobody was there the coordinator's own assignor was tried, and failed."""
    fixed, a = FixedAssignor(), info("a")
    scene = Scene.at_rest(settings(fixed), epoch=10, connectors={"foo": 1}, members={"m1": ONE}, instances={"m1": "i1"})
    scene.heartbeat("m1", 10, assignors=(a,))
    scene.prepare("m1", 10)
    scene.install("m1", 10, 11, {"m1": ONE})
    scene.heartbeat("m1", 10, ONE)
    scene.go_away("m1", "i1")
    fixed.error = RuntimeError("broken")
    scene.update(ConnectorChange(connector="bar", config=entries({"name": "bar"})))
    assert scene.join("m1b", a, instance="i1").error_code == ComputeAssignment.code


def test_nobody_is_told_to_compute_for_an_epoch_that_has_passed() -> None:
    """Within the interval nobody is asked for the newest epoch yet; the one asked before must not be told again."""
    scene = Scene(settings=settings(assignment_interval_ms=3_000))
    scene.update(added("foo"))
    scene.join("e", info("a"))
    assert scene.group.computation is not None
    scene.join("b")
    scene.join("c")
    assert scene.group.epoch > scene.group.computation.epoch
    assert told(scene.heartbeat("e", scene.current("e").epoch, frozenset(), full=True, assignors=(info("a"),)))


def test_what_is_no_longer_its_own_does_not_wait_for_a_member_that_goes_away() -> None:
    """It had not been told yet; it runs nothing, so the next owner need not wait for its return."""
    fixed = FixedAssignor()
    scene = Scene.at_rest(
        settings(fixed), epoch=10, connectors={"foo": 3}, members={"m1": ONE, "m2": TWO}, instances={"m2": "i2"}
    )
    fixed.shares = {"m1": ONE, "m2": tasks(foo=[1]), "m3": tasks(foo=[2])}
    scene.join("m3")
    scene.go_away("m2", "i2")
    assert scene.current("m2").assigned == {Unit("foo", 1): 0}
    assert told(scene.heartbeat("m3", scene.current("m3").epoch, frozenset(), full=True))[1] == ["foo-2"]


def test_the_timer_of_a_delay_is_set_once_and_for_all() -> None:
    scene = three()
    scene.expire(TimerKind.SESSION, "m2")
    settle(scene)
    assert scene.last is not None
    assert not [t for t in scene.last.timers if isinstance(t, SetTimer) and t.key.kind is TimerKind.DELAY]
