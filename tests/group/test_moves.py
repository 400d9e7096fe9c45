"""Limits on moves: at most ``max_moves`` units per round; draining members (L2)."""

from __future__ import annotations

import pytest

from connectgroup.group.connect.describe import describe
from connectgroup.group.connect.group_type import on_load
from connectgroup.group.kernel.outcome import SetTimer, TimerKey, TimerKind
from connectgroup.protocol.messages.assignment import InstalledMember, InstallRequest, InstallResponse
from connectgroup.protocol.messages.common import entries, grouped, units_of
from connectgroup.protocol.messages.connectors import ConnectorChange
from connectgroup.protocol.messages.heartbeat import TaskStatus
from connectgroup.protocol.records.connect import TargetRecord, UnitState
from connectgroup.protocol.units import NO_UNITS, Unit, Units

from .builders import GROUP, FixedAssignor, Scene, info, settings, tasks

FOO = tasks(foo=[-1, 0, 1])


ALL = tasks(foo=[-1, *range(8)])


def heartbeat_until_stable(scene: Scene) -> list[str]:
    """Send heartbeats until nothing changes; return the causes of all rebalances."""
    for _ in range(100):
        before = (scene.group.epoch, dict(scene.group.currents))
        for member_id in sorted(scene.group.members):
            current = scene.current(member_id)
            owned: Units = frozenset(current.assigned)
            scene.heartbeat(member_id, current.epoch, owned)
        if before == (scene.group.epoch, dict(scene.group.currents)):
            return [cause for rebalance in scene.group.rebalances.values() for cause in rebalance.causes]
    raise AssertionError("the group does not become stable")


def unowned_units(scene: Scene) -> int:
    """The number of runnable units that no member runs, because they are being revoked or are unassigned."""
    running = {unit for current in scene.group.currents.values() for unit in current.assigned}
    return len(scene.group.runnable.keys() - running)


@pytest.fixture
def nine() -> Scene:
    """m1 owns nine units at epoch 10; a round moves at most two units."""
    return Scene.stable(settings(max_moves=2), epoch=10, connectors={"foo": 8}, members={"m1": ALL})


def test_join_moves_a_limited_number_of_units_per_round(nine: Scene) -> None:
    limit = 0
    nine.join("m2")
    while True:
        before = (nine.group.epoch, dict(nine.group.currents))
        for member_id in sorted(nine.group.members):
            current = nine.current(member_id)
            nine.heartbeat(member_id, current.epoch, frozenset(current.assigned))
            limit = max(limit, unowned_units(nine))
        if before == (nine.group.epoch, dict(nine.group.currents)):
            break
    assert limit == 2
    assert sorted(len(current.assigned) for current in nine.group.currents.values()) == [4, 5]
    causes = [cause for rebalance in nine.group.rebalances.values() for cause in rebalance.causes]
    assert causes == ["former rebalance", "m2 joined", "2 left to move in this round"]
    assert nine.group.state_name == "Stable"
    assert nine.group.deferred == 0


def test_target_within_the_limit_of_moves_is_unchanged(nine: Scene) -> None:
    fixed = FixedAssignor()
    scene = Scene.stable(settings(fixed, max_moves=2), epoch=10, connectors={"foo": 8}, members={"m1": ALL})
    fixed.target = {"m1": ALL - tasks(foo=[0, 1]), "m2": tasks(foo=[0, 1])}
    scene.join("m2")
    [target] = [record for record in scene.records if isinstance(record, TargetRecord)]
    assert target.deferred == 0
    assert heartbeat_until_stable(scene)[-1] == "m2 joined"


def test_assignment_of_unowned_units_is_no_move(nine: Scene) -> None:
    """All units of a member that left are assigned at once, however many they are."""
    nine.join("m2")
    heartbeat_until_stable(nine)
    nine.leave("m1")
    assert nine.group.deferred == 0
    heartbeat_until_stable(nine)
    assert nine.current("m2").assigned.keys() == ALL


def test_new_coordinator_continues_the_rounds(nine: Scene) -> None:
    nine.join("m2")
    assert nine.group.deferred == 2
    nine.reload()
    heartbeat_until_stable(nine)
    assert sorted(len(current.assigned) for current in nine.group.currents.values()) == [4, 5]


