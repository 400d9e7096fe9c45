"""How long the first row takes: ``connectgroup up`` beside Kafka's ``connect-standalone`` with FileStream connectors.

    python benchmarks/first_row.py [--runs 5] [--workers 3]

A run lasts from the start of the command to the first row in the sink, as another process sees it. The broker of
``connect-standalone`` runs already and has the topic; ``up`` brings its own coordinator. Processor seconds are those
of all processes of a side until then: compare these where other programs use the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sqlite3
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

if __name__ == "__main__":
    # Run as a script from any directory: the modules next to this file are imported as benchmarks.NAME.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from benchmarks.kafka_connect import JARS
from benchmarks.pipelines import Table, process_cpu_s
from tests.consumer.broker import KAFKA, SMALL_JVM, Unavailable, fetched_with_dependencies, running_broker
from tests.integration.processes import Program, family, free_ports, wait

ROWS = 1_000
PATIENCE_S = 300.0

STANDALONE = """
bootstrap.servers={bootstrap}
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.storage.StringConverter
offset.storage.file.filename={folder}/offsets
listeners=http://127.0.0.1:{port}
plugin.discovery=only_scan
offset.flush.interval.ms=1000
"""


class Timed:
    """The times of one kind of run, in seconds."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.wall_s: list[float] = []
        self.cpu_s: list[float] = []

    @contextlib.contextmanager
    def of(self, start: Callable[[], Program], has_rows: Callable[[], bool]) -> Iterator[None]:
        """Start a program, and measure until the sink has a row; the program ends with the block."""
        began = time.monotonic()
        with start() as program:
            wait(f"the first row of {self.name}", has_rows, program.output, PATIENCE_S)
            self.wall_s.append(time.monotonic() - began)
            self.cpu_s.append(sum(process_cpu_s(pid) for pid in (program.pid, *family(program.pid))))
            print(f"{self.name}: {self.wall_s[-1]:.1f} s, {self.cpu_s[-1]:.1f} CPU s, load {os.getloadavg()[0]:.1f}")
            yield


def up(folder: Path, timed: Timed, workers: int, **transforms: str) -> None:
    """Files of text into a table, in a group that starts from nothing."""
    source, sink = folder / "in", folder / "out.sqlite"
    source.mkdir()
    (source / "a.txt").write_text("".join(f"{number}\n" for number in range(ROWS)))
    config = {
        "connector.class": "pipeline",
        "source": "files",
        "source.path": str(source),
        "source.format": "text",
        "sink": "sqlite",
        "sink.path": str(sink),
        "sink.table": "t",
        **transforms,
    }
    file = folder / "c.json"
    file.write_text(json.dumps({"name": "c", "config": config}))

    def has_rows() -> bool:
        with contextlib.suppress(sqlite3.OperationalError), closing(sqlite3.connect(sink)) as connection:
            return bool(connection.execute("SELECT 1 FROM t LIMIT 1").fetchall())
        return False

    words = ("up", "--workers", workers, "--port", 0, "--data", folder / "data", "--connector", file)
    with timed.of(lambda: Program(*words, cwd=folder), has_rows):
        pass


def standalone(folder: Path, timed: Timed, bootstrap: str) -> None:
    """FileStreamSource and FileStreamSink, over a topic."""
    (folder / "in.txt").write_text("".join(f"{number}\n" for number in range(ROWS)))
    topic, out, (port,) = f"t{uuid.uuid4().hex[:8]}", folder / "out.txt", free_ports(1)
    # A sink that subscribes to a missing topic would learn of it with the next refresh, up to five minutes later.
    admin = AdminClient({"bootstrap.servers": bootstrap})  # kept: its requests end with it
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(60)
    # Other names in each run: the sink would wait for the end of its group's session of the run before.
    files = {
        "worker": STANDALONE.format(bootstrap=bootstrap, folder=folder, port=port),
        "source": f"name=source-{topic}\nconnector.class=FileStreamSource\nfile={folder}/in.txt\ntopic={topic}\n",
        "sink": f"name=sink-{topic}\nconnector.class=FileStreamSink\nfile={out}\ntopics={topic}\n",
    }
    for name, text in files.items():
        (folder / f"{name}.properties").write_text(text)
    jars = fetched_with_dependencies(f"kafka-connect-{KAFKA}", JARS)
    java = ("java", "-Xmx512m", *SMALL_JVM, "-cp", f"{jars}/*", "org.apache.kafka.connect.cli.ConnectStandalone")
    paths = [folder / f"{name}.properties" for name in files]
    with timed.of(lambda: Program(*paths, command=java), lambda: out.exists() and out.stat().st_size > 0):
        pass


def main(arguments: Sequence[str]) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="runs of each kind (5)")
    parser.add_argument("--workers", type=int, default=3, help="workers of up (3)")
    options = parser.parse_args(arguments)
    plain, with_spark, connect = Timed("up"), Timed("up, rows pass Spark"), Timed("connect-standalone")
    sql = {"transforms": "s", "transforms.s.type": "sql", "transforms.s.query": "SELECT value FROM batch"}
    with contextlib.ExitStack() as stack:
        bootstrap = ""
        try:
            bootstrap = stack.enter_context(running_broker()).bootstrap
        except Unavailable as error:
            print(f"without connect-standalone: {error}")
        for _ in range(options.runs):
            for timed, more in (plain, {}), (with_spark, sql):
                with tempfile.TemporaryDirectory(prefix="connectgroup-first-row-") as folder:
                    up(Path(folder), timed, options.workers, **more)
            if bootstrap:
                with tempfile.TemporaryDirectory(prefix="connectgroup-first-row-") as folder:
                    standalone(Path(folder), connect, bootstrap)
    table = Table(f"First row, {options.runs} runs", "what", "median s", "slowest s", "CPU s")
    for timed in (plain, with_spark, connect):
        if timed.wall_s:
            median, cpu_s = statistics.median(timed.wall_s), statistics.median(timed.cpu_s)
            table.add(timed.name, f"{median:.1f}", f"{max(timed.wall_s):.1f}", f"{cpu_s:.1f}")
    table.show()


if __name__ == "__main__":
    main(sys.argv[1:])
