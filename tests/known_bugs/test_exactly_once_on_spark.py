"""Bugs of micro-batches: replayed, run twice, started from an old checkpoint, failed half-way. On real Spark."""

from __future__ import annotations

import json
import shutil
import sqlite3
import types
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from connectgroup.dataplane.errors import OffsetConflict, SinkError, TaskFenced
from connectgroup.spark import query
from connectgroup.spark.batches import Batches
from connectgroup.spark.errors import SparkError
from tests.spark.conftest import Bench, bench, spark, table, wait

__all__ = ["bench", "spark", "table"]


class Checkpoints:
    """Sets the checkpoint of the next query, keeps it when the query ends, and records the batches of Spark."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.next: list[Path] = []
        self.batches: list[tuple[Path, int]] = []

    def mkdtemp(self, *, prefix: str, dir: Path) -> str:
        chosen = self.next.pop(0) if self.next else self.root / f"checkpoint-{len(list(self.root.iterdir()))}"
        chosen.mkdir(exist_ok=True)
        return str(chosen)

    def copy(self, source: Path, name: str) -> Path:
        return Path(shutil.copytree(source, self.root / name))


@pytest.fixture
def checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkpoints:
    recorder = Checkpoints(tmp_path / "checkpoints")
    recorder.root.mkdir()
    monkeypatch.setattr(query, "tempfile", types.SimpleNamespace(mkdtemp=recorder.mkdtemp))
    monkeypatch.setattr(query, "shutil", types.SimpleNamespace(rmtree=lambda path, ignore_errors: None))
    call: Callable[..., None] = Batches.__call__

    def record_batch(self: Batches, frame: object, batch_id: int) -> None:
        recorder.batches.append((self.claimed.checkpoint, batch_id))
        call(self, frame, batch_id)

    monkeypatch.setattr(Batches, "__call__", record_batch)
    return recorder


def newest(checkpoint: Path, log: str) -> int:
    return max(int(file.name) for file in (checkpoint / log).iterdir() if file.name.isdigit())


# --------------------------------------------------------------------------------------------------
# paimon#9666, paimon#9667


@pytest.mark.parametrize("epoch", [1, 2], ids=["same grant", "next grant"])
def test_batch_committed_without_spark_commit_is_not_written_again(
    bench: Bench, checkpoints: Checkpoints, epoch: int
) -> None:
    """paimon#9666, paimon#9667: after a crash between the sink's commit and Spark's own, the replayed batch was
    committed twice, since the sink did not check the batch; here Spark replays it, and it is a no-op.
    """
    bench.passes_java = True
    bench.write("one.csv", range(10))
    first = bench.start(1)
    first.wait(lambda: bench.seen() == [*range(10)])
    bench.write("one.csv", range(10, 20), mode="a")
    bench.write("two.csv", range(20, 30))
    first.wait(lambda: bench.seen() == [*range(30)])
    first.task.stop()

    [checkpoint] = {path for path, _ in checkpoints.batches}
    last = newest(checkpoint, "offsets")
    for name in (str(last), f".{last}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)  # the crash
    checkpoints.batches.clear()
    checkpoints.next = [checkpoint]
    again = bench.start(epoch)
    again.wait(lambda: bool(checkpoints.batches))
    bench.write("two.csv", range(30, 40), mode="a")
    again.wait(lambda: len(bench.seen()) >= 40)
    again.task.stop()
    assert checkpoints.batches[0] == (checkpoint, last), "Spark has replayed the batch"
    assert bench.seen() == [*range(40)]
    assert sum(again.rows) == 10


# --------------------------------------------------------------------------------------------------
# SPARK-26425


@pytest.mark.parametrize("how", ["one directory", "a copy of it"])
def test_at_most_one_of_two_queries_with_one_checkpoint_continues(
    table: Bench, checkpoints: Checkpoints, how: str
) -> None:
    """SPARK-26425, F35: two queries with one checkpoint both continued, because the commit log was not checked as the
    offset log is; here the checkpoint decides nothing: the query with the older grant ends, and each row is written
    once.
    """
    table.write("one.csv", range(10))
    first = table.start(1)
    first.wait(lambda: table.seen() == [*range(10)])
    [checkpoint] = {path for path, _ in checkpoints.batches}
    wait(lambda: (checkpoint / "commits" / "0").exists())
    if how == "one directory":
        checkpoints.next = [checkpoint]
    else:
        copy = checkpoints.copy(checkpoint, "copy")
        # With the id of the first in it, Spark would end the first by itself.
        (copy / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
        (copy / ".metadata.crc").unlink(missing_ok=True)
        checkpoints.next = [copy]
    second = table.start(2)
    table.write("one.csv", range(10, 20), mode="a")
    error = first.failure()
    assert isinstance(error, TaskFenced | SparkError), error
    assert how == "one directory" or isinstance(error, TaskFenced), error
    second.wait(lambda: len(table.seen()) >= 20)
    table.write("two.csv", range(20, 30))
    second.wait(lambda: len(table.seen()) >= 30)
    assert table.seen() == [*range(30)]
    second.wait(lambda: sum(second.rows) == 20)


def test_second_query_of_the_same_grant_does_not_start(table: Bench) -> None:
    """SPARK-26425: the same within one worker: a grant has one query, and starting another raises an error; the first
    is not disturbed, and a restarted task starts its query after the former one has ended.
    """
    table.write("one.csv", range(10))
    first = table.start(1)
    with pytest.raises(SparkError, match="already active"):
        table.start(1)
    table.write("one.csv", range(10, 20), mode="a")
    first.wait(lambda: table.seen() == [*range(20)])
    first.task.stop()
    second = table.start(1)
    table.write("one.csv", range(20, 30), mode="a")
    second.wait(lambda: len(table.seen()) >= 30)
    assert table.seen() == [*range(30)]
    second.wait(lambda: sum(second.rows) == 10)


# --------------------------------------------------------------------------------------------------
# KAFKA-15018


def test_old_checkpoint_does_not_restore_an_old_position(table: Bench, checkpoints: Checkpoints) -> None:
    """KAFKA-15018: an offset was kept in two stores, one of which had lost it, so an old one was restored; here there
    is one store, in the sink. A query whose checkpoint is older ends; nothing is written
    twice.
    """
    table.write("one.csv", range(10))
    first = table.start(1)
    first.wait(lambda: table.seen() == [*range(10)])
    [checkpoint] = {path for path, _ in checkpoints.batches}
    wait(lambda: (checkpoint / "commits" / "0").exists())
    old = checkpoints.copy(checkpoint, "older")
    table.write("one.csv", range(10, 20), mode="a")
    first.wait(lambda: table.seen() == [*range(20)])
    first.task.stop()

    table.write("one.csv", range(20, 30), mode="a")
    checkpoints.next = [old]
    error = table.start(2).failure()
    assert isinstance(error, OffsetConflict)
    assert "allowed: a batch that starts where every slice of it stands" in str(error)
    assert table.seen() == [*range(20)]
    again = table.start(2)
    again.wait(lambda: table.seen() == [*range(30)])


# --------------------------------------------------------------------------------------------------
# KAFKA-18073


def test_rows_of_a_batch_that_failed_temporarily_are_not_skipped(bench: Bench) -> None:
    """KAFKA-18073: a record whose conversion failed temporarily was dropped and its offset committed; here a batch
    that fails ends the query: no later batch is written before it, and it is written when the task starts again.
    """
    bench.write("one.csv", range(10))
    run = bench.start(1, sink_busy_timeout_ms="200")
    run.wait(lambda: bench.seen() == [*range(10)])
    path = bench.output if bench.sink == "sqlite" else bench.output / "_manifest.sqlite"
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    bench.write("one.csv", range(10, 20), mode="a")
    assert isinstance(run.failure(), SinkError)
    other.execute("ROLLBACK")
    other.close()
    bench.write("one.csv", range(20, 30), mode="a")
    bench.write("two.csv", range(30, 40))
    run.task.stop()
    assert bench.seen() == [*range(10)]
    again = bench.start(1)
    again.wait(lambda: len(bench.seen()) >= 40)
    assert bench.seen() == [*range(40)]
    again.wait(lambda: sum(again.rows) == 30)
