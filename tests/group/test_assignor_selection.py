"""Which assignor serves the group, and which member runs it: CN-01, CN-02, CN-10 and "Worker Selection"."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from connectgroup.errors import ComputeAssignment, UnsupportedAssignor
from connectgroup.group.kernel.outcome import TimerKind
from connectgroup.group.kernel.state import covers_all, listing_of, members_able_to_compute, select_assignor
from connectgroup.protocol.messages.assignment import InstalledMember
from connectgroup.protocol.messages.common import AssignorInfo, grouped
from connectgroup.protocol.records.connect import MemberRecord
from connectgroup.protocol.units import Units

from .builders import GROUP, UNASSIGNED, Scene, info, settings, tasks

FOO: Units = tasks(foo=[-1, 0])


def member(member_id: str, *assignors: AssignorInfo) -> MemberRecord:
    return MemberRecord(group_id=GROUP, member_id=member_id, assignors=assignors)


def ranges(**versions: tuple[int, int]) -> list[MemberRecord]:
    return [member(member_id, info("a", low, high)) for member_id, (low, high) in versions.items()]


def selected(members: list[MemberRecord]) -> str | None:
    return select_assignor(Counter(map(listing_of, members)))


# ---- which assignor


@pytest.mark.parametrize(
    ("listed", "chosen"),
    [
        pytest.param({"A": ["x"], "B": ["x"]}, "x", id="the only one"),
        pytest.param({"A": ["x", "y"], "B": ["y", "x"], "C": ["y"]}, "y", id="only one is listed by all"),
        pytest.param({"A": ["x", "y"], "B": ["x", "y"], "C": ["y", "x"]}, "x", id="most prefer it"),
        pytest.param({"A": ["y", "x"], "B": ["x", "y"]}, "x", id="equally preferred: by name"),
        pytest.param({"A": ["z", "y", "x"], "B": ["y", "x"], "C": ["z", "x", "y"]}, "y", id="first of the common ones"),
        pytest.param({"A": ["x"], "B": []}, None, id="one member lists none"),
        pytest.param({}, None, id="no members"),
    ],
)
def test_assignor_that_all_members_list_and_most_prefer(listed: dict[str, list[str]], chosen: str | None) -> None:
    """PD-06: the one that all members list; among several, the one that most members put first."""
    members = [member(member_id, *(info(name) for name in some)) for member_id, some in listed.items()]
    assert selected(members) == chosen
    assert selected(list(reversed(members))) == chosen


def test_assignor_without_a_common_version_is_not_chosen() -> None:
    """Both members prefer x, but they have no version of it in common."""
    members = [member("A", info("x", 1, 2), info("y", 0, 1)), member("B", info("x", 3, 4), info("y", 1, 5))]
    assert selected(members) == "y"


def test_assignor_is_chosen_in_time_linear_in_what_the_members_list() -> None:
    """Few members with many assignors, each in versions of its own, take no longer than many with few: by a join of
    one with a hundred, the others of the coordinator would lose their turn."""

    def took_s(members: int, assignors: int) -> float:
        listings = Counter(
            tuple((f"a{n}", 0, 1 if n else member + 1) for n in range(assignors)) for member in range(members)
        )
        began = time.process_time()
        assert select_assignor(listings) == "a0"
        return time.process_time() - began

    assert took_s(400, 400) < 5 * took_s(8_000, 20)


# ---- which member


@pytest.mark.parametrize(
    ("members", "able"),
    [
        pytest.param(ranges(A=(1, 5), B=(3, 4), C=(2, 4)), ["A"], id="CN-01: A supports the versions of all others"),
        pytest.param(ranges(B=(3, 4), C=(2, 4), A=(1, 5)), ["A"], id="CN-01 in another order"),
        pytest.param(
            [member("A", info("a", 1, 5, 3)), member("B", info("a", 3, 4, 3)), member("C", info("a", 2, 4, 3))],
            ["A"],
            id="even if all can read the present metadata",
        ),
        pytest.param(ranges(A=(1, 5), B=(1, 5), C=(2, 4)), ["A", "B"], id="two members"),
        pytest.param(ranges(A=(2, 2), B=(2, 2)), ["A", "B"], id="equal ranges"),
        pytest.param(ranges(A=(1, 4), B=(2, 5)), ["B"], id="no range covers all: B reads all metadata (4, 5)"),
        pytest.param(
            [member("A", info("a", 1, 3, 2)), member("B", info("a", 2, 5, 3)), member("C", info("a", 0, 3, 2))],
            ["A", "B", "C"],
            id="no range covers all: all read all metadata",
        ),
        pytest.param(
            [member("A", info("a", 1, 4, 1)), member("B", info("a", 2, 5, 5))], [], id="no member reads all metadata"
        ),
    ],
)
def test_cn_01_members_that_are_able_to_compute(members: list[MemberRecord], able: list[str]) -> None:
    """Source, "Worker Selection": "must select a worker which is able to handle all the supported versions"."""
    assert members_able_to_compute(members, "a", {member.member_id for member in members}) == able
    listings = Counter(map(listing_of, members))
    covering = [each.member_id for each in members if covers_all(each, "a", listings)]
    assert not covering or sorted(covering) == able


def test_cn_01_member_with_the_widest_version_range_computes() -> None:
    """CN-01 in a group; an Install with a version that B cannot read is rejected."""
    scene = Scene.stable(settings(), epoch=1, connectors={"foo": 1}, members={})
    for member_id, low, high in (("B", 3, 4), ("C", 2, 4), ("A", 1, 5)):
        scene.join(member_id, info("a", low, high))
    assert scene.group.computation is not None
    assert scene.group.computation.member_id == "A"
    # The response to its join asked it to compute. It rejoins at epoch 0, gets the target epoch, and is asked again.
    assert scene.join("A", info("a", 1, 5)).member_epoch == 1
    assert scene.heartbeat("A", 1).error_code == ComputeAssignment.code
    epoch = scene.group.epoch
    prepared = scene.prepare("A", 0)
    assert {shown.member_id: shown.assignor.version for shown in prepared.members} == {"A": 5, "B": 4, "C": 4}

    def install(version: int) -> int:
        return scene.install_members(
            "A",
            0,
            epoch,
            *(
                InstalledMember(member_id=who, units=grouped(FOO if who == "B" else UNASSIGNED), version=version)
                for who in "ABC"
            ),
        ).error_code

    assert install(2) != 0
    assert install(4) == 0
    assert scene.group.target("B").version == 4


def test_cn_02_member_that_lists_no_assignor_does_not_admit_two_incompatible_ones() -> None:
    """When it leaves or expires, members without a common assignor would remain, and the removal could not fail."""
    scene = Scene(settings=settings())
    scene.join("A", info("x"))
    scene.join("C")
    refused = scene.join("B", info("y"))
    assert refused.error_code == UnsupportedAssignor.code
    scene.expire(TimerKind.SESSION, "C")
    assert list(scene.group.members) == ["A"]


def test_coordinator_computes_if_a_member_lists_no_assignor() -> None:
    """PD-06: "or when a member lists none, the coordinator runs its own"."""
    scene = Scene.stable(settings(), epoch=1, connectors={"foo": 1}, members={})
    scene.join("A", info("a"))
    assert scene.group.target_epoch < scene.group.epoch
    scene.join("B")
    assert scene.group.target_epoch == scene.group.epoch
    assert scene.group.computed_by == "coordinator"


def test_last_computing_member_is_chosen_again() -> None:
    """Its assignor is known to work; the choice is the same on every replay."""
    scene = Scene.stable(settings(), epoch=1, connectors={"foo": 1}, members={})
    scene.join("B", info("a"))
    scene.prepare("B", 0)
    assert scene.install("B", 0, scene.group.epoch, {"B": FOO}).error_code == 0
    scene.join("A", info("a"))
    assert scene.group.computation is not None
    assert scene.group.computation.member_id == "B"
    scene.leave("B")
    assert scene.group.computation.member_id == "A"


# ---- what makes a new target necessary


def test_changed_timeout_or_address_does_not_bump_the_group_epoch() -> None:
    """A member record is written; the group epoch stays."""
    scene = Scene.stable(settings(), epoch=5, connectors={"foo": 1}, members={"m1": FOO}, rebalance_timeout_ms=7)
    scene.heartbeat("m1", 5, full=True)
    assert scene.group.members["m1"].rebalance_timeout_ms == 10_000
    assert scene.group.epoch == 5


def test_changing_from_client_side_to_server_side_and_back() -> None:
    """Naming one kind replaces the other, and is a change of assignors (cause 2)."""
    scene = Scene.stable(settings(), epoch=5, connectors={"foo": 1}, members={"m1": FOO})
    scene.heartbeat("m1", 5, assignors=(info("a"),))
    assert (scene.group.epoch, scene.group.target_epoch) == (6, 5)
    scene.heartbeat("m1", 5, server_assignor="round-robin")
    assert scene.group.members["m1"].assignors == ()
    assert (scene.group.epoch, scene.group.target_epoch) == (7, 7)
