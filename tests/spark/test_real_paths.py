"""Paths that become links after a worker has checked them: nothing is read or written through them."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from connectgroup.config.paths import check_paths
from connectgroup.connectors.idle import IdleConnector
from connectgroup.dataplane import real_paths
from connectgroup.dataplane.columns import Column
from connectgroup.dataplane.errors import SinkError, SourceError
from connectgroup.dataplane.offset_store import FilePositions, OffsetStore
from connectgroup.dataplane.ownership import Owner, Range
from connectgroup.errors import ConfigError
from connectgroup.spark.sinks.delta import DeltaSettings, DeltaSink
from connectgroup.spark.sinks.parquet import ParquetSink
from connectgroup.spark.sinks.sqlite import SqliteSettings, SqliteSink
from connectgroup.spark.sinks.text_files import JsonlSink
from connectgroup.spark.sources.dialect import LineDialect
from connectgroup.spark.sources.file_settings import FileSettings
from connectgroup.spark.sources.files import FileSource
from connectgroup.spark.sources.listing import list_inodes
from connectgroup.spark.sources.parquet import ParquetSource, ParquetSourceSettings
from connectgroup.spark.sources.parts import inferred_columns, next_fields, read_part
from connectgroup.spark.sources.planner import Planner
from connectgroup.spark.sources.table import SqliteTableSettings, SqliteTableSource

TEXT = (Column("value", "STRING"),)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A directory that connectors may not use, with files of the names that the others have."""
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    for name in "a", "deep/a":
        (outside / name).write_text('{"secret": 1}\n')
    return outside


@pytest.fixture
def root(tmp_path: Path) -> Path:
    inside = tmp_path / "in"
    (inside / "deep").mkdir(parents=True)
    for name in "a", "deep/a":
        (inside / name).write_text('{"plain": 1}\n')
    return inside


def become_link(path: Path, target: Path) -> None:
    """What another user who may write in the directory above does."""
    path.rename(path.with_name(f"{path.name}.moved"))
    path.symlink_to(target)


def replaced(kind: str, root: Path, secret: Path) -> None:
    match kind:
        case "root":
            become_link(root, secret)
        case "directory":
            become_link(root / "deep", secret / "deep")
        case "file":
            become_link(root / "deep" / "a", secret / "deep" / "a")


@pytest.mark.parametrize("kind", ["root", "directory", "file"])
def test_file_that_becomes_a_link_after_its_range_was_planned_is_not_read(root: Path, secret: Path, kind: str) -> None:
    planner = Planner(root=root, task=0, tasks=1, max_bytes=1 << 20)
    end = planner.advance({})["deep/a"]
    for position in end, int(end):  # with and without the identity of the file
        wanted = Range(slice="deep/a", start=0, end=position)
        assert [batch.num_rows for batch in read_part(root, wanted, TEXT, LineDialect("text"))] == [1]
    replaced(kind, root, secret)
    for position in end, int(end):
        wanted = Range(slice="deep/a", start=0, end=position)
        with pytest.raises(SourceError, match=r"deep/a: (cannot be read|was replaced)"):
            list(read_part(root, wanted, TEXT, LineDialect("text")))


