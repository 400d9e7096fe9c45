"""A source that grows and a sink that fences, as values in memory, with the rules of ``dataplane.fences``.

The *store* is what a real sink keeps: a fence a layout, a task and a slice, and positions that move in one step with
the data. Beside it stands what really became visible, kept by other means, so that a store with a hole in its rules is
found out: who claimed a slice last, and where its visible output ends.
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
    """One grant of one task, and of how many."""

    connector: str
    task: int
    tasks: int
    epoch: int
    member_id: str


class SinkDown(Exception):
    """The sink cannot be reached; the batch may be in."""


class Sink:
    """Claims and commits; each is one step that nothing interrupts."""

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
        """Raise the fences, then read where the owner's slices stand."""
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
        """Check the fences, then all of the batch or nothing; false if it was in already."""
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
                # Half of it is in: the real sink ends the query here (paimon#9667).
                raise SinkDown(f"{owner}: {ranges} does not start where the slices stand")
            self._reach("a write was a repeat of what was in")
            self._watch.on_written(owner, ranges, added=False)
            return False
        for number, (_, end) in ranges.items():
            self._offsets[name, number] = end, owner.epoch
            self.visible[name, number] = end
        self._watch.on_written(owner, ranges, added=True)
        self.commits += 1
        return True

    def _refused(self, owner: Owner, what: str) -> Fenced:
        self._reach(f"a zombie's {what} was refused")
        return Fenced(f"{owner} may not {what} any more")
