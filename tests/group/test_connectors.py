"""Connectors as records of the group: compare-and-set, all or nothing, the owner's task lists, interrupted units.

Also the statuses that workers report (KAFKA-12525) and what describe shows (KAFKA-20431).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from connectgroup.errors import (
    ConnectorAlreadyExists,
    ConnectorNotFound,
    StaleMemberEpoch,
    UnknownMemberId,
    VersionConflict,
)
from connectgroup.group.connect.describe import describe
from connectgroup.protocol.messages.common import config_of, entries, units_of
from connectgroup.protocol.messages.connectors import ChangedConnector, ConnectorChange
from connectgroup.protocol.messages.describe import DescribedUnit
from connectgroup.protocol.messages.heartbeat import TaskStatus
from connectgroup.protocol.records.connect import ConnectorRecord, MemberState, StatusRecord, TargetState, UnitState
from connectgroup.protocol.units import Unit, Units

from .builders import (
    FixedAssignor,
    Scene,
    added,
    foo,
    names,
    numbered,
    response_units,
    settings,
    task_list,
    tasks,
    units_at,
)

RUNNING, PAUSED, STOPPED = TargetState.RUNNING, TargetState.PAUSED, TargetState.STOPPED


def want(state: TargetState, connector: str = "foo") -> ConnectorChange:
    return ConnectorChange(connector=connector, target_state=state)


@pytest.fixture
def scene(fixed: FixedAssignor) -> Scene:
    """A owns the connector foo and foo-0, B owns foo-1 and foo-2, all at epoch 20; the target stays the same."""
    fixed.target = {"A": foo(-1, 0), "B": foo(1, 2)}
    return Scene.stable(settings(fixed), epoch=20, connectors={"foo": 3}, members={"A": foo(-1, 0), "B": foo(1, 2)})


# ---- compare and set


@pytest.mark.parametrize(
    ("connector", "expected", "good"),
    [
        ("foo", 1, True),
        ("foo", -1, True),
        ("foo", 0, False),
        ("foo", 2, False),
        ("bar", 0, True),
        ("bar", -1, True),
        ("bar", 1, False),
    ],
)
def test_change_carries_the_version_it_applies_to(
    scene: Scene, fixed: FixedAssignor, connector: str, expected: int, good: bool
) -> None:
    """PD-07: compare-and-set; 0 is "does not exist yet", -1 is any version."""
    fixed.target = {"A": foo(-1, 0) | ({Unit("bar")} if connector == "bar" else set()), "B": foo(1, 2)}
    change = ConnectorChange(connector=connector, expected_version=expected, config=entries({"v": "new"}))
    response = scene.update(change)
    assert (response.error_code == 0) is good
    assert response.group_epoch == scene.group.epoch == (21 if good else 20)
    version = 21 if good else (1 if connector == "foo" else 0)
    assert response.results[0].version == version
    assert (connector in scene.group.connectors) == (connector == "foo" or good)


def test_second_change_of_the_same_version_is_rejected(scene: Scene) -> None:
    """Two operators cannot overwrite each other's change unnoticed."""
    first = ConnectorChange(connector="foo", expected_version=1, config=entries({"v": "one"}))
    second = replace(first, config=entries({"v": "two"}))
    assert scene.update(first).results == (ChangedConnector(connector="foo", version=21),)
    refused = scene.update(second)
    assert (refused.error_code, refused.results[0].version) == (VersionConflict.code, 21)
    assert config_of(scene.group.connectors["foo"].config) == {"v": "one"}


@pytest.mark.parametrize("bad_one", [0, 1, 2])
def test_all_changes_are_applied_or_none(scene: Scene, bad_one: int) -> None:
    """The result of the invalid change carries the error; no other change is applied."""
    changes = [added("bar"), added("baz"), ConnectorChange(connector="foo", delete=True)]
    changes[bad_one] = replace(changes[bad_one], expected_version=7)
    response = scene.update(*changes)
    assert response.error_code == (VersionConflict if bad_one == 2 else ConnectorNotFound).code
    assert [row.error_code != 0 for row in response.results] == [number == bad_one for number in range(3)]
    assert list(scene.group.connectors) == ["foo"]
    assert scene.group.epoch == 20


