"""The source and the sink ``kafka`` against a real broker."""

from __future__ import annotations

import base64
import contextlib
import datetime
import itertools
import json
import re
import sqlite3
import subprocess
import sys
import threading
import uuid
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from confluent_kafka import KafkaError, Message

from connectgroup.connector import Lag
from connectgroup.connectors.pipeline import PipelineConnector
from connectgroup.dataplane.columns import Column, Columns, from_ddl, to_arrow
from connectgroup.dataplane.dead_letters import DeadLetters
from connectgroup.dataplane.errors import SinkError, SourceError, TaskFenced
from connectgroup.dataplane.ownership import Owner, Position, Range
from connectgroup.dataplane.sink import PositionStore, Sink
from connectgroup.dataplane.source import PartReader, Source
from connectgroup.errors import ConfigError
from connectgroup.spark import driving
from connectgroup.spark.query import SparkTask
from connectgroup.spark.sinks import kafka_offsets
from connectgroup.spark.sinks.connect import LetterRecord, write_letters
from connectgroup.spark.sinks.kafka import MAX_LETTER, KafkaSink, KafkaSinkSettings, letter_text
from connectgroup.spark.sinks.manifest import read_committed
from connectgroup.spark.sinks.parquet import ParquetSettings, ParquetSink
from connectgroup.spark.sinks.sqlite import SqliteSettings, SqliteSink
from connectgroup.spark.sources import kafka as kafka_source, kafka_reading
from connectgroup.spark.sources.kafka import KafkaSource, KafkaSourceSettings
from connectgroup.spark.sources.kafka_reading import ReadRecords
from connectgroup.spark.transforms.chain import columns_after
from connectgroup.spark.writing import read_here
from connectgroup.testing.contracts.sink import SinkContract
from connectgroup.testing.contracts.source import SourceContract, read
from tests.integration.processes import free_ports
from tests.volume import ci_only

from .conftest import Bench, Run, streams_of_task, wait
from .kafka_topics import (
    add_partitions,
    committed,
    delete_records,
    delete_topic,
    make_topic,
    placed,
    produce,
    times,
    topic,
)


class TestKafkaSource(SourceContract):
    @pytest.fixture
    def place(self, tmp_path: Path, kafka: str, spark: None) -> Path:
        self.servers = kafka
        make_topic(kafka, topic(tmp_path))
        return tmp_path

    def make_source(self, place: Path, *, task: int = 0, tasks: int = 1) -> Source:
        settings = {
            "bootstrap.servers": self.servers,
            "topics": topic(place),
            "schema": "a INT",
            "max.rows.per.batch": 8,
        }
        return KafkaSource.create(KafkaSourceSettings.model_validate(settings), task=task, tasks=tasks)

    def write(self, place: Path, numbers: range) -> None:
        produce(self.servers, topic(place), [(n % 3, f"k{n}", json.dumps({"a": n})) for n in numbers])


def test_partitions_are_part_of_the_task_configurations(kafka: str) -> None:
    name = f"t{uuid.uuid4().hex}"
    make_topic(kafka, name, 2)
    config = {"source": "kafka", "source.bootstrap.servers": kafka, "source.topics": name}
    connector = PipelineConnector("c", config | {"sink": "parquet", "sink.path": "/out"})
    before = connector.task_configs(1)
    assert before == connector.task_configs(1)
    add_partitions(kafka, name, 3)
    assert connector.task_configs(1) != before


def test_expression_for_topics_means_no_topic_of_kafka_itself(kafka: str) -> None:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient

    name = f"t{uuid.uuid4().hex}"
    make_topic(kafka, name, 1)
    Producer({"bootstrap.servers": kafka, "transactional.id": name}).init_transactions(30)
    assert "__transaction_state" in AdminClient({"bootstrap.servers": kafka}).list_topics(timeout=10).topics
    settings = {"bootstrap.servers": kafka, "topics.regex": f"__.*|{name}"}
    layout = KafkaSource.task_layout(KafkaSourceSettings.model_validate(settings))
    assert [each.partition(":")[0] for each in layout.split(",")] == [name]


def test_topic_that_does_not_exist_is_one_clear_line(kafka: str) -> None:
    settings = KafkaSourceSettings.model_validate({"bootstrap.servers": kafka, "topics": "nope"})
    with pytest.raises(SourceError, match=r"^Kafka .*: topic nope does not exist; allowed: a topic$"):
        KafkaSource.create(settings, task=0, tasks=1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, r"source\.topics: missing; allowed: either source\.topics or source\.topics\.regex"),
        ({"source.topics.regex": "("}, r"source\.topics\.regex: got '\('; allowed: a regular expression"),
        ({"source.topics": "t", "source.metadata": "nope"}, r"source\.metadata: got 'nope'; allowed: key, topic"),
        ({"source.topics": "t", "source.client": '{"plugin.library.paths": "x"}'}, r"source\.client: got 'plugin"),
        (
            {"source.topics": "t", "source.client": '{"ssl.providers": "/tmp/x"}'},
            r"source\.client: got 'ssl\.providers'",
        ),
        ({"source.topics": "t", "source.starting.offsets": "7"}, r"source\.starting\.offsets: got '7'"),
        (
            {"source.topics": "t", "value.converter": "ProtobufConverter"},
            r"source\.value\.converter: got 'ProtobufConverter'; all",
        ),
        (
            {"source.topics": "t", "header.converter": "JsonConverter"},
            r"source\.header\.converter: got 'JsonConverter'",
        ),
        (
            {"source.topics": "t", "source.schema": "a INT", "value.converter": "StringConverter"},
            r"source\.value\.converter: got 'StringConverter'; allowed: JsonConverter with source\.schema",
        ),
        (
            {"source": "files", "source.path": "/in", "source.format": "text", "key.converter": "StringConverter"},
            r"key\.converter: got 'StringConverter'; allowed: nothing: neither the source nor the sink has converters",
        ),
    ],
)
def test_wrong_settings_are_refused_when_the_connector_is_put(settings: dict[str, str], message: str) -> None:
    base = {"source": "kafka", "source.bootstrap.servers": "x:1", "sink": "parquet", "sink.path": "/out"}
    if settings.get("source") == "files":
        del base["source.bootstrap.servers"]
    with pytest.raises(ConfigError, match=message):
        PipelineConnector("c", base | settings)


def test_records_have_their_metadata_and_a_value_as_text(kafka: str, spark: None, tmp_path: Path) -> None:
    name = f"t{uuid.uuid4().hex}"
    make_topic(kafka, name, 1)
    produce(kafka, name, [(0, "k", "v")])
    settings = KafkaSourceSettings.model_validate({"bootstrap.servers": kafka, "topics.regex": name[:-1] + "."})
    source = KafkaSource.create(settings, task=0, tasks=1)
    assert [column.name for column in source.columns] == ["value", "key", "topic", "partition", "offset", "timestamp"]
    values, positions = read(source, {}, "value")
    assert [str(value) for value in values] == ["v"]
    assert positions == {f"{name}-0": 1}


def test_what_a_record_does_not_have_is_null_and_what_is_empty_stays_empty(kafka: str, spark: None) -> None:
    from confluent_kafka import Producer

    name = f"t{uuid.uuid4().hex}"
    make_topic(kafka, name, 1)
    producer = Producer({"bootstrap.servers": kafka})
    producer.produce(name, b"", b"", timestamp=-1, headers=[("h", None), ("h", b""), ("", b"x")])
    producer.produce(name, None, None, timestamp=1)
    assert producer.flush(30) == 0
    settings = {"bootstrap.servers": kafka, "topics": name, "metadata": "key,timestamp,timestamp_type,headers"}
    source = KafkaSource.create(KafkaSourceSettings.model_validate(settings), task=0, tasks=1)
    names = ("value", "key", "timestamp", "timestamp_type")
    found = {each: read(source, {}, each)[0] for each in (*names, "headers")}
    pairs = [("h", None), ("h", ""), ("", "x")]
    expected: dict[str, list[Any]] = {
        "value": ["", None],
        "key": ["", None],
        "timestamp": [None, datetime.datetime(1970, 1, 1, 0, 0, 0, 1000, datetime.UTC)],
        "timestamp_type": ["CreateTime"] * 2,
        "headers": [[{"key": key, "value": value} for key, value in pairs], None],
    }
    assert found == expected
    # Without Java, as for sinks of files; such rows have no headers.
    source = KafkaSource.create(
        KafkaSourceSettings.model_validate({**settings, "metadata": "key,timestamp,timestamp_type"}), task=0, tasks=1
    )
    reader = source.part_batches({})
    assert reader is not None
    rows = pyarrow.Table.from_batches(list(reader.read_part(Range(slice=f"{name}-0", start=0, end=2))))
    assert rows.to_pydict() == {each: expected[each] for each in names}


