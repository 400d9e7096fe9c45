"""The ConnectGroupHeartbeat handler for members that join or stay. Members that leave are handled in ``members``.

The order follows the source ("Request Handling" of ConnectGroupHeartbeat): find the group, find or create the member,
check the member epoch, update the member's metadata, and reconcile the member by one step. A member that was chosen
to compute the target assignment receives COMPUTE_ASSIGNMENT instead of the last step.
"""

from __future__ import annotations

from dataclasses import replace

from ...errors import (
    ComputeAssignment,
    FencedMemberEpoch,
    GroupIdNotFound,
    UnknownMemberId,
)
from ...protocol.messages.common import grouped, units_of
from ...protocol.messages.heartbeat import (
    ConnectorConfig,
    HeartbeatAssignment,
    HeartbeatRequest,
    HeartbeatResponse,
    UnitGrant,
)
from ...protocol.records.connect import MemberRecord
from ...protocol.units import JOIN_EPOCH, MAX_NAME_BYTES, Unit, Units, printable, show
from ..kernel import outcome as timing
from ..kernel.computation import forget_prepare, under_way
from ..kernel.members import check_room, check_sender, former_static_member
from ..kernel.outcome import Outcome, Timer
from ..kernel.reconcile import Current, ReconcileTarget, acknowledges, reconcile
from ..registry import ClientInfo
from . import delay, validate
from .assignment import ensure_computation
from .members import (
    check_join,
    check_process,
    leave,
    remove_member,
    replace_static_member,
    sender_of,
    store_member,
    store_statuses,
)
from .settings import GroupSettings
from .state import ConnectDraft, ConnectGroupState


def heartbeat(
    draft: ConnectDraft, request: HeartbeatRequest, settings: GroupSettings, client: ClientInfo
) -> Outcome[HeartbeatResponse]:
    """Process one heartbeat and advance the member one step towards its target assignment.

    Args:
        draft: the group, as of the last applied record.
        request: the decoded request, independent of the protocol version.
        settings: of the group.
        client: the client that sent it.

    Returns:
        An outcome. Its response is valid once its records have been applied in order. The response to a fenced member
        is an error with records: "FENCED_MEMBER_EPOCH is returned otherwise. The member is also removed from the
        group."

    Raises:
        InvalidRequest, UnsupportedAssignor, UnknownMemberId, GroupIdNotFound: the request is rejected; no state
        changes.
    """
    validate.heartbeat(request, settings)
    if request.member_epoch < JOIN_EPOCH:
        return leave(draft, request, settings, client)
    joining: tuple[Timer, ...] = ()
    if request.member_epoch == JOIN_EPOCH:
        joining = _join(draft, request, settings, client)
    else:
        fenced = _admit(draft.group, request, client)
        if fenced:
            cause = f"{request.member_id} was fenced: {fenced}"
            timers = remove_member(draft, request.member_id, cause, settings, lost=True)
            response = HeartbeatResponse(error_code=FencedMemberEpoch.code, error_message=fenced)
            return draft.outcome(response, timers)
        _update(draft, request, settings)
    store_statuses(draft, request.member_id, request.statuses)
    timers = joining
    # If nothing has changed, a computation in progress goes on. To look for another member takes long in a large group.
    if draft.records or under_way(draft) is None:
        timers += ensure_computation(draft, settings)

    computation, current = under_way(draft), draft.current(request.member_id)
    asked = (
        computation is not None
        and computation.member_id == request.member_id
        and not computation.prepared
        and not (request.member_epoch == current.epoch and acknowledges(current, _owned(request)))
        and not _still_joins(draft, request)
    )
    if asked:
        # The member is reconciled at its next heartbeat, which is a full one, as after every error.
        response = HeartbeatResponse(
            error_code=ComputeAssignment.code,
            error_message=f"compute the assignment for group epoch {draft.epoch}",
            member_epoch=current.epoch,
            heartbeat_interval_ms=settings.heartbeat_interval_ms,
            session_timeout_ms=settings.session_timeout_ms,
        )
        timers += (timing.session(draft.group_id, request.member_id, settings.session_timeout_ms),)
        return draft.outcome(response, timers)
    return _step(draft, request, settings, timers)


