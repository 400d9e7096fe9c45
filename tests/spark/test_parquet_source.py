"""The source of Parquet files: files that are renamed, replaced or damaged, other columns, values of every type."""

from __future__ import annotations

import base64
import datetime
import json
import math
import os
import uuid
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from connectgroup.dataplane.columns import to_ddl
from connectgroup.dataplane.errors import SourceError
from connectgroup.dataplane.ownership import encoded, ranges_between
from connectgroup.spark.sources.parquet import ParquetSource, ParquetSourceSettings
from connectgroup.spark.sources.sliced import decode, encode
from tests.volume import volume


class Reader:
    """One task that reads a directory; ``at`` are its committed positions."""

    def __init__(self, root: Path, at: dict[str, int] | None = None, *, tolerant: bool = False, **more: Any) -> None:
        self.root, self.more = root, more
        self.at = at or {}
        found = {"path": str(root)} | {key.replace("_", "."): value for key, value in more.items()}
        source = ParquetSource.create(ParquetSourceSettings.model_validate(found), task=0, tasks=1)
        self.source = decode(encode(source.tolerant() if tolerant else source, self.at))[0]

    def read(self) -> list[dict[str, Any]]:
        """Read and commit all batches; return the rows."""
        rows = []
        while (end := self.source.plan({name: int(at) for name, at in self.at.items()})) != self.at:
            for part in ranges_between(self.at, end):
                rows += [row for batch in self.source.read(part) for row in batch.to_pylist()]
            # As the offsets of a sink: JSON.
            self.at = self.source.positions(
                json.loads(
                    json.dumps(
                        encoded({**self.at, **{name: at for name, at in end.items() if at != self.at.get(name)}})
                    )
                )
            )
        return rows

    def numbers(self) -> list[int]:
        return [row["a"] for row in self.read()]


def write(path: Path, **columns: Any) -> None:
    pyarrow.parquet.write_table(pa.table(columns), path, row_group_size=3)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("on_rewrite", ["fail", "read"])
@pytest.mark.parametrize("rows", [3, 5, 8])
def test_file_that_was_replaced_is_an_error_or_a_new_file(
    tmp_path: Path, restarts: bool, on_rewrite: str, rows: int
) -> None:
    write(tmp_path / "a.parquet", a=[1, 2, 3, 4, 5])
    reader = Reader(tmp_path, on_rewrite=on_rewrite)
    assert reader.numbers() == [1, 2, 3, 4, 5]
    write(tmp_path / "new.tmp", a=list(range(10, 10 + rows)))
    (tmp_path / "new.tmp").rename(tmp_path / "a.parquet")
    if restarts:
        reader = Reader(tmp_path, reader.at, on_rewrite=on_rewrite)
    if on_rewrite == "fail":
        with pytest.raises(SourceError, match=r"a\.parquet: was replaced by another file; allowed: a new name"):
            reader.read()
        assert reader.source.lag(reader.at).unreadable_files == 1  # type: ignore[union-attr]
        return
    assert reader.numbers() == list(range(10, 10 + rows))
    assert reader.numbers() == []
    assert sorted(reader.at) == ["a.parquet", "a.parquet#2"]


@pytest.mark.parametrize("restarts", [False, True])
def test_file_that_differs_in_one_value_alone_is_another_one(tmp_path: Path, restarts: bool) -> None:
    """As many bytes, and the same beginning and footer: the statistics have the least and the greatest value."""
    numbers = [*range(3_000)]

    def write_plain(path: Path) -> None:
        pyarrow.parquet.write_table(pa.table({"a": numbers}), path, compression="none", use_dictionary=False)

    write_plain(tmp_path / "a.parquet")
    reader = Reader(tmp_path, on_rewrite="read", max_rows_per_batch="1000")
    assert reader.numbers() == numbers
    numbers[1_500] = 7
    write_plain(tmp_path / "new.tmp")
    (tmp_path / "new.tmp").rename(tmp_path / "a.parquet")
    if restarts:
        reader = Reader(tmp_path, reader.at, on_rewrite="read", max_rows_per_batch="1000")
    assert reader.numbers() == numbers
    assert reader.numbers() == []


