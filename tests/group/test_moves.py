"""How fast a group gets to its target: so many moves a round, and workers that are to be emptied (L2)."""

from __future__ import annotations

import pytest

from connectgroup.group.connect.describe import describe, state_name
from connectgroup.protocol.messages.common import entries
from connectgroup.protocol.messages.connectors import ConnectorChange
from connectgroup.protocol.records.connect import TargetRecord
from connectgroup.protocol.units import Units

from .builders import FixedAssignor, Scene, info, settings, tasks

FOO = tasks(foo=[-1, 0, 1])


ALL = tasks(foo=[-1, *range(8)])


def ensure_computation(scene: Scene) -> list[str]:
    """Heartbeats until nothing moves any more; returns the causes of the epochs on the way."""
    for _ in range(100):
        before = (scene.group.epoch, dict(scene.group.currents))
        for member_id in sorted(scene.group.members):
            current = scene.current(member_id)
            owned: Units = frozenset(current.assigned)
            scene.heartbeat(member_id, current.epoch, owned)
        if before == (scene.group.epoch, dict(scene.group.currents)):
            return [cause for rebalance in scene.group.rebalances.values() for cause in rebalance.causes]
    raise AssertionError("it never comes to rest")


def standing_still(scene: Scene) -> int:
    """Units that somebody has been told to stop, or has stopped, and that run nowhere."""
    running = {unit for current in scene.group.currents.values() for unit in current.assigned}
    return len(scene.group.runnable.keys() - running)


@pytest.fixture
def nine() -> Scene:
    """m1 with nine units at epoch 10; two units may be moved a round."""
    return Scene.at_rest(settings(max_moves=2), epoch=10, connectors={"foo": 8}, members={"m1": ALL})


def test_join_moves_a_limited_number_of_units_per_round(nine: Scene) -> None:
    limit = 0
    nine.join("m2")
    while True:
        before = (nine.group.epoch, dict(nine.group.currents))
        for member_id in sorted(nine.group.members):
            current = nine.current(member_id)
            nine.heartbeat(member_id, current.epoch, frozenset(current.assigned))
            limit = max(limit, standing_still(nine))
        if before == (nine.group.epoch, dict(nine.group.currents)):
            break
    assert limit == 2
    assert sorted(len(current.assigned) for current in nine.group.currents.values()) == [4, 5]
    causes = [cause for rebalance in nine.group.rebalances.values() for cause in rebalance.causes]
    assert causes == ["it was long ago", "m2 joined", "2 left to move in this round"]
    assert state_name(nine.group) == "Stable"
    assert nine.group.deferred == 0


def test_target_within_the_limit_of_moves_is_unchanged(nine: Scene) -> None:
    fixed = FixedAssignor()
    scene = Scene.at_rest(settings(fixed, max_moves=2), epoch=10, connectors={"foo": 8}, members={"m1": ALL})
    fixed.shares = {"m1": ALL - tasks(foo=[0, 1]), "m2": tasks(foo=[0, 1])}
    scene.join("m2")
    [target] = [record for record in scene.records if isinstance(record, TargetRecord)]
    assert target.deferred == 0
    assert ensure_computation(scene)[-1] == "m2 joined"


def test_assignment_of_unowned_units_is_no_move(nine: Scene) -> None:
    """A dead worker's units are given on at once, however many they are."""
    nine.join("m2")
    ensure_computation(nine)
    nine.leave("m1")
    assert nine.group.deferred == 0
    ensure_computation(nine)
    assert nine.current("m2").assigned.keys() == ALL


def test_new_coordinator_continues_the_rounds(nine: Scene) -> None:
    nine.join("m2")
    assert nine.group.deferred == 2
    nine.reload()
    ensure_computation(nine)
    assert sorted(len(current.assigned) for current in nine.group.currents.values()) == [4, 5]


class TestDraining:
    """A worker that is to be emptied stays a member until somebody has taken what it runs."""

    @pytest.fixture
    def pair(self) -> Scene:
        """m1 and m2 with two units each."""
        return Scene.at_rest(
            settings(),
            epoch=10,
            connectors={"foo": 3},
            members={"m1": tasks(foo=[-1, 0]), "m2": tasks(foo=[1, 2])},
        )

    def test_units_of_a_draining_member_move_away(self, pair: Scene) -> None:
        pair.heartbeat("m2", 10, tasks(foo=[1, 2]), full=True, draining=True)
        assert ensure_computation(pair)[-1] == "m2 is draining"
        assert pair.current("m1").assigned.keys() == tasks(foo=[-1, 0, 1, 2])
        assert pair.current("m2").assigned == {}
        assert [member.state for member in describe(pair.group).members] == ["STABLE", "DRAINING"]

    def test_drain_can_be_cancelled(self, pair: Scene) -> None:
        pair.heartbeat("m2", 10, tasks(foo=[1, 2]), full=True, draining=True)
        ensure_computation(pair)
        pair.heartbeat("m2", pair.current("m2").epoch, frozenset(), full=True)
        assert ensure_computation(pair)[-1] == "m2 is no longer draining"
        assert len(pair.current("m2").assigned) == 2

    def test_members_keep_their_units_while_all_drain(self, pair: Scene) -> None:
        pair.heartbeat("m1", 10, tasks(foo=[-1, 0]), full=True, draining=True)
        pair.heartbeat("m2", 10, tasks(foo=[1, 2]), full=True, draining=True)
        ensure_computation(pair)
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
    """They keep their units, and no other member could take the new ones."""
    scene = Scene.at_rest(settings(), epoch=10, connectors={"foo": 2}, members={"m1": FOO})
    scene.heartbeat("m1", 10, FOO, full=True, draining=True)
    scene.update(ConnectorChange(connector="bar", config=entries({"name": "bar"})))
    assert scene.group.target_epoch == scene.group.epoch == 12
    assert scene.group.target("m1").units == FOO | tasks(bar=[-1])
