"""Spark's processes when the worker's process ends, in every way."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from connectgroup.spark.java import find_java
from tests.integration.commands import CommandGroup
from tests.integration.processes import Program, call_command, family, marked, programs, wait as wait_for
from tests.volume import volume

from .conftest import Bench, wait
from .kafka_topics import make_topic, produce, topic

pytestmark = pytest.mark.timeout(600)  # the start of Spark takes minutes on a busy machine

WORKER = """
import sys, threading, time
from pathlib import Path
from connectgroup.connector import TaskContext
from connectgroup.connectors.pipeline import PipelineConnector
from connectgroup.protocol.units import Unit

root = Path(sys.argv[1])
PipelineConnector.warm_up()
connector = PipelineConnector("flights", {
    "source": "files", "source.path": str(root / "in"), "source.format": "csv", "source.schema": "a INT, b STRING",
    "sink": "sqlite", "sink.path": str(root / "out.db"), "sink.table": "t", "trigger.ms": "20",
    "source.max.bytes.per.batch": "1024",
})
some = threading.Event()

def on_progress(rows):
    print("rows", rows, flush=True)
    some.set()

def started(epoch):
    task = connector.task(connector.task_configs(1)[0], TaskContext(
        unit=Unit("flights", 0), owner_epoch=epoch, member_id="m", scratch=root / "s",
        progress=on_progress, failed=lambda error: print("failed", error, flush=True),
    ))
    task.start()
    return task

task = started(1)
try:
    print("started", flush=True)
    threading.Event().wait()
except KeyboardInterrupt:
    task.stop()
    print("stopped", flush=True)
    for epoch in range(2, int(sys.argv[2])):
        some.clear()
        task = started(epoch)
        some.wait()
        time.sleep(0.02 * epoch)
        task.stop()
    print("stopped again", flush=True)
"""


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except OSError:
        return False


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A worker process during a batch, and its output lines; killed at the end if still alive."""
    made = Bench(tmp_path, "sqlite")
    made.write("one.csv", range(20_000))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    # Spark's Python workers are started in this directory too; its modules must not shadow the standard ones.
    here = tmp_path / "here"
    here.mkdir()
    (here / "numbers.py").write_text("raise ImportError('numbers of the current directory')\n")
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", WORKER, str(tmp_path), str(volume(5, 8))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=here,
        start_new_session=True,
    )
    lines: list[str] = []
    assert process.stdout is not None
    threading.Thread(target=lines.extend, args=(iter(process.stdout.readline, ""),), daemon=True).start()

    def works() -> bool:
        # Rows may be written before ``start`` has returned; an interrupt that early would not reach the handler.
        return "started\n" in lines and sum(line.startswith("rows") for line in lines) > 3

    try:
        wait(lambda: works() or process.poll() is not None)
        assert process.poll() is None, process.stderr and process.stderr.read()
        yield process, lines
    finally:
        process.kill()
        process.wait()


def test_killed_worker_takes_java_and_every_python_helper_with_it(
    worker: tuple[subprocess.Popen[str], list[str]], tmp_path: Path, spark: None
) -> None:
    """SIGKILL during a batch: no process keeps running, and a successor writes every row once."""
    process, _ = worker
    below = family(process.pid)
    assert any("org.apache.spark.deploy.SparkSubmit" in command for command in below.values()), below
    assert any("python_streaming_source_runner" in command for command in below.values()), below
    process.kill()
    process.wait()
    wait(lambda: not any(alive(pid) for pid in below))

    (tmp_path / "again").mkdir()
    successor = Bench(tmp_path / "again", "sqlite")
    successor.input, successor.output = tmp_path / "in", tmp_path / "out.db"
    assert 0 < len(successor.seen()) < 20_000
    run = successor.start(2)
    run.wait(lambda: len(successor.seen()) >= 20_000)
    run.task.stop()
    assert successor.seen() == [*range(20_000)]