@pytest.mark.parametrize("restarts", [False, True])
def test_renamed_file_is_not_read_again(tmp_path: Path, restarts: bool) -> None:
    write(tmp_path / "a.parquet", a=[1, 2])
    reader = Reader(tmp_path)
    assert reader.numbers() == [1, 2]
    (tmp_path / "a.parquet").rename(tmp_path / "b.parquet")
    write(tmp_path / "a.parquet", a=[3])
    if restarts:
        reader = Reader(tmp_path, reader.at)
    assert reader.numbers() == [3]
    lag = reader.source.lag(reader.at)
    assert lag is not None
    assert (lag.files, lag.records) == (0, 0)
    by_name = Reader(tmp_path, identity="name")
    assert by_name.numbers() == [3, 1, 2]
    (tmp_path / "b.parquet").rename(tmp_path / "c.parquet")
    assert by_name.numbers() == [1, 2]


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_file_with_two_names_is_read_once(tmp_path: Path, link: Callable[[Path, Path], None]) -> None:
    write(tmp_path / "m.parquet", a=[1, 2])
    reader = Reader(tmp_path)
    link(tmp_path / "m.parquet", tmp_path / "a.parquet")
    assert reader.numbers() == [1, 2]
    link(tmp_path / "m.parquet", tmp_path / "z.parquet")
    assert reader.numbers() == []
    assert Reader(tmp_path).numbers() == [1, 2]
    assert Reader(tmp_path, identity="name").numbers() == [1, 2] * 3


def test_range_of_a_file_that_was_replaced_after_it_was_planned_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", a=[1, 2])
    source = Reader(tmp_path).source
    (part,) = ranges_between({}, source.plan({}))
    (tmp_path / "a.parquet").rename(tmp_path / "b.parquet")
    assert [batch["a"].to_pylist() for batch in source.read(part)] == [[1, 2]], "renamed"
    write(tmp_path / "b.parquet", a=[3, 4])
    with pytest.raises(
        SourceError, match=r"a\.parquet: was replaced while it was read; allowed: the task starts again"
    ):
        list(source.read(part))


@pytest.mark.parametrize("tolerant", [False, True])
def test_later_file_with_other_columns_follows_the_rules_of_drift(tmp_path: Path, tolerant: bool) -> None:
    write(tmp_path / "a.parquet", a=[1], b=["x"])
    reader = Reader(tmp_path, tolerant=tolerant)
    assert reader.numbers() == [1]
    write(tmp_path / "b.parquet", b=["y", "z"], a=[2, 3], c=[4, 5])
    if tolerant:
        (row,) = reader.read()
        error = json.loads(row["connectgroup_error"])
        assert error["place"] == f"{tmp_path / 'b.parquet'}, rows 1 to 2"
        assert error["reason"].startswith("has the column c; allowed: the columns a, b, or source.schema.drift ignore")
    else:
        with pytest.raises(SourceError, match=r"b\.parquet: has the column c; allowed: the columns a, b, or source"):
            reader.read()
    (tmp_path / "b.parquet").unlink()
    write(tmp_path / "c.parquet", a=[6])
    if not tolerant:
        with pytest.raises(SourceError, match=r"c\.parquet: lacks the column b; allowed: the columns a, b"):
            Reader(tmp_path).read()


