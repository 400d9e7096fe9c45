"""An assignment that arrives after the group epoch has advanced: PD-06, CN-05, S6, S9, S13, S15.

The target epoch may trail the group epoch, as in KIP-848's case studies: a group under constant change makes progress.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from connectgroup.errors import ComputeAssignment, InvalidAssignment, StaleGroupEpoch, UnknownMemberId
from connectgroup.group.kernel.computation import compute_timer
from connectgroup.group.kernel.outcome import TimerKind
from connectgroup.protocol.messages.assignment import InstalledMember, InstallRequest
from connectgroup.protocol.messages.common import ConnectorTasks, entries, grouped
from connectgroup.protocol.messages.connectors import ConnectorChange
from connectgroup.protocol.records.connect import MemberState, TargetState
from connectgroup.protocol.units import Unit, Units

from .builders import GROUP, UNASSIGNED, FixedAssignor, Scene, added, foo, info, numbered, settings, task_list, units_at

A = info("a", 0, 3)
BAR = frozenset({Unit("bar")})


@pytest.fixture
def pair(fixed: FixedAssignor) -> Scene:
    """A{foo, foo-0} and B{foo-1} list assignor "a"; stable at epoch 3."""
    return stable(fixed)


def stable(fixed: FixedAssignor, **changes: object) -> Scene:
    scene = Scene.stable(settings(fixed, **changes), epoch=1, connectors={"foo": 2}, members={})
    scene.join("A", A)
    scene.join("B", A)
    epoch = scene.prepare("A", 0).group_epoch
    assert scene.install("A", 0, epoch, {"A": foo(-1, 0), "B": foo(1)}).error_code == 0
    scene.join("A", A)
    scene.join("B", A)
    assert (scene.group.epoch, scene.group.target_epoch, scene.group.behind) == (3, 3, set())
    return scene


def must_compute(scene: Scene, member_id: str) -> bool:
    """Whether the member is asked to compute."""
    return scene.heartbeat(member_id, scene.current(member_id).epoch).error_code == ComputeAssignment.code


# ---- the member epoch of the computing member


def test_install_is_accepted_after_the_computing_member_has_advanced_two_steps(pair: Scene) -> None:
    """PD-06: an Install is judged by chosen member and prepared group epoch, never by the member epoch.

    A advances to the target epoch without foo-1, which B still stops, and is assigned foo-1 in a second step: neither
    its epoch nor its previous epoch is the one it computes with.
    """
    pair.join("C", A)
    pair.prepare("A", 3)
    assert pair.install("A", 3, 4, {"A": foo(-1, 0, 1)}).error_code == 0
    pair.heartbeat("B", 3)
    pair.update(added("bar"))
    assert must_compute(pair, "A")
    pair.prepare("A", 3)
    assert units_at(pair.heartbeat("A", 3)) == (4, None) or pair.current("A").epoch == 4
    assert pair.state("A") is MemberState.UNRELEASED
    pair.heartbeat("B", 3, UNASSIGNED)
    assert units_at(pair.heartbeat("A", 4)) == (4, ["foo", "foo-0", "foo-1"])
    assert (pair.current("A").epoch, pair.current("A").previous_epoch) == (4, 4)
    shares = {"A": foo(-1, 0, 1), "B": BAR}
    assert pair.install("A", 3, 5, shares).error_code == 0
    assert pair.group.target_epoch == 5
    for _ in range(2):
        pair.heartbeat("A", pair.current("A").epoch)
        assert pair.install("A", 3, 5, shares).error_code == 0, "a repeat succeeds, whatever the member epoch"
        assert pair.records == ()


def test_prepare_is_accepted_after_the_chosen_member_has_advanced_two_steps(pair: Scene) -> None:
    pair.join("C", A)
    pair.prepare("A", 3)
    pair.install("A", 3, 4, {"A": foo(-1, 0, 1)})
    pair.heartbeat("B", 3)
    pair.heartbeat("A", 3)
    pair.heartbeat("B", 3, UNASSIGNED)
    pair.heartbeat("A", 4)
    pair.update(added("bar"))
    assert (pair.current("A").epoch, pair.current("A").previous_epoch) == (4, 4)
    assert pair.prepare("A", 3).error_code == 0


# ---- the group epoch advances while the assignor runs


def test_assignment_is_installed_for_the_epoch_it_was_prepared_for(pair: Scene) -> None:
    """A member joins between Prepare and Install: it is assigned nothing yet; the next computation starts at once."""
    pair.update(added("bar"))
    assert pair.prepare("A", 3).group_epoch == 4
    assert units_at(pair.join("C", A)) == (3, [])
    assert not must_compute(pair, "A"), "its computation continues"
    assert pair.install("A", 3, 4, {"A": foo(-1, 0), "B": foo(1) | BAR}).error_code == 0
    assert (pair.group.epoch, pair.group.target_epoch) == (5, 4)
    assert units_at(pair.heartbeat("B", 3)) == (4, ["bar", "foo-1"])
    assert pair.current("B").assigned == {Unit("foo", 1): 3, Unit("bar"): 4}
    assert units_at(pair.heartbeat("C", 3, UNASSIGNED, full=True)) == (4, [])
    assert must_compute(pair, "A")
    assert pair.prepare("A", pair.current("A").epoch).group_epoch == 5
    assert pair.install("A", 3, 5, {"A": foo(-1), "B": foo(1) | BAR, "C": foo(0)}).error_code == 0
    assert pair.group.target_epoch == 5


def test_constant_joins_do_not_starve_the_group(pair: Scene) -> None:
    """Each computation is overtaken by a join, and each assigns what the one before could not."""
    for number in range(8):
        pair.update(added(f"bar{number}"))
        epoch = pair.prepare("A", pair.current("A").epoch).group_epoch
        pair.join(f"C{number}", A)
        bars = {Unit(f"bar{each}") for each in range(number + 1)}
        assert pair.install("A", 3, epoch, {"A": foo(-1, 0), "B": foo(1) | bars}).error_code == 0
        pair.heartbeat("B", pair.current("B").epoch)
        assert pair.current("B").assigned[Unit(f"bar{number}")] == epoch
        assert pair.group.target_epoch == epoch < pair.group.epoch


def test_prepared_epoch_survives_a_change_of_coordinator(pair: Scene) -> None:
    pair.update(added("bar"))
    pair.prepare("A", 3)
    pair.join("C", A)
    pair.reload()
    assert pair.install("A", 3, 4, {"A": foo(-1, 0), "B": foo(1) | BAR}).error_code == 0
    pair.reload()
    assert (pair.group.epoch, pair.group.target_epoch) == (5, 4)
    assert must_compute(pair, "A")


def test_repeated_install_succeeds_after_the_group_has_moved_on(pair: Scene) -> None:
    """CN-08 for a trailing target."""
    pair.update(added("bar"))
    pair.prepare("A", 3)
    pair.join("C", A)
    shares = {"A": foo(-1, 0), "B": foo(1) | BAR}
    for _ in range(2):
        assert pair.install("A", 3, 4, shares).error_code == 0
    assert pair.records == ()
    pair.prepare("A", 3)
    pair.join("D", A)
    assert pair.install("A", 3, 4, shares).error_code == 0
    assert pair.records == ()
    assert pair.install("A", 3, 5, {**shares, "C": UNASSIGNED}).error_code == 0
    assert pair.install("A", 3, 4, shares).error_code == StaleGroupEpoch.code, "the target epoch never falls"
    assert pair.group.target_epoch == 5


def test_silent_member_is_replaced_although_the_group_keeps_changing(pair: Scene) -> None:
    """CN-06: a change does not extend the timeout of a member that was asked, so a hanging member cannot block."""
    pair.update(added("bar"))
    pair.prepare("A", 3)
    pair.join("C", A)
    assert pair.last is not None
    assert not [timer for timer in pair.last.timers if timer.key.kind is TimerKind.COMPUTE]
    pair.expire(TimerKind.COMPUTE)
    assert must_compute(pair, "B")
    assert pair.prepare("B", 3).group_epoch == 5
    assert pair.install("A", 3, 4, {"A": foo(-1, 0), "B": foo(1) | BAR}).error_code == StaleGroupEpoch.code


# ---- the group epoch advances before the chosen member has prepared


def test_unresponsive_chosen_member_is_replaced_when_the_group_epoch_advances(pair: Scene) -> None:
    """A paused process with a live session delays the group by no more than the next change; it is not fenced."""
    pair.update(added("bar"))
    assert must_compute(pair, "A")
    assert pair.join("C", A).error_code == 0
    assert pair.last is not None
    assert [timer.key.kind for timer in pair.last.timers].count(TimerKind.COMPUTE) == 1
    assert not must_compute(pair, "A")
    assert must_compute(pair, "B")
    epoch = pair.prepare("B", 3).group_epoch
    assert pair.install("B", 3, epoch, {"A": foo(-1, 0), "B": foo(1) | BAR}).error_code == 0
    assert (pair.group.epoch, pair.group.target_epoch) == (5, 5)
    assert pair.prepare("A", 3).error_code == UnknownMemberId.code
    assert "A" in pair.group.members


def test_chosen_member_is_kept_while_the_group_epoch_stays(pair: Scene) -> None:
    """A heartbeat or a change without a new epoch does not replace the member that was asked."""
    pair.update(added("bar"))
    for _ in range(3):
        pair.heartbeat("B", 3)
        assert must_compute(pair, "A")


def test_member_at_epoch_0_that_computes_is_not_replaced(fixed: FixedAssignor) -> None:
    """Its heartbeats are joins, each of which asks it to compute again; its assignment is installed nevertheless."""
    scene = Scene.stable(settings(fixed), epoch=1, connectors={"foo": 2}, members={})
    scene.join("A", A)
    assert scene.prepare("A", 0).group_epoch == 2
    scene.join("A", A)
    scene.join("B", A)
    assert scene.install("A", 0, 2, {"A": foo(-1, 0, 1)}).error_code == 0
    assert (scene.group.epoch, scene.group.target_epoch) == (3, 2)


def test_prepare_of_a_replaced_member_is_accepted_until_another_has_prepared(pair: Scene) -> None:
    """Prepare was in flight when the group epoch advanced: a group that changes faster than that still computes."""
    pair.update(added("bar"))
    pair.join("C", A)
    pair.reload()
    assert must_compute(pair, "B")
    assert pair.prepare("A", 3).group_epoch == 5
    assert pair.last is not None
    assert [timer.key.kind for timer in pair.last.timers] == [TimerKind.COMPUTE]
    assert pair.prepare("B", 3).error_code == UnknownMemberId.code
    assert not must_compute(pair, "B")
    assert pair.install("A", 3, 5, {"A": foo(-1, 0), "B": foo(1) | BAR}).error_code == 0


def test_prepare_of_a_replaced_member_that_drains_since_is_rejected(pair: Scene) -> None:
    pair.update(added("bar"))
    pair.join("C", A)
    pair.heartbeat("A", 3, foo(-1, 0), full=True, draining=True)
    assert pair.prepare("A", 3).error_code == UnknownMemberId.code
    assert pair.prepare("B", 3).error_code == 0


def test_three_members_are_asked_at_most_and_all_count_as_failed_after_the_timeout(pair: Scene) -> None:
    """Many members that join at once must not all compute; the timeout of the last one asked counts."""
    pair.update(added("bar"))
    for number in range(5):
        pair.join(f"C{number}", A)
    assert [who for who in pair.group.members if must_compute(pair, who)] == ["C0"]
    pair.expire(TimerKind.COMPUTE)
    assert pair.group.computation is not None
    assert pair.group.computation.failures == 1
    assert [who for who in pair.group.members if must_compute(pair, who)] == ["C1"]


# ---- stale and invalid assignments


def left(scene: Scene) -> None:
    scene.leave("B")


def removed(scene: Scene) -> None:
    scene.update(ConnectorChange(connector="foo", delete=True))


def stopped(scene: Scene) -> None:
    scene.update(ConnectorChange(connector="bar", target_state=TargetState.STOPPED))


@pytest.mark.parametrize("change", [left, removed, stopped])
def test_stale_assignment_is_rejected_and_prepared_again(pair: Scene, change: object) -> None:
    """STALE_GROUP_EPOCH: nothing is stored, the member is asked again, and it is not counted as a failure."""
    assert callable(change)
    pair.update(added("bar"))
    pair.prepare("A", 3)
    change(pair)
    before = dict(pair.group.targets)
    refused = pair.install("A", 3, 4, {"A": foo(-1, 0), "B": foo(1) | BAR})
    assert refused.error_code == StaleGroupEpoch.code
    assert (pair.group.targets, pair.group.target_epoch) == (before, 3)
    assert pair.group.computation is not None
    assert pair.group.computation.failures == 0
    assert must_compute(pair, "A")
    assert pair.prepare("A", pair.current("A").epoch).group_epoch == 5


def test_late_invalid_assignment_counts_as_a_failure(pair: Scene) -> None:
    """A faulty assignor must be replaced, however fast the group changes."""
    pair.update(added("bar"))
    pair.prepare("A", 3)
    pair.join("C", A)
    refused = pair.install("A", 3, 4, {"A": foo(-1, 0, 1), "B": foo(1) | BAR})
    assert refused.error_code == InvalidAssignment.code
    assert must_compute(pair, "B")


# ---- fencing tokens


def test_reconfigured_unit_is_not_granted_under_an_older_epoch(pair: Scene) -> None:
    """S6, S10: foo-1 is reconfigured at epoch 5, while an assignment for epoch 4 is computed."""
    pair.update(added("bar"))
    pair.prepare("A", 3)
    configs = [*numbered(1), {"task": "1", "new": "yes"}]
    assert pair.update(task_list("foo", configs, 3), member_id="A").error_code == 0
    assert pair.install("A", 3, 4, {"A": foo(-1, 0), "B": foo(1) | BAR}).error_code == 0
    assert units_at(pair.heartbeat("B", 3)) == (3, [])
    assert units_at(pair.heartbeat("B", 3, UNASSIGNED)) == (4, ["bar"])
    assert Unit("foo", 1) not in pair.group.holders
    epoch = pair.prepare("A", 3).group_epoch
    assert pair.install("A", 3, epoch, {"A": foo(-1, 0), "B": foo(1) | BAR}).error_code == 0
    pair.heartbeat("B", 4)
    assert pair.current("B").assigned[Unit("foo", 1)] == epoch >= pair.group.runnable[Unit("foo", 1)]


def test_added_units_are_unassigned_until_the_next_computation(pair: Scene) -> None:
    pair.update(added("bar"))
    pair.prepare("A", 3)
    pair.update(added("baz"))
    assert pair.install("A", 3, 4, {"A": foo(-1, 0), "B": foo(1) | BAR}).error_code == 0
    assert Unit("baz") not in pair.group.wanted_by
    prepared = pair.prepare("A", 3)
    assert Unit("baz") in prepared.all_units()


def test_connector_recreated_meanwhile_is_not_granted_under_the_older_epoch(pair: Scene) -> None:
    """The name in the assignment is that of the deleted connector."""
    pair.update(added("bar"))
    pair.prepare("A", 3)
    pair.update(ConnectorChange(connector="bar", delete=True))
    pair.update(ConnectorChange(connector="bar", expected_version=0, config=entries({"name": "bar", "v": "2"})))
    assert pair.install("A", 3, 4, {"A": foo(-1, 0), "B": foo(1) | BAR}).error_code == 0
    pair.heartbeat("B", 3)
    assert Unit("bar") not in pair.group.holders


def test_member_that_rejoined_meanwhile_gets_its_units_under_a_later_epoch(pair: Scene) -> None:
    """S6: B's former process may still write under epoch 3."""
    pair.update(added("bar"))
    pair.prepare("A", 3)
    pair.join("B", A)
    assert pair.current("B").assigned == {}
    assert pair.install("A", 3, 4, {"A": foo(-1, 0), "B": foo(1) | BAR}).error_code == 0
    pair.heartbeat("B", pair.current("B").epoch, UNASSIGNED, full=True)
    assert pair.current("B").assigned == {Unit("foo", 1): 4, Unit("bar"): 4}
    pair.join("C", A)
    pair.join("B", A)
    assert pair.current("B").assigned == {}, "epoch 4 is not granted twice"


