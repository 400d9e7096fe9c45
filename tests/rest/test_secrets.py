"""Canary: a secret that a connector refers to reaches its task, and nothing that the system writes or answers."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from connectgroup import LocalClient, Worker
from connectgroup.client.admin import Admin
from connectgroup.config.secrets import Secrets
from connectgroup.connector import Config, Connector, Task, TaskContext
from connectgroup.errors import ConnectGroupError, ConnectorAlreadyExists
from connectgroup.protocol.messages.common import config_of
from connectgroup.protocol.units import printable
from connectgroup.transport.audit import AuditedHandler, AuditLog
from tests.integration.processes import Program, call_command, wait

from ..coordinator.builders import GROUP, serving
from .conftest import Api, rest_server, running_worker

CANARY = "canary-7f3a"


class KeepingConnector(Connector):
    """Its tasks have its whole configuration, as those of a pipeline, and note what they were started with."""

    started: list[tuple[Config, Config]]

    def task_configs(self, max_tasks: int) -> Sequence[Config]:
        return [{**self.config, "task": "0"}]

    def task(self, config: Config, context: TaskContext) -> Task:
        return KeepingTask(self, config)


class KeepingTask(Task):
    def __init__(self, connector: Connector, config: Config) -> None:
        self.connector, self.config = connector, config

    def start(self) -> None:
        KeepingConnector.started.append((self.connector.config, self.config))
        if self.config.get("fails"):
            raise ValueError(f"cannot connect to {self.config['url']}")

    def stop(self) -> None:
        pass


@pytest.fixture
async def keeping_worker(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Worker]:
    monkeypatch.setenv("CANARY_URL", f"db://{CANARY}/x")
    KeepingConnector.started = []
    secrets = Secrets(env=("CANARY_*",))
    async with running_worker(api, tmp_path / "scratch", lambda _: KeepingConnector, secrets=secrets) as worker:
        yield worker


async def test_the_task_gets_the_secret_and_its_stored_configuration_the_reference(
    api: Api, keeping_worker: Worker
) -> None:
    config = {"connector.class": "idle", "url": "${env:CANARY_URL}", "api.key": "${env:CANARY_URL}"}
    await api("POST", "/connectors", 201, {"name": "c", "config": config})
    await api.until(lambda status: [t["state"] for t in status["tasks"]] == ["RUNNING"], "/connectors/c/status")
    ((connector, task),) = KeepingConnector.started
    assert connector["url"] == task["url"] == f"db://{CANARY}/x"
    assert (await api("GET", "/connectors/c/config", 200)) == {**config, "name": "c"}, "a reference is no secret"
    ((stored),) = await api("GET", "/connectors/c/tasks", 200)
    assert stored["config"] == {**config, "name": "c", "task": "0"}


async def test_an_error_with_a_secret_is_masked(
    api: Api, keeping_worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    config = {"connector.class": "idle", "url": "${env:CANARY_URL}", "fails": "yes"}
    await api("POST", "/connectors", 201, {"name": "c", "config": config})
    status = await api.until(lambda status: [t["state"] for t in status["tasks"]] == ["FAILED"], "/connectors/c/status")
    cause, attempt = status["tasks"][0]["trace"].split("\n")
    assert cause == "cannot connect to [hidden] (ValueError)"
    assert attempt.startswith("RETRYING, attempt ")
    assert CANARY not in caplog.text


class Peppered(KeepingConnector):
    """Its setting ``pepper`` is a credential, as it knows when it has begun to divide its work."""

    credential_names: Sequence[str] = ()

    def task_configs(self, max_tasks: int) -> Sequence[Config]:
        self.credential_names = ("pepper",)
        if "breaks" in self.config:
            raise ValueError("no tasks")
        return super().task_configs(max_tasks)


@pytest.mark.parametrize("more", [{}, {"breaks": "yes"}])
async def test_setting_that_its_class_calls_a_credential_is_masked(
    api: Api, tmp_path: Path, more: dict[str, str]
) -> None:
    """Also while the connector fails. A change of another setting keeps the value."""
    KeepingConnector.started = []
    async with running_worker(api, tmp_path / "scratch", lambda _: Peppered):
        config = {"connector.class": "idle", "pepper": CANARY, **more}
        await api("POST", "/connectors", 201, {"name": "c", "config": config})
        await api.until(lambda found: found["config"]["pepper"] == "[hidden]", "/connectors/c")
        if not more:
            ((stored),) = await api.until(bool, "/connectors/c/tasks")
            assert stored["config"]["pepper"] == "[hidden]"
            await api.until(lambda _: bool(KeepingConnector.started), "/connectors/c/status")
            assert [task["pepper"] for _, task in KeepingConnector.started] == [CANARY]
        changed = await api("PATCH", "/connectors/c/config", 200, {"tasks.max": "2"})
        assert changed["config"]["pepper"] == "[hidden]"
        described = await api.admin.describe(GROUP, connectors=("c",), credentials=True)
        assert config_of(described.connectors[0].config)["pepper"] == CANARY


@pytest.mark.parametrize("is_rest", [True, False])
async def test_audit_log_hides_all_values_if_the_coordinator_does_not_say_which_are_credentials(
    tmp_path: Path, is_rest: bool
) -> None:
    """It is closed here, and answers as a standby does."""
    audit, config = tmp_path / "audit", {"connector.class": "idle", "pepper": CANARY}
    async with (
        serving() as coordinator,
        rest_server(coordinator, audit_log=audit if is_rest else None) as api,
    ):
        await coordinator.close()
        if is_rest:
            response = await api.http.put("/connectors/c/config", json=config)
            assert response.status_code >= 500
        else:
            log = AuditLog(audit)
            log.start()
            async with Admin([LocalClient(AuditedHandler(coordinator, log, lambda: "alice"))], retry_for_s=0) as admin:
                with pytest.raises(ConnectGroupError):
                    await admin.add_connector(GROUP, "c", config)
            log.close()
    lines = audit.read_text()
    assert '"c"' in lines
    assert CANARY not in lines


@pytest.mark.parametrize("is_rest", [True, False])
async def test_setting_that_its_class_calls_a_credential_is_masked_in_the_audit_log(
    tmp_path: Path, is_rest: bool
) -> None:
    """Once a worker has run the connector: the lines of its next changes, also of those that are rejected."""
    KeepingConnector.started = []
    audit = tmp_path / "audit"
    async with (
        serving() as coordinator,
        rest_server(coordinator, audit_log=audit if is_rest else None) as api,
        running_worker(api, tmp_path / "scratch", lambda _: Peppered),
    ):
        config = {"connector.class": "idle", "pepper": "white"}
        await api("POST", "/connectors", 201, {"name": "c", "config": config})
        await api.until(lambda found: found["config"]["pepper"] == "[hidden]", "/connectors/c")
        if is_rest:
            await api("PUT", "/connectors/c/config", 200, {**config, "pepper": CANARY})
            await api("PATCH", "/connectors/c/config", 200, {"pepper": f"{CANARY}-2"})
            await api("PUT", "/connectors/c/config", 400, {**config, "pepper": CANARY, "log": None})
            await api("POST", "/connectors", 409, {"name": "c", "config": {**config, "pepper": CANARY}})
        else:
            log = AuditLog(audit)
            log.start()
            handler = AuditedHandler(coordinator, log, lambda: "alice")
            async with Admin([LocalClient(handler)]) as admin:
                await admin.put_connector(GROUP, "c", {**config, "pepper": CANARY})  # it tries to create it first
                await admin.patch_connector(GROUP, "c", {"pepper": f"{CANARY}-2"})
                with pytest.raises(ConnectorAlreadyExists):
                    await admin.add_connector(GROUP, "c", {**config, "pepper": CANARY})
            log.close()
    lines = audit.read_text()
    assert CANARY not in lines
    assert lines.count('"pepper": "[hidden]"') == 4


async def test_rest_does_not_resolve_references(api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A stopped connector has no owner, and the REST server no allow-list."""
    monkeypatch.setenv("CANARY_PATH", str(tmp_path / f"{CANARY}.db"))
    config = {
        "connector.class": "pipeline",
        "source": "files",
        "source.path": str(tmp_path / "in"),
        "source.format": "csv",
        "sink": "postgres",
        "sink.table": "t",
        "sink.password": "${env:CANARY_PATH}",
    }
    await api("POST", "/connectors", 201, {"name": "c", "config": config, "initial_state": "STOPPED"})
    message = await api("GET", "/connectors/c/offsets", 400)
    assert message == "sink.password: got '${env:CANARY_PATH}'; allowed: a variable that secret_env allows: none"
    config["sink.password"] = "${env:A"
    assert "sink.password: got" in await api("PUT", "/connectors/c/config", 400, config)


