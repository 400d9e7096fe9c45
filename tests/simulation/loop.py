"""An event loop that never sleeps: when nobody has anything to do, time goes on to the next timer.

One thread, no selector. A *node* stands for a process: everything that runs in its context belongs to it, its tasks,
its timers, and what it would run in threads. So a node can be paused (nothing of it runs, then everything that has
become due runs at once, as after SIGSTOP and SIGCONT) or killed (nothing of it ever runs again).

Anything that would wait in real time is an error here: see ``simulated``.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, ParamSpec, TypeVar

from connectgroup.coordinator import compute as server_side
from connectgroup.worker import callbacks, compute, heartbeat, offload, runner

P = ParamSpec("P")
T = TypeVar("T")

Pace = Callable[[str], tuple[float, float] | None]
"""Seconds before a call begins to have its effect and from there to its return; ``None``: it never begins."""

NODE: contextvars.ContextVar[Node | None] = contextvars.ContextVar("node", default=None)
NOWHERE = contextvars.Context()
"""Belongs to no node: what runs here is never paused (the network, the weather)."""


MOST_SPINS = 100_000
"""Rounds of calls at one moment: whoever makes more of them never lets time go on."""


class Deadlock(AssertionError):
    """Nobody waits for anything that could still happen."""


class Node:
    """A process."""

    def __init__(self, name: str, seed: str, *, drift: float = 0.0) -> None:
        self.name = name
        self.random = Random(f"{seed} {name}")
        # Seconds of its clock in one of the world's.
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
        """SIGCONT; nothing happens to a process that is dead."""
        if self.stopped and not self.dead:
            self.thaw(loop)

    def kill(self) -> None:
        """SIGKILL."""
        self.stopped = self.dead = True

    def enter(self, callback: Callable[..., object], *args: Any) -> Call | None:
        """Call this in the process: now, or, where a call is returned, once it runs again."""
        if not self.stopped:
            self.context.run(callback, *args)
            return None
        call = Call((0.0, 0, callback, args, self.context))
        self.frozen.append(call)
        return call

    def thaw(self, loop: SimulatedLoop) -> None:
        """Let all that was held back run; for the end of a run also with the dead, so that nothing is left behind."""
        self.stopped = False
        loop.put(self.frozen)
        self.frozen = []


class Call(list[Any]):
    """A call to come, asyncio's handle: ``[when, number, callback, args, context]``.

    A list, because there are a hundred of them in a simulated second: it is made, and finds its place among the
    timers, without a line of Python. Of two timers of one moment the one that was set first has the lower number.
    """

    __slots__ = ()
    __hash__ = object.__hash__  # type: ignore[assignment]
    __eq__ = object.__eq__

    def cancel(self) -> None:
        """Not after all."""
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

    get_debug = staticmethod(bool)  # False, as soon as can be: every future asks

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.drifts = False
        self._stopping: bool
        self._ready: Any
        self._timers: list[Call] = []
        self._numbers = count()
        self._sweep_at = 500
        # Without a method in between: a future, or a task, is made for each thing that somebody waits for.
        self.create_future = partial(asyncio.Future, loop=self)  # type: ignore[method-assign]

    def create_task(self, coro: Any, *, name: Any = None, context: contextvars.Context | None = None) -> Any:
        """See ``asyncio.loop.create_task``."""
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def time(self) -> float:
        """What the clock of the process at work says."""
        return self.now * _rate() if self.drifts else self.now

    def put(self, calls: list[Call]) -> None:
        """Run these next."""
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
        """The world's time at which a process's clock says so, and not the last bit before."""
        when = there / rate
        while when * rate < there:
            when = math.nextafter(when, math.inf)
        return when

    def _run_once(self) -> None:
        """All there is to do, moment by moment, until somebody stops the loop."""
        timers, ready = self._timers, self._ready
        spins = 0
        while not self._stopping:
            if not ready:
                while timers and timers[0][2] is None:
                    heappop(timers)
                if not timers:
                    raise Deadlock("nobody waits for anything that could still happen")
                if timers[0][0] > self.now:
                    self.now, spins = timers[0][0], 0
            spins += 1
            if spins > MOST_SPINS:
                raise Deadlock("time stands still: somebody spins")
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
        raise AssertionError("there is nothing to select from")

    def _write_to_self(self) -> None:
        raise AssertionError("another thread speaks to the simulation")


async def off_loop(name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Instead of a thread: the call itself, at once or late, and its result, at once, late or never."""
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


async def _pooled(self: object, call: offload.Call[T]) -> T:
    """The same instead of a pool's threads."""

    def function() -> T:
        if call.withdrawn:
            raise offload.Withdrawn(call.name)
        return call.function()

    return await off_loop(call.name, function)


SCRATCH = Path("no-disk")
"""A scratch directory that is never created: ``simulated`` replaces the functions that would."""


def _never_here(original: Callable[..., Any]) -> Callable[..., Any]:
    """``original``, forbidden to the thread that simulates; whatever else runs in this process is not its concern."""
    simulating = threading.get_ident()

    def guarded(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == simulating:
            raise AssertionError("something waits in real time, or starts a thread")
        return original(*args, **kwargs)

    return guarded


@contextmanager
def simulated() -> Iterator[None]:
    """Within this, product code runs off the loop by ``off_loop`` above, and real waiting raises."""
    modules: list[Any] = [callbacks, compute, heartbeat, offload, runner, server_side]
    kept = [module.off_loop for module in modules], time.sleep, threading.Thread.start
    directories = [(name, getattr(runner, name)) for name in ("new_directory", "remove_directory")]
    pooled = offload.CallPool.run
    disabled = logging.root.manager.disable
    setattr(offload.CallPool, "run", _pooled)  # noqa: B010
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
        setattr(offload.CallPool, "run", pooled)  # noqa: B010
        for name, function in directories:
            setattr(runner, name, function)
        setattr(time, "sleep", kept[1])  # noqa: B010
        setattr(threading.Thread, "start", kept[2])  # noqa: B010
        logging.disable(disabled)
