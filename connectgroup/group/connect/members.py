"""The members of a connect group: what their heartbeats report, which process each belongs to, and their removal.

A removal is always a record, never only a fact in memory: after a failover the new coordinator must know that a member
was removed before it assigns the member's units to another one (S14).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple, Protocol

from ...errors import FencedInstanceId, InvalidRequest, UnreleasedInstanceId
from ...protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse, TaskStatus
from ...protocol.records.connect import MemberRecord, MemberState, StatusRecord, UnitState
from ...protocol.units import STATIC_LEAVE_EPOCH, Unit, printable, show
from ..kernel import outcome as timing
from ..kernel.members import check_exists, check_sender, leave_temporarily
from ..kernel.outcome import Outcome, Timer
from ..kernel.state import NO_TARGET, Process, check_assignors
from ..registry import ClientInfo
from . import delay, validate
from .assignment import ensure_computation
from .settings import GroupSettings
from .state import ConnectDraft, ConnectGroupState, issue_above

# --------------------------------------------------------------------------------------------------
# What a heartbeat reports: metadata, and the statuses of units.


def store_member(
    draft: ConnectDraft, member: MemberRecord, settings: GroupSettings, *, before: MemberRecord | None, joins: str = ""
) -> None:
    """Store a member's metadata; advance the group epoch if target assignments may depend on the change.

    Args:
        before: the former record of the member, or of the static member that it replaces; ``None`` if it has none.
        joins: the rebalance cause to record if there is no former record.

    Source, "Worker Group": a new worker joins; a worker updates its assignors; its assignors' reason or metadata.
    """
    if draft.member(member.member_id) == member:
        return
    check_assignors(member, draft.listings(without=member.member_id), settings.server_assignors)
    validate.all_metadata(member, draft.metadata_bytes(without=member.member_id))
    cause = joins if before is None else _what_changed(before, member)
    if not member.joined_epoch:
        member = replace(member, joined_epoch=draft.next_epoch if cause else draft.epoch)
    draft.set_member(member)
    if cause:
        draft.bump(cause)


def _what_changed(known: MemberRecord, member: MemberRecord) -> str:
    """Describe the change in the metadata that assignments depend on; empty if there is none."""
    if known.draining != member.draining:
        return f"{member.member_id} is {'' if member.draining else 'no longer '}draining"
    before, after = {info.name: info for info in known.assignors}, {info.name: info for info in member.assignors}
    if known.server_assignor != member.server_assignor or before.keys() != after.keys():
        return f"{member.member_id} changed its assignors"
    for name, info in after.items():
        if info.reason != before[name].reason:
            asks = f"requests a rebalance (reason {info.reason})" if info.reason else "no longer requests a rebalance"
            return f"{member.member_id}: {name} {asks}"
    if known.assignors != member.assignors:
        return f"{member.member_id} changed its assignors' metadata"
    if known.traits != member.traits:
        return f"{member.member_id} changed its labels, rack, capacity or host"
    return ""


def store_statuses(draft: ConnectDraft, member_id: str, statuses: Iterable[TaskStatus]) -> None:
    """Store the statuses reported by the owner of a unit; a status of an earlier owner epoch is ignored.

    Sources: KAFKA-12525, WC-09.
    """
    rejected: list[TaskStatus] = []
    for status in statuses:
        unit = Unit(status.connector, status.task)
        if status.state not in tuple(UnitState):
            allowed = ", ".join(f"{state} {state.name.lower()}" for state in UnitState)
            raise InvalidRequest(f"Statuses.State: got {status.state}; allowed: {allowed}")
        record = StatusRecord(
            group_id=draft.group.group_id,
            connector=status.connector,
            task=status.task,
            member_id=member_id,
            owner_epoch=status.owner_epoch,
            state=UnitState(status.state),
            message=printable(status.message, limit=500),
            at_ms=draft.now_ms,
            fenced=status.fenced,
            idle_ms=max(0, status.idle_ms) if status.state == UnitState.STALLED else 0,
        )
        known = draft.group.statuses.get(unit)
        owner_epoch = draft.current(member_id).assigned.get(unit)
        if unit not in draft.group.runnable or owner_epoch != status.owner_epoch:
            continue
        is_known = known is not None and _has_reported(known, record)
        says_why = bool(record.message) and known is not None and known.state is UnitState.STARTING
        if record.state is UnitState.STARTING and is_known and not says_why:
            continue  # a late copy: a unit starts once under an owner epoch
        if known is None or replace(known, at_ms=record.at_ms) != record:
            draft.write(record)
        if status.fenced_by >= 0:
            rejected.append(status)
    issue_above(draft, rejected)


def _has_reported(known: StatusRecord, record: StatusRecord) -> bool:
    """Whether the sender has reported the unit under this owner epoch before."""
    return (known.member_id, known.owner_epoch) == (record.member_id, record.owner_epoch)


def replace_static_member(draft: ConnectDraft, former: MemberRecord, member_id: str) -> None:
    """Transfer the target assignment of a static member to the member that replaces it; remove the former (ST-02).

    No epoch advances, since the assignment does not change. The units are assigned at the target epoch, so a fencing
    token may be used a second time. That is safe only here: epoch -2 is sent after everything has stopped.
    """
    target = draft.target(former.member_id)
    draft.forget_member(former.member_id)
    if target != NO_TARGET:
        draft.set_target(member_id, target)


# --------------------------------------------------------------------------------------------------
# A member belongs to the process that joined, and to the principal of its connection (PD-15).
#
# Each worker process draws a random process id at its start and sends it with every request, on any connection. Who
# knows the id is not the member yet: the connection must be one of the principal that joined, too. Both are in the
# member's record, so the rule holds after a coordinator failover. A process id of -1 is unknown, and so is a principal
# of ``None``: a member without one (its record is of an earlier version) accepts every process or principal until it
# joins again.
#
# Requests of the classic protocol, except for JoinGroup and a worker's LeaveGroup, have no process id; their principal
# is checked all the same.


class ProcessEnded(NamedTuple):
    """An input of a group: the process that joined as a member has ended without a leave (PD-13).

    Attributes:
        process: the process that has ended; its id is not -1.
    """

    member_id: str
    process: Process


class FromProcess(Protocol):
    """A request that has a process id."""

    @property
    def process_id(self) -> int: ...


def sender_of(request: FromProcess, client: ClientInfo) -> Process:
    """The process that sends a request, or the heartbeat in a JoinGroup or LeaveGroup."""
    return Process(request.process_id, client.principal)


def check_process(group: ConnectGroupState, member_id: str, sender: Process) -> None:
    """Check that a request of a member was sent by the process that joined as the member.

    Raises:
        FencedInstanceId: the member belongs to another process. The sender must stop its units and end.
    """
    member = group.members.get(member_id)
    if member is not None and not group.process_of(member_id).accepts(sender):
        raise FencedInstanceId(
            f"MemberId: {printable(member_id)!r} belongs to {_other(member, sender)}, at {_address(member)}; "
            "this process must stop its units and end"
        )


def check_join(group: ConnectGroupState, member_id: str, sender: Process, settings: GroupSettings) -> None:
    """Check that a process may join as a member: no other process is the member now.

    The member is free once its process has left, has temporarily left (static member), or was removed. If the process
    is dead and no supervisor has reported it, its session expires.

    Raises:
        UnreleasedInstanceId: another process is the member. The sender retries until the member is free.
    """
    member = group.members.get(member_id)
    if member is None or group.process_of(member_id).accepts(sender) or group.current(member_id).temporarily_left:
        return
    raise UnreleasedInstanceId(
        f"MemberId: {printable(member_id)!r} is in use by {_other(member, sender)}, at {_address(member)}, until that "
        f"process leaves or sends no heartbeat for {settings.session_timeout_ms} ms; two workers cannot have one name"
    )


def _other(member: MemberRecord, sender: Process) -> str:
    is_principal = member.process_id in (-1, sender.process_id)
    return "a process of another principal" if is_principal else "another process"


def _address(member: MemberRecord) -> str:
    """Where the process of a member is: its network address, and the name of its machine if the member has sent one."""
    machine = f" ({printable(member.host)})" if member.host else ""
    return f"{printable(member.client_host) or 'an unknown address'}{machine}"


# --------------------------------------------------------------------------------------------------
# Leave and removal.


def leave(
    draft: ConnectDraft, request: HeartbeatRequest, settings: GroupSettings, client: ClientInfo
) -> Outcome[HeartbeatResponse]:
    """Process a leave.

    Epoch -1: the member leaves permanently, or another process that knows of its death reports it, with the process id
    of the dead process (PD-11).
    Epoch -2: a static member leaves temporarily (ST-01).
    Epoch -1 with ``returns``: the worker restarts and joins again under the same member id, so its units are delayed
    for it as for a lost worker.
    """
    group = draft.group
    check_exists(group)
    check_sender(group, request.member_id, request.instance_id)
    check_process(group, request.member_id, sender_of(request, client))
    if request.member_epoch == STATIC_LEAVE_EPOCH:
        timers: tuple[Timer, ...] = ()
        if not group.current(request.member_id).temporarily_left:
            leave_temporarily(draft, request.member_id)
            timers = (
                timing.cancel_rebalance(group.group_id, request.member_id),
                timing.session(group.group_id, request.member_id, settings.session_timeout_ms),
                # The member may have been the one chosen to compute.
                *ensure_computation(draft, settings),
            )
    else:
        cause = printable(request.cause, limit=200)
        why = cause or ("left to restart" if request.returns else "left")
        timers = remove_member(
            draft, request.member_id, f"{request.member_id} {why}", settings, returns=request.returns
        )
    response = HeartbeatResponse(
        member_epoch=request.member_epoch,
        heartbeat_interval_ms=settings.heartbeat_interval_ms,
        session_timeout_ms=settings.session_timeout_ms,
    )
    return draft.outcome(response, timers)


def remove_member(
    draft: ConnectDraft,
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
    member = draft.member(member_id)
    # A lost member may not have received the request; a member that leaves ends its process anyway.
    unserved = lost and member is not None and member.restart_requested and not member.draining
    draft.bump(cause, restart_request=member_id if unserved else "")
    kept = delay.delay_units(draft, member_id, settings, returns=returns) if lost or returns else ()
    draft.forget_member(member_id)
    return (*timing.cancel_member(draft.group_id, member_id), *kept, *ensure_computation(draft, settings))


def session_timed_out(draft: ConnectDraft, member_id: str, settings: GroupSettings) -> Outcome[None]:
    """No heartbeat within the session timeout. The timer of a removed member does nothing (KAFKA-8896)."""
    draft.silent_ms = _silent_ms(draft, member_id, settings.session_timeout_ms)
    silence = f"{settings.session_timeout_ms} ms"
    left = draft.group.current(member_id).temporarily_left
    why = f"did not return within {silence}" if left else f"was silent for {silence}"
    return _remove_lost(draft, member_id, why, settings)


def process_ended(draft: ConnectDraft, ended: ProcessEnded, settings: GroupSettings) -> Outcome[None]:
    """The process of a member has ended without a leave: the member is removed as after its session timeout (PD-13).

    This does nothing if the member has left or belongs to another process by now. A static member is removed if the
    scheduled rebalance delay keeps its units for it; without a delay, its session timeout is its time to return.
    """
    group = draft.group
    member = group.members.get(ended.member_id)
    if member is None or member.process_id == -1 or not group.process_of(ended.member_id).accepts(ended.process):
        return Outcome(response=None)
    kept_by_session = member.instance_id is not None and not settings.scheduled_delay_ms
    if kept_by_session or group.current(ended.member_id).temporarily_left:
        return Outcome(response=None)
    draft.silent_ms = _silent_ms(draft, ended.member_id, 0)
    return _remove_lost(draft, ended.member_id, "ended without leaving the group", settings)


def _silent_ms(draft: ConnectDraft, member_id: str, known_ms: int) -> int:
    """For how long a member has sent no heartbeat; ``known_ms``: to this coordinator, which may have started since."""
    return max(known_ms, draft.now_ms - draft.group.unheard.get(member_id, draft.now_ms))


def rebalance_timed_out(draft: ConnectDraft, member_id: str, settings: GroupSettings) -> Outcome[None]:
    """The member did not acknowledge a revocation within its rebalance timeout: fence it by a record (S14, TO-02)."""
    group, current = draft.group, draft.current(member_id)
    if member_id not in group.members or current.state != MemberState.UNREVOKED:
        return Outcome(response=None)
    timeout_ms = group.members[member_id].rebalance_timeout_ms
    return _remove_lost(draft, member_id, f"did not stop {show(current.pending)} within {timeout_ms} ms", settings)


def _remove_lost(draft: ConnectDraft, member_id: str, why: str, settings: GroupSettings) -> Outcome[None]:
    if member_id not in draft.group.members:
        return Outcome(response=None)
    return draft.outcome(None, remove_member(draft, member_id, f"{member_id} {why}", settings, lost=True))


def delay_over(draft: ConnectDraft, member_id: str, settings: GroupSettings) -> Outcome[None]:
    """A scheduled rebalance delay has expired: the delayed units may be assigned to other members."""
    return draft.outcome(None, ensure_computation(draft, settings) if delay.end(draft, member_id) else ())