class TestStartingUnits:
    """Units that are starting on their owners are not moved, within a bound in time (L2)."""

    @pytest.fixture
    def scene(self) -> Scene:
        """m1 owns nine units since epoch 10; foo-5, foo-6 and foo-7 are starting there, and would move to m2."""
        scene = Scene.stable(settings(), epoch=10, connectors={"foo": 8}, members={"m1": ALL})
        report(scene, "m1", UnitState.STARTING, 5, 6, 7)
        return scene

    def test_running_units_move_at_once_and_starting_ones_when_they_have_started(self, scene: Scene) -> None:
        scene.join("m2")
        heartbeat_until_stable(scene)
        kept = tasks(foo=[5, 6, 7]) & scene.current("m1").assigned.keys()
        assert (kept, scene.group.state_name) == (tasks(foo=[5, 6, 7]), "Stable")
        report(scene, "m1", UnitState.RUNNING, 5)
        report(scene, "m1", UnitState.FAILED, 6)
        assert scene.group.epoch == scene.group.target_epoch
        report(scene, "m1", UnitState.RUNNING, 7)
        causes = heartbeat_until_stable(scene)
        assert causes[-1] == "3 left to move, which were starting"
        assert sorted(len(current.assigned) for current in scene.group.currents.values()) == [4, 5]

    def test_unit_that_never_starts_moves_after_the_limit(self, scene: Scene) -> None:
        scene.join("m2")
        scene.reload()
        heartbeat_until_stable(scene)
        assert SetTimer(TimerKey(TimerKind.START, GROUP), 60_000) in on_load(scene.group, 0, settings()).timers
        scene.expire(TimerKind.START)
        heartbeat_until_stable(scene)
        assert sorted(len(current.assigned) for current in scene.group.currents.values()) == [4, 5]

    def test_start_reported_late_does_not_count(self, scene: Scene) -> None:
        """A copy of the first report, after the unit has started."""
        report(scene, "m1", UnitState.RUNNING, 5, 6, 7)
        report(scene, "m1", UnitState.STARTING, 5, 6, 7)
        scene.join("m2")
        assert heartbeat_until_stable(scene)[-1] == "m2 joined"
        assert scene.group.deferred_starts == 0

    def test_starting_units_move_off_a_draining_member(self, scene: Scene) -> None:
        scene.join("m2")
        heartbeat_until_stable(scene)
        owned = frozenset(scene.current("m1").assigned)
        scene.heartbeat("m1", scene.current("m1").epoch, owned, full=True, draining=True)
        heartbeat_until_stable(scene)
        assert scene.current("m2").assigned.keys() == ALL

    def test_starting_units_of_a_member_that_leaves_are_assigned_at_once(self, scene: Scene) -> None:
        scene.join("m2")
        scene.leave("m1")
        heartbeat_until_stable(scene)
        assert scene.current("m2").assigned.keys() == ALL
        assert scene.group.deferred_starts == 0

    def test_starting_units_of_a_deleted_connector_are_revoked(self, scene: Scene) -> None:
        scene.join("m2")
        heartbeat_until_stable(scene)
        scene.update(ConnectorChange(connector="foo", delete=True))
        heartbeat_until_stable(scene)
        assert not any(current.held for current in scene.group.currents.values())
        assert not scene.group.starting

    def test_starting_units_that_the_assignor_leaves_out_stay(self, scene: Scene) -> None:
        """An assignor of two rounds leaves moved units out of the first; its delay has none of the starting ones."""
        scene.heartbeat("m1", 10, assignors=(info("a"),))
        scene.join("m2", info("a"))
        out = tasks(foo=[4, 5, 6, 7])
        computing = scene.group.computation
        assert computing is not None
        epoch = scene.prepare(computing.member_id, scene.current(computing.member_id).epoch).group_epoch
        shares = {"m1": ALL - out, "m2": NO_UNITS}
        members = tuple(InstalledMember(member_id=who, units=grouped(units)) for who, units in shares.items())
        request = InstallRequest(
            group_id=GROUP,
            member_id=computing.member_id,
            member_epoch=0,
            group_epoch=epoch,
            members=members,
            delayed=grouped(out),
            delay_ms=5_000,
        )
        assert not scene.response_of(scene.act(request), InstallResponse).error_code
        assert scene.group.target("m1").units == ALL - tasks(foo=[4])
        assert (scene.group.deferred, scene.group.deferred_starts) == (1, 3)
        assert units_of(scene.group.delays[""].units) == tasks(foo=[4])


