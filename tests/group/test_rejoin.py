"""Every unit is assigned after unusual rejoins (S9, L1)."""

from __future__ import annotations

from connectgroup.errors import ComputeAssignment, StaleGroupEpoch
from connectgroup.group.connect.group_type import on_load
from connectgroup.group.kernel.outcome import SetTimer, TimerKind
from connectgroup.protocol.messages.common import entries, grouped
from connectgroup.protocol.messages.connectors import ConnectorChange
from connectgroup.protocol.records.connect import MemberRecord, TargetMemberRecord
from connectgroup.protocol.units import NO_UNITS, Unit

from .builders import (
    GROUP,
    FixedAssignor,
    Scene,
    added,
    info,
    names,
    numbered,
    round_robin,
    settings,
    task_list,
    tasks,
    units_at,
)

BAR = tasks(bar=[-1, 0])
FOO = tasks(foo=[-1, 0, 1])


DELAY_MS = 60_000
ONE, TWO, THREE = tasks(foo=[-1, 0]), tasks(foo=[1, 2]), tasks(foo=[3, 4])


def three(**instances: str) -> Scene:
    """m1, m2 and m3 own two units each at epoch 10; units of lost workers are delayed."""
    return Scene.stable(
        settings(scheduled_delay_ms=DELAY_MS),
        epoch=10,
        connectors={"foo": 5},
        members={"m1": ONE, "m2": TWO, "m3": THREE},
        instances=instances,
    )


def heartbeat_until_stable(scene: Scene) -> None:
    """Send a few heartbeats of every present member."""
    for _ in range(5):
        for member_id in sorted(scene.group.members):
            current = scene.current(member_id)
            if not current.temporarily_left:
                scene.heartbeat(member_id, current.epoch, frozenset(current.assigned))


def assert_all_units_run(scene: Scene) -> None:
    running = [unit for current in scene.group.currents.values() for unit in current.assigned]
    assert names(running) == names(scene.group.runnable)


def test_member_that_takes_the_instance_id_of_a_lost_one_gets_assigned() -> None:
    """The rejoin itself requests no new target; and when the delay ends, its worker is a member again."""
    scene = three(m2="i2")
    scene.expire(TimerKind.SESSION, "m2")
    heartbeat_until_stable(scene)
    scene.join("m3", instance="i2")
    heartbeat_until_stable(scene)
    assert_all_units_run(scene)
    scene.expire(TimerKind.DELAY, "m2")
    heartbeat_until_stable(scene)
    assert_all_units_run(scene)


def test_lost_member_may_return_as_the_successor_of_a_static_member() -> None:
    """It is due the units delayed for its member id and those kept for its instance id."""
    for another_joins in (False, True):
        scene = three(m3="i3")
        scene.leave_temporarily("m3", "i3")
        scene.expire(TimerKind.SESSION, "m2")
        heartbeat_until_stable(scene)
        if another_joins:
            scene.join("m4")
            heartbeat_until_stable(scene)
        scene.join("m2", instance="i3")
        heartbeat_until_stable(scene)
        assert_all_units_run(scene)


def test_member_may_return_for_two_that_were_lost() -> None:
    """With the member id of the first and the instance id of the second it gets the units of both."""
    scene = three(m3="i3")
    scene.expire(TimerKind.SESSION, "m2")
    scene.expire(TimerKind.SESSION, "m3")
    heartbeat_until_stable(scene)
    scene.join("m2", instance="i3")
    heartbeat_until_stable(scene)
    assert_all_units_run(scene)
    assert not scene.group.delays


def test_delay_that_ends_after_its_worker_returned_leaves_no_unit_unassigned() -> None:
    """Whatever state the group is in, the end of a delay leaves no unit unassigned."""
    scene = three(m2="i2")
    scene.expire(TimerKind.SESSION, "m2")
    heartbeat_until_stable(scene)
    # As a coordinator of another version could have left it: the member is present, but no target was computed for it.
    member = scene.group.members["m3"]
    scene.put(type(member)(**{**{f: getattr(member, f) for f in member.__slots__}, "instance_id": "i2"}))
    scene.expire(TimerKind.DELAY, "m2")
    heartbeat_until_stable(scene)
    assert_all_units_run(scene)


def test_only_present_worker_is_not_drained_for_an_absent_one() -> None:
    scene = three(m1="i1", m3="i3")
    scene.leave("m3")
    heartbeat_until_stable(scene)
    held = frozenset(scene.current("m2").assigned)
    scene.leave_temporarily("m1", "i1")
    scene.heartbeat("m2", scene.current("m2").epoch, held, full=True, draining=True)
    heartbeat_until_stable(scene)
    assert scene.current("m2").assigned.keys() >= held


