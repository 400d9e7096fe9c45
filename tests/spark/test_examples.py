"""The examples that need Spark, in this process, with its session; each counts its rows and ends with 0."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from connectgroup.dataplane.sink import PositionStore, Sink
from connectgroup.testing.contracts.sink import SinkContract
from tests.volume import ci_only

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str) -> ModuleType:
    """An example, imported as a module."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # pydantic looks there for the names in annotations
    spec.loader.exec_module(module)
    return module


def test_files_to_sqlite_with_dead_letters(spark: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert example("files_to_sqlite").main(["--rows", "2000"]) == 0
    output = capsys.readouterr().out
    assert "line 2 (byte 15): amount is 'unknown'; allowed: DOUBLE or null" in output
    assert output.endswith("2000 lines: 1997 rows, 3 dead letters\n0 lost, 0 duplicated: OK\n")


def test_kafka_to_postgres_upserts(spark: None, kafka: str, postgres: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--bootstrap", kafka, "--postgres", postgres, "--changes", "3000"]
    assert example("kafka_to_postgres").main(arguments) == 0
    assert capsys.readouterr().out.endswith("0 wrong: OK\n")


@ci_only("a minute of a core; test_java_plugins has Debezium without faults, and starts the task again")
def test_debezium_to_parquet_while_workers_are_killed() -> None:
    """In a process of its own: its workers have Spark, and it has none."""
    words = [sys.executable, str(EXAMPLES / "debezium_to_parquet.py"), "--changes", "1500", "--kills", "1"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=280, check=False)
    assert done.stdout.endswith("OK: the files are the history of the table, each change once and in order\n"), (
        done.stdout + done.stderr
    )


def test_own_source_and_sink(spark: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])
    assert example("own_pipeline").main(["--readings", "3000"]) == 0
    assert capsys.readouterr().out.endswith("18,000 readings, 18,000 rows\n0 lost, 0 duplicated: OK\n")


class TestJournalSink(SinkContract):
    def make_sink(self, place: Path) -> Sink:
        sink: Sink = example("own_sink").JournalSink(place / "journal")
        return sink

    def read(self, place: Path) -> list[int]:
        return [int(line.split("\t")[0]) for line in example("own_sink").read_committed(place / "journal")]

    def open_positions(self, place: Path) -> PositionStore | None:
        sink = example("own_sink")
        store: PositionStore = sink.JournalSink.open_positions(sink.JournalSettings(path=str(place / "journal")))
        return store


@pytest.mark.parametrize("change", ["lost", "duplicated"])
def test_own_pipeline_fails_when_a_reading_is_lost_or_duplicated(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    pipeline, source = example("own_pipeline"), example("own_source")
    lines = [
        "\t".join(map(str, source.reading(f"sensor-{sensor}", number).values()))
        for sensor in range(pipeline.SENSORS)
        for number in range(3)
    ]
    assert pipeline.check(lines, 3) == 0
    assert pipeline.check(lines[1:] if change == "lost" else [*lines, lines[0]], 3) == 1
