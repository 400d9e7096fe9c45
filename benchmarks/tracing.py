"""CPU time of a heartbeat: without the tracing calls, with them but no OpenTelemetry SDK, with SDK and batch exporter.

The shipped worker and coordinator in virtual time, with the encoding of each request and response. Nothing else runs:
no sockets, no system calls, no rebalances. So the share of tracing is higher here than in production.

    python -m benchmarks.tracing [--rounds 40] [--seconds 300]

The three kinds of run alternate. The table has the median and the lowest CPU time per heartbeat, and the median of the
ratios to the run without tracing calls of the same round.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from unittest import mock

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from connectgroup.coordinator.metrics import RebalanceTraces
from connectgroup.coordinator.runtime import Coordinator
from connectgroup.group.connect.settings import GroupSettings
from connectgroup.log.memory import MemoryLog
from connectgroup.member.settings import MemberSettings
from connectgroup.plugins import load_assignor
from connectgroup.protocol.messages.api import Request, Response
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest
from connectgroup.protocol.units import Units
from connectgroup.telemetry.spans import use_tracer_provider
from connectgroup.testing.virtual_time import VirtualLoop
from connectgroup.transport.local import LocalClient
from connectgroup.wire.apis import HEARTBEAT, decode_request, decode_response, encode_request, encode_response
from connectgroup.worker import heartbeat
from connectgroup.worker.loop import Worker
from connectgroup.worker.settings import Connections

GOALS = {"no SDK": 1.01, "SDK, batch exporter": 1.10}
"""Maximum ratio to a heartbeat without tracing calls."""

WORKERS = 5


class NullExporter(SpanExporter):
    """Discards the spans."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


class EncodingClient(LocalClient):
    """Encodes and decodes each heartbeat as both ends of a connection do."""

    calls = 0

    async def call(self, request: Request, *, timeout_s: float) -> Response:
        if not isinstance(request, HeartbeatRequest):
            return await super().call(request, timeout_s=timeout_s)
        EncodingClient.calls += 1
        sent = encode_request(request, version=0, correlation_id=1, client_id="worker")
        response = await super().call(decode_request(sent).request, timeout_s=timeout_s)
        received = encode_response(response, api_key=HEARTBEAT, version=0, correlation_id=1)
        return decode_response(received, api_key=HEARTBEAT, version=0)[1]


class NoTasks:
    """A runner without tasks."""

    async def start(self, grants: object) -> None:
        """See ``Runner.start``."""

    async def stop(self, units: Units) -> None:
        """See ``Runner.stop``."""


class Group:
    """A coordinator and workers, in virtual time."""

    def __init__(self) -> None:
        self._loop = VirtualLoop()
        self._coordinator = Coordinator(MemoryLog(), GroupSettings())
        self._loop.run_until_complete(self._coordinator.start())
        self._workers = [self._worker(f"worker-{number}") for number in range(WORKERS)]
        self._tasks = [self._loop.create_task(worker.run()) for worker in self._workers]

    def _worker(self, name: str) -> Worker:
        return Worker(
            MemberSettings(group_id="g", member_id=name),
            Connections(heartbeats=self._client(name), control=self._client(name)),
            assignors=[load_assignor("balanced")],
            runner=NoTasks(),
        )

    def _client(self, name: str) -> EncodingClient:
        return EncodingClient(self._coordinator, client_id=name)

    def cpu_per_heartbeat(self, seconds: float) -> float:
        """Run for some seconds of virtual time; the CPU microseconds per heartbeat."""
        before, began = EncodingClient.calls, time.process_time()
        self._loop.run_until_complete(asyncio.sleep(seconds))
        return (time.process_time() - began) * 1e6 / (EncodingClient.calls - before)

    def close(self) -> None:
        """Stop the workers and the coordinator."""
        for worker in self._workers:
            worker.stop(for_good=True)
        self._loop.run_until_complete(asyncio.gather(*self._tasks))
        self._loop.run_until_complete(self._coordinator.close())
        self._loop.close()


@contextmanager
def without_calls() -> Iterator[None]:
    """Replace the tracing calls of a heartbeat by nothing."""

    def no_traceparent(traces: RebalanceTraces, request: object, response: object) -> str:
        return ""

    def no_span(traceparent: str) -> AbstractContextManager[None]:
        return nullcontext()

    def no_update(traces: RebalanceTraces, records: object) -> None: ...

    with (
        mock.patch.object(RebalanceTraces, "on_durable", no_update),
        mock.patch.object(RebalanceTraces, "traceparent", no_traceparent),
        mock.patch.object(heartbeat, "continued", no_span),
    ):
        yield


@contextmanager
def with_sdk() -> Iterator[None]:
    """Record spans, and export them in batches to nowhere."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(NullExporter()))
    before = use_tracer_provider(provider)
    try:
        yield
    finally:
        use_tracer_provider(before)
        provider.shutdown()


KINDS: Mapping[str, Callable[[], AbstractContextManager[None]]] = {
    "no tracing calls": without_calls,
    "no SDK": nullcontext,
    "SDK, batch exporter": with_sdk,
}


def measure(rounds: int, seconds: float) -> dict[str, list[float]]:
    """The CPU microseconds per heartbeat of each kind, in each round."""
    groups: dict[str, Group] = {}
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    names = list(KINDS)
    try:
        for number in range(-1, rounds):  # the first round warms up
            for kind in names if number % 2 else reversed(names):
                with KINDS[kind]():
                    if kind not in groups:
                        groups[kind] = Group()
                        groups[kind].cpu_per_heartbeat(60)
                    gc.collect()
                    took = groups[kind].cpu_per_heartbeat(seconds)
                if number >= 0:
                    found[kind].append(took)
    finally:
        for group in groups.values():
            group.close()
    return found


def table(found: Mapping[str, Sequence[float]]) -> list[str]:
    """The results as lines of Markdown."""
    base = next(iter(found.values()))
    lines = ["| heartbeat | median, CPU µs | lowest, CPU µs | ratio | goal |", "|---|---|---|---|---|"]
    for kind, each in found.items():
        ratio = statistics.median(one / other for one, other in zip(each, base, strict=True))
        goal = f"< {GOALS[kind]:.2f}" if kind in GOALS else ""
        lines.append(f"| {kind} | {statistics.median(each):.1f} | {min(each):.1f} | {ratio:.3f} | {goal} |")
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=300.0, help="virtual seconds of a run")
    options = parser.parse_args(arguments)
    print("\n".join(table(measure(options.rounds, options.seconds))))


if __name__ == "__main__":
    main()
