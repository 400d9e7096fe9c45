"""Pipelines beside the same queries in bare Spark, and a Python iterator as a source.

    python benchmarks/pipelines.py [--rows 500000] [--repeats 3] [--only NAME ...]

Each pair runs in turn in one process and one Spark session, so that load of the machine affects both: compare ratios.
A run reads a backlog from its first row to the last one in the sink, its start included. Records have 100 bytes. CPU
seconds are those of all processes of a side, without the broker. The broker is fetched by Maven; bare Spark writes at
least once.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if __name__ == "__main__":
    # Run as a script from any directory: the modules next to this file are imported as benchmarks.NAME.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from connectgroup import IteratorSource, TaskContext, Unit
from connectgroup.connectors.pipeline import PipelineConnector
from connectgroup.dataplane.columns import from_ddl, to_arrow
from connectgroup.dataplane.source import CommittedPositions
from connectgroup.plugins import load_connector_class
from connectgroup.spark.driving import open_stream
from connectgroup.spark.query import Pipeline, SparkTask
from connectgroup.spark.session import spark_session, stop_session
from connectgroup.spark.sinks.parquet import ParquetSettings, ParquetSink
from connectgroup.spark.sources.datagen import DatagenSettings, DatagenSource
from tests.integration.processes import family

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RECORD_BYTES: Final = 100
PARTITIONS: Final = 4
BATCH_ROWS: Final = 100_000
TRIGGER_MS: Final = 100
GOAL_RATIO, GOAL_KAFKA, GOAL_PYTHON = 0.95, 150_000, 400_000
PATIENCE_S: Final = 600.0
MEGABYTE: Final = 1 << 20
SERVERS: Final = ("kafka.Kafka", "ConnectDistributed", "postgres")
"""Words in the command lines of processes that are not part of a worker."""


@dataclass(frozen=True, slots=True)
class Run:
    """Duration of a run, and the CPU time of its side, in seconds."""

    wall_s: float
    cpu_s: float


def value(number: int) -> str:
    """A record's value."""
    return f"{number:010d}".ljust(RECORD_BYTES, "x")


# ---- what is measured ------------------------------------------------------------------------------------------------


def timed(run: Callable[[], None], cpu: Callable[[], float]) -> Run:
    """Run once."""
    cpu_s, began_s = cpu(), time.monotonic()
    run()
    return Run(time.monotonic() - began_s, cpu() - cpu_s)


def worker_cpu_s() -> float:
    """CPU seconds of this process and its children, without servers."""
    return sum(map(process_cpu_s, worker_processes()))


def worker_rss_mb() -> float:
    """Resident memory of the same processes."""
    return sum(map(_rss_mb, worker_processes()))


def worker_processes() -> list[int]:
    """This process, Spark's Java process and Spark's Python processes."""
    below = family(os.getpid()).items()
    return [os.getpid(), *(pid for pid, line in below if not any(word in line for word in SERVERS))]


def process_cpu_s(pid: int) -> float:
    """CPU seconds of a process and of its children that have ended; 0 if there is none."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        # User and system time of the process and of the children that have ended.
        return float(sum(map(int, fields[11:15]))) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _rss_mb(pid: int) -> float:
    with contextlib.suppress(OSError):
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / MEGABYTE
    return 0.0


def run_task(rows: int, make: Callable[[TaskContext], Any], patience_s: float = PATIENCE_S) -> None:
    """Run one task until it has committed this number of rows."""
    done, failed = threading.Event(), list[BaseException]()
    committed = 0

    def progress(new: int) -> None:
        nonlocal committed
        committed += new
        if committed >= rows:
            done.set()

    def fail(error: BaseException) -> None:
        failed.append(error)
        done.set()

    with tempfile.TemporaryDirectory() as scratch:
        context = TaskContext(
            unit=Unit(f"bench-{uuid.uuid4().hex[:8]}", 0),
            owner_epoch=1,
            member_id="bench",
            scratch=Path(scratch),
            progress=progress,
            failed=fail,
        )
        task = make(context)
        task.start()
        in_time = done.wait(patience_s)
        task.stop()
    if failed or not in_time:
        raise SystemExit(f"pipelines: {failed[0] if failed else f'{committed} of {rows} rows after {patience_s} s'}")


def run_pipeline(config: Mapping[str, str], rows: int, patience_s: float = PATIENCE_S) -> None:
    """Run a pipeline of one task: the connector class ``pipeline``, or that of ``connector.class``."""
    cls = load_connector_class(config.get("connector.class", "pipeline"))
    connector = cls("bench", {**config, "trigger.ms": str(TRIGGER_MS)})
    try:
        run_task(rows, lambda context: connector.task(connector.task_configs(1)[0], context), patience_s)
    finally:
        connector.stop()


def run_bare(frame: DataFrame, form: str, options: Mapping[str, str]) -> None:
    """Run a query of Spark's own source and sink until it has read everything."""
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = frame.writeStream.format(form).options(**options).option("checkpointLocation", checkpoint)
        query = writer.trigger(processingTime=f"{TRIGGER_MS} milliseconds").start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()


