"""The timers of a connect group: their kinds, their timeouts, and the timers that are armed after loading."""

from __future__ import annotations

from dataclasses import replace

from ...protocol.records.connect import DelayRecord, MemberState
from ..kernel.deadlines import computation, compute, rebalance, revocation, session
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
        SESSION, DELAY and START: 0, because a heartbeat or a record replaces these timers, and no epoch does.
    """
    match key.kind:
        case TimerKind.COMPUTE:
            return computation(group)
        case TimerKind.REBALANCE:
            return revocation(group.current(key.member_id))
        case TimerKind.SESSION | TimerKind.DELAY | TimerKind.START:
            return 0


def delay(record: DelayRecord, now_ms: int) -> SetTimer:
    """Units are delayed until this fires."""
    return SetTimer(TimerKey(TimerKind.DELAY, record.group_id, record.member_id), record.left_ms(now_ms))


def cancel_delay(group_id: str, member_id: str) -> CancelTimer:
    """No units are delayed for this member any more."""
    return CancelTimer(TimerKey(TimerKind.DELAY, group_id, member_id))


def start(group_id: str, settings: GroupSettings) -> SetTimer:
    """Moves wait at most until this fires for units to start."""
    return SetTimer(TimerKey(TimerKind.START, group_id), settings.max_start_ms)


def cancel_start(group_id: str) -> CancelTimer:
    """No moves wait for units to start any more."""
    return CancelTimer(TimerKey(TimerKind.START, group_id))


def on_load(group: Group, now_ms: int, settings: GroupSettings) -> tuple[Timer, ...]:
    """The timers of a group after loading: a session timer for every member, a rebalance timer for UNREVOKED members
    only (TO-05), the time left of each delay (CN-11), and the limit on starts that moves wait for.
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
    if group.deferred_starts:
        timers.append(start(group.group_id, settings))
    if group.epoch > group.target_epoch and group.members:
        asked = group.computation
        chosen = group.members.get(asked.member_id) if asked else None
        timeout_ms = chosen.rebalance_timeout_ms if chosen else settings.session_timeout_ms
        timers.append(compute(group.group_id, group, timeout_ms))
    return tuple(timers)
