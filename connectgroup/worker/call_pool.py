"""Runs code that may block or never return, without blocking the event loop or the exit of the process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Generic, ParamSpec, TypeVar

from ..backoff import Attempts, BackOff, should_log
from ..threads import NoThread, deliver, off_loop, outcome, start_thread

P = ParamSpec("P")
T = TypeVar("T")

FOR_A_THREAD = BackOff(first_s=0.1, max_s=5.0)
"""Between two attempts to get a thread from the operating system."""

SLICE = 64
"""Units or results handled per turn of the event loop: about 5 ms of work, so that heartbeats are sent in time."""

FIRST_THREADS = 8
"""Threads that a pool uses while its calls are short."""

MORE_THREADS = 16
"""Threads that a pool adds per check while its calls block."""

BLOCKED_BELOW = 2
"""The pool's calls are blocked if fewer than this begin between two checks.

More threads do not help calls that wait for one disk.
"""

MAX_THREADS = 500
"""Above this a pool adds one thread at a time, and only while no call begins at all."""

CHECK_S = 0.01
"""Interval between two checks of a pool that has queued calls."""

logger = logging.getLogger(__name__)


class Withdrawn(Exception):
    """The call was withdrawn before it began."""


def slices(items: Iterable[T]) -> Iterator[list[T]]:
    """Split items into lists of ``SLICE``; one turn of the event loop handles one list."""
    left = iter(items)
    while some := list(islice(left, SLICE)):
        yield some


async def off_loop_with_retry(name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """``off_loop`` for a call that must not be skipped: it is made as soon as a thread is available.

    A stop that never began would look like a stop that failed: it would never be retried, and its unit would continue
    to run unsupervised (reliability S11, F36). Do not use this for calls that may fail and be retried: a delayed start
    could run after the unit has been assigned to another member.
    """
    return await _with_thread(name, lambda: off_loop(name, function, *args, **kwargs))


async def _with_thread(name: str, call: Callable[[], Awaitable[T]]) -> T:
    """Make the call; retry while the operating system has no thread for it."""
    attempts = Attempts(FOR_A_THREAD)
    while True:
        try:
            return await call()
        except NoThread:
            number = attempts.failures + 1
            if should_log(number):
                logger.warning("%s: waits for a thread; the system has none available (attempt %d)", name, number)
        await attempts.pause()


class Inbox:
    """Callbacks from any thread, run on the event loop in order, at most ``SLICE`` per turn.

    One ``call_soon_threadsafe`` per callback would write a byte per callback to the loop's wakeup socket (full after
    about 300) and run all callbacks in one turn. An inbox wakes up the loop once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # for the next two
        self._callbacks: deque[Callable[[], None]] = deque()  # in the order of ``put``
        self._scheduled = False  # the loop has been woken up for them

    def put(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        """Run the callback on the event loop; call from any thread. No effect if the loop has closed."""
        with self._lock:
            self._callbacks.append(callback)
            if self._scheduled:
                return
            self._scheduled = True
        with contextlib.suppress(RuntimeError):  # the loop has closed: there is no reader
            loop.call_soon_threadsafe(self._run, loop)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            for _ in range(min(SLICE, len(self._callbacks))):
                self._callbacks.popleft()()
        finally:
            with self._lock:
                self._scheduled = bool(self._callbacks)
            if self._scheduled:
                loop.call_soon(self._run, loop)


@dataclass(slots=True, eq=False)
class Call(Generic[T]):
    """A call for a ``CallPool``.

    Attributes:
        name: name of the thread during the call, for stack dumps.
        function: the function to call.
        urgent: begin before the calls that are not urgent.
        withdrawn: skipped, because ``CallPool.withdraw`` was called before the call began.
    """

    name: str
    function: Callable[[], T]
    urgent: bool = False
    withdrawn: bool = False
    _begun: bool = False
    _result: asyncio.Future[T] | None = None


class CallPool:
    """Runs many calls off the event loop in few threads; a call that blocks does not block others.

    ``off_loop`` starts a thread per call. That is right for a few calls, but 100,000 at once block the loop for a
    minute. A pool's threads run queued calls until none is left, then they end. If calls are queued and fewer than
    ``BLOCKED_BELOW`` begin within ``CHECK_S``, the running calls are blocked, and the pool adds threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # for the next five
        self._calls: deque[Call[Any]] = deque()  # calls that have not begun
        self._urgent: deque[Call[Any]] = deque()  # those of them that go first
        self._threads = 0  # that run
        self._max_threads = FIRST_THREADS  # ``_grow`` raises it while calls block, and resets it when none is queued
        self._begun = 0  # calls that have begun since the last ``_grow``
        self._submitted = False  # threads are started in this turn of the event loop, for all calls of the turn
        self._check: asyncio.TimerHandle | None = None  # the next ``_grow``, while calls are queued
        self._inbox = Inbox()

    async def run(self, call: Call[T]) -> T:
        """Make the call in one of the pool's threads and wait for its result.

        If the caller is cancelled before the call has begun, the call is skipped; later, the call runs to its end and
        its result is dropped.

        Raises:
            Withdrawn: ``withdraw`` was called before the call had begun.
            NoThread: the pool has no thread and the operating system cannot start one; the function has not been
                called.
            Exception: the exception of the function; ``SystemExit`` and similar are converted to ``RuntimeError``.
        """
        if call.withdrawn:
            raise Withdrawn(call.name)
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()
        call._result = result
        with self._lock:
            (self._urgent if call.urgent else self._calls).append(call)
        if not self._submitted:
            # Once per turn of the loop: calls that are submitted together do not need a thread each.
            self._submitted = True
            loop.call_soon(self._submit)
        return await result

    def withdraw(self, call: Call[Any]) -> None:
        """Skip the call unless it has begun; this does not wait for a thread. Call it on the event loop."""
        with self._lock:
            call.withdrawn = not call._begun
        if call.withdrawn and call._result is not None:
            deliver(call._result, None, Withdrawn(call.name))

    async def off_loop_with_retry(self, name: str, function: Callable[[], T]) -> T:
        """``run`` with ``urgent``, retried until a thread is available; see the function ``off_loop_with_retry``."""
        return await _with_thread(name, lambda: self.run(Call(name, function, urgent=True)))

    def _submit(self) -> None:
        self._submitted = False
        if (error := self._add_thread()) is not None:
            with self._lock:
                refused = [] if self._threads else [*self._urgent, *self._calls]
                if refused:
                    self._urgent.clear()
                    self._calls.clear()
            for call in refused:
                self._deliver(call, None, NoThread(str(error)))
        if self._check is None and (self._urgent or self._calls):
            self._check = asyncio.get_running_loop().call_later(CHECK_S, self._grow)

    def _grow(self) -> None:
        """Add threads while the running calls are blocked."""
        self._check = None
        with self._lock:
            begun, self._begun = self._begun, 0
            if not self._urgent and not self._calls:
                self._max_threads = FIRST_THREADS
                return
            if begun < BLOCKED_BELOW and self._threads >= self._max_threads:
                if self._max_threads < MAX_THREADS:
                    self._max_threads += MORE_THREADS
                elif not begun:
                    self._max_threads += 1
        self._submit()

    def _add_thread(self) -> RuntimeError | None:
        """Start one more thread if a call is queued and the limit allows it; each thread starts the next one.

        Returns:
            The operating system's error, if it cannot start a thread.
        """
        with self._lock:
            waiting = self._urgent or self._calls
            if not waiting or self._threads >= self._max_threads:
                return None
            first = waiting[0]
            self._threads += 1
        assert first._result is not None
        try:
            start_thread(first._result.get_loop(), first.name, self._work)
        except RuntimeError as error:
            with self._lock:
                self._threads -= 1
            return error
        return None

    def _work(self) -> None:
        thread = threading.current_thread()
        while True:
            with self._lock:
                calls = self._urgent or self._calls
                if not calls:
                    self._threads -= 1
                    return
                call = calls.popleft()
                assert call._result is not None
                if call.withdrawn or call._result.done():
                    continue
                call._begun = True
                self._begun += 1
            # Start the next thread here and not on the event loop: ``start`` waits until the new thread runs.
            self._add_thread()
            thread.name = call.name
            value, error = outcome(call.function)
            self._deliver(call, value, error)
            del call, value, error

    def _deliver(self, call: Call[Any], value: Any, error: BaseException | None) -> None:
        assert call._result is not None
        self._inbox.put(call._result.get_loop(), partial(deliver, call._result, value, error))


# --------------------------------------------------------------------------------------------------
# Waiting: for a notification with a timeout, and back-off with jitter after failures.


class TryAgain(Exception):
    """The coordinator did not respond or returned a retriable error; the same request may be retried."""


class WakeUp:
    """An ``asyncio.Event`` for a single waiter, with a timeout.

    A wait with a timeout on an ``Event`` creates and cancels an asyncio task each time; a worker waits like this twice
    per heartbeat.
    """

    def __init__(self) -> None:
        self._notified = False  # until the next wait ends
        self._listener: asyncio.Future[None] | None = None  # the waiter

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
