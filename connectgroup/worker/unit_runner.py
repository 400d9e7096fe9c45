"""Runners of a program that start and stop one unit at a time: ``UnitRunner``, and ``ThreadUnitRunner`` with threads.

    class Printer(UnitRunner):
        async def start_unit(self, grant): ...
        async def stop_unit(self, unit): ...

Units are independent of each other: one that fails, hangs or takes long holds up no other one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

from ..assign.sandbox import describe, location_of
from ..checks import check_object
from ..connector import Config
from ..errors import ConfigError, PluginError, StaleMemberEpoch, one_line
from ..member.actions import Grant
from ..protocol.messages.heartbeat import TaskStatus
from ..protocol.records.connect import UnitState
from ..protocol.units import Unit, Units
from .call_pool import SLICE, Call, CallPool, slices
from .hanging import named, place_of, place_of_thread
from .runner import START_REPORT_S, UnitsNotStopped
from .state import WorkerState

logger = logging.getLogger(__name__)


class _Worker(Protocol):
    """What a runner needs of its ``Worker``."""

    @property
    def member_id(self) -> str: ...
    @property
    def state(self) -> WorkerState: ...
    def report(self, status: TaskStatus) -> None: ...
    async def publish_tasks(self, connector: str, owner_epoch: int, configs: Sequence[Config]) -> None: ...


@dataclass(slots=True, eq=False)
class _Run:
    """One grant under way; ``_UnitRunner`` changes it.

    Attributes:
        starting: the call of ``start_unit``.
        stopping: the last call of ``stop_unit``; ``None`` before the first one.
    """

    grant: Grant
    starting: asyncio.Task[None] | None = None
    stopping: asyncio.Task[None] | None = None


class _UnitRunner:
    """What both kinds of runner do; one object runs the units of one worker at a time."""

    fenced: ClassVar[bool] = False
    """Whether what the units write to rejects the writes of a former owner (``TaskStatus.fenced``)."""

    start_timeout_s: ClassVar[float] = 60.0
    """A unit whose start takes longer is FAILED, with the place where it hangs."""

    names_what_hangs: ClassVar[bool] = True

    _worker: _Worker | None = None
    _loop: asyncio.AbstractEventLoop | None = None

    def attach(self, worker: _Worker) -> None:
        """The worker whose units this runner runs; called by the worker itself.

        Raises:
            ConfigError: it runs the units of another worker, which has not ended.
        """
        if self._worker is not None and self._worker is not worker and self._worker.state.ended is None:
            got = f"the {type(self).__name__} of worker {self._worker.member_id}, which has not ended"
            raise ConfigError("runner", got, "an object for each worker")
        self._worker = worker
        self._runs: dict[Unit, _Run] = {}

    async def start(self, grants: Sequence[Grant]) -> None:
        """See ``Runner.start``: calls ``start_unit`` for each unit, all at the same time, and does not wait for it."""
        self._loop = asyncio.get_running_loop()
        for some in slices(grants):
            for grant in some:
                run = self._runs[grant.unit] = _Run(grant)
                run.starting = asyncio.create_task(self._start_one(run), name=f"start {grant.unit}")
            if len(grants) > SLICE:
                await asyncio.sleep(0)

    async def stop(self, units: Units) -> None:
        """See ``Runner.stop``: calls ``stop_unit`` for each unit, all at the same time, and waits for all.

        Raises:
            UnitsNotStopped: some have failed to stop; the others have stopped.
        """
        runs = {unit: self._runs[unit] for unit in sorted(units) if unit in self._runs}
        for unit, run in runs.items():
            if run.stopping is None or run.stopping.done():
                run.stopping = asyncio.create_task(self._stop_one(run), name=f"stop {unit}")
        stops = {unit: run.stopping for unit, run in runs.items() if run.stopping is not None}
        if stops:
            await asyncio.wait(stops.values())  # a cancellation of this call cancels no stop
        errors = {unit: stop.exception() for unit, stop in stops.items() if not stop.cancelled()}
        failed = {unit: error for unit, error in errors.items() if error is not None}
        if failed:
            first = next(iter(failed.values()))
            raise UnitsNotStopped(frozenset(failed), describe(first)) from first

    async def _start_one(self, run: _Run) -> None:
        grant = run.grant
        call = asyncio.create_task(self._isolated("start", self._start(grant)), name=f"start {grant.unit}")
        try:
            with named(lambda: f"{grant.unit}: start_unit", lambda: self._place("start", grant.unit, call)):
                reports = self.start_timeout_s > START_REPORT_S
                await asyncio.wait({call}, timeout=START_REPORT_S if reports else self.start_timeout_s)
                if reports and not call.done():
                    self._say(run, UnitState.STARTING, "")
                    await asyncio.wait({call}, timeout=self.start_timeout_s - START_REPORT_S)
                if not call.done():
                    where = self._place("start", grant.unit, call) or ", and has not begun"
                    message = f"start_unit has not returned within {self.start_timeout_s:g} s{where}"
                    logger.error("%s: %s", grant.unit, message)
                    self._say(run, UnitState.FAILED, message)
                    if self._gives_up_late_starts:
                        call.cancel()
                        call.add_done_callback(lambda done: done.cancelled() or done.exception())
                        return
                    await asyncio.wait({call})
            call.result()
        except asyncio.CancelledError:
            call.cancel()
            await asyncio.wait({call})
            raise
        except Exception as error:
            described = PluginError(describe(error), location=location_of(error, self)).with_location()
            logger.error("%s: the start failed: %s", grant.unit, described)
            self._say(run, UnitState.FAILED, one_line(error, grant.config, grant.connector_config))
        else:
            self._say(run, UnitState.RUNNING, "")

    async def _stop_one(self, run: _Run) -> None:
        unit = run.grant.unit
        if run.starting is not None and not run.starting.done():
            run.starting.cancel()
            with named(lambda: f"{unit}: start_unit, which must end before its stop,", lambda: place_of_run(run)):
                await asyncio.wait({run.starting})
        call = asyncio.create_task(self._isolated("stop", self._stop(unit)), name=f"stop {unit}")
        with named(lambda: f"{unit}: stop_unit", lambda: self._place("stop", unit, call)):
            await asyncio.wait({call})
        call.result()
        if self._runs.get(unit) is run:
            del self._runs[unit]

    async def _isolated(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Await the method of a program: whatever it raises is an error of its unit."""
        task = asyncio.current_task()
        try:
            await work
        except asyncio.CancelledError:
            if task is not None and task.cancelling():
                raise
            raise PluginError(f"{name}_unit was cancelled") from None
        except Exception:
            raise
        except BaseException as error:
            raise PluginError(f"{name}_unit raised {describe(error)}") from error

    def _say(self, run: _Run, state: UnitState, message: str) -> None:
        unit = run.grant.unit
        if self._worker is not None and self._runs.get(unit) is run:
            self._worker.report(
                TaskStatus(
                    connector=unit.connector,
                    task=unit.task,
                    owner_epoch=run.grant.owner_epoch,
                    state=state,
                    message=message,
                    fenced=self.fenced,
                )
            )

    def _report(self, unit: Unit, state: UnitState, message: str) -> None:
        if (run := self._of_worker().get(unit)) is not None:
            self._say(run, state, message)

    def _of_worker(self) -> dict[Unit, _Run]:
        """What runs; a program error if no worker has this runner yet."""
        if self._worker is None:
            raise ConfigError("runner", f"a {type(self).__name__} without a worker", "runner=... of a worker first")
        return self._runs

    async def _publish(self, connector: str, configs: Sequence[Config]) -> None:
        check_object("connector", connector, str, "its name: grant.unit.connector")
        run = self._of_worker().get(Unit(connector))
        if run is None or self._worker is None:
            raise StaleMemberEpoch(f"connector {connector} does not run here")
        await self._worker.publish_tasks(connector, run.grant.owner_epoch, configs)

    _gives_up_late_starts: ClassVar[bool] = True

    def _place(self, phase: str, unit: Unit, call: asyncio.Task[None]) -> str | None:
        return place_of(call)

    async def _start(self, grant: Grant) -> None:
        raise NotImplementedError

    async def _stop(self, unit: Unit) -> None:
        raise NotImplementedError


