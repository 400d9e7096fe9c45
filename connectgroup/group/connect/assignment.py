"""The target assignment: who computes it, the input of an assignor, the validation of its result, the installation.

The rules of computations that do not depend on the group type are in ``kernel.computation``.

Source: "Connect on the new protocol", ConnectGroupPrepareAssignment and ConnectGroupInstallAssignment.
"""

from __future__ import annotations

from collections.abc import Container, Sequence, Set as AbstractSet
from dataclasses import replace
from zlib import crc32

from ...assign.legality import first_violation
from ...assign.placement import LABELS, NO_PLACEMENT, PLUGIN_LABEL, PREFIX, needed_plugins, placement_of
from ...errors import ConfigError, InvalidAssignment, StaleGroupEpoch
from ...masking import masked_text
from ...protocol.messages.assignment import (
    AssignorMetadata,
    InstalledMember,
    InstallRequest,
    InstallResponse,
    PreparedConnector,
    PreparedMember,
    PrepareRequest,
    PrepareResponse,
)
from ...protocol.messages.common import ConfigEntry, config_of, each_unit, units_of
from ...protocol.records.base import Tombstone
from ...protocol.records.connect import GROUP_TYPE, ConnectorRecord, TargetRecord, TargetState
from ...protocol.units import CONNECTOR, NO_UNITS, Unit, Units, printable
from ..kernel import computation as computing
from ..kernel.computation import (
    COORDINATOR,
    choose_again,
    fail_computation,
    fail_on_coordinator,
    keep_target,
    keep_target_of,
    under_way,
)
from ..kernel.members import release_for_others
from ..kernel.outcome import (
    CancelTimer,
    Compute,
    Computed,
    Effect,
    Outcome,
    SetTimer,
    Timer,
    TimerKey,
    TimerKind,
    Warn,
    cancel_compute,
)
from ..kernel.state import NO_TARGET, Target, info_of, select_assignor, version_violation
from . import delay
from .settings import GroupSettings, ServerAssignment
from .state import ConnectDraft, ConnectGroupState, target_of

# --------------------------------------------------------------------------------------------------
# Prepare and Install: the chosen member reads the group and returns the target assignment.


def prepare(draft: ConnectDraft, request: PrepareRequest, settings: GroupSettings) -> Outcome[PrepareResponse]:
    """Send the chosen member the input of its assignor, as ``kernel.computation.prepare``."""
    assignor, timers = computing.prepare(draft, request.member_id, request.member_epoch)
    return draft.outcome(group_state(draft, assignor, settings), timers)


def install(draft: ConnectDraft, request: InstallRequest, settings: GroupSettings) -> Outcome[InstallResponse]:
    """Install a computed target assignment, atomically.

    The request is validated against the chosen member and the group epoch it prepared, never against the member epoch,
    which may advance several times while an assignor runs (PD-06). An assignment that is still valid for the
    current members and units becomes the target assignment of the epoch it was prepared for, even if the group epoch
    has advanced; the next computation is then requested at once (``request_computation``). So a group under constant
    change still makes progress.

    Raises:
        StaleGroupEpoch: the assignment was prepared for another group epoch.
        GroupIdNotFound, UnknownMemberId: as for Prepare.

    The response to an invalid assignment is INVALID_ASSIGNMENT with the first violation, or STALE_GROUP_EPOCH if the
    group has changed since (CN-05). These are not exceptions, because they write records: the failure, or that the
    member must send Prepare again.
    """
    group = draft.group
    computing.check_member(group, request.member_id)
    if _is_repeat(group, request):
        return Outcome(response=InstallResponse())
    if request.group_epoch != _prepared_epoch(group, request.member_id):
        raise StaleGroupEpoch(f"GroupEpoch: got {request.group_epoch}; the group is at {group.epoch}")
    computation = under_way(group)
    if computation is None or computation.member_id != request.member_id:
        raise computing.not_chosen(request.member_id)
    left_out, is_current = units_of(request.delayed), request.group_epoch == group.epoch
    assignor = computation.assignor or select_assignor(draft.listings())
    assert assignor is not None
    response = InstallResponse()
    if request.error != 0:
        message = request.message or f"assignor {assignor} reported error {request.error}"
        failure = f"{request.member_id}: {message}"
        if request.keeps_target:
            timers = keep_target(draft, settings, computation, failure)
        else:
            timers = fail_computation(draft, settings, failure)
    elif violation := delay_out_of_range(request, settings) or violation_of(
        draft, assignor, request.members, left_out=left_out, epoch=request.group_epoch
    ):
        refused = f"assignment for epoch {request.group_epoch}: {violation}"
        if is_current or delay_out_of_range(request, settings) or _contradicts_itself(request.members, left_out):
            timers = fail_computation(draft, settings, f"{request.member_id}: assignor {assignor}: {violation}")
            response = InstallResponse(error_code=InvalidAssignment.code, error_message=refused)
        else:
            # The group has changed and the member is not at fault: it is asked again, and no failure is counted.
            timers = choose_again(draft, settings, computation)
            response = InstallResponse(
                error_code=StaleGroupEpoch.code, error_message=f"{refused}; the group is at {group.epoch}"
            )
    else:
        if request.message:
            draft.write(replace(computation, error=printable(masked_text(request.message), limit=500)))
        timers = install_target(draft, request, assignor, request.member_id, settings, epoch=request.group_epoch)
    return draft.outcome(response, timers)


