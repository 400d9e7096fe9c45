"""A task's query that is driven by the worker: plan a range, have it read, commit it.

On a Spark Connect server there is no streaming query: its ``foreachBatch`` would run there, apart from the sink's
connection and from the grant, and would go on without its worker. In the worker's own Spark there is none where Spark's
workers write the rows themselves (``writing``), and none while Spark starts (``ReadingHere``).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ..connector import TaskContext
from ..dataplane.ownership import Range
from ..dataplane.polling import Triggered
from ..loggers import lines_about
from .errors import root_cause
from .session import JAVA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from ..dataplane.source import BatchPlanner, BatchReader, CommitQueue, PartReader, SparkStream

# --------------------------------------------------------------------------------------------------
# Measures a running query at intervals: whether it polls its source, and what it has not read yet.


INTERVAL_S: Final = 10.0
MAX_SHARE: Final = 0.02
"""At most this share of the time is spent on the lag: a listing of 20,000 files takes 0.2 s."""
FIRST_POLL_S: Final = 0.05
"""Interval at which a query is checked for its first completed trigger; doubles up to ``MAX_FIRST_POLL_S``."""
MAX_FIRST_POLL_S: Final = 1.0


class Measuring:
    """The measurements of one query, in a thread of its own: neither a batch nor a stop waits for them."""

    def __init__(
        self,
        context: TaskContext,
        source: BatchPlanner,
        reached: Mapping[str, int],
        query: StreamingQuery | Triggered,
        commits: CommitQueue,
        stopping: threading.Event,
    ) -> None:
        """Store the arguments.

        Args:
            reached: the committed position of each slice; grows while the query runs.
            commits: the commits of the query's batches.
            stopping: set when the task stops: it ends ``run``, but not a call of ``lag`` in progress.
        """
        self._context, self._source, self._reached = context, source, reached
        self._query, self._commits, self._stopping = query, commits, stopping
        self._last_trigger: str | None = None
        self._lag_failed = False

    def run(self) -> None:
        """Measure until the task stops or the query ends."""
        with lines_about(self._context.unit):  # a source logs the files that it cannot read
            self._run()

    def _run(self) -> None:
        try:
            wait_s, has_polled, lag_at_s = FIRST_POLL_S, False, time.monotonic() + INTERVAL_S
            while self._query.isActive:
                if not self._poll_is_complete():
                    wait_s = min(2 * wait_s, MAX_FIRST_POLL_S)
                elif not has_polled:
                    wait_s, has_polled, lag_at_s = INTERVAL_S, True, 0.0
                began_s = time.monotonic()
                if began_s >= lag_at_s:
                    self._measure_lag()
                    took_s = time.monotonic() - began_s
                    lag_at_s = time.monotonic() + max(INTERVAL_S, took_s / MAX_SHARE)
                if self._stopping.wait(min(wait_s, max(0.0, lag_at_s - time.monotonic()))):
                    return
        except Exception as error:
            # The connection to Java has ended; the task's watcher reports that.
            logger.debug("%s is not measured any more: %s", self._context.unit, error)

    def _poll_is_complete(self) -> bool:
        """Report a poll if a trigger has been completed since the last call; return whether there is any.

        While a batch is being committed, triggers that find nothing to read do not count: the commit may hang.
        """
        progress = self._query.lastProgress
        if progress is None:
            return False
        if not self._commits.is_busy and progress["timestamp"] != self._last_trigger:
            self._last_trigger = progress["timestamp"]
            self._context.polled()
        return True

    def _measure_lag(self) -> None:
        # A copy: the query's thread adds slices.
        positions = dict(self._reached)
        try:
            lag = self._source.lag(positions)
        except Exception as error:
            if not self._lag_failed and not self._stopping.is_set():
                logger.warning("%s: the lag cannot be measured: %s", self._context.unit, root_cause(error))
            self._lag_failed = True
            return
        self._lag_failed = False
        if lag is not None:
            self._context.lag(lag)


# --------------------------------------------------------------------------------------------------


def open_stream(source: SparkStream, session: SparkSession, positions: Mapping[str, int]) -> DataFrame:
    """Return the rows of a source after these positions as a streaming DataFrame; see ``SparkStream.stream``.

    The session learns the data source that reads Python sources first (``sources.sliced``).
    """
    from .sources.sliced_reader import SlicesDataSource

    session.dataSource.register(SlicesDataSource)
    return source.stream(session, positions)


logger = logging.getLogger(__name__)

Take = Callable[[Sequence[Range]], None]
"""Reads the ranges of a batch. When it returns, all earlier batches are committed."""


class Driving(Triggered):
    """A running task's query over the batches of a source."""

    def __init__(
        self, name: str, reader: BatchReader, positions: Mapping[str, int], take: Take, *, interval_ms: int
    ) -> None:
        """Store the arguments; ``start`` starts.

        Args:
            positions: the position of each known slice.
            take: receives each batch, in one thread.
            interval_ms: interval of the triggers in milliseconds.
        """
        super().__init__(name, interval_ms=interval_ms)
        self._reader, self._at, self._take = reader, positions, take
        self._wake.set()  # the first trigger is due at once

    def _reads_on(self) -> bool:
        """Whether a trigger takes another batch."""
        return not self._stopping

    def _trigger(self) -> None:
        while self._reads_on():
            end = self._reader.plan(self._at)
            ranges = self._reader.ranges(self._at, end)
            # Planning takes a while: a stop meanwhile has found no operation to end.
            if not ranges or self._stopping:
                return
            self._take(ranges)
            self._at = end


