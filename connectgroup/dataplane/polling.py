"""Polls an iterator source: one thread for each slice reads ahead, one thread forms batches and hands them over.

The batches of a task are handed over one at a time.
"""

from __future__ import annotations

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from ..errors import ConnectGroupError
from ..protocol.units import printable
from .errors import SourceError
from .iterator import Item, IteratorSource, Row, Rows, TableBuilder, count_rows, next_position
from .ownership import Range

if TYPE_CHECKING:
    import pyarrow as pa

# --------------------------------------------------------------------------------------------------
# A query that a thread of this process drives: at each trigger it reads what is there, batch by batch.
#
# It has the part of Spark's ``StreamingQuery`` that a task uses.


class Triggered(ABC):
    """A running task's query in this process.

    Attributes:
        name: as of Spark's query: connector, task and owner epoch.
    """

    def __init__(self, name: str, *, interval_ms: int) -> None:
        """Store the arguments; ``start`` starts.

        Args:
            interval_ms: interval of the triggers.
        """
        self.name = name
        self._interval_s = interval_ms / 1000
        self._stopping = False
        self._wake = threading.Event()
        self._error: BaseException | None = None
        self._triggers = 0
        self._thread = threading.Thread(target=self._run, name=f"poll {name}", daemon=True)

    @abstractmethod
    def _trigger(self) -> None:
        """Hand over the batches that are there; return early if ``_stopping``.

        Raises:
            Exception: ends the query.
        """

    def _end(self) -> None:
        """Clean up; called once, in the query's thread."""
        return

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def isActive(self) -> bool:
        """Whether batches are formed."""
        return self._thread.is_alive()

    @property
    def lastProgress(self) -> Mapping[str, Any] | None:
        """The number of the last completed trigger as ``timestamp``; ``None`` before the first."""
        return {"timestamp": self._triggers} if self._triggers else None

    def awaitTermination(self) -> None:
        """Wait for the end of the query.

        Raises:
            Exception: the error that ended it.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """End the query: a batch in progress has been handed over, or failed, on return. Idempotent."""
        self._stopping = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._wake.wait(self._interval_s)
                self._wake.clear()
                if self._stopping:
                    return
                self._trigger()
                self._triggers += 1
        except BaseException as error:
            self._error = error
        finally:
            self._end()


# --------------------------------------------------------------------------------------------------


Take = Callable[["pa.Table", Sequence[Range]], None]
"""Receives the rows and the ranges of a batch; when it returns, the batch is committed."""

_CLOSE_WAIT_S: Final = 0.2
"""How long ``stop`` waits for iterators to be closed: one that blocks is left to its daemon thread."""


class SliceReader:
    """Reads one slice ahead of the batches, in a thread of its own.

    Attributes:
        error: the error that ended the reading.
        is_idle: whether the iterator has nothing to yield before the next trigger.
    """

    def __init__(self, source: IteratorSource, name: str, position: int, limit: int, wake: threading.Event) -> None:
        """Store the arguments.

        Args:
            position: where to begin.
            limit: number of rows to read ahead.
            wake: set when this number is reached, or when the reading ends with an error.
        """
        self.name = name
        self.error: BaseException | None = None
        self.is_idle = False
        self._source, self._limit, self._wake = source, limit, wake
        self._begin = self._end = position
        self._stopped = False
        self._trigger = threading.Event()
        self._space = threading.Event()
        # Rows (dicts) and pairs. Appended to by this thread, taken from by the thread of the batches.
        self._items: deque[Row | tuple[Rows, int]] = deque()
        # Rows; each number is written by one of the two threads alone.
        self._put = self._taken = 0
        self.thread = threading.Thread(target=self._run, name=f"read {name}", daemon=True)

    @property
    def is_empty(self) -> bool:
        """Whether every row that was read is in a batch."""
        return not self._items

    @property
    def is_full(self) -> bool:
        """Whether the thread waits until a batch has taken rows."""
        return self._put - self._taken >= self._limit

    def trigger(self) -> None:
        """Let an idle iterator continue."""
        self._trigger.set()

    def stop(self) -> None:
        """End the thread at the iterator's next item."""
        self._stopped = True
        self._trigger.set()
        self._space.set()

    def take(self, most: int, builder: TableBuilder) -> tuple[int, Range | None]:
        """Move up to ``most`` rows into a batch; return their number and range.

        Raises:
            SourceError: a row does not fit the columns.
        """
        items, begin, end, taken = self._items, self._begin, self._begin, 0
        rows: list[Row] = []
        starts: list[int] = []

        def add() -> None:
            if rows:
                builder.add_all(rows, lambda at: self._place(starts[at]))

        while taken < most and items:
            item = items.popleft()
            starts.append(end)
            if not isinstance(item, tuple):
                rows.append(item)
                end += 1
                taken += 1
                continue
            part, following = item
            if isinstance(part, Mapping):
                rows.append(part)
                taken += 1
            else:
                del starts[-1]
                add()
                rows, starts = [], []
                builder.add(self._place(end), part)
                taken += count_rows(part)
            end = following
        add()
        self._begin = end
        self._taken += taken
        self._space.set()
        return taken, Range(slice=self.name, start=begin, end=end) if end > begin else None

    def _place(self, position: int) -> str:
        return f"{self._source.description}, slice {self.name}, position {position}"

    def _run(self) -> None:
        try:
            while not self._stopped:
                self._read()
                self._pause()
        except BaseException as error:
            self.error = error
            self._wake.set()

    def _read(self) -> None:
        """Read until the iterator ends."""
        try:
            items = iter(self._source.rows(self.name, self._end))
        except Exception as error:
            raise self._failed(error) from error
        with contextlib.ExitStack() as stack:
            if isinstance(items, Generator):
                stack.enter_context(closing(items))
            try:
                for item in items:
                    if self._stopped:
                        return
                    if type(item) is dict:
                        self._items.append(item)
                        self._end += 1
                        self._put += 1
                    elif item is None:
                        self._pause()
                    else:
                        self._keep(item)
                    if self._put - self._taken >= self._limit:
                        self._wait_for_space()
            except Exception as error:
                raise self._failed(error) from error

    def _keep(self, item: Item) -> None:
        assert item is not None
        rows, following = next_position(self.name, self._end, item)
        if following > self._end:
            self._items.append((rows, following))
            self._end = following
            self._put += count_rows(rows)

    def _pause(self) -> None:
        """Wait for the next trigger."""
        self._trigger.clear()
        self.is_idle = True
        if not self._stopped:
            self._trigger.wait()
        self.is_idle = False

    def _wait_for_space(self) -> None:
        self._wake.set()
        while self.is_full and not self._stopped:
            self._space.clear()
            # Rows may have been taken, or the reader stopped, since the check.
            if self.is_full and not self._stopped:
                self._space.wait()

    def _failed(self, error: Exception) -> Exception:
        if isinstance(error, ConnectGroupError):
            return error
        return SourceError(f"{self._place(self._end)}: {printable(f'{type(error).__name__}: {error}', limit=300)}")


