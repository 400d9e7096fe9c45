"""An operating system that has no thread to give, for some of those who ask (reliability F36)."""

from __future__ import annotations

import threading

import pytest


class NoThreads:
    """No thread can be started whose name begins so, until ``over``.

    Attributes:
        refused: how often one was asked for.
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
        """There are threads again."""
        self.names = ()
