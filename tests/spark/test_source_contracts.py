"""Every shipped source passes the contract of sources, and tests of its own settings."""

from __future__ import annotations

import re
import sqlite3
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from connectgroup.connectors.pipeline import PipelineConnector
from connectgroup.dataplane.columns import from_ddl
from connectgroup.dataplane.errors import BadLine, SourceError
from connectgroup.dataplane.ownership import Range
from connectgroup.dataplane.source import Source
from connectgroup.errors import ConfigError
from connectgroup.spark.sources.datagen import DatagenSettings, DatagenSource
from connectgroup.spark.sources.dialect import LineDialect
from connectgroup.spark.sources.file_settings import FileSettings
from connectgroup.spark.sources.files import FileSource
from connectgroup.spark.sources.parquet import ParquetSource, ParquetSourceSettings
from connectgroup.spark.sources.parts import read_range
from connectgroup.spark.sources.postgres_table import PostgresTableSettings, PostgresTableSource
from connectgroup.spark.sources.table import SqliteTableSettings, SqliteTableSource
from connectgroup.testing.contracts.source import SourceContract


class OnSpark(SourceContract):
    """The contract, with this process's Spark session started."""

    @pytest.fixture(autouse=True)
    def warm(self, spark: None) -> None:
        pass


class TestFileSource(OnSpark):
    def make_source(self, place: Path, *, task: int = 0, tasks: int = 1) -> Source:
        settings = {"path": str(place), "format": "jsonl", "schema": "a INT", "max.bytes.per.batch": 1024}
        return FileSource.create(FileSettings.model_validate(settings), task=task, tasks=tasks)

    def write(self, place: Path, numbers: range) -> None:
        for number in numbers:
            with (place / f"{number % 4}.jsonl").open("a") as file:
                file.write(f'{{"a": {number}}}\n')


class TestParquetSource(OnSpark):
    def make_source(self, place: Path, *, task: int = 0, tasks: int = 1) -> Source:
        settings = ParquetSourceSettings.model_validate({"path": str(place), "max.rows.per.batch": 3})
        return ParquetSource.create(settings, task=task, tasks=tasks)

    def write(self, place: Path, numbers: range) -> None:
        for number in range(4):
            rows = pa.table({"a": pa.array(numbers[number::4], pa.int32())})
            pyarrow.parquet.write_table(rows, place / f"{numbers.start}-{number}.parquet", row_group_size=2)


class TestDatagenSource(OnSpark):
    number = "id"

    def make_source(self, place: Path, *, task: int = 0, tasks: int = 1) -> Source:
        rows = int((place / "rows").read_text())
        settings = DatagenSettings.model_validate({"rows": rows, "max.rows.per.batch": 8})
        return DatagenSource.create(settings, task=task, tasks=tasks)

    def write(self, place: Path, numbers: range) -> None:
        (place / "rows").write_text(str(numbers.stop))


class TestSqliteTableSource(OnSpark):
    def make_source(self, place: Path, *, task: int = 0, tasks: int = 1) -> Source:
        settings = {
            "path": str(place / "in.db"),
            "table": "t",
            "incrementing.column": "a",
            "slices": 4,
            "max.rows.per.batch": 3,
        }
        return SqliteTableSource.create(SqliteTableSettings.model_validate(settings), task=task, tasks=tasks)

    def write(self, place: Path, numbers: range) -> None:
        with sqlite3.connect(place / "in.db") as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS t (a INTEGER PRIMARY KEY, b TEXT)")
            connection.executemany("INSERT INTO t VALUES (?, ?)", [(n, f"row {n}") for n in numbers])


class TestPostgresTableSource(OnSpark):
    @pytest.fixture
    def place(self, tmp_path: Path, postgres: str) -> Path:
        self.url = postgres
        return tmp_path

    def make_source(self, place: Path, *, task: int = 0, tasks: int = 1) -> Source:
        settings = {
            "url": self.url,
            "table": table(place),
            "incrementing.column": "a",
            "slices": 4,
            "max.rows.per.batch": 3,
        }
        return PostgresTableSource.create(PostgresTableSettings.model_validate(settings), task=task, tasks=tasks)

    def write(self, place: Path, numbers: range) -> None:
        import psycopg

        with psycopg.connect(self.url) as connection:
            connection.execute(f"CREATE TABLE IF NOT EXISTS {table(place)} (a INTEGER PRIMARY KEY, b TEXT)")
            connection.cursor().executemany(
                f"INSERT INTO {table(place)} VALUES (%s, %s)", [(n, f"row {n}") for n in numbers]
            )