def test_clock_that_was_set_back_does_not_postpone_the_interval() -> None:
    """F14: else the interval would restart at each heartbeat until the clock has caught up."""
    scene = Scene.stable(
        settings(assignment_interval_ms=5_000), epoch=10, connectors={"foo": 3}, members={"m1": ONE | TWO}
    )
    scene.join("m2")
    heartbeat_until_stable(scene)
    scene.now_ms -= 900_000
    scene.join("m3")
    heartbeat_until_stable(scene)
    assert_all_units_run(scene)
    assert scene.group.members.keys() == {"m1", "m2", "m3"}


def test_able_member_computes_again_when_it_is_back() -> None:
    """While no member was present, the server-side assignor ran, and failed."""
    fixed, a = FixedAssignor(), info("a")
    scene = Scene.stable(settings(fixed), epoch=10, connectors={"foo": 1}, members={"m1": ONE}, instances={"m1": "i1"})
    scene.heartbeat("m1", 10, assignors=(a,))
    scene.prepare("m1", 10)
    scene.install("m1", 10, 11, {"m1": ONE})
    scene.heartbeat("m1", 10, ONE)
    scene.leave_temporarily("m1", "i1")
    fixed.error = RuntimeError("broken")
    scene.update(ConnectorChange(connector="bar", config=entries({"name": "bar"})))
    assert scene.join("m1b", a, instance="i1").error_code == ComputeAssignment.code


def test_no_member_computes_for_an_outdated_epoch() -> None:
    """Within the interval no member is asked for the newest epoch yet; the member asked before is not asked again."""
    scene = Scene(settings=settings(assignment_interval_ms=3_000))
    scene.update(added("foo"))
    scene.join("e", info("a"))
    assert scene.group.computation is not None
    scene.join("b")
    scene.join("c")
    assert scene.group.epoch > scene.group.computation.epoch
    assert units_at(scene.heartbeat("e", scene.current("e").epoch, frozenset(), full=True, assignors=(info("a"),)))


def test_delay_covers_only_units_owned_when_the_static_member_left() -> None:
    """The revocation was pending; the member runs nothing, so the next owner need not wait for its return."""
    fixed = FixedAssignor()
    scene = Scene.stable(
        settings(fixed), epoch=10, connectors={"foo": 3}, members={"m1": ONE, "m2": TWO}, instances={"m2": "i2"}
    )
    fixed.target = {"m1": ONE, "m2": tasks(foo=[1]), "m3": tasks(foo=[2])}
    scene.join("m3")
    scene.leave_temporarily("m2", "i2")
    assert scene.current("m2").assigned == {Unit("foo", 1): 0}
    assert units_at(scene.heartbeat("m3", scene.current("m3").epoch, frozenset(), full=True))[1] == ["foo-2"]


def test_returning_member_with_changed_metadata_requests_a_rebalance() -> None:
    """CN-10: other metadata, another reason or other assignors request a new target, also from a returning member."""
    for changed in (info("a", reason=1), info("a", metadata=b"weight 9"), info("b")):
        scene = three()
        for member_id in ("m1", "m2", "m3"):
            scene.heartbeat(member_id, scene.current(member_id).epoch, assignors=(info("a"), info("b")))
        complete_computation(scene)
        scene.expire(TimerKind.SESSION, "m2")
        complete_computation(scene)
        scene.join("m2", changed, info("b" if changed.name == "a" else "a"))
        assert scene.group.epoch > scene.group.target_epoch, changed
        complete_computation(scene)
        assert_all_units_run(scene)


def complete_computation(scene: Scene) -> None:
    """The chosen member computes: every member keeps its units, the rest is distributed."""
    for _ in range(3):
        heartbeat_until_stable(scene)
        computation = scene.group.computation
        if computation is not None and computation.epoch == scene.group.epoch > scene.group.target_epoch:
            prepared = scene.prepare(computation.member_id, scene.current(computation.member_id).epoch)
            scene.install_members(
                computation.member_id,
                scene.current(computation.member_id).epoch,
                scene.group.epoch,
                *round_robin(prepared),
            )
    heartbeat_until_stable(scene)


def test_drain_continues_when_another_member_can_take_over() -> None:
    """No computation is needed when a worker gets its own units back, unless it can take those of a draining member."""
    scene = three(m1="i1", m3="i3")
    scene.leave("m3")
    heartbeat_until_stable(scene)
    scene.leave_temporarily("m1", "i1")
    scene.heartbeat("m2", scene.current("m2").epoch, frozenset(scene.current("m2").assigned), full=True, draining=True)
    heartbeat_until_stable(scene)
    assert scene.current("m2").assigned
    scene.join("m1b", instance="i1")
    heartbeat_until_stable(scene)
    assert scene.current("m2").assigned == {}
    assert_all_units_run(scene)


