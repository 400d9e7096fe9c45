"""The run of one grant: what its supervising coroutine knows of it, and what its task reports."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from ..connector import Batch, Lag, Task, TaskContext
from ..errors import ConnectGroupError, one_line
from ..member.actions import Grant
from ..protocol.units import Unit
from ..telemetry.spans import BATCH_COMMIT, BATCH_DEAD, BATCH_READ, BATCH_ROWS, GROUP, MEMBER, OWNER_EPOCH, UNIT, record
from ..threads import clock_of, off_loop
from .call_pool import Call, Inbox, WakeUp
from .unit_metrics import UnitMetrics


@dataclass(slots=True, eq=False)
class UnitRun:
    """The run of one grant."""

    grant: Grant
    metrics: UnitMetrics
    stopping: bool = False
    wake_up: WakeUp = field(default_factory=WakeUp)
    """Notified when the run must stop, when its task has failed, and when its task has polled for the first time."""
    supervisor: asyncio.Task[None] | None = None
    start: Call[Task] | None = None
    """The last start call; withdrawn if it has not begun when the run must stop."""
    starting: Task | None = None
    """The task whose ``start`` is under way; changed by the thread of the call."""
    interrupting: asyncio.Task[None] | None = None
    """The call of its ``interrupt_start``."""
    rows: int = 0
    stop_error: BaseException | None = None
    secrets: dict[str, str] = field(default_factory=dict)
    stalled_at_s: float | None = None
    """When the task has stalled last, on the event loop's clock."""
    on_wait: Callable[[str], None] = lambda what: None
    """Called on the event loop with what the start under way waits for. The runner sets it."""
    fenced: bool = False
    """Whether the sink rejects what a former owner of the task still writes (``Connector.fenced``)."""

    def stop(self) -> None:
        """Request that the run stops."""
        self.stopping = True
        self.wake_up.notify()

    async def pause(self, seconds: float | None = None) -> None:
        """Sleep until ``wake_up`` is notified, at most ``seconds``; return immediately if the run is stopping."""
        if not self.stopping:
            self.wake_up.clear()
            await self.wake_up.wait(seconds)

    async def stopped(self) -> None:
        """Wait until the run must stop."""
        while not self.stopping:
            await self.pause()

    def line_of(self, error: BaseException) -> str:
        """Return an error as one line without credentials."""
        return one_line(error, self.grant.config, self.grant.connector_config, self.secrets)


class TaskEvents:
    """What a task reports while it runs; its methods but ``keep`` may be called from any thread.

    Attributes:
        failure: the first error that the task reported.
        is_active: whether the task has polled its source, or has made rows durable.
        active_at_s: when it last did, on the event loop's clock; until then, when the attempt began or ``begin`` was
            called.
    """

    def __init__(self, run: UnitRun, inbox: Inbox, on_rows: Callable[[int], None]) -> None:
        """Create the events of one attempt to run a task; call this on the event loop.

        Args:
            inbox: shared by the tasks of a runner: the tasks of one sink fail together.
            on_rows: receives the rows that have become durable; 0 for any other change of the task's numbers.
        """
        self.failure: BaseException | None = None
        self.is_active = False
        self._run, self._inbox, self._on_rows = run, inbox, on_rows
        self._loop = asyncio.get_running_loop()
        self._clock = clock_of(self._loop)
        self.active_at_s = self._clock()

    def begin(self) -> None:
        """The start of the task has returned."""
        self.active_at_s = self._clock()

    def context(self, member_id: str, scratch: Path, on_batch: Callable[[Batch], None]) -> TaskContext:
        """Return the context of the task."""
        grant = self._run.grant
        return TaskContext(
            unit=grant.unit,
            owner_epoch=grant.owner_epoch,
            incarnation=grant.incarnation,
            member_id=member_id,
            scratch=scratch,
            progress=self._on_progress,
            failed=self._on_failed,
            batch=on_batch,
            polled=self._on_poll,
            lag=self._on_lag,
            waits_for=self._on_wait,
        )

    def keep(self, error: BaseException) -> None:
        """Keep the first error, and wake up the supervising coroutine. Call this on the event loop."""
        if self.failure is None:
            self.failure = error
            self._run.wake_up.notify()

    def _on_failed(self, error: BaseException) -> None:
        self._inbox.put(self._loop, partial(self.keep, error))

    def _on_progress(self, rows: int) -> None:
        self._run.rows += rows
        self._run.metrics.on_progress(rows)
        self._on_rows(rows)
        self._note_activity()

    def _on_poll(self) -> None:
        self._run.metrics.on_poll()
        self._on_rows(0)
        self._note_activity()

    def _on_wait(self, what: str) -> None:
        self._inbox.put(self._loop, partial(self._run.on_wait, what))

    def _on_lag(self, lag: Lag) -> None:
        self._run.metrics.on_lag(lag)
        self._on_rows(0)

    def _note_activity(self) -> None:
        self.active_at_s = self._clock()
        if not self.is_active:
            self.is_active = True
            self._inbox.put(self._loop, self._run.wake_up.notify)