def table(place: Path) -> str:
    return re.sub(r"\W", "_", place.name)


def test_datagen_gives_the_same_rows_for_the_same_range_and_others_for_another_seed() -> None:
    every = "b BOOLEAN, h SMALLINT, i INT, l BIGINT, f FLOAT, d DOUBLE, s STRING, day DATE, at TIMESTAMP"

    def rows(seed: int, start: int, end: int) -> list[dict[str, object]]:
        source = DatagenSource.create(DatagenSettings.model_validate({"seed": seed, "schema": every}), task=0, tasks=1)
        return [row for batch in source.read(Range(slice="slice-3", start=start, end=end)) for row in batch.to_pylist()]

    assert rows(1, 0, 100)[40:60] == rows(1, 40, 60)
    assert [row["id"] for row in rows(1, 0, 3)] == [3, 11, 19]
    assert rows(1, 0, 100) != rows(2, 0, 100)
    assert len({str(row) for row in rows(1, 0, 1000)}) == 1000


def test_datagen_keeps_to_its_rate() -> None:
    source = DatagenSource.create(DatagenSettings.model_validate({"rows.per.second": 1000}), task=0, tasks=1)
    assert source.plan({}) == {}
    began = time.monotonic()
    end: dict[str, int] = {}
    while sum(end.values()) < 100:
        end = source.plan(end)
    assert sum(end.values()) <= (time.monotonic() - began + 1) * 1000


@pytest.mark.parametrize("tasks", [1, 3])
def test_datagen_plans_no_id_before_a_smaller_one_of_its_task(tasks: int) -> None:
    """A table that it fills is read in the order of the keys: a smaller key that came later would not be read."""
    settings = DatagenSettings.model_validate({"rows.per.second": 1e6, "max.rows.per.batch": 50, "slices": 7})
    for task in range(tasks):
        end: dict[str, int] = {}
        for restart in range(3):
            source = DatagenSource.create(settings, task=task, tasks=tasks)
            read = set[int]()
            while len(read) < 500 * (restart + 1):
                end = source.plan(end)
                read = {n * 7 + int(name.removeprefix("slice-")) for name, count in end.items() for n in range(count)}
                owned = {number for number in range(max(read, default=-1) + 1) if number % 7 % tasks == task}
                assert read == owned


def test_postgres_source_waits_for_writers_that_may_commit_smaller_keys(database: str) -> None:
    import psycopg

    settings = PostgresTableSettings.model_validate({"url": database, "table": "t", "incrementing.column": "id"})
    with psycopg.connect(database, autocommit=True) as slow, psycopg.connect(database, autocommit=True) as quick:
        quick.execute("CREATE TABLE t (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v TEXT)")
        source = PostgresTableSource.create(settings, task=0, tasks=1)
        slow.execute("BEGIN")
        slow.execute("INSERT INTO t (v) VALUES ('one')")
        quick.execute("INSERT INTO t (v) VALUES ('two')")
        assert source.plan({}) == {}, "row 1 is not visible yet"
        slow.execute("COMMIT")
        slow.execute("BEGIN")
        slow.execute("INSERT INTO t (v) VALUES ('three')")
        assert source.plan({}) == {"keys 0 of 1": 3}, "a later writer delays nothing"
        rows = [row for batch in source.read(Range(slice="keys 0 of 1", start=0, end=3)) for row in batch.to_pylist()]
        assert rows == [{"id": 1, "v": "one"}, {"id": 2, "v": "two"}]
        slow.execute("ROLLBACK")