def place_of_run(run: _Run) -> str:
    """Where the start of a unit is."""
    return "" if run.starting is None else place_of(run.starting)


class UnitRunner(_UnitRunner):
    """A runner with one coroutine that starts a unit and one that stops it; a subclass implements both.

    Units start and stop at the same time as others. The runner reports a unit as RUNNING when ``start_unit`` has
    returned, and as FAILED when it has raised or has not returned within ``start_timeout_s``.
    """

    async def start_unit(self, grant: Grant) -> None:
        """Start a unit; return when it runs. It must not block the event loop.

        It is cancelled if the unit must stop before, and after ``start_timeout_s``.
        """
        raise NotImplementedError(f"{type(self).__name__}: async def start_unit(self, grant)")

    async def stop_unit(self, unit: Unit) -> None:
        """Stop a unit: after this returns, it does not write any more.

        Called once for each call of ``start_unit``, also if that has failed or was cancelled; again if it raises and
        the worker stops its units again.

        Raises:
            Exception: it may still be writing. Unless it is ``fenced``, the revocation is not acknowledged: the group
                assigns its units to other members after the rebalance timeout only. All other units are stopped.
        """
        raise NotImplementedError(f"{type(self).__name__}: async def stop_unit(self, unit)")

    def report(self, unit: Unit, state: UnitState, message: str = "") -> None:
        """Report a change of a unit's state later: FAILED with the reason, or RUNNING again. On the event loop.

        Ignored for a unit that does not run here any more.
        """
        self._report(unit, state, message)

    async def publish(self, connector: str, configs: Sequence[Config]) -> None:
        """Send the task list of a connector whose unit runs here: one configuration of text per task.

        Raises:
            StaleMemberEpoch: the connector does not run here any more.
            ConfigError, GroupError, TransportError: as of ``Worker.publish_tasks``.
        """
        await self._publish(connector, configs)

    async def _start(self, grant: Grant) -> None:
        await self.start_unit(grant)

    async def _stop(self, unit: Unit) -> None:
        await self.stop_unit(unit)