async def test_references_that_no_worker_may_resolve_are_rejected_when_they_are_written(tmp_path: Path) -> None:
    """A server that knows what the workers allow; the variables and files need not exist here."""
    allowed = {"a": "${env:DB_URL}", "b": f"${{file:{tmp_path}/in/x:key}}", "c": f"${{dir:{tmp_path}/in:x}}"}
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "link").symlink_to(tmp_path / "x")
    async with (
        serving() as coordinator,
        rest_server(coordinator, secret_env=("DB_*",), secret_paths=(tmp_path / "in",)) as api,
    ):
        for name, log in allowed.items():
            await api("PUT", f"/connectors/{name}/config", 201, {"connector.class": "idle", "log": log})
        for log in ("${env:HOME}", "${file:/etc/passwd:x}", f"${{dir:{tmp_path}/in:link}}"):
            config = {"connector.class": "idle", "log": log}
            message = await api("POST", "/connectors", 400, {"name": "d", "config": config})
            assert f"log: got '{printable(log)}'; allowed: a " in message
            assert "that secret_" in message
            assert "DB_" not in message
            assert printable(log) in await api("PATCH", "/connectors/a/config", 400, {"log": log})
            validated = await api("PUT", "/connector-plugins/idle/config/validate", 200, {**config, "name": "d"})
            assert [each["value"]["name"] for each in validated["configs"] if each["value"]["errors"]] == ["log"]
        assert await api("GET", "/connectors", 200) == [*allowed]


