"""One task: one query, from the claim to the last commit. ``start_query`` chooses what drives its batches.

A start claims the task, reads the positions and starts the query. A batch has its range, and its rows are collected and
committed with it. The next batch is read during the commit (``CommitQueue``). The query is named after
connector, task and owner epoch. Its checkpoint is a new temporary directory for each start: the sink stores the
offsets, so no part of a checkpoint outlives the query that wrote it.
"""

from __future__ import annotations

import contextlib
import logging
import random
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..connector import Batch, Task, TaskContext
from ..dataplane.columns import Columns
from ..dataplane.dead_letters import DeadLetter, DeadLetterSink, check_reserved, log_dead_letters, place_and_reason
from ..dataplane.iterator import IteratorSource
from ..dataplane.ownership import Owner
from ..dataplane.polling import Polling, Triggered
from ..dataplane.source import CommitQueue, PartReader
from .batches import Batches, Claimed
from .driving import Driving, LocalDriving, Measuring, ReadingHere, open_stream
from .errors import SparkError, root_cause
from .remote import RemoteSession, TaskKey, own_session, remote_address, shown_address
from .session import kill_session, session_is_alive, spark_session
from .transforms.chain import Chain, columns_after, passes_on
from .warm_up import session_of_task, start_beside
from .writing import direct_batches

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from ..dataplane.sink import Sink
    from ..dataplane.source import CommittedPositions, Publisher, Source

logger = logging.getLogger(__name__)

STARTING_SPARK: Final = "starting Spark"
"""What the start of a task waits for."""

JITTER: Final = 0.2
"""Fraction of the trigger interval by which queries differ. Spark aligns triggers to the wall clock, so queries with
equal intervals would fire at the same moment."""


def start_query(
    name: str, batches: Batches, session: SparkSession | None, *, interval_ms: int, is_remote: bool = False
) -> StreamingQuery | Triggered:
    """Start the query of a task, with one of five drivers.

    - An iterator source is polled in this process (``Polling``), and Spark applies the transforms to its rows.
    - On a Spark Connect server, this process plans the batches, and Spark's workers read them (``Driving``).
    - Where Spark's workers write the files of a sink themselves (``writing``): the same (``LocalDriving``).
    - While Spark starts, this process reads what Python code can read (``ReadingHere``); one of the others follows.
    - Anything else is a streaming query of Spark's own, whose batches have their ranges in its offset log. Spark's log
      of completed batches may be one ahead of the sink.

    Args:
        name: of the query.
        session: ``None``: there is none yet, and the task starts without (``Source.starts_without_spark``).
        interval_ms: interval in milliseconds at which the query looks for new data.
        is_remote: whether the session is one on a Spark Connect server.
    """
    claimed = batches.claimed
    source, positions = claimed.source, claimed.positions
    query: Triggered
    if isinstance(source, IteratorSource):
        # A session of its own, as a streaming query has: an sql step makes a view, which a session shares.
        commit = partial(batches.commit_rows, None if session is None else own_session(session))
        query = Polling(name, source, positions, commit, interval_ms=interval_ms)
    elif session is None:
        reader = source.batches(positions)
        if not isinstance(reader, PartReader):  # a plug-in's own
            return start_query(name, batches, spark_session(), interval_ms=interval_ms)
        query = ReadingHere(
            name,
            reader,
            positions,
            partial(batches.take_here, reader),
            interval_ms=interval_ms,
            is_ready=start_beside().is_ready,
            follow=partial(_follow, name, batches, interval_ms=interval_ms),
        )
    elif is_remote:
        reader = source.batches(positions)
        query = Driving(name, reader, positions, partial(batches.take_frame, session, reader), interval_ms=interval_ms)
    elif direct := direct_batches(source, positions, claimed.chain, claimed.sink, claimed.owner):
        take, discard = partial(batches.take_parts, session, *direct), batches.discard_parts
        query = LocalDriving(
            name, direct[0], positions, take, interval_ms=interval_ms, session=session, discard=discard
        )
    else:
        source.restore(claimed.checkpoint, positions)
        return (
            open_stream(source, session, positions)
            .writeStream.queryName(name)
            .option("checkpointLocation", str(claimed.checkpoint))
            .trigger(processingTime=f"{interval_ms} milliseconds")
            .foreachBatch(batches)
            .start()
        )
    query.start()
    return query


def _follow(name: str, batches: Batches, *, interval_ms: int) -> StreamingQuery | Triggered:
    """Start the query of a task that has read its first batches itself, where these have ended."""
    batches.continue_from_here()
    query = start_query(name, batches, spark_session(), interval_ms=interval_ms)
    logger.info("%s: Spark has started, and reads from here on", name)
    return query


