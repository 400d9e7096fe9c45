"""The groups of a shard in memory, and how they get there from the records of the log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final

from ..errors import CoordinatorNotAvailable, GroupError, InconsistentGroupProtocol, LogError
from ..group.connect.members import remove_member
from ..group.connect.settings import GroupSettings
from ..group.connect.state import ConnectDraft, ConnectGroupState
from ..group.kernel.outcome import Outcome, Timer
from ..group.kernel.state import NO_PROCESS, Process
from ..group.registry import GroupType, Registry, RequestTraits
from ..log.base import Log, SharedLog
from ..protocol.messages.api import Response
from ..protocol.records.connect import GROUP_TYPE, GroupRecord, Record
from ..protocol.units import printable
from .intake import loading_error

logger = logging.getLogger(__name__)

NOTHING: Final = Outcome(response=None)
"""Of a group that is not loaded."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A group in memory: its type and its state.

    Attributes:
        removes: the records that remove the group of another type that it replaces; written with the first records of
            this group. Until then the former group stays.
        timers, parked_responses: of the conversion of a group with members (``outcome.Converted``).
    """

    group_type: GroupType
    state: Any
    removes: tuple[Record, ...] = ()
    timers: tuple[Timer, ...] = ()
    parked_responses: Mapping[str, Response] = field(default_factory=dict)

    def is_from_its_process(self, request: RequestTraits) -> bool:
        """Whether the request was sent by the process that its member belongs to; true if the sender is no member."""
        accepts: bool = self.state.process_of(request.sender).accepts(request.process)
        return accepts


class Groups:
    """The groups in memory, and those that cannot be served now.

    Attributes:
        loaded: by group id.
        refused: groups that are not served, each with the error of its requests: its records cannot be read, or its
            type is unknown. The records stay in the log.
        loading: groups that were dropped and are not loaded yet.
        clock_ms: the wall clock, for timestamps in records.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        clock_ms: Callable[[], int],
        on_loaded: Callable[[Any, Sequence[Record]], None] = lambda state, records: None,
    ) -> None:
        """``registry``: the types of groups that are served; ``clock_ms``: the wall clock; ``on_loaded``: see
        ``Shard``."""
        self._on_loaded = on_loaded
        self.loaded: dict[str, Loaded] = {}
        self.refused: dict[str, GroupError] = {}
        self.loading: set[str] = set()
        self.clock_ms = clock_ms
        self._registry = registry

    def group_ids(self) -> list[str]:
        """All groups that exist or are refused, sorted. May be called from any thread."""
        loaded, refused = self.loaded.copy(), self.refused.copy()
        return sorted({name for name, group in loaded.items() if group.state.exists} | refused.keys())

    def error(self, group_id: str) -> GroupError | None:
        """Why requests for a group are rejected now, or ``None``."""
        if group_id in self.refused:
            return self.refused[group_id]
        return loading_error(group_id) if group_id in self.loading else None

    def is_member(self, group_id: str, sender: str, process: Process) -> bool:
        """Whether a group in memory has the sender as a member, and the member belongs to this process."""
        group = self.loaded.get(group_id)
        return group is not None and sender in group.state.members and group.state.process_of(sender).accepts(process)

    def is_from_member(self, request: RequestTraits) -> bool:
        """Whether a group in memory has the sender of a heartbeat as a member that belongs to the sender's process."""
        group = self.loaded.get(request.group_id)
        member = request.member or request.sender
        if group is None or member not in group.state.members:
            return False
        process: Process = group.state.process_of(member)
        if request.sequence < 0 and request.process.process_id == NO_PROCESS.process_id:
            process = Process(NO_PROCESS.process_id, process.principal)  # of Kafka's protocol, which has no process ids
        return process.accepts(request.process)

    def is_from_its_process(self, request: RequestTraits) -> bool:
        """See ``Loaded``; true for a group that is not in memory."""
        group = self.loaded.get(request.group_id)
        return group is None or group.is_from_its_process(request)

    def load(self, group_id: str, records: Sequence[Record] | LogError) -> Outcome[None]:
        """Take a group from the log into memory; return the timers to arm and the effects to perform."""
        self.loading.discard(group_id)
        if isinstance(records, LogError):
            logger.error("group %s is not served: %s", printable(group_id), records)
            self.refused[group_id] = CoordinatorNotAvailable(str(records))
            return NOTHING
        if not records:
            return NOTHING
        name = _type_name(records, self._registry.default.name)
        group_type = self._registry.get(name)
        if group_type is None:
            error = InconsistentGroupProtocol(
                f"group {printable(group_id)} is of type {printable(name)!r}, which this coordinator does not serve; "
                f"allowed: {', '.join(self._registry.names)}"
            )
            logger.error("%s", error)
            self.refused[group_id] = error
            return NOTHING
        state = group_type.new(group_id)
        for record in records:
            group_type.apply(state, record)
        state.members_to_wake.clear()
        state.members_to_wake_later.clear()
        # A deleted group is kept as well: it stores its creation time (``connect.connectors``).
        self.loaded[group_id] = Loaded(group_type, state)
        self._on_loaded(state, records)
        return group_type.on_load(state, self.clock_ms())

    def discard(self, group_id: str) -> None:
        """Drop a group's state in memory; until it is loaded again, its requests get CoordinatorLoadInProgress."""
        self.loading.add(group_id)
        self.loaded.pop(group_id, None)


