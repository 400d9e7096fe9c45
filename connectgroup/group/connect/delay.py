"""Scheduled rebalance delay: the units of a lost worker are reserved for it until a recorded deadline.

A lost member (session expired, fenced, or rebalance timeout expired) may return soon. The units that it owned and that
its target assignment keeps are delayed until a deadline: they are assigned to no member, whatever an assignor returns,
so an assignor need not know about delays. The deadline is a record. A new coordinator continues with it, and neither
restarts the delay nor drops it, as the leader of Kafka Connect does. An assignor that needs a delay of its own requests
it in its result.

Source: "Connect on the new protocol", "Triggering Rebalances"; KIP-415, ``scheduled.rebalance.max.delay.ms``;
PD-08; S15, CN-11, L8.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import replace
from zlib import crc32

from ...protocol.messages.assignment import DelayedUnits
from ...protocol.messages.common import grouped, units_of
from ...protocol.messages.describe import DelayedUntil
from ...protocol.records.base import Kind
from ...protocol.records.connect import DelayRecord, MemberRecord
from ...protocol.units import NO_UNITS, Units
from ..kernel.outcome import CancelTimer, SetTimer, Timer, TimerKey, TimerKind
from ..kernel.state import Target
from .settings import GroupSettings
from .state import ConnectDraft, ConnectGroupState

MIN_DELAY_MS = 1_000
"""Lower bound on the delay an assignor requests; shorter delays are raised to it."""

MIN_AFTER_LOAD_MS = 1_000
"""Lower bound on a delay after a load: a worker that has returned may be about to send its heartbeat, and a log that
cannot be written must not be loaded again and again at full speed."""


def delay_timer(record: DelayRecord, now_ms: int) -> SetTimer:
    """Units are delayed until this fires."""
    return SetTimer(TimerKey(TimerKind.DELAY, record.group_id, record.member_id), record.left_ms(now_ms))


def cancel_delay(group_id: str, member_id: str) -> CancelTimer:
    """No units are delayed for this member any more."""
    return CancelTimer(TimerKey(TimerKind.DELAY, group_id, member_id))


def timers_after_load(group: ConnectGroupState, now_ms: int, settings: GroupSettings) -> Iterator[Timer]:
    """The time left of each delay (CN-11)."""
    for _, record in sorted(group.delays.items()):
        timer = delay_timer(record, now_ms)
        max_ms = settings.scheduled_delay_ms if record.member_id else settings.max_delay_ms
        yield replace(timer, after_ms=max(min(timer.after_ms, max_ms), MIN_AFTER_LOAD_MS))


def delay_units(
    draft: ConnectDraft, member_id: str, settings: GroupSettings, *, returns: bool = False
) -> tuple[Timer, ...]:
    """Delay the units of a member that is about to be removed. Call it after the group epoch has been advanced.

    Only units that are in both the current and the target assignment are delayed: a unit that the member has not
    started yet has no downtime, and a unit with a pending revocation goes to another member. Nothing is delayed if no
    other member is left, since no move back and forth could be avoided, nor for a member that had temporarily left,
    whose session timeout was its delay, nor for a draining member, which was leaving.

    Args:
        returns: the member announced that it joins again (a restart). Its units are delayed even if no other member is
            left: others may be restarting at the same time, and the first to return must not be assigned the units of
            all.
    """
    member, current, target = draft.member(member_id), draft.current(member_id), draft.target(member_id)
    others = draft.any_member(
        lambda other: other.member_id != member_id and not draft.current(other.member_id).temporarily_left
    )
    units = current.assigned.keys() & target.units & draft.group.runnable.keys()
    if not settings.scheduled_delay_ms or member is None or not (others or returns) or not units:
        return ()
    if current.temporarily_left or member.draining:
        return ()
    record = DelayRecord(
        group_id=draft.group.group_id,
        member_id=member_id,
        instance_id=member.instance_id,
        units=grouped(units),
        error=target.error,
        version=target.version,
        metadata=target.metadata,
        delay_ms=settings.scheduled_delay_ms,
        deadline_ms=draft.now_ms + settings.scheduled_delay_ms,
        epoch=draft.epoch,
        said=_fingerprint(member),
    )
    draft.write(record)
    return (delay_timer(record, draft.now_ms),)


def _fingerprint(member: MemberRecord) -> int:
    return crc32(repr((member.assignors, member.server_assignor, member.traits)).encode())


def delays_for(draft: ConnectDraft, member: MemberRecord) -> tuple[DelayRecord, ...]:
    """The delays whose units are reserved for a joining member, by its member id or its group instance id.

    There are several if two workers were lost and one returns with the id of the first and the instance id of the
    second.
    """
    return tuple(
        delay
        for delay in draft.delays.values()
        if delay.member_id == member.member_id
        or (delay.instance_id is not None and delay.instance_id == member.instance_id)
    )


def restore_units(draft: ConnectDraft, delay: DelayRecord, member: MemberRecord) -> tuple[Timer, ...]:
    """Restore a returning member's target assignment without an assignor, if nothing else has changed since (L8).

    All other units must be assigned or delayed: the target assignment becomes the current one (S9).

    Otherwise the join is one more cause to compute. The input of the assignor then shows the delayed units as the
    member's own, and the delay ends with the next target assignment.
    """
    group = draft.group
    if delay.epoch != group.epoch or group.epoch != group.target_epoch:
        return ()
    if _fingerprint(member) != delay.said or member.draining:
        return ()
    delayed = NO_UNITS.union(*(draft.waiting(other) for other in draft.delays.values()))
    if group.runnable.keys() - draft.placed() - delayed:
        # The last member left before the units of a former one were assigned again; an empty group computes nothing.
        return ()
    draft.forget(Kind.DELAY, delay.member_id)
    units = draft.waiting(delay)
    target = Target(units=units, error=delay.error, version=delay.version, metadata=delay.metadata)
    draft.set_target(member.member_id, target)
    for other in list(draft.delays.values()):
        # These members can still be restored in the same way: only returns have happened since.
        if other.epoch == group.epoch:
            draft.write(replace(other, epoch=draft.epoch))
    draft.raise_target()
    return (cancel_delay(group.group_id, delay.member_id),)


def after_install(
    draft: ConnectDraft, asked: Units, delay_ms: int, *, epoch: int, served: Container[str] | None
) -> tuple[Timer, ...]:
    """End the delays of members that returned and are in the new target; start the delay that the assignor requests.

    A deadline is never extended: an assignor that requests a delay for the same units again keeps the old deadline.

    Args:
        epoch: the target epoch.
        served: the members whose return the target assignment takes into account; ``None``: all.
    """
    group_id = draft.group.group_id
    timers: list[Timer] = []
    for delay in list(draft.delays.values()):
        if delay.member_id and draft.is_back(delay, served):
            draft.forget(Kind.DELAY, delay.member_id)
            timers.append(cancel_delay(group_id, delay.member_id))
    before = draft.delays.get("")
    # Units of a lost worker are covered by the delay of that worker.
    held = asked - draft.lost_units(served)
    if delay_ms:
        # An assignor that always requests another computation must not keep the group busy with nothing else (L2).
        delay_ms = max(delay_ms, MIN_DELAY_MS)
        record = DelayRecord(
            group_id=group_id,
            units=grouped(held),
            delay_ms=delay_ms,
            deadline_ms=draft.now_ms + delay_ms,
            epoch=epoch,
        )
        if before is not None and held and held <= units_of(before.units):
            record = replace(record, deadline_ms=min(record.deadline_ms, before.deadline_ms))
        draft.write(record)
        timers.append(delay_timer(record, draft.now_ms))
    elif before is not None:
        draft.forget(Kind.DELAY, "")
        timers.append(cancel_delay(group_id, ""))
    return tuple(timers)


def end(draft: ConnectDraft, member_id: str) -> bool:
    """End a delay whose deadline has passed: advance the group epoch unless all of its units are assigned already.

    Returns:
        Whether a new target assignment is needed.
    """
    delay = draft.delays.get(member_id)
    if delay is None:
        return False
    is_back = bool(member_id) and draft.waiting_member(delay) is not None
    units = draft.waiting(delay)
    draft.forget(Kind.DELAY, member_id)
    if not member_id:
        draft.bump("the delay requested by the assignor has elapsed")
    elif units and not is_back:
        draft.bump(f"{member_id} did not return within {delay.delay_ms} ms")
    elif draft.epoch == draft.target_epoch and units - draft.placed():
        # The member has returned, and no assignor has assigned its delayed units since.
        draft.bump(f"the delayed units of {member_id} are not assigned")
    else:
        return False
    return True


def described_delays(draft: ConnectDraft) -> tuple[DelayedUnits, ...]:
    """The delayed units, as shown to assignors and in descriptions."""
    return tuple(
        DelayedUnits(
            member_id=delay.member_id,
            instance_id=delay.instance_id,
            left_ms=delay.left_ms(draft.now_ms),
            units=grouped(draft.waiting(delay)),
        )
        for _, delay in sorted(draft.delays.items())
        if not delay.member_id or draft.waiting_member(delay) is None
    )


def delayed_until(draft: ConnectDraft, max_units: int) -> Iterator[DelayedUntil]:
    """The delayed units with their deadlines, for the explanation of a rebalance.

    Args:
        max_units: upper bound on the units listed for each delay: a record must fit into a batch.
    """
    for _, delay in sorted(draft.delays.items()):
        units = sorted(draft.waiting(delay))
        if units:
            yield DelayedUntil(
                member_id=delay.member_id,
                until_ms=delay.deadline_ms,
                count=len(units),
                units=grouped(units[:max_units]),
            )
