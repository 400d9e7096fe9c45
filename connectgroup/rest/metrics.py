"""The metrics of this process in Prometheus' formats; the only importer of prometheus_client."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
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
    # A counter family appends ``_total`` to the name, and no dashboard for Kafka Connect would find it.
    return UnknownMetricFamily(metric.exported, metric.meaning, labels=metric.labels)


_REGISTRY: Final = CollectorRegistry()
_REGISTRY.register(_Metrics())
ProcessCollector(registry=_REGISTRY)

_UNTYPED: Final = re.compile(rb"^# TYPE (\S+) untyped$", re.MULTILINE)
"""Only counters whose name does not end in ``_total`` are exported without a type, see ``_family``."""


def _encoder_for(accept: str) -> tuple[Callable[[CollectorRegistry], bytes], str]:
    """OpenMetrics' only for a client that accepts no other."""
    return choose_encoder("" if "text/plain" in accept else accept)


def content_type_for(accept: str) -> str:
    """The content type of the ``exposition`` for such a client."""
    return _encoder_for(accept)[1]


def exposition(accept: str) -> tuple[bytes, str]:
    """The metrics of the coordinator, the workers and the tasks of this process, and of the process itself.

    May be called from any thread.

    Args:
        accept: the ``Accept`` header of the request; empty if there is none.

    Returns:
        The text in Prometheus' format, and its content type; in OpenMetrics' for a client that accepts no other. There
        the name of a counter must end in ``_total``, so some of Kafka's counters have no type.
    """
    encode, content_type = _encoder_for(accept)
    text = encode(_REGISTRY)
    return (text if "openmetrics" in content_type else _UNTYPED.sub(rb"# TYPE \1 counter", text)), content_type
