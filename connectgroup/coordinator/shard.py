"""One shard of the coordinator: one queue of inputs; a response is sent only after its append.

In each turn the shard takes the queued commands. For each command, the group's type decides and the records are applied
to the group in memory. The shard then appends all records of the turn as one batch. It sends the responses only after
the log has acknowledged the batch as durable (D1). State in memory may therefore be ahead of the log for the duration
of one append, but no response exposes it: if the append fails, or its outcome is unknown, the shard drops the
groups of that turn, reloads them from the log, and returns a retriable error to the senders (D6). One append serves
all queued commands, so a thousand members that join together cost a few commits and not a thousand.

The shard knows no group type: ``group.registry`` says what it needs to know.

Source: Kafka's ``CoordinatorRuntime``; PD-09.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from ..errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    GroupError,
    InvalidRequest,
    LogError,
    NotCoordinator,
    UnknownServerError,
)
from ..fault_points import fault_point
from ..group.kernel.outcome import Outcome
from ..group.kernel.static import Process
from ..group.registry import Client, Registry, RequestTraits, Steady
from ..log.base import AppendRefused, Log, LogFenced, LogNotWritable
from ..protocol.messages.consumer import ConsumerHeartbeatRequest
from ..protocol.messages.heartbeat import HeartbeatRequest
from ..protocol.units import printable
from .compute import Effects
from .decisions import Decisions, Turn
from .intake import Command, Intake
from .journal import Writability, log_records
from .loading import Groups, Remove
from .metrics import CoordinatorMetrics
from .parking import Dedup, Parking, WakeNext, Waking
from .timers import Timers
from .tracing import RebalanceTraces

logger = logging.getLogger(__name__)


class Shard:
    """Serves groups of any registered type from one log.

    Attributes:
        intake: the queue.
        groups, timers, parking, waking: the state in memory.
        writability: whether the log takes writes.
        on_deleted: called with each group that was deleted.
    """

    def __init__(
        self, log: Log, registry: Registry, *, clock_ms: Callable[[], int], max_groups: int, in_flight_s: float
    ) -> None:
        """Create a shard. It serves no requests until ``start``.

        Args:
            log: ``start`` opens it and takes ownership for this process.
            registry: the group types that are served.
            clock_ms: the clock for timestamps in records; timers use the event loop's clock.
            max_groups: maximum number of groups.
            in_flight_s: how long a request may be in flight before it arrives, in seconds.
        """
        self._log = log
        self.groups = Groups(log, registry, clock_ms=clock_ms, spawn=self._spawn)
        self.dedup = Dedup(self.groups.is_member, in_flight_s=in_flight_s)
        self.intake = Intake(self.groups.is_from_member)
        self.timers = Timers(self.intake.enqueue)
        self.parking = Parking()
        self.waking = Waking(self.parking, self.intake.submit_input)
        self.decisions = Decisions(self.groups, registry, self.timers, self.parking, self.dedup, max_groups)
        self.effects = Effects(registry, self.intake.on_effect, self._spawn)
        self.writability = Writability(log, self._spawn)
        self.writability.perform = self.effects.perform
        self.intake.on_arrival = self._record_arrival
        self.groups.on_loaded = self._act
        self.groups.on_dropped = (self.timers.drop_group, self.parking.refuse_group, self.waking.forget)
        self.groups.on_fenced = self._step_down
        self.on_deleted: Callable[[str], None] = lambda group_id: None
        self.traces = RebalanceTraces()
        self.metrics = CoordinatorMetrics(self.groups, self.parking, self.writability)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._in_turn = False

    # ---- life cycle

    async def start(self) -> None:
        """Take ownership of the log, replay it to its end, then serve, in that order (D4).

        Raises:
            LogError: the log cannot be opened or read at all. If a single group cannot be read, the shard rejects the
                requests for that group and serves the others.
        """
        await self._log.open()
        try:
            await self.groups.load_all()
        except BaseException:
            # Release the log, so that a retry in this process or in another one can open it (KAFKA-19394).
            await self._log.close()
            raise
        self.metrics.begin()
        self._spawn(self._run()).add_done_callback(self._on_loop_end)

    def _on_loop_end(self, loop: asyncio.Task[None]) -> None:
        """If the loop ends without ``close``, reject all pending requests: no response could be sent any more."""
        if not self._closed and self.intake.not_serving is None:
            error = None if loop.cancelled() else loop.exception()
            logger.critical("the coordinator's loop has ended", exc_info=error)
            self._stop_serving(CoordinatorNotAvailable("the coordinator has failed"))

    async def close(self) -> None:
        """Stop serving: parked requests are rejected with a retriable error, timers are cancelled."""
        if self._closed:
            return
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._stop_serving(CoordinatorNotAvailable("the coordinator is closing"))
        await self._log.close()

    def _stop_serving(self, error: GroupError) -> None:
        """Reject all pending requests, in whatever state they are, and all later ones; cancel all timers."""
        self.timers.clear()
        self.groups.loaded.clear()
        self.parking.parked.clear()
        self.effects.close()
        self.traces.close()
        self.metrics.end()
        self.intake.stop(error)

    def _step_down(self, error: LogFenced) -> None:
        """Another process owns the log. The state in memory may be stale, so reads are rejected as well (D5)."""
        if self.intake.not_serving is None:
            logger.error("no longer the coordinator: %s", error)
            self._stop_serving(NotCoordinator(f"another coordinator has opened the log: {error}"))

    # ---- a turn

    @property
    def turns(self) -> int:
        """The number of turns so far."""
        return self.metrics.turns

    async def _run(self) -> None:
        while True:
            await self.intake.ready()
            self._in_turn = True
            await self._turn(self.intake.commands())
            self._in_turn = False

    async def _turn(self, commands: Iterator[Command]) -> None:
        """Decide all commands, append their records as one batch, send all responses."""
        self.metrics.on_turn()
        turn = Turn()
        queue: deque[Command] = deque()
        while True:
            # A parked request that was woken belongs to this turn, as the change that it reports.
            if not queue:
                if (taken := next(commands, None)) is None:
                    break
                turn.commands.append(taken)
                queue.append(taken)
            command = queue.popleft()
            try:
                group = self.decisions.admit(command, turn)
                if group is None:
                    continue
                if isinstance(command.what, WakeNext):
                    self.waking.wake_next(command.group_id, group.state)
                else:
                    self.decisions.decide(command, group, turn)
            except Exception:
                # A bug in the group rules: send no response that contains state of this turn that the log does not
                # have. The other groups continue (D8).
                logger.exception("group %s: %s failed", printable(command.group_id), type(command.what).__name__)
                failed = "the coordinator failed to handle the request"
                # A coordinator bug must not end a worker: reject a member's request with a retriable error.
                command.refuse(CoordinatorNotAvailable(failed) if command.traits.sender else UnknownServerError(failed))
                self.groups.drop(command.group_id)
                turn.discard_group(command.group_id)
                continue
            # The parked requests arrived before all queued commands. If one were decided after a later request of
            # the same member, it would look stale, and a healthy member would be fenced.
            if woken := self.waking.woken(command.group_id, group.state):
                queue.extendleft(reversed(woken))
        await self._append(turn)

    def unchanged(
        self, group_type: Steady, request: HeartbeatRequest | ConsumerHeartbeatRequest, client: Client
    ) -> Any:
        """The response to a heartbeat that reports nothing; ``None``: it has to wait for a turn, or is parked.

        If nothing is queued and no turn is under way, a turn would have this heartbeat alone and append no record.
        Nearly all heartbeats are decided here, for less than half of what they cost in a turn.
        """
        if self._in_turn or self.intake.queued:
            return None
        group_id, member_id = request.group_id, request.member_id
        group = self.groups.loaded.get(group_id)
        if group is None or group.group_type is not group_type:
            return None
        outcome = group_type.unchanged(group.state, request, client)
        if outcome is None or self.parking.has_one_of(group_id, member_id):
            return None
        if isinstance(request, HeartbeatRequest):
            if outcome.parks and request.max_wait_ms:
                return None
            if request.sequence >= 0:
                sender = group_id, member_id, Process(request.process_id, client.principal)
                if not self.dedup.follows(sender, request.sequence):
                    return None
        elif outcome.parks:
            return None
        self.metrics.on_turn()
        for timer in outcome.timers:
            self.timers.set(timer)
        if self.metrics.now_s() >= self.decisions.retention.next_check_s:
            self._retain()
        return outcome.response

    def _retain(self) -> None:
        """Queue the removal of the groups that are not kept any longer."""
        for group_id in self.decisions.retention.due(self.metrics.now_s()):
            self.intake.submit_input(group_id, Remove())

    # ---- append and respond

    async def _append(self, turn: Turn) -> None:
        """Append the records of a turn, then arm its timers, respond, park and perform its effects."""
        try:
            if turn.records:
                began_s = self.metrics.now_s()
                await self._log.append(turn.records)
                self.traces.on_durable(turn.records)
                log_records(turn.records)
                self.metrics.on_durable(turn.records, began_s)
                self.writability.on_written()
        except AppendRefused as error:
            self.metrics.on_append_failed()
            # Decisions for groups without records remain valid.
            turn.discard_actions(turn.written)
            self._act(turn)
            await self._retry_one_by_one(error, turn)
            self.parking.arm(turn.parked)
            return
        except LogNotWritable as error:
            self.metrics.on_append_failed()
            await self._serve_without(error, turn)
        except LogFenced as error:
            self._step_down(error)
            return
        except Exception as error:
            self.metrics.on_append_failed()
            # Any exception: the outcome is unknown, and if the loop ended here no request would get a response.
            logger.error("append failed, loading again: %s", error, exc_info=not isinstance(error, LogError))
            for group_id in sorted(turn.written):
                self.groups.drop(group_id)
            for command, _ in turn.responses:
                command.refuse(CoordinatorNotAvailable(f"the log cannot be written: {error}"))
            turn.discard_actions(turn.written)
            turn.responses = []
        self._act(turn)
        for group_id in turn.deleted:
            self._forget(group_id)
        self._retain()
        for command, response in turn.responses:
            self.metrics.on_response(command, response)
            command.resolve(response)
        self.parking.arm(turn.parked)
        for group_id in sorted(turn.written) if fault_point("the coordinator forgets a group") else ():
            self.groups.drop(group_id)

    async def _serve_without(self, error: LogNotWritable, turn: Turn) -> None:
        """Nothing was written: go back to the durable state of the groups with changes, and reject these.

        Decisions for groups without changes remain valid. Requests that were parked before are decided again.
        """
        self.writability.on_failed(error)
        turn.discard_actions(turn.written)
        decided = [command for command, _ in turn.responses] + turn.parked
        rejected = [command for command in decided if command.group_id in turn.written]
        turn.responses = [each for each in turn.responses if each[0].group_id not in turn.written]
        turn.parked = [command for command in turn.parked if command.group_id not in turn.written]
        turn.deleted = []
        for group_id in sorted(turn.written):
            before = [command for command in self.parking.take_group(group_id) if command not in rejected]
            await self.groups.drop_and_reload(group_id)
            for command in before:
                self.intake.enqueue(command)
        for command in rejected:
            sent, session_ms = command.traits, 0
            if sent.renews is not None and self.groups.is_member(sent.group_id, sent.sender, sent.process):
                session_ms = sent.renews.after_ms
            command.refuse(self.writability.refusal(), session_ms=session_ms)

    async def _retry_one_by_one(self, error: AppendRefused, turn: Turn) -> None:
        """The log rejected the batch; nothing was written.

        Retry the commands one by one, so that only the offending one fails (KAFKA-19760).
        """
        commands = turn.commands
        for command, response in turn.responses:
            if command.late:
                command.resolve(response)
        for group_id in sorted(turn.written):
            await self.groups.drop_and_reload(group_id)
        if len(commands) == 1:
            logger.error("refused by the log: %s", error)
            # A member's request is not at fault for the records that result from it, and its sender must not end
            # because of them.
            blamed = CoordinatorNotAvailable if commands[0].traits.sender else InvalidRequest
            commands[0].refuse(blamed(f"the change cannot be stored: {error}"))
        for command, _ in turn.responses:
            # Parked requests that this turn woke up: they are not at fault, and they are not retried below.
            if command not in commands:
                command.refuse(CoordinatorLoadInProgress("the group was loaded again"))
        if len(commands) == 1:
            return
        for command in commands:
            command.parked, command.parked_response = False, None
            await self._turn(iter([command]))

    def _act(self, decided: Turn | Outcome[None]) -> None:
        """Arm the timers and perform the effects of a turn, or of a group that has been loaded."""
        for timer in decided.timers:
            self.timers.set(timer)
        if not self.writability.hold(decided.effects):
            for effect in decided.effects:
                self.effects.perform(effect)

    def _forget(self, group_id: str) -> None:
        """Drop what is kept of a group besides its records."""
        self.metrics.forget(group_id)
        self.traces.forget(group_id)
        self.effects.forget(group_id)
        self.waking.forget(group_id)
        self.decisions.retention.on_deleted(group_id)
        self.on_deleted(group_id)

    # ---- arrival

    def _record_arrival(self, request: RequestTraits) -> None:
        """Re-arm the timer of the sender when a request arrives: it may be queued behind a slow append (F11).

        A request of another process than the member's would keep a dead member in the group.
        """
        if request.renews is not None and not self.dedup.is_copy(request) and self.groups.is_from_its_process(request):
            self.timers.renew(request.renews)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
