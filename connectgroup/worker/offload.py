"""Run code that may block, hang or never come back, without stopping the event loop or the end of the process."""

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

from .waiting import backoff_s, worth_a_line

P = ParamSpec("P")
T = TypeVar("T")

RETRY_FIRST_S, RETRY_MOST_S = 0.1, 5.0
"""Between two tries to get a thread from the operating system."""

SLICE = 64
"""Units, or results, that one turn of the event loop handles: some 5 ms of work, so that heartbeats go out in time."""

FIRST_THREADS = 8
"""Threads that a pool uses while its calls are short."""

MORE_THREADS = 16
"""Threads that a pool adds per check while its calls block."""

BLOCKED_BELOW = 2
"""Calls block while fewer than this begin between two checks. More threads do not help calls that wait for one disk."""

MAX_THREADS = 500
"""Above this a pool adds one thread at a time, and only while no call begins at all."""

CHECK_S = 0.01
"""Between two checks of a pool that has queued calls."""

logger = logging.getLogger(__name__)


class Withdrawn(Exception):
    """The call was withdrawn before it began."""


def slices(items: Iterable[T]) -> Iterator[list[T]]:
    """In lists of ``SLICE``: one list is what one turn of the event loop handles."""
    left = iter(items)
    while some := list(islice(left, SLICE)):
        yield some


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

    def run() -> None:
        value, error = _outcome(partial(function, *args, **kwargs))
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits any more
            loop.call_soon_threadsafe(deliver, result, value, error)

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
    return await _with_thread(name, lambda: off_loop(name, function, *args, **kwargs))


async def _with_thread(name: str, call: Callable[[], Awaitable[T]]) -> T:
    """Make the call; retry while the system has no thread for it."""
    failures = 0
    while True:
        try:
            return await call()
        except NoThread:
            failures += 1
            if worth_a_line(failures):
                logger.warning("%s: waits for a thread, the system has none to give (attempt %d)", name, failures)
        await asyncio.sleep(backoff_s(failures, RETRY_FIRST_S, RETRY_MOST_S))


class Inbox:
    """Callbacks from any thread, run on the event loop in order, at most ``SLICE`` per turn.

    ``call_soon_threadsafe`` per callback would write a byte per callback to the loop's wakeup socket (full after some
    300) and run everything that has arrived in one turn. An inbox wakes the loop once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: deque[Callable[[], None]] = deque()
        self._scheduled = False

    def put(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        """Run it on the loop; from any thread. Without effect when the loop has closed."""
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
        name: of the thread meanwhile, for stack dumps.
        function: what is called.
        urgent: begin before the calls that are not.
        withdrawn: left out, since ``CallPool.withdraw`` came before it began.
    """

    name: str
    function: Callable[[], T]
    urgent: bool = False
    withdrawn: bool = False
    _begun: bool = False
    _result: asyncio.Future[T] | None = None


class CallPool:
    """Runs many calls off the event loop in few threads; a call that blocks does not keep others waiting.

    ``off_loop`` starts a thread per call. That is right for a few calls, but 100,000 at once block the loop for a
    minute. A pool's threads run queued calls until none is left, then they end. While calls are queued and fewer than
    ``BLOCKED_BELOW`` begin within ``CHECK_S``, the running calls block: the pool adds threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: deque[Call[Any]] = deque()
        self._urgent: deque[Call[Any]] = deque()
        self._threads = 0
        self._max_threads = FIRST_THREADS
        self._begun = 0
        self._submitted = False
        self._check: asyncio.TimerHandle | None = None
        self._inbox = Inbox()

    async def run(self, call: Call[T]) -> T:
        """Make the call in one of the pool's threads and wait for its result.

        Cancelled before the call has begun, the call is left out; later, it runs to its end and its result is dropped.

        Raises:
            Withdrawn: ``withdraw`` came before the call had begun.
            NoThread: the pool has no thread and the system has none to give; the function has not been called.
            Exception: what the function raised; ``SystemExit`` and its like come back as ``RuntimeError``.
        """
        if call.withdrawn:
            raise Withdrawn(call.name)
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()
        call._result = result
        with self._lock:
            (self._urgent if call.urgent else self._calls).append(call)
        if not self._submitted:
            # Once per turn of the loop: calls that are submitted together need no thread each.
            self._submitted = True
            loop.call_soon(self._submit)
        return await result

    def withdraw(self, call: Call[Any]) -> None:
        """Leave the call out unless it has begun; it need not wait for a thread. On the event loop."""
        with self._lock:
            call.withdrawn = not call._begun
        if call.withdrawn and call._result is not None:
            deliver(call._result, None, Withdrawn(call.name))

    async def insist(self, name: str, function: Callable[[], T]) -> T:
        """``run``, urgent and repeated until there is a thread for it; see the function ``insist``."""
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
        """Add threads while the running calls block."""
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
        """Start one more thread if a call waits and the limit allows; each thread starts the next one.

        Returns:
            The system's error, if it has no thread to give.
        """
        with self._lock:
            waiting = self._urgent or self._calls
            if not waiting or self._threads >= self._max_threads:
                return None
            name = waiting[0].name
            self._threads += 1
        try:
            threading.Thread(target=self._work, name=name, daemon=True).start()
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
            # The next thread is started here and not on the event loop: a start waits for the new thread to run.
            self._add_thread()
            thread.name = call.name
            value, error = _outcome(call.function)
            self._deliver(call, value, error)
            del call, value, error

    def _deliver(self, call: Call[Any], value: Any, error: BaseException | None) -> None:
        assert call._result is not None
        self._inbox.put(call._result.get_loop(), partial(deliver, call._result, value, error))


def _outcome(function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """Call it: what it returned, or what it raised."""
    try:
        return function(), None
    except BaseException as raised:
        if isinstance(raised, StopIteration) or not isinstance(raised, Exception):
            # Raised on the loop these would end it, or look like a cancellation of whoever waits.
            return None, RuntimeError(f"{type(raised).__name__}: {raised}")
        return None, raised


def deliver(result: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    """Complete a future, unless its reader has given up; on the event loop."""
    if result.done():
        return
    if error is not None:
        result.set_exception(error)
    else:
        result.set_result(value)
