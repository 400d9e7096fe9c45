"""The model as one more invariant of a simulated cluster.

The decisions of every coordinator equal those of the model, every durable group is one that was decided, and every
replayed group is one that is durable. A difference is a violation like any other: it has its history, and is shrunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, cast

from connectgroup.group.connect import group_type
from connectgroup.group.connect.group_type import GroupInput
from connectgroup.group.connect.state import ConnectGroupState
from connectgroup.group.kernel.outcome import Outcome
from connectgroup.protocol.messages.api import Response
from tests.simulation import cluster
from tests.simulation.invariants.base import Batch, Invariant

from .replay import Replay

if TYPE_CHECKING:
    from tests.simulation.base import CoordinatorNode
    from tests.simulation.invariants.watch import Watch


class DecidedAsTheModelDecides(Invariant):
    """Each decision of each coordinator equals the model's, and so does the durable group.

    Attributes:
        newest: that of the running cluster: one runs at a time.
        rules: the product's ``step``.
    """

    ids = "M1"
    newest: ClassVar[DecidedAsTheModelDecides]
    rules: ClassVar[Any] = None

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self.replay = Replay(type(self).rules)
        type(self).newest = self

    def on_step(
        self, group: ConnectGroupState, what: GroupInput, outcome: Outcome[Response | None], now_ms: int
    ) -> None:
        self._tell()

    def on_loaded(self, peer: CoordinatorNode) -> None:
        self._tell()

    def on_batch(self, batch: Batch) -> None:
        self.replay.on_durable(self.durable)
        self._tell()

    def _tell(self) -> None:
        for finding in self.replay.findings:
            self.broken(f"{finding}\n  (reproduce with: python -m tests.model)")
        self.replay.findings.clear()


@contextmanager
def replaced(place: Any, name: str, other: Any) -> Iterator[None]:
    """Replaces ``place.name`` by ``other`` temporarily."""
    kept = getattr(place, name)
    setattr(place, name, other)
    try:
        yield
    finally:
        setattr(place, name, kept)


@contextmanager
def with_model() -> Iterator[None]:
    """Compares every coordinator of every simulated cluster with the model."""
    kind, playing, serving = DecidedAsTheModelDecides, cast(Any, cluster), cast(Any, group_type)

    def step(*arguments: Any, **options: Any) -> Any:
        return kind.newest.replay.step(*arguments, **options)

    def on_load(*arguments: Any) -> Any:
        return kind.newest.replay.on_load(*arguments)

    with (
        replaced(kind, "rules", serving.step),
        replaced(playing, "ALL", (kind, *playing.ALL)),
        replaced(serving, "step", step),
        replaced(serving, "on_load", on_load),
    ):
        yield
