"""Tasks on real Spark with real sinks: every row is written once, by any owner of the task and after any failure."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import threading
import time
from pathlib import Path

import pytest

from connectgroup.connector import PartitionOffset
from connectgroup.connectors.pipeline import PipelineConnector
from connectgroup.dataplane.errors import SinkError, SourceError, TaskFenced
from connectgroup.dataplane.ownership import Range
from connectgroup.errors import ConfigError
from connectgroup.member.actions import Grant
from connectgroup.protocol.records.connect import UnitState
from connectgroup.protocol.units import Unit
from connectgroup.spark import driving
from connectgroup.spark.batches import Batches
from connectgroup.spark.errors import SparkError
from connectgroup.spark.session import spark_session, stop_session
from connectgroup.spark.sinks.sqlite import SqliteSink
from connectgroup.spark.sources.files import FileSource
from connectgroup.worker.runner import TaskRunner
from connectgroup.worker.settings import RunnerSettings
from tests.no_threads import NoThreads
from tests.volume import ci_only

from .conftest import Bench, Run, wait


def test_successor_continues_where_its_predecessor_stopped(bench: Bench) -> None:
    """X3, X8: over three grants, with growing files and new files."""
    bench.write("one.csv", range(10))
    first = bench.start(1)
    first.wait(lambda: bench.seen() == [*range(10)])
    bench.write("one.csv", range(10, 20), mode="a")
    bench.write("two.csv", range(20, 30))
    first.wait(lambda: bench.seen() == [*range(30)])
    first.task.stop()
    assert sum(first.rows) == 30
    assert not any(first.context.scratch.iterdir()), "checkpoints are temporary"

    bench.write("one.csv", range(30, 40), mode="a")
    bench.write("three.csv", range(40, 50))
    second = bench.start(5)
    second.wait(lambda: bench.seen() == [*range(50)])
    second.task.stop()
    third = bench.start(6)
    bench.write("one.csv", range(50, 51), mode="a")
    third.wait(lambda: bench.seen() == [*range(51)])
    assert sum(second.rows) == 20
    third.wait(lambda: sum(third.rows) == 1)


def test_zombie_is_fenced_after_the_claim_of_its_successor(bench: Bench) -> None:
    """X1: the old owner is alive and connected; only the fence prevents its writes."""
    bench.write("one.csv", range(10))
    zombie = bench.start(1)
    zombie.wait(lambda: bench.seen() == [*range(10)])
    successor = bench.start(2)
    bench.write("one.csv", range(10, 20), mode="a")
    bench.write("new.csv", range(20, 30))
    error = zombie.failure()
    assert isinstance(error, TaskFenced)
    assert str(error) == (
        "flights-0: task-0 belongs to owner epoch 2, ours is 1; allowed: only the latest owner writes"
    )
    successor.wait(lambda: len(bench.seen()) >= 30)
    assert bench.seen() == [*range(30)]
    with pytest.raises(TaskFenced):
        bench.start(1)


def test_two_tasks_become_three_without_lost_or_duplicate_rows(bench: Bench) -> None:
    """Slices move between tasks one by one, some partly read; zombies still run."""
    for n in range(12):
        bench.write(f"part-{n}.csv", range(n * 100, n * 100 + 50))
    old = [bench.start(1, task=t, tasks=2) for t in range(2)]
    wait(lambda: len(bench.seen()) == 600)
    old[0].task.stop()  # the other task is a zombie
    new = [bench.start(2, task=t, tasks=3) for t in range(3)]
    for n in range(12):
        bench.write(f"part-{n}.csv", range(n * 100 + 50, n * 100 + 100), mode="a")
    for n in range(12, 20):
        bench.write(f"part-{n}.csv", range(n * 100, n * 100 + 100))
    wait(lambda: len(bench.seen()) >= 2000)
    assert bench.seen() == [*range(2000)]
    assert isinstance(old[1].failure(), TaskFenced)
    assert [run.errors for run in new] == [[], [], []]
    wait(lambda: all(sum(run.rows) for run in new))


def test_batch_replayed_by_spark_is_written_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """paimon#9667: the batch is committed, its response is lost, and it is repeated."""
    bench.passes_java = True
    handed: list[bool] = []
    commit_once = Batches.__call__

    def commit_twice(self: Batches, frame: object, batch_id: int) -> None:
        commit_once(self, frame, batch_id)  # type: ignore[arg-type]
        commit_once(self, frame, batch_id)  # type: ignore[arg-type]
        handed.append(True)

    monkeypatch.setattr(Batches, "__call__", commit_twice)
    bench.write("one.csv", range(10))
    run = bench.start(1)
    run.wait(lambda: bool(handed))
    bench.write("one.csv", range(10, 20), mode="a")
    run.wait(lambda: len(handed) >= 2 and len(bench.seen()) >= 20)
    assert bench.seen() == [*range(20)]
    run.wait(lambda: sum(run.rows) == 20)


