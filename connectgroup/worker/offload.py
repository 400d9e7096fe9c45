"""Run code that may block, hang or never come back, without stopping the event loop or the end of the process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from .waiting import backoff_s, worth_a_line

P = ParamSpec("P")
T = TypeVar("T")

RETRY_FIRST_S, RETRY_MOST_S = 0.1, 5.0
"""Between two tries to get a thread from the operating system."""

logger = logging.getLogger(__name__)


class NoThread(RuntimeError):
    """The system has no thread to give; what was to run in it has not begun."""


async def off_loop(name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a thread of its own and wait for its result.

    A daemon thread, not an executor's: code that hangs must keep neither others waiting for a place in a pool nor
    the process from ending. Who gives up waiting (a timeout, a cancellation) leaves the thread to itself.

    Args:
        name: of the thread, for whoever reads a stack dump.

    Raises:
        NoThread: there is none, and the function has not been called.
        Exception: whatever the function raised; ``SystemExit`` and its like come back as ``RuntimeError``.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def deliver(value: T | None, error: BaseException | None) -> None:
        if result.done():
            return
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(value)  # type: ignore[arg-type]

    def run() -> None:
        value: T | None = None
        error: BaseException | None = None
        try:
            value = function(*args, **kwargs)
        except BaseException as raised:
            error = raised
            if isinstance(raised, StopIteration) or not isinstance(raised, Exception):
                # Raised on the loop these would end it, or look like a cancellation of whoever waits.
                error = RuntimeError(f"{type(raised).__name__}: {raised}")
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits any more
            loop.call_soon_threadsafe(deliver, value, error)

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError as error:
        raise NoThread(str(error)) from error
    return await result


async def insist(name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """``off_loop`` for a call that must not be left out: it is made as soon as there is a thread for it.

    A stop that never began would look like one that failed: nobody would make it later, and what it was to stop would
    run on unwatched (reliability S11, F36). What may fail and be tried again is not for here: a start that waited
    could come when its grant is long another's.
    """
    failures = 0
    while True:
        try:
            return await off_loop(name, function, *args, **kwargs)
        except NoThread:
            failures += 1
            if worth_a_line(failures):
                logger.warning("%s: waits for a thread, the system has none to give (attempt %d)", name, failures)
        await asyncio.sleep(backoff_s(failures, RETRY_FIRST_S, RETRY_MOST_S))