def test_drift_ignores_or_adds_columns(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", a=[1], b=["x"])
    write(tmp_path / "b.parquet", b=["y"], c=[4])
    ignored = Reader(tmp_path, schema_drift="ignore")
    assert ignored.read() == [{"a": 1, "b": "x"}, {"a": None, "b": "y"}]
    with pytest.raises(SourceError, match=r"b\.parquet: has the new columns c; allowed: the task starts"):
        Reader(tmp_path, schema_drift="evolve").read()
    settings = ParquetSourceSettings.model_validate({"path": str(tmp_path), "schema.drift": "evolve"})
    source = ParquetSource.create(settings, task=0, tasks=1).with_committed(_Committed({}))  # type: ignore[arg-type]
    assert to_ddl(source.columns) == "`a` BIGINT, `b` STRING, `c` BIGINT"
    write(tmp_path / "c.parquet", A=[4], b=["z"], c=[5])
    with pytest.raises(SourceError, match=r"c\.parquet: column A differs from a only in case"):
        list(source.read(_whole("c.parquet", 1)))
    (tmp_path / "c.parquet").unlink()
    assert Reader(tmp_path, schema="b STRING").read() == [{"b": "x"}, {"b": "y"}]


def test_columns_are_those_that_were_committed(tmp_path: Path) -> None:
    write(tmp_path / "b.parquet", a=[1])
    reader = Reader(tmp_path)
    assert reader.numbers() == [1]
    write(tmp_path / "a.parquet", a=[2], more=[3])
    settings = ParquetSourceSettings.model_validate({"path": str(tmp_path)})
    source = ParquetSource.create(settings, task=0, tasks=1)
    assert [column.name for column in source.columns] == ["a", "more"]
    source.with_committed(_Committed(reader.at))  # type: ignore[arg-type]
    assert [column.name for column in source.columns] == ["a"]


class _Committed:
    def __init__(self, positions: Mapping[str, int]) -> None:
        self.positions = positions

    def read(self) -> dict[str, int]:
        return dict(self.positions)


def _whole(name: str, rows: int) -> Any:
    from connectgroup.dataplane.ownership import Range

    return Range(slice=name, start=0, end=rows)


@pytest.mark.parametrize("damage", ["not parquet", "empty", "truncated"])
def test_damaged_file_does_not_keep_the_others_from_being_read(tmp_path: Path, damage: str) -> None:
    for number in (1, 3):
        write(tmp_path / f"{number}.parquet", a=[number])
    whole = (tmp_path / "1.parquet").read_bytes()
    bad = {"not parquet": b"no", "empty": b"", "truncated": whole[:-8]}[damage]
    (tmp_path / "2.parquet").write_bytes(bad)
    reader = Reader(tmp_path, tolerant=True)
    assert reader.numbers() == [1, 3]
    (tmp_path / "notes.txt").touch()
    (tmp_path / "_SUCCESS").touch()
    lag = reader.source.lag(reader.at)
    assert lag is not None
    assert (lag.unreadable_files, lag.skipped_files) == (1, 2)
    strict = Reader(tmp_path)
    end = strict.source.plan({})
    assert sorted(end) == ["1.parquet", "3.parquet"]
    with pytest.raises(SourceError, match=r"2\.parquet: cannot be read; allowed: a complete Parquet file"):
        strict.source.plan(end)
    (tmp_path / "2.parquet").write_bytes(whole)
    assert reader.numbers() == [1]


def test_damaged_rows_are_one_dead_letter(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", a=list(range(10_000)), b=[f"text {n}" for n in range(10_000)])
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    data[300:2000] = b"\xff" * 1700
    (tmp_path / "a.parquet").write_bytes(data)
    with pytest.raises(SourceError, match=r"a\.parquet: cannot be read \("):
        Reader(tmp_path).read()
    (row,) = Reader(tmp_path, tolerant=True).read()
    assert json.loads(row["connectgroup_error"])["place"] == f"{tmp_path / 'a.parquet'}, rows 1 to 10000"


@pytest.mark.parametrize(
    ("ddl", "values", "message"),
    [
        ("a BIGINT", pa.array(["007"]), "column a is string; allowed: BIGINT, or source.schema with a STRING"),
        ("a BIGINT", pa.array([1.0]), "column a is double; allowed: BIGINT, or source.schema with a DOUBLE"),
        ("a BIGINT", pa.array([True]), "column a is bool; allowed: BIGINT"),
        ("a BOOLEAN", pa.array([1]), "column a is int64; allowed: BOOLEAN"),
        ("a FLOAT", pa.array([0.1]), "column a is double; allowed: FLOAT"),
        ("a DOUBLE", pa.array([Decimal("0.1")]), "allowed: DOUBLE, or source.schema with a STRING"),
        ("a DATE", pa.array([datetime.datetime(2024, 1, 1)]), "allowed: DATE, or source.schema with a TIMESTAMP"),
        ("a TIMESTAMP", pa.array([datetime.date(2024, 1, 1)]), "allowed: TIMESTAMP, or source.schema with a DATE"),
        ("a TIMESTAMP", pa.array(["2024-01-01T00:00:00Z"]), "allowed: TIMESTAMP, or source.schema with a STRING"),
    ],
)
def test_column_of_another_type_is_an_error_with_file_and_column(
    tmp_path: Path, ddl: str, values: pa.Array, message: str
) -> None:
    write(tmp_path / "a.parquet", a=values)
    with pytest.raises(SourceError) as caught:
        Reader(tmp_path, schema=ddl).read()
    assert str(caught.value).startswith(f"{tmp_path / 'a.parquet'}: column a is ")
    assert message in str(caught.value)


NANOSECOND = pa.array([1_000, 1_001, None], pa.timestamp("ns"))


@pytest.mark.parametrize(
    ("ddl", "values", "bad"),
    [
        ("a SMALLINT", pa.array([1, 40_000, None]), 1),
        ("a BIGINT", pa.array([1, 2**63, None], pa.uint64()), 1),
        ("a DOUBLE", pa.array([1, 2**53 + 1, None]), 1),
        ("a TIMESTAMP", NANOSECOND, 1),
        ("a INT", pa.array([Decimal("1.00"), Decimal("1.50"), None]), 1),
        ("a STRING", pa.array([b"x", b"\xff", None]), 1),
    ],
)
def test_value_that_does_not_fit_exactly_is_an_error_or_a_dead_letter(
    tmp_path: Path, ddl: str, values: pa.Array, bad: int
) -> None:
    write(tmp_path / "a.parquet", a=values)
    other = "without a$" if "STRING" in ddl else "with a STRING$"
    message = rf"a\.parquet: column a is .* \(.*\); allowed: .*, or source\.schema {other}"
    with pytest.raises(SourceError, match=message):
        Reader(tmp_path, schema=ddl).read()
    rows = Reader(tmp_path, schema=ddl, tolerant=True).read()
    errors = [json.loads(row["connectgroup_error"]) for row in rows if row["connectgroup_error"]]
    assert [error["place"] for error in errors] == [f"{tmp_path / 'a.parquet'}, row {bad + 1}"]
    assert len(rows) == 3
    if "STRING" not in ddl:
        exact = Reader(tmp_path, schema="a STRING").read()
        assert len(exact) == 3


def test_nanoseconds_are_read_as_text_or_if_they_are_microseconds(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", a=NANOSECOND, b=pa.array([0, 5_000, None], pa.timestamp("ns", "UTC")))
    rows = Reader(tmp_path, schema="a STRING, b TIMESTAMP").read()
    assert [row["a"] for row in rows] == ["1970-01-01T00:00:00.000001000", "1970-01-01T00:00:00.000001001", None]
    assert [row["b"] and row["b"].microsecond for row in rows] == [0, 5, None]


def test_timestamps_in_the_form_of_spark_and_hive_are_exact(tmp_path: Path) -> None:
    """INT96; a difference to Spark: nanoseconds are an error, not cut off."""
    years = [datetime.datetime(year, 7, 1, 12, 0, 0, 1) for year in (1000, 1677, 2024, 9999)]
    table = pa.table({"a": pa.array(years, pa.timestamp("us"))})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    assert [row["a"].replace(tzinfo=None) for row in Reader(tmp_path).read()] == years
    exact = pa.table({"a": pa.array([1_720_000_000_000_000_001], pa.timestamp("ns"))})
    pyarrow.parquet.write_table(exact, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    with pytest.raises(SourceError, match=r"a\.parquet: column a is timestamp\[ns\] \(.*lose data"):
        Reader(tmp_path).read()
    assert Reader(tmp_path, schema="a STRING").read() == [{"a": "2024-07-03T09:46:40.000000001"}]


@pytest.mark.parametrize("old", [True, False], ids=["INT96", "INT64"])
def test_nanoseconds_inside_of_lists_and_structs_are_kept(tmp_path: Path, old: bool) -> None:
    """A struct may have times of several forms."""
    at = pa.array([1_704_067_200_000_000_001, 0, None], pa.timestamp("ns"))
    more = [pa.array([1, 2, 3], pa.date32()), pa.array([1, 2, 3], pa.time64("us"))]
    nested = pa.StructArray.from_arrays([pa.array([[each] for each in at], pa.list_(at.type)), *more], ["at", "d", "t"])
    pyarrow.parquet.write_table(pa.table({"a": nested}), tmp_path / "a.parquet", use_deprecated_int96_timestamps=old)
    found = [json.loads(row["a"])["at"] for row in Reader(tmp_path).read()]
    assert found == [["2024-01-01T00:00:00.000000001"], ["1970-01-01T00:00:00"], [None]]


def test_times_of_other_centuries_inside_of_structs_are_read(tmp_path: Path) -> None:
    rows = [{"at": datetime.datetime(1000, 1, 1)}, {"at": datetime.datetime(2024, 1, 1)}, None]
    table = pa.table({"a": pa.array(rows, pa.struct({"at": pa.timestamp("us")}))})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    found = [row["a"] for row in Reader(tmp_path).read()]
    assert found == ['{"at":"1000-01-01T00:00:00"}', '{"at":"2024-01-01T00:00:00"}', None]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (pa.array([[("x", 1)], [("x", 1), ("x", 2)]], pa.map_(pa.string(), pa.int64())), "a map has a key twice"),
        (pa.array([0, 2**62], pa.timestamp("us")), "a year that has no text"),
        (pa.array([0, -(2**62)], pa.timestamp("ms")), "a year that has no text"),
        (pa.array([b"x", b"\xff"]), "Invalid UTF8 payload"),
    ],
    ids=["map", "microseconds", "milliseconds", "bytes"],
)
def test_value_without_a_text_is_an_error_or_a_dead_letter(tmp_path: Path, values: pa.Array, reason: str) -> None:
    pyarrow.parquet.write_table(pa.table({"a": [1, 2], "v": values}), tmp_path / "a.parquet")
    with pytest.raises(SourceError, match=rf"a\.parquet: column v is .*{reason}.* or source\.schema without v$"):
        Reader(tmp_path, schema="a INT, v STRING").read()
    assert Reader(tmp_path, schema="a INT").read() == [{"a": 1}, {"a": 2}]
    rows = Reader(tmp_path, schema="a INT, v STRING", tolerant=True).read()
    assert [row["a"] for row in rows] == [1, None]
    assert reason in rows[1]["connectgroup_error"]


def test_nested_numbers_are_written_as_the_sinks_write_them(tmp_path: Path) -> None:
    """NaN and infinities as texts, and 32 bits with their own digits, not with those of 64 bits."""
    kind = pa.struct({"f": pa.float32(), "d": pa.list_(pa.float64()), "m": pa.map_(pa.float32(), pa.float32())})
    values: list[Any] = [
        {"f": 0.1, "d": [0.1, math.nan], "m": [(0.2, -0.0)]},
        {"f": math.inf, "d": [-math.inf], "m": [(1.0, None)]},
    ]
    write(tmp_path / "a.parquet", a=pa.array([*values, None], kind))
    assert [row["a"] for row in Reader(tmp_path).read()] == [
        '{"f":0.1,"d":[0.1,"NaN"],"m":{"0.2":-0.0}}',
        '{"f":"Infinity","d":["-Infinity"],"m":{"1.0":null}}',
        None,
    ]


def test_nested_decimals_are_written_as_others(tmp_path: Path) -> None:
    small = Decimal("0.0000000001")
    nested = pa.array([{"d": small}], pa.struct({"d": pa.decimal128(20, 10)}))
    write(tmp_path / "a.parquet", n=nested, d=pa.array([small], pa.decimal128(20, 10)))
    assert Reader(tmp_path).read() == [{"n": '{"d":"0.0000000001"}', "d": "0.0000000001"}]


def test_uuids_are_their_texts_and_not_their_bytes(tmp_path: Path) -> None:
    """As DuckDB, Trino and Iceberg write them; bytes that are ASCII by chance would be another text."""
    ids = [uuid.UUID(bytes=b"sixteen bytes!!!"), uuid.UUID(int=0xFF), None]
    column = pa.array([None if each is None else each.bytes for each in ids], pa.uuid())
    write(tmp_path / "a.parquet", id=column, s=pa.StructArray.from_arrays([column], ["id"]))
    texts = [None if each is None else str(each) for each in ids]
    expected = [{"id": text, "s": json.dumps({"id": text}, separators=(",", ":"))} for text in texts]
    assert Reader(tmp_path).read() == expected


def test_files_of_pandas_are_read_without_a_schema(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "price": [Decimal("19.90"), Decimal("12345678901234567890.12")],
            "tags": [["x", "y"], []],
            "point": [{"x": 1, "y": None}, {"x": 2, "y": Decimal("0.10")}],
            "kind": pd.Categorical(["a", "b"]),
            "nothing": [None, None],
            "small": np.array([1, 255], np.uint8),
            "count": np.array([1, 2**32 - 1], np.uint32),
            "huge": np.array([1, 2**64 - 1], np.uint64),
            "at": pd.to_datetime(["2024-01-01T00:00:00.123456", "1700-01-01T00:00:00.0"]),
            "half": np.array([0.5, 1.5], np.float16),
            "day": [datetime.date(2024, 2, 29), datetime.date(1, 1, 1)],
            "time": [datetime.time(1, 2, 3, 4), None],
            "raw": [b"text", b"\xc3\xa9"],
        }
    )
    frame.to_parquet(tmp_path / "a.parquet", index=False)
    reader = Reader(tmp_path)
    types = dict(column.split() for column in to_ddl(reader.source.columns).replace("`", "").split(", "))
    assert [name for name, kind in types.items() if kind != "STRING"] == ["small", "count", "at", "half", "day"]
    rows = reader.read()
    assert [row["price"] for row in rows] == ["19.90", "12345678901234567890.12"]
    assert [row["tags"] for row in rows] == ['["x","y"]', "[]"]
    assert [row["point"] for row in rows] == ['{"x":1,"y":null}', '{"x":2,"y":"0.10"}']
    assert [row["kind"] for row in rows] == ["a", "b"]
    assert [row["nothing"] for row in rows] == [None, None]
    assert [row["count"] for row in rows] == [1, 2**32 - 1]
    assert [row["huge"] for row in rows] == ["1", str(2**64 - 1)]
    assert [row["at"].replace(tzinfo=None) for row in rows] == [at.to_pydatetime() for at in frame["at"]]
    assert [row["time"] for row in rows] == ["01:02:03.000004", None]
    assert [row["raw"] for row in rows] == ["text", "\u00e9"]


def test_files_of_spark_are_read_without_a_schema(tmp_path: Path, spark: None) -> None:
    """The same values as Spark reads; decimals are text, nested values are JSON as ``to_json`` writes it."""
    from connectgroup.spark.session import spark_session

    session = spark_session()
    query = (
        "SELECT id, CAST(id AS DECIMAL(20, 3)) / 3 AS d, array(id, null) AS l, map('k', id) AS m,"
        " named_struct('x', id, 'y', array('z')) AS s, timestamp '1000-03-01 00:00:00' AS old,"
        " timestamp '2024-01-01 00:00:00.000001' AS at, date '0044-03-15' AS day, CAST(id AS TINYINT) AS t,"
        " CAST('t' AS BINARY) AS b FROM range(3)"
    )
    session.sql(query).coalesce(1).write.parquet(str(tmp_path / "out"))
    rows = Reader(tmp_path / "out").read()
    texts = "id, CAST(d AS STRING) AS d, to_json(l) AS l, to_json(m) AS m, to_json(s) AS s, old, at, day, t"
    expected = session.read.parquet(str(tmp_path / "out")).selectExpr(*texts.split(", ")[:2]).orderBy("id").toArrow()
    assert [(row["id"], row["d"]) for row in rows] == [(row["id"], row["d"]) for row in expected.to_pylist()]
    frame = session.read.parquet(str(tmp_path / "out")).selectExpr(
        "to_json(l) AS l", "to_json(m) AS m", "to_json(s) AS s", "old", "at", "day", "t", "CAST(b AS STRING) AS b"
    )
    for row, found in zip(rows, frame.toArrow().to_pylist(), strict=True):
        assert {name: row[name] for name in found} == found


INTERVALS = (
    "UEFSMRUAFSQVKCwVBhUAFQYVBgAAEkQCAAAABgEBAAAAAgAAAAMAAAAVABV6FUosFQYVABUGFQYAAD0YIQAAAEEFAHYBAFwBAAAAAgAAALwL"
    "AAAOAAAAAAAAAAAAAAAVAhk8NQAYDWR1Y2tkYl9zY2hlbWEVBAAVAiUCGAJpZCUiABUOFRgVAhgBaSUqABYGGRwZLCYAHBUCGRUAGRgCaWQV"
    "AhYGFkYWSiYIPBgEAwAAABgEAQAAABYAKAQDAAAAGAQBAAAAEREAGRwVABUAFQIAAAAmABwVDhkVABkYAWkVAhYGFpwBFmwmUkkcFQAVABUC"
    "AAAAFuIBFgYmCBa2AQAZHBgcZHVja2RiLmludGVydmFsX2Jsb29tX2ZpbHRlchgNbm9ybWFsaXplZC12MQAYKER1Y2tEQiB2ZXJzaW9uIHYy"
    "LjAuMSAoYnVpbGQgOGQ3ODExNGU5MCkZLBwAABwAAAAFAQAAUEFSMQ=="
)
"""A file of DuckDB 2.0 in base64: ids 1 to 3, and an interval of one month, two days and 3.004 s, null, 14 months."""


def test_intervals_are_texts_and_not_their_bytes(tmp_path: Path) -> None:
    """Bytes that are UTF-8 by chance would be a text of control characters."""
    (tmp_path / "a.parquet").write_bytes(base64.b64decode(INTERVALS))
    assert [row["i"] for row in Reader(tmp_path).read()] == ["P1M2DT3.004S", None, "P14M0DT0.000S"]


DAYS = [
    "0001-01-01",
    "0001-01-03",
    "0200-02-28",
    "0999-12-31",
    "1200-02-29",
    "1500-02-28",
    "1500-03-01",
    "1582-10-04",
    "1582-10-15",
    "1969-12-31",
    "2024-02-29",
]


@pytest.mark.parametrize("mode", ["LEGACY", "CORRECTED"])
def test_dates_of_the_julian_calendar_are_those_that_spark_has_written(tmp_path: Path, spark: None, mode: str) -> None:
    """Spark before 3.0 wrote the days of that calendar, in which 0001-01-01 is two days earlier."""
    from connectgroup.spark.session import spark_session

    session = spark_session().newSession()
    session.conf.set("spark.sql.parquet.datetimeRebaseModeInWrite", mode)
    rows = ", ".join(f"(DATE '{day}')" for day in DAYS)
    session.sql(f"SELECT * FROM VALUES {rows}, (NULL) AS t(a)").coalesce(1).write.parquet(str(tmp_path / "out"))
    found = [row["a"] and row["a"].isoformat() for row in Reader(tmp_path / "out").read()]
    assert found == [*DAYS, None]


def test_day_that_only_the_julian_calendar_has_is_the_next_one(tmp_path: Path) -> None:
    """As Spark reads it."""
    schema = pa.schema([pa.field("a", pa.date32())], {"org.apache.spark.version": "2.4.8"})
    julian_leap_day = datetime.date(1500, 3, 10)
    pyarrow.parquet.write_table(pa.table({"a": [julian_leap_day]}, schema), tmp_path / "a.parquet")
    assert Reader(tmp_path).read() == [{"a": datetime.date(1500, 3, 1)}]


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("nested", [False, True])
def test_timestamp_of_the_julian_calendar_is_an_error(tmp_path: Path, old: bool, nested: bool) -> None:
    """Which moment is meant depends on the time zone of its writer."""
    times: Any = pa.array([datetime.datetime(1582, 10, 15), datetime.datetime(2024, 1, 1), None], pa.timestamp("us"))
    for said in ({}, {"org.apache.spark.version": "2.4.8"}):
        for first in (0, -1):
            values = pa.compute.add(times, pa.scalar(first, pa.duration("us")))
            if nested:
                values = pa.StructArray.from_arrays([values], ["at"])
            table = pa.table({"a": values, "b": [1, 2, 3]}).replace_schema_metadata(said)
            path = tmp_path / f"{first}{len(said)}"
            path.mkdir()
            pyarrow.parquet.write_table(table, path / "a.parquet", use_deprecated_int96_timestamps=old)
            if not said or not first:
                assert len(Reader(path).read()) == 3
                continue
            with pytest.raises(SourceError, match=r"a\.parquet: column a has a time before 1582-10-15 in the Julian"):
                Reader(path).read()
            assert Reader(path, schema="b INT").read() == [{"b": 1}, {"b": 2}, {"b": 3}]


VALUES: Mapping[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "BOOLEAN": (pa.bool_(), st.booleans()),
    "SMALLINT": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "INT": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "BIGINT": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "FLOAT": (pa.float32(), st.floats(width=32, allow_nan=False)),
    "DOUBLE": (pa.float64(), st.floats(allow_nan=False)),
    "STRING": (pa.string(), st.text(st.characters(exclude_categories=["Cs"]), max_size=30)),
    "DATE": (pa.date32(), st.dates()),
    "TIMESTAMP": (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(datetime.UTC))),
}


