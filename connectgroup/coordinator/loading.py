"""The groups of a shard: loaded from the log, dropped after a failed append, and loaded again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import (
    CoordinatorNotAvailable,
    GroupError,
    InconsistentGroupProtocol,
    LogError,
)
from ..group.kernel.outcome import Outcome
from ..group.kernel.process import NO_PROCESS, Process
from ..group.kernel.timers import Timer
from ..group.registry import GroupType, Registry, RequestTraits
from ..log.base import Log, LogFenced
from ..protocol.messages.api import Response
from ..protocol.records.connect import GroupRecord, Record
from ..protocol.units import printable
from .command import loading_error

logger = logging.getLogger(__name__)

RELOAD_WAIT_S = 0.2
"""Interval between two attempts to load a group from a log that is temporarily unreadable."""

Spawn = Callable[[Coroutine[Any, Any, None]], object]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A group in memory: its type and its state.

    Attributes:
        removes: the records that remove the group of another type that it replaces; written with the first records of
            this group. Until then the former group stays.
        timers, parked_responses: of the conversion of a group with members (``registry.Converted``).
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

    def __init__(self, log: Log, registry: Registry, *, clock_ms: Callable[[], int], spawn: Spawn) -> None:
        """Create an empty table; the shard sets the hooks ``on_loaded``, ``on_dropped`` and ``on_fenced``.

        Args:
            log: an open log.
            registry: the types of groups that are served.
            clock_ms: the wall clock.
            spawn: starts a background task of the shard.
        """
        self.loaded: dict[str, Loaded] = {}
        self.refused: dict[str, GroupError] = {}
        self.loading: set[str] = set()
        self.on_loaded: Callable[[Outcome[None]], None]
        self.on_dropped: tuple[Callable[[str], None], ...]
        self.on_fenced: Callable[[LogFenced], None]
        self.clock_ms = clock_ms
        self._log, self._registry, self._spawn = log, registry, spawn

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

    async def load_all(self) -> None:
        """Load every group of the log.

        Raises:
            LogError: the log cannot be read at all.
        """
        for group_id, records in (await self._log.load()).items():
            self._take(group_id, records)

    def _take(self, group_id: str, records: Sequence[Record] | LogError) -> None:
        if isinstance(records, LogError):
            logger.error("group %s is not served: %s", printable(group_id), records)
            self.refused[group_id] = CoordinatorNotAvailable(str(records))
            return
        if not records:
            return
        name = _type_name(records, self._registry.default.name)
        group_type = self._registry.get(name)
        if group_type is None:
            error = InconsistentGroupProtocol(
                f"group {printable(group_id)} is of type {printable(name)!r}, which this coordinator does not serve; "
                f"allowed: {', '.join(self._registry.names)}"
            )
            logger.error("%s", error)
            self.refused[group_id] = error
            return
        state = group_type.new(group_id)
        for record in records:
            group_type.apply(state, record)
        state.members_to_wake.clear()
        state.members_to_wake_later.clear()
        # A deleted group is kept as well: it stores its creation time (``group.connect.delete``).
        self.loaded[group_id] = Loaded(group_type, state)
        self.on_loaded(group_type.on_load(state, self.clock_ms()))

    def drop(self, group_id: str) -> None:
        """Drop a group's state and reload it in the background."""
        if group_id not in self.loading:
            self._drop(group_id)
            self._spawn(self._reload(group_id))

    async def drop_and_reload(self, group_id: str) -> None:
        """Drop a group's state and reload it at once; in the background if the log cannot be read now."""
        self._drop(group_id)
        if not await self._reload_once(group_id):
            self._spawn(self._reload(group_id))

    def _drop(self, group_id: str) -> None:
        """Drop a group's state in memory; until the group is reloaded, its requests get CoordinatorLoadInProgress."""
        self.loading.add(group_id)
        self.loaded.pop(group_id, None)
        for on_dropped in self.on_dropped:
            on_dropped(group_id)

    async def _reload(self, group_id: str) -> None:
        failed = False
        while not await self._reload_once(group_id, logs=not failed):
            failed = True
            await asyncio.sleep(RELOAD_WAIT_S)
        if failed and group_id not in self.refused:
            logger.warning("group %s is loaded again", printable(group_id))

    async def _reload_once(self, group_id: str, *, logs: bool = True) -> bool:
        """Reload a group; return false if the log cannot be read now, which is logged if ``logs``."""
        try:
            loaded = await self._log.load(group_id)
        except LogFenced as error:
            self.on_fenced(error)
            return True
        except LogError as error:
            if logs:
                logger.error("group %s cannot be loaded, retrying: %s", printable(group_id), error)
            return False
        self._take(group_id, loaded[group_id])
        self.loading.discard(group_id)
        return True


def _type_name(records: Sequence[Record], default: str) -> str:
    """The type of a group, from its newest ``GroupRecord``."""
    return next((record.group_type for record in reversed(records) if isinstance(record, GroupRecord)), default)
