"""The fixture ``spans``: the spans as trees, with assertions that read well.

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
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from ..errors import ConfigError
from ..telemetry.capture import CapturedSpan
from ..telemetry.spans import CAUSES, EPOCH, GROUP, MEMBER, NAMES

ROOTS: Final = frozenset({"rebalance", "load", "leave", "lose", "lapse", "fail", "batch"})
"""The spans that may be roots: a rebalance, or its rest at a new coordinator; a worker that leaves, loses its lease, is
rejected; a batch of a task."""

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

    def _lines(self, indent: str) -> Iterator[str]:
        said = [self.name, self.worker, f"epoch {self.epoch}" if EPOCH in self.attributes else "", *self.causes]
        error = f"FAILED: {self.span.error}" if self.span.error else ""
        texts = (*said, error, "" if self.is_ended else "not ended")
        yield indent + " | ".join(text for text in texts if text)
        for child in self.children:
            yield from child._lines(indent + "  ")


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


class Spans:
    """The value of the fixture ``spans``. Each method reads the spans that have started so far.

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
        """The rebalances that have ended, oldest first; spans of their workers may not have ended."""
        ended = [node for node in self.roots("rebalance") if node.is_ended]
        return _Rebalances(node for node in ended if group in (None, node.attributes[GROUP]))

    def assert_no_orphans(self) -> None:
        """Assert that every span has a recorded parent or is one of ``ROOTS``."""
        orphans = [root for root in self.roots() if root.span.parent_id or root.name not in ROOTS]
        assert not orphans, "spans without a parent:\n" + "\n".join(map(str, orphans))

    def assert_never_mentions(self, *secrets: str) -> None:
        """Assert that no name, attribute, event or resource of any span contains one of these texts."""
        for span in self.started():
            for secret in secrets:
                assert secret not in span.text, f"span {span.name} contains a secret"

    def __str__(self) -> str:
        return UNSEEN if self._all_groups_are_real() else "\n".join(map(str, self.roots()))
