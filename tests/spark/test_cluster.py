"""The same connectors on a standalone cluster of Spark: a master and two workers."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from connectgroup.errors import ConfigError
from connectgroup.spark.java import ensure_java
from connectgroup.spark.session import DRIVER_HOST, MASTER, SECRET, settings
from connectgroup.worker.scratch import Scratch
from tests.conftest import QUICK_JAVA
from tests.integration.processes import Program, marked, programs, wait
from tests.volume import ci_only

from .test_shared_spark import Flow

ROWS = 5_000
SECRET_TEXT = "of the cluster"
WORKERS = ("first", "second")
PATIENCE_S = 240.0
"""Limit of every wait, for a loaded machine too."""


def test_cluster_needs_a_secret_and_local_mode_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRET, raising=False)
    monkeypatch.setenv(MASTER, "local[3]")
    assert "spark.authenticate.secret" not in settings()
    monkeypatch.setenv(MASTER, "spark://one:7077")
    with pytest.raises(ConfigError, match=r"allowed: spark\.authenticate\.secret of the cluster spark://one:7077"):
        settings()
    monkeypatch.setenv(SECRET, SECRET_TEXT)
    monkeypatch.setenv(DRIVER_HOST, "10.0.0.1")
    found = settings()
    assert found["spark.authenticate.secret"] == SECRET_TEXT
    assert (found["spark.driver.host"], found["spark.driver.bindAddress"]) == ("10.0.0.1", "10.0.0.1")


def test_spark_needs_a_secret_and_keeps_its_temporary_files_in_the_scratch(tmp_path: Path) -> None:
    """Java reads no TMPDIR: without its option, native libraries and artifacts stay in /tmp for ever."""
    scratch = Scratch(tmp_path, "w")
    with scratch.for_temporary_files():
        found = settings()
        below = f"{scratch.path}/tmp"
        assert f'"-Djava.io.tmpdir={below}"' in found["spark.driver.extraJavaOptions"]
        assert found["spark.local.dir"] == below
    scratch.remove()
    assert found["spark.authenticate"] == "true"


@contextlib.contextmanager
def standalone_cluster(root: Path) -> Iterator[str]:
    """A master and two workers of Spark with one core each; yields the master's address."""
    spark = Path(pyspark.__file__).parent
    (root / "conf").mkdir()
    secret = f"spark.authenticate true\nspark.authenticate.secret {SECRET_TEXT}\n"
    (root / "conf" / "spark-defaults.conf").write_text(secret)
    environment = {
        "JAVA_HOME": str(ensure_java()),
        "SPARK_HOME": str(spark),
        "SPARK_CONF_DIR": str(root / "conf"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        # Of the daemons and of their executors: as ``conftest`` starts each other Spark.
        "JAVA_TOOL_OPTIONS": f"{QUICK_JAVA} -XX:+UseSerialGC",
    }
    listens = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")

    def started(stack: contextlib.ExitStack, daemon: str, *options: str) -> Program:
        command = (spark / "bin" / "spark-class", f"org.apache.spark.deploy.{daemon}")
        return stack.enter_context(Program(*listens, *options, environment=environment, command=command, cwd=root))

    with contextlib.ExitStack() as stack:
        master = started(stack, "master.Master")
        address = master.line_with("Starting Spark master at ").rpartition(" ")[2]
        for name in WORKERS:
            started(
                stack, "worker.Worker", "--cores", "1", "--memory", "1g", "--work-dir", str(root / name), address
            ).line_with("Successfully registered with master")
        yield address


@ci_only("a minute of a core; in a user's run, the settings above, and rows that arrive once from the other Sparks")
@pytest.mark.processes
@pytest.mark.timeout(900)
def test_rows_arrive_once_from_a_standalone_cluster_when_the_worker_is_killed(tmp_path: Path) -> None:
    """Spark's executors read, the worker commits. A killed driver leaves no executor; its successor gets new ones."""
    flow = Flow(tmp_path, tasks=1, rows=ROWS, rows_per_s=500)

    def applications() -> list[int]:
        """How many applications each of Spark's workers has run an executor for."""
        return [len([*(tmp_path / name).glob("app-*")]) for name in WORKERS]

    with (
        marked(),  # executors, too, which are no processes of ``up``
        standalone_cluster(tmp_path) as master,
        flow.up(workers=1, **{MASTER: master, SECRET: SECRET_TEXT}) as up,
    ):
        wait("the first rows", lambda: len(flow.rows()) > 0, up.output, PATIENCE_S)
        [worker] = [pid for pid, line in programs(up.pid).items() if "worker --supervised" in line]
        os.kill(worker, signal.SIGKILL)
        wait("all rows", lambda: len(flow.rows()) >= ROWS, up.output, PATIENCE_S)
        assert flow.rows() == [*range(ROWS)]
        assert applications() == [2, 2], "both executors of both workers"
        up.signal(signal.SIGTERM)
        assert up.ended() == 0