def test_several_changes_share_one_epoch_and_one_explanation(scene: Scene, fixed: FixedAssignor) -> None:
    """Causes 5 and 6 of the source; PD-01: they share one recomputation."""
    fixed.target = {"A": tasks(bar=[-1]), "B": tasks(baz=[-1])}
    response = scene.update(added("bar"), added("baz"), ConnectorChange(connector="foo", delete=True))
    assert (response.error_code, response.group_epoch, scene.group.target_epoch) == (0, 21, 21)
    assert [row.version for row in response.results] == [21, 21, 0]
    assert scene.group.latest_rebalance is not None
    assert scene.group.latest_rebalance.causes == (
        "connector bar added",
        "connector baz added",
        "connector foo removed",
    )


def test_change_without_effect_writes_no_record(scene: Scene) -> None:
    """The same configuration, state or task list: success without a record, and an unchanged version."""
    same = ConnectorChange(connector="foo", config=entries({"name": "foo"}), target_state=RUNNING)
    assert scene.update(same).results == (ChangedConnector(connector="foo", version=1),)
    assert scene.records == ()
    assert scene.update(task_list("foo", numbered(3), 20), member_id="A").error_code == 0
    assert scene.records == ()


def test_connectors_may_be_created_before_any_worker_joins(fixed: FixedAssignor) -> None:
    """An operator's request creates the group; HB-09: the first member then joins at epoch 2."""
    scene = Scene(settings=settings(fixed))
    assert scene.update(added("foo")).group_epoch == 1
    fixed.target = {"A": foo(-1)}
    assert units_at(scene.join("A")) == (2, ["foo"])


# ---- task lists


def test_task_list_is_accepted_from_the_owner_of_the_connector_only(scene: Scene, fixed: FixedAssignor) -> None:
    """Fenced by the owner's grant: another member, an earlier or later grant, an unknown member are rejected."""
    for member_id, epoch, error in (
        ("B", 20, StaleMemberEpoch),
        ("A", 19, StaleMemberEpoch),
        ("A", 21, StaleMemberEpoch),
        ("A", -1, StaleMemberEpoch),
        ("unknown", 20, UnknownMemberId),
    ):
        refused = scene.update(task_list("foo", numbered(4), epoch), member_id=member_id)
        assert refused.error_code == error.code
        assert refused.results[0].error_code == error.code
    fixed.target = {"A": foo(-1, 0), "B": foo(1, 2, 3)}
    assert scene.update(task_list("foo", numbered(4), 20), member_id="A").error_code == 0
    assert len(scene.group.connectors["foo"].tasks) == 4


def test_former_owner_cannot_write_a_task_list(scene: Scene, fixed: FixedAssignor) -> None:
    """While it is stopping the connector, and afterwards; the new owner can, under its own grant."""
    fixed.target = {"A": foo(0), "B": foo(-1, 1, 2)}
    scene.join("C")
    scene.heartbeat("A", 20)
    assert scene.update(task_list("foo", numbered(1), 20), member_id="A").error_code == StaleMemberEpoch.code
    scene.heartbeat("A", 20, foo(0))
    scene.heartbeat("B", 20)
    assert scene.update(task_list("foo", numbered(1), 20), member_id="A").error_code == StaleMemberEpoch.code
    assert scene.update(task_list("foo", numbered(1), 20), member_id="B").error_code == StaleMemberEpoch.code
    fixed.target = {"A": foo(0), "B": foo(-1)}
    assert scene.update(task_list("foo", numbered(1), 21), member_id="B").error_code == 0


def test_owner_of_the_old_configuration_cannot_write_a_task_list(scene: Scene) -> None:
    """S10: it has not received the new configuration yet; its list belongs to a replaced configuration."""
    scene.update(ConnectorChange(connector="foo", config=entries({"name": "foo", "tasks.max": "9"})))
    assert scene.update(task_list("foo", numbered(1), 20), member_id="A").error_code == StaleMemberEpoch.code
    scene.heartbeat("A", 20)
    assert units_at(scene.heartbeat("A", 20, foo(0))) == (21, ["foo", "foo-0"])
    assert scene.current("A").assigned[Unit("foo")] == 21
    assert scene.update(task_list("foo", numbered(3, x="y"), 21), member_id="A").error_code == 0


