"""Rows that Spark's workers write to the files of a sink: the same files, offsets and fences as otherwise."""

from __future__ import annotations

import json
import threading
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyspark import RDD

from connectgroup.dataplane.columns import from_ddl, to_arrow
from connectgroup.dataplane.errors import OffsetConflict, SinkError, SourceError, TaskFenced
from connectgroup.dataplane.ownership import Owner, Range, ranges_between
from connectgroup.dataplane.sink import Part
from connectgroup.dataplane.source import BatchReader
from connectgroup.spark.driving import LocalDriving
from connectgroup.spark.errors import SparkError, root_cause
from connectgroup.spark.session import spark_session
from connectgroup.spark.sinks.manifest import MANIFEST, WANTED, ManifestSink, read_committed
from connectgroup.spark.sinks.parquet import ParquetSink
from connectgroup.spark.sources import files
from connectgroup.spark.sources.file_settings import FileSettings
from connectgroup.spark.sources.files import FileSource
from connectgroup.spark.sources.listing import list_inodes
from connectgroup.spark.writing import fitting
from connectgroup.testing.contracts.sink import every, owner, span

from .conftest import Bench, streams_of_task

TYPES = "i INT, l BIGINT, h SMALLINT, f FLOAT, d DOUBLE, b BOOLEAN, s STRING, day DATE, at TIMESTAMP"
VALUES = [
    {"i": 1, "l": 1 << 40, "h": -3, "f": 0.5, "d": 1e300, "b": True, "s": "é\n", "day": "2024-02-29"},
    {"i": None, "s": "", "at": "2024-02-29T12:30:01.000005Z"},
]


def others(directory: Path) -> set[str]:
    """Files of rows in a sink's directory that are not committed."""
    known = {file.name for file in read_committed(directory)}
    return {file.name for file in directory.iterdir() if not file.name.startswith(MANIFEST)} - known - marks(directory)


def marks(directory: Path) -> set[str]:
    """The files that exist while a task wants parts."""
    return {file.name for file in directory.iterdir() if file.suffix == f".{WANTED}"}


@pytest.fixture(params=["parquet", "jsonl", "csv"])
def sink(request: pytest.FixtureRequest, tmp_path: Path, spark: None) -> Iterator[Bench]:
    """Each sink of files."""
    bench = Bench(tmp_path, request.param)
    yield bench
    for run in bench.runs:
        run.task.stop()


def test_files_are_those_of_rows_that_pass_through_java(sink: Bench) -> None:
    (sink.input / "one.jsonl").write_text("".join(json.dumps(value) + "\n" for value in VALUES))
    written, schemas = list[object](), list[object]()
    for epoch, sink.passes_java in ((1, False), (2, True)):
        sink.output = sink.root / f"out-{epoch}"
        before = streams_of_task()
        run = sink.start(epoch, source_format="jsonl", source_schema=TYPES)
        assert len(streams_of_task() - before) == sink.passes_java
        run.wait(lambda run=run: sum(run.rows) == 2)  # type: ignore[misc]
        run.task.stop()
        (file,) = read_committed(sink.output)
        if sink.sink == "parquet":
            schemas.append(pyarrow.parquet.read_schema(file))
            written.append(pyarrow.parquet.read_table(file))
        else:
            written.append(file.read_text())
    assert written[0] == written[1]
    assert schemas[:1] == schemas[1:]


