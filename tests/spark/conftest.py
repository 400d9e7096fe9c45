"""A pipeline on real Spark as a worker would run it; only the grants are simulated."""

from __future__ import annotations

import contextlib
import itertools
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from connectgroup.connector import Batch, Lag, Task, TaskContext
from connectgroup.connectors.pipeline import PipelineConnector
from connectgroup.protocol.units import Unit
from tests.integration.processes import pause
from tests.volume import ci_only

PATIENCE_S = 120.0
"""Time limit of every wait. It measures nothing; it only ends a test that hangs."""


class Run:
    """One grant of one task, and what the task reported."""

    def __init__(self, task: Task, context: TaskContext, rows: list[int], errors: list[BaseException]) -> None:
        self.task, self.context, self.rows, self.errors = task, context, rows, errors
        self.batches: list[Batch] = []
        self.lags: list[Lag] = []
        self.polls: list[None] = []

    def wait(self, until: Callable[[], bool]) -> None:
        """Wait until the condition holds; fails if the task fails."""
        wait(lambda: bool(self.errors) or until())
        assert not self.errors, self.errors

    def failure(self) -> BaseException:
        """The single error that ends the task."""
        wait(lambda: bool(self.errors))
        time.sleep(0.3)  # a second error would be a defect
        assert len(self.errors) == 1, self.errors
        return self.errors[0]


def streams_of_task() -> set[str]:
    """The streaming queries of ``Bench`` that run: not those with which a session warms up."""
    from connectgroup.spark.session import spark_session

    return {query.id for query in spark_session().streams.active if (query.name or "").startswith("flights")}


class Bench:
    """A directory of input, a sink, and tasks between them.

    Attributes:
        passes_java: whether the tasks have a transform that changes nothing: without one, Spark's workers write the
            rows for a sink of files themselves.
    """

    def __init__(self, root: Path, sink: str) -> None:
        self.root, self.sink = root, sink
        self.input = root / "in"
        self.input.mkdir()
        self.output = root / ("out.db" if sink == "sqlite" else "out")
        self.runs: list[Run] = []
        self.passes_java = False
        self._scratch = itertools.count()
        self._lock = threading.Lock()

    def start(self, epoch: int, *, task: int = 0, tasks: int = 1, **settings: str) -> Run:
        """Grant a task at an epoch and start it."""
        rows: list[int] = []
        errors: list[BaseException] = []
        batches: list[Batch] = []
        lags: list[Lag] = []
        polls: list[None] = []
        context = TaskContext(
            unit=Unit("flights", task),
            owner_epoch=epoch,
            member_id="m",
            scratch=self.root / f"scratch-{next(self._scratch)}",
            progress=rows.append,
            failed=errors.append,
            batch=batches.append,
            lag=lags.append,
            polled=lambda: polls.append(None),
        )
        connector = PipelineConnector("flights", self.config(**settings))
        run = Run(connector.task(connector.task_configs(tasks)[task], context), context, rows, errors)
        run.batches, run.lags, run.polls = batches, lags, polls
        self.runs.append(run)
        run.task.start()
        return run

    def config(self, **settings: str) -> dict[str, str]:
        files = {
            "source": "files",
            "source.path": str(self.input),
            "source.format": "csv",
            "source.schema": "a INT, b STRING",
        }
        config = {
            **({} if "source" in settings else files),
            "sink": self.sink,
            "sink.path": str(self.output),
            "trigger.ms": "50",
        }
        if self.sink == "sqlite":
            config["sink.table"] = "t"
        if self.passes_java:
            query = {"transforms.same.type": "sql", "transforms.same.query": "SELECT * FROM batch"}
            config |= {"transforms": "same"} | query
        return config | {key.replace("_", "."): value for key, value in settings.items()}

    def write(self, name: str, numbers: range, *, mode: str = "w") -> None:
        header = "a,b\n" if mode == "w" else ""
        with (self.input / name).open(mode) as file:
            file.write(header + "".join(f"{n},row {n}\n" for n in numbers))

    def read_order(self) -> list[int]:
        """Every committed row's number, in the order of the table."""
        with contextlib.closing(sqlite3.connect(self.output)) as connection:
            return [a for (a,) in connection.execute("SELECT a FROM t ORDER BY rowid")]

    def seen(self) -> list[int]:
        """Every committed row's number, sorted."""
        if self.sink == "sqlite":
            return sorted(self.read_order())
        import pyarrow.parquet

        from connectgroup.spark.sinks.parquet import read_committed

        return sorted(a for f in read_committed(self.output) for a in pyarrow.parquet.read_table(f)["a"].to_pylist())


def wait(until: Callable[[], bool]) -> None:
    """Wait until the condition holds."""
    give_up = time.monotonic() + PATIENCE_S
    began = time.monotonic()
    while not until():
        assert time.monotonic() < give_up, f"not true within {PATIENCE_S:.0f} s"
        pause(began, 0.01)
        began = time.monotonic()


@pytest.fixture(scope="session")
def spark() -> Iterator[None]:
    """The Spark session of this process."""
    from connectgroup.spark.session import stop_session

    PipelineConnector.warm_up()
    yield
    stop_session()


ALSO_FILES = ci_only(
    "seconds of a core for each test; in a user's run, SinkContract has the fences and offsets of both sinks, and "
    "test_written_parts and test_up have tasks on Spark that write Parquet"
)


@pytest.fixture(params=["sqlite", pytest.param("parquet", marks=ALSO_FILES)])
def bench(request: pytest.FixtureRequest, tmp_path: Path, spark: None) -> Iterator[Bench]:
    """Both sinks; in a user's run, the first."""
    made = Bench(tmp_path, request.param)
    yield made
    for run in made.runs:
        run.task.stop()


@pytest.fixture
def table(tmp_path: Path, spark: None) -> Iterator[Bench]:
    """The SQLite sink, for tests where the sink makes no difference."""
    made = Bench(tmp_path, "sqlite")
    yield made
    for run in made.runs:
        run.task.stop()


@pytest.fixture(scope="session")
def kafka() -> Iterator[str]:
    """The address of a Kafka broker; skipped if none can run, except in continuous integration."""
    pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")
    from tests.consumer.broker import Unavailable, running_broker

    with contextlib.ExitStack() as stack:
        try:
            broker = stack.enter_context(running_broker())
        except Unavailable as missing:
            if os.environ.get("CI") == "true":
                pytest.fail(f"continuous integration has no Kafka broker: {missing}")
            pytest.skip(str(missing))
        yield broker.bootstrap
