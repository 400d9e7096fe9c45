"""Calls user code, one call at a time and off the event loop: listeners, and the assignor's ``on_assignment``."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from ..assign.api import Assignor
from ..assign.members import ConnectMemberAssignment
from ..assign.sandbox import describe, location_of, notify_plugin_assignor as call_on_assignment
from ..errors import PluginError
from ..listener import WorkerRebalanceListener
from ..member.actions import TellAssignor
from ..member.settings import MemberSettings
from ..protocol.units import Unit, Units, show
from ..threads import off_loop
from .call_pool import off_loop_with_retry
from .hanging import named, place_of

logger = logging.getLogger(__name__)

Event = Literal["on_assigned", "on_revoked", "on_lost"]


@dataclass(slots=True)
class _Missed:
    """A call that a listener has still to get."""

    event: Event
    units: Units
    epoch: int


class _Called:
    """One listener and its calls.

    Attributes:
        call: under way, or the last one; ``Callbacks`` replaces it.
        abandoned: whether the caller of ``call`` was cancelled before it returned.
        catching_up: whether ``call`` is one that the listener had missed; ``Callbacks`` changes both.
        missed: calls that were due while ``call`` was abandoned, oldest first. ``defer`` adds, ``Callbacks`` takes.
        assigned: the units of ``on_assigned`` that were neither lost nor revoked since, by calls; ``run`` changes it.
    """

    def __init__(self, listener: WorkerRebalanceListener) -> None:
        self.listener = listener
        self.call: asyncio.Task[None] | None = None
        self.abandoned = self.catching_up = False
        self.missed: deque[_Missed] = deque()
        self.assigned: set[Unit] = set()

    def __str__(self) -> str:
        return f"listener {type(self.listener).__name__}"

    async def run(self, event: Event, units: Units, epoch: int) -> None:
        """Call the listener. A revocation that fails leaves its units to ``on_lost``."""
        if event == "on_assigned":
            self.assigned |= units
        elif event == "on_lost":
            self.assigned -= units
        await _call(self.listener, event, units, epoch)
        if event == "on_revoked":
            self.assigned -= units

    def defer(self, event: Event, units: Units, epoch: int) -> None:
        """Keep a call for later; no revocation, which is not acknowledged then: its units are revoked or lost later."""
        if event == "on_revoked":
            return
        if event == "on_lost":
            for each in self.missed:
                if each.event == "on_assigned":
                    unheard = each.units & units
                    each.units, units = each.units - unheard, units - unheard
            self.missed = deque(each for each in self.missed if each.units)
        if units:
            self.missed.append(_Missed(event, units, epoch))


class Callbacks:
    """Calls a worker's listeners, and its assignors' ``on_assignment``.

    The calls of a listener never overlap, even after one was abandoned (reliability S12). What became due meanwhile is
    called once it has returned: a listener that counts its units would be wrong for ever after (S11).
    """

    def __init__(
        self, listeners: Sequence[WorkerRebalanceListener] = (), assignors: Sequence[Assignor[Any, Any, Any]] = ()
    ) -> None:
        self._listeners, self._assignors = [_Called(listener) for listener in listeners], tuple(assignors)
        self._closed = False

    async def tell(self, event: Event, units: Units, epoch: int) -> PluginError | None:
        """Call each listener in order; an exception of one listener does not affect the others.

        If the caller is cancelled, the call under way is abandoned and continues; until it has returned, its listener
        is not called again. The listeners after it are called without a caller.

        Returns:
            The first failure, already logged as one line, or ``None``.
        """
        first: PluginError | None = None
        if not units:
            return None
        for index, called in enumerate(self._listeners):
            try:
                await self._tell_one(called, event, units, epoch)
            except PluginError as error:
                logger.error("%s", error.with_location())
                first = first or error
            except asyncio.CancelledError:
                for later in self._listeners[index + 1 :]:
                    later.defer(event, units, epoch)
                    self._catch_up(later)
                raise
        return first

    async def _tell_one(self, called: _Called, event: Event, units: Units, epoch: int) -> None:
        what = f"{event} of {show(units)}"
        while called.catching_up:
            await self._wait_for_late_call(called, event, units, epoch)
        if called.abandoned and called.call is not None:
            called.defer(event, units, epoch)
            raise PluginError(f"{called}: not told {what}: {called.call.get_name()} has not returned")
        if event == "on_lost" and not (units := units & called.assigned):
            return  # its calls are over: the last one was abandoned, and has returned
        call = called.call = asyncio.create_task(called.run(event, units, epoch), name=event)
        try:
            with named(lambda: f"{called}: {what}", lambda: place_of(call)):
                await asyncio.shield(call)
        except asyncio.CancelledError:
            if not call.cancelled():
                called.abandoned = True
                call.add_done_callback(partial(self._end_of_unawaited, called, f"{called}: {what} had been abandoned"))
                raise
            # Not this coroutine was cancelled: the listener was, or it raised ``CancelledError``.
            raise PluginError(f"{called}: {what} was cancelled") from None
        except Exception as error:
            message = f"{called}: {what} raised {describe(error)}"
            raise PluginError(message, location=location_of(error, called.listener)) from error

    async def _wait_for_late_call(self, called: _Called, event: Event, units: Units, epoch: int) -> None:
        call = called.call
        assert call is not None
        try:
            with named(lambda: f"{called}: {call.get_name()}, called late,", lambda: place_of(call)):
                await asyncio.wait({call})
        except asyncio.CancelledError:
            called.defer(event, units, epoch)
            raise

    def _end_of_unawaited(self, called: _Called, what: str, call: asyncio.Task[None]) -> None:
        """Log the failure of a call whose result no caller gets, and call the listener for what it has missed."""
        if not call.cancelled() and (error := call.exception()) is not None:
            logger.error("%s, and raised %s", what, describe(error))
        called.abandoned = called.catching_up = False
        self._catch_up(called)

    def _catch_up(self, called: _Called) -> None:
        """Begin the oldest call that a listener has missed, unless another one is under way."""
        while called.missed and not (called.abandoned or called.catching_up or self._closed):
            missed = called.missed.popleft()
            event, units, epoch = missed.event, missed.units, missed.epoch
            if event == "on_lost" and not (units := units & called.assigned):
                continue
            called.catching_up = True
            called.call = asyncio.create_task(called.run(event, units, epoch), name=event)
            what = f"{called}: {event} of {show(units)} was called late"
            called.call.add_done_callback(partial(self._end_of_unawaited, called, what))

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
        """Cancel the calls that are still under way; no other begins."""
        self._closed = True
        for called in self._listeners:
            if called.call is not None:
                called.call.cancel()


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
