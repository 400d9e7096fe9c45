"""What is measured of the units that a worker runs: starts, statuses, batches, errors."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, Final

from ..connector import Batch, Lag
from ..protocol.messages.progress import MAX_TOPICS, UNKNOWN, Progress, TaskProgress
from ..protocol.records.connect import UnitState
from ..protocol.units import Unit, printable
from ..telemetry.metric_table import Scope
from ..telemetry.metrics import MetricSource, Value, Window, register

STATUSES: Final = {
    UnitState.RUNNING: "running",
    UnitState.FAILED: "failed",
    UnitState.STALLED: "stalled",
    None: "unassigned",
}
"""Kafka's word for the status of a unit; a unit that has no status yet is starting."""


class Starts:
    """How many starts of units were attempted, succeeded and failed."""

    def __init__(self) -> None:
        self.attempts = self.successes = self.failures = 0

    def values(self, kind: str) -> dict[str, float | None]:
        """The metrics of the connectors (``connector``) or the tasks (``task``) of a worker."""
        ended = self.successes + self.failures
        return {
            f"{kind}-startup-attempts-total": self.attempts,
            f"{kind}-startup-success-total": self.successes,
            f"{kind}-startup-success-percentage": self.successes / ended if ended else None,
            f"{kind}-startup-failure-total": self.failures,
            f"{kind}-startup-failure-percentage": self.failures / ended if ended else None,
        }