def test_owner_of_a_deleted_connector_cannot_create_it_with_its_tasks(scene: Scene, fixed: FixedAssignor) -> None:
    """It has not received the deletion yet; its grant belongs to the deleted connector."""
    fixed.target = {}
    scene.update(ConnectorChange(connector="foo", delete=True))
    anew = replace(task_list("foo", numbered(1), 20), config=entries({"name": "foo"}))
    assert scene.update(anew, member_id="A").error_code == StaleMemberEpoch.code


def test_configuration_change_interrupts_only_what_changed(scene: Scene) -> None:
    """A new connector configuration stops the connector, and no task: the tasks change with its owner's next list."""
    scene.update(ConnectorChange(connector="foo", config=entries({"tasks.max": "9"})))
    assert units_at(scene.heartbeat("B", 20)) == (21, ["foo-1", "foo-2"])
    assert units_at(scene.heartbeat("A", 20)) == (20, ["foo-0"])
    response = scene.heartbeat("A", 20, foo(0))
    assert units_at(response) == (21, ["foo", "foo-0"])
    assert response.assignment is not None
    assert [(grant.task, grant.owner_epoch) for grant in response.assignment.grants] == [(-1, 21)]
    assert config_of(response.assignment.configs[0].config) == {"tasks.max": "9"}
    assert response.assignment.configs[0].version == 21


def test_ten_more_tasks_interrupt_none_of_three_hundred(fixed: FixedAssignor) -> None:
    """KAFKA-17105: needless restarts. 300 tasks on three workers keep their grants; ten new tasks are assigned."""
    shares = {name: foo(*range(first, 300, 3)) for first, name in enumerate("ABC")}
    shares["A"] |= foo(-1)
    scene = Scene.stable(settings(fixed), epoch=20, connectors={"foo": 300}, members=shares)
    fixed.target = {
        name: units | foo(*range(300 + first, 310, 3)) for first, (name, units) in enumerate(shares.items())
    }
    assert scene.update(task_list("foo", numbered(310), 20), member_id="A").error_code == 0
    for name, units in shares.items():
        response = scene.heartbeat(name, 20)
        assert response.member_epoch == 21
        assert scene.state(name) is MemberState.STABLE
        assert response.assignment is not None
        fresh = {Unit(grant.connector, grant.task) for grant in response.assignment.grants}
        assert fresh == fixed.target[name] - units
        assert units_of(response.assignment.units) == fixed.target[name]
        assert {scene.current(name).assigned[unit] for unit in units} == {20}
        assert {scene.current(name).assigned[unit] for unit in fresh} == {21}
    assert scene.group.latest_rebalance is not None
    assert [move.task for move in scene.group.latest_rebalance.moves] == list(range(300, 310))


def test_changed_tasks_stop_and_start_under_a_later_owner_epoch(scene: Scene) -> None:
    """The same task on the same worker with another configuration is revoked, then granted again; the rest runs on."""
    configs = numbered(3)
    configs[1] = {"task": "1", "table": "other"}
    scene.update(task_list("foo", configs, 20), member_id="A")
    assert units_at(scene.heartbeat("A", 20)) == (21, ["foo", "foo-0"])
    assert units_at(scene.heartbeat("B", 20)) == (20, ["foo-2"])
    response = scene.heartbeat("B", 20, foo(2))
    assert units_at(response) == (21, ["foo-1", "foo-2"])
    assert scene.current("B").assigned == {Unit("foo", 1): 21, Unit("foo", 2): 20}
    assert response.assignment is not None
    (grant,) = response.assignment.grants
    assert (grant.task, grant.owner_epoch, config_of(grant.config)) == (1, 21, configs[1])


