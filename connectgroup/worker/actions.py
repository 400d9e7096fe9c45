"""Performs the member's actions one at a time. Revoke: stop, call the listeners, acknowledge. Assign: call, start.

A loss does not wait in the queue. The performer stops the tasks as soon as the loss is decided, even while a listener
blocks, because another member may soon own them (KAFKA-9184). Actions queued before the loss are discarded. The action
under way does not proceed past its current step (KAFKA-16375), and the wait for it is bounded, so that a call that
never returns does not keep the worker out of its group. Only then is ``on_lost`` called: callbacks never overlap.

When the lease expires, the units that are not fenced stop as fast; all else continues.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from ..assign.sandbox import describe, location_of
from ..errors import GroupError, PluginError, one_line
from ..member.actions import Assign, Fail, Grant, Lapse, Lose, Revoke, TellAssignor
from ..member.state_machine import Member
from ..protocol.messages.heartbeat import TaskStatus
from ..protocol.records.connect import UnitState
from ..protocol.units import Unit, Units, show
from ..telemetry.spans import GROUP, MEMBER, MEMBER_EPOCH, UNITS, Value, current_traceparent, mark_failed, span
from .call_pool import slices
from .callbacks import Callbacks
from .hanging import named, place_of
from .metrics import WorkerMetrics
from .runner import Runner, UnitsNotStopped

logger = logging.getLogger(__name__)

Work = Revoke | Assign | TellAssignor | Lose | Lapse | Fail
Argument = TypeVar("Argument")
NamedBy = Callable[[asyncio.Task[None]], contextlib.AbstractContextManager[None]]

SPANS = {
    Revoke: "revoke",
    Assign: "assign",
    TellAssignor: "on_assignment",
    Lose: "lose",
    Lapse: "lapse",
    Fail: "fail",
}
"""The name of each action's span."""

FAIL_SHARE = 0.6
"""Fraction of the rebalance timeout that stops may take when the coordinator rejects the worker."""


