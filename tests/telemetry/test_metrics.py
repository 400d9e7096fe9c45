"""Metrics of a running group: each change of the group changes exactly the metrics that it must."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from connectgroup import ConnectAssignment, ConnectAssignorInput, GroupSettings, TargetState
from connectgroup.assignors.balanced import BalancedAssignor
from connectgroup.connector import Batch, Config, Connector, Task, TaskContext
from connectgroup.embedding import worker_group as embedded_group
from connectgroup.errors import Fenced
from connectgroup.rest.metrics import exposition
from connectgroup.telemetry import metrics
from connectgroup.telemetry.metric_table import METRICS
from connectgroup.telemetry.spans import GROUP, MEMBER
from connectgroup.testing import StartGroup

CONTINUOUS = (
    "kafka_connect_connect_coordinator_heartbeat_total",
    "connectgroup_coordinator_turns_total",
    "connectgroup_coordinator_append_",
    "kafka_connect_connect_coordinator_rebalance_latency_total",
    "connectgroup_group_rebalance_time_ms_total",
)
"""Totals that grow with time, or by an amount of time."""


def values(**labels: str) -> dict[str, float]:
    """The values of all metrics that have exactly these labels, by exported name."""
    return {
        metric.exported: sample.value
        for metric, samples in metrics.snapshot().items()
        for sample in samples
        if dict(sample.labels) == labels
    }


def owner_of(labels: Mapping[str, str]) -> str:
    """The worker, else the group, else the coordinator that a sample belongs to."""
    return labels.get("worker") or labels.get("group") or "coordinator"


def counters() -> dict[tuple[str, str], float]:
    """All totals that do not grow with time, by owner and name, without those of single tasks."""
    return {
        (owner_of(sample.labels), metric.exported): sample.value
        for metric, samples in metrics.snapshot().items()
        for sample in samples
        if metric.is_counter and metric.scope != "task" and not metric.exported.startswith(CONTINUOUS)
    }


SECRET = "canary-91ce07"
FAILED = "kafka_connect_connect_worker_connector_failed_task_count"
UNASSIGNED = "kafka_connect_connect_worker_connector_unassigned_task_count"


class Changes(dict[str, dict[str, float]]):
    """How much each total has grown, by owner (worker, group or coordinator) and name."""


@contextmanager
def changes() -> Iterator[Changes]:
    """What changes in the block; an owner that is gone at its end is left out."""
    before, found = counters(), Changes()
    yield found
    for (owner, name), value in counters().items():
        if value != before.get((owner, name), 0):
            found.setdefault(owner, {})[name] = value - before.get((owner, name), 0)


REBALANCED = {
    "kafka_connect_worker_rebalance_completed_rebalances_total": 1,
    "kafka_connect_connect_coordinator_rebalance_total": 1,
}


def started(*, connectors: int = 0, tasks: int = 0) -> dict[str, float]:
    """The totals of a worker that started so many connectors and tasks."""
    found: dict[str, float] = {}
    for kind, number in ("connector", connectors), ("task", tasks):
        if number:
            found[f"kafka_connect_worker_{kind}_startup_attempts_total"] = number
            found[f"kafka_connect_worker_{kind}_startup_success_total"] = number
    return found


def test_every_metric_of_the_table_has_a_source(worker_group: StartGroup) -> None:
    group = worker_group(2, connectors={"numbers": 3})
    group.wait_until_stable()
    found = metrics.snapshot()
    assert found.keys() == set(METRICS)
    # tests/consumer has the test of a group consumer, tests/transport those of quotas and of the audit log, tests/log
    # that of a shared log.
    others = {"consumer", "principal", "audit", "shared log", "shared log coordinator"}
    scopes = {metric.scope for metric in METRICS} - others
    assert {metric.scope for metric, samples in found.items() if samples} == scopes
    for metric, samples in found.items():
        assert all(tuple(sample.labels) == metric.labels for sample in samples), metric
    assert len({metric.exported for metric in METRICS}) == len(METRICS)


def test_join_of_a_worker(worker_group: StartGroup) -> None:
    group = worker_group(2, connectors={"numbers": 5})
    group.wait_until_stable()
    with changes() as changed:
        group.add_worker("worker-3")
        group.wait_until_stable()
    computing = [name for name, totals in changed.items() if totals.pop("connectgroup_worker_computations_total", 0)]
    assert len(computing) == 1
    moved = [unit for unit, worker in group.owners().items() if worker == "worker-3"]
    assert changed == {
        "worker-1": REBALANCED,
        "worker-2": REBALANCED,
        # A new member first reaches the target epoch that is in force, without units, then that of its own rebalance.
        "worker-3": {
            **dict.fromkeys(REBALANCED, 2),
            "kafka_connect_connect_coordinator_join_total": 1,
            **started(tasks=len(moved)),
        },
        "test": {"connectgroup_group_rebalances_total": 1, "connectgroup_group_moves_total": len(moved)},
    }
    assert values(group="test")["connectgroup_group_members"] == 3
    assert values(group="test", worker="worker-3")["kafka_connect_connect_coordinator_assigned_tasks"] == len(moved)


def test_killed_worker(worker_group: StartGroup) -> None:
    """Its session expires; then its units are delayed for it; then they move."""
    group = worker_group(3, connectors={"numbers": 6}, settings=GroupSettings(scheduled_delay_ms=10_000))
    group.wait_until_stable()
    units = group.running("worker-1")
    tasks = [unit for unit in units if unit != "numbers"]
    with changes() as changed:
        group.kill("worker-1")
        assert values(group="test", worker="worker-1") == {}
        group.until(lambda: values(group="test")["connectgroup_group_members"] == 2)
        assert values(group="test")["connectgroup_group_delayed_units"] == len(units)
        assert values(group="test", connector="numbers")[UNASSIGNED] == len(tasks)
        group.wait_until_stable()
    assert values(group="test")["connectgroup_group_delayed_units"] == 0
    assert values(group="test", connector="numbers")[UNASSIGNED] == 0
    assert changed.keys() == {"test", "worker-2", "worker-3"}
    assert changed["test"]["connectgroup_group_moves_total"] == len(units)
    started_tasks = [totals.get("kafka_connect_worker_task_startup_success_total", 0) for totals in changed.values()]
    assert sum(started_tasks) == len(tasks)


def test_stopped_worker_leaves_no_series(worker_group: StartGroup) -> None:
    group = worker_group(2, connectors={"numbers": 3})
    group.wait_until_stable()
    with changes() as changed:
        group.stop("worker-1")
        group.wait_until_stable()
    assert changed.keys() == {"test", "worker-2"}
    named = [sample.labels for samples in metrics.snapshot().values() for sample in samples]
    assert not any(labels.get("worker") == "worker-1" for labels in named)
    group.stop("worker-2")
    assert values(group="test")["connectgroup_group_members"] == 0
    group.close()
    assert not any(metrics.snapshot().values())


def test_lost_lease(worker_group: StartGroup) -> None:
    """A worker that the coordinator cannot be reached from loses its units, and joins again later."""
    group = worker_group(2, connectors={"numbers": 3})
    group.wait_until_stable()
    with changes() as changed:
        group.partition("worker-1")
        group.wait_until_stable()
        assert values(group="test", worker="worker-1")["kafka_connect_worker_rebalance_rebalancing"] == 1
        assert values(group="test", worker="worker-1")["kafka_connect_connect_coordinator_assigned_tasks"] == 0
        group.heal("worker-1")
        group.wait_until_stable()
    lost = changed["worker-1"]
    assert lost["connectgroup_worker_lost_total"] == 1
    assert lost["kafka_connect_connect_coordinator_join_total"] == 1
    assert "connectgroup_worker_lost_total" not in changed["worker-2"]
    assert values(group="test", worker="worker-1")["kafka_connect_worker_rebalance_rebalancing"] == 0


def test_failed_computation(worker_group: StartGroup) -> None:
    class Fails(BalancedAssignor):
        def assign(self, group: ConnectAssignorInput) -> ConnectAssignment:
            raise ValueError("no")

    group = worker_group(1, connectors={"numbers": 1}, assignors=[Fails])
    group.wait_until_stable()
    found = values(group="test", worker="worker-1")
    assert found["connectgroup_worker_computation_failures_total"] >= 3
    assert found["connectgroup_worker_computation_failures_total"] == found["connectgroup_worker_computations_total"]
    [leader] = [
        sample.labels["leader_name"]
        for metric, samples in metrics.snapshot().items()
        for sample in samples
        if metric.name == "leader-name"
    ]
    assert leader == "coordinator"


class Writes(Connector):
    """Its task writes two batches, one of which fails, and then fails itself."""

    error: BaseException = RuntimeError("no more")

    def task_configs(self, limit: int) -> Sequence[Config]:
        return [{}]

    def task(self, config: Config, context: TaskContext) -> Task:
        error = self.error

        class Two(Task):
            def start(self) -> None:
                context.batch(Batch(read=12, rows=10, dead_letters=2, read_s=0.5, commit_s=0.25))
                context.progress(10)
                context.batch(Batch(read=4, rows=4, read_s=0.5, commit_s=0.75, committed=False))
                context.failed(error)

            def stop(self) -> None:
                pass

        return Two()


class WritesFenced(Writes):
    error = Fenced("a later owner has claimed the task")


def test_batches_and_failures_of_a_task(worker_group: StartGroup) -> None:
    group = worker_group(1, connectors={"w": {"connector.class": Writes}})
    labels = {"group": "test", "worker": "worker-1", "connector": "w", "task": "0"}
    group.until(lambda: values(**labels, status="failed"))
    found = {metric.name: value for metric in METRICS if (value := values(**labels).get(metric.exported)) is not None}
    assert found["last-error-timestamp"] > 1_600_000_000_000
    expected = {
        "source-record-poll-total": 16,
        "source-record-write-total": 10,
        "poll-batch-avg-time-ms": 500,
        "sink-record-read-total": 14,
        "sink-record-send-total": 10,
        "put-batch-max-time-ms": 750,
        "batch-size-avg": 7,
        "batch-size-max": 10,
        "offset-commit-completion-total": 1,
        "offset-commit-success-percentage": 0.5,
        "offset-commit-failure-percentage": 0.5,
        "offset-commit-avg-time-ms": 500,
        "total-record-errors": 2,
        "deadletterqueue-produce-requests": 2,
        "total-record-failures": 1,
        "total-retries": 0,
        "total-errors-logged": 1,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    connector = values(group="test", worker="worker-1", connector="w")
    assert connector["kafka_connect_connect_worker_connector_failed_task_count"] == 1
    group.until(lambda: values(**labels)["kafka_connect_task_error_total_retries"] == 1)


def test_fenced_write(worker_group: StartGroup) -> None:
    group = worker_group(1, connectors={"w": {"connector.class": WritesFenced}})
    group.until(lambda: values(group="test", worker="worker-1")["connectgroup_worker_fenced_writes_total"] == 1)
    group.advance(60)
    assert values(group="test", worker="worker-1")["connectgroup_worker_fenced_writes_total"] == 1


async def test_paused_connector() -> None:
    async with embedded_group("test", connectors={"numbers": {"connector.class": "idle", "tasks.max": "3"}}) as group:
        await group.wait_stable()
        await group.admin.set_state("test", "numbers", TargetState.PAUSED)
        await group.wait_stable()
        found = values(group="test", connector="numbers")
        assert found["kafka_connect_connect_worker_connector_paused_task_count"] == 3
        assert found[UNASSIGNED] == 0
        assert values(group="test", worker="worker-1")["kafka_connect_worker_task_count"] == 0
    assert not any(metrics.snapshot().values())


def test_opentelemetry_instruments(worker_group: StartGroup) -> None:
    """Names, kinds and attributes; series of a worker that has left end."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    metrics.export_to(provider)
    try:
        group = worker_group(2, connectors={"numbers": 3})
        group.wait_until_stable()
        found = collected(reader)
        assert found["kafka_connect_connect_coordinator_heartbeat_total"].keys() == {"worker-1", "worker-2"}
        assert found["connectgroup_group_members"] == {"": 2}
        group.stop("worker-1")
        # The SDK goes on with the last value of a counter.
        assert collected(reader)["kafka_connect_connect_coordinator_assigned_tasks"].keys() == {"worker-2"}
    finally:
        provider.shutdown()


