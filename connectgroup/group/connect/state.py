"""The state of one group of connectors and tasks, derived from its records; ``kernel.state`` has what is common.

Also what explains rebalances: when and where units stopped; and the size of a group's connectors in the largest
messages and log batches. Any member may come to own every unit: when it is the last one, one heartbeat response assigns
it all connectors and tasks with their configurations. So the limit applies to the group and is checked when connectors
and task lists are written; a group that was accepted always fits. The size is an upper bound of what one unit takes in
each of:

- the grants of a heartbeat response: connector name, task number, owner epoch, configuration;
- the ``ConnectorRecord`` and the request that publishes the task list: configuration;
- the batch that deletes or reconfigures a connector: the key of each task's status and its entry in a target
  assignment.

A Prepare response has no task configurations, and a Describe response may be as long as the responses that
``TcpClient`` accepts (64 MiB): both are within their limits for any group that is within this one.

``ConnectDraft`` is the group as it will be once the records written so far in a step are applied; so is the group of a
log that was put back from an older copy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ...assign.placement import max_tasks
from ...errors import ConfigError, InvalidRequest
from ...protocol import HISTORY
from ...protocol.messages.assignment import InstalledMember
from ...protocol.messages.common import ConfigEntry, config_of, grouped, units_of
from ...protocol.messages.describe import Move, Rebalance
from ...protocol.messages.heartbeat import HeartbeatResponse, TaskStatus
from ...protocol.records.base import Key, Kind, Tombstone
from ...protocol.records.connect import (
    GROUP_TYPE,
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
    held,
)
from ...protocol.units import NO_UNITS, Unit, Units, printable
from ..kernel.reconcile import NOTHING, Current
from ..kernel.state import ANY_PROCESS, GroupDraft, GroupState, MemberKinds, Process, Target, Those


def target_of(target: TargetMemberRecord | InstalledMember) -> Target[Unit]:
    """The target assignment in a record, or in the result of an assignor."""
    return Target(units=units_of(target.units), error=target.error, version=target.version, metadata=target.metadata)


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


class ConnectGroupState(GroupState[MemberRecord, Unit]):
    """State of one group of connectors and tasks. Any code may read it; only ``apply`` changes it, or as noted."""

    group_type = GROUP_TYPE
    kinds = MemberKinds(Kind.CURRENT, Kind.TARGET_MEMBER, Kind.MEMBER)
    reaches_all_units = True

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        # Lost members whose restart an operator has requested, oldest first; a GroupRecord replaces them all. Once such
        # a member has joined again, its own record has the request.
        self.restart_requests: tuple[str, ...] = ()
        # The connectors by name, with configuration and tasks: set by a ConnectorRecord, removed by its tombstone.
        self.connectors: dict[str, ConnectorRecord] = {}
        # Of the target assignment, set by the TargetRecord: how many moves are left to the next round, and how many of
        # units that were starting.
        self.deferred = self.deferred_starts = 0
        # The last status of each unit, also of a former owner: it counts only if member and owner epoch are those of
        # ``holders``. Removed with the unit, by a tombstone.
        self.statuses: dict[Unit, StatusRecord] = {}
        # The last ``HISTORY`` rebalances by group epoch, ascending. Until a target assignment is installed for it, each
        # further cause replaces the latest one; an earlier one without an end was overtaken by the next.
        self.rebalances: dict[int, Rebalance] = {}
        # Delayed units by the lost member that they are reserved for; empty: by no member, the assignor asked for it.
        # A DelayRecord starts or changes a delay, its tombstone ends it, whatever the deadline.
        self.delays: dict[str, DelayRecord] = {}

        # ---- derived

        # The units that should run, each with the group epoch of its configuration: a grant of an earlier epoch ends.
        self.runnable: dict[Unit, int] = {}
        # ``connector_bytes`` of each connector.
        self.connector_bytes: dict[str, int] = {}
        # The bytes of the metadata of all assignors of all members.
        self.metadata_bytes = 0
        # Units whose last status is STARTING, also of a former owner (``assignment.is_starting``).
        self.starting: set[Unit] = set()
        # The newest wall clock in a record: when units were released of which only a tombstone is left.
        self.clock_ms = 0

        # ---- only to explain rebalances; another one after a replay

        # When and where units stopped that have not started again. ``on_load`` resets its total.
        self.stops = Stops()
        # The assignments since the last finished rebalance, which clears them.
        self.landed: dict[Unit, Move] = {}
        # For how long the member that the last rebalance removes had been silent: its units stopped so much earlier.
        self.silent_ms = 0

        # ---- not from records: a new coordinator does not have it

        # When the session of a temporarily left member ends, for descriptions. ``step`` sets it; session timers start
        # anew after a load.
        self.kept_until_ms: dict[str, int] = {}
        # Members that have sent nothing since the coordinator started, with the time at which the one before it was
        # last alive: they may have ended with it. Removed by their first heartbeat.
        self.unheard: dict[str, int] = {}
        # What SyncGroup returns to a member of the classic protocol: the response to its last JoinGroup
        # (``classic_members``). Removed with the member.
        self.sync_responses: dict[str, HeartbeatResponse] = {}

    @property
    def latest_rebalance(self) -> Rebalance | None:
        """The newest rebalance, finished or in progress."""
        return self.rebalances[next(reversed(self.rebalances))] if self.rebalances else None

    def process_of(self, sender: str) -> Process:
        """The process that joined as the member; ``ANY_PROCESS`` if there is no such member."""
        member = self.members.get(sender)
        return ANY_PROCESS if member is None else Process(member.process_id, member.principal)

    @property
    def is_vacant(self) -> bool:
        """Whether the group exists without members and connectors: only its history is lost with it."""
        return self.exists and not (self.members or self.connectors or self.delays)

    # ----------------------------------------------------------------------------------------------

    def apply(self, record: Record) -> None:
        """Apply one record. Never raises for a record of a known class."""
        self.heartbeat_cache.clear()
        match record:
            case CurrentRecord():
                after = Current(
                    epoch=record.epoch,
                    previous_epoch=record.previous_epoch,
                    state=record.state,
                    assigned=epochs_of(record.assigned),
                    pending=epochs_of(record.pending),
                )
                self.clock_ms = max(self.clock_ms, record.at_ms)
                self._note_moves(record.member_id, after, record.at_ms)
                self._set_current(record.member_id, after)
            case GroupRecord():
                super().apply(record)
                self.restart_requests = record.restart_requests
            case MemberRecord():
                self._set_member(record)
                if record.has_request:
                    self.members_to_wake.add(record.member_id)
            case TargetMemberRecord():
                self._set_target(record.member_id, target_of(record))
            case TargetRecord():
                super().apply(record)
                self.deferred, self.deferred_starts = record.deferred, record.deferred_starts
            case ConnectorRecord():
                self._replace_connector(record.connector, record)
            case StatusRecord():
                unit = Unit(record.connector, record.task)
                self.statuses[unit] = record.without_numbers()
                if record.state is UnitState.STARTING:
                    self.starting.add(unit)
                else:
                    self.starting.discard(unit)
                    if self.holders.get(unit) == (record.member_id, record.owner_epoch):
                        since_ms = record.at_ms - record.idle_ms
                        self.stops.report(unit, since_ms, is_running=record.state is UnitState.RUNNING)
            case RebalanceRecord():
                self._apply_rebalance(record.rebalance)
                self.silent_ms = record.silent_ms
            case DelayRecord():
                self.delays[record.member_id] = record
            case _:
                super().apply(record)

    def _note_moves(self, member_id: str, after: Current[Unit], at_ms: int) -> None:
        """Record when a unit of the member has stopped, and where it starts again."""
        before = self.current(member_id)
        if after.temporarily_left:
            # The units of a member that left temporarily are down from now on, although they are reserved for it.
            for unit in after.held if not before.temporarily_left else ():
                self.stops.stop(unit, member_id, at_ms, has_status=unit in self.statuses)
        # Pending units are checked too: compaction may have removed the earlier record that had the unit assigned.
        for unit in (before.assigned.keys() | after.pending.keys()) - after.assigned.keys() - before.pending.keys():
            # A unit that should no longer run has no downtime.
            if unit in self.runnable and not before.temporarily_left:
                self.stops.stop(unit, member_id, at_ms, has_status=unit in self.statuses)
        for unit, epoch in after.assigned.items():
            if before.assigned.get(unit) != epoch and not after.temporarily_left:
                stop = self.stops.assign(unit, at_ms)
                self.landed[unit] = Move(
                    connector=unit.connector,
                    task=unit.task,
                    source=stop.member_id,
                    target=member_id,
                    handover_ms=max(0, at_ms - stop.at_ms),
                    assigned_ms=at_ms,
                    failed_ms=stop.failed_ms,
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
        # At the end: of a deleted group, a partly compacted log may have a former rebalance of the same epoch.
        self.rebalances.pop(rebalance.epoch, None)
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
                self._note_moves(key.name, NOTHING, self.clock_ms - self.silent_ms)
            case Kind.MEMBER:
                self.kept_until_ms.pop(key.name, None)
                self.unheard.pop(key.name, None)
                self.sync_responses.pop(key.name, None)
            case Kind.CONNECTOR:
                self._replace_connector(key.name, None)
            case Kind.STATUS:
                name, _, task = key.name.rpartition("\n")
                self.statuses.pop(Unit(name, int(task)), None)
                self.starting.discard(Unit(name, int(task)))
            case Kind.REBALANCE:
                self.rebalances.pop(int(key.name), None)
                self.stops.forget_rebalance(int(key.name))
            case Kind.DELAY:
                self.delays.pop(key.name, None)
            case Kind.TARGET:
                self.deferred = self.deferred_starts = 0
            case _:
                pass
        super()._remove(key)

    def _count(self, before: MemberRecord | None, after: MemberRecord | None) -> None:
        super()._count(before, after)
        self.metadata_bytes += _metadata_bytes(after) - _metadata_bytes(before)


def _metadata_bytes(member: MemberRecord | None) -> int:
    """The bytes of the metadata of all assignors of a member."""
    return 0 if member is None else sum([len(info.metadata) for info in member.assignors])


# --------------------------------------------------------------------------------------------------
# When and where each unit last ran, to explain rebalances: the downtime of moves, and moves that never started.
#
# A worker that is about to leave accepts no new units, but the group does not know that yet: units of workers that left
# before it are assigned to it. When it leaves, such a unit has not moved to it in any sense that matters. The unit
# still counts as stopped since it last ran, on the worker where it last ran, and the move is marked as not started.


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Where a unit ran last, and when it was stopped there.

    Attributes:
        member_id: the member; empty if the unit has run on none.
        at_ms: when it was stopped.
        failed_ms: for how long it had been FAILED then, or had completed no poll, if it was STALLED.
    """

    member_id: str
    at_ms: int
    failed_ms: int = 0


