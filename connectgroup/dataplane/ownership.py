"""The writer (a task under one grant, with its fencing token) and the data it read (ranges of slices)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

EPOCH_BITS: Final = 0xFFFF_FFFF
"""The part of a fencing token that is the owner epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """One grant of one task.

    Attributes:
        connector: the connector's name.
        task: the task's number, from 0.
        tasks: the number of tasks of the connector in the layout this task belongs to.
        fencing_token: the grant's token (``TaskContext.fencing_token``): the owner epoch in the lower bits, the group's
            incarnation above it. It strictly increases per task; every task of a later layout has a higher token than
            every task of an earlier layout.
        source: the source's description (``Source.description``). A connector name is bound to one source: positions
            in one directory mean nothing in another.
    """

    connector: str
    task: int
    tasks: int
    fencing_token: int
    source: str = ""

    @property
    def owner_epoch(self) -> int:
        """The owner epoch alone, as the group reports it."""
        return self.fencing_token & EPOCH_BITS

    def __str__(self) -> str:
        return f"{self.connector}-{self.task} at owner epoch {self.owner_epoch}"


class Position(int):
    """A position in a slice, with what the source remembers about the slice: Kafka's metadata of a committed offset.

    Sinks store the metadata with the position. A plain ``int`` is a position without metadata.

    Attributes:
        metadata: a text that only the source understands.
    """

    metadata: str

    def __new__(cls, value: int, metadata: str = "") -> Position:
        position = super().__new__(cls, value)
        position.metadata = metadata
        return position

    def __getnewargs__(self) -> tuple[int, str]:  # type: ignore[override]
        return int(self), self.metadata


def metadata_of(position: int) -> str:
    """Return the metadata of a position; empty for a plain ``int``."""
    return position.metadata if isinstance(position, Position) else ""


def encoded(positions: Mapping[str, int]) -> dict[str, Any]:
    """Return positions as JSON: slice to position, or to position and metadata. ``Source.positions`` decodes them."""
    return {name: [int(at), metadata_of(at)] if metadata_of(at) else int(at) for name, at in positions.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The part of one slice that a batch read: half open, ``[start, end)``, in the unit of the slice (bytes).

    The metadata of ``end`` are committed with it (``Position``). ``[0, 0)`` commits the position 0 of a slice that has
    none.
    """

    slice: str
    start: int
    end: int


def ranges_between(start: Mapping[str, int], end: Mapping[str, int]) -> Iterator[Range]:
    """Yield the ranges between two offsets of a stream, sorted by slice; slices without a change are omitted."""
    for name in sorted(end):
        if end[name] != start.get(name, 0):
            yield Range(slice=name, start=start.get(name, 0), end=end[name])
