"""Any Python iterator as a source: polled in the worker, committed with positions, transformed by Spark."""

from __future__ import annotations

import datetime
import json
import math
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
from pydantic import Field

from connectgroup import plugins
from connectgroup.dataplane.columns import from_ddl
from connectgroup.dataplane.dead_letters import ERROR_COLUMN
from connectgroup.dataplane.errors import SourceError, TaskFenced
from connectgroup.dataplane.iterator import Item, IteratorSource, TableBuilder
from connectgroup.dataplane.ownership import Range
from connectgroup.dataplane.polling import Polling
from connectgroup.dataplane.settings import PluginSettings
from connectgroup.testing.contracts.source import SourceContract
from tests.spark.conftest import Bench, wait


class LinesSettings(PluginSettings):
    path: Annotated[str, Field(description="a directory of JSON lines")]
    form: Annotated[str, Field(description="dicts, pairs, arrow")] = "dicts"


class Lines(IteratorSource):
    """The JSON lines of each file of a directory; a position is a number of lines, or, with pairs, a tenfold of it."""

    Settings = LinesSettings
    columns = from_ddl("a INT, b STRING")
    max_rows_per_batch = 8

    def slices(self) -> Iterator[str]:
        yield from sorted(path.name for path in Path(self.settings.path).iterdir())

    def rows(self, slice_name: str, position: int) -> Iterator[Item]:
        scale = 10 if self.settings.form == "pairs" else 1
        lines = Path(self.settings.path, slice_name).read_text().splitlines()[position // scale :]
        rows = [json.loads(line) for line in lines]
        if self.settings.form == "arrow":
            yield from (pa.RecordBatch.from_pylist(rows[at : at + 3]) for at in range(0, len(rows), 3))
        elif self.settings.form == "pairs":
            yield from ((row, position + 10 * at) for at, row in enumerate(rows, 1))
        else:
            yield from rows


class TestIteratorSource(SourceContract):
    @pytest.fixture(autouse=True, params=["dicts", "pairs", "arrow"])
    def form(self, request: pytest.FixtureRequest) -> None:
        self.kind = request.param

    def make_source(self, place: Path, *, task: int = 0, tasks: int = 1) -> Lines:
        return Lines(LinesSettings(path=str(place), form=self.kind), task=task, tasks=tasks)

    def write(self, place: Path, numbers: range) -> None:
        for number in numbers:
            with (place / f"{number % 4}.jsonl").open("a") as file:
                file.write(f'{{"a": {number}, "b": "row {number}"}}\n')


class Given(IteratorSource):
    """Yields what a function of the position yields."""

    columns = from_ddl("a INT, b STRING")

    def __init__(self, items: Any) -> None:
        super().__init__(None, task=0, tasks=1)
        self.items = items

    def rows(self, slice_name: str, position: int) -> Iterator[Item]:
        yield from self.items(position)


def polled(source: IteratorSource) -> tuple[list[dict[str, Any]], list[Range]]:
    """Everything that the source yields before it pauses."""
    rows: list[dict[str, Any]] = []
    ranges: list[Range] = []

    def take(table: pa.Table, parts: Any) -> None:
        rows.extend(table.to_pylist())
        ranges.extend(parts)

    query = Polling("test", source, {}, take, interval_ms=10)
    query.start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    return rows, ranges


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"a": "x"}, r"Given, slice rows, position 1: a is 'x'; allowed: INT or null"),
        ({"a": 1 << 40}, r"position 1: a is 1099511627776; allowed: INT or null"),
        ({"c": 1}, r"position 1: unknown column c; allowed: a INT, b STRING"),
        ([{"a": 1}, 7], r"position 1, row 1: got 7; allowed: a dict"),
        (pa.table({"a": ["x"]}), r"position 1: column a is string .*; allowed: values of type int32"),
        (pa.table({"z": [1]}), r"position 1: unknown column z"),
        (7, r"got 7; allowed: a dict, a list of dicts"),
        (({"a": 1}, 1), r"position 1 follows 1; allowed: a pair of rows and a whole number above 1"),
        (({"a": 1}, "2"), r"position '2' follows 1; allowed: a pair"),
        (ZeroDivisionError("oops"), r"position 1: ZeroDivisionError: oops"),
    ],
)
def test_item_that_is_not_allowed_is_one_clear_line(item: Any, message: str) -> None:
    def items(position: int) -> Iterator[Item]:
        yield {"a": 0}
        if isinstance(item, Exception):
            raise item
        yield item

    with pytest.raises(SourceError, match=message) as error:
        polled(Given(items))
    assert "\n" not in str(error.value)


def test_rows_may_lack_columns_and_arrow_batches_are_cast() -> None:
    items = [{"b": "x"}, [], pa.table({"a": pa.array([1], pa.int64())}), ([{"a": 2}, {"a": 3}], 9), None]
    rows, ranges = polled(Given(lambda position: items if position == 0 else []))
    assert [(row["a"], row["b"]) for row in rows] == [(None, "x"), (1, None), (2, None), (3, None)]
    assert (ranges[0].start, ranges[-1].end) == (0, 9)


