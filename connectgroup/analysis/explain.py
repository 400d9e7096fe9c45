"""Explanations from the description of a group: its rebalances, and one task.

The placement constraints of a connector (``assignment.*``) that reject a worker, and their order, are those of the
assignor ``weighted``: labels, capacity, and for tasks the limits per worker and per rack, resources of a host, and
anti-affinity. Other units count where the target assignment has them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Set as AbstractSet
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from ..assign.placement import NO_PLACEMENT, Placement, needed_plugins, placement_of
from ..errors import ConfigError, GroupAuthorizationFailed, NameNotFound
from ..protocol.messages.common import config_of, each_unit, units_of
from ..protocol.messages.describe import (
    KEPT,
    NOT_STARTED,
    UNKNOWN,
    DescribedConnector,
    DescribedGroup,
    DescribedMember,
    DescribedUnit,
    Move,
    Rebalance,
)
from ..protocol.units import CONNECTOR, Unit, printable, show

if TYPE_CHECKING:
    from ..client.admin import Admin


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskExplanation:
    """Why a unit runs where it runs, or does not run.

    Attributes:
        unit: its name, ``C`` for a connector and ``C-3`` for a task.
        state: as in the description of the group.
        worker: its owner; empty if there is none.
        owner_epoch: the epoch at which it was assigned; -1 if it has no owner.
        reasons: why it is there, and why it does not run; one sentence each.
        rejected_by: for each worker, the constraints that reject it for this unit.
    """

    unit: str
    state: str
    worker: str
    owner_epoch: int
    reasons: tuple[str, ...]
    rejected_by: dict[str, tuple[str, ...]]


def time_of(at_ms: int) -> str:
    """A wall clock as text: ``2026-11-22T13:26:43.120Z``."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def rebalance_line(rebalance: Rebalance, *, overtaken_by: int = 0) -> str:
    """Format one rebalance as one line: epoch, causes, moves, downtime, and who computed it with which assignor.

    Args:
        overtaken_by: epoch of the rebalance that replaced this one before all members had reached it; 0 if none did.
    """
    parts = [f"epoch {rebalance.epoch}", "; ".join(rebalance.causes) or "?"]
    if rebalance.moved:
        not_started = [move for move in rebalance.moves if move.downtime_ms == NOT_STARTED]
        failed = f", {len(not_started)} of them not started" if not_started else ""
        parts.append(f"{rebalance.moved} moved{failed}{_downtime(rebalance)}")
    if rebalance.started:
        has_restarted = not rebalance.moved and any(move.source for move in rebalance.moves)
        parts.append(f"{rebalance.started} started{_downtime(rebalance) if has_restarted else ''}")
    if rebalance.finished_ms < 0:
        parts.append(f"overtaken by epoch {overtaken_by}" if overtaken_by else "under way")
        return " | ".join(parts)
    if not rebalance.moved + rebalance.started:
        parts.append("nothing moved")
    assignor = f" with {rebalance.assignor}" if rebalance.assignor else ""
    took_ms = rebalance.finished_ms - rebalance.started_ms
    parts.append(f"took {took_ms} ms, computed by {rebalance.computed_by}{assignor}")
    return " | ".join(parts)


class NewRebalances:
    """The lines that a program prints of a group's rebalances as they happen, each once."""

    def __init__(self, after_epoch: int = 0) -> None:
        """Rebalances up to ``after_epoch`` are known already."""
        self._after, self._down = after_epoch, set[int]()

    def lines(self, rebalances: Sequence[Rebalance]) -> Iterator[str]:
        """What is new: rebalances that have finished, and then, when their units run again, for how long these were
        down."""
        for rebalance in rebalances:
            is_down = any(move.source and move.downtime_ms == -1 for move in rebalance.moves)
            if rebalance.epoch > self._after and rebalance.finished_ms >= 0:
                self._after = rebalance.epoch
                yield rebalance_line(rebalance)
                if is_down:
                    self._down.add(rebalance.epoch)
            elif rebalance.epoch in self._down and not is_down:
                self._down.discard(rebalance.epoch)
                yield f"epoch {rebalance.epoch} | all that moved runs again{_downtime(rebalance)}"


