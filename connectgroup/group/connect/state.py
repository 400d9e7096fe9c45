"""The state of one group, derived from its records.

``apply`` is the only function that changes a group. Live traffic and replay both use it. It is total: a tombstone for
an unknown key is a no-op (KAFKA-17306). It accepts every order of records that compaction can produce (KAFKA-19862).
State that is not in a record is derived here from records alone, so that replaying a log restores the group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ...protocol.messages.common import units_of
from ...protocol.messages.describe import Move, Rebalance
from ...protocol.messages.heartbeat import HeartbeatResponse
from ...protocol.records.base import Key, Kind, Tombstone
from ...protocol.records.connect import (
    ComputationRecord,
    ConnectorRecord,
    CurrentRecord,
    DelayRecord,
    GroupRecord,
    MemberRecord,
    MemberState,
    RebalanceRecord,
    Record,
    StatusRecord,
    TargetMemberRecord,
    TargetRecord,
    TargetState,
    UnitState,
    epochs_of,
)
from ...protocol.units import NO_UNITS, Unit, Units
from ..kernel.outcome import Key as UnchangedKey, Outcome
from ..kernel.reconcile import NOTHING, Current
from ..kernel.selection import Listing, count_listing
from ..kernel.static import ANY_PROCESS, Process
from ..sizes import connector_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One member's target assignment, with the assignor's error and user data for the member."""

    units: Units = NO_UNITS
    error: int = 0
    version: int = 0
    metadata: bytes = b""


NO_TARGET = Target()

WOKEN_AT_ONCE: Final = 8
"""In a group of up to so many members, all learn a new target epoch at once."""


def runnable_units(connector: ConnectorRecord) -> Iterable[tuple[Unit, int]]:
    """Yield the units of a connector that should run now, each with the group epoch of its configuration.

    A paused connector still runs its connector unit, which watches the source; none of its tasks runs. A stopped
    connector runs no unit.
    """
    if connector.target_state != TargetState.STOPPED:
        yield Unit(connector.connector), connector.since_epoch
    if connector.target_state == TargetState.RUNNING:
        for number, task in enumerate(connector.tasks):
            yield Unit(connector.connector, number), task.since_epoch