def test_reading_ahead_is_bounded() -> None:
    """The iterator waits for commits: it is never ahead by more than a batch."""
    yielded = 0

    def items(position: int) -> Iterator[Item]:
        nonlocal yielded
        for number in range(position, 1_000):
            yielded += 1
            yield {"a": number}

    source = Given(items)
    source.max_rows_per_batch = 100
    ahead: list[int] = []
    committed = 0

    def take(table: pa.Table, parts: Any) -> None:
        nonlocal committed
        assert table.num_rows <= 100
        ahead.append(yielded - committed)
        committed += table.num_rows

    query = Polling("test", source, {}, take, interval_ms=10)
    query.start()
    query.processAllAvailable()
    query.stop()
    assert committed == 1_000
    assert max(ahead) <= 200


@pytest.fixture
def pipeline(table: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A pipeline from ``Lines``, as if installed, to SQLite."""
    load = plugins.load_source_class
    for module in ("connectgroup.connectors.pipeline", "connectgroup.plugins"):
        monkeypatch.setattr(f"{module}.available", lambda kind: ["lines", "sqlite"])
    monkeypatch.setattr(
        "connectgroup.connectors.pipeline.load_source_class", lambda name: Lines if name == "lines" else load(name)
    )
    config = {"source": "lines", "source.path": str(table.input)}
    base = table.config(source="lines")
    table.config = lambda **more: base | config | more  # type: ignore[method-assign]
    return table


def append(bench: Bench, name: str, numbers: range) -> None:
    with (bench.input / name).open("a") as file:
        file.write("".join(f'{{"a": {n}, "b": "row {n}"}}\n' for n in numbers))


def test_successor_continues_and_zombie_is_fenced(pipeline: Bench) -> None:
    """X1, X3, X8: two files, the second appears while the first task runs."""
    append(pipeline, "one", range(20))
    zombie = pipeline.start(1)
    zombie.wait(lambda: pipeline.seen() == [*range(20)])
    append(pipeline, "two", range(20, 30))
    zombie.wait(lambda: pipeline.seen() == [*range(30)])
    successor = pipeline.start(2)
    append(pipeline, "one", range(30, 50))
    assert isinstance(zombie.failure(), TaskFenced)
    successor.wait(lambda: len(pipeline.seen()) >= 50)
    successor.task.stop()
    assert pipeline.seen() == [*range(50)]
    assert sum(zombie.rows) + sum(successor.rows) == 50
    assert successor.polls


def test_spark_applies_the_transforms_and_bad_rows_are_dead_letters(pipeline: Bench) -> None:
    append(pipeline, "one", range(3))
    with (pipeline.input / "one").open("a") as file:
        file.write('{"a": "three", "b": "x"}\n{"a": 4, "b": "y"}\n')
    settings: dict[str, Any] = {
        "transforms": "t",
        "transforms.t.type": "sql",
        "transforms.t.query": "SELECT a, upper(b) b FROM batch",
    }
    settings |= {"errors.tolerance": "all", "errors.deadletterqueue.name": "letters"}
    run = pipeline.start(1, **settings)
    run.wait(lambda: pipeline.seen() == [0, 1, 2, 4])
    run.task.stop()
    with sqlite3.connect(pipeline.output) as connection:
        assert connection.execute("SELECT b FROM t WHERE a = 2").fetchall() == [("ROW 2",)]
        ((place, reason, record),) = connection.execute("SELECT place, reason, record FROM letters").fetchall()
    assert place == "Lines, slice one, position 3"
    assert reason == "a is 'three'; allowed: INT or null"
    assert record == "{'a': 'three', 'b': 'x'}"


def test_stop_does_not_wait_for_an_iterator_that_blocks() -> None:
    """X6: the task hands over; the iterator is closed when it next yields."""
    blocked, released, closed = threading.Event(), threading.Event(), threading.Event()
    committed: list[int] = []

    def items(position: int) -> Iterator[Item]:
        try:
            yield {"a": 0}
            blocked.set()
            released.wait()
            yield {"a": 1}
        finally:
            closed.set()

    query = Polling("test", Given(items), {}, lambda table, _: committed.append(table.num_rows), interval_ms=10)
    query.start()
    assert blocked.wait(30)
    wait(lambda: committed == [1])
    query.stop()
    assert not closed.is_set()
    released.set()
    assert closed.wait(30)
    assert committed == [1]


@pytest.mark.parametrize("form", [list, pa.RecordBatch.from_pylist])
@pytest.mark.parametrize("value", [1e-50, -1e300])
def test_number_beyond_the_range_of_its_column_is_an_error(value: float, form: Callable[[Any], Any]) -> None:
    kept = [{"f": each} for each in (0.0, 0.5, math.inf, 1.401298464324817e-45, None)]
    builder = TableBuilder(from_ddl("f FLOAT"), is_tolerant=False)
    builder.add("here", form(kept))
    assert builder.table().to_pylist() == kept
    with pytest.raises(SourceError, match=r"here.*: (f is|column f is).*allowed: .*(FLOAT|float)"):
        builder.add("here", form([*kept, {"f": value}]))


MIDNIGHT = datetime.datetime(2024, 2, 29)


@pytest.mark.parametrize(
    ("ddl", "value", "kept"),
    [
        ("a BIGINT", 1.5, [2.0, Decimal(3), 4]),
        ("a INT", Decimal("1.5"), [Decimal(3)]),
        ("a SMALLINT", np.float32(0.5), [np.float32(2)]),
        ("a DATE", MIDNIGHT.replace(hour=12), [MIDNIGHT, MIDNIGHT.date()]),
        ("a TIMESTAMP", pd.Timestamp(1), [pd.Timestamp(1_000), MIDNIGHT]),
        ("a TIMESTAMP", 0.5, [1.0]),
    ],
)
def test_part_of_a_value_that_its_column_does_not_hold_is_an_error_or_a_dead_letter(
    ddl: str, value: object, kept: list[object]
) -> None:
    rows = [{"a": each} for each in (*kept, None)]
    with pytest.raises(SourceError, match=r"here, row 1: a is .*; allowed: .* or null"):
        TableBuilder(from_ddl(ddl), is_tolerant=False).add("here", [{"a": None}, {"a": value}])
    builder = TableBuilder(from_ddl(ddl), is_tolerant=True)
    builder.add("here", [*rows, {"a": value}])
    table = builder.table()
    assert table.num_rows == len(rows) + 1
    assert table.column("a").null_count == 2
    assert table.column(ERROR_COLUMN).null_count == len(rows)


@pytest.mark.parametrize(
    ("ddl", "bad", "good"),
    [
        ("a INT", pa.array(["007"]), pa.array([7.0])),
        ("a BOOLEAN", pa.array(["1"]), pa.array([True])),
        ("a DATE", pa.array([MIDNIGHT.replace(hour=12)]), pa.array([MIDNIGHT])),
        ("a TIMESTAMP", pa.array([1], pa.timestamp("ns")), pa.array(["2024-02-29T00:00:00Z"])),
    ],
)
def test_array_of_another_type_is_cast_only_if_each_value_is_kept(ddl: str, bad: pa.Array, good: pa.Array) -> None:
    builder = TableBuilder(from_ddl(ddl), is_tolerant=False)
    builder.add("here", pa.table({"a": good}))
    assert builder.table().num_rows == 1
    with pytest.raises(SourceError, match=r"here: column a is .*; allowed: values of type"):
        builder.add("here", pa.table({"a": bad}))


WITHOUT_SPARK = """
import importlib, pkgutil, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "py4j"):
            raise ModuleNotFoundError(f"no package {name}", name=name)

