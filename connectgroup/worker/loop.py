"""The worker loop: heartbeats go out whatever else happens; what the answers ask for is done beside them.

Three activities share one ``Member``:

- *beat*: one heartbeat at a time, parked at the coordinator. Before anything else it looks at the lease, so a worker
  that wakes from a pause finds out that it has lost everything before it says a word.
- *perform*: takes the actions the member decided on, one after the other: stop, tell the listeners, acknowledge;
  tell the listeners, start. Stopping may take long; heartbeats go on meanwhile.
- *compute*: when this member is chosen: Prepare, run the assignor in a thread, Install; on a connection of its own,
  because answers on one connection come in order and a parked heartbeat would hold them up.

No user code runs on the event loop except a listener's ``async`` callbacks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    stop_after_delay,
    wait_random_exponential,
)

from ..assignor import Assignor
from ..assignor_guard import assignor_info, group_from_prepare, members_for_install, run_assignor
from ..connector import Config
from ..errors import GroupError, PluginError, TransportError, from_code
from ..listener import WorkerRebalanceListener
from ..member.actions import Action, Assign, Compute, Fail, Lose, Revoke
from ..member.machine import Member, MemberSettings, Phase
from ..messages import (
    ConnectorChange,
    HeartbeatRequest,
    HeartbeatResponse,
    InstallRequest,
    InstallResponse,
    PrepareRequest,
    PrepareResponse,
    Request,
    Response,
    TaskConfig,
    TaskStatus,
    UpdateConnectorsRequest,
    UpdateConnectorsResponse,
    entries,
)
from ..names import printable, show
from ..tracing import span
from ..transport.base import Client
from .callbacks import tell_chosen_assignor, tell_listeners
from .offload import off_loop
from .runner import Runner

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Times of a worker, in seconds.

    Attributes:
        call_timeout_s: how long an answer may take, beside the time a heartbeat is parked.
        assignor_timeout_s: how long an assignor may compute; then the group asks another member.
        retry_first_s: the wait after a first failed call; grows with each failure in a row, with jitter.
        retry_most_s: the longest such wait.
        status_wait_s: statuses wait this long for company before they are sent.
        lose_timeout_s: how long lost work is waited for before the worker joins again; what is left of it can
            no longer write, since its token is out of date.
    """

    call_timeout_s: float = 5.0
    assignor_timeout_s: float = 30.0
    retry_first_s: float = 0.05
    retry_most_s: float = 2.0
    status_wait_s: float = 0.05
    lose_timeout_s: float = 30.0


class _TryAgain(Exception):
    """The coordinator did not answer, or could not; the same may be asked again."""


