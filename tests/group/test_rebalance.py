"""Whole rebalances, heartbeat by heartbeat: rows RE-01 to RE-10, and KIP-848's case studies KIP-1 to KIP-4.

Partitions are tasks here. A connector is a unit too, so each story places the connectors themselves where they never
move. The scene checks after every step that no unit has two owners, and that a unit appears in an answer only
after its former owner has reported a set without it.
"""

from __future__ import annotations

import pytest

from connectgroup.errors import PluginError
from connectgroup.group.connect.describe import state_name
from connectgroup.group.connect.state import replay
from connectgroup.group.kernel.timers import TimerKind
from connectgroup.protocol.messages.connectors import ConnectorChange
from connectgroup.protocol.records.connect import MemberState, TargetMemberRecord, TargetRecord
from connectgroup.protocol.units import Unit

from . import invariants
from .builders import GROUP, FixedAssignor, Scene, added, foo, names, numbered, settings, task_list, tasks, told

FOO, BAR = Unit("foo"), Unit("bar")
STABLE, UNREVOKED, UNRELEASED = MemberState.STABLE, MemberState.UNREVOKED, MemberState.UNRELEASED


def test_re_01_to_re_10_a_third_member_joins(fixed: FixedAssignor) -> None:
    """RE-01..RE-10, exact: epoch and assignment of each answer, state of each member."""
    scene = Scene.at_rest(
        settings(fixed),
        epoch=10,
        connectors={"foo": 6, "bar": 3},
        members={"m1": tasks(foo=[-1, 0, 1, 2], bar=[0, 1]), "m2": tasks(foo=[3, 4, 5], bar=[-1, 2])},
    )
    fixed.shares = {
        "m1": tasks(foo=[-1, 0, 1], bar=[0]),
        "m2": tasks(foo=[2, 3], bar=[-1, 2]),
        "m3": tasks(foo=[4, 5], bar=[1]),
    }

    assert told(scene.join("m3")) == (11, [])  # RE-01
    assert scene.state("m3") is UNRELEASED
    assert scene.current("m3").previous_epoch == 0
    assert state_name(scene.group) == "Reconciling"

    assert told(scene.heartbeat("m1", 10)) == (10, ["bar-0", "foo", "foo-0", "foo-1"])  # RE-02
    assert scene.state("m1") is UNREVOKED
    assert names(scene.current("m1").pending) == ["bar-1", "foo-2"]

    assert told(scene.heartbeat("m2", 10)) == (10, ["bar", "bar-2", "foo-3"])  # RE-03
    assert scene.state("m2") is UNREVOKED
    assert names(scene.current("m2").pending) == ["foo-4", "foo-5"]

    # RE-04. Kafka writes a record here for the sake of "previous epoch 11". Ours holds no grant that the member has
    # not heard of, so there is nothing for a previous epoch to recover: no record, as in RE-08.
    assert told(scene.heartbeat("m3", 11)) == (11, None)
    assert scene.state("m3") is UNRELEASED

    assert told(scene.heartbeat("m1", 10, tasks(foo=[-1, 0, 1], bar=[0]))) == (
        11,
        ["bar-0", "foo", "foo-0", "foo-1"],
    )  # RE-05
    assert scene.state("m1") is STABLE

    assert told(scene.heartbeat("m2", 10)) == (10, None)  # RE-06
    assert scene.records == ()
    assert scene.state("m2") is UNREVOKED

    assert told(scene.heartbeat("m3", 11)) == (11, ["bar-1"])  # RE-07
    assert scene.state("m3") is UNRELEASED

    assert told(scene.heartbeat("m3", 11)) == (11, None)  # RE-08
    assert scene.records == ()
    assert scene.state("m3") is UNRELEASED

    freed = scene.heartbeat("m2", 10, tasks(foo=[3], bar=[-1, 2]))  # RE-09
    assert told(freed) == (11, ["bar", "bar-2", "foo-2", "foo-3"])
    assert scene.state("m2") is STABLE
    assert scene.current("m2").assigned == {Unit("foo", 2): 11, Unit("foo", 3): 10, BAR: 10, Unit("bar", 2): 10}

    assert told(scene.heartbeat("m3", 11, tasks(bar=[1]))) == (11, ["bar-1", "foo-4", "foo-5"])  # RE-10
    assert scene.state("m3") is STABLE
    assert state_name(scene.group) == "Stable"

    last = scene.group.latest_rebalance
    assert last is not None
    assert (last.epoch, last.causes, last.computed_by) == (11, ("m3 joined",), "coordinator")
    assert [(move.connector, move.task, move.source, move.target) for move in last.moves] == [
        ("bar", 1, "m1", "m3"),
        ("foo", 2, "m1", "m2"),
        ("foo", 4, "m2", "m3"),
        ("foo", 5, "m2", "m3"),
    ]


