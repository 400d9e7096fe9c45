"""Both sinks alone, with real SQLite and Parquet files; no Spark."""

from __future__ import annotations

import datetime
import json
import math
import multiprocessing
import resource
import sqlite3
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from connectgroup.dataplane.columns import from_ddl, shortest, to_arrow
from connectgroup.dataplane.dead_letters import record_of
from connectgroup.dataplane.errors import OffsetConflict, SinkError, TaskFenced
from connectgroup.dataplane.offset_store import OffsetStore
from connectgroup.dataplane.ownership import Owner, Range
from connectgroup.dataplane.sink import Sink
from connectgroup.spark.converters import encoder, text_of
from connectgroup.spark.sinks.manifest import ManifestSink
from connectgroup.spark.sinks.parquet import MANIFEST, ParquetSink, read_committed
from connectgroup.spark.sinks.sqlite import SqliteSink
from connectgroup.spark.sinks.tables import TableSinkSettings, plain_values
from connectgroup.spark.sinks.text_files import CsvSink, JsonlSink
from connectgroup.spark.sources.dialect import LineDialect
from connectgroup.spark.sources.lines import LineParser
from tests.volume import volume

COLUMNS = from_ddl("a INT, b STRING")
Open = Callable[[], Sink]


def owner(epoch: int, task: int = 0, tasks: int = 1, connector: str = "c") -> Owner:
    return Owner(connector=connector, task=task, tasks=tasks, fencing_token=epoch)


def rows(*values: int) -> pa.Table:
    return pa.table({"a": pa.array(values, pa.int32()), "b": [str(v) for v in values]}, schema=to_arrow(COLUMNS))


def one(start: int, end: int, slice_: str = "f") -> list[Range]:
    return [Range(slice=slice_, start=start, end=end)]


def every(_: str) -> bool:
    return True


