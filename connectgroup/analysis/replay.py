"""The history of a group from its log, for bug reports; and what another assignor would have done with it.

    history = connectgroup.replay("connectgroup-data/groups.sqlite", "workers")
    print(*history.lines(), sep="\\n")

The log is only read: its coordinator may run meanwhile and is not fenced. No configuration is in the output.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..assign.api import ConnectAssignor
from ..errors import ConfigError, LogError
from ..group.connect.describe import describe
from ..group.connect.state import ConnectGroupState
from ..log.sqlite.reader import StoredGroup, log_file, stored_group, stored_groups
from ..masking import masked_text
from ..plugins import load_assignor
from ..protocol.messages.common import units_of
from ..protocol.messages.describe import DescribedGroup, Rebalance
from ..protocol.records.base import Kind, Tombstone
from ..protocol.records.connect import (
    GROUP_TYPE,
    ComputationRecord,
    ConnectorRecord,
    CurrentRecord,
    DelayRecord,
    GroupRecord,
    MemberRecord,
    RebalanceRecord,
    Record,
    StatusRecord,
    TargetRecord,
    UnitState,
    epochs_of,
)
from ..protocol.units import Unit, counted, printable, show
from .comparison import Comparison, ComparisonStep, Counted
from .explain import rebalance_json, rebalance_line, rebalance_lines, time_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One change of a group.

    Attributes:
        at_ms: wall clock of the coordinator, milliseconds since 1970: the latest time that the log had at this point.
            Changes of connectors alone have no time of their own.
        epoch: the group epoch after the change.
        text: what changed, one line.
    """

    at_ms: int
    epoch: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupHistory:
    """The history of a group, as far as its log has it.

    Attributes:
        log: the file.
        group_id: the group.
        complete: whether the log has every record of the group; otherwise it was compacted, and ``earlier`` is all that
            is known of the time before.
        earlier: the rebalances before the first event.
        events: every change since then, in order.
        final: the group at the end of the log, credentials masked.
        compared_with: the name of the other assignor; empty if there was none.
        steps: each target assignment since then, with that of the other assignor.
    """

    log: str
    group_id: str
    complete: bool
    earlier: tuple[Rebalance, ...]
    events: tuple[Event, ...]
    final: DescribedGroup
    compared_with: str = ""
    steps: tuple[ComparisonStep, ...] = ()

    def lines(self) -> Iterator[str]:
        """The history as text, oldest first; then the state at the end, and the comparison."""
        yield f"group {self.group_id} in {self.log}"
        if not self.complete:
            yield f"the log was compacted: {len(self.earlier)} earlier rebalances are known, without their events"
            yield from rebalance_lines(self.earlier, moves=False)
        for event in self.events:
            yield f"{time_of(event.at_ms)} epoch {event.epoch}: {event.text}"
        yield f"at the end: {self.final.state}, epoch {self.final.group_epoch}, target {self.final.assignment_epoch}"
        for member in self.final.members:
            yield f"  worker {member.member_id}: {member.state}, epoch {member.member_epoch}"
        for connector in self.final.connectors:
            for unit in connector.units:
                where = f" on {unit.member_id} since epoch {unit.owner_epoch}" if unit.member_id else ""
                message = f": {unit.message}" if unit.message else ""
                yield f"  {Unit(connector.connector, unit.task)}: {unit.state}{where}{message}"
        if self.compared_with:
            yield from _comparison_lines(self.compared_with, self.steps)

    def to_json(self) -> dict[str, Any]:
        """The history as values for JSON."""
        return {
            "log": self.log,
            "group_id": self.group_id,
            "complete": self.complete,
            "earlier": [rebalance_json(rebalance) for rebalance in self.earlier],
            "events": [asdict(event) for event in self.events],
            "state": self.final.state,
            "group_epoch": self.final.group_epoch,
            "owners": {
                str(Unit(connector.connector, unit.task)): unit.member_id
                for connector in self.final.connectors
                for unit in connector.units
                if unit.member_id
            },
            "compared_with": self.compared_with,
            "steps": [asdict(step) for step in self.steps],
        }


