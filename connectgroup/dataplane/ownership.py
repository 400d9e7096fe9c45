"""Who writes (a task under one grant, with its fencing token) and what was read (a range of a slice)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

EPOCH_BITS: Final = 0xFFFF_FFFF
"""The part of a fencing token that is the owner epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """One grant of one task.

    Attributes:
        connector: the connector's name.
        task: the task's number, from 0.
        tasks: how many tasks the connector has in the layout this task belongs to.
        fencing_token: the grant's token (``TaskContext.fencing_token``): owner epoch, and above it the group's
            incarnation. Strictly grows per task; every task of a later layout has a higher one than every task of an
            earlier layout.
        source: what is read, as a person would write it. A connector name belongs to one source: positions in
            one directory mean nothing in another.
    """

    connector: str
    task: int
    tasks: int
    fencing_token: int
    source: str = ""

    @property
    def owner_epoch(self) -> int:
        """The owner epoch alone, as the group shows it."""
        return self.fencing_token & EPOCH_BITS

    def __str__(self) -> str:
        return f"{self.connector}-{self.task} at owner epoch {self.owner_epoch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """What a batch read of one slice: half open, ``[start, end)``, in the slice's own unit (bytes)."""

    slice: str
    start: int
    end: int


def ranges_between(start: Mapping[str, int], end: Mapping[str, int]) -> Iterator[Range]:
    """What lies between two offsets of a stream, sorted by slice; slices that did not move are left out."""
    for name in sorted(end):
        if end[name] != start.get(name, 0):
            yield Range(slice=name, start=start.get(name, 0), end=end[name])