def test_restart_between_prepare_and_install_is_no_failure() -> None:
    scene = three(m2="i2")
    for member_id in ("m1", "m2", "m3"):
        scene.heartbeat(member_id, 10, assignors=(info("a"),))
    complete_computation(scene)
    epoch = scene.group.epoch
    scene.leave_temporarily("m2", "i2")
    scene.update(added("bar"))
    prepared = scene.prepare("m1", epoch)
    scene.join("m2b", info("a"), instance="i2")
    refused = scene.install_members("m1", epoch, prepared.group_epoch, *round_robin(prepared))
    assert refused.error_code == StaleGroupEpoch.code
    assert scene.group.computation is not None
    assert scene.group.computation.failures == 0
    complete_computation(scene)
    assert_all_units_run(scene)


def test_repeated_temporary_leave_does_not_extend_the_session() -> None:
    scene = three(m2="i2")
    scene.leave_temporarily("m2", "i2")
    scene.leave_temporarily("m2", "i2")
    assert scene.last is not None
    assert scene.last.timers == ()


def test_units_of_a_draining_worker_that_expires_are_not_delayed() -> None:
    scene = three()
    scene.heartbeat("m2", 10, TWO, full=True, draining=True)
    scene.expire(TimerKind.SESSION, "m2")
    assert scene.group.delays == {}


def test_recreated_connector_is_not_delayed() -> None:
    scene = three()
    scene.expire(TimerKind.SESSION, "m2")
    heartbeat_until_stable(scene)
    scene.update(ConnectorChange(connector="foo", delete=True))
    scene.update(added("foo"))
    heartbeat_until_stable(scene)
    owner = next(member_id for member_id, current in scene.group.currents.items() if Unit("foo") in current.assigned)
    epoch = scene.current(owner).assigned[Unit("foo")]
    scene.update(task_list("foo", numbered(5), epoch), member_id=owner)
    heartbeat_until_stable(scene)
    assert_all_units_run(scene)


def test_delayed_unit_has_one_owner() -> None:
    """Two members could claim it, by member id and by instance id; the assignor input must not contain it twice."""
    scene = three(m2="i2")
    inputs = []

    def watched(prepared):  # type: ignore[no-untyped-def]
        inputs.append(prepared)
        return round_robin(prepared)

    scene.settings.server_assignors["round-robin"] = watched  # type: ignore[index]
    scene.expire(TimerKind.SESSION, "m2")
    scene.join("m4")
    for record in (
        MemberRecord(group_id=GROUP, member_id=name, instance_id=i) for name, i in (("m2", None), ("x", "i2"))
    ):
        scene.group.apply(record)
        scene.log.append(record)
    scene.check_replay = False
    scene.join("m5")
    shown = [unit for share in inputs[-1].shares() for unit in share]
    assert len(shown) == len(set(shown))


def test_delay_disabled_by_settings_ends_with_the_next_coordinator() -> None:
    scene = three()
    scene.expire(TimerKind.SESSION, "m2")
    scene.settings = settings()
    [timer] = [t for t in on_load(scene.group, scene.now_ms, scene.settings).timers if t.key.kind is TimerKind.DELAY]
    assert isinstance(timer, SetTimer)
    assert timer.after_ms == 1_000


def test_units_left_on_a_draining_worker_keep_their_assignor_metadata() -> None:
    """A round moves a part; the rest is in no result of the assignor, and was stored without version and metadata."""
    fixed = FixedAssignor()
    scene = Scene.stable(settings(fixed, max_moves=1), epoch=10, connectors={"foo": 3}, members={"m1": ONE, "m2": TWO})
    record = TargetMemberRecord(group_id=GROUP, member_id="m2", units=grouped(TWO), version=2, metadata=b"hint")
    scene.put(record)
    fixed.target = {"m1": ONE | TWO}
    scene.heartbeat("m2", 10, TWO, full=True, draining=True)
    kept = scene.group.target("m2")
    assert (kept.units, kept.version, kept.metadata) == (tasks(foo=[2]), 2, b"hint")


def test_delay_timer_is_set_once() -> None:
    scene = three()
    scene.expire(TimerKind.SESSION, "m2")
    heartbeat_until_stable(scene)
    assert scene.last is not None
    assert not [t for t in scene.last.timers if isinstance(t, SetTimer) and t.key.kind is TimerKind.DELAY]


def test_member_that_rejoins_draining_does_not_get_its_delayed_units() -> None:
    """They would start there and move away at once."""
    scene = Scene.stable(
        settings(scheduled_delay_ms=60_000), epoch=10, connectors={"foo": 2, "bar": 1}, members={"m1": FOO, "m2": BAR}
    )
    scene.expire(TimerKind.SESSION, "m2")
    scene.heartbeat("m1", 10, FOO)
    response = scene.heartbeat("m2", 0, NO_UNITS, full=True, draining=True)
    assert not scene.group.target("m2").units
    assert response.assignment is None or not response.assignment.units
    assert scene.group.target("m1").units == FOO | BAR