def test_secret_of_a_configuration_reaches_no_instrument(worker_group: StartGroup) -> None:
    """Canary: in settings, tasks' configurations and errors; the REST API's test has the one for Prometheus."""

    class Secretive(Connector):
        def task_configs(self, limit: int) -> Sequence[Config]:
            return [{"password": SECRET}]

        def task(self, config: Config, context: TaskContext) -> Task:
            raise RuntimeError(f"cannot log in with {SECRET}")

    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    metrics.export_to(provider)
    try:
        group = worker_group(1, connectors={"vault": {"connector.class": Secretive, "password": SECRET}})
        group.until(lambda: values(group="test", worker="worker-1", connector="vault").get(FAILED) == 1)
        data = reader.get_metrics_data()
        assert data is not None
        text = data.to_json()
        assert "vault" in text
        assert SECRET not in text
    finally:
        provider.shutdown()


LATE_SDK = """
import asyncio
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from connectgroup.embedding import worker_group

async def main():
    async with worker_group("g", connectors={"c": {"connector.class": "idle"}}) as group:
        await group.wait_stable()
        reader = InMemoryMetricReader()
        metrics.set_meter_provider(MeterProvider([reader]))
        [scope] = reader.get_metrics_data().resource_metrics[0].scope_metrics
        print(sorted(metric.name for metric in scope.metrics if metric.name.startswith("connectgroup_group_me")))

asyncio.run(main())
"""


