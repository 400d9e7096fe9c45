"""An event loop that never sleeps: when nobody has anything to do, time goes on to the next timer.

One thread, no selector. A *node* stands for a process: everything that runs in its context belongs to it, its tasks,
its timers, and what it would run in threads. So a node can be paused (nothing of it runs, then everything that has
become due runs at once, as after SIGSTOP and SIGCONT) or killed (nothing of it ever runs again).

Anything that would wait in real time is an error here: see ``simulated``.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import logging
import threading
import time
from asyncio import events
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, ParamSpec, TypeVar

from connectgroup.worker import callbacks, loop as worker_loop, runner

P = ParamSpec("P")
T = TypeVar("T")

Pace = Callable[[str], tuple[float, float] | None]
"""Seconds before a call begins to have its effect and from there to its return; ``None``: it never begins."""

NODE: contextvars.ContextVar[Node | None] = contextvars.ContextVar("node", default=None)
NOWHERE = contextvars.Context()
"""Belongs to no node: what runs here is never paused (the network, the weather)."""


class Deadlock(AssertionError):
    """Nobody waits for anything that could still happen."""


class Node:
    """A process."""

    def __init__(self, name: str, seed: str) -> None:
        self.name = name
        self.random = Random(f"{seed} {name}")
        self.context = contextvars.copy_context()
        self.context.run(NODE.set, self)
        self.stopped = False
        self.dead = False
        self.frozen: list[events.Handle] = []

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

    def thaw(self, loop: SimulatedLoop) -> None:
        """Let all that was held back run; for the end of a run also with the dead, so that nothing is left behind."""
        self.stopped = False
        loop.put(self.frozen)
        self.frozen = []


class SimulatedLoop(asyncio.BaseEventLoop):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.turns = 0
        self._clock_resolution = 1e-9
        self._ready: Any
        self._timer_cancelled_count: int
        self._timers: list[tuple[float, int, Any]] = []
        self._timer_number = 0

    def time(self) -> float:
        return self.now

    def put(self, handles: list[events.Handle]) -> None:
        """Run these next."""
        self._ready.extend(handles)

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> events.Handle:
        handle = events.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> events.TimerHandle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> events.TimerHandle:
        timer: Any = events.TimerHandle(when, callback, args, self, context)
        timer._scheduled = True
        self._timer_number += 1
        # Two timers of one moment fire in the order in which they were set.
        heapq.heappush(self._timers, (when, self._timer_number, timer))
        return timer  # type: ignore[no-any-return]

    def _run_once(self) -> None:
        timers, ready = self._timers, self._ready
        if self._timer_cancelled_count > 200 and 2 * self._timer_cancelled_count > len(timers):
            timers[:] = [entry for entry in timers if not entry[2]._cancelled]
            heapq.heapify(timers)
            self._timer_cancelled_count = 0
        while timers and timers[0][2]._cancelled:
            self._timer_cancelled_count -= 1
            heapq.heappop(timers)
        if not ready:
            if not timers:
                raise Deadlock("nobody waits for anything that could still happen")
            self.now = max(self.now, timers[0][0])
        now = self.now
        while timers and timers[0][0] <= now:
            timer = heapq.heappop(timers)[2]
            timer._scheduled = False
            ready.append(timer)
        self.turns += 1
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            node = handle._context.get(NODE)
            if node is not None and node.stopped:
                node.frozen.append(handle)
            else:
                handle._run()

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

    def run(after_s: float) -> None:
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
        loop.call_later(pace[0], run, pace[1])
    return await result


class _NoDisk:
    """A scratch directory that is not there."""

    def __truediv__(self, name: str) -> _NoDisk:
        return self

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Nothing."""

    @staticmethod
    def rmtree(path: object, *, ignore_errors: bool = False) -> None:
        """Nothing; stands in for ``shutil`` in the runner."""


SCRATCH: Any = _NoDisk()


def _real_time(*args: object, **kwargs: object) -> None:
    raise AssertionError("something waits in real time, or starts a thread")


@contextmanager
def simulated() -> Iterator[None]:
    """Within this, product code runs off the loop by ``off_loop`` above, and real waiting raises."""
    modules: list[Any] = [callbacks, worker_loop, runner]
    kept = [module.off_loop for module in modules], getattr(runner, "shutil"), time.sleep, threading.Thread.start  # noqa: B009
    disabled = logging.root.manager.disable
    for module in modules:
        module.off_loop = off_loop
    setattr(runner, "shutil", _NoDisk())  # noqa: B010
    setattr(time, "sleep", _real_time)  # noqa: B010
    setattr(threading.Thread, "start", _real_time)  # noqa: B010
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        for module, original in zip(modules, kept[0], strict=True):
            module.off_loop = original
        setattr(runner, "shutil", kept[1])  # noqa: B010
        setattr(time, "sleep", kept[2])  # noqa: B010
        setattr(threading.Thread, "start", kept[3])  # noqa: B010
        logging.disable(disabled)
