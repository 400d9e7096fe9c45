"""What another assignor would have done with the history of a group.

Each time the group computed a target assignment, the other assignor gets the members, connectors and delays of that
moment, with its own former assignment instead of the one that was used. Both are counted alike, by their targets: a
unit has moved if its new member is another one than its last member. Units of lost workers are delayed in both.

The other assignor gets further rounds of its own, when the group had reached its target: if moves were deferred by the
limit on moves per round or until units have stopped, and if a delay that it requested has elapsed, at the first record
of the log after the deadline.

Not reproduced, because the log does not have it: the limit on moves per round of the group, which the caller gives; how
long the other assignor would have computed; and that workers would have started and stopped units at other times.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ..assign.api import ConnectAssignor
from ..assign.convert import group_from_prepare, members_for_install
from ..assign.placement import NO_TRAITS
from ..assign.sandbox import configure_assignor, run_assignor
from ..errors import PluginError
from ..group.connect.assignment import group_state, starting_units
from ..group.connect.delay import MIN_DELAY_MS
from ..group.connect.settings import GroupSettings
from ..group.connect.state import ConnectDraft, ConnectGroupState
from ..protocol.messages.assignment import PrepareResponse
from ..protocol.messages.common import grouped, units_of
from ..protocol.records.base import Kind, Tombstone
from ..protocol.records.connect import (
    ComputationRecord,
    CurrentRecord,
    DelayRecord,
    MemberRecord,
    Record,
    TargetMemberRecord,
    TargetRecord,
)
from ..protocol.units import NO_UNITS, Unit, Units
from .model import listed_as

_SETTINGS = GroupSettings()

MAX_ROUNDS = 1_000
"""Rounds for one target assignment of the group: an assignor that always defers something ends there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """One target assignment in numbers.

    Attributes:
        moves: units whose member is another one than their last member.
        starts: units that had no member before.
        imbalance: the highest load of a worker minus the lowest. The load is the weight of its units: 1 for a task, 0
            for a connector, unless ``assignment.*`` says otherwise.
        unassigned: units that are to run and are in no member's target.
        deferred: moves deferred to the next round.
    """

    moves: int
    starts: int
    imbalance: int
    unassigned: int
    deferred: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonStep:
    """One target assignment of the history, and what the other assignor would have computed.

    Attributes:
        epoch: the target epoch.
        used: the assignor that the group used; empty in a further round of the other assignor alone.
        actual: the target assignment of the group.
        other: that of the other assignor.
        error: why the other assignor failed; its former assignment is then kept. Empty if it did not.
        round: 1 for a target assignment of the group; more for further rounds of the other assignor alone.
    """

    epoch: int
    used: str
    actual: Counted
    other: Counted
    error: str = ""
    round: int = 1


