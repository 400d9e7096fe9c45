"""The current assignment of one member: what it owns, what it must revoke, and its epochs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...protocol.records.connect import (
    MemberState,
)
from ...protocol.units import STATIC_LEAVE_EPOCH, Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Current:
    """What one member runs: units it holds and units it has been told to stop, each with its owner epoch."""

    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Mapping[Unit, int] = field(default_factory=dict)
    pending: Mapping[Unit, int] = field(default_factory=dict)

    @property
    def held(self) -> dict[Unit, int]:
        """Assigned and pending together: what nobody else may be given."""
        return {**self.pending, **self.assigned}

    @property
    def away(self) -> bool:
        """Whether the member has left for a while: it runs nothing, and its work waits for it (ST-01)."""
        return self.epoch == STATIC_LEAVE_EPOCH


NOTHING = Current()
