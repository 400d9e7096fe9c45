"""Run code that may block, hang or never come back, without stopping the event loop or the end of the process."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def off_loop(name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a thread of its own and wait for its result.

    A daemon thread, not an executor's: code that hangs must keep neither others waiting for a place in a pool nor
    the process from ending. Who gives up waiting (a timeout, a cancellation) leaves the thread to itself.

    Args:
        name: of the thread, for whoever reads a stack dump.

    Raises:
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

    threading.Thread(target=run, name=name, daemon=True).start()
    return await result
