"""Waiting: for a bell, up to a time; and longer each time that something has failed."""

from __future__ import annotations

import asyncio
import random


class Bell:
    """What ``asyncio.Event`` is, for one listener at a time, who may listen up to a time.

    With an ``Event`` that takes a task each time, and cancelling it; a worker waits so twice in every heartbeat.
    """

    def __init__(self) -> None:
        self._rung = False
        self._listener: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """Wake whoever waits, and whoever is about to."""
        self._rung = True
        if self._listener is not None:
            _release(self._listener)

    def clear(self) -> None:
        """Who waits from now on waits for the next ring."""
        self._rung = False

    async def wait(self, seconds: float | None = None) -> None:
        """Until it has been rung, or the time is up; ``None``: however long it takes."""
        if self._rung:
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


def worth_a_line(failures: int) -> bool:
    """Whether to speak of a failure, the so many-th in a row: of the first, the fifth, and then of each twentieth."""
    return failures in (1, 5) or failures % 20 == 0


def backoff_s(failures: int, first_s: float, most_s: float) -> float:
    """How long to wait after so many failures in a row: by chance, up to a limit that doubles with each of them.

    Those that have lost the same coordinator together do not come back together ("Exponential Backoff And Jitter",
    AWS Architecture Blog: full jitter).
    """
    return random.uniform(0, min(most_s, first_s * 2 ** min(failures - 1, 60)))
