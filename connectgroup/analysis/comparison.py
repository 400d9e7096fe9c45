"""What another assignor would have done with the history of a group.

Each time the group computed a target assignment, the other assignor gets the members, connectors and delays of that
moment, with its own former assignment instead of the one that was used. Both are counted alike, by their targets: a
unit has moved if its new member is another one than its last member. Units of lost workers are delayed in both.

Not reproduced, because the log does not have it: a limit on moves per round, and delays that an assignor requests.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ..assign.api import ConnectAssignor
from ..assign.convert import assignor_info, group_from_prepare, members_for_install
from ..assign.sandbox import run_assignor
from ..errors import PluginError
from ..group.connect.overlay import Overlay
from ..group.connect.settings import GroupSettings
from ..group.connect.state import Group
from ..group.connect.target import group_state
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

_SETTINGS = GroupSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """One target assignment in numbers.

    Attributes:
        moves: units whose member is another one than their last member.
        starts: units that had no member before.
        imbalance: the highest load of a worker minus the lowest. The load is the weight of its units: 1 for a task, 0
            for a connector, unless ``assignment.*`` says otherwise.
        unassigned: units that are to run and are in no member's target.
    """

    moves: int
    starts: int
    imbalance: int
    unassigned: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One target assignment of the history, and what the other assignor would have computed.

    Attributes:
        epoch: the target epoch.
        used: the assignor that the group used.
        actual: the target assignment of the group.
        other: that of the other assignor.
        error: why the other assignor failed; its former assignment is then kept. Empty if it did not.
    """

    epoch: int
    used: str
    actual: Counted
    other: Counted
    error: str = ""


class Comparison:
    """Follows the records of a group, in order, with another assignor.

    Attributes:
        assignor: the name of the other assignor.
        steps: the target assignments so far.
    """

    def __init__(self, group_id: str, assignor: ConnectAssignor) -> None:
        self.assignor = assignor.name
        self.steps: list[Step] = []
        self._assignor, self._info = assignor, assignor_info(assignor)
        self._group_id = group_id
        self._prepared: PrepareResponse | None = None
        self._actual_targets: dict[str, Units] = {}
        # The state of the group with the other assignor's targets.
        self._other = Group(group_id)
        self._last_actual: dict[Unit, str] = {}
        self._last_other: dict[Unit, str] = {}

    def start(self, records: Iterable[Record], actual: Group) -> None:
        """Begin with the state that a compaction left: both assignments are the same."""
        for record in records:
            self._other.apply(self._adapted(record))
        self._actual_targets = {member_id: target.units for member_id, target in actual.targets.items()}
        self._last_actual = dict(actual.wanted_by)
        self._last_other = dict(actual.wanted_by)

    def follow(self, batch: Iterable[Record], actual: Group) -> None:
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
        if asked and asked[-1] > self._other.target_epoch:
            # The group may change until the assignment is installed: the input is the group of this moment.
            self._prepared = group_state(Overlay(self._other, actual.clock_ms), self.assignor, _SETTINGS)

    def _adapted(self, record: Record) -> Record:
        """A member lists the other assignor."""
        if isinstance(record, MemberRecord):
            return replace(record, assignors=(self._info,), server_assignor=None)
        return record

    def _delay(self, record: DelayRecord) -> None:
        """Delay the units that the lost worker has in the other assignment, except those that had not started there."""
        not_started = self._actual_targets.get(record.member_id, NO_UNITS) - units_of(record.units)
        units = (self._other.target(record.member_id).units & self._other.runnable.keys()) - not_started
        self._other.apply(replace(record, units=grouped(units)))

    def _end_delay(self, record: Tombstone) -> None:
        """Give the delayed units to their worker if it has returned."""
        delay = self._other.delays.get(record.key.name)
        overlay = Overlay(self._other, 0)
        member_id = overlay.waiting_member(delay) if delay is not None else None
        if delay is not None and member_id is not None:
            units = self._other.target(member_id).units | overlay.waiting(delay)
            self._apply_target(member_id, units)
        self._other.apply(record)

    def _apply_target(self, member_id: str, units: Iterable[Unit], metadata: bytes = b"") -> None:
        self._other.apply(
            TargetMemberRecord(group_id=self._group_id, member_id=member_id, units=grouped(units), metadata=metadata)
        )

    def _install(self, target: TargetRecord, actual: Group) -> None:
        overlay = Overlay(self._other, target.at_ms)
        prepared, self._prepared = self._prepared, None
        if prepared is None or prepared.group_epoch != target.epoch:
            prepared = group_state(overlay, self.assignor, _SETTINGS)
        error = ""
        try:
            assignment = run_assignor(self._assignor, group_from_prepare(prepared))
            if assignment.error:
                raise PluginError(assignment.message or f"error {assignment.error}")
            installed = {member.member_id: member for member in members_for_install(assignment)}
            lost = overlay.lost_units(None if prepared.group_epoch == self._other.epoch else set(installed))
            for member_id in sorted(self._other.members):
                member = installed.get(member_id)
                units = units_of(member.units) - lost if member else frozenset()
                self._apply_target(member_id, units, member.metadata if member else b"")
        except PluginError as failure:
            error = str(failure)
        self._other.apply(replace(target, assignor=self.assignor))
        step = Step(
            epoch=target.epoch,
            used=target.assignor,
            actual=_count(actual, self._last_actual, prepared),
            other=_count(self._other, self._last_other, prepared),
            error=error,
        )
        self.steps.append(step)


def _count(group: Group, last: dict[Unit, str], prepared: PrepareResponse) -> Counted:
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
    )
