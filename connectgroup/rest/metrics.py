"""The metrics of this process in Prometheus' formats; the only importer of prometheus_client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric as Family, UnknownMetricFamily
from prometheus_client.registry import Collector

from ..telemetry.metric_table import Metric
from ..telemetry.metrics import snapshot


class _Metrics(Collector):
    """The metrics of ``telemetry.metric_table``."""

    def collect(self) -> Iterator[Family]:
        for metric, samples in snapshot().items():
            family = _family(metric)
            for sample in samples:
                family.add_metric([sample.labels[name] for name in metric.labels], sample.value)
            yield family

    def describe(self) -> list[Family]:
        return []


def _family(metric: Metric) -> CounterMetricFamily | GaugeMetricFamily | UnknownMetricFamily:
    if not metric.is_counter:
        return GaugeMetricFamily(metric.exported, metric.meaning, labels=metric.labels)
    if metric.exported.endswith("_total"):
        return CounterMetricFamily(metric.exported, metric.meaning, labels=metric.labels)
    # Prometheus would append ``_total`` to the name of a counter, and no dashboard for Kafka Connect would find it.
    return UnknownMetricFamily(metric.exported, metric.meaning, labels=metric.labels)


_REGISTRY: Final = CollectorRegistry()
_REGISTRY.register(_Metrics())
ProcessCollector(registry=_REGISTRY)


def exposition(accept: str) -> tuple[bytes, str]:
    """The metrics of the coordinator, the workers and the tasks of this process, and of the process itself.

    May be called from any thread.

    Args:
        accept: the ``Accept`` header of the request; empty if there is none.

    Returns:
        The text in Prometheus' format or in OpenMetrics', and its content type.
    """
    encode, content_type = choose_encoder(accept)
    return encode(_REGISTRY), content_type