@pytest.fixture(params=["sqlite", "parquet"])
def sinks(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    opened: list[Sink] = []

    def open_one() -> Sink:
        if request.param == "sqlite":
            opened.append(SqliteSink(tmp_path / "out.db", TableSinkSettings(table="t"), COLUMNS, busy_timeout_s=0.2))
        else:
            opened.append(ParquetSink(tmp_path / "out", busy_timeout_s=0.2))
        return opened[-1]

    yield open_one
    for sink in opened:
        sink.close()


def seen(tmp_path: Path) -> list[int]:
    """The rows that a reader of committed files sees."""
    if (tmp_path / "out.db").exists():
        with sqlite3.connect(tmp_path / "out.db") as connection:
            return [a for (a,) in connection.execute("SELECT a FROM t ORDER BY a")]
    files = read_committed(tmp_path / "out")
    assert read_committed(str(tmp_path / "out")) == files
    return sorted(a for file in files for a in pa.parquet.read_table(file)["a"].to_pylist())


def test_rows_and_offsets_are_committed_together(sinks: Open, tmp_path: Path) -> None:
    sink = sinks()
    sink.claim(owner(1), every)
    assert sink.commit(owner(1), one(0, 8), rows(1, 2))
    assert sink.commit(owner(1), one(8, 12), rows(3))
    assert seen(tmp_path) == [1, 2, 3]
    assert sinks().claim(owner(2), every) == {"f": 12}


def test_batch_without_rows_moves_the_offsets(sinks: Open, tmp_path: Path) -> None:
    """A CSV file with only a header."""
    sink = sinks()
    sink.claim(owner(1), every)
    assert sink.commit(owner(1), one(0, 4), rows())
    assert seen(tmp_path) == []
    assert sink.claim(owner(1), every) == {"f": 4}


def test_zombie_writes_nothing_visible(sinks: Open, tmp_path: Path) -> None:
    """X1, X4."""
    zombie, successor = sinks(), sinks()
    zombie.claim(owner(1), every)
    zombie.commit(owner(1), one(0, 4), rows(1))
    assert successor.claim(owner(2), every) == {"f": 4}
    with pytest.raises(TaskFenced, match="belongs to owner epoch 2, ours is 1"):
        zombie.commit(owner(1), one(4, 8), rows(2))
    with pytest.raises(TaskFenced):
        zombie.commit(owner(1), one(0, 8, "new"), rows(2))
    assert successor.commit(owner(2), one(4, 8), rows(2))
    assert seen(tmp_path) == [1, 2]


def test_repeated_batch_is_written_once(sinks: Open, tmp_path: Path) -> None:
    """X2, paimon#9667."""
    sink = sinks()
    sink.claim(owner(1), every)
    assert sink.commit(owner(1), one(0, 4), rows(1)) is True
    assert sink.commit(owner(1), one(0, 4), rows(1)) is False
    with pytest.raises(OffsetConflict):
        sink.commit(owner(1), one(0, 6), rows(1, 2))
    assert seen(tmp_path) == [1]
    if (tmp_path / "out").exists():
        assert len(list((tmp_path / "out").glob("*.parquet"))) <= 2  # only the committed files and the rejected one


def test_locked_sink_loses_nothing(sinks: Open, tmp_path: Path) -> None:
    sink = sinks()
    sink.claim(owner(1), every)
    path = tmp_path / "out.db" if (tmp_path / "out.db").exists() else tmp_path / "out" / MANIFEST
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(SinkError, match=r"locked by another connection for more than 0\.2 s; allowed: "):
        sink.commit(owner(1), one(0, 4), rows(1))
    other.execute("ROLLBACK")
    other.close()
    assert seen(tmp_path) == []
    assert sink.claim(owner(1), every) == {}
    assert sink.commit(owner(1), one(0, 4), rows(1))
    assert seen(tmp_path) == [1]


def _fill(kind: str, root: str, queue: Any) -> None:
    """In a process whose files may not exceed 200 kB: write batches until an error, and return the error."""
    path = Path(root)
    sink: Sink = (
        SqliteSink(path / "out.db", TableSinkSettings(table="t"), COLUMNS)
        if kind == "sqlite"
        else ParquetSink(path / "out")
    )
    sink.claim(owner(1), every)
    sink.commit(owner(1), one(0, 1), rows(1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
    wide = pa.table(
        {"a": pa.array([2] * 400_000, pa.int32()), "b": [f"{n * 7919 % 400_009:x}" for n in range(400_000)]}
    )
    try:
        sink.commit(owner(1), one(1, 2), wide.cast(to_arrow(COLUMNS)))
        queue.put("no error")
    except BaseException as error:
        queue.put(f"{type(error).__name__}: {error}")


@pytest.mark.parametrize("kind", ["sqlite", "parquet"])
def test_sink_without_space_is_a_one_line_error_and_loses_nothing(tmp_path: Path, kind: str) -> None:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_fill, args=(kind, str(tmp_path), queue))
    process.start()
    message = queue.get(timeout=60)
    process.join()
    assert message.startswith(f"SinkError: {tmp_path / 'out'}"), message
    assert "; allowed: " in message
    assert "\n" not in message
    assert seen(tmp_path) == [1]
    sink: Sink = (
        SqliteSink(tmp_path / "out.db", TableSinkSettings(table="t"), COLUMNS)
        if kind == "sqlite"
        else ParquetSink(tmp_path / "out")
    )
    assert sink.claim(owner(1), every) == {"f": 1}
    assert sink.commit(owner(1), one(1, 2), rows(2))
    assert seen(tmp_path) == [1, 2]
    sink.close()


def test_every_type_is_comparable_in_sqlite(tmp_path: Path) -> None:
    columns = from_ddl("b BOOLEAN, h SMALLINT, l BIGINT, d DOUBLE, s STRING, day DATE, at TIMESTAMP")
    at = datetime.datetime(2020, 1, 2, 3, 4, 5, 600, datetime.UTC)
    values = [[True, None], [-5, None], [1 << 40, None], [0.5, None], ["\u00e9", None], [at.date(), None], [at, None]]
    table = pa.table([pa.array(v, f.type) for v, f in zip(values, to_arrow(columns), strict=True)], to_arrow(columns))
    sink = SqliteSink(tmp_path / "out.db", TableSinkSettings(table="t"), columns)
    sink.claim(owner(1), every)
    sink.commit(owner(1), one(0, 1), table)
    sink.close()
    with sqlite3.connect(tmp_path / "out.db") as connection:
        assert connection.execute("SELECT *, unixepoch(at) FROM t").fetchall() == [
            (1, -5, 1 << 40, 0.5, "\u00e9", "2020-01-02", "2020-01-02 03:04:05.000600Z", 1577934245),
            (None,) * 8,
        ]


def test_table_without_a_column_is_a_one_line_error(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "out.db") as connection:
        connection.execute("CREATE TABLE t (A INT, other TEXT)")
    with pytest.raises(SinkError, match=r"out\.db: table t has no column b; allowed: a table with all columns"):
        SqliteSink(tmp_path / "out.db", TableSinkSettings(table="t"), COLUMNS)


def test_parquet_sink_without_a_directory_is_a_one_line_error(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match=r"cannot be written .*; allowed: a directory"):
        ParquetSink(tmp_path / "missing" / "out")
    with pytest.raises(SinkError, match="does not exist; allowed: the directory of a sink of files"):
        read_committed(tmp_path)
    # A sink creates the database first, then its table.
    OffsetStore(tmp_path / MANIFEST).close()
    assert read_committed(tmp_path) == []


def test_manifest_has_owner_and_range_of_each_file(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path / "out")
    owner_ = owner(3, task=1, tasks=2, connector="a.b/c")
    sink.claim(owner_, every)
    sink.commit(owner_, [*one(0, 4), *one(0, 9, "g")], rows(1, 2))
    sink.close()
    (file,) = read_committed(tmp_path / "out")
    with sqlite3.connect(tmp_path / "out" / MANIFEST) as connection:
        (row,) = connection.execute("SELECT * FROM connectgroup_manifest").fetchall()
    assert row[:6] == (file.name, 2, file.stat().st_size, "a.b/c", 1, 3)
    assert json.loads(row[6]) == {"f": [0, 4], "g": [0, 9]}
    assert file.parent == tmp_path / "out"


@pytest.mark.parametrize("kind", [ParquetSink, JsonlSink, CsvSink])
@pytest.mark.parametrize("fault", ["encode", "conflict", "manifest"])
def test_batch_that_fails_leaves_no_file(tmp_path: Path, kind: type[ManifestSink], fault: str) -> None:
    directory = tmp_path / "out"
    sink = kind(directory, busy_timeout_s=0.2)
    sink.claim(owner(1), every)
    assert sink.commit(owner(1), one(0, 4), rows(1)) is True
    before = sorted(path.name for path in directory.iterdir())
    table, span = rows(2, 3), one(4, 8)
    if fault == "encode":  # the texts are no UTF-8, or a struct has no columns
        text = pa.array([b"ok", b"\xff"]).cast(pa.binary()).view(pa.string())
        table = pa.table({"a": pa.array([2, 3], pa.int32()), "b": text})
        if kind is ParquetSink:
            table = pa.table({"a": pa.array([{}, {}], pa.struct([]))})
        elif kind is CsvSink:
            table = pa.table({"a": pa.array([(1, 2, 3)], pa.month_day_nano_interval())})
    elif fault == "conflict":
        span = one(100, 104)
    with sqlite3.connect(directory / MANIFEST) as connection:
        if fault == "manifest":
            connection.execute(
                "CREATE TRIGGER r BEFORE INSERT ON connectgroup_manifest BEGIN SELECT RAISE(ABORT, 'no'); END"
            )
    try:
        with pytest.raises(Exception, match=r"."):
            sink.commit(owner(1), span, table)
    finally:
        assert sorted(path.name for path in directory.iterdir()) == before
        sink.close()


NAN = [math.nan, math.inf, -math.inf, 1.5, None]


@pytest.mark.parametrize("nested", [False, True])
def test_json_has_no_nan_and_no_infinity(tmp_path: Path, nested: bool) -> None:
    """What the sinks write is JSON, and the source ``files`` reads the numbers again."""
    values = pa.array([[value] for value in NAN]) if nested else pa.array(NAN)
    sink = JsonlSink(tmp_path / "out")
    sink.claim(owner(1), every)
    assert sink.commit(owner(1), one(0, 4), pa.table({"a": values})) is True
    sink.close()
    (path,) = read_committed(tmp_path / "out")

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    found = [json.loads(line, parse_constant=refuse)["a"] for line in path.read_text().splitlines()]
    plain: list[Any] = ["NaN", "Infinity", "-Infinity", 1.5, None]
    assert found == [[each] for each in plain] if nested else found == plain
    if not nested:
        parser = LineParser(columns=from_ddl("a DOUBLE"), dialect=LineDialect("jsonl"))
        assert repr(parser.rows(path.read_bytes()).column(0).to_pylist()) == repr(NAN)
    text = text_of({"a": NAN})
    assert json.loads(str(text), parse_constant=refuse) == {"a": plain}
    assert [text_of(value) for value in NAN] == ["NaN", "Infinity", "-Infinity", "1.5", None]


DIGITS = ["0.1", "16777216", "1e-45", "3.4028235e+38", "-0", "19.99", "7.0385307e-26"]
"""The shortest texts of numbers of 32 bits. The last one has a shorter one, which is another number for a reader that
makes 64 bits of it first."""


@pytest.mark.parametrize("nested", [False, True])
def test_number_of_32_bits_is_written_with_its_own_digits(tmp_path: Path, nested: bool) -> None:
    """As Kafka Connect's converters and Spark write it: 0.1 is not 0.10000000149011612."""
    numbers = [float(text) for text in DIGITS]
    kind = pa.struct({"f": pa.float32(), "l": pa.list_(pa.float32()), "m": pa.map_(pa.string(), pa.float32())})
    values: list[Any] = [*numbers, None]
    if nested:
        values = [None if each is None else {"f": each, "l": [each, None], "m": [("k", each)]} for each in values]
    table = pa.table({"a": pa.array(values, kind if nested else pa.float32()), "b": [1] * len(values)})
    wanted = values
    if nested:
        wanted = [each and {**each, "m": dict(each["m"])} for each in values]
    sink = JsonlSink(tmp_path / "out")
    sink.claim(owner(1), every)
    assert sink.commit(owner(1), one(0, 4), table) is True
    sink.close()
    (path,) = read_committed(tmp_path / "out")
    assert repr([json.loads(line)["a"] for line in path.read_text().splitlines()]) == repr(wanted)
    if nested:
        assert repr([text and json.loads(text) for text in plain_values(table)["a"].to_pylist()]) == repr(wanted)
    else:
        parser = LineParser(columns=from_ddl("a FLOAT"), dialect=LineDialect("jsonl"))
        assert repr(parser.rows(path.read_bytes()).column(0).to_pylist()) == repr(table["a"].to_pylist())
    for form in ("", "json"):
        write = encoder(pa.struct(table.schema), form, schemas=False)
        # Java has two digits at least.
        expected = repr(wanted).replace("1e-45", "1.4e-45" if form == "json" else "1e-45")
        assert repr([json.loads(write(row))["a"] for row in table.to_pylist()]) == expected
    assert repr([json.loads(record_of(table, at))["a"] for at in range(len(values))]) == repr(wanted)


def test_number_of_32_bits_alone_is_a_text_with_its_own_digits() -> None:
    write = encoder(pa.float32(), "string", schemas=False)
    assert [write(value) for value in pa.array([0.1, math.nan, None], pa.float32()).to_pylist()] == ["0.1", "NaN", None]


@hypothesis_settings(max_examples=volume(100, 2_000), deadline=None)
@given(st.floats(width=32))
def test_digits_of_a_number_of_32_bits_are_those_of_numpy(value: float) -> None:
    found = shortest(value)
    assert found is not None
    as_numpy = float(str(np.float32(value)))
    assert repr(found) == repr(as_numpy) or np.float32(as_numpy) != np.float32(value)
    assert struct.pack("<f", found) == struct.pack("<f", value)


def test_null_in_the_only_column_of_csv_is_an_error_and_no_blank_line(tmp_path: Path) -> None:
    sink = CsvSink(tmp_path / "out")
    sink.claim(owner(1), every)
    with pytest.raises(SinkError, match="sink csv: column a is null, and the row has no other column; allowed: "):
        sink.commit(owner(1), one(0, 2), pa.table({"a": ["x", None]}))
    assert sink.commit(owner(1), one(0, 2), pa.table({"a": ["x", ""]})) is True
    sink.close()
    (path,) = read_committed(tmp_path / "out")
    assert path.read_text() == '"a"\n"x"\n""\n'


def test_bytes_are_base64_in_text(tmp_path: Path) -> None:
    table = pa.table({"a": pa.array([[b"\xff", None], None]), "b": pa.array([b"\xff,", None])})
    assert plain_values(table)["a"].to_pylist() == ['["/w==", null]', None]
    for kind in (CsvSink, JsonlSink):
        sink = kind(tmp_path / kind.extension)
        sink.claim(owner(1), every)
        assert sink.commit(owner(1), one(0, 4), table) is True
        sink.close()
        (path,) = read_committed(tmp_path / kind.extension)
        assert "/yw=" in path.read_text()


def test_maps_with_texts_as_keys_are_objects_in_json(tmp_path: Path) -> None:
    """As Spark and Kafka Connect write them; maps with other keys are pairs, as Kafka Connect writes them."""
    kind = pa.map_(pa.string(), pa.list_(pa.struct({"m": pa.map_(pa.string(), pa.float64())})))
    maps: list[Any] = [[("k", [{"m": [("x", math.nan), ("y", None)]}, None]), ("l", None)], [], None]
    wanted: list[Any] = [{"k": [{"m": {"x": "NaN", "y": None}}, None], "l": None}, {}, None]
    numbers = pa.map_(pa.int32(), pa.string())
    table = pa.table({"a": pa.array(maps, kind), "n": pa.array([[(1, "x")], [], None], numbers)})
    sink = JsonlSink(tmp_path / "out")
    sink.claim(owner(1), every)
    sink.commit(owner(1), one(0, 4), table)
    sink.close()
    (path,) = read_committed(tmp_path / "out")
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert [each["a"] for each in found] == wanted
    assert [each["n"] for each in found] == [[[1, "x"]], [], None]
    texts = plain_values(table)["a"].to_pylist()
    assert [text and json.loads(text) for text in texts] == wanted
    in_kafka = encoder(pa.struct(table.schema), "", schemas=False)
    assert [json.loads(in_kafka(row)) for row in table.to_pylist()] == found
    assert [text and json.loads(text) for text in map(encoder(kind, "", schemas=False), maps)] == wanted


def test_claim_removes_uncommitted_leftovers_only(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path / "out")

    def leftover(by: Owner) -> Path:
        """A batch whose file was written and whose transaction was not committed."""
        path = (
            tmp_path
            / "out"
            / f"{by.connector}.{by.task}.{by.fencing_token}.{by.task:016x}{by.fencing_token:016x}.parquet"
        )
        pa.parquet.write_table(rows(666), path)
        return path

    two = [owner(5, task=t, tasks=2) for t in range(2)]
    for by in two:
        sink.claim(by, every)
        sink.commit(by, one(0, 1, str(by.task)), rows(by.task))
    kept = read_committed(tmp_path / "out")
    mine_old, others = leftover(two[0]), leftover(two[1])
    foreign = leftover(owner(1, connector="other"))
    unrelated = tmp_path / "out" / "mine.parquet"
    pa.parquet.write_table(rows(7), unrelated)

    sink.claim(owner(6, task=0, tasks=2), every)
    assert not mine_old.exists()
    assert others.exists(), "task 1 at epoch 5 is not fenced: its batch may still be committed"
    mine_now = leftover(owner(6, task=0, tasks=2))
    sink.claim(owner(6, task=0, tasks=2), every)
    assert mine_now.exists(), "a file of the current epoch may still be committed"

    sink.claim(owner(7, task=0, tasks=1), every)
    assert not others.exists(), "the layout of two tasks is fenced"
    assert not mine_now.exists()
    assert foreign.exists()
    assert unrelated.exists()
    assert read_committed(tmp_path / "out") == kept
    assert all(file.exists() for file in kept)
    sink.close()
