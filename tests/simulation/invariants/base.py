"""What an invariant is: one promise, as a small class that overrides the hooks of the events it needs.

Most look at ``cluster.durable``, the group as the records that are safe on the disk have made it: it is built by
``Watch``, record by record, and owes nothing to the coordinators' own memory.

A *grant* is ``(unit, owner epoch)``; it is *void* once a record has taken its member out, or has it join anew: what a
worker does under a void grant is the sink's to refuse (X1), not the group's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from connectgroup.assign.api import ConnectAssignment, ConnectGroup
from connectgroup.group.connect.handle import GroupInput
from connectgroup.group.connect.state import Group
from connectgroup.group.kernel.current import Current
from connectgroup.group.kernel.outcome import Outcome
from connectgroup.protocol.messages.api import Request, Response
from connectgroup.protocol.messages.common import units_of
from connectgroup.protocol.records.connect import CurrentRecord, DelayRecord, Record
from connectgroup.protocol.units import Unit, Units

if TYPE_CHECKING:
    from ..cluster import Cluster, CoordinatorNode, WorkerNode
    from ..sink import Owner
    from .watch import Watch

Grant = tuple[Unit, int]

COMPUTE, STALE_GROUP, STALE_MEMBER, FENCED, UNKNOWN_MEMBER = 20480, 20482, 113, 110, 25
INVALID_ASSIGNMENT = 20481


@dataclass(frozen=True, slots=True)
class Violation:
    """What did not hold, when, and what went before it."""

    seed: int
    invariant: str
    what: str
    at_s: float
    story: tuple[str, ...]


@dataclass(slots=True)
class Batch:
    """A batch that is safe on the disk, and what the group was before it.

    Attributes:
        writer: the coordinator epoch under which it was written.
        joined: members it takes in; ``left``: members it takes out.
        target: whether it has a share of a target, or the end of one.
        connectors: whether it changes a connector; ``delays``: whether it begins or ends one.
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
        record: ``None`` where it is taken away altogether.
        gained: grants it did not have before.
        gone: grants it no more has, neither assigned nor pending.
        anew: whether the member says that it runs nothing: all it had is void.
    """

    member_id: str
    before: Current
    record: CurrentRecord | None
    assigned: Mapping[Unit, int]
    pending: Mapping[Unit, int]
    gained: Mapping[Unit, int]
    gone: frozenset[Grant]
    anew: bool


@dataclass(slots=True)
class Answer:
    """An answer that leaves a coordinator.

    Attributes:
        code: its error code, 0 where it has none.
        at_s: when its request came in.
        copy: whether the request was a copy that the network made.
        newest: whether the coordinator still has the log.
    """

    peer: CoordinatorNode
    request: Request
    response: Any
    code: int
    at_s: float
    copy: bool
    newest: bool


def waiting(group: Group, delay: DelayRecord) -> set[Unit]:
    """What of a delay still waits: not what is gone, nor what was made anew or reconfigured since."""
    epoch, runnable = delay.epoch, group.runnable
    return {unit for unit in units_of(delay.units) if runnable.get(unit, epoch + 1) <= epoch}


class Invariant:
    """One promise.

    Attributes:
        ids: its names in the list of reliability.
        records: the classes of record that ``on_record`` is called with; empty: all of them.
        durable: the group that the disk has.
    """

    ids: ClassVar[str] = ""
    records: ClassVar[tuple[type[Record], ...]] = ()

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.cluster: Cluster = watch.cluster
        self.durable: Group = watch.cluster.durable

    def broken(self, what: str) -> None:
        """It does not hold."""
        self.cluster.violated(f"{self.ids} {type(self).__name__}", what)

    # ---- the disk

    def on_record(self, record: Record, batch: Batch) -> None:
        """A record is safe, and not yet taken in."""

    def on_change(self, change: Change) -> None:
        """A current assignment is safe, and not yet taken in."""

    def on_settled(self, member_id: str, current: Current) -> None:
        """A current assignment has been taken in."""

    def on_batch(self, batch: Batch) -> None:
        """A whole batch has been taken in."""

    # ---- coordinators

    def on_turn(self, peer: CoordinatorNode) -> None:
        """A coordinator has ended a turn."""

    def on_loaded(self, peer: CoordinatorNode) -> None:
        """A coordinator is about to serve."""

    def on_step(self, group: Group, what: GroupInput, outcome: Outcome[Response | None], now_ms: int) -> None:
        """The rules have decided one request or timer; the group is changed already."""

    def on_rule_failed(self, what: GroupInput, error: Exception) -> None:
        """The rules have raised something that is no refusal."""

    def on_answer(self, answer: Answer) -> None:
        """An answer leaves."""

    def on_question(self, group: ConnectGroup, answer: ConnectAssignment) -> None:
        """The shipped assignor has answered."""

    # ---- workers

    def on_request(self, node: WorkerNode, request: Request) -> None:
        """A worker sends a request."""

    def on_started(self, node: WorkerNode, unit: Unit, epoch: int) -> None:
        """A task begins to run."""

    def on_stopped(self, node: WorkerNode, unit: Unit, epoch: int) -> None:
        """A task has ended."""

    def on_listener(self, node: WorkerNode, event: str, units: Units, what: str) -> None:
        """A listener's callback ``begins``, ``ends`` or ``raises``."""

    def on_ended(self, node: WorkerNode) -> None:
        """A worker's ``run`` has returned."""

    # ---- the sink

    def on_claimed(self, owner: Owner, positions: Mapping[int, int]) -> None:
        """A task has claimed its slices."""

    def on_written(self, owner: Owner, ranges: Mapping[int, tuple[int, int]], added: bool) -> None:
        """A batch was let in; not ``added`` where it was in already."""

    # ---- time

    def on_tick(self) -> None:
        """A simulated second has gone by."""

    def on_quiet(self) -> None:
        """There will be no more faults."""

    def on_rest(self) -> None:
        """Everything is as it should be, and stays so from now on."""

    def on_over(self) -> None:
        """The run ends, having been at rest for a while."""
