"""The timers of a connect group: their kinds, their timeouts, and the timers that are armed after loading."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol
from zlib import crc32

from ...protocol.records.connect import ComputationRecord, DelayRecord, MemberState, held
from ..kernel.current import Current
from ..kernel.timers import CancelTimer, SetTimer, Timer, TimerKey, TimerKind
from .settings import GroupSettings
from .state import Group

MIN_AFTER_LOAD_MS = 1_000
"""Lower bound on a delay after a load: a worker that has returned may be about to send its heartbeat, and a log that
cannot be written must not be loaded again and again at full speed."""


def belongs_to(group: Group, key: TimerKey) -> int:
    """The value of ``TimerKey.belongs_to`` if the timer were armed now.

    Returns:
        COMPUTE: the current computation (``computation``). REBALANCE: the pending revocation (``revocation``).
        SESSION and DELAY: 0, because a heartbeat or a record replaces these timers, and no epoch does.
    """
    match key.kind:
        case TimerKind.COMPUTE:
            return computation(group)
        case TimerKind.REBALANCE:
            return revocation(group.current(key.member_id))
        case TimerKind.SESSION | TimerKind.DELAY:
            return 0


class Computing(Protocol):
    """The state that identifies a computation; both a group and a draft provide it."""

    @property
    def target_epoch(self) -> int: ...
    @property
    def computation(self) -> ComputationRecord | None: ...


def computation(group: Computing) -> int:
    """A number that identifies the computation of the next target assignment: chosen member and attempt.

    The group epoch cannot identify it: a computation continues when the epoch advances (PD-06).
    """
    asked = group.computation
    if asked is None or asked.epoch <= group.target_epoch:
        return crc32(repr((group.target_epoch, "", 0)).encode())
    return crc32(repr((group.target_epoch, asked.member_id, asked.failures)).encode())


def revocation(current: Current) -> int:
    """A number that identifies a member's pending revocation; 0 if nothing is pending.

    The member epoch cannot identify it: it stays the same from one revocation to the next (CA-08). A unit is revoked
    once per owner epoch, so two revocations never have the same units and owner epochs.
    """
    return crc32(repr(held(current.pending)).encode()) if current.pending else 0


def session(group_id: str, member_id: str, settings: GroupSettings) -> SetTimer:
    """The session timeout: the member must send a heartbeat before this fires."""
    return SetTimer(TimerKey(TimerKind.SESSION, group_id, member_id), settings.session_timeout_ms)


def rebalance(group_id: str, member_id: str, current: Current, timeout_ms: int) -> SetTimer:
    """The member must acknowledge its pending revocation before this fires; armed only in UNREVOKED (TO-03)."""
    return SetTimer(TimerKey(TimerKind.REBALANCE, group_id, member_id, revocation(current)), timeout_ms)


def compute(group_id: str, group: Computing, timeout_ms: int) -> SetTimer:
    """The deadline of a computation: "the worker should finish the assignment within
    rebalance.timeout.ms".
    """
    return SetTimer(TimerKey(TimerKind.COMPUTE, group_id, belongs_to=computation(group)), timeout_ms)


def delay(record: DelayRecord, now_ms: int) -> SetTimer:
    """Units are delayed until this fires."""
    return SetTimer(TimerKey(TimerKind.DELAY, record.group_id, record.member_id), record.left_ms(now_ms))


def cancel_rebalance(group_id: str, member_id: str) -> CancelTimer:
    """The member has no pending revocation any more."""
    return CancelTimer(TimerKey(TimerKind.REBALANCE, group_id, member_id))


def cancel_delay(group_id: str, member_id: str) -> CancelTimer:
    """No units are delayed for this member any more."""
    return CancelTimer(TimerKey(TimerKind.DELAY, group_id, member_id))


def cancel_member(group_id: str, member_id: str) -> tuple[CancelTimer, ...]:
    """Cancel the timers of a removed member."""
    return (
        CancelTimer(TimerKey(TimerKind.SESSION, group_id, member_id)),
        cancel_rebalance(group_id, member_id),
    )


def on_load(group: Group, now_ms: int, settings: GroupSettings) -> tuple[Timer, ...]:
    """The timers of a group after loading: a session timer for every member, a rebalance timer for UNREVOKED members
    only (TO-05), and the time left of each delay (CN-11).
    """
    timers: list[Timer] = []
    for _, record in sorted(group.delays.items()):
        timer = delay(record, now_ms)
        max_ms = settings.scheduled_delay_ms if record.member_id else settings.max_delay_ms
        after_ms = max(min(timer.after_ms, max_ms), MIN_AFTER_LOAD_MS)
        timers.append(replace(timer, after_ms=after_ms))
    for member_id in sorted(group.members):
        timers.append(session(group.group_id, member_id, settings))
        current = group.current(member_id)
        if current.state == MemberState.UNREVOKED:
            timers.append(rebalance(group.group_id, member_id, current, group.members[member_id].rebalance_timeout_ms))
    if group.epoch > group.target_epoch and group.members:
        asked = group.computation
        chosen = group.members.get(asked.member_id) if asked else None
        timeout_ms = chosen.rebalance_timeout_ms if chosen else settings.session_timeout_ms
        timers.append(compute(group.group_id, group, timeout_ms))
    return tuple(timers)