class Performer:
    """Performs a member's actions. ``run`` performs them; ``do`` queues one and may be called at any time.

    Attributes:
        runner: runs the units; ``None`` if there is nothing to run.
        fatal: the error with which the coordinator rejected this worker; set after all units have been stopped.
        lost: how often all units were lost.
        idle: set while nothing is queued or being performed.
        metrics: measures the actions; the worker adds its heartbeats.
    """

    def __init__(
        self,
        member: Member,
        *,
        runner: Runner | None,
        callbacks: Callbacks,
        lose_timeout_s: float,
        report: Callable[[TaskStatus], None],
        on_change: Callable[[], None],
    ) -> None:
        """Create a performer. It performs no action before ``run``.

        Args:
            lose_timeout_s: after a loss, how long to wait for the tasks to stop. The action under way gets half of
                it; the listeners get an additional quarter.
            report: receives the status of a unit whose start failed.
            on_change: called when units have ended, so that the worker can notify the coordinator.
        """
        self.runner = runner
        self.fatal: GroupError | None = None
        self.lost = 0
        self._member = member
        self._callbacks = callbacks
        self._lose_timeout_s = lose_timeout_s
        # When the units were lost, and how long they may take to stop: set with each ``Lose`` and ``Fail``.
        self._lost_at, self._limit_s = 0.0, lose_timeout_s
        self._report = report
        self._on_change = on_change
        self.idle = asyncio.Event()
        self._queue: deque[Work] = deque()  # ``do`` adds; a ``Lose`` empties it
        self._traceparents: deque[str] = deque()  # of the actions in the queue
        self._has_work = asyncio.Event()  # the queue has actions
        self._losing = asyncio.Event()  # all units are lost: the action under way ends early; cleared when they stopped
        self._stopping: asyncio.Task[None] | None = None  # the stop of all lost units
        self._current: Work | None = None  # the action under way
        self.metrics = WorkerMetrics(member)
        self._begun: dict[Revoke | Lapse, asyncio.Task[None]] = {}  # stops of queued actions, which begin at once
        self._withheld: set[Unit] = set()  # units of a ``Lapse`` that is not complete: they do not start

    def do(self, action: Work) -> None:
        """Queue an action, as part of the caller's trace.

        A loss discards the actions queued before it and stops all units immediately.

        When the lease expires, the units that are not fenced stop immediately, and do not start any more.

        A revocation that arrives while another one is under way starts to stop its units immediately (CA-19): the
        coordinator measures its rebalance timeout from now, however long the earlier units take. Its listeners are
        called in queue order.
        """
        self.idle.clear()
        if isinstance(action, Lose | Fail):
            self._queue.clear()
            self._traceparents.clear()
            self._withheld.clear()
            self._lost_at, self._limit_s = asyncio.get_running_loop().time(), self._lose_timeout_s
            if isinstance(action, Fail):
                # Callbacks get an additional quarter, and the leave must also fit into the rebalance timeout.
                self._limit_s = min(self._limit_s, FAIL_SHARE * self._member.settings.rebalance_timeout_ms / 1000)
            self._losing.set()
            self._stopping = asyncio.create_task(self.stop(frozenset(self._member.owned)), name="stop lost work")
        elif isinstance(action, Lapse):
            self._withheld |= action.stops
            self._begin_stop(action, action.stops)
        elif isinstance(action, Revoke) and all(
            isinstance(work, Revoke | Lapse) for work in (self._current, *self._queue)
        ):
            self._begin_stop(action, action.units)
        self._queue.append(action)
        self._traceparents.append(current_traceparent())
        self._has_work.set()

    def _begin_stop(self, action: Revoke | Lapse, units: Units) -> None:
        self._begun[action] = stopping = asyncio.create_task(self.stop(units), name="stop units")
        # The action that waits for it handles the error; after a loss no code retrieves it.
        stopping.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def run(self) -> None:
        """Perform queued actions; return when ``fatal`` is set."""
        try:
            while self.fatal is None:
                await self._has_work.wait()
                self._has_work.clear()
                while self._queue:
                    self._current = action = self._queue.popleft()
                    began_s = asyncio.get_running_loop().time()
                    with span(SPANS[type(action)], self._traced(action), parent=self._traceparents.popleft()):
                        await self._perform(action)
                    self.metrics.on_performed(action, asyncio.get_running_loop().time() - began_s)
                    self._current = None
                self.idle.set()
                self.metrics.on_idle()
        finally:
            self._callbacks.close()
            for stopping in (self._stopping, *self._begun.values()):
                if stopping is not None:
                    stopping.cancel()

    async def _stopped(self, units: Units) -> None:
        """Wait until all lost units have stopped. If a stop failed, the sink must reject the writes of that unit."""
        assert self._stopping is not None
        for stopping in (self._stopping, asyncio.create_task(self.stop(units))):
            try:
                await stopping
            except Exception as error:
                logger.error("a stop failed: %s", self.describe_failure(error))

    async def stop(self, units: Units) -> None:
        """Stop these units, without a callback.

        Raises:
            Exception: one of them failed to stop.
        """
        if self.runner is not None and units:
            await _isolated("stop", self.runner.stop, units, named_by=self._hangs("stop", units))

    def _hangs(
        self, phase: str, units: Units
    ) -> Callable[[asyncio.Task[None]], contextlib.AbstractContextManager[None]]:
        """How to name a call of the runner that does not return; a runner may do so itself, unit by unit."""
        if getattr(self.runner, "names_what_hangs", False):
            return lambda task: contextlib.nullcontext()
        return lambda task: named(lambda: f"{show(units)}: runner.{phase}", lambda: place_of(task))

    def describe_failure(self, error: BaseException) -> str:
        """Format an error of the runner for the log, with file and line if the runner is an embedder's."""
        if isinstance(error, UnitsNotStopped) and error.__cause__ is not None:
            error = error.__cause__
        own = type(self.runner).__module__.partition(".")[0] == __name__.partition(".")[0]
        location = "" if own else location_of(error, self.runner)
        return PluginError(describe(error), location=location).with_location()

    # ----------------------------------------------------------------------------------------------

    async def _perform(self, action: Work) -> None:
        match action:
            case Revoke():
                await self._unless_lost(self._revoke(action))
            case TellAssignor():
                await self._unless_lost(self._callbacks.on_assignment(self._member.settings, action))
            case Assign():
                await self._unless_lost(self._assign(action))
            case Lapse():
                await self._unless_lost(self._lapse(action))
            case Lose(epoch=epoch, why=why):
                await self._lose(epoch, why)
            case Fail(error=error):
                logger.error("the group does not take this worker: %s", error)
                await self._lose(self._member.epoch, str(error))
                self.fatal = error

    def _traced(self, action: Work) -> dict[str, Value]:
        settings = self._member.settings
        attributes: dict[str, Value] = {GROUP: settings.group_id, MEMBER: settings.member_id}
        attributes[MEMBER_EPOCH] = self._member.epoch
        if isinstance(action, Assign):
            attributes[UNITS] = len(action.grants)
        elif not isinstance(action, Fail):
            attributes[UNITS] = len(action.units)
        return attributes

    async def _unless_lost(self, work: Coroutine[Any, Any, None]) -> None:
        """Perform an action. After a loss, wait for it until at most half of the time limit for the loss."""
        doing = asyncio.create_task(work)
        losing = asyncio.create_task(self._losing.wait())
        try:
            await asyncio.wait({doing, losing}, return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                await asyncio.wait({doing}, timeout=self._left_s(0.5))
            if not doing.done():
                logger.error("abandoned: a listener, an assignor or a task hangs")
                return
            doing.result()
        finally:
            for task in (doing, losing):
                task.cancel()

    async def _revoke(self, action: Revoke) -> None:
        logger.info("epoch %d: stopping %s", action.epoch, show(action.units))
        # Stop first: a listener that commits offsets must see the last offset written.
        stopping = self._begun.pop(action, None)
        try:
            await (self.stop(action.units) if stopping is None else stopping)
        except Exception as error:
            failed = action.units & error.units if isinstance(error, UnitsNotStopped) else action.units
            # The unit may still be writing. Unless its sink rejects that from the next owner's claim on, the revocation
            # must not be acknowledged (reliability X6, F18).
            described = self.describe_failure(error)
            mark_failed(type(error).__name__)
            # A leave is always attempted (KAFKA-16639). The successor of a static member may get the same tokens.
            is_fenced = not self._member.retiring and not self._member.unfenced & failed
            if self._member.retiring:
                effect = "but this worker leaves the group"
            else:
                effect = "but its sink is fenced" if is_fenced else "so it is not acknowledged"
            logger.error("%s: the stop failed, %s: %s", show(failed), effect, described)
            if not is_fenced:
                return  # the protocol acknowledges a revocation as a whole
        if self._losing.is_set():
            return
        failure = await self._callbacks.tell("on_revoked", action.units, action.epoch)
        if failure is None:
            with span("acknowledge", self._traced(action)):
                self._member.mark_revoked(action.units)
                self._on_change()

    async def _lapse(self, action: Lapse) -> None:
        """Complete the stop of the units that are not fenced, and let the coordinator assign them again.

        A unit that does not stop stays this worker's: a successor would run as well. As after a revocation whose stop
        fails, the group assigns it to another member after the rebalance timeout only (F18).
        """
        loop, timeout_s = asyncio.get_running_loop(), self._member.settings.rebalance_timeout_ms / 1000
        ends_s = loop.time() + timeout_s
        logger.warning("epoch %d: %s: stopping %s, which no sink fences", action.epoch, action.why, show(action.stops))
        try:
            async with asyncio.timeout_at(ends_s):
                await asyncio.shield(self._begun.pop(action))
                # Includes units whose start was under way.
                await self.stop(action.stops)
        except Exception as error:
            described = "its stop has not returned" if isinstance(error, TimeoutError) else self.describe_failure(error)
            mark_failed(type(error).__name__)
            logger.error(
                "%s: the stop failed, and no sink fences what is still written: %s", show(action.units), described
            )
            loop.call_later(max(0.0, ends_s - loop.time()), self._give_up, action.units, timeout_s)
            return
        finally:
            self._withheld -= action.stops
        if self._losing.is_set():
            return
        await self._callbacks.tell("on_lost", action.units, action.epoch)
        self._member.mark_lapsed(action.units)
        self._on_change()

    def _give_up(self, units: Units, timeout_s: float) -> None:
        left = units & self._member.owned.keys() & self._member.revoking
        if left and not self._member.retiring:
            for lose in self._member.give_up(f"{show(left)} did not stop within {timeout_s:g} s"):
                self.do(lose)

    async def _assign(self, action: Assign) -> None:
        grants: tuple[Grant, ...] = action.grants
        units = frozenset(grant.unit for grant in grants)
        logger.info("epoch %d: assigned %s", action.epoch, show(units))
        await self._callbacks.tell("on_assigned", units, action.epoch)
        grants = tuple(grant for grant in grants if grant.unit not in self._withheld) if self._withheld else grants
        if self._losing.is_set() or self.runner is None or not grants:
            return
        try:
            with span("start", self._traced(action)):
                limit_s = self._member.settings.rebalance_timeout_ms / 1000
                named_by = self._hangs("start", frozenset(grant.unit for grant in grants))
                await _isolated("start", self.runner.start, grants, named_by=named_by, limit_s=limit_s)
        except Exception as error:
            logger.error("%s: the start failed: %s", show(units), self.describe_failure(error))
            await self._report_failed(grants, one_line(error))

    async def _report_failed(self, grants: Sequence[Grant], message: str) -> None:
        for some in slices(grants):
            for grant in some:
                status = TaskStatus(
                    connector=grant.unit.connector,
                    task=grant.unit.task,
                    owner_epoch=grant.owner_epoch,
                    state=UnitState.FAILED,
                    message=message,
                )
                self._report(status)
            await asyncio.sleep(0)

    def _left_s(self, share: float) -> float:
        """Seconds until this fraction of the time limit for a loss has elapsed since the loss was decided."""
        return max(0.0, self._lost_at + share * self._limit_s - asyncio.get_running_loop().time())

    def _log_late(self, units: Units) -> None:
        """Report the lost units whose stop has not returned: a sink rejects only what its claims fence."""
        fenced, unfenced = units - self._member.unfenced, units & self._member.unfenced
        if fenced:
            logger.error("%s did not stop in time; its sink rejects its writes once a successor runs", show(fenced))
        if unfenced:
            logger.error(
                "%s did not stop in time; no sink fences it, so it may still write beside a successor until its stop "
                "returns",
                show(unfenced),
            )

    async def _lose(self, epoch: int, why: str) -> None:
        self.lost += 1
        # Not the units owned when the loss was decided: a revocation that was under way then may have completed, and
        # the listeners have already been called for its units.
        units = frozenset(self._member.owned)
        if units:
            logger.warning("epoch %d: worker %s lost %s: %s", epoch, self._member.settings.member_id, show(units), why)
        elif not self._member.retiring:
            logger.info("epoch %d: joining again: %s", epoch, why)
        assert self._stopping is not None
        _, late = await asyncio.wait({self._stopping}, timeout=self._left_s(0.75))
        if late:
            self._log_late(units)
        else:
            with contextlib.suppress(TimeoutError):
                # Includes units that were started while the first stop was under way.
                await asyncio.wait_for(self._stopped(units), self._left_s(1))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._left_s(1.25)):
                await self._callbacks.tell("on_lost", units, epoch)
        self._begun.clear()
        self._losing.clear()
        self._member.mark_lost()
        self._on_change()