@dataclass(slots=True, kw_only=True)
class _Arrival:
    """A unit that ran elsewhere before, and that its new worker has not reported as running yet.

    Attributes:
        stop: where it ran before.
        is_reported: whether the new worker has reported it. ``Stops.report`` sets it.
        epoch: of the finished rebalance that counts the move; 0: none does yet. ``Stops.finish`` sets it.
        is_listed: whether the move is one of ``Rebalance.moves``. ``Stops.finish`` sets it.
    """

    stop: Stop
    is_reported: bool = False
    epoch: int = 0
    is_listed: bool = False


class Stops:
    """Where units have stopped and have not started again.

    Attributes:
        moves_not_started: number of finished moves whose unit was released before it was reported. Grows here; a load
            sets it to 0.
        ended: the downtimes that have ended, in milliseconds, until the coordinator's metrics take them.
    """

    def __init__(self) -> None:
        self.moves_not_started = 0
        self.ended: deque[int] = deque(maxlen=1_000)
        # Units that no member has: ``stop`` adds, ``assign`` and ``forget`` remove.
        self._stopped: dict[Unit, Stop] = {}
        # Units that a member has and has not reported as running: ``assign`` adds, ``report`` and ``stop`` remove.
        self._arrived: dict[Unit, _Arrival] = {}
        self._ran: dict[Unit, int] = {}
        """Downtimes of units that run again, in rebalances that have not finished."""
        self._failing: dict[Unit, int] = {}
        """Since when units that ran are FAILED, or have completed no poll and are STALLED."""
        # Of finished rebalances by epoch: their units that were stopped before they were reported, those whose
        # assignment a compacted log no longer has, and the downtimes of their moves. ``forget_rebalance`` removes them.
        self._not_started: dict[int, set[Unit]] = {}
        self._unknown: dict[int, set[Unit]] = {}
        self._downtimes: dict[int, dict[Unit, int]] = {}

    def stop(self, unit: Unit, member_id: str, at_ms: int, *, has_status: bool) -> None:
        """A member has released a unit, or must.

        Args:
            has_status: whether any status of the unit was ever reported. Workers whose runner reports nothing start
                their units all the same.
        """
        arrival, failing_ms = self._arrived.pop(unit, None), self._failing.pop(unit, at_ms)
        if arrival is None or arrival.is_reported or not has_status:
            if arrival is not None and arrival.is_reported:  # and has not run since
                failing_ms = arrival.stop.at_ms - arrival.stop.failed_ms
            self._stopped[unit] = Stop(member_id=member_id, at_ms=at_ms, failed_ms=max(0, at_ms - failing_ms))
            return
        self._stopped[unit] = arrival.stop
        if arrival.epoch and arrival.stop.member_id != member_id:
            self.moves_not_started += 1
        if arrival.is_listed and arrival.stop.member_id != member_id:
            self._not_started.setdefault(arrival.epoch, set()).add(unit)

    def assign(self, unit: Unit, at_ms: int) -> Stop:
        """A unit is assigned; return where it ran last."""
        stop = self._stopped.pop(unit, None)
        self._ran.pop(unit, None)
        if stop is None:
            self._arrived.pop(unit, None)
            return Stop(member_id="", at_ms=at_ms)
        self._arrived[unit] = _Arrival(stop=stop)
        return stop

    def report(self, unit: Unit, at_ms: int, *, is_running: bool) -> None:
        """The owner of the unit has reported a status other than STARTING: it has started the unit.

        Args:
            at_ms: since when the unit has this status.
        """
        arrival = self._arrived.get(unit)
        if arrival is not None:
            arrival.is_reported = True
        if not is_running:
            self._failing.setdefault(unit, at_ms)
            return
        self._failing.pop(unit, None)
        if arrival is None:
            return
        del self._arrived[unit]
        downtime_ms = max(0, at_ms - arrival.stop.at_ms) + arrival.stop.failed_ms
        self.ended.append(downtime_ms)
        if not arrival.epoch:
            self._ran[unit] = downtime_ms
        elif arrival.is_listed:
            self._downtimes.setdefault(arrival.epoch, {})[unit] = downtime_ms

    def finish(self, rebalance: Rebalance, landed: Mapping[Unit, Move]) -> None:
        """A rebalance has finished, with these assignments."""
        listed = {Unit(move.connector, move.task) for move in rebalance.moves}
        for unit in self._arrived.keys() & landed.keys():
            arrival = self._arrived[unit]
            if not arrival.epoch:
                arrival.epoch, arrival.is_listed = rebalance.epoch, unit in listed
        if unknown := listed - landed.keys():
            self._unknown[rebalance.epoch] = unknown
        for unit in self._ran.keys() & listed:
            self._downtimes.setdefault(rebalance.epoch, {})[unit] = self._ran[unit]
        self._ran.clear()

    def downtime_ms(self, epoch: int, unit: Unit) -> int | None:
        """The downtime of a listed move of a rebalance; ``None`` if the unit does not run again, or it is not known."""
        return self._downtimes.get(epoch, {}).get(unit)

    def not_started(self, epoch: int) -> set[Unit]:
        """The listed moves of a rebalance whose unit was released before it was reported."""
        return self._not_started.get(epoch, set())

    def unknown(self, epoch: int) -> set[Unit]:
        """The listed moves of a rebalance of which a compacted log has no assignment."""
        return self._unknown.get(epoch, set())

    def forget(self, unit: Unit) -> None:
        """The unit should not run any more."""
        self._stopped.pop(unit, None)
        self._arrived.pop(unit, None)
        self._ran.pop(unit, None)
        self._failing.pop(unit, None)

    def forget_rebalance(self, epoch: int) -> None:
        """The rebalance is no longer kept."""
        self._not_started.pop(epoch, None)
        self._unknown.pop(epoch, None)
        self._downtimes.pop(epoch, None)


