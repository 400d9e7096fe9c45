"""The worker loop: heartbeats continue whatever else happens; the resulting actions run concurrently.

Three activities share one ``Member``:

- *beat*: sends one heartbeat at a time; the coordinator parks it. Each heartbeat starts with a check of the lease, so
  that a worker that resumes from a pause detects an expired lease before it sends a request.
- *perform*: performs the member's actions one at a time (``perform.Performer``). A stop may take long; heartbeats
  continue meanwhile.
- *compute*: runs when this member is chosen: Prepare, run the assignor in a thread, Install. It uses a connection of
  its own: responses on one connection arrive in order, and a parked heartbeat would block them.

No user code runs on the event loop except a listener's ``async`` callbacks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..assign.api import ConnectAssignor
from ..assign.convert import assignor_info, group_from_prepare, members_for_install
from ..assign.sandbox import describe, describe_assignor, run_assignor
from ..connector import Config
from ..errors import (
    ComputeAssignment,
    GroupError,
    InvalidAssignment,
    PluginError,
    StaleGroupEpoch,
    TransportError,
    WorkerAlreadyRun,
    from_code,
)
from ..fault_points import fault_point
from ..listener import WorkerRebalanceListener
from ..member.actions import Action, Compute, Fail, Restart
from ..member.state_machine import Member, MemberSettings, Phase
from ..protocol.messages.api import Request, Response
from ..protocol.messages.assignment import InstallRequest, InstallResponse, PrepareRequest, PrepareResponse
from ..protocol.messages.common import entries, grouped
from ..protocol.messages.connectors import (
    ConnectorChange,
    TaskConfig,
    UpdateConnectorsRequest,
    UpdateConnectorsResponse,
)
from ..protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse, TaskStatus
from ..protocol.units import Units, printable, show
from ..transport.base import Client
from .arguments import check_plugins, check_runner
from .offload import off_loop
from .perform import Performer
from .runner import Runner
from .waiting import WakeUp, backoff_s, should_log

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Timeouts and back-offs of a worker, in seconds.

    Attributes:
        call_timeout_s: request timeout, in addition to the time a heartbeat is parked.
        assignor_timeout_s: how long an assignor may compute; after that the coordinator chooses another member.
        retry_initial_s: back-off after the first failed call; grows with each consecutive failure, with jitter.
        retry_max_s: maximum back-off.
        status_wait_s: batching delay for task statuses.
        lose_timeout_s: how long lost units may take to stop before the worker rejoins. Units that still run after it
            can no longer write, because their fencing token is stale. ``None``: the rebalance timeout.
    """

    call_timeout_s: float = 5.0
    assignor_timeout_s: float = 30.0
    retry_initial_s: float = 0.05
    retry_max_s: float = 2.0
    status_wait_s: float = 0.05
    lose_timeout_s: float | None = None


FIRST_INTERVAL_MS = 3_000
"""Interval between two checks of the assignors' metadata, until the coordinator has sent a heartbeat interval."""

MIN_PATIENCE_S = 0.2
"""Minimum request timeout of a heartbeat, however short the remaining lease is."""


STOP_SHARE = 0.875
"""Fraction of the rebalance timeout that stops and callbacks may take when a worker ends; the leave takes the rest."""


