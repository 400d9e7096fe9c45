"""Collects the spans of this library in memory, as plain values; requires ``opentelemetry-sdk``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from .spans import use_tracer_provider


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedSpan:
    """One span, as it is when it is read. Ids are hexadecimal; times are nanoseconds since 1970.

    Attributes:
        parent_id: empty for a root.
        ended_ns: ``None`` if the span has not ended.
        error: the type of the error if the span failed; empty otherwise.
        links: the span ids that this span links to.
    """

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: Mapping[str, Any]
    started_ns: int
    ended_ns: int | None
    error: str = ""
    links: tuple[str, ...] = ()
    text: str = field(default="", repr=False)
    """Everything that an exporter would send, as text."""


class Collector:
    """The spans that have started since ``collect`` began; a span processor of OpenTelemetry's SDK."""

    def __init__(self) -> None:
        self._spans: list[Any] = []

    def started(self) -> list[CapturedSpan]:
        """All spans, in the order of their starts, also those that have not ended."""
        return sorted(map(_value, list(self._spans)), key=lambda span: span.started_ns)

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        """A span starts; called by the SDK, from any thread."""
        self._spans.append(span)

    def on_end(self, span: Any) -> None:
        """A span ends; the span that ``on_start`` was called with has the time."""

    def shutdown(self) -> None:
        """The provider is shut down; the spans can still be read."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing is buffered."""
        return True


@contextmanager
def collect() -> Iterator[Collector]:
    """Collect the spans of this library; other libraries, and OpenTelemetry's global provider, are not affected."""
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

    class Processor(Collector, SpanProcessor):
        """``Collector`` with the methods that later versions of the SDK call."""

    processor = Processor()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(processor)
    before = use_tracer_provider(provider)
    try:
        yield processor
    finally:
        use_tracer_provider(before)
        provider.shutdown()


def _value(span: Any) -> CapturedSpan:
    attributes = dict(span.attributes or {})
    return CapturedSpan(
        name=span.name.removeprefix("connectgroup."),
        trace_id=f"{span.context.trace_id:032x}",
        span_id=f"{span.context.span_id:016x}",
        parent_id=f"{span.parent.span_id:016x}" if span.parent is not None else "",
        attributes=attributes,
        started_ns=span.start_time,
        ended_ns=span.end_time,
        error="" if span.status.is_ok or span.status.is_unset else str(attributes.get("error.type", "error")),
        links=tuple(f"{link.context.span_id:016x}" for link in span.links),
        text=span.to_json(),
    )