def _downtime(rebalance: Rebalance) -> str:
    """How long the units of a rebalance processed nothing, and what the protocol took of that."""
    text = f", maximum downtime {rebalance.max_downtime_ms} ms" if rebalance.max_downtime_ms >= 0 else ""
    if down := sum(move.source != "" and move.downtime_ms == -1 for move in rebalance.moves):
        text += f", {down} not running again" if rebalance.finished_ms >= 0 else ""
    return f"{text}, handover {rebalance.max_handover_ms} ms"


def rebalance_lines(rebalances: Sequence[Rebalance], *, moves: bool) -> Iterator[str]:
    """Format rebalances, oldest first: one line each, and indented lines for delays and, with ``moves``, for moves."""
    for rebalance, after in zip_longest(rebalances, rebalances[1:]):
        yield rebalance_line(rebalance, overtaken_by=after.epoch if after is not None else 0)
        for line in rebalance_details(rebalance, moves=moves):
            yield f"  {line}"


def rebalance_details(rebalance: Rebalance, *, moves: bool) -> Iterator[str]:
    """The delayed units of a rebalance, one line per delay, and with ``moves`` one line per move."""
    for delayed in rebalance.delayed:
        units = show(each_unit(delayed.units), limit=20)
        more = delayed.count - len(units_of(delayed.units))
        reason = f"for worker {delayed.member_id}" if delayed.member_id else "left out by the assignor"
        yield f"delayed until {time_of(delayed.until_ms)} {reason}: {units}" + (f" and {more} more" if more > 0 else "")
    if not moves:
        return
    for move in rebalance.moves:
        yield f"{Unit(move.connector, move.task)}: {move_text(move)}"
    left_out = rebalance.moved + rebalance.started - len(rebalance.moves)
    if left_out > 0 and rebalance.finished_ms >= 0:
        yield f"{left_out} more with a shorter handover; only the {len(rebalance.moves)} longest are kept"


def move_text(move: Move) -> str:
    """Format one move without its unit."""
    if not move.source:
        return f"started on {move.target}"
    downtime = f"handover {move.handover_ms} ms" if move.handover_ms >= 0 else "moving"
    if move.failed_ms:
        downtime += f", failed {move.failed_ms} ms before"
    if move.downtime_ms >= 0:
        downtime = f"downtime {move.downtime_ms} ms ({downtime})"
    elif move.downtime_ms == NOT_STARTED:
        downtime += f", not started: {move.target} released it before it ran"
    elif move.downtime_ms == UNKNOWN:
        downtime += ", downtime not known any more"
    else:
        downtime += ", not reported as running again"
    if move.source == move.target:
        return f"restarted on {move.target}, {downtime}"
    return f"{move.source} -> {move.target or 'no worker'}, {downtime}"


def downtimes_ms(group: DescribedGroup) -> dict[Unit, int]:
    """For how long units that run processed nothing at their last move or restart, in milliseconds, if it is known."""
    owned = {
        Unit(connector.connector, unit.task): unit
        for connector in group.connectors
        for unit in connector.units
        if unit.state == "RUNNING"
    }
    last = {Unit(move.connector, move.task): (each.epoch, move) for each in group.rebalances for move in each.moves}
    return {
        unit: move.downtime_ms
        for unit, (epoch, move) in last.items()
        if move.source and move.downtime_ms >= 0
        # Not of an earlier one: only the longest moves of a rebalance are kept.
        if unit in owned and epoch >= owned[unit].owner_epoch and move.target == owned[unit].member_id
    }


async def downtimes_of(admin: Admin, group_id: str, connectors: Sequence[DescribedConnector]) -> dict[Unit, int]:
    """See ``downtimes_ms``, of connectors that are described without the rebalances of their group.

    Empty for a user who may not describe the group itself.
    """
    try:
        group = await admin.describe(group_id, connectors=())
    except GroupAuthorizationFailed:
        return {}
    return downtimes_ms(replace(group, connectors=tuple(connectors)))


