"""What the rules promise in passing: each of these could be broken without any other test noticing."""

from __future__ import annotations

from typing import Any

import pytest

from connectgroup.errors import ComputeAssignment, GroupIdNotFound, InvalidAssignment, NotCoordinator
from connectgroup.group.connect.describe import describe
from connectgroup.group.connect.handle import GroupRequest, refusal
from connectgroup.group.connect.state import replay
from connectgroup.group.kernel.timers import CancelTimer, SetTimer, TimerKey, TimerKind
from connectgroup.protocol.messages.assignment import (
    InstalledMember,
    InstallRequest,
    InstallResponse,
    PrepareRequest,
    PrepareResponse,
)
from connectgroup.protocol.messages.common import RestartRequest, entries, grouped, units_of
from connectgroup.protocol.messages.connectors import ConnectorChange, UpdateConnectorsRequest
from connectgroup.protocol.messages.describe import DeleteRequest, DeleteResponse, DescribeRequest, DescribeResponse
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest, TaskStatus
from connectgroup.protocol.records.connect import TargetState
from connectgroup.protocol.units import NO_UNITS

from .builders import GROUP, FixedAssignor, Scene, info, round_robin, settings, tasks

FOO = tasks(foo=[-1, 0, 1])
BAR = tasks(bar=[-1, 0])


def test_a_member_that_is_told_to_compute_is_timed_from_then_on() -> None:
    """It may be its first heartbeat, and its last: nothing else would ever remove it (S14)."""
    scene = Scene(settings=settings())
    assert scene.join("m1", info()).error_code == ComputeAssignment.code
    assert scene.last is not None
    assert SetTimer(TimerKey(TimerKind.SESSION, GROUP, "m1"), 10_000) in scene.last.timers


def test_a_member_that_goes_leaves_no_timer_behind() -> None:
    scene = Scene.at_rest(settings(), epoch=10, connectors={"foo": 2}, members={"m1": FOO, "m2": ()})
    scene.leave("m1")
    assert scene.last is not None
    for kind in (TimerKind.SESSION, TimerKind.REBALANCE):
        assert CancelTimer(TimerKey(kind, GROUP, "m1")) in scene.last.timers


@pytest.mark.parametrize("how", ["left", "silent", "fenced"])
def test_what_a_member_that_goes_had_stands_still_from_then_and_not_from_its_last_heartbeat(how: str) -> None:
    """The group may have been quiet for long: the last time in its log is then long past."""
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


def test_an_assignor_is_shown_what_there_is_to_run_now() -> None:
    """Not the tasks of a connector that is paused, nothing of one that is stopped or gone, also not as a share."""
    asked: list[PrepareResponse] = []

    def spy(question: PrepareResponse) -> tuple[InstalledMember, ...]:
        asked.append(question)
        return round_robin(question)

    more = settings(server_assignor="spy", server_assignors={"spy": spy})
    shares = {"m1": FOO | BAR, "m2": tasks(gone=[-1, 0], off=[-1])}
    connectors = {"foo": 2, "bar": 1, "gone": 1, "off": 0}
    scene = Scene.at_rest(more, epoch=10, connectors=connectors, members=shares)
    for change in (
        ConnectorChange(connector="gone", delete=True),
        ConnectorChange(connector="off", target_state=TargetState.STOPPED),
        ConnectorChange(connector="bar", target_state=TargetState.PAUSED),
    ):
        assert scene.update(change).error_code == 0
        shown = [unit for share in asked[-1].shares() for unit in share]
        assert set(shown) <= scene.group.runnable.keys()
        assert scene.group.target_epoch == scene.group.epoch, "the answer is legal"
    assert [(c.connector, c.num_tasks) for c in asked[-1].connectors] == [("bar", 0), ("foo", 2)]


def test_a_target_with_as_many_units_as_there_are_is_not_legal_for_that() -> None:
    """S9: one given twice, one to nobody; as many as there are in all."""
    scene = Scene.at_rest(settings(), epoch=10, connectors={"foo": 2}, members={"m1": FOO, "m2": ()})
    for member_id, owned in (("m1", FOO), ("m2", frozenset())):
        scene.heartbeat(member_id, 10, owned, full=True, assignors=(info(),))
    epoch = scene.current("m1").epoch
    scene.prepare("m1", epoch)
    share = {"m1": tasks(foo=[-1, 0]), "m2": tasks(foo=[0])}
    answer = scene.install("m1", epoch, scene.group.epoch, share)
    assert answer.error_code == InvalidAssignment.code
    assert scene.group.target_epoch < scene.group.epoch


