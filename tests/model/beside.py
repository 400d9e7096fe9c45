"""The model beside every coordinator of a simulated cluster, as one more invariant.

What the rules decide is what the model decides, what is safe on the disk is what the model had decided, and what is
read from it again is what is safe. A difference is a violation like any other: it has its story, and is made smaller.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, cast

from connectgroup.group.connect import group_type
from connectgroup.group.connect.handle import GroupInput
from connectgroup.group.connect.state import Group
from connectgroup.group.kernel.outcome import Outcome
from connectgroup.protocol.messages.api import Response
from tests.simulation import cluster
from tests.simulation.invariants.base import Batch, Invariant

from .replay import Replay

if TYPE_CHECKING:
    from tests.simulation.cluster import CoordinatorNode
    from tests.simulation.invariants.watch import Watch


class DecidedAsTheModelDecides(Invariant):
    """Each decision of each coordinator is the model's, and so is what becomes of it.

    Attributes:
        newest: that of the cluster which is at work: one is played at a time.
        rules: what a coordinator would ask.
    """

    ids = "M1"
    newest: ClassVar[DecidedAsTheModelDecides]
    rules: ClassVar[Any] = None

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self.replay = Replay(type(self).rules)
        type(self).newest = self

    def on_step(self, group: Group, what: GroupInput, outcome: Outcome[Response | None], now_ms: int) -> None:
        self._tell()

    def on_loaded(self, peer: CoordinatorNode) -> None:
        self._tell()

    def on_batch(self, batch: Batch) -> None:
        self.replay.on_durable(self.durable)
        self._tell()

    def _tell(self) -> None:
        for finding in self.replay.findings:
            self.broken(f"{finding}\n  (with the model beside it: python -m tests.model)")
        self.replay.findings.clear()


@contextmanager
def instead(place: Any, name: str, other: Any) -> Iterator[None]:
    """``place.name`` is ``other`` meanwhile."""
    kept = getattr(place, name)
    setattr(place, name, other)
    try:
        yield
    finally:
        setattr(place, name, kept)


@contextmanager
def beside() -> Iterator[None]:
    """Meanwhile every simulated cluster has the model beside its coordinators."""
    kind, playing, serving = DecidedAsTheModelDecides, cast(Any, cluster), cast(Any, group_type)

    def step(*given: Any, **named: Any) -> Any:
        return kind.newest.replay.step(*given, **named)

    def on_load(*given: Any) -> Any:
        return kind.newest.replay.on_load(*given)

    with (
        instead(kind, "rules", serving.step),
        instead(playing, "ALL", (kind, *playing.ALL)),
        instead(serving, "step", step),
        instead(serving, "on_load", on_load),
    ):
        yield