def _still_joins(draft: ConnectDraft, request: HeartbeatRequest) -> bool:
    """Whether a member that already received a response at epoch 0 joins again although a target epoch exists.

    The member receives that epoch before it is asked to compute again. Each heartbeat at epoch 0 is a join, which
    clears ``prepared``; in a group under constant change the member would otherwise receive only COMPUTE_ASSIGNMENT.
    """
    known = request.member_id in draft.group.members and draft.group.current(request.member_id).epoch == JOIN_EPOCH
    return request.member_epoch == JOIN_EPOCH and known and draft.target_epoch > 0


def _owned(request: HeartbeatRequest) -> Units | None:
    return None if request.owned is None else units_of(request.owned)


def _step(
    draft: ConnectDraft, request: HeartbeatRequest, settings: GroupSettings, timers: tuple[Timer, ...]
) -> Outcome[HeartbeatResponse]:
    """Reconcile the member and build the response."""
    group, member_id = draft.group, request.member_id
    before = draft.current(member_id)
    owned = _owned(request)
    repeats = request.member_epoch != before.epoch
    if repeats and owned is not None and _can_be_repeated(group, before, owned):
        # A member at its previous epoch has not received the last response. The units missing from its report are those
        # that response assigned, and a late copy of the report may arrive after the member has started them. So the
        # report acknowledges nothing (reliability S3): the response is repeated, and the next step requires a report at
        # the epoch in that response.
        after = before
    else:
        after = (
            before
            if draft.is_settled(member_id)
            else reconcile(
                before,
                ReconcileTarget(units=draft.eligible(member_id), epoch=draft.target_epoch, runnable=group.runnable),
                owned=owned,
                is_free=lambda unit: draft.owner(unit) in (None, member_id),
            )
        )
    if after is not before:
        # The previous epoch is the one the member has sent, so lost responses in a row never fence it (S16).
        after = replace(after, previous_epoch=request.member_epoch)
        draft.set_current(member_id, after)

    full = owned is not None and request.rebalance_timeout_ms != -1
    changed = after.assigned != before.assigned
    # Assigned in a response that was lost, then withheld while the member had units to revoke.
    unheard = owned is not None and not after.pending and not after.assigned.keys() <= owned
    # A heartbeat at epoch 0 is always a full one. Without a target epoch there is nothing to assign yet, so the
    # request is parked; otherwise the member would wait a whole heartbeat interval before it retries.
    computing = under_way(draft)
    on_coordinator = computing is not None and computing.prepared and not computing.member_id
    waits = (
        request.member_epoch == JOIN_EPOCH
        and not owned
        and not after.assigned
        and (on_coordinator or not draft.records)
    )
    member = draft.member(member_id)
    requested = member is not None and member.has_request
    assignment = None
    # Every target assignment is delivered to every member, even if its units do not change (PD-12).
    advanced = after.epoch != before.epoch
    if full or changed or repeats or unheard or advanced:
        assignment = _assignment(draft, member_id, after, owned if owned is not None else frozenset(before.held))
    response = HeartbeatResponse(
        member_epoch=after.epoch,
        heartbeat_interval_ms=settings.heartbeat_interval_ms,
        assignment=assignment,
        session_timeout_ms=settings.session_timeout_ms,
        restart=member is not None and member.restart_requested,
        drain=member is not None and member.drain_requested,
    )
    timers = (
        *timers,
        timing.session(draft.group_id, member_id, settings.session_timeout_ms),
        *draft.rebalance_timer(member_id, before, after),
    )
    return draft.outcome(
        response,
        timers,
        parks=after.epoch == request.member_epoch and (response.assignment is None or waits) and not requested,
    )


def _can_be_repeated(group: ConnectGroupState, current: Current[Unit], owned: Units) -> bool:
    """Whether every unit assigned in a lost response can still be assigned at the same epoch.

    It cannot if a unit was deleted or reconfigured since. A member that never received such a unit would not
    acknowledge its revocation either, so in this case the report counts. The runtime ensures that the report is not a
    late copy (``sequence``).
    """
    return all(
        group.runnable.get(unit, epoch + 1) <= epoch for unit, epoch in current.assigned.items() if unit not in owned
    )


