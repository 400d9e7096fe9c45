"""Small files of the sinks of files are compacted; each row is committed once throughout. No Spark."""

from __future__ import annotations

import contextlib
import csv
import json
import multiprocessing
import os
import signal
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO
from unittest import mock

import pyarrow as pa
import pyarrow.parquet
import pytest

from connectgroup.dataplane.errors import TaskFenced
from connectgroup.errors import ConfigError
from connectgroup.spark.sinks.manifest import MANIFEST, FileSinkSettings, ManifestSink, read_committed
from connectgroup.spark.sinks.parquet import ParquetSink
from connectgroup.spark.sinks.text_files import CsvSink, JsonlSink
from connectgroup.testing.contracts.sink import every, owner, span

FORMATS: dict[type[ManifestSink], Callable[[Path], list[int]]] = {
    ParquetSink: lambda file: pyarrow.parquet.read_table(file)["a"].to_pylist(),
    JsonlSink: lambda file: [json.loads(line)["a"] for line in file.read_text().splitlines()],
    CsvSink: lambda file: [int(row["a"]) for row in csv.DictReader(file.open())],
}


def opened(directory: Path, kind: type[ManifestSink] = ParquetSink, **settings: int) -> ManifestSink:
    """The sink of a configuration."""
    values = {"path": str(directory), **{f"compact.{name}".replace("_", "."): n for name, n in settings.items()}}
    return kind.create(FileSinkSettings.model_validate(values), ())


def batch(number: int) -> pa.Table:
    """The two rows of a batch."""
    return pa.table({"a": [2 * number, 2 * number + 1], "b": ["x,\n", None]})


def write(sink: ManifestSink, token: int, batches: range) -> None:
    """Commit batches as the task at an owner epoch."""
    for number in batches:
        assert sink.commit(owner(token), span(number, number + 1), batch(number)) is True


def read(directory: Path, kind: type[ManifestSink] = ParquetSink) -> list[int]:
    """The committed rows in the order of the files."""
    return [a for file in read_committed(directory) for a in FORMATS[kind](file)]


@pytest.mark.parametrize("kind", FORMATS)
def test_small_files_become_few_with_the_same_rows_in_the_same_order(tmp_path: Path, kind: type[ManifestSink]) -> None:
    sink = opened(tmp_path / "out", kind, files=4)
    sink.claim(owner(1), every)
    write(sink, 1, range(3))
    before = read_committed(tmp_path / "out")
    write(sink, 1, range(3, 30))
    assert read(tmp_path / "out", kind) == [*range(60)]
    assert len(read_committed(tmp_path / "out")) < 8
    assert [a for file in before for a in FORMATS[kind](file)] == [*range(6)], "a reader has listed them before"
    with contextlib.closing(sqlite3.connect(tmp_path / "out" / MANIFEST)) as connection:
        listed = connection.execute("SELECT rows, ranges FROM connectgroup_manifest ORDER BY rowid").fetchall()
    end = 0
    for rows, ranges in listed:
        (start, stop) = json.loads(ranges)["s"]
        assert (start, rows) == (end, 2 * (stop - start))
        end = stop
    sink.close()
    # A successor deletes what no reader may need any more, and nothing else.
    successor = opened(tmp_path / "out", kind, files=4, retention_ms=0)
    assert successor.claim(owner(2), every) == {"s": 30}
    left = {path for path in (tmp_path / "out").iterdir() if path.suffix == f".{kind.extension}"}
    assert left == set(read_committed(tmp_path / "out"))
    assert read(tmp_path / "out", kind) == [*range(60)]
    successor.close()


def test_each_row_is_written_few_times(tmp_path: Path) -> None:
    written: list[int] = []

    class Counting(JsonlSink):
        def join(self, paths: Sequence[Path], file: BinaryIO) -> None:
            written.append(sum(path.stat().st_size for path in paths))
            super().join(paths, file)

    sink = opened(tmp_path / "out", Counting, files=4, max_bytes=1 << 20)
    sink.claim(owner(1), every)
    large = pa.table({"a": ["x" * 40_000]})
    for number in range(60):
        sink.commit(owner(1), span(number, number + 1), large)
    sizes = [file.stat().st_size for file in read_committed(tmp_path / "out")]
    assert max(sizes) <= 1 << 20
    assert len(sizes) < 20
    assert sum(written) < 5 * sum(sizes)
    sink.close()


def test_files_of_other_columns_and_of_altered_offsets_are_not_mixed(tmp_path: Path) -> None:
    sink = opened(tmp_path / "out", files=3)
    sink.claim(owner(1), every)
    write(sink, 1, range(2))
    for number in range(2, 5):
        sink.commit(owner(1), span(number, number + 1), batch(number).append_column("c", pa.array([1, 2])))
    assert read(tmp_path / "out") == [*range(10)]
    assert [pyarrow.parquet.read_table(file).num_columns for file in read_committed(tmp_path / "out")] == [2, 2, 3]
    ParquetSink.open_positions(FileSinkSettings(path=str(tmp_path / "out"))).alter("c", 2, {"s": 3})
    sink.claim(owner(3), every)
    sink.commit(owner(3), span(3, 4), batch(3))
    sink.commit(owner(3), span(4, 5), batch(4))
    assert read(tmp_path / "out") == [*range(10), 6, 7, 8, 9]
    sink.close()


