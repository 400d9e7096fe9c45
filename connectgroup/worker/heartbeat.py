"""The heartbeats of a worker: one at a time, which the coordinator parks.

Each heartbeat starts with a check of the lease, so that a worker that resumes from a pause detects an expired lease
before it sends a request. Heartbeats continue after it: fenced units run on and must be reported.

With them a worker process reports when it started, its memory, and what it logs of its units. An operator sees
the lines with ``connectgroup connectors logs``, also those of a worker that has ended since.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Final

from ..backoff import BackOff, should_log
from ..errors import ComputeAssignment, GroupError, TransportError, from_code
from ..loggers import Repeats, subject_of
from ..member.actions import Action
from ..member.state_machine import ConvertedAssignment, Member, convert
from ..os_process import memory_bytes
from ..protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse, TaskStatus
from ..protocol.messages.progress import MAX_LINE, MAX_LINES, LogLine, TaskProgress
from ..protocol.units import JOIN_EPOCH, Unit, printable
from ..telemetry.spans import continued
from ..threads import NoThread, off_loop
from ..transport.base import Client
from .call_pool import TryAgain, WakeUp
from .metrics import WorkerMetrics
from .settings import WorkerSettings

logger = logging.getLogger(__name__)

MIN_PATIENCE_S = 0.2
"""Minimum request timeout of a heartbeat, however short the remaining lease is."""

PROGRESS_S = 5.0
"""Minimum interval between two reports of the numbers of tasks. No heartbeat is sent for them."""

REPORT_S = 10.0
"""Interval between two reports of the memory of this process."""

MAX_PROGRESS = 1_000
"""Tasks in one heartbeat: some 90 kB."""

MANY_GRANTS = 1_000
"""An assignment with more grants is converted in a thread: 100,000 grants take half a second."""


class Heartbeats:
    """Sends the heartbeats of one member and passes the resulting actions on.

    Attributes:
        take_progress: returns the numbers of at most so many tasks that have changed; see ``MeasuredRunner``.
        last_error: why the last heartbeat has failed; empty after one that has succeeded. ``Worker`` sets the error
            with which it ends.
        why_late: why this event loop did not run at a time after the given one (of its clock); empty if it did.
        process_report: what this process reports of itself; ``None`` in a program that embeds the worker.
        set_logger_level: sets a logger to a level on request of an operator; see ``Worker.set_logger_levels_by``.
    """

    def __init__(
        self,
        member: Member,
        client: Client,
        times: WorkerSettings,
        perform: Callable[[Sequence[Action]], None],
        metrics: WorkerMetrics,
    ) -> None:
        """Create the heartbeats; ``run`` sends them.

        Args:
            client: connection to the coordinator for heartbeats only.
            perform: performs the actions of a response, in order; must not block.
            metrics: measures the heartbeats.
        """
        self._metrics = metrics
        self.take_progress: Callable[[int], Sequence[TaskProgress]] = lambda limit: ()
        self.process_report: ProcessReport | None = None
        self.set_logger_level: Callable[[str, str], None] = lambda logger, level: None
        self.last_error = ""
        self.why_late: Callable[[float], str] = lambda since_s: ""
        self._logger_stamp = 0  # of the last change of a logger's level that a response had
        self._progress: dict[tuple[str, int], TaskProgress] = {}  # sent with each heartbeat until one succeeds
        self._lines: list[LogLine] = []  # as ``_progress``
        self._progress_at_ms = self._report_at_ms = 0  # when numbers are taken and the process is described next
        self._member, self._client, self._times, self._perform = member, client, times, perform
        self._wake = WakeUp()
        self._flush_at: asyncio.TimerHandle | None = None  # when statuses that wait for others are sent
        self._unanswered: asyncio.Timeout | None = None  # of a heartbeat that the coordinator may park

    async def run(self) -> None:
        """Send heartbeats until cancelled."""
        back_off, failures = BackOff(self._times.retry_initial_s, self._times.retry_max_s), 0
        while True:
            try:
                await self._send_one()
                failures, self.last_error = 0, ""
            except TryAgain as error:
                failures, self.last_error = failures + 1, str(error)
                if should_log(failures):
                    logger.warning("heartbeat failed (attempt %d): %s%s", failures, error, self._without_lease())
                await self._sleep(back_off.wait_s(failures))

    async def _send_one(self) -> None:
        """Send one heartbeat, or wait until one is due."""
        self._check_lease()
        sent_ms = self.now_ms()
        request = self._member.next_request(sent_ms)
        if request is None:
            await self._sleep(None)
            return
        self._metrics.on_sent()
        try:
            # Abandoned when the lease expires, and when the member must report a change that this request does not
            # contain (``notify``).
            async with asyncio.timeout(self._lease_left_s()) as given_up:
                # The coordinator responds immediately to a heartbeat that cannot be parked. To abandon it for each new
                # status would keep the worker from ever receiving a response while 10,000 tasks start.
                self._unanswered = given_up if request.max_wait_ms else None
                sent = self._with_report(self._with_progress(request, sent_ms), sent_ms)
                if self._logger_stamp:
                    sent = replace(sent, logger_stamp=self._logger_stamp)
                response = await self._client.call(sent, timeout_s=self._response_timeout_s(request))
        except TimeoutError:
            if given_up.expired():
                return
            raise
        except TransportError as error:
            self._member.on_no_answer(request)
            raise TryAgain(str(error)) from error
        finally:
            self._unanswered = None
        assert isinstance(response, HeartbeatResponse)
        self._metrics.on_response(request, response)
        if response.error_code == 0:
            self._progress.clear()
            self._lines.clear()
        for each in response.logger_levels:
            self._logger_stamp = max(self._logger_stamp, each.stamp)
            self.set_logger_level(each.logger, each.level)
        converted = await _convert(response)
        # This process may have been paused since the response arrived: if the lease expired, the response is stale.
        self._check_lease()
        lapsed, away_s = self._member.lapsed, self._member.silent_ms(self.now_ms()) / 1000
        actions = self._member.on_response(request, response, converted)
        if lapsed and not self._member.lapsed:
            logger.info("the coordinator responds again after %.1f s; %s", away_s, _counted(self._member))
        # A heartbeat without actions enters no trace: that would cost several percent of its CPU time.
        with continued(response.traceparent) if actions else nullcontext():
            self._perform(actions)
        if response.error_code:
            await self._on_refused(from_code(response.error_code, response.error_message), actions)
            return
        if response.coordinator_epoch < self._member.coordinator_epoch:
            raise TryAgain(
                f"response from a coordinator of epoch {response.coordinator_epoch}, which one of epoch "
                f"{self._member.coordinator_epoch} has replaced. If this lasts, its log is an older copy: "
                "connectgroup groups recover LOG"
            )
        if actions or response.member_epoch != request.member_epoch or self._member.has_unsent_changes:
            return
        if request.max_wait_ms or not self._member.settings.max_wait_ms:
            # Nothing changed: the next heartbeat is due one interval after this one was sent, or when the max wait of
            # this one has elapsed. A heartbeat that could not be parked is followed immediately by one that can.
            wait_ms = min(self._member.heartbeat_interval_ms, request.max_wait_ms or self._member.heartbeat_interval_ms)
            left_ms = sent_ms + wait_ms - self.now_ms()
            if left_ms > 0:
                await self._sleep(left_ms / 1000)

    def _with_progress(self, request: HeartbeatRequest, now_ms: int) -> HeartbeatRequest:
        """Add the numbers of tasks: those of a heartbeat that got no response at once, others if they are due.

        A heartbeat that acknowledges a revocation has the last numbers of the tasks that have stopped.
        """
        if request.member_epoch <= JOIN_EPOCH:
            return request
        if now_ms >= self._progress_at_ms or request.owned is not None:
            taken = self.take_progress(MAX_PROGRESS - len(self._progress))
            for each in taken:
                unsent = self._progress.get(unit := (each.connector, each.task))
                self._progress[unit] = each if unsent is None else each.with_topics_of(unsent)
            self._progress_at_ms = now_ms + round(1000 * PROGRESS_S) if taken else now_ms
        return replace(request, progress=tuple(self._progress.values())) if self._progress else request

    def _with_report(self, request: HeartbeatRequest, now_ms: int) -> HeartbeatRequest:
        """Add what this process reports of itself: lines of its log, and at intervals its memory."""
        report = self.process_report
        if report is None or request.member_epoch <= JOIN_EPOCH:
            return request
        self._lines += report.take_lines(MAX_LINES - len(self._lines))
        if self._lines:
            request = replace(request, log_lines=tuple(self._lines))
        if now_ms >= self._report_at_ms:
            self._report_at_ms = now_ms + round(1000 * REPORT_S)
            request = replace(
                request,
                started_ms=report.started_ms,
                memory_bytes=report.memory(),
                allowed_paths=report.allowed_paths,
            )
        return request

    async def _on_refused(self, refused: GroupError, actions: Sequence[Action]) -> None:
        """Back off on repeated identical errors instead of retrying at full speed (KAFKA-20253)."""
        if isinstance(refused, ComputeAssignment) and actions:
            # The coordinator returns this error until the Prepare has arrived; ``compute`` then wakes this loop up.
            await self._sleep(self._member.heartbeat_interval_ms / 1000)
        elif not actions:
            raise TryAgain(str(refused)) from refused

    def _response_timeout_s(self, request: HeartbeatRequest) -> float:
        """Return the timeout of a heartbeat; half of the remaining lease is reserved for a retry."""
        # The coordinator parks a request for at most a third of the session timeout, whatever its max wait is.
        parked_ms = min(request.max_wait_ms, (self._member.session_timeout_ms or request.max_wait_ms * 3) // 3)
        parked_s, lease_s = parked_ms / 1000, self._lease_left_s()
        slack_s = self._times.call_timeout_s
        if lease_s is not None:
            slack_s = min(slack_s, max(MIN_PATIENCE_S, (lease_s - parked_s) / 2))
        return parked_s + slack_s

    def notify(self) -> None:
        """The member changed: wake up the beat loop, and abandon a parked heartbeat if there is more to report."""
        self._wake.notify()
        if self._unanswered is not None and self._member.has_unsent_changes:
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
        ends_ms = self._member.lease_ends_ms()
        if ends_ms is None or not self._member.owned:
            return None
        return max(0.0, (ends_ms - self.now_ms()) / 1000)

    def _check_lease(self) -> None:
        lapsed, now_ms = self._member.lapsed, self.now_ms()
        ends_ms = self._member.lease_ends_ms()
        why = ""
        if ends_ms is not None and now_ms >= ends_ms:
            why = self.why_late((now_ms - self._member.silent_ms(now_ms)) / 1000)
        actions = self._member.check_lease(now_ms, why)
        if self._member.lapsed and not lapsed:
            self._metrics.on_lapse()
            logger.warning("the lease has expired%s%s", f": {why}" if why else "", self._without_lease())
        if actions:
            self._perform(actions)

    def _without_lease(self) -> str:
        """What runs although the lease has expired, for a log message; empty while there is a lease."""
        if not self._member.lapsed:
            return ""
        away_s = self._member.silent_ms(self.now_ms()) / 1000
        return f"; the coordinator is away for {away_s:.1f} s; {_counted(self._member)}"

    def now_ms(self) -> int:
        """The event loop's clock: it is monotonic, and a simulated event loop simulates it."""
        return int(asyncio.get_running_loop().time() * 1000)

    def report(self, status: TaskStatus) -> None:
        """Queue a unit's status; it is sent after the batching delay. Call this on the event loop."""
        self._member.report(status)
        if self._flush_at is None:
            loop = asyncio.get_running_loop()
            self._flush_at = loop.call_later(self._times.status_wait_s, self._flush_statuses)

    def _flush_statuses(self) -> None:
        self._flush_at = None
        self._member.flush_statuses()
        self.notify()