class Polling(Triggered):
    """A running task's query over an iterator source."""

    def __init__(
        self, name: str, source: IteratorSource, positions: Mapping[str, int], take: Take, *, interval_ms: int
    ) -> None:
        """Store the arguments; ``start`` starts.

        Args:
            positions: the position of each known slice; a missing slice is at position 0.
            take: called with each batch, in one thread.
            interval_ms: interval of the triggers. A batch that is full is handed over at once.
        """
        super().__init__(name, interval_ms=interval_ms)
        self._source, self._positions, self._take = source, dict(positions), take
        self._readers: dict[str, SliceReader] = {}
        self._first = 0

    def start(self) -> None:
        """Start the threads.

        Raises:
            SourceError: the slices cannot be determined.
        """
        try:
            self._find_slices()
            super().start()
        except BaseException:
            self._end()
            raise

    def _trigger(self) -> None:
        self._find_slices()
        while self._batch() and not self._stopping:
            pass
        for reader in self._readers.values():
            reader.trigger()

    def processAllAvailable(self) -> None:
        """Wait until every iterator has ended or yielded None, and what it yielded is committed; for tests.

        Raises:
            Exception: the error that ended the query.
        """
        triggers: int | None = None
        while self._thread.is_alive():
            if triggers is None and all(reader.is_idle and reader.is_empty for reader in list(self._readers.values())):
                # The batch that emptied them may be in progress.
                triggers = self._triggers
            if triggers is not None and self._triggers > triggers:
                return
            self._wake.set()
            time.sleep(0.01)
        self.awaitTermination()

    def _batch(self) -> bool:
        """Hand over one batch; return whether rows for another one wait.

        Raises:
            Exception: the batch could not be handed over, or a slice cannot be read any more.
        """
        builder = TableBuilder(self._source.columns, is_tolerant=self._source.is_tolerant)
        readers = list(self._readers.values())
        # Each batch begins with another slice, so that a full one does not delay the others.
        self._first += 1
        first = self._first % len(readers) if readers else 0
        rows, ranges = 0, []
        ended = [reader for reader in readers if reader.error is not None]
        for reader in readers[first:] + readers[:first]:
            taken, part = reader.take(self._source.max_rows_per_batch - rows, builder)
            rows += taken
            if part is not None:
                ranges.append(part)
        if ranges:
            self._take(builder.table(), sorted(ranges, key=lambda part: part.slice))
        for reader in ended:
            if reader.is_empty and reader.error is not None:
                raise reader.error
        return any(reader.is_full for reader in readers) or any(not reader.is_empty for reader in ended)

    def _find_slices(self) -> None:
        for name in self._source.slices():
            if name not in self._readers and self._source.owns(name):
                position, limit = self._positions.get(name, 0), self._source.max_rows_per_batch
                reader = SliceReader(self._source, name, position, limit, self._wake)
                reader.thread.start()
                self._readers[name] = reader

    def _end(self) -> None:
        for reader in self._readers.values():
            reader.stop()
        give_up_at = time.monotonic() + _CLOSE_WAIT_S
        for reader in self._readers.values():
            reader.thread.join(max(0.0, give_up_at - time.monotonic()))
