"""Tracing spans of workers and coordinators.

One trace per rebalance: the coordinator's span ``rebalance`` is the root; its trace context travels to the workers in
each heartbeat response (``traceparent``, W3C trace context), so that their spans are its children. docs/testing.md,
"All spans", lists all spans and attributes.

Unless the embedding program configures an SDK, no span is created.
"""

from __future__ import annotations

import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import Link, Span, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

Value = str | int | float | bool | Sequence[str]
T = TypeVar("T")

SYSTEM: Final = "messaging.system"
OPERATION: Final = "messaging.operation.name"
GROUP: Final = "messaging.consumer.group.name"
MEMBER: Final = "messaging.client.id"
ERROR: Final = "error.type"
EPOCH: Final = "connectgroup.group.epoch"
MEMBER_EPOCH: Final = "connectgroup.member.epoch"
UNITS: Final = "connectgroup.units"
ASSIGNOR: Final = "connectgroup.assignor"
CAUSES: Final = "connectgroup.rebalance.causes"
MOVED: Final = "connectgroup.rebalance.moved"
STARTED: Final = "connectgroup.rebalance.started"
HANDOVER: Final = "connectgroup.rebalance.max_handover_ms"
COMPUTED_BY: Final = "connectgroup.rebalance.computed_by"
UNIT: Final = "connectgroup.unit"
OWNER_EPOCH: Final = "connectgroup.owner.epoch"
BATCH_ROWS: Final = "messaging.batch.message_count"
BATCH_READ: Final = "connectgroup.batch.read"
BATCH_DEAD: Final = "connectgroup.batch.dead_letters"
BATCH_COMMIT: Final = "connectgroup.batch.commit_ms"
OVERTAKEN_BY: Final = "connectgroup.rebalance.overtaken_by"

NAMES: Final = (
    *("rebalance", "compute", "prepare", "assign", "install", "revoke", "acknowledge", "on_assignment", "start"),
    *("lose", "lapse", "fail", "load", "leave", "batch"),
)
"""The names of all spans, without ``connectgroup.``."""

_propagator = TraceContextTextMapPropagator()
_own: TracerProvider | None = None
_cached: tuple[object, trace.Tracer] | None = None


def use_tracer_provider(provider: TracerProvider | None) -> TracerProvider | None:
    """Create the spans of this library with this provider; ``None``: with OpenTelemetry's global one, the default.

    Returns:
        The previous value.
    """
    global _own
    before, _own = _own, provider
    return before


def is_tracing() -> bool:
    """Whether spans are recorded: the program has configured an SDK."""
    provider = _own or trace.get_tracer_provider()
    return not isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider)


def _tracer() -> trace.Tracer:
    global _cached
    provider = _own or trace.get_tracer_provider()
    if _cached is None or _cached[0] is not provider:
        _cached = provider, provider.get_tracer("connectgroup")
    return _cached[1]


@contextmanager
def span(name: str, attributes: Mapping[str, Value] | None = None, *, parent: str = "") -> Iterator[None]:
    """Run a block as a span named ``connectgroup.<name>``; an exception marks the span as failed and propagates.

    Args:
        attributes: short values; never a configuration, which may contain secrets.
        parent: trace context of the parent (``traceparent``); empty: the current span.
    """
    if not is_tracing():
        yield
        return
    described = {SYSTEM: "connectgroup", OPERATION: name, **(attributes or {})}
    # The exception itself is not recorded: its text may contain a setting's value.
    with _tracer().start_as_current_span(
        f"connectgroup.{name}",
        context=_context(parent),
        attributes=described,
        record_exception=False,
        set_status_on_exception=False,
    ) as current:
        try:
            yield
        except BaseException as error:
            _fail(current, type(error).__name__)
            raise


async def in_span(name: str, work: Coroutine[Any, Any, T], attributes: Mapping[str, Value]) -> T:
    """Await the coroutine in a ``span``."""
    with span(name, attributes):
        return await work


@contextmanager
def continued(traceparent: str) -> Iterator[None]:
    """Run a block as part of another process's trace: spans of the block are children of this context, if any."""
    if not traceparent or not is_tracing():
        yield
        return
    token = attach(_propagator.extract({"traceparent": traceparent}))
    try:
        yield
    finally:
        detach(token)


