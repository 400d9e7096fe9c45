"""Pipelines between files, PostgreSQL, Kafka, SQLite and a Python iterator: rows are written, and read back.

The readers are independent of the product: psycopg, a Kafka consumer with ``read_committed``, sqlite3, pyarrow.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import psycopg
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.spark.java_plugins import DEBEZIUM, FILE_STREAM, debezium_settings

from .flow import ROWS_A_TURN, TRIGGER_MS, Feeder, Pipe, Row, row

COLUMNS = "id BIGINT, text STRING"
PARTITIONS = 3
HARD = (
    'He said \\"hi\\"',
    '"quoted", with commas, and a quote " alone',
    "",
    " blanks at both ends ",
    "007",
    "19.90",
    "12345678901234567890.12",
    "1e400",
    "NaN",
    "null",
    r"\N",
    r"\.",
    "back\\slash\\",
    "tab\tand\rreturn",
    "line\nfeeds\r\n" * 40,
    "{\"a\": [1, 'x']}",
    "%s ? $1 :name {} ;--",
    "e\u0301 \u00e9 \u6f22\u5b57 \U0001f600 \u202e \u2028 \ufeff",
    "x" * 70_000,
)
"""Texts that pipelines are reported to change: each fifth row has one of them."""
BAD_TURNS = 20
"""Each twentieth turn has a record that is no row, and must be a dead letter, once."""
BAD_LINES = (
    b"one,not a number\n",
    b'1,"not \xff UTF-8"\n',
    b"1,2,3,too many\n",
    b"9223372036854775808,too large\n",
    b'1,"a NUL \x00, which PostgreSQL has not"\n',
)
BAD_VALUES = (
    b'{"id": 1}{"id": 2}',
    b'{"id": 3, "text": ""} tail',
    b"{'id': 4}",
    b"",
    b'{"id": "five"}',
    b'{"id": 1e400}',
    b'{"id": 6, "text": "\xff"}',
    b'{"ID": 7}',
    b'{"id": 9223372036854775808}',
    rb'{"id": 8, "text": "\ud800"}',
    b"no JSON",
)


def hard_row(number: int) -> Row:
    """The row of an id; each fifth has a hard text."""
    return (number, HARD[number // 5 % len(HARD)]) if number % 5 == 0 else row(number)


class FileFeeder(Feeder):
    """Writes the rows as CSV.

    Attributes:
        bad: how many lines are no rows.
    """

    bad = 0

    def row(self, number: int) -> Row:
        """The row of an id; a field of CSV has no line ends without ``source.multiline``."""
        number, text = hard_row(number)
        return number, text.replace("\r", "").replace("\n", "|")

    def lines(self, begin: int, end: int) -> bytes:
        rows = (self.row(number) for number in range(begin, end))
        found = "".join('{},"{}"\n'.format(number, text.replace('"', '""')) for number, text in rows).encode()
        if begin // ROWS_A_TURN % BAD_TURNS == 7:
            self.bad += 1
            found += BAD_LINES[self.bad % len(BAD_LINES)]
        return found


class LineFeeder(Feeder):
    """Appends the rows to one file; ASCII alone, because Kafka's FileStream counts characters as bytes."""

    bad = 0

    def row(self, number: int) -> Row:
        """The row of an id."""
        return row(number)

    @property
    def path(self) -> Path:
        """The file."""
        return self.directory / "lines.txt"

    def _write(self, rows: int) -> None:
        with self.path.open("ab", buffering=0) as file:
            file.write(self.lines(self.written, self.written + rows))
        self.written += rows


class TableFeeder(Feeder):
    """Inserts the rows into a table of PostgreSQL."""

    bad = 0

    def row(self, number: int) -> Row:
        """The row of an id."""
        return hard_row(number)

    def __init__(self, directory: Path, url: str, table: str) -> None:
        self._table = table
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute(f"CREATE TABLE {table} (id BIGINT PRIMARY KEY, text TEXT)")
        super().__init__(directory)

    def _write(self, rows: int) -> None:
        begin = self.written
        insert = f"INSERT INTO {self._table} VALUES (%s, %s)"
        self._connection.cursor().executemany(insert, [hard_row(number) for number in range(begin, begin + rows)])
        self.written += rows


