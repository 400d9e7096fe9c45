"""Prepare and Install: the chosen member reads the group and returns the target assignment.

Source: "Connect on the new protocol", ConnectGroupPrepareAssignment and ConnectGroupInstallAssignment.
"""

from __future__ import annotations

from dataclasses import replace

from ...errors import InvalidAssignment, StaleGroupEpoch
from ...masking import masked_text
from ...protocol.messages.assignment import InstallRequest, InstallResponse, PrepareRequest, PrepareResponse
from ...protocol.messages.common import units_of
from ...protocol.records.connect import GROUP_TYPE, ComputationRecord
from ...protocol.units import printable
from ..kernel import computation as computing, install as rules
from ..kernel.computation import (
    COORDINATOR,
    choose_again,
    fail_computation,
    fail_on_coordinator,
    keep_target,
    keep_target_of,
    under_way,
)
from ..kernel.effects import Compute, Computed, Effect, Warn
from ..kernel.outcome import Outcome
from ..kernel.selection import select_assignor
from ..kernel.timers import Timer
from ..registry import NO_CLIENT, Client
from . import validate
from .members import check_process, sender_of
from .overlay import Overlay
from .settings import GroupSettings, ServerAssignment
from .state import Group
from .target import (
    _contradicts_itself,
    checksum_of,
    delay_out_of_range,
    group_state,
    install_target,
    starting_units,
    violation_of,
)


def _chosen(group: Group, member_id: str) -> ComputationRecord:
    computation = under_way(group)
    if computation is None or computation.member_id != member_id:
        raise rules.not_chosen(member_id)
    return computation


def prepare(
    group: Group, request: PrepareRequest, now_ms: int, settings: GroupSettings, client: Client = NO_CLIENT
) -> Outcome[PrepareResponse]:
    """Send the chosen member the input of its assignor, as ``kernel.install.prepare``."""
    validate.prepare(request)
    check_process(group, request.member_id, sender_of(request, client))
    overlay = Overlay(group, now_ms)
    assignor, timers = rules.prepare(overlay, request.member_id, request.member_epoch)
    return Outcome(response=group_state(overlay, assignor, settings), records=tuple(overlay.records), timers=timers)


def install(
    group: Group, request: InstallRequest, now_ms: int, settings: GroupSettings, client: Client = NO_CLIENT
) -> Outcome[InstallResponse]:
    """Install a computed target assignment, atomically.

    The request is validated against the chosen member and the group epoch it prepared, never against the member epoch,
    which may advance several times while an assignor runs (PD-06). An assignment that is still valid for the
    current members and units becomes the target assignment of the epoch it was prepared for, even if the group epoch
    has advanced; the next computation is then requested at once (``request_computation``). So a group under constant
    change still makes progress.

    Raises:
        StaleGroupEpoch: the assignment was prepared for another group epoch.
        GroupIdNotFound, UnknownMemberId, FencedInstanceId: as for Prepare.

    The response to an invalid assignment is INVALID_ASSIGNMENT with the first violation, or STALE_GROUP_EPOCH if the
    group has changed since (CN-05). These are not exceptions, because they write records: the failure, or that the
    member must send Prepare again.
    """
    validate.install(request)
    rules.check_member(group, request.member_id)
    check_process(group, request.member_id, sender_of(request, client))
    if _is_repeat(group, request):
        return Outcome(response=InstallResponse())
    if request.group_epoch != _prepared_epoch(group, request.member_id):
        raise StaleGroupEpoch(f"GroupEpoch: got {request.group_epoch}; the group is at {group.epoch}")
    computation = _chosen(group, request.member_id)

    overlay = Overlay(group, now_ms)
    left_out, is_current = units_of(request.delayed), request.group_epoch == group.epoch
    assignor = computation.assignor or select_assignor(overlay.listings())
    assert assignor is not None
    response = InstallResponse()
    if request.error != 0:
        message = request.message or f"assignor {assignor} reported error {request.error}"
        failure = f"{request.member_id}: {message}"
        if request.keeps_target:
            timers = keep_target(overlay, settings, computation, failure)
        else:
            timers = fail_computation(overlay, settings, failure)
    elif violation := delay_out_of_range(request, settings) or violation_of(
        overlay, assignor, request.members, left_out=left_out, epoch=request.group_epoch
    ):
        refused = f"assignment for epoch {request.group_epoch}: {violation}"
        if is_current or delay_out_of_range(request, settings) or _contradicts_itself(request.members, left_out):
            timers = fail_computation(overlay, settings, f"{request.member_id}: assignor {assignor}: {violation}")
            response = InstallResponse(error_code=InvalidAssignment.code, error_message=refused)
        else:
            # The group has changed and the member is not at fault: it is asked again, and no failure is counted.
            timers = choose_again(overlay, settings, computation)
            response = InstallResponse(
                error_code=StaleGroupEpoch.code, error_message=f"{refused}; the group is at {group.epoch}"
            )
    else:
        if request.message:
            overlay.write(replace(computation, error=printable(masked_text(request.message), limit=500)))
        timers = install_target(overlay, request, assignor, request.member_id, settings, epoch=request.group_epoch)
    return Outcome(response=response, records=tuple(overlay.records), timers=timers)


