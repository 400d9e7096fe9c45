"""The worker loop: heartbeats continue whatever else happens; the resulting actions run concurrently.

Three activities share one ``Member``. ``Worker`` starts them, and stops them in order when it ends:

- ``heartbeat``: sends one heartbeat at a time; the coordinator parks it.
- ``actions``: performs the member's actions one at a time. A stop may take long; heartbeats continue meanwhile.
- ``compute``: runs when this member is chosen: Prepare, run the assignor in a thread, Install. It uses the connection
  for control requests (``Connections.control``).

No user code runs on the event loop except a listener's ``async`` callbacks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from ..assign.api import ConnectAssignor
from ..assign.convert import assignor_info
from ..assign.sandbox import configure_assignor
from ..checks import MAX_INT32, check_object, check_whole
from ..connector import Config
from ..errors import GroupError, TransportError, WorkerAlreadyRun, one_line
from ..listener import WorkerRebalanceListener
from ..member.actions import Action, ComputeTarget, Drain, Fail, Restart
from ..member.settings import GroupProtocol, MemberSettings
from ..member.state_machine import Member, Phase
from ..os_process import this_process
from ..protocol.messages.heartbeat import TaskStatus
from ..protocol.units import JOIN_EPOCH, Units, show
from ..telemetry.spans import GROUP, MEMBER, span
from ..threads import clock_of
from ..transport.base import Client
from .actions import Performer
from .arguments import (
    check_connect,
    check_connections,
    check_made_runner,
    check_plugins,
    check_runner,
    check_settings,
    check_times,
)
from .callbacks import Callbacks
from .classic import ClassicClient
from .compute import Computations, ControlRequests, check_configs
from .hanging import LoopWatch
from .heartbeat import Heartbeats, ProcessReport
from .runner import MeasuredRunner, Runner
from .settings import FIRST_INTERVAL_MS, STOP_SHARE, Connections, WorkerSettings, new_process_id
from .state import StopReason, WorkerState
from .unit_runner import ThreadUnitRunner, UnitRunner

logger = logging.getLogger(__name__)


class Worker:
    """A member of a worker group while ``run`` runs.

    To embed a worker, run ``await Worker(...).run()`` in an asyncio task, and call ``worker.stop()`` to leave the
    group. A ``Worker`` runs once; to rejoin, create a new one.

    Whatever the runner, listeners and assignors do, ``run`` returns within the rebalance timeout
    (``MemberSettings.rebalance_timeout_ms``) of ``stop``, of a cancellation, or of a response that ends the worker.
    An error message names the units that have not stopped by then: they may still run, fenced by their owner epoch.
    """

    def __init__(
        self,
        settings: MemberSettings,
        connections: Connections,
        *,
        assignors: Sequence[ConnectAssignor] = (),
        listeners: Sequence[WorkerRebalanceListener] = (),
        runner: Runner | None = None,
        times: WorkerSettings | None = None,
    ) -> None:
        """Create a worker that has not joined yet.

        Args:
            connections: to the coordinator; the caller closes them.
            assignors: in order of preference; if empty, the coordinator assigns.
            listeners: called in this order.
            runner: runs the units; ``set_runner`` sets a runner that itself needs this worker.

        Raises:
            ConfigError: an argument is not an object of the required kind, or a method of it has other arguments.
            PluginError: ``configure`` or ``metadata`` of an assignor raised.
        """
        check_settings(settings)
        check_connections(connections)
        check_plugins(assignors, listeners)
        check_runner(runner)
        check_times(times)
        self._times = times or WorkerSettings()
        for assignor in assignors:
            configure_assignor(assignor, settings.traits)
        first, process, named = self._times.first_sequence, self._times.process_id, self._times.os_process
        if named is None:
            named = this_process() if getattr(connections.heartbeats, "is_remote", False) else ""
        self.member = Member(
            settings,
            [assignor_info(each) for each in assignors],
            first_sequence=time.time_ns() // 1000 if first is None else first,
            process_id=new_process_id() if process is None else process,
            os_process=named,
        )
        if settings.group_protocol is GroupProtocol.CLASSIC:
            connections = Connections(*(ClassicClient(each, self.member) for each in connections))
        self._control = connections.control
        self._performer = Performer(
            self.member,
            runner=runner,
            callbacks=Callbacks(listeners, assignors),
            lose_timeout_s=self._times.lose_limit_s(settings.rebalance_timeout_ms),
            report=self.report,
            on_change=self._on_change,
        )
        self._metrics = metrics = self._performer.metrics
        self._heartbeats = Heartbeats(self.member, connections.heartbeats, self._times, self._do, metrics)
        self._connect_runner(runner)
        self._requests = ControlRequests(self.member, connections.control, self._times)
        self._computations = Computations(
            self.member, self._requests, assignors, self._times, self._heartbeats.notify, metrics
        )
        self._stopping = asyncio.Event()  # ``stop``, ``restart`` and a fatal error set it
        self._emptied = asyncio.Event()  # no unit is owned any more, since ``_release_units`` began
        self._for_good = self._restarts = False  # how ``stop`` or ``restart`` ends it: leaves for good, comes back
        self._restarts_drained = False  # a drain ends in a restart
        self._on_restart_requested: Callable[[], None] = self.restart
        self._drained: asyncio.TimerHandle | None = None  # ends a worker that is drained
        self._ran = self._has_drained = False  # ``run`` was called; a drain has ended it
        self._ended = asyncio.Event()
        self._ended_as: StopReason | None = None  # ``run`` sets it at its end
        self._end_block: Callable[[], None] = lambda: None  # cancels the block of ``running``, which sets it
        self._waiting: set[asyncio.Task[Any] | None] = set()  # tasks in ``wait_stopped``
        self._clock: Callable[[], float] | None = None  # that of the event loop; ``run`` sets it
        self._ends_at: float | None = None  # on the loop's clock: its rebalance timeout is over; ``_end_s`` sets it
        self._loop: asyncio.AbstractEventLoop

    @classmethod
    @contextlib.asynccontextmanager
    async def running(
        cls,
        settings: MemberSettings,
        connect: Callable[[], Client],
        *,
        assignors: Sequence[ConnectAssignor] = (),
        listeners: Sequence[WorkerRebalanceListener] = (),
        runner: Runner | None = None,
        times: WorkerSettings | None = None,
    ) -> AsyncIterator[Worker]:
        """Run a worker while the ``async with`` block runs; the end of the block stops it.

        The end of the worker ends the block, as the end of a task ends the block of an ``asyncio.TaskGroup``: when the
        worker has stopped its units and has left the group, the block is cancelled. The program goes on after the
        block, and ``state.ended`` says why the worker has ended. A block that awaits ``wait_stopped`` itself is not
        cancelled, and neither is one that has called ``stop``.

        Args:
            connect: creates a client of the coordinator; called twice. The clients are closed at the end.
            times: timeouts and back-offs of the worker.

        Raises:
            ConfigError: as of ``Worker``; ``connect`` is no function.
            GroupError: the coordinator rejected this worker; ends the block.
        """
        check_connect(connect)
        connections = Connections(heartbeats=connect(), control=connect())
        worker = cls(
            settings,
            connections,
            assignors=assignors,
            listeners=listeners,
            runner=runner,
            times=times,
        )
        life = asyncio.create_task(worker.run(), name=f"worker {worker.member_id}")
        try:
            async with worker._ending_block():
                yield worker
        finally:
            worker.stop()
            try:
                await life
            finally:
                await connections.heartbeats.close()
                await connections.control.close()

    @contextlib.asynccontextmanager
    async def _ending_block(self) -> AsyncIterator[None]:
        """Cancel the block of this context when the worker ends by itself, and swallow that cancellation alone."""
        block = asyncio.current_task()
        assert block is not None
        cancelling, is_cancelled = block.cancelling(), False

        def cancel() -> None:
            nonlocal is_cancelled
            if block not in self._waiting and self._ended_as is not StopReason.STOPPED:
                is_cancelled = block.cancel()

        self._end_block = cancel
        try:
            yield
        except asyncio.CancelledError:
            if not is_cancelled or block.uncancel() > cancelling:
                raise
        else:
            if is_cancelled:
                # The cancellation has not arrived: it would interrupt the next wait.
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)
                if block.uncancel() > cancelling:
                    raise asyncio.CancelledError
        finally:
            self._end_block = lambda: None

    @property
    def member_id(self) -> str:
        """This worker's member id in the group."""
        return self.member.settings.member_id

    @property
    def restarts(self) -> bool:
        """Whether this worker stops in order to be started again with the same member id: ``restart`` was called, an
        operator has requested a restart (``connectgroup workers restart``), or it has drained itself to be restarted.
        After ``run`` has returned, the caller starts a new ``Worker`` with the same member id within the scheduled
        rebalance delay.
        """
        return self._restarts

    @property
    def lost(self) -> int:
        """How often this worker has lost all its units: it was fenced, or its lease expired and no task was fenced."""
        return self._performer.lost

    def set_runner(self, runner: Runner) -> None:
        """Set the runner of this worker's units. Call this before ``run``.

        Raises:
            ConfigError: it is ``None``; ``start`` or ``stop`` is missing, or is not a coroutine function; or the runner
                is a ``UnitRunner`` of another worker that has not ended.
        """
        check_made_runner(runner)
        check_runner(runner)
        self._performer.runner = runner
        self._connect_runner(runner)

    def set_logger_levels_by(self, function: Callable[[str, str], None]) -> None:
        """Call a function with the name of a logger and a level when an operator sets a level for the whole group.

        ``connectgroup worker`` passes ``loggers.set_by_operator``. By default nothing is set: the loggers of a program
        that embeds a worker belong to the program.

        Args:
            function: called on the event loop; must not block or raise.
        """
        self._heartbeats.set_logger_level = function

    def set_process_report(self, report: ProcessReport) -> None:
        """Send with the heartbeats what this process reports of itself; for a process that is nothing but a worker."""
        self._heartbeats.process_report = report

    def prepare_restart_by(self, function: Callable[[], None]) -> None:
        """Call a function, instead of ``restart``, when an operator requests a restart.

        For a program that warms up a replacement first, and calls ``restart`` when it is ready: until then this worker
        runs its units. By default it restarts at once.

        Args:
            function: called on the event loop, also repeatedly for one request; must not block or raise.
        """
        self._on_restart_requested = function

    def _connect_runner(self, runner: Runner | None) -> None:
        if isinstance(runner, UnitRunner | ThreadUnitRunner):
            runner.attach(self)
        if isinstance(runner, MeasuredRunner):
            self._heartbeats.take_progress = runner.take_progress

    async def run(self) -> None:
        """Join the group, run the assigned units, and return after ``stop`` when all units have stopped.

        After ``stop``, and when cancelled: revoke the units, leave the group, return. If ``stop`` was called before
        ``run``: return immediately, without a request. When cancelled a second time: return without waiting.

        Raises:
            WorkerAlreadyRun: ``run`` has been called before; the earlier call is not affected.
            GroupError: the coordinator rejected this worker, for the reason given; all units have been stopped.
        """
        if self._ran:
            raise WorkerAlreadyRun(f"worker {self.member_id} has been run already; a Worker runs once, make a new one")
        self._ran = True
        reason = StopReason.FAILED
        try:
            if not self._stopping.is_set():
                await self._run()
            reason = self._reason()
        except GroupError as error:
            reason, self._heartbeats.last_error = StopReason.REJECTED, str(error)
            raise
        except asyncio.CancelledError:
            reason = StopReason.STOPPED
            raise
        except Exception as error:
            self._heartbeats.last_error = one_line(error)
            raise
        finally:
            self._ended_as = reason
            self._end_block()
            self._ended.set()

    def _reason(self) -> StopReason:
        if self._restarts:
            return StopReason.RESTARTED
        return StopReason.DRAINED if self._has_drained else StopReason.STOPPED

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = clock_of(self._loop)
        watch = LoopWatch()
        self._heartbeats.why_late = watch.why_late
        self._metrics.begin()
        performer = asyncio.create_task(self._performer.run(), name="perform")
        beater = asyncio.create_task(self._heartbeats.run(), name="beat")
        stopping = asyncio.create_task(self._stopping.wait(), name="stopping")
        watcher = asyncio.create_task(self._computations.watch(), name="watch assignors")
        try:
            await asyncio.wait({performer, beater, stopping}, return_when=asyncio.FIRST_COMPLETED)
            for task in (performer, beater):
                if task.done():
                    task.result()
            if self._performer.fatal is None:
                await self._release_units()
            beater.cancel()
            await self._leave()
            if self._performer.fatal is not None:
                raise self._performer.fatal
        finally:
            # Also reached after an error or a cancellation: no unit may still write after ``run`` has returned, and
            # the group should not have to wait for the session timeout (KAFKA-16985).
            performer.cancel()
            self.member.retire()
            await self._stop_all(frozenset(self.member.owned))
            beater.cancel()
            if self.member.phase is not Phase.GONE:
                await self._leave()
            tasks: list[asyncio.Future[Any]] = [performer, beater, stopping, watcher, *self._computations.tasks()]
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._metrics.end()
            watch.close()

    def stop(self, *, for_good: bool = False) -> None:
        """Request that ``run`` stops all units, leaves the group and returns.

        Args:
            for_good: leave permanently. Otherwise a static member leaves temporarily: its units are kept for it until
                the session timeout.
        """
        self._for_good, self._restarts = self._for_good or for_good, False
        self._stopping.set()

    def restart(self) -> None:
        """Request that ``run`` stops all units, leaves the group announcing a rejoin (``returns``), and returns.

        ``restarts`` is true from then on. The units are delayed for the member id, so no unit moves if the worker
        rejoins in time. A later ``stop`` takes precedence; a worker that is stopping or draining does not restart.
        """
        if self.member.draining:
            logger.warning("not restarted: this worker is draining and leaves for good")
        elif not self._stopping.is_set():
            logger.info("restarting: stopping all units, then joining again as %s", self.member_id)
            self._restarts = True
            self._stopping.set()

    def refuse_restart(self, reason: str) -> None:
        """A requested restart does not happen, and this worker goes on: who waits for the restart gets the reason.

        For a program that has called ``prepare_restart_by``. The request ends; another one is a new attempt.

        Args:
            reason: one line of text; at most 500 characters are kept.
        """
        logger.error("not restarted, this process goes on: %s", reason)
        self.member.refuse_restart(reason[:500])
        self._on_change()

    def drain(self, *, then_restart: bool = False) -> None:
        """Request that the group moves this worker's units to other members, then stop.

        A unit keeps running until it is assigned to another member.

        Args:
            then_restart: ``restarts`` becomes true once it has drained, unless ``stop`` is called before.
        """
        self._restarts_drained = then_restart
        self.member.drain()
        if self.member.owned:
            logger.info("draining: waiting for another worker to take %s", show(self.member.owned))
        self._on_change()

    async def wait_stopped(self) -> StopReason:
        """Wait until this worker has ended: its units have stopped, and it has left the group. Returns the reason.

        It does not raise the error of a rejected worker: ``run`` raises it, and the end of the block of ``running``.
        """
        task = asyncio.current_task()
        self._waiting.add(task)
        try:
            await self._ended.wait()
        finally:
            self._waiting.discard(task)
        assert self._ended_as is not None
        return self._ended_as

    async def wait_stopping(self) -> None:
        """Wait until this worker begins to stop: ``stop`` or ``restart`` was called, or it has drained."""
        await self._stopping.wait()

    @property
    def state(self) -> WorkerState:
        """The state of this worker as it knows it itself, without a request: for readiness probes, from any thread."""
        member, clock = self.member, self._clock
        lease_ends_ms = member.lease_ends_ms()
        is_member = member.phase is Phase.MEMBER and self._ended_as is None
        return WorkerState(
            joined=is_member and member.epoch > JOIN_EPOCH,
            epoch=member.epoch,
            owned=frozenset(member.owned.copy()),
            lease_left_s=(
                max(0.0, lease_ends_ms / 1000 - clock())
                if is_member and lease_ends_ms is not None and clock is not None
                else None
            ),
            last_error=self._heartbeats.last_error,
            ended=self._ended_as,
        )

    def _end_s(self, share: float) -> float:
        """Seconds until this fraction of the rebalance timeout has elapsed since the worker began to end."""
        now, timeout_s = self._loop.time(), self.member.settings.rebalance_timeout_ms / 1000
        if self._ends_at is None:
            self._ends_at = now + timeout_s
        return max(0.0, self._ends_at - (1 - share) * timeout_s - now)

    async def _release_units(self) -> None:
        """Revoke all units through the ordinary revocation path; heartbeats continue meanwhile."""
        self._emptied.clear()
        with span("leave", {GROUP: self.member.settings.group_id, MEMBER: self.member_id}):
            self._do(self.member.retire())
        if not self.member.owned:
            return
        emptied = asyncio.create_task(self._emptied.wait())
        idle = asyncio.create_task(self._performer.idle.wait())
        # Idle with units left: a stop or a listener failed. Not idle after half the timeout: a start or callback hangs.
        await asyncio.wait({emptied, idle}, timeout=self._end_s(0.5), return_when=asyncio.FIRST_COMPLETED)
        if self.member.owned:
            left = asyncio.create_task(self._stop_all(frozenset(self.member.owned)))
            await asyncio.wait({left, emptied}, return_when=asyncio.FIRST_COMPLETED)
            if not self._performer.idle.is_set():
                await asyncio.wait(
                    {emptied, idle}, timeout=self._end_s(STOP_SHARE), return_when=asyncio.FIRST_COMPLETED
                )
            left.cancel()
        for task in (emptied, idle):
            task.cancel()

    async def _stop_all(self, units: Units) -> None:
        """Stop units without callbacks, within ``STOP_SHARE`` of the rebalance timeout."""
        if not units:
            return
        try:
            await asyncio.wait_for(self._performer.stop(units), self._end_s(STOP_SHARE))
        except Exception as error:
            logger.error("%s may still be running: %s", show(units), self._performer.describe_failure(error))

    async def _leave(self) -> None:
        """Send one leave heartbeat with a short timeout. If it is lost, the session timeout removes the member."""
        temporarily = not self._for_good and self._performer.fatal is None
        self.member.close(temporarily=temporarily, returns=temporarily and self._restarts)
        request = self.member.next_request(self._heartbeats.now_ms())
        assert request is not None, "a leave is always allowed"
        with contextlib.suppress(TransportError):
            await self._control.call(request, timeout_s=min(self._times.call_timeout_s, self._end_s(0.95)))

    def _do(self, actions: Sequence[Action]) -> None:
        """Queue the actions in order. A ComputeTarget action runs concurrently with the others."""
        for action in actions:
            if isinstance(action, Fail):
                self._end_s(1)  # the worker ends: this starts its rebalance timeout
            if isinstance(action, Restart):
                self._on_restart_requested()
            elif isinstance(action, Drain):
                self.drain()
            elif isinstance(action, ComputeTarget):
                self._computations.start(action)
            else:
                self._performer.do(action)
        self._metrics.on_actions(actions)

    def _on_change(self) -> None:
        """Units have ended, or the worker is draining: notify the coordinator immediately."""
        self._heartbeats.notify()
        if not self.member.owned:
            self._emptied.set()
            if self.member.draining and self._drained is None:
                # Not immediately: a unit may only have been revoked to be assigned again with a new configuration.
                wait_s = (self.member.heartbeat_interval_ms or FIRST_INTERVAL_MS) / 1000
                self._drained = asyncio.get_running_loop().call_later(wait_s, self._end_drained)

    def _end_drained(self) -> None:
        self._drained = None
        if not self.member.owned and not self._stopping.is_set():
            self.stop(for_good=True)
            self._restarts, self._has_drained = self._restarts_drained, True

    def report(self, status: TaskStatus) -> None:
        """Queue a unit's status; it is sent after the batching delay. Call this on the event loop.

        Raises:
            ConfigError: ``status`` is no ``TaskStatus``, or its state is text.
        """
        allowed = "TaskStatus(connector=..., task=..., owner_epoch=..., state=UnitState.RUNNING)"
        check_object("status", status, TaskStatus, allowed)
        check_object("status.state", status.state, int, "UnitState.RUNNING, FAILED, STALLED or STARTING")
        self._heartbeats.report(status)

    async def publish_tasks(
        self,
        connector: str,
        owner_epoch: int,
        configs: Sequence[Config] | None,
        credential_names: Sequence[str] | None = None,
    ) -> None:
        """Send the task list of a connector that this worker owns to the group.

        Args:
            configs: one configuration for each task, of text; ``None``: the task list is unchanged.
            credential_names: settings whose values are masked whatever their names are
                (``Connector.credential_names``); ``None``: unchanged.

        Raises:
            ConfigError: ``configs`` are no list of such configurations.
            StaleMemberEpoch: this worker does not own the connector at that owner epoch, or no longer owns it.
            GroupError: the coordinator rejected the request.
            TransportError: no successful response within ``assignor_timeout_s``.
        """
        check_object("connector", connector, str, "its name: grant.unit.connector")
        check_whole("owner_epoch", owner_epoch, 0, MAX_INT32)
        if configs is not None:
            check_configs("configs", configs)
        for name in credential_names or ():
            check_object("credential_names", name, str, "names of settings")
        await self._requests.publish_tasks(connector, owner_epoch, configs, credential_names)
