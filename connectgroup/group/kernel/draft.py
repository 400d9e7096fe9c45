"""The group as it will be once the records written so far in this step are applied: what all drafts share.

Handlers read the draft and write records to it; the group itself does not change. So a step that fails half-way has
changed nothing (reliability D8), and later code in the same step reads what earlier code has written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Generic, Protocol, TypeVar

from ...protocol.records.connect import ComputationRecord, GroupRecord, Record, TargetRecord
from .deadlines import Computing
from .reconcile import NOTHING, Current, U
from .selection import AssigningMember, Listing, count_listing

M = TypeVar("M", bound=AssigningMember)
"""The record of a member."""
M_co = TypeVar("M_co", bound=AssigningMember, covariant=True)


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
    @property
    def listings(self) -> Counter[Listing]: ...
    def current(self, member_id: str) -> Current[U]: ...


def created_ms(group: CreatedGroup, now_ms: int) -> int:
    """The creation time of a group.

    A group created again under the id of a deleted group must have a later creation time, even if the clock was set
    back: fencing tokens count its seconds (``TaskContext.fencing_token``) and must increase.
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

    def any_member(self, condition: Callable[[M], bool] = lambda member: True) -> bool:
        """Whether the condition holds for any member; usually it holds for the first one that is looked at."""
        changed = self._members
        return any(member is not None and condition(member) for member in changed.values()) or any(
            condition(member) for member_id, member in self._stored.members.items() if member_id not in changed
        )

    def listings(self, *, without: str = "") -> Mapping[Listing, int]:
        """The assignors that the members list, with the number of members that list them (``kernel.selection``).

        Args:
            without: a member that does not count.
        """
        changed: dict[str, M | None] = {**self._members, **({without: None} if without else {})}
        if not changed:
            return self._stored.listings
        listings = Counter(self._stored.listings)
        for member_id, after in changed.items():
            if (before := self._stored.members.get(member_id)) is not None:
                count_listing(listings, before, -1)
            if after is not None:
                count_listing(listings, after, 1)
        return listings

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


class Those(Container[str], Generic[M, U]):
    """The member ids of a draft for which a condition holds."""

    def __init__(self, draft: GroupDraft[M, U], condition: Callable[[M], bool]) -> None:
        self._draft: GroupDraft[M, U] = draft
        self._condition = condition

    def __contains__(self, member_id: object) -> bool:
        member = self._draft.member(member_id) if isinstance(member_id, str) else None
        return member is not None and self._condition(member)