def test_records_lag_grows_while_the_sink_is_blocked_and_goes_to_0(
    kafka: str, table: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driving, "INTERVAL_S", 0.05)
    name = f"t{uuid.uuid4().hex}"
    make_topic(kafka, name, 2)

    def write(numbers: range) -> None:
        produce(kafka, name, [(n % 2, "k", json.dumps({"a": n})) for n in numbers])

    write(range(4))
    records = {"source": "kafka", "source_bootstrap_servers": kafka, "source_topics": name, "source_schema": "a INT"}
    run = table.start(1, **records, sink_busy_timeout_ms="60000")  # type: ignore[arg-type]
    run.wait(lambda: table.seen() == [*range(4)] and run.lags[-1] == Lag(records=0))
    with contextlib.closing(sqlite3.connect(table.output, isolation_level=None)) as blocking:
        blocking.execute("BEGIN IMMEDIATE")
        for end in (7, 10):
            write(range(end - 3, end))
            run.wait(lambda end=end: run.lags[-1] == Lag(records=end - 4))  # type: ignore[misc]
        assert table.seen() == [*range(4)]
        blocking.execute("ROLLBACK")
    run.wait(lambda: run.lags[-1] == Lag(records=0))
    assert table.seen() == [*range(10)]


def test_lag_of_partitions_that_begin_at_the_end_counts_what_came_since(kafka: str) -> None:
    name = f"t{uuid.uuid4().hex}"
    make_topic(kafka, name, 2)
    produce(kafka, name, [(0, "k", "v")] * 3)
    settings = {"bootstrap.servers": kafka, "topics": name, "starting.offsets": "latest"}
    source = KafkaSource.create(KafkaSourceSettings.model_validate(settings), task=0, tasks=1)
    assert source.lag({}) == Lag(records=0)
    produce(kafka, name, [(0, "k", "v"), (1, "k", "v")])
    assert source.lag({}) == Lag(records=2)
    assert source.lag({f"{name}-0": 4}) == Lag(records=1)


def test_partition_that_was_empty_or_is_added_begins_at_its_start(kafka: str, spark: None) -> None:
    """With ``latest``: its records are newer than the connector, also those that are written while no task runs."""
    name = f"t{uuid.uuid4().hex}"
    make_topic(kafka, name, 3)
    produce(kafka, name, [(0, "k", "old"), (1, "k", "old")])
    settings = {"bootstrap.servers": kafka, "topics": name, "starting.offsets": "latest"}

    def opened() -> KafkaSource:
        return KafkaSource.create(KafkaSourceSettings.model_validate(settings), task=0, tasks=1)

    values, positions = read(opened(), {}, "value")
    assert (values, positions) == ([], {f"{name}-0": 1, f"{name}-1": 1, f"{name}-2": 0})
    batches = opened().batches({})
    assert batches.plan({}) == positions
    assert batches.plan(positions) == positions
    add_partitions(kafka, name, 4)
    produce(kafka, name, [(0, "k", "n0"), (2, "k", "n2"), (3, "k", "n3")])
    source = opened()
    assert source.lag(positions) == Lag(records=3)
    ends = {f"{name}-{n}": end for n, end in enumerate((2, 1, 1, 1))}
    assert source.batches(positions).plan(positions) == ends
    found, reached = read(source, positions, "value")
    assert (sorted(map(str, found)), reached) == (["n0", "n2", "n3"], ends)


def test_record_written_while_no_task_runs_is_read_though_all_partitions_were_empty(kafka: str, bench: Bench) -> None:
    """With ``latest``: the first task has committed where the partitions begin, though it has read nothing."""
    name = f"t{uuid.uuid4().hex}"
    make_topic(kafka, name, 2)
    first = _start(bench, kafka, name, 1, source_starting_offsets="latest")
    store = (
        SqliteSink.open_positions(SqliteSettings(path=str(bench.output), table="t"))
        if bench.sink == "sqlite"
        else ParquetSink.open_positions(ParquetSettings(path=str(bench.output)))
    )
    first.wait(lambda: store.positions("flights") == {f"{name}-0": 0, f"{name}-1": 0})
    store.close()
    first.task.stop()
    _numbers(kafka, name, range(3))
    second = _start(bench, kafka, name, 2, source_starting_offsets="latest")
    second.wait(lambda: len(bench.seen()) == 3)
    second.task.stop()
    assert bench.seen() == [0, 1, 2]


def test_partition_that_is_added_begins_at_its_start_in_a_task_without_a_position(kafka: str, table: Bench) -> None:
    """With ``latest``: not so a partition that was there when the first of several tasks committed."""
    name = f"t{uuid.uuid4().hex}"
    make_topic(kafka, name, 2)
    produce(kafka, name, [(n, None, '{"a": 0}') for n in range(2)])

    def started(epoch: int, *numbers: int, of: int) -> list[Run]:
        tasks = {(n + zlib.crc32(name.encode())) % of for n in numbers}
        return [
            _start(table, kafka, name, epoch, source_starting_offsets="latest", task=task, tasks=of)
            for task in sorted(tasks)
        ]

    def has_position(number: int) -> bool:
        with contextlib.closing(SqliteSink.open_positions(SqliteSettings(path=str(table.output), table="t"))) as store:
            return f"{name}-{number}" in store.positions("flights")

    (first,) = started(1, 0, of=2)
    first.wait(lambda: has_position(0))
    (second,) = started(1, 1, of=2)
    second.wait(lambda: has_position(1))
    for run in (first, second):
        run.task.stop()
    add_partitions(kafka, name, 3)
    produce(kafka, name, [(n, None, json.dumps({"a": n + 1})) for n in range(3)])
    runs = started(2, 0, 1, 2, of=3)
    runs[0].wait(lambda: len(table.seen()) == 3 or any(run.errors for run in runs))
    assert table.seen() == [1, 2, 3]


def _numbers(servers: str, name: str, numbers: range) -> None:
    produce(servers, name, [(0, None, json.dumps({"a": n})) for n in numbers])


def _start(table: Bench, servers: str, name: str, epoch: int, **more: Any) -> Run:
    kafka = {"source": "kafka", "source_bootstrap_servers": servers, "source_topics": name, "source_schema": "a INT"}
    return table.start(epoch, **{**kafka, **more})


@pytest.mark.parametrize("new", [2, 15], ids=["shorter", "longer"])
@pytest.mark.parametrize("is_running", [True, False], ids=["running", "stopped"])
def test_topic_that_was_made_anew_is_an_error_that_names_it(
    kafka: str, table: Bench, new: int, is_running: bool
) -> None:
    """Its offsets are not those that were read, whether its end is behind them or not."""
    name = f"t{uuid.uuid4().hex}"
    make_topic(kafka, name, 1)
    _numbers(kafka, name, range(10))
    run = _start(table, kafka, name, 1)
    run.wait(lambda: sum(run.rows) == 10)
    if not is_running:
        run.task.stop()
    delete_topic(kafka, name)
    make_topic(kafka, name, 1)
    _numbers(kafka, name, range(100, 100 + new))
    message = rf"^Kafka {kafka}: topic {name} was deleted and made anew: its id is .*offsets reset"
    if is_running:
        assert re.match(message, str(run.failure()))
        run.task.stop()
    with pytest.raises(SourceError, match=message):
        _start(table, kafka, name, 2)
    assert table.seen() == [*range(10)]
    settings = SqliteSettings(path=str(table.output), table="t")
    SqliteSink.open_positions(settings).alter("flights", 3, None)
    again = _start(table, kafka, name, 4)
    again.wait(lambda: sum(again.rows) == new)
    assert table.seen() == [*range(10), *range(100, 100 + new)]


