"""``connectgroup up --shared-spark``: one Java process for all workers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
from pathlib import Path

import pytest

from tests.integration.processes import Program, call_command, family, marked, wait
from tests.volume import ci_only

pytest.importorskip("grpc_status", reason="the extra 'spark-connect' is not installed")

ROWS = 6_000
PATIENCE_S = 240.0


def java_of(up: Program) -> list[int]:
    """The process ids of Java below ``up``."""
    return [pid for pid, command in family(up.pid).items() if "/bin/java " in command]


@ci_only("a minute; in a user's run, test_connect kills a worker on a server, and test_readme runs up")
@pytest.mark.processes
@pytest.mark.timeout(900)
def test_workers_share_one_java_that_may_die(tmp_path: Path) -> None:
    """Each row arrives once although Java is killed; and Java ends when ``up`` is killed."""
    config = {
        "connector.class": "pipeline",
        "tasks.max": "2",
        "source": "datagen",
        "source.rows": str(ROWS),
        "source.rows.per.second": "400",
        "sink": "sqlite",
        "sink.path": str(tmp_path / "o.db"),
        "sink.table": "t",
    }
    file = tmp_path / "c.json"
    file.write_text(json.dumps({"name": "c", "config": config}))

    def rows() -> list[int]:
        with contextlib.suppress(sqlite3.OperationalError), sqlite3.connect(tmp_path / "o.db") as connection:
            return [number for (number,) in connection.execute("SELECT id FROM t")]
        return []

    options = ["--workers", "2", "--port", "0", "--data", str(tmp_path / "data"), "--connector", str(file)]
    with marked(), Program("up", "--shared-spark", *options, cwd=tmp_path) as up:
        at = up.line_with("coordinator at ").removeprefix("coordinator at ").partition(",")[0]
        wait("rows", lambda: len(rows()) > 0, up.output, PATIENCE_S)
        [java] = java_of(up)
        os.kill(java, signal.SIGKILL)
        assert len(rows()) < ROWS, "Java was killed too late to prove anything"
        up.line_with("Spark Connect server ended with code -9; it is started again")
        wait("all rows", lambda: len(rows()) >= ROWS, up.output, PATIENCE_S)
        assert sorted(rows()) == [*range(ROWS)]
        assert "RUNNING" in call_command("connectors", "status", "c", "--coordinator", at).out
        assert len(java_of(up)) == 1
        up.signal(signal.SIGKILL)
        up.ended()
    # ``marked`` has waited for the end of every process.


def test_spark_that_cannot_start_is_reported(tmp_path: Path) -> None:
    environment = {"CONNECTGROUP_SPARK_MEMORY": "none"}
    options = ["--port", "0", "--data", str(tmp_path / "data")]
    with Program("up", "--shared-spark", *options, cwd=tmp_path, environment=environment) as up:
        assert up.ended() == 2
        assert "connectgroup: Spark has ended: " in up.output()
        assert "Traceback" not in up.output()
