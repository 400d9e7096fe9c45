"""Operations on a connector: patch its configuration, restart its units, describe only some connectors."""

from __future__ import annotations

import pytest

from connectgroup.errors import (
    ConnectorAlreadyExists,
    ConnectorNotFound,
    GroupError,
    InvalidRequest,
    StaleMemberEpoch,
    VersionConflict,
)
from connectgroup.protocol.messages.common import ConfigEntry, config_of, entries
from connectgroup.protocol.messages.connectors import ConfigPatch, ConnectorChange, RestartedUnit
from connectgroup.protocol.messages.describe import DescribedConnector, DescribeRequest, DescribeResponse
from connectgroup.protocol.records.connect import ConnectorRecord, TargetState
from connectgroup.protocol.units import Unit

from .builders import GROUP, FixedAssignor, Scene, added, foo, numbered, settings, task_list, units_at


@pytest.fixture
def scene(fixed: FixedAssignor) -> Scene:
    """Member A owns connector foo and task foo-0, member B foo-1 and foo-2, all at epoch 20; the target stays so."""
    fixed.target = {"A": foo(-1, 0), "B": foo(1, 2)}
    return Scene.stable(settings(fixed), epoch=20, connectors={"foo": 3}, members={"A": foo(-1, 0), "B": foo(1, 2)})


def patch(**values: str | None) -> ConnectorChange:
    patched = tuple(ConfigPatch(name=name.replace("_", "."), value=value) for name, value in values.items())
    return ConnectorChange(connector="foo", config_patch=patched)


def restart(*tasks: int, owner_epoch: int = 20) -> ConnectorChange:
    units = tuple(RestartedUnit(task=task, owner_epoch=owner_epoch) for task in tasks)
    return ConnectorChange(connector="foo", restart=units)


def config(scene: Scene) -> dict[str, str]:
    return config_of(scene.group.connectors["foo"].config)


# ---- errors


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (ConnectorChange(connector="bar", delete=True), ConnectorNotFound, "bar does not exist; .* group: foo"),
        (ConnectorChange(connector="bar", target_state=2), ConnectorNotFound, "bar does not exist"),
        (ConnectorChange(connector="bar", config=(), expected_version=3), ConnectorNotFound, "bar does not exist"),
        (ConnectorChange(connector="bar", config_patch=()), ConnectorNotFound, "bar does not exist"),
        (ConnectorChange(connector="bar", restart=(RestartedUnit(task=0, owner_epoch=1),)), ConnectorNotFound, "bar"),
        (ConnectorChange(connector="foo", config=(), expected_version=0), ConnectorAlreadyExists, "foo already exists"),
        (ConnectorChange(connector="foo", config=(), expected_version=7), VersionConflict, "got version 7; .* has 1"),
        (ConnectorChange(connector="foo", delete=True, expected_version=7), VersionConflict, "got version 7"),
    ],
)
def test_not_found_already_exists_and_version_conflict_are_different_errors(
    scene: Scene, change: ConnectorChange, error: type[GroupError], message: str
) -> None:
    refused = scene.update(change)
    assert (refused.error_code, refused.results[0].error_code) == (error.code, error.code)
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(refused.error_message)
    assert scene.records == ()


# ---- patch (KIP-477)


def test_a_patch_changes_adds_and_removes_settings_and_keeps_the_others(scene: Scene) -> None:
    scene.update(ConnectorChange(connector="foo", config=entries({"name": "foo", "a": "1", "api.key": "canary"})))
    assert scene.update(patch(a="2", b="3", name=None)).error_code == 0
    assert config(scene) == {"a": "2", "b": "3", "api.key": "canary"}


def test_a_patch_without_effect_writes_no_record(scene: Scene) -> None:
    assert scene.update(patch(name="foo", absent=None)).results[0].version == 1
    assert scene.records == ()


def test_a_patch_of_tasks_max_keeps_the_task_list_and_one_of_another_setting_clears_it(scene: Scene) -> None:
    """As for a complete configuration: no task runs half on the old configuration (KAFKA-9228)."""
    scene.update(patch(tasks_max="5"))
    assert len(scene.group.connectors["foo"].tasks) == 3
    scene.update(patch(a="2"))
    assert not scene.group.connectors["foo"].tasks


def test_a_patch_with_an_invalid_result_is_rejected(scene: Scene) -> None:
    refused = scene.update(patch(tasks_max="0"))
    assert refused.error_code == InvalidRequest.code
    assert "tasks.max: got '0'" in str(refused.error_message)
    assert config(scene) == {"name": "foo"}


def test_repr_of_a_patch_shows_no_credential() -> None:
    assert "canary" not in repr(patch(sink_password="canary"))


# ---- restart


def test_restarted_task_is_granted_again_at_a_later_owner_epoch(scene: Scene) -> None:
    """The other units keep their grants."""
    assert scene.update(restart(1)).results[0].version == 21
    assert scene.group.latest_rebalance is not None
    assert scene.group.latest_rebalance.causes == ("connector foo restarted",)
    assert units_at(scene.heartbeat("B", 20)) == (20, ["foo-2"])
    assert units_at(scene.heartbeat("B", 20, foo(2))) == (21, ["foo-1", "foo-2"])
    assert scene.current("B").assigned == {Unit("foo", 1): 21, Unit("foo", 2): 20}
    scene.heartbeat("A", 20)
    assert scene.current("A").assigned == dict.fromkeys(foo(-1, 0), 20)


