"""Measures a running query at intervals: whether it polls its source, and what it has not read yet."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from ..connector import TaskContext
from .errors import root_cause

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from ..dataplane.committing import CommitQueue
    from ..dataplane.source import Source
    from ..dataplane.triggering import Triggered

logger = logging.getLogger(__name__)

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
        source: Source,
        reached: Mapping[str, int],
        query: StreamingQuery | Triggered,
        commits: CommitQueue,
        stopping: threading.Event,
    ) -> None:
        """Store the arguments.

        Args:
            reached: the committed position of each slice; grows while the query runs.
            commits: the commits of the query's batches.
            stopping: set when the task stops: it ends ``run``, but not a call of ``Source.lag`` in progress.
        """
        self._context, self._source, self._reached = context, source, reached
        self._query, self._commits, self._stopping = query, commits, stopping
        self._last_trigger: str | None = None
        self._lag_failed = False

    def run(self) -> None:
        """Measure until the task stops or the query ends."""
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
