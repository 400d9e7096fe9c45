"""All metrics: one table, from which the instruments, the Prometheus names and ``docs/metrics.md`` are made.

Names and meanings are Kafka's where Kafka has such a metric (KIP-196, KIP-415, KIP-429, KIP-475, and the monitoring
chapter of its documentation).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Scope = Literal[
    "worker",
    "runner",
    "connector",
    "task",
    "coordinator",
    "group",
    "group connector",
    "shared log",
    "shared log coordinator",
    "consumer",
    "principal",
    "audit",
]
"""What a metric is measured for. A ``runner`` is the part of a worker that runs connectors and tasks."""

LABELS: Final[dict[Scope, tuple[str, ...]]] = {
    "worker": ("group", "worker"),
    "runner": ("group", "worker"),
    "connector": ("group", "worker", "connector"),
    "task": ("group", "worker", "connector", "task"),
    "coordinator": (),
    "group": ("group",),
    "group connector": ("group", "connector"),
    "shared log": (),
    "shared log coordinator": ("coordinator",),
    "consumer": ("group", "consumer"),
    "principal": ("server", "principal"),
    "audit": ("server",),
}

OURS: Final = "connectgroup-"

PREFIXES: Final[dict[tuple[Scope, str], str]] = {
    ("worker", "connect-worker-rebalance"): "kafka-connect-worker-rebalance",
    ("runner", "connect-worker"): "kafka-connect-worker",
    ("connector", "connector"): "kafka-connect-connector-metrics",
    ("consumer", "consumer-coordinator"): "kafka-consumer-consumer-coordinator",
}
"""The prefixes of exported names that are not ``kafka-connect-`` and the group. The JMX exporter's rules have no name
for the texts of ``connector-metrics``; theirs for the status of a task is ``kafka_connect_connector_status``.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric.

    Attributes:
        scope: what it is measured for; ``LABELS`` has its labels.
        group: Kafka's metrics group; of our own metrics a name that begins with ``connectgroup-``.
        name: the name in that group.
        is_counter: whether it only grows, until the process or the task starts again.
        unit: UCUM; ``{task}`` counts tasks.
        meaning: one sentence.
        label: the name of a further label whose text is the value; the number is then 1.
    """

    scope: Scope
    group: str
    name: str
    is_counter: bool
    unit: str
    meaning: str
    label: str = ""

    @property
    def exported(self) -> str:
        """The name in OpenTelemetry and Prometheus.

        That of one of Kafka's metrics is the one that the rules for Kafka Connect of Prometheus' JMX exporter make.
        """
        if (self.group, self.name) == ("connector-task-metrics", "status"):
            return "kafka_connect_connector_status"
        group = self.group.removesuffix("-metrics")
        prefix = group if group.startswith(OURS) else PREFIXES.get((self.scope, group), f"kafka-connect-{group}")
        return f"{prefix}-{self.name}".replace("-", "_")

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of its labels."""
        return (*LABELS[self.scope], self.label) if self.label else LABELS[self.scope]


Row = tuple[str, str, str]
"""Name, unit, meaning. A name that ends with ``-total`` or begins with one of ``COUNTERS`` is a counter."""

COUNTERS: Final = ("total-", "deadletterqueue-")


def _table(scope: Scope, group: str, *rows: Row) -> tuple[Metric, ...]:
    return tuple(
        Metric(
            scope=scope,
            group=group,
            name=name,
            is_counter=name.endswith("-total") or name.startswith(COUNTERS),
            unit=unit,
            meaning=meaning,
        )
        for name, unit, meaning in rows
    )


def _text(scope: Scope, group: str, name: str, label: str, meaning: str) -> Metric:
    return Metric(scope=scope, group=group, name=name, is_counter=False, unit="1", meaning=meaning, label=label)


