"""Signals of a worker process: SIGTERM, SIGINT and SIGHUP stop the worker, SIGUSR1 drains it, SIGUSR2 restarts it.

``loop.add_signal_handler`` is not used: asyncio passes a signal to the loop as a byte in the socket that
``call_soon_threadsafe`` also writes to. That socket holds a few hundred bytes. While it is full, the byte, and with it
the signal, is lost. Here the Python signal handler acts, and a separate pipe only wakes up the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def handle_signals(stop: Callable[[], None], drain: Callable[[], None], restart: Callable[[], None]) -> Iterator[None]:
    """Within this context, signals call these functions on the running event loop.

    A second SIGTERM or SIGINT ends the process immediately. Use it only in the main thread. SIGHUP (the terminal has
    been closed) stops the worker, as it stops Kafka's processes; a process that ignores it (``nohup``) still does.

    Args:
        stop: called once, for the first SIGTERM, SIGINT or SIGHUP.
        drain: called for each SIGUSR1.
        restart: called for each SIGUSR2.
    """
    loop = asyncio.get_running_loop()
    stopping = False

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        if number == signal.SIGUSR1:
            loop.call_soon_threadsafe(drain)
        elif number == signal.SIGUSR2:
            loop.call_soon_threadsafe(restart)
        elif stopping and number == signal.SIGHUP:
            pass  # a shell and the terminal may both send it
        elif stopping:
            # Not through ``logging``: this handler may interrupt the thread that holds a lock of ``logging``.
            if select.select([], [2], [], 0)[1]:
                os.write(2, b"second SIGTERM or SIGINT: process ends without stopping its tasks\n")
            os._exit(1)
        else:
            stopping = True
            loop.call_soon_threadsafe(stop)

    numbers = [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, on_signal) for number in numbers}
    # A signal just before the loop waits for events would be handled only after the wait: the pipe ends the wait.
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    wakeup_before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def drop() -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(reader, 4096)

    loop.add_reader(reader, drop)
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup_before)
        loop.remove_reader(reader)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)
