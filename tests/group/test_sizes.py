"""An accepted group fits its frames and log batches; a change that would exceed them is rejected."""

from __future__ import annotations

from dataclasses import replace

import pytest

from connectgroup import wire
from connectgroup.errors import InvalidRequest
from connectgroup.group.connect.describe import describe
from connectgroup.group.connect.group_type import ConnectGroupType, step
from connectgroup.group.connect.settings import GroupSettings
from connectgroup.group.connect.state import MAX_GROUP_BYTES, ConnectGroupState, connector_bytes
from connectgroup.group.kernel.outcome import TimerKind
from connectgroup.group.registry import ConnectorNumbers, GroupNumbers
from connectgroup.log.base import MAX_BATCH_BYTES, encode_batch
from connectgroup.protocol.messages.common import AssignorInfo, entries, grouped
from connectgroup.protocol.messages.connectors import (
    ConnectorChange,
    TaskConfig,
    UpdateConnectorsRequest,
    UpdateConnectorsResponse,
)
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from connectgroup.protocol.records.connect import (
    ComputationRecord,
    ConnectorRecord,
    CurrentRecord,
    GroupRecord,
    MemberRecord,
    MemberState,
    Record,
    StatusRecord,
    TargetMemberRecord,
    TargetRecord,
    TargetState,
    TaskEntry,
    UnitState,
    held,
)
from connectgroup.protocol.units import Unit
from connectgroup.wire import embedded
from tests.volume import ci_only

from .builders import GROUP, FixedAssignor, Scene, foo, settings

FRAME = 8 << 20
SETTINGS = GroupSettings(max_units=200_000)
OWNER = "worker-1"


def group_of(*connectors: ConnectorRecord, group_id: str = "g") -> ConnectGroupState:
    """A stable group whose only member owns the connectors, but no task yet."""
    units = [Unit(connector.connector) for connector in connectors]
    group = ConnectGroupState(group_id)
    records: list[Record] = [
        GroupRecord(group_id=group_id, epoch=1, created_ms=1),
        MemberRecord(group_id=group_id, member_id=OWNER, rebalance_timeout_ms=60_000),
        *connectors,
        TargetMemberRecord(group_id=group_id, member_id=OWNER, units=grouped(units)),
        TargetRecord(group_id=group_id, epoch=1),
        CurrentRecord(
            group_id=group_id,
            member_id=OWNER,
            epoch=1,
            previous_epoch=1,
            state=MemberState.STABLE,
            assigned=held(dict.fromkeys(units, 1)),
        ),
    ]
    for record in records:
        group.apply(record)
    return group


def connector(
    name: str = "c", *, group_id: str = "g", tasks: int = 0, value: str = "", **config: str
) -> ConnectorRecord:
    return ConnectorRecord(
        group_id=group_id,
        connector=name,
        version=1,
        since_epoch=1,
        config=entries(config),
        tasks=tuple(TaskEntry(config=entries({"task": str(task), "v": value}), since_epoch=1) for task in range(tasks)),
    )


def lists(count: int, value: str = "") -> tuple[TaskConfig, ...]:
    return tuple(TaskConfig(config=entries({"task": str(task), "v": value})) for task in range(count))


def update(
    group: ConnectGroupState, change: ConnectorChange, *, member_id: str | None = None
) -> UpdateConnectorsResponse:
    request = UpdateConnectorsRequest(group_id=group.group_id, member_id=member_id, changes=(change,))
    response = step(group, request, 1_000, SETTINGS).response
    assert isinstance(response, UpdateConnectorsResponse)
    return response


def publish(group: ConnectGroupState, tasks: tuple[TaskConfig, ...], name: str = "c") -> UpdateConnectorsResponse:
    return update(group, ConnectorChange(connector=name, task_configs=tasks, owner_epoch=1), member_id=OWNER)


def test_task_list_that_exceeds_the_group_size_is_rejected() -> None:
    group = group_of(connector())
    response = publish(group, lists(30_000, "x" * 300))
    assert response.error_code == InvalidRequest.code
    assert response.error_message is not None
    assert response.error_message.startswith("connector c: TaskConfigs: got 30000 tasks of ")
    assert f"; allowed: at most {MAX_GROUP_BYTES}, of the {MAX_GROUP_BYTES} bytes for all" in response.error_message
    assert group.connectors["c"].tasks == ()
    assert publish(group, lists(10_000, "x" * 300)).error_code == 0


