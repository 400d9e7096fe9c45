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


# --------------------------------------------------------------------------------------------------
# Debezium, on a real PostgreSQL with logical decoding.


DEBEZIUM: Final = "io.debezium.connector.postgresql.PostgresConnector"


@pytest.fixture(scope="session")
def debezium(plugin_path: Path) -> Path:
    """The plug-in path with Debezium's connector for PostgreSQL."""
    from tests.consumer.broker import Unavailable, fetched_with_dependencies

    try:
        jars = fetched_with_dependencies(
            "debezium-postgres-3.6.1", ["io.debezium:debezium-connector-postgres:3.6.1.Final"]
        )
    except Unavailable as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(f"continuous integration has no Debezium: {missing}")
        pytest.skip(str(missing))
    shutil.copytree(jars, plugin_path / "debezium-postgres", dirs_exist_ok=True)
    return plugin_path


class Orders:
    """A table whose changes Debezium reads."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.database = url.rpartition("/")[2]
        self.execute(
            "CREATE TABLE orders (id INT PRIMARY KEY, amount NUMERIC(12,2), note TEXT, at TIMESTAMPTZ, day DATE,"
            " local TIMESTAMP, clock TIME, raw BYTEA, tags TEXT[], doc JSONB)",
            "ALTER TABLE orders REPLICA IDENTITY FULL",
        )

    def execute(self, *statements: str) -> list[Any]:
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def insert(self, numbers: range) -> None:
        self.execute(
            "INSERT INTO orders SELECT n, n + 0.25, 'note ' || n, '2024-02-29T12:30:01.123456Z'::timestamptz,"
            " DATE '2024-02-29', TIMESTAMP '2024-02-29 12:30:01.5', TIME '12:30:01.25', '\\x00ff', ARRAY['a', 'b'],"
            f" '{{\"n\": 1}}' FROM generate_series({numbers.start}, {numbers.stop - 1}) n"
        )

    def config(self, **settings: str) -> dict[str, str]:
        port = self.url.rpartition(":")[2].partition("/")[0]
        return {
            "connector.class": DEBEZIUM,
            "tasks.max": "1",
            "database.hostname": "127.0.0.1",
            "database.port": port,
            "database.user": "test",
            "database.password": "never-shown",
            "database.dbname": self.database,
            "topic.prefix": "shop",
            "plugin.name": "pgoutput",
            "slot.name": f"s_{self.database}",
            "publication.name": f"p_{self.database}",
            "publication.autocreate.mode": "filtered",
            "table.include.list": "public.orders",
            "trigger.ms": "50",
        } | {name.replace("_", "."): value for name, value in settings.items()}


@pytest.fixture
def orders(debezium: Path, database: str) -> Orders:
    return Orders(database)


def test_changes_of_a_table_are_applied_to_another_table(cluster: Cluster, orders: Orders) -> None:
    """Upserts and deletes; the record's state comes from Debezium's own transformation of Java."""
    config = orders.config(
        sink="postgres",
        sink_url=orders.url,
        sink_table="copy",
        sink_insert_mode="upsert",
        sink_pk_fields="id",
        transforms="unwrap,deleted",
        transforms_unwrap_type="io.debezium.transforms.ExtractNewRecordState",
        transforms_deleted_type="Cast",
        transforms_deleted_spec="__deleted:boolean",
    ) | {
        "sink.delete.field": "__deleted",
        "transforms.unwrap.delete.tombstone.handling.mode": "rewrite",
    }
    orders.insert(range(100))

    def copied() -> list[Any]:
        return orders.execute("SELECT id, amount::text, note FROM copy ORDER BY id")

    first = cluster.start(config)
    first.wait(lambda: orders.execute("SELECT to_regclass('copy')") != [(None,)] and len(copied()) == 100)
    orders.execute("UPDATE orders SET note = 'new' WHERE id < 10", "DELETE FROM orders WHERE id >= 90")
    first.wait(lambda: len(copied()) == 90)
    first.task.stop()
    orders.execute("DELETE FROM orders WHERE id = 0", "UPDATE orders SET note = 'newer' WHERE id = 1")
    second = cluster.start(config, epoch=2)
    wanted = orders.execute("SELECT id, amount::text, note FROM orders ORDER BY id")
    second.wait(lambda: copied() == wanted)