_REBALANCE: Final = _table(
    "worker",
    "connect-worker-rebalance-metrics",
    (
        "completed-rebalances-total",
        "{rebalance}",
        "Rebalances that this worker has completed: it reached a target epoch.",
    ),
    ("epoch", "1", "The member epoch of this worker; 0 before it has joined."),
    ("rebalancing", "1", "1 while this worker joins, revokes or starts units for a rebalance; otherwise 0."),
    ("rebalance-avg-time-ms", "ms", "Average time of this worker's recent rebalances."),
    ("rebalance-max-time-ms", "ms", "Maximum time of this worker's recent rebalances."),
    ("time-since-last-rebalance-ms", "ms", "Time since this worker completed its last rebalance."),
)

_MEMBERSHIP: Final = _table(
    "worker",
    "connect-coordinator-metrics",
    ("assigned-connectors", "{connector}", "Connectors assigned to this worker."),
    ("assigned-tasks", "{task}", "Tasks assigned to this worker."),
    ("heartbeat-total", "{heartbeat}", "Heartbeats that the coordinator has answered."),
    ("heartbeat-rate", "{heartbeat}/s", "Answered heartbeats per second."),
    (
        "heartbeat-response-time-max",
        "ms",
        "Maximum time to the response to a recent heartbeat; includes the time for which the coordinator parked it.",
    ),
    ("last-heartbeat-seconds-ago", "s", "Time since the last heartbeat was sent; -1 before the first."),
    ("join-total", "{join}", "How often this worker has joined the group, rejoins included."),
    ("join-rate", "{join}/s", "Joins per second."),
    (
        "join-time-avg",
        "ms",
        "Average time of recent joins, from the first request until the group accepted the worker.",
    ),
    ("join-time-max", "ms", "Maximum time of recent joins."),
    ("rebalance-total", "{rebalance}", "Rebalances that this worker has completed (KIP-429)."),
    ("rebalance-rate-per-hour", "{rebalance}/h", "Completed rebalances per hour (KIP-429)."),
    ("rebalance-latency-avg", "ms", "Average time of this worker's recent rebalances (KIP-429)."),
    ("rebalance-latency-max", "ms", "Maximum time of this worker's recent rebalances (KIP-429)."),
    ("rebalance-latency-total", "ms", "Time that this worker has spent in completed rebalances (KIP-429)."),
    (
        "failed-rebalance-total",
        "{rebalance}",
        "Rebalances of this worker that did not complete: it was fenced, rejected, or its lease expired (KIP-429).",
    ),
    ("failed-rebalance-rate-per-hour", "{rebalance}/h", "Failed rebalances per hour (KIP-429)."),
    ("last-rebalance-seconds-ago", "s", "Time since this worker completed its last rebalance (KIP-429)."),
    ("partition-assigned-latency-avg", "ms", "Average time to start assigned units, listeners included (KIP-429)."),
    ("partition-assigned-latency-max", "ms", "Maximum time to start assigned units (KIP-429)."),
    ("partition-revoked-latency-avg", "ms", "Average time to stop revoked units, listeners included (KIP-429)."),
    ("partition-revoked-latency-max", "ms", "Maximum time to stop revoked units (KIP-429)."),
    ("partition-lost-latency-avg", "ms", "Average time to stop lost units, listeners included (KIP-429)."),
    ("partition-lost-latency-max", "ms", "Maximum time to stop lost units (KIP-429)."),
)

_WORKER: Final = _table(
    "runner",
    "connect-worker-metrics",
    ("connector-count", "{connector}", "Connectors that this worker runs."),
    ("task-count", "{task}", "Tasks that this worker runs."),
    ("connector-startup-attempts-total", "{start}", "Attempted starts of connectors."),
    ("connector-startup-success-total", "{start}", "Starts of connectors that succeeded."),
    (
        "connector-startup-success-percentage",
        "1",
        "Starts of connectors that succeeded, as a fraction of those that ended.",
    ),
    ("connector-startup-failure-total", "{start}", "Starts of connectors that failed."),
    (
        "connector-startup-failure-percentage",
        "1",
        "Starts of connectors that failed, as a fraction of those that ended.",
    ),
    ("task-startup-attempts-total", "{start}", "Attempted starts of tasks."),
    ("task-startup-success-total", "{start}", "Starts of tasks that succeeded."),
    ("task-startup-success-percentage", "1", "Starts of tasks that succeeded, as a fraction of those that ended."),
    ("task-startup-failure-total", "{start}", "Starts of tasks that failed."),
    ("task-startup-failure-percentage", "1", "Starts of tasks that failed, as a fraction of those that ended."),
)