def _assignment(draft: ConnectDraft, member_id: str, current: Current[Unit], known: Units) -> HeartbeatAssignment:
    """The member's whole assignment, with the fencing token and configuration of every unit new to the member.

    While revocations are pending, the assignment contains only units that the member knows and keeps: "either revoked
    or newly assigned, never both" holds for the response even if an earlier assignment was lost (CN-13). A request
    without owned units does not say what the member knows. All that it holds counts then: a unit of a lost assignment
    is listed without its grant, the member accepts none while it revokes, and its acknowledgement gets the grant.
    """
    group, target = draft.group, draft.target(member_id)
    reached = current.epoch == draft.target_epoch
    shown = current.assigned.keys() & known if current.pending else current.assigned.keys()
    new = sorted(shown - known)
    grants = tuple(
        UnitGrant(
            connector=unit.connector,
            task=unit.task,
            owner_epoch=current.assigned[unit],
            config=() if unit.is_connector else group.connectors[unit.connector].tasks[unit.task].config,
        )
        for unit in new
        if unit in group.runnable
    )
    configs = tuple(
        ConnectorConfig(connector=name, version=group.connectors[name].version, config=group.connectors[name].config)
        for name in sorted({grant.connector for grant in grants})
    )
    return HeartbeatAssignment(
        error=target.error,
        units=grouped(shown),
        version=target.version,
        metadata=target.metadata,
        incarnation=group.created_ms,
        grants=grants,
        configs=configs,
        assignor=draft.target_assignor if reached and draft.has_target(member_id) else "",
    )


# --------------------------------------------------------------------------------------------------
# Join


def _join(
    draft: ConnectDraft, request: HeartbeatRequest, settings: GroupSettings, client: ClientInfo
) -> tuple[Timer, ...]:
    """ "Creates the member should the member epoch be zero." A member that rejoins reports that it runs no units."""
    group, member_id = draft.group, request.member_id
    check_join(group, member_id, sender_of(request, client), settings)
    known, former = group.members.get(member_id), former_static_member(group, member_id, request.instance_id)
    timers: tuple[Timer, ...] = ()
    if former is not None:
        timers = timing.cancel_member(group.group_id, former.member_id)
        if known is None:
            replace_static_member(draft, former, member_id)
        else:
            draft.bump(f"{member_id} replaced {former.member_id}")
            draft.forget_member(former.member_id)
    elif known is None:
        check_room(group, member_id, settings.max_members)
    member = MemberRecord(
        group_id=group.group_id,
        member_id=member_id,
        instance_id=request.instance_id,
        client_host=client.host,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        server_assignor=request.server_assignor,
        assignors=request.client_assignors or (),
        draining=request.draining,
        labels=request.labels,
        rack=request.rack,
        capacity=request.capacity,
        host=request.host,
        client_id=printable(client.client_id, limit=MAX_NAME_BYTES),
        joined_epoch=known.joined_epoch if known is not None else 0,
        restart_requested=member_id in group.restart_requests
        if known is None
        else known.restart_requested and not group.current(member_id).temporarily_left,
        drain_requested=known is not None and known.drain_requested and not request.draining,
        process_id=request.process_id,
        principal=client.principal,
        os_process=request.os_process,
        classic=request.classic,
    )
    waiting = delay.delays_for(draft, member)
    temporarily = f"{member_id} came back" if waiting else ""
    if known is None and former is not None:
        store_member(draft, member, settings, before=replace(former, member_id=member_id))
        if group.epoch > group.target_epoch:
            # The member computing now received the former member id and must not be blamed for using it.
            draft.bump(f"{member_id} replaced {former.member_id}")
    else:
        store_member(draft, member, settings, before=known, joins=temporarily or f"{member_id} joined")
    if len(waiting) == 1 and (known, former) == (None, None):
        timers += delay.restore_units(draft, waiting[0], member)
    elif waiting and (known is None or known.instance_id != member.instance_id):
        # The member already has an assignment, or takes over another member's, besides the units delayed for it: an
        # assignor must decide where the delayed units go.
        draft.bump(temporarily)
    if known is not None:
        timers += (timing.cancel_rebalance(group.group_id, member_id),)
        _release_units(draft, member_id)
        forget_prepare(draft, member_id)
    return timers


