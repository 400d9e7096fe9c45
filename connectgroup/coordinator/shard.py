"""One shard of the coordinator: one queue of inputs, decided in turns; a response is sent only after its append.

A turn has five steps (``Shard._turn``):

1. Take a queued command: a request, an expired timer, or the result of an effect (``intake``).
2. Admit it (``_admit``): find its group, or refuse it because the group cannot be served now; take note of its number,
   and reject a late copy; end the parked request of the same sender, which it replaces.
3. Decide it (``_decide``): the group's type returns an outcome, whose records are applied to the group in memory
   already. The parked requests that these records concern are taken, too, and pass steps 2 and 3 before any other.
   Then the next command, until the time of the turn is used, or it has many records.
4. Append all records of the turn as one batch (``_append``). One append serves all commands, so a thousand members that
   join together cost a few commits and not a thousand.
5. When the batch is durable (D1): arm timers, perform effects, send responses, let the parked requests wait.

State in memory may therefore be ahead of the log for the duration of one append, but no response exposes it. If the
append fails, or its outcome is unknown, the shard drops the groups of that turn, loads them again from the log, and
returns a retriable error to the senders (D6).

The shard decides by no group type: ``group.registry`` says what it needs to know.

Source: Kafka's ``CoordinatorRuntime``; PD-09.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from ..errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    GroupError,
    InconsistentGroupProtocol,
    InvalidRequest,
    LogError,
    NotCoordinator,
    PolicyViolation,
    UnknownMemberId,
    UnknownServerError,
)
from ..fault_points import fault_point
from ..group.kernel.outcome import Effect, Outcome, SetTimer, Timer, TimerKey, TimerKind, Warn
from ..group.kernel.state import Process
from ..group.registry import (
    NO_CLIENT,
    ClientInfo,
    Converting,
    GroupType,
    Registry,
    Replaceable,
    RequestTraits,
    Retired,
    Steady,
)
from ..log.base import AppendRefused, Log, LogFenced, LogNotWritable, SharedLog
from ..protocol.messages.api import Response
from ..protocol.messages.consumer import ConsumerHeartbeatRequest
from ..protocol.messages.describe import DeleteRequest, DescribedGroup, DescribeRequest
from ..protocol.messages.heartbeat import HeartbeatRequest
from ..protocol.records.base import Key, Kind, Tombstone
from ..protocol.records.connect import GROUP_TYPE, Record
from ..protocol.units import printable
from .compute import Effects
from .intake import TAKES_LONG, Command, Describe, Intake, Reply, Snapshot, loading_error
from .journal import Writability, log_records
from .loading import Groups, Loaded, Remove, Retention, WriteNumbers, is_vacant, recover_groups
from .metrics import CoordinatorMetrics, RebalanceTraces
from .parking import Dedup, Parking, Timers, WakeNext

logger = logging.getLogger(__name__)

RELOAD_WAIT_S: Final = 0.2
"""Interval between two attempts to load a group from a log that is temporarily unreadable."""

WRITE_NUMBERS_EVERY_S: Final = 300.0
WRITE_NUMBERS_PAUSE_S: Final = 0.1
WRITE_NUMBERS_GROUPS: Final = 20
"""See ``due`` of ``Shard``."""

MAX_RECORDS: Final = 3_000
"""Records after which a turn takes no further command. To encode them takes 20 ms."""

REPORT_FULL_EVERY_S: Final = 600.0
"""Seconds between two warnings that the limit of groups rejects groups."""


class Shard:
    """Serves groups of any registered type from one log.

    Attributes:
        groups, dedup, intake, timers, parking, retention: the state in memory. Only the shard changes it.
        effects: performs the effects of durable turns.
        writability: whether the log takes writes.
        metrics, traces: what is measured of it.
    """

    def __init__(
        self,
        log: Log,
        registry: Registry,
        *,
        clock_ms: Callable[[], int],
        max_groups: int,
        in_flight_s: float,
        on_deleted: Callable[[str], None] = lambda group_id: None,
        on_loaded: Callable[[Any, Sequence[Record]], None] = lambda state, records: None,
        with_numbers: Callable[[Record], Record] = lambda record: record,
        due: Callable[[Any], Sequence[Record]] = lambda state: (),
    ) -> None:
        """Create a shard. It serves no requests until ``start``.

        Args:
            log: ``start`` opens it and takes ownership for this process.
            registry: the group types that are served.
            clock_ms: the clock for timestamps in records; timers use the event loop's clock.
            max_groups: maximum number of groups.
            in_flight_s: how long a request may be in flight before it arrives, in seconds.
            on_deleted: called with each group that was deleted.
            on_loaded: called with the state of each group that was loaded, and its records.
            with_numbers: adds to a record, before it is written, what no rule depends on.
            due: returns what of that is to be written again for a group with this state, a few records at once; called
                every ``WRITE_NUMBERS_EVERY_S``, and again until there are none.
        """
        self._with_numbers, self._due = with_numbers, due
        self._write_numbers_from_s = -1.0  # on the event loop's clock; changed by ``_retain``
        self._log, self._registry, self._max_groups, self._on_deleted = log, registry, max_groups, on_deleted
        self.groups = Groups(registry, clock_ms=clock_ms, on_loaded=on_loaded)
        self.dedup = Dedup(self.groups.is_member, in_flight_s=in_flight_s)
        self.intake = Intake(self.groups.is_from_member)
        self.timers = Timers(self.intake)
        self.parking = Parking(self.intake)
        self.retention = Retention(self.groups)
        self.effects = Effects(registry, self.intake.on_effect, self._spawn)
        self.writability = Writability(log, self.effects.perform, self._spawn)
        self.traces = RebalanceTraces()
        self.metrics = CoordinatorMetrics(log, self.groups, self.parking, self.writability)
        self._reports_full_from_s = 0.0  # on the event loop's clock
        self._tasks: set[asyncio.Task[None]] = set()  # those of ``_spawn`` that run; ``close`` waits for them
        self._closed = False  # ``close`` sets it
        self._in_turn = False  # ``_run`` decides and appends
        self._undurable: set[str] = set()  # the groups of the turn under way; changed by ``_turn``

    # ---- life cycle

    async def start(self) -> None:
        """Take ownership of the log, replay it to its end, then serve, in that order (D4).

        Raises:
            LogError: the log cannot be opened or read at all. If a single group cannot be read, the shard rejects the
                requests for that group and serves the others.
        """
        await self._log.open()
        try:
            shared = self._log if isinstance(self._log, SharedLog) else None
            if shared is not None and shared.partitions > 1 and shared.successor is None:
                # It would look for all groups in the first one.
                raise LogError(
                    f"the log has {shared.partitions} partitions; allowed: a log of one partition, or the command "
                    "connectgroup coordinator, which serves several"
                )
            if shared is not None and (lost := shared.lost_records):
                logger.error("the log may lack acknowledged records (%s): its groups are recovered", lost)
                await recover_groups(shared, now_ms=self.groups.clock_ms())
            stored = await self._log.load()
            if shared is not None:
                await shared.check_writable()  # renews the lease: a large group takes most of a second
            for group_id, records in stored.items():
                self._act(self.groups.load(group_id, records))
                await asyncio.sleep(0)  # the lease of a shared log is renewed meanwhile
            if shared is not None:
                await shared.mark_serving()
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

    async def close(self, last: Callable[[Any], Iterable[Record]] = lambda state: ()) -> None:
        """Stop serving: parked requests are rejected with a retriable error, timers are cancelled.

        Args:
            last: returns what is written at the end of a group with this state, if the log can be written; no rule
                depends on it.
        """
        if self._closed:
            return
        self._closed = True
        is_idle = not self._in_turn and self.intake.not_serving is None
        try:
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if is_idle:
                records = [record for group in self.groups.loaded.values() for record in last(group.state)]
                try:
                    if records:
                        await self._log.append(records)
                except LogFenced:
                    pass  # another coordinator serves already
                except Exception as error:
                    logger.warning("the last numbers of tasks are not written: %s", error)
        finally:  # also of a caller who waits no longer
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

    # ---- requests

    @property
    def turns(self) -> int:
        """The number of turns so far."""
        return self.metrics.turns

    async def submit(self, request: Any, client: ClientInfo = NO_CLIENT) -> Any:
        """Queue one request of a registered type and return its response.

        Raises:
            InvalidRequest: no group type handles such a request.
        """
        return await self._response_to(self._command(request, client))

    async def submit_all(self, requests: Sequence[Any], client: ClientInfo = NO_CLIENT) -> list[Any]:
        """As ``submit``, for requests about one group: they are queued at once, so that no later one overtakes them."""
        waiting = [self._queue(self._command(request, client)) for request in requests]
        try:
            return [await response for response in waiting]
        finally:
            for response in waiting:
                response.cancel()  # of one that is not awaited any more
                self.intake.pending.pop(response, None)

    async def describe(
        self, request: DescribeRequest, group_id: str, client: ClientInfo = NO_CLIENT, *, copies: bool = False
    ) -> Any:
        """Queue the description of one group and return it; see ``Describe`` for a large group."""

        def refused(error: GroupError) -> DescribedGroup:
            return DescribedGroup(group_id=group_id, error_code=error.code, error_message=str(error))

        traits = RequestTraits(group_id=group_id)
        return await self._response_to(Command(Describe(request, copies), traits, client, error_response=refused))

    def begin(self, request: Any, client: ClientInfo, respond: Callable[[Any], None]) -> None:
        """As ``submit``, without a task that waits: ``respond`` is called with the response."""
        command = self._command(request, client)
        command.response = Reply(respond, self.intake.pending)
        self._receive(command)

    def _command(self, request: Any, client: ClientInfo) -> Command:
        group_type = self._registry.owner(request)
        if group_type is None:
            raise InvalidRequest(f"{type(request).__name__}: the server handles this request itself")
        error_response = partial(group_type.error_response, request)
        return Command(request, group_type.traits(request, client), client, error_response=error_response)

    def _queue(self, command: Command) -> asyncio.Future[Any]:
        command.response = response = asyncio.get_running_loop().create_future()
        self._receive(command)
        return response

    async def _response_to(self, command: Command) -> Any:
        response = self._queue(command)
        try:
            return await response
        finally:
            self.intake.pending.pop(response, None)

    def _receive(self, command: Command) -> None:
        """Queue a request. Re-arm the timer of its sender now: it may be queued behind a slow append (F11).

        A request of another process than the member's would keep a dead member in the group.
        """
        sent = command.traits
        if (
            self.intake.receive(command)
            and sent.renews is not None
            and not self.dedup.is_copy(sent)
            and self.groups.is_from_its_process(sent)
        ):
            self.timers.renew(sent.renews)

    def unchanged(
        self, group_type: Steady, request: HeartbeatRequest | ConsumerHeartbeatRequest, client: ClientInfo
    ) -> Any:
        """The response to a heartbeat that reports nothing; ``None``: it has to wait for a turn, or is parked.

        If nothing of its group is queued or in the turn under way, a turn would append no record for it, and the state
        that it is decided from is durable. Most heartbeats of consumers, and of workers that do not want to be parked,
        are decided here, for less than half of what they cost in a turn; they wait for no append of another group.
        """
        group_id, member_id = request.group_id, request.member_id
        if group_id in self._undurable or self.intake.has_of(group_id):
            return None
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
                process = Process(request.process_id, client.principal)
                if not self.dedup.follows(group_id, member_id, process, request.sequence):
                    return None
        elif outcome.parks:
            return None
        self.metrics.on_turn()
        for timer in outcome.timers:
            self.timers.set(timer)
        if not self._in_turn and self.metrics.now_s() >= self.retention.next_check_s:
            self._retain()
        return outcome.response

    # ---- a turn; the module has the list of its steps

    async def _run(self) -> None:
        while True:
            await self.intake.ready()
            self._in_turn = True
            await self._turn(self.intake.commands())
            self._in_turn = False

    async def _turn(self, commands: Iterator[Command]) -> None:
        """Decide the commands, append their records as one batch, send all responses."""
        self.metrics.on_turn()
        turn = Turn()
        for taken in commands:
            turn.commands.append(taken)
            queue = deque([taken])
            while queue:
                # The parked requests arrived before all queued commands. If one were decided after a later request of
                # the same member, it would look stale, and a healthy member would be fenced.
                queue.extendleft(reversed(self._take(queue.popleft(), turn)))
            if len(turn.records) >= MAX_RECORDS:
                self.intake.end_turn()
        # Nothing else ran until here. A turn may also delete groups to make room for another one. Those of a turn that
        # is retried command by command stay: not all of its commands are decided.
        outer, own = self._undurable, {command.group_id for command in turn.commands}
        self._undurable = outer | own | turn.written | {*turn.deleted}
        await self._append(turn)
        self._undurable = outer

    def _take(self, command: Command, turn: Turn) -> list[Command]:
        """Admit and decide one command; return the parked requests that must be decided again after it."""
        try:
            group = self._admit(command, turn)
            if group is None:
                return []
            if isinstance(command.what, WakeNext):
                self.parking.wake_next(command.group_id, group.state)
            else:
                self._decide(command, group, turn)
        except Exception:
            # A bug in the group rules: send no response that contains state of this turn that the log does not have.
            # The other groups continue (D8).
            logger.exception("group %s: %s failed", printable(command.group_id), type(command.what).__name__)
            failed = "the coordinator failed to handle the request"
            # A coordinator bug must not end a worker: reject a member's request with a retriable error.
            command.refuse(CoordinatorNotAvailable(failed) if command.traits.sender else UnknownServerError(failed))
            self._drop(command.group_id)
            turn.discard_group(command.group_id)
            return []
        return self.parking.woken(command.group_id, group.state)

    def _admit(self, command: Command, turn: Turn) -> Loaded | None:
        """Return the group of the command, or ``None`` if the command was completed or is obsolete."""
        if command.done:
            return None
        if isinstance(command.what, TimerKey) and not self.timers.take_expired(command):
            return None
        group = self._group_of(command, turn)
        if isinstance(group, GroupError):
            command.refuse(group)
            return None
        if command.traits.follows and (yielded := self.parking.yielded_to(command)) is not None:
            turn.responses.append(yielded)
        if group is None or not command.traits.sender:
            return group
        if not command.arrived:
            command.arrived = True
            stale = self.dedup.error(command.traits)
            if stale is not None and command.error_response is not None:
                command.late = True
                turn.responses.append((command, command.error_response(stale)))
                return None
        # A request of another process than the member's is about to be rejected: it must not end a parked heartbeat.
        if self.parking.has_earlier(command) and group.is_from_its_process(command.traits):
            turn.responses.append(self.parking.replaced_by(command))
        return group

    def _group_of(self, command: Command, turn: Turn) -> Loaded | GroupError | None:
        """The group of a command, new if the log has no such group; the error of the request; or ``None``: obsolete."""
        group_id = command.group_id
        error = self.groups.error(group_id)
        if error is not None:
            return error
        if command.response is not None and fault_point("the coordinator is loading"):
            return loading_error(group_id)
        group = self.groups.loaded.get(group_id)
        if command.response is None or (group is not None and isinstance(command.what, Describe)):
            return group
        if group is None or not group.state.exists:
            if command.traits.creates_group and self._is_full() and not self._make_room(turn):
                self._report_full(group_id)
                return PolicyViolation(f"this coordinator has all of its {self._max_groups} groups")
            # A deleted group keeps its state for its own type only.
            is_of_type = group is not None and self._registry.claimed_by(command.what) in (None, group.group_type)
            return (
                group
                if group is not None and is_of_type and _handles(group.group_type, command)
                else self._new(command)
            )
        claimed_by = self._registry.claimed_by(command.what)
        if claimed_by in (None, group.group_type) and _handles_now(group, command):
            return group
        if command.traits.creates_group:
            try:
                replacement = self._replacement(group, command)
            except GroupError as refusal:
                if not refusal.retriable:
                    # Once for each epoch: clients repeat their joins.
                    epoch = group.group_type.measure(group.state).epoch
                    turn.effects.append(Warn(group_id=group_id, epoch=epoch, message=f"not converted: {refusal}"))
                return refusal
            if replacement is not None:
                return replacement
        elif command.traits.sender and _retired(group) is not None:
            # The last member has left since the sender's first request: the next join replaces the group (GT-01).
            return UnknownMemberId(f"group {printable(group_id)} has no members")
        return InconsistentGroupProtocol(
            f"group {printable(group_id)} is of type {group.group_type.name!r}, which does not handle this request"
        )

    def _new(self, command: Command) -> Loaded:
        group_type = self._registry.owner(command.what) or self._registry.default
        return Loaded(group_type, group_type.new(command.group_id))

    def _replacement(self, group: Loaded, command: Command) -> Loaded | None:
        """The group that replaces one of another type: an empty one (GT-01), or one that is converted (MG-01).

        Raises:
            GroupError: a group with members cannot be converted.
        """
        retired = _retired(group)
        new = self._new(command)
        if retired is None:
            return _converted(group, new.group_type)
        for record in retired.kept:
            new.group_type.apply(new.state, record)
        return replace(new, removes=retired.removed)

    def _is_full(self) -> bool:
        loaded = self.groups.loaded
        limit = self._max_groups
        return len(loaded) >= limit and sum(group.state.exists for group in loaded.values()) >= limit

    def _report_full(self, group_id: str) -> None:
        """Say once in a while that groups are rejected: their clients may not show the error."""
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._reports_full_from_s:
            self._reports_full_from_s = now_s + REPORT_FULL_EVERY_S
            logger.warning(
                "group %s is rejected: all %d groups are in use; delete groups in state Empty "
                "(connectgroup groups delete GROUP), or raise max_groups",
                printable(group_id),
                self._max_groups,
            )

    def _make_room(self, turn: Turn) -> bool:
        """Remove a vacant group; return whether there was one."""
        group_id = self.retention.to_replace()
        if group_id is not None:
            self._remove(self.groups.loaded[group_id], turn)
        return group_id is not None

    def _remove(self, group: Loaded, turn: Turn) -> None:
        """Remove a group if it is vacant, or what is left of it if it is deleted."""
        group_id = group.state.group_id
        if is_vacant(group):
            delete = DeleteRequest(group_ids=(group_id,))
            self._decide(Command(delete, RequestTraits(group_id=group_id)), group, turn)
        elif not group.state.exists:
            turn.records.append(Tombstone(Key(Kind.GROUP, group_id)))
            turn.written.add(group_id)
            turn.deleted.append(group_id)
            del self.groups.loaded[group_id]

    def _decide(self, command: Command, group: Loaded, turn: Turn) -> None:
        """Have the group's type decide one input; add the outcome to the turn."""
        if isinstance(command.what, Remove):
            self._remove(group, turn)
            return
        if isinstance(command.what, WriteNumbers):
            self._write_numbers(group, turn)
            return
        request, repeated = command.traits, command.parked
        if isinstance(command.what, Describe):
            turn.responses.append((command, _described(command, command.what, group, self.groups.clock_ms())))
            return
        outcome = group.group_type.step(group.state, command.what, self.groups.clock_ms(), command.client)
        replaces = bool(group.removes)
        if group.state.exists and (outcome.records or not replaces):
            self.groups.loaded[request.group_id] = self._kept(group, outcome)
        if outcome.records:
            turn.records += (*group.removes, *outcome.records)
            turn.written.add(request.group_id)
            self.dedup.record_removals(outcome.records)
            if not group.state.exists:
                turn.deleted.append(request.group_id)
            turn.timers += group.timers
            self._respond(request.group_id, group.parked_responses, turn)
        if outcome.effects:
            turn.effects += outcome.effects
        if outcome.timers:
            self._add_timers(outcome, repeated, turn)
        if outcome.parked_responses:
            self._respond(request.group_id, outcome.parked_responses, turn)
        if command.response is None:
            return
        if outcome.sender:
            command.traits = request = request._replace(sender=outcome.sender)
        response = outcome.response
        error_code = getattr(response, "error_code", 0)
        is_numbered = request.sequence >= 0
        if is_numbered and not repeated and error_code != InvalidRequest.code and group.is_from_its_process(request):
            self.dedup.record(request)
        # A request that is parked without a response has none that could be sent at once.
        at_once = outcome.parks and fault_point("a parked heartbeat is answered at once") and response is not None
        if outcome.parks and request.sender and not at_once and (response is None or request.max_wait_ms > 0):
            self.parking.park(command, response)
            turn.parked.append(command)
        else:
            turn.responses.append((command, response))

    def _kept(self, group: Loaded, outcome: Outcome[Any]) -> Loaded:
        """The group after a step, which may have converted it into a group of another type."""
        if outcome.converted is None:
            return Loaded(group.group_type, group.state) if group.removes else group
        group_type = self._registry.get(outcome.converted.group_type)
        assert group_type is not None
        return Loaded(group_type, outcome.converted.state)

    def _respond(self, group_id: str, replies: Mapping[str, Response], turn: Turn) -> None:
        """Respond to parked requests."""
        for sender, reply in replies.items():
            turn.responses += [(parked, reply) for parked in self.parking.take(group_id, (sender,))]

    def _add_timers(self, outcome: Outcome[Any], repeated: bool, turn: Turn) -> None:
        # A parked request re-arms the session timer on arrival, not each time it is decided again.
        timers = [
            timer
            for timer in outcome.timers
            if not (repeated and isinstance(timer, SetTimer) and timer.key.kind is TimerKind.SESSION)
        ]
        turn.timers += timers
        # A timer that expired while this input was queued is already a command of this turn. It must not fire after
        # the input that cancelled or re-armed it, so it is removed now; it is re-armed only after the append. If the
        # append fails, the group is reloaded, and ``on_load`` arms its timers.
        for timer in timers:
            self.timers.expired.pop(timer.key.identity, None)

    async def _append(self, turn: Turn) -> None:
        """Append the records of a turn, then arm its timers, respond, park and perform its effects."""
        try:
            if turn.records:
                began_s = self.metrics.now_s()
                await self._log.append([*map(self._with_numbers, turn.records)])
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
                self._drop(group_id)
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
            self._drop(group_id)

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
            await self._drop_and_reload(group_id)
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
            await self._drop_and_reload(group_id)
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

    def _retain(self) -> None:
        """Queue the removal of the groups that are not kept any longer; and what is written from time to time."""
        now_s = self.metrics.now_s()
        for group_id in self.retention.due(now_s):
            self.intake.submit_input(group_id, Remove())
        if now_s >= self._write_numbers_from_s:
            is_first, self._write_numbers_from_s = self._write_numbers_from_s < 0, now_s + WRITE_NUMBERS_EVERY_S
            if not is_first and not self.writability.error:
                names = [name for name, each in self.groups.loaded.items() if each.group_type.name == GROUP_TYPE]
                for position, group_id in enumerate(names):
                    # A few at a time: requests of clients without a principal would wait for all of them.
                    later_s = position // WRITE_NUMBERS_GROUPS * WRITE_NUMBERS_PAUSE_S
                    submit = partial(self.intake.submit_input, group_id, WriteNumbers())
                    asyncio.get_running_loop().call_later(later_s, submit)

    def _write_numbers(self, group: Loaded, turn: Turn) -> None:
        """Add the records of ``due`` to a turn. They change no state, so nothing is applied."""
        if group.state.exists and not self.writability.error and (records := self._due(group.state)):
            turn.records += records
            turn.written.add(group.state.group_id)
            # The rest later: a turn with all of them would delay the heartbeats.
            again = partial(self.intake.submit_input, group.state.group_id, WriteNumbers())
            asyncio.get_running_loop().call_later(WRITE_NUMBERS_PAUSE_S, again)

    def _forget(self, group_id: str) -> None:
        """Drop what is kept of a deleted group besides its records."""
        self.metrics.forget(group_id)
        self.traces.forget(group_id)
        self.effects.forget(group_id)
        self.parking.forget(group_id)
        self.retention.on_deleted(group_id)
        self._on_deleted(group_id)

    # ---- groups are dropped and loaded again

    def _drop(self, group_id: str) -> None:
        """Drop a group's state and load it again in the background."""
        if group_id not in self.groups.loading:
            self._discard(group_id)
            self._spawn(self._reload(group_id))

    async def _drop_and_reload(self, group_id: str) -> None:
        """Drop a group's state and load it again at once; in the background if the log cannot be read now."""
        self._discard(group_id)
        if not await self._reload_once(group_id):
            self._spawn(self._reload(group_id))

    def _discard(self, group_id: str) -> None:
        """Drop a group's state; until it is loaded again, its requests get CoordinatorLoadInProgress."""
        self.groups.discard(group_id)
        self.timers.drop_group(group_id)
        self.parking.refuse_group(group_id)

    async def _reload(self, group_id: str) -> None:
        failed = False
        while not await self._reload_once(group_id, logs=not failed):
            failed = True
            await asyncio.sleep(RELOAD_WAIT_S)
        if failed and group_id not in self.groups.refused:
            logger.warning("group %s is loaded again", printable(group_id))

    async def _reload_once(self, group_id: str, *, logs: bool = True) -> bool:
        """Load a group again; return false if the log cannot be read now, which is logged if ``logs``."""
        try:
            loaded = await self._log.load(group_id)
        except LogFenced as error:
            self._step_down(error)
            return True
        except LogError as error:
            if logs:
                logger.error("group %s cannot be loaded, retrying: %s", printable(group_id), error)
            return False
        self._act(self.groups.load(group_id, loaded[group_id]))
        return True

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


