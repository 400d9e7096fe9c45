"""The state of a group as numbers, for metrics."""

from __future__ import annotations

from connectgroup.group.connect.group_type import ConnectGroupType
from connectgroup.group.kernel.timers import TimerKind
from connectgroup.group.registry import ConnectorNumbers, GroupNumbers
from connectgroup.protocol.messages.connectors import ConnectorChange
from connectgroup.protocol.records.connect import ComputationRecord, TargetState
from connectgroup.wire import classic_worker

from .builders import GROUP, FixedAssignor, Scene, foo, settings


def measure(scene: Scene) -> GroupNumbers:
    return ConnectGroupType(settings(), classic_worker).measure(scene.group)


def test_group_at_rest(rest: Scene) -> None:
    assert measure(rest) == GroupNumbers(
        members=2,
        epoch=100,
        target_epoch=100,
        computed_by=rest.group.computed_by,
        connectors={"foo": ConnectorNumbers(tasks=4)},
    )


def test_units_of_a_lost_member_are_delayed_and_its_tasks_unassigned(fixed: FixedAssignor) -> None:
    scene = Scene.stable(
        settings(fixed, scheduled_delay_ms=60_000),
        epoch=10,
        connectors={"foo": 2},
        members={"m0": foo(-1, 0), "m1": foo(1)},
    )
    scene.expire(TimerKind.SESSION, "m0")
    numbers = measure(scene)
    assert (numbers.members, numbers.delayed_units, numbers.is_rebalancing) == (1, 2, True)
    assert numbers.connectors == {"foo": ConnectorNumbers(tasks=2, unassigned=1)}


def test_tasks_of_a_paused_connector_are_not_unassigned(rest: Scene) -> None:
    rest.update(ConnectorChange(connector="foo", target_state=TargetState.PAUSED))
    assert measure(rest).connectors == {"foo": ConnectorNumbers(tasks=4, paused=4)}


def test_failed_computations_are_counted(rest: Scene) -> None:
    rest.put(ComputationRecord(group_id=GROUP, epoch=101, member_id="m0", failures=2))
    assert measure(rest).computation_failures == 2
