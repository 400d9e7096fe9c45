"""Pipelines beside a real Kafka Connect that moves the same records: Kafka to a file, a file to Kafka, and plug-ins of
Kafka Connect, ``FileStreamSource`` and Debezium's snapshot of a PostgreSQL table, from the same jars to Kafka.

    python benchmarks/pipelines_beside_connect.py [--rows 500000] [--repeats 3] [--only NAME ...]

One worker and one task on each side, one broker, one topic partition; both are warm, and run in turn: compare ratios.
Kafka Connect runs its own ``FileStreamSource`` and ``FileStreamSink`` with Java's default compilers; they write at
least once. A run lasts from the start of the connector to the last record in the sink, as an independent reader sees
it. CPU seconds are those of all processes of a side, without the broker and the database. Debezium reads a fifth of
the rows, as JSON without schemas on both sides; it needs Debian's package postgresql.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # Run as a script from any directory: the modules next to this file are imported as benchmarks.NAME.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.kafka_connect import running_connect
from benchmarks.pipelines import (
    BATCH_ROWS,
    PATIENCE_S,
    Run,
    Table,
    cpu,
    process_cpu_s,
    run_pipeline,
    speed,
    timed,
    value,
    worker_cpu_s,
)
from connectgroup.connectors.pipeline import PipelineConnector
from connectgroup.dataplane.java_plugins import set_plugin_path
from connectgroup.spark.session import spark_session, stop_session
from tests.consumer.broker import KAFKA
from tests.integration.processes import family

FILE_STREAM = f"org.apache.kafka:connect-file:{KAFKA}"
DEBEZIUM = "io.debezium:debezium-connector-postgres:3.6.1.Final"
STRINGS = {f"{part}.converter": "org.apache.kafka.connect.storage.StringConverter" for part in ("key", "value")}
PLAIN_JSON = {
    f"{part}.converter{more}": value
    for part in ("key", "value")
    for more, value in (("", "org.apache.kafka.connect.json.JsonConverter"), (".schemas.enable", "false"))
}

NAMES = ("kafka-to-file", "file-to-kafka", "plugin-to-kafka", "debezium-to-kafka")


class Bench:
    """Inputs, made once, and the kinds of run.

    Attributes:
        database: of a PostgreSQL server with logical decoding; empty: there is none. Set by ``fill_table``.
    """

    def __init__(self, root: Path, rows: int, bootstrap: str, connect: str) -> None:
        self.root, self.rows, self.bootstrap, self.connect = root, rows, bootstrap, connect
        self.database, self.table_rows = "", max(1, rows // 5)
        (root / "in").mkdir()
        self.file = root / "in" / "input.txt"
        with self.file.open("w") as file:
            file.writelines(value(number) + "\n" for number in range(rows))
        self.topic = self._new_topic()
        self._fill()

    def _new_topic(self, name: str = "") -> str:
        from tests.integration.pipelines import make_topic

        return make_topic(self.bootstrap, name or f"t{uuid.uuid4().hex[:8]}", 1)

    def _fill(self) -> None:
        from confluent_kafka import Producer

        settings = {"bootstrap.servers": self.bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000}
        producer = Producer(settings)
        for number in range(self.rows):
            producer.produce(self.topic, value(number))
            if number % 10_000 == 0:
                producer.flush()
        assert producer.flush(60) == 0

    def connect_cpu_s(self) -> float:
        """CPU seconds of the worker of Kafka Connect."""
        return sum(process_cpu_s(pid) for pid, line in family(os.getpid()).items() if "ConnectDistributed" in line)

    def ours_to_file(self) -> None:
        config = {
            "source": "kafka",
            "source.bootstrap.servers": self.bootstrap,
            "source.topics": self.topic,
            "source.metadata": "",
            "source.max.rows.per.batch": str(BATCH_ROWS),
            "sink": "csv",
            "sink.path": str(self.root / f"out-{uuid.uuid4().hex[:8]}"),
        }
        run_pipeline(config, self.rows)

    def connect_to_file(self) -> None:
        out = self.root / f"out-{uuid.uuid4().hex[:8]}"
        wanted = self.file.stat().st_size
        config = {"connector.class": "FileStreamSink", "topics": self.topic, "file": str(out), **STRINGS}
        self._connector(config, lambda: out.exists() and out.stat().st_size >= wanted)

    def ours_to_kafka(self) -> None:
        config = {
            "source": "files",
            "source.path": str(self.file.parent),
            "source.format": "text",
            "sink": "kafka",
            "sink.bootstrap.servers": self.bootstrap,
            "sink.topic": self._new_topic(),
        }
        run_pipeline(config, self.rows)

    def connect_to_kafka(self) -> None:
        topic = self._new_topic()
        config = {"connector.class": "FileStreamSource", "file": str(self.file), "topic": topic, **STRINGS}
        self._connector_to(topic, config, self.rows)

    def plugin_to_kafka(self) -> None:
        config = {"connector.class": "FileStreamSource", "file": str(self.file), "topic": self._new_topic(), **STRINGS}
        run_pipeline({**config, "sink.bootstrap.servers": self.bootstrap}, self.rows)

    def fill_table(self, url: str) -> None:
        """Make the table that Debezium reads."""
        import psycopg

        self.database = url
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE input (id INT PRIMARY KEY, value TEXT NOT NULL)")
            text = f"lpad(n::text, 10, '0') || '{value(0)[10:]}'"
            connection.execute(f"INSERT INTO input SELECT n, {text} FROM generate_series(1, {self.table_rows}) n")

    def ours_debezium(self) -> None:
        _, config = self._debezium()
        run_pipeline({**config, "sink.bootstrap.servers": self.bootstrap}, self.table_rows)
        self._drop_slots()

    def connect_debezium(self) -> None:
        topic, config = self._debezium()
        self._connector_to(topic, config, self.table_rows)
        self._drop_slots()

    def _debezium(self) -> tuple[str, dict[str, str]]:
        """A new topic, and the connector that reads the table into it."""
        prefix = f"d{uuid.uuid4().hex[:8]}"
        address, _, database = self.database.partition("@")[2].partition("/")
        config = {
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "database.hostname": address.partition(":")[0],
            "database.port": address.partition(":")[2],
            "database.user": "test",
            "database.dbname": database,
            "topic.prefix": prefix,
            "plugin.name": "pgoutput",
            "slot.name": prefix,
            "publication.name": prefix,
            "publication.autocreate.mode": "filtered",
            "table.include.list": "public.input",
            **PLAIN_JSON,
        }
        return self._new_topic(f"{prefix}.public.input"), config

    def _drop_slots(self) -> None:
        """Drop what Debezium leaves on the server, when its connection has ended."""
        import psycopg

        with psycopg.connect(self.database, autocommit=True) as connection:
            deadline = time.monotonic() + PATIENCE_S
            while connection.execute("SELECT 1 FROM pg_replication_slots WHERE active").fetchall():
                if time.monotonic() > deadline:
                    raise SystemExit(f"Debezium's connection has not ended within {PATIENCE_S} s")
                time.sleep(0.05)
            connection.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")

    def _connector_to(self, topic: str, config: dict[str, str], rows: int) -> None:
        """Run a connector of Kafka Connect until a topic has all records."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "watch"})
        partition = TopicPartition(topic, 0)
        self._connector(config, lambda: consumer.get_watermark_offsets(partition, timeout=10)[1] >= rows)
        consumer.close()

    def _connector(self, config: dict[str, str], is_done: Callable[[], bool]) -> None:
        """Run a connector of Kafka Connect until everything is in its sink."""
        name = f"c{uuid.uuid4().hex[:8]}"
        self._request("PUT", f"/connectors/{name}/config", {**config, "tasks.max": "1"})
        deadline = time.monotonic() + PATIENCE_S
        while not is_done():
            if time.monotonic() > deadline:
                raise SystemExit(f"Kafka Connect: {config} has not ended within {PATIENCE_S} s")
            time.sleep(0.05)
        self._request("DELETE", f"/connectors/{name}", None)

    def _request(self, method: str, path: str, body: Any) -> None:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.connect + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as response:
            response.read()


