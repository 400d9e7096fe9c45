"""The same connectors on a cluster of Spark with two executors, each a process of its own."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pyspark
import pytest

from connectgroup.errors import ConfigError
from connectgroup.spark.session import DRIVER_HOST, MASTER, SECRET, settings
from tests.integration.processes import Program, marked, wait
from tests.volume import volume

ROWS = 5_000
PATIENCE_S = 240.0
"""Limit of every wait, for a loaded machine too."""


def test_cluster_needs_a_secret_and_local_mode_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRET, raising=False)
    monkeypatch.setenv(MASTER, "local[3]")
    assert "spark.authenticate.secret" not in settings()
    monkeypatch.setenv(MASTER, "spark://one:7077")
    with pytest.raises(ConfigError, match=r"allowed: spark\.authenticate\.secret of the cluster spark://one:7077"):
        settings()
    monkeypatch.setenv(SECRET, "of the cluster")
    monkeypatch.setenv(DRIVER_HOST, "10.0.0.1")
    found = settings()
    assert found["spark.authenticate.secret"] == "of the cluster"
    assert (found["spark.driver.host"], found["spark.driver.bindAddress"]) == ("10.0.0.1", "10.0.0.1")


@contextlib.contextmanager
def executor_logs_deleted() -> Iterator[None]:
    """A cluster of one process writes the executors' logs below the package; no setting changes that."""
    logs = Path(pyspark.__file__).parent / "work"
    before = {*logs.iterdir()} if logs.exists() else None
    try:
        yield
    finally:
        if before is None:
            shutil.rmtree(logs, ignore_errors=True)
        else:
            for new in {*logs.iterdir()} - before:
                shutil.rmtree(new)


def in_the_soak(test: Callable[[Path], None]) -> Callable[[Path], None] | None:
    """A test that takes 40 s of processor time; elsewhere there is no such test."""
    return test if volume(0, 0, 1) else None


@in_the_soak
@pytest.mark.processes
@pytest.mark.timeout(900)
def test_rows_arrive_once_from_a_cluster_of_two_executors(tmp_path: Path) -> None:
    config = {
        "connector.class": "pipeline",
        "source": "datagen",
        "source.rows": str(ROWS),
        "sink": "sqlite",
        "sink.path": str(tmp_path / "o.db"),
        "sink.table": "t",
    }
    (tmp_path / "c.json").write_text(json.dumps({"name": "c", "config": config}))
    options = ["--workers", "1", "--port", "0", "--data", str(tmp_path / "data"), "--connector", "c.json"]

    def rows() -> list[int]:
        with contextlib.suppress(sqlite3.OperationalError), sqlite3.connect(tmp_path / "o.db") as connection:
            return [number for (number,) in connection.execute("SELECT id FROM t ORDER BY id")]
        return []

    cluster = {MASTER: "local-cluster[2,1,1024]"}
    with executor_logs_deleted(), marked(), Program("up", *options, cwd=tmp_path, environment=cluster) as up:
        wait("all rows", lambda: len(rows()) >= ROWS, up.output, PATIENCE_S)
        assert rows() == [*range(ROWS)]
