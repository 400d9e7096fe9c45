"""Commits the batches of one task in order, while the next batch is read."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from .settings import parse_settings
from .sink import Sink


class CommitQueue:
    """At most one commit in progress, in a thread of its own. One thread submits."""

    def __init__(self, name: str, failed: Callable[[BaseException], None]) -> None:
        """Store the arguments.

        Args:
            name: of the threads.
            failed: called with the first error of a commit, in the commit's thread.
        """
        self._name, self._failed = name, failed
        self._done = threading.Event()
        self._done.set()
        self._error: BaseException | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a commit is in progress."""
        return not self._done.is_set()

    def submit(self, commit: Callable[[], None]) -> None:
        """Wait for the commit in progress, and start the next one.

        Raises:
            BaseException: the error of an earlier commit; no later batch is committed.
        """
        self.wait()
        if self._error is not None:
            raise self._error
        # A daemon: a commit that hangs must not prevent the process from exiting.
        thread = threading.Thread(target=self._run, args=(commit,), name=self._name, daemon=True)
        self._done.clear()
        try:
            thread.start()
        except BaseException:
            self._done.set()  # the system has no thread
            raise

    def wait(self) -> None:
        """Wait until no commit is in progress."""
        self._done.wait()

    def _run(self, commit: Callable[[], None]) -> None:
        try:
            commit()
        except BaseException as error:
            self._error = error
        finally:
            self._done.set()
        if self._error is not None:
            # After the end of the commit: ``failed`` may wait for a thread that waits in ``submit``.
            self._failed(self._error)


# --------------------------------------------------------------------------------------------------
# The committed positions of all tasks of a connector, readable in Spark's processes as well.


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedPositions:
    """Where the positions of a connector are: its sink's class and settings, as plain values for Spark.

    Attributes:
        connector: the connector's name.
        module, cls: module and name of the sink's class.
        settings: the settings of the sink, without the prefix; may contain a password.
    """

    connector: str
    module: str
    cls: str
    settings: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(cls, connector: str, sink: type[Sink], settings: Mapping[str, str]) -> CommittedPositions:
        """Return the positions that a connector commits to a sink."""
        return cls(connector=connector, module=sink.__module__, cls=sink.__qualname__, settings=dict(settings))

    def read(self) -> dict[str, int]:
        """Return the position of each slice of the connector; none if the sink does not offer them.

        Raises:
            SinkError: the positions cannot be read.
        """
        sink: Any = getattr(importlib.import_module(self.module), self.cls)
        store = sink.open_positions(parse_settings(sink.Settings, self.settings, prefix="sink."))
        if store is None:
            return {}
        with closing(store):
            return dict(store.positions(self.connector))