def main(arguments: Sequence[str]) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=500_000, help="rows of each run (500000)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each side, after one that warms up (3)")
    parser.add_argument("--only", action="append", choices=NAMES)
    options = parser.parse_args(arguments)
    chosen = options.only or NAMES

    from connectgroup.spark.java import add_kafka
    from tests.consumer.broker import fetched_jars_of, fetched_with_dependencies, running_broker
    from tests.spark.postgres_server import running_server

    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="connectgroup-beside-")))
        plugins = scratch / "plugins"
        shutil.copytree(fetched_jars_of("connect-file", [FILE_STREAM]), plugins / "file-stream")
        shutil.copytree(fetched_with_dependencies("debezium-postgres-3.6.1", [DEBEZIUM]), plugins / "debezium-postgres")
        set_plugin_path((plugins,))
        broker = stack.enter_context(running_broker())
        more = f"plugin.path={plugins}"
        url = stack.enter_context(running_connect(broker.bootstrap, more=more, heap="1g", jvm=()))
        bench = Bench(scratch, options.rows, broker.bootstrap, url)
        if "debezium-to-kafka" in chosen:
            bench.fill_table(stack.enter_context(running_server()))
        PipelineConnector.warm_up()
        add_kafka(spark_session())
        title = f"Beside Kafka Connect: {options.rows:,} rows of 100 bytes, median of {options.repeats}"
        table = Table(title, "pipeline", "rows/s", "Connect", "ratio", "CPU s/M", "Connect")
        try:
            for name, mine, theirs, rows in (
                ("kafka-to-file", bench.ours_to_file, bench.connect_to_file, bench.rows),
                ("file-to-kafka", bench.ours_to_kafka, bench.connect_to_kafka, bench.rows),
                ("plugin-to-kafka", bench.plugin_to_kafka, bench.connect_to_kafka, bench.rows),
                ("debezium-to-kafka", bench.ours_debezium, bench.connect_debezium, bench.table_rows),
            ):
                if name not in chosen:
                    continue
                ours, connect = list[Run](), list[Run]()
                for repeat in range(options.repeats + 1):
                    # The first run warms up Java's compilers; the order alternates.
                    both = ((mine, worker_cpu_s, ours), (theirs, bench.connect_cpu_s, connect))
                    for run, cpu_s, found in both if repeat % 2 else reversed(both):
                        measured = timed(run, cpu_s)
                        print(f"{name}, {run.__name__}: {measured}, load {os.getloadavg()[0]:.1f}", flush=True)
                        if repeat:
                            found.append(measured)
                speeds = speed(rows, ours), speed(rows, connect)
                table.add(
                    name,
                    f"{speeds[0]:,.0f}",
                    f"{speeds[1]:,.0f}",
                    f"{speeds[0] / speeds[1]:.2f}",
                    f"{cpu(rows, ours):.1f}",
                    f"{cpu(rows, connect):.1f}",
                )
        finally:
            table.show()
            stop_session()


if __name__ == "__main__":
    main(sys.argv[1:])