def record(name: str, attributes: Mapping[str, Value], *, duration_s: float, failure: str = "") -> None:
    """Record a span without a parent that ends now; from any thread.

    Args:
        failure: the type of the error; empty if there was none.
    """
    if is_tracing():
        ended_ns = time.time_ns()
        current = _start_root(name, attributes, started_ns=ended_ns - int(duration_s * 1e9))
        if failure:
            _fail(current, failure)
        current.end(ended_ns)


def mark_failed(error_type: str) -> None:
    """Mark the current span as failed, for an error that is reported by other means than an exception."""
    _fail(trace.get_current_span(), error_type)


def current_traceparent() -> str:
    """The trace context of the current span for the wire; empty if there is none."""
    return _traceparent(trace.get_current_span()) if is_tracing() else ""


def _fail(current: Span, error_type: str) -> None:
    current.set_attribute(ERROR, error_type)
    current.set_status(Status(StatusCode.ERROR, error_type))


def _context(parent: str) -> Context | None:
    return _propagator.extract({"traceparent": parent}) if parent else None


def _traceparent(current: Span) -> str:
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, trace.set_span_in_context(current))
    return carrier.get("traceparent", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalanceState:
    """A rebalance, as a record of the group's log has it.

    Attributes:
        started_ms: wall clock of the first cause; identifies the rebalance while its epoch grows.
        results: the attributes of its end; ``None`` while it is in progress.
    """

    epoch: int
    causes: tuple[str, ...]
    started_ms: int
    results: Mapping[str, Value] | None = None


class RebalanceSpans:
    """The spans ``rebalance`` of one coordinator: one at a time for each group."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[RebalanceState, Span]] = {}
        self._traceparents: dict[str, str] = {}

    def update(self, group_id: str, state: RebalanceState) -> None:
        """A rebalance has begun, has a further cause, or has ended."""
        before = self._open.get(group_id)
        if before is not None and _continues(before[0], state):
            current = before[1]
            current.set_attributes({EPOCH: state.epoch, CAUSES: state.causes})
        else:
            current = self._begin(group_id, state, before)
        self._open[group_id] = state, current
        if state.results is not None:
            current.set_attributes(dict(state.results))
            current.end()
            del self._open[group_id]

    def _begin(self, group_id: str, state: RebalanceState, before: tuple[RebalanceState, Span] | None) -> Span:
        links = []
        if before is not None:
            overtaken = before[1]
            overtaken.set_attribute(OVERTAKEN_BY, state.epoch)
            overtaken.end()
            links = [Link(overtaken.get_span_context())]
        attributes: dict[str, Value] = {GROUP: group_id, EPOCH: state.epoch, CAUSES: state.causes}
        current = _start_root("rebalance", attributes, links)
        self._traceparents[group_id] = _traceparent(current)
        return current

    def traceparent(self, group_id: str) -> str:
        """The trace context of the group's latest rebalance.

        If an earlier coordinator has traced it: of a span ``load``, the root of what is left to do for it.
        """
        traceparent = self._traceparents.get(group_id)
        if traceparent is None:
            traceparent = ""
            if is_tracing():
                traceparent = _traceparent(root := _start_root("load", {GROUP: group_id}))
                root.end()
            # Also without an SDK, so that it is looked for once and not in every heartbeat: that costs 1.5 % of it.
            self._traceparents[group_id] = traceparent
        return traceparent

    def forget(self, group_id: str) -> None:
        """A group was deleted: end its span."""
        self._traceparents.pop(group_id, None)
        if group_id in self._open:
            self._open.pop(group_id)[1].end()

    def close(self) -> None:
        """End all spans: the coordinator stops serving."""
        for _, current in self._open.values():
            _fail(current, "coordinator stopped")
            current.end()
        self._open.clear()


def _start_root(
    name: str, attributes: Mapping[str, Value], links: Sequence[Link] = (), *, started_ns: int | None = None
) -> Span:
    """Start a span without a parent, whatever the coordinator is embedded in: the causes come from other processes."""
    described = {SYSTEM: "connectgroup", OPERATION: name, **attributes}
    return _tracer().start_span(
        f"connectgroup.{name}", context=Context(), links=links, attributes=described, start_time=started_ns
    )


def _continues(before: RebalanceState, state: RebalanceState) -> bool:
    """Whether both are the same rebalance. Causes that arrive before a target assignment is installed are added."""
    return state.started_ms == before.started_ms and state.causes[: len(before.causes)] == before.causes