def replay(
    log: str | Path,
    group: str | None = None,
    *,
    assignor: str | ConnectAssignor | None = None,
    max_moves: int = 0,
) -> GroupHistory:
    """Read the history of a group from a log, without opening the log as its owner.

    Args:
        log: ``sqlite:///path``, the path of the file, or the data directory of a coordinator.
        group: the group; not needed if the log has one group only.
        assignor: an assignor to compare with, or the name of an installed one.
        max_moves: limit on moves per round of that assignor (``GroupSettings.max_moves``), which the log does not have.

    Raises:
        ConfigError: the log, the group or the assignor does not exist; names what is allowed.
        LogError: the log cannot be read, or records of the group are damaged.
    """
    path = log_file(log)
    other = load_assignor(assignor) if isinstance(assignor, str) else assignor
    known = stored_groups(path)
    if group is None and len(known) == 1:
        group = known[0]
    if group is None or group not in known:
        got = "no group" if group is None else printable(group)
        raise ConfigError("group", got, f"a group in {path}: {printable(', '.join(known), limit=300) or 'it has none'}")
    stored = stored_group(path, group)
    group_type = _type_of(stored)
    if group_type != GROUP_TYPE:
        raise ConfigError("group", printable(group), f"a group of type {GROUP_TYPE} (it is of type {group_type})")
    return history_of(str(path), group, stored, other, max_moves=max_moves)


def _type_of(stored: StoredGroup) -> str:
    """The type of a group, from its newest ``GroupRecord``."""
    records = [*stored.snapshot, *(record for batch in stored.batches for record in batch)]
    return next((each.group_type for each in reversed(records) if isinstance(each, GroupRecord)), GROUP_TYPE)


def history_of(
    log: str, group_id: str, stored: StoredGroup, other: ConnectAssignor | None, *, max_moves: int = 0
) -> GroupHistory:
    """The history of stored records; a function of its arguments, apart from what the other assignor does."""
    group = ConnectGroupState(group_id)
    for record in stored.snapshot:
        group.apply(record)
    comparison = None if other is None else Comparison(group_id, other, max_moves=max_moves)
    if comparison is not None:
        comparison.start(stored.snapshot, group)
    earlier = tuple(group.rebalances.values())
    events: list[Event] = []
    at_ms = 0
    for batch in stored.batches:
        texts: list[tuple[int, str]] = []
        for record in batch:
            found = list(_texts(group, record))
            group.apply(record)
            texts += [(group.epoch, text) for text in found]
        # All records of a batch were written at the same moment.
        reported = [record.at_ms for record in batch if isinstance(record, StatusRecord)]
        at_ms = max(at_ms, group.clock_ms, group.target_ms, *reported)
        events += [Event(at_ms=at_ms, epoch=epoch, text=text) for epoch, text in texts]
        if comparison is not None:
            comparison.follow(batch, group)
    return GroupHistory(
        log=log,
        group_id=group_id,
        complete=not stored.snapshot,
        earlier=earlier,
        events=tuple(events),
        final=describe(group, group.clock_ms),
        compared_with="" if comparison is None else comparison.assignor,
        steps=() if comparison is None else tuple(comparison.steps),
    )


# ---------------------------------------------------------------------------------------------- events