LOST = r"topic {}, partition 0: the records from offset {} to 7 were deleted before they were read .* kafka_offset 8,"


def test_records_that_retention_deletes_before_they_are_read_are_an_error_with_the_offsets(
    kafka: str, table: Bench
) -> None:
    name = f"t{uuid.uuid4().hex}"
    make_topic(kafka, name, 1)
    _numbers(kafka, name, range(5))
    run = _start(table, kafka, name, 1)
    run.wait(lambda: sum(run.rows) == 5)
    run.task.stop()
    _numbers(kafka, name, range(5, 10))
    delete_records(kafka, name, 8)
    with pytest.raises(SourceError, match=LOST.format(name, 5)):
        _start(table, kafka, name, 2)
    settings = SqliteSettings(path=str(table.output), table="t")
    SqliteSink.open_positions(settings).alter("flights", 3, {f"{name}-0": 8})
    again = _start(table, kafka, name, 4)
    again.wait(lambda: sum(again.rows) == 2)
    assert table.seen() == [*range(5), 8, 9]


def test_records_that_retention_deletes_while_a_task_lags_are_an_error_with_the_offsets(
    kafka: str, table: Bench
) -> None:
    name = f"t{uuid.uuid4().hex}"
    make_topic(kafka, name, 1)
    run = _start(table, kafka, name, 1, source_max_rows_per_batch="1", sink_busy_timeout_ms="60000")
    with contextlib.closing(sqlite3.connect(table.output, isolation_level=None)) as blocking:
        blocking.execute("BEGIN IMMEDIATE")
        # More would be fetched before they are deleted.
        _numbers(kafka, name, range(2))
        assert isinstance(run.task, SparkTask)
        run.wait(lambda: run.task.commits.is_busy)  # type: ignore[attr-defined]
        _numbers(kafka, name, range(2, 10))
        delete_records(kafka, name, 8)
        blocking.execute("ROLLBACK")
    failure = run.failure()
    assert isinstance(failure, SourceError)
    assert re.search(LOST.format(name, r"\d"), str(failure))


CONNECT_JSON = "org.apache.kafka.connect.json.JsonConverter"
BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"
BYTES_AND_PLACES = {"value_converter": BYTES, "source_metadata": "offset,partition"}
_MORE_FORMS = ci_only("3 s of a core each; a user's run has text and the fields of JSON")
OBJECTS = [json.dumps({"a": n, "b": f"é{n}", "c": "1.50", "d": "2024-02-29"}) for n in range(40)]
WITH_SCHEMA = [json.dumps({"schema": {"type": "string"}, "payload": f"é{n}"}) for n in range(40)]


def write_with_gaps(servers: str, name: str, values: list[str | None]) -> None:
    """Write values to three partitions, in transactions: their markers, and records that were aborted, are offsets
    without a record."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": servers, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(30)
    for start in range(0, len(values), 7):
        producer.begin_transaction()
        for n, value in enumerate(values[start : start + 7], start):
            producer.produce(
                name, value, None if n % 5 == 0 else f"k{n}", partition=n % 3, timestamp=1_700_000_000_000 + n
            )
        if start % 3 == 1:
            producer.flush(30)
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)


@pytest.mark.parametrize(
    ("values", "settings"),
    [
        (["", "é", None, *OBJECTS], {}),
        (OBJECTS, {"source_schema": "a INT, b STRING, c DECIMAL(9,2), d DATE", "source_metadata": "key,timestamp"}),
        pytest.param(["", None, *OBJECTS], BYTES_AND_PLACES, marks=_MORE_FORMS),
        pytest.param(WITH_SCHEMA, {"value_converter": CONNECT_JSON}, marks=_MORE_FORMS),
        pytest.param(OBJECTS, {"source_isolation_level": "read_uncommitted"}, marks=_MORE_FORMS),
    ],
    ids=["text", "fields", "bytes", "payloads", "uncommitted"],
)
def test_files_of_records_are_those_that_pass_through_java(
    kafka: str,
    tmp_path: Path,
    spark: None,
    monkeypatch: pytest.MonkeyPatch,
    values: list[str | None],
    settings: dict[str, str],
) -> None:
    """Read by Spark, by the task's process, and by Spark's Python workers where these parse the values."""
    name = f"t{uuid.uuid4().hex}"
    make_topic(kafka, name, 3)
    write_with_gaps(kafka, name, values)
    bench = Bench(tmp_path, "parquet")
    source = {"source": "kafka", "source_bootstrap_servers": kafka, "source_topics": name, **settings}
    # A transaction has ended for its producer before its markers are in the topic.
    wait(lambda: ends_of(kafka, name) == ends_of(kafka, name, "read_uncommitted"))
    ends = ends_of(kafka, name)
    written, schemas = list[object](), list[object]()
    for epoch, bench.passes_java, small in ((1, True, 0), (2, False, 1_000), (3, False, 0)):
        monkeypatch.setattr(kafka_source, "SMALL_RECORDS", small)
        bench.output = tmp_path / f"out-{epoch}"
        before = streams_of_task()
        run = bench.start(epoch, source_max_rows_per_batch="20", **source)  # type: ignore[arg-type]
        assert len(streams_of_task() - before) == bench.passes_java
        try:
            run.wait(lambda: positions_in(bench.output) == ends)
        finally:
            run.task.stop()
        tables = [pyarrow.parquet.read_table(file) for file in read_committed(bench.output)]
        found = pyarrow.concat_tables(tables)
        written.append(sorted(found.to_pylist(), key=repr))
        schemas.append(found.schema)
    assert written[0] == written[1] == written[2]
    assert schemas[0] == schemas[1] == schemas[2]


def ends_of(servers: str, name: str, level: str = "read_committed") -> dict[str, int]:
    """The end of each partition of a topic."""
    settings = KafkaSourceSettings.model_validate(
        {"bootstrap.servers": servers, "topics": name, "isolation.level": level}
    )
    return kafka_source.offsets_of(settings, [(name, n) for n in range(3)], latest=True)


def positions_in(directory: Path) -> dict[str, int]:
    store = ParquetSink.open_positions(ParquetSettings(path=str(directory)))
    with contextlib.closing(store):
        return store.positions("flights")


@pytest.mark.parametrize("small", [True, False], ids=["read by the task", "read by Spark's workers"])
@pytest.mark.parametrize(
    ("value", "settings", "message"),
    [
        (b"\xff", {}, r"t\w+-0, offset 1: the value is not UTF-8; allowed: UTF-8 text, or ByteArrayConverter$"),
        (
            b"{",
            {"source_schema": "a INT"},
            r"t\w+-0, offset 1: the value is not JSON with the fields of source\.schema",
        ),
    ],
)
def test_record_that_is_no_row_of_a_file_is_an_error_that_names_it(
    kafka: str,
    tmp_path: Path,
    spark: None,
    monkeypatch: pytest.MonkeyPatch,
    value: bytes,
    settings: dict[str, str],
    message: str,
    small: bool,
) -> None:
    monkeypatch.setattr(kafka_source, "SMALL_RECORDS", 1_000 if small else 0)
    name = f"t{uuid.uuid4().hex}"
    make_topic(kafka, name, 1)
    produce(kafka, name, [(0, None, '{"a": 1}'), (0, None, value)])
    bench = Bench(tmp_path, "parquet")
    source = {"source": "kafka", "source_bootstrap_servers": kafka, "source_topics": name, **settings}
    run = bench.start(1, **source)  # type: ignore[arg-type]
    assert re.search(message, str(run.failure()))
    run.task.stop()
    assert read_committed(bench.output) == []


def test_file_continues_at_the_position_of_the_sink_and_lost_records_are_an_error(
    kafka: str, tmp_path: Path, spark: None
) -> None:
    """Also those that are deleted after the batch was planned."""
    name = f"t{uuid.uuid4().hex}"
    make_topic(kafka, name, 1)
    bench = Bench(tmp_path, "parquet")
    for epoch, (begin, end) in enumerate([(0, 5), (5, 10)], 1):
        _numbers(kafka, name, range(begin, end))
        run = _start(bench, kafka, name, epoch)
        run.wait(lambda run=run: sum(run.rows) == 5)  # type: ignore[misc]
        run.task.stop()
    assert bench.seen() == [*range(10)]
    settings = KafkaSourceSettings.model_validate({"bootstrap.servers": kafka, "topics": name, "schema": "a INT"})
    source = KafkaSource.create(settings, task=0, tasks=1)
    reader = source.part_batches({})
    assert reader is not None
    planned = reader.plan({})
    delete_records(kafka, name, 8)
    with pytest.raises(SourceError, match=r"topic t\w+, partition 0, offset 0: ") as raised:
        list(reader.read_part(Range(slice=f"{name}-0", start=0, end=planned[f"{name}-0"])))
    assert re.search(LOST.format(name, 0), str(source.explained(raised.value, {f"{name}-0": 0})))
    with pytest.raises(SourceError, match=LOST.format(name, 5)):
        source.part_batches({f"{name}-0": 5})


def test_cluster_that_does_not_answer_ends_the_reading(kafka: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_reading, "PATIENCE_S", 0.1)
    (port,) = free_ports(1)
    read_part = ReadRecords(servers=f"127.0.0.1:{port}", client={}, columns=from_ddl("value STRING"), values=None)
    rows = read_part(Range(slice="t-0", start=0, end=1))
    with pytest.raises(SourceError, match=r"topic t, partition 0: no record from offset 0 on within 0\.1 s"):
        assert sum(batch.num_rows for batch in rows) == 0


class ScriptedConsumer:
    """Answers each call of ``consume`` with the next list of messages."""

    def __init__(self, answers: list[list[Message]]) -> None:
        self._answers = iter(answers)

    def __call__(self, _: dict[str, Any]) -> ScriptedConsumer:
        return self

    def consume(self, *_: Any) -> list[Message]:
        return next(self._answers, [])

    def assign(self, _: Any) -> None: ...

    def unassign(self) -> None: ...

    def close(self) -> None: ...


def _message(offset: int = -1001, error: KafkaError | None = None, time: tuple[int, int] = (1, 0)) -> Message:
    return Message(topic="t", partition=0, offset=offset, value=b"a", error=error, timestamp=time)


def _read_scripted(monkeypatch: pytest.MonkeyPatch, answers: list[list[Message]], end: int) -> list[dict[str, Any]]:
    """The rows of t-0 up to an end, of a cluster of its own: consumers are kept for the next range."""
    monkeypatch.setattr("confluent_kafka.Consumer", ScriptedConsumer(answers))
    columns = from_ddl("value STRING, offset BIGINT, timestamp TIMESTAMP")
    read_part = ReadRecords(servers=uuid.uuid4().hex, client={}, columns=columns, values=None)
    batches = read_part(Range(slice="t-0", start=0, end=end))
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("code", [KafkaError.UNKNOWN, KafkaError.NETWORK_EXCEPTION, KafkaError.INCONSISTENT_TOPIC_ID])
def test_error_after_which_the_client_fetches_again_ends_nothing_but_is_reported(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    answers = [[_message(0), _message(error=KafkaError(code, "it broke"))], [], [_message(1)]]
    assert [row["offset"] for row in _read_scripted(monkeypatch, answers, 2)] == [0, 1]
    monkeypatch.setattr(kafka_reading, "PATIENCE_S", 0.01)
    with pytest.raises(SourceError, match=r"no record from offset 1 on within 0\.01 s \(it broke\)"):
        _read_scripted(monkeypatch, answers[:1], 2)


@pytest.mark.parametrize("code", [KafkaError._BAD_MSG, KafkaError.TOPIC_AUTHORIZATION_FAILED])
def test_error_of_a_partition_that_stays_is_raised_at_once(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    with pytest.raises(SourceError, match=r"topic t, partition 0, offset 1: it broke"):
        _read_scripted(monkeypatch, [[_message(0), _message(error=KafkaError(code, "it broke"))]], 2)


def test_records_that_came_are_read_however_long_the_caller_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patience is for a cluster without an answer."""
    monkeypatch.setattr(kafka_reading, "PATIENCE_S", -1.0)
    assert [row["offset"] for row in _read_scripted(monkeypatch, [[_message(0)], [_message(1)]], 2)] == [0, 1]


