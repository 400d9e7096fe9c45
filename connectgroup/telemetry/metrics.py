"""Metrics of workers and coordinators: what is measured, and the OpenTelemetry instruments that export it.

A ``MetricSource`` counts in plain attributes, whether or not they are exported: that costs nanoseconds. Exporters read.
The instruments are observable ones, created once per meter provider: unless the embedding program configures an
OpenTelemetry SDK, nothing ever calls them. ``metric_table.METRICS`` lists all metrics.

Exporters read in threads of their own while the event loop changes what they read. So a thread reads single attributes,
and of a collection only a ``copy()``: for a built-in ``dict``, ``set``, ``list`` or ``deque`` that is one step, within
which no other thread runs. A loop over the collection is not, nor is ``list(d.items())`` or ``sorted(d)``: creating a
tuple may start a garbage collection, whose callbacks are Python code.

What every member of a group has (heartbeats, joins, rebalances, callbacks: KIP-429) is measured as averages, maxima and
rates of the last minute, as Kafka's metrics compute them.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

from .metric_table import LABELS, METRICS, Metric, Scope
from .spans import GROUP, MEMBER

ATTRIBUTES: Final = {"group": GROUP, "worker": MEMBER, "consumer": MEMBER}
"""The names of labels as OpenTelemetry attributes, as in traces; ``connector`` and ``task`` are the same in both."""

Value = float | str | None
"""A number; of a metric with a label the text of that label. ``None`` and the empty text: no value now."""


class MetricSource:
    """Something that is measured: a worker, a task, a group.

    Attributes:
        scope: which metrics of the table apply.
        labels: identify the source among those of the same scope.
    """

    scope: ClassVar[Scope]
    labels: Mapping[str, str]

    def values(self) -> Mapping[str, Value]:
        """The value of each metric of ``scope`` by its name; see ``Value``. May be called from any thread."""
        raise NotImplementedError

    def parts(self) -> Iterable[MetricSource]:
        """This source and those that it consists of."""
        return (self,)

    def beside(self, earlier: MetricSource) -> MetricSource:
        """What is exported of this source and an earlier one with the same labels: by default, this one."""
        return self


class Sample(NamedTuple):
    """One value of a metric."""

    labels: Mapping[str, str]
    value: float


_METRICS_OF: Final = {scope: [metric for metric in METRICS if metric.scope == scope] for scope in LABELS}

Snapshot = Mapping[Metric, list[Sample]]

_sources: WeakKeyDictionary[MetricSource, int] = WeakKeyDictionary()
_numbers = itertools.count()
_lock = threading.Lock()
_measured: WeakSet[MeterProvider] = WeakSet()


def register(source: MetricSource) -> None:
    """Export a source from now on, until ``unregister`` or the end of its life."""
    with _lock:
        _sources[source] = number = next(_numbers)
    if number == 0:
        # Without an SDK these are proxies that do nothing; OpenTelemetry replaces them when an SDK is configured.
        _create_instruments(metrics.get_meter("connectgroup"))


def unregister(source: MetricSource) -> None:
    """Export this source no longer."""
    with _lock:
        _sources.pop(source, None)


def forget(**labels: str) -> None:
    """Export no longer the sources that have these labels."""
    with _lock:
        for source in list(_sources):
            of = source.labels
            if all(of.get(name) == value for name, value in labels.items()):
                del _sources[source]


def export_to(provider: MeterProvider) -> None:
    """Export by this meter provider as well; OpenTelemetry's global one needs no call."""
    with _lock:
        known = provider in _measured
        _measured.add(provider)
    if not known:
        _create_instruments(provider.get_meter("connectgroup"))


def snapshot() -> Snapshot:
    """The values of all metrics now; a metric without values has an empty list. May be called from any thread.

    Of two sources with the same labels the one that was registered later counts (``MetricSource.beside``).
    """
    found: dict[Metric, list[Sample]] = {metric: [] for metric in METRICS}
    for part in _parts():
        values = part.values()
        for metric in _METRICS_OF[part.scope]:
            value = values[metric.name]
            if metric.label and value:
                found[metric].append(Sample({**part.labels, metric.label: str(value)}, 1.0))
            elif not metric.label and value is not None:
                found[metric].append(Sample(part.labels, float(value)))
    return found


def values_of(scope: Scope) -> list[tuple[Mapping[str, str], Mapping[str, Value]]]:
    """Labels and values of all sources of one scope: cheaper than ``snapshot``. May be called from any thread."""
    return [(part.labels, part.values()) for part in _parts() if part.scope == scope]


def _parts() -> Iterable[MetricSource]:
    """All parts of the registered sources; of two with the same labels the later one."""
    with _lock:
        sources = sorted(_sources.items(), key=lambda entry: entry[1])
    found: dict[tuple[object, ...], MetricSource] = {}
    for part in (part for source, _ in sources for part in source.parts()):
        key = part.scope, *part.labels.items()
        found[key] = part.beside(found[key]) if key in found else part
    return found.values()


class _Collections:
    """OpenTelemetry calls each instrument once in a collection; these calls share one snapshot."""

    def __init__(self) -> None:
        self._snapshot: Snapshot = {}
        self._left: set[Metric] = set()
        self._lock = threading.Lock()

    def samples(self, metric: Metric) -> list[Sample]:
        """The values of a metric; a second call for the same metric belongs to the next collection."""
        with self._lock:
            if metric not in self._left:
                self._snapshot, self._left = snapshot(), set(METRICS)
            self._left.discard(metric)
            return self._snapshot[metric]