# ---- delays, draining, rounds, server-side assignors


def test_delayed_units_stay_reserved_for_a_member_that_came_back_after_prepare(fixed: FixedAssignor) -> None:
    """S15: the assignment was prepared while B was lost, and gives B's task to A."""
    scene = stable(fixed, scheduled_delay_ms=20_000)
    scene.expire(TimerKind.SESSION, "B")
    epoch = scene.prepare("A", 3).group_epoch
    scene.join("B", A)
    assert scene.install("A", 3, epoch, {"A": foo(-1, 0, 1)}).error_code == 0
    assert (scene.group.target_epoch, "B" in scene.group.delays) == (epoch, True)
    assert Unit("foo", 1) not in scene.group.wanted_by
    prepared = scene.prepare("A", 3)
    shares = dict(zip([member.member_id for member in prepared.members], prepared.shares(), strict=True))
    assert shares == {"A": foo(-1, 0), "B": foo(1)}
    assert scene.install("A", 3, prepared.group_epoch, shares).error_code == 0
    assert scene.group.delays == {}


def test_units_of_a_member_lost_after_prepare_are_delayed(fixed: FixedAssignor) -> None:
    """The assignment names the lost member: it is stale, and the units are delayed."""
    scene = stable(fixed, scheduled_delay_ms=20_000)
    scene.join("C", A)
    scene.prepare("A", 3)
    scene.expire(TimerKind.SESSION, "B")
    assert scene.install("A", 3, 4, {"A": foo(-1, 0), "B": foo(1)}).error_code == StaleGroupEpoch.code
    assert "B" in scene.group.delays


