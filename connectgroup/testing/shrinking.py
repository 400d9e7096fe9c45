"""Shrink a list of faults: delta debugging. Pure; serves the seeds of the pytest plug-in and the simulator.

Source: Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input" (ddmin).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

T = TypeVar("T")


def shrink(items: Sequence[T], fails: Callable[[tuple[T, ...]], bool], is_late: Callable[[], bool]) -> tuple[T, ...]:
    """The smallest part of the items found for which the run still fails; the items keep their order.

    Without a time limit, the run passes if any single item of the result is left out.

    Args:
        items: a run with all of them fails.
        fails: whether a run with only these items fails in the same way.
        is_late: whether to stop here, with the smallest part found so far.
    """
    left, parts = tuple(items), 2
    while left and not is_late():
        size = max(1, len(left) // parts)
        for start in range(0, len(left), size):
            fewer = left[:start] + left[start + size :]
            if fails(fewer):
                left = fewer
                break
            if is_late():
                return left
        else:
            if size == 1:
                return left
            parts = min(2 * parts, len(left))
            continue
        parts = max(2, parts - 1)
    return left


def without_kinds(
    items: Sequence[T],
    kind: Callable[[T], Hashable],
    fails: Callable[[tuple[T, ...]], bool],
    is_late: Callable[[], bool],
) -> tuple[T, ...]:
    """The items without each kind that the failure does not need; most failures need one kind, so this goes first."""
    left = tuple(items)
    for each in dict.fromkeys(map(kind, items)):
        fewer = tuple(item for item in left if kind(item) != each)
        if is_late():
            break
        if fails(fewer):
            left = fewer
    return left