def _release_units(draft: ConnectDraft, member_id: str) -> None:
    """Free all units owned by a member that now reports that it runs none.

    The units may be assigned to the same member again, but at a later owner epoch: the member's former process could
    still be writing with the token of the earlier assignment, and a token is never reused (reliability S6, X1).
    """
    group, current = draft.group, draft.current(member_id)
    held = current.held
    # The next step sets the previous epoch to the one the member sends; here both epochs are reset to zero.
    if held or current.epoch:
        draft.set_current(member_id, Current())
    if not any(held[unit] >= group.target_epoch for unit in held):
        return
    if draft.epoch == group.target_epoch:
        draft.bump(f"{member_id} joined again")
        # Nothing else changed, so the target assignment is still valid: it is kept under the new epoch.
        draft.raise_target()
    else:
        # A new target assignment is being computed; until it is installed this member is assigned no units.
        draft.forget_target(member_id)


# --------------------------------------------------------------------------------------------------
# Stay


def _admit(group: ConnectGroupState, request: HeartbeatRequest, client: ClientInfo) -> str | None:
    """Check that the member exists and that its member epoch is the current one.

    Returns:
        Why the member must be fenced, or ``None``.

    A lost response causes a repeated request (the source's "edge case", PD-04): the previous epoch is accepted if
    the units that the member reports are a subset of the units it owns. Units with a pending revocation count as owned:
    reporting them acknowledges nothing.
    """
    if not group.exists:
        raise GroupIdNotFound(
            f"GroupId: got {printable(request.group_id)!r}; there is no such group; join with epoch 0"
        )
    check_sender(group, request.member_id, request.instance_id)
    check_process(group, request.member_id, sender_of(request, client))
    current = group.current(request.member_id)
    if current.temporarily_left:
        # A late copy of a request sent before the member left: it must not cost the member its reserved units.
        raise UnknownMemberId(f"MemberId: {printable(request.member_id)!r} has left temporarily; join with epoch 0")
    if request.member_epoch == current.epoch:
        return None
    if request.member_epoch == current.previous_epoch and request.owned is not None:
        surplus = units_of(request.owned) - current.held.keys()
        if not surplus:
            return None
        return (
            f"{request.member_id} sent its previous epoch {request.member_epoch} and "
            f"owns {show(surplus)}, which the group has not assigned to it"
        )
    return f"{request.member_id} sent epoch {request.member_epoch}, the group has it at {current.epoch}"


def _update(draft: ConnectDraft, request: HeartbeatRequest, settings: GroupSettings) -> None:
    """ "Updates the members informations if any. The group epoch is incremented if there is any change."

    A field that is ``None`` means "unchanged".
    """
    known = member = draft.group.members[request.member_id]
    if request.rebalance_timeout_ms != -1:
        member = replace(member, rebalance_timeout_ms=request.rebalance_timeout_ms)
    if request.rebalance_timeout_ms != -1 and request.owned is not None:
        member = replace(
            member,
            draining=request.draining,
            labels=request.labels,
            rack=request.rack,
            capacity=request.capacity,
            host=request.host,
            # A draining worker leaves permanently.
            restart_requested=member.restart_requested and not request.draining,
            drain_requested=member.drain_requested and not request.draining,
        )
    if request.restart_error and member.restart_requested:
        error = printable(request.restart_error, limit=500)
        member = replace(member, restart_requested=False, restart_error=error)
    if request.server_assignor is not None:
        member = replace(member, server_assignor=request.server_assignor, assignors=())
    if request.client_assignors is not None:
        member = replace(member, server_assignor=None, assignors=request.client_assignors)
    store_member(draft, member, settings, before=known)
