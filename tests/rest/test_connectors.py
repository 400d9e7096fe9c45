"""``/connectors``: Kafka Connect's routes, shapes and status codes, on a running worker."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest

import connectgroup
from connectgroup import Worker
from tests.coordinator.builders import GROUP, serving

from .conftest import Api, rest_server

IDLE = {"connector.class": "idle", "tasks.max": "2"}


def states(status: dict[str, Any]) -> list[str]:
    """State of the connector, then of each task."""
    return [status["connector"]["state"], *(task["state"] for task in status["tasks"])]


async def test_a_connector_is_created_described_and_deleted(api: Api) -> None:
    assert await api("GET", "/connectors", 200) == []
    response = await api.http.post("/connectors", json={"name": "c", "config": IDLE})
    config = {**IDLE, "name": "c"}
    assert (response.status_code, response.headers["location"]) == (201, "/connectors/c")
    assert response.json() == {"name": "c", "config": config, "tasks": [], "type": "source"}
    assert await api("GET", "/connectors", 200) == ["c"]
    assert await api("GET", "/connectors/c", 200) == response.json()
    assert await api("GET", "/connectors/c/config", 200) == config
    assert await api("GET", "/connectors/c/status", 200) == {
        "name": "c",
        "connector": {"state": "UNASSIGNED", "worker_id": "", "version": connectgroup.__version__},
        "tasks": [],
        "type": "source",
    }
    assert await api("DELETE", "/connectors/c", 204) is None
    assert await api("GET", "/connectors", 200) == []


async def test_first_connector_creates_the_group_if_there_is_none(api: Api) -> None:
    """As Kafka Connect's users expect; a coordinator may serve consumer groups, too."""
    await api("POST", "/connectors", 201, {"name": "c", "config": IDLE})


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [("POST", "/connectors", {"name": "c", "config": IDLE}), ("PUT", "/connectors/c/config", IDLE)],
)
async def test_connector_does_not_create_a_second_group_unless_requested(method: str, path: str, body: Any) -> None:
    async with serving() as coordinator:
        async with rest_server(coordinator, group="first") as first:
            await first(method, path, 201, body)
        async with rest_server(coordinator, group="typo") as second:
            for message in (await second(method, path, 404, body), await second("GET", "/connectors", 404)):
                assert message.startswith("no such group 'typo'; groups here: first; a worker that joins creates it")
            assert [group.group_id for group in await second.admin.list_groups()] == ["first"]
        async with rest_server(coordinator, group="other", new_group=True) as third:
            assert await third("GET", "/connectors", 200) == []
            await third(method, path, 201, body)


async def test_expand_returns_status_and_info_of_each_connector(api: Api) -> None:
    for name in ("a", "b"):
        await api("POST", "/connectors", 201, {"name": name, "config": IDLE})
    both = await api("GET", "/connectors?expand=status&expand=info", 200)
    assert {name: sorted(shapes) for name, shapes in both.items()} == {
        "a": ["info", "status"],
        "b": ["info", "status"],
    }
    assert both["a"]["info"] == await api("GET", "/connectors/a", 200)
    assert both["a"]["status"] == await api("GET", "/connectors/a/status", 200)
    assert sorted((await api("GET", "/connectors?expand=info", 200))["a"]) == ["info"]


async def test_put_creates_or_replaces_a_configuration(api: Api) -> None:
    await api("PUT", "/connectors/c/config", 201, IDLE)
    info = await api("PUT", "/connectors/c/config", 200, {**IDLE, "tasks.max": 3})
    assert info["config"] == {"connector.class": "idle", "tasks.max": "3", "name": "c"}


async def test_patch_changes_and_removes_settings(api: Api) -> None:
    """KIP-477. A credential that responses mask is kept."""
    await api("PUT", "/connectors/c/config", 201, {**IDLE, "stop.ms": "5", "api.key": "canary"})
    info = await api("PATCH", "/connectors/c/config", 200, {"stop.ms": None, "tasks.max": 4})
    assert info["config"] == {"connector.class": "idle", "tasks.max": "4", "name": "c", "api.key": "[hidden]"}
    message = await api("PATCH", "/connectors/c/config", 400, {"tasks.max": "0"})
    assert "tasks.max: got '0'" in message
    assert await api("PATCH", "/connectors/nosuch/config", 404, {}) == "Connector nosuch not found"


