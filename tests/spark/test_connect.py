"""The same connectors on a Spark Connect server: the worker drives the batches and commits them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

from connectgroup import plugins
from connectgroup.connectors.pipeline import PipelineConnector
from connectgroup.dataplane.errors import TaskFenced
from connectgroup.errors import ConfigError
from connectgroup.spark.errors import SparkError
from connectgroup.spark.java import ensure_java, kafka_jars
from connectgroup.spark.remote import REMOTE, RemoteSession, TaskKey, check_server
from tests.integration.processes import Program, family, started, wait
from tests.spark.conftest import Bench
from tests.spark.kafka_topics import make_topic, produce
from tests.spark.test_iterator_source import Lines
from tests.volume import ci_only

from .test_shared_spark import Flow

pytest.importorskip("grpc_status", reason="the extra 'spark-connect' is not installed")

pytestmark = pytest.mark.timeout(900)

TOKEN = "of the server"
ROWS = 3_000
PATIENCE_S = 240.0
UI: list[int] = []
"""Port of the server's REST interface."""

ENDLESS = """
import os
from connectgroup.spark.remote import RemoteSession, TaskKey
remote = RemoteSession(TaskKey(task="a task", fencing_token=1))
print(remote.session.session_id, flush=True)
remote.session.range(0, 1 << 60, 1, 1).selectExpr("sum(id % 7)").collect()
"""