def _counted(member: Member) -> str:
    stopping = len(member.unfenced)
    stopped = f"; units that are not fenced and stop: {stopping}" if stopping else ""
    return f"fenced units that run on: {len(member.owned) - stopping}{stopped}"


async def _convert(response: HeartbeatResponse) -> ConvertedAssignment | None:
    """Convert a large assignment off the event loop; ``None``: it is small, or no thread is available."""
    assignment = response.assignment
    if assignment is None or len(assignment.grants) <= MANY_GRANTS:
        return None
    try:
        return await off_loop("convert assignment", convert, assignment)
    except NoThread:
        return None


MAX_PATHS: Final = 100
MAX_PATHS_BYTES: Final = 16 * 1024
"""Allowed paths that a heartbeat has, and their bytes in all."""

MAX_KEPT: Final = 500
"""Lines that wait for the next heartbeats; of more, the oldest are dropped, and the next one says how many."""


def _reported(paths: Sequence[Path]) -> tuple[str, ...] | None:
    """The paths as a heartbeat has them. A list that does not fit, or is no text, is left out: only checks before a
    connector is written need it.
    """
    texts = tuple(map(str, paths))
    try:
        size = sum(len(each.encode()) for each in texts)
    except UnicodeEncodeError:  # a name of a file is any bytes
        return None
    return texts if len(texts) <= MAX_PATHS and size <= MAX_PATHS_BYTES else None