def test_kip_1_an_empty_group_grows_to_three(fixed: FixedAssignor) -> None:
    """KIP-1 "Basic": foo with 3 tasks; A, then B, then C; epochs 1, 2, 3.

    The coordinator here reconciles a joining member in the same step, so what the case study gives A "when A
    heartbeats" is in the answer to its join. A group that only ever had connectors is at epoch 1 already; here the
    three tasks are there before anybody is, so the epochs are those of the case study plus one (HB-09).
    """
    scene = Scene.at_rest(settings(fixed), epoch=1, connectors={"foo": 3}, members={})
    fixed.shares = {"A": foo(-1, 0, 1, 2)}
    assert told(scene.join("A")) == (2, ["foo", "foo-0", "foo-1", "foo-2"])
    assert state_name(scene.group) == "Stable"

    fixed.shares = {"A": foo(-1, 0, 1), "B": foo(2)}
    assert told(scene.join("B")) == (3, [])  # foo-2 is still A's
    assert told(scene.heartbeat("B", 3)) == (3, None)
    assert told(scene.heartbeat("A", 2)) == (2, ["foo", "foo-0", "foo-1"])  # instructed to revoke foo-2
    assert told(scene.heartbeat("B", 3)) == (3, None)
    assert told(scene.heartbeat("A", 2, foo(-1, 0, 1))) == (3, ["foo", "foo-0", "foo-1"])  # acknowledges, transitions
    assert told(scene.heartbeat("B", 3)) == (3, ["foo-2"])
    assert state_name(scene.group) == "Stable"

    fixed.shares = {"A": foo(-1, 0), "B": foo(2), "C": foo(1)}
    assert told(scene.join("C")) == (4, [])
    assert told(scene.heartbeat("B", 3)) == (4, ["foo-2"])  # "B has no partitions to revoke"
    assert told(scene.heartbeat("C", 4)) == (4, None)
    assert told(scene.heartbeat("A", 3)) == (3, ["foo", "foo-0"])
    assert told(scene.heartbeat("A", 3, foo(-1, 0))) == (4, ["foo", "foo-0"])
    assert told(scene.heartbeat("C", 4)) == (4, ["foo-1"])
    assert state_name(scene.group) == "Stable"
    assert {member_id: scene.current(member_id).epoch for member_id in "ABC"} == {"A": 4, "B": 4, "C": 4}


def test_kip_1_the_first_member_of_a_new_group_is_at_epoch_1(fixed: FixedAssignor) -> None:
    """KIP-1: "The coordinator bumps the group epoch to 1, adds A to the group". HB-09 has 2, as current Kafka does."""
    scene = Scene(settings=settings(fixed))
    assert told(scene.join("A")) == (1, [])
    assert (scene.group.epoch, scene.group.target_epoch) == (1, 1)