def test_parts_of_a_batch_are_committed_in_the_order_of_the_rows(
    tmp_path: Path, spark: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PART_BYTES", 1000)
    bench = Bench(tmp_path, "parquet")
    for name in ("one.csv", "two.csv"):
        bench.write(name, range(1000))
    run = bench.start(1)
    run.wait(lambda: sum(run.rows) == 2000)
    run.task.stop()
    found = read_committed(bench.output)
    assert len(found) > 10
    assert [a for file in found for a in pyarrow.parquet.read_table(file)["a"].to_pylist()] == [*range(1000)] * 2
    assert sum(batch.rows for batch in run.batches) == 2000
    assert sum(batch.read_bytes or 0 for batch in run.batches) == sum(f.stat().st_size for f in bench.input.iterdir())


def test_batch_with_a_bad_line_leaves_no_file(tmp_path: Path, spark: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PART_BYTES", 1000)
    bench = Bench(tmp_path, "parquet")
    bench.write("one.csv", range(1000))
    with (bench.input / "one.csv").open("a") as file:
        file.write("one,x\n")
    error = bench.start(1).failure()
    assert "one.csv, line 1002" in str(error)
    assert "a is 'one'; allowed: INT or null" in str(error)
    bench.runs[0].task.stop()
    assert bench.seen() == []
    assert others(bench.output) == set()


def test_stop_ends_a_batch_that_is_written_and_leaves_no_file(tmp_path: Path, spark: None) -> None:
    bench = Bench(tmp_path, "parquet")
    schema = "word STRING, x DOUBLE"
    run = bench.start(1, source="datagen", source_schema=schema, source_max_rows_per_batch="10000000")
    run.wait(lambda: bool(others(bench.output)))
    run.task.stop()
    run.wait(lambda: status_of_last_job() != "RUNNING")  # Spark updates it in a thread of its own.
    assert status_of_last_job() == "FAILED", "cancelled"
    assert (run.errors, run.rows) == ([], [])
    run.wait(lambda: marks(bench.output) == set())
    # A Python process of Spark's may still be completing a file, and deletes it then; one that Spark kills before that
    # leaves it to the next owner of the task, or, if it began it after that owner's claim, to the one after it.
    epoch = 2
    while left := others(bench.output):
        assert epoch < 10, left
        following = bench.start(epoch, source="datagen", source_schema=schema, source_rows="1")
        following.wait(lambda run=following: len(run.polls) > 0)  # type: ignore[misc]
        following.task.stop()
        epoch += 1
    assert marks(bench.output) == set()


def status_of_last_job() -> str:
    tracker = spark_session().sparkContext.statusTracker()
    job = tracker.getJobInfo(max(tracker.getJobIdsForGroup(None)))
    return "" if job is None else job.status


def test_result_that_ends_early_is_no_batch(tmp_path: Path, spark: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Java dies while it returns the parts: PySpark takes the end of the connection for the end of the result."""
    monkeypatch.setattr(files, "PART_BYTES", 1000)
    collect = RDD.collect
    monkeypatch.setattr(RDD, "collect", lambda self: collect(self)[:-1])
    bench = Bench(tmp_path, "parquet")
    bench.write("one.csv", range(1000))
    error = bench.start(1).failure()
    bench.runs[0].task.stop()
    assert isinstance(error, SparkError)
    assert " parts; allowed: a Java that runs on" in str(error)
    assert bench.seen() == []
    assert others(bench.output) == set()


def test_error_of_python_code_in_a_worker_of_spark_is_named(spark: None) -> None:
    with pytest.raises(Exception) as raised:
        spark_session().sparkContext.parallelize([0], 1).map(lambda number: 1 // number).collect()
    error = str(root_cause(raised.value))
    assert error.startswith("Spark query failed: ZeroDivisionError: integer division")


@pytest.mark.parametrize(
    "around",
    [
        "[STREAM_FAILED] Query [id = 3aa4b7c3-894f, runId = {}] terminated with exception: ",
        "Job aborted due to stage failure: Task 0 in stage {0}.0 failed 1 times, most recent failure: Lost task 0.0 in"
        " stage {0}.0 (TID {0}) (this-machine executor driver): ",
    ],
)
def test_equal_failures_of_queries_have_equal_messages(around: str) -> None:
    """Spark names the query, its run, stage and task; a list of errors would repeat one failure at each attempt."""
    text = f"{around}Python worker failed to connect back. SQLSTATE: XXKST"
    one, two = (str(root_cause(Exception(text.format(run)))) for run in (11, 12))
    assert one == two
    assert one.startswith("Spark query failed: Python worker failed to connect back. ")
    assert "fewer tasks on each core (tasks.max)" in one, "the machine is too busy"


def test_batch_that_was_planned_while_the_query_stopped_is_not_read() -> None:
    stopping, taken = threading.Event(), list[object]()

    class Context:
        """Stands for Spark's context: the query does not get as far as to use it."""

        def addJobTag(self, tag: str) -> None: ...

        def cancelJobsWithTag(self, tag: str) -> None:
            stopping.set()

    class Reader(BatchReader):
        def plan(self, start: Mapping[str, int]) -> dict[str, int]:
            thread.start()
            assert stopping.wait(30)
            return {"a": 1}

        def read(self, session: Any, ranges: Sequence[Range]) -> Any:
            raise AssertionError

    driving = LocalDriving(
        "c-0@1",
        cast(Any, Reader()),
        {},
        taken.append,
        interval_ms=1,
        session=cast(Any, types.SimpleNamespace(sparkContext=Context())),
        discard=lambda: None,
    )
    thread = threading.Thread(target=driving.stop)
    driving.start()
    driving.awaitTermination()
    assert taken == []


def written(sink: ManifestSink, token: int, start: int, end: int) -> list[Part]:
    """A batch of one row a position, written in two parts."""
    parts, write = list[Part](), sink.part_writer(owner(token))
    assert write is not None
    for at in (range(start, (start + end) // 2), range((start + end) // 2, end)):
        rows = pa.record_batch({"a": pa.array(list(at))})
        parts += write(Range(slice="s", start=at.start, end=at.stop), iter([rows]))
    return parts


def read(directory: Path) -> list[int]:
    return [a for file in read_committed(directory) for a in pyarrow.parquet.read_table(file)["a"].to_pylist()]


def test_parts_are_fenced_replayed_and_discarded_as_rows_are(tmp_path: Path) -> None:
    zombie, successor = ParquetSink(tmp_path / "out"), ParquetSink(tmp_path / "out")
    zombie.claim(owner(1), every)
    assert zombie.commit_parts(owner(1), span(0, 4), written(zombie, 1, 0, 4)) is True
    replayed, after = written(zombie, 1, 0, 4), written(zombie, 1, 4, 8)
    assert zombie.commit_parts(owner(1), span(0, 4), replayed) is False
    assert others(tmp_path / "out") == {f".{part.name}" for part in after}, "the next batch is written meanwhile"
    with pytest.raises(OffsetConflict):
        zombie.commit_parts(owner(1), span(6, 8), written(zombie, 1, 6, 8))
    late = written(zombie, 1, 4, 8)
    successor.claim(owner(2), every)
    assert others(tmp_path / "out") == set(), "the claim deletes what the former owner has not committed"
    with pytest.raises(TaskFenced):
        zombie.commit_parts(owner(1), span(4, 8), late)
    mine = written(successor, 2, 4, 6)
    written(zombie, 2, 4, 6)
    successor.discard_parts(owner(2))
    assert len(others(tmp_path / "out")) == 2, "those of another start of the same grant stay"
    mine = written(successor, 2, 4, 6)
    assert successor.commit_parts(owner(2), span(4, 6), mine) is True
    successor.discard_parts(owner(2))
    assert read(tmp_path / "out") == [*range(6)]


def test_part_without_rows_is_no_file_and_many_rows_are_several(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path / "out")
    sink.claim(owner(1), every)
    write = sink.part_writer(owner(1))
    assert write is not None
    whole = Range(slice="s", start=0, end=9)
    assert list(write(whole, iter([pa.record_batch({"a": pa.array([], pa.int64())})]))) == []
    assert sink.commit_parts(owner(1), [whole], []) is True
    large = pa.record_batch({"a": pa.array(range(1 << 20))})
    parts = list(write(Range(slice="s", start=9, end=10), iter([large] * 20)))
    assert [part.rows >> 20 for part in parts] == [8, 8, 4]
    assert [part.row_bytes >> 20 for part in parts] == [64, 64, 32]
    assert list_inodes(tmp_path / "out", "*.parquet", {}) == {}, "a source skips files that are not committed"
    sink.commit_parts(owner(1), [Range(slice="s", start=9, end=10)], parts)
    assert all((tmp_path / "out" / part.name).stat().st_size == part.bytes for part in parts)


def test_part_that_is_completed_after_the_task_has_stopped_is_deleted(tmp_path: Path) -> None:
    """Spark ends a job without waiting for the Python processes that work for it."""
    sink = ParquetSink(tmp_path / "out")
    sink.claim(owner(1), every)
    write = sink.part_writer(owner(1))
    assert write is not None
    rows = pa.record_batch({"a": [1]})

    def batches() -> Iterator[pa.RecordBatch]:
        yield rows
        sink.discard_parts(owner(1))

    one = Range(slice="s", start=0, end=1)
    assert [part.rows for part in write(one, batches())] == [1]
    assert others(tmp_path / "out") == marks(tmp_path / "out") == set()


class StoppedWhileWriting(ParquetSink):
    """A sink whose task stops while a process of Spark's writes a file."""

    def encode(self, rows: pa.Table, file: BinaryIO) -> None:
        super().encode(rows, file)
        ParquetSink(Path(f"/proc/self/fd/{file.fileno()}").readlink().parent).claim(owner(2), every)


def test_part_that_is_written_while_the_task_stops_is_deleted_and_is_the_last(tmp_path: Path) -> None:
    sink = StoppedWhileWriting(tmp_path / "out")
    sink.claim(owner(1), every)
    write = sink.part_writer(owner(1))
    assert write is not None
    large, taken = pa.record_batch({"a": pa.array(range(8 << 20))}), list[int]()

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(9):
            taken.append(number)
            yield large

    parts = list(write(Range(slice="s", start=0, end=1), batches()))
    assert others(tmp_path / "out") == marks(tmp_path / "out") == set()
    assert (len(parts), taken) == (2, [0, 1]), "it reads no further"
    with pytest.raises(TaskFenced):
        sink.commit_parts(owner(1), span(0, 1), parts)


def test_parts_without_their_files_are_not_committed(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path / "out")
    sink.claim(owner(1), every)
    write = sink.part_writer(owner(1))
    assert write is not None
    for mark in marks(tmp_path / "out"):
        (tmp_path / "out" / mark).unlink()
    parts = list(write(Range(slice="s", start=0, end=1), iter([pa.record_batch({"a": [1]})])))
    with pytest.raises(SinkError, match="cannot be written"):
        sink.commit_parts(owner(1), span(0, 1), parts)
    assert sink.claim(owner(2), every) == {}


class OwnCommit(ParquetSink):
    """A plug-in that does something else with its rows."""

    def commit(self, owner: Owner, ranges: Sequence[Range], rows: pa.Table) -> bool:
        return super().commit(owner, ranges, rows)


def test_sinks_that_workers_of_spark_cannot_have_commit_rows(tmp_path: Path) -> None:
    assert OwnCommit(tmp_path / "out").part_writer(owner(1)) is None
    sink = ParquetSink(tmp_path / "out")
    sink.lock = threading.Lock()  # type: ignore[attr-defined]
    assert sink.part_writer(owner(1)) is None


def test_rows_of_a_source_have_the_types_of_its_columns() -> None:
    schema = to_arrow(from_ddl("a BIGINT, s STRING"))
    rows = pa.record_batch({"a": pa.array([1, None], pa.int32()), "s": pa.array(["x", "y"]).dictionary_encode()})
    fitted = fitting(rows, schema, "one")
    assert fitted.schema == schema
    assert fitted.to_pylist() == [{"a": 1, "s": "x"}, {"a": None, "s": "y"}]
    others = pa.record_batch({"b": [1], "s": ["x"]}), pa.record_batch({"a": ["x"], "s": ["x"]})
    for other in others:
        with pytest.raises(SourceError, match=r"slice one: rows of .*; allowed: a int64, s string"):
            fitting(other, schema, "one")


def test_file_that_was_renamed_after_the_plan_is_not_divided_by_the_lines_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PART_BYTES", 1000)
    (tmp_path / "log").write_text("".join(f"line {n:04} of the old file\n" for n in range(100)))
    settings = FileSettings.model_validate({"path": str(tmp_path), "format": "text"})
    reader = FileSource.create(settings, task=0, tasks=1).part_batches({})
    ranges = [*ranges_between({}, reader.plan({}))]
    (tmp_path / "log").rename(tmp_path / "log.1")
    (tmp_path / "log").write_text("new\n" * 2000)
    read = [
        row["value"] for _, part in reader.parts(ranges) for rows in reader.read_part(part) for row in rows.to_pylist()
    ]
    assert read == [f"line {n:04} of the old file" for n in range(100)]


def test_batches_are_larger_where_no_process_has_all_of_their_rows(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes((b"x" * 1023 + b"\n") * (220 << 10))

    def sizes(**settings: str) -> list[list[int]]:
        given = {"path": str(tmp_path), "format": "text"} | settings
        source = FileSource.create(FileSettings.model_validate(given), task=0, tasks=1)
        found = []
        for reader in (source.part_batches({}), source.batches({})):
            at, batches = dict[str, int](), list[int]()
            while (end := reader.plan(at)) != at:
                batches += [(each.end - each.start) >> 20 for each in ranges_between(at, end)]
                at = dict(end)
            found.append(batches)
        return found

    assert sizes() == [[16, 64, 128, 12], [16, 32, 32, 32, 32, 32, 32, 12]]
    given = sizes(**{"max.bytes.per.batch": str(50 << 20)})
    assert given == [[16, 50, 50, 50, 50, 4]] * 2
