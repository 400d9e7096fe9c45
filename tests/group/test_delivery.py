"""Every target assignment is delivered to every member: PD-12."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from connectgroup.errors import FencedInstanceId, FencedMemberEpoch, InvalidRequest
from connectgroup.group.connect.group_type import step
from connectgroup.group.connect.settings import GroupSettings
from connectgroup.group.connect.state import ConnectGroupState
from connectgroup.group.kernel.outcome import Outcome
from connectgroup.protocol.messages.assignment import InstalledMember
from connectgroup.protocol.messages.common import ConfigEntry, grouped
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse, TaskStatus
from connectgroup.protocol.records.connect import TargetRecord
from connectgroup.protocol.units import Unit

from .builders import UNASSIGNED, FixedAssignor, Scene, added, foo, info, settings, units_at

A = info("a", 0, 3)
BAR = frozenset({Unit("bar")})


@pytest.fixture
def trio(fixed: FixedAssignor) -> Scene:
    """A{foo, foo-0} B{foo-1, foo-2} C{} list assignor "a"; a target for epoch 5 takes foo-2 away from B."""
    scene = Scene.stable(settings(fixed), epoch=1, connectors={"foo": 3}, members={})
    for member_id in "ABC":
        scene.join(member_id, A)
    scene.prepare("A", 0)
    assert scene.install("A", 0, 4, {"A": foo(-1, 0), "B": foo(1, 2), "C": UNASSIGNED}).error_code == 0
    for member_id in "ABC":
        scene.join(member_id, A)
    assert scene.group.behind == set()
    scene.update(added("bar"))
    scene.prepare("A", 4)
    members = (
        InstalledMember(member_id="A", units=grouped(foo(-1, 0)), version=1, metadata=b"stays", error=7),
        InstalledMember(member_id="B", units=grouped(foo(1)), version=2, metadata=b"shrinks"),
        InstalledMember(member_id="C", units=grouped(foo(2) | BAR), version=3, metadata=b"grows"),
    )
    assert scene.install_members("A", 4, 5, *members).error_code == 0
    return scene


def assignor_result(response: HeartbeatResponse) -> tuple[str, int, int, bytes]:
    """The assignor, and its result for the member."""
    assert response.assignment is not None
    assignment = response.assignment
    return assignment.assignor, assignment.error, assignment.version, assignment.metadata


def test_member_with_unchanged_units_gets_the_result_at_the_target_epoch(trio: Scene) -> None:
    response = trio.heartbeat("A", 4)
    assert units_at(response) == (5, ["foo", "foo-0"])
    assert assignor_result(response) == ("a", 7, 1, b"stays")
    assert units_at(trio.heartbeat("A", 5)) == (5, None), "delivered once"


def test_lost_response_is_repeated_with_the_result_of_the_assignor(trio: Scene) -> None:
    trio.heartbeat("A", 4, lost=True)
    assert assignor_result(trio.heartbeat("A", 4, foo(-1, 0), full=True)) == ("a", 7, 1, b"stays")


def test_member_with_fewer_units_gets_the_result_after_its_revocation(trio: Scene) -> None:
    response = trio.heartbeat("B", 4)
    assert units_at(response) == (4, ["foo-1"])
    assert assignor_result(response)[0] == "", "the target epoch is not reached yet"
    assert assignor_result(trio.heartbeat("B", 4, foo(1))) == ("a", 0, 2, b"shrinks")


def test_member_that_waits_for_units_gets_the_result_once(trio: Scene) -> None:
    trio.heartbeat("B", 4)
    assert assignor_result(trio.heartbeat("C", 4)) == ("a", 0, 3, b"grows")
    trio.heartbeat("B", 4, foo(1))
    response = trio.heartbeat("C", 5)
    assert units_at(response) == (5, ["bar", "foo-2"])


def test_member_that_joined_after_the_computation_gets_no_result(trio: Scene) -> None:
    response = trio.join("D", A)
    assert units_at(response) == (5, [])
    assert assignor_result(response)[0] == ""


def test_target_of_the_server_assignor_names_that_assignor(fixed: FixedAssignor) -> None:
    scene = Scene.stable(settings(fixed), epoch=10, connectors={"foo": 2}, members={"m1": foo(-1, 0, 1)})
    fixed.target = {"m1": foo(-1, 0, 1)}
    scene.update(added("bar"))
    fixed.target = {"m1": foo(-1, 0, 1) | BAR}
    scene.join("m2")
    assert assignor_result(scene.heartbeat("m1", 10))[0] == "fixed"


# --------------------------------------------------------------------------------------------------
# The outcome of a heartbeat that reports nothing is kept until a record changes the group (``kernel.state``).


SETTINGS = GroupSettings()
STEADY = HeartbeatRequest(group_id="g", member_id="a", member_epoch=1, process_id=7)


def send(group: ConnectGroupState, request: HeartbeatRequest, now_ms: int = 0) -> Outcome[Any]:
    return step(group, request, now_ms, SETTINGS)


@pytest.fixture
def group() -> ConnectGroupState:
    """A group whose only member is at the target epoch."""
    group = ConnectGroupState("g")
    join = replace(STEADY, member_epoch=0, rebalance_timeout_ms=60_000, server_assignor="balanced", owned=())
    settings = GroupSettings(server_assignors={"balanced": lambda prepared: ()})
    step(group, join, 0, settings)
    group.apply(TargetRecord(group_id="g", epoch=group.epoch))
    step(group, join, 0, settings)
    assert group.current("a").epoch == group.epoch
    return group


def fresh(group: ConnectGroupState, request: HeartbeatRequest) -> Outcome[Any]:
    """The outcome that the rules decide, with nothing kept."""
    group.heartbeat_cache.clear()
    return send(group, request)


def test_the_next_heartbeat_that_reports_nothing_has_the_outcome_that_the_rules_would_decide(
    group: ConnectGroupState,
) -> None:
    beat = replace(STEADY, member_epoch=group.epoch)
    first = fresh(group, beat)
    again = send(group, replace(beat, sequence=5, max_wait_ms=3_000, traceparent="t"), now_ms=99)
    assert again is first
    assert again == fresh(group, replace(beat, sequence=5, max_wait_ms=3_000))
    assert again.parks


def test_a_record_ends_the_kept_outcomes(group: ConnectGroupState) -> None:
    beat = replace(STEADY, member_epoch=group.epoch)
    send(group, beat)
    group.apply(replace(group.members["a"], restart_requested=True))
    asked = send(group, beat)
    assert asked.response.restart
    assert not asked.parks


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"process_id": 8}, FencedInstanceId.code),
        ({"member_epoch": 77}, FencedMemberEpoch.code),
        ({"max_wait_ms": -1}, InvalidRequest.code),
        ({"rack": "\n"}, InvalidRequest.code),
        ({"labels": (ConfigEntry(name="", value="x"),)}, InvalidRequest.code),
        ({"statuses": (TaskStatus(connector="c", task=0, owner_epoch=1, state=99),)}, InvalidRequest.code),
    ],
)
def test_a_heartbeat_that_differs_is_decided_by_the_rules(
    group: ConnectGroupState, changed: dict[str, Any], code: int
) -> None:
    beat = replace(STEADY, member_epoch=group.epoch)
    assert send(group, beat).response.error_code == 0
    assert send(group, replace(beat, **changed)).response.error_code == code


def test_a_full_heartbeat_gets_the_assignment(group: ConnectGroupState) -> None:
    beat = replace(STEADY, member_epoch=group.epoch)
    assert send(group, beat).response.assignment is None
    assert send(group, replace(beat, owned=(), rebalance_timeout_ms=60_000)).response.assignment is not None