@pytest.mark.parametrize("kind", ["root", "directory", "file"])
def test_planner_reads_nothing_through_a_new_link(
    root: Path, secret: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link appears after the directory was listed and its files were looked at."""
    planner = Planner(root=root, task=0, tasks=1, max_bytes=1 << 20)
    opened = real_paths.open_below

    def late(directory: Path, name: str) -> object:
        if not (root.is_symlink() or (root / "deep").is_symlink() or (root / "deep" / "a").is_symlink()):
            replaced(kind, root, secret)
        return opened(directory, name)

    monkeypatch.setattr("connectgroup.spark.sources.planner.open_below", late)
    end: dict[str, int] = {}
    with suppress(SourceError):
        end = planner.advance({})
    assert "deep/a" not in end, "neither now nor at the next call"
    with suppress(SourceError):
        end = planner.advance({})
    assert "deep/a" not in end


@pytest.mark.parametrize("kind", ["root", "directory"])
def test_no_listing_follows_a_new_link(root: Path, secret: Path, kind: str) -> None:
    replaced(kind, root, secret)
    if kind == "root":
        with pytest.raises(SourceError, match=r"in: cannot be read \(a component is a symbolic link\)"):
            list_inodes(root, "", {})
        with pytest.raises(SourceError, match="symbolic link"):
            inferred_columns(root, LineDialect("jsonl"))
        with pytest.raises(SourceError, match="symbolic link"):
            list(next_fields(root, {}))
    else:
        assert sorted(list_inodes(root, "", {})) == ["a", "deep.moved/a"]


def test_stream_of_a_directory_that_becomes_a_link_fails(root: Path, secret: Path) -> None:
    source = FileSource.create(FileSettings.model_validate({"path": str(root), "format": "text"}), task=0, tasks=1)
    reader = source.batches({})
    end = reader.plan({})
    become_link(root, secret)
    with pytest.raises(SourceError, match="symbolic link"):
        reader.plan({})
    ranges = [Range(slice=name, start=0, end=at) for name, at in end.items()]
    for _, part in reader.parts(ranges):  # type: ignore[attr-defined]
        with pytest.raises(SourceError):
            list(reader.read_part(part))  # type: ignore[attr-defined]


def test_links_below_the_directory_are_followed_as_before(root: Path) -> None:
    (root / "b").symlink_to(root / "deep" / "a")
    (root / "c").symlink_to("deep/../b")
    (root / "..data").symlink_to("deep")
    (root / "d").symlink_to("..data/a")
    assert sorted(list_inodes(root, "", {})) == ["a", "b", "c", "d", "deep/a"]
    for name in "b", "c", "d":
        with real_paths.open_below(root, name) as file:
            assert file.read() == b'{"plain": 1}\n'


def test_pipe_in_place_of_a_file_blocks_no_task(root: Path) -> None:
    (root / "a").unlink()
    os.mkfifo(root / "a")
    with pytest.raises(OSError, match="not a regular file"):
        real_paths.open_below(root, "a")


@pytest.mark.parametrize("name", ["../outside/a", "deep/../../outside/a", "deep/.."])
def test_name_does_not_lead_out_of_the_directory(root: Path, secret: Path, name: str) -> None:
    with pytest.raises(OSError, match=r"\.\.|regular"):
        real_paths.open_below(root, name)


def test_parquet_file_that_becomes_a_link_is_not_read(tmp_path: Path) -> None:
    for name in "in", "outside":
        (tmp_path / name).mkdir()
        pyarrow.parquet.write_table(pa.table({"a": [name]}), tmp_path / name / "a.parquet")
    root = tmp_path / "in"
    source = ParquetSource.create(ParquetSourceSettings(path=str(root)), task=0, tasks=1)
    assert source.plan({}) == {"a.parquet": 1}
    wanted = Range(slice="a.parquet", start=0, end=1)
    assert [batch.to_pylist() for batch in source.read(wanted)] == [[{"a": "in"}]]
    become_link(root / "a.parquet", tmp_path / "outside" / "a.parquet")
    with pytest.raises(SourceError, match=r"a\.parquet: cannot be read"):
        list(source.read(wanted))
    (root / "a.parquet").unlink()
    become_link(root, tmp_path / "outside")
    with pytest.raises(SourceError, match="symbolic link"):
        source.plan({})
    with pytest.raises(SourceError, match="cannot be read"):
        list(source.read(wanted))


def _database(path: Path, text: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT)")
        connection.execute("INSERT INTO t VALUES (1, ?)", (text,))


@pytest.mark.parametrize("what", ["file", "directory"])
def test_sqlite_source_reads_no_database_behind_a_new_link(tmp_path: Path, what: str) -> None:
    for name in "in", "outside":
        (tmp_path / name).mkdir()
        _database(tmp_path / name / "db", name)
    path = tmp_path / "in" / "db"
    settings = SqliteTableSettings.model_validate({"path": str(path), "table": "t", "incrementing.column": "id"})
    source = SqliteTableSource.create(settings, task=0, tasks=1)
    wanted = Range(slice="keys 0 of 1", start=0, end=2)
    assert [batch.column("a").to_pylist() for batch in source.read(wanted)] == [["in"]]
    if what == "file":
        become_link(path, tmp_path / "outside" / "db")
    else:
        become_link(path.parent, tmp_path / "outside")
    with pytest.raises(SourceError, match="unable to open"):
        list(source.read(wanted))


def owner() -> Owner:
    return Owner(connector="c", task=0, tasks=1, fencing_token=1)


def _jsonl(path: Path) -> JsonlSink:
    return JsonlSink(path)


def _parquet(path: Path) -> ParquetSink:
    return ParquetSink(path)


def _delta(path: Path) -> DeltaSink:
    return DeltaSink(DeltaSettings.model_validate({"path": str(path), "busy.timeout.ms": 1}), (Column("a", "BIGINT"),))


@pytest.mark.parametrize("make", [_jsonl, _parquet, _delta])
@pytest.mark.parametrize("when", ["before the start", "before a batch"])
def test_sink_writes_nothing_through_a_directory_that_becomes_a_link(
    tmp_path: Path, make: Callable[[Path], JsonlSink | ParquetSink | DeltaSink], when: str
) -> None:
    path, outside = tmp_path / "out", tmp_path / "outside"
    outside.mkdir()
    if when == "before the start":
        path.symlink_to(outside)
        with pytest.raises(SinkError, match="link"):
            make(path)
    else:
        sink = make(path)
        sink.claim(owner(), lambda name: True)
        become_link(path, outside)
        with pytest.raises(SinkError, match="link"):
            sink.commit(owner(), [Range(slice="s", start=0, end=1)], pa.table({"a": [1]}))
        sink.close()
    assert list(outside.iterdir()) == []


def test_compaction_copies_no_file_behind_a_link(tmp_path: Path) -> None:
    """Who may write in a sink's directory could have a file of the worker's user copied into it."""
    from connectgroup.spark.sinks.manifest import Compaction

    (secret := tmp_path / "secret").write_text("key\n")
    sink = JsonlSink(tmp_path / "out", compaction=Compaction(files=3))
    sink.claim(owner(), lambda name: True)
    for n in range(4):
        sink.commit(owner(), [Range(slice="s", start=n, end=n + 1)], pa.table({"a": [n]}))
        if n == 0:
            (first,) = (tmp_path / "out").glob("*.jsonl")
            become_link(first, secret)
    sink.close()
    texts = [each.read_text() for each in (tmp_path / "out").glob("*.jsonl") if not each.is_symlink()]
    assert texts
    assert not any("key" in text for text in texts)


def test_compaction_copies_no_file_that_the_manifest_lists_by_its_path(tmp_path: Path) -> None:
    """The same, by who may write the manifest; nor is a reader given such a path."""
    from connectgroup.spark.sinks.manifest import MANIFEST, Compaction, read_committed

    (secret := tmp_path / "secret").write_text("key\n")
    directory = tmp_path / "out"
    sink = JsonlSink(directory, compaction=Compaction(files=3))
    sink.claim(owner(), lambda name: True)
    for n in range(4):
        sink.commit(owner(), [Range(slice="s", start=n, end=n + 1)], pa.table({"a": [n]}))
        if n == 0:
            with closing(sqlite3.connect(directory / MANIFEST)) as manifest, manifest:
                manifest.execute("UPDATE connectgroup_manifest SET file = ?", (str(secret),))
    sink.close()
    assert not any("key" in each.read_text() for each in directory.glob("*.jsonl"))
    assert secret.read_text() == "key\n"
    with pytest.raises(SinkError, match="secret; allowed: names of files in its directory"):
        read_committed(directory)


@pytest.mark.parametrize("what", ["file", "directory"])
def test_sqlite_sink_writes_to_no_database_behind_a_link(tmp_path: Path, what: str) -> None:
    outside, path = tmp_path / "outside", tmp_path / "out" / "db"
    outside.mkdir()
    path.parent.mkdir()
    _database(outside / "db", "theirs")
    before = (outside / "db").read_bytes()
    if what == "file":
        path.symlink_to(outside / "db")
    else:
        path.parent.rmdir()
        path.parent.symlink_to(outside)
    settings = SqliteSettings.model_validate({"path": str(path), "table": "t"})
    with pytest.raises(SinkError, match="cannot be opened; allowed: a file, no link"):
        SqliteSink.create(settings, (Column("a", "BIGINT"),))
    with pytest.raises(SinkError, match="cannot be opened"):
        FilePositions(path, is_real=True).alter("c", 1, {"s": 1})
    assert (outside / "db").read_bytes() == before
    assert [each.name for each in outside.iterdir()] == ["db"]


def test_program_that_names_a_store_through_a_link_opens_it(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").symlink_to(tmp_path / "here")
    with closing(OffsetStore(tmp_path / "there" / "db")) as store:
        assert store.positions("c") == {}


def test_configuration_with_links_gets_its_real_paths(tmp_path: Path) -> None:
    """The links that a user has made before are resolved once, where the worker compares the path with its list."""
    (tmp_path / "in").mkdir()
    (tmp_path / "alias").symlink_to("in")
    config = {"log": str(tmp_path / "alias" / "log"), "other": "x"}
    assert check_paths(IdleConnector, config, [tmp_path / "in"]) == {**config, "log": str(tmp_path / "in" / "log")}
    assert check_paths(IdleConnector, config, None)["log"] == str(tmp_path / "in" / "log")
    with pytest.raises(ConfigError, match="allowed_paths"):
        check_paths(IdleConnector, config, [tmp_path / "out"])
