"""Traces of rebalances: one trace each, over the wire, complete, linked, without secrets, free without an SDK."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from connectgroup import ConnectAssignment, ConnectAssignorInput, GroupSettings
from connectgroup.analysis.explain import explain_task, rebalance_json, rebalance_lines, task_lines
from connectgroup.assignors.balanced import BalancedAssignor
from connectgroup.connector import Batch, Config, Connector, Task, TaskContext
from connectgroup.errors import ConfigError
from connectgroup.listener import WorkerRebalanceListener
from connectgroup.own_plugins import ConfigOrTasks
from connectgroup.protocol.messages.heartbeat import HeartbeatResponse
from connectgroup.protocol.units import Unit, Units
from connectgroup.telemetry import metrics, spans as telemetry
from connectgroup.testing import Spans, StartGroup, WorkerGroup, seeds
from connectgroup.testing.spans import collect
from connectgroup.testing.virtual_group import VirtualGroup
from connectgroup.testing.worker_group import GroupPlan
from connectgroup.wire.apis import HEARTBEAT, decode_response, encode_response
from tests.volume import volume

SECRET = "canary-5f2b91"
GUIDE = Path(__file__).parents[2] / "docs" / "testing.md"


class Slow(WorkerRebalanceListener):
    """Delays each acknowledgement by five seconds of virtual time."""

    def on_revoked(self, units: Units, epoch: int) -> None:
        time.sleep(5)


def test_move_to_a_new_worker_is_one_trace(worker_group: StartGroup, spans: Spans) -> None:
    group = worker_group(2, connectors={"numbers": 5})
    group.wait_until_stable()
    group.add_worker("worker-3")
    group.wait_until_stable()
    rebalance = spans.rebalances("test")[-1]
    assert any("worker-3" in cause for cause in rebalance.causes)
    compute = rebalance.assert_has("compute")
    assert {step.name for step in compute.children} == {"prepare", "assign", "install"}
    [owner] = rebalance.workers("revoke")
    rebalance.assert_has("revoke > acknowledge", worker=owner)
    rebalance.assert_has("assign > start", worker="worker-3")
    assert rebalance.find("revoke > acknowledge")[0].span.started_ns <= rebalance.find("assign")[-1].span.started_ns


def test_rebalance_that_is_overtaken_ends_and_is_linked(worker_group: StartGroup, spans: Spans) -> None:
    """A connector is added while worker-1 still stops a task for the rebalance before."""
    group = worker_group(1, connectors={"numbers": 3}, listeners=[Slow])
    group.wait_until_stable()
    group.add_worker("worker-2")
    group.advance(1)
    group.add_connector("letters", 1)
    group.wait_until_stable()
    overtaken, later = spans.rebalances()[-2:]
    assert overtaken.attributes[telemetry.OVERTAKEN_BY] == later.epoch
    assert later.span.links == (overtaken.span.span_id,)
    assert overtaken.span.trace_id != later.span.trace_id


def test_leaving_and_a_lost_lease_are_roots_of_their_own(worker_group: StartGroup, spans: Spans) -> None:
    group = worker_group(3, connectors={"numbers": 5})
    group.wait_until_stable()
    group.partition("worker-2")
    group.wait_until_stable()
    group.stop("worker-3")
    [lost] = spans.roots("lose")
    assert lost.worker == "worker-2"
    [left] = spans.roots("leave")
    assert left.worker == "worker-3"
    left.assert_has("revoke > acknowledge")


def lost_under(spans: Spans) -> list[tuple[str, tuple[str, ...]]]:
    """The worker of each loss within a rebalance, and the causes of the rebalance."""
    return [(lost.worker, each.causes) for each in spans.rebalances() for lost in each.find("lose")]


def test_units_that_a_removed_worker_loses_belong_to_the_rebalance_that_removed_it(
    worker_group: StartGroup, spans: Spans
) -> None:
    """Their sink fences them, so that they run on. The worker hears of its removal after a later rebalance."""
    Batches.contexts.clear()
    group = worker_group(3, connectors={"rows": {"connector.class": Batches, "tasks.max": 4}})
    group.wait_until_stable()
    group.partition("worker-2")
    group.wait_until_stable()
    removal = spans.rebalances()[-1]
    group.add_worker("late")
    group.wait_until_stable()
    group.heal()
    group.wait_until_stable()
    [lost] = [lost for root in spans.roots("rebalance") for lost in root.find("lose", worker="worker-2")]
    assert lost.span.parent_id == removal.span.span_id
    assert lost_under(spans) == [("worker-2", removal.causes)]
    spans.assert_no_orphans()


@pytest.mark.parametrize("silence", ["partition", "pause"])
def test_units_lost_with_the_lease_are_in_the_rebalance_that_the_silence_caused(
    worker_group: StartGroup, spans: Spans, silence: str
) -> None:
    """A paused worker notices after the rebalance that its lease has expired."""
    group = worker_group(3, connectors={"numbers": 5})
    group.wait_until_stable()
    for _ in range(2):
        group.partition("worker-2") if silence == "partition" else group.pause("worker-2")
        group.wait_until_stable()
        group.heal() if silence == "partition" else group.resume("worker-2")
        group.wait_until_stable()
    assert lost_under(spans) == [("worker-2", ("worker-2 was silent for 10000 ms",))] * 2
    assert [lost.span.parent_id for lost in spans.roots("lose")] == ["", ""]


def test_rejected_worker_is_in_no_rebalance(worker_group: StartGroup, spans: Spans) -> None:
    group = worker_group(2, connectors={"numbers": 2}, settings=GroupSettings(max_members=2))
    group.wait_until_stable()
    group.add_worker("late")
    group.wait_until_rejected("late")
    assert [failed.worker for failed in spans.roots("fail")] == ["late"]


def test_failures_are_those_of_plugins_and_not_what_the_group_overtook(worker_group: StartGroup, spans: Spans) -> None:
    """Three workers join one after another: computations are overtaken."""

    class Fails(BalancedAssignor):
        def assign(self, group: ConnectAssignorInput) -> ConnectAssignment:
            raise ValueError(SECRET)

    healthy = worker_group(3, connectors={"numbers": 4})
    healthy.wait_until_stable()
    healthy.stop("worker-2")
    healthy.wait_until_stable()
    assert any(node.span.error for root in spans.roots() for node in root.walk())
    assert spans.failures() == []
    healthy.close()
    failing = worker_group(1, connectors={"numbers": 1}, assignors=[Fails])
    failing.wait_until_stable()
    failures = spans.failures()
    assert {(failed.name, failed.worker, failed.span.error) for failed in failures} == {
        ("assign", "worker-1", "PluginError")
    }
    assert re.fullmatch(r"<span assign \| worker-1 \| epoch \d+ \| FAILED: PluginError>", repr(failures[0]))


def test_objects_of_a_test_are_readable_in_a_failure(worker_group: StartGroup, spans: Spans) -> None:
    """pytest prints the ``repr`` of what an assertion compares, and of the fixtures."""
    group = worker_group(["a", "b"], connectors={"numbers": 2})
    group.wait_until_stable()
    group.kill("a")
    group.wait_until_stable()
    rebalance = spans.rebalances()[-1]
    below = len(list(rebalance.walk())) - 1
    assert repr(rebalance) == f"<span rebalance | epoch {rebalance.epoch} | a was silent for 10000 ms | {below} below>"
    assert str(rebalance).splitlines()[0] == f"rebalance | epoch {rebalance.epoch} | a was silent for 10000 ms"
    assert repr(rebalance.assert_has("compute > prepare")) == "<span prepare | b>"
    assert re.fullmatch(r"<spans: \d+ started, \d rebalances ended; print shows them>", repr(spans))
    assert repr(group) == "<group test of b; story() tells what happened>"
    assert "resource" not in repr(rebalance.span)


@pytest.mark.parametrize("seed", [10, 42, 84])
def test_trace_of_a_stable_group_has_the_computation_before_its_last_response(seed: int) -> None:
    """Under these seeds the group is stable while the response to the worker's Install is still lost or delayed."""
    with collect() as collector:
        group = VirtualGroup(GroupPlan(workers=3, connectors={"mine": 4}), seed=seed)
        try:
            group.kill(group.random.choice(group.workers))
            group.wait_until_stable()
            spans = Spans(collector.started)
            install = spans.rebalances()[-1].assert_has("compute > install")
            assert not install.is_ended
            spans.assert_no_orphans()
        finally:
            group.close()