def test_postgres_source_reads_every_type(database: str) -> None:
    import psycopg

    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE t (id INT, b BOOL, s TEXT, d FLOAT8, day DATE, at TIMESTAMPTZ, local TIMESTAMP,"
            " n NUMERIC, j JSONB)"
        )
        insert = "INSERT INTO t VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)"
        nulls = (None,) * 5
        times = ("2024-02-29", "2024-02-29 13:30:01.0005+01", "2024-02-29 12:30:01", "1.20", '{"x": 1}')
        connection.cursor().executemany(
            insert, [(1, True, 'a"b,\n', 0.5, *times), (2, None, None, None, *nulls), (3, False, "", 1e300, *nulls)]
        )
    settings = PostgresTableSettings.model_validate({"url": database, "table": "t", "incrementing.column": "id"})
    source = PostgresTableSource.create(settings, task=0, tasks=1)
    rows = [row for batch in source.read(Range(slice="keys 0 of 1", start=0, end=4)) for row in batch.to_pylist()]
    first, empty, last = (list(row.values()) for row in rows)
    assert first[:4] == [1, True, 'a"b,\n', 0.5]
    assert [str(value) for value in first[4:]] == [
        "2024-02-29",
        "2024-02-29 12:30:01.000500+00:00",
        "2024-02-29 12:30:01+00:00",
        "1.20",
        '{"x": 1}',
    ]
    assert empty == [2] + [None] * 8
    assert last[:4] == [3, False, "", 1e300]


def test_table_that_does_not_exist_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "in.db").touch()
    settings = {"path": str(tmp_path / "in.db"), "table": "nope", "incrementing.column": "a"}
    with pytest.raises(SourceError, match=r"in\.db: table nope does not exist; allowed: a table or view"):
        SqliteTableSource.create(SqliteTableSettings.model_validate(settings), task=0, tasks=1)


def test_incrementing_column_must_be_an_integer(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "in.db") as connection:
        connection.execute("CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT)")
    settings = {"path": str(tmp_path / "in.db"), "table": "t", "incrementing.column": "b"}
    with pytest.raises(ConfigError, match=r"source\.incrementing\.column: got 'b'; allowed: an integer column: a"):
        SqliteTableSource.create(SqliteTableSettings.model_validate(settings), task=0, tasks=1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"source": "datagen", "source.rows": "-1"}, r"source\.rows: got '-1'; allowed: the number of rows"),
        ({"source": "datagen", "source.schema": "id INT"}, r"source\.schema: got 'id'"),
        ({"source": "sqlite", "source.path": "/x"}, r"source\.table: missing; allowed: the name of a table"),
        (
            {"source": "postgres", "source.table": "t", "source.incrementing.column": "a", "source.slices": "0"},
            r"source\.slices: got '0'",
        ),
    ],
)
def test_wrong_settings_are_refused_when_the_connector_is_put(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PipelineConnector("c", settings | {"sink": "parquet", "sink.path": "/out"})


def test_lines_of_text_are_rows_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes('one\n\n t,w"o \r\n\u00e9\n'.encode())
    whole = Range(slice="f", start=0, end=(tmp_path / "f").stat().st_size)
    rows = read_range(tmp_path, whole, from_ddl("value STRING"), LineDialect("text")).to_pylist()
    assert [row["value"] for row in rows] == ["one", "", ' t,w"o ', "\u00e9"]
    (tmp_path / "f").write_bytes(b"one\n\xff\n")
    with pytest.raises(BadLine, match=r"f, line 2 \(byte 4\): not UTF-8; allowed: UTF-8 text"):
        read_range(tmp_path, Range(slice="f", start=0, end=6), from_ddl("value STRING"), LineDialect("text"))


def test_file_that_is_not_parquet_is_one_clear_line(tmp_path: Path) -> None:
    settings = ParquetSourceSettings.model_validate({"path": str(tmp_path)})
    with pytest.raises(SourceError, match=r"has no Parquet file; allowed: one file, or source\.schema"):
        ParquetSource.create(settings, task=0, tasks=1)
    (tmp_path / "a.parquet").write_text("no")
    with pytest.raises(SourceError, match=r"a\.parquet: cannot be read; allowed: a complete Parquet file"):
        ParquetSource.create(settings, task=0, tasks=1)