def test_record_without_a_timestamp_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the oldest format of messages have no kind of timestamp, and the client gives 0 for it."""
    first = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    times = [(0, 0), (1, -1), (1, 0), (2, 0)]
    found = _read_scripted(monkeypatch, [[_message(n, time=each) for n, each in enumerate(times)]], len(times))
    assert [row["timestamp"] for row in found] == [None, None, first, first]


class TestKafkaSink(SinkContract):
    @pytest.fixture
    def place(self, tmp_path: Path, kafka: str) -> Path:
        self.servers = kafka
        make_topic(kafka, topic(tmp_path), 2)
        return tmp_path

    def make_sink(self, place: Path) -> Sink:
        return KafkaSink.create(self.settings(place), self.columns)

    def open_positions(self, place: Path) -> PositionStore | None:
        return KafkaSink.open_positions(self.settings(place))

    def settings(self, place: Path) -> KafkaSinkSettings:
        settings = {
            "bootstrap.servers": self.servers,
            "topic": topic(place),
            "offsets.topic": f"offsets-{topic(place)}",
        }
        return KafkaSinkSettings.model_validate(settings)

    def read(self, place: Path) -> list[int]:
        return [json.loads(value)["a"] for _, value in committed(self.servers, topic(place))]


SCHEMA_OF_KEY = '{"schema":{"type":"struct","fields":[{"type":"int64","optional":true,"field":"id"}],"optional":false},'
"""What Kafka Connect's JsonConverter writes before a key of its ValueToKey."""


@pytest.mark.parametrize(
    ("converter", "key"),
    [("", '{"id":1}'), ("JsonConverter", f'{SCHEMA_OF_KEY}"payload":{{"id":1}}}}')],
    ids=["default", "JsonConverter"],
)
def test_key_topic_and_value_of_a_record_come_from_the_columns(kafka: str, converter: str, key: str) -> None:
    import pyarrow as pa

    first, second = (f"t{uuid.uuid4().hex}" for _ in range(2))
    for name in (first, second):
        make_topic(kafka, name, 1)
    columns = (*from_ddl("value STRING, topic STRING"), Column("key", "STRUCT<ID:INT>"))
    settings = {"bootstrap.servers": kafka, "topic": first, "metadata": "key, topic", "key.converter": converter}
    sink = KafkaSink.create(KafkaSinkSettings.model_validate(settings), columns)
    owner = Owner(connector=first, task=0, tasks=1, fencing_token=1)
    sink.claim(owner, lambda name: True)
    rows = pa.table({"value": ["v", "w"], "topic": [second, None], "key": [{"id": 1}, None]})
    assert sink.commit(owner, [Range(slice="s", start=0, end=2)], rows) is True
    sink.close()
    assert committed(kafka, second) == [(key, "v")]
    assert committed(kafka, first) == [(None, "w")]


@pytest.mark.parametrize(
    ("kind", "accepted"),
    [
        ("ARRAY<STRUCT<key: STRING, value: BINARY>>", True),
        ("MAP<STRING,STRING>", True),
        ("ARRAY<STRUCT<NAME: STRING, VALUE: STRING>>", False),
        ("STRING", False),
    ],
)
def test_column_of_headers_has_keys_and_values(kafka: str, kind: str, accepted: bool) -> None:
    settings = KafkaSinkSettings.model_validate({"bootstrap.servers": kafka, "topic": "t"})
    columns = (Column("value", "STRING"), Column("headers", kind, metadata=True))
    if accepted:
        KafkaSink.create(settings, columns)
        return
    with pytest.raises(ConfigError, match=r"headers: got .*; allowed: an array of structs of key and value, or a map"):
        KafkaSink.create(settings, columns)


