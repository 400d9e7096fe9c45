"""An event loop in virtual time that waits for threads: seconds pass when nobody has anything to do.

``looptime`` moves time to the next timer as soon as the loop is idle. Worker code runs in threads, which looptime does
not see, so here time stands still while any thread that was started off the loop is at work. A thread that is to
block blocks at a ``Gate``; then time goes on, and the test (or a timer) opens the gate.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any, ClassVar

import looptime


class Gate:
    """A place where somebody's code blocks until it is opened."""

    _lock = threading.Lock()
    _blocked: ClassVar[set[threading.Thread]] = set()

    def __init__(self) -> None:
        self._open = threading.Event()
        self._waiting: list[threading.Thread] = []
        self.entered = 0

    def wait(self) -> None:
        """Block here; from a thread."""
        thread = threading.current_thread()
        with self._lock:
            self.entered += 1
            if self._open.is_set():
                return
            self._waiting.append(thread)
            Gate._blocked.add(thread)
        self._open.wait()

    def open(self) -> None:
        """Let everybody through, now and later."""
        with self._lock:
            Gate._blocked.difference_update(self._waiting)
            self._waiting.clear()
            self._open.set()

    @classmethod
    def blocks(cls, thread: threading.Thread) -> bool:
        """Whether the thread stands before a gate."""
        with cls._lock:
            return thread in cls._blocked


class VirtualLoop(looptime.LoopTimeEventLoop, asyncio.SelectorEventLoop):
    """The loop; one a test."""

    def __init__(self) -> None:
        super().__init__()
        self._older = set(threading.enumerate())
        self._select_virtual = self._selector.select  # looptime has put its own here
        self._selector.select = self._select  # type: ignore[method-assign]

    def _select(self, timeout: float | None = None) -> list[tuple[Any, Any]]:
        if timeout is None or timeout > 0:
            # Time would pass: not before the threads have said what they have to say.
            while self._at_work():
                ready = type(self._selector).select(self._selector, 0.0005)
                if ready:
                    return ready
        return self._select_virtual(timeout)

    def _at_work(self) -> bool:
        return any(
            thread.daemon
            and thread not in self._older
            and not isinstance(thread, threading.Timer)
            and not Gate.blocks(thread)
            for thread in threading.enumerate()
        )