def test_kip_2_units_reach_the_new_member_one_by_one(fixed: FixedAssignor) -> None:
    """KIP-2 "Incremental Revocation & Assignment": C gets foo-2 before foo-5."""
    scene = Scene.at_rest(
        settings(fixed), epoch=21, connectors={"foo": 6}, members={"A": foo(-1, 0, 1, 2), "B": foo(3, 4, 5)}
    )
    fixed.shares = {"A": foo(-1, 0, 1), "B": foo(3, 4), "C": foo(2, 5)}
    assert told(scene.join("C")) == (22, [])
    assert told(scene.heartbeat("A", 21)) == (21, ["foo", "foo-0", "foo-1"])
    assert told(scene.heartbeat("B", 21)) == (21, ["foo-3", "foo-4"])
    assert told(scene.heartbeat("C", 22)) == (22, None)
    assert told(scene.heartbeat("A", 21, foo(-1, 0, 1))) == (22, ["foo", "foo-0", "foo-1"])
    assert told(scene.heartbeat("C", 22)) == (22, ["foo-2"])
    assert told(scene.heartbeat("B", 21, foo(3, 4))) == (22, ["foo-3", "foo-4"])
    assert told(scene.heartbeat("C", 22)) == (22, ["foo-2", "foo-5"])
    assert state_name(scene.group) == "Stable"


def test_kip_3_what_a_failed_member_had_is_shared_out(fixed: FixedAssignor) -> None:
    """KIP-3 "Member Failure": e23, B{3,4,0} C{2,5,1}."""
    scene = Scene.at_rest(
        settings(fixed),
        epoch=22,
        connectors={"foo": 6},
        members={"A": foo(0, 1), "B": foo(-1, 3, 4), "C": foo(2, 5)},
    )
    fixed.shares = {"B": foo(-1, 3, 4, 0), "C": foo(2, 5, 1)}
    scene.expire(TimerKind.SESSION, "A")
    assert (scene.group.epoch, scene.group.target_epoch) == (23, 23)
    assert told(scene.heartbeat("B", 22)) == (23, ["foo", "foo-0", "foo-3", "foo-4"])
    assert told(scene.heartbeat("C", 22)) == (23, ["foo-1", "foo-2", "foo-5"])
    assert state_name(scene.group) == "Stable"
    last = scene.group.latest_rebalance
    assert last is not None
    assert [(move.task, move.source, move.target) for move in last.moves] == [(0, "A", "B"), (1, "A", "C")]


def test_kip_4_a_task_that_is_added_goes_to_whoever_has_none(fixed: FixedAssignor) -> None:
    """KIP-4 "Partition Added": foo-1 is new; e23, B gets it and A keeps its own at its old owner epoch."""
    scene = Scene.at_rest(settings(fixed), epoch=22, connectors={"foo": 1}, members={"A": foo(-1, 0), "B": ()})
    fixed.shares = {"A": foo(-1, 0), "B": foo(1)}
    changed = scene.update(task_list("foo", numbered(2), 22), member_id="A")
    assert (changed.error_code, changed.group_epoch, scene.group.target_epoch) == (0, 23, 23)
    assert told(scene.heartbeat("A", 22)) == (23, ["foo", "foo-0"])
    assert told(scene.heartbeat("B", 22)) == (23, ["foo-1"])
    assert scene.current("A").assigned == {FOO: 22, Unit("foo", 0): 22}
    assert scene.current("B").assigned == {Unit("foo", 1): 23}
    assert state_name(scene.group) == "Stable"


def test_ta_01_only_shares_that_changed_are_written(fixed: FixedAssignor) -> None:
    """TA-01: a record for m2 and m3, none for m1, and the epoch last of the three."""
    scene = Scene.at_rest(
        settings(fixed),
        epoch=5,
        connectors={"foo": 6},
        members={"m1": foo(-1, 0, 1), "m2": foo(2, 3), "m3": foo(4, 5)},
    )
    fixed.shares = {"m1": foo(-1, 0, 1), "m2": foo(2, 3, 4), "m3": foo(5)}
    scene.join("m4")
    written = [record for record in scene.records if isinstance(record, TargetMemberRecord | TargetRecord)]
    assert [getattr(record, "member_id", "epoch") for record in written] == ["m2", "m3", "epoch"]