_CONNECTOR: Final = (
    _text(
        "connector",
        "connector-metrics",
        "status",
        "status",
        "1 for the status of the connector on this worker: running, failed, or unassigned while it starts.",
    ),
    _text("connector", "connector-metrics", "connector-class", "connector_class", "1 for the class of the connector."),
    *_table(
        "connector",
        "connect-worker-metrics",
        ("connector-total-task-count", "{task}", "Tasks of the connector on this worker."),
        ("connector-running-task-count", "{task}", "Running tasks of the connector on this worker."),
        ("connector-failed-task-count", "{task}", "Failed and stalled tasks of the connector on this worker."),
    ),
    *_table(
        "group connector",
        "connect-worker-metrics",
        ("connector-paused-task-count", "{task}", "Paused tasks of the connector; measured by the coordinator."),
        (
            "connector-unassigned-task-count",
            "{task}",
            "Tasks of the connector that should run and that no worker owns; measured by the coordinator.",
        ),
    ),
)

_TASK: Final = (
    _text(
        "task",
        "connector-task-metrics",
        "status",
        "status",
        "1 for the status of the task: running, failed, stalled, or unassigned while it starts.",
    ),
    *_table(
        "task",
        "connector-task-metrics",
        ("running-ratio", "1", "Fraction of the time since the task was assigned that it was running."),
        ("batch-size-avg", "{record}", "Average number of records in recent batches."),
        ("batch-size-max", "{record}", "Maximum number of records in recent batches."),
        ("offset-commit-avg-time-ms", "ms", "Average time of recent commits of records and offsets to the sink."),
        ("offset-commit-max-time-ms", "ms", "Maximum time of recent commits."),
        ("offset-commit-success-percentage", "1", "Commits that succeeded, as a fraction of all."),
        ("offset-commit-failure-percentage", "1", "Commits that failed, as a fraction of all."),
    ),
    *_table(
        "task",
        "source-task-metrics",
        (
            "source-record-poll-total",
            "{record}",
            "Records read from the source; absent with a transform that may drop records (Filter, sql).",
        ),
        ("source-record-poll-rate", "{record}/s", "Records read from the source per second."),
        ("source-record-write-total", "{record}", "Records after transforms that are durable."),
        ("source-record-write-rate", "{record}/s", "Records after transforms that became durable, per second."),
        ("poll-batch-avg-time-ms", "ms", "Average time to read and transform a recent batch."),
        ("poll-batch-max-time-ms", "ms", "Maximum time to read and transform a recent batch."),
    ),
    *_table(
        "task",
        "sink-task-metrics",
        ("sink-record-read-total", "{record}", "Records passed to the sink."),
        ("sink-record-read-rate", "{record}/s", "Records passed to the sink per second."),
        ("sink-record-send-total", "{record}", "Records that the sink has made durable."),
        ("sink-record-send-rate", "{record}/s", "Records that the sink has made durable, per second."),
        ("put-batch-avg-time-ms", "ms", "Average time in which the sink took a recent batch."),
        ("put-batch-max-time-ms", "ms", "Maximum time in which the sink took a recent batch."),
        ("offset-commit-completion-total", "{commit}", "Commits of records and offsets that succeeded."),
        ("offset-commit-completion-rate", "{commit}/s", "Commits that succeeded, per second."),
    ),
    *_table(
        "task",
        "task-error-metrics",
        ("total-record-errors", "{record}", "Records that could not be processed: dead letters."),
        ("total-record-failures", "{failure}", "How often the task failed."),
        ("total-records-skipped", "{record}", "Records that were dropped because of an error; always 0."),
        ("total-retries", "{start}", "Starts of the task after a failure."),
        ("total-errors-logged", "{error}", "Errors of the task that were logged."),
        ("deadletterqueue-produce-requests", "{record}", "Records passed to the dead letter table or topic."),
        ("deadletterqueue-produce-failures", "{record}", "Records whose write as dead letters failed."),
        ("last-error-timestamp", "ms", "Time of the last error in milliseconds since 1970; 0: none."),
    ),
)