def test_an_assignor_that_asks_for_no_more_delay_has_none() -> None:
    """Each answer replaces the one before, in what it holds back as well: what is given again must not wait as well."""
    scene = Scene.at_rest(settings(), epoch=10, connectors={"foo": 2}, members={"m1": FOO})
    for reason, held, delay_ms in ((1, tasks(foo=[1]), 5_000), (2, NO_UNITS, 0)):
        scene.heartbeat("m1", 10, assignors=(info(reason=reason),))
        scene.prepare("m1", 10)
        request = InstallRequest(
            group_id=GROUP,
            member_id="m1",
            member_epoch=10,
            group_epoch=scene.group.epoch,
            members=(InstalledMember(member_id="m1", units=grouped(FOO - held)),),
            delayed=grouped(held),
            delay_ms=delay_ms,
        )
        assert scene.answer(scene.act(request), InstallResponse).error_code == 0
        assert list(scene.group.delays) == ([""] if held else [])
    assert scene.last is not None
    assert CancelTimer(TimerKey(TimerKind.DELAY, GROUP)) in scene.last.timers


def test_where_all_members_are_draining_a_new_connector_is_run_all_the_same() -> None:
    """They keep what they have, and there is nobody else to give it to."""
    scene = Scene.at_rest(settings(), epoch=10, connectors={"foo": 2}, members={"m1": FOO})
    scene.heartbeat("m1", 10, FOO, full=True, draining=True)
    scene.update(ConnectorChange(connector="bar", config=entries({"name": "bar"})))
    assert scene.group.target_epoch == scene.group.epoch == 12
    assert scene.group.target("m1").units == FOO | tasks(bar=[-1])


@pytest.mark.parametrize(("jump_ms", "left_ms"), [(0, 60_000), (-3_600_000, 60_000), (3_600_000, 0)])
def test_what_is_shown_of_a_delay_is_never_below_nothing_nor_above_the_whole(jump_ms: int, left_ms: int) -> None:
    """F14: people and assignors decide by it."""
    shares = {"m1": FOO, "m2": BAR}
    scene = Scene.at_rest(
        settings(scheduled_delay_ms=60_000), epoch=10, connectors={"foo": 2, "bar": 1}, members=shares
    )
    scene.expire(TimerKind.SESSION, "m2")
    assert [work.left_ms for work in describe(scene.group, scene.now_ms + jump_ms).delayed] == [left_ms]


def test_a_computation_is_not_put_off_by_a_clock_that_was_set_back() -> None:
    """F14: nobody would compute until the clock has caught up."""
    fixed = FixedAssignor()
    fixed.shares = {"m1": FOO}
    scene = Scene.at_rest(
        settings(fixed, assignment_interval_ms=5_000), epoch=10, connectors={"foo": 2}, members={"m1": FOO}
    )
    scene.join("m2")
    scene.now_ms += 1_000
    scene.join("m3")
    assert fixed.calls == 1, "within the interval"
    scene.now_ms -= 900_000
    scene.heartbeat("m1", 10)
    assert fixed.calls == 2
    assert scene.group.target_epoch == scene.group.epoch


def test_an_assignor_is_not_asked_again_at_once_because_it_says_so() -> None:
    """L2: one that always asks for the shortest delay would keep the group busy with nothing else."""
    scene = Scene.at_rest(settings(), epoch=10, connectors={"foo": 2}, members={"m1": FOO})
    scene.heartbeat("m1", 10, assignors=(info(),))
    scene.prepare("m1", 10)
    request = InstallRequest(
        group_id=GROUP,
        member_id="m1",
        member_epoch=10,
        group_epoch=11,
        members=(InstalledMember(member_id="m1", units=grouped(FOO)),),
        delay_ms=1,
    )
    assert scene.answer(scene.act(request), InstallResponse).error_code == 0
    assert scene.last is not None
    assert SetTimer(TimerKey(TimerKind.DELAY, GROUP), 1_000) in scene.last.timers


# --------------------------------------------------------------------------------------------------
# Lost workers and their work


def test_a_draining_worker_that_dies_halfway_is_not_waited_for() -> None:
    """It was going, and what of its work it still had is in its share only because a round moves so much at a time."""
    scene = Scene.at_rest(
        settings(scheduled_delay_ms=60_000, max_moves=1),
        epoch=10,
        connectors={"foo": 2},
        members={"m1": FOO, "m2": ()},
    )
    scene.heartbeat("m1", 10, FOO, full=True, draining=True)
    scene.expire(TimerKind.SESSION, "m1")
    assert scene.group.delays == {}


def test_a_worker_that_comes_back_only_to_go_is_not_given_its_work_back() -> None:
    """It would be started there and moved away again."""
    scene = Scene.at_rest(
        settings(scheduled_delay_ms=60_000), epoch=10, connectors={"foo": 2, "bar": 1}, members={"m1": FOO, "m2": BAR}
    )
    scene.expire(TimerKind.SESSION, "m2")
    scene.heartbeat("m1", 10, FOO)
    answer = scene.heartbeat("m2", 0, NO_UNITS, full=True, draining=True)
    assert not scene.group.target("m2").units
    assert answer.assignment is None or not answer.assignment.units
    assert scene.group.target("m1").units == FOO | BAR


