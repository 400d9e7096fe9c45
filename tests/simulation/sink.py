"""A growing source and a fencing sink, as values in memory, with the rules of ``dataplane.fences``.

The *store* is what a real sink keeps: a fence per layout, task and slice, and positions that are committed with the
data. Separately recorded is what became visible: the last claim of each slice and the end of its visible output. A
store with a wrong rule is detected by comparing the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from connectgroup.errors import Fenced

from .sometimes import Sometimes

if TYPE_CHECKING:
    from .invariants import Watch


@dataclass(frozen=True, slots=True)
class Owner:
    """One assignment of one task, with the number of tasks."""

    connector: str
    task: int
    tasks: int
    epoch: int
    member_id: str


class SinkDown(Exception):
    """The sink cannot be reached; the batch may have been committed."""


class Sink:
    """Claims and commits; each is atomic."""

    def __init__(self, sometimes: Sometimes, watch: Watch, slices: int) -> None:
        self.slices = slices
        self.commits = 0
        self._reach = sometimes.reach
        self._watch = watch
        self._layouts: dict[str, tuple[int, int, int]] = {}
        self._fences: dict[tuple[str, int], int] = {}
        self._offsets: dict[tuple[str, int], tuple[int, int]] = {}
        self._claimed: dict[tuple[str, int], Owner] = {}
        self.visible: dict[tuple[str, int], int] = {}

    def claim(self, owner: Owner) -> dict[int, int]:
        """Raise the fences, then read the positions of the owner's slices."""
        name = owner.connector
        tasks, floor, highest = self._layouts.get(name, (owner.tasks, -1, owner.epoch))
        if tasks == owner.tasks:
            if owner.epoch <= floor:
                raise self._refused(owner, "claim")
        elif owner.epoch <= highest:
            raise self._refused(owner, "claim")
        else:
            tasks, floor = owner.tasks, highest
        if self._fences.get((name, owner.task), -1) > owner.epoch:
            raise self._refused(owner, "claim")
        mine = range(owner.task, self.slices, owner.tasks)
        for number in mine:
            known = self._offsets.get((name, number))
            if known is not None and known[1] > owner.epoch:
                raise self._refused(owner, "claim")
        self._layouts[name] = tasks, floor, max(highest, owner.epoch)
        self._fences[name, owner.task] = owner.epoch
        positions = {}
        for number in mine:
            known = self._offsets.get((name, number))
            positions[number] = known[0] if known else 0
            if known is not None:
                self._offsets[name, number] = known[0], owner.epoch
            before = self._claimed.get((name, number))
            if before is not None and before.task != owner.task:
                self._reach("a slice changed tasks with the task count")
            self._claimed[name, number] = owner
        self._watch.on_claimed(owner, positions)
        return positions

    def commit(self, owner: Owner, ranges: dict[int, tuple[int, int]]) -> bool:
        """Check the fences, then commit the whole batch or nothing; false if it was already committed."""
        name = owner.connector
        layout, fence = self._layouts.get(name), self._fences.get((name, owner.task), -1)
        if layout is None or fence > owner.epoch or owner.epoch <= layout[1]:
            raise self._refused(owner, "write")
        at_start = at_end = 0
        for number, (start, end) in ranges.items():
            position, epoch = self._offsets.get((name, number), (0, owner.epoch))
            if epoch > owner.epoch:
                raise self._refused(owner, "write")
            at_start += position == start
            at_end += position == end
        if at_start != len(ranges):
            if at_end != len(ranges):
                # Partly committed: the real sink ends the query here (paimon#9667).
                raise SinkDown(f"{owner}: {ranges} does not start at the committed positions")
            self._reach("a write repeated a committed batch")
            self._watch.on_written(owner, ranges, added=False)
            return False
        for number, (_, end) in ranges.items():
            self._offsets[name, number] = end, owner.epoch
            self.visible[name, number] = end
        self._watch.on_written(owner, ranges, added=True)
        self.commits += 1
        return True

    def _refused(self, owner: Owner, what: str) -> Fenced:
        self._reach(f"a zombie's {what} was rejected")
        return Fenced(f"{owner} is fenced: {what} rejected")
