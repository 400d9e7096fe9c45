"""A task's query that is driven by the worker: plan a range, have it read, commit it.

On a Spark Connect server there is no streaming query: its ``foreachBatch`` would run there, apart from the sink's
connection and from the grant, and would go on without its worker. In the worker's own Spark there is none where Spark's
workers write the rows themselves (``writing``).
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..dataplane.ownership import Range, ranges_between
from ..dataplane.triggering import Triggered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..dataplane.source import BatchReader, PartReader

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

    def _trigger(self) -> None:
        while not self._stopping:
            end = self._reader.plan(self._at)
            ranges = list(ranges_between(self._at, end))
            # Planning takes a while: a stop meanwhile has found no operation to end.
            if not ranges or self._stopping:
                return
            self._take(ranges)
            self._at = end


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