_OUR_WORKER: Final = (
    *_table(
        "worker",
        "connectgroup-worker-metrics",
        (
            "lost-total",
            "{loss}",
            "How often this worker lost all its units: it was fenced, or its lease expired and no task was fenced.",
        ),
        (
            "lease-expirations-total",
            "{expiration}",
            "How often the lease of this worker has expired while fenced units ran on.",
        ),
        ("units-without-lease", "{unit}", "Units that run on since the lease expired; 0 while the worker has a lease."),
        (
            "coordinator-silence-ms",
            "ms",
            "Time without a response from the coordinator once the lease has expired; 0 while the worker has a lease.",
        ),
        ("computations-total", "{computation}", "Runs of an assignor on this worker."),
        ("computation-failures-total", "{computation}", "Runs of an assignor that failed, or hung."),
        ("computation-avg-time-ms", "ms", "Average time of recent runs of an assignor."),
        ("computation-max-time-ms", "ms", "Maximum time of recent runs of an assignor."),
    ),
    *_table(
        "runner",
        "connectgroup-worker-metrics",
        (
            "fenced-writes-total",
            "{write}",
            "Claims and commits of tasks that the sink rejected: a later owner runs the task.",
        ),
    ),
    *_table(
        "task",
        "connectgroup-task-metrics",
        (
            "records-lag",
            "{record}",
            "Records behind the end of the source, measured about every 10 s; absent if unknown.",
        ),
        ("bytes-lag", "By", "Bytes of the source that are not read yet, measured about every 10 s; absent if unknown."),
        ("files-left", "{file}", "Files that are not read to their end, measured about every 10 s; absent if unknown."),
        (
            "unfinished-files",
            "{file}",
            "Files with only an unfinished last line left, or compressed and incomplete; absent if unknown.",
        ),
        ("unreadable-files", "{file}", "Files that cannot be read, or were rewritten; absent if unknown."),
        ("skipped-files", "{file}", "Files and directories that are not read by their names; absent if unknown."),
        ("read-bytes-total", "By", "Bytes read from the source; absent if unknown."),
        ("written-bytes-total", "By", "Bytes of the records as they were passed to the sink; absent if unknown."),
        ("last-record-timestamp", "ms", "When records last became durable, in milliseconds since 1970; absent: never."),
        (
            "last-poll-timestamp",
            "ms",
            "When a poll of the source was last complete, in milliseconds since 1970, measured about every 10 s.",
        ),
    ),
)

