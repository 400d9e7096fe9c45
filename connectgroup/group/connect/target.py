"""The target assignment: the input of an assignor, the validation of its result, and the installation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence, Set as AbstractSet
from dataclasses import replace
from zlib import crc32

from ...assign.legality import first_violation
from ...assign.placement import NO_PLACEMENT, PREFIX, placement_of
from ...errors import ConfigError
from ...protocol.messages.assignment import (
    AssignorMetadata,
    InstalledMember,
    InstallRequest,
    PreparedConnector,
    PreparedMember,
    PrepareResponse,
)
from ...protocol.messages.common import config_of, each_unit, units_of
from ...protocol.records.base import Kind, Tombstone
from ...protocol.records.connect import ConnectorRecord, TargetRecord, TargetState
from ...protocol.units import CONNECTOR, NO_UNITS, Unit, Units
from ..kernel.outcome import Outcome
from ..kernel.selection import info_of
from ..kernel.timers import CancelTimer, Timer, TimerKey, TimerKind
from ..registry import ConnectorNumbers, GroupNumbers
from . import delay, members, timers as timing
from .overlay import Overlay
from .settings import GroupSettings, ServerAssignment
from .state import NO_TARGET, Group, Target


def group_state(overlay: Overlay, assignor: str, settings: GroupSettings) -> PrepareResponse:
    """The input of an assignor: members with metadata and target assignment, connectors and task counts."""
    group = overlay.group
    shown = PrepareResponse(
        group_epoch=overlay.epoch,
        assignor_name=assignor,
        connectors=tuple(
            _prepared(connector)
            for _, connector in sorted(group.connectors.items())
            if connector.target_state != TargetState.STOPPED
        ),
        delayed=delay.shown(overlay),
        # An assignor that uses this value as its own delay must not be rejected for it.
        scheduled_rebalance_max_delay_ms=min(settings.scheduled_delay_ms, settings.max_delay_ms),
    )
    start = {entry.connector: place for entry, place in zip(shown.connectors, shown.starts()[:-1], strict=True)}
    members = []
    for member in overlay.assignable_members():
        info = info_of(member, assignor)
        waiting = [
            overlay.waiting(kept)
            for kept in overlay.delays.values()
            if overlay.waiting_member(kept) == member.member_id
        ]
        # Read the draft first: the target assignment of a static member's successor is written in this same step.
        target = overlay.target(member.member_id)
        share = group.target(member.member_id) if target == NO_TARGET else target
        has = share.units.union(*waiting)
        members.append(
            PreparedMember(
                member_id=member.member_id,
                member_epoch=overlay.current(member.member_id).epoch,
                instance_id=member.instance_id,
                assignor=AssignorMetadata(version=info.version, reason=info.reason, metadata=info.metadata)
                if info
                else AssignorMetadata(),
                unit_indices=tuple(
                    sorted([start[name] + task - CONNECTOR for name, task in has if (name, task) in group.runnable])
                ),
                assignor_state=share.metadata if group.target_assignor == assignor else b"",
                labels=member.labels,
                rack=member.rack,
                capacity=member.capacity,
                host=member.host,
            )
        )
    return replace(shown, members=tuple(members))


def _prepared(connector: ConnectorRecord) -> PreparedConnector:
    num_tasks = len(connector.tasks) if connector.target_state == TargetState.RUNNING else 0
    asked = tuple(entry for entry in connector.config if entry.name.startswith(PREFIX))
    placement = NO_PLACEMENT
    if asked:
        try:
            placement = placement_of(config_of(asked))
        except ConfigError:  # from a log older than the check: an unreadable placement is treated as none
            asked = ()
    return PreparedConnector(
        connector=connector.connector,
        num_tasks=num_tasks,
        weight=placement.weight,
        task_weights=placement.weights_of(num_tasks),
        placement=asked,
    )


def violation_of(
    overlay: Overlay,
    assignor: str,
    members: Sequence[InstalledMember],
    *,
    left_out: Units = NO_UNITS,
    epoch: int | None = None,
) -> str | None:
    """Why an assignment is invalid, or ``None``. Valid: each configured unit on exactly one member, nothing else (S9).

    Args:
        left_out: units that the assignor itself leaves unassigned. Delayed units of lost members may be assigned or
            left out: they go to no member.
        epoch: the group epoch the assignment was prepared for. If the group epoch has advanced, units that are newer
            than ``epoch`` need not be assigned, and members that have started to drain since may still be assigned
            units.
    """
    runnable = overlay.group.runnable
    units: AbstractSet[Unit] = runnable.keys()
    allowed = {member.member_id for member in overlay.assignable_members()}
    if epoch is not None and epoch < overlay.epoch:
        named = left_out.union(*(each_unit(installed.units) for installed in members))
        units = frozenset(unit for unit, since_epoch in runnable.items() if since_epoch <= epoch or unit in named)
        allowed = {member.member_id for member in overlay.members()}
    violation = first_violation(
        ((installed.member_id, each_unit(installed.units)) for installed in members),
        members=allowed,
        units=units,
        delayed=left_out,
        waiting=overlay.lost_units(_served(overlay, members, epoch)),
    )
    if violation:
        return violation
    for installed in members:
        member = overlay.member(installed.member_id)
        info = info_of(member, assignor) if member else None
        if info and not info.minimum_version <= installed.version <= info.maximum_version:
            return (
                f"version {installed.version} for {installed.member_id}, "
                f"which reads {info.minimum_version} to {info.maximum_version}"
            )
    return None


def _served(overlay: Overlay, members: Sequence[InstalledMember], epoch: int | None) -> Container[str] | None:
    """The members whose return an assignment takes into account; ``None``: all.

    A member that returned after the assignment was prepared is not in it. Its delayed units stay reserved for it
    until the next computation (S15).
    """
    return None if epoch is None or epoch == overlay.epoch else {installed.member_id for installed in members}


def _contradicts_itself(members: Sequence[InstalledMember], left_out: Units) -> bool:
    """Whether an assignment is invalid for any group, so that no change of the group explains the violation."""
    named = left_out.union(*(each_unit(installed.units) for installed in members))
    shares = ((installed.member_id, each_unit(installed.units)) for installed in members)
    ids = {installed.member_id for installed in members}
    return first_violation(shares, members=ids, units=named, delayed=left_out) is not None


def delay_out_of_range(request: InstallRequest | ServerAssignment, settings: GroupSettings) -> str | None:
    """Why the delay that the assignor requests is invalid, or ``None``.

    This is a failure of the assignor, not an invalid request: it must be recorded as a failure, or the coordinator
    would wait for the same member again.
    """
    if request.delay_ms <= settings.max_delay_ms:
        return None
    return f"a delay of {request.delay_ms} ms; allowed: 0 to {settings.max_delay_ms}"


def checksum_of(request: InstallRequest) -> int:
    """Checksum of an Install request. What is installed may differ (delayed units, moves deferred to later rounds)."""
    return crc32(repr((request.members, request.delayed, request.delay_ms)).encode())


def target_of(member: InstalledMember) -> Target:
    return Target(units=units_of(member.units), error=member.error, version=member.version, metadata=member.metadata)


def install_target(
    overlay: Overlay,
    answer: InstallRequest | ServerAssignment,
    assignor: str,
    computed_by: str,
    settings: GroupSettings,
    *,
    epoch: int | None = None,
) -> tuple[Timer, ...]:
    """Write a target assignment: a record for each member whose assignment changed, then the epoch (TA-01, TA-02).

    Args:
        epoch: the group epoch the assignment was prepared for, above the target epoch; default: the newest. Members
            that joined since are assigned nothing yet. Units that were added or reconfigured since are assigned by the
            next target assignment: no unit is assigned at an owner epoch below the epoch of its configuration
            (``Overlay.eligible``). Target epochs only grow and each unit is in the target assignment of one member, so
            owner epochs are strictly monotonic.
    """
    epoch = overlay.epoch if epoch is None else epoch
    group = overlay.group
    shares = {member.member_id: target_of(member) for member in answer.members}
    served = _served(overlay, answer.members, epoch)
    waiting = overlay.lost_units(served)
    if waiting:
        shares = {member_id: replace(share, units=share.units - waiting) for member_id, share in shares.items()}
    asked = units_of(answer.delayed)
    starting = keep_starting_units(overlay, shares, asked)
    asked -= starting
    # Units left out only until their owner has revoked them (KIP-415's first round) need not wait for the full delay.
    release_units = sum(overlay.holder(unit) is not None for unit in asked - waiting)
    deferred = release_units + limit_moves(overlay, shares, settings.max_moves)
    for member in overlay.members():
        share = shares.get(member.member_id, NO_TARGET)
        # Compare with the draft: an assignment removed in this same step must be written again, even if it is equal.
        if share != overlay.target(member.member_id):
            overlay.set_share(member.member_id, share)
        members.release_for_others(overlay, member.member_id)
    for member_id in sorted(group.targets):
        if overlay.member(member_id) is None:
            overlay.forget(Kind.TARGET_MEMBER, member_id)
    timers = delay.after_install(overlay, asked, answer.delay_ms, epoch=epoch, served=served)
    overlay.write(
        TargetRecord(
            group_id=group.group_id,
            epoch=epoch,
            assignor=assignor,
            computed_by=computed_by,
            checksum=checksum_of(answer) if isinstance(answer, InstallRequest) else 0,
            deferred=deferred,
            deferred_starts=len(starting),
            # A group without members has assigned nothing yet: the first member to join is not delayed (HB-13).
            at_ms=overlay.now_ms if shares else 0,
        )
    )
    if starting:
        timers = (*timers, timing.start(group.group_id, settings))
    elif group.deferred_starts:
        timers = (*timers, timing.cancel_start(group.group_id))
    return (*timers, CancelTimer(TimerKey(TimerKind.COMPUTE, group.group_id)))


# --------------------------------------------------------------------------------------------------
# The state of a group as numbers, for metrics.


def measure(group: Group) -> GroupNumbers:
    """Count members, tasks, delayed and unassigned units.

    May run in a thread while another one applies records: each collection is copied before it is read.
    """
    held = group.holders.copy().keys()
    runnable = group.runnable.copy().keys()
    rebalances, computation = group.rebalances.copy(), group.computation
    last = rebalances[next(reversed(rebalances))] if rebalances else None
    unassigned = Counter(unit.connector for unit in runnable if not unit.is_connector and unit not in held)
    waiting = {unit for record in group.delays.copy().values() for unit in each_unit(record.units)}
    return GroupNumbers(
        members=len(group.members),
        epoch=group.epoch,
        target_epoch=group.target_epoch,
        computed_by=group.computed_by,
        is_rebalancing=last is not None and last.finished_ms < 0,
        delayed_units=len(waiting.intersection(runnable) - held),
        computation_failures=0 if computation is None else computation.failures,
        moves_not_started=group.stops.moves_not_started,
        connectors={
            name: ConnectorNumbers(
                tasks=len(record.tasks),
                paused=len(record.tasks) if record.target_state == TargetState.PAUSED else 0,
                unassigned=unassigned[name],
            )
            for name, record in group.connectors.copy().items()
        },
    )


# --------------------------------------------------------------------------------------------------
# The moves of a target assignment that the coordinator defers: of starting units, and beyond a limit per round.
#
# The assignor decides where units run, the coordinator when they move.


def is_starting(overlay: Overlay, unit: Unit) -> bool:
    """Whether a unit must not be moved now, because its owner is starting it.

    A move would throw the start away and begin another one elsewhere, which may take as long: the downtime of the unit
    would double. This happens when a worker is lost and returns while other workers start its units. The owner reports
    STARTING, and RUNNING or FAILED once; ``GroupSettings.max_start_ms`` bounds the wait.

    A unit is moved nevertheless if its owner drains, if its revocation was decided earlier, or if it must start again
    for its configuration anyway.
    """
    status = overlay.group.statuses.get(unit)
    if status is None or unit not in overlay.group.starting:
        return False
    member, current = overlay.member(status.member_id), overlay.current(status.member_id)
    return (
        member is not None
        and not (member.draining or current.temporarily_left)
        and current.assigned.get(unit) == status.owner_epoch
        and unit in overlay.target(status.member_id).units
        and overlay.group.runnable.get(unit, status.owner_epoch + 1) <= status.owner_epoch
    )


def starting_units(overlay: Overlay) -> Units:
    """All units that are starting on their owners."""
    return frozenset(unit for unit in overlay.group.starting if is_starting(overlay, unit))


def keep_starting_units(overlay: Overlay, shares: dict[str, Target], left_out: Units) -> Units:
    """Keep starting units on their owners, also those that the assignor leaves out until they are revoked.

    Args:
        shares: changed in place.
        left_out: the units that the assignor leaves out.

    Returns:
        The units whose move is deferred.
    """
    starting = starting_units(overlay)
    moves = set(starting & left_out)
    for member_id, share in shares.items():
        moves |= {unit for unit in share.units & starting if overlay.holder(unit) != member_id}
    for member_id in list(shares):
        shares[member_id] = replace(shares[member_id], units=shares[member_id].units - moves)
    for unit in moves:
        _keep(overlay, shares, unit, str(overlay.holder(unit)))
    return frozenset(moves)


def starts_overdue(group: Group, now_ms: int, settings: GroupSettings) -> Outcome[None]:
    """Moves have waited for starting units for ``max_start_ms``: forget that they are starting (L2).

    The next round then moves them (``computation.next_round``), once all members have reached the target assignment.
    """
    if not group.deferred_starts:
        return Outcome(response=None)
    records = tuple(Tombstone(group.statuses[unit].key) for unit in sorted(group.starting))
    # Armed until the next target assignment is installed: members may start units of the present one again.
    return Outcome(response=None, records=records, timers=(timing.start(group.group_id, settings),))


def limit_moves(overlay: Overlay, shares: dict[str, Target], max_moves: int) -> int:
    """Keep units beyond the limit of moves on their owners: the assignor decides where, the coordinator how fast.

    Args:
        shares: changed in place. Moves are done in the order of unit names, the same on every replay.

    Returns:
        The number of moves deferred to the next round.
    """
    if not max_moves:
        return 0
    moves = []
    for member_id, share in shares.items():
        for unit in share.units:
            holder = overlay.holder(unit)
            if holder in (None, member_id) or overlay.member(str(holder)) is None:
                continue
            # A unit whose revocation by its owner was decided earlier is moving already.
            if unit in overlay.target(str(holder)).units and not overlay.current(str(holder)).temporarily_left:
                moves.append((unit, member_id, str(holder)))
    for unit, member_id, holder in sorted(moves)[max_moves:]:
        shares[member_id] = replace(shares[member_id], units=shares[member_id].units - {unit})
        _keep(overlay, shares, unit, holder)
    return max(0, len(moves) - max_moves)


def _keep(overlay: Overlay, shares: dict[str, Target], unit: Unit, holder: str) -> None:
    # The assignor's result has no entry for a draining owner: its last user data stays valid for what it keeps.
    kept = shares.get(holder) or replace(overlay.target(holder), units=NO_UNITS)
    shares[holder] = replace(kept, units=kept.units | {unit})
