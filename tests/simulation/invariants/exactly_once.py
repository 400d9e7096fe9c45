"""What becomes visible in the sink: X1, X2, X3, X5, X8.

The sink keeps fences and positions the way ``dataplane.fences`` does. These classes keep separate records, so that a
store with a wrong rule is detected.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from connectgroup.protocol.units import Unit

from .base import Invariant

if TYPE_CHECKING:
    from ..cluster import WorkerNode
    from ..sink import Owner
    from .watch import Watch

Slice = tuple[str, int]


class NoZombieWrites(Invariant):
    """X1: once a later owner has claimed a slice, no write of an earlier owner becomes visible in it."""

    ids = "X1"

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._claimed: dict[Slice, Owner] = {}
        self._highest: dict[Unit, int] = {}

    def on_claimed(self, owner: Owner, positions: Mapping[int, int]) -> None:
        for number in positions:
            self._claimed[owner.connector, number] = owner
        unit = Unit(owner.connector, owner.task)
        if owner.epoch < self._highest.get(unit, -1):
            self.broken(f"{owner} claims, and {unit} has been claimed at {self._highest[unit]}")
        self._highest[unit] = owner.epoch

    def on_written(self, owner: Owner, ranges: Mapping[int, tuple[int, int]], added: bool) -> None:
        for number in ranges if added else ():
            latest = self._claimed.get((owner.connector, number))
            if latest != owner:
                self.broken(f"slice {number}: {owner} writes after {latest} has claimed it")


class EveryRowOnce(Invariant):
    """X2, X3, X8: the visible part of a slice is contiguous from offset 0, never shrinks, and ends complete."""

    ids = "X2"

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self.visible: dict[Slice, int] = {}

    def on_claimed(self, owner: Owner, positions: Mapping[int, int]) -> None:
        for number, position in positions.items():
            visible = self.visible.get((owner.connector, number), 0)
            if position != visible:
                self.broken(f"{owner} starts at {position} of slice {number}, visible up to {visible}")

    def on_written(self, owner: Owner, ranges: Mapping[int, tuple[int, int]], added: bool) -> None:
        for number, (start, end) in ranges.items():
            visible = self.visible.get((owner.connector, number), 0)
            if not added:
                if end != visible:
                    self.broken(f"{owner} gets position {end} of slice {number}, visible up to {visible}")
                continue
            if start != visible or end < start:
                self.broken(f"slice {number}: visible up to {visible}, {owner} adds {start}..{end}")
            self.visible[owner.connector, number] = end


class NoRowIsLost(Invariant):
    """X8: once the group has converged, every row of every source is visible."""

    ids = "X8"

    def on_over(self) -> None:
        end = self.cluster.source_end()
        for name in self.durable.connectors:
            for number in range(self.cluster.sink.slices):
                there = self.cluster.sink.visible.get((name, number), 0)
                if there != end:
                    self.broken(f"slice {number} of {name} is at offset {there} of {end}")


class FenceFirst(Invariant):
    """X5: a task has raised its fence before it runs, under the same grant."""

    ids = "X5"

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._claims: dict[Unit, tuple[int, str]] = {}

    def on_claimed(self, owner: Owner, positions: Mapping[int, int]) -> None:
        self._claims[Unit(owner.connector, owner.task)] = owner.epoch, owner.member_id

    def on_started(self, node: WorkerNode, unit: Unit, epoch: int) -> None:
        if self._claims.get(unit) != (epoch, node.member_id):
            self.broken(f"{node.name} runs {unit} at {epoch}, the claim is {self._claims.get(unit)}")