class _TryAgain(Exception):
    """The coordinator did not respond or returned a retriable error; the same request may be retried."""


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
        *,
        heartbeats: Client,
        control: Client,
        assignors: Sequence[ConnectAssignor] = (),
        listeners: Sequence[WorkerRebalanceListener] = (),
        runner: Runner | None = None,
        times: WorkerSettings | None = None,
        first_sequence: int | None = None,
    ) -> None:
        """Create a worker that has not joined yet.

        Args:
            heartbeats: connection to the coordinator for heartbeats only.
            control: connection to the coordinator for all other requests.
            assignors: in order of preference; if empty, the coordinator assigns.
            listeners: called in this order.
            runner: runs the units; ``set_runner`` sets a runner that itself needs this worker.
            first_sequence: see ``Member``; the default is taken from the wall clock.

        Raises:
            ConfigError: an assignor, a listener or the runner is not an object of the required kind.
        """
        check_plugins(assignors, listeners)
        check_runner(runner)
        self._heartbeats, self._control = heartbeats, control
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._times = times or WorkerSettings()
        infos = [assignor_info(assignor) for assignor in assignors]
        sequence = time.time_ns() // 1000 if first_sequence is None else first_sequence
        self.member = Member(settings, infos, first_sequence=sequence)
        self._wake = WakeUp()
        self._performer = Performer(
            self.member,
            runner=runner,
            assignors=assignors,
            listeners=listeners,
            lose_timeout_s=self._lose_timeout_s(),
            report=self.report,
            on_change=self._on_change,
        )
        self._computing: asyncio.Task[None] | None = None
        self._asked: dict[str, asyncio.Future[Any]] = {}
        self._rejections = 0
        self._stopping = asyncio.Event()
        self._for_good = self._restarts = False
        self._drained: asyncio.TimerHandle | None = None
        self._emptied = asyncio.Event()
        self._ran = False
        self._ends_at: float | None = None
        self._flush_at: asyncio.TimerHandle | None = None
        self._unanswered: asyncio.Timeout | None = None
        self._loop: asyncio.AbstractEventLoop

    @property
    def member_id(self) -> str:
        """This worker's member id in the group."""
        return self.member.settings.member_id

    @property
    def restarts(self) -> bool:
        """Whether this worker stops in order to be started again with the same member id: ``restart`` was called, or an
        operator has requested a restart (``connectgroup workers restart``). After ``run`` has returned, the caller
        starts a new ``Worker`` with the same member id within the scheduled rebalance delay.
        """
        return self._restarts

    @property
    def lost(self) -> int:
        """How often this worker has lost all its units: it was fenced, or its lease expired."""
        return self._performer.lost

    def set_runner(self, runner: Runner) -> None:
        """Set the runner of this worker's units. Call this before ``run``.

        Raises:
            ConfigError: ``start`` or ``stop`` is missing, or is not a coroutine function.
        """
        check_runner(runner)
        self._performer.runner = runner

    # ----------------------------------------------------------------------------------------------
    # Life cycle

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
        if self._stopping.is_set():
            return
        self._loop = asyncio.get_running_loop()
        performer = asyncio.create_task(self._performer.run(), name="perform")
        beater = asyncio.create_task(self._heartbeat_loop(), name="beat")
        stopping = asyncio.create_task(self._stopping.wait(), name="stopping")
        watcher = asyncio.create_task(self._watch_assignors(), name="watch assignors")
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
            tasks: list[asyncio.Future[Any]] = [performer, beater, stopping, watcher, *self._asked.values()]
            if self._computing is not None:
                tasks.append(self._computing)
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

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

    def drain(self) -> None:
        """Request that the group moves this worker's units to other members, then stop.

        A unit keeps running until it is assigned to another member.
        """
        self.member.drain()
        if self.member.owned:
            logger.info("draining: waiting for another worker to take %s", show(self.member.owned))
        self._on_change()

    async def wait_stopped(self) -> None:
        """Wait until ``stop`` has been called."""
        await self._stopping.wait()

    def _lose_timeout_s(self) -> float:
        rebalance_s, own_s = self.member.settings.rebalance_timeout_ms / 1000, self._times.lose_timeout_s
        return rebalance_s if own_s is None else own_s

    def _end_s(self, share: float) -> float:
        """Seconds until this fraction of the rebalance timeout has elapsed since the worker began to end."""
        now, timeout_s = self._loop.time(), self.member.settings.rebalance_timeout_ms / 1000
        if self._ends_at is None:
            self._ends_at = now + timeout_s
        return max(0.0, self._ends_at - (1 - share) * timeout_s - now)

    async def _release_units(self) -> None:
        """Revoke all units through the ordinary revocation path; heartbeats continue meanwhile."""
        self._emptied.clear()
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
        request = self.member.next_request(self._now_ms())
        assert request is not None, "a leave can always be said"
        with contextlib.suppress(TransportError):
            await self._control.call(request, timeout_s=min(self._times.call_timeout_s, self._end_s(0.95)))

    # ----------------------------------------------------------------------------------------------
    # Heartbeats

    async def _heartbeat_loop(self) -> None:
        times, failures = self._times, 0
        while True:
            try:
                await self._heartbeat_once()
                failures = 0
            except _TryAgain as error:
                failures += 1
                if should_log(failures):
                    logger.warning("heartbeat not answered (attempt %d): %s", failures, error)
                await self._sleep(backoff_s(failures, times.retry_initial_s, times.retry_max_s))

    async def _heartbeat_once(self) -> None:
        """Send one heartbeat, or wait until one is due."""
        self._check_lease()
        sent_ms = self._now_ms()
        request = self.member.next_request(sent_ms)
        if request is None:
            await self._sleep(None)
            return
        try:
            # Abandoned when the lease expires, and when the member must report a change that this request does not
            # contain (``_notify``).
            async with asyncio.timeout(self._lease_left_s()) as given_up:
                # The coordinator responds immediately to a heartbeat that cannot be parked. To abandon it for each new
                # status would keep the worker from ever receiving a response while 10,000 tasks start.
                self._unanswered = given_up if request.max_wait_ms else None
                response = await self._heartbeats.call(request, timeout_s=self._response_timeout_s(request))
        except TimeoutError:
            if given_up.expired():
                return
            raise
        except TransportError as error:
            self.member.on_no_answer(request)
            raise _TryAgain(str(error)) from error
        finally:
            self._unanswered = None
        assert isinstance(response, HeartbeatResponse)
        # This process may have been paused since the response arrived: if the lease expired, the response is stale.
        self._check_lease()
        actions = self.member.on_response(request, response)
        self._do(actions)
        if response.error_code:
            await self._on_refused(from_code(response.error_code, response.error_message), actions)
            return
        if response.coordinator_epoch < self.member.coordinator_epoch:
            raise _TryAgain(f"answered by a coordinator of epoch {response.coordinator_epoch}, which has been replaced")
        if actions or response.member_epoch != request.member_epoch or self.member.has_unsent_changes:
            return
        if request.max_wait_ms or not self.member.settings.max_wait_ms:
            # Nothing changed: the next heartbeat is due one interval after this one was sent, or when the max wait of
            # this one has elapsed. A heartbeat that could not be parked is followed immediately by one that can.
            wait_ms = min(self.member.heartbeat_interval_ms, request.max_wait_ms or self.member.heartbeat_interval_ms)
            left_ms = sent_ms + wait_ms - self._now_ms()
            if left_ms > 0:
                await self._sleep(left_ms / 1000)

    async def _on_refused(self, refused: GroupError, actions: Sequence[Action]) -> None:
        """Back off on repeated identical errors instead of retrying at full speed (KAFKA-20253)."""
        if isinstance(refused, ComputeAssignment) and actions:
            # The coordinator returns this error until the Prepare has arrived; ``_compute`` then wakes this loop up.
            await self._sleep(self.member.heartbeat_interval_ms / 1000)
        elif not actions:
            raise _TryAgain(str(refused)) from refused

    def _response_timeout_s(self, request: HeartbeatRequest) -> float:
        """Return the timeout of a heartbeat; half of the remaining lease is reserved for a retry."""
        # The coordinator parks a request for at most a third of the session timeout, whatever its max wait is.
        parked_ms = min(request.max_wait_ms, (self.member.session_timeout_ms or request.max_wait_ms * 3) // 3)
        parked_s, lease_s = parked_ms / 1000, self._lease_left_s()
        slack_s = self._times.call_timeout_s
        if lease_s is not None:
            slack_s = min(slack_s, max(MIN_PATIENCE_S, (lease_s - parked_s) / 2))
        return parked_s + slack_s

    def _notify(self) -> None:
        """The member changed: wake up the beat loop, and abandon a parked heartbeat if there is more to report."""
        self._wake.notify()
        if self._unanswered is not None and self.member.has_unsent_changes:
            if not self._unanswered.expired():
                self._unanswered.reschedule(0)
            self._unanswered = None

    async def _sleep(self, seconds: float | None) -> None:
        """Sleep for this long, at most until the lease expires; a notification ends the sleep. ``None``: no timeout."""
        lease_s = self._lease_left_s()
        if seconds is None or (lease_s is not None and lease_s < seconds):
            seconds = lease_s
        self._wake.clear()
        await self._wake.wait(seconds)

    def _lease_left_s(self) -> float | None:
        ends_ms = self.member.lease_ends_ms()
        if ends_ms is None or not self.member.owned:
            return None
        return max(0.0, (ends_ms - self._now_ms()) / 1000)

    def _check_lease(self) -> None:
        actions = self.member.check_lease(self._now_ms())
        if actions:
            self._do(actions)

    def _now_ms(self) -> int:
        """The event loop's clock: it is monotonic, and a simulated event loop simulates it."""
        return int(self._loop.time() * 1000)

    def report(self, status: TaskStatus) -> None:
        """Queue a unit's status; it is sent after the batching delay. Call this on the event loop."""
        self.member.report(status)
        if self._flush_at is None:
            loop = asyncio.get_running_loop()
            self._flush_at = loop.call_later(self._times.status_wait_s, self._flush_statuses)

    def _flush_statuses(self) -> None:
        self._flush_at = None
        self.member.flush_statuses()
        self._notify()

    # ----------------------------------------------------------------------------------------------
    # Perform

    def _do(self, actions: Sequence[Action]) -> None:
        """Queue the actions in order. A Compute action runs concurrently with the others."""
        for action in actions:
            if isinstance(action, Fail):
                self._end_s(1)  # the worker ends: this starts its rebalance timeout
            if isinstance(action, Restart):
                self.restart()
            elif not isinstance(action, Compute):
                self._performer.do(action)
            elif self._computing is None or self._computing.done():
                self._computing = asyncio.create_task(self._compute(action), name="compute")

    def _on_change(self) -> None:
        """Units have ended, or the worker is draining: notify the coordinator immediately."""
        self._notify()
        if not self.member.owned:
            self._emptied.set()
            if self.member.draining and self._drained is None:
                # Not immediately: a unit may only have been revoked to be assigned again with a new configuration.
                wait_s = (self.member.heartbeat_interval_ms or FIRST_INTERVAL_MS) / 1000
                self._drained = asyncio.get_running_loop().call_later(wait_s, self._end_drained)

    def _end_drained(self) -> None:
        self._drained = None
        if not self.member.owned:
            self.stop(for_good=True)

    async def _watch_assignors(self) -> None:
        """Poll the assignors that override ``metadata``, and report changes to the group (a ``reason``, CN-10)."""
        watched = [
            assignor for assignor in self._assignors.values() if type(assignor).metadata is not ConnectAssignor.metadata
        ]
        while watched:
            await asyncio.sleep((self.member.heartbeat_interval_ms or FIRST_INTERVAL_MS) / 1000)
            infos = {info.name: info for info in self.member.assignors}
            for assignor in watched:
                try:
                    infos[assignor.name] = await off_loop(f"metadata of {assignor.name}", assignor_info, assignor)
                except PluginError as error:
                    logger.error("%s", error.with_location())
            if self.member.set_assignors(list(infos.values())):
                self._notify()

    # ----------------------------------------------------------------------------------------------
    # Compute

    async def _compute(self, action: Compute) -> None:
        """Prepare, run the assignor, Install. A failure is reported to the group, or the coordinator retries."""
        group_id = self.member.settings.group_id
        try:
            prepared = await self._ask(
                PrepareRequest(group_id=group_id, member_id=self.member_id, member_epoch=action.member_epoch)
            )
            assert isinstance(prepared, PrepareResponse)
            self._notify()
            install = InstallRequest(
                group_id=group_id,
                member_id=self.member_id,
                member_epoch=action.member_epoch,
                group_epoch=prepared.group_epoch,
            )
            install = await self._assign(prepared, install)
            answer = await self._ask(install)
            assert isinstance(answer, InstallResponse)
            self._rejections = 0
            self._notify()
        except StaleGroupEpoch as error:
            # The group epoch advanced during the computation, so a new assignment is needed. The coordinator could
            # not request it from this member while this one was under way.
            logger.info("assignment not installed: %s", error)
            self._notify()
        except GroupError as error:
            # This member was fenced, or replaced by another member, and has not received its new state yet. A
            # heartbeat interval is a long time to wait with tasks to start: send a heartbeat sooner, with a back-off
            # that doubles on each consecutive rejection. An invalid assignment is the assignor's fault: log an error,
            # because its author needs the rule that was violated.
            level = logging.ERROR if isinstance(error, InvalidAssignment) else logging.INFO
            logger.log(level, "assignment not installed: %s", error)
            await asyncio.sleep(min(self._times.retry_initial_s * 2**self._rejections, self._times.retry_max_s))
            self._rejections = min(self._rejections + 1, 16)
            self._notify()
        except TransportError as error:
            logger.info("assignment not installed: %s", error)
        except Exception:
            # No code awaits this task: without this message the error would be lost while the group waits for Install.
            logger.exception("assignment not installed; the group asks another member after the rebalance timeout")

    async def _assign(self, prepared: PrepareResponse, install: InstallRequest) -> InstallRequest:
        name = prepared.assignor_name
        timeout_s = self._times.assignor_timeout_s
        started = time.monotonic()
        try:
            if name not in self._assignors:
                raise PluginError(f"assignor {printable(name)!r} is not one of {sorted(self._assignors)}")
            assignor, earlier = self._assignors[name], self._asked.get(name)
            if earlier is not None and not earlier.done():
                # Never run two calls at a time; waiting for a second call that hangs would not help.
                raise PluginError(f"{describe_assignor(assignor)}: has not answered an earlier question yet")
            asked = off_loop(f"assignor {name}", run_assignor, assignor, group_from_prepare(prepared))
            self._asked[name] = call = asyncio.ensure_future(asked)
            # After the timeout no code awaits this call: retrieve its error.
            call.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            await asyncio.wait({call}, timeout=timeout_s)
            if not call.done():
                raise PluginError(f"{describe_assignor(assignor)}: did not answer within {timeout_s:g} s")
            assignment = call.result()
        except PluginError as error:
            return _failed(install, str(error), location=error.location)
        except Exception as error:
            return _failed(install, f"assignor {printable(name)!r}: {describe(error)}")
        if assignment.error:
            said = assignment.message or f"error {assignment.error}"
            return _failed(install, f"{describe_assignor(assignor)}: {said}", assignment.error)
        logger.info(
            "epoch %d: computed by %s for %d members in %.1f ms",
            prepared.group_epoch,
            name,
            len(prepared.members),
            (time.monotonic() - started) * 1000,
        )
        return replace(
            install,
            members=members_for_install(assignment),
            delayed=grouped(assignment.delayed),
            delay_ms=assignment.delay_ms,
            message=printable(assignment.message, most=500),
        )

    async def publish_tasks(self, connector: str, owner_epoch: int, configs: Sequence[Config]) -> None:
        """Send the task list of a connector that this worker owns to the group.

        Raises:
            StaleMemberEpoch: this worker does not own the connector at that owner epoch, or no longer owns it.
            GroupError: the coordinator rejected the request.
            TransportError: no successful response within ``assignor_timeout_s``.
        """
        change = ConnectorChange(
            connector=connector,
            owner_epoch=owner_epoch,
            task_configs=tuple(TaskConfig(config=entries(config)) for config in configs),
        )
        answer = await self._ask(
            UpdateConnectorsRequest(group_id=self.member.settings.group_id, member_id=self.member_id, changes=(change,))
        )
        assert isinstance(answer, UpdateConnectorsResponse)

    async def _ask(self, request: Request) -> Response:
        """Send a request other than a heartbeat; retry retriable errors and transport errors, raise other errors.

        Retries end after ``assignor_timeout_s``.
        """
        loop, times, failures = asyncio.get_running_loop(), self._times, 0
        gives_up_at = loop.time() + times.assignor_timeout_s

        async def once() -> Response:
            try:
                response = await self._control.call(request, timeout_s=times.call_timeout_s)
            except TransportError as error:
                raise _TryAgain(str(error)) from error
            if getattr(response, "coordinator_epoch", -1) < self.member.coordinator_epoch:
                # The state of a replaced coordinator is stale: it may reject a request that is now valid (PD-10).
                raise _TryAgain("answered by a coordinator that has been replaced")
            code = getattr(response, "error_code", 0)
            if code:
                refused = from_code(code, getattr(response, "error_message", None))
                if refused.retriable:
                    raise _TryAgain(str(refused)) from refused
                raise refused
            if fault_point("a request is sent again though it was answered"):
                raise _TryAgain("once more")
            return response

        while True:
            try:
                return await once()
            except _TryAgain as error:
                failures += 1
                wait_s = backoff_s(failures, times.retry_initial_s, times.retry_max_s)
                if loop.time() >= gives_up_at:
                    raise TransportError(f"given up after {times.assignor_timeout_s:g} s: {error}") from error
            await asyncio.sleep(wait_s)


def _failed(install: InstallRequest, message: str, error: int = 1, *, location: str = "") -> InstallRequest:
    message = printable(message, most=500)
    logger.error("%s", PluginError(message, location=location).with_location())
    return replace(install, error=error, message=message)
