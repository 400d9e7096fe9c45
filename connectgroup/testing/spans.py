"""The fixture ``spans``: the spans as trees, with assertions that read well. Requires ``opentelemetry-sdk``.

def test_rebalance_is_traced(worker_group, spans):
    group = worker_group(workers=2, connectors={"numbers": 4})
    group.wait_until_stable()
    rebalance = spans.rebalances()[-1]
    rebalance.assert_has("compute > install")
    rebalance.assert_has("assign > start", worker="worker-2")
    spans.assert_no_orphans()
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from ..errors import ConfigError
from ..telemetry.spans import CAUSES, EPOCH, GROUP, MEMBER, NAMES, use_tracer_provider

ROOTS: Final = frozenset({"rebalance", "load", "leave", "lose", "lapse", "fail", "batch"})
"""The spans that may be roots: a rebalance, or its rest at a new coordinator; a worker that leaves, loses its lease, is
rejected; a batch of a task."""

OVERTAKEN: Final = frozenset({"UnknownMemberId", "StaleGroupEpoch", "FencedMemberEpoch", "StaleMemberEpoch"})
"""Errors of ``prepare`` and ``install``: the group has changed, or has chosen another member. Another computation
follows."""

UNSEEN: Final = (
    "spans: a group with real=True runs in processes of its own, whose spans this fixture cannot read; use spans in "
    "tests without real=True"
)


class SpanNode:
    """A span and its children."""

    def __init__(self, span: CapturedSpan) -> None:
        self.span = span
        self.children: list[SpanNode] = []

    @property
    def name(self) -> str:
        """The span's name without ``connectgroup.``."""
        return self.span.name

    @property
    def worker(self) -> str:
        """The worker that the span belongs to; empty for the coordinator's."""
        return str(self.span.attributes.get(MEMBER, ""))

    @property
    def epoch(self) -> int:
        """The group epoch of a rebalance."""
        return int(self.span.attributes[EPOCH])

    @property
    def causes(self) -> tuple[str, ...]:
        """The causes of a rebalance."""
        return tuple(self.span.attributes.get(CAUSES, ()))

    @property
    def attributes(self) -> Mapping[str, Any]:
        """All attributes."""
        return self.span.attributes

    @property
    def is_ended(self) -> bool:
        """Whether the span has ended. Spans of a killed worker or coordinator do not end before the group is closed."""
        return self.span.ended_ns is not None

    @property
    def duration_s(self) -> float:
        """Seconds of real time; up to now if the span has not ended."""
        ended_ns = time.time_ns() if self.span.ended_ns is None else self.span.ended_ns
        return (ended_ns - self.span.started_ns) / 1e9

    def walk(self) -> Iterator[SpanNode]:
        """This span and all spans below it, depth first."""
        yield self
        for child in self.children:
            yield from child.walk()

    def find(self, path: str, *, worker: str | None = None) -> list[SpanNode]:
        """The spans below this one at a path of names: ``"revoke"``, ``"compute > install"``.

        Raises:
            ConfigError: no span has such a name; so raise all methods that take a path or a name.
        """
        nodes = [self]
        for name in [_checked(word.strip()) for word in path.split(">")]:
            nodes = [child for node in nodes for child in node.children if child.name == name]
        return [node for node in nodes if worker is None or node.worker == worker]

    def workers(self, path: str) -> set[str]:
        """The workers that have a span at this path."""
        return {node.worker for node in self.find(path)}

    def assert_has(self, path: str, *, worker: str | None = None) -> SpanNode:
        """Assert that there is a span at this path; returns the first one."""
        found = self.find(path, worker=worker)
        where = "" if worker is None else f" on {worker}"
        assert found, f"no span {self.name} > {path}{where}; the trace is\n{self}"
        return found[0]

    def assert_has_not(self, path: str, *, worker: str | None = None) -> None:
        """Assert that there is no span at this path."""
        where = "" if worker is None else f" on {worker}"
        assert not self.find(path, worker=worker), f"unexpected {self.name} > {path}{where}; the trace is\n{self}"

    def __str__(self) -> str:
        return "\n".join(self._lines(""))

    def __repr__(self) -> str:
        below = sum(1 for _ in self.walk()) - 1
        return f"<span {self._line()}{f' | {below} below' if below else ''}>"

    def _lines(self, indent: str) -> Iterator[str]:
        yield indent + self._line()
        for child in self.children:
            yield from child._lines(indent + "  ")

    def _line(self) -> str:
        said = [self.name, self.worker, f"epoch {self.epoch}" if EPOCH in self.attributes else "", *self.causes]
        error = f"FAILED: {self.span.error}" if self.span.error else ""
        texts = (*said, error, "" if self.is_ended else "not ended")
        return " | ".join(text for text in texts if text)


