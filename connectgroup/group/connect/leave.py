"""Removal of members: permanent or temporary leave, expired session, expired rebalance timeout, fencing.

A removal is always a record, never only a fact in memory: after a failover the new coordinator must know that a member
was removed before it assigns the member's units to another one (S14).
"""

from __future__ import annotations

from ...errors import GroupIdNotFound
from ...protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ...protocol.records.connect import MemberState
from ...protocol.units import STATIC_LEAVE_EPOCH, printable, show
from ..kernel import deadlines
from ..kernel.outcome import Outcome
from ..kernel.static import check_sender
from ..kernel.timers import Timer
from ..registry import NO_CLIENT, Client
from . import delay, members
from .install import ensure_computation
from .members import ProcessEnded, check_process, sender_of
from .overlay import Overlay
from .settings import GroupSettings
from .state import Group


def leave(
    group: Group, request: HeartbeatRequest, now_ms: int, settings: GroupSettings, client: Client = NO_CLIENT
) -> Outcome[HeartbeatResponse]:
    """Process a leave.

    Epoch -1: the member leaves permanently, or another process that knows of its death reports it, with the process id
    of the dead process (PD-11).
    Epoch -2: a static member leaves temporarily (ST-01).
    Epoch -1 with ``returns``: the worker restarts and joins again under the same member id, so its units are delayed
    for it as for a lost worker.
    """
    if not group.exists:
        raise GroupIdNotFound(f"GroupId: got {printable(request.group_id)!r}; there is no such group")
    check_sender(group, request.member_id, request.instance_id)
    check_process(group, request.member_id, sender_of(request, client))
    overlay = Overlay(group, now_ms)
    if request.member_epoch == STATIC_LEAVE_EPOCH:
        timers: tuple[Timer, ...] = ()
        if not group.current(request.member_id).temporarily_left:
            members.leave_temporarily(overlay, request.member_id)
            timers = (
                deadlines.cancel_rebalance(group.group_id, request.member_id),
                deadlines.session(group.group_id, request.member_id, settings),
                # The member may have been the one chosen to compute.
                *ensure_computation(overlay, settings),
            )
    else:
        cause = printable(request.cause, limit=200)
        why = cause or ("left to restart" if request.returns else "left")
        timers = remove_member(
            overlay, request.member_id, f"{request.member_id} {why}", settings, returns=request.returns
        )
    response = HeartbeatResponse(
        member_epoch=request.member_epoch,
        heartbeat_interval_ms=settings.heartbeat_interval_ms,
        session_timeout_ms=settings.session_timeout_ms,
    )
    return Outcome(response=response, records=tuple(overlay.records), timers=timers)


def remove_member(
    overlay: Overlay,
    member_id: str,
    cause: str,
    settings: GroupSettings,
    *,
    lost: bool = False,
    returns: bool = False,
) -> tuple[Timer, ...]:
    """Remove a member: advance the group epoch, then write its tombstones.

    Args:
        lost: the member did not announce its leave, so its units may be delayed for it (``delay``).
        returns: the member left and announced that it joins again: its units are delayed for it.
    """
    member = overlay.member(member_id)
    # A lost member may not have received the request; a member that leaves ends its process anyway.
    unserved = lost and member is not None and member.restart_requested and not member.draining
    overlay.bump(cause, restart_request=member_id if unserved else "")
    kept = delay.delay_units(overlay, member_id, settings, returns=returns) if lost or returns else ()
    overlay.forget_member(member_id)
    return (*deadlines.cancel_member(overlay.group.group_id, member_id), *kept, *ensure_computation(overlay, settings))


def session_timed_out(group: Group, member_id: str, now_ms: int, settings: GroupSettings) -> Outcome[None]:
    """No heartbeat within the session timeout. The timer of a removed member does nothing (KAFKA-8896)."""
    temporarily_left = group.current(member_id).temporarily_left
    silence = f"{settings.session_timeout_ms} ms"
    return _expel(
        group,
        member_id,
        f"did not return within {silence}" if temporarily_left else f"was silent for {silence}",
        now_ms,
        settings,
        silent_ms=settings.session_timeout_ms,
    )


def process_ended(group: Group, ended: ProcessEnded, now_ms: int, settings: GroupSettings) -> Outcome[None]:
    """The process of a member has ended without a leave: the member is removed as after its session timeout (PD-13).

    This does nothing if the member has left or belongs to another process by now. A static member is removed if the
    scheduled rebalance delay keeps its units for it; without a delay, its session timeout is its time to return.
    """
    member = group.members.get(ended.member_id)
    if member is None or member.process_id == -1 or not group.process_of(ended.member_id).accepts(ended.process):
        return Outcome(response=None)
    kept_by_session = member.instance_id is not None and not settings.scheduled_delay_ms
    if kept_by_session or group.current(ended.member_id).temporarily_left:
        return Outcome(response=None)
    return _expel(group, ended.member_id, "ended without leaving the group", now_ms, settings)


def rebalance_timed_out(group: Group, member_id: str, now_ms: int, settings: GroupSettings) -> Outcome[None]:
    """The member did not acknowledge a revocation within its rebalance timeout: fence it by a record (S14, TO-02)."""
    current = group.current(member_id)
    if member_id not in group.members or current.state != MemberState.UNREVOKED:
        return Outcome(response=None)
    timeout_ms = group.members[member_id].rebalance_timeout_ms
    return _expel(group, member_id, f"did not stop {show(current.pending)} within {timeout_ms} ms", now_ms, settings)


def _expel(
    group: Group, member_id: str, why: str, now_ms: int, settings: GroupSettings, *, silent_ms: int = 0
) -> Outcome[None]:
    if member_id not in group.members:
        return Outcome(response=None)
    overlay = Overlay(group, now_ms, silent_ms=silent_ms)
    timers = remove_member(overlay, member_id, f"{member_id} {why}", settings, lost=True)
    return Outcome(response=None, records=tuple(overlay.records), timers=timers)


def delay_over(group: Group, member_id: str, now_ms: int, settings: GroupSettings) -> Outcome[None]:
    """A scheduled rebalance delay has expired: the delayed units may be assigned to other members."""
    overlay = Overlay(group, now_ms)
    timers = ensure_computation(overlay, settings) if delay.end(overlay, member_id) else ()
    return Outcome(response=None, records=tuple(overlay.records), timers=timers)
