"""Pipelines between files, PostgreSQL, Kafka, SQLite and a Python iterator: rows are written, and read back.

The readers are independent of the product: psycopg, a Kafka consumer with ``read_committed``, sqlite3, pyarrow.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import psycopg
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.spark.java_plugins import DEBEZIUM, debezium_settings

from .flow import TRIGGER_MS, Feeder, Pipe, Row, row

COLUMNS = "id BIGINT, text STRING"
PARTITIONS = 3


class TableFeeder(Feeder):
    """Inserts the rows into a table of PostgreSQL."""

    def __init__(self, directory: Path, url: str, table: str) -> None:
        self._table = table
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute(f"CREATE TABLE {table} (id BIGINT PRIMARY KEY, text TEXT)")
        super().__init__(directory)

    def _write(self, rows: int) -> None:
        begin = self.written
        insert = f"INSERT INTO {self._table} VALUES (%s, %s)"
        self._connection.cursor().executemany(insert, [row(number) for number in range(begin, begin + rows)])
        self.written += rows


class TopicFeeder(Feeder):
    """Produces the rows to a topic, as JSON."""

    def __init__(self, directory: Path, bootstrap: str, topic: str) -> None:
        self._topic = make_topic(bootstrap, topic)
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        super().__init__(directory)

    def _write(self, rows: int) -> None:
        for number, text in map(row, range(self.written, self.written + rows)):
            value = json.dumps({"id": number, "text": text})
            self._producer.produce(self._topic, value.encode(), partition=number % PARTITIONS)
        assert self._producer.flush(60) == 0
        self.written += rows


class CountFeeder(Feeder):
    """Writes the number of rows for the source ``counted``."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "rows"
        super().__init__(directory)
        self.path.write_text("0")

    def _write(self, rows: int) -> None:
        self.written += rows
        part = self.path.with_suffix(".part")
        part.write_text(str(self.written))
        part.rename(self.path)


class Flow(Pipe):
    """A pipeline with two tasks, its feeder, and the rows in its sink: SQLite or Parquet."""

    def __init__(self, name: str, root: Path, sink: str, feeder: Feeder, source: Mapping[str, str]) -> None:
        """Create the flow; its source is described by settings without their prefix."""
        super().__init__(name, root, root, sink)
        self.feeder = feeder
        target = self._sink_settings()
        self.config = {
            "connector.class": "pipeline",
            "tasks.max": "2",
            "trigger.ms": TRIGGER_MS,
            "source": source[""],
            **{f"source.{key}": value for key, value in source.items() if key},
            "sink": sink,
            **{f"sink.{key}": value for key, value in target.items()},
        }
        if source[""] == "connect":
            self.tasks = 1
            self.config |= {
                "tasks.max": "1",
                "transforms": "unwrap",
                "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
            }

    def _sink_settings(self) -> Mapping[str, str]:
        return {"path": str(self.output), **({"table": "rows"} if self.sink == "sqlite" else {})}

    def close(self) -> None:
        """Release what reads the sink."""


class IntoPostgres(Flow):
    """A flow into a table of PostgreSQL."""

    def __init__(self, name: str, root: Path, url: str, feeder: Feeder, source: Mapping[str, str]) -> None:
        self._url, self._table = url, f"out_{name.replace('-', '_')}"
        super().__init__(name, root, "postgres", feeder, source)

    def _sink_settings(self) -> Mapping[str, str]:
        return {"url": self._url, "table": self._table}

    def count(self) -> int:
        with psycopg.connect(self._url) as connection:
            if connection.execute("SELECT to_regclass(%s)", (self._table,)).fetchone() == (None,):
                return 0
            found = connection.execute(f"SELECT count(*) FROM {self._table}").fetchone()
            assert found is not None
            return int(found[0])

    def rows(self) -> Counter[Row]:
        with psycopg.connect(self._url) as connection:
            return Counter(connection.execute(f"SELECT id, text FROM {self._table}").fetchall())

    def is_locked(self, patience_s: float = 0) -> bool:
        """False: the server ends the transaction of a suspended worker (``idle_in_transaction_session_timeout``)."""
        return False


class IntoKafka(Flow):
    """A flow into a topic."""

    def __init__(self, name: str, root: Path, bootstrap: str, feeder: Feeder, source: Mapping[str, str]) -> None:
        self._bootstrap, self._topic = bootstrap, make_topic(bootstrap, f"out-{name}")
        self._found: Counter[Row] = Counter()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"reader of {name}",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            }
        )
        self._consumer.assign([TopicPartition(self._topic, partition, 0) for partition in range(PARTITIONS)])
        super().__init__(name, root, "kafka", feeder, source)

    def _sink_settings(self) -> Mapping[str, str]:
        return {"bootstrap.servers": self._bootstrap, "topic": self._topic}

    def count(self) -> int:
        self._consume(0.2)
        return self._found.total()

    def rows(self) -> Counter[Row]:
        """Every committed record, up to the end of each partition."""
        ended: set[int] = set()
        positions = self._consumer.position([TopicPartition(self._topic, n) for n in range(PARTITIONS)])
        self._consumer.assign([TopicPartition(self._topic, each.partition, max(0, each.offset)) for each in positions])
        while len(ended) < PARTITIONS:
            ended |= self._consume(1.0)
        return self._found

    def is_locked(self, patience_s: float = 0) -> bool:
        """False: the successor of a suspended worker aborts its transaction."""
        return False

    def close(self) -> None:
        self._consumer.close()

    def _consume(self, timeout_s: float) -> set[int]:
        """Take the records that arrive within this time; return the partitions whose end was reached."""
        ended = set()
        for message in self._consumer.consume(10_000, timeout_s):
            error = message.error()
            if error is None:
                value = json.loads(message.value() or b"")
                self._found[value["id"], value["text"]] += 1
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended.add(message.partition() or 0)
        return ended


def make_topic(bootstrap: str, name: str, partitions: int = PARTITIONS) -> str:
    """Create a topic; return its name."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(30)
    return name


def from_files(feeder: Feeder) -> dict[str, str]:
    """The settings of a source that reads a feeder's files; the name of the source is under the empty key."""
    return {"": "files", "path": str(feeder.directory), "format": "csv", "schema": COLUMNS}


def from_table(url: str, table: str) -> dict[str, str]:
    """The settings of a source that reads a table of PostgreSQL."""
    return {"": "postgres", "url": url, "table": table, "incrementing.column": "id", "slices": "4"}


def from_topic(bootstrap: str, topic: str) -> dict[str, str]:
    """The settings of a source that reads a topic."""
    return {"": "kafka", "bootstrap.servers": bootstrap, "topics": topic, "schema": COLUMNS}


def from_changes(url: str, table: str) -> dict[str, str]:
    """The settings of a source that reads a table's changes with Debezium; the plug-in's transformation makes rows."""
    settings = {f"config.{name}": value for name, value in debezium_settings(url, table).items()}
    return {"": "connect", "connector.class": DEBEZIUM, **settings}