# --------------------------------------------------------------------------------------------------
# Gray failures: a task that neither fails nor completes a poll within ``task.progress.timeout.ms`` has stalled.
#
# Its engine or its sink does not respond. The task is reported as STALLED, stopped and started again. If its stop does
# not return, the engine is ended (``Task.abandon``). If that does not help either, or the task stalls again soon, the
# worker gives its tasks up: it drains, so that they run elsewhere.


logger = logging.getLogger(__name__)

STOP_S: Final = 10.0
"""How long the stop of a stalled task may take before its engine is ended, and then before the worker gives up."""

AGAIN_SHARE: Final = 10
"""A task that stalls within this many timeouts of its last stall has stalled again."""


class TaskStalled(ConnectGroupError):
    """A task has completed no poll of its source in time."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"no poll completed within {timeout_s:g} s (task.progress.timeout.ms)")


def stalls_at_s(active_at_s: float, timeout_s: float, *, reports_polls: bool) -> float | None:
    """When a task stalls unless it completes a poll before; ``None``: never, because it does not report its polls.

    Args:
        active_at_s: when it last completed a poll, made rows durable or was started.
        timeout_s: ``task.progress.timeout.ms``; 0: never.
    """
    return active_at_s + timeout_s if reports_polls and timeout_s else None


def stalls_again(last_stall_s: float | None, now_s: float, timeout_s: float) -> bool:
    """Whether a stall follows so soon after the last one that starting the task again has not helped."""
    return last_stall_s is not None and now_s - last_stall_s < AGAIN_SHARE * timeout_s


async def stop_stalled(
    run: UnitRun, task: Task, stop: asyncio.Task[None], give_up: Callable[[Unit], None], *, fenced: bool
) -> None:
    """Wait for the stop of a stalled task.

    Args:
        stop: the stop under way.
        give_up: called if ending the engine does not end the stop.
        fenced: whether the task's sink rejects what it still writes: a revocation then does not wait for the stop.

    Raises:
        Exception: the stop raised it.
    """
    unit = run.grant.unit
    await asyncio.wait({stop}, timeout=STOP_S)
    if not stop.done():
        logger.error("%s: its stop has not returned within %g s; its engine is ended", unit, STOP_S)
        abandon = asyncio.create_task(off_loop(f"abandon {unit}", task.abandon))
        abandon.add_done_callback(_ignore)
        await asyncio.wait({stop}, timeout=STOP_S)
    if not stop.done():
        give_up(unit)
    if stop.done() or not fenced:
        await stop
        return
    stop.add_done_callback(_ignore)
    stopped = asyncio.create_task(run.stopped())
    await asyncio.wait({stop, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()


def _ignore(task: asyncio.Task[None]) -> None:
    """Retrieve the error of a call whose result no caller waits for."""
    if not task.cancelled():
        task.exception()


# --------------------------------------------------------------------------------------------------
# The spans of a task's batches: a sample, because a task may have thousands of batches in a minute.


SAMPLE_S = 10.0
"""Minimum seconds between two sampled batches of one task that were committed."""


class BatchSpans:
    """Receives the batches of one run of a task, in any thread.

    The first batch and then at most one in ``SAMPLE_S`` becomes a span; each batch whose commit failed does.
    """

    def __init__(
        self,
        then: Callable[[Batch], None],
        grant: Grant,
        group_id: str,
        member_id: str,
        clock: Callable[[], float],
    ) -> None:
        """``then`` receives each batch first; ``clock``: seconds on a monotonic clock."""
        self._then, self._clock = then, clock
        self._attributes = {
            GROUP: group_id,
            MEMBER: member_id,
            UNIT: str(grant.unit),
            OWNER_EPOCH: grant.owner_epoch,
        }
        self._next_s = 0.0

    def __call__(self, batch: Batch) -> None:
        """Take one batch."""
        self._then(batch)
        now_s = self._clock()
        if batch.committed and now_s < self._next_s:
            return
        if batch.committed:
            self._next_s = now_s + SAMPLE_S
        attributes = {
            **self._attributes,
            BATCH_ROWS: batch.rows,
            BATCH_DEAD: batch.dead_letters,
            BATCH_COMMIT: round(batch.commit_s * 1000),
            **({} if batch.read is None else {BATCH_READ: batch.read}),
        }
        failure = "" if batch.committed else "commit failed"
        record("batch", attributes, duration_s=batch.read_s + batch.commit_s, failure=failure)
