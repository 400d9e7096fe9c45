"""Every target assignment is delivered to every member: PD-12."""

from __future__ import annotations

import pytest

from connectgroup.protocol.messages.assignment import InstalledMember
from connectgroup.protocol.messages.common import grouped
from connectgroup.protocol.messages.heartbeat import HeartbeatResponse
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
