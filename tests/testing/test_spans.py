"""Traces of rebalances: one trace each, over the wire, complete, linked, without secrets, free without an SDK."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from connectgroup import ConnectAssignment, ConnectGroup
from connectgroup.assignors.balanced import BalancedAssignor
from connectgroup.connector import Config, Connector, Task, TaskContext
from connectgroup.listener import WorkerRebalanceListener
from connectgroup.protocol.messages.heartbeat import HeartbeatResponse
from connectgroup.protocol.units import Units
from connectgroup.telemetry import spans as telemetry
from connectgroup.telemetry.capture import collect
from connectgroup.testing import Spans, StartGroup, seeds
from connectgroup.testing.spans import ROOTS
from connectgroup.wire.apis import HEARTBEAT, decode_response, encode_response

SECRET = "canary-5f2b91"
ARCHITECTURE = Path(telemetry.__file__).parents[1] / "ARCHITECTURE.md"


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

    class Slow(WorkerRebalanceListener):
        def on_revoked(self, units: Units, epoch: int) -> None:
            time.sleep(5)

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


def test_failed_computation_is_marked(worker_group: StartGroup, spans: Spans) -> None:
    class Fails(BalancedAssignor):
        def assign(self, group: ConnectGroup) -> ConnectAssignment:
            raise ValueError(SECRET)

    group = worker_group(1, connectors={"numbers": 1}, assignors=[Fails])
    group.wait_until_stable()
    failed = [node for root in spans.rebalances() for node in root.find("compute > assign") if node.span.error]
    assert {node.span.error for node in failed} == {"PluginError"}
    spans.assert_never_mentions(SECRET)


@seeds(5)
def test_every_span_has_a_parent_or_is_a_documented_root(worker_group: StartGroup, spans: Spans) -> None:
    """With lost and repeated messages, slow stops and new coordinators: some 200 rebalances over all seeds."""
    group = worker_group(3, connectors={"numbers": 4})
    for number in range(50):
        match group.random.choice(["kill", "add", "connector", "coordinator", "partition"]):
            case "kill" if len(group.workers) > 2:
                group.kill(group.random.choice(group.workers))
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
        group.advance(group.random.uniform(0, 15))
    group.close()
    assert len(spans.rebalances()) >= 36
    spans.assert_no_orphans()
    assert {root.name for root in spans.roots()} <= ROOTS


class Secretive(Connector):
    """A connector with secrets in its configuration and in its errors."""

    def task_configs(self, limit: int) -> Sequence[Config]:
        return [{"password": SECRET} for _ in range(limit)]

    def task(self, config: Config, context: TaskContext) -> Task:
        raise RuntimeError(f"cannot log in with {SECRET}")


def test_spans_never_contain_configurations_or_error_texts(worker_group: StartGroup, spans: Spans) -> None:
    class Listener(WorkerRebalanceListener):
        def on_assigned(self, units: Units, epoch: int) -> None:
            raise RuntimeError(SECRET)

    secretive = {"connector.class": Secretive, "tasks.max": 2, "password": SECRET, "url": f"db://me:{SECRET}@host"}
    group = worker_group(2, connectors={"vault": secretive}, listeners=[Listener])
    group.advance(5)
    group.kill("worker-1")
    group.advance(20)
    group.stop("worker-2")
    assert len(spans.rebalances()) >= 2
    spans.assert_never_mentions(SECRET)


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
        assert collector.finished() == []
        group.add_worker()
        group.wait_until_stable()
        assert {"rebalance", "compute", "install", "revoke", "assign"} <= {span.name for span in collector.finished()}


def test_embedders_provider_is_used_and_restored() -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    assert telemetry.use_tracer_provider(provider) is None
    try:
        with telemetry.span("outer"):
            context = telemetry.current_traceparent()
        assert re.fullmatch("00-[0-9a-f]{32}-[0-9a-f]{16}-0[0-9a-f]", context)
    finally:
        assert telemetry.use_tracer_provider(None) is provider


def test_architecture_lists_every_attribute(worker_group: StartGroup, spans: Spans) -> None:
    group = worker_group(2, connectors={"numbers": 3})
    group.wait_until_stable()
    group.stop("worker-1")
    group.wait_until_stable()
    group.restart("coordinator")
    group.restart("worker-2")
    group.wait_until_stable()
    text = ARCHITECTURE.read_text(encoding="utf-8").partition("## Traces")[2].partition("\n## ")[0]
    for span in spans.finished():
        assert f"`{span.name}`" in text
        for name in span.attributes:
            assert f"`{name}`" in text, name
