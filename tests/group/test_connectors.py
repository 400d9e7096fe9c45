"""Connectors as records of the group: compare and set, all or none, owners' task lists, and what a change interrupts.

Also what workers say of their units (KAFKA-12525) and what describe shows (KAFKA-20431).
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
from connectgroup.group.connect.timers import rebalance
from connectgroup.protocol.messages.common import config_of, entries, units_of
from connectgroup.protocol.messages.connectors import ChangedConnector, ConnectorChange
from connectgroup.protocol.messages.describe import DescribedUnit
from connectgroup.protocol.messages.heartbeat import TaskStatus
from connectgroup.protocol.records.connect import ConnectorRecord, MemberState, StatusRecord, TargetState, UnitState
from connectgroup.protocol.units import Unit, Units

from .builders import FixedAssignor, Scene, added, foo, given, names, numbered, settings, task_list, tasks, told

RUNNING, PAUSED, STOPPED = TargetState.RUNNING, TargetState.PAUSED, TargetState.STOPPED


def want(state: TargetState, connector: str = "foo") -> ConnectorChange:
    return ConnectorChange(connector=connector, target_state=state)


@pytest.fixture
def scene(fixed: FixedAssignor) -> Scene:
    """A has the connector foo and foo-0, B has foo-1 and foo-2, all at epoch 20; the target stays that."""
    fixed.shares = {"A": foo(-1, 0), "B": foo(1, 2)}
    return Scene.at_rest(settings(fixed), epoch=20, connectors={"foo": 3}, members={"A": foo(-1, 0), "B": foo(1, 2)})


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
    """PD-07: compare-and-set; 0 is "does not exist yet", -1 any."""
    fixed.shares = {"A": foo(-1, 0) | ({Unit("bar")} if connector == "bar" else set()), "B": foo(1, 2)}
    change = ConnectorChange(connector=connector, expected_version=expected, config=entries({"v": "new"}))
    response = scene.update(change)
    assert (response.error_code == 0) is good
    assert response.group_epoch == scene.group.epoch == (21 if good else 20)
    version = 21 if good else (1 if connector == "foo" else 0)
    assert response.results[0].version == version
    assert (connector in scene.group.connectors) == (connector == "foo" or good)


def test_second_change_of_the_same_version_is_rejected(scene: Scene) -> None:
    """Two operators cannot overwrite each other unseen."""
    first = ConnectorChange(connector="foo", expected_version=1, config=entries({"v": "one"}))
    second = replace(first, config=entries({"v": "two"}))
    assert scene.update(first).results == (ChangedConnector(connector="foo", version=21),)
    refused = scene.update(second)
    assert (refused.error_code, refused.results[0].version) == (VersionConflict.code, 21)
    assert config_of(scene.group.connectors["foo"].config) == {"v": "one"}


@pytest.mark.parametrize("bad_one", [0, 1, 2])
def test_all_changes_are_applied_or_none(scene: Scene, bad_one: int) -> None:
    """The row of the offender carries the error; nothing of the rest is done."""
    changes = [added("bar"), added("baz"), ConnectorChange(connector="foo", delete=True)]
    changes[bad_one] = replace(changes[bad_one], expected_version=7)
    response = scene.update(*changes)
    assert response.error_code == (VersionConflict if bad_one == 2 else ConnectorNotFound).code
    assert [row.error_code != 0 for row in response.results] == [number == bad_one for number in range(3)]
    assert list(scene.group.connectors) == ["foo"]
    assert scene.group.epoch == 20


def test_several_changes_share_one_epoch_and_one_explanation(scene: Scene, fixed: FixedAssignor) -> None:
    """Causes 5 and 6 of the source; PD-01: they share one recomputation."""
    fixed.shares = {"A": tasks(bar=[-1]), "B": tasks(baz=[-1])}
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
    """The same configuration, state or task list again: a success without a record, the version as it was."""
    same = ConnectorChange(connector="foo", config=entries({"name": "foo"}), target_state=RUNNING)
    assert scene.update(same).results == (ChangedConnector(connector="foo", version=1),)
    assert scene.records == ()
    assert scene.update(task_list("foo", numbered(3), 20), member_id="A").error_code == 0
    assert scene.records == ()


def test_connectors_may_be_created_before_any_worker_joins(fixed: FixedAssignor) -> None:
    """An operator's request makes the group; HB-09: the first member then joins at epoch 2."""
    scene = Scene(settings=settings(fixed))
    assert scene.update(added("foo")).group_epoch == 1
    fixed.shares = {"A": foo(-1)}
    assert told(scene.join("A")) == (2, ["foo"])