@pytest.mark.parametrize(
    ("state", "expected"), [("STOPPED", ["STOPPED"]), ("paused", ["PAUSED"]), (None, ["RUNNING"] * 3)]
)
async def test_a_connector_starts_in_its_initial_state(
    api: Api, worker: Worker, state: str | None, expected: list[str]
) -> None:
    """KIP-980."""
    await api("POST", "/connectors", 201, {"name": "c", "config": IDLE, "initial_state": state})
    await api.until(lambda status: states(status)[:1] == expected[:1], "/connectors/c/status")
    if state is None:
        await api.until(lambda status: states(status) == expected, "/connectors/c/status")


async def test_the_life_of_a_connector_on_a_worker(api: Api, worker: Worker) -> None:
    await api("POST", "/connectors", 201, {"name": "c", "config": IDLE})
    running = await api.until(lambda status: states(status) == ["RUNNING"] * 3, "/connectors/c/status")
    task = {"state": "RUNNING", "worker_id": "w", "version": connectgroup.__version__}
    assert running["tasks"] == [{"id": number, **task} for number in (0, 1)]
    assert await api("GET", "/connectors/c/tasks/1/status", 200) == running["tasks"][1]
    assert await api("GET", "/connectors/c/tasks", 200) == [
        {"id": {"connector": "c", "task": number}, "config": {"task": str(number)}} for number in (0, 1)
    ]
    assert (await api("GET", "/connectors/c", 200))["tasks"] == [
        {"connector": "c", "task": number} for number in (0, 1)
    ]
    await api("PUT", "/connectors/c/pause", 202)
    await api.until(lambda status: states(status) == ["PAUSED"] * 3, "/connectors/c/status")
    await api("PUT", "/connectors/c/resume", 202)
    await api.until(lambda status: states(status) == ["RUNNING"] * 3, "/connectors/c/status")
    await api("PUT", "/connectors/c/stop", 204)
    await api.until(lambda status: states(status) == ["STOPPED"], "/connectors/c/status")
    assert await api("GET", "/connectors/c/tasks", 200) == []
    assert await api("GET", "/connectors/c/tasks/1/status", 404) == "No status found for task c-1"
    assert await api("POST", "/connectors/c/tasks/1/restart", 404) == "Unknown task: c-1"


async def test_a_restart_starts_each_unit_once_at_a_later_owner_epoch(api: Api, worker: Worker, tmp_path: Path) -> None:
    log = tmp_path / "log"

    def starts() -> list[tuple[str, int]]:
        lines = [line.split() for line in log.read_text().splitlines()]
        return sorted((unit, int(epoch)) for _, what, _, unit, epoch in lines if what == "START")

    await api("POST", "/connectors", 201, {"name": "c", "config": {**IDLE, "log": str(log)}})
    await api.until(lambda status: states(status) == ["RUNNING"] * 3, "/connectors/c/status")
    before = starts()
    assert await api("POST", "/connectors/c/tasks/1/restart", 204) is None
    await api.until(lambda group: epoch_of(group, 1) > epoch_of(group, 0), "/groups/workers")
    await api.until(lambda status: states(status) == ["RUNNING"] * 3, "/connectors/c/status")
    added = sorted(set(starts()) - set(before))
    assert [unit for unit, _ in added] == ["c-1"]
    assert added[0][1] > max(epoch for _, epoch in before)

    assert await api("POST", "/connectors/c/restart", 204) is None, "the connector alone"
    await api.until(lambda group: epoch_of(group, -1) > epoch_of(group, 1), "/groups/workers")
    described = await api("GET", "/groups/workers", 200)
    last = max(epoch_of(described, task) for task in (-1, 0, 1))
    status = await api("POST", "/connectors/c/restart?includeTasks=TRUE&onlyFailed=False", 202)
    assert states(status) == ["RESTARTING"] * 3
    await api.until(lambda group: all(epoch_of(group, task) > last for task in (-1, 0, 1)), "/groups/workers")
    await api.until(lambda status: states(status) == ["RUNNING"] * 3, "/connectors/c/status")
    assert len(starts()) == len(before) + 3
    status = await api("POST", "/connectors/c/restart?includeTasks=true&onlyFailed=true", 202)
    assert states(status) == ["RUNNING"] * 3, "nothing has failed"


def epoch_of(group: dict[str, Any], task: int) -> int:
    """The owner epoch of a unit of the only connector."""
    (connector,) = group["connectors"]
    return next(int(unit["owner_epoch"]) for unit in connector["units"] if unit["task"] == task)


