"""The batches of a task: what has been read is handed over to be committed, and reported."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ..connector import Batch
from ..dataplane.dead_letters import DeadLetter, DeadLetters, DeadLetterSink, place_and_reason
from ..dataplane.ownership import Owner, Range
from ..dataplane.sink import PartSink, PartWriter
from ..dataplane.source import CommitQueue
from ..dataplane.transform import RowTransform
from .errors import SparkError
from .remote import frame_of
from .sources.sliced import SlicedSource
from .tolerance import apply_tolerantly, check_values, split_errors
from .transforms.chain import Chain, apply_chain
from .writing import read_here, write_parts

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from ..dataplane.sink import Sink
    from ..dataplane.source import BatchReader, PartReader, Publisher, Source


class BatchTask(Protocol):
    """The task of the batches."""

    commits: CommitQueue

    @property
    def tolerates_errors(self) -> bool:
        """Whether a record that cannot be processed becomes a dead letter."""

    @property
    def is_stopping(self) -> bool:
        """Whether the task is to stop."""

    def committed(self, rows: int, dead_letters: Sequence[DeadLetter]) -> None:
        """Receives the rows of a committed batch."""

    def measured(self, batch: Batch) -> None:
        """Receives a batch for metrics."""

    def broke(self, error: BaseException) -> None:
        """Receives the error of a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is to be committed.

    Attributes:
        rows: the number of rows.
        bytes: their size in memory.
        commit: commits; returns whether it was not committed before.
        dead_letters: the records that could not be processed. The sink adds those that it cannot write.
        topics: returns the Kafka topics that the rows are written to.
    """

    rows: int
    bytes: int
    commit: Callable[[], bool]
    dead_letters: Sequence[DeadLetter] = ()
    topics: Callable[[], Collection[str]] = tuple


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """A task that has claimed its slices in the sink, and whose query can start.

    Attributes:
        owner: the grant.
        source, chain, sink: what was opened for it.
        positions: the position of each slice, as it was claimed.
        checkpoint: a directory of this start, for a streaming query.
        publisher: shows the committed positions to others.
    """

    owner: Owner
    source: Source
    chain: Chain
    sink: Sink
    positions: Mapping[str, int]
    checkpoint: Path
    publisher: Publisher | None = None


class Batches:
    """The callback with each batch.

    Attributes:
        claimed: what the batches are read from, and committed to. ``continue_from_here`` replaces its positions.
        reached: the committed position of each slice that has been read.
    """

    def __init__(self, claimed: Claimed, task: BatchTask) -> None:
        """Store the arguments."""
        self.claimed = claimed
        self._owner, self._source, self._chain, self._sink = claimed.owner, claimed.source, claimed.chain, claimed.sink
        self.reached = dict(claimed.positions)
        self._task = task
        # Other transforms may drop rows, and to count the rows before them would read the source twice.
        self._keeps_rows = all(isinstance(step.transform, RowTransform) for step in self._chain)

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Read a batch of a streaming query, and hand it over to be committed."""
        try:
            with self._reporting():
                if ranges := self.ranges(batch_id):
                    self._take_frame(frame, ranges)
        except Exception as error:
            # Spark searches the text of an error, with its stack traces, for the interruption by a stop. Its regular
            # expression overflows Java's stack on a long text, and the thread of the query ends with a trace of 1,000
            # lines. The task has the error itself.
            if not self._task.is_stopping:
                raise SparkError(f"batch {batch_id}: {type(error).__name__}") from None

    def take_frame(self, session: SparkSession, reader: BatchReader, ranges: Sequence[Range]) -> None:
        """Read a batch that this process drives, and hand it over to be committed."""
        with self._reporting():
            self._take_frame(reader.read(session, ranges), ranges)

    def _take_frame(self, frame: DataFrame, ranges: Sequence[Range]) -> None:
        began_s = time.monotonic()
        if self._is_tolerant:
            read = apply_tolerantly(self._chain, frame.toArrow(), frame.sparkSession, self._owner)
        else:
            read = apply_chain(self._chain, frame).toArrow(), DeadLetters(self._owner)
        work = self._work(ranges, *read)
        self._task.commits.submit(partial(self._commit, ranges, work, time.monotonic() - began_s))

    def take_here(self, reader: PartReader, ranges: Sequence[Range]) -> None:
        """Read a batch in this process, without Spark, and commit it. Only without transforms."""
        with self._reporting():
            began_s = time.monotonic()
            table, letters = self._read_here(reader, ranges), DeadLetters(self._owner)
            if table is None:
                return
            if self._is_tolerant:
                table, letters = split_errors(table, self._owner)
            self._commit(ranges, self._work(ranges, table, letters), time.monotonic() - began_s)

    def _read_here(self, reader: PartReader, ranges: Sequence[Range]) -> pa.Table | None:
        return read_here(reader, ranges, lambda: self._task.is_stopping)

    def continue_from_here(self) -> Claimed:
        """Return the claim with the positions that are committed by now: the next query begins there."""
        self._task.commits.wait()
        self.claimed = replace(self.claimed, positions=dict(self.reached))
        return self.claimed

    def take_parts(self, session: SparkSession, reader: PartReader, write: PartWriter, ranges: Sequence[Range]) -> None:
        """Have Spark's workers write a batch that this process drives, and hand its parts over to be committed. Some
        this process reads itself (``reads_here``)."""
        with self._reporting():
            assert isinstance(self._sink, PartSink)
            began_s = time.monotonic()
            if reader.reads_here(ranges):
                table = self._read_here(reader, ranges)
                if table is None:
                    return
                work = self._work(ranges, table, DeadLetters(self._owner))
                self._task.commits.submit(partial(self._commit, ranges, work, time.monotonic() - began_s))
                return
            parts = write_parts(session, reader, ranges, write)
            work = Work(
                rows=sum(part.rows for part in parts),
                bytes=sum(part.row_bytes for part in parts),
                commit=partial(self._sink.commit_parts, self._owner, ranges, parts),
            )
            self._task.commits.submit(partial(self._commit, ranges, work, time.monotonic() - began_s))

    def discard_parts(self) -> None:
        """Delete the parts of a batch that was not written to its end."""
        self._task.commits.wait()
        assert isinstance(self._sink, PartSink)
        self._sink.discard_parts(self._owner)

    def commit_rows(self, session: SparkSession | None, table: pa.Table, ranges: Sequence[Range]) -> None:
        """Commit a batch that was polled in this process. Without transforms there is nothing for Spark to compute, and
        no session is needed."""
        with self._reporting():
            began_s = time.monotonic()
            letters = DeadLetters(self._owner)
            if session is None:
                if self._is_tolerant:
                    table, letters = split_errors(table, self._owner)
            elif self._is_tolerant:
                table, letters = apply_tolerantly(self._chain, table, session, self._owner)
            elif self._chain:
                table = apply_chain(self._chain, frame_of(session, table)).toArrow()
            self._commit(ranges, self._work(ranges, table, letters), time.monotonic() - began_s)

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        """Report an error of a batch to the task."""
        try:
            yield
        except BaseException as error:
            self._task.broke(error)
            raise

    @property
    def _is_tolerant(self) -> bool:
        return self._task.tolerates_errors and isinstance(self._sink, DeadLetterSink)

    def _work(self, ranges: Sequence[Range], rows: pa.Table, dead_letters: DeadLetters) -> Work:
        """Return the commit of rows that this process has."""
        # A sliced source has checked what it has read.
        if self._chain or not isinstance(self._source, SlicedSource):
            rows = check_values(rows, dead_letters, self._is_tolerant)
        if self._is_tolerant and isinstance(self._sink, DeadLetterSink):
            commit = partial(self._sink.commit_all, self._owner, ranges, rows, dead_letters)
        else:
            commit = partial(self._sink.commit, self._owner, ranges, rows)
        return Work(
            rows=rows.num_rows,
            bytes=rows.nbytes,
            dead_letters=dead_letters,
            topics=partial(self._sink.topics_of, rows),
            commit=commit,
        )

    def _commit(self, ranges: Sequence[Range], work: Work, read_s: float) -> None:
        """Commit a batch and report it, unless it had been committed before, or the task stops.

        Args:
            read_s: seconds that reading and transforming took.
        """
        if self._task.is_stopping:
            return
        read = work.rows + len(work.dead_letters)
        batch = partial(
            Batch,
            read=read if self._keeps_rows else None,
            read_s=read_s,
            read_bytes=self._source.size_of(ranges),
            written_bytes=work.bytes,
            topics={self._source.topic_of(each.slice) for each in ranges}.union(work.topics()) - {""},
        )

        def measured(*, committed: bool = True) -> None:
            # The sink may have added dead letters, in Java also those of records of former batches.
            letters = len(work.dead_letters)
            commit_s = time.monotonic() - began_s
            self._task.measured(
                batch(
                    rows=max(0, read - letters),
                    dead_letters=letters,
                    last_dead_letter=place_and_reason(work.dead_letters[-1]) if letters else "",
                    commit_s=commit_s,
                    committed=committed,
                )
            )

        began_s = time.monotonic()
        try:
            self._source.check_read(ranges)
            written = work.commit()
        except BaseException:
            measured(committed=False)
            raise
        if written:
            measured()
            self._task.committed(max(0, read - len(work.dead_letters)), work.dead_letters)
        ends = {each.slice: each.end for each in ranges}
        self.reached.update(ends)
        if self.claimed.publisher is not None:
            self.claimed.publisher.committed(ends)

    def ranges(self, batch_id: int) -> Sequence[Range]:
        """Return the ranges of a batch from the query's own offset log; its rows do not show them, because a source may
        skip or filter rows."""
        checkpoint = self.claimed.checkpoint
        start = self.claimed.positions if batch_id == 0 else self._source.logged(checkpoint, batch_id - 1)
        return self._source.ranges(start, self._source.logged(checkpoint, batch_id))
