"""Every shipped sink passes the contract of sinks, and tests of its own settings."""

from __future__ import annotations

import csv
import datetime
import json
import re
import sqlite3
from pathlib import Path
from typing import Literal

import pytest

from connectgroup.dataplane.columns import from_ddl, to_arrow
from connectgroup.dataplane.ownership import Range
from connectgroup.dataplane.sink import PositionStore, Sink
from connectgroup.spark.sinks.console import ConsoleSettings, ConsoleSink
from connectgroup.spark.sinks.delta import DeltaSettings, DeltaSink
from connectgroup.spark.sinks.manifest import FileSinkSettings, ManifestSink
from connectgroup.spark.sinks.parquet import ParquetSink, read_committed
from connectgroup.spark.sinks.postgres import PostgresSettings, PostgresSink
from connectgroup.spark.sinks.sqlite import SqliteSettings, SqliteSink
from connectgroup.spark.sinks.text_files import CsvSink, JsonlSink
from connectgroup.spark.sources.dialect import LineDialect
from connectgroup.spark.sources.parts import read_range
from connectgroup.testing.contracts.sink import SinkContract, every, owner, span


class TestSqliteSink(SinkContract):
    def make_sink(self, place: Path) -> Sink:
        return SqliteSink.create(SqliteSettings(path=str(place / "out.db"), table="t"), self.columns)

    def open_positions(self, place: Path) -> PositionStore | None:
        return SqliteSink.open_positions(SqliteSettings(path=str(place / "out.db"), table="t"))

    def read(self, place: Path) -> list[int]:
        with sqlite3.connect(place / "out.db") as connection:
            return [a for (a,) in connection.execute("SELECT a FROM t")]


class TestParquetSink(SinkContract):
    def make_sink(self, place: Path) -> Sink:
        return ParquetSink(place / "out")

    def open_positions(self, place: Path) -> PositionStore | None:
        return ParquetSink.open_positions(FileSinkSettings(path=str(place / "out")))

    def read(self, place: Path) -> list[int]:
        import pyarrow.parquet

        return [a for f in read_committed(place / "out") for a in pyarrow.parquet.read_table(f)["a"].to_pylist()]


class TestJsonlSink(SinkContract):
    def make_sink(self, place: Path) -> Sink:
        return JsonlSink(place / "out")

    def open_positions(self, place: Path) -> PositionStore | None:
        return JsonlSink.open_positions(FileSinkSettings(path=str(place / "out")))

    def read(self, place: Path) -> list[int]:
        return [json.loads(line)["a"] for f in read_committed(place / "out") for line in f.read_text().splitlines()]


class TestCsvSink(SinkContract):
    def make_sink(self, place: Path) -> Sink:
        return CsvSink(place / "out")

    def open_positions(self, place: Path) -> PositionStore | None:
        return CsvSink.open_positions(FileSinkSettings(path=str(place / "out")))

    def read(self, place: Path) -> list[int]:
        return [int(row["a"]) for f in read_committed(place / "out") for row in csv.DictReader(f.open())]


class TestDeltaSink(SinkContract):
    def make_sink(self, place: Path) -> Sink:
        return DeltaSink.create(DeltaSettings(path=str(place / "out")), self.columns)

    def open_positions(self, place: Path) -> PositionStore | None:
        # Without a table there is no place for positions.
        self.make_sink(place).close()
        return DeltaSink.open_positions(DeltaSettings(path=str(place / "out")))

    def read(self, place: Path) -> list[int]:
        from deltalake import DeltaTable

        return list(DeltaTable(str(place / "out")).to_pyarrow_table()["a"].to_pylist())


class TestConsoleSink(SinkContract):
    @pytest.fixture
    def place(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
        self.output, self.printed = capsys, ""
        return tmp_path

    def make_sink(self, place: Path) -> Sink:
        return ConsoleSink(ConsoleSettings(offsets=str(place / "offsets.db")))

    def open_positions(self, place: Path) -> PositionStore | None:
        return ConsoleSink.open_positions(ConsoleSettings(offsets=str(place / "offsets.db")))

    def read(self, place: Path) -> list[int]:
        self.printed += self.output.readouterr().out
        return [json.loads(line.removeprefix("c-").partition(": ")[2])["a"] for line in self.printed.splitlines()]


def test_text_files_have_what_the_file_source_reads(tmp_path: Path) -> None:
    import pyarrow as pa

    at = datetime.datetime(2024, 2, 29, 12, 30, 1, 500, datetime.UTC)
    columns = from_ddl("a INT, s STRING, at TIMESTAMP, b BOOLEAN")
    values = [[1, None], ['x,"y', ""], [at, None], [True, None]]
    arrays = [pa.array(items, field.type) for items, field in zip(values, to_arrow(columns), strict=True)]
    rows = pa.table(arrays, schema=to_arrow(columns))
    forms: list[tuple[type[ManifestSink], Literal["csv", "jsonl"]]] = [(CsvSink, "csv"), (JsonlSink, "jsonl")]
    for kind, form in forms:
        sink = kind(tmp_path / form)
        sink.claim(owner(1), every)
        sink.commit(owner(1), span(0, 2), rows)
        sink.close()
        (file,) = read_committed(tmp_path / form)
        whole = Range(slice=file.name, start=0, end=file.stat().st_size)
        assert read_range(file.parent, whole, columns, LineDialect(form)).to_pylist() == rows.to_pylist()


def test_console_prints_no_more_rows_of_a_batch_than_its_setting(capsys: pytest.CaptureFixture[str]) -> None:
    import pyarrow as pa

    sink = ConsoleSink(ConsoleSettings.model_validate({"max.rows": 1}))
    sink.claim(owner(1), every)
    sink.commit(owner(1), span(0, 2), pa.table({"a": [1, 2, 3]}))
    sink.close()
    assert capsys.readouterr().out == 'c-0: {"a": 1}\nc-0: ... and 2 more rows\n'


class TestPostgresSink(SinkContract):
    @pytest.fixture
    def place(self, tmp_path: Path, postgres: str) -> Path:
        import psycopg

        self.url = postgres
        with psycopg.connect(postgres, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {schema(tmp_path)}")
        return tmp_path

    def make_sink(self, place: Path) -> Sink:
        return PostgresSink.create(self.settings(place), self.columns)

    def open_positions(self, place: Path) -> PositionStore | None:
        return PostgresSink.open_positions(self.settings(place))

    def settings(self, place: Path) -> PostgresSettings:
        return PostgresSettings.model_validate({"url": self.url, "table": "t", "schema": schema(place)})

    def read(self, place: Path) -> list[int]:
        import psycopg

        with psycopg.connect(self.url) as connection:
            return [a for (a,) in connection.execute(f"SELECT a FROM {schema(place)}.t")]


def schema(place: Path) -> str:
    return re.sub(r"\W", "_", place.name)
