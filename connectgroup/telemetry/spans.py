"""Spans of what a worker and a coordinator do; the only module that imports OpenTelemetry.

Without an SDK configured by the embedding program, everything here does next to nothing.
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
    """One piece of work as a span named ``connectgroup.<name>``; an exception marks it failed and goes on its way.

    Args:
        attributes: short facts; never a configuration, which may hold secrets.
    """
    with _tracer.start_as_current_span(f"connectgroup.{name}", kind=kind, attributes=dict(attributes or {})) as current:
        try:
            yield current
        except BaseException as error:
            current.set_status(Status(StatusCode.ERROR, type(error).__name__))
            raise