# ---- task lists


def test_task_list_is_accepted_from_the_owner_of_the_connector_only(scene: Scene, fixed: FixedAssignor) -> None:
    """Fenced by the owner's grant: not another member's, not one of an earlier or a later grant, not a stranger's."""
    for member_id, epoch, error in (
        ("B", 20, StaleMemberEpoch),
        ("A", 19, StaleMemberEpoch),
        ("A", 21, StaleMemberEpoch),
        ("A", -1, StaleMemberEpoch),
        ("stranger", 20, UnknownMemberId),
    ):
        refused = scene.update(task_list("foo", numbered(4), epoch), member_id=member_id)
        assert refused.error_code == error.code
        assert refused.results[0].error_code == error.code
    fixed.shares = {"A": foo(-1, 0), "B": foo(1, 2, 3)}
    assert scene.update(task_list("foo", numbered(4), 20), member_id="A").error_code == 0
    assert len(scene.group.connectors["foo"].tasks) == 4


def test_former_owner_cannot_write_a_task_list(scene: Scene, fixed: FixedAssignor) -> None:
    """While it is stopping the connector, and after; the new owner can, with its own grant."""
    fixed.shares = {"A": foo(0), "B": foo(-1, 1, 2)}
    scene.join("C")
    scene.heartbeat("A", 20)
    assert scene.update(task_list("foo", numbered(1), 20), member_id="A").error_code == StaleMemberEpoch.code
    scene.heartbeat("A", 20, foo(0))
    scene.heartbeat("B", 20)
    assert scene.update(task_list("foo", numbered(1), 20), member_id="A").error_code == StaleMemberEpoch.code
    assert scene.update(task_list("foo", numbered(1), 20), member_id="B").error_code == StaleMemberEpoch.code
    fixed.shares = {"A": foo(0), "B": foo(-1)}
    assert scene.update(task_list("foo", numbered(1), 21), member_id="B").error_code == 0


def test_owner_of_the_old_configuration_cannot_write_a_task_list(scene: Scene) -> None:
    """S10: it has not heard yet that the connector was reconfigured; its list is of a configuration that is no more."""
    scene.update(ConnectorChange(connector="foo", config=entries({"name": "foo", "tasks.max": "9"})))
    assert scene.update(task_list("foo", numbered(1), 20), member_id="A").error_code == StaleMemberEpoch.code
    scene.heartbeat("A", 20)
    assert told(scene.heartbeat("A", 20, foo(0))) == (21, ["foo", "foo-0"])
    assert scene.current("A").assigned[Unit("foo")] == 21
    assert scene.update(task_list("foo", numbered(3, x="y"), 21), member_id="A").error_code == 0


def test_owner_of_a_deleted_connector_cannot_create_it_with_its_tasks(scene: Scene, fixed: FixedAssignor) -> None:
    """It has not heard yet that the connector is gone; its grant is of the one that was."""
    fixed.shares = {}
    scene.update(ConnectorChange(connector="foo", delete=True))
    anew = replace(task_list("foo", numbered(1), 20), config=entries({"name": "foo"}))
    assert scene.update(anew, member_id="A").error_code == StaleMemberEpoch.code


def test_configuration_change_interrupts_only_what_changed(scene: Scene) -> None:
    """A new connector configuration stops the connector, and no task: those come from its owner's next list."""
    scene.update(ConnectorChange(connector="foo", config=entries({"tasks.max": "9"})))
    assert told(scene.heartbeat("B", 20)) == (21, ["foo-1", "foo-2"])
    assert told(scene.heartbeat("A", 20)) == (20, ["foo-0"])
    answer = scene.heartbeat("A", 20, foo(0))
    assert told(answer) == (21, ["foo", "foo-0"])
    assert answer.assignment is not None
    assert [(grant.task, grant.owner_epoch) for grant in answer.assignment.grants] == [(-1, 21)]
    assert config_of(answer.assignment.configs[0].config) == {"tasks.max": "9"}
    assert answer.assignment.configs[0].version == 21