def test_size_limit_covers_all_connectors_of_the_group() -> None:
    group = group_of(connector("a"), connector("b"))
    assert publish(group, lists(15_000, "x" * 300), "a").error_code == 0
    refused = publish(group, lists(15_000, "x" * 300), "b")
    assert refused.error_code == InvalidRequest.code
    assert refused.results[0].connector == "b"
    added = update(group, ConnectorChange(connector="d", config=entries({"v": "x" * 3_000_000})))
    assert added.error_message is not None
    assert added.error_message.startswith("connector d: Config: got a configuration of 30000")


def test_size_limit_counts_all_changes_of_one_request() -> None:
    """What a change before has freed, and what it has taken."""

    def put(*changes: tuple[str, int]) -> UpdateConnectorsResponse:
        wanted = tuple(
            ConnectorChange(connector=name, config=entries({"v": "x" * size}))
            if size
            else ConnectorChange(connector=name, delete=True)
            for name, size in changes
        )
        response = step(group, UpdateConnectorsRequest(group_id="g", changes=wanted), 1_000, SETTINGS).response
        assert isinstance(response, UpdateConnectorsResponse)
        return response

    group = group_of(connector("a", v="x" * 3_000_000), connector("b", v="x" * 3_000_000))
    assert [each.error_code for each in put(("c", 1_000_000), ("d", 1_000_000)).results] == [0, InvalidRequest.code]
    assert [each.error_code for each in put(("c", 3_000_000), ("a", 0)).results] == [InvalidRequest.code, 0]
    assert put(("a", 0), ("c", 3_000_000), ("b", 2_000_000), ("d", 2_000_000)).error_code == 0
    assert sum(group.connector_bytes.values()) < MAX_GROUP_BYTES


def test_change_that_makes_the_group_smaller_is_accepted() -> None:
    """The group may have been written by software with another limit."""
    large = connector(tasks=30_000, value="x" * 300)
    group = group_of(large, connector("b"))
    assert sum(group.connector_bytes.values()) > MAX_GROUP_BYTES
    assert publish(group, lists(29_000, "x" * 300)).error_code == 0
    assert update(group, ConnectorChange(connector="b", delete=True)).error_code == 0
    assert update(group, ConnectorChange(connector="c", target_state=2)).error_code == 0
    assert update(group, ConnectorChange(connector="c", delete=True)).error_code == 0


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5", "", "100001", "1000000000", "00000000012345678", "٣"])
def test_tasks_max_must_be_a_number_within_its_limit(text: str) -> None:
    response = update(group_of(), ConnectorChange(connector="c", config=entries({"tasks.max": text})))
    assert response.error_code == InvalidRequest.code
    shown = text.encode("unicode_escape").decode() if not text.isprintable() else text
    assert response.error_message == f"connector c: tasks.max: got '{shown}'; allowed: a whole number from 1 to 100000"


def test_connector_with_an_unreadable_tasks_max_can_be_changed() -> None:
    """The log may have been written by software that did not check it."""
    group = group_of(replace(connector(), config=entries({"tasks.max": "many"})))
    assert update(group, ConnectorChange(connector="c", target_state=2)).error_code == 0
    assert update(group, ConnectorChange(connector="c", config=entries({"tasks.max": "2"}))).error_code == 0


def test_tasks_max_is_limited_by_the_group_size() -> None:
    """Checked when the connector is written: the size of its task configurations is not known yet."""
    name = "c" * 100
    group = group_of(group_id="g" * 100)
    refused = update(group, ConnectorChange(connector=name, config=entries({"tasks.max": "100000"})))
    assert refused.error_code == InvalidRequest.code
    assert refused.error_message is not None
    assert "tasks.max: got 100000; allowed: at most 23" in refused.error_message
    allowed = int(refused.error_message.partition("allowed: at most ")[2].partition(",")[0])
    for wanted, code in ((allowed + 1, InvalidRequest.code), (allowed, 0)):
        change = ConnectorChange(connector=name, config=entries({"tasks.max": f"{wanted:06}"}))
        assert update(group, change).error_code == code