class ProcessReport(logging.Handler):
    """Keeps the lines of this package's log that are about a unit (``loggers.subject_of``).

    Only this package hides credentials in what it logs; other loggers are not read. Add it to the logger of the
    package.
    """

    def __init__(self, allowed_paths: Sequence[Path] | None = None) -> None:
        """``allowed_paths``: the files and directories that connectors may use; ``None``: any, or not known."""
        super().__init__(logging.INFO)
        self.started_ms = time.time_ns() // 1_000_000
        self.allowed_paths = None if allowed_paths is None else _reported(allowed_paths)
        # Changed by emit, which logging calls under a lock, and by take_lines.
        self._lines: deque[LogLine] = deque()
        self._dropped = 0
        self.addFilter(Repeats(self))

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line; the status of a unit, which the group gets anyway, is marked with ``is_status``."""
        unit = subject_of(record)
        if not isinstance(unit, Unit) or getattr(record, "is_status", False):
            return
        text = printable(record.getMessage().removeprefix(f"{unit}: "), limit=MAX_LINE - 100)
        if len(self._lines) >= MAX_KEPT:
            self._lines.popleft()
            self._dropped += 1
        elif self._dropped:
            text, self._dropped = f"{text} ({self._dropped} lines before it are only in the worker's log)", 0
        self._lines.append(
            LogLine(
                connector=unit.connector,
                task=unit.task,
                at_ms=round(record.created * 1000),
                level=record.levelname[:20],
                message=text,
            )
        )

    def take_lines(self, limit: int) -> list[LogLine]:
        """The oldest lines that have not been taken, at most ``limit``."""
        self.acquire()
        try:
            return [self._lines.popleft() for _ in range(min(limit, len(self._lines)))]
        finally:
            self.release()

    def memory(self) -> int:
        """Bytes of memory of this process and of those that it has started, such as Java; 0 if unknown."""
        return memory_bytes()