def test_ten_more_tasks_interrupt_none_of_three_hundred(fixed: FixedAssignor) -> None:
    """KAFKA-17105: needless restarts. 300 tasks on three workers keep their grants; ten new ones are given."""
    shares = {name: foo(*range(first, 300, 3)) for first, name in enumerate("ABC")}
    shares["A"] |= foo(-1)
    scene = Scene.at_rest(settings(fixed), epoch=20, connectors={"foo": 300}, members=shares)
    fixed.shares = {
        name: units | foo(*range(300 + first, 310, 3)) for first, (name, units) in enumerate(shares.items())
    }
    assert scene.update(task_list("foo", numbered(310), 20), member_id="A").error_code == 0
    for name, units in shares.items():
        answer = scene.heartbeat(name, 20)
        assert answer.member_epoch == 21
        assert scene.state(name) is MemberState.STABLE
        assert answer.assignment is not None
        fresh = {Unit(grant.connector, grant.task) for grant in answer.assignment.grants}
        assert fresh == fixed.shares[name] - units
        assert units_of(answer.assignment.units) == fixed.shares[name]
        assert {scene.current(name).assigned[unit] for unit in units} == {20}
        assert {scene.current(name).assigned[unit] for unit in fresh} == {21}
    assert scene.group.latest_rebalance is not None
    assert [move.task for move in scene.group.latest_rebalance.moves] == list(range(300, 310))


def test_changed_tasks_stop_and_start_under_a_later_owner_epoch(scene: Scene) -> None:
    """The same task, on the same worker, with another configuration: revoked, then granted anew; the rest runs on."""
    configs = numbered(3)
    configs[1] = {"task": "1", "table": "other"}
    scene.update(task_list("foo", configs, 20), member_id="A")
    assert told(scene.heartbeat("A", 20)) == (21, ["foo", "foo-0"])
    assert told(scene.heartbeat("B", 20)) == (20, ["foo-2"])
    answer = scene.heartbeat("B", 20, foo(2))
    assert told(answer) == (21, ["foo-1", "foo-2"])
    assert scene.current("B").assigned == {Unit("foo", 1): 21, Unit("foo", 2): 20}
    assert answer.assignment is not None
    (grant,) = answer.assignment.grants
    assert (grant.task, grant.owner_epoch, config_of(grant.config)) == (1, 21, configs[1])


def test_changed_task_is_not_started_under_an_older_target(scene: Scene, fixed: FixedAssignor) -> None:
    """S10: while the new target is being computed the old configuration stops, and the new one waits."""
    fixed.error = ValueError("later")
    scene.update(task_list("foo", [*numbered(2), {"task": "2", "table": "other"}], 20), member_id="A")
    assert (scene.group.epoch, scene.group.target_epoch) == (21, 20)
    assert told(scene.heartbeat("B", 20)) == (20, ["foo-1"])
    assert told(scene.heartbeat("B", 20, foo(1), full=True)) == (20, ["foo-1"])
    assert Unit("foo", 2) not in scene.group.holders


def test_fewer_tasks(scene: Scene, fixed: FixedAssignor) -> None:
    """What is gone is revoked and given to nobody; coming back later it is a new grant."""
    fixed.shares = {"A": foo(-1, 0), "B": foo(1)}
    scene.update(task_list("foo", numbered(2), 20), member_id="A")
    assert told(scene.heartbeat("B", 20)) == (20, ["foo-1"])
    assert told(scene.heartbeat("B", 20, foo(1))) == (21, ["foo-1"])
    fixed.shares = {"A": foo(-1, 0), "B": foo(1, 2)}
    scene.update(task_list("foo", numbered(3), 20), member_id="A")
    assert told(scene.heartbeat("B", 21)) == (22, ["foo-1", "foo-2"])
    assert scene.current("B").assigned == {Unit("foo", 1): 20, Unit("foo", 2): 22}


# ---- delete, pause, stop, resume


