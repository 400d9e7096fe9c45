"""The coordinator runtime: one queue of requests and expired timers; a response is sent only after its append.

In each turn the loop takes the queued commands. For each command, the group rules decide and the records are applied
to the group in memory. The loop then appends all records of the turn as one batch. It sends the responses only after
the log has acknowledged the batch as durable (D1). State in memory may therefore be ahead of the log for the duration
of one append, but no response exposes it: if the append fails, or its outcome is unknown, the coordinator drops the
groups of that turn, reloads them from the log, and returns a retriable error to the senders (D6). One append serves
all queued commands, so a thousand members that join together cost a few commits and not a thousand.

A heartbeat with ``MaxWaitMs`` and no change to report is parked: the coordinator delays the response until a record
changes the response for this member, a later heartbeat of the same member arrives, or the max wait elapses.

Source: Kafka's ``CoordinatorRuntime``; PD-09.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

from ..errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    GroupError,
    InvalidRequest,
    LogError,
    NotCoordinator,
    PolicyViolation,
    StaleMemberEpoch,
    UnknownServerError,
)
from ..fault_points import fault_point
from ..group.connect.computation import under_way
from ..group.connect.handle import GroupRequest, refusal, step
from ..group.connect.settings import GroupSettings
from ..group.connect.state import Group, replay
from ..group.connect.timers import on_load
from ..group.kernel.timers import SetTimer, Timer, TimerKey, TimerKind
from ..log.base import AppendRefused, Log, LogFenced
from ..protocol.messages.api import Request, Response
from ..protocol.messages.connectors import UpdateConnectorsRequest
from ..protocol.messages.describe import DeleteRequest, DeleteResponse, DescribeRequest, DescribeResponse
from ..protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ..protocol.records.connect import Record
from ..protocol.units import JOIN_EPOCH, printable
from .own_assignors import with_own_assignor

logger = logging.getLogger(__name__)

MAX_INPUTS_PER_TURN = 500
"""Maximum number of commands per turn: bounds the batch and the latency of the first command."""

LATE_S = 1.0
"""A timer that fires later than both this and a quarter of its duration is re-armed instead."""

MAX_HEARD_OTHERS = 10_000
"""Maximum number of ids of former members whose last sequence is kept; the oldest are dropped first."""

RELOAD_WAIT_S = 0.2
"""Interval between two attempts to load a group from a log that is temporarily unreadable."""


def wall_clock_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


@dataclass(slots=True, eq=False)
class _Command:
    """One request: queued, parked, or completed; or one expired timer (then no sender waits for a response)."""

    what: GroupRequest | TimerKey
    group_id: str
    client_host: str = ""
    client_id: str = ""
    answer: asyncio.Future[Response] | None = None
    arrived: bool = False
    late: bool = False
    parked_response: HeartbeatResponse | None = None
    answer_by_s: float = 0.0
    parked_until: asyncio.TimerHandle | None = None

    def resolve(self, response: Response) -> None:
        if self.parked_until is not None:
            self.parked_until.cancel()
        if self.answer is not None and not self.answer.done():
            self.answer.set_result(response)


@dataclass(slots=True, eq=False)
class _Armed:
    """An armed timer: its deadline, and the event loop's call that checks the deadline."""

    timer: SetTimer
    due_s: float
    look: asyncio.TimerHandle


