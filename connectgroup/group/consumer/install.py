"""Prepare and Install of a consumer group: the chosen member reads the group and returns the target assignment.

The rules that do not depend on the group type are in ``kernel.install``. An Install is judged by the chosen member and
the group epoch that it prepared, never by the member epoch.

Source: KIP-848, ConsumerGroupPrepareAssignment and ConsumerGroupInstallAssignment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from zlib import crc32

from ...errors import InvalidAssignment, StaleGroupEpoch
from ...protocol.messages.consumer import (
    ConsumerInstallRequest,
    ConsumerInstallResponse,
    ConsumerPrepareRequest,
    ConsumerPrepareResponse,
)
from ...protocol.records.connect import ComputationRecord, Record
from ...protocol.records.consumer import CONSUMER, ConsumerMemberRecord
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
from ..kernel.timers import Timer
from . import validate
from .draft import Draft
from .settings import ConsumerServerAssignment, ConsumerSettings
from .state import ConsumerGroup
from .subscription import matches, unresolved
from .target import group_state, install_target, violation_of


def prepare(draft: Draft, request: ConsumerPrepareRequest) -> Outcome[ConsumerPrepareResponse]:
    """Send the chosen member the input of its assignor, as ``kernel.install.prepare``."""
    validate.prepare(request)
    assignor, timers = rules.prepare(draft, request.member_id, request.member_epoch)
    return Outcome(response=group_state(draft, assignor), records=tuple(draft.records), timers=timers)


def install(
    draft: Draft, request: ConsumerInstallRequest, settings: ConsumerSettings
) -> Outcome[ConsumerInstallResponse]:
    """Install a computed target assignment, atomically.

    An assignment that is still valid for the current members and topics becomes the target assignment of the epoch it
    was prepared for, even if the group epoch has advanced; the next computation is then requested at once.

    Raises:
        GroupIdNotFound, UnknownMemberId, StaleGroupEpoch: the request is rejected; no state changes.
    """
    group = draft.group
    validate.install(request)
    rules.check_member(group, request.member_id)
    checksum = crc32(repr(request.members).encode())
    if _is_repeat(group, request, checksum):
        return Outcome(response=ConsumerInstallResponse())
    computation = under_way(group)
    prepared_epoch = group.epoch
    if computation is not None and computation.member_id == request.member_id and computation.assignor:
        prepared_epoch = computation.epoch
    if request.group_epoch != prepared_epoch:
        raise StaleGroupEpoch(f"GroupEpoch: got {request.group_epoch}; the assignment was requested for another epoch")
    if computation is None or computation.member_id != request.member_id or not computation.assignor:
        raise rules.not_chosen(request.member_id)
    if request.error:
        message = printable(request.message, limit=300)
        failure = f"{request.member_id}: assignor {computation.assignor} failed with {request.error} {message}"
        if request.keeps_target:
            timers = keep_target(draft, settings, computation, f"{request.member_id}: {message}")
        else:
            timers = fail_computation(draft, settings, failure)
        return Outcome(response=ConsumerInstallResponse(), records=tuple(draft.records), timers=timers)
    violation = violation_of(draft, computation.assignor, request.members, epoch=request.group_epoch)
    if violation is None:
        timers = install_target(
            draft,
            request.members,
            computation.assignor,
            request.member_id,
            epoch=request.group_epoch,
            checksum=checksum,
        )
        return Outcome(response=ConsumerInstallResponse(), records=tuple(draft.records), timers=timers)
    refused = f"{request.member_id}: assignor {computation.assignor}: {violation}"
    if request.group_epoch < draft.epoch:
        # The group has changed since, which may be the cause: no failure of the member.
        timers, code = choose_again(draft, settings, computation), StaleGroupEpoch.code
    else:
        timers, code = fail_computation(draft, settings, refused), InvalidAssignment.code
    response = ConsumerInstallResponse(error_code=code, error_message=refused)
    return Outcome(response=response, records=tuple(draft.records), timers=timers)


def _is_repeat(group: ConsumerGroup, request: ConsumerInstallRequest, checksum: int) -> bool:
    """Whether this is a repeated Install after a lost response (CN-08)."""
    installed = (group.target_epoch, group.computed_by, group.target_checksum)
    return not request.error and (request.group_epoch, request.member_id, checksum) == installed


def install_computed(draft: Draft, computed: Computed, settings: ConsumerSettings) -> Outcome[None]:
    """Install the result of a server-side assignor; a stale result is ignored."""
    computation = rules.computation_of_result(draft, computed.epoch)
    if computation is None:
        return Outcome(response=None)
    where = f"server-side assignor {computed.assignor}"
    result: ConsumerServerAssignment = computed.result or ConsumerServerAssignment()
    failure = f"{where}: {computed.error}" if computed.error else ""
    if (
        not failure
        and not result.error
        and (violation := violation_of(draft, computed.assignor, result.members, epoch=computed.epoch))
    ):
        failure = f"{where}: {violation}"
    timers: tuple[Timer, ...]
    if result.error:
        timers = keep_target_of(draft, settings, computation, computed)
    elif failure and computed.epoch < draft.epoch:
        # The group has changed since, which may be the cause of the failure.
        timers = choose_again(draft, settings, replace(computation, error=printable(failure, limit=500)))
    elif failure:
        timers = fail_on_coordinator(draft, settings, computation, failure)
    else:
        timers = install_target(draft, result.members, computed.assignor, COORDINATOR, epoch=computed.epoch)
    return Outcome(response=None, records=tuple(draft.records), timers=timers)


# --------------------------------------------------------------------------------------------------
# The computation of a consumer group's target assignment: when it starts, and its effects.
#
# The rules that do not depend on the group type are in ``kernel.computation``.


def ensure_computation(draft: Draft, settings: ConsumerSettings, *, waited: bool = False) -> tuple[Timer, ...]:
    """As ``kernel.computation.ensure_computation``.

    A group without members gets its empty target at once. A computation waits for regular expressions that are not
    resolved yet: their topics are known in milliseconds, and a target without them would be wrong. It does not wait for
    the interval while no partition is assigned: the members wait for their topic.
    """
    if draft.epoch <= draft.target_epoch:
        return ()
    if not draft.any_member():
        return install_target(draft, (), "", COORDINATOR)
    waited = waited or not draft.any_partition_assigned()
    return () if unresolved(draft) else computing.ensure_computation(draft, settings, waited=waited)


def effects_of(draft: Draft, records: Sequence[Record] | None = None) -> tuple[Effect, ...]:
    """The effects that a group requests: regular expressions to resolve, a server-side computation, a warning.

    Args:
        draft: the group after a step, or after it was loaded.
        records: those of the step; others than these request nothing. The input of an assignor is built only when one
            is to run: it takes time in proportion to the group.
    """
    group = draft.group
    classes = None if records is None else {type(record) for record in records}
    effects: tuple[Effect, ...] = ()
    if classes is None or ConsumerMemberRecord in classes:
        effects = matches(draft, unresolved(draft))
    computation = under_way(group) if classes is None or ComputationRecord in classes else None
    if computation is None or computation.member_id or not group.members:
        return effects
    if not computation.prepared:
        message = computing.no_target(group, computation)
        return (*effects, Warn(group_id=group.group_id, epoch=group.epoch, message=message))
    compute = Compute(
        group_id=group.group_id,
        group_type=CONSUMER,
        epoch=group.epoch,
        assignor=computation.assignor,
        input=group_state(draft, computation.assignor),
    )
    return (*effects, compute)


def compute_timed_out(draft: Draft, settings: ConsumerSettings) -> Outcome[None]:
    """As ``kernel.computation.compute_timed_out``; no computation starts while a regular expression is unresolved."""
    return computing.compute_timed_out(draft, settings, is_ready=not unresolved(draft))