# ---- the pairs -------------------------------------------------------------------------------------------------------


class Given(IteratorSource):
    """A Python generator of rows: dicts, or Arrow batches of a thousand."""

    columns = from_ddl("id BIGINT, value STRING")
    max_rows_per_batch = BATCH_ROWS

    def __init__(self, rows: int, *, is_arrow: bool) -> None:
        super().__init__(None, task=0, tasks=1)
        self._rows, self._is_arrow = rows, is_arrow

    def rows(self, slice_name: str, position: int) -> Iterator[Any]:
        text = "x" * (RECORD_BYTES - 10)
        if not self._is_arrow:
            for number in range(position, self._rows):
                yield {"id": number, "value": text}
            return
        import pyarrow as pa

        schema = to_arrow(self.columns)
        for begin in range(position, self._rows, 1_000):
            numbers = range(begin, min(self._rows, begin + 1_000))
            yield pa.record_batch([pa.array(numbers, pa.int64()), pa.array([text] * len(numbers))], schema=schema)


class Bench:
    """Inputs, made once, and the runs on them."""

    def __init__(self, root: Path, rows: int, bootstrap: str) -> None:
        self.root, self.rows, self.bootstrap = root, rows, bootstrap
        self.lines, self.csv = root / "lines", root / "csv"
        for directory, form in ((self.lines, "{1}"), (self.csv, "{0},{1}")):
            directory.mkdir()
            with (directory / "input.txt").open("w") as file:
                file.writelines(form.format(number, value(number)) + "\n" for number in range(rows))
        # Spark's CSV source has no header option that suits both.
        (self.csv / "input.txt").rename(self.csv / "input.csv")
        self.topic = self.new_topic()
        self._fill(self.topic)

    def new_topic(self) -> str:
        from tests.integration.pipelines import make_topic

        return make_topic(self.bootstrap, f"t{uuid.uuid4().hex[:8]}", PARTITIONS)

    def _fill(self, topic: str) -> None:
        from confluent_kafka import Producer

        settings = {"bootstrap.servers": self.bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000}
        producer = Producer(settings)
        for number in range(self.rows):
            producer.produce(topic, value(number), partition=number % PARTITIONS)
            if number % 10_000 == 0:
                producer.flush()
        assert producer.flush(60) == 0

    def out(self) -> Path:
        """A new path."""
        return self.root / f"out-{uuid.uuid4().hex[:8]}"

    # Each method returns the two sides.

    def kafka_to_kafka(self) -> tuple[Callable[[], None], Callable[[], None]]:
        """Records of 100 bytes from one topic to another."""
        sink = self.new_topic()
        config = {"sink": "kafka", "sink.bootstrap.servers": self.bootstrap, "sink.topic": sink}
        options = {"kafka.bootstrap.servers": self.bootstrap, "topic": self.new_topic()}
        return (
            lambda: run_pipeline(self._from_topic | config, self.rows),
            lambda: run_bare(self._kafka_frame(), "kafka", options),
        )

    def kafka_to_parquet(self) -> tuple[Callable[[], None], Callable[[], None]]:
        """The same records to Parquet files."""
        return (
            lambda: run_pipeline(self._from_topic | {"sink": "parquet", "sink.path": str(self.out())}, self.rows),
            lambda: run_bare(self._kafka_frame(), "parquet", {"path": str(self.out())}),
        )

    def lines_to_parquet(self) -> tuple[Callable[[], None], Callable[[], None]]:
        """Lines of text to Parquet files. Bare Spark reads whole files; there is one."""
        config = {"source": "files", "source.path": str(self.lines), "source.format": "text"}

        def bare() -> None:
            frame = spark_session().readStream.format("text").load(str(self.lines))
            run_bare(frame, "parquet", {"path": str(self.out())})

        return lambda: run_pipeline(config | {"sink": "parquet", "sink.path": str(self.out())}, self.rows), bare

    def csv_to_parquet(self) -> tuple[Callable[[], None], Callable[[], None]]:
        """CSV lines of two columns to Parquet files."""
        config = {
            "source": "files",
            "source.path": str(self.csv_with_header()),
            "source.format": "csv",
            "source.schema": "id BIGINT, value STRING",
        }

        def bare() -> None:
            frame = spark_session().readStream.schema("id BIGINT, value STRING").csv(str(self.csv))
            run_bare(frame, "parquet", {"path": str(self.out())})

        return lambda: run_pipeline(config | {"sink": "parquet", "sink.path": str(self.out())}, self.rows), bare

    def csv_with_header(self) -> Path:
        """The same lines behind a header, which the source ``files`` requires."""
        directory = self.root / "csv-with-header"
        if not directory.exists():
            directory.mkdir()
            text = (self.csv / "input.csv").read_text()
            (directory / "input.csv").write_text("id,value\n" + text)
        return directory

    def datagen_to_parquet(self) -> tuple[Callable[[], None], Callable[[], None]]:
        """The source ``datagen``, which is Python code in Spark's processes; the same source in bare Spark."""
        settings = {"rows": str(self.rows), "schema": "word STRING, amount DOUBLE", "max.rows.per.batch": BATCH_ROWS}
        config = {"source": "datagen"} | {f"source.{name}": str(each) for name, each in settings.items()}

        def bare() -> None:
            source = DatagenSource.create(DatagenSettings.model_validate(settings), task=0, tasks=1)
            run_bare(open_stream(source, spark_session(), {}), "parquet", {"path": str(self.out())})

        return lambda: run_pipeline(config | {"sink": "parquet", "sink.path": str(self.out())}, self.rows), bare

    def iterator_to_parquet(self, *, is_arrow: bool) -> None:
        """A Python generator to Parquet files."""
        path = self.out()
        pipeline = Pipeline(
            source=lambda: Given(self.rows, is_arrow=is_arrow),
            chain=lambda source: (),
            sink=lambda columns: ParquetSink.create(ParquetSettings(path=str(path)), columns),
            committed=lambda connector: CommittedPositions.of(connector, ParquetSink, {"path": str(path)}),
            tasks=1,
            trigger_ms=TRIGGER_MS,
            starts_without_spark=False,
        )
        run_task(self.rows, lambda context: SparkTask(context, pipeline))

    @property
    def _from_topic(self) -> dict[str, str]:
        return {
            "source": "kafka",
            "source.bootstrap.servers": self.bootstrap,
            "source.topics": self.topic,
            "source.metadata": "",
            "source.max.rows.per.batch": str(BATCH_ROWS),
        }

    def _kafka_frame(self) -> DataFrame:
        options = {
            "kafka.bootstrap.servers": self.bootstrap,
            "subscribe": self.topic,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(BATCH_ROWS),
        }
        frame = spark_session().readStream.format("kafka").options(**options).load()
        return frame.selectExpr("CAST(value AS STRING) AS value")