class ReadingHere(Driving):
    """A task's first batches, read in this process while Spark starts; then ``follow`` starts the task's own query.

    The query that follows begins at the positions that the batches here have committed, under the same claim.

    Attributes:
        followed: the query that reads now; ``None``: this one. Its own thread sets it.
    """

    def __init__(
        self,
        name: str,
        reader: PartReader,
        positions: Mapping[str, int],
        take: Take,
        *,
        interval_ms: int,
        is_ready: Callable[[], bool],
        follow: Callable[[], StreamingQuery | Triggered],
    ) -> None:
        """Store the arguments; ``start`` starts.

        Args:
            take: reads and commits each batch, in one thread.
            is_ready: whether Spark is there; raises the error of a start that has failed.
            follow: starts the query that reads from then on, between two batches.
        """
        super().__init__(name, reader, positions, take, interval_ms=interval_ms)
        self._is_ready, self._follow = is_ready, follow
        self._lock = threading.Lock()
        self.followed: StreamingQuery | Triggered | None = None

    @property
    def lastProgress(self) -> Mapping[str, Any] | None:
        query = self.followed
        return (query.lastProgress if query is not None else None) or super().lastProgress

    def _run(self) -> None:
        try:
            while not self._is_ready():
                self._wake.wait(self._interval_s)
                self._wake.clear()
                if self._stopping:
                    return
                if not self._is_ready():
                    self._trigger()
                    self._triggers += 1
            with self._lock:
                if self._stopping:
                    return
                self.followed = query = self._follow()
            query.awaitTermination()
        except BaseException as error:
            self._error = error

    def _reads_on(self) -> bool:
        return super()._reads_on() and not self._is_ready()

    def stop(self) -> None:
        self._stopping = True
        with self._lock:
            query = self.followed
        if query is not None:
            query.stop()
        super().stop()


class LocalDriving(Driving):
    """The same in the worker's own Spark, whose session all tasks share. ``stop`` ends the operation in progress."""

    def __init__(
        self,
        name: str,
        reader: PartReader,
        positions: Mapping[str, int],
        take: Take,
        *,
        interval_ms: int,
        session: SparkSession,
        discard: Callable[[], None],
    ) -> None:
        """Store the arguments; ``start`` starts.

        Args:
            discard: deletes what was written of a batch that has failed or was ended.
        """
        super().__init__(name, reader, positions, take, interval_ms=interval_ms)
        self._context, self._discard, self._tag = session.sparkContext, discard, uuid.uuid4().hex

    def _trigger(self) -> None:
        # Tags belong to the thread.
        self._context.addJobTag(self._tag)
        if JAVA.gateway is not None:  # the supervisor ends what a worker that has died leaves
            self._context.addJobTag(JAVA.gateway["tag"])
        super()._trigger()

    def stop(self) -> None:
        self._stopping = True
        with contextlib.suppress(Exception):  # Java has ended, and with it the operation
            self._context.cancelJobsWithTag(self._tag)
        super().stop()

    def _end(self) -> None:
        try:
            self._discard()
        except Exception as error:
            logger.debug("%s: the next owner deletes its files: %s", self.name, error)