class Coordinator:
    """Serves groups from a log: the ``Handler`` behind every transport."""

    def __init__(self, log: Log, settings: GroupSettings, *, wall_clock_ms: Callable[[], int] = wall_clock_ms) -> None:
        """Create a coordinator. It serves no requests until ``start``.

        Args:
            log: ``start`` opens it and takes ownership for this process.
            settings: for all groups. If they name an assignor without containing it, its entry point is loaded.
            wall_clock_ms: the clock for timestamps in records; timers use the event loop's clock.
        """
        self._log = log
        self._settings = with_own_assignor(settings)
        self._unassigned: dict[str, int] = {}  # group id to the last epoch that was logged
        self._wall_clock_ms = wall_clock_ms
        self._groups: dict[str, Group] = {}
        self._broken: dict[str, LogError] = {}
        self._loading: set[str] = set()
        self._queue: deque[_Command] = deque()
        self._has_work = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop
        self._asked: dict[_Command, None] = {}  # in order of arrival
        self._parked: dict[tuple[str, str], _Command] = {}
        self._heard: dict[tuple[str, str], tuple[int, float]] = {}
        self._max_sequences = 1_000
        self._timers: dict[TimerKey, _Armed] = {}
        self._expired: dict[TimerKey, _Command] = {}  # by identity: queued expired timers
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._not_serving: GroupError | None = None
        self.turns = 0

    # ----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take ownership of the log, replay it to its end, then serve, in that order (D4).

        Raises:
            LogError: the log cannot be opened or read at all. If a single group cannot be read, the coordinator
                rejects the requests for that group and serves the others.
        """
        self._loop = asyncio.get_running_loop()
        await self._log.open()
        try:
            everything = await self._log.load()
        except BaseException:
            # Release the log, so that a retry in this process or in another one can open it (KAFKA-19394).
            await self._log.close()
            raise
        for group_id, loaded in everything.items():
            self._take(group_id, loaded)
        self._spawn(self._run()).add_done_callback(self._on_loop_end)

    def _on_loop_end(self, loop: asyncio.Task[None]) -> None:
        """If the loop ends without ``close``, reject all pending requests: no response could be sent any more."""
        if not self._closed and self._not_serving is None:
            error = None if loop.cancelled() else loop.exception()
            logger.critical("the coordinator's loop has ended", exc_info=error)
            self._stop_serving(CoordinatorNotAvailable("the coordinator has failed"))

    async def close(self) -> None:
        """Stop serving: parked heartbeats are rejected with a retriable error, timers are cancelled."""
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
        self._not_serving = error
        for armed in self._timers.values():
            armed.look.cancel()
        self._timers.clear()
        self._groups.clear()
        self._parked.clear()
        for command in list(self._asked):
            self._refuse(command, error)

    def _step_down(self, error: LogFenced) -> None:
        """Another process owns the log. The state in memory may be stale, so reads are rejected as well (D5)."""
        if self._not_serving is None:
            logger.error("no longer the coordinator: %s", error)
            self._stop_serving(NotCoordinator(f"another coordinator has taken over: {error}"))

    async def handle(self, request: Request, *, client_host: str, client_id: str = "") -> Response:
        """Handle one request and return its response; see ``messages.Handler``."""
        if not isinstance(request, GroupRequest):
            raise InvalidRequest(f"{type(request).__name__}: the server answers this itself")
        if isinstance(request, DescribeRequest):
            return await self._describe(request, client_host)
        if isinstance(request, DeleteRequest):
            return await self._delete(request, client_host)
        return await self._ask(request, request.group_id, client_host, client_id)

    async def _describe(self, request: DescribeRequest, client_host: str) -> Response:
        known = [group_id for group_id, group in self._groups.items() if group.exists]
        # Describe each group once, however often it is named: a described group may take megabytes.
        asked = tuple(dict.fromkeys(request.group_ids)) or tuple(sorted({*known, *self._broken}))
        answers = [
            await self._ask(replace(request, group_ids=(group_id,)), group_id, client_host) for group_id in asked
        ]
        groups = [group for answer in answers if isinstance(answer, DescribeResponse) for group in answer.groups]
        return DescribeResponse(groups=tuple(groups), coordinator_epoch=self._log.epoch)

    async def _delete(self, request: DeleteRequest, client_host: str) -> Response:
        answers = [
            await self._ask(DeleteRequest(group_ids=(group_id,)), group_id, client_host)
            for group_id in request.group_ids
        ]
        results = [result for answer in answers if isinstance(answer, DeleteResponse) for result in answer.results]
        return DeleteResponse(results=tuple(results), coordinator_epoch=self._log.epoch)

    async def _ask(self, request: GroupRequest, group_id: str, client_host: str, client_id: str = "") -> Response:
        answer: asyncio.Future[Response] = self._loop.create_future()
        command = _Command(request, group_id, client_host, client_id, answer)
        if self._not_serving is not None:
            self._refuse(command, self._not_serving)
        else:
            self._enqueue(command)
            self._hear(request)
        self._asked[command] = None
        try:
            return await answer
        finally:
            self._asked.pop(command, None)

    def _hear(self, request: GroupRequest) -> None:
        """Re-arm the session timer when a heartbeat arrives: it may be queued behind a slow append (F11).

        A join does not re-arm it: a join proves that the previous incarnation of its sender is dead. Otherwise a join
        that is rejected and retried would keep the dead member in the group for ever, with all units it owns.
        """
        if isinstance(request, HeartbeatRequest) and request.member_epoch > JOIN_EPOCH:
            key = TimerKey(TimerKind.SESSION, request.group_id, request.member_id)
            heard, _ = self._heard.get((request.group_id, request.member_id), (-1, 0.0))
            late_copy = 0 <= request.sequence <= heard
            if late_copy:
                return
            if key in self._timers or key in self._expired:
                self._set(SetTimer(key, self._settings.session_timeout_ms))

    # ----------------------------------------------------------------------------------------------
    # The loop

    async def _run(self) -> None:
        while True:
            if not self._queue:
                self._has_work.clear()
                await self._has_work.wait()
            await self._turn([self._queue.popleft() for _ in range(min(len(self._queue), MAX_INPUTS_PER_TURN))])

    def _enqueue(self, command: _Command) -> None:
        self._queue.append(command)
        self._has_work.set()

    async def _turn(self, commands: list[_Command]) -> None:
        """Decide all commands, append their records as one batch, send all responses."""
        self.turns += 1
        parked: list[_Command] = []
        records: list[Record] = []
        timers: list[Timer] = []
        answers: list[tuple[_Command, Response]] = []
        touched: set[str] = set()
        waiting = deque(commands)
        while waiting:
            command = waiting.popleft()
            group = self._admit(command, answers)
            if group is None:
                continue
            try:
                made = self._decide(command, group, timers, answers, parked)
            except Exception:
                # A bug in the group rules: send no response that contains state of this turn that the log does not
                # have. The other groups continue (D8).
                logger.exception("group %s: %s failed", printable(group.group_id), type(command.what).__name__)
                failed = "the coordinator failed to handle the request"
                # A coordinator bug must not end a worker: reject its heartbeat with a retriable error.
                heartbeat = isinstance(command.what, HeartbeatRequest)
                self._refuse(command, CoordinatorNotAvailable(failed) if heartbeat else UnknownServerError(failed))
                self._drop(command.group_id)
                touched.discard(command.group_id)
                records = [record for record in records if record.group_id != command.group_id]
                timers = [timer for timer in timers if timer.key.group_id != command.group_id]
                answers = self._turned_away(answers, {command.group_id})
                continue
            if made:
                records += made
                touched.add(command.group_id)
            # The parked heartbeats arrived before all queued commands. If one were decided after a later heartbeat of
            # the same member, it would look stale, and a healthy member would be fenced.
            if group.members_to_wake:
                waiting.extendleft(reversed(self._take_woken(group)))
        try:
            if records:
                await self._log.append(records)
        except AppendRefused as error:
            # Decisions for groups without records remain valid.
            for timer in timers:
                if timer.key.group_id not in touched:
                    self._set(timer)
            await self._on_refused(error, commands, answers, touched)
            self._arm(parked)
            return
        except LogFenced as error:
            self._step_down(error)
            return
        except Exception as error:
            # Any exception: the outcome is unknown, and if the loop ended here no request would get a response.
            logger.error("append failed, loading again: %s", error, exc_info=not isinstance(error, LogError))
            for group_id in sorted(touched):
                self._drop(group_id)
            for command, _ in answers:
                self._refuse(command, CoordinatorNotAvailable(f"the log cannot be written: {error}"))
            timers = [timer for timer in timers if timer.key.group_id not in touched]
            answers = []
        for timer in timers:
            self._set(timer)
        for command, response in answers:
            command.resolve(self._signed(response))
        self._arm(parked)
        for group_id in sorted(touched) if fault_point("the coordinator forgets a group") else ():
            self._drop(group_id)

    async def _on_refused(
        self,
        error: AppendRefused,
        commands: list[_Command],
        answers: list[tuple[_Command, Response]],
        touched: set[str],
    ) -> None:
        """The log rejected the batch; nothing was written.

        Retry the commands one by one, so that only the offending one fails (KAFKA-19760).
        """
        for command, response in answers:
            if command.late:
                command.resolve(self._signed(response))
        for group_id in sorted(touched):
            self._forget(group_id)
            if not await self._load_once(group_id):
                self._spawn(self._reload(group_id))
        if len(commands) == 1:
            logger.error("refused by the log: %s", error)
            # A heartbeat is not at fault for the records that result from it, and its sender must not end because of
            # them.
            blamed = CoordinatorNotAvailable if isinstance(commands[0].what, HeartbeatRequest) else InvalidRequest
            self._refuse(commands[0], blamed(f"the change cannot be stored: {error}"))
        for command, _ in answers:
            # Parked heartbeats that this turn woke up: they are not at fault, and they are not retried below.
            if command not in commands:
                self._refuse(command, CoordinatorLoadInProgress("the group was loaded again"))
        if len(commands) == 1:
            return
        for command in commands:
            command.parked_response = None
            await self._turn([command])

    def _admit(self, command: _Command, answers: list[tuple[_Command, Response]]) -> Group | None:
        """Return the group of the command, or ``None`` if the command was completed or is obsolete."""
        if command.answer is not None and command.answer.done():
            return None
        if isinstance(command.what, TimerKey):
            if self._expired.get(command.what.identity) is not command:
                return None  # cancelled or re-armed since it expired
            del self._expired[command.what.identity]
        if command.group_id in self._broken:
            self._refuse(command, CoordinatorNotAvailable(str(self._broken[command.group_id])))
            return None
        if command.group_id in self._loading or (
            command.answer is not None and fault_point("the coordinator is loading")
        ):
            self._refuse(command, CoordinatorLoadInProgress(f"group {printable(command.group_id)} is being loaded"))
            return None
        group = self._groups.get(command.group_id) or Group(command.group_id)
        request = command.what
        if not group.exists and self._is_full(request):
            self._refuse(
                command, PolicyViolation(f"this coordinator has all of its {self._settings.max_groups} groups")
            )
            return None
        if isinstance(request, HeartbeatRequest) and not command.arrived:
            command.arrived = True
            who = (request.group_id, request.member_id)
            if 0 <= request.sequence <= self._last_heard(who, group):
                command.late = True
                error = StaleMemberEpoch(f"heartbeat {request.sequence} came after a later one; it changes nothing")
                answers.append((command, refusal(request, error)))
                return None
        if isinstance(request, HeartbeatRequest):
            earlier = self._parked.get((request.group_id, request.member_id))
            if earlier is not None and earlier is not command and earlier.parked_response is not None:
                del self._parked[(request.group_id, request.member_id)]
                answers.append((earlier, earlier.parked_response))
        return group

    def _is_full(self, request: GroupRequest | TimerKey) -> bool:
        """Whether the request would create a group beyond the maximum."""
        makes = isinstance(request, UpdateConnectorsRequest) or (
            isinstance(request, HeartbeatRequest) and request.member_epoch == JOIN_EPOCH
        )
        most = self._settings.max_groups
        return makes and len(self._groups) >= most and sum(group.exists for group in self._groups.values()) >= most

    def _last_heard(self, who: tuple[str, str], group: Group) -> int:
        """Return the highest sequence received from a member id, for a limited time also from a former member.

        A join that was in flight when its sender left must not create a member without a process (KAFKA-16639). A
        message is assumed to be in flight for at most twice the session timeout.
        """
        now_s = self._loop.time()
        kept_s = 2 * self._settings.session_timeout_ms / 1000
        if len(self._heard) >= self._max_sequences:
            members = {
                (group_id, member_id): heard
                for (group_id, member_id), heard in self._heard.items()
                if (known := self._groups.get(group_id)) is not None and member_id in known.members
            }
            others = [
                (key, heard) for key, heard in self._heard.items() if key not in members and now_s - heard[1] < kept_s
            ]
            others.sort(key=lambda entry: entry[1][1])
            self._heard = members | dict(others[-MAX_HEARD_OTHERS:])
            self._max_sequences = min(2 * len(self._heard) + 1_000, len(self._heard) + MAX_HEARD_OTHERS)
        sequence, at_s = self._heard.get(who, (-1, now_s))
        return sequence if who[1] in group.members or now_s - at_s < kept_s else -1

    def _decide(
        self,
        command: _Command,
        group: Group,
        timers: list[Timer],
        answers: list[tuple[_Command, Response]],
        parked: list[_Command],
    ) -> tuple[Record, ...]:
        repeated = command.parked_response is not None
        outcome = step(
            group,
            command.what,
            self._wall_clock_ms(),
            self._settings,
            client_host=command.client_host,
            client_id=command.client_id,
        )
        if group.exists:
            self._groups[group.group_id] = group
        self._log_if_unassigned(group)
        # A parked heartbeat re-arms the session timer on arrival, not each time it is decided again.
        decided = [
            timer
            for timer in outcome.timers
            if not (repeated and isinstance(timer, SetTimer) and timer.key.kind is TimerKind.SESSION)
        ]
        timers += decided
        # A timer that expired while this input was queued is already a command of this turn. It must not fire after
        # the input that cancelled or re-armed it, so it is removed now; it is re-armed only after the append. If the
        # append fails, the group is reloaded, and ``on_load`` arms its timers.
        for timer in decided:
            self._expired.pop(timer.key.identity, None)
        if outcome.response is None:
            return outcome.records
        request = command.what
        if isinstance(request, HeartbeatRequest) and request.sequence >= 0 and not repeated:
            # Keep only ids that the group rules accepted: invalid ids would only waste memory.
            assert isinstance(outcome.response, HeartbeatResponse)
            if outcome.response.error_code != InvalidRequest.code:
                self._heard[(request.group_id, request.member_id)] = request.sequence, self._loop.time()
        parks = outcome.parks and not fault_point("a parked heartbeat is answered at once")
        if parks and isinstance(request, HeartbeatRequest) and request.max_wait_ms > 0:
            assert isinstance(outcome.response, HeartbeatResponse)
            self._park(command, request, outcome.response)
            parked.append(command)
        else:
            answers.append((command, outcome.response))
        return outcome.records

    def _log_if_unassigned(self, group: Group) -> None:
        """Log once per group epoch, with the reason, that no member or coordinator could compute an assignment."""
        computation = under_way(group)
        failed = computation is not None and not computation.member_id and group.members
        if computation is None or not failed:
            self._unassigned.pop(group.group_id, None)
        elif self._unassigned.get(group.group_id) != group.epoch:
            self._unassigned[group.group_id] = group.epoch
            logger.warning(
                "group %s: no assignment for epoch %d: %s",
                printable(group.group_id),
                group.epoch,
                computation.error,
            )

    # ----------------------------------------------------------------------------------------------
    # Parked heartbeats

    def _park(self, command: _Command, request: HeartbeatRequest, response: HeartbeatResponse) -> None:
        if command.parked_response is None:
            wait_ms = min(request.max_wait_ms, self._settings.max_park_ms)
            command.answer_by_s = self._loop.time() + wait_ms / 1000
        command.parked_response = response
        self._parked[(request.group_id, request.member_id)] = command

    def _arm(self, parked: list[_Command]) -> None:
        """Arm the max-wait timers of the requests parked in this turn; only after its records are durable (D1)."""
        for command in parked:
            if command.parked_until is not None:
                command.parked_until.cancel()
            if command.answer is not None and not command.answer.done():
                command.parked_until = self._loop.call_at(command.answer_by_s, self._time_is_up, command)

    def _time_is_up(self, command: _Command) -> None:
        """Max wait elapsed: send the response the request was parked with."""
        request = command.what
        if isinstance(request, HeartbeatRequest) and command.parked_response is not None:
            who = (request.group_id, request.member_id)
            if self._parked.get(who) is command:
                del self._parked[who]
                command.resolve(self._signed(command.parked_response))

    def _take_woken(self, group: Group) -> list[_Command]:
        """Unpark the heartbeats of members whose response may have changed; they are decided again."""
        woken = []
        for member_id in sorted(group.members_to_wake):
            command = self._parked.pop((group.group_id, member_id), None)
            if command is not None:
                if command.parked_until is not None:
                    command.parked_until.cancel()
                woken.append(command)
        group.members_to_wake.clear()
        return woken

    # ----------------------------------------------------------------------------------------------
    # Timers

    def _set(self, timer: Timer) -> None:
        # An expired timer that is still queued is now stale.
        key = timer.key.identity
        self._expired.pop(key, None)
        armed = self._timers.get(key)
        if isinstance(timer, SetTimer):
            due_s = self._loop.time() + timer.after_ms / 1000
            if armed is not None and armed.due_s <= due_s:
                # Every heartbeat extends a session, and a session rarely expires: the scheduled call fires early and
                # reschedules itself, and the event loop's own timers stay unchanged.
                armed.timer, armed.due_s = timer, due_s
                return
            self._timers[key] = _Armed(timer, due_s, self._loop.call_at(due_s, self._look, key))
        else:
            self._timers.pop(key, None)
        if armed is not None:
            armed.look.cancel()

    def _look(self, key: TimerKey) -> None:
        """Fire the timer if its deadline has passed; reschedule this check if the deadline was extended."""
        armed = self._timers[key]
        late_s = self._loop.time() - armed.due_s
        if late_s < 0:
            armed.look = self._loop.call_at(armed.due_s, self._look, key)
            return
        del self._timers[key]
        if self._not_serving is not None:
            return
        if late_s > max(LATE_S, armed.timer.after_ms / 4000):
            # This process was paused, and the heartbeats that arrived meanwhile are still unread (F14, F15). A deadline
            # that is in the log does not restart: it is extended only until the unread requests have been handled.
            timer = armed.timer
            again_ms = LATE_S * 1000 if key.kind is TimerKind.DELAY else timer.after_ms
            self._set(replace(timer, after_ms=min(timer.after_ms, int(again_ms))))
            return
        self._expired[key] = command = _Command(armed.timer.key, key.group_id)
        self._enqueue(command)

    # ----------------------------------------------------------------------------------------------
    # Loading

    def _take(self, group_id: str, loaded: tuple[Record, ...] | LogError) -> None:
        if isinstance(loaded, LogError):
            logger.error("group %s is not served: %s", printable(group_id), loaded)
            self._broken[group_id] = loaded
            return
        group = replay(group_id, loaded)
        # A deleted group is kept as well: it stores its creation time (``group.delete``).
        if group.created_ms:
            self._groups[group_id] = group
            for timer in on_load(group, self._wall_clock_ms(), self._settings):
                self._set(timer)

    def _forget(self, group_id: str) -> None:
        """Drop a group's state in memory; until the group is reloaded, its requests get CoordinatorLoadInProgress."""
        self._loading.add(group_id)
        self._groups.pop(group_id, None)
        for key in [key for key in self._timers if key.group_id == group_id]:
            self._timers.pop(key).look.cancel()
        for key in [key for key in self._expired if key.group_id == group_id]:
            del self._expired[key]
        for who in [who for who in self._parked if who[0] == group_id]:
            error = CoordinatorLoadInProgress(f"group {printable(group_id)} is being loaded")
            self._refuse(self._parked.pop(who), error)

    def _drop(self, group_id: str) -> None:
        """Drop a group's state and reload it in the background."""
        if group_id not in self._loading:
            self._forget(group_id)
            self._spawn(self._reload(group_id))

    async def _reload(self, group_id: str) -> None:
        while True:
            if self._not_serving is not None or await self._load_once(group_id):
                return
            await asyncio.sleep(RELOAD_WAIT_S)

    async def _load_once(self, group_id: str) -> bool:
        """Reload a group; return false if the log cannot be read."""
        try:
            loaded = await self._log.load(group_id)
        except LogFenced as error:
            self._step_down(error)
            return False
        except LogError as error:
            logger.error("group %s cannot be loaded, trying again: %s", printable(group_id), error)
            return False
        self._take(group_id, loaded[group_id])
        self._loading.discard(group_id)
        return True

    # ----------------------------------------------------------------------------------------------
    # Responses

    def _signed(self, response: Response) -> Response:
        """Add the coordinator epoch to a response; workers ignore responses of a lower coordinator epoch (D5)."""
        carrier: Any = response
        signed: Response = replace(carrier, coordinator_epoch=self._log.epoch)
        return signed

    def _refuse(self, command: _Command, error: GroupError) -> None:
        if not isinstance(command.what, TimerKey):
            command.resolve(self._signed(refusal(command.what, error)))

    def _turned_away(
        self, answers: list[tuple[_Command, Response]], group_ids: set[str]
    ) -> list[tuple[_Command, Response]]:
        """Replace the responses of dropped groups by a retriable error; return the other responses."""
        for command, _ in answers:
            if command.group_id in group_ids:
                self._refuse(command, CoordinatorNotAvailable("the group is being loaded again"))
        return [answer for answer in answers if answer[0].group_id not in group_ids]

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