@pytest.fixture(scope="module")
def connect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Spark Connect server, which workers of this module use."""
    root = tmp_path_factory.mktemp("connect")
    spark = Path(pyspark.__file__).parent
    options = {
        "spark.master": "local[2]",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Djava.net.preferIPv4Stack=true",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.local.dir": str(root),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(root / "warehouse"),
    }
    environment = {
        "JAVA_HOME": str(ensure_java()),
        "SPARK_HOME": str(spark),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(Path(plugins.__file__).parents[1]),
        "SPARK_CONNECT_AUTHENTICATE_TOKEN": TOKEN,
    }
    with contextlib.suppress(ConfigError, SparkError):  # without Maven; the test of Kafka needs them
        options["spark.jars"] = ",".join(map(str, kafka_jars()))
    spark_submit = (
        spark / "bin" / "spark-submit",
        "--class",
        "org.apache.spark.sql.connect.service.SparkConnectServer",
    )

    def launch(port: int, ui: int) -> Program:
        ports = {"spark.connect.grpc.binding.port": port, "spark.ui.port": ui}
        arguments = [text for name, value in {**options, **ports}.items() for text in ("--conf", f"{name}={value}")]
        return Program(*arguments, "spark-internal", environment=environment, command=spark_submit, cwd=root)

    server, (port, ui) = started("the Spark Connect server", launch, lambda port, ui: listens(port), 2, PATIENCE_S)
    UI[:] = [ui]
    with server, pytest.MonkeyPatch.context() as patched:
        patched.setenv(REMOTE, f"sc://localhost:{port}/;token={TOKEN.replace(' ', '%20')}")
        # ``check_server`` sets it. Other modules use a Spark of this process, whose functions it would change.
        patched.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
        check_server()
        yield os.environ[REMOTE]


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@pytest.fixture
def bench(tmp_path: Path, connect_server: str) -> Iterator[Bench]:
    """Tasks between a directory of files and SQLite, on the server."""
    made = Bench(tmp_path, "sqlite")
    yield made
    for run in made.runs:
        run.task.stop()


def jobs(status: str) -> int:
    """How many jobs of the server have this status."""
    base = f"http://127.0.0.1:{UI[0]}/api/v1/applications"
    with urllib.request.urlopen(base, timeout=30) as answer:
        [application] = json.load(answer)
    with urllib.request.urlopen(f"{base}/{application['id']}/jobs?status={status}", timeout=30) as answer:
        return len(json.load(answer))


def test_files_are_read_and_transformed_on_the_server_and_bad_lines_are_dead_letters(bench: Bench) -> None:
    bench.write("a.csv", range(50))
    bench.write("b.csv", range(50, 100))
    settings: Any = {
        "transforms": "cast,back",
        "transforms.cast.type": "Cast",
        "transforms.cast.spec": "a:int64",
        "transforms.back.type": "sql",
        "transforms.back.query": "SELECT CAST(a AS INT) AS a, b FROM batch",
        "errors.tolerance": "all",
        "errors.deadletterqueue.name": "letters",
    }
    run = bench.start(1, **settings)
    run.wait(lambda: bench.output.exists() and bench.seen() == [*range(100)])
    with (bench.input / "b.csv").open("a") as file:
        file.write("100,row 100\nnot a number,x\n101,row 101\n")
    run.wait(lambda: bench.seen() == [*range(102)])
    with contextlib.closing(sqlite3.connect(bench.output)) as connection:
        [(record,)] = connection.execute("SELECT record FROM letters")
    assert record == "not a number,x"
    run.wait(lambda: sum(run.rows) == 102)  # reported after the commit
    run.task.stop()
    bench.write("c.csv", range(102, 110))
    again = bench.start(2, **settings)
    again.wait(lambda: bench.seen() == [*range(110)])


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("SELECT missing FROM batch", "Spark SQL over the columns"),
        ("INSERT OVERWRITE DIRECTORY '{out}' USING text SELECT b FROM batch", "runs no program"),
        ("CACHE TABLE batch", "Spark SQL over the columns"),
        ("SELECT a, value AS b FROM batch, text.`{file}`", "Spark SQL over the columns"),
        ("SELECT TRANSFORM(a) USING 'cat' AS (a INT) FROM batch", "runs no program"),
        ("SELECT a FROM batch WHERE b IN (SELECT TRANSFORM(b) USING 'cat' AS (x) FROM batch)", "runs no program"),
        (
            "SELECT a, system.builtin.java_method('java.lang.System', 'getProperty', b) AS b FROM batch",
            "functions of Spark",
        ),
        ("SELECT a, IDENTIFIER('ref' || 'lect')('java.lang.System', 'getProperty', b) AS b FROM batch", "IDENTIFIER"),
        ("SELECT a FROM batch WHERE try_reflect('java.lang.System', 'getProperty', b) = ''", "functions of Spark"),
        (
            "SELECT a, from_xml('<a>1</a>', 'a INT', map('rowValidationXSDPath', '{url}')).a AS b FROM batch",
            "functions of Spark",
        ),
        ("SELECT a, xpath_string('<!DOCTYPE a SYSTEM \"{url}\"><a>1</a>', 'a') AS b FROM batch", "functions of Spark"),
        ("SELECT a, b AS user, upper(user) AS u FROM batch", "an expression with user'"),
        ("SELECT a, x AS b FROM batch, global_temp.of_another_client", "the view batch"),
        ("SELECT a, (SELECT max(x) FROM global_temp.of_another_client) AS b FROM batch", "the view batch"),
    ],
)
def test_query_that_reaches_more_than_the_rows_is_an_error_at_the_start(bench: Bench, query: str, reason: str) -> None:
    file, out = bench.root / "secret.txt", bench.root / "dir"
    file.write_text("canary")
    check = RemoteSession(TaskKey(task="another client", fencing_token=1))
    check.session.sql("SELECT 'canary' AS x").createOrReplaceGlobalTempView("of_another_client")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        text = query.format(file=file, out=out, url=f"http://127.0.0.1:{listening.getsockname()[1]}/x")
        with pytest.raises(ConfigError, match=rf"transforms\.t\.query: .*{reason}"):
            bench.start(1, transforms="t", transforms_t_type="sql", transforms_t_query=text)
        listening.setblocking(False)
        with pytest.raises(BlockingIOError):
            listening.accept()
    check.close()
    assert not out.exists()


def test_task_with_an_older_owner_epoch_is_fenced_and_its_session_released(bench: Bench) -> None:
    bench.write("a.csv", range(10))
    zombie = bench.start(1)
    zombie.wait(lambda: bench.output.exists() and bench.seen() == [*range(10)])
    heir = bench.start(2)
    bench.write("a.csv", range(10, 20), mode="a")
    heir.wait(lambda: bench.seen() == [*range(20)])
    error = zombie.failure()
    assert isinstance(error, TaskFenced | SparkError), error
    with pytest.raises(TaskFenced):
        bench.start(1)
    assert bench.seen() == [*range(20)]


def test_rows_of_an_iterator_are_transformed_on_the_server(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    load = plugins.load_source_class
    for module in ("connectgroup.connectors.pipeline", "connectgroup.plugins"):
        monkeypatch.setattr(f"{module}.available", lambda kind: ["lines", "sqlite"])
    monkeypatch.setattr(
        "connectgroup.connectors.pipeline.load_source_class", lambda name: Lines if name == "lines" else load(name)
    )
    (bench.input / "one.jsonl").write_text("".join(f'{{"a": {n}, "b": "x"}}\n' for n in range(20)))
    query = "SELECT a, upper(user) AS b FROM (SELECT a, b user FROM batch)"
    path = str(bench.input)
    run = bench.start(
        1, source="lines", source_path=path, transforms="t", transforms_t_type="sql", transforms_t_query=query
    )
    run.wait(lambda: bench.output.exists() and bench.seen() == [*range(20)])
    with contextlib.closing(sqlite3.connect(bench.output)) as connection:
        assert connection.execute("SELECT DISTINCT b FROM t").fetchall() == [("X",)]


@ci_only("a broker and a server, 12 s; in a user's run, the server reads files, and a worker's own Spark reads Kafka")
def test_kafka_is_read_by_the_server_once_across_owners(bench: Bench, kafka: str) -> None:
    make_topic(kafka, "over-connect", 2)
    produce(kafka, "over-connect", [(n % 2, f"{n}", f'{{"a": {n}, "b": "x"}}') for n in range(20)])
    settings: Any = {
        "source": "kafka",
        "source.bootstrap.servers": kafka,
        "source.topics": "over-connect",
        "source.schema": "a INT, b STRING",
        "source.max.rows.per.batch": "6",
    }
    first = bench.start(1, **settings)
    first.wait(lambda: bench.output.exists() and bench.seen() == [*range(20)])
    first.wait(lambda: len(first.rows) > 3)  # several batches; reported after the commit
    first.task.stop()
    produce(kafka, "over-connect", [(n % 2, f"{n}", f'{{"a": {n}, "b": "x"}}') for n in range(20, 30)])
    second = bench.start(2, **settings)
    second.wait(lambda: bench.seen() == [*range(30)])


def test_source_with_offsets_of_spark_alone_is_rejected_by_name(bench: Bench) -> None:
    config = {"source": "spark", "source.format": "rate", "sink": "sqlite", "sink.path": "/o.db", "sink.table": "t"}
    with pytest.raises(
        ConfigError, match=r"^source: got 'spark'; allowed: with Spark Connect .* files, .*its own Spark"
    ):
        PipelineConnector("c", config)


@pytest.mark.parametrize("address", ["sc://localhost:1", "spark://localhost:1", "sc://localhost:1/path"])
def test_address_of_no_server_is_one_clear_error(
    connect_server: str, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv(REMOTE, address)
    monkeypatch.setattr("connectgroup.spark.remote._MAX_RETRIES", 1)
    with pytest.raises((SparkError, ConfigError), match=r"does not answer .*allowed: one|allowed: sc://HOST:PORT"):
        check_server()


def test_operation_of_a_killed_worker_is_ended_by_the_next_owner_of_its_task(connect_server: str) -> None:
    with subprocess.Popen([sys.executable, "-c", ENDLESS], stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        orphan = worker.stdout.readline().strip()
        wait("a running job", lambda: jobs("running") == 1, patience_s=PATIENCE_S)
        worker.kill()
    assert jobs("running") == 1, "a killed client does not end its operation"
    late = RemoteSession(TaskKey(task="a task", fencing_token=0))
    assert jobs("running") == 1, "an older grant releases nothing"
    other = RemoteSession(TaskKey(task="another task", fencing_token=2))
    assert jobs("running") == 1, "another task's session is left alone"
    heir = RemoteSession(TaskKey(task="a task", fencing_token=2))
    wait("the end of the job", lambda: jobs("running") == 0, patience_s=PATIENCE_S)
    assert heir.session.session_id != orphan
    for each in (late, other, heir):
        assert each.is_alive()
        each.close()


@ci_only("10 s of a core; in a user's run, the tests above: an older owner is fenced, and what was killed is ended")
@pytest.mark.processes
@pytest.mark.timeout(900)
def test_rows_arrive_once_when_a_worker_on_a_server_is_killed(connect_server: str, tmp_path: Path) -> None:
    flow = Flow(tmp_path, tasks=1, rows=ROWS, rows_per_s=500)

    with flow.up(workers=1) as up:
        wait("the first rows", lambda: len(flow.rows()) > 0, up.output, PATIENCE_S)
        processes = family(up.pid)
        assert not [line for line in processes.values() if "java" in line.split(" ")[0]], "no worker has a Java"
        [worker] = [pid for pid, line in processes.items() if "worker --supervised" in line]
        os.kill(worker, signal.SIGKILL)
        wait("all rows", lambda: len(flow.rows()) >= ROWS, up.output, PATIENCE_S)
        assert flow.rows() == [*range(ROWS)]
        up.signal(signal.SIGTERM)
        assert up.ended() == 0
    wait("the end of every job", lambda: jobs("running") == 0, patience_s=PATIENCE_S)
