"""Whether the log takes writes, and what waits until it does.

A log whose disk is full can still be read: its groups are served from the durable state, and each change is rejected
with a retriable error. Nothing is removed meanwhile, because that is a change, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from ..errors import CoordinatorNotAvailable
from ..group.kernel.effects import Effect
from ..log.base import Log, LogNotWritable

logger = logging.getLogger(__name__)

PROBE_S: Final = 0.5
"""Interval between two attempts to write to a log that took no writes."""


class Writability:
    """The state of the log, and the effects that are performed once it takes writes.

    Attributes:
        error: why the log takes no writes; empty if it does. Set by ``on_failed``, cleared by ``on_written``.
    """

    def __init__(self, log: Log, spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        """``spawn``: starts a background task of the shard."""
        self._log, self._spawn = log, spawn
        self.error = ""
        self.perform: Callable[[Effect], None]
        self._waiting: list[Effect] = []

    def on_failed(self, error: LogNotWritable) -> None:
        """An append has failed, and nothing was written."""
        if not self.error:
            logger.error("the log takes no writes, changes of groups are rejected until it does: %s", error)
            self._spawn(self._probe())
        self.error = str(error)

    def on_written(self) -> None:
        """An append is durable."""
        if not self.error:
            return
        self.error = ""
        logger.warning("the log takes writes again")
        waiting, self._waiting = self._waiting, []
        for effect in waiting:
            self.perform(effect)

    def refusal(self) -> CoordinatorNotAvailable:
        """The error of a change."""
        return CoordinatorNotAvailable(f"the log takes no writes: {self.error}")

    def hold(self, effects: Sequence[Effect]) -> bool:
        """Keep the effects of a group that was loaded again: their results could not be stored, and would be asked for
        at once again. Returns false if the log takes writes."""
        if not self.error:
            return False
        groups = {effect.group_id for effect in effects}
        self._waiting = [each for each in self._waiting if each.group_id not in groups] + list(effects)
        return True

    async def _probe(self) -> None:
        while self.error:
            await asyncio.sleep(PROBE_S)
            try:
                await self._log.check_writable()
            except Exception as error:
                logger.debug("the log still takes no writes: %s", error)
            else:
                self.on_written()