class Group:
    """State of one group. Any code may read it; only ``apply`` changes it."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.created_ms = 0
        self.restart_requests: tuple[str, ...] = ()
        self.members: dict[str, MemberRecord] = {}
        self.target_epoch = 0
        self.target_assignor = ""
        self.computed_by = ""
        self.target_checksum = 0
        self.deferred = self.deferred_starts = 0
        self.target_ms = 0
        self.targets: dict[str, Target] = {}
        self.currents: dict[str, Current[Unit]] = {}
        self.connectors: dict[str, ConnectorRecord] = {}
        self.computation: ComputationRecord | None = None
        self.statuses: dict[Unit, StatusRecord] = {}
        self.rebalances: dict[int, Rebalance] = {}
        self.delays: dict[str, DelayRecord] = {}

        # Derived.
        self.instances: dict[str, str] = {}
        self.runnable: dict[Unit, int] = {}
        self.connector_bytes: dict[str, int] = {}
        self.holders: dict[Unit, tuple[str, int]] = {}
        self.wanted_by: dict[Unit, str] = {}
        self.behind: set[str] = set()
        self.listings: Counter[Listing] = Counter()
        self.metadata_bytes = 0
        # Units whose last status is STARTING, also of a former owner (``move_limit.is_starting``).
        self.starting: set[Unit] = set()
        self.clock_ms = 0
        # Used only to explain rebalances; excluded from the comparison after a replay.
        self.stops = Stops()
        self.landed: dict[Unit, Move] = {}
        self.silent_ms = 0
        # Used only to describe: when the session of a temporarily left member ends. Session timers start anew after a
        # load, so this is not known then.
        self.kept_until_ms: dict[str, int] = {}
        # What SyncGroup returns to members of the classic protocol: the response to the last JoinGroup of each.
        self.sync_responses: dict[str, HeartbeatResponse] = {}
        # Outcomes of heartbeats that report nothing (``kernel.outcome``).
        self.unchanged: dict[str, tuple[UnchangedKey, Outcome[Any]]] = {}
        # Members to notify: those that may have a new response since the runtime last cleared this set.
        self.members_to_wake: set[str] = set()
        self.members_to_wake_later: set[str] = set()

    @property
    def exists(self) -> bool:
        """Whether a record created this group. A group that was only looked up does not exist."""
        return self.epoch > 0

    @property
    def latest_rebalance(self) -> Rebalance | None:
        """The newest rebalance, finished or in progress."""
        return self.rebalances[next(reversed(self.rebalances))] if self.rebalances else None

    def current(self, member_id: str) -> Current[Unit]:
        """The member's current assignment; empty for a member without a record."""
        return self.currents.get(member_id, NOTHING)

    def process_of(self, sender: str) -> Process:
        """The process that joined as the member; ``ANY_PROCESS`` if there is no such member."""
        member = self.members.get(sender)
        return ANY_PROCESS if member is None else Process(member.process_id, member.principal)

    def target(self, member_id: str) -> Target:
        """The member's target assignment."""
        return self.targets.get(member_id, NO_TARGET)

    @property
    def is_vacant(self) -> bool:
        """Whether the group exists without members and connectors: only its history is lost with it."""
        return self.exists and not (self.members or self.connectors or self.delays)

    # ----------------------------------------------------------------------------------------------

    def apply(self, record: Record) -> None:
        """Apply one record. Never raises for a record of a known class."""
        self.unchanged.clear()
        match record:
            case CurrentRecord():
                self._apply_current(record)
            case GroupRecord():
                self.epoch = record.epoch
                self.created_ms = record.created_ms
                self.restart_requests = record.restart_requests
            case MemberRecord():
                self._forget_instance(record.member_id)
                self._count(self.members.get(record.member_id), record)
                self.members[record.member_id] = record
                if record.instance_id is not None:
                    self.instances[record.instance_id] = record.member_id
                self.currents.setdefault(record.member_id, NOTHING)
                self._see_progress(record.member_id)
                if record.has_request:
                    self.members_to_wake.add(record.member_id)
            case TargetMemberRecord():
                self._forget_wanted(record.member_id)
                target = Target(
                    units=units_of(record.units),
                    error=record.error,
                    version=record.version,
                    metadata=record.metadata,
                )
                self.targets[record.member_id] = target
                for unit in target.units:
                    self.wanted_by[unit] = record.member_id
            case TargetRecord():
                self.target_epoch = record.epoch
                self.target_assignor = record.assignor
                self.computed_by = record.computed_by
                self.target_checksum = record.checksum
                self.deferred, self.deferred_starts = record.deferred, record.deferred_starts
                self.target_ms = record.at_ms
                for member_id in self.members:
                    self._see_progress(member_id)
                self._wake_all()
            case ConnectorRecord():
                self._replace_connector(record.connector, record)
            case ComputationRecord():
                self.computation = record
                if record.member_id and not record.prepared:
                    self.members_to_wake.add(record.member_id)
            case StatusRecord():
                unit = Unit(record.connector, record.task)
                self.statuses[unit] = record
                if record.state is UnitState.STARTING:
                    self.starting.add(unit)
                else:
                    self.starting.discard(unit)
                    if self.holders.get(unit) == (record.member_id, record.owner_epoch):
                        self.stops.report(unit)
            case RebalanceRecord():
                self._apply_rebalance(record.rebalance)
                self.silent_ms = record.silent_ms
            case DelayRecord():
                self.delays[record.member_id] = record
            case Tombstone():
                self._remove(record.key)

    def _apply_current(self, record: CurrentRecord) -> None:
        before = self.current(record.member_id)
        after = Current(
            epoch=record.epoch,
            previous_epoch=record.previous_epoch,
            state=record.state,
            assigned=epochs_of(record.assigned),
            pending=epochs_of(record.pending),
        )
        self.clock_ms = max(self.clock_ms, record.at_ms)
        self._rehold(record.member_id, before, after, record.at_ms)
        self.currents[record.member_id] = after
        self._see_progress(record.member_id)

    def _rehold(self, member_id: str, before: Current[Unit], after: Current[Unit], at_ms: int) -> None:
        """Update ``holders``, and record when a unit stopped and where it started again."""
        before_held, after_held = before.held, after.held
        if after.temporarily_left:
            # The units of a member that left temporarily are down from now on, although they are reserved for it.
            for unit in after_held if not before.temporarily_left else ():
                self.stops.stop(unit, member_id, at_ms, has_status=unit in self.statuses)
        # Pending units are checked too: compaction may have removed the earlier record that had the unit assigned.
        for unit in (before.assigned.keys() | after.pending.keys()) - after.assigned.keys() - before.pending.keys():
            # A unit that should no longer run has no downtime.
            if unit in self.runnable and not before.temporarily_left:
                self.stops.stop(unit, member_id, at_ms, has_status=unit in self.statuses)
        for unit in before_held:
            if unit not in after_held and self.holders.get(unit, ("", 0))[0] == member_id:
                del self.holders[unit]
                waiting = self.wanted_by.get(unit)
                if waiting is not None:
                    self.members_to_wake.add(waiting)
        for unit, epoch in after_held.items():
            holder = self.holders.get(unit)
            # A compacted log can show the new owner before the release by the old one: the higher owner epoch wins.
            if holder is None or holder[0] == member_id or holder[1] < epoch:
                self.holders[unit] = (member_id, epoch)
        for unit, epoch in after.assigned.items():
            if before.assigned.get(unit) != epoch and not after.temporarily_left:
                source, stopped_ms = self.stops.assign(unit, at_ms)
                self.landed[unit] = Move(
                    connector=unit.connector,
                    task=unit.task,
                    source=source,
                    target=member_id,
                    downtime_ms=max(0, at_ms - stopped_ms),
                    assigned_ms=at_ms,
                )

    def _wake_all(self) -> None:
        """All members learn the target epoch; those of a large group that keep their units, after the others."""
        keeping: set[str] = set()
        if len(self.members) > WOKEN_AT_ONCE:
            keeping = {who for who in self.members if self.current(who).assigned.keys() == self.target(who).units}
        self.members_to_wake_later |= keeping
        self.members_to_wake |= self.members.keys() - keeping

    def _apply_rebalance(self, rebalance: Rebalance) -> None:
        self.clock_ms = max(self.clock_ms, rebalance.started_ms, rebalance.finished_ms)
        self.rebalances[rebalance.epoch] = rebalance
        if rebalance.finished_ms >= 0:
            self.stops.finish(rebalance, self.landed)
            self.landed.clear()

    def _replace_connector(self, name: str, connector: ConnectorRecord | None) -> None:
        old = self.connectors.pop(name, None)
        self.connector_bytes.pop(name, None)
        before = dict(runnable_units(old)) if old else {}
        after = dict(runnable_units(connector)) if connector else {}
        if connector:
            self.connectors[name] = connector
            self.connector_bytes[name] = connector_bytes(connector)
        for unit in before:
            if unit not in after:
                del self.runnable[unit]
                self.stops.forget(unit)
        self.runnable.update(after)
        changed = (unit for unit in before if after.get(unit) != before[unit])
        self.members_to_wake.update(self.holders[unit][0] for unit in changed if unit in self.holders)

    def _remove(self, key: Key) -> None:
        match key.kind:
            case Kind.CURRENT:
                gone = self.currents.pop(key.name, None)
                if gone:
                    self._rehold(key.name, gone, NOTHING, self.clock_ms - self.silent_ms)
                if key.name in self.members:
                    self.currents[key.name] = NOTHING
                    self._see_progress(key.name)
            case Kind.MEMBER:
                self._forget_instance(key.name)
                self._count(self.members.pop(key.name, None), None)
                self.kept_until_ms.pop(key.name, None)
                self.sync_responses.pop(key.name, None)
                if not self.current(key.name).held:
                    self.currents.pop(key.name, None)
                self.behind.discard(key.name)
                self.members_to_wake.add(key.name)
            case Kind.TARGET_MEMBER:
                self._forget_wanted(key.name)
                self.targets.pop(key.name, None)
                self._see_progress(key.name)
            case Kind.CONNECTOR:
                self._replace_connector(key.name, None)
            case Kind.STATUS:
                name, _, task = key.name.rpartition("\n")
                self.statuses.pop(Unit(name, int(task)), None)
                self.starting.discard(Unit(name, int(task)))
            case Kind.REBALANCE:
                self.rebalances.pop(int(key.name), None)
                self.stops.forget_rebalance(int(key.name))
            case Kind.COMPUTATION:
                self.computation = None
            case Kind.DELAY:
                self.delays.pop(key.name, None)
            case Kind.TARGET:
                self.target_epoch, self.target_assignor, self.computed_by = 0, "", ""
                self.target_checksum = self.deferred = self.deferred_starts = self.target_ms = 0
            case Kind.GROUP:
                self.epoch = 0

    def _count(self, before: MemberRecord | None, after: MemberRecord | None) -> None:
        """Update what is counted of the members, so that a join need not look at all of them."""
        if before is not None:
            count_listing(self.listings, before, -1)
        if after is not None:
            count_listing(self.listings, after, 1)
        self.metadata_bytes += _metadata_bytes(after) - _metadata_bytes(before)

    def _forget_instance(self, member_id: str) -> None:
        """Free a group instance id when its member is removed or changes its instance id (KAFKA-20747)."""
        member = self.members.get(member_id)
        name = member.instance_id if member is not None else None
        # In a compacted log the record of the next member with this instance id may precede this member's tombstone.
        if name is not None and self.instances.get(name) == member_id:
            del self.instances[name]

    def _forget_wanted(self, member_id: str) -> None:
        for unit in self.target(member_id).units:
            if self.wanted_by.get(unit) == member_id:
                del self.wanted_by[unit]

    def _see_progress(self, member_id: str) -> None:
        """Update ``behind``: a member is behind until it has the target epoch and all units of its target assignment.

        A member that left temporarily is never behind.
        """
        if member_id not in self.members:
            return
        current = self.current(member_id)
        there = current.temporarily_left or (
            current.epoch == self.target_epoch
            and not current.pending
            and current.state == MemberState.STABLE
            and current.assigned.keys() == self.target(member_id).units
        )
        if there:
            self.behind.discard(member_id)
        else:
            self.behind.add(member_id)