class TopicFeeder(Feeder):
    """Produces the rows to a topic, as JSON.

    Attributes:
        bad: how many records are no rows.
    """

    bad = 0

    def row(self, number: int) -> Row:
        """The row of an id."""
        return hard_row(number)

    def __init__(self, directory: Path, bootstrap: str, topic: str, *, with_bad: bool = True) -> None:
        self._topic, self._with_bad = make_topic(bootstrap, topic), with_bad
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        super().__init__(directory)

    def _write(self, rows: int) -> None:
        for number, text in map(hard_row, range(self.written, self.written + rows)):
            value = json.dumps({"id": number, "text": text}, ensure_ascii=number % 2 == 0)
            self._producer.produce(self._topic, value.encode(), partition=number % PARTITIONS)
        if self._with_bad and self.written // ROWS_A_TURN % BAD_TURNS == 7:
            self.bad += 1
            self._producer.produce(self._topic, BAD_VALUES[self.bad % len(BAD_VALUES)], partition=self.bad % PARTITIONS)
        assert self._producer.flush(60) == 0
        self.written += rows


class CountFeeder(Feeder):
    """Writes the number of rows for the source ``counted``."""

    bad = 0

    def row(self, number: int) -> Row:
        """The row of an id."""
        return row(number)

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

    def __init__(self, name: str, root: Path, sink: str, feeder: Feeding, source: Mapping[str, str]) -> None:
        """Create the flow; its source is described by settings without their prefix."""
        super().__init__(name, root, root, sink)
        self.feeder, self.dead = feeder, ""
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
            step = LINE_STEP if isinstance(feeder, LineFeeder) else CHANGE_STEP
            self.config |= {"tasks.max": "1", "transforms": "step", **step}

    def _sink_settings(self) -> Mapping[str, str]:
        return {"path": str(self.output), **({"table": "rows"} if self.sink == "sqlite" else {})}

    def tolerate(self, name: str) -> None:
        """What cannot be read or written becomes a dead letter, in the table or topic of this name."""
        self.dead = name
        self.config |= {"errors.tolerance": "all", "errors.deadletterqueue.name": name}

    def dead_letters(self) -> int:
        """The number of dead letters."""
        return self._query(f"SELECT count(*) FROM {self.dead}") if self.dead else 0

    def close(self) -> None:
        """Release what reads the sink."""


class IntoPostgres(Flow):
    """A flow into a table of PostgreSQL."""

    def __init__(self, name: str, root: Path, url: str, feeder: Feeding, source: Mapping[str, str]) -> None:
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

    def dead_letters(self) -> int:
        with psycopg.connect(self._url) as connection:
            found = connection.execute(f"SELECT count(*) FROM {self.dead}").fetchone()
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

    def __init__(self, name: str, root: Path, bootstrap: str, feeder: Feeding, source: Mapping[str, str]) -> None:
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

    def tolerate(self, name: str) -> None:
        super().tolerate(make_topic(self._bootstrap, name, 1))

    def dead_letters(self) -> int:
        settings = {"bootstrap.servers": self._bootstrap, "group.id": f"reader of {self.dead}"}
        consumer = Consumer(settings | {"isolation.level": "read_committed", "enable.partition.eof": True})
        consumer.assign([TopicPartition(self.dead, 0, 0)])
        try:
            for count in itertools.count():
                message = consumer.poll(60)
                assert message is not None, "the topic of dead letters cannot be read"
                if message.error() is not None:
                    return count
            raise AssertionError
        finally:
            consumer.close()

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


Feeding = FileFeeder | LineFeeder | TableFeeder | TopicFeeder | CountFeeder
CHANGE_STEP = {"transforms.step.type": "io.debezium.transforms.ExtractNewRecordState"}
LINE_STEP = {
    "transforms.step.type": "sql",
    "transforms.step.query": "SELECT CAST(split_part(value, ',', 1) AS BIGINT) AS id,"
    " split_part(value, ',', 2) AS text FROM batch",
}


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
    return from_plugin(DEBEZIUM, debezium_settings(url, table))


def from_lines(path: Path) -> dict[str, str]:
    """The settings of a source that reads the lines of a file with Kafka's FileStream."""
    return from_plugin(FILE_STREAM, {"file": str(path), "topic": "lines"})


def from_plugin(cls: str, config: Mapping[str, str]) -> dict[str, str]:
    """The settings of a source that is a plug-in of Kafka Connect."""
    return {"": "connect", "connector.class": cls, **{f"config.{name}": value for name, value in config.items()}}
