"""The comparison at the end of these tests detects a lost, duplicated or changed row."""

from __future__ import annotations

import contextlib
import importlib.util
import sqlite3
from pathlib import Path

import pytest

from .flow import Feeder, Pipe, compare, row
from .processes import wait

ROWS = 100


def sink(path: Path, table: str, rows: list[tuple[object, ...]]) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"DROP TABLE IF EXISTS {table}")
        connection.execute(f"CREATE TABLE {table} (id, text)")
        connection.executemany(f"INSERT INTO {table} VALUES (?, ?)", rows)


def test_lost_duplicate_and_changed_rows_are_counted(tmp_path: Path) -> None:
    pipe = Pipe("p", tmp_path, tmp_path, "sqlite")
    good: list[tuple[object, ...]] = [row(number) for number in range(ROWS)]
    with pytest.raises(AssertionError, match="100 of 100 rows lost"):
        compare(pipe, ROWS)
    sink(pipe.output, "rows", good[::-1])
    compare(pipe, ROWS)
    sink(pipe.output, "rows", good[1:])
    with pytest.raises(AssertionError, match="1 of 100 rows lost, 0 doubled"):
        compare(pipe, ROWS)
    sink(pipe.output, "rows", [*good, good[7]])
    with pytest.raises(AssertionError, match="1 rows doubled or foreign of 100"):
        compare(pipe, ROWS)
    sink(pipe.output, "rows", [*good[:-1], (99, "row 98")])
    with pytest.raises(AssertionError, match="1 of 100 rows lost, 1 doubled"):
        compare(pipe, ROWS)


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_feeder_counts_the_rows_in_its_files(tmp_path: Path, form: str) -> None:
    """From its own thread and from the test's, in whole lines, every id once."""
    feeder = Feeder(tmp_path / "in", form=form)
    feeder.write(60)
    feeder.flow()
    wait("some rows", lambda: feeder.written >= 1_000)
    feeder.close()
    lines = [line for file in feeder.directory.iterdir() for line in file.read_bytes().splitlines(keepends=True)]
    assert sorted(line for line in lines if line != b"id,text\n") == sorted(
        feeder.lines(0, feeder.written).splitlines(keepends=True)
    )


def test_demo_fails_when_a_row_is_lost_or_duplicated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``make demo`` runs the whole demo; here only the comparison."""
    path = Path(__file__).parents[2] / "examples" / "demo.py"
    spec = importlib.util.spec_from_file_location("demo", path)
    assert spec is not None
    assert spec.loader is not None
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    flights = [[str(number), text] for number, text in map(row, range(ROWS))]
    good: list[tuple[object, ...]] = [tuple(flight) for flight in flights]
    for rows, code, verdict in (
        (good, 0, "0 lost, 0 doubled or foreign: OK"),
        (good[1:], 1, "1 lost, 0 doubled or foreign: FAILED"),
        ([*good, good[3]], 1, "0 lost, 1 doubled or foreign: FAILED"),
    ):
        path = tmp_path / "flights.sqlite"
        sink(path, "flights", rows)
        assert demo.check(path, flights) == code
        assert verdict in capsys.readouterr().out
