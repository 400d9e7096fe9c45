"""The base of the invariants: one invariant is a small class that overrides the hooks of the events it checks.

Most check ``cluster.durable``, the group as made by the durable records: ``Watch`` builds it record by record,
independently of the coordinators' memory.

A *grant* is ``(unit, owner epoch)``; it is *void* once a record has removed its member, or lets the member rejoin. What
a worker does under a void grant is fenced by the sink (X1), not by the group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from connectgroup.assign.api import ConnectAssignment, ConnectAssignorInput
from connectgroup.group.connect.group_type import GroupInput
from connectgroup.group.connect.state import ConnectGroupState
from connectgroup.group.kernel.outcome import Outcome
from connectgroup.group.kernel.reconcile import Current
from connectgroup.protocol.messages.api import Request, Response
from connectgroup.protocol.messages.common import units_of
from connectgroup.protocol.records.connect import CurrentRecord, DelayRecord, Record
from connectgroup.protocol.units import Unit, Units

if TYPE_CHECKING:
    from ..base import CoordinatorNode
    from ..cluster import Cluster, WorkerNode
    from ..sink import Owner
    from .watch import Watch

Grant = tuple[Unit, int]

COMPUTE, STALE_GROUP, STALE_MEMBER, FENCED, UNKNOWN_MEMBER = 20480, 20482, 113, 110, 25
INVALID_ASSIGNMENT = 20481


@dataclass(frozen=True, slots=True)
class Violation:
    """What did not hold, when, and the events before it."""

    seed: int
    invariant: str
    what: str
    at_s: float
    history: tuple[str, ...]


@dataclass(slots=True)
class Batch:
    """A durable batch, and the group before it.

    Attributes:
        writer: the coordinator epoch under which it was written.
        joined: members that the batch adds; ``left``: members that it removes.
        target: whether it holds part of a target assignment, or the end of one.
        connectors: whether it changes a connector; ``delays``: whether a delay begins or ends.
    """

    records: Sequence[Record]
    writer: int
    epoch_before: int
    joined: set[str] = field(default_factory=set)
    left: set[str] = field(default_factory=set)
    causes: int = 0
    target: bool = False
    delays: bool = False
    connectors: bool = False


@dataclass(slots=True)
class Change:
    """One member's current assignment is about to change.

    Attributes:
        record: ``None`` where the current assignment is deleted.
        gained: grants that the member did not have before.
        gone: grants that it no longer has, neither assigned nor pending revocation.
        anew: whether the member reports that it runs nothing: all its former grants are void.
    """

    member_id: str
    before: Current[Unit]
    record: CurrentRecord | None
    assigned: Mapping[Unit, int]
    pending: Mapping[Unit, int]
    gained: Mapping[Unit, int]
    gone: frozenset[Grant]
    anew: bool


@dataclass(slots=True)
class SentResponse:
    """A response that leaves a coordinator.

    Attributes:
        code: its error code, 0 where it has none.
        at_s: when its request arrived.
        copy: whether the request was a copy made by the network.
        newest: whether the coordinator still has the log.
    """

    peer: CoordinatorNode
    request: Request
    response: Any
    code: int
    at_s: float
    copy: bool
    newest: bool


def delayed_units(group: ConnectGroupState, delay: DelayRecord) -> set[Unit]:
    """The units of a delay that are still delayed: not those deleted, recreated or reconfigured since."""
    epoch, runnable = delay.epoch, group.runnable
    return {unit for unit in units_of(delay.units) if runnable.get(unit, epoch + 1) <= epoch}


class Invariant:
    """One invariant.

    Attributes:
        ids: its ids in the list of reliability.
        records: the record classes that ``on_record`` is called with; empty: all.
        durable: the group as made by the durable records.
    """

    ids: ClassVar[str] = ""
    records: ClassVar[tuple[type[Record], ...]] = ()

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.cluster: Cluster = watch.cluster
        self.durable: ConnectGroupState = watch.cluster.durable

    def broken(self, what: str) -> None:
        """Report that the invariant does not hold."""
        self.cluster.violated(f"{self.ids} {type(self).__name__}", what)

    # ---- the disk

    def on_record(self, record: Record, batch: Batch) -> None:
        """A record is durable, and not yet applied."""

    def on_change(self, change: Change) -> None:
        """A current assignment is durable, and not yet applied."""

    def on_settled(self, member_id: str, current: Current[Unit]) -> None:
        """A current assignment has been applied."""

    def on_batch(self, batch: Batch) -> None:
        """A whole batch has been applied."""

    # ---- coordinators

    def on_turn(self, peer: CoordinatorNode) -> None:
        """A coordinator has ended a turn."""

    def on_loaded(self, peer: CoordinatorNode) -> None:
        """A coordinator has loaded the group and is about to serve it."""

    def on_step(
        self, group: ConnectGroupState, what: GroupInput, outcome: Outcome[Response | None], now_ms: int
    ) -> None:
        """The rules have decided one request or timer; the group has already been changed."""

    def on_rule_failed(self, what: GroupInput, error: Exception) -> None:
        """The rules have raised an exception that is not a rejection."""

    def on_response_sent(self, sent: SentResponse) -> None:
        """A response is sent."""

    def on_assignor_result(self, group: ConnectAssignorInput, result: ConnectAssignment) -> None:
        """The shipped assignor has returned a result."""

    # ---- workers

    def on_request(self, node: WorkerNode, request: Request) -> None:
        """A worker sends a request."""

    def on_started(self, node: WorkerNode, unit: Unit, epoch: int) -> None:
        """A task starts."""

    def on_stopped(self, node: WorkerNode, unit: Unit, epoch: int) -> None:
        """A task has stopped."""

    def on_listener(self, node: WorkerNode, event: str, units: Units, what: str) -> None:
        """A listener's callback ``begins``, ``ends`` or ``raises``."""

    def on_ended(self, node: WorkerNode) -> None:
        """A worker's ``run`` has returned."""

    # ---- the sink

    def on_claimed(self, owner: Owner, positions: Mapping[int, int]) -> None:
        """A task has claimed its slices."""

    def on_written(self, owner: Owner, ranges: Mapping[int, tuple[int, int]], added: bool) -> None:
        """A batch was accepted; ``added`` is false if it was already committed."""

    # ---- time

    def on_tick(self) -> None:
        """A simulated second has passed."""

    def on_quiet(self) -> None:
        """All faults are over."""

    def on_rest(self) -> None:
        """The group has converged and must not change from now on."""

    def on_over(self) -> None:
        """The run ends, some time after it converged."""
