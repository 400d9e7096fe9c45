"""Collects the finished spans of this library in memory, as plain values; requires ``opentelemetry-sdk``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .spans import use_tracer_provider


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedSpan:
    """One finished span. Ids are hexadecimal; times are nanoseconds since 1970.

    Attributes:
        parent_id: empty for a root.
        error: the type of the error if the span failed; empty otherwise.
        links: the span ids that this span links to.
    """

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: Mapping[str, Any]
    started_ns: int
    ended_ns: int
    error: str = ""
    links: tuple[str, ...] = ()
    text: str = ""
    """Everything that an exporter would send, as text."""


class Collector:
    """The spans that have finished since ``collect`` began."""

    def __init__(self, exporter: Any) -> None:
        self._exporter = exporter

    def finished(self) -> list[FinishedSpan]:
        """All finished spans, in the order of their starts."""
        found = [_value(span) for span in self._exporter.get_finished_spans()]
        return sorted(found, key=lambda span: span.started_ns)


@contextmanager
def collect() -> Iterator[Collector]:
    """Collect the spans of this library; other libraries, and OpenTelemetry's global provider, are not affected."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    before = use_tracer_provider(provider)
    try:
        yield Collector(exporter)
    finally:
        use_tracer_provider(before)
        provider.shutdown()


def _value(span: Any) -> FinishedSpan:
    attributes = dict(span.attributes)
    return FinishedSpan(
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
