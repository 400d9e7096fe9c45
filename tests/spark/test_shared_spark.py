"""``connectgroup up``: one Java process for all workers, and what a fault of one of them does to the others."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.integration.processes import Program, call_command, marked, programs, wait
from tests.volume import ci_only

from .test_worker_process import java_that_waits

ROWS = 6_000
PATIENCE_S = 300.0
ODD_NAME = """it's "a" folder, 100%20 #1 {ł} \\"""

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]


def java_of(up: Program) -> list[int]:
    """The process ids of Java below ``up``, without those that only say its version or how to start it."""
    moments = ("-XshowSettings", "org.apache.spark.launcher.Main")
    return [
        pid
        for pid, command in programs(up.pid).items()
        if "/bin/java " in command and not any(each in command for each in moments)
    ]


def workers_of(up: Program) -> list[int]:
    """The process ids of its workers."""
    return [pid for pid, command in programs(up.pid).items() if " worker --supervised " in command]


class Flow:
    """A connector whose rows Spark reads, as it transforms them."""

    def __init__(self, folder: Path, *, tasks: int = 2, rows: int = ROWS, rows_per_s: int = 300) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.file = folder, folder / "c.json"
        config = {
            "connector.class": "pipeline",
            "trigger.ms": "1000",
            "tasks.max": str(tasks),
            "source": "datagen",
            "source.rows": str(rows),
            "source.rows.per.second": str(rows_per_s),
            "transforms": "same",
            "transforms.same.type": "sql",
            "transforms.same.query": "SELECT id FROM batch",
            "sink": "sqlite",
            "sink.path": str(folder / "o.db"),
            "sink.table": "t",
        }
        self.file.write_text(json.dumps({"name": "c", "config": config}))

    def rows(self) -> list[int]:
        with (
            contextlib.suppress(sqlite3.OperationalError),
            closing(sqlite3.connect(self.folder / "o.db")) as connection,
        ):
            return sorted(number for (number,) in connection.execute("SELECT id FROM t"))
        return []

    @contextlib.contextmanager
    def up(self, workers: int = 2, **environment: str) -> Iterator[Program]:
        options = ["--workers", str(workers), "--port", "0", "--connector", str(self.file)]
        with marked(), Program("up", *options, cwd=self.folder, environment=environment) as up:
            yield up
        # ``marked`` has waited for the end of every process.


@ci_only(
    "two minutes on a busy machine; in a user's run, the next test starts a shared Java, and test_faults kills workers"
)
def test_workers_share_one_java_and_recover_when_it_is_killed(tmp_path: Path) -> None:
    """Each row arrives once although first a worker and then Java is killed; and Java ends when ``up`` is killed."""
    flow = Flow(tmp_path)
    with flow.up() as up:
        at = up.line_with("coordinator at ").removeprefix("coordinator at ").partition(",")[0]
        wait("rows", flow.rows, up.output, PATIENCE_S)
        [java] = java_of(up)
        os.kill(workers_of(up)[-1], signal.SIGKILL)
        up.line_with("died (SIGKILL)")
        count = len(flow.rows())
        wait("more rows", lambda: len(flow.rows()) > count, up.output, PATIENCE_S)
        assert java_of(up) == [java], "the worker that died has left Java to the other"
        os.kill(java, signal.SIGKILL)
        up.line_with("Spark's Java process ended with code -9; it is started again")
        wait("all rows", lambda: len(flow.rows()) >= ROWS, up.output, PATIENCE_S)
        assert flow.rows() == [*range(ROWS)]
        assert "RUNNING" in call_command("connectors", "status", "c", "--coordinator", at).out
        assert len(java_of(up)) == 1
        # A Python process of Spark's whose Java is killed before it has answered it prints one.
        assert not [line for line in up.lines if "Traceback" in line and not line.startswith("spark | ")]
        up.signal(signal.SIGKILL)
        up.ended()


def test_tasks_say_that_spark_starts_and_do_not_run_before(tmp_path: Path) -> None:
    """Nor does the group look as if rows could flow. The name of the directory and the environment are no obstacle."""
    home, go = java_that_waits(tmp_path / "java")
    flow = Flow(tmp_path / ODD_NAME)
    # The locale is one in which Java knows no letters but ASCII; and another Spark is installed, or was.
    with flow.up(JAVA_HOME=str(home), LC_ALL="C", SPARK_HOME=str(tmp_path / "none")) as up:
        at = up.line_with("coordinator at ").removeprefix("coordinator at ").partition(",")[0]
        assert up.line_with(" | 0 workers | ").startswith("starting Spark, "), "Spark starts beside the workers"

        def shown() -> bool:
            text = call_command("connectors", "status", "c", "--coordinator", at).out
            return text.count("STARTING") >= 2 and "starting Spark, " in text

        wait("the start of Spark in the status", shown, up.output, PATIENCE_S)
        describe = "groups", "describe", "workers", "--coordinator", at
        wait("the same of the group", lambda: "Stable, starting Spark, " in call_command(*describe).out, up.output)
        up.line_with("starting Spark, ")
        assert not [line for line in up.lines if line.startswith("Stable") and "3/3" in line], up.output()
        go.touch()
        wait("rows", flow.rows, up.output, PATIENCE_S)
        up.line_with("Stable | ")
        assert [path.name for path in flow.folder.iterdir() if path.is_dir()] == ["connectgroup-data"]


@ci_only("starts one more Java; in a user's run, the start of Spark is tested by the test before")
def test_java_whose_start_fails_without_its_end_is_started_again(tmp_path: Path) -> None:
    """Java cannot write the note about its gateway: its first thread ends, others run."""
    home, go = java_that_waits(tmp_path / "java")
    notes = tmp_path / "notes"
    notes.mkdir()
    flow = Flow(tmp_path / "group")
    with flow.up(JAVA_HOME=str(home), TMPDIR=str(notes)) as up:
        wait("Java", lambda: any(f"{home}/bin/java" in each for each in programs(up.pid).values()), up.output)
        for note in notes.iterdir():
            shutil.rmtree(note)
        go.touch()
        up.line_with("Spark has ended: Exception in thread")
        wait("rows of the next start", flow.rows, up.output, PATIENCE_S)


def test_spark_that_cannot_start_is_reported_by_its_tasks(tmp_path: Path) -> None:
    flow = Flow(tmp_path)
    with flow.up(CONNECTGROUP_SPARK_MEMORY="none") as up:
        at = up.line_with("coordinator at ").removeprefix("coordinator at ").partition(",")[0]
        # The cause, and not the end of the many lines that Spark writes after it.
        up.line_with("Spark has ended: Error")

        def failed() -> bool:
            text = call_command("connectors", "status", "c", "--coordinator", at).out
            return "FAILED" in text and "Spark has ended: " in text

        wait("the error in the status", failed, up.output, PATIENCE_S)
        assert "Traceback" not in "\n".join(up.lines)