def _texts(group: ConnectGroupState, record: Record) -> Iterator[str]:
    """What a record changes, as lines.

    Args:
        group: the group before the record.
    """
    match record:
        case RebalanceRecord(rebalance=rebalance) if rebalance.finished_ms >= 0:
            yield f"rebalance ended: {rebalance_line(rebalance)}"
        case RebalanceRecord(rebalance=rebalance):
            yield f"rebalance of epoch {rebalance.epoch}: {rebalance.causes[-1] if rebalance.causes else '?'}"
        case MemberRecord() if record.member_id not in group.members:
            named = f", instance {record.instance_id}" if record.instance_id else ""
            listed = ", ".join(info.name for info in record.assignors) or record.server_assignor or "no assignor"
            host = record.client_host or "an unknown host"
            yield f"worker {record.member_id} joined from {host}{named}; lists {listed}"
        case MemberRecord() if record.draining and not group.members[record.member_id].draining:
            yield f"worker {record.member_id} is draining"
        case TargetRecord() if record.epoch != group.target_epoch:
            by = f", computed by {record.computed_by} with {record.assignor}" if record.assignor else ""
            deferred = f"; {counted(record.deferred, 'move')} deferred to the next round" if record.deferred else ""
            if record.deferred_starts:
                deferred += f"; {counted(record.deferred_starts, 'move')} deferred until the units have started"
            yield f"target assignment of epoch {record.epoch}{by}{deferred}"
        case CurrentRecord():
            yield from _current_texts(group, record)
        case ComputationRecord() if record.error and (
            group.computation is None or record.error != group.computation.error
        ):
            yield f"computation: {masked_text(record.error)}"
        case DelayRecord():
            reason = f"for lost worker {record.member_id}" if record.member_id else "at the request of the assignor"
            yield f"delayed until {time_of(record.deadline_ms)} {reason}: {show(units_of(record.units))}"
        case StatusRecord() if record.without_numbers() == group.statuses.get(Unit(record.connector, record.task)):
            pass  # written again for its numbers
        case StatusRecord(state=UnitState.FAILED | UnitState.STALLED as state):
            unit = Unit(record.connector, record.task)
            yield f"{unit} {state.name} on {record.member_id}: {masked_text(record.message)}"
        case StatusRecord():
            yield f"{Unit(record.connector, record.task)} {record.state.name} on {record.member_id}"
        case ConnectorRecord():
            yield f"connector {record.connector}: {record.target_state.name}, {counted(len(record.tasks), 'task')}"
        case Tombstone() if record.key.kind is Kind.MEMBER and record.key.name in group.members:
            yield f"worker {record.key.name} removed"
        case Tombstone() if record.key.kind is Kind.CONNECTOR and record.key.name in group.connectors:
            yield f"connector {record.key.name} removed"
        case Tombstone() if record.key.kind is Kind.GROUP:
            yield "group deleted"
        case _:
            pass


def _current_texts(group: ConnectGroupState, record: CurrentRecord) -> Iterator[str]:
    """What a member must stop, has stopped, and has been assigned."""
    before, pending = group.current(record.member_id), epochs_of(record.pending).keys()
    held = epochs_of(record.assigned).keys() | pending
    who = f"worker {record.member_id}"
    if revoked := pending - before.pending.keys():
        yield f"{who} is to stop {show(revoked)}"
    if stopped := before.held.keys() - held:
        yield f"{who} has stopped {show(stopped)}"
    if assigned := held - before.held.keys():
        yield f"{who} is assigned {show(assigned)}, member epoch {record.epoch}"


# ---------------------------------------------------------------------------------------------- comparison


def _comparison_lines(assignor: str, steps: tuple[ComparisonStep, ...]) -> Iterator[str]:
    """Two columns: the assignor that was used, and the other one."""
    if not steps:
        yield f"compared with {assignor}: the log has no target assignment after its last compaction"
        return
    used = ", ".join(sorted({step.used for step in steps if step.used})) or "none"
    yield f"{'':>12}  {used:<44}  {assignor}"
    for step in steps:
        failed = f"  ({step.error})" if step.error else ""
        where = f"epoch {step.epoch:>6}" if step.round == 1 else f"{f'round {step.round}':>12}"
        actual = _counted(step.actual) if step.round == 1 else "-"
        yield f"{where}  {actual:<44}  {_counted(step.other)}{failed}"
    yield f"{'in all':>12}  {_total([step.actual for step in steps]):<44}  {_total([step.other for step in steps])}"


def _counted(counted: Counted) -> str:
    left_out = f", {counted.unassigned} unassigned" if counted.unassigned else ""
    deferred = f", {counted.deferred} deferred" if counted.deferred else ""
    return f"{counted.moves} moved{deferred}, {counted.starts} started, imbalance {counted.imbalance}{left_out}"


def _total(counted: list[Counted]) -> str:
    moves, worst = sum(each.moves for each in counted), max(each.imbalance for each in counted)
    return f"{moves} moved, imbalance {counted[-1].imbalance} at the end, {worst} at most"


__all__ = ["Comparison", "ComparisonStep", "Event", "GroupHistory", "LogError", "history_of", "replay"]