def test_deleted_connector_is_revoked(scene: Scene, fixed: FixedAssignor) -> None:
    """Everything of it is revoked; the next connector of that name has nothing to do with it."""
    fixed.shares = {}
    assert scene.update(ConnectorChange(connector="foo", expected_version=1, delete=True)).error_code == 0
    assert scene.group.runnable == {}
    assert scene.update(ConnectorChange(connector="foo", delete=True)).error_code == ConnectorNotFound.code
    fixed.shares = {"A": foo(-1)}
    assert scene.update(added("foo")).results[0].version == 22
    assert told(scene.heartbeat("A", 20)) == (20, [])  # the old one's grant is not good for the new one
    assert told(scene.heartbeat("A", 20, foo())) == (22, ["foo"])
    assert told(scene.heartbeat("B", 20)) == (20, [])
    assert scene.group.connectors["foo"].tasks == ()


def test_late_copy_of_a_change_does_not_apply_to_a_recreated_connector(scene: Scene, fixed: FixedAssignor) -> None:
    """A deletion that was answered, its copy held up on the way: the connector of the same name is another one."""
    fixed.shares = {}
    delete = ConnectorChange(connector="foo", expected_version=1, delete=True)
    assert scene.update(delete).error_code == 0
    fixed.shares = {"A": foo(-1)}
    assert scene.update(replace(added("foo"), expected_version=0)).error_code == 0
    assert scene.update(delete).error_code == VersionConflict.code
    again = replace(added("foo"), expected_version=0)
    assert scene.update(again).error_code == ConnectorAlreadyExists.code, "nor does that of its making"
    assert "foo" in scene.group.connectors


@pytest.mark.parametrize(
    ("state", "a_runs", "b_runs"), [(PAUSED, ["foo"], []), (STOPPED, [], [])], ids=["paused", "stopped"]
)
def test_pause_and_stop_then_resume(
    scene: Scene, fixed: FixedAssignor, state: TargetState, a_runs: list[str], b_runs: list[str]
) -> None:
    """Paused: the connector watches, no task runs. Stopped: nothing runs. Resumed: all of it, under later epochs."""
    before = dict(fixed.shares)
    fixed.shares = {"A": foo(-1)} if state is PAUSED else {}
    assert scene.update(want(state)).results[0].version == 21
    assert told(scene.heartbeat("A", 20)) == (20, a_runs)
    assert told(scene.heartbeat("B", 20)) == (20, b_runs)
    scene.heartbeat("A", 20, given(scene.heartbeat("A", 20, foo(-1, 0), full=True)))
    scene.heartbeat("B", 20, foo())
    assert names(scene.group.holders) == a_runs
    fixed.shares = before
    assert scene.update(want(RUNNING)).results[0].version == 22
    assert told(scene.heartbeat("A", 21)) == (22, ["foo", "foo-0"])
    assert told(scene.heartbeat("B", 21)) == (22, ["foo-1", "foo-2"])
    assert scene.current("A").assigned == {Unit("foo"): 20 if state is PAUSED else 22, Unit("foo", 0): 22}
    assert scene.current("B").assigned == dict.fromkeys(foo(1, 2), 22)


def test_connector_that_goes_from_stopped_to_paused_runs_without_tasks(scene: Scene, fixed: FixedAssignor) -> None:
    """And the task list it writes then is run when it is resumed."""
    fixed.shares = {}
    scene.update(want(STOPPED))
    fixed.shares = {"A": foo(-1)}
    scene.update(want(PAUSED))
    scene.heartbeat("B", 20)
    scene.heartbeat("B", 20, foo())
    scene.heartbeat("A", 20)
    assert told(scene.heartbeat("A", 20, foo())) == (22, ["foo"])
    assert scene.update(task_list("foo", numbered(1), 22), member_id="A").error_code == 0
    fixed.shares = {"A": foo(-1), "B": foo(0)}
    scene.update(want(RUNNING))
    assert told(scene.heartbeat("B", 22)) == (24, ["foo-0"])


# ---- statuses and describe


def status(task: int, epoch: int, state: UnitState = UnitState.RUNNING, message: str = "") -> TaskStatus:
    return TaskStatus(connector="foo", task=task, owner_epoch=epoch, state=state, message=message)


def shown(scene: Scene, task: int) -> DescribedUnit:
    (connector,) = describe(scene.group).connectors
    return next(unit for unit in connector.units if unit.task == task)