def _create_instruments(meter: metrics.Meter) -> None:
    collections = _Collections()
    for metric in METRICS:
        create: Callable[..., object]
        create = meter.create_observable_counter if metric.is_counter else meter.create_observable_gauge
        create(metric.exported, [partial(_observe, collections, metric)], unit=metric.unit, description=metric.meaning)


def _observe(collections: _Collections, metric: Metric, _: CallbackOptions) -> Iterable[Observation]:
    for sample in collections.samples(metric):
        yield Observation(sample.value, {ATTRIBUTES.get(name, name): text for name, text in sample.labels.items()})


SAMPLE_S: Final = 30.0
"""Kafka's ``metrics.sample.window.ms``."""

SAMPLES: Final = 2
"""Kafka's ``metrics.num.samples``."""


@dataclass(slots=True)
class _Sample:
    started_s: float
    count: int = 0
    total: float = 0.0
    highest: float = 0.0


class Window:
    """The values of the last 30 to 60 seconds, and the sum of all. Values are not negative.

    Methods take the time in seconds on any monotonic clock, always the same one.

    Attributes:
        count: how many values were ever recorded.
        total: their sum.
    """

    __slots__ = ("_samples", "count", "total")

    def __init__(self) -> None:
        self.count, self.total = 0, 0.0
        self._samples: tuple[_Sample, ...] = ()

    def record(self, value: float, now_s: float) -> None:
        """Add a value."""
        self.count += 1
        self.total += value
        if not self._samples or now_s - self._samples[-1].started_s >= SAMPLE_S:
            self._samples = (*self._recent(now_s), _Sample(now_s))[-SAMPLES:]
        sample = self._samples[-1]
        sample.count += 1
        sample.total += value
        sample.highest = max(sample.highest, value)

    def average(self, now_s: float) -> float | None:
        """The average of the recent values; ``None`` if there are none."""
        recent = self._recent(now_s)
        # A reader in another thread may see a sample that has no value yet.
        count = sum(sample.count for sample in recent)
        return sum(sample.total for sample in recent) / count if count else None

    def maximum(self, now_s: float) -> float | None:
        """The highest of the recent values; ``None`` if there are none."""
        return max((sample.highest for sample in self._recent(now_s)), default=None)

    def rate(self, now_s: float) -> float:
        """The sum of the recent values per second."""
        recent = self._recent(now_s)
        if not recent:
            return 0.0
        # At least one full sample: a single value just recorded is not an infinite rate (Kafka's ``Rate``).
        return sum(sample.total for sample in recent) / max(now_s - recent[0].started_s, (SAMPLES - 1) * SAMPLE_S)

    def events_per_hour(self, now_s: float) -> float:
        """The number of recent values, extrapolated to an hour."""
        recent = self._recent(now_s)
        if not recent:
            return 0.0
        elapsed_s = max(now_s - recent[0].started_s, (SAMPLES - 1) * SAMPLE_S)
        return 3600 * sum(sample.count for sample in recent) / elapsed_s

    def _recent(self, now_s: float) -> list[_Sample]:
        return [sample for sample in self._samples if now_s - sample.started_s < SAMPLES * SAMPLE_S]


class Rebalances:
    """The heartbeats and rebalances of one member; durations are in milliseconds.

    Attributes:
        heartbeats: their response times.
        joins: the time until the join was answered.
        completed, failed: the time of rebalances.
        assigned, revoked, lost: the time of the callbacks, or of the actions that include them.
        sent_s: when the last heartbeat was sent.
        completed_s: when the last rebalance was complete.
    """

    def __init__(self) -> None:
        self.heartbeats, self.joins = Window(), Window()
        self.completed, self.failed = Window(), Window()
        self.assigned, self.revoked, self.lost = Window(), Window(), Window()
        self.sent_s: float | None = None
        self.completed_s: float | None = None

    def values(self, now_s: float) -> Mapping[str, float | None]:
        """The values by Kafka's name of the metric; ``now_s`` is of the clock of all times recorded here."""
        values: dict[str, float | None] = {
            "heartbeat-total": self.heartbeats.count,
            "heartbeat-rate": self.heartbeats.events_per_hour(now_s) / 3600,
            "heartbeat-response-time-max": self.heartbeats.maximum(now_s),
            "last-heartbeat-seconds-ago": -1 if self.sent_s is None else now_s - self.sent_s,
            "join-total": self.joins.count,
            "join-rate": self.joins.events_per_hour(now_s) / 3600,
            "join-time-avg": self.joins.average(now_s),
            "join-time-max": self.joins.maximum(now_s),
            "rebalance-total": self.completed.count,
            "rebalance-rate-per-hour": self.completed.events_per_hour(now_s),
            "rebalance-latency-avg": self.completed.average(now_s),
            "rebalance-latency-max": self.completed.maximum(now_s),
            "rebalance-latency-total": self.completed.total,
            "failed-rebalance-total": self.failed.count,
            "failed-rebalance-rate-per-hour": self.failed.events_per_hour(now_s),
            "last-rebalance-seconds-ago": None if self.completed_s is None else now_s - self.completed_s,
        }
        for event, window in (("assigned", self.assigned), ("revoked", self.revoked), ("lost", self.lost)):
            values[f"partition-{event}-latency-avg"] = window.average(now_s)
            values[f"partition-{event}-latency-max"] = window.maximum(now_s)
        return values
