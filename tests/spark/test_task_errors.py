"""A task on real Spark whose source or sink fails: it fails with one line, commits nothing, and loses nothing."""

from __future__ import annotations

import os
import sqlite3

import pytest

from connectgroup.dataplane.errors import BadLine, SinkError, SourceError

from .conftest import Bench


@pytest.mark.parametrize(
    ("form", "bad", "message"),
    [
        ("jsonl", '{"a": 1}\n{"a": oops}\n', "line 2 (byte 9): not JSON (Expecting value at column 7); allowed: one"),
        ("csv", "a,b\n1,x\nthree,x\n", "line 3 (byte 8): a is 'three'; allowed: INT or null"),
        ("csv", "a,b\n1,x\n1,x,y\n", "line 3 (byte 8): 3 fields; allowed: 2 (a, b)"),
        ("csv", "b,a\n", "line 1 (byte 0): header 'b,a'; allowed: exactly the columns 'a,b', in this order"),
    ],
)
def test_invalid_line_fails_the_task_and_commits_nothing(table: Bench, form: str, bad: str, message: str) -> None:
    (table.input / "x").write_text(bad)
    run = table.start(1, source_format=form)
    error = run.failure()
    assert isinstance(error, BadLine)
    assert str(error).startswith(f"{table.input / 'x'}, {message}")
    assert "\n" not in str(error)
    run.task.stop()
    assert table.seen() == []
    (table.input / "x").write_text('{"a": 1}\n' if form == "jsonl" else "a,b\n1,x\n")
    again = table.start(1, source_format=form)
    again.wait(lambda: table.seen() == [1])


def test_large_range_is_read_in_parts_in_order_and_an_invalid_line_has_its_number(table: Bench) -> None:
    """A file of 40 MB: batches of 16 and 32 MiB, the second one in parts side by side."""
    file, text = table.input / "one.csv", "x" * 2000
    file.write_text("a,b\n" + "".join(f"{n},{text}\n" for n in range(20_000)))
    run = table.start(1)
    run.wait(lambda: len(table.seen()) == 20_000)
    assert table.read_order() == [*range(20_000)]
    run.task.stop()
    with file.open("a") as more:
        more.writelines(f"{n},{text}\n" for n in range(20_000, 30_000))
        more.write("no number,\n")
    error = table.start(2).failure()
    assert "one.csv, line 30002 (byte " in str(error)
    assert "a is 'no number'; allowed: INT or null" in str(error)


def test_missing_directory_is_reported_at_the_start_and_later(table: Bench) -> None:
    gone = str(table.root / "gone")
    with pytest.raises(SourceError, match=f"{gone}: does not exist; allowed: source.path names a directory"):
        table.start(1, source_path=gone)
    run = table.start(1)
    table.input.rename(gone)
    error = run.failure()
    assert isinstance(error, SourceError)
    assert str(error) == f"{table.input}: does not exist; allowed: source.path names a directory that can be read"


def test_unreadable_file_fails_the_task_with_one_line(table: Bench) -> None:
    (table.input / "x").symlink_to("nowhere")
    error = table.start(1).failure()
    assert isinstance(error, SourceError)
    assert str(error).startswith(f"{table.input / 'x'}: cannot be read (No such file or directory); allowed: ")


def test_truncated_file_fails_the_task_with_one_line(table: Bench) -> None:
    table.write("one.csv", range(100))
    run = table.start(1)
    run.wait(lambda: len(table.seen()) == 100)
    os.truncate(table.input / "one.csv", 8)
    error = run.failure()
    assert isinstance(error, SourceError)
    assert "one.csv: has 8 bytes, " in str(error)


def test_locked_sink_fails_the_task_and_loses_nothing(bench: Bench) -> None:
    run = bench.start(1, sink_busy_timeout_ms="300")
    path = bench.output if bench.sink == "sqlite" else bench.output / "_manifest.sqlite"
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    bench.write("one.csv", range(10))
    error = run.failure()
    assert isinstance(error, SinkError)
    assert str(error).startswith(f"{path}: locked by another connection for more than 0.3 s; allowed: ")
    run.task.stop()
    assert bench.seen() == []
    other.execute("ROLLBACK")
    other.close()
    again = bench.start(1)  # as the worker does: the same grant
    again.wait(lambda: bench.seen() == [*range(10)])


def test_full_sink_fails_the_task_and_loses_nothing(table: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from connectgroup.dataplane.offset_store import OffsetStore

    table.write("one.csv", range(10))
    run = table.start(1)
    run.wait(lambda: table.seen() == [*range(10)])
    run.task.stop()
    limited = OffsetStore._prepare

    def small(self: OffsetStore) -> None:
        limited(self)
        pages = self._connection.execute("PRAGMA page_count").fetchone()[0]
        self._connection.execute(f"PRAGMA max_page_count = {pages}")

    monkeypatch.setattr(OffsetStore, "_prepare", small)
    table.write("two.csv", range(10, 20_000))
    full = table.start(1)
    error = full.failure()
    assert isinstance(error, SinkError)
    assert str(error).startswith(f"{table.output}: the database or its disk is full; allowed: free space")
    full.task.stop()
    assert table.seen() == [*range(10)]
    monkeypatch.undo()
    again = table.start(1)
    again.wait(lambda: len(table.seen()) >= 20_000)
    assert table.seen() == [*range(20_000)]