@pytest.mark.parametrize(
    ("group_id", "name", "value"),
    [
        ("workers", "idle", ""),
        pytest.param(
            *("workers", "a-connector-of-usual-length", "x" * 30),
            marks=ci_only("4 s of a core; in a user's run, shorter and longer names and values"),
        ),
        ("workers", "orders", "x" * 1_000),
        ("g" * 249, "é" * 124, ""),
        ("g", "c", "x" * 100_000),
    ],
)
def test_largest_accepted_group_fits_its_frames_and_batches(group_id: str, name: str, value: str) -> None:
    """One member owns all units; then the connector is reconfigured and deleted."""
    one = connector(name, group_id=group_id, tasks=1, value=value)
    count = min(100_000, (MAX_GROUP_BYTES - 200) // (connector_bytes(one) - connector_bytes(connector(name)) + 4))
    group = group_of(connector(name, group_id=group_id), group_id=group_id)
    tasks = lists(count, value)
    change = ConnectorChange(connector=name, task_configs=tasks, owner_epoch=1)
    request = UpdateConnectorsRequest(group_id=group_id, member_id=OWNER, changes=(change,))
    assert len(wire.encode_request(request, version=0, correlation_id=1, client_id=OWNER)) <= FRAME
    outcome = step(group, request, 1_000, SETTINGS)
    assert isinstance(outcome.response, UpdateConnectorsResponse)
    assert outcome.response.error_code == 0, outcome.response.error_message
    encode_batch(outcome.records, max_bytes=MAX_BATCH_BYTES)

    units = [Unit(name, task) for task in range(-1, count)]
    epoch = group.epoch
    target: list[Record] = [
        TargetMemberRecord(group_id=group_id, member_id=OWNER, units=grouped(units)),
        TargetRecord(group_id=group_id, epoch=epoch),
    ]
    encode_batch(target, max_bytes=MAX_BATCH_BYTES)
    for record in target:
        group.apply(record)
    joined = step(
        group, HeartbeatRequest(group_id=group_id, member_id=OWNER, member_epoch=1, owned=()), 1_000, SETTINGS
    )
    encode_batch(joined.records, max_bytes=MAX_BATCH_BYTES)
    response = joined.response
    assert isinstance(response, HeartbeatResponse)
    assert response.assignment is not None
    assert len(response.assignment.grants) == count + 1
    assert len(wire.encode_response(response, api_key=20480, version=0, correlation_id=1)) <= FRAME

    for unit in units:
        group.apply(StatusRecord(group_id=group_id, connector=name, task=unit.task, member_id=OWNER, owner_epoch=epoch))
    deleted = step(
        group,
        UpdateConnectorsRequest(group_id=group_id, changes=(ConnectorChange(connector=name, delete=True),)),
        1_000,
        SETTINGS,
    )
    encode_batch(deleted.records, max_bytes=MAX_BATCH_BYTES)


def join(group: ConnectGroupState, member_id: str, metadata: int) -> HeartbeatResponse:
    request = HeartbeatRequest(
        group_id="g",
        member_id=member_id,
        member_epoch=0,
        rebalance_timeout_ms=1_000,
        client_assignors=(AssignorInfo(name="a", metadata=bytes(metadata)),),
        owned=(),
    )
    response = step(group, request, 1_000, SETTINGS).response
    assert isinstance(response, HeartbeatResponse)
    return response


def test_metadata_of_all_members_is_limited() -> None:
    """A Prepare response carries all of it; each of 1,000 members may send 64 KiB for each assignor."""
    group = group_of()
    for number in range((16 << 20) // 65_536):
        assert join(group, f"m{number}", 65_536).error_code != InvalidRequest.code
    refused = join(group, "one-more", 65_536)
    assert refused.error_code == InvalidRequest.code
    assert refused.error_message == (
        "Assignor.Metadata: got '16842752 bytes of all members'; allowed: at most 16777216 bytes a group"
    )
    assert join(group, "one-more", 4_096).error_code != InvalidRequest.code


def test_description_has_room_for_many_failed_tasks() -> None:
    group = group_of(connector(tasks=3_000))
    group.apply(
        CurrentRecord(
            group_id="g",
            member_id=OWNER,
            epoch=1,
            previous_epoch=1,
            state=MemberState.STABLE,
            assigned=held({Unit("c", task): 1 for task in range(3_000)}),
        )
    )
    for task in range(3_000):
        group.apply(
            StatusRecord(
                group_id="g",
                connector="c",
                task=task,
                member_id=OWNER,
                owner_epoch=1,
                state=UnitState.FAILED,
                message="x" * 500,
            )
        )
    (described,) = describe(group).connectors
    assert {unit.state for unit in described.units[1:]} == {"FAILED"}
    messages = [unit.message for unit in described.units if unit.message]
    assert len(messages) == (1 << 20) // 500
    assert set(messages) == {"x" * 500}


# --------------------------------------------------------------------------------------------------
# The state of a group as numbers, for metrics.


def measure(scene: Scene) -> GroupNumbers:
    return ConnectGroupType(settings(), embedded).measure(scene.group)


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