def test_what_waits_for_a_lost_worker_does_not_wait_a_second_time_because_an_assignor_says_so() -> None:
    """It is shown once, and its time is over when its worker's is."""
    scene = Scene.at_rest(
        settings(scheduled_delay_ms=60_000), epoch=10, connectors={"foo": 2, "bar": 1}, members={"m1": FOO, "m2": BAR}
    )
    for member_id, owned in (("m1", FOO), ("m2", BAR)):
        scene.heartbeat(member_id, 10, owned, full=True, assignors=(info(),))
    scene.prepare("m1", 10)
    scene.install("m1", 10, scene.group.epoch, {"m1": FOO, "m2": BAR})
    for member_id, owned in (("m1", FOO), ("m2", BAR)):
        scene.heartbeat(member_id, 10, owned)
    scene.expire(TimerKind.SESSION, "m2")
    epoch = scene.current("m1").epoch
    delayed = tasks(foo=[1]) | BAR
    scene.prepare("m1", epoch)
    request = InstallRequest(
        group_id=GROUP,
        member_id="m1",
        member_epoch=epoch,
        group_epoch=scene.group.epoch,
        members=(InstalledMember(member_id="m1", units=grouped(FOO - delayed)),),
        delayed=grouped(delayed),
        delay_ms=600_000,
    )
    assert scene.answer(scene.act(request), InstallResponse).error_code == 0
    shown = {work.member_id: units_of(work.units) for work in describe(scene.group, scene.now_ms).delayed}
    assert shown == {"": tasks(foo=[1]), "m2": BAR}


# --------------------------------------------------------------------------------------------------
# The end of a group, and a group in words


def test_what_tasks_said_of_themselves_ends_with_their_group() -> None:
    """Else a group made again under the name would show the states of the first."""
    scene = Scene.at_rest(settings(), epoch=10, connectors={"foo": 2}, members={"m1": FOO})
    scene.heartbeat("m1", 10, statuses=(TaskStatus(connector="foo", task=1, owner_epoch=10, state=1),))
    scene.leave("m1")
    assert scene.group.statuses
    scene.act(DeleteRequest(group_ids=(GROUP,)))
    assert not scene.group.statuses
    assert not replay(GROUP, scene.log).statuses


def test_what_waits_for_a_member_that_is_away_is_shown_as_waiting_whatever_was_last_said_of_it() -> None:
    scene = Scene.at_rest(
        settings(), epoch=10, connectors={"foo": 2}, members={"m1": FOO, "m2": ()}, instances={"m1": "i1"}
    )
    scene.heartbeat("m1", 10, statuses=(TaskStatus(connector="foo", task=1, owner_epoch=10, state=1, message="busy"),))
    scene.go_away("m1", "i1")
    [connector] = describe(scene.group).connectors
    assert {(unit.member_id, unit.state, unit.message) for unit in connector.units} == {("m1", "WAITING", "")}


def test_who_computed_is_not_shown_as_computing_when_its_target_is_there() -> None:
    scene = Scene.at_rest(settings(), epoch=10, connectors={"foo": 2}, members={"m1": FOO})
    scene.heartbeat("m1", 10, assignors=(info(),))
    assert describe(scene.group).computing_member == "m1"
    scene.prepare("m1", 10)
    scene.install("m1", 10, scene.group.epoch, {"m1": FOO})
    assert describe(scene.group).computing_member == ""


@pytest.mark.parametrize(
    "request_",
    [
        HeartbeatRequest(group_id="gone", member_id="m", member_epoch=3),
        PrepareRequest(group_id="gone", member_id="m", member_epoch=3),
        InstallRequest(group_id="gone", member_id="m", member_epoch=3, group_epoch=3),
        UpdateConnectorsRequest(group_id="gone", changes=()),
        DescribeRequest(group_ids=("gone",)),
        DeleteRequest(group_ids=("gone",)),
        RestartRequest(group_id="gone", member_id="m"),
    ],
    ids=lambda request: type(request).__name__,
)
def test_whatever_is_turned_down_is_told_so_where_its_sender_looks(request_: GroupRequest) -> None:
    """Two answers have an error a group and none of their own."""
    answer: Any = refusal(request_, NotCoordinator("another has taken over"))
    unit_indices: dict[type, str] = {DescribeResponse: "groups", DeleteResponse: "results"}
    inside = unit_indices.get(type(answer))
    for told in getattr(answer, inside) if inside else (answer,):
        assert (told.error_code, told.error_message) == (NotCoordinator.code, "another has taken over")
        assert getattr(told, "group_id", "gone") == "gone"


def test_a_group_that_is_not_there_is_described_as_not_there() -> None:
    """Not as one that is empty: an operator may have mistyped its name."""
    shown = describe(Scene(settings=settings()).group)
    assert (shown.error_code, shown.group_id, shown.state) == (GroupIdNotFound.code, GROUP, "")
    assert shown.error_message == "GroupId: got 'workers'; there is no such group"


def test_a_group_that_all_have_left_is_shown_as_empty() -> None:
    scene = Scene.at_rest(settings(), epoch=10, connectors={"foo": 2}, members={"m1": FOO})
    scene.leave("m1")
    assert describe(scene.group).state == "Empty"