async def _isolated(
    name: str,
    function: Callable[[Argument], Awaitable[None]],
    argument: Argument,
    *,
    named_by: NamedBy,
    limit_s: float | None = None,
) -> None:
    """Await a runner's method in a separate asyncio task: it cannot cancel its caller, and it is cancelled with it.

    Args:
        named_by: names the task in the log when it does not return.
        limit_s: how long it may take; ``None``: any time.

    Raises:
        PluginError: the method did not return in time.
        PluginError: the method was cancelled by other code than this call, or raised no ``Exception``.
        Exception: the exception that the method raised.
    """

    async def call() -> None:
        try:
            await function(argument)
        except (Exception, asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            # ``SystemExit`` on the event loop would end the loop and every worker in it.
            raise PluginError(f"runner: {name} raised {describe(error)}") from error

    task = asyncio.create_task(call(), name=f"runner {name}")
    try:
        with named_by(task):
            await asyncio.wait({task}, timeout=limit_s)
    except asyncio.CancelledError:
        task.cancel()
        task.add_done_callback(_log_abandoned)
        raise
    if not task.done():
        where = place_of(task)
        task.cancel()
        task.add_done_callback(_log_abandoned)
        raise PluginError(f"runner: {name} has not returned within {limit_s:g} s{where}; it is abandoned")
    if task.cancelled():
        raise PluginError(f"runner: {name} was cancelled")
    task.result()


def _log_abandoned(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("%s was abandoned, and raised %s", task.get_name(), describe(error))
