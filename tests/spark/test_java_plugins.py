"""Source connectors of Kafka Connect, unchanged, into the sinks of this package."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import json
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

from connectgroup.connector import Batch, Connector, PartitionOffset, Task, TaskContext
from connectgroup.dataplane.errors import SinkError, SourceError
from connectgroup.dataplane.java_plugins import PLUGIN_PATH
from connectgroup.errors import ConnectGroupError, PluginError
from connectgroup.plugins import load_connector_class
from connectgroup.protocol.units import Unit
from connectgroup.spark import connect_task
from connectgroup.spark.session import kill_session, session_is_alive
from connectgroup.spark.sinks.manifest import read_committed
from tests.integration.commands import CommandGroup
from tests.spark.conftest import Run, wait
from tests.spark.java_plugins import (
    DEBEZIUM,
    DEBEZIUM_JDBC,
    DEBEZIUM_MARIADB,
    FILE_STREAM,
    TEST_PLUGIN,
    TEST_SINK,
    debezium as debezium,
    debezium_jdbc as debezium_jdbc,
    debezium_mariadb as debezium_mariadb,
    debezium_settings,
    java_plugin_path as java_plugin_path,
)
from tests.spark.kafka_topics import add_partitions, committed, make_topic, produce
from tests.spark.mariadb_server import PASSWORD, MariaDB, mariadb as mariadb
from tests.volume import ci_only


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
        batches: list[Batch] = []
        context = TaskContext(
            unit=Unit("lines", task),
            owner_epoch=epoch,
            member_id="m",
            scratch=self.root / f"scratch-{len(self.runs)}",
            progress=rows.append,
            failed=errors.append,
            batch=batches.append,
            polled=lambda: polls.append(None),
        )
        made: Task = self.connector(config).task(task_config, context)
        run = Run(made, context, rows, errors)
        run.polls, run.batches = polls, batches
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
def cluster(tmp_path: Path, java_plugin_path: Path, spark: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv(PLUGIN_PATH, str(java_plugin_path))
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


def test_simple_name_of_a_class_is_enough(cluster: Cluster, tmp_path: Path) -> None:
    write_lines(tmp_path, range(5))
    run = cluster.start(file_stream(tmp_path) | {"connector.class": "FileStreamSource"})
    run.wait(lambda: read_table(tmp_path) == lines(range(5)))


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


def test_plugin_objects_to_offsets_before_they_are_changed(cluster: Cluster, tmp_path: Path) -> None:
    """KIP-875: the connector's own check, also of a reset; its message has no password."""
    config = counting(tmp_path)
    run = cluster.start(config)
    run.wait(lambda: rows_of(tmp_path) == every_row(1, 10))
    run.task.stop()
    (known,) = cluster.connector(config).offsets()
    wrong = PartitionOffset(partition=known.partition, offset={"n": -3})
    for mode, changes, words in (
        ("", [wrong], "IllegalArgumentException: n is -3 (at tests.TestPlugin"),
        ("", [PartitionOffset(partition={"part": "p0"}, offset={"n": 1})], "no number in {part=p0}"),
        ("keeps", None, "IllegalArgumentException: keep p0 and [hidden] (at tests.TestPlugin"),
        ("offsets are fixed", None, "does not support external modification of offsets"),
    ):
        with pytest.raises(PluginError) as raised:
            cluster.connector(config | {"mode": mode}).alter_offsets(2 << 8, changes)
        assert words in str(raised.value)
        assert cluster.connector(config).offsets() == [known]
    assert cluster.connector(config).alter_offsets(2 << 8, None) is True
    assert cluster.connector(config).offsets() == []


def test_process_without_spark_asks_the_plugin_in_a_java_of_its_own(cluster: Cluster, tmp_path: Path) -> None:
    """As a REST server, or a command: it runs no tasks."""
    wrong = PartitionOffset(partition={"filename": str(tmp_path / "in.txt")}, offset={"position": -1})
    program = (
        "from connectgroup.connector import PartitionOffset\n"
        "from connectgroup.plugins import load_connector_class\n"
        f"config = {file_stream(tmp_path)}\n"
        f"made = load_connector_class({FILE_STREAM!r})('lines', config)\n"
        f"made.alter_offsets(1 << 8, [{wrong!r}])\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith("connectgroup.errors.PluginError"), ended.stderr
    assert "FileStreamSourceConnector: org.apache.kafka.connect.errors.ConnectException: The value for the" in last


# --------------------------------------------------------------------------------------------------
# A plug-in with several source partitions, which misbehaves as its setting "mode" says.


def counting(root: Path, **settings: str) -> dict[str, str]:
    """TestPlugin to SQLite; its password must appear nowhere."""
    own = {"connector.class": TEST_PLUGIN, "pass.word": "top-secret", "name": "lines"}
    config = {name: value for name, value in file_stream(root).items() if name not in ("file", "topic")}
    return config | own | {name.replace("_", "."): value for name, value in settings.items()}


def rows_of(root: Path) -> list[tuple[str, int]]:
    return sorted(read_table(root, "part, n"))


def every_row(partitions: int, rows: int) -> list[tuple[str, int]]:
    return sorted((f"p{part}", n) for part in range(partitions) for n in range(rows))


def test_offsets_belong_to_the_connector_whatever_the_number_of_tasks(cluster: Cluster, tmp_path: Path) -> None:
    for tasks, rows in ((2, 30), (3, 60), (1, 90)):
        config = counting(tmp_path, partitions="4", rows=str(rows))
        connector = cluster.connector(config)
        configs = connector.task_configs(tasks)
        connector.stop()
        assert len(configs) == tasks
        runs = [cluster.grant(config, dict(each), epoch=10 * rows + n, task=n) for n, each in enumerate(configs)]
        for run in runs:
            run.wait(lambda rows=rows: len(rows_of(tmp_path)) >= 4 * rows)  # type: ignore[misc]
            assert not run.errors
        for run in runs:
            run.task.stop()
        assert rows_of(tmp_path) == every_row(4, rows)
    offsets = cluster.connector(counting(tmp_path)).offsets()
    assert [dict(each.partition) for each in offsets] == [{"number": n, "part": f"p{n}"} for n in range(4)]
    assert [each.offset for each in offsets] == [{"n": 90}] * 4


def test_task_on_a_former_number_of_tasks_cannot_commit(cluster: Cluster, tmp_path: Path) -> None:
    config = counting(tmp_path, partitions="2", rows="1000000")
    old = cluster.start(config, epoch=1)
    old.wait(lambda: bool(read_table(tmp_path, "n")))
    new = counting(tmp_path, partitions="2", rows="20")
    connector = cluster.connector(new)
    configs = connector.task_configs(2)
    connector.stop()
    runs = [cluster.grant(new, dict(each), epoch=2 + n, task=n) for n, each in enumerate(configs)]
    # The new tasks have nothing left to read, or they read on where the old one was: either way no row comes twice.
    wait(lambda: bool(old.errors) or any(run.errors for run in runs) or len(rows_of(tmp_path)) >= 40)
    for run in (old, *runs):
        run.task.stop()
    found = rows_of(tmp_path)
    assert len(found) == len(set(found))


def replace_text(path: Path, text: str) -> None:
    """Write a file that another program reads: it never sees an empty one."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


@pytest.mark.parametrize(
    ("mode", "error", "words"),
    [("", "raise", "IllegalStateException: the city is gone"), ("always", "raise null", "an error that is null")],
)
def test_new_partitions_give_the_tasks_new_settings(
    cluster: Cluster, tmp_path: Path, mode: str, error: str, words: str
) -> None:
    """``always``: the connector asks for new tasks again and again. At first there is nothing to read."""
    replace_text(tmp_path / "count", "0")
    config = counting(tmp_path, mode=mode, partitions_file=str(tmp_path / "count"))
    connector = cluster.connector(config)
    assert list(connector.task_configs(2)) == []
    replace_text(tmp_path / "count", "1")
    wait(lambda: bool(connector.task_configs(2)))
    assert [each["mine"] for each in connector.task_configs(2)] == ["p0"]
    assert connector.task_configs(2) == connector.task_configs(2), "asked again, it has the same tasks"
    replace_text(tmp_path / "count", "3")
    wait(lambda: [each["mine"] for each in connector.task_configs(2)] == ["p0,p2", "p1"])
    replace_text(tmp_path / "count", error)

    raised: list[SourceError] = []

    def has_raised() -> bool:
        try:
            connector.task_configs(2)
        except SourceError as error:
            raised.append(error)
        return bool(raised)

    wait(has_raised)
    assert words in str(raised[0])


def test_types_keep_their_values(cluster: Cluster, tmp_path: Path) -> None:
    """Also a null: the default of its field is for those that are never null."""
    import pyarrow.parquet

    from connectgroup.spark.sinks.parquet import read_committed

    config = counting(tmp_path, mode="types", rows="1", sink="parquet", sink_path=str(tmp_path / "out"))
    del config["sink.table"]
    run = cluster.start(config)
    run.wait(lambda: bool(run.rows))
    (file,) = read_committed(tmp_path / "out")
    (row,) = pyarrow.parquet.read_table(file).to_pylist()
    assert row == {
        "i8": -128, "i16": 32767, "i64": -(2**63), "f32": 1.5, "f64": 0.1, "flag": True, "raw": b"\0\xff",
        "buffer": b"\x09\x07", "missing": None, "none": None, "unset": 5,
        "price": decimal.Decimal("12345678901234567890.12"),
        "day": datetime.date(1969, 12, 31), "clock": "12:30:01.250",
        "at": datetime.datetime(2024, 2, 29, 12, 30, 1, 123000, datetime.UTC), "tags": ["a", None, "c"],
        "counts": [("k", 7)], "inner": {"x": 3, "prices": [decimal.Decimal("0.5")], "none": None},
    }  # fmt: skip


def test_heartbeats_make_no_rows_and_their_offsets_are_committed(cluster: Cluster, tmp_path: Path) -> None:
    """Debezium's, which are in the midst of the changes of a table, and before the first of them."""
    config = counting(tmp_path, mode="heartbeats")
    run = cluster.start(config)
    run.wait(lambda: rows_of(tmp_path) == [row for row in every_row(1, 10) if row[1] % 3])
    run.task.stop()
    assert read_table(tmp_path, "*")[0] == ("p0", 1), "no column of theirs"
    (offset,) = cluster.connector(config).offsets()
    assert offset.offset == {"n": 10}


@pytest.mark.parametrize("sink", ["sqlite", "jsonl", "postgres"])
def test_heartbeats_are_committed_while_there_is_no_row(
    cluster: Cluster, tmp_path: Path, sink: str, request: pytest.FixtureRequest
) -> None:
    """No columns are known: the plug-in learns of the commit nevertheless, else a database would keep its log."""
    config = counting(tmp_path, mode="heartbeats", rows="1", sink=sink, commits_file=str(tmp_path / "commits"))
    if sink == "postgres":
        del config["sink.path"]
        config["sink.url"] = request.getfixturevalue("database")
    elif sink == "jsonl":
        del config["sink.table"]
        config["sink.path"] = str(tmp_path / "out")
    first = cluster.start(config)
    first.wait(lambda: (tmp_path / "commits").exists() and (tmp_path / "commits").read_text() == "1")
    (offset,) = cluster.connector(config).offsets()
    assert offset.offset == {"n": 1}
    successor = cluster.start(config | {"rows": "6"}, epoch=2)
    successor.wait(lambda: sum(successor.rows) == 4)
    (offset,) = cluster.connector(config).offsets()
    assert offset.offset == {"n": 6}


def test_new_and_wider_fields_become_columns_and_another_type_is_an_error(cluster: Cluster, tmp_path: Path) -> None:
    run = cluster.start(counting(tmp_path, mode="evolves", sink_auto_evolve="true"))
    run.wait(lambda: len(rows_of(tmp_path)) == 10)
    assert sorted(read_table(tmp_path, "n, more")) == [(n, f"m{n}" if n >= 5 else None) for n in range(10)]
    run.task.stop()
    changed = cluster.start(
        counting(tmp_path, mode="changes type", sink_path=str(tmp_path / "other.db"), rows="10"), epoch=3
    )
    assert "the field n was INT and is STRING" in str(changed.failure())


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("start throws", "IllegalStateException: no such town; cause: java.io.IOException: disk [hidden] (at tests."),
        ("poll throws", "IllegalStateException: no such street; cause: java.io.IOException: disk [hidden] (at tests."),
        ("class is missing", "NoClassDefFoundError: com/acme/Driver (at tests."),
        ("poll recurses", "java.lang.StackOverflowError (at tests.TestPlugin$Counting.poll("),
        ("poll has no memory", "java.lang.OutOfMemoryError: no heap for [hidden] (at tests.TestPlugin$Counting.poll("),
        ("poll asserts", "java.lang.AssertionError; cause: java.io.IOException: disk [hidden] (at tests.TestPlugin$"),
        (
            "abstract task",
            "org.apache.kafka.connect.source.SourceTask is abstract; allowed: a public class, not abstract",
        ),
        ("hidden task", "tests.TestPlugin$Hidden, or its constructor, is not public; allowed: a public class, not"),
        ("demanding task", "tests.TestPlugin$Demanding has no constructor without arguments; allowed: a public class"),
        ("sink task", "tests.TestSinkPlugin$Appending is no SourceTask; allowed: a class that is one"),
    ],
)
def test_what_a_plugin_throws_is_the_error_of_its_task(cluster: Cluster, tmp_path: Path, mode: str, words: str) -> None:
    run = cluster.start(counting(tmp_path, mode=mode))
    message = str(run.failure())
    assert words in message
    assert message.startswith(TEST_PLUGIN)
    if mode.startswith("poll"):
        assert rows_of(tmp_path) == every_row(1, 7), "what it polled before is committed"


