"""Every rule of "Request Validation" of the source, for each request, and this project's rules for connectors.

Each test quotes the sentence it checks. A rejected request writes no record and changes nothing; the scene asserts that
after every step. Rows RV-01 to RV-06, RV-09, RV-10; RV-07 and RV-11 to RV-13 are about topics and Streams, RV-08 is
about static members, RV-14 is the runtime's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from connectgroup.errors import GroupError, InvalidGroupId, InvalidRequest, NotCoordinator, UnsupportedAssignor
from connectgroup.group.connect import validate
from connectgroup.group.connect.group_type import ConnectRequest, handle
from connectgroup.group.connect.state import ConnectGroupState
from connectgroup.protocol.messages.assignment import InstallRequest, PrepareRequest
from connectgroup.protocol.messages.common import AssignorInfo, ConnectorTasks, RestartRequest, entries, grouped
from connectgroup.protocol.messages.connectors import (
    ConfigPatch,
    ConnectorChange,
    RestartedUnit,
    TaskConfig,
    UpdateConnectorsRequest,
)
from connectgroup.protocol.messages.describe import DeleteRequest, DeleteResponse, DescribeRequest, DescribeResponse
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse, TaskStatus
from connectgroup.protocol.messages.rejected import rejected
from connectgroup.protocol.records.connect import TargetState

from .builders import GROUP, Scene, info, settings, tasks

BAD_NAMES = ["", " ", " padded", "padded ", "tab\there", "line\nbreak", "nul\0", ".", "..", "x" * 250]

HEARTBEAT = HeartbeatRequest(group_id=GROUP, member_id="m1", member_epoch=5)
JOIN = HeartbeatRequest(group_id=GROUP, member_id="new", member_epoch=0, rebalance_timeout_ms=10_000, owned=())
LEAVE = HeartbeatRequest(group_id=GROUP, member_id="m1", member_epoch=-1)
PREPARE = PrepareRequest(group_id=GROUP, member_id="m1", member_epoch=5)
INSTALL = InstallRequest(group_id=GROUP, member_id="m1", member_epoch=5, group_epoch=6)
UPDATE = UpdateConnectorsRequest(group_id=GROUP, changes=(ConnectorChange(connector="foo", target_state=2),))
ALL_FIVE: list[ConnectRequest] = [HEARTBEAT, JOIN, LEAVE, PREPARE, INSTALL]


@pytest.fixture
def scene() -> Scene:
    """m1 with foo and foo-0 at epoch 5."""
    return Scene.stable(settings(), epoch=5, connectors={"foo": 1}, members={"m1": tasks(foo=[-1, 0])})


def assert_rejected(scene: Scene, request: ConnectRequest, *words: str, by: type[GroupError] = InvalidRequest) -> None:
    """The request is rejected with one line that names the field, the value and what is allowed."""
    outcome = scene.act(request)
    response: Any = outcome.response
    assert response.error_code == by.code, response
    assert response.error_message is not None
    assert "\n" not in response.error_message
    assert response.error_message.isprintable()
    assert len(response.error_message) < 400
    for word in words:
        assert word in response.error_message
    assert outcome.records == ()
    assert outcome.timers == ()


def assert_accepted(scene: Scene, request: ConnectRequest) -> None:
    """The request is not rejected by validation."""
    response: Any = scene.act(request).response
    assert response.error_code not in (InvalidRequest.code, UnsupportedAssignor.code), response.error_message


# ---- all requests


@pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
@pytest.mark.parametrize("request_", ALL_FIVE, ids=["heartbeat", "join", "leave", "Prepare", "Install"])
def test_group_and_member_ids(scene: Scene, request_: Any, name: str) -> None:
    """ "GroupId must be non-empty." "MemberId must be non-empty." RV-01, RV-02.

    Error INVALID_REQUEST; Prepare also lists INVALID_GROUP_ID, for a group id that is not empty and not a valid name.
    """
    listed = bool(name) and isinstance(request_, PrepareRequest | InstallRequest)
    by = InvalidGroupId if listed else InvalidRequest
    assert_rejected(scene, replace(request_, group_id=name), "GroupId: got ", "allowed: ", by=by)
    assert_rejected(scene, replace(request_, member_id=name), "MemberId: got ", "allowed: ")


@pytest.mark.parametrize("epoch", [-3, -(2**31)])
def test_member_epoch_of_a_heartbeat(scene: Scene, epoch: int) -> None:
    """ "MemberEpoch must be >= -1", and -2 for static members. RV-09."""
    assert_rejected(scene, replace(HEARTBEAT, member_epoch=epoch), "MemberEpoch", str(epoch), ">= -2")


def test_temporary_leave_needs_an_instance_id(scene: Scene) -> None:
    """RV-08."""
    assert_rejected(scene, replace(HEARTBEAT, member_epoch=-2), "InstanceId", "None", "group instance id")


def test_delay_of_install(scene: Scene) -> None:
    assert_rejected(scene, replace(INSTALL, delay_ms=-1), "DelayMs", "-1", ">= 0")


def test_delayed_units_of_an_install_need_a_delay(scene: Scene) -> None:
    assert_rejected(scene, replace(INSTALL, delayed=grouped(tasks(foo=[0]))), "Delayed", "DelayMs above 0")


@pytest.mark.parametrize("request_", [PREPARE, INSTALL], ids=["Prepare", "Install"])
@pytest.mark.parametrize("epoch", [-1, -2, -(2**31)])
def test_member_epoch_of_prepare_and_install(scene: Scene, request_: Any, epoch: int) -> None:
    """ "MemberEpoch must be >= 0." """
    assert_rejected(scene, replace(request_, member_epoch=epoch), "MemberEpoch", str(epoch), ">= 0")


@pytest.mark.parametrize("epoch", [-1, -(2**31)])
def test_group_epoch_of_install(scene: Scene, epoch: int) -> None:
    """ "GroupEpoch must be >= 0." (KIP-848, ConsumerGroupInstallAssignment)"""
    assert_rejected(scene, replace(INSTALL, group_epoch=epoch), "GroupEpoch", str(epoch), ">= 0")


# ---- heartbeat


@pytest.mark.parametrize("request_", [HEARTBEAT, JOIN], ids=["heartbeat", "join"])
@pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
def test_instance_id(scene: Scene, request_: HeartbeatRequest, name: str) -> None:
    """ "InstanceId, if provided, must be non-empty." RV-03."""
    assert_rejected(scene, replace(request_, instance_id=name), "InstanceId")


@pytest.mark.parametrize("timeout_ms", [0, -1, -2, -(2**31)])
def test_rebalance_timeout_of_a_join(scene: Scene, timeout_ms: int) -> None:
    """ "RebalanceTimeoutMs must be larger than zero in the first heartbeat request." RV-05."""
    assert_rejected(scene, replace(JOIN, rebalance_timeout_ms=timeout_ms), "RebalanceTimeoutMs", str(timeout_ms), "> 0")


@pytest.mark.parametrize("timeout_ms", [0, -2, 3_600_001, 2**31 - 1])
def test_rebalance_timeout_of_any_heartbeat(scene: Scene, timeout_ms: int) -> None:
    """-1 is "didn't change"; any other value must be a plausible timeout (bad input 13)."""
    assert_rejected(scene, replace(HEARTBEAT, rebalance_timeout_ms=timeout_ms), "RebalanceTimeoutMs", str(timeout_ms))
    assert_accepted(scene, replace(HEARTBEAT, rebalance_timeout_ms=3_600_000))
    assert_accepted(scene, replace(HEARTBEAT, rebalance_timeout_ms=1))


@pytest.mark.parametrize("request_", [HEARTBEAT, JOIN], ids=["heartbeat", "join"])
def test_cn_16_two_kinds_of_assignor(scene: Scene, request_: HeartbeatRequest) -> None:
    """ "ServerAssignor and ClientAssignors cannot be used together." CN-16. An empty list is "used" too."""
    both = replace(request_, server_assignor="round-robin", client_assignors=(info(),))
    assert_rejected(scene, both, "ServerAssignor", "not both")
    assert_rejected(scene, replace(both, client_assignors=()), "ServerAssignor", "not both")


BAD_ASSIGNORS: list[tuple[AssignorInfo, str]] = [
    *((info(name), "Assignor.Name") for name in BAD_NAMES),
    (info("a", low=-2, high=3), "Assignor.MinimumVersion"),
    (info("a", low=-(2**15), high=3), "Assignor.MinimumVersion"),
    (info("a", low=-1, high=-1), "Assignor.MaximumVersion"),
    (info("a", low=3, high=2, version=2), "Assignor.MaximumVersion"),
    (info("a", low=3, high=2, version=3), "Assignor.MaximumVersion"),
    (info("a", low=1, high=3, version=0), "Assignor.Version"),
    (info("a", low=1, high=3, version=4), "Assignor.Version"),
    (info("a", metadata=b"x" * 65_537), "Assignor.Metadata"),
]


@pytest.mark.parametrize("request_", [HEARTBEAT, JOIN], ids=["heartbeat", "join"])
@pytest.mark.parametrize(("bad", "field"), BAD_ASSIGNORS, ids=lambda value: repr(value)[:60])
def test_cn_17_client_assignor(scene: Scene, request_: HeartbeatRequest, bad: AssignorInfo, field: str) -> None:
    """CN-17. "Assignor.Name must be non-empty." "Assignor.MinimumVersion must be >= -1." "Assignor.MaximumVersion must
    be >= 0 and >= Assignor.MinimumVersion." "Assignor.Version must be in the >= Assignor.MinimumVersion and <=
    Assignor.MaximumVersion."
    """
    assert_rejected(scene, replace(request_, client_assignors=(bad,)), field, "allowed: ")
    assert_rejected(scene, replace(request_, client_assignors=(info("good"), bad)), field)


@pytest.mark.parametrize(
    "good",
    [
        info("a", low=-1, high=0, version=-1),
        info("a", low=0, high=0),
        info("a", low=2, high=2),
        info("a", metadata=b"x" * 65_536),
    ],
    ids=repr,
)
def test_client_assignors_at_the_limits_are_accepted(scene: Scene, good: AssignorInfo) -> None:
    assert_accepted(scene, replace(JOIN, client_assignors=(good,)))


def test_assignor_listed_twice(scene: Scene) -> None:
    assert_rejected(
        scene, replace(JOIN, client_assignors=(info("a"), info("a", high=2))), "ClientAssignors", "each assignor once"
    )


@pytest.mark.parametrize("name", ["unknown", "Round-Robin", "round-robin2"])
def test_server_assignor(scene: Scene, name: str) -> None:
    """UNSUPPORTED_ASSIGNOR: "ServerAssignor must be supported by the server." RV-10."""
    assert_rejected(scene, replace(JOIN, server_assignor=name), name, "round-robin", by=UnsupportedAssignor)
    assert_rejected(scene, replace(HEARTBEAT, server_assignor=name), name, by=UnsupportedAssignor)
    assert_accepted(scene, replace(JOIN, server_assignor="round-robin"))


@pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
def test_server_assignor_is_a_name(scene: Scene, name: str) -> None:
    assert_rejected(scene, replace(JOIN, server_assignor=name), "ServerAssignor")


@pytest.mark.parametrize("owned", [None, (ConnectorTasks(connector="foo", tasks=(0,)),)], ids=["null", "not empty"])
def test_owned_units_of_a_join(scene: Scene, owned: tuple[ConnectorTasks, ...] | None) -> None:
    """RV-06, PD-04: a member that joins at epoch 0 owns nothing."""
    assert_rejected(scene, replace(JOIN, owned=owned), "ConnectorsAndTasks", "empty list")


BAD_REPORTS = [
    (ConnectorTasks(connector="", tasks=(0,)),),
    (ConnectorTasks(connector="a\nb", tasks=(0,)),),
    (ConnectorTasks(connector="foo", tasks=(-1,)),),
    (ConnectorTasks(connector="foo", tasks=(0, -7)),),
    (ConnectorTasks(connector="foo", tasks=(0, 0)),),
    (ConnectorTasks(connector="foo", tasks=(0,)), ConnectorTasks(connector="foo", tasks=(0,))),
    (ConnectorTasks(connector="foo", owns_connector=True), ConnectorTasks(connector="foo", owns_connector=True)),
]


@pytest.mark.parametrize("owned", BAD_REPORTS, ids=repr)
def test_owned_units_are_unique_and_valid(scene: Scene, owned: tuple[ConnectorTasks, ...]) -> None:
    """Bad input 12: duplicates and invalid task numbers."""
    assert_rejected(scene, replace(HEARTBEAT, owned=owned), "ConnectorsAndTasks")


def test_max_wait_ms(scene: Scene) -> None:
    """MaxWaitMs (tagged) is not negative."""
    assert_rejected(scene, replace(HEARTBEAT, max_wait_ms=-1), "MaxWaitMs", "-1")
    assert_accepted(scene, replace(HEARTBEAT, max_wait_ms=2**31 - 1))


@pytest.mark.parametrize("state", [0, 5, -1, 127])
def test_status_is_a_known_state(scene: Scene, state: int) -> None:
    """Statuses (tagged): the whole heartbeat is rejected, and nothing of it is stored."""
    statuses = (
        TaskStatus(connector="foo", task=0, owner_epoch=5, state=1),
        TaskStatus(connector="foo", task=-1, owner_epoch=5, state=state),
    )
    assert_rejected(scene, replace(HEARTBEAT, statuses=statuses), "Statuses.State", str(state))


def test_rejected_update_of_a_member_leaves_its_state_unchanged(scene: Scene) -> None:
    """Valid and invalid fields in one heartbeat: none is stored."""
    before = scene.group.members["m1"]
    assert_rejected(scene, replace(HEARTBEAT, rebalance_timeout_ms=77, client_assignors=(info(""),)), "Assignor.Name")
    assert scene.group.members["m1"] == before


# ---- connectors


def change(**changes: Any) -> Callable[[], UpdateConnectorsRequest]:
    return lambda: replace(UPDATE, changes=(replace(UPDATE.changes[0], **changes),))


BAD_UPDATES: dict[str, tuple[Callable[[], UpdateConnectorsRequest], str]] = {
    "group id": (lambda: replace(UPDATE, group_id=""), "GroupId"),
    "member id": (lambda: replace(UPDATE, member_id=""), "MemberId"),
    "no change": (lambda: replace(UPDATE, changes=()), "Changes"),
    "a connector twice": (lambda: replace(UPDATE, changes=UPDATE.changes * 2), "each connector once"),
    "target state 4": (change(target_state=4), "Changes.TargetState"),
    "target state -1": (change(target_state=-1), "Changes.TargetState"),
    "version -2": (change(expected_version=-2), "Changes.ExpectedVersion"),
    "a task list from an operator": (change(task_configs=()), "Changes.TaskConfigs"),
    "names of credentials from an operator": (change(credential_names=()), "Changes.CredentialNames"),
    "delete and configure": (change(delete=True, config=entries({"a": "b"})), "Changes.Delete"),
    "delete and patch": (change(delete=True, config_patch=()), "Changes.Delete"),
    "delete and restart": (change(delete=True, restart=(RestartedUnit(task=0, owner_epoch=5),)), "Changes.Delete"),
    "configure and patch": (change(config=entries({"a": "b"}), config_patch=()), "Changes.ConfigPatch"),
    "a patch that makes tasks.max invalid": (
        change(config_patch=(ConfigPatch(name="tasks.max", value="three"),)),
        "connector foo: tasks.max: got 'three'",
    ),
    "delete and task list": (
        lambda: replace(change(delete=True, task_configs=(TaskConfig(),))(), member_id="m1"),
        "Changes.Delete",
    ),
    **{f"connector {name!r}": (change(connector=name), "Changes.Connector") for name in BAD_NAMES},
    "the number of a task": (change(config=entries({"task": "0"})), "connector foo: task: unknown"),
    "the number of tasks": (change(config=entries({"tasks": "2"})), "connector foo: tasks: unknown"),
    "another name": (change(config=entries({"name": "bar"})), "name: got 'bar'; allowed: foo, the name"),
    "too many units": (
        lambda: replace(UPDATE, changes=tuple(added_connector(number) for number in range(3))),
        "at most 4",
    ),
}


def added_connector(number: int) -> ConnectorChange:
    return ConnectorChange(connector=f"c{number}", config=())


@pytest.mark.parametrize("what", BAD_UPDATES)
def test_changes_of_connectors(what: str) -> None:
    """ConnectGroupUpdateConnectors, this project's: the response names the invalid change; no change is applied."""
    scene = Scene.stable(settings(max_units=4), epoch=5, connectors={"foo": 1}, members={"m1": tasks(foo=[-1, 0])})
    make, words = BAD_UPDATES[what]
    assert_rejected(scene, make(), words)