@dataclass(slots=True)
class Turn:
    """What the commands of a turn have led to, before its append.

    Attributes:
        commands: the queued commands of the turn, without the parked requests that it woke up.
        records: to append as one batch.
        timers, effects, responses: applied, performed and sent once the batch is durable.
        parked: requests that the turn parked.
        written: groups with records.
        deleted: groups that were deleted, or removed.
    """

    commands: list[Command] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    timers: list[Timer] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    responses: list[tuple[Command, Any]] = field(default_factory=list)
    parked: list[Command] = field(default_factory=list)
    written: set[str] = field(default_factory=set)
    deleted: list[str] = field(default_factory=list)

    def discard_group(self, group_id: str) -> None:
        """Discard the results of a group and refuse its requests."""
        self.records = [record for record in self.records if record.group_id != group_id]
        self.discard_actions({group_id})
        self.written.discard(group_id)
        self.refuse_groups({group_id})

    def discard_actions(self, group_ids: set[str]) -> None:
        """Discard the timers and the effects of groups."""
        self.timers = [timer for timer in self.timers if timer.key.group_id not in group_ids]
        self.effects = [effect for effect in self.effects if effect.group_id not in group_ids]

    def refuse_groups(self, group_ids: set[str]) -> None:
        """Replace the responses of groups by a retriable error."""
        for command, _ in self.responses:
            if command.group_id in group_ids:
                command.refuse(CoordinatorNotAvailable("the group is being loaded again"))
        self.responses = [each for each in self.responses if each[0].group_id not in group_ids]


