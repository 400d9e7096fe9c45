"""Computation of a target assignment by a member, and its failures: CN-03 to CN-09, CN-13, CN-15, HB-18.

CN-01, CN-02 and CN-10 are in test_assignor_selection.py, CN-16 and CN-17 in test_validation.py.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from connectgroup.errors import (
    ComputeAssignment,
    InvalidAssignment,
    PluginError,
    UnknownMemberId,
)
from connectgroup.group.connect.describe import describe
from connectgroup.group.connect.group_type import on_load
from connectgroup.group.kernel.computation import compute_timer
from connectgroup.group.kernel.outcome import SetTimer, TimerKey, TimerKind
from connectgroup.protocol.messages.assignment import (
    AssignorMetadata,
    InstalledMember,
    PreparedConnector,
    PreparedMember,
)
from connectgroup.protocol.messages.common import ConnectorTasks, grouped
from connectgroup.protocol.records.connect import ComputationRecord, MemberState
from connectgroup.protocol.units import Unit, Units

from .builders import GROUP, UNASSIGNED, FixedAssignor, Scene, added, foo, info, settings, tasks, units_at

FOO = tasks(foo=[-1, 0, 1])


A = info("a", 0, 3)


@pytest.fixture
def pair(fixed: FixedAssignor) -> Scene:
    """A and B list assignor "a"; A has computed epoch 4: A owns foo and foo-0, B owns foo-1. Stable."""
    scene = Scene.stable(settings(fixed), epoch=1, connectors={"foo": 2}, members={})
    fixed.target = {"A": foo(-1, 0), "B": foo(1)}
    scene.join("A", A)
    scene.join("B", A)
    scene.prepare("A", 0)
    assert scene.install("A", 0, 3, fixed.target).error_code == 0
    assert units_at(scene.join("A", A))[0] == 3
    assert units_at(scene.join("B", A))[0] == 3
    assert scene.group.behind == set()
    return scene


def computing(scene: Scene) -> str:
    """The member that is asked to compute for the current group epoch."""
    assert scene.group.computation is not None
    assert scene.group.computation.epoch == scene.group.epoch > scene.group.target_epoch
    return scene.group.computation.member_id


# ---- the request to compute


def test_member_that_rejoins_is_asked_to_compute_again(pair: Scene) -> None:
    """Its former process may have died after Prepare; no member would compute before the timer fires."""
    pair.update(added("bar"))
    pair.prepare("A", 3)
    assert pair.join("A", A).error_code == ComputeAssignment.code


def test_rejoin_does_not_repeat_a_finished_computation(pair: Scene) -> None:
    """L2: no member is asked to compute, so no record is written."""
    assert pair.group.computation is not None
    assert pair.group.computation.prepared
    pair.join("A", A)
    assert not [record for record in pair.records if isinstance(record, ComputationRecord)]


def test_assignor_input_is_complete(pair: Scene) -> None:
    """Prepare: members with metadata and target assignment, connectors with their task counts."""
    pair.update(added("bar"))
    prepared = pair.prepare("A", 3)
    assert (prepared.error_code, prepared.group_epoch, prepared.assignor_name) == (0, 4, "a")
    metadata = AssignorMetadata(version=3)
    assert prepared.members == (
        PreparedMember(member_id="A", member_epoch=3, assignor=metadata, unit_indices=(1, 2)),
        PreparedMember(member_id="B", member_epoch=3, assignor=metadata, unit_indices=(3,)),
    )
    assert prepared.shares() == [foo(-1, 0), foo(1)]
    assert prepared.connectors == (
        PreparedConnector(connector="bar", num_tasks=0),
        PreparedConnector(connector="foo", num_tasks=2),
    )
    assert pair.prepare("A", 3) == prepared
    assert pair.records == ()


def test_unit_indices_are_ascending(fixed: FixedAssignor) -> None:
    """Equal groups have equal bytes, whatever the iteration order of a set of units."""
    has = {"A": foo(*range(-1, 40)), "B": frozenset[Unit]()}
    scene = Scene.stable(settings(fixed), epoch=10, connectors={"foo": 40}, members=has)
    scene.update(added("bar"))
    assert [member.unit_indices for member in fixed.inputs[-1].members] == [tuple(range(1, 42)), ()]


def test_no_member_is_chosen_while_the_target_is_current(pair: Scene) -> None:
    """CN-04: no member is chosen if there is nothing to compute, not even the last one that computed."""
    assert pair.prepare("A", 3).error_code == UnknownMemberId.code
    assert pair.install("A", 3, 3, {"A": foo(-1, 0, 1)}).error_code == UnknownMemberId.code


# ---- installing


@pytest.mark.parametrize(
    ("shares", "violation"),
    [
        pytest.param([("A", foo(-1, 0)), ("B", foo(1)), ("X", UNASSIGNED)], "X is not a member", id="unknown member"),
        pytest.param([("A", foo(-1, 0)), ("A", foo(1))], "A is listed twice", id="member twice"),
        pytest.param([("A", foo(-1, 0, 2)), ("B", foo(1))], "foo-2, assigned to A, does not exist", id="unknown task"),
        pytest.param(
            [("A", foo(-1, 0)), ("B", tasks(foo=[1], baz=[-1]))],
            "baz, assigned to B, does not exist",
            id="unknown connector",
        ),
        pytest.param([("A", foo(-1, 0, 1)), ("B", foo(1))], "foo-1 is assigned twice: to A and B", id="task twice"),
        pytest.param([("A", foo(-1, 0)), ("B", foo(-1, 1))], "foo is assigned twice: to A and B", id="connector twice"),
        pytest.param([("A", foo(-1, 0))], "foo-1 is not assigned", id="task missing"),
        pytest.param([], "foo is not assigned (and 2 more)", id="empty"),
    ],
)
def test_cn_07_invalid_target_is_rejected_as_a_whole(
    pair: Scene, shares: list[tuple[str, Units]], violation: str
) -> None:
    """CN-07, S9, F21: INVALID_ASSIGNMENT with the first violation; no part of the assignment is stored.

    The failure is stored, so that another coordinator asks the next member as well.
    """
    pair.join("C", A)
    pair.prepare("A", 3)
    targets = dict(pair.group.targets)
    members = [InstalledMember(member_id=member_id, units=grouped(units)) for member_id, units in shares]
    refused = pair.install_members("A", 3, 4, *members)
    assert refused.error_code == InvalidAssignment.code
    assert violation in (refused.error_message or "")
    assert (pair.group.targets, pair.group.target_epoch) == (targets, 3)
    assert computing(pair) == "B"
    assert violation in describe(pair.group).assignor_error


def test_cn_07_member_listed_with_one_task_twice(pair: Scene) -> None:
    """The message can contain a task twice; a set of units cannot."""
    pair.join("C", A)
    pair.prepare("A", 3)
    twice = ConnectorTasks(connector="foo", owns_connector=True, tasks=(0, 0, 1))
    assert pair.install_members("A", 3, 4, InstalledMember(member_id="A", units=(twice,))).error_code != 0
    assert pair.group.target_epoch == 3


@pytest.mark.parametrize("version", [-1, 4])
def test_cn_07_version_outside_the_range_of_the_member(pair: Scene, version: int) -> None:
    """CN-01: "the version handed to each member is inside its range"."""
    pair.join("C", A)
    members = [InstalledMember(member_id="A", units=grouped(foo(-1, 0, 1)), version=version)]
    assert pair.install_members("A", 3, 4, *members).error_code == InvalidAssignment.code


@pytest.mark.parametrize(
    "members",
    [
        (InstalledMember(member_id="A", units=grouped(foo(-1, 0, 1))),),
        (
            InstalledMember(member_id="A", units=grouped(foo(-1, 0)), metadata=b"other"),
            InstalledMember(member_id="B", units=grouped(foo(1))),
        ),
        (
            InstalledMember(member_id="A", units=grouped(foo(-1, 0)), error=1),
            InstalledMember(member_id="B", units=grouped(foo(1))),
        ),
    ],
    ids=["other units", "other metadata", "other error"],
)
def test_s13_different_install_for_the_same_epoch_is_rejected(
    pair: Scene, members: tuple[InstalledMember, ...]
) -> None:
    """S13: a retry is accepted with *equal* content only; success would imply that the other content was stored."""
    assert pair.install_members("A", 3, 3, *members).error_code == UnknownMemberId.code
    assert pair.group.target("A").units == foo(-1, 0)


def test_assignor_metadata_reaches_its_member(pair: Scene) -> None:
    """An assignment that differs in metadata alone is a new assignment, and is in a full response."""
    pair.join("C", A)
    pair.prepare("A", 3)
    members = (
        InstalledMember(member_id="A", units=grouped(foo(-1, 0)), version=2, metadata=b"hello A", error=7),
        InstalledMember(member_id="B", units=grouped(foo(1))),
    )
    assert pair.install_members("A", 3, 4, *members).error_code == 0
    response = pair.heartbeat("A", 3, foo(-1, 0), full=True).assignment
    assert response is not None
    assert (response.version, response.metadata, response.error) == (2, b"hello A", 7)
    assert pair.last is not None


# ---- timeouts and failures


def test_server_assignor_computes_after_three_failures(pair: Scene, fixed: FixedAssignor) -> None:
    """PD-06: each able member is asked once before any is asked twice; then ``group.remote.assignor``."""
    pair.join("C", A)
    asked = []
    for _ in range(3):
        asked.append(computing(pair))
        assert fixed.calls == 0
        pair.expire(TimerKind.COMPUTE)
    assert asked == ["A", "B", "C"]
    assert fixed.calls == 1
    assert (pair.group.target_epoch, pair.group.computed_by) == (4, "coordinator")
    assert "C did not install" in describe(pair.group).assignor_error


def test_two_members_fail_and_are_asked_again_before_the_fallback(pair: Scene, fixed: FixedAssignor) -> None:
    """Failures are counted for the group, not for the member; a target assignment ends the count."""
    pair.update(added("bar"))
    fixed.target = {"A": foo(-1, 0) | {Unit("bar")}, "B": foo(1)}
    asked = []
    for _ in range(3):
        asked.append(computing(pair))
        assert fixed.calls == 0
        pair.install(asked[-1], 3, 4, {})
    assert asked == ["A", "B", "A"]
    assert (fixed.calls, pair.group.target_epoch) == (1, 4)
    pair.update(added("baz"))
    for _ in range(2):
        asked.append(computing(pair))
        pair.install(asked[-1], 3, 5, {})
    assert asked[3:] == ["A", "B"]
    assert fixed.calls == 1


def test_failing_assignor_does_not_block_a_group_that_keeps_changing(pair: Scene, fixed: FixedAssignor) -> None:
    """Failures count on when the group epoch advances while an assignor runs (PD-06)."""
    fixed.target = {"A": foo(-1, 0), "B": foo(1)}
    for number in range(3):
        asked = pair.group.computation.member_id if pair.group.computation and number else "A"
        pair.join(f"C{number}", A)
        epoch = pair.prepare(asked, 3).group_epoch
        pair.join(f"D{number}", A)
        assert fixed.calls == 0
        pair.install(asked, 3, epoch, {}, error=1, message="no solution")
    assert (fixed.calls, pair.group.target_epoch) == (1, pair.group.epoch)


def test_chosen_member_leaves_or_expires(pair: Scene) -> None:
    """F22: its Install is rejected, another member is asked."""
    pair.join("C", A)
    pair.prepare("A", 3)
    pair.expire(TimerKind.SESSION, "A")
    assert computing(pair) == "B"
    assert pair.install("A", 3, 4, {"A": foo(-1, 0, 1)}).error_code == UnknownMemberId.code
    pair.leave("B")
    assert computing(pair) == "C"


def test_compute_timer_of_an_earlier_epoch_or_an_empty_group_does_nothing(pair: Scene) -> None:
    """KAFKA-8896 for compute timers."""
    assert pair.expire(TimerKind.COMPUTE).records == ()
    pair.leave("A")
    pair.leave("B")
    assert pair.expire(TimerKind.COMPUTE).records == ()


def test_pending_computation_has_a_timer_after_a_load(pair: Scene) -> None:
    """L5: a stale target always has a computation in progress or a timer."""
    pair.join("C", A)
    assert compute_timer(pair.group, 10_000) in on_load(pair.group, pair.now_ms, pair.settings).timers


def test_compute_timer_of_a_former_computation_does_nothing(pair: Scene) -> None:
    """CN-06: A has failed and B is asked; only the timer of B's attempt decides that B is late."""
    pair.join("C", A)
    former = compute_timer(pair.group, 0).key
    pair.prepare("A", 3)
    pair.install("A", 3, 4, {}, error=1)
    assert computing(pair) == "B"
    stale = pair.act(former)
    assert (stale.records, stale.timers) == ((), ())
    pair.act(compute_timer(pair.group, 0).key)
    assert computing(pair) == "C"