def test_stopped_connectors_count_against_the_limit() -> None:
    """They may be resumed, and nothing could reject that."""
    scene = Scene.stable(settings(max_units=4), epoch=5, connectors={"foo": 1}, members={"m1": tasks(foo=[-1, 0])})
    scene.update(ConnectorChange(connector="foo", target_state=TargetState.STOPPED))
    assert_rejected(scene, replace(UPDATE, changes=tuple(map(added_connector, range(3)))), "got 5 connectors and tasks")


def test_tasks_max_beyond_the_limit_is_rejected_before_its_tasks_are_published() -> None:
    scene = Scene.stable(settings(max_units=5), epoch=5, connectors={"foo": 1}, members={"m1": tasks(foo=[-1, 0])})
    four = replace(UPDATE, changes=(ConnectorChange(connector="bar", config=entries({"tasks.max": "3"})),))
    assert_rejected(scene, four, "connector bar: tasks.max: got 3; allowed: at most 2, as a group may have 5")
    scene.update(ConnectorChange(connector="bar", config=entries({"tasks.max": "2"})))


def test_change_that_does_not_grow_a_group_is_accepted_above_a_lowered_limit() -> None:
    scene = Scene.stable(settings(max_units=2), epoch=5, connectors={"foo": 4}, members={"m1": tasks(foo=[-1, 0])})
    scene.update(ConnectorChange(connector="foo", target_state=TargetState.PAUSED))
    assert_rejected(scene, replace(UPDATE, changes=(added_connector(1),)), "got 6 connectors and tasks")
    scene.update(ConnectorChange(connector="foo", delete=True))


