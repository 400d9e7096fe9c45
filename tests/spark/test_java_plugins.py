"""Source connectors of Kafka Connect, unchanged, into the sinks of this package."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from connectgroup.connector import Connector, PartitionOffset, Task, TaskContext
from connectgroup.dataplane.java_plugins import PLUGIN_PATH
from connectgroup.plugins import load_connector_class
from connectgroup.protocol.units import Unit
from tests.spark.conftest import Run

FILE_STREAM: Final = "org.apache.kafka.connect.file.FileStreamSourceConnector"


@pytest.fixture(scope="session")
def plugin_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plug-in path with Kafka's own FileStream."""
    from tests.consumer.broker import KAFKA, Unavailable, fetched_jars_of

    path = tmp_path_factory.mktemp("plugins")
    try:
        jars = fetched_jars_of("connect-file", [f"org.apache.kafka:connect-file:{KAFKA}"])
    except Unavailable as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(f"continuous integration has no plug-in of Kafka Connect: {missing}")
        pytest.skip(str(missing))
    shutil.copytree(jars, path / "file-stream")
    return path


class Cluster:
    """Connectors as workers would run them; only the grants are simulated."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.runs: list[Run] = []
        self.connectors: list[Connector] = []

    def connector(self, config: dict[str, str], name: str = "lines") -> Connector:
        made = load_connector_class(config["connector.class"])(name, config)
        self.connectors.append(made)
        return made

    def start(self, config: dict[str, str], *, epoch: int = 1, tasks: int = 1, task: int = 0) -> Run:
        """Divide the work, and start one task."""
        connector = self.connector(config)
        configs = connector.task_configs(tasks)
        connector.stop()
        return self.grant(config, dict(configs[task]), epoch=epoch, task=task)

    def grant(self, config: dict[str, str], task_config: dict[str, str], *, epoch: int, task: int = 0) -> Run:
        rows: list[int] = []
        errors: list[BaseException] = []
        polls: list[None] = []
        context = TaskContext(
            unit=Unit("lines", task),
            owner_epoch=epoch,
            member_id="m",
            scratch=self.root / f"scratch-{len(self.runs)}",
            progress=rows.append,
            failed=errors.append,
            polled=lambda: polls.append(None),
        )
        made: Task = self.connector(config).task(task_config, context)
        run = Run(made, context, rows, errors)
        run.polls = polls
        self.runs.append(run)
        made.start()
        return run

    def close(self) -> None:
        for run in self.runs:
            with contextlib.suppress(Exception):
                run.task.stop()
        for connector in self.connectors:
            connector.stop()


@pytest.fixture
def cluster(tmp_path: Path, plugin_path: Path, spark: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv(PLUGIN_PATH, str(plugin_path))
    made = Cluster(tmp_path)
    yield made
    made.close()


def file_stream(root: Path, **settings: str) -> dict[str, str]:
    """FileStreamSource to SQLite, in Kafka Connect's own form."""
    return {
        "connector.class": FILE_STREAM,
        "tasks.max": "1",
        "file": str(root / "in.txt"),
        "topic": "lines",
        "sink": "sqlite",
        "sink.path": str(root / "out.db"),
        "sink.table": "t",
        "trigger.ms": "20",
    } | {name.replace("_", "."): value for name, value in settings.items()}


def write_lines(root: Path, numbers: range) -> None:
    with (root / "in.txt").open("a") as file:
        file.writelines(f"line {number}\n" for number in numbers)


def read_table(root: Path, columns: str = "value") -> list[Any]:
    if not (root / "out.db").exists():
        return []
    with contextlib.closing(sqlite3.connect(root / "out.db")) as connection:
        try:
            rows = connection.execute(f"SELECT {columns} FROM t ORDER BY rowid").fetchall()
        except sqlite3.OperationalError:
            return []
    return [row[0] if len(row) == 1 else row for row in rows]


def lines(numbers: range) -> list[str]:
    return [f"line {number}" for number in numbers]


def test_lines_of_a_file_stream_are_committed_once_across_restarts(cluster: Cluster, tmp_path: Path) -> None:
    config = file_stream(tmp_path)
    write_lines(tmp_path, range(1000))
    first = cluster.start(config)
    first.wait(lambda: len(read_table(tmp_path)) == 1000)
    first.task.stop()
    write_lines(tmp_path, range(1000, 1500))
    second = cluster.start(config, epoch=2)
    second.wait(lambda: len(read_table(tmp_path)) >= 1500)
    assert read_table(tmp_path) == lines(range(1500))
    assert second.polls, "the task has reported that it polls"


def test_pipeline_form_names_the_plugin_by_source_connector_class(cluster: Cluster, tmp_path: Path) -> None:
    write_lines(tmp_path, range(10))
    run = cluster.start(
        {
            "connector.class": "pipeline",
            "source": "connect",
            "source.connector.class": FILE_STREAM,
            "source.config.file": str(tmp_path / "in.txt"),
            "source.config.topic": "lines",
            "source.metadata": "topic",
            "sink": "sqlite",
            "sink.path": str(tmp_path / "out.db"),
            "sink.table": "t",
        }
    )
    run.wait(lambda: len(read_table(tmp_path)) == 10)
    assert read_table(tmp_path, "topic, value") == [("lines", text) for text in lines(range(10))]


def test_offsets_have_the_form_of_the_plugin_and_can_be_altered(cluster: Cluster, tmp_path: Path) -> None:
    config = file_stream(tmp_path)
    write_lines(tmp_path, range(10))
    run = cluster.start(config)
    run.wait(lambda: len(read_table(tmp_path)) == 10)
    run.task.stop()
    partition = {"filename": str(tmp_path / "in.txt")}
    connector = cluster.connector(config)
    assert connector.offsets() == [PartitionOffset(partition=partition, offset={"position": 70})]
    connector.alter_offsets((2 << 8), [PartitionOffset(partition=partition, offset={"position": 49})])
    again = cluster.start(config, epoch=1 << 10)
    again.wait(lambda: len(read_table(tmp_path)) >= 13)
    assert read_table(tmp_path)[10:] == lines(range(7, 10))
