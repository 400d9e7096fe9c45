"""A task's query on a Spark Connect server, driven by the worker: plan a range, have it read, commit it.

There is no streaming query on the server, whose ``foreachBatch`` would run there, apart from the sink's connection and
from the grant, and would go on without its worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..dataplane.ownership import Range, ranges_between
from ..dataplane.triggering import Triggered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ..dataplane.source import BatchReader

TakeFrame = Callable[["DataFrame", Sequence[Range]], None]
"""Receives the rows, not yet collected, and the ranges of a batch. When it returns, they have been read, and all
earlier batches are committed."""


class Driving(Triggered):
    """A running task's query over the batches of a source."""

    def __init__(
        self,
        name: str,
        reader: BatchReader,
        session: SparkSession,
        started: tuple[Mapping[str, int], TakeFrame],
        ms: int,
    ) -> None:
        """Store the arguments; ``start`` starts.

        Args:
            started: the position of each known slice, and what receives each batch, in one thread.
            ms: interval of the triggers in milliseconds.
        """
        super().__init__(name, interval_ms=ms)
        self._reader, self._session = reader, session
        self._at, self._take = started
        self._wake.set()  # the first trigger is due at once

    def _trigger(self) -> None:
        while not self._stopping:
            end = self._reader.plan(self._at)
            ranges = list(ranges_between(self._at, end))
            if not ranges:
                return
            self._take(self._reader.read(self._session, ranges), ranges)
            self._at = end