def test_assignment_may_name_a_member_that_drains_since(pair: Scene) -> None:
    """It is still a member; the next computation moves its units."""
    pair.update(added("bar"))
    pair.prepare("A", 3)
    pair.heartbeat("B", 3, foo(1), full=True, draining=True)
    assert pair.install("A", 3, 4, {"A": foo(-1, 0) | BAR, "B": foo(1)}).error_code == 0
    prepared = pair.prepare("A", 3)
    assert [member.member_id for member in prepared.members] == ["A"]


def test_moves_beyond_a_round_stay_in_a_trailing_target(fixed: FixedAssignor) -> None:
    scene = stable(fixed, max_moves=1)
    scene.join("C", A)
    scene.prepare("A", 3)
    scene.join("D", A)
    assert scene.install("A", 3, 4, {"C": foo(-1, 0, 1)}).error_code == 0
    moved = [unit for unit, member_id in scene.group.wanted_by.items() if member_id == "C"]
    assert (len(moved), scene.group.deferred) == (1, 2)
    assert must_compute(scene, "A")


def test_server_side_assignor_takes_over_at_once(pair: Scene, fixed: FixedAssignor) -> None:
    """A member that lists no assignor joins while A computes: A's Install comes too late."""
    pair.update(added("bar"))
    pair.prepare("A", 3)
    fixed.target = {"A": foo(-1, 0), "B": foo(1) | BAR}
    pair.join("C")
    assert (pair.group.target_epoch, pair.group.computed_by) == (5, "coordinator")
    assert pair.install("A", 3, 4, {"A": foo(-1, 0, 1), "B": BAR}).error_code == StaleGroupEpoch.code
    assert pair.records == ()