def test_status_of_the_owner_is_described(scene: Scene) -> None:
    """Statuses are records; the same again costs none."""
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
    ("member_id", "said"),
    [
        pytest.param("B", status(1, 19), id="of an earlier grant"),
        pytest.param("B", status(1, 21), id="of a grant to come"),
        pytest.param("A", status(1, 20), id="of another's unit"),
        pytest.param("B", status(7, 20), id="of a unit that is not there"),
        pytest.param("B", replace(status(1, 20), connector="bar"), id="of a connector that is not there"),
    ],
)
def test_kafka_12525_status_of_another_member_is_ignored(scene: Scene, member_id: str, said: TaskStatus) -> None:
    """KAFKA-12525, WC-09: UNASSIGNED of a lower generation after RUNNING of a higher one."""
    scene.heartbeat("B", 20, statuses=(status(1, 20, UnitState.FAILED, "true"),))
    assert told(scene.heartbeat(member_id, 20, statuses=(said,))) == (20, None)
    assert scene.records == ()
    assert shown(scene, 1).message == "true"


def test_kafka_12525_status_ends_with_its_grant(scene: Scene, fixed: FixedAssignor) -> None:
    """What the former holder said is not shown of the new one, nor taken while it is stopping."""
    scene.heartbeat("B", 20, statuses=(status(1, 20, UnitState.FAILED, "old news"),))
    fixed.shares = {"A": foo(-1, 0, 1), "B": foo(2)}
    scene.join("C")
    scene.heartbeat("B", 20)
    scene.heartbeat("B", 20, statuses=(status(1, 20, UnitState.FAILED, "older news"),))
    assert scene.records == ()
    scene.heartbeat("B", 20, foo(2))
    assert shown(scene, 1).state == "UNASSIGNED"
    scene.heartbeat("A", 20)
    assert shown(scene, 1) == DescribedUnit(task=1, member_id="A", owner_epoch=21, state="STARTING")


@pytest.mark.parametrize("how", ["fewer tasks", "deleted", "paused"])
def test_statuses_are_removed_with_their_units_also_after_compaction(
    scene: Scene, fixed: FixedAssignor, how: str
) -> None:
    """D2: the scene reads the log back after each step; a status record outlived the unit it spoke of."""
    scene.heartbeat("B", 20, statuses=(status(2, 20, UnitState.FAILED, "gone"), status(1, 20)))
    if how == "fewer tasks":
        fixed.shares = {"A": foo(-1, 0), "B": foo(1)}
        scene.update(task_list("foo", numbered(2), 20), member_id="A")
    elif how == "deleted":
        fixed.shares = {}
        scene.update(ConnectorChange(connector="foo", delete=True))
    else:
        fixed.shares = {"A": foo(-1)}
        scene.update(want(PAUSED))
    assert Unit("foo", 2) not in scene.group.statuses
    scene.heartbeat("B", 20, statuses=(status(2, 20),))  # has not heard yet
    assert Unit("foo", 2) not in scene.group.statuses
    assert isinstance(scene.log[0], ConnectorRecord)
    assert any(isinstance(record, StatusRecord) for record in scene.log)


def test_kafka_20431_describe_shows_pending_revocations(scene: Scene, fixed: FixedAssignor) -> None:
    """KAFKA-20431: assigned, pending revocation and target, each on its own."""
    fixed.shares = {"A": foo(-1, 0, 1), "B": foo(2)}
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
    """KAFKA-9228: no task may run half on the old and half on the new, even if its own configuration stays the same."""
    fixed.shares = {"A": foo(-1), "B": Units()}
    scene.update(ConnectorChange(connector="foo", config=entries({"colour": "green"})))
    assert scene.group.connectors["foo"].tasks == ()
    assert given(scene.heartbeat("A", 20)) == Units(), "the connector too has another configuration"
    assert given(scene.heartbeat("B", 20)) == Units()
    scene.heartbeat("B", 20, owned=Units())
    answer = scene.heartbeat("A", 20, owned=Units())
    assert given(answer) == foo(-1)
    assert answer.assignment is not None
    assert [grant.owner_epoch for grant in answer.assignment.grants] == [21]


def test_changed_tasks_max_keeps_the_tasks(scene: Scene) -> None:
    """``tasks.max`` says how many there may be, not what each does: the owner says which of them change."""
    before = scene.group.connectors["foo"].tasks
    limit = entries({**config_of(scene.group.connectors["foo"].config), "tasks.max": "9"})
    scene.update(ConnectorChange(connector="foo", config=limit))
    assert scene.group.connectors["foo"].tasks == before
    assert given(scene.heartbeat("B", 20)) == foo(1, 2)