def _json(servers: str, name: str) -> list[Any]:
    return [json.loads(value) for _, value in committed(servers, name)]


def _to_kafka(table: Bench, servers: str, name: str, **more: str) -> Run:
    """A pipeline into a topic."""
    sink = {"sink": "kafka", "sink.bootstrap.servers": servers, "sink.topic": name, "trigger.ms": "50"}
    files = {"source": "files", "source.path": str(table.input), "source.format": "csv"}
    config = {**({} if "source" in more else files), **sink, "sink.offsets.topic": f"o{uuid.uuid4().hex}"}
    settings = {key.replace("_", "."): value for key, value in more.items()}
    table.config = lambda **_: {**config, **settings}  # type: ignore[method-assign]
    return table.start(1)


NAMES = ["timestamp", "value", "key", "partition", "offset", "headers", "topic"]


def test_columns_that_are_named_like_metadata_are_fields_of_the_value(kafka: str, table: Bench) -> None:
    name = f"t{uuid.uuid4().hex}"
    make_topic(kafka, name, 1)
    (table.input / "one.csv").write_text(f"sensor,{','.join(NAMES)}\ns,{','.join(f'<{n}>' for n in NAMES)}\n")
    run = _to_kafka(table, kafka, name)
    run.wait(lambda: sum(run.rows) == 1)
    assert _json(kafka, name) == [{"sensor": "s", **{each: f"<{each}>" for each in NAMES}}]


def test_fields_of_a_record_that_are_named_like_metadata_are_fields_of_the_value(kafka: str, table: Bench) -> None:
    """Those of ``source.schema``; what ``source.metadata`` lists is the record's own."""
    origin, target = (f"t{uuid.uuid4().hex}" for _ in range(2))
    for name in (origin, target):
        make_topic(kafka, name, 1)
    value = {"a": 1, "topic": "elsewhere", "partition": 9, "offset": 7, "timestamp_type": "mine"}
    produce(kafka, origin, [(0, "k", json.dumps(value))])
    more = {"source_bootstrap_servers": kafka, "source_topics": origin, "source_metadata": "key"}
    schema = "a INT, topic STRING, partition INT, offset BIGINT, timestamp_type STRING"
    run = _to_kafka(table, kafka, target, source="kafka", source_schema=schema, **more)
    run.wait(lambda: sum(run.rows) == 1)
    ((key, text),) = committed(kafka, target)
    assert (key, json.loads(text)) == ("k", value)


def test_columns_that_sql_makes_beside_fields_of_the_schema_stay_fields(kafka: str, table: Bench) -> None:
    """Whatever their names are: they would be lost, or send the record elsewhere."""
    origin, target = (f"t{uuid.uuid4().hex}" for _ in range(2))
    for name in (origin, target):
        make_topic(kafka, name, 1)
    produce(kafka, origin, [(0, "k", '{"id":7}')])
    more = {"source_bootstrap_servers": kafka, "source_topics": origin, "source_schema": "id INT"}
    more |= {"transforms": "q", "transforms_q_type": "sql"}
    made = {"key": "id", "topic": "'other'", "offset": "9", "timestamp_type": "'mine'"}
    query = ", ".join(f"{value} AS {name}" for name, value in made.items())
    run = _to_kafka(table, kafka, target, source="kafka", **more, transforms_q_query=f"SELECT *, {query} FROM batch")
    run.wait(lambda: sum(run.rows) == 1)
    ((key, value),) = committed(kafka, target)
    assert key is None
    assert json.loads(value or "") == {"id": 7, "key": 7, "topic": "other", "offset": 9, "timestamp_type": "mine"}


def test_setting_makes_columns_the_records_own(kafka: str, table: Bench) -> None:
    name = f"t{uuid.uuid4().hex}"
    make_topic(kafka, name, 1)
    row = "1,k,2024-02-29T12:30:01.500Z,7,LogAppendTime"
    (table.input / "one.csv").write_text(f"id,key,timestamp,offset,timestamp_type\n{row}\n")
    run = _to_kafka(
        table,
        kafka,
        name,
        source_schema="id INT, key STRING, timestamp TIMESTAMP, offset BIGINT, timestamp_type STRING",
        sink_metadata="key, timestamp, timestamp_type",
    )
    run.wait(lambda: sum(run.rows) == 1)
    ((key, value),) = committed(kafka, name)
    assert (key, json.loads(value)) == ("k", {"id": 1, "offset": 7})
    assert times(kafka, name) == [1_709_209_801_500]


def test_record_of_another_topic_keeps_its_timestamp_key_headers_and_value(kafka: str, table: Bench) -> None:
    from confluent_kafka import Producer

    origin, target = (f"t{uuid.uuid4().hex}" for _ in range(2))
    for name in (origin, target):
        make_topic(kafka, name, 1)
    producer = Producer({"bootstrap.servers": kafka})
    for at in (1, 1_000_000_000_123, 1_700_000_000_000):
        producer.produce(origin, f"v{at}", "k", timestamp=at)
    assert producer.flush(30) == 0
    more = {"source_bootstrap_servers": kafka, "source_topics": origin}
    more |= {"source_metadata": "key, timestamp, timestamp_type"}
    run = _to_kafka(table, kafka, target, source="kafka", **more)
    run.wait(lambda: sum(run.rows) == 3)
    assert times(kafka, target) == times(kafka, origin) == [1, 1_000_000_000_123, 1_700_000_000_000]
    assert committed(kafka, target) == committed(kafka, origin)


@pytest.mark.parametrize(
    ("transforms", "tolerant", "converter"),
    [("", False, ""), ("", True, CONNECT_JSON), ("f,t,m", False, CONNECT_JSON), ("f,t,m", True, "")],
)
def test_value_without_the_fields_of_the_schema_is_no_tombstone_in_another_topic(
    kafka: str, table: Bench, transforms: str, tolerant: bool, converter: str
) -> None:
    origin, target, dead = (f"t{uuid.uuid4().hex}" for _ in range(3))
    for name in (origin, target, dead):
        make_topic(kafka, name, 1)
    values = ["{}", '{"a":null}', '{"other":1}', None, '{"a":2}', '{"a":1}']
    if converter:
        values = [value and f'{{"schema":null,"payload":{value}}}' for value in values]
    produce(kafka, origin, [(0, f"k{at}", value) for at, value in enumerate(values)])
    more = {"source_bootstrap_servers": kafka, "source_topics": origin, "source_metadata": "key"}
    more |= {"source_value_converter": converter} if converter else {}
    if transforms:
        more |= {"transforms": transforms, "transforms_f_type": "Filter", "transforms_f_condition": "a = 2"}
        more |= {"transforms_t_type": "Filter", "transforms_t_predicate": "p"}
        more |= {"predicates": "p", "predicates_p_type": "RecordIsTombstone"}
        more |= {"transforms_m_type": "MaskField", "transforms_m_fields": "a"}
    if tolerant:
        more |= {"errors_tolerance": "all", "errors_deadletterqueue_name": dead}
    expected = [("k0", '{"a":null}'), ("k1", '{"a":null}'), ("k2", '{"a":null}'), ("k3", ""), ("k4", '{"a":2}')]
    expected = [*expected[:3], ("k5", '{"a":0}')] if transforms else [*expected, ("k5", '{"a":1}')]
    run = _to_kafka(table, kafka, target, source="kafka", source_schema="a INT", **more)
    run.wait(lambda: len(committed(kafka, target)) == len(expected))
    assert committed(kafka, target) == expected
    assert committed(kafka, dead) == []


