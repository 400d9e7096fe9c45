"""Every shipped sink keeps the contract of sinks, and what its own settings promise."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest

from connectgroup.dataplane.sink import Sink
from connectgroup.spark.sinks.parquet import ParquetSink, read_committed
from connectgroup.spark.sinks.postgres import PostgresSettings, PostgresSink
from connectgroup.spark.sinks.sqlite import SqliteSettings, SqliteSink
from connectgroup.testing.contracts.sink import SinkContract


class TestSqliteSink(SinkContract):
    def make_sink(self, place: Path) -> Sink:
        return SqliteSink.create(SqliteSettings(path=str(place / "out.db"), table="t"), self.columns)

    def read(self, place: Path) -> list[int]:
        with sqlite3.connect(place / "out.db") as connection:
            return [a for (a,) in connection.execute("SELECT a FROM t")]


class TestParquetSink(SinkContract):
    def make_sink(self, place: Path) -> Sink:
        return ParquetSink(place / "out")

    def read(self, place: Path) -> list[int]:
        import pyarrow.parquet

        return [a for f in read_committed(place / "out") for a in pyarrow.parquet.read_table(f)["a"].to_pylist()]


class TestPostgresSink(SinkContract):
    @pytest.fixture
    def place(self, tmp_path: Path, postgres: str) -> Path:
        import psycopg

        self.url = postgres
        with psycopg.connect(postgres, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {schema(tmp_path)}")
        return tmp_path

    def make_sink(self, place: Path) -> Sink:
        settings = PostgresSettings.model_validate({"url": self.url, "table": "t", "schema": schema(place)})
        return PostgresSink.create(settings, self.columns)

    def read(self, place: Path) -> list[int]:
        import psycopg

        with psycopg.connect(self.url) as connection:
            return [a for (a,) in connection.execute(f"SELECT a FROM {schema(place)}.t")]


def schema(place: Path) -> str:
    return re.sub(r"\W", "_", place.name)
