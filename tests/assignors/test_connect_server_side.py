"""A failing server-side assignor: one line in describe, the old target stays, the group continues (HB-18)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from connectgroup.assign.api import ConnectAssignment, ConnectAssignor, ConnectAssignorInput
from connectgroup.assign.convert import group_from_prepare, members_for_install
from connectgroup.assign.members import ConnectMemberAssignment
from connectgroup.assignors.balanced import BalancedAssignor
from connectgroup.assignors.weighted import LATER_MS, WeightedAssignor
from connectgroup.coordinator.compute import as_server_assignor
from connectgroup.errors import InvalidRequest, PluginError
from connectgroup.group.connect.describe import describe
from connectgroup.group.connect.settings import ServerAssignment, ServerAssignorCall
from connectgroup.protocol.messages.assignment import (
    InstalledMember,
    PreparedConnector,
    PreparedMember,
    PrepareResponse,
)
from connectgroup.protocol.messages.common import ConfigEntry, entries, units_of
from connectgroup.protocol.messages.connectors import ConnectorChange
from connectgroup.protocol.units import NO_UNITS, Units
from tests.group.builders import Scene, settings

from .tables import units


class Switchable(ConnectAssignor):
    """Balanced until ``bad`` is set."""

    name = "turning"

    def __init__(self) -> None:
        self.bad: Callable[[ConnectAssignorInput], Any] | None = None

    def assign(self, group: ConnectAssignorInput) -> ConnectAssignment:
        result: ConnectAssignment = self.bad(group) if self.bad else BalancedAssignor().assign(group)
        return result


def mutates(group: ConnectAssignorInput) -> Any:
    columns = group.columns()
    columns.unit_owner[:] = 0
    return ConnectAssignment.from_columns(columns, columns.unit_owner)


def gives(member_id: str, given: Units) -> Callable[[ConnectAssignorInput], ConnectAssignment]:
    share = ConnectMemberAssignment(member_id=member_id, units=given)
    return lambda _: ConnectAssignment(members=[share])


def twice(group: ConnectAssignorInput) -> ConnectAssignment:
    shares = [ConnectMemberAssignment(member_id=name, units=frozenset(group.units)) for name in ("m1", "m2")]
    return ConnectAssignment(members=shares)


BAD: dict[str, tuple[Callable[[ConnectAssignorInput], Any], str]] = {
    "raises": (lambda _: 1 / 0, "assign raised ZeroDivisionError: division by zero"),
    "exits": (lambda _: sys.exit(7), "assign raised SystemExit: 7"),
    "nothing": (lambda _: None, "assign returned None; allowed: ConnectAssignment"),
    "wrong type": (lambda _: 17, "assign returned a int; allowed: ConnectAssignment"),
    "mutates": (mutates, "assign raised ValueError: assignment destination is read-only"),
    "unknown member": (gives("unknown", units("foo foo-0 foo-1")), "unknown is not a member"),
    "duplicate": (twice, "foo is assigned twice: to m1 and m2"),
    "leaves out": (lambda _: ConnectAssignment(), "foo is not assigned"),
    "invalid message": (lambda _: ConnectAssignment(message=b"x"), "message: got a bytes; allowed: a string"),  # type: ignore[arg-type]
    "invalid metadata": (
        lambda group: ConnectAssignment.from_columns(group.columns(), np.zeros(3, int), assignor_state="x"),  # type: ignore[arg-type]
        "metadata: got a str; allowed: bytes",
    ),
    "own error": (lambda _: ConnectAssignment(error=5, message="will not"), "will not"),
}
MEMBERS = {"m1": units("foo foo-0 foo-1"), "m2": NO_UNITS}


def scene_with(assign: ServerAssignorCall, members: dict[str, Units] = MEMBERS) -> Scene:
    """A settled group with one connector of two tasks."""
    more = settings(server_assignor="here", server_assignors={"here": assign})
    return Scene.stable(more, epoch=10, connectors={"foo": 2}, members=members)


@pytest.mark.parametrize("bad", BAD)
def test_failing_server_assignor_is_one_line_and_the_group_continues(bad: str) -> None:
    """F19, F21."""
    assignor = Switchable()
    scene = scene_with(as_server_assignor(assignor))
    assignor.bad, line = BAD[bad]
    assert scene.join("m3").error_code == 0, "the change is accepted"
    message = describe(scene.group).assignor_error
    assert line in message
    assert "turning" in message or bad == "own error"
    assert message.isprintable()
    assert {name: scene.group.target(name).units for name in MEMBERS} == MEMBERS, "the old target stays"
    assignor.bad = None
    scene.leave("m2")
    assert scene.group.epoch == scene.group.target_epoch
    assert len(scene.group.target("m3").units) >= 1
    assert describe(scene.group).assignor_error == "", "the error is cleared"


def test_unschedulable_unit_is_reported_and_the_rest_assigned() -> None:
    """``assignment.labels`` end to end: configuration, assignor input, result, describe."""
    scene = scene_with(as_server_assignor(WeightedAssignor()))
    changed = scene.update(change(**{"assignment.labels": "gpu=true"}))
    assert changed.error_code == 0
    shown = describe(scene.group, scene.now_ms)
    assert shown.assignor_error == "foo: needs label gpu=true; 0 of 2 workers have it"
    assert units_of(shown.delayed[0].units) == units("foo")
    assert shown.delayed[0].left_ms == LATER_MS
    assert scene.group.epoch == scene.group.target_epoch
    assert scene.update(change()).error_code == 0
    shown = describe(scene.group, scene.now_ms)
    assert (shown.assignor_error, shown.delayed) == ("", ())


def test_changed_placement_does_not_restart_a_task() -> None:
    """A changed weight does not restart a task; any other change does (KAFKA-9228)."""
    scene = scene_with(as_server_assignor(WeightedAssignor()))
    config = scene.group.connectors["foo"].config
    heavier = (*config, ConfigEntry(name="assignment.task.weight", value="7"))
    assert scene.update(ConnectorChange(connector="foo", config=heavier)).error_code == 0
    assert [len(record.tasks) for record in scene.group.connectors.values()] == [2]
    other = (*heavier, ConfigEntry(name="other", value="7"))
    assert scene.update(ConnectorChange(connector="foo", config=other)).error_code == 0
    assert [len(record.tasks) for record in scene.group.connectors.values()] == [0]


def test_assignor_input_has_weights_and_placement() -> None:
    inputs: list[PrepareResponse] = []

    def spy(input_group: PrepareResponse) -> ServerAssignment:
        inputs.append(input_group)
        raise PluginError("enough")

    scene = scene_with(spy)
    settings = {"assignment.weight": "3", "assignment.task.weight": "5", "assignment.labels": "gpu=true"}
    config = {entry.name: entry.value for entry in scene.group.connectors["foo"].config}
    scene.update(ConnectorChange(connector="foo", config=entries({**config, **settings})))
    assert inputs[-1].connectors == (
        PreparedConnector(connector="foo", num_tasks=2, weight=3, task_weights=(5, 5), placement=entries(settings)),
    )


@pytest.mark.parametrize(
    ("setting", "value", "line"),
    [
        ("assignment.lables", "a=b", "assignment.lables: unknown; allowed: assignment.labels (did"),
        ("assignment.labels", "gpu", "assignment.labels: got 'gpu'; allowed: name=value, each name once"),
        ("assignment.labels", "a=1,a=2", "assignment.labels: got 'a=2'; allowed: name=value, each name once"),
        ("assignment.weight", "-1", "assignment.weight: got '-1'; allowed: a whole number from 0 to 1000000"),
        ("assignment.task.weight", "1,x", "assignment.task.weight: got 'x'; allowed: a whole number"),
        ("assignment.max.per.worker", "0", "assignment.max.per.worker: got '0'; allowed: a whole number from 1"),
        ("assignment.exclusive", ",", "assignment.exclusive: got ','; allowed: 1 to 64 words"),
    ],
)
def test_invalid_placement_is_rejected_where_it_is_written(setting: str, value: str, line: str) -> None:
    scene = scene_with(as_server_assignor(WeightedAssignor()))
    refused = scene.update(change(**{setting: value}))
    assert refused.error_code == InvalidRequest.code
    assert (refused.error_message or "").startswith(f"connector foo: {line}")


def test_assignor_state_is_passed_to_the_same_assignor_only() -> None:
    """The assignor state is opaque: one assignor's bytes mean nothing to another."""
    inputs: list[PrepareResponse] = []

    def notes(input_group: PrepareResponse) -> tuple[InstalledMember, ...]:
        inputs.append(input_group)
        result = BalancedAssignor().assign(group_from_prepare(input_group))
        return tuple(replace(each, metadata=b"n%d" % len(inputs)) for each in members_for_install(result))

    scene = scene_with(notes)
    scene.join("m3")
    scene.join("m4")
    states = {member.member_id: member.assignor_state for member in inputs[-1].members}
    assert states == {"m1": b"n1", "m2": b"n1", "m3": b"n1", "m4": b""}
    scene.settings.server_assignors["other"] = notes  # type: ignore[index]
    for member_id in ("m1", "m2", "m3", "m4"):
        scene.heartbeat(member_id, scene.current(member_id).epoch, server_assignor="other")
    first = next(input_group for input_group in inputs if input_group.assignor_name == "other")
    assert {member.assignor_state for member in first.members} == {b""}


def change(**config: str) -> ConnectorChange:
    return ConnectorChange(connector="foo", config=entries({"connector.class": "x", **config}))


def test_member_of_the_input_has_all_its_properties() -> None:
    prepared = PrepareResponse(
        members=(PreparedMember(member_id="m", member_epoch=1, assignor_state=b"note"),),
        connectors=(PreparedConnector(connector="a", num_tasks=1, placement=entries({"assignment.affinity": "b"})),),
    )
    group = group_from_prepare(prepared)
    assert group.members[0].assignor_state == b"note"
    assert group.columns().member_assignor_state == (b"note",)
    assert group.connectors[0].placement.affinity == ("b",)
    unreadable = PreparedConnector(connector="a", num_tasks=1, placement=entries({"assignment.new": "b"}))
    with pytest.raises(PluginError, match=r"connector a: assignment\.new: unknown"):
        group_from_prepare(PrepareResponse(connectors=(unreadable,)))