MAX_GROUP_BYTES: Final = 7_500_000
"""Upper bound for all connectors and tasks of a group, as ``connector_bytes`` counts them. Frames and log batches are
8 MiB; the rest is for headers, a member's metadata and the names of members."""

_UNIT: Final = 20
"""Bytes of a unit besides names and configuration: numbers, lengths, tags."""


def connector_bytes(connector: ConnectorRecord) -> int:
    """Upper bound on the bytes of a connector and its tasks in one message or one batch."""
    name = _bytes(connector.connector)
    least = _bytes(connector.group_id) + name
    tasks = sum([max(_config_bytes(task.config), least) for task in connector.tasks])
    names = sum([_bytes(each) + 3 for each in connector.credential_names])
    return 2 * _UNIT + least + _config_bytes(connector.config) + names + len(connector.tasks) * (name + _UNIT) + tasks


def check(group_id: str, others_bytes: int, before: ConnectorRecord | None, after: ConnectorRecord) -> int:
    """Reject a change after which the group would exceed its message limits.

    Args:
        others_bytes: the sum of ``connector_bytes`` of the other connectors.
        before: the connector before the change; ``None`` for a new one. A change that does not grow is never rejected.
        after: the connector after the change.

    Returns:
        The ``connector_bytes`` of the connector after the change.

    Raises:
        InvalidRequest: with ``TaskConfigs`` or ``tasks.max``, the value and the limit.
    """
    left = MAX_GROUP_BYTES - others_bytes
    of_all = f"of the {MAX_GROUP_BYTES} bytes for all connectors and tasks of a group"
    taken = connector_bytes(after)
    if taken > left and (before is None or taken > connector_bytes(before)):
        what = f"{len(after.tasks)} tasks" if after.tasks else "a configuration"
        field = "TaskConfigs" if after.tasks else "Config"
        raise InvalidRequest(
            f"connector {printable(after.connector)}: {field}: got {what} of {taken} bytes; "
            f"allowed: at most {max(left, 0)}, {of_all}"
        )
    wanted = tasks_max(after)
    if before is not None and wanted <= tasks_max(before):
        return taken
    # The configurations of the tasks are not known yet: assume tasks with empty configurations.
    name = _bytes(after.connector)
    each = 2 * name + _bytes(group_id) + _UNIT
    fixed = 2 * _UNIT + name + _bytes(group_id) + _config_bytes(after.config)
    if fixed + wanted * each > left:
        raise InvalidRequest(
            f"connector {printable(after.connector)}: tasks.max: got {wanted}; allowed: at most "
            f"{max((left - fixed) // each, 0)}, as a task takes {each} bytes or more {of_all}"
        )
    return taken


