"""Calls, at every event, the invariants with a hook for it, and keeps the state that several of them need."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from connectgroup.assign.api import ConnectAssignment, ConnectAssignorInput
from connectgroup.errors import GroupError
from connectgroup.group.connect import group_type
from connectgroup.group.connect.group_type import GroupInput
from connectgroup.group.connect.state import ConnectGroupState
from connectgroup.group.kernel.reconcile import Current
from connectgroup.protocol.messages.api import Request
from connectgroup.protocol.messages.classic import GroupHeartbeatRequest, SyncGroupRequest
from connectgroup.protocol.messages.connectors import UpdateConnectorsRequest
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest
from connectgroup.protocol.records.base import Key, Kind, Tombstone
from connectgroup.protocol.records.connect import (
    ConnectorRecord,
    CurrentRecord,
    DelayRecord,
    MemberRecord,
    Record,
    TargetMemberRecord,
    TargetRecord,
    epochs_of,
)
from connectgroup.protocol.units import STATIC_LEAVE_EPOCH, Unit, Units

from ..loop import NODE, NOWHERE
from ..observe import see_record, see_response
from ..operator import is_version_conflict
from .base import Batch, Change, Grant, Invariant, SentResponse
from .calm import Calm
from .classic import ClassicResponses, as_heartbeat

if TYPE_CHECKING:
    from ..base import CoordinatorNode
    from ..cluster import Cluster, WorkerNode
    from ..sink import Owner


UNRELEASED_INSTANCE = 111

Found = TypeVar("Found", bound=Invariant)


class Watch:
    """All invariants, called at every event.

    Attributes:
        void: grants that no longer count, because their member was removed or has rejoined.
        calm: since when there has been no disturbance.
        happened: faults so far, each counted once per worker it may have touched.
        last_heartbeat: each worker's last heartbeat, and what it owned when the heartbeat was sent.
    """

    def __init__(self, cluster: Cluster, kinds: Sequence[type[Invariant]]) -> None:
        self.cluster = cluster
        self.void: set[Grant] = set()
        self.calm = Calm(cluster)
        self.happened = 0
        self.classic = ClassicResponses()
        self.last_heartbeat: dict[str, tuple[Request, dict[Unit, int]]] = {}
        self.invariants = [kind(self) for kind in kinds]
        self._record_hooks: dict[type[Record], list[Callable[[Record, Batch], None]]] = {}

    def __getattr__(self, hook: str) -> Any:
        """The invariants that override a hook, as bound methods; looked up once per hook."""
        if not hook.startswith("_on_"):
            raise AttributeError(hook)
        name = hook[1:]
        original = getattr(Invariant, name)
        found = [getattr(each, name) for each in self.invariants if getattr(type(each), name) is not original]
        setattr(self, hook, found)
        return found

    def _on_record_of(self, kind: type[Record]) -> list[Callable[[Record, Batch], None]]:
        """As above, for the invariants that check records of this class."""
        found = self._record_hooks.get(kind)
        if found is None:
            hooks = [hook for hook in self._on_record if not hook.__self__.records or kind in hook.__self__.records]
            found = self._record_hooks[kind] = hooks
        return found

    def the(self, kind: type[Found]) -> Found:
        """The invariant of that class."""
        return next(each for each in self.invariants if isinstance(each, kind))

    def nodes_of(self, member_id: str) -> list[WorkerNode]:
        """The live worker processes with that member id: one, unless a twin was started."""
        slot = slot_of(member_id)
        nodes = (self.cluster.workers.get(slot), self.cluster.twins.get(slot))
        return [node for node in nodes if node is not None and not node.dead and node.member_id == member_id]

    def newest_decides(self) -> bool:
        """Whether the coordinator that is deciding now still holds the log; other decisions have no effect."""
        node: Any = NODE.get()
        return node is not None and bool(node.log.epoch == self.cluster.disk.storage.epoch)

    # ---- the disk

    def on_durable(self, records: Sequence[Record], writer: int) -> None:
        """A batch is durable: apply it."""
        cluster, durable = self.cluster, self.cluster.durable
        batch = _batch(durable, records, writer)
        settled: list[str] = []
        for record in records:
            see_record(cluster, record, batch)
            for look in self._on_record_of(type(record)):
                look(record, batch)
            change = self._change(durable, record) if isinstance(record, CurrentRecord | Tombstone) else None
            if change is not None:
                for hook in self._on_change:
                    hook(change)
                if change.anew:
                    self.void.update(change.before.held.items())
                settled.append(change.member_id)
            durable.apply(record)
            if isinstance(record, TargetRecord):
                self._see_versions(durable)
                if record.deferred:
                    cluster.sometimes.reach("moves were deferred to another round")
                if record.deferred_starts:
                    cluster.sometimes.reach("moves were deferred until units had started")
        # At the end of the batch: half a batch is never visible.
        for member_id in settled:
            current = durable.currents.get(member_id)
            if current is not None:
                for hook in self._on_settled:
                    hook(member_id, current)
        durable.members_to_wake.clear()
        for hook in self._on_batch:
            hook(batch)

    def _see_versions(self, durable: ConnectGroupState) -> None:
        infos = [info for member in durable.members.values() for info in member.assignors]
        low = min((info.minimum_version for info in infos), default=0)
        high = max((info.maximum_version for info in infos), default=0)
        if infos and not any(info.minimum_version == low and info.maximum_version == high for info in infos):
            self.cluster.sometimes.reach("no assignor's versions covered all others")

    def _change(self, durable: ConnectGroupState, record: Record) -> Change | None:
        match record:
            case CurrentRecord():
                before = durable.current(record.member_id)
                if record.epoch == STATIC_LEAVE_EPOCH:
                    return _went_away(record, before)
                assigned, pending = epochs_of(record.assigned), epochs_of(record.pending)
                held = before.held
                return Change(
                    member_id=record.member_id,
                    before=before,
                    record=record,
                    assigned=assigned,
                    pending=pending,
                    gained={unit: epoch for unit, epoch in assigned.items() if held.get(unit) != epoch},
                    gone=frozenset(
                        (unit, epoch)
                        for unit, epoch in held.items()
                        if assigned.get(unit) != epoch and pending.get(unit) != epoch
                    ),
                    anew=record.epoch == 0,
                )
            case Tombstone(key=Key(kind=Kind.CURRENT, name=member_id)):
                before = durable.current(member_id)
                gone = frozenset(before.held.items())
                return Change(member_id, before, None, {}, {}, gained={}, gone=gone, anew=True)
            case _:
                return None

    # ---- coordinators

    def after_turn(self, peer: CoordinatorNode) -> None:
        for hook in self._on_turn:
            hook(peer)

    def on_loaded(self, peer: CoordinatorNode) -> None:
        durable = self.cluster.durable
        for hook in self._on_loaded:
            hook(peer)
        if any(current.pending for current in durable.currents.values()):
            self.cluster.sometimes.reach("a group was loaded with pending revocations")
        if durable.delays:
            self.cluster.sometimes.reach("a delay survived a coordinator failover")
        if durable.epoch > durable.target_epoch and durable.members:
            self.cluster.sometimes.reach("a group was loaded while a target was computed")

    def on_response(self, peer: CoordinatorNode, request: Request, response: Any, at_s: float, copy: bool) -> None:
        request, response = self.classic.as_of_heartbeat(peer.name, peer.log.epoch, request, response)
        see_response(self.cluster, peer, request, response, at_s, copy)
        if isinstance(request, UpdateConnectorsRequest) and is_version_conflict(
            request.changes[0], response.error_code
        ):
            self.cluster.sometimes.reach("a change made against another version was rejected")
        code = getattr(response, "error_code", 0)
        if code == UNRELEASED_INSTANCE:
            self.cluster.sometimes.reach("a join failed with an instance id in use")
        newest = peer.log.epoch == self.cluster.disk.storage.epoch
        sent = SentResponse(peer, request, response, code, at_s, copy, newest)
        for hook in self._on_response_sent:
            hook(sent)

    def on_assignor_result(self, group: ConnectAssignorInput, result: ConnectAssignment) -> None:
        for hook in self._on_assignor_result:
            hook(group, result)

    @contextmanager
    def watching_the_rules(self) -> Iterator[None]:
        """Within this context, each decision of a coordinator is an event."""
        rules: Any = group_type
        right = rules.step

        @functools.wraps(right)
        def seen(group: ConnectGroupState, what: GroupInput, now_ms: int, *rest: Any, **named: Any) -> Any:
            try:
                outcome = right(group, what, now_ms, *rest, **named)
            except Exception as error:
                for hook in self._on_rule_failed:
                    hook(what, error)
                raise
            if isinstance(what, HeartbeatRequest):
                self.classic.on_decided(str(getattr(NODE.get(), "name", "")), what, outcome.response)
            for hook in self._on_step:
                hook(group, what, outcome, now_ms)
            return outcome

        right_classic = rules.decide_classic

        @functools.wraps(right_classic)
        def seen_classic(group: ConnectGroupState, what: Any, now_ms: int, *rest: Any) -> Any:
            try:
                outcome = right_classic(group, what, now_ms, *rest)
            except Exception as error:
                for hook in () if isinstance(error, GroupError) else self._on_rule_failed:
                    hook(what, error)
                raise
            if isinstance(what, SyncGroupRequest | GroupHeartbeatRequest):  # the others are heartbeats, and seen
                for hook in self._on_step:
                    hook(group, what, outcome, now_ms)
            return outcome

        rules.step, rules.decide_classic = seen, seen_classic
        try:
            yield
        finally:
            rules.step, rules.decide_classic = right, right_classic

    # ---- workers and the sink

    def on_request(self, node: WorkerNode, request: Request) -> None:
        if not isinstance(request, SyncGroupRequest):  # it follows a JoinGroup, and reports nothing
            request = as_heartbeat(request)
        if isinstance(request, HeartbeatRequest):
            self.last_heartbeat[node.name] = request, node.worker.member.owned.copy()
        for hook in self._on_request:
            hook(node, request)

    def on_started(self, node: WorkerNode, unit: Unit, epoch: int) -> None:
        for hook in self._on_started:
            hook(node, unit, epoch)

    def on_listener(self, node: WorkerNode, event: str, units: Units, what: str) -> None:
        for hook in self._on_listener:
            hook(node, event, units, what)

    def on_ended(self, node: WorkerNode) -> None:
        if node.worker.member.draining and node.stop_requested_s is None and not node.refused:
            self.cluster.sometimes.reach("a worker left when it was drained")
        if "version ranges do not overlap" in node.refused:
            self.cluster.sometimes.reach("a join was rejected for its assignor's versions")
        for hook in self._on_ended:
            hook(node)

    def on_claimed(self, owner: Owner, positions: Mapping[int, int]) -> None:
        for hook in self._on_claimed:
            hook(owner, positions)

    def on_written(self, owner: Owner, ranges: Mapping[int, tuple[int, int]], added: bool) -> None:
        for hook in self._on_written:
            hook(owner, ranges, added)

    # ---- time

    def start(self) -> None:
        """Sample once a second from now on."""

        def tick() -> None:
            self.calm.look()
            for hook in self._on_tick:
                hook()
            self.cluster.loop.call_later(1.0, tick, context=NOWHERE)

        self.cluster.loop.call_later(1.0, tick, context=NOWHERE)

    def on_quiet(self) -> None:
        for hook in self._on_quiet:
            hook()

    def on_rest(self) -> None:
        for hook in self._on_rest:
            hook()

    def on_over(self) -> None:
        for hook in self._on_over:
            hook()


def slot_of(member_id: str) -> str:
    """The slot of a worker: a static worker has another member id in each life."""
    return member_id.partition("-")[0]


def _went_away(record: CurrentRecord, before: Current[Unit]) -> Change:
    """A static member left temporarily: it runs nothing, and all its units are free."""
    gone = frozenset(before.held.items()) if before.epoch != STATIC_LEAVE_EPOCH else frozenset()
    return Change(record.member_id, before, record, {}, {}, gained={}, gone=gone, anew=False)


def _batch(durable: ConnectGroupState, records: Sequence[Record], writer: int) -> Batch:
    """Summarize a batch."""
    # Moves deferred to a later round are a cause once all members have reached the target assignment; so is a draining
    # member that still has a target assignment, because another member may have returned to its delayed units since.
    drains = any(member.draining and durable.target(member.member_id).units for member in durable.members.values())
    deferred = durable.deferred > 0 or durable.deferred_starts > 0
    batch = Batch(records, writer, durable.epoch, causes=int(deferred or drains))
    for record in records:
        match record:
            case MemberRecord():
                batch.causes += 1
                if record.member_id not in durable.members:
                    batch.joined.add(record.member_id)
            case ConnectorRecord():
                batch.causes += 1
                batch.connectors = True
            case CurrentRecord():
                batch.causes += record.epoch == 0
            case TargetMemberRecord() | TargetRecord():
                batch.target = True
            case Tombstone(key=Key(kind=Kind.MEMBER)):
                batch.causes += 1
                batch.left.add(record.key.name)
            case Tombstone(key=Key(kind=Kind.CONNECTOR)):
                batch.causes += 1
                batch.connectors = True
            case Tombstone(key=Key(kind=Kind.TARGET_MEMBER)):
                batch.target = True
            case DelayRecord():
                batch.delays = True
            case Tombstone(key=Key(kind=Kind.DELAY)):
                batch.delays = True
                # A deadline has passed, or a worker has returned.
                batch.causes += 1
            case _:
                pass
    return batch