# ---- tables ----------------------------------------------------------------------------------------------------------


class Table:
    """Lines of aligned columns."""

    def __init__(self, title: str, *headers: str) -> None:
        self._rows: list[Sequence[str]] = [headers]
        self._title = title

    def add(self, *cells: str) -> None:
        self._rows.append(cells)

    def show(self) -> None:
        widths = [max(map(len, column)) for column in zip(*self._rows, strict=True)]
        print(f"\n{self._title}")
        for row in self._rows:
            print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        sys.stdout.flush()


def speed(rows: int, runs: Sequence[Run]) -> float:
    """Median of rows per second."""
    return statistics.median(rows / run.wall_s for run in runs)


def cpu(rows: int, runs: Sequence[Run]) -> float:
    """Median of CPU seconds per million rows."""
    return statistics.median(run.cpu_s * 1e6 / rows for run in runs)


def verdict(found: float, goal: float) -> str:
    """The goal, and whether it is reached."""
    return f"{goal:,g}: {'reached' if found >= goal else 'MISSED'}"


def paired(bench: Bench, names: Sequence[str], repeats: int) -> None:
    """The pipelines beside bare Spark."""
    table = Table(
        f"Pipelines beside bare Spark: {bench.rows:,} rows, median of {repeats}",
        *("pipeline", "rows/s", "bare Spark", "ratio", f"goal {GOAL_RATIO}", "CPU s/M", "bare"),
    )
    for name in names:
        ours, bare = list[Run](), list[Run]()
        for repeat in range(repeats + 1):
            both = list(zip(getattr(bench, name)(), (ours, bare), strict=True))
            # The first run warms up Java's compiler for the query; the order alternates.
            for run, found in both if repeat % 2 else reversed(both):
                measured = timed(run, worker_cpu_s)
                if repeat:
                    found.append(measured)
        ratio = statistics.median(b.wall_s / o.wall_s for o, b in zip(ours, bare, strict=True))
        numbers = speed(bench.rows, ours), speed(bench.rows, bare)
        more = f" (goal {verdict(numbers[0], GOAL_KAFKA)})" if name == "kafka_to_kafka" else ""
        table.add(
            name.replace("_", " "),
            f"{numbers[0]:,.0f}{more}",
            f"{numbers[1]:,.0f}",
            f"{ratio:.2f}",
            "reached" if ratio >= GOAL_RATIO else "MISSED",
            f"{cpu(bench.rows, ours):.1f}",
            f"{cpu(bench.rows, bare):.1f}",
        )
    table.show()