def _metadata_bytes(member: MemberRecord | None) -> int:
    """The bytes of the metadata of all assignors of a member."""
    return 0 if member is None else sum([len(info.metadata) for info in member.assignors])


def replay(group_id: str, records: Iterable[Record]) -> Group:
    """Rebuild a group from its log."""
    group = Group(group_id)
    for record in records:
        group.apply(record)
    group.members_to_wake.clear()
    group.members_to_wake_later.clear()
    return group


# --------------------------------------------------------------------------------------------------
# When and where each unit last ran, to explain rebalances: the downtime of moves, and moves that never started.
#
# A worker that is about to leave accepts no new units, but the group does not know that yet: units of workers that left
# before it are assigned to it. When it leaves, such a unit has not moved to it in any sense that matters. The unit
# still counts as stopped since it last ran, on the worker where it last ran, and the move is marked as not started.


@dataclass(slots=True, kw_only=True)
class _Arrival:
    """A unit that ran elsewhere before, and that its new worker has not reported yet.

    Attributes:
        source: the member that ran it last.
        stopped_ms: when that member stopped it.
        epoch: of the finished rebalance that counts the move; 0: none does.
        is_listed: whether the move is one of ``Rebalance.moves``.
    """

    source: str
    stopped_ms: int
    epoch: int = 0
    is_listed: bool = False


