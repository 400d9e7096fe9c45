"""An asyncio event loop in virtual time: when no callback is ready, the clock jumps to the next timer.

Unmodified asyncio code runs on it, and 300 s pass in milliseconds. Two things make a run repeatable and realistic:

- *Threads.* The worker calls plug-in code in threads. The loop starts these threads itself (``start_thread``) and waits
  until the thread has ended or blocks in virtual time (``Gate.wait``, ``VirtualLoop.sleep_in_thread``, and
  ``time.sleep`` within ``virtual_sleep``). So virtual time never passes a call that is still computing, and the order
  of events does not depend on the operating system. A thread that takes longer than ``REAL_LIMIT_S`` of real time
  counts as blocked; virtual time then continues without it, so that a test of a plug-in that hangs still ends. A
  thread that calls the loop (``asyncio.run_coroutine_threadsafe``) probably waits for it: the loop runs then, and
  virtual time passes when the thread has ended or waits (for a future, an event, a queue).
- *Nodes.* A ``Node`` stands for a process. Everything that starts in its context belongs to it. A node can be paused
  (SIGSTOP: nothing of it runs, and its clock continues) or killed (SIGKILL: nothing of it runs any more).
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

REAL_LIMIT_S = 5.0
"""Seconds of real time that the loop waits for a thread, and for an event when nothing is left to happen."""

CALLER_LIMIT_S = 0.02
"""Seconds of real time between two looks at what a thread does that has called the loop."""

MAX_TURNS = 100_000
"""Turns of the loop at one moment of virtual time: code that needs more of them spins."""

Context = contextvars.Context
NODE: contextvars.ContextVar[Node | None] = contextvars.ContextVar("connectgroup_node", default=None)

_changed = threading.Condition()
_blocked: set[threading.Thread] = set()
_ended: set[threading.Thread] = set()
_callers: set[threading.Thread] = set()
"""Threads that have called the loop, and may wait for it."""


class Stuck(RuntimeError):
    """Virtual time cannot continue: no timer is armed, or code runs for ever without waiting."""


class Node:
    """A process of the simulation; run code in its ``context`` to make it part of the process.

    Attributes:
        paused: SIGSTOP: callbacks are kept until ``resume``.
        dead: SIGKILL: no callback runs any more.
        killed: was dead at some time; ``dead`` ends when the test clears up, ``killed`` does not.
        tasks: the asyncio tasks of the process.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.context = contextvars.copy_context()
        self.context.run(NODE.set, self)
        self.paused = self.dead = self.killed = False
        self.tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self._held: list[tuple[Callable[..., object], tuple[Any, ...], Context]] = []

    def enter(self, callback: Callable[..., object], args: tuple[Any, ...], context: Context) -> None:
        """Call the callback, or keep it until ``resume`` while the process is paused or dead."""
        if self.paused or self.dead:
            self._held.append((callback, args, context))
        else:
            callback(*args)

    def kill(self) -> None:
        """End the process: no callback of it runs any more."""
        self.dead = self.killed = True

    def resume(self, loop: asyncio.AbstractEventLoop) -> None:
        """Continue a paused process: all that has become due runs at once."""
        self.paused = self.dead = False
        held, self._held = self._held, []
        for callback, args, context in held:
            loop.call_soon(callback, *args, context=context)