def test_ta_02_a_target_that_changes_nothing_is_its_epoch_alone(fixed: FixedAssignor) -> None:
    """TA-02."""
    scene = Scene.at_rest(settings(fixed), epoch=5, connectors={"foo": 2}, members={"m1": foo(-1, 0, 1)})
    fixed.shares = {"m1": foo(-1, 0, 1)}
    scene.join("m2")
    written = [record for record in scene.records if isinstance(record, TargetMemberRecord | TargetRecord)]
    only = TargetRecord(group_id=GROUP, epoch=6, assignor="fixed", computed_by="coordinator", at_ms=scene.now_ms)
    assert written == [only]


def test_ta_03_shares_swapped_are_a_record_for_each(fixed: FixedAssignor) -> None:
    """TA-03, and the swap itself: both stop first, then both start, never two at once."""
    scene = Scene.at_rest(
        settings(fixed), epoch=5, connectors={"foo": 2, "bar": 0}, members={"m1": foo(-1, 0), "m2": foo(1)}
    )
    fixed.shares = {"m1": foo(-1, 1), "m2": foo(0)}
    scene.update(added("baz"))
    fixed.shares = {"m1": foo(-1, 1) | {BAR, Unit("baz")}, "m2": foo(0)}
    scene.join("m3")
    written = [record for record in scene.records if isinstance(record, TargetMemberRecord | TargetRecord)]
    assert [getattr(record, "member_id", "epoch") for record in written] == ["m1", "m2", "epoch"]

    assert told(scene.heartbeat("m1", 5)) == (5, ["foo"])
    assert told(scene.heartbeat("m2", 5)) == (5, [])
    assert told(scene.heartbeat("m1", 5, foo(-1))) == (7, ["bar", "baz", "foo"])  # foo-1 is still m2's
    assert told(scene.heartbeat("m2", 5, foo())) == (7, ["foo-0"])
    assert told(scene.heartbeat("m1", 7)) == (7, ["bar", "baz", "foo", "foo-1"])


def test_a_newer_target_overtakes_one_that_is_still_being_reached(fixed: FixedAssignor) -> None:
    """Two joins in a row: the one who revokes jumps to the newest target, and nothing is given twice (KAFKA-10763)."""
    scene = Scene.at_rest(settings(fixed), epoch=10, connectors={"foo": 4}, members={"A": foo(-1, 0, 1, 2, 3)})
    fixed.shares = {"A": foo(-1, 0, 1), "B": foo(2, 3)}
    assert told(scene.join("B")) == (11, [])
    assert told(scene.heartbeat("A", 10)) == (10, ["foo", "foo-0", "foo-1"])
    fixed.shares = {"A": foo(-1, 0), "B": foo(1, 2), "C": foo(3)}
    assert told(scene.join("C")) == (12, [])
    assert told(scene.heartbeat("A", 10)) == (10, None)  # still stopping 2 and 3
    assert told(scene.heartbeat("B", 11)) == (12, [])
    assert told(scene.heartbeat("A", 10, foo(-1, 0, 1))) == (10, ["foo", "foo-0"])  # now 1 as well
    assert told(scene.heartbeat("B", 12)) == (12, ["foo-2"])
    assert told(scene.heartbeat("C", 12)) == (12, ["foo-3"])
    assert told(scene.heartbeat("A", 10, foo(-1, 0))) == (12, ["foo", "foo-0"])
    assert told(scene.heartbeat("B", 12)) == (12, ["foo-1", "foo-2"])
    assert state_name(scene.group) == "Stable"