def _uses_spark(query: StreamingQuery | Triggered) -> bool:
    """Whether the query ends with Spark: not while this process reads the rows."""
    return not isinstance(query, ReadingHere) or query.followed is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """What a task runs.

    Attributes:
        source: opens the source; called at each start, because it may have to look at external state.
        chain: creates the transforms for the rows of a source.
        sink: opens the sink for rows of these columns.
        committed: returns where the positions of a connector are, given its name.
        dead_letters: the table or topic of the records that cannot be processed; empty: such a record ends the query.
        logs_dead_letters, logs_records: whether each of them is logged, and whether with the record.
        starts_without_spark: whether the rows can be read before Spark has started; nothing transforms them then.
        tasks: the number of tasks of the connector.
        trigger_ms: interval in milliseconds at which the query looks for new data.
    """

    source: Callable[[], Source]
    chain: Callable[[Source], Chain]
    sink: Callable[[Columns], Sink]
    committed: Callable[[str], CommittedPositions]
    starts_without_spark: bool
    tasks: int
    trigger_ms: int
    dead_letters: str = ""
    logs_dead_letters: bool = False
    logs_records: bool = False


class SparkTask(Task):
    """Reads a source's slices into a sink, exactly once, while this worker owns the task.

    The task reports its first poll when the first trigger of the query is complete.
    """

    reports_polls = True

    def __init__(self, context: TaskContext, pipeline: Pipeline) -> None:
        """Store the arguments; nothing is opened before ``start``.

        Args:
            context: the grant; the task reports progress and failure to it.
            pipeline: the source, the transforms and the sink.
        """
        self._context = context
        self._pipeline = pipeline
        self._stopping = threading.Event()
        self._cause: BaseException | None = None
        self._query: StreamingQuery | Triggered | None = None
        self._opened: Sink | None = None
        self._start_is_interrupted = False
        self.commits = CommitQueue(f"commit {context.unit}", self._commit_failed)
        self._remote: RemoteSession | None = None
        self._watcher: threading.Thread | None = None

    def start(self) -> None:
        unit = self._context.unit
        source = self._pipeline.source().with_committed(self._pipeline.committed(unit.connector))
        if self._pipeline.dead_letters:
            check_reserved(source.columns, is_tolerant=True)
        chain = self._pipeline.chain(source)
        session = self._open_session(self._pipeline.starts_without_spark)
        try:
            if not chain:
                source.check_stored()
            sink = self._pipeline.sink(columns_after(chain, source.columns, session, source.metadata))
        except BaseException:
            self._close_session()
            raise
        checkpoint: Path | None = None
        publisher: Publisher | None = None
        try:
            owner = Owner(
                connector=unit.connector,
                task=unit.task,
                tasks=self._pipeline.tasks,
                fencing_token=self._context.fencing_token,
                source=source.description,
            )
            if sink.takes_marks and passes_on(chain):
                source = source.with_marks()
            if self._pipeline.dead_letters and isinstance(sink, DeadLetterSink):
                source = source.tolerant().with_places()
                sink.open_dead_letters(self._pipeline.dead_letters)
                sink.report_late(self._late)
            sink.report_failures(self._commit_failed)
            sink.report_waits(self._context.polled)
            self._opened = sink
            if self._start_is_interrupted:
                sink.interrupt()
            positions = sink.claim(owner, source.owns)
            self._context.scratch.mkdir(parents=True, exist_ok=True)
            checkpoint = Path(tempfile.mkdtemp(prefix="checkpoint-", dir=self._context.scratch))
            publisher = source.publisher(owner, positions)
            claimed = Claimed(
                owner=owner,
                source=source,
                chain=chain,
                sink=sink,
                positions=positions,
                checkpoint=checkpoint,
                publisher=publisher,
            )
            batches = Batches(claimed, self)
            self._query = start_query(
                self._name, batches, session, interval_ms=self._interval_ms(), is_remote=self._remote is not None
            )
            if self._cause is not None:
                # The first commit failed before the query was known to the thread of the commit.
                self._query.stop()
            measuring = Measuring(self._context, source, batches.reached, self._query, self.commits, self._stopping)
            threading.Thread(target=measuring.run, name=f"measure {unit}", daemon=True).start()
            watcher = threading.Thread(
                target=self._watch,
                args=(self._query, claimed, batches),
                name=f"watch {unit}",
                daemon=True,
            )
            watcher.start()
        except BaseException as error:
            if self._query is not None:
                # The system had no thread for the watcher or the measurements (reliability F36): the query's end would
                # go unnoticed.
                with contextlib.suppress(Exception):
                    self._query.stop()
                self._query = None
            self.commits.wait()
            self._opened = None
            sink.close()
            self._close_session()
            if publisher is not None:
                publisher.close()
            if checkpoint is not None:
                shutil.rmtree(checkpoint, ignore_errors=True)
            if isinstance(error, Exception):
                raise root_cause(error) from error
            raise
        self._watcher = watcher

    def interrupt_start(self) -> None:
        self._start_is_interrupted = True
        sink = self._opened
        if sink is not None:
            sink.interrupt()

    def stop(self) -> None:
        self._stopping.set()
        if self._remote is not None:
            self._remote.interrupt()
        if self._opened is not None:
            self._opened.interrupt()
        if self._query is not None and self._watcher is not None:
            try:
                # Waits for the thread that runs the batches: a commit in progress has succeeded or failed on return.
                self._query.stop()
            except Exception as error:
                # If Java has exited, so has the query, and the watcher has noticed or is about to.
                self._watcher.join(timeout=5)
                if self._watcher.is_alive():
                    raise root_cause(error) from error
            self._watcher.join()

    def abandon(self) -> None:
        if self._remote is not None:
            self._remote.cut()
        elif self._opened is not None and self._opened.is_leaving_a_call():
            logger.error("%s: a call of the sink's plug-in does not return; Java goes on with other tasks", self._name)
        else:
            kill_session()

    def _open_session(self, starts_without: bool) -> SparkSession | None:
        """Return the worker's session, or a new one of this task on the Spark Connect server.

        Args:
            starts_without: whether the task can start without a session: ``None``, while the worker's own Spark starts.
        """
        if not remote_address():
            if not session_is_alive() and not starts_without:
                self._context.waits_for(STARTING_SPARK)
            if not starts_without or session_is_alive():
                return session_of_task()
            if not (starting := start_beside()).has_failed:
                return None
            # Wait for it: a task that fails with Spark again and again must not be RUNNING in between.
            session = spark_session()
            starting.has_failed = False
            return session
        task = f"{self._context.incarnation} {self._context.unit}"
        self._remote = RemoteSession(TaskKey(task=task, fencing_token=self._context.fencing_token))
        return self._remote.session  # type: ignore[no-any-return]

    def _close_session(self) -> None:
        if self._remote is not None:
            self._remote.close()

    @property
    def _name(self) -> str:
        return f"{self._context.unit}@{self._context.owner_epoch}"

    def _interval_ms(self) -> int:
        chance = random.Random(self._name)
        return max(1, round(self._pipeline.trigger_ms * (1 + JITTER * chance.uniform(-1, 1))))

    def _watch(self, query: StreamingQuery | Triggered, claimed: Claimed, batches: Batches) -> None:
        """Wait for the query's end, clean up, and report the failure once unless ``stop`` was called."""
        error: BaseException
        try:
            query.awaitTermination()
            error = SparkError(f"Spark query {query.name} was ended from outside; allowed: the worker ends it")
        except BaseException as raised:
            error = raised
        self.commits.wait()
        # The error of a batch that ended with Java is a consequence; the batch's thread may report it even later.
        cause = self._cause
        if self._remote is not None:
            if not self._stopping.is_set() and not self._remote.is_alive():
                cause = SparkError(
                    f"Spark Connect server {shown_address()} has ended, or has ended the session; allowed: the task"
                    " starts again, when the server answers"
                )
        elif _uses_spark(query) and not session_is_alive():
            cause = SparkError("Spark's Java process has ended; allowed: the task starts again, on a new one")
        claimed.sink.close()
        self._close_session()
        if claimed.publisher is not None:
            claimed.publisher.close()
        shutil.rmtree(claimed.checkpoint, ignore_errors=True)
        if not self._stopping.is_set():
            self._context.failed(claimed.source.explained(root_cause(cause or error), batches.reached))

    def committed(self, rows: int, dead_letters: Sequence[DeadLetter]) -> None:
        """Report the rows of a committed batch."""
        self._log(dead_letters)
        self._context.progress(rows)
        self._context.polled()

    def _late(self, letters: Sequence[DeadLetter]) -> None:
        """Report dead letters of former batches as a batch without records."""
        last = place_and_reason(letters[-1])
        self.measured(Batch(read=0, rows=0, dead_letters=len(letters), last_dead_letter=last, read_s=0, commit_s=0))
        self._log(letters)

    def _log(self, letters: Sequence[DeadLetter]) -> None:
        if self._pipeline.logs_dead_letters:
            log_dead_letters(self._context.unit, letters, include_messages=self._pipeline.logs_records)

    def measured(self, batch: Batch) -> None:
        """Report a batch for metrics."""
        self._context.batch(batch)

    def broke(self, error: BaseException) -> None:
        """Keep the first error of a batch: the query ends with an exception of Spark's that wraps it."""
        self._cause = self._cause or error

    def _commit_failed(self, error: BaseException) -> None:
        """End the query: without this, it would notice when it has read the next batch."""
        self.broke(error)
        if self._query is not None:
            # Without Java the query has ended; the watcher notices that.
            with contextlib.suppress(Exception):
                self._query.stop()

    @property
    def tolerates_errors(self) -> bool:
        """Whether a record that cannot be processed becomes a dead letter."""
        return bool(self._pipeline.dead_letters)

    @property
    def is_stopping(self) -> bool:
        """Whether ``stop`` has been called."""
        return self._stopping.is_set()