class Gate:
    """A point where threads block in virtual time until the gate is opened."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._waiting: set[threading.Thread] = set()
        self.entered = 0

    def wait(self) -> None:
        """Block the calling thread until ``open``; not for the thread of the event loop."""
        thread = threading.current_thread()
        with _changed:
            self.entered += 1
            if self._open.is_set():
                return
            self._waiting.add(thread)
            _blocked.add(thread)
            _changed.notify_all()
        self._open.wait()

    def open(self) -> None:
        """Release all threads, and wait until each of them has ended or blocks again."""
        with _changed:
            released, self._waiting = self._waiting, set()
            _blocked.difference_update(released)
            self._open.set()
        for thread in released:
            _wait_for(thread)


def _wait_for(thread: threading.Thread) -> None:
    """Wait in real time until a thread that the loop has started ends or blocks at a gate."""
    with _changed:
        _changed.wait_for(lambda: thread in _callers or not _runs(thread), timeout=REAL_LIMIT_S)


def _runs(thread: threading.Thread) -> bool:
    return thread not in _blocked and thread not in _ended and thread.is_alive()


def _waits(thread: threading.Thread) -> bool:
    """Whether a thread waits at a condition, as futures, events and queues do, and has not been notified."""
    frame = None if thread.ident is None else sys._current_frames().get(thread.ident)
    if frame is None or frame.f_code is not threading.Condition.wait.__code__:
        return False
    waiter = frame.f_locals.get("waiter")
    return waiter is not None and waiter.locked()


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module. ``time()`` starts at 0.

    Attributes:
        threads: the threads that this loop has started and that still exist.
    """

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._turns = 0
        self._in_executor: set[asyncio.Future[Any]] = set()
        self.threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        self._selector: Any
        self._poll = self._selector.select
        self._selector.select = self._select

    def time(self) -> float:
        return self._now

    def start_thread(self, name: str, target: Callable[[], None]) -> None:
        """Start a thread for plug-in code and wait until it has ended or blocks in virtual time.

        Raises:
            RuntimeError: the operating system cannot start a thread.
        """

        def run() -> None:
            try:
                target()
            finally:
                with _changed:
                    _ended.add(thread)
                    _callers.discard(thread)
                    _changed.notify_all()

        thread = threading.Thread(target=run, name=name, daemon=True)
        self.threads.add(thread)
        thread.start()
        _wait_for(thread)
        with _changed:
            _ended.difference_update([each for each in _ended if not each.is_alive()])

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """As in asyncio; virtual time waits for the result (a SQLite log writes in an executor)."""
        result = super().run_in_executor(executor, func, *args)
        self._in_executor.add(result)
        result.add_done_callback(self._in_executor.discard)
        return result

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = super().call_soon_threadsafe(callback, *args, context=context)
        thread = threading.current_thread()
        if thread in self.threads:
            with _changed:
                _callers.add(thread)
                _changed.notify_all()
        return handle

    def _await_callers(self) -> None:
        """Wait until each thread that has called the loop has ended, waits, or calls it again; or for the limit."""
        with _changed:
            own = set(self.threads)
            callers = _callers & own
            _callers.difference_update(callers)
            give_up, pause_s = time.monotonic() + REAL_LIMIT_S, CALLER_LIMIT_S / 32
            while any(_runs(each) and not _waits(each) for each in callers) and own.isdisjoint(_callers):
                if time.monotonic() > give_up:
                    callers = {each for each in callers if _waits(each)}
                    break
                _changed.wait(pause_s)
                pause_s = min(2 * pause_s, CALLER_LIMIT_S)
            _callers.update(filter(_runs, callers))

    def sleep_in_thread(self, seconds: float) -> None:
        """Block the calling thread for this long, in virtual time."""
        gate = Gate()
        super().call_soon_threadsafe(self.call_later, seconds, gate.open)  # this thread waits for the gate
        gate.wait()

    def create_task(self, coro: Any, *, name: Any = None, context: Context | None = None) -> asyncio.Task[Any]:
        task = super().create_task(coro, name=name, context=context)
        node = NODE.get() if context is None else context.get(NODE)
        if node is not None:
            node.tasks.add(task)
        return task

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        context = contextvars.copy_context() if context is None else context
        node = context.get(NODE)
        if node is None:
            return super().call_soon(callback, *args, context=context)
        return super().call_soon(node.enter, callback, args, context, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        context = contextvars.copy_context() if context is None else context
        node = context.get(NODE)
        if node is None:
            return super().call_at(when, callback, *args, context=context)
        return super().call_at(when, node.enter, callback, args, context, context=context)

    def _select(self, timeout: float | None = None) -> list[Any]:
        """The selector's ``select``: advance virtual time by ``timeout`` instead of waiting for it."""
        if timeout == 0:
            self._turns += 1
            if self._turns > MAX_TURNS:
                self._turns = 0
                raise Stuck(f"virtual time stands still at {self._now:.3f} s: some code runs without ever waiting")
            return list(self._poll(0))
        self._turns = 0
        self._await_callers()
        waits = timeout is None or bool(self._in_executor)
        ready = list(self._poll(REAL_LIMIT_S if waits else 0))
        if not ready and timeout is None:
            raise Stuck(f"nothing is left to happen at {self._now:.3f} s: the test waits for an event that never comes")
        if not ready and timeout is not None:
            # Rounded up to nanoseconds: a sum of delays is then the time that the test computes.
            then = self._now + timeout
            self._now = max(then, round(then, 9))
        return ready


@contextmanager
def virtual_sleep(loop: VirtualLoop) -> Iterator[None]:
    """Within this block, ``time.sleep`` takes virtual time in the threads that the loop has started."""
    real = time.sleep

    def sleep(seconds: Any) -> None:
        thread = threading.current_thread()
        if thread not in loop.threads or loop.is_closed():
            real(seconds)
        else:
            loop.sleep_in_thread(seconds)

    time.sleep = sleep
    try:
        yield
    finally:
        time.sleep = real