@seeds(12)
def test_trace_of_every_seed_has_a_computation_and_no_orphans(worker_group: StartGroup, spans: Spans) -> None:
    """As test authors write it under seeds."""
    group = worker_group(workers=3, connectors={"mine": 4})
    group.kill(group.random.choice(group.workers))
    group.wait_until_stable()
    assert any(rebalance.find("compute > install") for rebalance in spans.rebalances())
    spans.assert_no_orphans()


def test_open_spans_of_a_killed_worker_are_in_their_trace_as_not_ended(worker_group: StartGroup, spans: Spans) -> None:
    """worker-2 is killed while its listener delays the acknowledgement of a revocation."""
    group = worker_group(2, connectors={"numbers": 5}, listeners=[Slow])
    group.wait_until_stable()
    group.add_worker("worker-3")
    group.until(lambda: [span for span in spans.started() if span.name == "revoke"], what="a revocation")
    [revoke] = [span for span in spans.started() if span.name == "revoke"]
    killed = str(revoke.attributes[telemetry.MEMBER])
    group.kill(killed)
    group.wait_until_stable()
    spans.assert_no_orphans()
    found = [node for root in spans.roots() for node in root.find("revoke", worker=killed)]
    assert [node.is_ended for node in found] == [False]
    assert str(found[0]) == f"revoke | {killed} | not ended"
    assert revoke not in spans.finished()


