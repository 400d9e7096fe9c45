"""Short garbage collections in a worker process.

A full collection of CPython's garbage collector looks at every object while all threads wait. 100,000 running tasks
are some ten million objects: the event loop would stand still for more than a second, again and again.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

MAX_PAUSE_S = 0.01

FULL_AFTER = 3
"""Collections of the middle generation before a full one. Each is short, since it leaves out what earlier ones left."""


@contextmanager
def short_collections(max_pause_s: float = MAX_PAUSE_S) -> Iterator[None]:
    """Within this, what survives a full collection longer than ``max_pause_s`` is left out of later ones.

    Such objects are still freed when their last reference goes; only reference cycles among them stay, until
    ``collect_all_again``. For a process of ours: an embedding program decides for itself.
    """
    began = 0.0

    def on_collection(phase: str, info: dict[str, int]) -> None:
        nonlocal began
        if info["generation"] < 2:
            return
        if phase == "start":
            began = time.perf_counter()
        elif time.perf_counter() - began > max_pause_s:
            # No garbage is kept by this: the collection has just removed it.
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
    """Let the next full collection look at everything; for when little is left to look at."""
    gc.unfreeze()
