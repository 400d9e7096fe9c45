"""A query that a thread of this process drives: at each trigger it reads what is there, batch by batch.

It has the part of Spark's ``StreamingQuery`` that a task uses.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any


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
        """The number of the last completed trigger as ``timestamp``; null before the first."""
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