def test_error_message_is_escaped_and_truncated(scene: Scene) -> None:
    """Bad input: a received value is cut to 80 characters, control characters are escaped, the message is one line."""
    evil = "\x1b[31mred\x07\r\n" + "y" * 10_000
    assert_rejected(scene, replace(HEARTBEAT, group_id=evil))
    assert_rejected(scene, replace(HEARTBEAT, member_id=evil))
    assert_rejected(scene, replace(JOIN, client_assignors=(info(evil),)))
    assert_rejected(scene, replace(HEARTBEAT, owned=(ConnectorTasks(connector=evil, tasks=(1,)),)))
    assert_rejected(scene, replace(UPDATE, changes=(ConnectorChange(connector=evil, target_state=1),)))


def test_valid_heartbeat_is_answered(scene: Scene) -> None:
    """The negative tests above would also pass if everything were rejected."""
    response = scene.act(HEARTBEAT).response
    assert isinstance(response, HeartbeatResponse)
    assert response.error_code == 0
    for request in (HEARTBEAT, JOIN, LEAVE, PREPARE, INSTALL):
        assert_accepted(scene, request)


# --------------------------------------------------------------------------------------------------
# INVALID_GROUP_ID


@pytest.mark.parametrize("group_id", BAD_NAMES)
def test_describe_and_delete_reject_a_bad_group_id_with_invalid_group_id(group_id: str) -> None:
    """RV-01: "Describe/JoinGroup paths say INVALID_GROUP_ID"."""
    for request in (DescribeRequest(group_ids=(group_id,)), DeleteRequest(group_ids=(group_id,))):
        response = handle(ConnectGroupState(group_id), request, 0, settings()).response
        assert isinstance(response, DescribeResponse | DeleteResponse)
        [result] = response.groups if isinstance(response, DescribeResponse) else response.results
        assert (result.group_id, result.error_code) == (group_id, InvalidGroupId.code)
        assert result.error_message is not None
        assert result.error_message.startswith("GroupId: got ")


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
def test_refusal_carries_the_error_where_the_response_type_has_it(request_: ConnectRequest) -> None:
    """Two responses have an error for each group and none of their own."""
    result: Any = rejected(request_, NotCoordinator.code, "another coordinator has taken over")
    fields: dict[type, str] = {DescribeResponse: "groups", DeleteResponse: "results"}
    inside = fields.get(type(result))
    for each in getattr(result, inside) if inside else (result,):
        assert (each.error_code, each.error_message) == (NotCoordinator.code, "another coordinator has taken over")
        assert getattr(each, "group_id", "gone") == "gone"