def test_restarted_connector_keeps_its_tasks_running(scene: Scene, fixed: FixedAssignor) -> None:
    """includeTasks=false. A task list under the former grant is rejected; one under the new grant is accepted."""
    scene.update(restart(-1))
    assert scene.update(task_list("foo", numbered(1), 20), member_id="A").error_code != 0
    assert units_at(scene.heartbeat("A", 20)) == (20, ["foo-0"])
    assert units_at(scene.heartbeat("A", 20, foo(0))) == (21, ["foo", "foo-0"])
    assert scene.update(task_list("foo", numbered(3), 21), member_id="A").error_code == 0
    assert scene.current("B").assigned == dict.fromkeys(foo(1, 2), 20)


def test_repeated_restart_of_a_task_has_no_effect(scene: Scene) -> None:
    """The request names the grant that it ends, so a late duplicate does not end the next grant."""
    scene.update(restart(-1, 0, 1, 2))
    assert scene.update(restart(-1, 0, 1, 2)).results[0].version == 21
    assert scene.records == ()
    scene.heartbeat("B", 20)
    assert scene.update(restart(1)).results[0].version == 21, "its revocation is pending"
    scene.heartbeat("B", 20, foo())
    assert scene.update(restart(1)).results[0].version == 21
    assert scene.records == ()


@pytest.mark.parametrize("change", [restart(7), restart(1, owner_epoch=-1), restart(1, owner_epoch=0)])
def test_restart_of_an_unknown_grant_has_no_effect(scene: Scene, change: ConnectorChange) -> None:
    """A task that was removed meanwhile, or that no member owns."""
    assert scene.update(change).error_code == 0
    assert scene.records == ()


def test_paused_task_is_not_started_by_a_restart(scene: Scene, fixed: FixedAssignor) -> None:
    fixed.target = {"A": foo(-1)}
    scene.update(ConnectorChange(connector="foo", target_state=TargetState.PAUSED))
    scene.update(restart(0, 1, 2))
    assert Unit("foo", 1) not in scene.group.runnable


# ---- describe


def described(scene: Scene, **fields: object) -> tuple[DescribedConnector, ...]:
    outcome = scene.act(DescribeRequest(group_ids=(GROUP,), **fields))  # type: ignore[arg-type]
    assert isinstance(outcome.response, DescribeResponse)
    return outcome.response.groups[0].connectors


def test_describe_returns_only_the_requested_connectors(scene: Scene, fixed: FixedAssignor) -> None:
    fixed.target = {"A": foo(-1, 0) | {Unit("bar")}, "B": foo(1, 2)}
    scene.update(added("bar"))
    assert [each.connector for each in described(scene)] == ["bar", "foo"]
    assert [each.connector for each in described(scene, connectors=("foo", "nosuch"))] == ["foo"]
    assert described(scene, connectors=()) == ()


def test_task_configurations_are_described_on_request_without_credentials(scene: Scene) -> None:
    (connector,) = described(scene)
    assert all(unit.config == () for unit in connector.units)
    (connector,) = described(scene, include_task_configs=True)
    assert [unit.task for unit in connector.units] == [-1, 0, 1, 2]
    assert [len(unit.config) for unit in connector.units[1:]] == [1, 1, 1]
    secret = {"task.password": "canary"}
    assert scene.update(task_list("foo", [secret], 20), member_id="A").error_code == 0
    (connector,) = described(scene, include_task_configs=True)
    assert connector.units[1].config == (ConfigEntry(name="task.password", value="[hidden]"),)


def credentials(*names: str, owner_epoch: int = 20) -> ConnectorChange:
    return ConnectorChange(connector="foo", credential_names=names, owner_epoch=owner_epoch)


def test_settings_that_the_owner_calls_credentials_are_masked_from_then_on(scene: Scene) -> None:
    """Of a Java connector only its class knows them. Nothing is assigned again because of them."""
    named = scene.update(credentials("pepper", "salt", "pepper"), member_id="A")
    assert (named.error_code, named.results[0].version, scene.group.epoch) == (0, 1, 20)
    assert [type(record) for record in scene.records] == [ConnectorRecord]
    assert scene.update(credentials("salt", "pepper"), member_id="A").error_code == 0
    assert scene.records == (), "they are the same"

    tasks = [{"pepper": "canary", "plain": "x"}]
    assert scene.update(task_list("foo", tasks, 20), member_id="A").error_code == 0
    (connector,) = described(scene, include_task_configs=True)
    assert config_of(connector.units[1].config) == {"pepper": "[hidden]", "plain": "x"}

    scene.update(patch(pepper="canary", salt="${env:SALT}"))
    (connector,) = described(scene)
    assert config_of(connector.config) == {"name": "foo", "pepper": "[hidden]", "salt": "${env:SALT}"}
    (connector,) = described(scene, include_credentials=True)
    assert config_of(connector.config) == config(scene)
    assert config(scene)["pepper"] == "canary"


@pytest.mark.parametrize(("member_id", "owner_epoch"), [("A", 19), ("B", 20)])
def test_only_the_owner_of_a_connector_names_its_credentials(scene: Scene, member_id: str, owner_epoch: int) -> None:
    refused = scene.update(credentials("name", owner_epoch=owner_epoch), member_id=member_id)
    assert refused.error_code == StaleMemberEpoch.code
    assert scene.records == ()