class Comparison:
    """Follows the records of a group, in order, with another assignor.

    Attributes:
        assignor: the name of the other assignor.
        steps: the target assignments so far.
    """

    def __init__(self, group_id: str, assignor: ConnectAssignor, *, max_moves: int = 0) -> None:
        """``max_moves``: limit on moves per round of the other assignor; 0: none."""
        self.assignor = assignor.name
        self._max_moves, self._deferred, self._deferred_starts = max_moves, 0, 0
        self.steps: list[ComparisonStep] = []
        configure_assignor(assignor, NO_TRAITS)
        self._assignor = assignor
        self._group_id = group_id
        self._prepared: PrepareResponse | None = None
        self._actual_targets: dict[str, Units] = {}
        # The state of the group with the other assignor's targets.
        self._other = ConnectGroupState(group_id)
        self._last_actual: dict[Unit, str] = {}
        self._last_other: dict[Unit, str] = {}

    def start(self, records: Iterable[Record], actual: ConnectGroupState) -> None:
        """Begin with the state that a compaction left: both assignments are the same."""
        for record in records:
            self._other.apply(self._adapted(record))
        self._actual_targets = {member_id: target.units for member_id, target in actual.targets.items()}
        self._last_actual = dict(actual.wanted_by)
        self._last_other = dict(actual.wanted_by)

    def follow(self, batch: Iterable[Record], actual: ConnectGroupState) -> None:
        """Take one batch of the history.

        Args:
            actual: the group after the batch.
        """
        targets, asked = [], []
        for record in batch:
            match record:
                case TargetRecord():
                    targets.append(record)
                case ComputationRecord(prepared=True):
                    asked.append(record.epoch)
                case TargetMemberRecord():
                    self._actual_targets[record.member_id] = units_of(record.units)
                case ComputationRecord() | CurrentRecord() | DelayRecord(member_id=""):
                    pass  # of the assignor that was used
                case DelayRecord():
                    self._delay(record)
                case Tombstone() if record.key.kind is Kind.DELAY:
                    self._end_delay(record)
                case Tombstone() if record.key.kind is Kind.TARGET_MEMBER:
                    if record.key.name not in actual.members:
                        self._other.apply(record)
                case _:
                    self._other.apply(self._adapted(record))
        if targets and self._other.members:
            self._install(targets[-1], actual)
        self._further_rounds(actual)
        if asked and asked[-1] > self._other.target_epoch:
            # The group may change until the assignment is installed: the input is the group of this moment.
            self._prepared = group_state(ConnectDraft(self._other, actual.clock_ms), self.assignor, _SETTINGS)

    def _adapted(self, record: Record) -> Record:
        """A member lists the other assignor.

        Raises:
            NoPlan: as of ``listed_as``.
        """
        if isinstance(record, MemberRecord):
            info = listed_as(self._assignor, record.assignors, record.member_id)
            return replace(record, assignors=(info,), server_assignor=None)
        return record

    def _delay(self, record: DelayRecord) -> None:
        """Delay the units that the lost worker has in the other assignment, except those that had not started there."""
        not_started = self._actual_targets.get(record.member_id, NO_UNITS) - units_of(record.units)
        units = (self._other.target(record.member_id).units & self._other.runnable.keys()) - not_started
        self._other.apply(replace(record, units=grouped(units)))

    def _end_delay(self, record: Tombstone) -> None:
        """Give the delayed units to their worker if it has returned."""
        delay = self._other.delays.get(record.key.name)
        draft = ConnectDraft(self._other, 0)
        member_id = draft.waiting_member(delay) if delay is not None else None
        if delay is not None and member_id is not None:
            units = self._other.target(member_id).units | draft.waiting(delay)
            self._apply_target(member_id, units)
        self._other.apply(record)

    def _apply_target(self, member_id: str, units: Iterable[Unit], metadata: bytes = b"") -> None:
        self._other.apply(
            TargetMemberRecord(group_id=self._group_id, member_id=member_id, units=grouped(units), metadata=metadata)
        )

    def _further_rounds(self, actual: ConnectGroupState) -> None:
        """Run the other assignor again if its last round was not its final one and the group was at rest."""
        if not actual.members or not self._other.members or actual.behind or actual.epoch != actual.target_epoch:
            return
        for number in range(2, MAX_ROUNDS):
            delay = self._other.delays.get("")
            has_elapsed = delay is not None and delay.deadline_ms <= actual.clock_ms
            have_started = self._deferred_starts and not starting_units(ConnectDraft(actual, 0))
            if not (self._deferred or has_elapsed or have_started):
                return
            if delay is not None and has_elapsed:
                self._other.apply(Tombstone(delay.key))
            target = TargetRecord(group_id=self._group_id, epoch=actual.target_epoch, at_ms=actual.clock_ms)
            self._install(target, actual, number=number)

    def _install(self, target: TargetRecord, actual: ConnectGroupState, *, number: int = 1) -> None:
        draft = ConnectDraft(self._other, target.at_ms)
        prepared, self._prepared = self._prepared, None
        if prepared is None or prepared.group_epoch != target.epoch:
            prepared = group_state(draft, self.assignor, _SETTINGS)
        error, self._deferred, self._deferred_starts = "", 0, 0
        try:
            assignment = run_assignor(self._assignor, group_from_prepare(prepared))
            if assignment.error:
                raise PluginError(assignment.message or f"error {assignment.error}")
            installed = {member.member_id: member for member in members_for_install(assignment)}
            lost = draft.lost_units(None if prepared.group_epoch == self._other.epoch else set(installed))
            shares = dict.fromkeys(sorted(self._other.members), NO_UNITS)
            shares |= {name: units_of(member.units) - lost for name, member in installed.items() if name in shares}
            kept = self._keep_starting(shares, assignment.delayed, actual)
            delayed = assignment.delayed - lost - kept
            # Units left out until their owner has stopped them are assigned in the next round.
            self._deferred = sum(unit in self._other.wanted_by for unit in delayed)
            self._deferred += self._limit_moves(shares)
            for member_id, units in shares.items():
                metadata = installed[member_id].metadata if member_id in installed else b""
                self._apply_target(member_id, units, metadata)
            self._deferred_starts = len(kept)
            self._request_delay(delayed, assignment.delay_ms, target)
        except PluginError as failure:
            error = str(failure)
        self._other.apply(replace(target, assignor=self.assignor))
        step = ComparisonStep(
            epoch=target.epoch,
            used=target.assignor,
            actual=_count(actual, self._last_actual, prepared, target.deferred),
            other=_count(self._other, self._last_other, prepared, self._deferred),
            error=error,
            round=number,
        )
        self.steps.append(step)

    def _keep_starting(self, shares: dict[str, Units], left_out: Units, actual: ConnectGroupState) -> Units:
        """Keep units where they are starting, if they are there in the other assignment too; return those kept."""
        kept = set()
        for unit in starting_units(ConnectDraft(actual, 0)):
            owner = actual.statuses[unit].member_id
            elsewhere = unit in left_out or any(unit in units for name, units in shares.items() if name != owner)
            if elsewhere and owner in shares and self._other.wanted_by.get(unit) == owner:
                kept.add(unit)
                shares |= {name: units - {unit} for name, units in shares.items()}
                shares[owner] |= {unit}
        return frozenset(kept)

    def _limit_moves(self, shares: dict[str, Units]) -> int:
        """Keep units beyond the limit on their members; return how many: ``connect.assignment.limit_moves``."""
        if not self._max_moves:
            return 0
        owners = {unit: owner for unit, owner in self._other.wanted_by.items() if owner in shares}
        moves = [(unit, name) for name, units in shares.items() for unit in units if owners.get(unit, name) != name]
        for unit, member_id in sorted(moves)[self._max_moves :]:
            shares[member_id] -= {unit}
            shares[owners[unit]] |= {unit}
        return max(0, len(moves) - self._max_moves)

    def _request_delay(self, units: Units, delay_ms: int, target: TargetRecord) -> None:
        """Start the delay that the other assignor requests, or end the former one. A deadline is never extended."""
        before = self._other.delays.get("")
        if delay_ms:
            deadline_ms = target.at_ms + max(delay_ms, MIN_DELAY_MS)
            if before is not None and units and units <= units_of(before.units):
                deadline_ms = min(deadline_ms, before.deadline_ms)
            record = DelayRecord(
                group_id=self._group_id,
                units=grouped(units),
                delay_ms=delay_ms,
                deadline_ms=deadline_ms,
                epoch=target.epoch,
            )
            self._other.apply(record)
        elif before is not None:
            self._other.apply(Tombstone(before.key))


def _count(group: ConnectGroupState, last: dict[Unit, str], prepared: PrepareResponse, deferred: int) -> Counted:
    """Count one target assignment, and update the last member of each unit."""
    wanted = {unit: member_id for unit, member_id in group.wanted_by.items() if unit in group.runnable}
    moves = sum(unit in last and last[unit] != member_id for unit, member_id in wanted.items())
    starts = sum(unit not in last for unit in wanted)
    last.update(wanted)
    for unit in last.keys() - group.runnable.keys():
        del last[unit]
    weights = {entry.connector: (entry.weight, entry.task_weights) for entry in prepared.connectors}
    load = {member.member_id: 0 for member in prepared.members}
    for (connector, task), member_id in wanted.items():
        weight, task_weights = weights.get(connector, (0, ()))
        of_task = task_weights[task] if 0 <= task < len(task_weights) else 1
        if member_id in load:
            load[member_id] += of_task if task >= 0 else weight
    return Counted(
        moves=moves,
        starts=starts,
        imbalance=max(load.values(), default=0) - min(load.values(), default=0),
        unassigned=len(group.runnable) - len(wanted),
        deferred=deferred,
    )