def install_computed(draft: ConnectDraft, computed: Computed, settings: GroupSettings) -> Outcome[None]:
    """Install the result of a server-side assignor, by the rule of ``install``; a stale result is ignored."""
    computation = computing.computation_of_result(draft, computed.epoch)
    if computation is None:
        return Outcome(response=None)
    result, failure, contradicts = _validated(draft, computed, settings)
    if result.error:
        timers = keep_target_of(draft, settings, computation, computed)
    elif failure and computed.epoch < draft.epoch and not contradicts:
        # The group has changed since, which may be the cause of the failure.
        timers = choose_again(draft, settings, replace(computation, error=printable(masked_text(failure), limit=500)))
    elif failure:
        timers = fail_on_coordinator(draft, settings, computation, failure)
    else:
        # The error of an earlier server-side attempt does not apply to this result; those of members still do.
        error = printable(masked_text(result.message), limit=500) or (computation.error if computation.failures else "")
        if error != computation.error:
            draft.write(replace(computation, error=error))
        timers = install_target(draft, result, computed.assignor, COORDINATOR, settings, epoch=computed.epoch)
    return draft.outcome(None, timers)


def _validated(
    draft: ConnectDraft, computed: Computed, settings: GroupSettings
) -> tuple[ServerAssignment, str | None, bool]:
    """The result, why it is a failure, and whether no change of the group can be the cause."""
    where = f"server-side assignor {computed.assignor}"
    if computed.error:
        return ServerAssignment(), f"{where}: {computed.error}", False
    try:
        result: ServerAssignment = computed.result
        if result.error:
            return result, None, False
        left_out = units_of(result.delayed)
        if violation := delay_out_of_range(result, settings):
            return result, f"{where}: {violation}", True
        violation = violation_of(draft, computed.assignor, result.members, left_out=left_out, epoch=computed.epoch)
        contradicts = violation is not None and _contradicts_itself(result.members, left_out)
        return result, f"{where}: {violation}" if violation else None, contradicts
    except Exception as error:
        # Third-party code: if its result cannot even be validated, the group must continue.
        return ServerAssignment(), f"{where}: {error!r}", True


def _prepared_epoch(group: ConnectGroupState, member_id: str) -> int | None:
    """The only group epoch for which an Install of this member is accepted; ``None``: the member must prepare again."""
    computation = under_way(group)
    if computation is None or computation.member_id != member_id:
        return group.epoch
    return computation.epoch if computation.assignor or computation.epoch == group.epoch else None


def _is_repeat(group: ConnectGroupState, request: InstallRequest) -> bool:
    """Whether this is a repeated Install after a lost response (CN-08)."""
    return (
        not request.error
        and request.group_epoch == group.target_epoch
        and request.member_id == group.computed_by
        and checksum_of(request) == group.target_checksum
    )


# --------------------------------------------------------------------------------------------------
# The computation of a connect group's target assignment: its effects, its timer and the rounds that follow.
#
# The type-neutral rules are in ``kernel.computation``.


def ensure_computation(draft: ConnectDraft, settings: GroupSettings, *, waited: bool = False) -> tuple[Timer, ...]:
    """As ``kernel.computation.ensure_computation``; a group without members gets its empty target at once."""
    if draft.epoch > draft.target_epoch and not draft.any_member():
        # A group without members has nothing to assign: its target assignment is always current (KAFKA-20442, HB-13).
        return install_target(draft, ServerAssignment(), "", COORDINATOR, settings)
    return computing.ensure_computation(draft, settings, waited=waited)


