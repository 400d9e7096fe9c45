"""No credential of a connector is shown: not in a terminal, a log, a description, or a ``repr``.

Canary values are put into configurations, then searched in all output (reliability, section 5, secrets).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from connectgroup.cli.command import main
from connectgroup.config.base import checked
from connectgroup.config.connector_file import ConnectorFile, read_connector
from connectgroup.connector import Config, Connector, Task, TaskContext
from connectgroup.connectors.pipeline import PipelineConnector, parse_config
from connectgroup.errors import ConfigError
from connectgroup.masking import is_credential
from connectgroup.member.actions import Grant
from connectgroup.protocol.messages.common import entries
from connectgroup.protocol.messages.connectors import ConnectorChange, TaskConfig, UpdateConnectorsRequest
from connectgroup.protocol.messages.heartbeat import TaskStatus
from connectgroup.protocol.records.connect import ConnectorRecord, TaskEntry
from connectgroup.protocol.units import Unit
from connectgroup.worker.runner import TaskRunner, UnitsNotStopped
from connectgroup.worker.settings import RunnerSettings

from ..integration.processes import Program, call_command, wait

GROUP = "guarded"
CANARY = "hunter2-canary"
CREDENTIALS = {
    "jdbc.password": f"{CANARY}-1",
    "client.secret": f"{CANARY}-2",
    "auth.token": f"{CANARY}-3",
    "api.key": f"{CANARY}-4",
    "aws.credentials": f"{CANARY}-5",
    "sasl.jaas.config": f'org.example.Login required password="{CANARY}-6";',
    "db.pwd": f"{CANARY}-7",
}
CONFIG = {**CREDENTIALS, "connection.url": f"jdbc:postgresql://owner:{CANARY}-8@db/orders", "connector.class": "idle"}
PIPELINE = {
    "connector.class": "pipeline",
    "source": "files",
    "source.path": "/in",
    "source.format": "csv",
    "sink": "parquet",
    "sink.path": "/out",
}


def file_of(path: Path, config: object, name: str = "orders") -> Path:
    path.write_text(json.dumps({"name": name, "config": config}))
    return path


def test_commands_and_logs_show_no_credential(tmp_path: Path) -> None:
    shown: list[str] = []
    with Program("coordinator", "--port", 0, "--data", tmp_path / "data") as coordinator:
        address = coordinator.line_with("coordinator at ").removeprefix("coordinator at ")
        group = ("--group", GROUP, "--coordinator", address)
        with Program("worker", *group, "--name", "w", "--scratch", tmp_path / "scratch") as worker:
            for number, (config, code) in enumerate(
                (
                    (CONFIG, 0),
                    ({**PIPELINE, **CREDENTIALS}, 2),
                    ({**PIPELINE, "spark.licence": CANARY}, 2),
                    ({**CONFIG, "jdbc.password": [4711]}, 2),
                    (CANARY, 2),
                    ([CANARY], 2),
                )
            ):
                ran = call_command("connectors", "put", file_of(tmp_path / f"{number}.json", config), *group)
                assert ran.code == code, ran
                shown += [ran.out, ran.err]

            def runs() -> bool:
                ran = call_command("groups", "describe", GROUP, "--coordinator", address)
                return "orders-0: RUNNING" in ran.out

            wait("the task runs", runs, worker.output)
            for arguments in (
                ("connectors", "list", *group),
                ("connectors", "list", "--json", *group),
                ("connectors", "status", "orders", *group),
                ("groups", "describe", GROUP, "--coordinator", address),
                ("groups", "explain", GROUP, "--moves", "--coordinator", address),
                ("groups", "list", "--coordinator", address),
            ):
                ran = call_command(*arguments)
                assert ran.code == 0, ran
                shown += [ran.out, ran.err]
        shown += worker.lines
    shown += coordinator.lines
    text = "\n".join(shown)
    assert '"jdbc.password": "[hidden]"' in text
    assert '"connection.url": "jdbc:postgresql://[hidden]@db/orders"' in text
    assert ": unknown; allowed: " in text
    assert CANARY not in text
    assert "4711" not in text


def test_masked_value_is_not_accepted_as_a_value(tmp_path: Path) -> None:
    """The output of ``connectors list`` may be written back by mistake."""
    path = file_of(tmp_path / "c.json", {"connector.class": "idle", "db.password": "[hidden]"})
    with pytest.raises(ConfigError, match=r"db\.password: got '\[hidden\]'; allowed: the real value"):
        read_connector(path)


class Leaky(Connector):
    """Fails in each of its methods, with its configuration in the message."""

    def task_configs(self, limit: int) -> Sequence[Config]:
        raise ValueError(f"cannot connect with {dict(self.config)!r}")

    def task(self, config: Config, context: TaskContext) -> Task:
        if context.unit.task:
            raise RuntimeError(f"refused: {self.config['jdbc.password']}")
        return LeakyTask(self.config)


class LeakyTask(Task):
    def __init__(self, config: Config) -> None:
        self._config = config

    def start(self) -> None:
        pass

    def stop(self) -> None:
        raise OSError(f"{self._config['connection.url']}: lost, jdbc.password={self._config['jdbc.password']}")


class Unmade(Connector):
    """Its constructor fails, with the configuration in the message."""

    def __init__(self, name: str, config: Config) -> None:
        raise ValueError(f"{name}: {dict(config)!r}")

    def task_configs(self, limit: int) -> Sequence[Config]:
        return ()

    def task(self, config: Config, context: TaskContext) -> Task:
        raise NotImplementedError


async def test_error_of_a_connector_is_shown_without_credentials(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    statuses: list[TaskStatus] = []
    reported = asyncio.Event()

    def report(status: TaskStatus) -> None:
        statuses.append(status)
        reported.set()

    async def publish(name: str, owner_epoch: int, configs: Sequence[Config]) -> None:
        pass

    classes: dict[str, type[Connector]] = {"leaky": Leaky, "unmade": Unmade, "pipeline": PipelineConnector}
    runner = TaskRunner(
        "w",
        RunnerSettings(scratch=tmp_path),
        load_class=classes.__getitem__,
        publish=publish,
        report=report,
    )
    grants = [
        Grant(
            unit=Unit(name, task),
            owner_epoch=1,
            config={"task.token": f"{CANARY}-9"} if task >= 0 else {},
            connector_config={**CONFIG, **(PIPELINE if name == "pipeline" else {}), "connector.class": name},
        )
        for name in classes
        for task in (-1, 0, 1)
    ]
    with caplog.at_level(logging.DEBUG):
        await runner.start(grants)
        async with asyncio.timeout(30):
            while len({(status.connector, status.task) for status in statuses}) < len(grants):
                reported.clear()
                await reported.wait()
            with pytest.raises(UnitsNotStopped) as failed:
                await runner.stop(frozenset(grant.unit for grant in grants))
    assert CANARY not in str(failed.value)
    assert sum("[hidden]" in status.message for status in statuses) >= 4
    assert "stop raised: jdbc:postgresql://[hidden]@db/orders: lost" in caplog.text
    assert CANARY not in "\n".join(status.message for status in statuses)
    assert CANARY not in caplog.text
    assert CANARY not in repr(grants)


def test_rejected_configuration_is_not_shown_by_its_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("connectgroup.config.connector_validation.load_connector_class", lambda name: Unmade)
    path = file_of(tmp_path / "c.json", CONFIG)
    assert main(["connectors", "put", str(path), "--coordinator", "127.0.0.1:1"]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("connectgroup: connector class Unmade: orders: ")
    assert "[hidden]" in shown.err
    assert CANARY not in shown.out + shown.err


def test_repr_and_errors_hold_no_credential() -> None:
    lines = entries(CONFIG)
    change = ConnectorChange(connector="c", config=lines, task_configs=(TaskConfig(config=lines),))
    shown: list[object] = [
        UpdateConnectorsRequest(group_id="g", changes=(change,)),
        ConnectorRecord(group_id="g", connector="c", version=1, config=lines, tasks=(TaskEntry(config=lines),)),
        ConnectorFile(name="c", config=CONFIG),
    ]
    for key, value in CREDENTIALS.items():
        error = ConfigError(f"c.json: config.{key}", value, "something else")
        assert str(error) == f"c.json: config.{key}: got '[hidden]'; allowed: something else"
        shown += [error, error.args, vars(error)]
    for make in (
        lambda: parse_config({**PIPELINE, **CREDENTIALS}),
        lambda: parse_config({**PIPELINE, "other": CANARY}),
        lambda: checked(ConnectorFile, {"name": "c", "config": {"a": [CANARY]}}),
        lambda: checked(ConnectorFile, {"name": "c", "config": CANARY}),
        lambda: checked(ConnectorFile, {"name": "c", "config": {}, "more": CANARY}),
    ):
        with pytest.raises(ConfigError) as caught:
            make()
        shown += [caught.value, vars(caught.value), str(caught.value.__cause__), repr(caught.value.__cause__)]
    assert CANARY not in "\n".join(f"{each!r} {each}" for each in shown)


@pytest.mark.parametrize(
    "key",
    [
        *(*CREDENTIALS, "password", "config.db.password", "ssl.key.password", "github_token", "PASSPHRASE"),
        *("x-api-key", "keyfile", "azure.eventhubs.sas.keyvalue", "storageAccountKey", "sharedKey"),
    ],
)
def test_credentials_are_recognized_by_name(key: str) -> None:
    assert is_credential(key)


@pytest.mark.parametrize(
    "key",
    ["tasks.max", "source.path", "trigger.ms", "sink.table", "keyspace", "monkey", "key.converter", "author"],
)
def test_other_settings_are_not_masked(key: str) -> None:
    assert not is_credential(key)