class Flow:
    """The records of one task: batches, commits, dead letters, lag.

    Attributes:
        last_dead_letter: place and reason of the last one that was committed; empty before that. Changed by ``add``.
        lag: as it was last measured; ``None`` before that.
        last_record_ms: when records last became durable, in milliseconds since 1970; 0: never.
        last_poll_ms: when a poll of the source was last complete; 0: never.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._topics: set[str] = set()  # used since ``take_topics``
        self.polled, self.written, self.poll_ms = Window(), Window(), Window()
        self.read, self.sent = Window(), Window()
        self.batches, self.commit_ms, self.commits = Window(), Window(), Window()
        self.knows_polled = True
        self.dead_letters = self.failed_dead_letters = 0
        self.last_dead_letter = ""
        self.read_bytes: int | None = None
        self.written_bytes: int | None = None
        self.lag: Lag | None = None
        self.last_record_ms = self.last_poll_ms = 0

    def add(self, batch: Batch, now_s: float) -> None:
        """A batch was committed, or its commit failed."""
        self.knows_polled = batch.read is not None
        self.polled.record(batch.read or 0, now_s)
        self.poll_ms.record(batch.read_s * 1000, now_s)
        self.read.record(batch.rows, now_s)
        self.batches.record(batch.rows, now_s)
        self.commit_ms.record(batch.commit_s * 1000, now_s)
        self.dead_letters += batch.dead_letters
        if batch.committed:
            self.commits.record(1, now_s)
            if batch.dead_letters:
                self.last_dead_letter = printable(batch.last_dead_letter, limit=MAX_LAST_LETTER)
            if batch.read_bytes is not None:
                self.read_bytes = (self.read_bytes or 0) + batch.read_bytes
            if batch.written_bytes is not None:
                self.written_bytes = (self.written_bytes or 0) + batch.written_bytes
            if batch.topics:
                with self._lock:
                    self._topics.update(batch.topics)
        else:
            self.failed_dead_letters += batch.dead_letters

    def values(self, now_s: float) -> dict[str, Value]:
        """The metrics of a task that are about its records."""
        ended, committed = self.commit_ms.count, self.commits.count
        return {
            "batch-size-avg": self.batches.average(now_s),
            "batch-size-max": self.batches.maximum(now_s),
            "offset-commit-avg-time-ms": self.commit_ms.average(now_s),
            "offset-commit-max-time-ms": self.commit_ms.maximum(now_s),
            "offset-commit-success-percentage": committed / ended if ended else None,
            "offset-commit-failure-percentage": (ended - committed) / ended if ended else None,
            "source-record-poll-total": self.polled.total if self.knows_polled else None,
            "source-record-poll-rate": self.polled.rate(now_s) if self.knows_polled else None,
            "source-record-write-total": self.written.total,
            "source-record-write-rate": self.written.rate(now_s),
            "poll-batch-avg-time-ms": self.poll_ms.average(now_s),
            "poll-batch-max-time-ms": self.poll_ms.maximum(now_s),
            "sink-record-read-total": self.read.total,
            "sink-record-read-rate": self.read.rate(now_s),
            "sink-record-send-total": self.sent.total,
            "sink-record-send-rate": self.sent.rate(now_s),
            "put-batch-avg-time-ms": self.commit_ms.average(now_s),
            "put-batch-max-time-ms": self.commit_ms.maximum(now_s),
            "offset-commit-completion-total": committed,
            "offset-commit-completion-rate": self.commits.rate(now_s),
            "total-record-errors": self.dead_letters,
            "deadletterqueue-produce-requests": self.dead_letters,
            "deadletterqueue-produce-failures": self.failed_dead_letters,
            "read-bytes-total": self.read_bytes,
            "written-bytes-total": self.written_bytes,
            "records-lag": None if self.lag is None else self.lag.records,
            "bytes-lag": None if self.lag is None else self.lag.bytes,
            "files-left": None if self.lag is None else self.lag.files,
            "unfinished-files": None if self.lag is None else self.lag.unfinished_files,
            "unreadable-files": None if self.lag is None else self.lag.unreadable_files,
            "skipped-files": None if self.lag is None else self.lag.skipped_files,
            "last-record-timestamp": self.last_record_ms or None,
            "last-poll-timestamp": self.last_poll_ms or None,
        }

    def take_topics(self) -> tuple[str, ...]:
        """Return the topics of the batches that were committed since the last call."""
        with self._lock:
            taken = sorted(self._topics)[:MAX_TOPICS]
            self._topics.difference_update(taken)
        return tuple(taken)

    def progress(self, now_s: float) -> Progress:
        """The numbers that the worker reports to the coordinator."""
        lag = self.lag or Lag()
        return Progress(
            records_read=int(self.polled.total) if self.knows_polled and self.polled.count else UNKNOWN,
            records_written=int(self.sent.total),
            bytes_read=_or_unknown(self.read_bytes),
            bytes_written=_or_unknown(self.written_bytes),
            records_per_minute=round(60 * self.sent.rate(now_s)),
            records_lag=_or_unknown(lag.records),
            bytes_lag=_or_unknown(lag.bytes),
            files_left=_or_unknown(lag.files),
            last_record_ms=self.last_record_ms,
            last_poll_ms=self.last_poll_ms,
            unfinished_files=_or_unknown(lag.unfinished_files),
            unreadable_files=_or_unknown(lag.unreadable_files),
            skipped_files=_or_unknown(lag.skipped_files),
            dead_letters=self.dead_letters - self.failed_dead_letters,
            last_dead_letter=self.last_dead_letter,
        )


def _or_unknown(number: int | None) -> int:
    return UNKNOWN if number is None else number


MAX_LAST_LETTER: Final = 500
"""Characters of the last dead letter in a report."""

_first_use = threading.Lock()

_NO_FLOW: Final = Flow()
"""That of a task without records: a worker may run 100,000 idle ones."""


class UnitMetrics:
    """The metrics of the run of one grant. A thread of the task may call the events that a task reports.

    Attributes:
        unit: the connector or task.
        state: the status that was last reported; ``None`` while the unit starts.
    """

    __slots__ = (
        *("unit", "state", "_connector_class", "_starts", "_clock", "_is_starting", "_attempts", "_failures"),
        *("_assigned_s", "_changed_s", "_running_s", "_failed_ms", "_flow"),
    )

    def __init__(self, unit: Unit, connector_class: str, starts: Starts, clock: Callable[[], float]) -> None:
        """``starts``: counts the starts of all units of this kind; ``clock``: seconds on a monotonic clock."""
        self.unit, self._connector_class = unit, connector_class
        self.state: UnitState | None = None
        self._starts, self._clock = starts, clock
        self._is_starting = False  # between an attempt and the status after it
        self._attempts = self._failures = 0  # starts, and failures, of this run
        self._failed_ms = 0  # when the last failure was
        self._assigned_s = self._changed_s = clock()  # when the grant came, and when the state last changed
        self._running_s = 0.0  # in state RUNNING, up to the last change
        self._flow = _NO_FLOW  # a ``Flow`` from the first batch on

    # ---- events

    def on_attempt(self) -> None:
        """The unit is about to start."""
        self._attempts += 1
        self._starts.attempts += 1
        self._is_starting = True

    def on_state(self, state: UnitState) -> None:
        """The unit runs or has failed."""
        if self._is_starting:
            self._is_starting = False
            self._starts.successes += state == UnitState.RUNNING
            self._starts.failures += state != UnitState.RUNNING
        if state != UnitState.RUNNING:
            self._failures += 1
            self._failed_ms = _now_ms()
        self._running_s = self._time_running()
        self._changed_s = self._clock()
        self.state = state

    def on_progress(self, rows: int) -> None:
        """Rows have become durable."""
        now_s, flow = self._clock(), self._own_flow()
        flow.written.record(rows, now_s)
        flow.sent.record(rows, now_s)
        if rows:
            flow.last_record_ms = _now_ms()

    def on_batch(self, batch: Batch) -> None:
        """A batch was committed, or its commit failed."""
        self._own_flow().add(batch, self._clock())

    def on_poll(self) -> None:
        """A poll of the source is complete."""
        self._own_flow().last_poll_ms = _now_ms()

    def on_lag(self, lag: Lag) -> None:
        """What the task has not read yet has been measured."""
        self._own_flow().lag = lag

    def _own_flow(self) -> Flow:
        if self._flow is _NO_FLOW:
            with _first_use:  # the thread that commits and the one that measures may be the first together
                if self._flow is _NO_FLOW:
                    self._flow = Flow()
        return self._flow

    # ---- values

    @property
    def running_class(self) -> str:
        """The connector class, once it runs: the name of an installed class, never just any text of a configuration."""
        return self._connector_class if self.state == UnitState.RUNNING else ""

    @property
    def rows_per_second(self) -> float:
        """Rows that the sink has made durable per second; 0 for a task that has never reported any."""
        return self._flow.sent.rate(self._clock()) if self._flow.sent.total else 0.0

    def progress(self, owner_epoch: int) -> TaskProgress:
        """The numbers of the task that the worker reports to the coordinator."""
        return TaskProgress(
            connector=self.unit.connector,
            task=self.unit.task,
            owner_epoch=owner_epoch,
            progress=self._flow.progress(self._clock()),
            topics=self._flow.take_topics(),
        )

    def _time_running(self) -> float:
        """Seconds for which the unit has been running."""
        running = self.state == UnitState.RUNNING
        return self._running_s + (self._clock() - self._changed_s if running else 0.0)

    def values(self) -> Mapping[str, Value]:
        """The values of the scope ``task``."""
        now_s = self._clock()
        elapsed_s = now_s - self._assigned_s
        return {
            "status": STATUSES[self.state],
            "running-ratio": self._time_running() / elapsed_s if elapsed_s else None,
            **self._flow.values(now_s),
            "total-record-failures": self._failures,
            "total-records-skipped": 0,
            "total-retries": max(self._attempts - 1, 0),
            "total-errors-logged": self._failures,
            "last-error-timestamp": self._failed_ms,
        }


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class _Task(MetricSource):
    scope: ClassVar[Scope] = "task"

    def __init__(self, labels: Mapping[str, str], metrics: UnitMetrics) -> None:
        self.labels = {**labels, "connector": metrics.unit.connector, "task": str(metrics.unit.task)}
        self._metrics = metrics

    def values(self) -> Mapping[str, Value]:
        return self._metrics.values()


class _ConnectorNumbers(MetricSource):
    """A connector of which this worker runs the connector itself, or at least one task."""

    scope: ClassVar[Scope] = "connector"

    def __init__(self, labels: Mapping[str, str], name: str) -> None:
        self.labels = {**labels, "connector": name}
        self.connector: UnitMetrics | None = None
        self.tasks: list[UnitMetrics] = []

    def values(self) -> Mapping[str, Value]:
        states = [task.state for task in self.tasks]
        return {
            "status": "" if self.connector is None else STATUSES[self.connector.state],
            "connector-class": "" if self.connector is None else self.connector.running_class,
            "connector-total-task-count": len(states),
            "connector-running-task-count": states.count(UnitState.RUNNING),
            "connector-failed-task-count": states.count(UnitState.FAILED) + states.count(UnitState.STALLED),
        }


class RunnerMetrics(MetricSource):
    """The metrics of a runner, of its connectors and of its tasks.

    Attributes:
        connector_starts, task_starts: the starts since the runner was created.
        fenced_writes: claims and commits that a sink rejected.
    """

    scope: ClassVar[Scope] = "runner"

    def __init__(self, group_id: str, member_id: str, units: Callable[[], Iterable[UnitMetrics]]) -> None:
        """``units``: the metrics of the units that run now; called from any thread."""
        self.labels: Mapping[str, str] = {"group": group_id, "worker": member_id}
        self.connector_starts, self.task_starts = Starts(), Starts()
        self.fenced_writes = 0
        self._units = units
        register(self)

    def starts_of(self, unit: Unit) -> Starts:
        """The starts that a start of this unit counts to."""
        return self.connector_starts if unit.is_connector else self.task_starts

    def rows_per_second(self) -> dict[str, float]:
        """Rows that the sinks of the tasks have made durable per second, by connector; those without are omitted."""
        rates: dict[str, float] = {}
        for metrics in self._units():
            if rate := metrics.rows_per_second:
                rates[metrics.unit.connector] = rates.get(metrics.unit.connector, 0.0) + rate
        return rates

    def values(self) -> Mapping[str, Value]:
        """See ``MetricSource.values``."""
        units = [metrics.unit for metrics in self._units()]
        return {
            "connector-count": sum(unit.is_connector for unit in units),
            "task-count": sum(not unit.is_connector for unit in units),
            **self.connector_starts.values("connector"),
            **self.task_starts.values("task"),
            "fenced-writes-total": self.fenced_writes,
        }

    def parts(self) -> Iterable[MetricSource]:
        """The runner, its connectors and its tasks."""
        connectors: dict[str, _ConnectorNumbers] = {}
        tasks: list[MetricSource] = []
        for metrics in self._units():
            name = metrics.unit.connector
            connector = connectors.setdefault(name, _ConnectorNumbers(self.labels, name))
            if metrics.unit.is_connector:
                connector.connector = metrics
            else:
                connector.tasks.append(metrics)
                tasks.append(_Task(self.labels, metrics))
        return [self, *connectors.values(), *tasks]