def report(scene: Scene, member_id: str, state: UnitState, *numbers: int) -> None:
    """The owner of tasks of foo reports their states."""
    statuses = tuple(
        TaskStatus(
            connector="foo",
            task=number,
            owner_epoch=scene.current(member_id).assigned[Unit("foo", number)],
            state=state,
        )
        for number in numbers
    )
    scene.heartbeat(member_id, scene.current(member_id).epoch, statuses=statuses)


class TestDraining:
    """A draining worker stays a member until other members have taken over its units."""

    @pytest.fixture
    def pair(self) -> Scene:
        """m1 and m2 own two units each."""
        return Scene.stable(
            settings(),
            epoch=10,
            connectors={"foo": 3},
            members={"m1": tasks(foo=[-1, 0]), "m2": tasks(foo=[1, 2])},
        )

    def test_units_of_a_draining_member_move_away(self, pair: Scene) -> None:
        pair.heartbeat("m2", 10, tasks(foo=[1, 2]), full=True, draining=True)
        assert heartbeat_until_stable(pair)[-1] == "m2 is draining"
        assert pair.current("m1").assigned.keys() == tasks(foo=[-1, 0, 1, 2])
        assert pair.current("m2").assigned == {}
        assert [member.state for member in describe(pair.group).members] == ["STABLE", "DRAINING"]

    def test_drain_can_be_cancelled(self, pair: Scene) -> None:
        pair.heartbeat("m2", 10, tasks(foo=[1, 2]), full=True, draining=True)
        heartbeat_until_stable(pair)
        pair.heartbeat("m2", pair.current("m2").epoch, frozenset(), full=True)
        assert heartbeat_until_stable(pair)[-1] == "m2 is no longer draining"
        assert len(pair.current("m2").assigned) == 2

    def test_members_keep_their_units_while_all_drain(self, pair: Scene) -> None:
        pair.heartbeat("m1", 10, tasks(foo=[-1, 0]), full=True, draining=True)
        pair.heartbeat("m2", 10, tasks(foo=[1, 2]), full=True, draining=True)
        heartbeat_until_stable(pair)
        held = {unit for current in pair.group.currents.values() for unit in current.assigned}
        assert held == tasks(foo=[-1, 0, 1, 2])

    def test_draining_member_does_not_compute(self, pair: Scene) -> None:
        for member_id in ("m1", "m2"):
            pair.heartbeat(member_id, 10, assignors=(info("a"),))
        assert pair.group.computation is not None
        assert pair.group.computation.member_id == "m1"
        pair.heartbeat("m1", 10, tasks(foo=[-1, 0]), full=True, draining=True, assignors=(info("a"),))
        assert pair.group.computation.member_id == "m2"
        assert [member.member_id for member in pair.prepare("m2", 10).members] == ["m2"]
        refused = pair.install("m2", 10, pair.group.epoch, {"m1": tasks(foo=[-1, 0]), "m2": tasks(foo=[1, 2])})
        assert refused.error_message is not None
        assert "m1 is not a member" in refused.error_message

    def test_incremental_heartbeat_does_not_change_the_drain(self, pair: Scene) -> None:
        pair.heartbeat("m2", 10, tasks(foo=[1, 2]), full=True, draining=True)
        epoch = pair.group.epoch
        pair.heartbeat("m2", 10)
        assert pair.group.epoch == epoch
        assert pair.group.members["m2"].draining


def test_new_connector_is_assigned_while_all_members_drain() -> None:
    """The draining members keep their units, and no other member could take the new ones."""
    scene = Scene.stable(settings(), epoch=10, connectors={"foo": 2}, members={"m1": FOO})
    scene.heartbeat("m1", 10, FOO, full=True, draining=True)
    scene.update(ConnectorChange(connector="bar", config=entries({"name": "bar"})))
    assert scene.group.target_epoch == scene.group.epoch == 12
    assert scene.group.target("m1").units == FOO | tasks(bar=[-1])