def rebalance_json(rebalance: Rebalance) -> dict[str, Any]:
    """One rebalance as JSON; times in milliseconds since 1970."""
    delayed = [
        {
            "worker": each.member_id,
            "until_ms": each.until_ms,
            "count": each.count,
            "units": [str(unit) for unit in each_unit(each.units)],
        }
        for each in rebalance.delayed
    ]
    return {**asdict(rebalance), "delayed": delayed}


# ---------------------------------------------------------------------------------------------- one task


def find_unit(group: DescribedGroup, name: str) -> Unit:
    """The unit with this name: ``C-3`` is task 3 of connector C, ``C`` the connector itself.

    Raises:
        NameNotFound: the group has no such unit; lists what it has.
    """
    known = {connector.connector: connector for connector in group.connectors}
    connector, dash, task = name.rpartition("-")
    is_number = task.isascii() and task.isdigit() and len(task) < 10 and str(int(task)) == task
    count = len(known[connector].units) - 1 if dash and connector in known and is_number else 0
    if is_number and int(task) < count:
        return Unit(connector, int(task))
    if name in known:
        return Unit(name)
    if count:
        raise NameNotFound("task", printable(name), f"{Unit(connector, 0)} to {Unit(connector, count - 1)}")
    if is_number and connector in known:
        raise NameNotFound("task", printable(name), f"{Unit(connector)}, which has no tasks yet")
    if not known:
        raise NameNotFound("task", printable(name), "nothing: this group has no connectors")
    some = show([Unit(each) for each in known], limit=5)
    raise NameNotFound("task", printable(name), f"a connector ({some}), or CONNECTOR-NUMBER for one of its tasks")


def explain_task(group: DescribedGroup, unit: Unit) -> TaskExplanation:
    """Explain one unit of a group, from a description with all of its connectors."""
    connector = next(each for each in group.connectors if each.connector == unit.connector)
    described = next(each for each in connector.units if each.task == unit.task)
    constraints = Constraints(group)
    reasons = [*_why_here(group, unit, described), *_why_not_running(group, unit, connector, described)]
    assignor = group.assignor_name
    if constraints.is_constrained(unit.connector) and assignor and assignor != "weighted":
        reasons.append(
            f"the connector has placement constraints; {assignor} may ignore them, the assignor weighted does not"
        )
    return TaskExplanation(
        unit=str(unit),
        state=described.state,
        worker=described.member_id,
        owner_epoch=described.owner_epoch,
        reasons=tuple(reasons),
        rejected_by={member_id: why for member_id, why in constraints.rejections(unit) if why},
    )


def task_lines(explanation: TaskExplanation) -> Iterator[str]:
    """Format an explanation, the most important line first."""
    where = f" on {explanation.worker} since epoch {explanation.owner_epoch}" if explanation.worker else ""
    yield f"{explanation.unit}: {explanation.state}{where}"
    for reason in explanation.reasons:
        yield f"  {reason}"
    for worker, why in explanation.rejected_by.items():
        yield f"  worker {worker} is rejected: {'; '.join(why)}"


def _why_here(group: DescribedGroup, unit: Unit, described: DescribedUnit) -> Iterator[str]:
    """The rebalance that assigned the unit to its owner."""
    if not described.member_id:
        return
    epoch, known = described.owner_epoch, group.rebalances
    if not known or known[0].epoch > epoch:
        yield f"assigned at epoch {epoch}, before the last {len(known)} rebalances: the cause is not known any more"
        return
    # Causes that arrive before a target assignment is installed are added to the rebalance of a later epoch.
    rebalance = next((each for each in known if each.epoch >= epoch), known[-1])
    by = f", computed by {rebalance.computed_by}" if rebalance.computed_by else ""
    assignor = f" with {rebalance.assignor}" if rebalance.assignor else ""
    yield f"assigned at epoch {epoch}: {'; '.join(rebalance.causes)}{by}{assignor}"
    for move in rebalance.moves:
        if (move.connector, move.task) == unit:
            yield move_text(move)