def test_range_of_a_batch_comes_from_the_offset_log(table: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blank lines and headers are bytes without rows; the ranges have no gap and no overlap."""
    read: list[list[Range]] = []
    ranges = Batches.ranges

    def listen(self: Batches, batch_id: int) -> list[Range]:
        read.append(list(ranges(self, batch_id)))
        return read[-1]

    monkeypatch.setattr(Batches, "ranges", listen)
    table.write("one.csv", range(300))
    with (table.input / "one.csv").open("a") as file:
        file.write("\n" * 5000)
    size = (table.input / "one.csv").stat().st_size
    run = table.start(1, source_max_bytes_per_batch="1024")
    run.wait(lambda: bool(read) and any(r.end == size for r in read[-1]) and table.seen() == [*range(300)])
    run.task.stop()
    flat = [r for batch in read for r in batch]
    assert [r.start for r in flat] == [0, *(r.end for r in flat[:-1])]
    assert all(0 < r.end - r.start <= 1024 for r in flat)


def test_last_line_is_read_when_it_is_complete(table: Bench) -> None:
    file = table.input / "one.csv"
    file.write_text("a,b\n1,x\n2,partly wri")
    run = table.start(1)
    run.wait(lambda: table.seen() == [1])
    with file.open("a") as more:
        more.write("tten\n")
    run.wait(lambda: table.seen() == [1, 2])
    with sqlite3.connect(table.output) as connection:
        assert connection.execute("SELECT b FROM t WHERE a = 2").fetchall() == [("partly written",)]


def test_json_lines_are_read(table: Bench) -> None:
    (table.input / "one.jsonl").write_text('{"a": 1, "b": "x"}\n{"b": "\\u00e9", "more": [1]}\n')
    run = table.start(1, source_format="jsonl")
    run.wait(lambda: sum(run.rows) == 2)
    with sqlite3.connect(table.output) as connection:
        assert connection.execute("SELECT a, b FROM t ORDER BY b").fetchall() == [(1, "x"), (None, "\u00e9")]


def test_stop_returns_after_the_last_write(table: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """X6: stopped during a commit, the task writes nothing after stop returns."""
    from connectgroup.spark.sinks.sqlite import SqliteSink

    inside, ended = threading.Event(), threading.Event()
    commit = SqliteSink.commit

    def slow(self: SqliteSink, *args: object) -> bool:
        inside.set()
        ended.wait(1.0)
        done = commit(self, *args)  # type: ignore[arg-type]
        ended.set()
        return done

    monkeypatch.setattr(SqliteSink, "commit", slow)
    table.write("one.csv", range(10))
    run = table.start(1)
    assert inside.wait(60)
    run.task.stop()
    assert ended.is_set()
    before = table.seen()
    assert before in ([], [*range(10)])
    assert run.errors == []
    assert [query.name for query in spark_session().streams.active] == []
    run.task.stop()  # a second stop has no effect


def test_next_batch_is_read_while_a_batch_is_committed(table: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commits stay in order; the task reports each row once."""
    is_next_read, was_read, entered = threading.Event(), list[bool](), list[None]()
    commit, ranges = SqliteSink.commit, Batches.ranges

    def slow(self: SqliteSink, *args: object) -> bool:
        entered.append(None)
        if len(entered) == 1:
            was_read.append(is_next_read.wait(60))
            time.sleep(1)
            assert len(entered) == 1, "one commit at a time"
        return commit(self, *args)  # type: ignore[arg-type]

    def listen(self: Batches, batch_id: int) -> object:
        if batch_id == 1:
            is_next_read.set()
        return ranges(self, batch_id)

    monkeypatch.setattr(SqliteSink, "commit", slow)
    monkeypatch.setattr(Batches, "ranges", listen)
    table.write("one.csv", range(300))
    run = table.start(1, source_max_bytes_per_batch="1024")
    run.wait(lambda: table.seen() == [*range(300)])
    assert was_read == [True]
    run.wait(lambda: sum(run.rows) == 300)


def test_query_without_a_watching_thread_is_ended(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """F36: a failed start leaves no running query behind, and may be retried under the same grant."""
    bench.write("one.csv", range(10))
    none = NoThreads(monkeypatch, "watch ")
    with pytest.raises(SparkError, match="can't start new thread"):
        bench.start(1)
    assert not [query for query in spark_session().streams.active if query.name.startswith("flights-0@")]
    none.over()
    bench.start(1).wait(lambda: bench.seen() == [*range(10)])


def test_query_stopped_from_outside_fails_only_its_task(table: Bench) -> None:
    tasks = [table.start(1, task=t, tasks=2) for t in range(2)]
    queries = {query.name: query for query in spark_session().streams.active}
    assert sorted(queries) == ["flights-0@1", "flights-1@1"]
    queries["flights-1@1"].stop()
    assert "flights-1@1 was ended from outside" in str(tasks[1].failure())
    for n in range(4):
        table.write(f"part-{n}.csv", range(n * 10, n * 10 + 10))
    tasks[1].task.stop()
    tasks.append(table.start(1, task=1, tasks=2))
    wait(lambda: len(table.seen()) >= 40)
    assert table.seen() == [*range(40)]
    assert tasks[0].errors == []


def test_csv_columns_without_a_schema_are_strings(table: Bench) -> None:
    config = table.config(sink_table="strings")
    del config["source.schema"]
    connector = PipelineConnector("flights", config)
    run = table.start(1)
    run.task.stop()
    with pytest.raises(ConfigError, match=r"source\.schema: missing; allowed: a schema, or a CSV file with a"):
        connector.task(connector.task_configs(1)[0], run.context).start()
    (table.input / "x.csv").write_text("a,b\n007,x\n")
    task = connector.task(connector.task_configs(1)[0], run.context)
    task.start()
    run.wait(lambda: sum(run.rows) == 1)
    task.stop()
    with sqlite3.connect(table.output) as connection:
        assert connection.execute("SELECT a, b FROM strings").fetchall() == [("007", "x")]


def test_source_of_spark_continues_at_the_committed_batch(table: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A successor gets a checkpoint made from the offsets in the sink; a batch that was not committed is read again."""

    def start(epoch: int) -> Run:
        options = '{"rowsPerSecond": "100"}'
        return table.start(epoch, source="spark", source_format="rate", source_options=options)

    def numbers() -> list[int]:
        if not table.output.exists():
            return []
        with contextlib.closing(sqlite3.connect(table.output)) as connection:
            return [n for (n,) in connection.execute("SELECT value FROM t ORDER BY value")]

    for epoch in range(1, 4):
        run = start(epoch)
        if epoch == 2:  # Its first batch is planned and not committed.
            monkeypatch.setattr(SqliteSink, "commit", lambda *_: (_ for _ in ()).throw(SinkError("full")))
            assert "full" in str(run.failure())
            monkeypatch.undo()
        else:
            run.wait(lambda run=run: sum(run.rows) > 100)  # type: ignore[misc]
        run.task.stop()
    found = numbers()
    assert len(found) > 200
    assert found == [*range(len(found))]


def test_source_of_spark_reads_only_formats_that_the_worker_allows(table: Bench) -> None:
    with pytest.raises(ConfigError, match=r"source\.format: got 'text'; allowed: rate, rate-micro-batch \(CONNECT"):
        table.start(1, source="spark", source_format="text", source_options='{"path": "/etc"}')
    with pytest.raises(ConfigError, match=r"tasks\.max: got '2'; allowed: 1 with source spark"):
        table.start(1, task=0, tasks=2, source="spark", source_format="rate")
    with pytest.raises(ConfigError, match=r"source\.options: got 'a text'; allowed: options of the format as a JSON"):
        table.start(1, source="spark", source_format="rate", source_options="x")


def test_column_of_a_source_that_sinks_do_not_store_is_transformed_first(
    table: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONNECTGROUP_SPARK_FORMATS", "parquet")
    session, base = spark_session(), table.config(source="spark")
    session.sql("SELECT make_dt_interval(1) AS d").write.parquet(str(table.input / "p"))
    session.conf.set("spark.sql.streaming.schemaInference", "true")

    source = {"source": "spark", "source.format": "parquet"}
    source["source.options"] = json.dumps({"path": str(table.input / "p")})
    query = "SELECT extract(DAY FROM d) AS n FROM batch"
    transforms = {"transforms": "q", "transforms.q.type": "sql", "transforms.q.query": query}
    try:
        monkeypatch.setattr(table, "config", lambda: base | source)
        with pytest.raises(ConfigError, match=r"source\.format: got 'the column d INTERVAL DAY TO SECOND'; allowed: t"):
            table.start(1)
        monkeypatch.setattr(table, "config", lambda: base | source | transforms)
        run = table.start(1)
        run.wait(lambda: sum(run.rows) == 1)
        run.task.stop()
    finally:
        session.conf.unset("spark.sql.streaming.schemaInference")


@pytest.mark.parametrize(
    "polls",
    [
        pytest.param(1, id="polls"),
        pytest.param(0, id="starts", marks=ci_only("a minute, after which Spark ends a process that is not in use")),
    ],
)
def test_task_leaves_no_process_behind(table: Bench, polls: int) -> None:
    """Each query has its own Python process, which ends with the query; if the query was about to start, later."""
    before = _source_processes()
    run = table.start(1)
    wait(lambda: len(_source_processes() - before) == 1 and len(run.polls) >= polls)
    run.task.stop()
    wait(lambda: not _source_processes() - before)


def _source_processes() -> set[int]:
    """The process ids."""
    found = set()
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = line.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            parent = int((line.parent / "stat").read_text().rsplit(")", 1)[1].split()[1])
            grand = int(Path(f"/proc/{parent}/stat").read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, IndexError):
            continue
        if "python_streaming_source_runner" in text and grand == os.getpid():
            found.add(int(line.parent.name))
    return found


def test_task_continues_from_altered_offsets_and_reads_all_rows_again_after_a_reset(bench: Bench) -> None:
    """KIP-875, on both stores in files; a task that was granted before the change is fenced."""
    bench.write("a.csv", range(3))
    before = bench.start(1)
    before.wait(lambda: bench.seen() == [0, 1, 2])
    connector = PipelineConnector("flights", bench.config())
    (offset,) = connector.offsets()
    assert offset.partition == {"slice": "a.csv"}
    assert offset.offset == {"position": (bench.input / "a.csv").stat().st_size}
    connector.alter_offsets(2, None)
    bench.write("b.csv", range(3, 5))
    assert isinstance(before.failure(), TaskFenced)
    again = bench.start(3)
    again.wait(lambda: bench.seen() == [0, 0, 1, 1, 2, 2, 3, 4])
    again.task.stop()
    skipped = (bench.input / "b.csv").stat().st_size
    change = [PartitionOffset(partition={"slice": "c.csv"}, offset={"position": skipped})]
    connector.alter_offsets(4, change)
    bench.write("c.csv", range(3, 6))
    last = bench.start(5)
    last.wait(lambda: bench.seen() == [0, 0, 1, 1, 2, 2, 3, 4, 5])


def test_task_measures_its_lag_and_its_polls_while_a_commit_is_blocked(
    table: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driving, "INTERVAL_S", 0.05)
    run = table.start(1, sink_busy_timeout_ms="60000")
    run.wait(lambda: bool(run.polls) and bool(run.lags))
    assert run.rows == [], "the first poll found nothing"
    assert (run.lags[-1].bytes, run.lags[-1].files) == (0, 0)
    (query,) = spark_session().streams.active
    with contextlib.closing(sqlite3.connect(table.output, isolation_level=None)) as blocking:
        blocking.execute("BEGIN IMMEDIATE")
        run.wait(lambda: len(run.lags) > 5)  # The trigger without input has been reported.
        polls, first = len(run.polls), (query.lastProgress or {"batchId": -1})["batchId"]
        table.write("one.csv", range(10))
        size = (table.input / "one.csv").stat().st_size
        run.wait(lambda: run.lags[-1].bytes == size)
        assert run.lags[-1].files == 1
        table.write("two.csv", range(10, 12))
        run.wait(lambda: run.lags[-1].files == 2)
        run.wait(lambda: query.lastProgress is not None and query.lastProgress["batchId"] > first)
        lags = len(run.lags)
        run.wait(lambda: len(run.lags) > lags + 2)
        assert not table.seen()
        assert len(run.polls) == polls, "a batch is polled when it is committed"
        blocking.execute("ROLLBACK")
    run.wait(lambda: run.lags[-1].files == 0)
    assert run.lags[-1].bytes == 0
    assert table.seen() == [*range(12)]
    read = [batch.read_bytes for batch in run.batches if batch.committed]
    assert sum(each or 0 for each in read) == sum(each.stat().st_size for each in table.input.iterdir())
    assert all((batch.written_bytes or 0) > 0 for batch in run.batches)


def test_lag_that_cannot_be_measured_does_not_disturb_the_task(
    table: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[None] = []

    def lag(self: FileSource, positions: object) -> None:
        calls.append(None)
        raise SourceError("/in: cannot be listed; allowed: later")

    monkeypatch.setattr(driving, "INTERVAL_S", 0.05)
    monkeypatch.setattr(FileSource, "lag", lag)
    table.write("one.csv", range(10))
    run = table.start(1)
    run.wait(lambda: len(calls) > 2 and table.seen() == [*range(10)])
    warnings = [record.getMessage() for record in caplog.records if "lag" in record.getMessage()]
    assert warnings == ["flights-0: the lag cannot be measured: /in: cannot be listed; allowed: later"]


@ci_only("a minute, one Spark more; in a user's run, test_worker_process kills Java, test_watchdog stalls tasks")
def test_task_whose_java_is_suspended_is_stalled_and_starts_again_on_a_new_java(tmp_path: Path, spark: None) -> None:
    """SIGSTOP: every call of Java hangs, also the stop of the query. No row is lost or doubled."""
    bench = Bench(tmp_path, "sqlite")
    bench.write("one.csv", range(10))
    states: list[UnitState] = []
    unit, config = Unit("flights", 0), bench.config() | {"task.progress.timeout.ms": "30000"}

    async def run() -> None:
        async def publish(name: str, epoch: int, configs: object) -> None: ...

        runner = TaskRunner(
            "a",
            RunnerSettings(scratch=tmp_path / "scratch", retry_initial_s=0.1, allowed_paths=None),
            load_class=lambda name: PipelineConnector,
            publish=publish,
            report=lambda status: states.append(UnitState(status.state)),
        )
        connector = PipelineConnector("flights", bench.config())
        task = connector.task_configs(1)[0]
        await runner.start([Grant(unit=unit, owner_epoch=1, connector_config=config, config=task)])
        try:
            await asyncio.to_thread(wait, lambda: UnitState.RUNNING in states and bench.seen() == [*range(10)])
            gateway = spark_session().sparkContext._gateway
            assert gateway is not None
            os.kill(gateway.proc.pid, signal.SIGSTOP)
            bench.write("one.csv", range(10, 20), mode="a")
            await asyncio.to_thread(wait, lambda: bench.seen() == [*range(20)])
            assert UnitState.STALLED in states
            await asyncio.to_thread(wait, lambda: states[-1] is UnitState.RUNNING)
        finally:
            await runner.stop(frozenset({unit}))

    asyncio.run(run())


@ci_only("three starts of Java, 25 s of a core; in a user's run, test_worker_process kills the Java of running tasks")
def test_spark_starts_again_after_its_java_was_killed_while_it_started(
    table: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pyspark keeps the connection to the first one: each further start would fail with it."""
    from pyspark import SparkContext

    stop_session()
    killed = list[subprocess.Popen[bytes]]()
    initialize = SparkContext._initialize_context

    def kill_once(self: SparkContext, conf: object) -> object:
        if not killed:
            killed.append(SparkContext._gateway.proc)  # type: ignore[union-attr]
            killed[0].kill()
            killed[0].wait()
        return initialize(self, conf)

    monkeypatch.setattr(SparkContext, "_initialize_context", kill_once)
    with pytest.raises(Exception):  # noqa: B017 (py4j has several for a connection that has ended)
        spark_session()
    assert len(killed) == 1
    table.write("one.csv", range(10))
    run = table.start(1)
    run.wait(lambda: table.seen() == [*range(10)])
    assert spark_session().range(3).count() == 3
    run.task.stop()
