"""Server-side assignors: run off the event loop, with a time limit; each result re-enters the shard's queue.

A computation runs in a thread of its own, so a plug-in that blocks delays neither the other groups nor the heartbeats
of its own group. After the time limit the thread is abandoned and the computation counts as failed. An abandoned thread
does not block the computation of the next group epoch, but the same epoch is not computed again while it runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, cast

from ..errors import ConnectGroupError
from ..group.kernel.effects import Compute, Computed, Effect, Match, Matched, PatternMatcher, Repeat, Warn
from ..group.registry import Registry
from ..masking import masked_text
from ..protocol.units import printable
from ..threads import NoThread, off_loop

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
        *,
        limit_s: float = LIMIT_S,
    ) -> None:
        """``deliver`` queues a result; ``spawn`` starts a background task of the shard; ``limit_s``: as ``LIMIT_S``."""
        self.limit_s = limit_s
        self._registry, self._deliver, self._spawn = registry, deliver, spawn
        self._running: dict[Key, asyncio.Future[Any]] = {}
        self._abandoned: set[Key] = set()
        self._warned: dict[str, tuple[int, set[str]]] = {}  # the messages of each group's newest epoch

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
        """Find the topics that match a regular expression. A failed search is repeated by the next change of topics."""
        matcher = cast("PatternMatcher", self._registry.get(effect.group_type))
        try:
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
        if warning.message not in messages:
            messages.add(warning.message)
            logger.warning("group %s: %s", printable(warning.group_id), warning.message)

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
        await asyncio.wait({call}, timeout=self.limit_s)
        if not call.done():
            self._abandoned.add(key)
            late = f"assignor {effect.assignor!r} did not return within {self.limit_s:g} s"
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