@pytest.mark.parametrize("metadata", ["key", ""], ids=["key", "no key"])
@pytest.mark.parametrize("converter", ["", CONNECT_JSON], ids=["json", "payloads"])
def test_value_without_the_fields_of_the_schema_is_no_tombstone_while_spark_starts(
    kafka: str, metadata: str, converter: str
) -> None:
    """Read without Spark. A payload of null is no value, as for Kafka Connect, and a tombstone needs no key."""
    origin, target = (f"t{uuid.uuid4().hex}" for _ in range(2))
    for name in (origin, target):
        make_topic(kafka, name, 1)
    values: list[str | None] = ["{}", '{"a":null}', '{"other":1}', None, '{"a":2}']
    expected = ['{"a":null}', '{"a":null}', '{"a":null}', "", '{"a":2}']
    if converter:
        values = [value and f'{{"schema":null,"payload":{value}}}' for value in [*values, "null"]]
        expected.append("")
    produce(kafka, origin, [(0, f"k{at}", value) for at, value in enumerate(values)])
    settings = {"bootstrap.servers": kafka, "topics": origin, "schema": "a INT", "metadata": metadata}
    settings |= {"value.converter": converter} if converter else {}
    source = KafkaSource.create(KafkaSourceSettings.model_validate(settings), task=0, tasks=1).with_marks()
    reader = source.batches({})
    ranges = reader.ranges({}, reader.plan({}))
    sink_settings = {"bootstrap.servers": kafka, "topic": target, "offsets.topic": f"o{uuid.uuid4().hex}"}
    columns = columns_after((), source.columns, None, source.metadata)
    sink = KafkaSink.create(KafkaSinkSettings.model_validate(sink_settings), columns)
    owner = Owner(connector=target, task=0, tasks=1, fencing_token=1)
    with contextlib.closing(sink):
        sink.claim(owner, lambda _: True)
        assert isinstance(reader, PartReader)
        rows = read_here(reader, ranges, lambda: False)
        assert rows is not None
        assert sink.commit(owner, ranges, rows)
    found = committed(kafka, target)
    assert found == [(f"k{at}" if metadata else None, value) for at, value in enumerate(expected)]


def test_tombstone_stays_one_behind_a_transform_and_has_no_key_of_its_value(kafka: str, table: Bench) -> None:
    origin, target, dead = (f"t{uuid.uuid4().hex}" for _ in range(3))
    for name in (origin, target, dead):
        make_topic(kafka, name, 1)
    produce(kafka, origin, [(0, f"k{at}", value) for at, value in enumerate(['{"a":1}', None, "{}"])])
    more = {"source_bootstrap_servers": kafka, "source_topics": origin, "source_schema": "a INT"}
    more |= {"source_metadata": "key,partition", "errors_tolerance": "all", "errors_deadletterqueue_name": dead}
    inserts = {"transforms": "i", "transforms_i_type": "InsertField", "transforms_i_partition_field": "n"}
    inserts |= {"transforms_i_static_field": "x", "transforms_i_static_value": "y"}
    run = _to_kafka(table, kafka, target, source="kafka", **more, **inserts)
    expected = [("k0", '{"a":1,"n":0,"x":"y"}'), ("k1", ""), ("k2", '{"a":null,"n":0,"x":"y"}')]
    run.wait(lambda: len(committed(kafka, target)) == 3)
    assert committed(kafka, target) == expected
    run.task.stop()
    keys = {"transforms": "k", "transforms_k_type": "ValueToKey", "transforms_k_fields": "a"}
    run = _to_kafka(table, kafka, target, source="kafka", **more, **keys)
    run.wait(lambda: len(committed(kafka, target)) == 5)
    assert committed(kafka, target)[3:] == [('{"a":1}', '{"a":1}'), ('{"a":null}', '{"a":null}')]
    ((_, letter),) = committed(kafka, dead)
    assert json.loads(letter)["place"] == f"{origin}-0, offset 1"
    assert "the record has no value; allowed: " in json.loads(letter)["reason"]


def _tolerant_sink(kafka: str, columns: Columns, **more: str) -> tuple[KafkaSink, str, str, Owner]:
    """A sink with dead letters, its topic and that of the dead letters."""
    name, dead = (f"t{uuid.uuid4().hex}" for _ in range(2))
    make_topic(kafka, dead, 1)
    settings = {"bootstrap.servers": kafka, "topic": name, **{key.replace("_", "."): v for key, v in more.items()}}
    sink = KafkaSink.create(KafkaSinkSettings.model_validate(settings), columns)
    owner = Owner(connector=name, task=0, tasks=1, fencing_token=1)
    sink.open_dead_letters(dead)
    sink.claim(owner, lambda name: True)
    return sink, name, dead, owner


HASHES = {
    "21": -973932308,
    "foobar": -790332482,
    "a-little-bit-long-string": -985981536,
    "a-little-bit-longer-string": -1486304829,
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    "abc": 479470107,
}
"""Keys, and the hash (murmur2) that Kafka's Java clients have of them."""


def test_key_goes_to_the_partition_that_javas_clients_choose(kafka: str) -> None:
    import pyarrow as pa
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    name, count = f"t{uuid.uuid4().hex}", 7
    make_topic(kafka, name, count)
    settings = {"bootstrap.servers": kafka, "topic": name, "metadata": "key", "offsets.topic": f"o{name}"}
    sink = KafkaSink.create(KafkaSinkSettings.model_validate(settings), from_ddl("key STRING, a INT"))
    owner = Owner(connector=name, task=0, tasks=1, fencing_token=1)
    sink.claim(owner, lambda name: True)
    rows = pa.table({"key": list(HASHES), "a": pa.array(range(len(HASHES)), pa.int32())})
    assert sink.commit(owner, [Range(slice="s", start=0, end=1)], rows) is True
    sink.close()
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": name})
    consumer.assign([TopicPartition(name, n, OFFSET_BEGINNING) for n in range(count)])
    found: dict[str, int | None] = {}
    while len(found) < len(HASHES):
        message = consumer.poll(30)
        assert message is not None
        key = message.key()
        assert isinstance(key, bytes)
        found[key.decode()] = message.partition()
    consumer.close()
    assert found == {key: (value & 0x7FFFFFFF) % count for key, value in HASHES.items()}


SMALL = {"max.message.bytes": "1000"}
COMPACT = {"cleanup.policy": "compact"}


@pytest.mark.parametrize(
    ("config", "bad", "setting"),
    [
        (SMALL, {"key": "k", "a": "x" * 2_000}, "(max.message.bytes,"),
        ({}, {"key": "k", "a": "x" * 1_500_000}, "message.max.bytes in sink.client,"),
        (COMPACT, {"key": None, "a": "x"}, "cleanup.policy,"),
    ],
    ids=["topic's limit", "client's limit", "no key"],
)
def test_record_that_the_topic_rejects_is_one_dead_letter_and_the_others_are_written_once(
    kafka: str, config: dict[str, str], bad: dict[str, str | None], setting: str
) -> None:
    import pyarrow as pa

    columns = from_ddl("key STRING, a STRING")
    sink, name, dead, owner = _tolerant_sink(kafka, columns, metadata="key")
    make_topic(kafka, name, 1, config)
    rows = [{"key": "k", "a": str(n)} for n in range(40)]
    rows[7] = rows[23] = bad  # type: ignore[assignment]
    whole = pa.Table.from_pylist(rows, schema=to_arrow(columns))
    letters = DeadLetters(owner, places=pa.chunked_array([[f"place {n}" for n in range(40)]]))
    span = [Range(slice="s", start=0, end=1)]
    assert sink.commit_all(owner, span, whole, letters) is True
    assert sink.commit_all(owner, span, whole, DeadLetters(owner)) is False
    assert [value["a"] for value in _json(kafka, name)] == [str(n) for n in range(40) if n not in (7, 23)]
    found = _json(kafka, dead)
    assert [(each["stage"], each["place"], each["connector"]) for each in found] == [
        ("sink", "place 7", name),
        ("sink", "place 23", name),
    ]
    assert [{**each, "record": ""} for each in found] == [{**each, "record": ""} for each in letters]
    for each, letter in zip(found, letters, strict=True):
        whole_record = letter["record"]
        assert whole_record.startswith(each["record"])
        assert len(each["record"]) >= min(len(whole_record), MAX_LETTER - 100)
    assert all(name in each["reason"] and setting in each["reason"].partition("allowed: ")[2] for each in found)
    with pytest.raises(SinkError, match=rf"topic {name}: .*; allowed: .*{re.escape(setting)}.*; row: "):
        sink.commit(owner, [Range(slice="s", start=1, end=2)], whole)
    sink.claim(owner, lambda name: True)
    assert sink.commit(owner, [Range(slice="s", start=1, end=2)], whole.slice(0, 1)) is True
    sink.close()


