"""The current assignment of one member: units it owns, pending revocations, and its epochs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from ...protocol.records.connect import MemberState
from ...protocol.units import STATIC_LEAVE_EPOCH, TopicPartition, Unit

U = TypeVar("U", Unit, TopicPartition)
"""What a group assigns: the rules of the kernel depend on equality and order only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Current(Generic[U]):
    """A member's current assignment: assigned units and units with a pending revocation, each with its owner epoch."""

    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Mapping[U, int] = field(default_factory=dict)
    pending: Mapping[U, int] = field(default_factory=dict)

    @property
    def held(self) -> dict[U, int]:
        """All units the member owns, assigned and pending; they must not be assigned to another member."""
        return {**self.pending, **self.assigned}

    @property
    def temporarily_left(self) -> bool:
        """Whether the member has left temporarily: it runs no units, and its units are kept for it (ST-01)."""
        return self.epoch == STATIC_LEAVE_EPOCH


NOTHING: Final[Current[Any]] = Current()