def test_compute_timer_holds_when_the_group_epoch_advances(pair: Scene) -> None:
    """CN-06: A's computation continues, and so does its timeout."""
    pair.join("C", A)
    key = compute_timer(pair.group, 0).key
    pair.prepare("A", 3)
    pair.join("D", A)
    pair.act(key)
    assert computing(pair) == "B"


@pytest.mark.parametrize(
    "error",
    [PluginError("assignor fixed: ValueError: boom"), ValueError("boom"), ZeroDivisionError(), KeyError("boom")],
    ids=lambda error: type(error).__name__,
)
def test_hb_18_server_assignor_that_raises(fixed: FixedAssignor, error: Exception) -> None:
    """HB-18: the group epoch is not stuck. Kafka responds with UNKNOWN_SERVER_ERROR to the request that caused the
    computation; here its heartbeat succeeds, the old target stays, and the timer retries (PD-06: "a bad plug-in cannot
    stop a group").
    """
    scene = Scene.stable(settings(fixed), epoch=10, connectors={"foo": 2}, members={"m1": foo(-1, 0, 1)})
    fixed.error = error
    assert units_at(scene.join("m2")) == (10, [])
    assert scene.last is not None
    assert compute_timer(scene.group, 10_000) in scene.last.timers
    assert (scene.group.epoch, scene.group.target_epoch) == (11, 10)
    assert describe(scene.group).assignor_error
    scene.expire(TimerKind.COMPUTE)
    assert (scene.group.target_epoch, fixed.calls) == (10, 2)
    assert units_at(scene.heartbeat("m1", 10)) == (10, None)
    assert fixed.calls == 2  # heartbeats do not retry
    fixed.error = None
    fixed.target = {"m1": foo(-1, 0), "m2": foo(1)}
    scene.expire(TimerKind.COMPUTE)
    assert scene.group.target_epoch == 11
    assert units_at(scene.heartbeat("m1", 10)) == (10, ["foo", "foo-0"])