class _Rebalances(list[SpanNode]):
    """A list that explains an index that it does not have."""

    def __getitem__(self, index: Any) -> Any:
        try:
            return super().__getitem__(index)
        except IndexError:
            ended = f"{len(self)} rebalances have ended so far"
            raise AssertionError(
                f"spans: no rebalance {index}: {ended}; wait_until_stable waits for the last"
            ) from None


def _checked(name: str) -> str:
    if name not in NAMES:
        raise ConfigError("name of a span", name, ", ".join(NAMES))
    return name


def _caused_by_silence(lost: SpanNode, rebalances: Sequence[SpanNode]) -> SpanNode | None:
    """The rebalance in which the group removed a silent worker, after it last joined before it lost its units."""
    removal, joined = None, False
    for rebalance in rebalances:
        if rebalance.attributes[GROUP] != lost.attributes[GROUP]:
            continue
        for cause in rebalance.causes:
            if cause.startswith(f"{lost.worker} joined"):
                if rebalance.span.started_ns > lost.span.started_ns:
                    return removal
                removal, joined = None, True
            elif joined and removal is None and cause.startswith(f"{lost.worker} was silent"):
                removal = rebalance
    return removal


def _is_normal(failed: SpanNode) -> bool:
    is_overtaken = failed.name in ("prepare", "install") and failed.span.error in OVERTAKEN
    return is_overtaken or failed.span.error == "CancelledError"


class Spans:
    """The value of the fixture ``spans``; ``print(spans)`` shows all trees.

    Each method reads the spans that have started so far.

    A span that has not ended is part of its tree, so that a tree does not depend on the moment at which it is read: a
    group may be stable while a worker still waits for the response to its last request.

    In a test whose groups are all real processes, each method raises ``AssertionError``: spans of other processes are
    not recorded.
    """

    def __init__(
        self, started: Callable[[], list[CapturedSpan]], *, all_groups_are_real: Callable[[], bool] = lambda: False
    ) -> None:
        self._started, self._all_groups_are_real = started, all_groups_are_real

    def started(self) -> list[CapturedSpan]:
        """All spans, flat, in the order of their starts."""
        if self._all_groups_are_real():
            raise AssertionError(UNSEEN)
        return self._started()

    def finished(self) -> list[CapturedSpan]:
        """The spans that have ended, flat, in the order of their starts."""
        return [span for span in self.started() if span.ended_ns is not None]

    def roots(self, name: str | None = None) -> list[SpanNode]:
        """The trees, in the order of their starts. A span whose parent is not recorded counts as a root."""
        if name is not None:
            _checked(name)
        nodes = {span.span_id: SpanNode(span) for span in self.started()}
        roots = []
        for node in nodes.values():
            parent = nodes.get(node.span.parent_id)
            if parent is None:
                roots.append(node)
            else:
                parent.children.append(node)
        return [root for root in roots if name is None or root.name == name]

    def rebalances(self, group: str | None = None) -> list[SpanNode]:
        """The rebalances that have ended, oldest first; spans of their workers may not have ended.

        A worker whose lease expires stops its units before the coordinator notices that it is silent: its ``lose`` or
        ``lapse`` has no parent. It is in the tree of the rebalance that its silence caused, and in ``roots`` as well.
        """
        roots = self.roots()
        rebalances = [root for root in roots if root.name == "rebalance"]
        for lost in roots:
            if lost.name in ("lose", "lapse") and not lost.span.parent_id:
                caused = _caused_by_silence(lost, rebalances)
                if caused is not None:
                    caused.children = sorted([*caused.children, lost], key=lambda node: node.span.started_ns)
        ended = [node for node in rebalances if node.is_ended]
        return _Rebalances(node for node in ended if group in (None, node.attributes[GROUP]))

    def failures(self) -> list[SpanNode]:
        """The spans that failed (``error.type``), with the spans below them, in the order of their starts.

        Not those that belong to the normal course of a group: a ``prepare`` or ``install`` that a later change has
        overtaken, and what was cancelled because its worker stopped.
        """
        found = (node for root in self.roots() for node in root.walk() if node.span.error)
        return sorted((node for node in found if not _is_normal(node)), key=lambda node: node.span.started_ns)

    def assert_no_orphans(self) -> None:
        """Assert that every span has a recorded parent or is one of ``ROOTS``."""
        orphans = [root for root in self.roots() if root.span.parent_id or root.name not in ROOTS]
        assert not orphans, "spans without a parent:\n" + "\n".join(map(str, orphans))

    def assert_never_mentions(self, *secrets: str) -> None:
        """Assert that no name, attribute, event or resource of any span contains one of these texts."""
        for span in self.started():
            for secret in secrets:
                assert secret not in span.text, f"span {span.name} contains a secret"

    def __repr__(self) -> str:
        if self._all_groups_are_real():
            return f"<{UNSEEN}>"
        return f"<spans: {len(self.started())} started, {len(self.rebalances())} rebalances ended; print shows them>"

    def __str__(self) -> str:
        return UNSEEN if self._all_groups_are_real() else "\n".join(map(str, self.roots()))


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
