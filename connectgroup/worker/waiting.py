"""Waiting: for a notification with a timeout, and back-off with jitter after failures."""

from __future__ import annotations

import asyncio
import random


class TryAgain(Exception):
    """The coordinator did not respond or returned a retriable error; the same request may be retried."""


class WakeUp:
    """An ``asyncio.Event`` for a single waiter, with a timeout.

    A wait with a timeout on an ``Event`` creates and cancels an asyncio task each time; a worker waits like this twice
    per heartbeat.
    """

    def __init__(self) -> None:
        self._notified = False
        self._listener: asyncio.Future[None] | None = None

    def notify(self) -> None:
        """Wake up the waiter, or the next one if none waits now."""
        self._notified = True
        if self._listener is not None:
            _release(self._listener)

    def clear(self) -> None:
        """Reset: a later ``wait`` waits for the next ``notify``."""
        self._notified = False

    async def wait(self, seconds: float | None = None) -> None:
        """Wait for ``notify``, at most ``seconds``; ``None``: no timeout."""
        if self._notified:
            return
        assert self._listener is None, "one listens at a time"
        loop = asyncio.get_running_loop()
        self._listener = listener = loop.create_future()
        timer = None if seconds is None else loop.call_later(seconds, _release, listener)
        try:
            await listener
        finally:
            self._listener = None
            if timer is not None:
                timer.cancel()


def _release(listener: asyncio.Future[None]) -> None:
    if not listener.done():
        listener.set_result(None)


def should_log(failures: int) -> bool:
    """Whether to log the n-th consecutive failure: the first, the fifth, and then every twentieth are logged."""
    return failures in (1, 5) or failures % 20 == 0


def backoff_s(failures: int, first_s: float, max_s: float) -> float:
    """Return a random back-off after this many consecutive failures; its upper bound doubles with each failure.

    The jitter prevents workers that lost the same coordinator from reconnecting together ("Exponential Backoff And
    Jitter", AWS Architecture Blog: full jitter).
    """
    return random.uniform(0, min(max_s, first_s * 2 ** min(failures - 1, 60)))
