"""docs/metrics.md says what the table of metrics says."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectgroup.telemetry.metric_table import METRICS
from connectgroup.telemetry.metrics import Window
from connectgroup.telemetry.reference import reference

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_reference_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), (
        "python -m connectgroup.telemetry.reference > docs/metrics.md"
    )


def test_reference_lists_every_metric() -> None:
    text = reference()
    for metric in METRICS:
        assert f"| `{metric.exported}` |" in text


def test_names_are_those_of_the_jmx_exporter() -> None:
    """Prometheus' example rules for Kafka Connect, one name for each of its rules."""
    assert {
        "kafka_connect_worker_rebalance_completed_rebalances_total",
        "kafka_connect_worker_task_startup_failure_total",
        "kafka_connect_connect_worker_connector_running_task_count",
        "kafka_connect_connect_coordinator_assigned_tasks",
        "kafka_connect_connector_status",
        "kafka_connect_source_task_source_record_poll_rate",
        "kafka_connect_sink_task_sink_record_send_total",
        "kafka_connect_task_error_deadletterqueue_produce_requests",
    } <= {metric.exported for metric in METRICS}


# --------------------------------------------------------------------------------------------------
# Averages, maxima and rates are those of Kafka's default samples: two of 30 s.


def test_without_values() -> None:
    window = Window()
    assert (window.average(0), window.maximum(0), window.rate(0), window.events_per_hour(0)) == (None, None, 0, 0)
    assert (window.count, window.total) == (0, 0)


def test_values_of_the_last_minute_count() -> None:
    window = Window()
    for now_s, value in ((0, 9), (29, 1), (40, 2)):
        window.record(value, now_s)
    assert window.average(45) == 4
    assert window.maximum(45) == 9
    assert window.rate(45) == pytest.approx(12 / 45)
    assert window.events_per_hour(45) == pytest.approx(3 * 3600 / 45)


def test_a_sample_expires_a_minute_after_its_start() -> None:
    window = Window()
    window.record(9, 0)
    window.record(1, 31)
    assert window.maximum(59.9) == 9
    assert window.maximum(60) == 1
    assert window.average(91) is None
    assert (window.count, window.total) == (2, 10)


def test_one_recent_value_is_spread_over_a_whole_sample() -> None:
    window = Window()
    window.record(3, 100)
    assert window.rate(100) == pytest.approx(0.1)
