"""The listener interface, and the listeners that log, trace and count."""

from __future__ import annotations

import inspect
import logging
from typing import cast

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from connectgroup import worker_group
from connectgroup.listener import WorkerRebalanceListener
from connectgroup.listeners.log import LoggingListener
from connectgroup.listeners.metrics import MetricsListener
from connectgroup.listeners.trace import TracingListener
from connectgroup.protocol.units import Unit, Units
from connectgroup.telemetry.spans import use_tracer_provider

SOME = frozenset({Unit("a", 0), Unit("a")})


def test_listener_without_overrides_does_nothing() -> None:
    listener = WorkerRebalanceListener()
    assert listener.on_assigned(SOME, 1) is listener.on_revoked(SOME, 1) is listener.on_lost(SOME, 1) is None


async def test_callback_may_be_async() -> None:
    """Checked by mypy as much as at run time: an ``async def`` is a valid override."""
    heard: list[tuple[Units, int]] = []

    class Async(WorkerRebalanceListener):
        async def on_revoked(self, units: Units, epoch: int) -> None:
            heard.append((units, epoch))

    listener: WorkerRebalanceListener = Async()
    pending = listener.on_revoked(SOME, 4)
    assert inspect.isawaitable(pending)
    await pending
    assert heard == [(SOME, 4)]


def test_every_change_of_ownership_is_one_log_line(caplog: pytest.LogCaptureFixture) -> None:
    listener = LoggingListener()
    with caplog.at_level(logging.INFO, logger="connectgroup.units"):
        listener.on_assigned(SOME, 4)
        listener.on_revoked(frozenset({Unit("a", 0)}), 5)
        listener.on_lost(SOME, 6)
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("INFO", "epoch 4: assigned 2 units: a, a-0"),
        ("INFO", "epoch 5: revoked 1 unit: a-0"),
        ("WARNING", "epoch 6: lost 2 units: a, a-0"),
    ]


async def test_units_of_each_connector_are_counted() -> None:
    reader = InMemoryMetricReader()
    listener = MetricsListener(MeterProvider([reader]))
    await listener.on_assigned(SOME | {Unit("b")}, 4)
    await listener.on_revoked(frozenset({Unit("a", 0)}), 5)
    await listener.on_lost(frozenset({Unit("b")}), 6)
    data = reader.get_metrics_data()
    assert data is not None
    [scope] = data.resource_metrics[0].scope_metrics
    values = {
        (metric.name, *dict(point.attributes or {}).values()): getattr(point, "value")  # noqa: B009 - not in its stub
        for metric in scope.metrics
        for point in metric.data.data_points
    }
    owned, changes = "connectgroup.listener.owned", "connectgroup.listener.changes"
    assert values == {
        (owned, "a"): 1,
        (owned, "b"): 0,
        (changes, "a", "assigned"): 2,
        (changes, "b", "assigned"): 1,
        (changes, "a", "revoked"): 1,
        (changes, "b", "lost"): 1,
    }


async def test_spans_of_the_worker_get_the_names_of_the_units() -> None:
    """Of a worker in a group of its own, as a program embeds it."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    before = use_tracer_provider(provider)
    try:
        idle = {"connector.class": "idle", "tasks.max": 1}
        async with worker_group(
            "mine", workers=["ann"], connectors={"letters": idle}, listeners=lambda worker: [TracingListener()]
        ) as group:
            await group.wait_stable()
    finally:
        use_tracer_provider(before)
    events = {
        (span.name, event.name, unit)
        for span in exporter.get_finished_spans()
        for event in span.events
        for unit in cast(tuple[str, ...], (event.attributes or {})["connectgroup.unit"])
    }
    assert events == {
        (f"connectgroup.{span}", event, unit)
        for span, event in (("assign", "assigned"), ("revoke", "revoked"))
        for unit in ("letters", "letters-0")
    }