async def test_a_failed_task_shows_its_error_without_credentials(api: Api, worker: Worker, tmp_path: Path) -> None:
    config = {**IDLE, "log": str(tmp_path / "nosuch" / "log"), "api.key": "canary-secret"}
    await api("POST", "/connectors", 201, {"name": "c", "config": config})
    status = await api.until(lambda status: states(status) == ["RUNNING", "FAILED", "FAILED"], "/connectors/c/status")
    assert "No such file or directory" in status["tasks"][0]["trace"]
    await api("POST", "/connectors/c/restart?includeTasks=true&onlyFailed=true", 202)
    for path in ("/connectors/c", "/connectors?expand=info&expand=status", "/connectors/c/tasks", "/groups/workers"):
        assert "canary-secret" not in str(await api("GET", path, 200))


# ---- errors


@pytest.mark.parametrize(
    ("method", "path", "message"),
    [
        ("GET", "", "Connector nosuch not found"),
        ("GET", "/config", "Connector nosuch not found"),
        ("GET", "/status", "No status found for connector nosuch"),
        ("GET", "/tasks", "Connector nosuch not found"),
        ("GET", "/tasks/0/status", "No status found for task nosuch-0"),
        ("GET", "/tasks/{}/status", "No status found for task nosuch-{}"),
        ("PATCH", "/config", "Connector nosuch not found"),
        ("DELETE", "", "Connector nosuch not found"),
        ("PUT", "/pause", "Unknown connector nosuch"),
        ("PUT", "/resume", "Unknown connector nosuch"),
        ("PUT", "/stop", "Unknown connector nosuch"),
        ("POST", "/restart", "Unknown connector: nosuch"),
        ("POST", "/tasks/0/restart", "Unknown connector: nosuch"),
    ],
)
@pytest.mark.parametrize("group_exists", [False, True])
async def test_an_unknown_connector_is_404_with_connects_message(
    api: Api, method: str, path: str, message: str, group_exists: bool
) -> None:
    if group_exists:
        await api("POST", "/connectors", 201, {"name": "c", "config": IDLE})
    body: object = {} if method == "PATCH" else None
    assert await api(method, f"/connectors/nosuch{path}", 404, body) == message


@pytest.mark.parametrize("task", ["2", "-1", "x", "00", "9" * 30])
async def test_an_unknown_task_is_404(api: Api, task: str) -> None:
    await api("POST", "/connectors", 201, {"name": "c", "config": IDLE})
    assert await api("GET", f"/connectors/c/tasks/{task}/status", 404) == f"No status found for task c-{task}"
    assert await api("POST", f"/connectors/c/tasks/{task}/restart", 404) == f"Unknown task: c-{task}"


async def test_a_second_creation_is_409(api: Api) -> None:
    await api("POST", "/connectors", 201, {"name": "c", "config": IDLE})
    assert await api("POST", "/connectors", 409, {"name": "c", "config": IDLE}) == "Connector c already exists"


async def test_of_many_concurrent_creations_one_succeeds(api: Api) -> None:
    import asyncio

    body = {"name": "c", "config": IDLE}
    responses = await asyncio.gather(*(api.http.post("/connectors", json=body) for _ in range(20)))
    assert sorted(response.status_code for response in responses) == [201, *[409] * 19]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "name: got nothing"),
        ({"name": 3, "config": IDLE}, "name: got 3; allowed: the name of the connector, as a string"),
        ({"name": "c"}, "config: got null; allowed: an object of settings"),
        ({"name": "c", "config": [1]}, "config: got an array"),
        ({"name": "c", "config": {"a": {}}}, "config.a: got an object; allowed: a string"),
        ({"name": "c", "config": {**IDLE, "log": None}}, "Null value can not be supplied as the configuration value."),
        ({"name": "c", "config": {}}, 'Missing required configuration "connector.class"'),
        ({"name": "c", "config": {**IDLE, "name": "d"}}, "doesn't match connector name in the URL (c)"),
        (
            {"name": "c", "config": IDLE, "state": "x"},
            "body: got the field 'state'; allowed: name, config, initial_state",
        ),
        (
            {"name": "c", "config": IDLE, "initial_state": "x"},
            "initial_state: got 'x'; allowed: RUNNING, PAUSED, STOPPED",
        ),
        ({"name": "c", "config": {"connector.class": "os.system"}}, "connector.class: got 'os.system'; allowed: idle"),
        ({"name": "c", "config": {**IDLE, "tasks.max": "three"}}, "tasks.max: got 'three'"),
        ({"name": "c", "config": {**IDLE, "tasks.max": True}}, "tasks.max: got 'true'"),
        ({"name": "c", "config": {**IDLE, "stop.ms": "soon"}}, "stop.ms: got 'soon'"),
        ({"name": "c", "config": {**IDLE, "assignment.weigth": "1"}}, "did you mean that?"),
        (
            {"name": "c", "config": {**IDLE, "api.key": "[hidden]"}},
            "config.api.key: got [hidden]; allowed: the real value",
        ),
        (
            {"name": "..", "config": IDLE},
            "name: got '..'; allowed: printable characters, no blanks at the ends, not '.' or '..'",
        ),
        ({"name": " ", "config": IDLE}, "name: got nothing; allowed: the name of the connector"),
        ({"name": "c\nd", "config": IDLE}, "printable characters"),
        ({"name": "c" * 300, "config": IDLE}, "at most 249 bytes"),
    ],
)
async def test_an_invalid_creation_is_400_and_names_field_value_and_what_is_allowed(
    api: Api, body: object, message: str
) -> None:
    assert message in await api("POST", "/connectors", 400, body)
    assert await api("GET", "/connectors", 200) == []