def test_changed_task_is_not_started_under_an_older_target(scene: Scene, fixed: FixedAssignor) -> None:
    """S10: until a new target is computed, the old configuration stops, and the new one is not started."""
    fixed.error = ValueError("later")
    scene.update(task_list("foo", [*numbered(2), {"task": "2", "table": "other"}], 20), member_id="A")
    assert (scene.group.epoch, scene.group.target_epoch) == (21, 20)
    assert units_at(scene.heartbeat("B", 20)) == (20, ["foo-1"])
    assert units_at(scene.heartbeat("B", 20, foo(1), full=True)) == (20, ["foo-1"])
    assert Unit("foo", 2) not in scene.group.holders


def test_removed_task_is_revoked_and_added_again_under_a_new_grant(scene: Scene, fixed: FixedAssignor) -> None:
    fixed.target = {"A": foo(-1, 0), "B": foo(1)}
    scene.update(task_list("foo", numbered(2), 20), member_id="A")
    assert units_at(scene.heartbeat("B", 20)) == (20, ["foo-1"])
    assert units_at(scene.heartbeat("B", 20, foo(1))) == (21, ["foo-1"])
    fixed.target = {"A": foo(-1, 0), "B": foo(1, 2)}
    scene.update(task_list("foo", numbered(3), 20), member_id="A")
    assert units_at(scene.heartbeat("B", 21)) == (22, ["foo-1", "foo-2"])
    assert scene.current("B").assigned == {Unit("foo", 1): 20, Unit("foo", 2): 22}


# ---- delete, pause, stop, resume


def test_deleted_connector_is_revoked(scene: Scene, fixed: FixedAssignor) -> None:
    """All its units are revoked; a new connector of that name is unrelated."""
    fixed.target = {}
    assert scene.update(ConnectorChange(connector="foo", expected_version=1, delete=True)).error_code == 0
    assert scene.group.runnable == {}
    assert scene.update(ConnectorChange(connector="foo", delete=True)).error_code == ConnectorNotFound.code
    fixed.target = {"A": foo(-1)}
    assert scene.update(added("foo")).results[0].version == 22
    assert units_at(scene.heartbeat("A", 20)) == (
        20,
        [],
    )  # the grant of the deleted connector is not valid for the new one
    assert units_at(scene.heartbeat("A", 20, foo())) == (22, ["foo"])
    assert units_at(scene.heartbeat("B", 20)) == (20, [])
    assert scene.group.connectors["foo"].tasks == ()


def test_late_duplicate_of_a_change_does_not_apply_to_a_recreated_connector(scene: Scene, fixed: FixedAssignor) -> None:
    """A late duplicate of a deletion that has succeeded: the connector of the same name is another one."""
    fixed.target = {}
    delete = ConnectorChange(connector="foo", expected_version=1, delete=True)
    assert scene.update(delete).error_code == 0
    fixed.target = {"A": foo(-1)}
    assert scene.update(replace(added("foo"), expected_version=0)).error_code == 0
    assert scene.update(delete).error_code == VersionConflict.code
    again = replace(added("foo"), expected_version=0)
    assert scene.update(again).error_code == ConnectorAlreadyExists.code, "nor does that of its creation"
    assert "foo" in scene.group.connectors


@pytest.mark.parametrize(
    ("state", "a_runs", "b_runs"), [(PAUSED, ["foo"], []), (STOPPED, [], [])], ids=["paused", "stopped"]
)
def test_pause_and_stop_then_resume(
    scene: Scene, fixed: FixedAssignor, state: TargetState, a_runs: list[str], b_runs: list[str]
) -> None:
    """Paused: the connector runs, no task runs. Stopped: nothing runs. Resumed: all units run, under later epochs."""
    before = dict(fixed.target)
    fixed.target = {"A": foo(-1)} if state is PAUSED else {}
    assert scene.update(want(state)).results[0].version == 21
    assert units_at(scene.heartbeat("A", 20)) == (20, a_runs)
    assert units_at(scene.heartbeat("B", 20)) == (20, b_runs)
    scene.heartbeat("A", 20, response_units(scene.heartbeat("A", 20, foo(-1, 0), full=True)))
    scene.heartbeat("B", 20, foo())
    assert names(scene.group.holders) == a_runs
    fixed.target = before
    assert scene.update(want(RUNNING)).results[0].version == 22
    assert units_at(scene.heartbeat("A", 21)) == (22, ["foo", "foo-0"])
    assert units_at(scene.heartbeat("B", 21)) == (22, ["foo-1", "foo-2"])
    assert scene.current("A").assigned == {Unit("foo"): 20 if state is PAUSED else 22, Unit("foo", 0): 22}
    assert scene.current("B").assigned == dict.fromkeys(foo(1, 2), 22)