def effects_of(group: ConnectGroupState, now_ms: int, settings: GroupSettings) -> tuple[Effect, ...]:
    """The effects that the computation of a group requests; none if a member computes, or nothing does.

    Args:
        group: the group after a step, or after it was loaded.
    """
    computation = under_way(group)
    if computation is None or computation.member_id or not group.members:
        return ()
    if not computation.prepared:
        return (Warn(group_id=group.group_id, epoch=group.epoch, message=computing.no_target(group, computation)),)
    request = Compute(
        group_id=group.group_id,
        group_type=GROUP_TYPE,
        epoch=group.epoch,
        assignor=computation.assignor,
        input=group_state(ConnectDraft(group, now_ms), computation.assignor, settings),
    )
    without = sorted(member.member_id for member in group.members.values() if not member.assignors)
    if not without or len(without) == len(group.members):
        return (request,)
    message = (
        f"the coordinator assigns with {computation.assignor!r}: {', '.join(map(printable, without[:5]))} "
        f"list no assignor, so that the assignors of the other members, and their constraints, are not used"
    )
    return (request, Warn(group_id=group.group_id, epoch=group.epoch, message=message))


def request_computation(draft: ConnectDraft, settings: GroupSettings) -> Outcome[None]:
    """Start a computation if the target epoch is behind the group epoch.

    Called after the records of a change of connectors, or of a target assignment, have been applied, because the input
    of an assignor must be the group as it is then.
    """
    return draft.outcome(None, ensure_computation(draft, settings))


def next_round(draft: ConnectDraft, settings: GroupSettings) -> Outcome[None]:
    """Start the next round when all members have reached the target assignment.

    Causes: moves deferred by the limit of the last round, moves of units that were starting and have started, and moves
    off a draining member that were not possible while no other member could take its units.
    """
    group = draft.group
    timers: tuple[Timer, ...] = ()
    if group.members and not group.behind and group.epoch == group.target_epoch:
        if group.deferred:
            draft.bump(f"{group.deferred} left to move in this round")
        elif group.deferred_starts and not starting_units(draft):
            draft.bump(f"{group.deferred_starts} left to move, which were starting")
        elif leaving := _drainable_member(draft):
            draft.bump(f"a member can take the units of {leaving}")
        timers = ensure_computation(draft, settings)
    return draft.outcome(None, timers)


def _drainable_member(draft: ConnectDraft) -> str:
    """A draining member that still has a target assignment although other members can take its units; else empty."""
    takers = {member.member_id for member in draft.assignable_members()}
    for member in draft.members():
        if member.draining and member.member_id not in takers and draft.target(member.member_id).units:
            return member.member_id
    return ""


# --------------------------------------------------------------------------------------------------
# The target assignment: what an assignor gets, whether its result is valid, and its installation.


def group_state(draft: ConnectDraft, assignor: str, settings: GroupSettings) -> PrepareResponse:
    """The input of an assignor: members with metadata and target assignment, connectors and task counts."""
    group = draft.group
    # Also those of a worker that drains or has left temporarily: its plug-ins are not missing everywhere.
    offered = {
        label.name for member in draft.members() for label in member.labels if label.name.startswith(PLUGIN_LABEL)
    }
    shown = PrepareResponse(
        group_epoch=draft.epoch,
        assignor_name=assignor,
        connectors=tuple(
            _prepared(connector, offered)
            for _, connector in sorted(group.connectors.items())
            if connector.target_state != TargetState.STOPPED
        ),
        delayed=delay.described_delays(draft),
        # An assignor that uses this value as its own delay must not be rejected for it.
        scheduled_rebalance_max_delay_ms=min(settings.scheduled_delay_ms, settings.max_delay_ms),
    )
    start = {entry.connector: place for entry, place in zip(shown.connectors, shown.starts()[:-1], strict=True)}
    members = []
    for member in draft.assignable_members():
        info = info_of(member, assignor)
        waiting = [
            draft.waiting(kept) for kept in draft.delays.values() if draft.waiting_member(kept) == member.member_id
        ]
        # Read the draft first: the target assignment of a static member's successor is written in this same step.
        target = draft.target(member.member_id)
        if target == NO_TARGET:
            target = group.target(member.member_id)
        has = target.units.union(*waiting)
        members.append(
            PreparedMember(
                member_id=member.member_id,
                member_epoch=draft.current(member.member_id).epoch,
                instance_id=member.instance_id,
                assignor=AssignorMetadata(version=info.version, reason=info.reason, metadata=info.metadata)
                if info
                else AssignorMetadata(),
                unit_indices=tuple(
                    sorted([start[name] + task - CONNECTOR for name, task in has if (name, task) in group.runnable])
                ),
                assignor_state=target.metadata if group.target_assignor == assignor else b"",
                labels=member.labels,
                rack=member.rack,
                capacity=member.capacity,
                host=member.host,
            )
        )
    return replace(shown, members=tuple(members))


