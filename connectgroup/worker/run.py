"""The run of one grant: what its supervising coroutine knows of it, and what its task reports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ..connector import Batch, Lag, Task, TaskContext
from ..errors import one_line
from ..member.actions import Grant
from ..threads import clock_of
from .offload import Call, Inbox
from .unit_metrics import UnitMetrics
from .waiting import WakeUp


@dataclass(slots=True, eq=False)
class Run:
    """The run of one grant."""

    grant: Grant
    metrics: UnitMetrics
    stopping: bool = False
    wake_up: WakeUp = field(default_factory=WakeUp)
    """Notified when the run must stop, when its task has failed, and when its task has polled for the first time."""
    supervisor: asyncio.Task[None] | None = None
    start: Call[Task] | None = None
    """The last start call; withdrawn if it has not begun when the run must stop."""
    rows: int = 0
    stop_error: BaseException | None = None
    secrets: dict[str, str] = field(default_factory=dict)
    stalled_at_s: float | None = None
    """When the task has stalled last, on the event loop's clock."""
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

    def __init__(self, run: Run, inbox: Inbox, on_rows: Callable[[int], None]) -> None:
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

    def _on_lag(self, lag: Lag) -> None:
        self._run.metrics.on_lag(lag)
        self._on_rows(0)

    def _note_activity(self) -> None:
        self.active_at_s = self._clock()
        if not self.is_active:
            self.is_active = True
            self._inbox.put(self._loop, self._run.wake_up.notify)
