"""Fault injection points: rare but valid behaviour, triggered more often by the simulator, which sets ``hook``.

Each point is a choice that is correct either way (reject with a retriable error, send a full heartbeat, reload a
group), so a run with fault injection must keep every guarantee. Without a hook a point costs a global look-up and a
comparison. There is no randomness here: the owner of the hook decides at each point.

Source: FoundationDB's BUGGIFY.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

POINTS: Final[Mapping[str, float]] = {
    "the coordinator is loading": 0.05,
    "the coordinator forgets a group": 0.01,
    "a parked heartbeat is answered at once": 0.1,
    "every heartbeat is a full one": 0.1,
    "a lease ends early": 0.002,
    "a request is repeated after its response": 0.2,
    "a task list is published again": 0.1,
}
"""Every point, with the maximum probability at which a run should take it."""

hook: Callable[[str], bool] | None = None


def fault_point(point: str) -> bool:
    """Whether to take the rare branch; always false outside a simulation."""
    return hook is not None and hook(point)