def _converted(group: Loaded, new_type: GroupType) -> Loaded | None:
    """The group of another type that a group with members becomes, or ``None``: the type converts no groups."""
    if not isinstance(new_type, Converting):
        return None
    converted = new_type.convert(group.group_type.name, group.state)
    return Loaded(
        new_type,
        converted.state,
        removes=converted.records,
        timers=converted.timers,
        parked_responses=converted.parked_responses,
    )


def _retired(group: Loaded) -> Retired | None:
    """What a join of another type makes of the group; ``None``: it does not replace the group."""
    return group.group_type.retire(group.state) if isinstance(group.group_type, Replaceable) else None


def _handles_now(group: Loaded, command: Command) -> bool:
    """Whether the group's type handles the command; some requests only while another type cannot replace the group."""
    group_type = group.group_type
    # Not ``isinstance(group_type, Converting)``, which takes as long as a tenth of a heartbeat: this runs for each one.
    if type(command.what) in getattr(group_type, "member_request_types", ()):
        return bool(group.state.members) or not isinstance(group_type, Replaceable)
    return _handles(group_type, command)


def _handles(group_type: GroupType, command: Command) -> bool:
    return type(command.what) in group_type.request_types


def _described(command: Command, what: Describe, group: Loaded, now_ms: int) -> Any:
    """The response to ``Describe``."""
    request = what.request
    if group.group_type.takes_long_to_describe(group.state, request):
        return Snapshot.of(group.group_type, group.state, request, now_ms) if what.copies else TAKES_LONG
    try:
        return Snapshot(group.group_type, group.state, request, now_ms).described()
    except GroupError as error:
        assert command.error_response is not None
        return command.error_response(error)
