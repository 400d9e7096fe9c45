"""Calls of code that may block or never return: each in a daemon thread, awaited on the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class NoThread(RuntimeError):
    """The operating system cannot start a thread; the function has not been called."""


async def off_loop(name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a separate thread and wait for its result.

    It runs in a daemon thread, not in an executor: code that hangs must neither block other calls in a pool nor
    prevent the process from exiting. On a timeout or a cancellation of the caller, the thread is abandoned.

    Args:
        name: name of the thread, for stack dumps.

    Raises:
        NoThread: no thread is available; the function has not been called.
        Exception: the exception of the function; ``SystemExit`` and similar are converted to ``RuntimeError``.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        value, error = outcome(partial(function, *args, **kwargs))
        with contextlib.suppress(RuntimeError):  # the loop has closed: no caller waits any more
            loop.call_soon_threadsafe(deliver, result, value, error)

    try:
        start_thread(loop, name, run)
    except RuntimeError as error:
        raise NoThread(f"{name} was not called: {error}") from error
    return await result


def start_thread(loop: asyncio.AbstractEventLoop, name: str, target: Callable[[], None]) -> None:
    """Start a daemon thread. An event loop in virtual time starts it itself, so that time does not pass it by.

    Raises:
        RuntimeError: the operating system cannot start a thread.
    """
    start: Callable[[str, Callable[[], None]], None] | None = getattr(loop, "start_thread", None)
    if start is not None:
        start(name, target)
    else:
        threading.Thread(target=target, name=name, daemon=True).start()


def clock_of(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """The clock of an event loop in seconds, as a function that any thread may call: uvloop's own is for its thread
    only, and is the same clock as ``time.monotonic``."""
    return time.monotonic if type(loop).__module__.startswith("uvloop") else loop.time


def outcome(function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """Call the function; return its result, or its exception."""
    try:
        return function(), None
    except BaseException as raised:
        if isinstance(raised, StopIteration) or not isinstance(raised, Exception):
            # Raised on the event loop, these would end the loop or look like a cancellation of the caller.
            return None, RuntimeError(f"{type(raised).__name__}: {raised}")
        return None, raised


def deliver(result: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    """Complete a future, unless its reader has abandoned it; call it on the event loop."""
    if result.done():
        return
    if error is not None:
        result.set_exception(error)
    else:
        result.set_result(value)