async def test_a_put_with_the_body_of_a_post_is_400_and_says_what_the_body_of_a_put_is(api: Api) -> None:
    error = await api("PUT", "/connectors/c/config", 400, {"name": "c", "config": IDLE})
    allowed = "a string: body has the settings themselves, without name and config around them"
    assert error == f"body.config: got an object; allowed: {allowed}"


async def test_blanks_around_the_name_of_a_new_connector_are_ignored(api: Api) -> None:
    """``ConnectorsResource.createConnector`` trims it; the other routes of Kafka Connect do not."""
    assert (await api("POST", "/connectors", 201, {"name": " c\n", "config": IDLE}))["name"] == "c"
    assert "no blanks at the ends" in await api("PUT", "/connectors/%20d/config", 400, IDLE)
    assert await api("GET", "/connectors", 200) == ["c"]


async def test_an_invalid_configuration_has_connects_message(api: Api) -> None:
    message = await api(
        "PUT", "/connectors/c/config", 400, {"connector.class": "idle", "stop.ms": "x", "tasks.max": "0"}
    )
    first, *errors, last = message.split("\n")
    assert first == "Connector configuration is invalid and contains the following 2 error(s):"
    assert len(errors) == 2
    assert last.endswith("`/connector-plugins/{connectorType}/config/validate`")


async def test_misspelt_settings_are_reported_beside_the_missing_ones(api: Api) -> None:
    config = {
        "connector.class": "pipeline",
        "source": "datagen",
        "sink": "sqlite",
        "source.rwos": "5",
        "sink.tabel": "t",
    }
    message = await api("PUT", "/connectors/c/config", 400, {**config, "tasks.max": "x", "task.max": "2"})
    for error in (
        "source.rwos: unknown; allowed: source.rows (did you mean that?)",
        "sink.tabel: unknown; allowed: sink.table (did you mean that?)",
        "task.max: unknown; allowed: tasks.max (did you mean that?)",
        'Missing required configuration "sink.table"',
        "tasks.max: got 'x'",
    ):
        assert error in message
    assert len(message.split("\n")) == 1 + 6 + 1  # and sink.path


async def test_blanks_around_numbers_booleans_and_choices_are_ignored_and_texts_keep_theirs(api: Api) -> None:
    """As Kafka's ``ConfigDef.parseType`` does: blanks may be part of a delimiter or of a password."""
    config = {"connector.class": "pipeline", "source": "files", "sink": "console"}
    config |= {"tasks.max": " 2 ", "source.format": "csv ", "source.multiline": "true ", "source.path": "/nosuch"}
    config |= {"source.null": " - ", "source.schema": "a INT"}
    await api("PUT", "/connectors/c/config", 201, config)
    assert (await api("GET", "/connectors/c/config", 200))["source.null"] == " - "


async def test_a_boolean_parameter_is_true_or_false(api: Api) -> None:
    await api("POST", "/connectors", 201, {"name": "c", "config": IDLE})
    message = await api("POST", "/connectors/c/restart?includeTasks=yes", 400)
    assert message == "includeTasks: got 'yes'; allowed: true, false"


