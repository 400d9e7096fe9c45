"""Names what hangs: a call that has not returned for 10 s, and an event loop that does not run.

A message has the unit, what it waits for, for how long, and the file and the line of the coroutine or of the thread.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, CoroutineType, FrameType
from typing import Any, Final

from ..threads import clock_of
from .call_pool import Call

logger = logging.getLogger(__name__)

SLOW_S: Final = 10.0
"""A call that has not returned for this long is logged; again after twice the time, and so on."""

TICK_S: Final = 1.0
"""Interval at which an event loop proves that it runs."""

BLOCKED_S: Final = 2.0
"""An event loop that is later than this is blocked."""

_PACKAGE: Final = str(Path(__file__).parents[1])
_LIBRARY: Final = sysconfig.get_path("stdlib")


@contextmanager
def named(what: Callable[[], str], where: Callable[[], str | None]) -> Iterator[None]:
    """Log a line when the block has not ended after ``SLOW_S``, and again after twice the time, and so on.

    Args:
        what: names the units and the phase: ``c-0: start``.
        where: the place of the code that hangs; ``None``: it has not begun, so nothing is logged.
    """
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    timer: asyncio.TimerHandle

    def log(after_s: float) -> None:
        nonlocal timer
        timer = loop.call_later(after_s, log, 2 * after_s)
        if (place := where()) is not None:
            logger.warning("%s has not returned for %.0f s%s", what(), loop.time() - began_s, place)

    timer = loop.call_later(SLOW_S, log, SLOW_S)
    try:
        yield
    finally:
        timer.cancel()


def place_of(task: asyncio.Task[Any]) -> str:
    """Where a suspended asyncio task is, or the thread that it waits for: ``, at app.py:12 (connect)``; or empty."""
    return _shown(_frames(task.get_coro()))


def place_of_thread(name: str) -> str | None:
    """Where a thread is, by its name; ``None`` if there is no such thread."""
    frames = _thread_frames(name)
    return _shown(frames) if frames else None


def _frames(awaited: object) -> list[tuple[CodeType, int]]:
    """The frames of a suspended coroutine, from the outermost to the innermost."""
    frames: list[tuple[CodeType, int]] = []
    while isinstance(awaited, CoroutineType):
        frame = awaited.cr_frame
        if frame is None:
            break
        frames.append((frame.f_code, frame.f_lineno))
        if awaited.cr_await is None or not isinstance(awaited.cr_await, CoroutineType):
            return frames + _beyond(frame)
        awaited = awaited.cr_await
    return frames


def _beyond(frame: FrameType) -> list[tuple[CodeType, int]]:
    """What the innermost coroutine waits for: a thread of this package, or other asyncio tasks."""
    function, inside = frame.f_code.co_name, frame.f_locals
    if frame.f_code.co_filename.startswith(_PACKAGE):
        if function == "off_loop":
            return _thread_frames(inside["name"])
        if function == "run" and isinstance(inside.get("call"), Call):
            return _thread_frames(inside["call"].name)
    elif function == "_wait":
        for task in inside.get("fs", ()):
            if isinstance(task, asyncio.Task) and not task.done():
                return _frames(task.get_coro())
    return []


def _thread_frames(name: str) -> list[tuple[CodeType, int]]:
    thread = next((each for each in threading.enumerate() if each.name == name), None)
    return [] if thread is None or thread.ident is None else _frames_of(thread.ident)


def _frames_of(ident: int) -> list[tuple[CodeType, int]]:
    """The frames of a running thread, from the outermost to the innermost."""
    frame, frames = sys._current_frames().get(ident), []
    while frame is not None:
        frames.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return frames[::-1]


def _shown(frames: list[tuple[CodeType, int]]) -> str:
    """The innermost frame of the program or of a plug-in; without one, the innermost one."""
    if not frames:
        return ""
    own = [each for each in frames if not _is_library(each[0].co_filename)]
    code, line = (own or frames)[-1]
    return f", at {code.co_filename}:{line} ({code.co_name})"


def _is_library(path: str) -> bool:
    return path.startswith((_PACKAGE, "<frozen")) or (path.startswith(_LIBRARY) and "-packages" not in path)


class LoopWatch:
    """Notices that the event loop of a worker does not run, from a thread: a call on it blocks.

    Without it, the worker would log that the coordinator does not respond when its lease expires.

    The loop changes ``_ticked_s``, ``_late_s``, ``_late_at_s`` and ``_is_paused``; the thread ``_checked_s`` and
    ``_place``, where the loop was when it was last seen late.
    """

    def __init__(self) -> None:
        """Watch the running event loop until ``close``, if its time is real: if it is asyncio's or uvloop's."""
        self._loop = asyncio.get_running_loop()
        self._clock, self._ident = clock_of(self._loop), threading.get_ident()
        self._ticked_s = self._checked_s = self._clock()  # by the loop; by the thread
        self._place, self._late_s, self._late_at_s, self._is_paused = "", 0.0, self._ticked_s, False
        self._closed = threading.Event()
        self._timer: asyncio.TimerHandle | None = None
        if type(self._loop).__module__.partition(".")[0] in ("asyncio", "uvloop"):
            try:
                threading.Thread(target=self._check, name="watch event loop", daemon=True).start()
            except RuntimeError:  # no thread is available
                return
            self._timer = self._loop.call_later(TICK_S, self._tick)

    def close(self) -> None:
        """End the watch."""
        self._closed.set()
        if self._timer is not None:
            self._timer.cancel()

    def why_late(self, since_s: float) -> str:
        """Why the event loop did not run at a time after ``since_s`` (of its clock); empty if it did, and if the whole
        process did not run: it was stopped, or its machine was."""
        if self._timer is None:
            return ""
        self._measure()
        if self._late_at_s <= since_s or self._late_s < BLOCKED_S or self._is_paused:
            return ""
        return f"the event loop of this worker was blocked for {self._late_s:.1f} s{self._place}"

    def _tick(self) -> None:
        if self._measure() and self._is_paused:
            logger.warning("this process did not run for %.1f s, or a call held Python's lock", self._late_s)
        self._ticked_s = self._clock()
        self._timer = self._loop.call_later(TICK_S, self._tick)

    def _measure(self) -> bool:
        """On the loop: whether it is late. If the thread was late as well, the whole process did not run."""
        now_s = self._clock()
        late_s = now_s - self._ticked_s - TICK_S
        if late_s >= BLOCKED_S:
            self._late_s, self._late_at_s = late_s, now_s
            self._is_paused = not self._place
        return late_s >= BLOCKED_S

    def _check(self) -> None:
        logged_s = BLOCKED_S
        while not self._closed.wait(TICK_S):
            now_s = self._clock()
            paused_s, self._checked_s = now_s - self._checked_s - TICK_S, now_s
            late_s = now_s - self._ticked_s - TICK_S
            if late_s < TICK_S:
                logged_s, self._place = BLOCKED_S, self._place if late_s > 0 else ""
            elif paused_s < BLOCKED_S:
                self._place = _shown(_frames_of(self._ident))
                if late_s >= logged_s:
                    logged_s = 2 * late_s
                    logger.error("the event loop of this worker is blocked for %.1f s%s", late_s, self._place)