@pytest.mark.parametrize("shares", [{"m1": foo(-1)}, {"m1": foo(-1, 0, 1), "m2": foo(1)}, {"m1": foo(-1, 0, 1, 2)}])
def test_hb_18_server_assignor_with_an_invalid_result(fixed: FixedAssignor, shares: dict[str, Units]) -> None:
    """Results of a server-side assignor are validated as well."""
    scene = Scene.stable(settings(fixed), epoch=10, connectors={"foo": 2}, members={"m1": foo(-1, 0, 1)})
    fixed.target = shares
    scene.join("m2")
    assert scene.group.target_epoch == 10
    assert "server-side assignor fixed" in describe(scene.group).assignor_error


def test_missing_server_assignor_is_reported(fixed: FixedAssignor) -> None:
    """A coordinator configured without a server-side assignor."""
    scene = Scene(settings=replace(settings(fixed), server_assignor=""))
    assert scene.join("m1").error_code == 0
    assert "group.remote.assignor" in describe(scene.group).assignor_error


def test_server_assignors_requested_by_members(fixed: FixedAssignor) -> None:
    """The one that all members request; if they differ, the coordinator's default."""
    scene = Scene.stable(settings(fixed), epoch=1, connectors={"foo": 1}, members={})
    fixed.target = {"m1": foo(-1, 0)}
    scene.join("m1", server_assignor="round-robin")
    assert (scene.group.target_assignor, fixed.calls) == ("round-robin", 0)
    scene.join("m2", server_assignor="fixed")
    assert (scene.group.target_assignor, fixed.calls) == ("fixed", 1)