def _why_not_running(
    group: DescribedGroup, unit: Unit, connector: DescribedConnector, described: DescribedUnit
) -> Iterator[str]:
    if described.state == "RUNNING":
        yield from _is_moving(group, unit, described.member_id)
    elif described.has_failed_for_good:
        yield f"it has failed, its worker does not try again: {described.message or 'no error message'}"
    elif described.state == "FAILED":
        yield f"it has failed, its worker retries it: {described.message}"
    elif described.state == "STALLED":
        yield f"it has stalled, its worker starts it again: {described.message}"
    elif described.state == "STARTING":
        yield f"worker {described.member_id} has been assigned it and has not reported it as running yet"
        yield from _is_moving(group, unit, described.member_id)
    elif described.state == "WAITING":
        yield f"worker {described.member_id} has left temporarily; the unit is kept for it until its session timeout"
    elif not described.should_run:
        yield f"connector {unit.connector} is {connector.target_state}; resume it to run its tasks"
    else:
        yield from _why_unassigned(group, unit)


def _is_moving(group: DescribedGroup, unit: Unit, owner: str) -> Iterator[str]:
    wanted = _wanted_by(group, unit)
    if wanted and wanted != owner:
        yield f"it is to move: the target assignment gives it to {wanted} once {owner} has stopped it"


def _why_unassigned(group: DescribedGroup, unit: Unit) -> Iterator[str]:
    if not group.members:
        yield "the group has no workers"
        return
    for delayed in group.delayed:
        if unit in units_of(delayed.units):
            left_s = delayed.left_ms / 1000
            if delayed.member_id:
                worker = delayed.instance_id or delayed.member_id
                yield f"delayed {left_s:.1f} s more for lost worker {worker} (scheduled rebalance delay)"
            else:
                why = f": {group.assignor_error}" if group.assignor_error else ""
                yield f"the assignor {group.assignor_name} left it out and is run again in {left_s:.0f} s{why}"
            return
    if group.state == "Assigning" and not group.computing_member and group.assignor_error.startswith(KEPT):
        yield f"nothing is being computed for epoch {group.group_epoch}: {group.assignor_error}"
        yield "the assignor runs again after the next change of the group, and from time to time"
        return
    if group.state == "Assigning":
        by = f"worker {group.computing_member}" if group.computing_member else "the coordinator"
        yield f"the assignment for epoch {group.group_epoch} is being computed by {by}"
        if group.assignor_error:
            yield f"last assignor error: {group.assignor_error}"
        return
    wanted = _wanted_by(group, unit)
    member = next((each for each in group.members if each.member_id == wanted), None)
    if member is None:
        yield "no target assignment has it yet"
    elif member.pending_revocation:
        stopping = show(each_unit(member.pending_revocation))
        yield f"worker {wanted} is to run it and must first stop {stopping}"
    else:
        yield f"worker {wanted} is to run it and has not fetched its assignment yet (its next heartbeat does)"


def _wanted_by(group: DescribedGroup, unit: Unit) -> str:
    """The member whose target assignment has the unit; empty if none has."""
    return next((member.member_id for member in group.members if unit in units_of(member.target)), "")


