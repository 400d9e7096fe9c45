"""Deletion of a group: only its creation time is kept (KAFKA-19163; owner epochs must keep increasing)."""

from __future__ import annotations

import pytest

from connectgroup.errors import GroupIdNotFound, InvalidGroupId, NonEmptyGroup
from connectgroup.group.connect.describe import describe
from connectgroup.group.connect.state import ConnectGroupState
from connectgroup.group.kernel.outcome import CancelTimer, TimerKey, TimerKind
from connectgroup.protocol.messages.describe import DeletedGroup, DeleteRequest, DeleteResponse
from connectgroup.protocol.messages.heartbeat import TaskStatus
from connectgroup.protocol.records.base import Tombstone

from .builders import GROUP, Scene, added, settings, tasks
from .invariants import compacted, group_state

FOO = tasks(foo=[-1, 0, 1])


@pytest.fixture
def scene() -> Scene:
    """A group with members, connectors, statuses and a history."""
    return Scene.stable(
        settings(scheduled_delay_ms=60_000),
        epoch=10,
        connectors={"foo": 2},
        members={"m1": tasks(foo=[-1, 0]), "m2": tasks(foo=[1])},
        instances={"m2": "i2"},
    )


def deleted(scene: Scene, group_id: str = GROUP) -> DeletedGroup:
    response = scene.response_of(scene.act(DeleteRequest(group_ids=(group_id,))), DeleteResponse)
    [result] = response.results
    return result


def test_group_with_members_is_not_deleted(scene: Scene) -> None:
    refused = deleted(scene)
    assert refused.error_code == NonEmptyGroup.code
    assert refused.error_message == "group workers has 2 members; allowed: a group without members"
    scene.leave("m1")
    scene.leave_temporarily("m2", "i2")
    assert deleted(scene).error_code == NonEmptyGroup.code, "m2 has only left temporarily"


def test_deletion_removes_every_key_of_the_group(scene: Scene) -> None:
    for member_id in ("m2", "m1"):
        scene.leave(member_id)
    assert deleted(scene) == DeletedGroup(group_id=GROUP)
    live = {record.key for record in scene.log if not isinstance(record, Tombstone)}
    dead = {record.key for record in scene.records if isinstance(record, Tombstone)}
    gone_before = {record.key for record in scene.log if isinstance(record, Tombstone)}
    assert live - gone_before - dead == {scene.records[-1].key}
    assert not scene.group.exists
    nothing = group_state(ConnectGroupState(GROUP))
    assert group_state(scene.group) == nothing
    assert group_state(ConnectGroupState.replay(GROUP, compacted(scene.log))) == nothing
    assert deleted(scene).error_code == GroupIdNotFound.code


def test_recreated_group_has_a_later_incarnation_whatever_the_clock(scene: Scene) -> None:
    """Else its owner epochs would be lower than those that the sinks have stored, and its tasks could not write."""
    scene.group.created_ms = 5_000_000
    for member_id in ("m2", "m1"):
        scene.leave(member_id)
    deleted(scene)
    scene.now_ms -= 500_000
    scene.update(added("bar"))
    assert (scene.group.epoch, scene.group.created_ms) == (1, 5_001_000)
    assert ConnectGroupState.replay(GROUP, compacted(scene.log)).created_ms == 5_001_000


def test_delayed_units_end_with_the_group(scene: Scene) -> None:
    scene.expire(TimerKind.SESSION, "m1")
    scene.leave("m2")
    assert scene.group.delays
    outcome = scene.act(DeleteRequest(group_ids=(GROUP,)))
    assert scene.group.delays == {}
    assert CancelTimer(TimerKey(TimerKind.DELAY, GROUP, "m1")) in outcome.timers


@pytest.mark.parametrize("name", ["", " ", ".", "x" * 250])
def test_invalid_group_id(name: str) -> None:
    scene = Scene(settings=settings(), group=ConnectGroupState(name), check_replay=False)
    assert deleted(scene, name).error_code == InvalidGroupId.code


def test_task_statuses_end_with_the_group() -> None:
    """Else a group created again under the name would describe the states of the deleted one."""
    scene = Scene.stable(settings(), epoch=10, connectors={"foo": 2}, members={"m1": FOO})
    scene.heartbeat("m1", 10, statuses=(TaskStatus(connector="foo", task=1, owner_epoch=10, state=1),))
    scene.leave("m1")
    assert scene.group.statuses
    scene.act(DeleteRequest(group_ids=(GROUP,)))
    assert not scene.group.statuses
    assert not ConnectGroupState.replay(GROUP, scene.log).statuses


def test_unknown_group_is_described_with_an_error() -> None:
    """Not as an empty group: an operator may have mistyped its name."""
    shown = describe(Scene(settings=settings()).group)
    assert (shown.error_code, shown.group_id, shown.state) == (GroupIdNotFound.code, GROUP, "")
    assert shown.error_message == "GroupId: got 'workers'; there is no such group"