def _type_name(records: Sequence[Record], default: str) -> str:
    """The type of a group, from its newest ``GroupRecord``."""
    return next((record.group_type for record in reversed(records) if isinstance(record, GroupRecord)), default)


# --------------------------------------------------------------------------------------------------
# Recovers the groups of a log that was put back from an older copy.
#
# Since the copy was made, the coordinator has issued fencing tokens that the copy does not know. The sinks do, and
# reject tasks with lower tokens (``ConnectDraft`` is for groups that are in use). A recovered group begins a
# new incarnation, which is the first part of each fencing token, and has no members: workers join again and are
# assigned their units under new tokens. Connectors stay as they are in the copy; sinks have the positions up to which
# their rows are written, so no row is lost or doubled.


CAUSE = "removed: the log was recovered from an older copy"


async def recover(log: Log, *, now_ms: int) -> tuple[list[str], list[LogError]]:
    """Open a log, recover its groups of type ``connect``, and close it.

    Args:
        log: no coordinator may have it open.
        now_ms: the wall clock.

    Returns:
        The names of the recovered groups; and the errors of those that cannot be read, and are not served either.

    Raises:
        LogError: the log cannot be opened.
    """
    await log.open()
    try:
        recovered = await recover_groups(log, now_ms=now_ms)
        if isinstance(log, SharedLog):
            await log.mark_serving()
        return recovered
    finally:
        await log.close()


async def recover_groups(log: Log, *, now_ms: int) -> tuple[list[str], list[LogError]]:
    """As ``recover``, of a log that is open."""
    recovered, unreadable = list[str](), list[LogError]()
    for group_id, records in sorted((await log.load()).items()):
        if isinstance(records, LogError):
            unreadable.append(records)
            continue
        types = [record.group_type for record in records if isinstance(record, GroupRecord)]
        if types[-1:] != [GROUP_TYPE]:
            continue
        group = ConnectGroupState.replay(group_id, records)
        settings, draft = GroupSettings(), ConnectDraft(group, now_ms)
        for member in sorted(group.members):
            remove_member(draft, member, f"{member} {CAUSE}", settings)
        draft.bump("the log was recovered")
        # At least a second later: fencing tokens count the seconds of the incarnation.
        created_ms = max(now_ms, group.created_ms + 1_000)
        draft.write(
            GroupRecord(
                group_id=group_id,
                epoch=draft.epoch,
                created_ms=created_ms,
                restart_requests=group.restart_requests,
            )
        )
        await log.append(draft.records)
        recovered.append(group_id)
    return recovered, unreadable


# --------------------------------------------------------------------------------------------------
# Which groups are removed without a request: vacant groups, and what is left of deleted ones.
#
# A vacant group has no members, and no connectors or committed offsets (``is_vacant`` of its state). Any client can
# create many of them, by joining and leaving. They are deleted after ``VACANT_S``; at the limit of groups, a new group
# replaces the one that was created first. A deleted group leaves one record, its creation time
# (``connect.connectors``); if there are more than ``MAX_DELETED``, those of the groups that were deleted first are
# removed. A group of that name that is created later still has a higher incarnation, unless the clock was set back to a
# time before the deletion.


VACANT_S: Final = 600.0
"""Seconds that a vacant group is kept."""

CHECK_EVERY_S: Final = 60.0
"""Seconds between two searches for vacant groups."""

MAX_DELETED: Final = 1_000
"""Maximum number of deleted groups whose creation time is kept."""


@dataclass(frozen=True, slots=True)
class Remove:
    """The input that removes a group if it is vacant, or what is left of it if it is deleted."""


@dataclass(frozen=True, slots=True)
class WriteNumbers:
    """The input that writes again what no rule depends on (``Shard``, ``due``)."""


class Retention:
    """Finds the groups to remove.

    Attributes:
        next_check_s: when ``due`` looks for vacant groups again, on the event loop's clock.
    """

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._vacant: dict[str, tuple[int, float]] = {}  # the group epoch, and since when
        self._deleted: dict[str, None] | None = None  # in the order of their deletion; ``None`` before the first turn
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
        """The vacant group that a new one replaces; ``None`` if there is none."""
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