def test_connector_that_goes_from_stopped_to_paused_runs_without_tasks(scene: Scene, fixed: FixedAssignor) -> None:
    """The task list that it publishes then is started when the connector is resumed."""
    fixed.target = {}
    scene.update(want(STOPPED))
    fixed.target = {"A": foo(-1)}
    scene.update(want(PAUSED))
    scene.heartbeat("B", 20)
    scene.heartbeat("B", 20, foo())
    scene.heartbeat("A", 20)
    assert units_at(scene.heartbeat("A", 20, foo())) == (22, ["foo"])
    assert scene.update(task_list("foo", numbered(1), 22), member_id="A").error_code == 0
    fixed.target = {"A": foo(-1), "B": foo(0)}
    scene.update(want(RUNNING))
    assert units_at(scene.heartbeat("B", 22)) == (24, ["foo-0"])


# ---- statuses and describe


def status(task: int, epoch: int, state: UnitState = UnitState.RUNNING, message: str = "") -> TaskStatus:
    return TaskStatus(connector="foo", task=task, owner_epoch=epoch, state=state, message=message)


def shown(scene: Scene, task: int) -> DescribedUnit:
    (connector,) = describe(scene.group).connectors
    return next(unit for unit in connector.units if unit.task == task)


def test_status_of_the_owner_is_described(scene: Scene) -> None:
    """Statuses are records; an equal status writes none."""
    assert shown(scene, 1) == DescribedUnit(task=1, member_id="B", owner_epoch=20, state="STARTING")
    failed = status(1, 20, UnitState.FAILED, "no such table\n" + "x" * 900)
    scene.heartbeat("B", 20, statuses=(status(2, 20), failed))
    assert len(scene.records) == 2
    scene.heartbeat("B", 20, statuses=(status(2, 20), failed))
    assert not scene.records
    assert shown(scene, 2).state == "RUNNING"
    assert shown(scene, 1).state == "FAILED"
    assert shown(scene, 1).message.startswith("no such table\\nxxx")
    assert len(shown(scene, 1).message) == 500


@pytest.mark.parametrize(
    ("member_id", "reported"),
    [
        pytest.param("B", status(1, 19), id="earlier grant"),
        pytest.param("B", status(1, 21), id="later grant"),
        pytest.param("A", status(1, 20), id="another member's unit"),
        pytest.param("B", status(7, 20), id="unknown unit"),
        pytest.param("B", replace(status(1, 20), connector="bar"), id="unknown connector"),
    ],
)
def test_kafka_12525_status_of_another_member_is_ignored(scene: Scene, member_id: str, reported: TaskStatus) -> None:
    """KAFKA-12525, WC-09: UNASSIGNED of a lower generation after RUNNING of a higher one."""
    scene.heartbeat("B", 20, statuses=(status(1, 20, UnitState.FAILED, "true"),))
    assert units_at(scene.heartbeat(member_id, 20, statuses=(reported,))) == (20, None)
    assert scene.records == ()
    assert shown(scene, 1).message == "true"