def test_batches_without_rows_do_not_prevent_compaction(tmp_path: Path) -> None:
    """A filter drops all rows of every second batch: it has no file."""
    sink = opened(tmp_path / "out", files=4)
    sink.claim(owner(1), every)
    for number in range(24):
        rows = batch(number // 2) if number % 2 == 0 else batch(0).slice(0, 0)
        sink.commit(owner(1), span(number, number + 1), rows)
    assert read(tmp_path / "out") == [*range(24)]
    assert len(read_committed(tmp_path / "out")) < 6
    sink.close()


def test_parquet_files_are_compacted_in_bounded_memory(tmp_path: Path) -> None:
    """A file has 192 MB of rows, and values that repeat are small in it."""
    paths = [tmp_path / f"{number}.parquet" for number in range(2)]
    rows = 48_000
    for number, path in enumerate(paths):
        texts = [f"{n % 16}" + "x" * 4_000 for n in range(rows if number else 1_000)]
        pyarrow.parquet.write_table(pa.table({"n": range(len(texts)), "text": texts}), path, compression="zstd")
    sink = opened(tmp_path / "out")
    assert isinstance(sink, ParquetSink)
    pool = pa.system_memory_pool()  # its peak is that of this test alone
    before = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        with (tmp_path / "joined").open("wb") as file:
            sink.join(paths, file)
    finally:
        pa.set_memory_pool(before)
    sink.close()
    peak = pool.max_memory()
    assert peak is not None
    assert peak < 160 << 20, f"{peak >> 20} MB"
    joined = pyarrow.parquet.ParquetFile(tmp_path / "joined")
    assert joined.metadata.num_row_groups > 1
    column = pa.concat_arrays([rows["n"] for rows in joined.iter_batches(columns=["n"])])
    assert column.equals(pa.array([*range(1_000), *range(rows)]))


def test_task_that_is_fenced_while_it_compacts_changes_nothing(tmp_path: Path) -> None:
    successor = opened(tmp_path / "out", files=4)

    class Slow(ParquetSink):
        def join(self, paths: Sequence[Path], file: BinaryIO) -> None:
            assert successor.claim(owner(2), every) == {"s": 4}
            write(successor, 2, range(4, 5))
            super().join(paths, file)

    zombie = opened(tmp_path / "out", Slow, files=4)
    zombie.claim(owner(1), every)
    write(zombie, 1, range(4))
    assert read(tmp_path / "out") == [*range(10)]
    with pytest.raises(TaskFenced):
        zombie.commit(owner(1), span(4, 5), batch(4))
    write(successor, 2, range(5, 9))
    assert read(tmp_path / "out") == [*range(18)]
    zombie.close()
    successor.close()


def _killed(root: str, after: str) -> None:
    """In a process of its own: end without any cleaning up in the middle of a compaction."""

    class Killed(ParquetSink):
        def join(self, paths: Sequence[Path], file: BinaryIO) -> None:
            super().join(paths, file)
            if after == "join":
                os.kill(os.getpid(), signal.SIGKILL)

    sink = opened(Path(root) / "out", Killed, files=4)
    sink.claim(owner(1), every)
    next_step = "connectgroup.spark.sinks.manifest.delete_replaced"
    with mock.patch(next_step, side_effect=lambda *_: os.kill(os.getpid(), signal.SIGKILL)):
        write(sink, 1, range(4))


@pytest.mark.parametrize("after", ["join", "manifest"])
def test_worker_killed_while_it_compacts_loses_and_repeats_nothing(tmp_path: Path, after: str) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_killed, args=(str(tmp_path), after))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert read(tmp_path / "out") == [*range(8)]
    sink = opened(tmp_path / "out", files=4, retention_ms=0)
    assert sink.claim(owner(2), every) == {"s": 4}
    left = {path for path in (tmp_path / "out").iterdir() if path.suffix == ".parquet"}
    assert left == set(read_committed(tmp_path / "out")), "the unfinished file is deleted, or the replaced ones"
    write(sink, 2, range(4, 9))
    assert read(tmp_path / "out") == [*range(18)]
    sink.close()


def test_failure_to_compact_is_logged_and_the_batch_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sink = opened(tmp_path / "out", files=3)
    sink.claim(owner(1), every)
    write(sink, 1, range(1))
    read_committed(tmp_path / "out")[0].unlink()
    write(sink, 1, range(1, 5))
    assert "files were not compacted" in caplog.text
    assert sink.claim(owner(1), every) == {"s": 5}
    sink.close()


def test_one_file_cannot_become_one() -> None:
    with pytest.raises(ConfigError, match=r"sink.compact.files: got '1'; allowed: 0, 2 to 1000"):
        FileSinkSettings.model_validate({"path": "/out", "compact.files": "1"})