def _prepared(connector: ConnectorRecord, offered: AbstractSet[str]) -> PreparedConnector:
    num_tasks = len(connector.tasks) if connector.target_state == TargetState.RUNNING else 0
    asked = tuple(entry for entry in connector.config if entry.name.startswith(PREFIX))
    placement = NO_PLACEMENT
    if asked:
        try:
            placement = placement_of(config_of(asked))
        except ConfigError:  # from a log older than the check: an unreadable placement is treated as none
            asked = ()
    if offered and (needed := needed_plugins(config_of(connector.config), offered)):
        # As if the connector had asked for them.
        labels = ",".join(f"{name}={value}" for name, value in sorted({*placement.labels, *needed}))
        asked = (*(entry for entry in asked if entry.name != LABELS), ConfigEntry(name=LABELS, value=labels))
    return PreparedConnector(
        connector=connector.connector,
        num_tasks=num_tasks,
        weight=placement.weight,
        task_weights=placement.weights_of(num_tasks),
        placement=asked,
    )


def violation_of(
    draft: ConnectDraft,
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
    runnable = draft.group.runnable
    units: AbstractSet[Unit] = runnable.keys()
    allowed = {member.member_id for member in draft.assignable_members()}
    if epoch is not None and epoch < draft.epoch:
        named = left_out.union(*(each_unit(installed.units) for installed in members))
        units = frozenset(unit for unit, since_epoch in runnable.items() if since_epoch <= epoch or unit in named)
        allowed = {member.member_id for member in draft.members()}
    violation = first_violation(
        ((installed.member_id, each_unit(installed.units)) for installed in members),
        members=allowed,
        units=units,
        delayed=left_out,
        waiting=draft.lost_units(_served(draft, members, epoch)),
    )
    if violation:
        return violation
    for installed in members:
        member = draft.member(installed.member_id)
        if violation := version_violation(installed.member_id, member, assignor, installed.version):
            return violation
    return None


def _served(draft: ConnectDraft, members: Sequence[InstalledMember], epoch: int | None) -> Container[str] | None:
    """The members whose return an assignment takes into account; ``None``: all.

    A member that returned after the assignment was prepared is not in it. Its delayed units stay reserved for it
    until the next computation (S15).
    """
    return None if epoch is None or epoch == draft.epoch else {installed.member_id for installed in members}


def _contradicts_itself(members: Sequence[InstalledMember], left_out: Units) -> bool:
    """Whether an assignment is invalid for any group, so that no change of the group explains the violation."""
    named = left_out.union(*(each_unit(installed.units) for installed in members))
    given = ((installed.member_id, each_unit(installed.units)) for installed in members)
    ids = {installed.member_id for installed in members}
    return first_violation(given, members=ids, units=named, delayed=left_out) is not None


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


def install_target(
    draft: ConnectDraft,
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
            (``ConnectDraft.eligible``). Target epochs only grow and each unit is in the target assignment of one
            member, so owner epochs are strictly monotonic.
    """
    epoch = draft.epoch if epoch is None else epoch
    group = draft.group
    targets = {member.member_id: target_of(member) for member in answer.members}
    served = _served(draft, answer.members, epoch)
    waiting = draft.lost_units(served)
    if waiting:
        targets = {member_id: replace(target, units=target.units - waiting) for member_id, target in targets.items()}
    asked = units_of(answer.delayed)
    starting = keep_starting_units(draft, targets, asked)
    asked -= starting
    # Units left out only until their owner has revoked them (KIP-415's first round) need not wait for the full delay.
    release_units = sum(draft.owner(unit) is not None for unit in asked - waiting)
    deferred = release_units + limit_moves(draft, targets, settings.max_moves)
    for member in draft.members():
        target = targets.get(member.member_id, NO_TARGET)
        # Compare with the draft: an assignment removed in this same step must be written again, even if it is equal.
        if target != draft.target(member.member_id):
            draft.set_target(member.member_id, target)
        release_for_others(draft, member.member_id)
    for member_id in sorted(group.targets):
        if draft.member(member_id) is None:
            draft.forget_target(member_id)
    timers = delay.after_install(draft, asked, answer.delay_ms, epoch=epoch, served=served)
    draft.write(
        TargetRecord(
            group_id=group.group_id,
            epoch=epoch,
            assignor=assignor,
            computed_by=computed_by,
            checksum=checksum_of(answer) if isinstance(answer, InstallRequest) else 0,
            deferred=deferred,
            deferred_starts=len(starting),
            # A group without members has assigned nothing yet: the first member to join is not delayed (HB-13).
            at_ms=draft.now_ms if targets else 0,
        )
    )
    if starting:
        timers = (*timers, start_timer(group.group_id, settings))
    elif group.deferred_starts:
        timers = (*timers, CancelTimer(TimerKey(TimerKind.START, group.group_id)))
    return (*timers, cancel_compute(group.group_id))


# --------------------------------------------------------------------------------------------------
# The moves of a target assignment that the coordinator defers: of starting units, and beyond a limit per round.
#
# The assignor decides where units run, the coordinator when they move.


def is_starting(draft: ConnectDraft, unit: Unit) -> bool:
    """Whether a unit must not be moved now, because its owner is starting it.

    A move would throw the start away and begin another one elsewhere, which may take as long: the downtime of the unit
    would double. This happens when a worker is lost and returns while other workers start its units. The owner reports
    STARTING, and RUNNING or FAILED once; ``GroupSettings.max_start_ms`` bounds the wait.

    A unit is moved nevertheless if its owner drains, if its revocation was decided earlier, or if it must start again
    for its configuration anyway.
    """
    status = draft.group.statuses.get(unit)
    if status is None or unit not in draft.group.starting:
        return False
    member, current = draft.member(status.member_id), draft.current(status.member_id)
    return (
        member is not None
        and not (member.draining or current.temporarily_left)
        and current.assigned.get(unit) == status.owner_epoch
        and unit in draft.target(status.member_id).units
        and draft.group.runnable.get(unit, status.owner_epoch + 1) <= status.owner_epoch
    )


def starting_units(draft: ConnectDraft) -> Units:
    """All units that are starting on their owners."""
    return frozenset(unit for unit in draft.group.starting if is_starting(draft, unit))


def keep_starting_units(draft: ConnectDraft, targets: dict[str, Target[Unit]], left_out: Units) -> Units:
    """Keep starting units on their owners, also those that the assignor leaves out until they are revoked.

    Args:
        targets: changed in place.
        left_out: the units that the assignor leaves out.

    Returns:
        The units whose move is deferred.
    """
    starting = starting_units(draft)
    moves = set(starting & left_out)
    for member_id, target in targets.items():
        moves |= {unit for unit in target.units & starting if draft.owner(unit) != member_id}
    for member_id in list(targets):
        targets[member_id] = replace(targets[member_id], units=targets[member_id].units - moves)
    for unit in moves:
        _keep(draft, targets, unit, str(draft.owner(unit)))
    return frozenset(moves)


def starts_overdue(group: ConnectGroupState, settings: GroupSettings) -> Outcome[None]:
    """Moves have waited for starting units for ``max_start_ms``: forget that they are starting (L2).

    The next round then moves them (``next_round``), once all members have reached the target assignment.
    """
    if not group.deferred_starts:
        return Outcome(response=None)
    records = tuple(Tombstone(group.statuses[unit].key) for unit in sorted(group.starting & group.runnable.keys()))
    # Armed until the next target assignment is installed: members may start units of the present one again.
    return Outcome(response=None, records=records, timers=(start_timer(group.group_id, settings),))


def limit_moves(draft: ConnectDraft, targets: dict[str, Target[Unit]], max_moves: int) -> int:
    """Keep units beyond the limit of moves on their owners: the assignor decides where, the coordinator how fast.

    Args:
        targets: changed in place. Moves are done in the order of unit names, the same on every replay.

    Returns:
        The number of moves deferred to the next round.
    """
    if not max_moves:
        return 0
    moves = []
    for member_id, target in targets.items():
        for unit in target.units:
            holder = draft.owner(unit)
            if holder in (None, member_id) or draft.member(str(holder)) is None:
                continue
            # A unit whose revocation by its owner was decided earlier is moving already.
            if unit in draft.target(str(holder)).units and not draft.current(str(holder)).temporarily_left:
                moves.append((unit, member_id, str(holder)))
    for unit, member_id, holder in sorted(moves)[max_moves:]:
        targets[member_id] = replace(targets[member_id], units=targets[member_id].units - {unit})
        _keep(draft, targets, unit, holder)
    return max(0, len(moves) - max_moves)


def _keep(draft: ConnectDraft, targets: dict[str, Target[Unit]], unit: Unit, holder: str) -> None:
    # The assignor's result has no entry for a draining owner: its last user data stays valid for what it keeps.
    kept = targets.get(holder) or replace(draft.target(holder), units=NO_UNITS)
    targets[holder] = replace(kept, units=kept.units | {unit})


def start_timer(group_id: str, settings: GroupSettings) -> SetTimer:
    """Moves wait at most until this fires for units to start."""
    return SetTimer(TimerKey(TimerKind.START, group_id), settings.max_start_ms)
