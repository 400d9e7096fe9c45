"""``connectgroup up`` with connectors of every family and a worker that is killed: each row arrives once."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import uuid
from pathlib import Path

import pytest

from connectgroup.spark.sinks.manifest import read_committed
from tests.integration.processes import Program, family, marked, wait
from tests.volume import ci_only

from .kafka_topics import committed, make_topic

ROWS = 15_000
PATIENCE_S = 240.0
"""Limit of every wait, for a loaded machine too."""


class Flow:
    """Generated rows into PostgreSQL and Kafka, from PostgreSQL into files, and from Kafka into SQLite."""

    def __init__(self, root: Path, database: str, kafka: str) -> None:
        self.root, self.database, self.kafka, self.topic = root, database, kafka, f"t{uuid.uuid4().hex}"
        make_topic(kafka, self.topic, 2)
        generated = {"source": "datagen", "source.rows": str(ROWS), "source.rows.per.second": "1000"}
        servers = {"source.bootstrap.servers": kafka, "source.topics": self.topic, "source.schema": "id BIGINT"}
        table = {"source.url": database, "source.table": "filled", "source.incrementing.column": "id"}
        self.connectors = {
            "fill": generated | {"sink": "postgres", "sink.url": database, "sink.table": "filled"},
            "send": generated | {"sink": "kafka", "sink.bootstrap.servers": kafka, "sink.topic": self.topic},
            "dump": {
                "source": "postgres",
                **table,
                "sink": "jsonl",
                "sink.path": str(root / "files"),
                "sink.compact.files": "4",
            },
            "load": {
                "source": "kafka",
                **servers,
                "sink": "sqlite",
                "sink.path": str(root / "o.db"),
                "sink.table": "t",
            },
        }

    def files(self) -> list[str]:
        """The options of the command that create the connectors."""
        options, common = [], {"connector.class": "pipeline", "trigger.ms": "1000"}
        for name, config in self.connectors.items():
            path = self.root / f"{name}.json"
            path.write_text(json.dumps({"name": name, "config": common | config}))
            options += ["--connector", str(path)]
        return options

    def arrived(self) -> dict[str, list[int]]:
        """The numbers of the rows in each sink."""
        import psycopg

        found: dict[str, list[int]] = {name: [] for name in self.connectors}
        with contextlib.suppress(psycopg.errors.UndefinedTable), psycopg.connect(self.database) as connection:
            found["fill"] = [number for (number,) in connection.execute("SELECT id FROM filled")]
        found["send"] = [json.loads(value)["id"] for _, value in committed(self.kafka, self.topic)]
        if (self.root / "files" / "_manifest.sqlite").exists():
            lines = (line for file in read_committed(self.root / "files") for line in file.read_text().splitlines())
            found["dump"] = [json.loads(line)["id"] for line in lines]
        with contextlib.suppress(sqlite3.OperationalError), sqlite3.connect(self.root / "o.db") as connection:
            found["load"] = [number for (number,) in connection.execute("SELECT id FROM t")]
        return found


@ci_only("a minute of a core; in a user's run, test_faults kills workers with Spark, and each sink has its tests")
@pytest.mark.processes
@pytest.mark.timeout(900)
def test_rows_arrive_once_in_every_sink_when_the_worker_is_killed(tmp_path: Path, database: str, kafka: str) -> None:
    flow = Flow(tmp_path, database, kafka)
    # A relative directory, as the default of --data is: it means the same to the command, its workers and their Java.
    options = ["--workers", "1", "--port", "0", "--data", "data", "--rebalance-delay-ms", "0"]
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    files = {"TMPDIR": str(temporary)}
    with marked(), Program("up", *options, *flow.files(), cwd=tmp_path, environment=files) as up:

        def counts() -> dict[str, int]:
            assert up.code is None, up.output()
            return {name: len(numbers) for name, numbers in flow.arrived().items()}

        def missing() -> dict[str, list[int]]:
            return {name: sorted({*range(ROWS)}.difference(numbers))[:20] for name, numbers in flow.arrived().items()}

        def wait_for(rows: int, *, everywhere: bool = True) -> None:
            least = min if everywhere else max
            wait(
                f"{rows} rows",
                lambda: least(counts().values()) >= rows,
                lambda: f"{counts()}, missing: {missing()}\n{up.output()}",
                PATIENCE_S,
            )

        def wait_for_joins(number: int) -> None:
            joined = lambda: sum("joining group" in line for line in list(up.lines)) >= number  # noqa: E731
            wait(f"join {number} of the worker", joined, up.output, PATIENCE_S)

        # At the first rows, which do not wait for Spark; and when Spark reads, too. The first worker may have written
        # to every sink: then its successor is only about to start.
        for joins, everywhere in (1, False), (2, True):
            wait_for(1, everywhere=everywhere)
            wait_for_joins(joins)
            commands = family(up.pid).items()
            workers = [pid for pid, command in commands if " worker " in command and "java" not in command]
            for pid in workers:
                os.kill(pid, signal.SIGKILL)
            assert workers
        wait_for(ROWS)
        wait_for_joins(3)
        up.signal(signal.SIGINT)
        up.ended()
    for name, numbers in flow.arrived().items():
        assert sorted(numbers) == [*range(ROWS)], name
    # Also those of the worker that was killed, which the next worker of its name has removed.
    for directory in temporary, tmp_path / "data" / "scratch":
        assert [path.name for path in directory.iterdir()] == [], "temporary files of Java are left behind"