# ---- computation and reconciliation at the same time


def test_s14_computing_member_is_not_fenced_for_an_acknowledged_revocation(pair: Scene) -> None:
    """S14: B acknowledges foo-1 in the heartbeat whose response is COMPUTE_ASSIGNMENT.

    If the acknowledgement had to wait for a later heartbeat, a member without the plug-in, which never prepares,
    would miss its rebalance timeout with nothing left to stop.
    """
    pair.join("C", A)
    pair.prepare("A", 3)
    assert pair.install("A", 3, 4, {"A": foo(-1, 0), "C": foo(1)}).error_code == 0
    pair.heartbeat("B", 3)
    assert pair.state("B") is MemberState.UNREVOKED
    pair.update(added("bar"))
    pair.expire(TimerKind.COMPUTE)
    assert computing(pair) == "B"
    for _ in range(3):
        pair.heartbeat("B", pair.current("B").epoch, UNASSIGNED, full=True)
    assert pair.state("B") is MemberState.STABLE
    pair.expire(TimerKind.REBALANCE, "B")
    assert "B" in pair.group.members
    assert pair.heartbeat("B", 4).error_code == ComputeAssignment.code
    assert units_at(pair.heartbeat("C", pair.current("C").epoch, full=True, owned=UNASSIGNED)) == (4, ["foo-1"])