def test_no_record_is_lost_whose_topic_was_just_made(kafka: str) -> None:
    """The first requests to a partition without a leader were overtaken, and then taken for copies, one time in 20."""
    for _ in range(15):
        producer = kafka_offsets.transactional_producer(
            {"bootstrap.servers": kafka, "batch.size": "800"}, uuid.uuid4().hex, 15_000
        )
        producer.begin_transaction()
        name = f"t{uuid.uuid4().hex}"
        make_topic(kafka, name, 1)
        for digit in "012":
            producer.produce(name, digit * 350)
        producer.commit_transaction(30)
        found = list[str]()
        while not found:  # The end of the transaction is in the topic a little later.
            found = [value[0] for _, value in committed(kafka, name)]
        assert found == ["0", "1", "2"]


def test_records_that_only_together_are_too_large_for_a_topic_are_an_error_that_names_the_setting(kafka: str) -> None:
    """The client sends up to a million bytes as one, and does not divide what a topic rejects, as Java's does."""
    import pyarrow as pa

    columns = from_ddl("a STRING")
    rows = pa.Table.from_pylist([{"a": "x" * 350}] * 3, schema=to_arrow(columns))
    span = [Range(slice="s", start=0, end=3)]
    sink, name, _, owner = _tolerant_sink(kafka, columns, client='{"linger.ms": "10000"}')
    make_topic(kafka, name, 1, SMALL)
    with pytest.raises(SinkError, match=r"; allowed: batch\.size in sink\.client below max\.message\.bytes"):
        sink.commit_all(owner, span, rows, DeadLetters(owner))
    sink.close()
    sink, name, _, owner = _tolerant_sink(kafka, columns, client='{"batch.size": "800"}')
    make_topic(kafka, name, 1, SMALL)
    letters = DeadLetters(owner)
    assert sink.commit_all(owner, span, rows, letters) is True
    sink.close()
    assert (len(_json(kafka, name)), letters) == (3, [])


def test_partition_that_the_topic_was_given_meanwhile_is_written_and_one_that_it_does_not_have_is_a_dead_letter(
    kafka: str,
) -> None:
    """The client asks for the topic's partitions every few minutes only."""
    import pyarrow as pa

    columns = from_ddl("partition INT, a INT")
    sink, name, dead, owner = _tolerant_sink(kafka, columns, metadata="partition", keep_partitions="true")
    make_topic(kafka, name, 1)

    def rows(*partitions: int) -> pa.Table:
        numbers = range(len(partitions))
        return pa.table({"partition": pa.array(partitions, pa.int32()), "a": pa.array(numbers, pa.int32())})

    def written() -> list[tuple[int, int]]:
        return [(partition, json.loads(value)["a"]) for partition, value in placed(kafka, name)]

    def commit(start: int, *partitions: int) -> list[int]:
        """Commit a batch of rows; return the numbers of those that are dead letters."""
        letters = DeadLetters(owner)
        span = [Range(slice="s", start=start, end=start + 1)]
        assert sink.commit_all(owner, span, rows(*partitions), letters) is True
        return [json.loads(each["record"])["a"] for each in letters]

    assert commit(0, 0, 2) == [1]
    add_partitions(kafka, name, 3)
    assert commit(1, 0, 2, 5, 1) == [2]
    assert written() == [(0, 0), (0, 0), (1, 3), (2, 1)]
    add_partitions(kafka, name, 5)
    assert sink.commit(owner, [Range(slice="s", start=2, end=3)], rows(0, 4, 3)) is True
    assert written() == [(0, 0), (0, 0), (0, 0), (1, 3), (2, 1), (3, 2), (4, 1)]
    with pytest.raises(
        SinkError, match=rf"topic {name}: .*Unknown partition; allowed: .* a partition that it has; row"
    ):
        sink.commit(owner, [Range(slice="s", start=3, end=4)], rows(0, 5))
    sink.close()
    assert [json.loads(each["record"])["partition"] for each in _json(kafka, dead)] == [2, 5]


def test_topic_or_header_that_the_client_cannot_name_is_one_dead_letter(kafka: str) -> None:
    """The client cuts the name of a header off at a null character, and rejects such a topic without naming it."""
    import pyarrow as pa

    pairs = pa.list_(pa.struct({"key": pa.string(), "value": pa.string()}))
    columns = (
        Column("topic", "STRING"),
        Column("a", "INT"),
        Column("headers", "ARRAY<STRUCT<KEY:STRING,VALUE:STRING>>"),
    )
    sink, name, dead, owner = _tolerant_sink(kafka, columns, metadata="topic,headers")
    make_topic(kafka, name, 1)
    rows = pa.table(
        {
            "topic": [name, "a\0b", None, name],
            "a": pa.array(range(4), pa.int32()),
            "headers": pa.array([[], [], [{"key": "h\0x", "value": "v"}], [{"key": "h", "value": "v\0w"}]], pairs),
        }
    )
    letters = DeadLetters(owner)
    assert sink.commit_all(owner, [Range(slice="s", start=0, end=1)], rows, letters) is True
    sink.close()
    assert [value["a"] for value in _json(kafka, name)] == [0, 3]
    assert [each["reason"] for each in letters] == [each["reason"] for each in _json(kafka, dead)]
    assert [each["reason"].partition("; allowed: ")[0] for each in letters] == [
        r"topic is a\x00b",
        r"headers has the name h\x00x",
    ]


@pytest.mark.parametrize("policy", ["delete", "compact,delete", "compact"])
def test_topic_of_offsets_that_deletes_them_is_refused(kafka: str, policy: str) -> None:
    """Without its offsets, a source would be read from its start again."""
    name = f"t{uuid.uuid4().hex}"
    make_topic(kafka, name, 1, {"cleanup.policy": policy})
    settings = {"bootstrap.servers": kafka, "topic": "u", "offsets.topic": name}
    parsed = KafkaSinkSettings.model_validate(settings)
    if policy == "compact":
        KafkaSink.create(parsed, from_ddl("a INT")).close()
        return
    for opened in (KafkaSink.open_positions, lambda found: KafkaSink.create(found, from_ddl("a INT"))):
        with pytest.raises(SinkError, match=rf"topic {name}: has cleanup\.policy={policy}, which deletes offsets"):
            opened(parsed)


def test_error_names_the_topic_that_does_not_exist(kafka: str) -> None:
    import pyarrow as pa

    name = f"t{uuid.uuid4().hex}"
    client = json.dumps({"topic.metadata.propagation.max.ms": "500", "message.timeout.ms": "2000"})
    settings = {"bootstrap.servers": kafka, "topic": name, "client": client}
    sink = KafkaSink.create(KafkaSinkSettings.model_validate(settings), from_ddl("a INT"))
    owner = Owner(connector=name, task=0, tasks=1, fencing_token=1)
    sink.claim(owner, lambda name: True)
    with pytest.raises(SinkError, match=rf"^Kafka {kafka}(:|,) topic {name}"):
        sink.commit(owner, [Range(slice="s", start=0, end=1)], pa.table({"a": pa.array([1], pa.int32())}))
    sink.close()


def test_error_of_a_transaction_that_the_cluster_has_ended_names_its_timeout(kafka: str) -> None:
    """A producer of another program with the same id: the cluster tells the same when the timeout has ended one."""
    import pyarrow as pa
    from confluent_kafka import Producer

    name = f"t{uuid.uuid4().hex}"
    make_topic(kafka, name, 1)
    settings = {"bootstrap.servers": kafka, "topic": name, "offsets.topic": f"o{name}"}
    sink = KafkaSink.create(KafkaSinkSettings.model_validate(settings), from_ddl("a INT"))
    owner = Owner(connector=name, task=0, tasks=1, fencing_token=1)
    sink.claim(owner, lambda name: True)
    Producer({"bootstrap.servers": kafka, "transactional.id": f"connectgroup-{name}-1-0"}).init_transactions(30)
    message = r"; allowed: batches that are written within sink\.transaction\.timeout\.ms \(15000\): a longer one, or"
    with pytest.raises(SinkError, match=message):
        sink.commit(owner, [Range(slice="s", start=0, end=1)], pa.table({"a": pa.array([1], pa.int32())}))
    sink.close()