def test_failed_computation_is_marked(worker_group: StartGroup, spans: Spans) -> None:
    class Fails(BalancedAssignor):
        def assign(self, group: ConnectAssignorInput) -> ConnectAssignment:
            raise ValueError(SECRET)

    group = worker_group(1, connectors={"numbers": 1}, assignors=[Fails])
    group.wait_until_stable()
    failed = [node for root in spans.rebalances() for node in root.find("compute > assign") if node.span.error]
    assert {node.span.error for node in failed} == {"PluginError"}
    spans.assert_never_mentions(SECRET)


@seeds(volume(2, 4))
def test_every_span_has_a_parent_or_is_a_documented_root(worker_group: StartGroup, spans: Spans) -> None:
    """200 rebalances over all seeds: lost and repeated messages, slow stops, new coordinators, errors of tasks."""
    secretive = {"connector.class": Secretive, "password": SECRET}
    group = worker_group(3, connectors={"numbers": 4, "vault": secretive})
    for number in range(150):
        if number % 15 == 14 and len(spans.rebalances()) >= 50:
            break
        match group.random.choice(["kill", "stop", "add", "connector", "coordinator", "partition"]):
            case "kill" if len(group.workers) > 2:
                group.kill(group.random.choice(group.workers))
            case "stop" if len(group.workers) > 2:
                group.stop(group.random.choice(group.workers))
            case "add" if len(group.workers) < 6:
                group.add_worker()
            case "coordinator":
                group.restart("coordinator")
            case "partition":
                group.partition(name := group.random.choice(group.workers))
                group.advance(group.random.uniform(1, 15))
                group.heal(name)
            case _:
                group.add_connector("numbers", 1 + number % 9)
        group.advance(group.random.uniform(0, 8))
    group.close()
    assert len(spans.rebalances()) >= 50
    spans.assert_no_orphans()
    spans.assert_never_mentions(SECRET)
    names, attributes = documented()
    for span in spans.finished():
        assert span.name in names
        assert span.attributes.keys() <= attributes, f"{span.name}: {span.attributes.keys() - attributes}"


class Secretive(Connector):
    """A connector with secrets in its configuration and in its errors."""

    def task_configs(self, limit: int) -> Sequence[Config]:
        return [{"password": SECRET} for _ in range(limit)]

    def task(self, config: Config, context: TaskContext) -> Task:
        raise RuntimeError(f"cannot log in with {SECRET}")


class SecretiveListener(WorkerRebalanceListener):
    """A listener with a secret in its errors."""

    def on_assigned(self, units: Units, epoch: int) -> None:
        raise RuntimeError(SECRET)


class SecretiveAssignor(BalancedAssignor):
    """An assignor that fails once, with a secret in its error."""

    failed: ClassVar[list[str]] = []

    def assign(self, group: ConnectAssignorInput) -> ConnectAssignment:
        if not self.failed:
            self.failed.append(SECRET)
            raise RuntimeError(f"password={SECRET}")
        return super().assign(group)


