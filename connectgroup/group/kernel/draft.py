"""The group as it will be once the records written so far in this step are applied: what all drafts share.

Handlers read the draft and write records to it; the group itself does not change. So a step that fails half-way has
changed nothing (reliability D8), and later code in the same step reads what earlier code has written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Generic, Protocol, TypeVar

from ...protocol.records.connect import ComputationRecord, GroupRecord, Record, TargetRecord
from .current import NOTHING, Current, U
from .deadlines import Computing

M = TypeVar("M")
"""The record of a member."""
M_co = TypeVar("M_co", covariant=True)


class CreatedGroup(Protocol):
    """A group with its creation time."""

    @property
    def exists(self) -> bool: ...
    @property
    def created_ms(self) -> int: ...


class StoredGroup(Computing, Protocol[M_co, U]):
    """What a draft reads of its group: the state as of the last applied record."""

    @property
    def members(self) -> Mapping[str, M_co]: ...
    def current(self, member_id: str) -> Current[U]: ...


def created_ms(group: CreatedGroup, now_ms: int) -> int:
    """The creation time of a group.

    A group created again under the id of a deleted group must have a later creation time, even if the clock was set
    back: fencing tokens count its seconds (``TaskContext.token``) and must increase.
    """
    return group.created_ms if group.exists else max(now_ms, group.created_ms + 1_000)


class GroupDraft(Generic[M, U]):
    """Epochs, members and current assignments of a group with the records of the current step applied.

    Attributes:
        records: written so far, in order.
        epoch: the group epoch.
        target_epoch: the epoch of the target assignment.
        computation: the chosen member and the progress of its computation.
    """

    def __init__(self, group: StoredGroup[M, U]) -> None:
        self._stored: StoredGroup[M, U] = group
        self.records: list[Record] = []
        self.epoch, self.target_epoch = group.epoch, group.target_epoch
        self.computation: ComputationRecord | None = group.computation
        self._members: dict[str, M | None] = {}
        self._currents: dict[str, Current[U] | None] = {}
        self._bumped = False

    def write(self, record: Record) -> None:
        """Add a record; later reads of the draft include it."""
        self.records.append(record)
        match record:
            case GroupRecord():
                self.epoch = record.epoch
            case TargetRecord():
                self.target_epoch = record.epoch
            case ComputationRecord():
                self.computation = record
            case _:
                pass

    def member(self, member_id: str) -> M | None:
        """A member's record, or ``None`` if there is no such member."""
        if member_id in self._members:
            return self._members[member_id]
        return self._stored.members.get(member_id)

    def members(self) -> Iterator[M]:
        """All members, sorted by id: an unsorted order that leaves the core would differ between runs."""
        for member_id in sorted(self._stored.members.keys() | self._members.keys()):
            member = self.member(member_id)
            if member is not None:
                yield member

    def current(self, member_id: str) -> Current[U]:
        """A member's current assignment."""
        if member_id in self._currents:
            return self._currents[member_id] or NOTHING
        return self._stored.current(member_id)

    @property
    def next_epoch(self) -> int:
        """The group epoch after ``bump`` is called in this step."""
        return self.epoch if self._bumped else self.epoch + 1

    def _has_released(self, member_id: str, unit: U) -> bool:
        """Whether the owner of a unit has released it in this step. A pending revocation still owns it."""
        if member_id not in self._currents:
            return False
        changed = self._currents[member_id]
        return changed is None or (unit not in changed.assigned and unit not in changed.pending)