def test_name_of_a_setting_with_one_typo_of_tasks_max_is_rejected() -> None:
    name = "tasks.max"
    ends = [(name[:at], name[at:]) for at in range(len(name) + 1)]
    typos = {first + last[1:] for first, last in ends} | {first + "-" + last for first, last in ends}
    typos |= {first + "-" + last[1:] for first, last in ends if last}
    typos |= {first + last[1] + last[0] + last[2:] for first, last in ends if len(last) > 1}
    others = {f"a{number}": "1" for number in range(900)}
    for typo in sorted(typos - {name}):
        change = ConnectorChange(connector="c", config=entries({**others, typo: "1"}))
        request = UpdateConnectorsRequest(group_id=GROUP, changes=(change,))
        outcome = handle(ConnectGroupState(GROUP), request, 1, settings())
        assert getattr(outcome.response, "error_code", 0) == InvalidRequest.code, typo
        assert "tasks.max (did you mean that?)" in str(outcome.response), typo


def test_check_of_a_request_with_many_settings_takes_little_time() -> None:
    """No other request is decided meanwhile; 500,000 settings took two seconds."""
    changes = tuple(
        ConnectorChange(connector=f"c{number}", config=entries({f"key.{each}": "1" for each in range(500)}))
        for number in range(300)
    )
    began_s = time.thread_time()
    validate.update_connectors(UpdateConnectorsRequest(group_id=GROUP, changes=changes))
    assert time.thread_time() - began_s < 0.2


def test_check_of_a_heartbeat_with_many_units_takes_little_time() -> None:
    """Anybody can send one, under the name of a member that does not exist."""
    owned = (ConnectorTasks(connector="c", tasks=tuple(range(200_000))),)
    began_s = time.thread_time()
    validate.heartbeat(replace(HEARTBEAT, owned=owned), settings())
    assert time.thread_time() - began_s < 0.1
    with pytest.raises(InvalidRequest, match="Tasks: got '-1'; allowed: task numbers from 0 up"):
        validate.distinct("ConnectorsAndTasks", (ConnectorTasks(connector="c", tasks=(1, -1)),))
    for twice in ((1, 1),), ((1,), (1,)):
        groups = tuple(ConnectorTasks(connector="c", tasks=each) for each in twice)
        with pytest.raises(InvalidRequest, match="ConnectorsAndTasks: got 'c-1'; allowed: each connector or task once"):
            validate.distinct("ConnectorsAndTasks", groups)
    with pytest.raises(InvalidRequest, match="each connector or task once"):
        validate.distinct("ConnectorsAndTasks", (ConnectorTasks(connector="c", owns_connector=True),) * 2)