def iterators(bench: Bench, repeats: int) -> None:
    """A Python generator as a source."""
    table = Table(f"Python iterator to Parquet: {bench.rows:,} rows", "it yields", "rows/s", "goal", "CPU s/M")
    for is_arrow in (False, True):
        runs = [
            timed(lambda: bench.iterator_to_parquet(is_arrow=is_arrow), worker_cpu_s)  # noqa: B023
            for _ in range(repeats + 1)
        ][1:]
        found = speed(bench.rows, runs)
        shown = "Arrow batches" if is_arrow else "dicts"
        table.add(shown, f"{found:,.0f}", verdict(found, GOAL_PYTHON), f"{cpu(bench.rows, runs):.1f}")
    table.show()


PAIRS: Final = ("kafka_to_kafka", "kafka_to_parquet", "lines_to_parquet", "csv_to_parquet", "datagen_to_parquet")


def main(arguments: Sequence[str]) -> None:
    """Measure, and print a table after each part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=500_000, help="rows of each run (500000)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each side, after one that warms up (3)")
    parser.add_argument("--only", action="append", choices=(*PAIRS, "iterator"))
    options = parser.parse_args(arguments)
    chosen = options.only or [*PAIRS, "iterator"]

    from connectgroup.spark.java import add_kafka
    from tests.consumer.broker import running_broker

    with tempfile.TemporaryDirectory(prefix="connectgroup-pipelines-") as scratch, running_broker() as broker:
        bench = Bench(Path(scratch), options.rows, broker.bootstrap)
        PipelineConnector.warm_up()
        add_kafka(spark_session())
        print(f"memory of a warm worker: {worker_rss_mb():,.0f} MB")
        try:
            if pairs := [name for name in PAIRS if name in chosen]:
                paired(bench, pairs, options.repeats)
            if "iterator" in chosen:
                iterators(bench, options.repeats)
        finally:
            stop_session()


if __name__ == "__main__":
    main(sys.argv[1:])
