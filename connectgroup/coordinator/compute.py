"""Server-side assignors: run off the event loop, with a time limit; each result re-enters the shard's queue.

A computation runs in a thread of its own, so a plug-in that blocks delays neither the other groups nor the heartbeats
of its own group. After the time limit the thread is abandoned and the computation counts as failed. An abandoned thread
does not block the computation of the next group epoch, but the same epoch is not computed again while it runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Final, cast

from ..assign.api import ConnectAssignor
from ..assign.convert import group_from_prepare, members_for_install
from ..assign.placement import NO_TRAITS
from ..assign.sandbox import configure_assignor, run_assignor
from ..errors import ConfigError, ConnectGroupError, PluginError
from ..group.connect.settings import GroupSettings, ServerAssignment, ServerAssignorCall
from ..group.kernel.outcome import Compute, Computed, Effect, Match, Matched, PatternMatcher, Repeat, Warn
from ..group.registry import Registry
from ..loggers import LineBudget
from ..masking import masked_text
from ..plugins import available, load_assignor
from ..protocol.messages.assignment import PrepareResponse
from ..protocol.messages.common import grouped
from ..protocol.units import printable
from ..threads import NoThread, off_loop

# --------------------------------------------------------------------------------------------------
# Server-side assignors: the plug-ins that workers run, run by the coordinator off its event loop.
#
# They serve groups whose workers list no assignor, and groups whose client-side assignors fail repeatedly (PD-06).


def with_own_assignor(settings: GroupSettings) -> GroupSettings:
    """Return the settings with the assignor that ``group.remote.assignor`` names, loaded from its entry point.

    Returns:
        The unchanged settings if they contain the assignor, if none is named, or if it cannot be loaded. A failed load
        is logged, because groups whose workers list no assignor then stay unassigned.
    """
    name = settings.server_assignor
    if not name or name in settings.server_assignors:
        return settings
    try:
        own = server_assignor(name)
    except (ConfigError, PluginError) as error:
        logger.warning("group.remote.assignor: %s", error.with_location() if isinstance(error, PluginError) else error)
        return settings
    return replace(settings, server_assignors={**settings.server_assignors, name: own})


def server_assignors(names: Iterable[str]) -> dict[str, ServerAssignorCall]:
    """Load the plug-ins that workers run, under the same names, for ``GroupSettings.server_assignors``."""
    return {name: server_assignor(name) for name in names}


def group_assignors(own: str, named: Iterable[str]) -> dict[str, ServerAssignorCall]:
    """The assignor ``group.remote.assignor``, and those of the named ones that are for connect groups."""
    of_workers = available("assignors")
    return server_assignors(dict.fromkeys([own, *(name for name in named if name in of_workers)]))


def server_assignor(name: str) -> Callable[[PrepareResponse], ServerAssignment]:
    """Load one assignor in the form of ``GroupSettings.server_assignors``.

    Raises:
        ConfigError, PluginError: there is no assignor of that name, or it cannot be created or configured.
    """
    assignor = load_assignor(name)
    configure_assignor(assignor, NO_TRAITS)
    return as_server_assignor(assignor)


def as_server_assignor(assignor: ConnectAssignor) -> Callable[[PrepareResponse], ServerAssignment]:
    """Wrap an assignor for ``GroupSettings.server_assignors``: a call returns the result, or raises ``PluginError``."""

    def assign(prepared: PrepareResponse) -> ServerAssignment:
        try:
            assignment = run_assignor(assignor, group_from_prepare(prepared))
        except PluginError as error:
            logger.error("server-side %s", error.with_location())
            raise
        if assignment.error:
            return ServerAssignment(error=assignment.error, message=assignment.message)
        return ServerAssignment(
            members=members_for_install(assignment),
            delayed=grouped(assignment.delayed),
            delay_ms=assignment.delay_ms,
            message=assignment.message,
        )

    return assign


# --------------------------------------------------------------------------------------------------


logger = logging.getLogger(__name__)

LIMIT_S: Final = 5.0
"""Time limit of one call, in seconds: half a session timeout. Built-in assignors take milliseconds."""

MAX_ABANDONED: Final = 8
"""Maximum number of abandoned threads of one assignor; above it the assignor is not called until one returns."""

Key = tuple[str, int, str]
"""A computation: group id, group epoch, assignor."""


class Effects:
    """Performs the effects of a shard: computations, of which some are in progress or abandoned, searches, warnings."""

    def __init__(
        self,
        registry: Registry,
        deliver: Callable[[Computed | Matched | Repeat], None],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """``deliver`` queues a result; ``spawn`` starts a background task of the shard."""
        self._registry, self._deliver, self._spawn = registry, deliver, spawn
        self._running: dict[Key, asyncio.Future[Any]] = {}  # calls of assignors that have not returned
        self._abandoned: set[Key] = set()  # those of them that took too long; their results count no more
        self._warned: dict[str, tuple[int, set[str]]] = {}  # the messages of each group's newest epoch
        self._budget = LineBudget()  # members that join in a loop make a new epoch each time
        self._searching = asyncio.Lock()  # held by _match

    def perform(self, effect: Effect) -> None:
        """Perform an effect. A computation that is in progress is not started twice."""
        match effect:
            case Compute():
                self._start(effect)
            case Match():
                self._spawn(self._match(effect))
            case Repeat():
                self._deliver(effect)
            case Warn():
                self._warn(effect)

    async def _match(self, effect: Match) -> None:
        """Find the topics that match a regular expression. A failed search is repeated by the next change of topics.

        One at a time: a change of topics has all expressions searched again, and to compile one may take 50 ms, during
        which no other thread runs.
        """
        matcher = cast("PatternMatcher", self._registry.get(effect.group_type))
        try:
            async with self._searching:
                topics = await off_loop("the topics of a subscription", partial(matcher.match, effect))
        except Exception as error:
            logger.error("group %s: pattern %s: %s", printable(effect.group_id), printable(effect.pattern), error)
            return
        self._deliver(Matched(group_id=effect.group_id, pattern=effect.pattern, topics=topics))

    def _warn(self, warning: Warn) -> None:
        epoch, messages = self._warned.get(warning.group_id, (-1, set()))
        if epoch != warning.epoch:
            messages = set()
            self._warned[warning.group_id] = warning.epoch, messages
        if warning.message not in messages and self._budget.take():
            messages.add(warning.message)
            left_out = self._budget.take_left_out()
            more = f" ({left_out} more warnings about groups since the last line)" if left_out else ""
            logger.warning("group %s: %s%s", printable(warning.group_id), warning.message, more)

    def _start(self, effect: Compute) -> None:
        key = (effect.group_id, effect.epoch, effect.assignor)
        if key in self._abandoned:
            self._fail(effect, f"assignor {effect.assignor!r} has not returned from its call for epoch {effect.epoch}")
        elif Counter(assignor for _, _, assignor in self._abandoned)[effect.assignor] >= MAX_ABANDONED:
            self._fail(effect, f"assignor {effect.assignor!r} has not returned from {MAX_ABANDONED} earlier calls")
        elif key not in self._running:
            self._spawn(self._compute(key, effect))

    def forget(self, group_id: str) -> None:
        """A group was deleted."""
        self._warned.pop(group_id, None)

    def close(self) -> None:
        """Abandon all computations."""
        for call in self._running.values():
            call.cancel()

    async def _compute(self, key: Key, effect: Compute) -> None:
        group_type = self._registry.get(effect.group_type)
        assert group_type is not None, "the group is served"
        call = asyncio.ensure_future(
            off_loop(f"server-side assignor {effect.assignor}", partial(group_type.run_assignor, effect))
        )
        self._running[key] = call
        call.add_done_callback(partial(self._returned, key))
        await asyncio.wait({call}, timeout=LIMIT_S)
        if not call.done():
            self._abandoned.add(key)
            late = f"assignor {effect.assignor!r} did not return within {LIMIT_S:g} s"
            logger.error(
                "group %s: epoch %d: %s; its thread is abandoned", printable(effect.group_id), effect.epoch, late
            )
            self._fail(effect, late)
        elif (error := call.exception()) is not None:
            self._fail(effect, str(error) if isinstance(error, ConnectGroupError | NoThread) else repr(error))
        else:
            self._deliver(_computed(effect, result=call.result()))

    def _fail(self, effect: Compute, error: str) -> None:
        self._deliver(_computed(effect, error=printable(masked_text(error), limit=500)))

    def _returned(self, key: Key, call: asyncio.Future[Any]) -> None:
        self._running.pop(key, None)
        self._abandoned.discard(key)
        if not call.cancelled():
            call.exception()  # the result of an abandoned call is dropped, its exception as well


def _computed(effect: Compute, *, result: Any = None, error: str = "") -> Computed:
    return Computed(group_id=effect.group_id, epoch=effect.epoch, assignor=effect.assignor, result=result, error=error)