class ThreadUnitRunner(_UnitRunner):
    """The same with plain methods, which may block: each call has a thread. All methods may be called in any thread.

    A thread cannot be cancelled: a unit that must stop while it starts is stopped after ``start_unit`` has returned.
    """

    _gives_up_late_starts: ClassVar[bool] = False

    def start_unit(self, grant: Grant) -> None:
        """Start a unit; return when it runs. If it returns after ``start_timeout_s``, it is RUNNING then."""
        raise NotImplementedError(f"{type(self).__name__}: def start_unit(self, grant)")

    def stop_unit(self, unit: Unit) -> None:
        """Stop a unit; as ``UnitRunner.stop_unit``."""
        raise NotImplementedError(f"{type(self).__name__}: def stop_unit(self, unit)")

    def report(self, unit: Unit, state: UnitState, message: str = "") -> None:
        """As ``UnitRunner.report``, from any thread."""
        self._of_worker()
        self._call(partial(self._report, unit, state, message))

    def publish(self, connector: str, configs: Sequence[Config]) -> None:
        """As ``UnitRunner.publish``; waits for the response. Not on the event loop."""
        self._of_worker()
        if self._loop is None:
            raise StaleMemberEpoch(f"connector {connector} does not run here")
        asyncio.run_coroutine_threadsafe(self._publish(connector, configs), self._loop).result()

    def attach(self, worker: _Worker) -> None:
        """See ``UnitRunner``."""
        super().attach(worker)
        self._pool, self._calls = CallPool(), dict[str, Call[None]]()

    def _call(self, function: Callable[[], None]) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function)

    def _place(self, phase: str, unit: Unit, call: asyncio.Task[None]) -> str | None:
        return place_of_thread(f"{phase} {unit}")

    async def _start(self, grant: Grant) -> None:
        call = Call(f"start {grant.unit}", partial(self.start_unit, grant))
        running = asyncio.ensure_future(self._pool.run(call))
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            self._pool.withdraw(call)
            await asyncio.wait({running})
            running.cancelled() or running.exception()
            raise

    async def _stop(self, unit: Unit) -> None:
        await self._pool.off_loop_with_retry(f"stop {unit}", partial(self.stop_unit, unit))
