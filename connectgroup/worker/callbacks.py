"""Calls user code, one call at a time and off the event loop: listeners, and the assignor's ``on_assignment``."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Literal

from ..assign.api import Assignor
from ..assign.members import ConnectMemberAssignment
from ..assign.sandbox import describe, location_of, notify_plugin_assignor as call_on_assignment
from ..errors import PluginError
from ..listener import WorkerRebalanceListener
from ..member.actions import TellAssignor
from ..member.settings import MemberSettings
from ..protocol.units import Units, show
from ..threads import off_loop
from .hanging import named, place_of
from .offload import off_loop_with_retry

logger = logging.getLogger(__name__)

Event = Literal["on_assigned", "on_revoked", "on_lost"]


class Callbacks:
    """Calls a worker's listeners, and its assignors' ``on_assignment``.

    The calls of a listener never overlap, even after one was abandoned (reliability S12).
    """

    def __init__(
        self, listeners: Sequence[WorkerRebalanceListener] = (), assignors: Sequence[Assignor[Any, Any, Any]] = ()
    ) -> None:
        self._listeners, self._assignors = tuple(listeners), tuple(assignors)
        self._calls: dict[int, asyncio.Task[None]] = {}

    async def tell(self, event: Event, units: Units, epoch: int) -> PluginError | None:
        """Call each listener in order; an exception of one listener does not affect the others.

        If the caller is cancelled, the call under way is abandoned and continues; until it has returned, its listener
        is not called again.

        Returns:
            The first failure, already logged as one line, or ``None``.
        """
        first: PluginError | None = None
        if not units:
            return None
        for index in range(len(self._listeners)):
            try:
                await self._tell_one(index, event, units, epoch)
            except PluginError as error:
                logger.error("%s", error.with_location())
                first = first or error
        return first

    async def _tell_one(self, index: int, event: Event, units: Units, epoch: int) -> None:
        listener = self._listeners[index]
        who = f"listener {type(listener).__name__}"
        before = self._calls.get(index)
        if before is not None and not before.done():
            raise PluginError(f"{who}: not told {event} of {show(units)}: {before.get_name()} has not returned")
        call = asyncio.create_task(_call(listener, event, units, epoch), name=event)
        self._calls[index] = call
        try:
            with named(lambda: f"{who}: {event} of {show(units)}", lambda: place_of(call)):
                await asyncio.shield(call)
        except asyncio.CancelledError:
            if not call.cancelled():
                call.add_done_callback(partial(_end_of_given_up, f"{who}: {event} of {show(units)}"))
                raise
            # Not this coroutine was cancelled: the listener was, or it raised ``CancelledError``.
            raise PluginError(f"{who}: {event} of {show(units)} was cancelled") from None
        except Exception as error:
            message = f"{who}: {event} of {show(units)} raised {describe(error)}"
            raise PluginError(message, location=location_of(error, listener)) from error

    async def on_assignment(self, member: MemberSettings, action: TellAssignor) -> None:
        """Call ``onAssignment`` of the assignor that the group used, and of no other assignor of this worker.

        An exception is logged; the assignment remains valid.
        """
        for assignor in self._assignors:
            if assignor.name != action.assignor:
                continue
            if type(assignor).on_assignment is Assignor.on_assignment:
                return  # not overridden: no thread for nothing
            share = ConnectMemberAssignment(
                member_id=member.member_id,
                units=action.units,
                error=action.error,
                # A member that the assignor omitted has no version.
                version=max(action.version, assignor.minimum_version),
                metadata=action.metadata,
                group_id=member.group_id,
                epoch=action.epoch,
                instance_id=member.instance_id,
            )
            try:
                await off_loop("on_assignment", call_on_assignment, assignor, share)
            except PluginError as error:
                logger.error("%s", error.with_location())

    def close(self) -> None:
        """Cancel the calls that are still under way."""
        for call in self._calls.values():
            call.cancel()


def _end_of_given_up(what: str, call: asyncio.Task[None]) -> None:
    """Log the failure of an abandoned call: no caller waits for it any more."""
    if not call.cancelled() and (error := call.exception()) is not None:
        logger.error("%s had been abandoned, and raised %s", what, describe(error))


async def _call(listener: WorkerRebalanceListener, event: Event, units: Units, epoch: int) -> None:
    call: Callable[[Units, int], Awaitable[None] | None] = getattr(listener, event)
    # A listener must always receive ``on_revoked`` and ``on_lost``, late rather than never.
    tell = off_loop if event == "on_assigned" else off_loop_with_retry
    result = await tell(event, call, units, epoch)
    if inspect.isawaitable(result):
        try:
            await result
        except SystemExit as error:
            # On the event loop, ``SystemExit`` would end the loop and every worker in it.
            raise PluginError(describe(error)) from error