def tasks_max(connector: ConnectorRecord) -> int:
    """``tasks.max`` of a connector; 0 if other software stored an unreadable value."""
    try:
        return max_tasks(config_of(connector.config))
    except ConfigError:
        return 0


def _config_bytes(config: Iterable[ConfigEntry]) -> int:
    """Size of an encoded configuration: two lengths and the tags besides each name and value."""
    return sum([_bytes(entry.name) + _bytes(entry.value) + (3 if len(entry.value) < 42 else 6) for entry in config])


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


MAX_RESTART_REQUESTS = 100
"""Restart requests of lost members that a group keeps; the oldest is dropped. Some members never join again."""


class ConnectDraft(GroupDraft[MemberRecord, Unit]):
    """A connect group with the records of the current step applied to it.

    Attributes, besides those of ``GroupDraft``:
        delays: delayed units, by the member they are reserved for.
        silent_ms: for how long the member that this step removes has sent no heartbeat.
    """

    group: ConnectGroupState

    def __init__(self, group: ConnectGroupState, now_ms: int) -> None:
        super().__init__(group, now_ms)
        self.silent_ms = 0
        self.delays: dict[str, DelayRecord] = dict(group.delays)
        self._rebalance = group.latest_rebalance  # a rebalance that this step begins replaces it

    def write(self, record: Record) -> None:
        """Add a record; later reads of the draft include it."""
        super().write(record)
        match record:
            case DelayRecord():
                self.delays[record.member_id] = record
            case Tombstone(key=Key(kind=Kind.DELAY)):
                self.delays.pop(record.key.name, None)
            case _:
                pass

    def _current_record(self, member_id: str, current: Current[Unit]) -> CurrentRecord:
        return CurrentRecord(
            group_id=self.group_id,
            member_id=member_id,
            epoch=current.epoch,
            previous_epoch=current.previous_epoch,
            state=MemberState(current.state),
            assigned=held(current.assigned),
            pending=held(current.pending),
            at_ms=self.now_ms,
        )

    def _target_record(self, member_id: str, target: Target[Unit]) -> TargetMemberRecord:
        return TargetMemberRecord(
            group_id=self.group_id,
            member_id=member_id,
            units=grouped(target.units),
            error=target.error,
            version=target.version,
            metadata=target.metadata,
        )

    def raise_target(self) -> None:
        """Keep the installed target assignment, with the changes of this step, under the newest group epoch.

        No new computation is done or needed.
        """
        self.write(
            TargetRecord(
                group_id=self.group.group_id,
                epoch=self.epoch,
                assignor=self.group.target_assignor,
                computed_by=self.group.computed_by,
                deferred=self.group.deferred,
                deferred_starts=self.group.deferred_starts,
                at_ms=self.group.target_ms,
            )
        )

    def assignable_members(self) -> list[MemberRecord]:
        """Members that may be assigned units: no draining ones, unless no other member is there to take their units."""
        members = list(self.members())
        return [member for member in members if not member.draining] if self._has_takers() else members

    def _has_takers(self) -> bool:
        """Whether a member that does not drain is there to take units."""
        return self.any_member(lambda member: not member.draining and self._is_present(member))

    def _is_present(self, member: MemberRecord) -> bool:
        return not self.current(member.member_id).temporarily_left

    def metadata_bytes(self, *, without: str) -> int:
        """The size of the metadata of all members' assignors but one's; members of this step do not count."""
        known = self.group.members.get(without)
        return self.group.metadata_bytes - (0 if known is None else sum(len(info.metadata) for info in known.assignors))

    def computing_members(self) -> Container[str]:
        """Members that may compute: present, and not draining unless no other member can take units.

        A member of the classic protocol only if there is no other: it is asked with its next heartbeat, which is not
        parked.
        """
        has_takers = self._has_takers()

        def may_compute(member: MemberRecord) -> bool:
            return self._is_present(member) and not (has_takers and member.draining)

        asks_connect = self.any_member(lambda member: not member.classic and may_compute(member))
        return Those(self, lambda member: may_compute(member) and not (asks_connect and member.classic))

    def placed(self) -> Units:
        """All units that are in a member's target assignment."""
        return NO_UNITS.union(*(self.target(member.member_id).units for member in self.members()))

    def eligible(self, member_id: str) -> Units:
        """The units of a member's target assignment that may be assigned now.

        Excludes units that were deleted since, and units whose configuration is newer than the target assignment
        (reliability S10).
        """
        runnable, newest = self.group.runnable, self.target_epoch
        return frozenset(unit for unit in self.target(member_id).units if runnable.get(unit, newest + 1) <= newest)

    def waiting_member(self, delay: DelayRecord) -> str | None:
        """The member that a delay reserves units for, once it has returned under its member id or its instance id."""
        if self.member(delay.member_id) is not None:
            return delay.member_id
        if delay.instance_id is None:
            return None
        for member in self._members.values():
            if member is not None and member.instance_id == delay.instance_id:
                return member.member_id
        known = self.member(self.group.instances.get(delay.instance_id, ""))
        return known.member_id if known is not None and known.instance_id == delay.instance_id else None

    def is_back(self, delay: DelayRecord, served: Container[str] | None = None) -> bool:
        """Whether the member of a delay has returned, and is in ``served`` if that is given."""
        member_id = self.waiting_member(delay)
        return member_id is not None and (served is None or member_id in served)

    def lost_units(self, served: Container[str] | None = None) -> Units:
        """Units that must not be assigned now: those of lost workers that have not returned (S15).

        Args:
            served: if given, only the return of these members counts.
        """
        if not self.delays:
            return NO_UNITS
        lost = [delay for delay in self.delays.values() if delay.member_id and not self.is_back(delay, served)]
        return NO_UNITS.union(*(self.waiting(delay) for delay in lost))

    def waiting(self, delay: DelayRecord) -> Units:
        """The units of a delay that are still delayed: not those deleted, created again or reconfigured since."""
        runnable, epoch = self.group.runnable, delay.epoch
        return frozenset(unit for unit in units_of(delay.units) if runnable.get(unit, epoch + 1) <= epoch)

    def bump(self, cause: str, *, restart_request: str = "", above: int = 0) -> None:
        """Advance the group epoch: a new assignment is needed (KIP-848, the causes listed under "Group Epoch").

        Several causes in one step share one epoch. Causes that arrive before a target assignment has been installed for
        the last epoch are added to that rebalance, since one computation covers them all.

        Args:
            restart_request: a lost member whose restart an operator has requested; kept until the member joins again.
            above: the new group epoch is higher than this one.
        """
        last = self._rebalance
        unanswered = last is not None and last.epoch > self.target_epoch
        if not self._bumped or above >= self.epoch:
            self._bumped = True
            if last is not None and unanswered:
                self.forget(Kind.REBALANCE, str(last.epoch))
            requests = [each for each in self.group.restart_requests if self.member(each) is None]
            if restart_request:
                requests = [*requests, restart_request][-MAX_RESTART_REQUESTS:]
            self.write(
                GroupRecord(
                    group_id=self.group.group_id,
                    epoch=max(self.epoch, above) + 1,
                    created_ms=self.created_ms,
                    restart_requests=tuple(requests),
                )
            )
            if self.epoch - HISTORY in self.group.rebalances:
                self.forget(Kind.REBALANCE, str(self.epoch - HISTORY))
        causes = (*last.causes, cause) if last is not None and unanswered else (cause,)
        started_ms = last.started_ms if last is not None and unanswered else self.now_ms
        self._rebalance = Rebalance(epoch=self.epoch, causes=causes[-HISTORY:], started_ms=started_ms)
        self.write(RebalanceRecord(group_id=self.group.group_id, rebalance=self._rebalance, silent_ms=self.silent_ms))


