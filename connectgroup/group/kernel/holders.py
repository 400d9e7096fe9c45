"""Which member owns each unit, derived from the current assignments of all members."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic

from .reconcile import U


class Holders(Generic[U]):
    """The owner of each unit and its owner epoch. A unit with a pending revocation still has its owner."""

    def __init__(self) -> None:
        self._holders: dict[U, tuple[str, int]] = {}

    def __len__(self) -> int:
        """The number of units that have an owner."""
        return len(self._holders)

    def owner(self, unit: U) -> str | None:
        """The member that owns the unit, or ``None``."""
        holder = self._holders.get(unit)
        return holder[0] if holder is not None else None

    def replace(self, member_id: str, before: Mapping[U, int], after: Mapping[U, int]) -> list[U]:
        """Replace the units of a member; return those that are free now."""
        freed = []
        for unit in before:
            if unit not in after and self.owner(unit) == member_id:
                del self._holders[unit]
                freed.append(unit)
        for unit, epoch in after.items():
            holder = self._holders.get(unit)
            # A compacted log can show the new owner before the release by the old one: the higher owner epoch wins.
            if holder is None or holder[0] == member_id or holder[1] < epoch:
                self._holders[unit] = (member_id, epoch)
        return freed
