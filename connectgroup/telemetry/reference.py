"""The reference of all metrics.

``python -m connectgroup.telemetry.reference`` prints it; docs/metrics.md of the repository is this text.
"""

from __future__ import annotations

from typing import Final

from .metric_table import METRICS, OURS, Metric

_HEAD: Final = """\
# Metrics

Each process exports what it runs: a worker its own metrics and those of its connectors and tasks, a coordinator its own
and those of its groups. `--metrics-port` of `worker`, `coordinator` and `up` serves them for Prometheus at
`http://127.0.0.1:PORT/metrics`, the REST API at `/metrics` (`pip install 'connectgroup[rest]'`). A program that embeds
workers and configures an OpenTelemetry SDK exports them by OpenTelemetry. `docs/grafana-dashboard.json` is a dashboard.
This page is generated: `python -m connectgroup.telemetry.reference > docs/metrics.md`.

- **Names.** A metric of Kafka Connect has the name that the rules for Kafka Connect of Prometheus' JMX exporter
  (`kafka-connect.yml` in its examples) give it, so that existing dashboards find it: `completed-rebalances-total` of
  `connect-worker-rebalance-metrics` is `kafka_connect_worker_rebalance_completed_rebalances_total`. OpenTelemetry's own
  naming would end it with the unit, which no dashboard for Kafka Connect does. Its instruments have the same names as
  Prometheus' metrics, so there is one name to search for. Our own metrics begin with `connectgroup_`.
- **Labels** are `group`, `worker`, `connector` and `task`; of a `GroupConsumer`, `group` and `consumer` (a member id);
  of coordinators that share a log, `coordinator` (an advertised address).
  As OpenTelemetry attributes, `group` is `messaging.consumer.group.name`, and `worker` and `consumer` are
  `messaging.client.id`, as in traces. Nothing comes from a connector's configuration, except the name of its class.
- **Averages, maxima and rates** are of the last 30 to 60 seconds, as with Kafka's defaults (`metrics.sample.window.ms`
  30000, `metrics.num.samples` 2); an average or a maximum without a value in this time is absent. A fraction is 0 to 1,
  also where Kafka's name says percentage.
- **Totals** (counters) start at 0 with the process, those of a task with each assignment to a worker. The series of a
  task ends when the task leaves the worker. The names of seven of Kafka's counters do not end in `_total`. They are
  exported under these names with the type counter; only in OpenMetrics, which does not allow that, without a type.
  The endpoint responds in OpenMetrics to clients that do not accept `text/plain`; Prometheus accepts it.
- **Not exported**: `sync-*` of a worker (only `--group-protocol classic` has a SyncGroup), `connect-protocol` (a text),
  `pause-ratio` (a paused task is assigned to no worker), `partition-count`, `source-record-active-count`, the counts of
  destroyed and restarting tasks. A commit is the sink's: records and offsets in one transaction.
- **Cost.** A heartbeat spends 1 microsecond on metrics. A scrape of 1,000 tasks is 2 MB and takes 0.2 s of processor
  time, in a thread beside the event loop.
"""


def reference() -> str:
    """Return the reference in Markdown."""
    groups = dict.fromkeys((metric.group, metric.scope) for metric in METRICS)
    parts = [_HEAD]
    for title, is_ours in ("## Kafka's metrics\n", False), ("## Our own metrics\n", True):
        parts.append(title)
        for group, scope in groups:
            if group.startswith(OURS) == is_ours:
                found = [metric for metric in METRICS if (metric.group, metric.scope) == (group, scope)]
                parts.append(_section(group, found))
    return "\n".join(parts)


def _section(group: str, found: list[Metric]) -> str:
    labels = ", ".join(f"`{name}`" for name in dict.fromkeys(label for metric in found for label in metric.labels))
    rows = [
        f"| `{metric.exported}` | {'' if group.startswith(OURS) else f'`{metric.name}`'} "
        f"| {'counter' if metric.is_counter else 'gauge'} | {metric.unit} | {metric.meaning} |"
        for metric in found
    ]
    head = ["| name | Kafka's name | kind | unit | meaning |", "|---|---|---|---|---|"]
    if group.startswith(OURS):
        head = ["| name | kind | unit | meaning |", "|---|---|---|---|"]
        rows = [row.replace(" |  | ", " | ", 1) for row in rows]
    return "\n".join([f"### `{group}`\n", f"Labels: {labels or 'none'}.\n", *head, *rows]) + "\n"


if __name__ == "__main__":
    print(reference(), end="")
