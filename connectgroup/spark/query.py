"""One task: one Spark Structured Streaming query, from the claim to the last commit.

The order of a start is claim, read positions, start the query; of a batch, read its range from the query's offset
log, collect its rows, commit both to the sink. The query is named after connector, task and owner epoch, and its
checkpoint is a fresh scratch directory each time: offsets are the sink's, so nothing of a checkpoint outlives
the query that wrote it.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..connector import Task, TaskContext
from ..dataplane.ownership import Owner, Range
from .errors import SparkError, root_cause
from .session import session_is_alive, spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from ..dataplane.sink import Sink
    from ..dataplane.source import Source

JITTER: Final = 0.2
"""Part of the trigger interval by which queries differ: equal ones fire as a herd, on the wall clock's beat."""


class SparkTask(Task):
    """Reads a source's slices into a sink, exactly once, while this worker owns the task."""

    def __init__(
        self,
        *,
        context: TaskContext,
        tasks: int,
        source: Callable[[], Source],
        sink: Callable[[Source], Sink],
        trigger_ms: int,
    ) -> None:
        """Keep what is needed; nothing is opened before ``start``.

        Args:
            context: the grant; progress and failure are reported to it.
            tasks: how many tasks the connector has.
            source: opens what to read; called at each start, because it may have to look at the outside world.
            sink: opens where to write.
            trigger_ms: how often to look for new data.
        """
        self._context = context
        self._tasks = tasks
        self._make_source = source
        self._make_sink = sink
        self._trigger_ms = trigger_ms
        self._stopping = threading.Event()
        self._cause: BaseException | None = None
        self._query: StreamingQuery | None = None
        self._watcher: threading.Thread | None = None

    def start(self) -> None:
        unit, source = self._context.unit, self._make_source()
        session = spark_session()
        sink = self._make_sink(source)
        checkpoint: Path | None = None
        try:
            owner = Owner(
                connector=unit.connector,
                task=unit.task,
                tasks=self._tasks,
                fencing_token=self._context.fencing_token,
                source=source.description,
            )
            positions = sink.claim(owner, source.owns)
            self._context.scratch.mkdir(parents=True, exist_ok=True)
            checkpoint = Path(tempfile.mkdtemp(prefix="checkpoint-", dir=self._context.scratch))
            batches = Batches(owner, source, sink, positions, checkpoint, self)
            self._query = (
                source.stream(session, positions)
                .writeStream.queryName(f"{unit}@{self._context.owner_epoch}")
                .option("checkpointLocation", str(checkpoint))
                .trigger(processingTime=f"{self._interval_ms()} milliseconds")
                .foreachBatch(batches)
                .start()
            )
            watcher = threading.Thread(
                target=self._watch, args=(self._query, sink, checkpoint), name=f"watch {unit}", daemon=True
            )
            watcher.start()
        except BaseException as error:
            if self._query is not None:
                # There was no thread for its watcher (reliability F36): nobody would see its end.
                with contextlib.suppress(Exception):
                    self._query.stop()
                self._query = None
            sink.close()
            if checkpoint is not None:
                shutil.rmtree(checkpoint, ignore_errors=True)
            if isinstance(error, Exception):
                raise root_cause(error) from error
            raise
        self._watcher = watcher

    def stop(self) -> None:
        self._stopping.set()
        if self._query is not None and self._watcher is not None:
            try:
                # Waits for the thread that runs the batches, so a commit under way is in or refused by now.
                self._query.stop()
            except Exception as error:
                # With Java gone the query is, too, and the watcher has seen it or is about to.
                self._watcher.join(timeout=5)
                if self._watcher.is_alive():
                    raise root_cause(error) from error
            self._watcher.join()

    def _interval_ms(self) -> int:
        chance = random.Random(f"{self._context.unit}@{self._context.owner_epoch}")
        return max(1, round(self._trigger_ms * (1 + JITTER * chance.uniform(-1, 1))))

    def _watch(self, query: StreamingQuery, sink: Sink, checkpoint: Path) -> None:
        """Wait for the query's end, clean up, and say so once if nobody asked for it."""
        error: BaseException
        try:
            query.awaitTermination()
            error = SparkError(f"Spark query {query.name} was ended from outside; allowed: the worker ends it")
        except BaseException as raised:
            error = raised
        if not session_is_alive():
            error = SparkError("Spark's Java process has ended; allowed: the task starts again, on a new one")
            self._cause = None
        sink.close()
        shutil.rmtree(checkpoint, ignore_errors=True)
        if not self._stopping.is_set():
            self._context.failed(root_cause(self._cause or error))

    def committed(self, rows: int) -> None:
        """A batch is in."""
        self._context.progress(rows)

    def broke(self, error: BaseException) -> None:
        """A batch raised; the query ends with Spark's wrapping of it, and this is what it wraps."""
        self._cause = self._cause or error

    @property
    def is_stopping(self) -> bool:
        """Whether ``stop`` has been called."""
        return self._stopping.is_set()


class Batches:
    """What Spark calls with each batch."""

    def __init__(
        self,
        owner: Owner,
        source: Source,
        sink: Sink,
        positions: dict[str, int],
        checkpoint: Path,
        task: SparkTask,
    ) -> None:
        self._owner = owner
        self._source = source
        self._sink = sink
        self._positions = positions
        self._checkpoint = checkpoint
        self._task = task

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        try:
            ranges = self.ranges(batch_id)
            if not ranges:
                return
            rows = frame.toArrow()
            if self._task.is_stopping:
                return
            if self._sink.commit(self._owner, ranges, rows):
                self._task.committed(rows.num_rows)
        except BaseException as error:
            self._task.broke(error)
            raise

    def ranges(self, batch_id: int) -> Sequence[Range]:
        """What the batch read, from the query's own offset log: rows cannot tell (a source may skip or filter)."""
        start = self._positions if batch_id == 0 else self._offset(batch_id - 1)
        return self._source.ranges(start, self._offset(batch_id))

    def _offset(self, batch_id: int) -> dict[str, int]:
        """The end of a batch as Spark wrote it down: version, metadata, then one line a source."""
        text = (self._checkpoint / "offsets" / str(batch_id)).read_text()
        offset = json.loads(text.splitlines()[2])
        if not isinstance(offset, dict):
            raise SparkError(f"offset log of batch {batch_id} has {offset!r}; allowed: slice names and positions")
        return offset