async def test_java_plugins_on_the_plugin_path_are_listed(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(tmp_path / "acme-1.5.jar", "w") as jar:
        jar.writestr("META-INF/services/org.apache.kafka.connect.sink.SinkConnector", "acme.Sink\n")
        jar.writestr("META-INF/services/org.apache.kafka.connect.transforms.Transformation", "acme.Upper\n")
    monkeypatch.setenv("CONNECTGROUP_PLUGIN_PATH", str(tmp_path))
    java = [each for each in await api("GET", "/connector-plugins", 200) if "acme" in each["class"]]
    assert java == [{"class": "acme.Sink", "type": "sink", "version": "1.5"}]
    everything = await api("GET", "/connector-plugins?connectorsOnly=false", 200)
    assert {"class": "acme.Upper", "type": "transformation", "version": "1.5"} in everything


@pytest.mark.parametrize("name", ["acme.TableSource", "TableSource"])
async def test_configuration_of_a_java_plugin_is_validated(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with zipfile.ZipFile(tmp_path / "acme-1.5.jar", "w") as jar:
        jar.writestr("META-INF/services/org.apache.kafka.connect.source.SourceConnector", "acme.TableSource\n")
        jar.writestr("acme/TableSource.class", b"")
    monkeypatch.setenv("CONNECTGROUP_PLUGIN_PATH", str(tmp_path))
    config = {"name": "c", "connector.class": "acme.TableSource", "tables": "t", "sink": "console"}
    result = await api("PUT", f"/connector-plugins/{name}/config/validate", 200, config)
    assert (result["name"], result["error_count"]) == ("acme.TableSource", 0)
    result = await api("PUT", f"/connector-plugins/{name}/config/validate", 200, config | {"trigger.ms": "1"})
    assert [each["value"]["name"] for each in result["configs"] if each["value"]["errors"]] == ["trigger.ms"]
    other = await api("PUT", f"/connector-plugins/{name}/config/validate", 400, config | {"connector.class": "idle"})
    assert other == f"Included connector type idle does not match request type {name}"


async def test_type_of_a_java_connector_is_that_of_its_class(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a source that has topics, as MirrorMaker's has."""
    with zipfile.ZipFile(tmp_path / "acme-1.5.jar", "w") as jar:
        for kind in ("source", "sink"):
            cls = kind.capitalize()
            jar.writestr(f"META-INF/services/org.apache.kafka.connect.{kind}.{cls}Connector", f"acme.{cls}\n")
            jar.writestr(f"acme/{cls}.class", b"")
    monkeypatch.setenv("CONNECTGROUP_PLUGIN_PATH", str(tmp_path))
    ends = {"source": {"sink": "console"}, "sink": {"source.bootstrap.servers": "127.0.0.1:1"}}
    text = "org.apache.kafka.connect.storage.StringConverter"
    for kind, other in ends.items():
        config = {"connector.class": f"acme.{kind.capitalize()}", "topics": "t", **other}
        if kind == "sink":
            config |= {"key.converter": text, "value.converter": text}
        created = await api("POST", "/connectors", 201, {"name": kind, "config": config})
        status = await api("GET", f"/connectors/{kind}/status", 200)
        assert (created["type"], status["type"]) == (kind, kind)


async def test_validate_only_reports_all_errors_and_changes_nothing(api: Api) -> None:
    bad = {"connector.class": "idle", "tasks.max": "many", "stop.ms": "-1"}
    message = await api("POST", "/connectors?validateOnly=true", 400, {"name": "a", "config": bad})
    assert "tasks.max: " in message
    assert "stop.ms: " in message
    good = {"name": "a", "config": {"connector.class": "idle", "password": "hunter2"}}
    assert await api("POST", "/connectors?validateOnly=true", 204, good) is None
    assert await api("GET", "/connectors", 200) == []
    await api("POST", "/connectors", 201, good)
    message = await api("PATCH", "/connectors/a/config?validateOnly=true", 400, {"tasks.max": "many"})
    assert "tasks.max: " in message
    assert await api("PATCH", "/connectors/a/config?validateOnly=true", 204, {"tasks.max": "2"}) is None
    assert "tasks.max" not in await api("GET", "/connectors/a/config", 200)


async def test_a_connector_is_described_whole_and_its_last_hour_with_the_group(api: Api) -> None:
    await api("POST", "/connectors", 201, {"name": "a", "config": {"connector.class": "idle", "password": "hunter2"}})
    described = await api("GET", f"/groups/{GROUP}/connectors/a", 200)
    assert described["config"]["password"] == "[hidden]"
    assert (described["name"], described["history"], described["events"]) == ("a", None, [])
    assert await api("GET", f"/groups/{GROUP}/history", 200) == {}
    for points in ("0", "241", "x", "-1", "999999"):
        assert "1 to 240" in await api("GET", f"/groups/{GROUP}/history?points={points}", 400)
    assert "a" in await api("GET", f"/groups/{GROUP}/connectors/nosuch", 404)