@hypothesis_settings(max_examples=volume(40, 300), deadline=None)
@given(data=st.data())
def test_values_of_every_type_are_those_of_pyarrow(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("in")
    kind = data.draw(st.sampled_from(sorted(VALUES)))
    arrow, values = VALUES[kind]
    found = data.draw(st.lists(st.none() | values, min_size=1, max_size=20))
    dictionary = data.draw(st.booleans()) and kind != "BOOLEAN"
    array = pa.array(found, arrow)
    pyarrow.parquet.write_table(
        pa.table({"a": array.dictionary_encode() if dictionary else array}),
        root / "a.parquet",
        row_group_size=data.draw(st.integers(1, 20)),
        version=data.draw(st.sampled_from(["1.0", "2.6"])),
        use_dictionary=data.draw(st.booleans()),
    )
    reader = Reader(root, max_rows_per_batch=data.draw(st.integers(1, 20)))
    stored = pyarrow.parquet.read_table(root / "a.parquet")["a"].to_pylist()
    assert [row["a"] for row in reader.read()] == stored == pa.array(found, arrow).to_pylist()
    assert os.listdir(root) == ["a.parquet"]


def test_decimals_are_read_as_the_schema_has_them_or_are_an_error(tmp_path: Path) -> None:
    texts = ["19.90", "-0.000001", "12345678901234567890.123456"]
    kinds = {
        "a": pa.array([Decimal(text) for text in texts], pa.decimal128(38, 9)),
        "b": pa.array([1, -2, 3], pa.int64()),
        "c": pa.array([1, 2, None], pa.uint8()),
    }
    write(tmp_path / "1.parquet", **kinds)
    schema = "a DECIMAL(26,6), b DECIMAL(3,1), c TINYINT"
    assert Reader(tmp_path, schema=schema).read() == [
        {"a": Decimal(texts[0]), "b": Decimal(1), "c": 1},
        {"a": Decimal(texts[1]), "b": Decimal(-2), "c": 2},
        {"a": Decimal(texts[2]), "b": Decimal(3), "c": None},
    ]
    for narrow in ("a DECIMAL(26,5), b INT, c INT", "a DECIMAL(25,6), b INT, c INT"):
        with pytest.raises(SourceError, match=r"column a is decimal128\(38, 9\).*allowed: DECIMAL\(2"):
            Reader(tmp_path, schema=narrow).read()


@pytest.mark.parametrize("form", ["plain", "dictionary", "large"])
def test_text_that_is_not_utf8_is_an_error_or_a_dead_letter(tmp_path: Path, form: str) -> None:
    texts = pa.array([b"x", b"\xff", b"y"]).view(pa.string())
    column = {"plain": texts, "dictionary": texts.dictionary_encode(), "large": texts.cast(pa.large_string())}[form]
    write(tmp_path / "1.parquet", a=column)
    with pytest.raises(SourceError, match=r"1\.parquet: column a is .*UTF.?8.*; allowed: STRING"):
        Reader(tmp_path).read()
    rows = Reader(tmp_path, tolerant=True).read()
    assert [row["a"] for row in rows] == ["x", "y", None]
    assert "1.parquet, row 2" in rows[2]["connectgroup_error"]