class Worker:
    """A member of a worker group, for as long as ``run`` runs.

    Embed it like this: ``await Worker(...).run()`` in a task of your own, ``worker.stop()`` to leave.
    """

    def __init__(
        self,
        settings: MemberSettings,
        *,
        heartbeats: Client,
        control: Client,
        assignors: Sequence[Assignor[Any, Any, Any]] = (),
        listeners: Sequence[WorkerRebalanceListener] = (),
        runner: Runner | None = None,
        times: WorkerSettings | None = None,
        first_sequence: int | None = None,
    ) -> None:
        """A worker that has not joined yet.

        Args:
            heartbeats: a connection to the coordinator for heartbeats alone.
            control: another one for everything else.
            assignors: in order of preference; empty leaves assigning to the coordinator.
            listeners: told in this order.
            runner: runs the work; set later by ``set_runner`` where it needs this worker first.
            first_sequence: see ``Member``; by default taken from the wall clock.
        """
        self._heartbeats, self._control = heartbeats, control
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._listeners = tuple(listeners)
        self._runner = runner
        self._times = times or WorkerSettings()
        infos = [assignor_info(assignor) for assignor in assignors]
        sequence = time.time_ns() // 1000 if first_sequence is None else first_sequence
        self.member = Member(settings, infos, first_sequence=sequence)
        self._wake = asyncio.Event()
        self._actions: deque[Action] = deque()
        self._has_actions = asyncio.Event()
        self._computing: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._emptied = asyncio.Event()
        self._fatal: GroupError | None = None
        self._speak_at: asyncio.TimerHandle | None = None
        self.lost = 0

    @property
    def member_id(self) -> str:
        """This worker's name in the group."""
        return self.member.settings.member_id

    def set_runner(self, runner: Runner) -> None:
        """Give the worker what runs its work; before ``run``."""
        self._runner = runner

    # ----------------------------------------------------------------------------------------------
    # Life

    async def run(self) -> None:
        """Join, work, and return once ``stop`` has been called and everything is let go.

        Raises:
            GroupError: the coordinator will not have this worker, and says why; everything has been stopped.
        """
        performer = asyncio.create_task(self._perform_all(), name="perform")
        beater = asyncio.create_task(self._beat_all(), name="beat")
        stopping = asyncio.create_task(self._stopping.wait(), name="stopping")
        try:
            await asyncio.wait({performer, beater, stopping}, return_when=asyncio.FIRST_COMPLETED)
            for task in (performer, beater):
                if task.done():
                    task.result()
            if self._fatal is not None:
                raise self._fatal
            await self._let_go()
            beater.cancel()
            await self._leave()
        finally:
            if self.member.owned:
                # Not the orderly way out: still, nothing may go on writing once this has returned.
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stop_units(frozenset(self.member.owned)), self._times.lose_timeout_s)
            tasks: list[asyncio.Task[Any]] = [performer, beater, stopping]
            if self._computing is not None:
                tasks.append(self._computing)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def stop(self) -> None:
        """Ask ``run`` to stop everything, leave the group and return."""
        self._stopping.set()

    async def wait_stopped(self) -> None:
        """Until ``stop`` has been called."""
        await self._stopping.wait()

    async def _let_go(self) -> None:
        """Stop what runs, by the same road as any revocation: heartbeats go on meanwhile."""
        self.member.retire()
        if self.member.phase is not Phase.LOSING and self.member.owned:
            # What was given and has not begun need not begin; what is being lost is stopped already.
            self._do([Revoke(units=frozenset(self.member.owned), epoch=self.member.epoch)])
        self._emptied.clear()
        if self.member.owned:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._emptied.wait(), self._times.lose_timeout_s)

    async def _leave(self) -> None:
        """Say that we go, once, without waiting long: the session timeout tells the group otherwise."""
        self.member.close()
        request = self.member.next_request(_now_ms())
        assert request is not None, "a leave can always be said"
        with contextlib.suppress(TransportError):
            await self._control.call(request, timeout_s=self._times.call_timeout_s)

    # ----------------------------------------------------------------------------------------------
    # Beat

    async def _beat_all(self) -> None:
        times = self._times
        while True:
            retrying = AsyncRetrying(
                retry=retry_if_exception_type(_TryAgain),
                wait=wait_random_exponential(multiplier=times.retry_first_s, max=times.retry_most_s),
                sleep=self._rest,
                before_sleep=self._say_retry,
            )
            await retrying(self._beat)

    async def _beat(self) -> None:
        """One heartbeat, or a wait for the next."""
        self._check_lease()
        request = self.member.next_request(_now_ms())
        if request is None:
            await self._rest(None)
            return
        sent_ms = _now_ms()
        call = asyncio.create_task(self._heartbeats.call(request, timeout_s=self._patience_s(request)))
        try:
            while not call.done():
                await self._wait_for(call)
                self._check_lease()
                if not call.done() and (self.member.has_something_to_say or self.member.phase is Phase.LOSING):
                    # Whatever has to be said makes the parked heartbeat one that is given up.
                    return
        finally:
            if not call.done():
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)
        try:
            response = call.result()
        except TransportError as error:
            self.member.on_no_answer(request)
            raise _TryAgain(str(error)) from error
        assert isinstance(response, HeartbeatResponse)
        self._do(self.member.on_response(request, response))
        if response.error_code:
            refused = from_code(response.error_code, response.error_message)
            if refused.retriable:
                raise _TryAgain(str(refused)) from refused
            return
        unchanged = response.assignment is None and response.member_epoch == request.member_epoch
        if unchanged and not self.member.has_something_to_say:
            # Nothing new: the next one is due an interval after this one was sent, which has passed if it was parked.
            await self._rest((sent_ms + self.member.heartbeat_interval_ms - _now_ms()) / 1000)

    def _patience_s(self, request: HeartbeatRequest) -> float:
        return request.max_wait_ms / 1000 + self._times.call_timeout_s

    async def _wait_for(self, call: asyncio.Task[Response]) -> None:
        """Until the call is done, there is something to say, or the lease ends."""
        self._wake.clear()
        waker = asyncio.create_task(self._wake.wait())
        try:
            await asyncio.wait({call, waker}, timeout=self._lease_s(), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waker.cancel()

    async def _rest(self, seconds: float | None) -> None:
        """Sleep, but not past the end of the lease, nor when there is something new to say. ``None``: until woken."""
        lease_s = self._lease_s()
        wait_s = [wait for wait in (seconds, lease_s) if wait is not None]
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), max(0.0, min(wait_s)) if wait_s else None)
        self._check_lease()

    def _lease_s(self) -> float | None:
        ends_ms = self.member.lease_ends_ms()
        if ends_ms is None or not self.member.owned:
            return None
        return max(0.0, (ends_ms - _now_ms()) / 1000)

    def _check_lease(self) -> None:
        self._do(self.member.check_lease(_now_ms()))

    def _say_retry(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if state.attempt_number in (1, 5) or state.attempt_number % 20 == 0:
            logger.warning("heartbeat not answered (attempt %d): %s", state.attempt_number, error)

    def report(self, status: TaskStatus) -> None:
        """Have a unit's status sent soon; on the event loop."""
        self.member.report(status)
        if self._speak_at is None:
            loop = asyncio.get_running_loop()
            self._speak_at = loop.call_later(self._times.status_wait_s, self._speak)

    def _speak(self) -> None:
        self._speak_at = None
        self.member.say_statuses()
        self._wake.set()

    # ----------------------------------------------------------------------------------------------
    # Perform

    def _do(self, actions: Sequence[Action]) -> None:
        """Queue what is to be done, in order; a loss makes what was queued before it void (KAFKA-16375)."""
        for action in actions:
            match action:
                case Compute():
                    if self._computing is None or self._computing.done():
                        self._computing = asyncio.create_task(self._compute(action), name="compute")
                    continue
                case Lose():
                    self._actions.clear()
                case _:
                    pass
            self._actions.append(action)
            self._has_actions.set()

    async def _perform_all(self) -> None:
        while self._fatal is None:
            await self._has_actions.wait()
            self._has_actions.clear()
            while self._actions:
                action = self._actions.popleft()
                with span(type(action).__name__.lower(), {"member": self.member_id, "epoch": self.member.epoch}):
                    await self._perform(action)

    async def _perform(self, action: Action) -> None:
        match action:
            case Revoke(units=units, epoch=epoch):
                logger.info("epoch %d: stopping %s", epoch, show(units))
                # Stop first: a listener that commits offsets must see the last one written.
                await self._stop_units(units)
                failure = await tell_listeners(self._listeners, "on_revoked", units, epoch)
                if failure is None:
                    self.member.mark_revoked(units)
                    self._tell_beat()
            case Assign(grants=grants, epoch=epoch):
                units = frozenset(grant.unit for grant in grants)
                logger.info("epoch %d: given %s", epoch, show(units))
                await tell_chosen_assignor(
                    list(self._assignors.values()), self.member_id, frozenset(self.member.owned), action
                )
                await tell_listeners(self._listeners, "on_assigned", units, epoch)
                if self._runner is not None:
                    await self._runner.start(grants)
            case Lose():
                await self._lose(action)
            case Fail(error=error):
                logger.error("the group does not take this worker: %s", error)
                self._fatal = error
                if self.member.owned:
                    await self._lose(Lose(units=frozenset(self.member.owned), epoch=self.member.epoch, why=str(error)))
            case Compute():
                raise AssertionError("computing does not wait for other actions")

    async def _lose(self, action: Lose) -> None:
        self.lost += 1
        if action.units:
            logger.warning("epoch %d: lost %s: %s", action.epoch, show(action.units), action.why)
        else:
            logger.info("epoch %d: joining again: %s", action.epoch, action.why)
        try:
            await asyncio.wait_for(self._stop_units(action.units), self._times.lose_timeout_s)
        except TimeoutError:
            logger.error(
                "%s did not stop within %g s; its writes are refused from now on",
                show(action.units),
                self._times.lose_timeout_s,
            )
        await tell_listeners(self._listeners, "on_lost", action.units, action.epoch)
        self.member.mark_lost()
        self._tell_beat()

    def _tell_beat(self) -> None:
        """Something has ended: the group should hear of it at once."""
        self._wake.set()
        if not self.member.owned:
            self._emptied.set()

    async def _stop_units(self, units: frozenset[Any]) -> None:
        if self._runner is not None and units:
            await self._runner.stop(units)

    # ----------------------------------------------------------------------------------------------
    # Compute

    async def _compute(self, action: Compute) -> None:
        """Prepare, assign, Install. What goes wrong on the way is told to the group, or will be asked for again."""
        group_id = self.member.settings.group_id
        try:
            prepared = await self._ask(
                PrepareRequest(group_id=group_id, member_id=self.member_id, member_epoch=action.member_epoch)
            )
            assert isinstance(prepared, PrepareResponse)
            install = InstallRequest(
                group_id=group_id,
                member_id=self.member_id,
                member_epoch=action.member_epoch,
                group_epoch=prepared.group_epoch,
            )
            install = await self._assign(prepared, install)
            answer = await self._ask(install)
            assert isinstance(answer, InstallResponse)
        except (GroupError, TransportError) as error:
            # Fenced, replaced or overtaken meanwhile: the next heartbeat says what is wanted now.
            logger.info("assignment not installed: %s", error)

    async def _assign(self, prepared: PrepareResponse, install: InstallRequest) -> InstallRequest:
        name = prepared.assignor_name
        timeout_s = self._times.assignor_timeout_s
        started = time.monotonic()
        try:
            if name not in self._assignors:
                raise PluginError(f"assignor {printable(name)!r} is not one of {sorted(self._assignors)}")
            assignment = await asyncio.wait_for(
                off_loop(f"assignor {name}", run_assignor, self._assignors[name], group_from_prepare(prepared)),
                timeout_s,
            )
        except TimeoutError:
            return _failed(install, f"assignor {name!r} did not answer within {timeout_s:g} s")
        except PluginError as error:
            return _failed(install, str(error))
        if assignment.error:
            return _failed(
                install, assignment.message or f"assignor {name!r}: error {assignment.error}", assignment.error
            )
        logger.info(
            "epoch %d: computed by %s for %d members in %.1f ms",
            prepared.group_epoch,
            name,
            len(prepared.members),
            (time.monotonic() - started) * 1000,
        )
        return replace(install, members=members_for_install(assignment))

    async def publish_tasks(self, connector: str, owner_epoch: int, configs: Sequence[Config]) -> None:
        """Hand the task list of a connector this worker owns to the group.

        Raises:
            StaleMemberEpoch: it is not, or no longer, the owner under that grant.
            GroupError, TransportError: refused, or not answered for long.
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
        """A call other than a heartbeat, repeated while nobody answers; an error code becomes its exception."""
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(_TryAgain),
            wait=wait_random_exponential(multiplier=self._times.retry_first_s, max=self._times.retry_most_s),
            stop=stop_after_delay(self._times.assignor_timeout_s),
            reraise=True,
        )

        async def once() -> Response:
            try:
                response = await self._control.call(request, timeout_s=self._times.call_timeout_s)
            except TransportError as error:
                raise _TryAgain(str(error)) from error
            code = getattr(response, "error_code", 0)
            if code:
                refused = from_code(code, getattr(response, "error_message", None))
                if refused.retriable:
                    raise _TryAgain(str(refused)) from refused
                raise refused
            return response

        try:
            return await retrying(once)
        except _TryAgain as given_up:
            raise TransportError(f"given up after {self._times.assignor_timeout_s:g} s: {given_up}") from given_up


def _failed(install: InstallRequest, message: str, error: int = 1) -> InstallRequest:
    logger.error("%s", message)
    return replace(install, error=error, message=printable(message, most=500))


def _now_ms() -> int:
    """The event loop's clock: it never goes back, and a simulated loop simulates it."""
    return int(asyncio.get_running_loop().time() * 1000)
