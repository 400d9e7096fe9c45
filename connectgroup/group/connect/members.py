"""What a heartbeat reports about its member, as records: metadata and the statuses of its units."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple, Protocol

from ...errors import FencedInstanceId, InvalidRequest, UnreleasedInstanceId
from ...protocol.messages.heartbeat import TaskStatus
from ...protocol.records.connect import MemberRecord, StatusRecord, UnitState
from ...protocol.units import Unit, printable
from ..kernel.selection import check_assignors
from ..kernel.static import Process, after_temporary_leave
from ..registry import Client
from . import validate
from .overlay import Overlay, issue_above
from .settings import GroupSettings
from .state import NO_TARGET, Group


def store_member(
    overlay: Overlay, member: MemberRecord, settings: GroupSettings, *, before: MemberRecord | None, joins: str = ""
) -> None:
    """Store a member's metadata; advance the group epoch if target assignments may depend on the change.

    Args:
        before: the former record of the member, or of the static member that it replaces; ``None`` if it has none.
        joins: the rebalance cause to record if there is no former record.

    Source, "Worker Group": a new worker joins; a worker updates its assignors; its assignors' reason or metadata.
    """
    if overlay.member(member.member_id) == member:
        return
    check_assignors(member, overlay.listings(without=member.member_id), settings.server_assignors)
    validate.all_metadata(member, overlay.metadata_bytes(without=member.member_id))
    cause = joins if before is None else _what_changed(before, member)
    if not member.joined_epoch:
        member = replace(member, joined_epoch=overlay.next_epoch if cause else overlay.epoch)
    overlay.write(member)
    if cause:
        overlay.bump(cause)


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


def store_statuses(overlay: Overlay, member_id: str, statuses: Iterable[TaskStatus]) -> None:
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
            group_id=overlay.group.group_id,
            connector=status.connector,
            task=status.task,
            member_id=member_id,
            owner_epoch=status.owner_epoch,
            state=UnitState(status.state),
            message=printable(status.message, limit=500),
            at_ms=overlay.now_ms,
            fenced=status.fenced,
        )
        known = overlay.group.statuses.get(unit)
        owner_epoch = overlay.current(member_id).assigned.get(unit)
        if unit not in overlay.group.runnable or owner_epoch != status.owner_epoch:
            continue
        if record.state is UnitState.STARTING and _has_reported(known, record):
            continue  # a late copy: a unit starts once under an owner epoch
        if known is None or replace(known, at_ms=record.at_ms) != record:
            overlay.write(record)
        if status.fenced_by >= 0:
            rejected.append(status)
    issue_above(overlay, rejected)


def _has_reported(known: StatusRecord | None, record: StatusRecord) -> bool:
    """Whether the sender has reported the unit under this owner epoch before."""
    return known is not None and (known.member_id, known.owner_epoch) == (record.member_id, record.owner_epoch)


# --------------------------------------------------------------------------------------------------
# Static membership (``group.instance.id``): a worker that restarts keeps its tasks.
#
# The rules that do not depend on the group type, and their source, are in ``kernel.static``. Of a worker, epoch -2 also
# reports that all of its units have stopped (CN-12).


def replace_static_member(overlay: Overlay, former: MemberRecord, member_id: str) -> None:
    """Transfer the target assignment of a static member to the member that replaces it; remove the former (ST-02).

    No epoch advances, since the assignment does not change. The units are assigned at the target epoch, so a fencing
    token may be used a second time. That is safe only here: epoch -2 is sent after everything has stopped.
    """
    share = overlay.target(former.member_id)
    overlay.forget_member(former.member_id)
    if share != NO_TARGET:
        overlay.set_share(member_id, share)


def leave_temporarily(overlay: Overlay, member_id: str) -> None:
    """Write that the member runs no units, and that the units in its target assignment are kept for it (ST-01)."""
    left = after_temporary_leave(overlay.current(member_id), overlay.target(member_id).units)
    overlay.set_current(member_id, left)


def release_for_others(overlay: Overlay, member_id: str) -> None:
    """Release the units that a new target assignment takes from a temporarily left member.

    None of its units runs, so no acknowledgement is needed.
    """
    current, share = overlay.current(member_id), overlay.target(member_id)
    kept = {unit: epoch for unit, epoch in current.assigned.items() if unit in share.units}
    if current.temporarily_left and kept != current.assigned:
        overlay.set_current(member_id, replace(current, assigned=kept))


# --------------------------------------------------------------------------------------------------
# A member belongs to the process that joined, and to the principal of its connection (PD-15).
#
# Each worker process draws a random process id at its start and sends it with every request, on any connection. Who
# knows the id is not the member yet: the connection must be one of the principal that joined, too. Both are in the
# member's record, so the rule holds after a coordinator failover. A process id of -1 or a principal of null is unknown:
# a member without one (its record is of an earlier version) accepts every process or principal until it joins again.
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


def sender_of(request: FromProcess, client: Client) -> Process:
    """The process that sends a request, or the heartbeat in a JoinGroup or LeaveGroup."""
    return Process(request.process_id, client.principal)


def check_process(group: Group, member_id: str, sender: Process) -> None:
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


def check_join(group: Group, member_id: str, sender: Process, settings: GroupSettings) -> None:
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