def test_sdk_that_is_configured_after_the_workers_have_started() -> None:
    """In a process of its own: OpenTelemetry's global provider is set once."""
    done = subprocess.run([sys.executable, "-c", LATE_SDK], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "['connectgroup_group_members']\n")
    assert "already" not in done.stderr


def collected(reader: InMemoryMetricReader) -> dict[str, dict[str, float]]:
    """The values by exported name and member id; the group is always the same."""
    data = reader.get_metrics_data()
    assert data is not None
    found: dict[str, dict[str, float]] = {}
    for metric in data.resource_metrics[0].scope_metrics[0].metrics:
        for point in metric.data.data_points:
            assert point.attributes is not None
            assert point.attributes.get(GROUP, "test") == "test"
            found.setdefault(metric.name, {})[str(point.attributes.get(MEMBER, ""))] = getattr(point, "value", 0.0)
    return found


@contextmanager
def threads_that_read(stopped: threading.Event) -> Iterator[list[BaseException]]:
    """Threads that read all metrics, as exporters do, and let the event loop go on as often as possible.

    The event loop itself keeps its time slices, without which a slow machine does not get to its timers and answers.
    """
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    metrics.export_to(provider)
    failures: list[BaseException] = []

    def read(what: Callable[[], object]) -> None:
        while not stopped.is_set() and not failures:
            try:
                what()
            except BaseException as error:
                failures.append(error)

    def let_the_loop_go_on(phase: str, info: object) -> None:
        if threading.current_thread() in threads:
            time.sleep(0)

    # The SDK logs the error of a callback and goes on, so its collection is not enough.
    reads = metrics.snapshot, partial(exposition, ""), partial(metrics.values_of, "task"), reader.get_metrics_data
    threads = [threading.Thread(target=read, args=[each], daemon=True) for each in reads]
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-4)
    gc.set_threshold(5, *thresholds[1:])
    gc.callbacks.append(let_the_loop_go_on)
    try:
        for thread in threads:
            thread.start()
        yield failures
    finally:
        stopped.set()
        for thread in threads:
            thread.join()
        gc.callbacks.remove(let_the_loop_go_on)
        gc.set_threshold(*thresholds)
        sys.setswitchinterval(interval)
        provider.shutdown()


async def test_threads_read_metrics_while_everything_changes(caplog: pytest.LogCaptureFixture) -> None:
    """Groups, members, connectors, tasks and workers come and go meanwhile; no reading fails."""
    idle = {"connector.class": "idle", "tasks.max": "3"}
    async with embedded_group("test", connectors={"numbers": idle}) as group:
        await group.wait_stable()
        with threads_that_read(threading.Event()) as failures:
            for number in range(8):
                name, other = f"more-{number}", f"other-{number}"
                for each in range(20):
                    await group.admin.put_connector(f"{other}-{each}", "c", idle)
                await group.admin.put_connector("test", name, idle)
                await group.add_worker(name)
                await group.wait_stable()
                await group.admin.delete_connector("test", name)
                await group.stop_worker(name)
                for each in range(20):
                    await group.admin.delete_connector(f"{other}-{each}", "c")
                    await group.admin.delete_group(f"{other}-{each}")
                if failures:
                    break
    assert failures == []
    # On a busy machine these threads keep the event loop waiting, which the worker says.
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert [each.getMessage() for each in errors if each.name != "connectgroup.worker.hanging"] == []