def test_heartbeat_between_prepare_and_install_does_not_invalidate_the_install(pair: Scene) -> None:
    """They use connections of their own: the member epoch may advance in between."""
    pair.join("C", A)
    pair.prepare("A", 3)
    pair.install("A", 3, 4, {"A": foo(-1, 0), "B": foo(1)})
    pair.update(added("bar"))
    assert pair.prepare("A", 3).group_epoch == 5
    assert units_at(pair.heartbeat("A", 3)) == (4, ["foo", "foo-0"])
    assert pair.install("A", 3, 5, {"A": foo(-1, 0), "B": foo(1) | {Unit("bar")}}).error_code == 0


def test_session_timer_of_a_member_that_joins_with_compute_assignment() -> None:
    """S14: without the timer the member would never be removed."""
    scene = Scene(settings=settings())
    assert scene.join("m1", info()).error_code == ComputeAssignment.code
    assert scene.last is not None
    assert SetTimer(TimerKey(TimerKind.SESSION, GROUP, "m1"), 10_000) in scene.last.timers


def test_assignment_with_one_unit_twice_and_one_missing_is_rejected() -> None:
    """S9: the number of units is right."""
    scene = Scene.stable(settings(), epoch=10, connectors={"foo": 2}, members={"m1": FOO, "m2": ()})
    for member_id, owned in (("m1", FOO), ("m2", frozenset())):
        scene.heartbeat(member_id, 10, owned, full=True, assignors=(info(),))
    epoch = scene.current("m1").epoch
    scene.prepare("m1", epoch)
    share = {"m1": tasks(foo=[-1, 0]), "m2": tasks(foo=[0])}
    response = scene.install("m1", epoch, scene.group.epoch, share)
    assert response.error_code == InvalidAssignment.code
    assert scene.group.target_epoch < scene.group.epoch


def test_described_computing_member_is_empty_after_the_install() -> None:
    scene = Scene.stable(settings(), epoch=10, connectors={"foo": 2}, members={"m1": FOO})
    scene.heartbeat("m1", 10, assignors=(info(),))
    assert describe(scene.group).computing_member == "m1"
    scene.prepare("m1", 10)
    scene.install("m1", 10, scene.group.epoch, {"m1": FOO})
    assert describe(scene.group).computing_member == ""