def test_secrets_are_in_no_span_metric_or_explanation(worker_group: StartGroup, spans: Spans) -> None:
    """Canary: in a configuration, in the configurations of tasks, and in the errors of a task and of plug-ins."""
    SecretiveAssignor.failed.clear()
    secretive = {"connector.class": Secretive, "tasks.max": 2, "password": SECRET, "url": f"db://me:{SECRET}@host"}
    group = worker_group(
        2, connectors={"vault": secretive}, listeners=[SecretiveListener], assignors=[SecretiveAssignor]
    )
    group.until(lambda: "FAILED" in states(group), what="a failed task")
    group.kill("worker-1")
    group.advance(20)
    described = group.describe()
    assert described is not None
    units = [Unit("vault"), Unit("vault", 0), Unit("vault", 1)]
    explained = [line for unit in units for line in task_lines(explain_task(described, unit))]
    assert any("it has failed" in line for line in explained)
    explained += rebalance_lines(described.rebalances, moves=True)
    explained += [str(rebalance_json(each)) for each in described.rebalances]
    exported = [
        f"{metric.exported}{dict(sample.labels)} {sample.value}"
        for metric, samples in metrics.snapshot().items()
        for sample in samples
    ]
    assert any("vault" in line for line in exported)
    group.stop("worker-2")
    for text in ("\n".join(explained), "\n".join(exported), str(described), group.story()):
        assert SECRET not in text
    assert len(spans.rebalances()) >= 2
    spans.assert_never_mentions(SECRET)


def states(group: WorkerGroup) -> set[str]:
    """The states of all units."""
    described = group.describe()
    return {unit.state for each in described.connectors for unit in each.units} if described else set()


def test_unknown_name_of_a_span_is_rejected(worker_group: StartGroup, spans: Spans) -> None:
    """An assertion that there is no such span would pass whatever happens."""
    group = worker_group(1, connectors={"numbers": 1})
    group.wait_until_stable()
    rebalance = spans.rebalances()[-1]
    asked: list[tuple[Callable[[], object], str]] = [
        (lambda: rebalance.assert_has_not("loose"), "loose"),
        (lambda: rebalance.workers("asign > start"), "asign"),
        (lambda: rebalance.find("revoke > stat", worker="worker-1"), "stat"),
        (lambda: spans.roots("batches"), "batches"),
    ]
    for ask, name in asked:
        with pytest.raises(
            ConfigError, match=f"^name of a span: got '{name}'; allowed: rebalance, compute, .*, batch$"
        ):
            ask()


def test_missing_rebalance_is_explained(worker_group: StartGroup, spans: Spans) -> None:
    worker_group(1)
    assert spans.rebalances() == []
    with pytest.raises(AssertionError, match="no rebalance -1: 0 rebalances have ended so far"):
        spans.rebalances()[-1]


@pytest.mark.processes
def test_spans_of_real_processes_are_refused_with_the_reason(worker_group: StartGroup, spans: Spans) -> None:
    group = worker_group(1, real=True)
    group.wait_until_stable()
    asked: list[Callable[[], object]] = [spans.rebalances, spans.finished, spans.assert_no_orphans]
    asked.append(lambda: spans.assert_never_mentions(SECRET))
    for ask in asked:
        with pytest.raises(AssertionError, match="real=True runs in processes of its own, whose spans"):
            ask()


def test_trace_context_travels_in_the_response() -> None:
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    for said in (traceparent, ""):
        response = HeartbeatResponse(member_epoch=3, traceparent=said)
        data = encode_response(response, api_key=HEARTBEAT, version=0, correlation_id=1)
        assert decode_response(data, api_key=HEARTBEAT, version=0) == (1, response)


def test_nothing_is_recorded_without_an_sdk(worker_group: StartGroup) -> None:
    assert not telemetry.is_tracing()
    with telemetry.span("anything"):
        assert telemetry.current_traceparent() == ""
        assert not trace.get_current_span().is_recording()
    group = worker_group(2, connectors={"numbers": 2})
    group.wait_until_stable()


def test_sdk_that_is_configured_later_records_the_next_rebalance(worker_group: StartGroup) -> None:
    group = worker_group(2, connectors={"numbers": 6})
    group.wait_until_stable()
    with collect() as collector:
        group.advance(30)
        assert collector.started() == []
        group.add_worker()
        group.wait_until_stable()
        assert {"rebalance", "compute", "install", "revoke", "assign"} <= {span.name for span in collector.started()}