def test_worker_whose_java_was_killed_logs_it_once_and_starts_a_new_one(
    tmp_path: Path, spark: None, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """The out-of-memory killer ends Java but not Python. Each task reports one line; there is no stack trace."""
    bench = Bench(tmp_path, "sqlite")
    bench.write("one.csv", range(10))
    run, other = (bench.start(1, task=task, tasks=2) for task in range(2))
    run.wait(lambda: bench.seen() == [*range(10)])
    # Worker processes of other tests may still be there, each with a Java process of its own.
    java = [
        pid
        for pid, command in family(os.getpid()).items()
        if "deploy.SparkSubmit" in command and parent_of(pid) == os.getpid()
    ]
    assert len(java) == 1
    os.kill(java[0], signal.SIGKILL)
    for each in (run, other):
        ended = "Spark's Java process has ended; allowed: the task starts again, on a new one"
        assert str(each.failure()) == ended
        each.task.stop()
    # A Python process of Spark's whose Java is killed before it has answered it prints one.
    tracebacks = capfd.readouterr().err.split("Traceback (most recent call last):")[1:]
    assert not [text for text in tracebacks if "pyspark/daemon.py" not in text]
    assert not [record for record in caplog.records if record.exc_info is not None]
    bench.write("one.csv", range(10, 20), mode="a")
    again = bench.start(2)
    again.wait(lambda: len(bench.seen()) >= 20)
    assert bench.seen() == [*range(20)]
    again.task.stop()


def test_interrupt_of_the_process_group_stops_the_worker_in_order(
    worker: tuple[subprocess.Popen[str], list[str]], tmp_path: Path
) -> None:
    """Ctrl-C reaches the whole process group; Java is not in it, so queries are stopped cleanly. So are others
    during their batches: Spark searched the text of their errors for the interruption, and overflowed Java's stack.
    """
    process, lines = worker
    below = family(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    code = process.wait(timeout=120)
    # Standard error ends when the last process that has inherited it ends.
    wait(lambda: not any(alive(pid) for pid in below))
    assert process.stderr is not None
    complaints = process.stderr.read()
    assert code == 0, complaints
    wait(lambda: "stopped again\n" in lines)
    assert not [line for line in lines if line.startswith("failed")]
    assert complaints == "", "no output on a terminal"


def java_that_waits(directory: Path) -> tuple[Path, Path]:
    """A home of Java whose Java starts nothing until a file is there; and that file."""
    go, script = directory / "go", directory / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(
        f"""#!/bin/sh
        case "$*" in
          *-XshowSettings*) echo 'java.home = {directory}' >&2; echo 'java.specification.version = 17' >&2; exit ;;
          *deploy.SparkSubmit*) while ! [ -e '{go}' ]; do sleep 0.1; done ;;
        esac
        exec '{find_java()}' "$@"
        """
    )
    script.chmod(0o755)
    return directory, go


@pytest.mark.processes
def test_rows_arrive_while_spark_starts_and_spark_goes_on_where_they_end(tmp_path: Path, kafka: str) -> None:
    """Files and records that Python reads, without transforms: the first rows do not wait for Java, and no row is lost
    or doubled when Spark takes the task over."""
    home, go = java_that_waits(tmp_path / "java")
    source, sink = tmp_path / "in", tmp_path / "out.db"
    source.mkdir()

    def write(rows: range) -> None:
        (tmp_path / "part").write_text("".join(f"{row}\n" for row in rows))
        (tmp_path / "part").rename(source / f"{rows.start}.txt")
        produce(kafka, name, [(row % 3, None, str(row)) for row in rows])

    def rows(table: str) -> list[int]:
        with suppress(sqlite3.OperationalError), closing(sqlite3.connect(sink)) as connection:
            return sorted(int(value) for (value,) in connection.execute(f"SELECT value FROM {table}"))
        return []

    def are(expected: range) -> bool:
        return all(rows(table) == [*expected] for table in sources)

    name = topic(tmp_path)
    make_topic(kafka, name)
    write(range(100))
    sources = {
        "f": {"source": "files", "source.path": str(source), "source.format": "text"},
        "k": {"source": "kafka", "source.bootstrap.servers": kafka, "source.topics": name},
    }
    words = ["up", "--port", "0", "--workers", "1", "--data", str(tmp_path / "data")]
    for table, settings in sources.items():
        config = {"connector.class": "pipeline", "sink": "sqlite", "sink.path": str(sink), "sink.table": table}
        connector = tmp_path / f"{table}.json"
        connector.write_text(json.dumps({"name": table, "config": config | settings}))
        words += ["--connector", str(connector)]
    with Program(*words, cwd=tmp_path, environment={"JAVA_HOME": str(home)}) as up:
        wait_for("the first rows", lambda: are(range(100)), up.output)
        at = up.line_with("coordinator at ").removeprefix("coordinator at ").partition(",")[0]
        for table in sources:
            status = "connectors", "status", table, "--coordinator", at
            wait_for("a task that runs", lambda status=status: "RUNNING" in call_command(*status).out)  # type: ignore[misc]
        write(range(100, 200))
        wait_for("more rows", lambda: are(range(200)), up.output)
        go.touch()
        write(range(200, 300))
        follows = "Spark has started, and reads from here on"
        wait_for("the queries of Spark", lambda: sum(follows in line for line in up.lines) == 2, up.output)
        write(range(300, 400))
        wait_for("rows that Spark reads", lambda: all(len(rows(table)) >= 400 for table in sources), up.output)
        assert are(range(400))
        assert "FAILED" not in "\n".join(up.lines)


@pytest.mark.processes
def test_worker_that_is_stopped_while_its_java_starts_leaves_no_process(tmp_path: Path) -> None:
    """Its task runs without Java. Java that went on starting held the worker's output open, and did not end at all
    when it found that the worker's directory was deleted."""
    home, _ = java_that_waits(tmp_path / "java")
    sink = {"sink": "jsonl", "sink.path": str(tmp_path / "out")}
    with CommandGroup(tmp_path, tasks=1) as group:
        group.put_config("c", {"connector.class": "pipeline", "source": "datagen", **sink})
        with marked(), group.worker("w", environment={"JAVA_HOME": str(home)}) as worker:
            wait_for("rows", lambda: [*(tmp_path / "out").glob("*.jsonl")], worker.output)
            wait_for("Java", lambda: any(f"{home}/bin/java" in each for each in programs(worker.pid).values()))
            worker.signal(signal.SIGTERM)
            assert worker.ended() == 0, worker.output()
            assert "Traceback" not in worker.output()


@pytest.mark.processes
def test_up_that_is_stopped_while_spark_starts_ends_and_leaves_no_process(tmp_path: Path, spark: None) -> None:
    """Java needs a directory of the worker until it has started; without it, it ran on and held the output open."""
    config = {"connector.class": "pipeline", "source": "datagen", "sink": "console"}
    connector = tmp_path / "c.json"
    connector.write_text(json.dumps({"name": "c", "config": config}))
    up = ("up", "--port", "0", "--workers", "1", "--data", tmp_path / "data", "--connector", connector)
    with Program(*up) as program:
        java = wait_for(
            "the start of Java",
            lambda: [pid for pid, line in programs(program.pid).items() if "deploy.SparkSubmit" in line],
            program.output,
        )
        program.signal(signal.SIGTERM)
        assert program.ended() == 0
        assert "did not end within" not in program.output()
        assert "Traceback" not in program.output()
        wait(lambda: not any(alive(pid) for pid in java))
