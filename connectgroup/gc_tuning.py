"""Memory of workers and coordinators: short garbage collections, and large blocks that are returned to the system.

A full collection of CPython's garbage collector visits every object while all threads wait. 100,000 running tasks
are about ten million objects: each full collection would block the event loop of their worker for more than a second,
and that of the coordinator for 200 ms.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

MAX_PAUSE_S = 0.01

FULL_AFTER = 3
"""Collections of the middle generation before a full one. Each is short: it skips the objects that were frozen."""


@contextmanager
def short_collections(max_pause_s: float = MAX_PAUSE_S) -> Iterator[None]:
    """Within this context, freeze the survivors of a full collection that takes longer than ``max_pause_s``.

    Later collections skip frozen objects. A frozen object is still freed when its last reference is dropped; only
    reference cycles among frozen objects remain, until ``collect_all_again``. Intended for connectgroup's own
    processes: an embedding program makes its own choice.
    """
    began = 0.0

    def on_collection(phase: str, info: dict[str, int]) -> None:
        nonlocal began
        if info["generation"] < 2:
            return
        if phase == "start":
            began = time.perf_counter()
        elif time.perf_counter() - began > max_pause_s:
            # This retains no garbage: the collection has just removed it.
            gc.freeze()

    thresholds = gc.get_threshold()
    gc.set_threshold(*thresholds[:2], FULL_AFTER)
    gc.callbacks.append(on_collection)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(on_collection)
        gc.unfreeze()


def collect_all_again() -> None:
    """Unfreeze all objects, so that the next full collection visits them; call it when few objects are left."""
    gc.unfreeze()


@contextmanager
def no_collections() -> Iterator[None]:
    """Within this context, the process collects no garbage, for code that makes many objects and no cycles.

    While 100,000 values of JSON are parsed, the collector would visit them again and again: four times the work of
    parsing them. They are freed when their last reference is dropped. If several threads use this, collections may
    begin again when the first of them has ended.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


_M_TRIM_THRESHOLD: Final = -1  # of malloc.h
_M_MMAP_THRESHOLD: Final = -3
LARGE_BLOCK_BYTES: Final = 256 * 1024
TRIM_BYTES: Final = 128 * 1024


def give_back_large_blocks() -> None:
    """Let the C library give large blocks back to the system as soon as they are freed, for the rest of the process.

    glibc takes them from its heap once a larger block was freed (up to 32 MiB); one small object behind them then keeps
    them there. A coordinator that had received requests of 8 MiB stayed 25 MB larger. No effect with another C library.
    """
    with suppress(OSError, AttributeError):
        tune = ctypes.CDLL(None).mallopt
        tune(_M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)
        tune(_M_TRIM_THRESHOLD, TRIM_BYTES)