_GROUP: Final = (
    *_table(
        "group",
        "connectgroup-group-metrics",
        ("members", "{worker}", "Members of the group."),
        ("connectors", "{connector}", "Connectors of the group."),
        ("tasks", "{task}", "Tasks of the group, paused and stopped ones included."),
        ("epoch", "1", "The group epoch."),
        ("target-epoch", "1", "The epoch of the target assignment in force."),
        (
            "rebalancing",
            "1",
            "1 from the first cause of a rebalance until all members have reached its target; otherwise 0.",
        ),
        ("rebalances-total", "{rebalance}", "Rebalances that have finished."),
        (
            "rebalance-avg-time-ms",
            "ms",
            "Average time of recent rebalances, from the first cause until all members had reached the target.",
        ),
        ("rebalance-max-time-ms", "ms", "Maximum time of recent rebalances."),
        ("rebalance-time-ms-total", "ms", "Time of all rebalances that have finished."),
        ("moves-total", "{unit}", "Connectors and tasks that moved to another worker."),
        (
            "moves-not-started-total",
            "{unit}",
            "Moves to a worker that released the unit, or left, before it reported it as running; part of moves-total.",
        ),
        ("starts-total", "{unit}", "Connectors and tasks that were assigned and had run on no other worker."),
        (
            "handover-avg-ms",
            "ms",
            "Average handover of units that moved or restarted recently, which is what the protocol took; of the 100 "
            "longest of each rebalance.",
        ),
        ("handover-max-ms", "ms", "Maximum handover of a unit that moved or restarted recently."),
        (
            "downtime-avg-ms",
            "ms",
            "Average time for which units that moved or restarted recently processed nothing, from the revocation, the "
            "failure or the last heartbeat of the worker until they ran again.",
        ),
        ("downtime-max-ms", "ms", "Maximum of these downtimes."),
        (
            "delayed-units",
            "{unit}",
            "Connectors and tasks that are delayed: reserved for a lost worker, or at the assignor's request.",
        ),
        ("computation-failures", "{computation}", "Failed computations since the last target assignment."),
    ),
    _text(
        "group",
        "connectgroup-group-metrics",
        "leader-name",
        "leader_name",
        "1 for the worker that computed the target assignment in force; coordinator: a server-side assignor did.",
    ),
)

_COORDINATOR: Final = _table(
    "coordinator",
    "connectgroup-coordinator-metrics",
    ("groups", "{group}", "Groups that are served."),
    ("epoch", "1", "Coordinator epoch of the process that serves the log; it grows when another one takes over."),
    ("parked-requests", "{request}", "Requests that wait for a change (long polls)."),
    ("turns-total", "{turn}", "Turns of the coordinator; each appends at most one batch to the log."),
    ("append-total", "{append}", "Batches appended to the log."),
    ("append-records-total", "{record}", "Records appended to the log."),
    ("append-failures-total", "{append}", "Batches that the log rejected or whose outcome is unknown."),
    ("log-writable", "1", "0 while the log takes no writes, for instance because its disk is full."),
    ("append-avg-time-ms", "ms", "Average time of recent appends until they were durable."),
    ("append-max-time-ms", "ms", "Maximum time of recent appends."),
    ("append-time-ms-total", "ms", "Time of all appends."),
    ("late-requests-total", "{request}", "Late copies of requests, which changed nothing."),
    ("fenced-requests-total", "{request}", "Requests of members that have been fenced or replaced."),
)

_SHARED_LOG: Final = (
    *_table(
        "shared log",
        "connectgroup-shared-log-metrics",
        ("serving", "1", "1 while this process serves the groups of the log; 0 while it stands by."),
        ("served-partitions", "{partition}", "Partitions of the log that this process serves: at most 1 by default."),
        (
            "unserved-partitions",
            "{partition}",
            "Partitions of the log that no coordinator owns; absent while the log cannot be read.",
        ),
        ("standbys", "{coordinator}", "Coordinators that own no partition; absent while the log cannot be read."),
        (
            "last-failover-timestamp",
            "ms",
            "When the coordinator that serves took over, in milliseconds since 1970; absent: it had no predecessor.",
        ),
        (
            "last-failover-time-ms",
            "ms",
            "Time from the last sign of life of its predecessor until it served; absent: it had no predecessor.",
        ),
    ),
    _text(
        "shared log",
        "connectgroup-shared-log-metrics",
        "last-failover-cause",
        "cause",
        "1 for the cause of the last fail-over: handed over, lease expired, or no coordinator stood by.",
    ),
    *_table(
        "shared log coordinator",
        "connectgroup-shared-log-coordinator-metrics",
        ("serving", "1", "1 for the coordinator that serves the log; 0 for one that stands by. Read every 5 s."),
        ("partitions", "{partition}", "Partitions of the log that it owns."),
        ("since-timestamp", "ms", "Since when it serves or stands by, in milliseconds since 1970."),
        (
            "lag-ms",
            "ms",
            "Time since a coordinator that stands by has last registered, which it does every 2 s once it has read the "
            "log; it is no longer listed after 10 s.",
        ),
    ),
)