# --------------------------------------------------------------------------------------------------
# A group of a log that was put back from an older copy: its fencing tokens are lower than those its sinks have seen.
#
# The owner of a task that its sink rejects reports the sink's token. If it is a token of this group, and higher than
# the one that the group has issued to the owner, the log is an older copy: the group epoch is raised above the token,
# and the connector's tasks are revoked and assigned again. The group epoch may have passed the token by then, because
# of another connector. ``connectgroup groups recover`` does the same for all connectors before any task starts.


EPOCHS_PER_S: Final = 10
"""ConnectGroupState epochs that a group has used in each second since it was created, at most."""
FIRST_EPOCHS: Final = 1_000
"""ConnectGroupState epochs that a group may have used however young it is."""
EPOCH_BITS: Final = 32


def missing_epoch(token: int, *, owner_epoch: int, created_ms: int, now_ms: int) -> int | None:
    """Return the epoch of a fencing token that the group must have issued after the copy of its log was made.

    Args:
        token: the token that a sink has seen (``connector.fencing_token``).
        owner_epoch: that of the owner whose unit the sink has rejected.
        created_ms: when the group was created. A token of another time belongs to another group with this connector.
        now_ms: the wall clock.

    Returns:
        ``None`` if there is no such epoch, or if the group cannot have reached it in its lifetime: members must not be
        able to use up the epochs. At ``EPOCHS_PER_S``, the 31 bits of an epoch last for almost seven years.
    """
    incarnation, theirs = token >> EPOCH_BITS, token & ((1 << EPOCH_BITS) - 1)
    limit = FIRST_EPOCHS + EPOCHS_PER_S * max(0, now_ms - created_ms) // 1_000
    return theirs if incarnation == created_ms // 1_000 and owner_epoch < theirs <= limit else None


def issue_above(draft: ConnectDraft, rejected: Iterable[TaskStatus]) -> None:
    """Assign the tasks of connectors again, at an epoch above those of the tokens that their sinks have seen.

    Args:
        rejected: statuses of the present owners of units, each with the token for which its sink has rejected it.
    """
    group = draft.group
    newest: dict[str, int] = {}
    for status in rejected:
        theirs = missing_epoch(
            status.fenced_by, owner_epoch=status.owner_epoch, created_ms=group.created_ms, now_ms=draft.now_ms
        )
        # A grant before ``since_epoch`` ends anyway: its revocation is pending.
        ends = group.runnable[Unit(status.connector, status.task)] > status.owner_epoch
        if theirs is not None and not ends:
            newest[status.connector] = max(theirs, newest.get(status.connector, theirs))
    for connector, theirs in newest.items():
        draft.bump(f"{connector}: its sink has seen owner epoch {theirs}: the log is an older copy", above=theirs)
        record = group.connectors[connector]
        tasks = tuple(replace(task, since_epoch=draft.epoch) for task in record.tasks)
        draft.write(replace(record, tasks=tasks))