sys.meta_path.insert(0, Refuse())
import connectgroup.dataplane
for module in pkgutil.iter_modules(connectgroup.dataplane.__path__):
    importlib.import_module(f"connectgroup.dataplane.{module.name}")

from pathlib import Path
from connectgroup.dataplane.columns import from_ddl
from connectgroup.dataplane.iterator import IteratorSource
from connectgroup.dataplane.offset_store import OffsetStore
from connectgroup.dataplane.ownership import Owner
from connectgroup.dataplane.polling import Polling

class Numbers(IteratorSource):
    columns = from_ddl("a INT")
    def rows(self, slice_name, position):
        yield from ({"a": n} for n in range(position, 5))

store, source = OffsetStore(Path(sys.argv[1])), Numbers(None, task=0, tasks=1)
store.execute("CREATE TABLE t (a)")
owner = Owner(connector="c", task=0, tasks=1, fencing_token=1, source=source.description)
def commit(rows, ranges):
    values = [(a,) for a in rows["a"].to_pylist()]
    store.commit(owner, ranges, lambda transaction: transaction.execute_many("INSERT INTO t VALUES (?)", values))
query = Polling("c-0@1", source, store.claim(owner, source.owns), commit, interval_ms=10)
query.start()
query.processAllAvailable()
query.stop()
store.close()
print([name for name in sys.modules if name.startswith(("pyspark", "py4j", "connectgroup.spark"))])
"""


def test_data_plane_moves_rows_where_spark_is_not_installed(tmp_path: Path) -> None:
    """Every module of ``dataplane``, and a source polled into a store, in a process that has no pyspark."""
    code = [sys.executable, "-c", WITHOUT_SPARK, str(tmp_path / "db")]
    done = subprocess.run(code, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
    with sqlite3.connect(tmp_path / "db") as connection:
        assert connection.execute("SELECT a FROM t").fetchall() == [(n,) for n in range(5)]
