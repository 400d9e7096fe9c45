"""The server-side assignor: its input for a connector's placement, and the delays it may request."""

from __future__ import annotations

from typing import Any

import pytest

from connectgroup.errors import InvalidRequest
from connectgroup.group.connect.describe import describe
from connectgroup.group.connect.settings import ServerAssignment
from connectgroup.protocol.messages.assignment import InstalledMember, PrepareResponse
from connectgroup.protocol.messages.common import entries, grouped, units_of
from connectgroup.protocol.messages.connectors import ConnectorChange
from connectgroup.protocol.records.connect import TargetState

from .builders import Scene, round_robin, settings, tasks

FOO = tasks(foo=[-1, 0, 1])
BAR = tasks(bar=[-1, 0])


def test_changed_placement_interrupts_no_task_that_may_stay() -> None:
    """A changed placement leads to a new target assignment; tasks that may stay are not interrupted."""
    inputs: list[PrepareResponse] = []

    def watched(prepared: PrepareResponse) -> tuple[InstalledMember, ...]:
        inputs.append(prepared)
        return round_robin(prepared)

    own = settings(server_assignor="watched", server_assignors={"watched": watched})
    scene = Scene.stable(own, epoch=10, connectors={"foo": 2}, members={"m1": FOO})
    config = entries({"name": "foo", "assignment.weight": "3", "assignment.task.weight": "5,1"})
    assert scene.update(ConnectorChange(connector="foo", config=config)).error_code == 0
    [shown] = inputs[-1].connectors
    assert (shown.num_tasks, shown.weight, shown.task_weights) == (2, 3, (5, 1))
    assert {entry.name for entry in shown.placement} == {"assignment.weight", "assignment.task.weight"}
    scene.heartbeat("m1", 10)
    kept = {unit: epoch for unit, epoch in scene.current("m1").assigned.items() if unit.task >= 0}
    assert kept == dict.fromkeys(tasks(foo=[0, 1]), 10)


def test_invalid_placement_is_rejected_when_it_is_written() -> None:
    scene = Scene.stable(settings(), epoch=10, connectors={"foo": 2}, members={"m1": FOO})
    config = entries({"name": "foo", "assignment.wait": "3"})
    refused = scene.update(ConnectorChange(connector="foo", config=config))
    assert refused.error_code == InvalidRequest.code
    assert refused.error_message is not None
    assert "assignment.weight (did you mean that?)" in refused.error_message
    assert scene.group.epoch == 10


@pytest.mark.parametrize("delay_ms", [5_000, 5_001])
def test_server_assignor_has_the_limits_of_a_delay_of_members(delay_ms: int) -> None:
    result = ServerAssignment(
        members=(InstalledMember(member_id="m1", units=grouped(FOO)),), delayed=grouped(BAR), delay_ms=delay_ms
    )
    own = settings(server_assignor="own", server_assignors={"own": lambda _: result}, max_delay_ms=5_000)
    scene = Scene.stable(own, epoch=10, connectors={"foo": 2, "bar": 1}, members={"m1": FOO})
    scene.join("m2")
    taken = delay_ms <= 5_000
    shown = describe(scene.group, scene.now_ms)
    assert (scene.group.target_epoch == scene.group.epoch) == taken
    assert [units_of(work.units) for work in shown.delayed] == ([BAR] if taken else [])
    assert ("server-side assignor own" in shown.assignor_error) != taken


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (None, "TypeError"),
        ((InstalledMember(member_id="m1", units=tuple(sorted(FOO | BAR))),), "AttributeError"),  # type: ignore[arg-type]
        (SystemExit("enough"), "SystemExit('enough')"),
    ],
    ids=["nothing", "units that are not grouped", "sys.exit"],
)
def test_invalid_result_of_a_server_assignor_rejects_no_join(result: Any, reason: str) -> None:
    """HB-18: the change that caused the computation is accepted; the assignor's failure is described in one line."""

    def odd(_: PrepareResponse) -> Any:
        if isinstance(result, BaseException):
            raise result
        return result

    own = settings(server_assignor="own", server_assignors={"own": odd})
    scene = Scene.stable(own, epoch=10, connectors={"foo": 2, "bar": 1}, members={"m1": FOO | BAR})
    assert scene.join("m2").error_code == 0
    error = describe(scene.group, scene.now_ms).assignor_error
    assert error.startswith("server-side assignor own: ")
    assert reason in error


def test_assignor_input_holds_runnable_units_only() -> None:
    """No task of a paused connector, no unit of a stopped or deleted one, and none of these as a current assignment."""
    inputs: list[PrepareResponse] = []

    def spy(prepared: PrepareResponse) -> tuple[InstalledMember, ...]:
        inputs.append(prepared)
        return round_robin(prepared)

    more = settings(server_assignor="spy", server_assignors={"spy": spy})
    shares = {"m1": FOO | BAR, "m2": tasks(gone=[-1, 0], off=[-1])}
    connectors = {"foo": 2, "bar": 1, "gone": 1, "off": 0}
    scene = Scene.stable(more, epoch=10, connectors=connectors, members=shares)
    for change in (
        ConnectorChange(connector="gone", delete=True),
        ConnectorChange(connector="off", target_state=TargetState.STOPPED),
        ConnectorChange(connector="bar", target_state=TargetState.PAUSED),
    ):
        assert scene.update(change).error_code == 0
        shown = [unit for share in inputs[-1].shares() for unit in share]
        assert set(shown) <= scene.group.runnable.keys()
        assert scene.group.target_epoch == scene.group.epoch, "the result is valid"
    assert [(c.connector, c.num_tasks) for c in inputs[-1].connectors] == [("bar", 0), ("foo", 2)]
