"""Which groups are removed without a request: vacant groups, and what is left of deleted ones.

A vacant group has no members, and no connectors or committed offsets (``is_vacant`` of its state). Any client can
create many of them, by joining and leaving. They are deleted after ``VACANT_S``; at the limit of groups, a new group
replaces the one that was created first. A deleted group leaves one record, its creation time
(``group.connect.delete``); if there are more than ``MAX_DELETED``, those of the groups that were deleted first are
removed. A group of that name that is created later still has a higher incarnation, unless the clock was set back to a
time before the deletion.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from ..group.registry import RequestTraits
from ..protocol.messages.describe import DeleteRequest
from ..protocol.records.base import Key, Kind, Tombstone
from .command import Command
from .loading import Groups, Loaded

VACANT_S: Final = 600.0
"""Seconds that a vacant group is kept."""

CHECK_EVERY_S: Final = 60.0
"""Seconds between two searches for vacant groups."""

MAX_DELETED: Final = 1_000
"""Maximum number of deleted groups whose creation time is kept."""


@dataclass(frozen=True, slots=True)
class Remove:
    """The input that removes a group if it is vacant, or what is left of it if it is deleted."""


class Retention:
    """Finds the groups to remove.

    Attributes:
        next_check_s: when ``due`` looks for vacant groups again, on the event loop's clock.
    """

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._vacant: dict[str, tuple[int, float]] = {}  # the group epoch, and since when
        self._deleted: dict[str, None] | None = None  # in the order of their deletion; null before the first turn
        self.next_check_s = CHECK_EVERY_S

    def on_deleted(self, group_id: str) -> None:
        """A group was deleted, or removed."""
        deleted = self._deleted_groups()
        deleted.pop(group_id, None)
        if group_id in self._groups.loaded:
            deleted[group_id] = None

    def due(self, now_s: float) -> list[str]:
        """The groups to remove now."""
        deleted, due = self._deleted_groups(), []
        while len(deleted) > MAX_DELETED:
            group_id = next(iter(deleted))
            del deleted[group_id]
            due.append(group_id)
        if now_s >= self.next_check_s:
            self.next_check_s = now_s + CHECK_EVERY_S
            due += self._long_vacant(now_s)
        return due

    def to_replace(self) -> str | None:
        """The vacant group that a new one replaces; null if there is none."""
        vacant = [group.state for group in self._groups.loaded.values() if is_vacant(group)]
        return str(min(vacant, key=attrgetter("created_ms")).group_id) if vacant else None

    def _deleted_groups(self) -> dict[str, None]:
        if self._deleted is None:
            states = [group.state for group in self._groups.loaded.values() if not group.state.exists]
            states.sort(key=attrgetter("created_ms"))
            self._deleted = {state.group_id: None for state in states}
        return self._deleted

    def _long_vacant(self, now_s: float) -> list[str]:
        before, self._vacant = self._vacant, {}
        for group_id, group in self._groups.loaded.items():
            if is_vacant(group):
                epoch = group.group_type.measure(group.state).epoch
                former, since_s = before.get(group_id, (-1, now_s))
                self._vacant[group_id] = epoch, since_s if former == epoch else now_s
        return [group_id for group_id, (_, since_s) in self._vacant.items() if now_s - since_s >= VACANT_S]


def is_vacant(group: Loaded) -> bool:
    """Whether a group exists and only its history is lost with it."""
    return getattr(group.state, "is_vacant", False)


def removal(group: Loaded) -> Command | Tombstone | None:
    """How to remove a group: an input of its type, or the tombstone for what is left of it; null: it is in use."""
    group_id = group.state.group_id
    if is_vacant(group):
        return Command(DeleteRequest(group_ids=(group_id,)), RequestTraits(group_id=group_id))
    return None if group.state.exists else Tombstone(Key(Kind.GROUP, group_id))
