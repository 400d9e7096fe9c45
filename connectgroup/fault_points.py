"""Rare things that the product may always do, done often: for the simulator, which sets ``hook``.

Each point is a choice that is correct either way (refuse with a retriable error, say everything again, load a group
again), so a run with them on must keep every promise. Without a hook a point costs a global look-up and a comparison.
There is no chance in here: whoever sets the hook decides, point by point.

Source: FoundationDB's BUGGIFY.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

POINTS: Final[Mapping[str, float]] = {
    "the coordinator is loading": 0.05,
    "the coordinator forgets a group": 0.01,
    "a parked heartbeat is answered at once": 0.1,
    "a heartbeat says everything": 0.1,
    "a lease ends early": 0.002,
    "a request is sent again though it was answered": 0.2,
    "a task list is published again": 0.1,
}
"""Every point, and how often at most a run should take it."""

hook: Callable[[str], bool] | None = None


def buggify(point: str) -> bool:
    """Whether to take the rare way here; never where nobody simulates."""
    return hook is not None and hook(point)