def test_plugin_that_ends_java_is_named_and_the_next_task_runs(cluster: Cluster, tmp_path: Path) -> None:
    run = cluster.start(counting(tmp_path, mode="exits"))
    assert re.search(r"Java has ended: tests.TestPlugin\$Counting.start.* called System.exit", str(run.failure()))
    again = cluster.start(counting(tmp_path), epoch=2)
    again.wait(lambda: rows_of(tmp_path) == every_row(1, 10))


@pytest.mark.parametrize(
    "mode", ["start blocks", "poll blocks", "stop blocks", "commit blocks", "stop throws", "close blocks"]
)
def test_stop_of_a_plugin_that_hangs_is_bounded(
    cluster: Cluster, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connectgroup.spark.connect_runtime.STOP_BOUND_MS", 300)
    monkeypatch.setattr("connectgroup.spark.connect_task._STOP_S", 0.3)
    transform = {"transforms": "clinging", "transforms.clinging.type": f"{TEST_PLUGIN}$Clinging"}
    run = cluster.start(counting(tmp_path, mode=mode) | (transform if mode == "close blocks" else {}))
    if mode != "start blocks":
        run.wait(lambda: bool(rows_of(tmp_path)))
    run.task.stop()
    assert not run.errors
    again = cluster.start(counting(tmp_path), epoch=2)
    again.wait(lambda: rows_of(tmp_path) == every_row(1, 10))


def test_threads_that_a_plugin_leaves_behind_are_named_in_the_log_and_other_tasks_go_on(
    cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = cluster.start(counting(tmp_path, sink_path=str(tmp_path / "other.db")))
    run = cluster.start(counting(tmp_path, mode="leaks threads"))
    run.wait(lambda: bool(rows_of(tmp_path)))
    run.task.stop()
    assert "the plug-in has stopped, but not ended 2 threads: leaked 0, leaked 1" in caplog.text
    caplog.clear()
    again = cluster.start(counting(tmp_path), epoch=2)
    again.wait(lambda: rows_of(tmp_path) == every_row(1, 10))
    for each in (again, other):
        assert not each.errors
        each.task.stop()
    assert "not ended" not in caplog.text


def test_connector_whose_start_throws_is_stopped(cluster: Cluster, tmp_path: Path) -> None:
    """It is started again and again, and must release each time what it has opened."""
    config = counting(tmp_path, mode="connector throws", stopped_file=str(tmp_path / "stopped"))
    with pytest.raises(SourceError, match=r"no such city; cause: java\.io\.IOException: disk \[hidden\]"):
        cluster.connector(config).task_configs(1)
    assert (tmp_path / "stopped").exists()


def test_connector_that_hangs_is_an_error_and_the_next_one_runs(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.start(counting(tmp_path)).task.stop()  # Java has loaded everything
    monkeypatch.setattr("connectgroup.spark.connect_runtime.CONNECTOR_BOUND_S", 0.5)
    with pytest.raises(SourceError, match=r"a call of the connector has not returned within 0\.5 s"):
        cluster.connector(counting(tmp_path, mode="connector blocks")).task_configs(1)


@pytest.mark.parametrize("sink", ["jsonl", "csv", "delta", "postgres", "sqlite", "console"])
def test_each_sink_takes_all_types(cluster: Cluster, tmp_path: Path, sink: str, request: pytest.FixtureRequest) -> None:
    config = counting(tmp_path, mode="types", rows="3", sink=sink)
    if sink == "postgres":
        del config["sink.path"]
        config["sink.url"] = request.getfixturevalue("database")
    elif sink != "sqlite":
        del config["sink.table"]
        config["sink.path"] = str(tmp_path / "out")
    if sink == "console":
        del config["sink.path"]
    run = cluster.start(config)
    run.wait(lambda: sum(run.rows) == 3)


def test_rows_that_the_sink_rejects_are_dead_letters(cluster: Cluster, tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "out.db")) as connection:
        connection.execute("CREATE TABLE t (part TEXT, n INTEGER CHECK (n <> 4))")
    config = counting(tmp_path) | {"errors.tolerance": "all", "errors.deadletterqueue.name": "bad"}
    run = cluster.start(config)
    run.wait(lambda: sum(run.rows) == 9)
    assert rows_of(tmp_path) == [row for row in every_row(1, 10) if row[1] != 4]
    ((stage, place, _, record),) = letters_in(tmp_path)
    assert (stage, place) == ("sink", 'topic t, source partition {"number":0,"part":"p0"}, offset {"n":5}')
    assert json.loads(record) == {"part": "p0", "n": 4}


def test_transformations_of_kafka_connect_apply_where_their_predicate_is_true(cluster: Cluster, tmp_path: Path) -> None:
    """Those that this package does not have itself, and those before them, run in Java, before its transforms."""
    kafkas = "org.apache.kafka.connect.transforms"
    config = counting(tmp_path, partitions="2") | {
        "transforms": "first,drop,count",
        "transforms.first.type": f"{kafkas}.InsertField$Value",
        "transforms.first.static.field": "less",
        "transforms.first.static.value": "y",
        "transforms.drop.type": f"{kafkas}.DropHeaders",
        "transforms.drop.headers": "h",
        "transforms.drop.predicate": "has",
        "transforms.drop.negate": "false",
        "predicates": "has",
        "predicates.has.type": f"{kafkas}.predicates.HasHeaderKey",
        "predicates.has.name": "h",
        "transforms.count.type": "InsertField",
        "transforms.count.static.field": "more",
        "transforms.count.static.value": "x",
        "source.metadata": "headers",
    }
    run = cluster.start(config)
    run.wait(lambda: rows_of(tmp_path) == every_row(2, 10))
    assert set(read_table(tmp_path, "headers, more, less")) == {("[]", "x", "y")}
    wrong = config | {"transforms": "count,drop"}
    with pytest.raises(ConnectGroupError, match="drop before count: a transformation of Java gets the record"):
        cluster.connector(wrong)


def test_queries_have_sparks_classes_where_a_plugin_has_its_own(
    cluster: Cluster, tmp_path: Path, java_plugin_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a plug-in in Scala has: Spark compiles each query against the classes that its thread finds."""
    folder = tmp_path / "plugins" / "in-scala"
    shutil.copytree(java_plugin_path / "test-plugin", folder)
    (library,) = (Path(pyspark.__file__).parent / "jars").glob("scala-library-*.jar")
    (folder / library.name).symlink_to(library)
    monkeypatch.setenv(PLUGIN_PATH, str(folder.parent))
    query = "SELECT part, n, count(*) AS alike FROM batch GROUP BY part, n"
    config = counting(tmp_path) | {"transforms": "q", "transforms.q.type": "sql", "transforms.q.query": query}
    run = cluster.start(config)
    run.wait(lambda: rows_of(tmp_path) == every_row(1, 10))


PICKY = {
    "transforms": "picky",
    "transforms.picky.type": f"{TEST_PLUGIN}$Picky",
    "transforms.picky.pepper": "not to be told",
}


SEALED = {
    "transforms.picky.predicate": "sealed",
    "predicates": "sealed",
    "predicates.sealed.type": f"{TEST_PLUGIN}$Sealed",
    "predicates.sealed.seal": "kept in a drawer",
}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "java.lang.IllegalStateException: not 0 with [hidden] (at tests.TestPlugin$Picky"),
        ({"transforms.picky.pepper": "old pepper"}, "IllegalArgumentException: not with [hidden] (at tests.TestPlugin"),
        (SEALED, "java.lang.IllegalStateException: broken [hidden] (at tests.TestPlugin$Sealed"),
    ],
)
def test_failed_transformation_fails_the_task_without_its_passwords(
    cluster: Cluster, tmp_path: Path, changes: dict[str, str], words: str
) -> None:
    run = cluster.start(counting(tmp_path) | PICKY | changes)
    assert words in str(run.failure())


def test_passwords_that_only_their_classes_know_are_named(cluster: Cluster, tmp_path: Path) -> None:
    """By the type of the setting: those of the connector, a transformation and a predicate."""
    connector = cluster.connector(counting(tmp_path) | PICKY | SEALED)
    connector.task_configs(1)
    own = ["pass.word", "pepper"]
    assert sorted(connector.credential_names) == [*own, "predicates.sealed.seal", "transforms.picky.pepper"]

    pipeline = {"connector.class": "pipeline", "source": "connect", "source.connector.class": TEST_PLUGIN}
    sink = {name: value for name, value in file_stream(tmp_path).items() if name.startswith("sink")}
    refused = cluster.connector(pipeline | sink | {"source.config.rows": "-1"})
    with pytest.raises(ConnectGroupError, match="Invalid value -1 for configuration rows"):
        refused.task_configs(1)
    assert sorted(refused.credential_names) == [f"source.config.{name}" for name in own], "it is shown nevertheless"


def test_failed_transformations_and_rows_are_dead_letters(cluster: Cluster, tmp_path: Path) -> None:
    """With place, key and headers in what the plug-in gave; also if no record before them has made a row."""
    tolerant = {"errors.tolerance": "all", "errors.deadletterqueue.name": "bad"}
    run = cluster.start(counting(tmp_path, mode="changes type late", rows="15") | PICKY | tolerant)
    run.wait(lambda: len(letters_in(tmp_path)) == 11)
    run.task.stop()
    assert not run.errors
    assert rows_of(tmp_path) == [("p0", n) for n in range(8, 12)]
    letters = letters_in(tmp_path)
    assert [stage for stage, *_ in letters] == ["transform"] * 8 + ["source"] * 3
    assert letters[0][1] == 'topic t, source partition {"number":0,"part":"p0"}, offset {"n":1}'
    assert "IllegalStateException: not 0 with [hidden] (at tests.TestPlugin$Picky" in letters[0][2]
    assert json.loads(letters[0][3]) == {"part": "p0", "n": 0}
    assert "the field n was INT and is STRING" in letters[-1][2]
    (offset,) = cluster.connector(counting(tmp_path)).offsets()
    assert offset.offset == {"n": 15}


def test_records_that_all_fail_end_the_task_before_they_fill_the_memory(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect_task, "_MAX_WITHOUT_ROW", 5)
    tolerant = {"errors.tolerance": "all", "errors.deadletterqueue.name": "bad"}
    run = cluster.start(counting(tmp_path, rows="8") | PICKY | tolerant)
    error = str(run.failure())
    assert "none of 8 records is a row, so no columns are known" in error
    assert 'source partition {"number":0,"part":"p0"}' in error
    assert "IllegalStateException: not 0 with [hidden]" in error


def letters_in(root: Path) -> list[tuple[str, str, str, str]]:
    """Stage, place, reason and record of the dead letters."""
    with contextlib.closing(sqlite3.connect(root / "out.db")) as connection:
        try:
            return connection.execute("SELECT stage, place, reason, record FROM bad ORDER BY rowid").fetchall()
        except sqlite3.OperationalError:
            return []


@pytest.mark.parametrize("mode", ["retriable", "retriable client", "commit throws", "nulls"])
def test_errors_that_kafka_connect_tolerates_are_no_errors_of_the_task(
    cluster: Cluster, tmp_path: Path, mode: str
) -> None:
    run = cluster.start(counting(tmp_path, mode=mode, rows="20"))
    run.wait(lambda: rows_of(tmp_path) == every_row(1, 20))


def test_plugin_reads_its_committed_offsets_as_after_a_restart(cluster: Cluster, tmp_path: Path) -> None:
    """What it has given as an Integer is a Long, as in Kafka Connect."""
    run = cluster.start(counting(tmp_path, mode="reads its offsets", rows="20"))
    run.wait(lambda: rows_of(tmp_path) == every_row(1, 20))


@pytest.mark.parametrize("mode", ["", "receipt throws"])
def test_plugin_learns_of_each_committed_record(cluster: Cluster, tmp_path: Path, mode: str) -> None:
    """Also of those after one at which it throws, as in Kafka Connect."""
    run = cluster.start(counting(tmp_path, mode=mode, commits_file=str(tmp_path / "commits"), rows="50"))
    run.wait(lambda: (tmp_path / "commits").exists() and (tmp_path / "commits").read_text() == "50")
    assert rows_of(tmp_path) == every_row(1, 50)


@pytest.mark.parametrize(("mode", "size", "last"), [("transactions", 10, 4), ("transactions of polls", 14, 4)])
def test_batches_have_whole_transactions_of_the_plugin_and_no_aborted_one(
    cluster: Cluster, tmp_path: Path, mode: str, size: int, last: int
) -> None:
    """KIP-618: of four transactions the third is aborted, and the records after the fourth belong to an open one. The
    offsets of the aborted one are committed, so it is not read again."""
    config = counting(tmp_path, mode=mode, transaction_boundary="connector", source_max_rows_per_batch="3")
    first = cluster.start(config | {"rows": str(last * size + 4)})
    first.wait(lambda: sum(first.rows) >= 3 * size)
    first.task.stop()
    assert not first.errors
    assert all(rows % size == 0 for rows in first.rows)
    kept = [n for n in range(last * size) if not 2 * size <= n < 3 * size]
    assert [n for _, n in rows_of(tmp_path)] == kept
    (offset,) = cluster.connector(config).offsets()
    assert offset.offset == {"n": last * size}
    again = cluster.start(config | {"rows": str((last + 2) * size)}, epoch=2)
    again.wait(lambda: sum(again.rows) >= 2 * size)
    assert [n for _, n in rows_of(tmp_path)] == [*kept, *range(last * size, (last + 2) * size)]


@pytest.mark.parametrize(
    ("settings", "row"),
    [
        ({}, ("p0", "v0")),
        ({"key.converter": "StringConverter", "value.converter": "StringConverter"}, ("p0", "v0")),
        (
            {"value.converter": "org.apache.kafka.connect.json.JsonConverter"},
            ("p0", '{"schema":{"type":"string","optional":false},"payload":"v0"}'),
        ),
        (
            {"key.converter": "JsonConverter", "key.converter.schemas.enable": "false", "value.converter": ""},
            ('"p0"', "v0"),
        ),
    ],
)
def test_converters_write_what_they_do_in_kafka_connect(
    cluster: Cluster, tmp_path: Path, settings: dict[str, str], row: tuple[str, str]
) -> None:
    """Without one a text is as it is; JSON of it has quotes, and by default its schema."""
    config = counting(tmp_path, mode="texts", rows="1", source_value_form="json", source_metadata="key")
    run = cluster.start(config | settings)
    run.wait(lambda: sum(run.rows) == 1)
    assert read_table(tmp_path, "key, value") == [row]


@pytest.mark.parametrize("name", ["", "org.apache.kafka.connect.storage.SimpleHeaderConverter"])
def test_headers_are_those_of_kafka_connect(cluster: Cluster, tmp_path: Path, name: str) -> None:
    config = counting(tmp_path, mode="headers", rows="1", source_metadata="headers", header_converter=name)
    run = cluster.start(config)
    run.wait(lambda: sum(run.rows) == 1)
    (headers,) = read_table(tmp_path, "headers")
    assert [(each["key"], each["value"]) for each in json.loads(headers)] == [
        ("h", "v0"), ("raw", "AP8="), ("flag", "true"), ("i", "7"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"value.converter": "StringConverter"}, "price=12345678901234567890.12"),
        ({"value.converter": "JsonConverter", "value.converter.schemas.enable": "false"}, '"prices":["BQ=="]'),
        (
            {"value.converter": "JsonConverter", "value.converter.decimal.format": "NUMERIC"},
            ":12345678901234567890.12,",
        ),
    ],
)
def test_structs_are_texts_as_their_converter_makes_them(
    cluster: Cluster, tmp_path: Path, settings: dict[str, str], found: str
) -> None:
    run = cluster.start(counting(tmp_path, mode="types", rows="1", source_value_form="json") | settings)
    run.wait(lambda: sum(run.rows) == 1)
    (value,) = read_table(tmp_path, "value")
    assert found in value
    assert ('"schema":' in value) == (len(settings) == 2 and "NUMERIC" in settings.values())


def test_odd_partitions_and_offsets_come_back(cluster: Cluster, tmp_path: Path) -> None:
    """Null and nested values, bytes, dates, an empty offset, and none: what Kafka Connect would take, and more."""
    first = cluster.start(counting(tmp_path, mode="odd offsets", rows="4"))
    first.wait(lambda: sum(first.rows) == 4)
    first.task.stop()
    config = counting(tmp_path, mode="odd offsets", rows="8")
    second = cluster.start(config, epoch=2)
    second.wait(lambda: sum(second.rows) == 8)
    second.task.stop()
    assert not second.errors
    values = read_table(tmp_path, "value")
    assert values[:4] == ["v0 after null", "v1 after null", "v2 after null", "v3 after null"]
    assert values[4] == "v0 after 4"
    known = cluster.connector(config).offsets()
    at = next(each for each in known if each.partition)
    changed = PartitionOffset(partition=at.partition, offset={"n": 77})
    cluster.connector(config).alter_offsets(3 << 8, [changed])
    assert sorted(map(str, cluster.connector(config).offsets())) == sorted(
        str(changed if each == at else each) for each in known
    )


def test_plugin_defines_no_transactions_unless_it_is_asked_to(cluster: Cluster, tmp_path: Path) -> None:
    config = counting(tmp_path, mode="transactions", rows="25", exactly_once_support="required")
    run = cluster.start(config)
    run.wait(lambda: rows_of(tmp_path) == every_row(1, 25))


def test_transaction_that_is_to_be_committed_and_aborted_fails_the_task(cluster: Cluster, tmp_path: Path) -> None:
    run = cluster.start(counting(tmp_path, mode="transactions of two minds", transaction_boundary="CONNECTOR"))
    assert "both commit and abort of one transaction" in str(run.failure())
    assert rows_of(tmp_path) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"transaction.boundary": "row"}, "transaction.boundary: got 'row'; allowed: poll, interval, connector"),
        (
            {"transaction.boundary": "connector"},
            "transaction.boundary: got 'connector'; allowed: tests.TestPlugin: the connector does not define"
            " transaction boundaries with this configuration; set poll",
        ),
        (
            {"exactly.once.support": "required"},
            "exactly.once.support: got 'required'; allowed: tests.TestPlugin: the connector does not say whether it",
        ),
        (
            {"exactly.once.support": "required", "mode": "at least once"},
            "exactly.once.support: got 'required'; allowed: tests.TestPlugin: the connector does not support",
        ),
        ({"rows": "-1"}, "rows: got '-1'; allowed: tests.TestPlugin: Invalid value -1 for configuration rows"),
        (
            {"mode": "connector throws"},
            "IllegalStateException: no such city; cause: java.io.IOException: disk [hidden]",
        ),
        ({"mode": "connector refuses"}, "tests.TestPlugin: java.lang.IllegalArgumentException: not with [hidden] (at"),
        (
            {"pepper": "abc"},
            "pepper: got '[hidden]'; allowed: tests.TestPlugin: Invalid value [hidden] for configuration",
        ),
        ({"connector.class": "com.acme.Nothing"}, "connector.class: got 'com.acme.Nothing'; allowed: "),
        (
            {"connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector"},
            "key.converter: missing; allowed: the Java class of a converter",
        ),
        ({"connector.class": "tests.TestPlugin$Counting"}, "allowed: a source connector; this class is no connector"),
        ({"mode": "no task class"}, "the connector returned null; allowed: a value of taskClass that is not null"),
        ({"mode": "no list of tasks"}, "the connector returned null; allowed: a value of taskConfigs that is not null"),
        ({"mode": "a task is null"}, "returned null; allowed: a value of an element of taskConfigs that is not null"),
        (
            {"value.converter": "io.confluent.connect.avro.AvroConverter"},
            "record's fields are columns, no converter is needed",
        ),
        (
            {**PICKY, "transforms.picky.negate": "yes"},
            "transforms.picky.negate: got 'yes'; allowed: true, false",
        ),
        ({"source.metadat": "key"}, "source.metadat: unknown; allowed: source.metadata (did you mean that?)"),
        ({"sink": "nothing"}, "sink: got 'nothing'; allowed: "),
        ({"transforms": "a", "transforms.a.type": "com.acme.A"}, "transforms.a.type: got 'com.acme.A'; allowed: "),
    ],
)
def test_settings_that_cannot_be_used_are_one_clear_line(
    cluster: Cluster, tmp_path: Path, changes: dict[str, str], words: str
) -> None:
    with pytest.raises(ConnectGroupError) as raised:
        cluster.connector(counting(tmp_path) | changes).task_configs(1)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "top-secret" not in str(raised.value)


def test_plugin_for_a_later_java_says_which_java_there_is(
    cluster: Cluster, tmp_path: Path, java_plugin_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "later").mkdir()
    with (
        zipfile.ZipFile(java_plugin_path / "test-plugin" / "test-plugin-7.jar") as jar,
        zipfile.ZipFile(tmp_path / "later" / "plugin.jar", "w") as later,
    ):
        for name in jar.namelist():
            content = jar.read(name)
            later.writestr(name, content[:6] + b"\0\x63" + content[8:] if name.endswith(".class") else content)
    monkeypatch.setenv(PLUGIN_PATH, str(tmp_path))
    with pytest.raises(SourceError) as raised:
        cluster.connector(counting(tmp_path)).task_configs(1)
    assert "UnsupportedClassVersionError: tests/TestPlugin has been compiled by a more recent" in str(raised.value)
    assert re.search(
        r"; allowed: a plug-in for Java \d+ of this worker, or a later Java in JAVA_HOME$", str(raised.value)
    )


def test_record_without_a_topic_is_an_error_that_says_so(cluster: Cluster, tmp_path: Path, kafka: str) -> None:
    name = f"bad-{uuid.uuid4().hex[:8]}"
    config = counting(tmp_path, mode="no topic", sink_bootstrap_servers=kafka, sink_offsets_topic=f"{name}-offsets")
    for setting in ("sink", "sink.path", "sink.table"):
        del config[setting]
    run = cluster.start(config)
    assert "topic is null; allowed: a topic, or sink.topic for records that have none; row: " in str(run.failure())
    make_topic(kafka, name, 1)
    tolerant_config = config | {"errors.tolerance": "all", "errors.deadletterqueue.name": name}
    tolerant = cluster.start(tolerant_config, epoch=2)
    tolerant.wait(lambda: len(committed(kafka, name)) == 10)
    letter = json.loads(committed(kafka, name)[3][1] or "")
    assert letter["place"] == 'source partition {"number":0,"part":"p0"}, offset {"n":4}'
    assert json.loads(letter["record"])["value"] == "v3"
    tolerant.task.stop()
    third = cluster.start({**tolerant_config, "sink.topic": name, "rows": "20"}, epoch=3)
    third.wait(lambda: len(committed(kafka, name)) == 20)
    reason = json.loads(committed(kafka, name)[13][1] or "")["reason"]
    assert "Unknown partition; allowed: a record that the topic accepts" in reason
    assert "in a partition that it has" in reason


def test_records_go_to_kafka_as_kafka_connect_writes_them(cluster: Cluster, tmp_path: Path, kafka: str) -> None:
    from confluent_kafka import Consumer

    make_topic(kafka, "t", 3)
    config = counting(tmp_path, rows="20", sink_bootstrap_servers=kafka, sink_offsets_topic="java-offsets")
    for name in ("sink", "sink.path", "sink.table"):
        del config[name]
    first = cluster.start(config)
    first.wait(lambda: sum(first.rows) == 20)
    first.task.stop()
    second = cluster.start(config | {"rows": "30"}, epoch=2)
    second.wait(lambda: sum(second.rows) == 10)
    second.task.stop()
    # The list of before there was a partition in it: a column that it does not name would be a field of the value.
    older = {"sink.metadata": "key, topic, timestamp, headers"}
    third = cluster.start(config | older | {"rows": "40"}, epoch=3)
    third.wait(lambda: sum(third.rows) == 10)
    third.task.stop()
    named = cluster.start(config | {"sink.metadata": f"{older['sink.metadata']}, partition", "rows": "50"}, epoch=4)
    named.wait(lambda: sum(named.rows) == 10)
    consumer = Consumer(
        {
            "bootstrap.servers": kafka,
            "group.id": "reader",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.auto.commit": "false",
        }
    )
    with contextlib.closing(consumer):
        consumer.subscribe(["t"])
        messages: list[Any] = []
        while len(messages) < 50:
            messages += consumer.consume(100, 0.5)
    messages.sort(key=lambda each: each.timestamp())
    assert [json.loads(each.value()) for each in messages] == [{"part": "p0", "n": n} for n in range(50)]
    placed = {(each.key(), each.partition()) for each in messages[:30] + messages[40:]}
    assert placed == {(b"p0", 0)}, "the plug-in's choice: not the key's"
    assert {each.key() for each in messages[30:40]} == {b"p0"}
    assert [each.headers() for each in messages[:2]] == [[("h", b"v0")], [("h", b"v1")]]
    assert messages[3].timestamp()[1] == 1_700_000_000_003
    (offset,) = cluster.connector(config).offsets()
    assert offset == PartitionOffset(partition={"number": 0, "part": "p0"}, offset={"n": 50})


@ci_only("a worker with a Spark of its own, 20 s of a core; a user's run has the assignor's own tests")
@pytest.mark.timeout(600)
def test_units_run_only_on_the_worker_that_has_their_plugin(
    java_plugin_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the default assignor, also if the worker without it is there first, and has room."""
    names = ["lines1", "lines2", "lines3"]
    with CommandGroup(tmp_path, tasks=2) as group, group.worker("without"):
        wait(lambda: set(group.placement().values()) == {"without"})
        with group.worker("with", "--plugin-path", java_plugin_path):
            wait(lambda: "\nworker with " in group.described())
            monkeypatch.setenv(PLUGIN_PATH, str(java_plugin_path))  # of the command alone: both workers run
            for name in names:
                (tmp_path / name).mkdir()
                write_lines(tmp_path / name, range(3))
                group.put_config(name, file_stream(tmp_path / name))
            units = {unit for name in names for unit in (name, f"{name}-0")}
            wait(lambda: units <= group.placement().keys())
            assert {group.placement()[unit] for unit in units} == {"with"}
            assert {on for unit, on in group.placement().items() if unit.startswith("naps")} >= {"without"}
            wait(lambda: all(read_table(tmp_path / name) == lines(range(3)) for name in names))


# --------------------------------------------------------------------------------------------------
# Sink connectors: at least once, as in Kafka Connect.


def appending(root: Path, servers: str, topic: str, **settings: str) -> dict[str, str]:
    """TestSinkPlugin of a topic, in Kafka Connect's own form."""
    own = {
        "connector.class": TEST_SINK,
        "tasks.max": "1",
        "topics": topic,
        "source.bootstrap.servers": servers,
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
        "out": str(root / "out.txt"),
        "trigger.ms": "50",
    }
    return own | {name.replace("_", "."): value for name, value in settings.items()}


def notes(root: Path) -> list[str]:
    return (root / "out.txt").read_text().splitlines() if (root / "out.txt").exists() else []


def records_in(root: Path) -> list[str]:
    """Partition, offset, key and value of the records that the plug-in has got."""
    return [" ".join(line.split(" ")[1:5]) for line in notes(root) if line.startswith("t-")]


def group_offsets(servers: str, topic: str) -> list[int]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": servers, "group.id": "connect-lines"})
    with contextlib.closing(consumer):
        return [each.offset for each in consumer.committed([TopicPartition(topic, 0)], timeout=30)]


@pytest.fixture
def topic_name(kafka: str) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    make_topic(kafka, name, 1)
    return name


def put_records(servers: str, topic: str, numbers: range) -> None:
    produce(servers, topic, [(0, f"k{n}", json.dumps({"n": n})) for n in numbers])


def test_file_stream_sink_continues_at_the_offsets_of_its_group(
    cluster: Cluster, tmp_path: Path, kafka: str, topic_name: str
) -> None:
    config = appending(tmp_path, kafka, topic_name, file=str(tmp_path / "lines.txt")) | {
        "connector.class": "FileStreamSink",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    }
    put_records(kafka, topic_name, range(20))
    first = cluster.start(config)
    first.wait(lambda: sum(first.rows) == 20)
    first.task.stop()
    assert group_offsets(kafka, topic_name) == [20]
    (offset,) = cluster.connector(config).offsets()
    assert offset == PartitionOffset(
        partition={"kafka_topic": topic_name, "kafka_partition": 0}, offset={"kafka_offset": 20}
    )
    put_records(kafka, topic_name, range(20, 30))
    second = cluster.start(config, epoch=2)
    second.wait(lambda: sum(second.rows) == 10)
    second.task.stop()
    assert [json.loads(line) for line in (tmp_path / "lines.txt").read_text().splitlines()] == [
        {"n": n} for n in range(30)
    ]
    assert not cluster.connector(config).fenced
    cluster.connector(config).alter_offsets(1 << 20, None)
    assert cluster.connector(config).offsets() == []


@pytest.mark.parametrize("mode", ["", "retriable", "pauses", "pauses until it is durable"])
def test_sink_task_gets_records_as_in_kafka_connect(
    cluster: Cluster, tmp_path: Path, kafka: str, topic_name: str, mode: str
) -> None:
    put_records(kafka, topic_name, range(5))
    # With rows that are read while the partition is paused.
    run = cluster.start(appending(tmp_path, kafka, topic_name, mode=mode, source_max_rows_per_batch="2"))
    run.wait(lambda: sum(run.rows) == 5)
    put_records(kafka, topic_name, range(5, 8))
    run.wait(lambda: sum(run.rows) == 8)
    run.task.stop()
    assert records_in(tmp_path) == [f"0 {n} k{n} {{n={n}}}" for n in range(8)]
    found = notes(tmp_path)
    assert found[:2] == ["start", f"open {topic_name}-0"]
    assert found[-2:] == [f"close {topic_name}-0", "stop"]
    assert ("same true" in found) == (mode == "retriable")
    assert group_offsets(kafka, topic_name) == [8]


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_sink_task_gets_the_type_of_a_timestamp(cluster: Cluster, tmp_path: Path, kafka: str, kind: str) -> None:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    make_topic(kafka, topic, 1, {"message.timestamp.type": kind})
    put_records(kafka, topic, range(2))
    run = cluster.start(appending(tmp_path, kafka, topic, mode="tells types of timestamps"))
    run.wait(lambda: sum(run.rows) == 2)
    assert [line for line in notes(tmp_path) if line.startswith("type ")] == [f"type {kind}"] * 2


@pytest.mark.parametrize(("settings", "most"), [({}, 500), ({"consumer.override.max.poll.records": "200"}, 200)])
def test_sink_plugin_gets_as_many_records_at_once_as_in_kafka_connect(
    cluster: Cluster, tmp_path: Path, kafka: str, topic_name: str, settings: dict[str, str], most: int
) -> None:
    """It may write them in one request."""
    put_records(kafka, topic_name, range(600))
    run = cluster.start(appending(tmp_path, kafka, topic_name, mode="counts") | settings)
    run.wait(lambda: group_offsets(kafka, topic_name) == [600])
    counts = [int(line.removeprefix("got ")) for line in notes(tmp_path) if line.startswith("got ")]
    assert sum(counts) == 600
    assert max(counts) <= most


@pytest.mark.parametrize("form", ["topics", "topics.regex", "pipeline"])
def test_sink_task_goes_on_at_its_offsets_however_its_topics_are_named(
    cluster: Cluster, tmp_path: Path, kafka: str, topic_name: str, form: str
) -> None:
    """And only what is durable is committed: a pipeline's source publishes nothing to the same group."""
    config = appending(tmp_path, kafka, topic_name, mode="holds")
    if form == "topics.regex":
        config = {name: value for name, value in config.items() if name != "topics"}
        config["topics.regex"] = f"{topic_name[:-1]}[{topic_name[-1]}]"
    if form == "pipeline":
        bytes_ = "org.apache.kafka.connect.converters.ByteArrayConverter"
        own = {name: value for name, value in config.items() if name in ("out", "mode") or "converter" in name}
        config = {
            "connector.class": "pipeline",
            "source": "kafka",
            "source.bootstrap.servers": kafka,
            "source.topics": topic_name,
            "source.metadata": "key,topic,partition,offset,timestamp,headers",
            **{f"source.{part}.converter": bytes_ for part in ("key", "value", "header")},
            "sink": "connect",
            "sink.connector.class": TEST_SINK,
            "sink.bootstrap.servers": kafka,
            **{f"sink.config.{name}": value for name, value in own.items()},
        }
    put_records(kafka, topic_name, range(5))
    run = cluster.start(config)
    run.wait(lambda: sum(run.rows) == 5)
    run.task.stop()
    assert group_offsets(kafka, topic_name) == [4]
    assert [each.offset for each in cluster.connector(config).offsets()] == [{"kafka_offset": 4}]
    put_records(kafka, topic_name, range(5, 8))
    again = cluster.start(config, epoch=2)
    again.wait(lambda: sum(again.rows) >= 4)
    again.task.stop()
    assert [line.split()[1] for line in records_in(tmp_path)] == list("01234") + list("4567")


def test_new_partitions_of_a_topic_give_the_tasks_of_a_sink_new_settings(
    cluster: Cluster, tmp_path: Path, kafka: str, topic_name: str
) -> None:
    """As a rebalance in Kafka Connect: a task reads the partitions that there are when it starts."""
    connector = cluster.connector(appending(tmp_path, kafka, topic_name))
    before = connector.task_configs(1)
    assert connector.task_configs(1) == before
    add_partitions(kafka, topic_name, 2)
    assert connector.task_configs(1) != before


def test_offsets_are_committed_up_to_what_is_durable(
    cluster: Cluster, tmp_path: Path, kafka: str, topic_name: str
) -> None:
    put_records(kafka, topic_name, range(5))
    run = cluster.start(appending(tmp_path, kafka, topic_name, mode="holds"))
    run.wait(lambda: sum(run.rows) == 5)
    run.task.stop()
    assert group_offsets(kafka, topic_name) == [4]
    again = cluster.start(appending(tmp_path, kafka, topic_name), epoch=2)
    again.wait(lambda: sum(again.rows) == 1)
    assert records_in(tmp_path)[5:] == ["0 4 k4 {n=4}"], "put again: at least once"


@pytest.mark.parametrize("header_converter", ["SimpleHeaderConverter", "StringConverter"])
def test_converters_may_be_those_of_another_plugin(
    cluster: Cluster, tmp_path: Path, kafka: str, topic_name: str, header_converter: str
) -> None:
    """And Kafka's own have simple names, as in Kafka Connect. Passwords among their settings are named. They are closed
    with the task."""
    config = appending(tmp_path, kafka, topic_name, file=str(tmp_path / "lines.txt")) | {
        "connector.class": "FileStreamSink",
        "key.converter": "StringConverter",
        "value.converter": "tests.TestSinkPlugin$Shouting",
        "value.converter.closes": str(tmp_path / "closed.txt"),
        "header.converter": header_converter,
    }
    connector = cluster.connector(config)
    connector.task_configs(1)
    assert list(connector.credential_names) == ["value.converter.whisper"]
    produce(kafka, topic_name, [(0, None, "a"), (0, None, "b")])
    run = cluster.start(config)
    run.wait(lambda: sum(run.rows) == 2)
    run.task.stop()
    assert (tmp_path / "lines.txt").read_text() == "A\nB\n"
    assert (tmp_path / "closed.txt").read_text() == "close\n"


def test_checked_exception_of_a_converter_is_a_dead_letter(
    cluster: Cluster, tmp_path: Path, kafka: str, topic_name: str
) -> None:
    config = appending(tmp_path, kafka, topic_name) | {
        "value.converter": "tests.TestSinkPlugin$Shouting",
        "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": f"{topic_name}-bad",
        "errors.deadletterqueue.topic.replication.factor": "1",
    }
    produce(kafka, topic_name, [(0, "k0", "hush"), (0, "k1", "b")])
    run = cluster.start(config)
    run.wait(lambda: group_offsets(kafka, topic_name) == [2])
    assert records_in(tmp_path) == ["0 1 k1 B"]
    ((_, letter),) = committed(kafka, f"{topic_name}-bad")
    assert "java.io.IOException: not aloud (at tests." in json.loads(letter)["reason"]


@pytest.mark.parametrize("setting", ["key.converter", "value.converter", "header.converter"])
def test_converter_that_no_plugin_has_is_known_before_a_task_starts(
    cluster: Cluster, tmp_path: Path, setting: str
) -> None:
    config = appending(tmp_path, "127.0.0.1:1", "t") | {setting: "io.confluent.connect.avro.AvroConverter"}
    with pytest.raises(ConnectGroupError) as raised:
        cluster.connector(config)
    assert str(raised.value).startswith(
        f"{setting}: got 'io.confluent.connect.avro.AvroConverter'; allowed: a class in"
    )


def test_offsets_that_a_sink_plugin_has_not_reached_are_not_committed(
    cluster: Cluster, tmp_path: Path, kafka: str, topic_name: str
) -> None:
    """Kafka Connect ignores them, and those of partitions of others: the records behind them would be left out."""
    put_records(kafka, topic_name, range(5))
    run = cluster.start(appending(tmp_path, kafka, topic_name, mode="boasts"))
    run.wait(lambda: sum(run.rows) == 5)
    run.task.stop()
    assert not run.errors
    assert group_offsets(kafka, topic_name) == [-1001]


def test_sink_task_begins_where_the_plugin_says(cluster: Cluster, tmp_path: Path, kafka: str, topic_name: str) -> None:
    put_records(kafka, topic_name, range(5))
    run = cluster.start(appending(tmp_path, kafka, topic_name, mode="rewinds"))
    run.wait(lambda: sum(run.rows) == 3)
    assert records_in(tmp_path) == [f"0 {n} k{n} {{n={n}}}" for n in (2, 3, 4)]


def test_records_from_where_the_plugin_goes_on_are_put_again(
    cluster: Cluster, tmp_path: Path, kafka: str, topic_name: str
) -> None:
    """``context.offset`` in ``put``, as plug-ins do whose write has failed: without them records would be lost. No
    later record comes before them."""
    put_records(kafka, topic_name, range(5))
    of_three = {"consumer.override.max.poll.records": "3"}
    run = cluster.start(appending(tmp_path, kafka, topic_name, mode="rewinds later") | of_three)
    assert f"goes on at {{'{topic_name}-0': 1}}; allowed: the task starts again there" in str(run.failure())
    run.task.stop()
    assert group_offsets(kafka, topic_name) == [1]
    again = cluster.start(appending(tmp_path, kafka, topic_name), epoch=2)
    again.wait(lambda: group_offsets(kafka, topic_name) == [5])
    assert records_in(tmp_path)[3:] == [f"0 {n} k{n} {{n={n}}}" for n in (1, 2, 3, 4)]


@pytest.mark.parametrize("setting", ["source.starting.offsets", "consumer.override.auto.offset.reset"])
def test_partition_without_a_new_record_begins_at_its_end_once(
    cluster: Cluster, tmp_path: Path, kafka: str, setting: str
) -> None:
    """With ``latest``, also for the next owner of the task: what was there before the connector is not read."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    make_topic(kafka, name, 2)
    put_records(kafka, name, range(5))
    config = appending(tmp_path, kafka, name, mode="own settings") | {setting: "latest"}
    run = cluster.start(config)

    def has_read() -> bool:
        produce(kafka, name, [(1, "new", '{"n": 5}')])
        return sum(run.rows) > 0

    run.wait(has_read)
    run.task.stop()
    assert group_offsets(kafka, name) == [5]
    put_records(kafka, name, range(6, 7))
    again = cluster.start(config, epoch=2)
    again.wait(lambda: any(line.startswith("0 ") for line in records_in(tmp_path)))
    again.task.stop()
    assert [line for line in records_in(tmp_path) if line.startswith("0 ")] == ["0 5 k6 {n=6}"]


def test_sink_connector_reports_its_error(cluster: Cluster, tmp_path: Path, kafka: str, topic_name: str) -> None:
    """With the context that Kafka Connect gives the connector of a sink."""
    connector = cluster.connector(appending(tmp_path, kafka, topic_name, mode="connector raises"))
    connector.task_configs(1)
    with pytest.raises(SourceError, match=r"IllegalStateException: the shelf is gone \(at tests\."):
        connector.task_configs(1)


def test_what_a_sink_plugin_throws_is_the_error_of_its_task(
    cluster: Cluster, tmp_path: Path, kafka: str, topic_name: str
) -> None:
    put_records(kafka, topic_name, range(5))
    run = cluster.start(appending(tmp_path, kafka, topic_name, mode="throws"))
    assert "IllegalStateException: no room; cause: java.io.IOException: disk (at tests." in str(run.failure())
    assert group_offsets(kafka, topic_name) == [-1001], "nothing is committed"


def test_sink_plugin_whose_start_throws_is_stopped(
    cluster: Cluster, tmp_path: Path, kafka: str, topic_name: str
) -> None:
    """As in Kafka Connect: it releases what it has opened."""
    put_records(kafka, topic_name, range(1))
    with pytest.raises(SinkError, match=r"IllegalStateException: no licence \(at tests\."):
        cluster.start(appending(tmp_path, kafka, topic_name, mode="start throws"))
    assert notes(tmp_path) == ["start", "stop"]


@pytest.mark.parametrize("mode", ["start blocks", "start is deaf", "configure is deaf"])
@pytest.mark.parametrize("is_early", [False, True])
def test_start_of_a_sink_plugin_that_blocks_ends_when_its_task_is_to_stop(
    cluster: Cluster,
    tmp_path: Path,
    kafka: str,
    topic_name: str,
    is_early: bool,
    mode: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may wait for a database that is away: its worker could not revoke the task, and would be removed."""
    monkeypatch.setattr("connectgroup.spark.connect_runtime.STOP_BOUND_MS", 2_000)
    put_records(kafka, topic_name, range(1))
    errors: list[Exception] = []
    config = appending(tmp_path, kafka, topic_name, mode=mode)
    if mode == "configure is deaf":
        config |= {"value.converter": f"{TEST_SINK}$Shouting", "value.converter.blocks": config["out"]}

    def start() -> None:
        try:
            cluster.start(config)
        except SinkError as error:
            errors.append(error)

    starting = threading.Thread(target=start, daemon=True)
    starting.start()
    wait(lambda: bool(cluster.runs) and (is_early or notes(tmp_path) == ["start"]))
    cluster.runs[0].task.interrupt_start()
    starting.join(120)
    assert not starting.is_alive()
    assert len(errors) == 1
    assert notes(tmp_path)[-1] == ("start" if mode == "configure is deaf" else "stop")


def test_sink_plugin_that_fails_while_there_are_no_records_gets_again_what_it_has_dropped(
    cluster: Cluster,
    tmp_path: Path,
    kafka: str,
    topic_name: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In Kafka Connect the task fails, too. It must not commit what the plug-in does not have any more."""
    monkeypatch.setattr("connectgroup.spark.sinks.connect.IDLE_S", 0.05)
    put_records(kafka, topic_name, range(5))
    run = cluster.start(appending(tmp_path, kafka, topic_name, mode="held, then dropped"))
    assert "IllegalStateException: connection reset (at tests." in str(run.failure())
    run.task.stop()
    assert group_offsets(kafka, topic_name) == [-1001], "nothing is committed"
    again = cluster.start(appending(tmp_path, kafka, topic_name, mode="held, then busy"), epoch=2)
    again.wait(lambda: group_offsets(kafka, topic_name) == [5])
    assert f"puts again after {TEST_SINK}: org.apache.kafka.connect.errors.RetriableException: busy" in caplog.text
    assert records_in(tmp_path) == [f"0 {n} k{n} {{n={n}}}" for n in range(5)]


def test_records_that_a_sink_plugin_wants_again_while_there_are_no_others_are_put_again(
    cluster: Cluster, tmp_path: Path, kafka: str, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a plug-in does that could not write what it held. Their offsets must not be committed meanwhile."""
    monkeypatch.setattr("connectgroup.spark.sinks.connect.IDLE_S", 0.05)
    put_records(kafka, topic_name, range(5))
    run = cluster.start(appending(tmp_path, kafka, topic_name, mode="held, then wanted again"))
    assert f"goes on at {{'{topic_name}-0': 0}}; allowed: the task starts again there" in str(run.failure())
    run.task.stop()
    assert group_offsets(kafka, topic_name) == [0]
    again = cluster.start(appending(tmp_path, kafka, topic_name), epoch=2)
    again.wait(lambda: group_offsets(kafka, topic_name) == [5])
    assert records_in(tmp_path) == [f"0 {n} k{n} {{n={n}}}" for n in range(5)]


def test_sink_plugin_that_wants_the_same_records_again_has_not_stalled(
    cluster: Cluster, tmp_path: Path, kafka: str, topic_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its database may be away for an hour: its worker must not start again, with all other tasks. The log says why
    nothing is written."""
    put_records(kafka, topic_name, range(5))
    run = cluster.start(appending(tmp_path, kafka, topic_name, mode="put is busy"))
    run.wait(lambda: "put is busy" in notes(tmp_path))
    polls = len(run.polls)
    reason = f"puts again after {TEST_SINK}: org.apache.kafka.connect.errors.RetriableException: busy (at tests."
    run.wait(lambda: len(run.polls) > polls + 1 and reason in caplog.text)
    assert group_offsets(kafka, topic_name) == [-1001], "nothing is committed"


@pytest.mark.parametrize("mode", ["put is busy", "put blocks", "put gives up", "put is deaf", "preCommit blocks"])
def test_stop_of_a_sink_plugin_that_does_not_go_on_is_bounded(
    cluster: Cluster, tmp_path: Path, kafka: str, topic_name: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the end of Java, in which other tasks run. Its ``close`` throws, and its ``stop`` is called. What it has
    not written is not committed, also if its ``put`` returns from the interrupt."""
    monkeypatch.setattr("connectgroup.spark.connect_runtime.STOP_BOUND_MS", 2_000)
    put_records(kafka, topic_name, range(5))
    run = cluster.start(appending(tmp_path, kafka, topic_name, mode=mode))
    run.wait(lambda: mode in notes(tmp_path))
    stopping = threading.Thread(target=run.task.stop, daemon=True)
    stopping.start()
    run.task.abandon()  # as a worker does if the stop of a task that has stalled takes long
    stopping.join(60)
    assert not stopping.is_alive()
    assert not run.errors
    assert session_is_alive()
    assert notes(tmp_path)[-1] == "stop"
    again = cluster.start(appending(tmp_path, kafka, topic_name), epoch=2)
    # What was put, but is not known to be durable, is put again.
    again.wait(lambda: len(records_in(tmp_path)) == (10 if mode == "preCommit blocks" else 5))


def test_sink_plugin_objects_to_offsets_before_they_are_changed(
    cluster: Cluster, tmp_path: Path, kafka: str, topic_name: str
) -> None:
    put_records(kafka, topic_name, range(4))
    config = appending(tmp_path, kafka, topic_name)
    run = cluster.start(config)
    run.wait(lambda: sum(run.rows) == 4)
    run.task.stop()
    at = {"kafka_topic": topic_name, "kafka_partition": 0}
    odd, even = (PartitionOffset(partition=at, offset={"kafka_offset": number}) for number in (3, 2))
    with pytest.raises(PluginError, match=f"IllegalArgumentException: {topic_name}-0 has no record 3 "):
        cluster.connector(config).alter_offsets(1 << 20, [odd])
    assert group_offsets(kafka, topic_name) == [4]
    assert cluster.connector(config).alter_offsets(1 << 20, [even]) is False, "the plug-in has others of its own"
    assert group_offsets(kafka, topic_name) == [2]


def write_with_headers(servers: str, topic: str, key: bytes, value: bytes, headers: list[Any]) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": servers})
    producer.produce(topic, value, key, headers=headers)
    assert producer.flush(30) == 0


def keys_and_headers(servers: str, topic: str) -> list[tuple[bytes, Any]]:
    """Those of the three records of a topic, sorted."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": servers, "group.id": "reader"})
    with contextlib.closing(consumer):
        consumer.assign([TopicPartition(topic, 0, 0)])
        messages: list[Any] = []
        while len(messages) < 3:
            messages += consumer.consume(3 - len(messages), 0.5)
        return sorted([(each.key(), each.headers()) for each in messages], key=str)


@pytest.mark.parametrize("mode", ["reports", "reports late"])
def test_records_that_a_sink_plugin_reports_are_dead_letters(
    cluster: Cluster, tmp_path: Path, kafka: str, topic_name: str, mode: str
) -> None:
    """In the call of put, or when the plug-in writes what it holds; a copy of a record is reported as the record."""
    put_records(kafka, topic_name, range(5))
    write_with_headers(kafka, topic_name, b"k5\xff", b"\xff no JSON", [("h", b"\x01"), ("none", None)])
    config = appending(tmp_path, kafka, topic_name, mode=mode) | {
        "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": f"{topic_name}-bad",
        "errors.deadletterqueue.topic.replication.factor": "1",
    }
    run = cluster.start(config)
    run.wait(lambda: group_offsets(kafka, topic_name) == [6])
    run.task.stop()
    assert records_in(tmp_path) == [f"0 {n} k{n} {{n={n}}}" for n in (0, 2, 3)]
    assert sum(run.rows) == 3
    letters = sorted((json.loads(value) for _, value in committed(kafka, f"{topic_name}-bad")), key=str)
    found = {each["place"]: (each["stage"], each["record"]) for each in letters}
    assert found == {
        f"{topic_name}-0, offset 1": ("sink", '{"n": 1}'),
        f"{topic_name}-0, offset 4": ("sink", '{"n": 4}'),
        f"{topic_name}-0, offset 5": ("source", "\\xff no JSON"),
    }
    assert len(letters) == 3
    reason = (
        "no shelf for it; cause: java.io.IOException: full (at tests." if mode == "reports" else "too late (at tests."
    )
    assert all(reason in each["reason"] for each in letters if each["stage"] == "sink")
    assert {each["connector"] for each in letters} == {"lines"}
    assert {each["place"][-1]: each["key"] for each in letters} == {"1": "k1", "4": "k4", "5": "k5\\xff"}
    assert [json.loads(each["headers"]) for each in letters if "headers" in each] == [[["h", "\x01"], ["none", None]]]
    assert keys_and_headers(kafka, f"{topic_name}-bad") == [
        (b"k1", None),
        (b"k4", None),
        (b"k5\xff", [("h", b"\x01"), ("none", None)]),
    ]


def test_dead_letters_that_a_sink_plugin_reports_while_there_are_no_records_are_counted(
    cluster: Cluster,
    tmp_path: Path,
    kafka: str,
    topic_name: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Not only with the next batch: there may be none before the task ends."""
    monkeypatch.setattr("connectgroup.spark.sinks.connect.IDLE_S", 0.05)
    put_records(kafka, topic_name, range(3))
    config = appending(tmp_path, kafka, topic_name, mode="reports when idle") | {
        "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": f"{topic_name}-bad",
        "errors.deadletterqueue.topic.replication.factor": "1",
        "errors.log.enable": "true",
    }
    run = cluster.start(config)
    run.wait(lambda: sum(batch.dead_letters for batch in run.batches) == 1)
    place = f"{topic_name}-0, offset 1"
    assert [batch.last_dead_letter.partition(":")[0] for batch in run.batches if batch.dead_letters] == [place]
    run.wait(lambda: f"lines-0: {place} is a dead letter (sink): " in caplog.text)
    assert len(committed(kafka, f"{topic_name}-bad")) == 1


def test_plugin_has_no_reporter_unless_errors_are_tolerated(
    cluster: Cluster, tmp_path: Path, kafka: str, topic_name: str
) -> None:
    put_records(kafka, topic_name, range(3))
    config = appending(tmp_path, kafka, topic_name, mode="reports")
    run = cluster.start(config | {"errors.deadletterqueue.topic.name": f"{topic_name}-bad"})
    assert "IllegalStateException: no reporter for 1" in str(run.failure())
    assert group_offsets(kafka, topic_name) == [-1001], "nothing is committed"


def test_sink_tasks_have_topics_and_converters_whatever_settings_their_plugin_gives_them(
    cluster: Cluster, tmp_path: Path, kafka: str, topic_name: str
) -> None:
    put_records(kafka, topic_name, range(2))
    run = cluster.start(appending(tmp_path, kafka, topic_name, mode="own settings"))
    run.wait(lambda: sum(run.rows) == 2)
    assert records_in(tmp_path) == ["0 0 k0 {n=0}", "0 1 k1 {n=1}"]


# --------------------------------------------------------------------------------------------------
# Debezium, on a real PostgreSQL with logical decoding.


class Orders:
    """A table whose changes Debezium reads."""

    def __init__(self, url: str) -> None:
        self.url = url
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
        own = {"connector.class": DEBEZIUM, "trigger.ms": "50", **debezium_settings(self.url, "orders")}
        return own | {name.replace("_", "."): value for name, value in settings.items()}


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


def test_changes_keep_their_types_and_a_snapshot_is_committed_whole(
    cluster: Cluster, orders: Orders, tmp_path: Path
) -> None:
    """A snapshot cannot be continued in its middle: nothing of it is committed before its end."""
    import pyarrow.parquet

    from connectgroup.spark.sinks.parquet import read_committed

    config = orders.config(sink="parquet", sink_path=str(tmp_path / "out"), source_metadata="topic")
    config["max.batch.size"] = "10"
    config["max.queue.size"] = "20"
    orders.execute("ALTER TABLE orders ADD COLUMN rank INT DEFAULT 5")
    orders.insert(range(100))
    first = cluster.start(config)
    first.wait(lambda: bool(first.rows))
    assert first.rows[0] == 100, "one batch"
    orders.execute("UPDATE orders SET amount = 7, rank = NULL WHERE id = 5", "DELETE FROM orders WHERE id = 6")
    first.wait(lambda: sum(first.rows) == 102)
    first.task.stop()
    orders.insert(range(100, 120))
    second = cluster.start(config, epoch=2)
    second.wait(lambda: sum(second.rows) == 20)
    rows = [row for file in read_committed(tmp_path / "out") for row in pyarrow.parquet.read_table(file).to_pylist()]
    assert [row["op"] for row in rows] == ["r"] * 100 + ["u", "d"] + ["c"] * 20
    assert {row["topic"] for row in rows} == {"shop.public.orders"}
    assert rows[3]["after"] == {
        "id": 3,
        "amount": decimal.Decimal("3.25"),
        "note": "note 3",
        "at": datetime.datetime(2024, 2, 29, 12, 30, 1, 123456, datetime.UTC),
        "day": datetime.date(2024, 2, 29),
        "local": datetime.datetime(2024, 2, 29, 12, 30, 1, 500000),
        "clock": "12:30:01.250",
        "raw": b"\x00\xff",
        "tags": ["a", "b"],
        "doc": '{"n": 1}',
        "rank": 5,
    }
    assert (rows[100]["before"]["amount"], rows[100]["after"]["amount"]) == (decimal.Decimal("5.25"), 7)
    assert (rows[100]["before"]["rank"], rows[100]["after"]["rank"]) == (5, None), "null, not the default"
    assert (rows[101]["before"]["id"], rows[101]["after"]) == (6, None)
    # The plug-in's commit: without it, PostgreSQL would keep all of its log.
    slot = debezium_settings(orders.url, "orders")["slot.name"]
    query = f"SELECT confirmed_flush_lsn > restart_lsn FROM pg_replication_slots WHERE slot_name = '{slot}'"
    wait(lambda: orders.execute(query) == [(True,)])


def test_changes_go_to_kafka_with_their_keys_and_tombstones(cluster: Cluster, orders: Orders, kafka: str) -> None:
    name = f"shop-{uuid.uuid4().hex[:8]}"
    make_topic(kafka, f"{name}.public.orders", 1)
    config = orders.config(sink="kafka", sink_bootstrap_servers=kafka, sink_offsets_topic=f"{name}-offsets")
    config["topic.prefix"] = name
    orders.insert(range(3))
    run = cluster.start(config)
    run.wait(lambda: sum(run.rows) == 3)
    orders.execute("DELETE FROM orders WHERE id = 1")
    run.wait(lambda: sum(run.rows) == 5)
    found: list[tuple[str | None, Any]] = [
        (key, json.loads(value) if value else None) for key, value in committed(kafka, f"{name}.public.orders")
    ]
    assert [json.loads(key or "") for key, _ in found] == [{"id": 0}, {"id": 1}, {"id": 2}, {"id": 1}, {"id": 1}]
    assert [value and value["op"] for _, value in found] == ["r", "r", "r", "d", None]
    assert found[0][1]["after"]["note"] == "note 0"


# --------------------------------------------------------------------------------------------------
# Connectors that a SIGKILL of Java interrupts.


@ci_only("a MariaDB server and two starts of Java, 40 s of a core; a user's run has Debezium on PostgreSQL")
@pytest.mark.timeout(600)
def test_connector_resumes_from_its_schema_history_after_a_kill(
    cluster: Cluster, tmp_path: Path, debezium_mariadb: Path, mariadb: MariaDB
) -> None:
    """The binary log has no names of columns: what was written before the table was altered is read by the history."""
    mariadb.execute(
        "CREATE DATABASE shop",
        "CREATE TABLE shop.orders (id INT PRIMARY KEY, note VARCHAR(20), amount DECIMAL(9,2))",
        "INSERT INTO shop.orders VALUES " + ", ".join(f"({n}, 'note {n}', {n}.25)" for n in range(10)),
    )
    out = tmp_path / "out"
    config = {
        "connector.class": DEBEZIUM_MARIADB,
        "tasks.max": "1",
        "database.hostname": "127.0.0.1",
        "database.port": str(mariadb.port),
        "database.user": "root",
        "database.password": PASSWORD,
        "database.ssl.mode": "disable",
        "database.server.id": "4711",
        "topic.prefix": "shop",
        "database.include.list": "shop",
        "table.include.list": "shop.orders",
        "include.schema.changes": "false",
        "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
        "schema.history.internal.file.filename": str(tmp_path / "history.jsonl"),
        "transforms": "unwrap",
        "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
        "sink": "jsonl",
        "sink.path": str(out),
        "trigger.ms": "50",
    }

    def found() -> list[dict[str, Any]]:
        rows = [json.loads(line) for file in read_committed(out) for line in file.read_text().splitlines()]
        return [{name: value for name, value in row.items() if value is not None} for row in rows]

    run = cluster.start(config)
    run.wait(lambda: sum(run.rows) == 10)
    mariadb.execute("INSERT INTO shop.orders VALUES (10, 'note 10', 10.25)")
    run.wait(lambda: sum(run.rows) == 11)
    kill_session()
    assert "Java" in str(run.failure())
    mariadb.execute(
        "INSERT INTO shop.orders VALUES (11, 'note 11', 11.25)",
        "ALTER TABLE shop.orders ADD COLUMN place VARCHAR(20) FIRST, DROP COLUMN amount",
        "INSERT INTO shop.orders VALUES ('here', 12, 'note 12')",
    )
    again = cluster.start(config, epoch=2)
    again.wait(lambda: sum(again.rows) == 2)
    again.task.stop()
    assert [row["id"] for row in found()] == [*range(13)]
    assert [row["note"] for row in found()] == [f"note {n}" for n in range(13)]
    assert [float(row["amount"]) for row in found()[:12]] == [n + 0.25 for n in range(12)]
    assert found()[12] == {"place": "here", "id": 12, "note": "note 12"}


@ci_only("two starts of Java, 30 s of a core; a user's run has the sink of the tests' own")
@pytest.mark.timeout(600)
def test_jdbc_sink_loses_no_record_when_java_is_killed(
    cluster: Cluster, debezium_jdbc: Path, kafka: str, topic_name: str, database: str
) -> None:
    import psycopg

    fields = [{"field": "id", "type": "int32"}, {"field": "note", "type": "string"}]
    schema = {"type": "struct", "name": "order", "fields": fields}

    def put(numbers: range) -> None:
        texts = [json.dumps({"schema": schema, "payload": {"id": n, "note": f"note {n}"}}) for n in numbers]
        produce(kafka, topic_name, [(0, None, text) for text in texts])

    def ids() -> list[int]:
        with psycopg.connect(database) as connection:
            try:
                return [n for (n,) in connection.execute("SELECT id FROM orders ORDER BY id").fetchall()]
            except psycopg.errors.UndefinedTable:
                return []

    config = {
        "connector.class": DEBEZIUM_JDBC,
        "tasks.max": "1",
        "topics": topic_name,
        "source.bootstrap.servers": kafka,
        "source.max.rows.per.batch": "100",
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "connection.url": f"jdbc:{database.replace('test@', '')}",
        "connection.username": "test",
        "connection.password": "never-shown",
        "insert.mode": "insert",
        "primary.key.mode": "none",
        "schema.evolution": "basic",
        "collection.name.format": "orders",
        "trigger.ms": "50",
    }
    put(range(1_000))
    run = cluster.start(config)
    run.wait(lambda: bool(ids()))
    kill_session()
    assert "Java" in str(run.failure())
    put(range(1_000, 1_200))
    again = cluster.start(config, epoch=2)
    again.wait(lambda: group_offsets(kafka, topic_name) == [1_200])
    again.task.stop()
    assert set(ids()) == {*range(1_200)}
    assert not cluster.connector(config).fenced, "at least once"