_ACCESS: Final = (
    *_table(
        "principal",
        "connectgroup-access-metrics",
        ("request-total", "{request}", "Requests of a principal that has a quota."),
        (
            "throttled-request-total",
            "{request}",
            "Requests above the quota: the connection was muted afterwards, or, of REST, the request was refused.",
        ),
        ("throttle-time-ms-total", "ms", "Time for which connections of the principal were muted."),
        ("denied-request-total", "{request}", "Requests that the rules of access have denied."),
    ),
    *_table(
        "audit",
        "connectgroup-audit-metrics",
        ("line-total", "{line}", "Lines of the audit log that were written."),
        ("lost-line-total", "{line}", "Lines that were left out: too many at a time, or the file cannot be written."),
    ),
)

_CONSUMER: Final = _table(
    "consumer",
    "consumer-coordinator-metrics",
    ("heartbeat-total", "{heartbeat}", "Heartbeats that the coordinator has answered."),
    ("heartbeat-rate", "{heartbeat}/s", "Answered heartbeats per second."),
    ("heartbeat-response-time-max", "ms", "Maximum time to the response to a recent heartbeat."),
    ("last-heartbeat-seconds-ago", "s", "Time since the last heartbeat was sent; -1 before the first."),
    ("join-total", "{join}", "JoinGroup requests that succeeded."),
    ("join-rate", "{join}/s", "JoinGroup requests that succeeded, per second."),
    ("join-time-avg", "ms", "Average time of recent JoinGroup requests."),
    ("join-time-max", "ms", "Maximum time of recent JoinGroup requests."),
    ("sync-total", "{sync}", "SyncGroup requests that succeeded."),
    ("sync-rate", "{sync}/s", "SyncGroup requests that succeeded, per second."),
    ("sync-time-avg", "ms", "Average time of recent SyncGroup requests."),
    ("sync-time-max", "ms", "Maximum time of recent SyncGroup requests."),
    ("rebalance-total", "{rebalance}", "Rebalances that completed, from JoinGroup to SyncGroup."),
    ("rebalance-rate-per-hour", "{rebalance}/h", "Completed rebalances per hour."),
    ("rebalance-latency-avg", "ms", "Average time of recent rebalances."),
    ("rebalance-latency-max", "ms", "Maximum time of recent rebalances."),
    ("rebalance-latency-total", "ms", "Time of all completed rebalances."),
    ("failed-rebalance-total", "{rebalance}", "Rebalances that failed: the membership was lost, or refused."),
    ("failed-rebalance-rate-per-hour", "{rebalance}/h", "Failed rebalances per hour."),
    ("last-rebalance-seconds-ago", "s", "Time since the last completed rebalance."),
    ("partition-assigned-latency-avg", "ms", "Average time of recent calls of on_assigned."),
    ("partition-assigned-latency-max", "ms", "Maximum time of recent calls of on_assigned."),
    ("partition-revoked-latency-avg", "ms", "Average time of recent calls of on_revoked."),
    ("partition-revoked-latency-max", "ms", "Maximum time of recent calls of on_revoked."),
    ("partition-lost-latency-avg", "ms", "Average time of recent calls of on_lost."),
    ("partition-lost-latency-max", "ms", "Maximum time of recent calls of on_lost."),
)

METRICS: Final[tuple[Metric, ...]] = (
    *_REBALANCE,
    *_MEMBERSHIP,
    *_WORKER,
    *_CONNECTOR,
    *_TASK,
    *_OUR_WORKER,
    *_GROUP,
    *_COORDINATOR,
    *_SHARED_LOG,
    *_ACCESS,
    *_CONSUMER,
)
