"""Pipelines beside a real Kafka Connect that moves the same records: Kafka to a file, and a file to Kafka.

    python benchmarks/pipelines_beside_connect.py [--rows 500000] [--repeats 3]

One worker and one task on each side, one broker, one topic partition; both are warm, and run in turn: compare ratios.
Kafka Connect runs its own ``FileStreamSource`` and ``FileStreamSink`` with Java's default compilers; they write at
least once. A run lasts from the start of the connector to the last record in the sink, as an independent reader sees
it. CPU seconds are those of all processes of a side, without the broker.
"""

from __future__ import annotations

import argparse
import json
import os
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
from connectgroup.spark.session import spark_session, stop_session
from tests.integration.processes import family

STRINGS = {f"{part}.converter": "org.apache.kafka.connect.storage.StringConverter" for part in ("key", "value")}


class Bench:
    """Inputs, made once, and the four kinds of run."""

    def __init__(self, root: Path, rows: int, bootstrap: str, connect: str) -> None:
        self.root, self.rows, self.bootstrap, self.connect = root, rows, bootstrap, connect
        (root / "in").mkdir()
        self.file = root / "in" / "input.txt"
        with self.file.open("w") as file:
            file.writelines(value(number) + "\n" for number in range(rows))
        self.topic = self._new_topic()
        self._fill()

    def _new_topic(self) -> str:
        from tests.integration.pipelines import make_topic

        return make_topic(self.bootstrap, f"t{uuid.uuid4().hex[:8]}", 1)

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
        from confluent_kafka import Consumer, TopicPartition

        topic = self._new_topic()
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "watch"})
        partition = TopicPartition(topic, 0)
        config = {"connector.class": "FileStreamSource", "file": str(self.file), "topic": topic, **STRINGS}
        self._connector(config, lambda: consumer.get_watermark_offsets(partition, timeout=10)[1] >= self.rows)
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
    options = parser.parse_args(arguments)

    from connectgroup.spark.java import add_kafka
    from tests.consumer.broker import running_broker

    with (
        tempfile.TemporaryDirectory(prefix="connectgroup-beside-") as scratch,
        running_broker() as broker,
        running_connect(broker.bootstrap, heap="1g", jvm=()) as url,
    ):
        bench = Bench(Path(scratch), options.rows, broker.bootstrap, url)
        PipelineConnector.warm_up()
        add_kafka(spark_session())
        title = f"Beside Kafka Connect: {options.rows:,} rows of 100 bytes, median of {options.repeats}"
        table = Table(title, "pipeline", "rows/s", "Connect", "ratio", "CPU s/M", "Connect")
        try:
            for name, mine, theirs in (
                ("Kafka to file", bench.ours_to_file, bench.connect_to_file),
                ("file to Kafka", bench.ours_to_kafka, bench.connect_to_kafka),
            ):
                ours, connect = list[Run](), list[Run]()
                for repeat in range(options.repeats + 1):
                    # The first run warms up Java's compilers; the order alternates.
                    both = ((mine, worker_cpu_s, ours), (theirs, bench.connect_cpu_s, connect))
                    for run, cpu_s, found in both if repeat % 2 else reversed(both):
                        measured = timed(run, cpu_s)
                        print(f"{name}, {run.__name__}: {measured}, load {os.getloadavg()[0]:.1f}", flush=True)
                        if repeat:
                            found.append(measured)
                speeds = speed(bench.rows, ours), speed(bench.rows, connect)
                table.add(
                    name,
                    f"{speeds[0]:,.0f}",
                    f"{speeds[1]:,.0f}",
                    f"{speeds[0] / speeds[1]:.2f}",
                    f"{cpu(bench.rows, ours):.1f}",
                    f"{cpu(bench.rows, connect):.1f}",
                )
        finally:
            table.show()
            stop_session()


if __name__ == "__main__":
    main(sys.argv[1:])