def test_causes_that_come_before_a_target_share_one_explanation(fixed: FixedAssignor) -> None:
    """PD-01: several causes that arrive before a new target is installed share one recomputation."""
    scene = Scene.at_rest(settings(fixed), epoch=10, connectors={"foo": 1}, members={"A": foo(-1, 0)})
    fixed.shares = {"A": foo(-1, 0)}
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


def test_standstill_is_counted_from_the_order_to_stop_to_the_new_grant(fixed: FixedAssignor) -> None:
    """PD-12: the explanation says how long each unit stood still."""
    scene = Scene.at_rest(settings(fixed), epoch=21, connectors={"foo": 2}, members={"A": foo(-1, 0, 1)})
    fixed.shares = {"A": foo(-1, 0), "B": foo(1)}
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


def test_a_unit_that_was_switched_off_for_an_hour_did_not_stand_still_for_an_hour(fixed: FixedAssignor) -> None:
    """Standstill is what a rebalance cost; time for which an operator had a connector paused is not that."""
    scene = Scene.at_rest(settings(fixed), epoch=21, connectors={"foo": 1}, members={"A": foo(-1, 0)})
    fixed.shares = {"A": foo(-1)}
    scene.update(ConnectorChange(connector="foo", target_state=2))
    scene.heartbeat("A", 21)
    scene.heartbeat("A", 21, foo(-1))
    scene.now_ms += 3_600_000
    fixed.shares = {"A": foo(-1, 0)}
    scene.update(ConnectorChange(connector="foo", target_state=1))
    scene.now_ms += 5
    assert told(scene.heartbeat("A", 22)) == (23, ["foo", "foo-0"])
    last = scene.group.latest_rebalance
    assert last is not None
    assert [(move.task, move.target, move.downtime_ms) for move in last.moves] == [(0, "A", 0)]


def test_a_new_coordinator_explains_the_rebalance_it_found_under_way(fixed: FixedAssignor) -> None:
    """Read back from a compacted log, a grant of long ago must not look like a move of today."""
    scene = Scene.at_rest(
        settings(fixed), epoch=21, connectors={"foo": 4}, members={"A": foo(-1, 0, 1), "B": foo(2, 3)}
    )
    fixed.shares = {"A": foo(-1, 0), "B": foo(2, 3), "C": foo(1)}
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


def test_a_hundred_rebalances_are_remembered_and_no_more(fixed: FixedAssignor) -> None:
    """PD-12."""
    scene = Scene(settings=settings(fixed), check_replay=False)
    for number in range(130):
        scene.join("A") if number % 2 == 0 else scene.leave("A")
    assert list(scene.group.rebalances) == list(range(31, 131))
    scene.check_replay = True
    scene.check()


def test_members_and_records_leave_the_core_in_one_order(fixed: FixedAssignor) -> None:
    """S18 at the coordinator: what is written does not depend on the order in which sets happen to be walked."""
    written = []
    for shares in ({"A": foo(-1, 0), "B": foo(1, 2)}, {"B": foo(2, 1), "A": foo(0, -1)}):
        scene = Scene.at_rest(settings(fixed), epoch=3, connectors={"foo": 3}, members={"A": foo(-1, 0, 1, 2)})
        fixed.shares = shares
        scene.join("B")
        written.append(repr(scene.records))
        assert scene.records
    assert written[0] == written[1]


@pytest.mark.parametrize("how", ["left", "silent", "fenced"])
def test_downtime_is_counted_from_the_removal_of_the_owner(how: str) -> None:
    """Not from its last heartbeat: the last time in the log may be long past."""
    fixed = FixedAssignor()
    scene = Scene.at_rest(
        settings(fixed), epoch=10, connectors={"foo": 1}, members={"m1": tasks(foo=[-1, 0]), "m2": ()}
    )
    fixed.shares = {"m2": tasks(foo=[-1, 0])}
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
    assert (last.moved, last.max_downtime_ms) == (2, 120)
