"""An operating system without a free thread for some callers (reliability F36)."""

from __future__ import annotations

import threading

import pytest


class NoThreads:
    """No thread whose name begins like this can be started, until ``over``.

    Attributes:
        refused: number of rejected starts.
    """

    def __init__(self, patched: pytest.MonkeyPatch, *names: str) -> None:
        self.names, self.refused = names, 0
        start = threading.Thread.start

        def refuse(thread: threading.Thread) -> None:
            if thread.name.startswith(self.names):
                self.refused += 1
                raise RuntimeError("can't start new thread")
            start(thread)

        patched.setattr(threading.Thread, "start", refuse)

    def over(self) -> None:
        """Threads are available again."""
        self.names = ()