class Stops:
    """Where units have stopped and have not started again.

    Attributes:
        moves_not_started: number of finished moves whose unit was released before it was reported.
    """

    def __init__(self) -> None:
        self.moves_not_started = 0
        self._stopped: dict[Unit, tuple[str, int]] = {}
        self._arrived: dict[Unit, _Arrival] = {}
        self._not_started: dict[int, set[Unit]] = {}

    def stop(self, unit: Unit, member_id: str, at_ms: int, *, has_status: bool) -> None:
        """A member has released a unit, or must.

        Args:
            has_status: whether any status of the unit was ever reported. Workers whose runner reports nothing start
                their units all the same.
        """
        arrival = self._arrived.pop(unit, None)
        if arrival is None or not has_status:
            self._stopped[unit] = (member_id, at_ms)
            return
        self._stopped[unit] = (arrival.source, arrival.stopped_ms)
        if arrival.epoch:
            self.moves_not_started += 1
        if arrival.is_listed:
            self._not_started.setdefault(arrival.epoch, set()).add(unit)

    def assign(self, unit: Unit, at_ms: int) -> tuple[str, int]:
        """A unit is assigned: the member that ran it last, empty if none did, and when it stopped."""
        source, stopped_ms = self._stopped.pop(unit, ("", at_ms))
        if source:
            self._arrived[unit] = _Arrival(source=source, stopped_ms=stopped_ms)
        else:
            self.report(unit)
        return source, stopped_ms

    def report(self, unit: Unit) -> None:
        """The owner of the unit has reported a status: it has started the unit."""
        self._arrived.pop(unit, None)

    def finish(self, rebalance: Rebalance, landed: Mapping[Unit, Move]) -> None:
        """A rebalance has finished, with these assignments."""
        listed = {Unit(move.connector, move.task) for move in rebalance.moves}
        for unit in self._arrived.keys() & landed.keys():
            if landed[unit].source != landed[unit].target:
                self._arrived[unit].epoch, self._arrived[unit].is_listed = rebalance.epoch, unit in listed

    def not_started(self, epoch: int) -> set[Unit]:
        """The listed moves of a rebalance whose unit was released before it was reported."""
        return self._not_started.get(epoch, set())

    def forget(self, unit: Unit) -> None:
        """The unit should not run any more."""
        self._stopped.pop(unit, None)
        self._arrived.pop(unit, None)

    def forget_rebalance(self, epoch: int) -> None:
        """The rebalance is no longer kept."""
        self._not_started.pop(epoch, None)
