"""Doing what the member decided on, one thing after the other: stop, tell the listeners, acknowledge; tell, start.

A loss does not wait for its turn. The tasks are stopped as soon as it is decided, because somebody else may be
given them soon (KAFKA-9184), even while a listener blocks; what was queued before it is void; what is being done
goes no further than its next step (KAFKA-16375) and is waited for only so long, so that a call that never comes
back does not keep the worker out of its group. Only then is ``on_lost`` told: callbacks never overlap.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from ..assign.api import Assignor
from ..assign.sandbox import describe
from ..errors import GroupError, PluginError
from ..listener import WorkerRebalanceListener
from ..member.actions import Assign, Fail, Grant, Lose, Revoke, TellAssignor
from ..member.state_machine import Member
from ..protocol.messages.heartbeat import TaskStatus
from ..protocol.records.connect import UnitState
from ..protocol.units import Units, show
from ..telemetry.spans import span
from .callbacks import Listeners, tell_assignor
from .offload import slices
from .runner import Runner, one_line

logger = logging.getLogger(__name__)

Work = Revoke | Assign | TellAssignor | Lose | Fail
Argument = TypeVar("Argument")

FAIL_SHARE = 0.6
"""The part of the rebalance timeout that stops may take when the coordinator refuses the worker."""


class Performer:
    """Performs a member's actions. ``run`` is its one activity; ``do`` may be called at any time.

    Attributes:
        runner: runs the work; ``None`` where there is nothing to run.
        fatal: why the group will not have this worker, once everything has been stopped for it.
        lost: how often everything was lost.
        idle: set while nothing is queued or being performed.
    """

    def __init__(
        self,
        member: Member,
        *,
        runner: Runner | None,
        assignors: Sequence[Assignor[Any, Any, Any]],
        listeners: Sequence[WorkerRebalanceListener],
        lose_timeout_s: float,
        report: Callable[[TaskStatus], None],
        on_change: Callable[[], None],
    ) -> None:
        """Nothing is performed before ``run``.

        Args:
            lose_timeout_s: how long to wait, once everything is lost, for the tasks to stop. The action under way gets
                half of it, the listeners a quarter more.
            report: takes the status of a unit whose start failed.
            on_change: called when units have ended, so that the group may hear of it.
        """
        self.runner = runner
        self.fatal: GroupError | None = None
        self.lost = 0
        self._member = member
        self._assignors = tuple(assignors)
        self._listeners = Listeners(listeners)
        self._lose_timeout_s = lose_timeout_s
        self._lost_at, self._limit_s = 0.0, lose_timeout_s
        self._report = report
        self._on_change = on_change
        self.idle = asyncio.Event()
        self._queue: deque[Work] = deque()
        self._has_work = asyncio.Event()
        self._losing = asyncio.Event()
        self._stopping: asyncio.Task[None] | None = None
        self._current: Work | None = None
        self._begun: dict[Revoke, asyncio.Task[None]] = {}

    def do(self, action: Work) -> None:
        """Queue an action; a loss makes what was queued before it void, and stops everything at once.

        A revocation that comes while another one is under way begins to stop its units at once (CA-19): the group
        counts its rebalance timeout from now, whatever the earlier units take. Its listeners are told in its turn.
        """
        self.idle.clear()
        if isinstance(action, Lose | Fail):
            self._queue.clear()
            self._lost_at, self._limit_s = asyncio.get_running_loop().time(), self._lose_timeout_s
            if isinstance(action, Fail):
                # The callbacks get a quarter more, and the leave has to fit into the rebalance timeout as well.
                self._limit_s = min(self._limit_s, FAIL_SHARE * self._member.settings.rebalance_timeout_ms / 1000)
            self._losing.set()
            self._stopping = asyncio.create_task(self.stop(frozenset(self._member.owned)), name="stop lost work")
        elif isinstance(action, Revoke) and all(isinstance(work, Revoke) for work in (self._current, *self._queue)):
            self._begun[action] = stopping = asyncio.create_task(self.stop(action.units), name="stop revoked units")
            # Its error is for ``_revoke``; after a loss nothing asks for it.
            stopping.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._queue.append(action)
        self._has_work.set()

    async def run(self) -> None:
        """Perform what is queued; returns when there is a ``fatal``."""
        try:
            while self.fatal is None:
                await self._has_work.wait()
                self._has_work.clear()
                while self._queue:
                    self._current = action = self._queue.popleft()
                    with span(
                        type(action).__name__.lower(),
                        {"member": self._member.settings.member_id, "epoch": self._member.epoch},
                    ):
                        await self._perform(action)
                    self._current = None
                self.idle.set()
        finally:
            self._listeners.close()
            for stopping in (self._stopping, *self._begun.values()):
                if stopping is not None:
                    stopping.cancel()

    async def _stopped(self, units: Units) -> None:
        """Everything lost has stopped, or has failed to: then its writes are for the sink to refuse."""
        assert self._stopping is not None
        for stopping in (self._stopping, asyncio.create_task(self.stop(units))):
            try:
                await stopping
            except Exception as error:
                logger.error("a stop failed: %s", describe(error))

    async def stop(self, units: Units) -> None:
        """End these, without a callback.

        Raises:
            Exception: one of them failed to stop.
        """
        if self.runner is not None and units:
            await _isolated("stop", self.runner.stop, units)

    # ----------------------------------------------------------------------------------------------

    async def _perform(self, action: Work) -> None:
        match action:
            case Revoke():
                await self._unless_lost(self._revoke(action))
            case TellAssignor():
                await self._unless_lost(tell_assignor(self._assignors, self._member.settings, action))
            case Assign():
                await self._unless_lost(self._assign(action))
            case Lose(epoch=epoch, why=why):
                await self._lose(epoch, why)
            case Fail(error=error):
                logger.error("the group does not take this worker: %s", error)
                await self._lose(self._member.epoch, str(error))
                self.fatal = error

    async def _unless_lost(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it; once everything is lost, wait for it only so long."""
        doing = asyncio.create_task(work)
        losing = asyncio.create_task(self._losing.wait())
        try:
            await asyncio.wait({doing, losing}, return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                await asyncio.wait({doing}, timeout=self._left_s(0.5))
            if not doing.done():
                logger.error("given up: a listener, an assignor or a task hangs")
                return
            doing.result()
        finally:
            for task in (doing, losing):
                task.cancel()

    async def _revoke(self, action: Revoke) -> None:
        logger.info("epoch %d: stopping %s", action.epoch, show(action.units))
        # Stop first: a listener that commits offsets must see the last one written.
        stopping = self._begun.pop(action, None)
        try:
            await (self.stop(action.units) if stopping is None else stopping)
        except Exception as error:
            # It may still be writing: the group must not hear that it is not (reliability X6, F18).
            logger.error("%s: the stop failed, so it is not acknowledged: %s", show(action.units), describe(error))
            return
        if self._losing.is_set():
            return
        failure = await self._listeners.tell("on_revoked", action.units, action.epoch)
        if failure is None:
            self._member.mark_revoked(action.units)
            self._on_change()

    async def _assign(self, action: Assign) -> None:
        grants: tuple[Grant, ...] = action.grants
        units = frozenset(grant.unit for grant in grants)
        logger.info("epoch %d: given %s", action.epoch, show(units))
        await self._listeners.tell("on_assigned", units, action.epoch)
        if self._losing.is_set() or self.runner is None:
            return
        try:
            await _isolated("start", self.runner.start, grants)
        except Exception as error:
            logger.error("%s: the start failed: %s", show(units), describe(error))
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
        """Seconds until this share of the time for a loss has passed since the loss was decided."""
        return max(0.0, self._lost_at + share * self._limit_s - asyncio.get_running_loop().time())

    async def _lose(self, epoch: int, why: str) -> None:
        self.lost += 1
        # Not what was held when it was decided: a revocation under way then has told the listeners of its units.
        units = frozenset(self._member.owned)
        if units:
            logger.warning("epoch %d: lost %s: %s", epoch, show(units), why)
        else:
            logger.info("epoch %d: joining again: %s", epoch, why)
        assert self._stopping is not None
        _, late = await asyncio.wait({self._stopping}, timeout=self._left_s(0.75))
        if late:
            logger.error("%s did not stop in time; its writes are refused from now on", show(units))
        else:
            with contextlib.suppress(TimeoutError):
                # Also what was started while the first stop was under way.
                await asyncio.wait_for(self._stopped(units), self._left_s(1))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._left_s(1.25)):
                await self._listeners.tell("on_lost", units, epoch)
        self._begun.clear()
        self._losing.clear()
        self._member.mark_lost()
        self._on_change()


async def _isolated(name: str, function: Callable[[Argument], Awaitable[None]], argument: Argument) -> None:
    """Await a runner's method in a task of its own, so that it can neither cancel its caller nor outlast it.

    Raises:
        PluginError: it was cancelled by something else than this call, or raised no ``Exception``.
        Exception: what it raised.
    """

    async def call() -> None:
        try:
            await function(argument)
        except (Exception, asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            # ``SystemExit`` on the event loop would end the loop, and every worker in it.
            raise PluginError(f"runner: {name} raised {describe(error)}") from error

    task = asyncio.create_task(call(), name=f"runner {name}")
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        task.cancel()
        task.add_done_callback(_log_abandoned)
        raise
    if task.cancelled():
        raise PluginError(f"runner: {name} was cancelled")
    task.result()


def _log_abandoned(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("%s was abandoned, and raised %s", task.get_name(), describe(error))
