"""What a heartbeat reports about its member, as records: metadata and the statuses of its units."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ...errors import InvalidRequest
from ...protocol.messages.heartbeat import TaskStatus
from ...protocol.records.connect import MemberRecord, StatusRecord, UnitState
from ...protocol.units import Unit, printable
from ..kernel.selection import check_assignors
from . import validate
from .older_log import issue_above
from .overlay import Overlay
from .settings import GroupSettings


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
