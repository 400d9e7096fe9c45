"""Tracing spans of workers and coordinators; the only module that imports OpenTelemetry.

Unless the embedding program configures an SDK, spans are no-ops with negligible cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

Value = str | int | float | bool

_tracer = trace.get_tracer("connectgroup")


@contextmanager
def span(
    name: str, attributes: Mapping[str, Value] | None = None, *, kind: SpanKind = SpanKind.INTERNAL
) -> Iterator[Span]:
    """Run a block as a span named ``connectgroup.<name>``; an exception marks the span as failed and propagates.

    Args:
        attributes: short values; never a configuration, which may contain secrets.
    """
    with _tracer.start_as_current_span(f"connectgroup.{name}", kind=kind, attributes=dict(attributes or {})) as current:
        try:
            yield current
        except BaseException as error:
            current.set_status(Status(StatusCode.ERROR, type(error).__name__))
            raise