def test_embedders_provider_is_used_and_restored() -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    assert telemetry.use_tracer_provider(provider) is None
    try:
        with telemetry.span("outer"):
            context = telemetry.current_traceparent()
        assert re.fullmatch("00-[0-9a-f]{32}-[0-9a-f]{16}-0[0-9a-f]", context)
    finally:
        assert telemetry.use_tracer_provider(None) is provider


class Batches(Connector):
    """A task that has three batches at once, and a failed one; then one more each time the test asks for it."""

    contexts: ClassVar[list[TaskContext]] = []

    def task_configs(self, limit: int) -> Sequence[Config]:
        return [{} for _ in range(limit)]

    @property
    def fenced(self) -> bool:
        return True

    def task(self, config: Config, context: TaskContext) -> Task:
        return BatchesTask(context)


class BatchesTask(Task):
    """See ``Batches``."""

    def __init__(self, context: TaskContext) -> None:
        self._context = context

    def start(self) -> None:
        Batches.contexts.append(self._context)
        for rows, committed in ((3, True), (4, True), (5, False)):
            self._context.batch(Batch(read=9, rows=rows, read_s=0.5, commit_s=0.25, committed=committed))

    def stop(self) -> None: ...


def test_batches_are_sampled_and_failed_commits_are_not_left_out(worker_group: StartGroup, spans: Spans) -> None:
    Batches.contexts.clear()
    group = worker_group(1, connectors={"rows": {"connector.class": Batches}})
    group.wait_until_stable()
    for _ in range(3):
        group.advance(6)
        Batches.contexts[-1].batch(Batch(read=None, rows=7, read_s=0, commit_s=0))
    found = [(root.attributes["messaging.batch.message_count"], root.span.error) for root in spans.roots("batch")]
    assert sorted(found) == [(3, ""), (5, "commit failed"), (7, "")]
    first = next(root for root in spans.roots("batch") if root.attributes["messaging.batch.message_count"] == 3)
    assert first.attributes["connectgroup.unit"] == "rows-0"
    assert first.worker == "worker-1"
    assert first.duration_s == pytest.approx(0.75, abs=0.001)


def documented() -> tuple[set[str], set[str]]:
    """The names of spans and of attributes in docs/testing.md."""
    text = GUIDE.read_text(encoding="utf-8").partition("### All spans")[2].partition("\n## ")[0]
    tables = text.partition("| attribute |")
    names, attributes = (
        {name for cell in re.findall(r"^\| (`[^|]*`) \|", part, re.MULTILINE) for name in re.findall("`([^`]+)`", cell)}
        for part in (tables[0], tables[2])
    )
    return names, attributes


def documented_carriers(names: set[str]) -> dict[str, set[str]]:
    """The spans that have each attribute, from the column "on"; without attributes that any span may have."""
    found: dict[str, set[str]] = {}
    text = GUIDE.read_text(encoding="utf-8").partition("| attribute | on |")[2].partition("\n## ")[0]
    for attributes, on in re.findall(r"^\| (`[^|]*`) \| ([^|]*) \|", text, re.MULTILINE):
        listed = set(re.findall("`([^`]+)`", on))
        carriers = names if on == "every span" else names - listed if "all but" in on else listed
        if on != "any span":
            found |= dict.fromkeys(re.findall("`([^`]+)`", attributes), carriers)
    return found


def test_tables_list_exactly_the_spans_and_their_attributes(worker_group: StartGroup, spans: Spans) -> None:
    """One group that shows all of them."""
    connectors: dict[str, ConfigOrTasks] = {"numbers": 5, "rows": {"connector.class": Batches, "tasks.max": 3}}
    group = worker_group(2, connectors=connectors, listeners=[Slow], settings=GroupSettings(max_members=3))
    group.wait_until_stable()
    group.add_worker("worker-3")
    group.advance(1)
    group.add_connector("letters", 1)  # overtakes the rebalance
    group.wait_until_stable()
    group.add_worker("worker-4")
    assert "has all of its 3 members" in group.wait_until_rejected("worker-4")
    group.partition("worker-2")  # its lease expires, and it is removed
    group.wait_until_stable()
    group.heal()
    group.restart("coordinator")
    group.stop("worker-1")
    group.wait_until_stable()
    names, attributes = documented()
    assert set(telemetry.NAMES) == names
    finished = spans.finished()
    assert {span.name for span in finished} == names
    assert {name for span in finished for name in span.attributes} == attributes
    for attribute, carriers in documented_carriers(names).items():
        assert {span.name for span in finished if attribute in span.attributes} == carriers, attribute