# ---- CA-19: a connector changes while a member is UNREVOKED


@pytest.fixture
def revoking(fixed: FixedAssignor) -> Scene:
    """A, at epoch 20, holds foo with 4 tasks and bar with 2 tasks, and must stop foo-3 for C first."""
    everything = foo(-1, 0, 1, 2, 3) | {Unit("bar"), Unit("bar", 0), Unit("bar", 1)}
    scene = Scene.at_rest(settings(fixed), epoch=20, connectors={"foo": 4, "bar": 2}, members={"A": everything})
    fixed.shares = {"A": everything - foo(3), "C": foo(3)}
    scene.join("C")
    scene.heartbeat("A", 20)
    assert names(scene.current("A").pending) == ["foo-3"]
    return scene


@pytest.mark.parametrize(
    ("change", "stops"),
    [
        (want(PAUSED, "bar"), ["bar-0", "bar-1"]),
        (want(STOPPED, "bar"), ["bar", "bar-0", "bar-1"]),
        (ConnectorChange(connector="bar", delete=True), ["bar", "bar-0", "bar-1"]),
        (ConnectorChange(connector="bar", config=entries({"colour": "green"})), ["bar", "bar-0", "bar-1"]),
    ],
    ids=["paused", "stopped", "deleted", "reconfigured"],
)
def test_ca_19_units_that_must_not_run_join_the_pending_revocation(
    revoking: Scene, fixed: FixedAssignor, change: ConnectorChange, stops: list[str]
) -> None:
    """CA-19: the member hears of the change in its next response and not only after its acknowledgement."""
    held = revoking.current("A").held
    left = {unit for unit in held if str(unit) not in stops}
    fixed.shares = {"A": frozenset(left) - foo(3), "C": foo(3)}
    if change.config:
        fixed.shares["A"] |= {Unit("bar")}
    revoking.update(change)
    assert "A" in revoking.group.members_to_wake, "a parked heartbeat of the member is woken"
    answer = revoking.heartbeat("A", 20)
    assert told(answer) == (20, names(left - foo(3)))
    assert (revoking.state("A"), revoking.current("A").epoch) == (MemberState.UNREVOKED, 20)
    assert names(revoking.current("A").pending) == sorted(["foo-3", *stops])
    assert revoking.last is not None
    assert rebalance("workers", "A", revoking.current("A"), 10_000) in revoking.last.timers
    again = revoking.heartbeat("A", 20)
    assert (told(again), revoking.records) == ((20, None), ())
    acknowledged = revoking.heartbeat("A", 20, frozenset(left) - foo(3))
    assert acknowledged.member_epoch == revoking.group.epoch
    assert not revoking.current("A").pending


def test_ca_07_newer_target_alone_adds_nothing_to_the_pending_revocation(revoking: Scene, fixed: FixedAssignor) -> None:
    """CA-07: units that move to another member may run on until the first revocation is acknowledged."""
    fixed.shares = {"A": foo(-1), "C": foo(0, 1, 2, 3) | {Unit("bar"), Unit("bar", 0), Unit("bar", 1)}}
    revoking.join("D")
    assert told(revoking.heartbeat("A", 20)) == (20, None)
    assert revoking.records == ()


def test_ca_19_partial_acknowledgement_is_none(revoking: Scene, fixed: FixedAssignor) -> None:
    """The units that joined the pending revocation later must stop too before any of them is given on (S3)."""
    fixed.shares = {"A": foo(-1, 0, 1, 2), "C": foo(3)}
    revoking.update(want(STOPPED, "bar"))
    revoking.heartbeat("A", 20)
    bar = {Unit("bar"), Unit("bar", 0), Unit("bar", 1)}
    revoking.heartbeat("A", 20, foo(-1, 0, 1, 2) | bar)
    assert revoking.state("A") is MemberState.UNREVOKED
    assert given(revoking.heartbeat("C", 21)) == frozenset(), "foo-3 is still held by A"
    revoking.heartbeat("A", 20, foo(-1, 0, 1, 2))
    assert given(revoking.heartbeat("C", 22)) == foo(3)
