"""A signal reaches the worker under any load of the event loop."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading

from connectgroup.worker.serving import handle_signals


def test_sigterm_is_not_lost_while_threads_flood_the_loop() -> None:
    """The socket that wakes the loop buffers a few hundred bytes; without a reserve a signal's byte would not fit."""
    called: list[str] = []

    async def run() -> None:
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()

        def flood() -> None:
            for _ in range(100_000):
                loop.call_soon_threadsafe(int)

        def stop() -> None:
            called.append("stop")
            stopped.set()

        with handle_signals(stop, lambda: called.append("drain"), lambda: called.append("restart")):
            thread = threading.Thread(target=flood)
            thread.start()
            thread.join()
            os.kill(os.getpid(), signal.SIGUSR1)
            os.kill(os.getpid(), signal.SIGUSR2)
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(stopped.wait(), 30)

    asyncio.run(run())
    assert sorted(called) == ["drain", "restart", "stop"]


def test_signals_end_the_wait_of_an_idle_loop_and_handlers_are_restored() -> None:
    before = signal.getsignal(signal.SIGTERM)

    async def run() -> None:
        stopped = asyncio.Event()
        with handle_signals(stopped.set, lambda: None, lambda: None):
            threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGINT]).start()
            await asyncio.wait_for(stopped.wait(), 30)

    asyncio.run(run())
    assert signal.getsignal(signal.SIGTERM) is before


BLOCKED = """
import asyncio, os, signal
from connectgroup.worker.serving import handle_signals

async def main():
    with handle_signals(lambda: print("stop", flush=True), int, int):
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.1)
        os.kill(os.getpid(), signal.SIGTERM)
        while True:
            pass

asyncio.run(main())
"""


def test_second_sigterm_ends_the_process_although_the_loop_is_blocked() -> None:
    ran = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True, timeout=30, check=False)
    assert ran.returncode == 1
    assert ran.stdout == "stop\n"
    assert ran.stderr == "second SIGTERM or SIGINT: process ends without stopping its tasks\n"
