"""Commits the batches of one task in order, while the next batch is read."""

from __future__ import annotations

import threading
from collections.abc import Callable


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