def install_computed(group: Group, computed: Computed, now_ms: int, settings: GroupSettings) -> Outcome[None]:
    """Install the result of a server-side assignor, by the rule of ``install``; a stale result is ignored."""
    computation = rules.computation_of_result(group, computed.epoch)
    if computation is None:
        return Outcome(response=None)
    overlay = Overlay(group, now_ms)
    result, failure, contradicts = _validated(overlay, computed, settings)
    if result.error:
        timers = keep_target_of(overlay, settings, computation, computed)
    elif failure and computed.epoch < group.epoch and not contradicts:
        # The group has changed since, which may be the cause of the failure.
        timers = choose_again(overlay, settings, replace(computation, error=printable(masked_text(failure), limit=500)))
    elif failure:
        timers = fail_on_coordinator(overlay, settings, computation, failure)
    else:
        # The error of an earlier server-side attempt does not apply to this result; those of members still do.
        error = printable(masked_text(result.message), limit=500) or (computation.error if computation.failures else "")
        if error != computation.error:
            overlay.write(replace(computation, error=error))
        timers = install_target(overlay, result, computed.assignor, COORDINATOR, settings, epoch=computed.epoch)
    return Outcome(response=None, records=tuple(overlay.records), timers=timers)


def _validated(
    overlay: Overlay, computed: Computed, settings: GroupSettings
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
        violation = violation_of(overlay, computed.assignor, result.members, left_out=left_out, epoch=computed.epoch)
        contradicts = violation is not None and _contradicts_itself(result.members, left_out)
        return result, f"{where}: {violation}" if violation else None, contradicts
    except Exception as error:
        # Third-party code: if its result cannot even be validated, the group must continue.
        return ServerAssignment(), f"{where}: {error!r}", True


def _prepared_epoch(group: Group, member_id: str) -> int | None:
    """The only group epoch for which an Install of this member is accepted; ``None``: the member must prepare again."""
    computation = under_way(group)
    if computation is None or computation.member_id != member_id:
        return group.epoch
    return computation.epoch if computation.assignor or computation.epoch == group.epoch else None


def _is_repeat(group: Group, request: InstallRequest) -> bool:
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


def ensure_computation(overlay: Overlay, settings: GroupSettings, *, waited: bool = False) -> tuple[Timer, ...]:
    """As ``kernel.computation.ensure_computation``; a group without members gets its empty target at once."""
    if overlay.epoch > overlay.target_epoch and not overlay.any_member():
        # A group without members has nothing to assign: its target assignment is always current (KAFKA-20442, HB-13).
        return install_target(overlay, ServerAssignment(), "", COORDINATOR, settings)
    return computing.ensure_computation(overlay, settings, waited=waited)


def effects_of(group: Group, now_ms: int, settings: GroupSettings) -> tuple[Effect, ...]:
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
        input=group_state(Overlay(group, now_ms), computation.assignor, settings),
    )
    without = sorted(member.member_id for member in group.members.values() if not member.assignors)
    if not without or len(without) == len(group.members):
        return (request,)
    message = (
        f"the coordinator assigns with {computation.assignor!r}: {', '.join(map(printable, without[:5]))} "
        f"list no assignor, so that the assignors of the other members, and their constraints, are not used"
    )
    return (request, Warn(group_id=group.group_id, epoch=group.epoch, message=message))


def request_computation(group: Group, now_ms: int, settings: GroupSettings) -> Outcome[None]:
    """Start a computation if the target epoch is behind the group epoch.

    Called after the records of a change of connectors, or of a target assignment, have been applied, because the input
    of an assignor must be the group as it is then.
    """
    overlay = Overlay(group, now_ms)
    timers = ensure_computation(overlay, settings)
    return Outcome(response=None, records=tuple(overlay.records), timers=timers)


def next_round(group: Group, now_ms: int, settings: GroupSettings) -> Outcome[None]:
    """Start the next round when all members have reached the target assignment.

    Causes: moves deferred by the limit of the last round, moves of units that were starting and have started, and moves
    off a draining member that were not possible while no other member could take its units.
    """
    overlay = Overlay(group, now_ms)
    timers: tuple[Timer, ...] = ()
    if group.members and not group.behind and group.epoch == group.target_epoch:
        if group.deferred:
            overlay.bump(f"{group.deferred} left to move in this round")
        elif group.deferred_starts and not starting_units(overlay):
            overlay.bump(f"{group.deferred_starts} left to move, which were starting")
        elif leaving := _drainable_member(overlay):
            overlay.bump(f"a member can take the units of {leaving}")
        timers = ensure_computation(overlay, settings)
    return Outcome(response=None, records=tuple(overlay.records), timers=timers)


def _drainable_member(overlay: Overlay) -> str:
    """A draining member that still has a target assignment although other members can take its units; else empty."""
    takers = {member.member_id for member in overlay.assignable_members()}
    for member in overlay.members():
        if member.draining and member.member_id not in takers and overlay.target(member.member_id).units:
            return member.member_id
    return ""