def test_kafka_12525_status_ends_with_its_grant(scene: Scene, fixed: FixedAssignor) -> None:
    """The former owner's status is not shown for the new owner, and is ignored while the unit stops."""
    scene.heartbeat("B", 20, statuses=(status(1, 20, UnitState.FAILED, "old"),))
    fixed.target = {"A": foo(-1, 0, 1), "B": foo(2)}
    scene.join("C")
    scene.heartbeat("B", 20)
    scene.heartbeat("B", 20, statuses=(status(1, 20, UnitState.FAILED, "older"),))
    assert scene.records == ()
    scene.heartbeat("B", 20, foo(2))
    assert shown(scene, 1).state == "UNASSIGNED"
    scene.heartbeat("A", 20)
    assert shown(scene, 1) == DescribedUnit(task=1, member_id="A", owner_epoch=21, state="STARTING")


@pytest.mark.parametrize("how", ["fewer tasks", "deleted", "paused, then deleted"])
def test_statuses_are_removed_with_their_units_also_after_compaction(
    scene: Scene, fixed: FixedAssignor, how: str
) -> None:
    """D2: the scene replays the log after each step; a status record outlived its unit."""
    scene.heartbeat("B", 20, statuses=(status(2, 20, UnitState.FAILED, "gone"), status(1, 20)))
    if how == "fewer tasks":
        fixed.target = {"A": foo(-1, 0), "B": foo(1)}
        scene.update(task_list("foo", numbered(2), 20), member_id="A")
    elif how == "deleted":
        fixed.target = {}
        scene.update(ConnectorChange(connector="foo", delete=True))
    else:
        fixed.target = {"A": foo(-1)}
        scene.update(want(PAUSED))
        assert Unit("foo", 2) in scene.group.statuses, "it has the totals of the task"
        fixed.target = {}
        scene.update(ConnectorChange(connector="foo", delete=True))
    assert Unit("foo", 2) not in scene.group.statuses
    scene.heartbeat("B", 20, statuses=(status(2, 20),))  # has not received the revocation yet
    assert Unit("foo", 2) not in scene.group.statuses
    assert isinstance(scene.log[0], ConnectorRecord)
    assert any(isinstance(record, StatusRecord) for record in scene.log)


def test_kafka_20431_describe_shows_pending_revocations(scene: Scene, fixed: FixedAssignor) -> None:
    """KAFKA-20431: assigned units, pending revocation and target are separate fields."""
    fixed.target = {"A": foo(-1, 0, 1), "B": foo(2)}
    scene.join("C")
    scene.heartbeat("B", 20)
    described = {member.member_id: member for member in describe(scene.group).members}
    b = described["B"]
    assert names(units_of(b.assigned)) == ["foo-2"]
    assert names(units_of(b.pending_revocation)) == ["foo-1"]
    assert names(units_of(b.target)) == ["foo-2"]
    assert (b.state, b.member_epoch) == ("UNREVOKED", 20)
    assert describe(scene.group).state == "Reconciling"
    assert shown(scene, 1).member_id == "B"


def test_new_connector_configuration_stops_the_tasks_of_the_old_one(scene: Scene, fixed: FixedAssignor) -> None:
    """KAFKA-9228: no task runs partly on the old and partly on the new configuration, even if its own is unchanged."""
    fixed.target = {"A": foo(-1), "B": Units()}
    scene.update(ConnectorChange(connector="foo", config=entries({"colour": "green"})))
    assert scene.group.connectors["foo"].tasks == ()
    assert response_units(scene.heartbeat("A", 20)) == Units(), "the connector's configuration has changed as well"
    assert response_units(scene.heartbeat("B", 20)) == Units()
    scene.heartbeat("B", 20, owned=Units())
    response = scene.heartbeat("A", 20, owned=Units())
    assert response_units(response) == foo(-1)
    assert response.assignment is not None
    assert [grant.owner_epoch for grant in response.assignment.grants] == [21]


def test_changed_tasks_max_keeps_the_tasks(scene: Scene) -> None:
    """``tasks.max`` limits the number of tasks, not what each does: the owner decides which of them change."""
    before = scene.group.connectors["foo"].tasks
    limit = entries({**config_of(scene.group.connectors["foo"].config), "tasks.max": "9"})
    scene.update(ConnectorChange(connector="foo", config=limit))
    assert scene.group.connectors["foo"].tasks == before
    assert response_units(scene.heartbeat("B", 20)) == foo(1, 2)
