"""docs/metrics.md says what the table of metrics says."""

from __future__ import annotations

from pathlib import Path

from connectgroup.telemetry.metric_table import METRICS
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