class Constraints:
    """The placement constraints of all connectors of a group, and the load of its workers.

    Attributes:
        placements: the constraints by connector.
    """

    def __init__(self, group: DescribedGroup) -> None:
        self._group = group
        offered = {label.name for member in group.members for label in member.labels}
        self.placements = {connector.connector: _placement(connector, offered) for connector in group.connectors}
        self._num_tasks = {connector.connector: len(connector.units) - 1 for connector in group.connectors}
        self._targets = {member.member_id: units_of(member.target) for member in group.members}
        self._owned = {
            member.member_id: units_of(member.assigned) | units_of(member.pending_revocation)
            for member in group.members
        }
        self._rack = {member.member_id: member.rack for member in group.members}

    def is_constrained(self, connector: str) -> bool:
        """Whether the connector has constraints other than weights and preferences, or another one excludes it."""
        placement = self.placements.get(connector, NO_PLACEMENT)
        limits = placement.max_per_worker or placement.max_per_rack
        return bool(placement.labels or limits or placement.exclusive or self._apart_from(connector))

    def rejections(self, unit: Unit) -> Iterator[tuple[str, tuple[str, ...]]]:
        """For each member: why the constraints reject it for the unit; empty if they do not."""
        for member in self._group.members:
            yield member.member_id, tuple(self._reasons(unit, member))

    def _reasons(self, unit: Unit, member: DescribedMember) -> Iterator[str]:
        if member.state == "AWAY":
            yield "has left temporarily"
        if member.state == "DRAINING":
            yield "is draining"
        placement = self.placements.get(unit.connector, NO_PLACEMENT)
        labels = {(label.name, label.value) for label in member.labels}
        for name, value in placement.labels:
            if (name, value) not in labels:
                yield f"label {name}={value}: missing"
        others = self._targets[member.member_id] - {unit}
        weight, load = self._weight(unit), sum(map(self._weight, others))
        if weight and member.capacity and load + weight > member.capacity:
            yield f"capacity {member.capacity}: {load} in use, {unit} weighs {weight}"
        if not unit.is_connector:
            yield from self._task_reasons(unit, member, placement)

    def _task_reasons(self, unit: Unit, member: DescribedMember, placement: Placement) -> Iterator[str]:
        here = {other for other in self._targets[member.member_id] if not other.is_connector and other != unit}
        count = Counter(other.connector for other in here)
        if 0 < placement.max_per_worker <= count[unit.connector]:
            yield f"assignment.max.per.worker {placement.max_per_worker}: has {count[unit.connector]}"
        in_rack = sum(
            other.connector == unit.connector and not other.is_connector and other != unit
            for member_id, units in self._targets.items()
            if self._rack[member_id] == member.rack
            for other in units
        )
        if 0 < placement.max_per_rack <= in_rack:
            yield f"assignment.max.per.rack {placement.max_per_rack}: rack {member.rack or '(none)'} has {in_rack}"
        for resource in placement.exclusive:
            if user := self._user_of(resource, unit, member):
                yield f"assignment.exclusive {resource}: used by {user}"
        for connector in sorted(self._apart_from(unit.connector)):
            if count[connector]:
                yield f"assignment.anti.affinity {connector}: has {count[connector]} of its tasks"

    def _user_of(self, resource: str, unit: Unit, member: DescribedMember) -> str:
        """The task that uses a resource of the member's host, or is stopping there; empty if it is free."""
        on_host = [
            each
            for each in self._group.members
            if each.member_id == member.member_id or (each.host and each.host == member.host)
        ]
        for each in on_host:
            target = self._targets[each.member_id]
            for other in sorted(target | self._owned[each.member_id]):
                needs = self.placements.get(other.connector, NO_PLACEMENT).exclusive
                if other != unit and not other.is_connector and resource in needs:
                    return f"{other} on {each.member_id}" + ("" if other in target else ", which is stopping")
        return ""

    def _apart_from(self, connector: str) -> set[str]:
        """Connectors whose tasks must not share a worker with this one's; either of the two may say so."""
        own = set(self.placements.get(connector, NO_PLACEMENT).anti_affinity)
        named = {name for name, placement in self.placements.items() if connector in placement.anti_affinity}
        return (own | named) - {connector}

    def _weight(self, unit: Unit) -> int:
        placement = self.placements.get(unit.connector, NO_PLACEMENT)
        if unit.task == CONNECTOR:
            return placement.weight
        weights = placement.weights_of(self._num_tasks.get(unit.connector, 0))
        return weights[unit.task] if unit.task < len(weights) else 1


def _placement(connector: DescribedConnector, offered: AbstractSet[str]) -> Placement:
    config = config_of(connector.config)
    try:
        placement = placement_of(config)
    except ConfigError:  # from a log older than the check
        placement = NO_PLACEMENT
    needed = needed_plugins(config, offered)
    return replace(placement, labels=tuple(sorted({*placement.labels, *needed}))) if needed else placement