def test_nothing_that_the_processes_write_contains_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log database, the logs of all processes, every REST body and the output of the command line."""
    good = tmp_path / f"{CANARY}-good"
    good.mkdir()
    monkeypatch.setenv("CANARY_GOOD", str(good / "log"))
    monkeypatch.setenv("CANARY_BAD", str(tmp_path / f"{CANARY}-nosuch" / "log"))
    monkeypatch.setenv("FORBIDDEN", f"{CANARY}-forbidden")
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "bad").write_text(str(tmp_path / f"{CANARY}-nosuch" / "other"))
    logs = {
        "good": "${env:CANARY_GOOD}",
        "bad": "${env:CANARY_BAD}",
        "worse": f"${{dir:{tmp_path}/secrets:bad}}",
        "forbidden": "${env:FORBIDDEN}",
    }
    shown: list[str] = []
    words: list[str | Path | int] = [
        "--verbose",
        "up",
        "--data",
        tmp_path / "data",
        "--port",
        0,
        "--rest-port",
        0,
        "--workers",
        1,
    ]
    words += ["--secret-env", "CANARY_*", "--secret-path", tmp_path / "secrets"]
    with Program(*words) as up:
        address = up.line_with("coordinator at ").removeprefix("coordinator at ").partition(",")[0]
        url = up.line_with("REST at ").removeprefix("REST at ")

        def call(path: str, method: str = "GET", body: object = None) -> str:
            data = None if body is None else json.dumps(body).encode()
            headers = {"Content-Type": "application/json"}
            try:
                with urllib.request.urlopen(urllib.request.Request(url + path, data, headers, method=method)) as answer:
                    shown.append(answer.read().decode())
            except urllib.error.HTTPError as error:
                shown.append(error.read().decode())
            return shown[-1]

        for name, log in logs.items():
            call(f"/connectors/{name}/config", "PUT", {"connector.class": "idle", "log": log})
        # Rejected at once; by the command line, which does not know what the workers allow, by the worker.
        assert "allowed: a variable that secret_env allows" in shown[-1]
        file = tmp_path / "forbidden.properties"
        file.write_text(f"name=forbidden\nconnector.class=idle\nlog={logs['forbidden']}\n")
        done = call_command("connectors", "put", file, "--coordinator", address)
        assert "note: " in done.err
        shown += [done.out, done.err]

        def states() -> dict[str, list[str]]:
            found = {name: json.loads(call(f"/connectors/{name}/status")) for name in logs}
            return {name: [task["state"] for task in status["tasks"]] for name, status in found.items()}

        failed = {name: ["FAILED"] for name in ("bad", "worse")}
        wait(
            "the states",
            lambda: states() == {"good": ["RUNNING"], **failed, "forbidden": []},
            lambda: "\n".join([*up.lines, str(states())]),
        )
        for path in ("/connectors?expand=info&expand=status", "/groups/workers", "/groups/workers/rebalances"):
            call(path)
        for name in logs:
            for path in ("", "/config", "/tasks", "/offsets", "/topics"):
                call(f"/connectors/{name}{path}")
            call("/connector-plugins/idle/config/validate", "PUT", {"name": name, "log": logs[name]})
        at = ("--coordinator", address)
        for arguments in (
            ("groups", "describe", "workers", "--json"),
            ("groups", "describe", "workers"),
            ("connectors", "list", "--json"),
            ("connectors", "status", "bad"),
        ):
            done = call_command(*arguments, *at)
            shown += [done.out, done.err]
        up.signal(signal.SIGINT)
        up.ended()
        shown += up.lines
    assert (good / "log").read_text().count(" START ") == 1, "the task had the secret"
    text = "\n".join(shown)
    assert "[hidden]" in text
    assert "${env:CANARY_BAD}" in text
    assert "allowed: a variable that secret_env allows" in text
    assert "CANARY_*" not in text, "a trace names other secrets"
    assert CANARY not in text
    written = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert written
    for file in written:
        assert CANARY.encode() not in file.read_bytes(), file
