"""A source and a sink of another distribution, found by entry point and run by the pipeline on real Spark."""

from __future__ import annotations

import importlib
import sqlite3
from pathlib import Path

import pytest

from connectgroup.errors import ConfigError, PluginError
from connectgroup.plugins import available, load_sink_class, load_source_class
from tests.distribution import make_distribution

from .conftest import Bench

SOURCE = '''
from connectgroup.dataplane.settings import PluginSettings
from connectgroup.dataplane.source import Source
from connectgroup.spark.sources.files import FileSettings, FileSource

class Upper(Source):
    """The rows of a directory, with text in upper case."""

    Settings = FileSettings

    def __init__(self, files):
        self.files, self.columns = files, files.columns

    @classmethod
    def create(cls, settings, *, task, tasks):
        return cls(FileSource.create(settings, task=task, tasks=tasks))

    @property
    def description(self):
        return f"upper case of {self.files.description}"

    def owns(self, slice_name):
        return self.files.owns(slice_name)

    def stream(self, session, positions):
        return self.files.stream(session, positions).selectExpr("a", "upper(b) AS b")
'''

SINK = '''
from typing import Annotated
from pathlib import Path
from pydantic import Field
from connectgroup.dataplane.offset_store import OffsetStore
from connectgroup.dataplane.settings import PluginSettings
from connectgroup.dataplane.sink import Sink

class SumsSettings(PluginSettings):
    path: Annotated[str, Field(min_length=1, description="a database file")]

class Sums(Sink):
    """The sum of the first column of each batch."""

    Settings = SumsSettings

    def __init__(self, path):
        self.store = OffsetStore(path)
        self.store.execute("CREATE TABLE IF NOT EXISTS sums (total INTEGER, words TEXT)")

    @classmethod
    def create(cls, settings, columns):
        return cls(Path(settings.path))

    def claim(self, owner, is_mine):
        return self.store.claim(owner, is_mine)

    def commit(self, owner, ranges, rows):
        total, words = sum(rows["a"].to_pylist()), ",".join(rows["b"].to_pylist())
        return self.store.commit(owner, ranges, lambda t: t.execute("INSERT INTO sums VALUES (?, ?)", total, words))

    def close(self):
        self.store.close()
'''


@pytest.fixture(autouse=True)
def distributions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install both plug-ins for one test."""
    for name, kind, code, entry in (("upper", "sources", SOURCE, ":Upper"), ("sums", "sinks", SINK, ":Sums")):
        site = tmp_path / f"site-{name}"
        make_distribution(site, name, f"connectgroup.{kind}", code, **{name: entry})
        monkeypatch.syspath_prepend(str(site))
    importlib.invalidate_caches()


def test_pipeline_runs_a_source_and_a_sink_of_another_distribution(table: Bench) -> None:
    table.write("one.csv", range(4))
    config = {"source": "upper", "sink": "sums", "sink.path": str(table.root / "sums.db")}
    base = {key: value for key, value in table.config().items() if not key.startswith("sink")}
    table.config = lambda **_: base | config  # type: ignore[method-assign]
    run = table.start(1)
    run.wait(lambda: sum(run.rows) == 4)
    with sqlite3.connect(table.root / "sums.db") as connection:
        assert connection.execute("SELECT sum(total), group_concat(words) FROM sums").fetchall() == [
            (6, "ROW 0,ROW 1,ROW 2,ROW 3")
        ]


def test_sources_and_sinks_are_listed_and_refused_by_name() -> None:
    assert {"files", "upper"} <= set(available("sources"))
    assert {"parquet", "sqlite", "sums"} <= set(available("sinks"))
    with pytest.raises(ConfigError, match=r"source: got 'nope'; allowed: .*files.*upper"):
        load_source_class("nope")
    with pytest.raises(ConfigError, match=r"sink: got 'nope'; allowed: .*sums"):
        load_sink_class("nope")


def test_class_that_is_no_sink_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site-nosink"
    make_distribution(site, "nosink", "connectgroup.sinks", SOURCE, nosink=":Upper")
    monkeypatch.syspath_prepend(str(site))
    importlib.invalidate_caches()
    with pytest.raises(PluginError, match="is not a subclass of Sink"):
        load_sink_class("nosink")