@pytest.mark.parametrize("text", ["\u00fc", "\U0001f600", '"', "\n", "a\x00", "x"])
def test_fields_of_a_dead_letter_are_cut_by_the_bytes_that_they_take(text: str) -> None:
    letter = {"record": text * 600_000, "reason": text * 600_000, "key": "k"}
    value = letter_text(letter)
    assert isinstance(value, str)
    assert len(value) < 650_000
    found = json.loads(value)
    assert all(letter[name].startswith(found[name]) for name in letter)
    assert len(json.dumps(found["record"])) > MAX_LETTER - 12


def test_dead_letter_that_is_too_large_is_written_with_less_beside_its_value(kafka: str) -> None:
    """Too large for the client, and for the topic; what is written together with it keeps its key and headers."""
    from confluent_kafka import Producer

    large, small = (f"t{uuid.uuid4().hex}" for _ in range(2))
    make_topic(kafka, large, 1)
    make_topic(kafka, small, 1, {"max.message.bytes": "20000"})
    owner = Owner(connector="c", task=0, tasks=1, fencing_token=1)

    def letter(key: bytes, value: bytes = b"v", headers: Sequence[tuple[str, bytes]] = ()) -> LetterRecord:
        packed = [base64.b64encode(each).decode() for each in (key, value, *(header for _, header in headers))]
        names = zip([name for name, _ in headers], packed[2:], strict=True)
        found = {"stage": "sink", "place": "p", "reason": "r", "key": packed[0], "value": packed[1]}
        return LetterRecord.of(owner, {**found, "headers": list(names)})

    size = 300_000
    letters = [
        letter(b"a", headers=[("h", b"1")]),
        letter(b"b", "\u00fc".encode() * size, [("h", b'"' * size), ("more", b"2")]),
        letter(b"c" * size, b"v" * 2 * size, [("h", b"\xff" * size)]),
        letter(b"d" * 3 * size),
    ]
    producer = Producer({"bootstrap.servers": kafka})
    for name in (large, small):
        write_letters(producer, name, letters, name)
    for name, keys in ((large, ["a", "b", "c" * size, None]), (small, ["a", None, None, None])):
        found = committed(kafka, name)
        assert sorted((key for key, _ in found), key=str) == sorted(keys, key=str)
        values = [json.loads(value) for _, value in found]
        assert sorted(each["key"][0] for each in values) == list("abcd")
        assert all(each["place"] == "p" for each in values)
    headers = [json.loads(json.loads(value).get("headers", "[]")) for _, value in committed(kafka, large)]
    assert [["h", "1"]] in headers


def test_transaction_of_a_worker_that_died_is_invisible(kafka: str, tmp_path: Path) -> None:
    """kill -9 during a batch: records are sent, the transaction is open, and a successor reads the batch again."""
    name = f"t{uuid.uuid4().hex}"
    make_topic(kafka, name, 1)
    code = f"""
import os, sys
from connectgroup.dataplane.columns import from_ddl
from connectgroup.dataplane.ownership import Owner, Position, Range
from connectgroup.spark.query import SparkTask
from connectgroup.spark.session import spark_session
from connectgroup.spark.sinks import kafka_offsets
from connectgroup.spark.sinks.kafka import MAX_LETTER, KafkaSink, KafkaSinkSettings
import pyarrow as pa
settings = KafkaSinkSettings.model_validate({{"bootstrap.servers": {kafka!r}, "topic": {name!r}}})
sink = KafkaSink.create(settings, from_ddl("a INT"))
owner = Owner(connector={name!r}, task=0, tasks=1, fencing_token=1)
sink.claim(owner, lambda name: True)
sink.commit(owner, [Range(slice="s", start=0, end=1)], pa.table({{"a": [0]}}))
producer = sink._producer
class Dies:
    def __getattr__(self, name):
        return getattr(producer, name)
    def commit_transaction(self, timeout):
        producer.flush(10)
        os.kill(os.getpid(), 9)
sink._producer = Dies()
sink.commit(owner, [Range(slice="s", start=1, end=2)], pa.table({{"a": [1]}}))
"""
    died = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120)
    assert died.returncode == -9, died.stderr
    settings = KafkaSinkSettings.model_validate({"bootstrap.servers": kafka, "topic": name})
    sink = KafkaSink.create(settings, from_ddl("a INT"))
    owner = Owner(connector=name, task=0, tasks=1, fencing_token=2)
    assert sink.claim(owner, lambda name: True) == {"s": 1}
    import pyarrow as pa

    assert sink.commit(owner, [Range(slice="s", start=1, end=2)], pa.table({"a": [1]})) is True
    sink.close()
    assert committed(kafka, name) == [(None, '{"a":0}'), (None, '{"a":1}')]


def test_task_claims_while_another_one_commits_all_the_time(kafka: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """L1: the topic of offsets, which connectors share, never comes to rest."""
    import pyarrow as pa

    monkeypatch.setattr(kafka_offsets, "_READ_TIMEOUT_S", 10.0)
    name = f"t{uuid.uuid4().hex}"
    make_topic(kafka, name, 1)
    settings = KafkaSinkSettings.model_validate({"bootstrap.servers": kafka, "topic": name})
    busy, other = (KafkaSink.create(settings, from_ddl("a INT")) for _ in range(2))
    writer = Owner(connector=f"{name}-busy", task=0, tasks=1, fencing_token=1)
    busy.claim(writer, lambda name: True)
    stopping = threading.Event()

    def commit() -> None:
        for at in itertools.count():
            if stopping.is_set():
                return
            busy.commit(writer, [Range(slice="s", start=at, end=at + 1)], pa.table({"a": [at]}))

    thread = threading.Thread(target=commit, daemon=True)
    thread.start()
    try:
        for token in (1, 2):
            owner = Owner(connector=name, task=0, tasks=1, fencing_token=token)
            assert other.claim(owner, lambda name: True) == ({} if token == 1 else {"s": 1})
            if token == 1:
                assert other.commit(owner, [Range(slice="s", start=0, end=1)], pa.table({"a": [0]})) is True
    finally:
        stopping.set()
        thread.join(60)
        busy.close()
        other.close()


def test_batch_that_fills_the_queue_of_the_client_is_written(kafka: str) -> None:
    """The record with the offsets finds the queue full of the batch's records."""
    import pyarrow as pa

    name = f"t{uuid.uuid4().hex}"
    make_topic(kafka, name, 1)
    client = json.dumps({"queue.buffering.max.messages": "10"})
    settings = {"bootstrap.servers": kafka, "topic": name, "client": client}
    sink = KafkaSink.create(KafkaSinkSettings.model_validate(settings), from_ddl("a INT"))
    owner = Owner(connector=name, task=0, tasks=1, fencing_token=1)
    sink.claim(owner, lambda name: True)
    for at in range(3):
        rows = pa.table({"a": [*range(10 * at, 10 * at + 10)]})
        assert sink.commit(owner, [Range(slice="s", start=at, end=at + 1)], rows) is True
    sink.close()
    assert [json.loads(value)["a"] for _, value in committed(kafka, name)] == [*range(30)]


@pytest.mark.parametrize(
    "state",
    [
        kafka_offsets.State(tasks={0: 7}),
        kafka_offsets.State(layouts={2: 7}),
        kafka_offsets.State(slices={"mine": (Position(0), 7)}),
    ],
    ids=["task", "layout", "slice"],
)
def test_rejected_task_learns_the_token_that_the_topic_has(state: kafka_offsets.State) -> None:
    """After an older copy of the log was put back, the group issues tokens above it."""
    owner = Owner(connector="c", task=0, tasks=1, fencing_token=5, source="s")
    with pytest.raises(TaskFenced) as fenced:
        state.check(owner, "topic", lambda name: name == "mine")
    assert fenced.value.token == 7
