"""An event loop that never sleeps: when no callback is ready, time advances to the next timer.

One thread, no selector. A *node* stands for a process: all that runs in its context belongs to it: its tasks, its
timers, and what it would run in threads. So a node can be paused (none of its calls run; later all that are due run at
once, as after SIGSTOP and SIGCONT) or killed (none of its calls ever run again).

Anything that would wait in real time is an error here: see ``simulated``.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, ParamSpec, TypeVar

from connectgroup import plugins
from connectgroup.coordinator import compute as server_side
from connectgroup.errors import ConfigError
from connectgroup.worker import call_pool, callbacks, compute, heartbeat, runner

P = ParamSpec("P")
T = TypeVar("T")

NODE: contextvars.ContextVar[Node | None] = contextvars.ContextVar("node", default=None)
NOWHERE = contextvars.Context()
"""The context of no node: calls in it are never paused (the network, the fault schedule)."""


MAX_SPINS = 100_000
"""Rounds of calls at one moment; more of them mean a busy loop."""


class Deadlock(AssertionError):
    """No call is pending that could make progress."""


class Node:
    """A process."""

    def __init__(self, name: str, seed: str, *, drift: float = 0.0) -> None:
        self.name = name
        self.random = Random(f"{seed} {name}")
        # Seconds of the node's clock per simulated second.
        self.rate = 1.0 + Random(f"{seed} {name} clock").uniform(-drift, drift)
        self.context = copy_context()
        self.context.run(NODE.set, self)
        self.stopped = False
        self.dead = False
        self.frozen: list[Call] = []

    def pace(self, name: str) -> tuple[float, float] | None:
        """How long a call off the loop takes."""
        return 0.0, 0.0

    def pause(self) -> None:
        """SIGSTOP."""
        self.stopped = True

    def resume(self, loop: SimulatedLoop) -> None:
        """SIGCONT; no effect on a dead process."""
        if self.stopped and not self.dead:
            self.thaw(loop)

    def kill(self) -> None:
        """SIGKILL."""
        self.stopped = self.dead = True

    def enter(self, callback: Callable[..., object], *args: Any) -> Call | None:
        """Run the callback in the process: now or, where a call is returned, once the process is resumed."""
        if not self.stopped:
            self.context.run(callback, *args)
            return None
        call = Call((0.0, 0, callback, args, self.context))
        self.frozen.append(call)
        return call

    def thaw(self, loop: SimulatedLoop) -> None:
        """Release all calls parked while the node was paused; at the end of a run also those of dead nodes."""
        self.stopped = False
        loop.put(self.frozen)
        self.frozen = []


class Call(list[Any]):
    """A call to come, asyncio's handle: ``[when, number, callback, args, context]``.

    A list, because there are a hundred of them per simulated second: creating one and inserting it among the timers
    takes no Python code. Of two timers of one moment, the one that was set first has the lower number.
    """

    __slots__ = ()
    __hash__ = object.__hash__  # type: ignore[assignment]
    __eq__ = object.__eq__

    def cancel(self) -> None:
        """See ``asyncio.Handle.cancel``."""
        self[2] = self[3] = None

    def cancelled(self) -> bool:
        """Whether ``cancel`` was called."""
        return self[2] is None

    def when(self) -> float:
        """See ``asyncio.TimerHandle.when``."""
        return float(self[0])


def _rate() -> float:
    node = NODE.get()
    return 1.0 if node is None else node.rate


class SimulatedLoop(asyncio.BaseEventLoop):
    """See the module."""

    get_debug = staticmethod(bool)  # False, as cheap as possible: every future reads it

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.drifts = False
        self._stopping: bool
        self._ready: Any
        self._timers: list[Call] = []
        self._numbers = count()
        self._sweep_at = 500
        # Not a method: a future or a task is created for everything that is awaited.
        self.create_future = partial(asyncio.Future, loop=self)  # type: ignore[method-assign]

    def create_task(self, coro: Any, *, name: Any = None, context: contextvars.Context | None = None) -> Any:
        """See ``asyncio.loop.create_task``."""
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def time(self) -> float:
        """The clock of the current node."""
        return self.now * _rate() if self.drifts else self.now

    def put(self, calls: list[Call]) -> None:
        """Run these calls next."""
        self._ready.extend(calls)

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> Any:
        call = Call((0.0, 0, callback, args, copy_context() if context is None else context))
        self._ready.append(call)
        return call

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> Any:
        if self.drifts:
            return self.call_at(self.time() + delay, callback, *args, context=context)
        context = copy_context() if context is None else context
        call = Call((self.now + delay, next(self._numbers), callback, args, context))
        heappush(self._timers, call)
        return call

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> Any:
        if self.drifts:
            when = self._when(when, _rate())
        context = copy_context() if context is None else context
        call = Call((when, next(self._numbers), callback, args, context))
        heappush(self._timers, call)
        return call

    @staticmethod
    def _when(there: float, rate: float) -> float:
        """The simulated time at which a node's clock shows ``there``, rounded up."""
        when = there / rate
        while when * rate < there:
            when = math.nextafter(when, math.inf)
        return when

    def _run_once(self) -> None:
        """Run all calls, moment by moment, until the loop is stopped."""
        with _known_as_running(self):
            self._run_all()

    def _run_all(self) -> None:
        timers, ready = self._timers, self._ready
        spins = 0
        while not self._stopping:
            if not ready:
                while timers and timers[0][2] is None:
                    heappop(timers)
                if not timers:
                    raise Deadlock("no call is pending that could make progress")
                if timers[0][0] > self.now:
                    self.now, spins = timers[0][0], 0
            spins += 1
            if spins > MAX_SPINS:
                raise Deadlock("busy loop: time does not advance")
            while timers and timers[0][0] <= self.now:
                ready.append(heappop(timers))
            for _ in range(len(ready)):
                call = ready.popleft()
                _, _, callback, args, context = call
                if callback is None:
                    continue
                node = context.get(NODE)
                if node is not None and node.stopped:
                    node.frozen.append(call)
                    continue
                try:
                    context.run(callback, *args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    self.call_exception_handler({"message": f"in {callback!r}", "exception": error})
            if len(timers) > self._sweep_at:
                timers[:] = [call for call in timers if call[2] is not None]
                heapify(timers)
                self._sweep_at = max(500, 2 * len(timers))

    def _process_events(self, event_list: Any) -> None:
        raise AssertionError("the simulated loop has no selector")

    def _write_to_self(self) -> None:
        raise AssertionError("call from another thread")


@contextmanager
def _known_as_running(loop: SimulatedLoop) -> Iterator[None]:
    """Within this context, no call in this thread that asks for the running loop asks the system, too.

    Python 3.11 compares the process id in each such call: 64,000 times in a seed.
    """
    thread, current = threading.get_ident(), threading.get_ident
    get, get_or_none = asyncio.get_running_loop, asyncio._get_running_loop

    def running_loop() -> asyncio.AbstractEventLoop:
        return loop if current() == thread else get()

    def running_loop_or_none() -> asyncio.AbstractEventLoop | None:
        return loop if current() == thread else get_or_none()

    modules: list[Any] = [asyncio, asyncio.events]
    for module in modules:
        module.get_running_loop, module._get_running_loop = running_loop, running_loop_or_none
    try:
        yield
    finally:
        for module in modules:
            module.get_running_loop, module._get_running_loop = get, get_or_none


async def off_loop(name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """In place of a thread: run the call at once or late, and return its result at once, late or never."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()
    node = NODE.get()
    pace = (0.0, 0.0) if node is None else node.pace(name)

    def deliver(value: Any, error: BaseException | None) -> None:
        if result.done():
            if asyncio.iscoroutine(value):
                value.close()
            return
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(value)

    def run() -> None:
        value: Any = None
        error: BaseException | None = None
        try:
            value = function(*args, **kwargs)
        except AssertionError:
            raise
        except BaseException as raised:
            error = raised
            if isinstance(raised, StopIteration) or not isinstance(raised, Exception):
                error = RuntimeError(f"{type(raised).__name__}: {raised}")
        loop.call_later(after_s, deliver, value, error)

    if pace is not None:
        before_s, after_s = pace
        loop.call_later(before_s, run)
    return await result


async def _pooled(self: object, call: call_pool.Call[T]) -> T:
    """The same in place of a pool's threads."""

    def function() -> T:
        if call.withdrawn:
            raise call_pool.Withdrawn(call.name)
        return call.function()

    return await off_loop(call.name, function)


SCRATCH = Path("no-disk")
"""A scratch directory that is never created: ``simulated`` replaces the functions that would."""


def _never_here(original: Callable[..., Any]) -> Callable[..., Any]:
    """``original``, forbidden in the thread of the simulation and unchanged in all others."""
    simulating = threading.get_ident()

    def guarded(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == simulating:
            raise AssertionError("a call waits in real time, or starts a thread")
        return original(*args, **kwargs)

    return guarded


@contextmanager
def simulated() -> Iterator[None]:
    """Within this context, product code runs off the loop by ``off_loop`` above, and real waiting raises."""
    modules: list[Any] = [callbacks, compute, heartbeat, call_pool, runner, server_side]
    with suppress(ConfigError):  # the extra 'kafka' is not installed: there are no consumers
        from connectgroup.consumer import classic, epochs, ownership

        modules += [ownership, epochs, classic]
    kept = [module.off_loop for module in modules], time.sleep, threading.Thread.start
    clock, new_uuid = time.monotonic, uuid.uuid4

    def monotonic() -> float:
        loop = asyncio._get_running_loop()
        return loop.time() if isinstance(loop, SimulatedLoop) else clock()

    setattr(time, "monotonic", monotonic)  # noqa: B010
    setattr(uuid, "uuid4", lambda: uuid.UUID(int=random.getrandbits(128), version=4))  # noqa: B010
    directories = [(name, getattr(runner, name)) for name in ("new_directory", "remove_directory")]
    pooled = call_pool.CallPool.run
    disabled, known_for_s = logging.root.manager.disable, plugins.KNOWN_FOR_S
    setattr(plugins, "KNOWN_FOR_S", math.inf)  # noqa: B010  # the plug-ins are read once, not in each simulated second
    setattr(call_pool.CallPool, "run", _pooled)  # noqa: B010
    for module in modules:
        module.off_loop = off_loop
    setattr(runner, "new_directory", lambda parent, name: parent)  # noqa: B010
    setattr(runner, "remove_directory", lambda path: None)  # noqa: B010
    setattr(time, "sleep", _never_here(time.sleep))  # noqa: B010
    setattr(threading.Thread, "start", _never_here(threading.Thread.start))  # noqa: B010
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        for module, original in zip(modules, kept[0], strict=True):
            module.off_loop = original
        setattr(call_pool.CallPool, "run", pooled)  # noqa: B010
        for name, function in directories:
            setattr(runner, name, function)
        setattr(time, "monotonic", clock)  # noqa: B010
        setattr(uuid, "uuid4", new_uuid)  # noqa: B010
        setattr(time, "sleep", kept[1])  # noqa: B010
        setattr(threading.Thread, "start", kept[2])  # noqa: B010
        setattr(plugins, "KNOWN_FOR_S", known_for_s)  # noqa: B010
        logging.disable(disabled)