def test_delay_of_an_assignor_is_stored_with_a_trailing_target(pair: Scene) -> None:
    pair.update(added("bar"))
    pair.prepare("A", 3)
    pair.join("C", A)
    request = InstallRequest(
        group_id=GROUP,
        member_id="A",
        member_epoch=3,
        group_epoch=4,
        members=tuple(share(who, units) for who, units in {"A": foo(-1, 0), "B": foo(1)}.items()),
        delayed=(ConnectorTasks(connector="bar", owns_connector=True),),
        delay_ms=5_000,
    )
    outcome = pair.act(request)
    assert getattr(outcome.response, "error_code", None) == 0
    assert pair.group.delays[""].epoch == 4
    assert pair.act(replace(request, member_epoch=4)).records == ()


def share(member_id: str, units: Units) -> InstalledMember:
    return InstalledMember(member_id=member_id, units=grouped(units))


def test_interval_between_computations_also_follows_a_trailing_target(fixed: FixedAssignor) -> None:
    """TO-06: the interval limits how early the next computation starts."""
    scene = stable(fixed)
    scene.settings = replace(scene.settings, assignment_interval_ms=3_000)
    scene.now_ms += 3_000
    scene.join("C", A)
    scene.prepare("A", 3)
    scene.join("D", A)
    assert scene.install("A", 3, 4, {"A": foo(-1, 0), "B": foo(1)}).error_code == 0
    assert scene.last is not None
    assert compute_timer(scene.group, 3_000) in scene.last.timers
    assert not must_compute(scene, "A")
    scene.expire(TimerKind.COMPUTE)
    assert must_compute(scene, "A")


def test_member_that_is_asked_again_must_prepare_again(pair: Scene) -> None:
    """S13: its first assignment was rejected; a second one for the same epoch arrives after the group has changed."""
    pair.leave("B")
    pair.prepare("A", 3)
    pair.install("A", 3, 4, {}, error=1)
    assert must_compute(pair, "A")
    pair.join("C", A)
    assert pair.install("A", 3, 4, {"A": foo(-1, 0, 1)}).error_code == StaleGroupEpoch.code
    assert pair.records == ()
    epoch = pair.prepare("A", pair.current("A").epoch).group_epoch
    assert pair.install("A", 3, epoch, {"A": foo(-1, 0, 1)}).error_code == 0
