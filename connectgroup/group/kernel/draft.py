"""The group as it will be once the records written so far in this step are applied.

Handlers read the draft and write records to it; the group itself does not change. So a step that fails half-way has
changed nothing (reliability D8), and later code in the same step reads what earlier code has written.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any, Generic, TypeVar

from ...protocol.messages.api import Response
from ...protocol.records.base import Key, Kind, MemberState, Tombstone
from ...protocol.records.connect import ComputationRecord, GroupRecord, Record, TargetRecord
from . import outcome
from .outcome import Outcome, Timer
from .reconcile import NOTHING, Current, U
from .state import NO_TARGET, Computing, GroupState, Listing, M, Target, count_listing

A = TypeVar("A", bound=Response | None)
"""The response of a step."""


class GroupDraft(Computing, Generic[M, U], ABC):
    """A group with the records of the current step applied to it.

    Attributes, besides those of ``Computing``; ``write`` changes them, except for ``group`` and ``now_ms``:
        group: state as of the last applied record.
        now_ms: the coordinator's wall clock; written into records for operators and for the computation of downtime.
        records: written so far, in order.
        target_assignor: the assignor that computed the target assignment.
    """

    def __init__(self, group: GroupState[M, U], now_ms: int) -> None:
        self.group: GroupState[M, U] = group
        self.now_ms = now_ms
        self.group_id = group.group_id
        self.epoch, self.target_epoch, self.computation = group.epoch, group.target_epoch, group.computation
        self.target_assignor = group.target_assignor
        self.records: list[Record] = []
        # What this step has written of members, current and target assignments; ``None``: removed.
        self._members: dict[str, M | None] = {}
        self._currents: dict[str, Current[U] | None] = {}
        self._targets: dict[str, Target[U] | None] = {}
        # Whether this step has advanced the group epoch: several causes in one step share one epoch.
        self._bumped = False

    def outcome(self, response: A, timers: tuple[Timer, ...] = (), **more: Any) -> Outcome[A]:
        """The outcome of the step, with the records written so far; ``more`` are other attributes of ``Outcome``."""
        return Outcome(response=response, records=tuple(self.records), timers=timers, **more)

    # ---- writing

    def write(self, record: Record) -> None:
        """Add a record; later reads of the draft include it."""
        self.records.append(record)
        match record:
            case GroupRecord():
                self.epoch = record.epoch
            case TargetRecord():
                self.target_epoch, self.target_assignor = record.epoch, record.assignor
            case ComputationRecord():
                self.computation = record
            case _:
                pass

    def forget(self, kind: Kind, name: str) -> None:
        """Write a tombstone, at most once."""
        tombstone = Tombstone(Key(kind, self.group_id, name))
        if tombstone not in self.records:
            self.write(tombstone)

    def set_member(self, member: M) -> None:
        """Write the record of a member."""
        self._members[member.member_id] = member
        self.write(member)

    def set_current(self, member_id: str, current: Current[U]) -> None:
        """Write the new current assignment of a member."""
        self._currents[member_id] = current
        self.write(self._current_record(member_id, current))

    def set_target(self, member_id: str, target: Target[U]) -> None:
        """Write the target assignment of a member."""
        self._targets[member_id] = target
        self.write(self._target_record(member_id, target))

    def forget_target(self, member_id: str) -> None:
        """Remove the target assignment of a member."""
        self._targets[member_id] = None
        self.forget(self.group.kinds.target, member_id)

    def forget_member(self, member_id: str) -> None:
        """Write tombstones for current assignment, target assignment and member, in this order (HB-19)."""
        self._members[member_id] = self._currents[member_id] = self._targets[member_id] = None
        for kind in self.group.kinds:
            self.forget(kind, member_id)

    @abstractmethod
    def _current_record(self, member_id: str, current: Current[U]) -> Record: ...
    @abstractmethod
    def _target_record(self, member_id: str, target: Target[U]) -> Record: ...

    # ---- reading

    @abstractmethod
    def computing_members(self) -> Container[str]:
        """The members that may compute now."""

    @property
    def next_epoch(self) -> int:
        """The group epoch after ``bump`` is called in this step."""
        return self.epoch if self._bumped else self.epoch + 1

    @property
    def created_ms(self) -> int:
        """The creation time of the group.

        A group created again under the id of a deleted group must have a later creation time, even if the clock was set
        back: fencing tokens count its seconds (``TaskContext.fencing_token``) and must increase.
        """
        known_ms = self.group.created_ms
        return known_ms if self.group.exists else max(self.now_ms, known_ms + 1_000)

    def member(self, member_id: str) -> M | None:
        """A member's record, or ``None`` if there is no such member."""
        if member_id in self._members:
            return self._members[member_id]
        return self.group.members.get(member_id)

    def members(self) -> Iterator[M]:
        """All members, sorted by id: an unsorted order that leaves the core would differ between runs."""
        for member_id in sorted(self.group.members.keys() | self._members.keys()):
            member = self.member(member_id)
            if member is not None:
                yield member

    def any_member(self, condition: Callable[[M], bool] = lambda member: True) -> bool:
        """Whether the condition holds for any member; usually it holds for the first one that is looked at."""
        changed = self._members
        return any(member is not None and condition(member) for member in changed.values()) or any(
            condition(member) for member_id, member in self.group.members.items() if member_id not in changed
        )

    def listings(self, *, without: str = "") -> Mapping[Listing, int]:
        """The assignors that the members list, with the number of members that list them (``kernel.state``).

        Args:
            without: a member that does not count.
        """
        changed: dict[str, M | None] = {**self._members, **({without: None} if without else {})}
        if not changed:
            return self.group.listings
        listings = Counter(self.group.listings)
        for member_id, after in changed.items():
            if (before := self.group.members.get(member_id)) is not None:
                count_listing(listings, before, -1)
            if after is not None:
                count_listing(listings, after, 1)
        return listings

    def current(self, member_id: str) -> Current[U]:
        """A member's current assignment."""
        if member_id in self._currents:
            return self._currents[member_id] or NOTHING
        return self.group.current(member_id)

    def target(self, member_id: str) -> Target[U]:
        """A member's target assignment."""
        if member_id in self._targets:
            return self._targets[member_id] or NO_TARGET
        return self.group.target(member_id)

    def has_target(self, member_id: str) -> bool:
        """Whether the target assignment has an entry for the member. It has none for a member that joined since."""
        if member_id in self._targets:
            return self._targets[member_id] is not None
        return member_id in self.group.targets

    def owner(self, unit: U) -> str | None:
        """The owner of a unit. A unit with a pending revocation still has its owner."""
        holder = self.group.holders.get(unit)
        if holder is None:
            return None
        member_id = holder[0]
        if member_id in self._currents:
            changed = self._currents[member_id]
            if changed is None or (unit not in changed.assigned and unit not in changed.pending):
                return None  # released in this step
        return member_id

    def is_settled(self, member_id: str) -> bool:
        """Whether a member has reached the newest target assignment and nothing has changed since.

        A fast path for the usual heartbeat, whose cost must not grow with the number of units the member owns. Every
        cause of a change first advances the group epoch past the target epoch.
        """
        group = self.group
        return (
            self.epoch == self.target_epoch == group.target_epoch
            and member_id not in self._currents
            and member_id in group.members
            and member_id not in group.behind
            and not group.current(member_id).temporarily_left
        )

    def rebalance_timer(self, member_id: str, before: Current[U], after: Current[U]) -> tuple[Timer, ...]:
        """Arm the timer when there are new pending revocations; cancel it when none is left (TO-02, TO-03)."""
        if after.state == MemberState.UNREVOKED:
            if after.pending == before.pending:
                return ()
            member = self.member(member_id)
            assert member is not None
            return (outcome.rebalance(self.group_id, member_id, after, member.rebalance_timeout_ms),)
        if before.state == MemberState.UNREVOKED:
            return (outcome.cancel_rebalance(self.group_id, member_id),)
        return ()


class Those(Container[str], Generic[M, U]):
    """The member ids of a draft for which a condition holds."""

    def __init__(self, draft: GroupDraft[M, U], condition: Callable[[M], bool]) -> None:
        self._draft: GroupDraft[M, U] = draft
        self._condition: Callable[[M], bool] = condition

    def __contains__(self, member_id: object) -> bool:
        member = self._draft.member(member_id) if isinstance(member_id, str) else None
        return member is not None and self._condition(member)
