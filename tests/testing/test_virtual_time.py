"""Virtual time passes no thread that computes, however long the system lets it wait for a processor."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

from connectgroup.testing.virtual_time import CALLER_LIMIT_S, VirtualLoop

HOUR_S = 3600.0


def in_thread(work: Callable[[VirtualLoop], None]) -> None:
    """Run work in a thread of a loop in virtual time, for up to an hour of it."""

    async def main() -> None:
        loop.start_thread("work", lambda: work(loop))
        await asyncio.sleep(HOUR_S)

    loop = VirtualLoop()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


def ask(loop: VirtualLoop, answer: Coroutine[Any, Any, None]) -> None:
    asyncio.run_coroutine_threadsafe(answer, loop).result()


def test_time_waits_for_a_thread_that_has_called_the_loop_and_goes_on() -> None:
    ended_at = []

    def work(loop: VirtualLoop) -> None:
        ask(loop, asyncio.sleep(0))
        time.sleep(6 * CALLER_LIMIT_S)  # as if it got no processor
        ended_at.append(loop.time())

    in_thread(work)
    assert ended_at == [0.0]


def test_time_passes_while_a_thread_waits_for_the_loop() -> None:
    ended_at = []

    def work(loop: VirtualLoop) -> None:
        for _ in range(100):
            ask(loop, asyncio.sleep(1))
        ended_at.append(loop.time())

    in_thread(work)
    assert ended_at == [100.0]


def test_time_passes_while_a_thread_waits_for_something_that_the_loop_does_later() -> None:
    ended_at = []
    event = threading.Event()

    def work(loop: VirtualLoop) -> None:
        loop.call_soon_threadsafe(loop.call_later, 10, event.set)
        event.wait()
        ended_at.append(loop.time())

    in_thread(work)
    assert ended_at == [10.0]
